/* SPDX-License-Identifier: Apache-2.0 */
/* Adds array leaves to a batch that is being described. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <headrace/batch.h>

#include "base/base.h"
#include "base/error.h"
#include "batch/packed.h"
#include "batch/shape.h"
#include "batch/writer.h"

/*
 * A leaf is added in three steps: its sources and the leaf are written to free room in their buffers, then the array's
 * node is added, and only if that succeeded is the room taken. So a failure adds nothing.
 */
struct rooms {
    uint64_t leaves, sources, dims, filled_bytes;
};

static void take_rooms(hr_batch *batch, const struct rooms *rooms) {
    batch->leaf_count += rooms->leaves;
    batch->source_count += rooms->sources;
    batch->dim_count += rooms->dims;
    batch->leaves.used += rooms->leaves * sizeof(struct hr__leaf);
    batch->sources.used += rooms->sources * sizeof(struct hr__source);
    batch->dims.used += rooms->dims * sizeof(struct hr__dim);
    batch->filled.used += rooms->filled_bytes;
    batch->total_bytes = 0;
}

static int put_leaf(hr_batch *batch, const struct hr__leaf *leaf, struct rooms *rooms) {
    struct hr__leaf *room = hr__buffer_room(&batch->leaves, sizeof *room);
    if (!room) return -ENOMEM;
    *room = *leaf;
    rooms->leaves = 1;
    return 0;
}

/* An array whose size and strides have been checked. */
struct checked {
    struct hr__size size;
    struct hr__span span;
    int64_t strides[HR_BATCH_MAX_NDIM];
};

static int check_array(const struct hr_array *array, struct checked *checked) {
    int r = hr__array_size(array->dtype, array->ndim, array->shape, &checked->size);
    if (r < 0) return r;
    if (array->strides && array->ndim)
        memcpy(checked->strides, array->strides, array->ndim * sizeof *array->strides);
    else
        hr__c_strides(array->ndim, array->shape, checked->strides);
    return hr__array_span(array->ndim, array->shape, checked->strides, &checked->size, &checked->span);
}

static int check_data(const struct hr_array *array, const struct hr__size *size) {
    if (array->data || !size->bytes) return 0;
    char text[160];
    return hr__fail(-EINVAL, "batch: the data of an array, %s, is NULL; give its first element",
                    hr__array_text(array, text, sizeof text));
}

/* A dense array keeps its strides. The stride of a dimension of size 1 may be any number: if it cannot be a stride of
 * this array, it is replaced by that of C order. */
static void keep_strides(const struct hr_array *array, struct checked *checked) {
    int64_t c_strides[HR_BATCH_MAX_NDIM];
    hr__c_strides(array->ndim, array->shape, c_strides);
    if (!checked->size.elements) memcpy(checked->strides, c_strides, array->ndim * sizeof *c_strides);
    for (uint32_t d = 0; d < array->ndim; d++) {
        bool is_odd = checked->strides[d] < 1 || (uint64_t)checked->strides[d] > checked->size.elements;
        if (array->shape[d] == 1 && is_odd) checked->strides[d] = c_strides[d];
    }
}

/* Adds a source of one run after the others. NULL: -ENOMEM. */
static struct hr__source *put_source(hr_batch *batch, const void *data, uint64_t bytes, struct rooms *rooms) {
    struct hr__source *sources = hr__buffer_room(&batch->sources, (rooms->sources + 1) * sizeof *sources);
    if (!sources) return NULL;
    struct hr__source *source = &sources[rooms->sources++];
    *source = (struct hr__source){.data = data, .run_bytes = bytes, .bytes = bytes};
    return source;
}

static int put_run(hr_batch *batch, const void *data, uint64_t bytes, struct rooms *rooms) {
    return put_source(batch, data, bytes, rooms) ? 0 : -ENOMEM;
}

/* Adds an array as a source that writes it in C order. */
static int put_strided(hr_batch *batch, const struct hr_array *array, const struct checked *checked,
                       struct rooms *rooms) {
    struct hr__dim *dims = hr__buffer_room(&batch->dims, (rooms->dims + array->ndim) * sizeof *dims);
    struct hr__source *source = put_source(batch, array->data, checked->size.bytes, rooms);
    if (!dims || !source) return -ENOMEM;
    if (!checked->size.bytes) return 0;
    hr__collapse(array->ndim, array->shape, checked->strides, checked->size.item_bytes, dims + rooms->dims, source);
    source->dim_first = batch->dim_count + rooms->dims;
    rooms->dims += source->dim_count;
    return 0;
}

static int add_leaf(hr_batch *batch, struct hr__leaf *leaf, struct hr__array_entry *entry, struct rooms *rooms) {
    int r = put_leaf(batch, leaf, rooms);
    if (r < 0) return r;
    entry->leaf = batch->leaf_count;
    entry->leaf_bytes = leaf->bytes;
    r = hr__tree_add_array(batch, entry);
    if (r < 0) return r;
    take_rooms(batch, rooms);
    return 0;
}

int hr_batch_add_array(hr_batch *batch, enum hr_flavor flavor, const struct hr_array *array) {
    struct checked checked;
    struct rooms rooms = {0};
    int r = check_array(array, &checked);
    if (r < 0) return r;
    r = check_data(array, &checked.size);
    if (r < 0) return r;

    if (hr__is_dense(array->ndim, array->shape, checked.strides)) {
        r = put_run(batch, array->data, checked.size.bytes, &rooms);
        keep_strides(array, &checked);
    } else {
        r = put_strided(batch, array, &checked, &rooms);
        hr__c_strides(array->ndim, array->shape, checked.strides);
    }
    if (r < 0) return r;

    struct hr__leaf leaf = {.bytes = checked.size.bytes, .first = batch->source_count, .source_count = 1};
    struct hr__array_entry entry = {flavor, array->dtype, array->ndim, array->shape, checked.strides, 0, 0, 0, false};
    return add_leaf(batch, &leaf, &entry, &rooms);
}

static bool same_shape(const struct hr_array *a, const struct hr_array *b) {
    if (a->dtype.code != b->dtype.code || a->dtype.bits != b->dtype.bits || a->dtype.lanes != b->dtype.lanes)
        return false;
    return a->ndim == b->ndim && (!a->ndim || !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape));
}

static int differ(const struct hr_array *arrays, uint32_t i) {
    char first[160], other[160];
    return hr__fail(-EINVAL,
                    "batch: cannot stack array %" PRIu32 ", %s, on array 0, %s; make all samples the same dtype and "
                    "shape (resize, crop or pad them), or collate them yourself",
                    i, hr__array_text(&arrays[i], other, sizeof other),
                    hr__array_text(&arrays[0], first, sizeof first));
}

/* Adds one array of a stack. `c_strides` are the C-order strides of the stack's arrays. */
static int put_stacked(hr_batch *batch, const struct hr_array *array, const struct hr__size *size,
                       const int64_t *c_strides, struct rooms *rooms) {
    int r = check_data(array, size);
    if (r < 0) return r;
    if (!array->ndim || !array->strides || !memcmp(array->strides, c_strides, array->ndim * sizeof *c_strides))
        return put_run(batch, array->data, size->bytes, rooms);

    struct checked checked;
    r = check_array(array, &checked);
    return r < 0 ? r : put_strided(batch, array, &checked, rooms);
}

int hr_batch_add_stack(hr_batch *batch, enum hr_flavor flavor, const struct hr_array *arrays, uint32_t count) {
    if (!count) return hr__fail(-EINVAL, "batch: a stack of no arrays; give at least one");
    uint32_t ndim = arrays->ndim;
    if (ndim >= HR_BATCH_MAX_NDIM)
        return hr__fail(-EINVAL, "batch: a stack of arrays of %" PRIu32 " dimensions; reshape them to fewer than %d",
                        ndim, HR_BATCH_MAX_NDIM);

    int64_t shape[HR_BATCH_MAX_NDIM], strides[HR_BATCH_MAX_NDIM];
    shape[0] = count;
    if (ndim) memcpy(shape + 1, arrays->shape, ndim * sizeof *shape);
    struct hr__size size, whole;
    int r = hr__array_size(arrays->dtype, ndim, arrays->shape, &size);
    if (r >= 0) r = hr__array_size(arrays->dtype, ndim + 1, shape, &whole);
    if (r < 0) return r;
    hr__c_strides(ndim + 1, shape, strides);

    struct rooms rooms = {0};
    for (uint32_t i = 0; i < count; i++) {
        if (!same_shape(&arrays[i], arrays)) return differ(arrays, i);
        r = put_stacked(batch, &arrays[i], &size, strides + 1, &rooms);
        if (r < 0) return r;
    }
    struct hr__leaf leaf = {.bytes = whole.bytes, .first = batch->source_count, .source_count = count};
    struct hr__array_entry entry = {flavor, arrays->dtype, ndim + 1, shape, strides, 0, 0, 0, false};
    return add_leaf(batch, &leaf, &entry, &rooms);
}

/* Returns whether two arrays have the same dtype, and the same shape apart from the first dimension. */
static bool can_join(const struct hr_array *a, const struct hr_array *b) {
    struct hr_array one = *a, other = *b;
    if (a->ndim != b->ndim) return false;
    one.shape++;
    other.shape++;
    one.ndim = other.ndim = a->ndim - 1;
    return same_shape(&one, &other);
}

/* Adds one array of those that are joined, and its size of the first dimension to `*total`. */
static int put_joined(hr_batch *batch, const struct hr_array *arrays, uint32_t i, struct rooms *rooms, int64_t *total) {
    const struct hr_array *array = &arrays[i];
    char first[160], other[160];
    struct checked checked;
    if (!can_join(array, arrays))
        return hr__fail(-EINVAL,
                        "batch: cannot join array %" PRIu32 ", %s, to array 0, %s; make all arrays the same dtype, and "
                        "the same shape apart from the first dimension",
                        i, hr__array_text(array, other, sizeof other), hr__array_text(arrays, first, sizeof first));
    int r = check_array(array, &checked);
    if (r >= 0) r = check_data(array, &checked.size);
    if (r < 0) return r;
    if (__builtin_add_overflow(*total, array->shape[0], total))
        return hr__fail(-EOVERFLOW, "batch: %" PRIu32 " arrays are too long together; join fewer", i + 1);
    int64_t c_strides[HR_BATCH_MAX_NDIM];
    hr__c_strides(array->ndim, array->shape, c_strides);
    bool is_run = !memcmp(checked.strides, c_strides, array->ndim * sizeof *c_strides);
    return is_run ? put_run(batch, array->data, checked.size.bytes, rooms) : put_strided(batch, array, &checked, rooms);
}

int hr_batch_add_joined(hr_batch *batch, enum hr_flavor flavor, const struct hr_array *arrays, uint32_t count) {
    if (!count || !arrays->ndim)
        return hr__fail(-EINVAL, "batch: there are no arrays with a first dimension to join; give at least one");
    struct rooms rooms = {0};
    int64_t total = 0, shape[HR_BATCH_MAX_NDIM], strides[HR_BATCH_MAX_NDIM];
    for (uint32_t i = 0; i < count; i++) {
        int r = put_joined(batch, arrays, i, &rooms, &total);
        if (r < 0) return r;
    }
    uint32_t ndim = arrays->ndim;
    memcpy(shape, arrays->shape, ndim * sizeof *shape);
    shape[0] = total;
    struct hr__size size;
    int r = hr__array_size(arrays->dtype, ndim, shape, &size);
    if (r < 0) return r;
    hr__c_strides(ndim, shape, strides);
    struct hr__leaf leaf = {
        .bytes = size.bytes, .first = batch->source_count, .source_count = count, .is_joined = true};
    struct hr__array_entry entry = {flavor, arrays->dtype, ndim, shape, strides, 0, 0, 0, false};
    return add_leaf(batch, &leaf, &entry, &rooms);
}

int hr_batch_add_filled(hr_batch *batch, enum hr_flavor flavor, struct hr_dtype dtype, uint32_t ndim,
                        const int64_t *shape, void **ret_data) {
    struct checked checked;
    struct hr_array array = {.dtype = dtype, .ndim = ndim, .shape = shape};
    int r = check_array(&array, &checked);
    if (r < 0) return r;

    struct rooms rooms = {.filled_bytes = hr__round_up(
                              checked.size.bytes, 16)}; /* the alignment of malloc, which is enough for any dtype */
    void *data = hr__buffer_room(&batch->filled, rooms.filled_bytes);
    if (!data) return -ENOMEM;

    struct hr__leaf leaf = {.bytes = checked.size.bytes, .first = batch->filled.used, .is_filled = true};
    struct hr__array_entry entry = {flavor, dtype, ndim, shape, checked.strides, 0, 0, 0, false};
    r = add_leaf(batch, &leaf, &entry, &rooms);
    if (r < 0) return r;
    *ret_data = data;
    return 0;
}

int hr_batch_add_reserved(hr_batch *batch, enum hr_flavor flavor, struct hr_dtype dtype, uint32_t ndim,
                          const int64_t *shape, uint64_t *ret_place) {
    struct checked checked;
    struct hr_array array = {.dtype = dtype, .ndim = ndim, .shape = shape};
    int r = check_array(&array, &checked);
    if (r < 0) return r;
    uint64_t place = batch->leaf_count;
    struct hr__leaf leaf = {.bytes = checked.size.bytes, .is_reserved = true};
    struct hr__array_entry entry = {flavor, dtype, ndim, shape, checked.strides, 0, 0, 0, false};
    r = add_leaf(batch, &leaf, &entry, &(struct rooms){0});
    if (r < 0) return r;
    *ret_place = place;
    return 0;
}

int hr_batch_add_storage(hr_batch *batch, const void *data, uint64_t bytes, uint32_t *ret_storage) {
    if (bytes > INT64_MAX) return hr__fail(-EOVERFLOW, "batch: a storage of %" PRIu64 " bytes; check its size", bytes);
    if (bytes && !data) return hr__fail(-EINVAL, "batch: the data of a storage is NULL; give its first byte");
    if (batch->leaf_count > UINT32_MAX)
        return hr__fail(-EINVAL, "batch: more than 2^32 leaves before a storage; add storages first");

    struct rooms rooms = {0};
    int r = put_run(batch, data, bytes, &rooms);
    if (r < 0) return r;
    struct hr__leaf leaf = {.bytes = bytes, .first = batch->source_count, .source_count = 1, .is_storage = true};
    r = put_leaf(batch, &leaf, &rooms);
    if (r < 0) return r;
    *ret_storage = (uint32_t)batch->leaf_count;
    take_rooms(batch, &rooms);
    return 0;
}

int hr_batch_add_view(hr_batch *batch, enum hr_flavor flavor, uint32_t storage, uint64_t offset_bytes,
                      const struct hr_array *array) {
    if (storage >= batch->leaf_count || !hr__leaf_at(batch, storage)->is_storage)
        return hr__fail(-EINVAL,
                        "batch: no storage %" PRIu32 "; give what hr_batch_add_storage returned since the "
                        "last reset",
                        storage);
    struct checked checked;
    int r = check_array(array, &checked);
    if (r < 0) return r;

    uint64_t storage_bytes = hr__leaf_at(batch, storage)->bytes;
    char text[160];
    if (!hr__span_fits(&checked.span, offset_bytes, storage_bytes))
        return hr__fail(-EINVAL,
                        "batch: a view of %s at byte %" PRIu64 " leaves its storage of %" PRIu64 " bytes; "
                        "check its strides and offset",
                        hr__array_text(array, text, sizeof text), offset_bytes, storage_bytes);
    struct hr__array_entry entry = {flavor,  array->dtype,  array->ndim,  array->shape, checked.strides,
                                    storage, storage_bytes, offset_bytes, true};
    return hr__tree_add_array(batch, &entry);
}

int hr_batch_add_packed(hr_batch *batch, enum hr_flavor flavor, enum hr_packed_part part,
                        const struct hr_array *documents, uint32_t count) {
    if ((unsigned)part >= HR_PACKED_PART_END_)
        return hr__fail(-EINVAL, "batch: there is no part %d of a packed batch", (int)part);
    int64_t total = hr__packed_count(documents, count);
    if (total < 0) return (int)total;
    bool is_starts = part == HR_PACKED_STARTS;
    struct hr_dtype dtype = {0, is_starts || part == HR_PACKED_NUMBERS ? 32 : 64, 1};
    int64_t shape[] = {is_starts ? (int64_t)count + 1 : 1, total}, strides[2];
    uint32_t ndim = is_starts ? 1 : 2;
    struct hr__size size;
    int r = hr__array_size(dtype, ndim, shape, &size);
    if (r < 0) return r;
    hr__c_strides(ndim, shape, strides);
    struct hr__leaf leaf = {.bytes = size.bytes, .source_count = count, .documents = documents, .part = part};
    struct hr__array_entry entry = {flavor, dtype, ndim, shape, strides, 0, 0, 0, false};
    return add_leaf(batch, &leaf, &entry, &(struct rooms){0});
}
