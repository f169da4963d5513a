/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/freeze.h"

#include <string.h>

/*
 * Arrays in which several places are the same element: broadcast and expanded arrays, sliding windows. Their elements
 * are written once, with strides.
 *
 * Dimensions whose steps lead to each other's places are one axis of the memory: two dimensions of the same stride, or
 * one whose stride is a multiple of the other's stride and not longer than the range that the other covers. The
 * elements of all axes are written, in C order and without gaps. So only elements that the array reaches are written,
 * however large the memory is of which it is a view.
 */

/* An axis of the memory: `count` elements, `step` bytes from one to the next. */
struct axis {
    uint64_t step, count;
};

struct axes {
    struct axis axis[HR_FROZEN_MAX_DIMENSIONS]; /* by step, the shortest first */
    int count;
    int of[HR_FROZEN_MAX_DIMENSIONS]; /* the axis of each dimension; -1: it takes no step */
};

static uint64_t step_of(const Py_buffer *view, int dimension) {
    Py_ssize_t stride = view->strides[dimension];
    return stride < 0 ? -(uint64_t)stride : (uint64_t)stride;
}

static bool is_still(const Py_buffer *view, int dimension) {
    return view->shape[dimension] == 1 || view->strides[dimension] == 0;
}

/* The dimensions that take steps, sorted by step, the shortest first. */
static int sort_dimensions(const Py_buffer *view, int *order) {
    int count = 0;
    for (int i = 0; i < view->ndim; i++) {
        int at = count;
        if (is_still(view, i)) continue;
        for (; at > 0 && step_of(view, order[at - 1]) > step_of(view, i); at--) order[at] = order[at - 1];
        order[at] = i;
        count++;
    }
    return count;
}

static void add_dimension(struct axes *axes, const Py_buffer *view, int dimension) {
    uint64_t step = step_of(view, dimension), more = (uint64_t)view->shape[dimension] - 1;
    int i = axes->count - 1;
    while (i >= 0 && (step % axes->axis[i].step || step / axes->axis[i].step > axes->axis[i].count)) i--;
    if (i < 0) {
        i = axes->count++;
        axes->axis[i] = (struct axis){.step = step, .count = 1};
    }
    axes->axis[i].count += more * (step / axes->axis[i].step);
    axes->of[dimension] = i;
}

/* Returns false if every place is an element of its own. */
static bool find_axes(const Py_buffer *view, struct axes *ret_axes) {
    int order[HR_FROZEN_MAX_DIMENSIONS], count = sort_dimensions(view, order);
    uint64_t places = 1, elements = 1;
    ret_axes->count = 0;
    for (int i = 0; i < view->ndim; i++) ret_axes->of[i] = -1;
    for (int i = 0; i < count; i++) add_dimension(ret_axes, view, order[i]);
    for (int i = 0; i < ret_axes->count; i++) elements *= ret_axes->axis[i].count;
    for (int i = 0; i < view->ndim; i++) places *= (uint64_t)view->shape[i];
    return elements < places;
}

/* Describes the memory as a buffer, the axis of the longest step first, and computes the stride of each axis in the
 * written elements. */
static void set_elements(const Py_buffer *view, const struct axes *axes, struct once *once, int64_t *ret_strides) {
    int64_t stride = 1;
    for (int i = 0; i < axes->count; i++) {
        int at = axes->count - 1 - i;
        once->shape[at] = (Py_ssize_t)axes->axis[i].count;
        once->steps[at] = (Py_ssize_t)axes->axis[i].step;
        ret_strides[i] = stride;
        stride *= once->shape[at];
    }
    once->elements = (Py_buffer){.buf = view->buf,
                                 .len = stride * view->itemsize,
                                 .itemsize = view->itemsize,
                                 .readonly = 1,
                                 .ndim = axes->count,
                                 .shape = once->shape,
                                 .strides = once->steps};
}

/* The stride of a dimension in the written elements. With a negative stride, the memory begins before the first element
 * of the array. */
static void set_dimension(const Py_buffer *view, const struct axes *axes, const int64_t *strides, int dimension,
                          struct once *once) {
    int axis = axes->of[dimension];
    Py_ssize_t last = view->shape[dimension] - 1;
    once->layout.dimensions[dimension] = (uint64_t)view->shape[dimension];
    once->layout.strides[dimension] = 0;
    if (axis < 0) return;
    int64_t stride = (int64_t)(step_of(view, dimension) / axes->axis[axis].step) * strides[axis];
    once->layout.strides[dimension] = view->strides[dimension] < 0 ? -stride : stride;
    if (view->strides[dimension] > 0) return;
    once->layout.first += (uint64_t)(last * stride);
    once->elements.buf = (char *)once->elements.buf + last * view->strides[dimension];
}

bool once_of(const Py_buffer *view, struct once *ret_once) {
    struct axes axes;
    int64_t strides[HR_FROZEN_MAX_DIMENSIONS];
    for (int i = 0; i < view->ndim; i++)
        if (view->shape[i] == 0) return false;
    if (!find_axes(view, &axes)) return false;
    set_elements(view, &axes, ret_once, strides);
    ret_once->layout = (struct hr_frozen_array){.item_bytes = (uint32_t)view->itemsize,
                                                .dimension_count = (uint32_t)view->ndim,
                                                .bytes = (uint64_t)ret_once->elements.len};
    for (int i = 0; i < view->ndim; i++) set_dimension(view, &axes, strides, i, ret_once);
    return true;
}

PyObject *once_key(const struct once *once) {
    const Py_buffer *elements = &once->elements;
    size_t part = (size_t)elements->ndim * sizeof(Py_ssize_t);
    PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizeof(void *) + sizeof(Py_ssize_t) + 2 * part));
    if (!key) return NULL;
    char *at = PyBytes_AS_STRING(key);
    memcpy(at, &elements->buf, sizeof(void *));
    memcpy(at + sizeof(void *), &elements->itemsize, sizeof(Py_ssize_t));
    at += sizeof(void *) + sizeof(Py_ssize_t);
    memcpy(at, once->shape, part);
    memcpy(at + part, once->steps, part);
    return key;
}
