/* SPDX-License-Identifier: Apache-2.0 */

/* Runs recipes without the GIL. */

#include "image/image.h"

#include <errno.h>

/* ---- scratch memory ---- */

enum { KEPT = 4 };

/* Memory that no run uses, protected by the GIL. A run takes one and puts it back, so that runs in several threads of
 * Python have one each, and a forked child finds only memory that was not in use. */
static hr_image_memory *kept[KEPT];

hr_image_memory *image_memory_take(void) {
    for (int i = 0; i < KEPT; i++) {
        hr_image_memory *memory = kept[i];
        kept[i] = NULL;
        if (memory) return memory;
    }
    hr_image_memory *memory;
    int r = hr_image_memory_new(&memory);
    return r < 0 ? core_raise(r) : memory;
}

void image_memory_keep(hr_image_memory *memory) {
    for (int i = 0; i < KEPT; i++) {
        if (kept[i]) continue;
        kept[i] = memory;
        return;
    }
    hr_image_memory_free(memory);
}

/* Runs the recipes, and returns the number of those that failed; negative with an exception. The GIL protects the
 * adoption of images after a fork. */
static int run(struct hr_image_recipe *recipes, size_t count, uint32_t threads) {
    int failed = 0;
    for (size_t i = 0; i < count && failed == 0; i++) failed = hr_image_adopt(recipes[i].image);
    if (failed < 0) core_raise(failed);
    hr_image_memory *memory = failed < 0 ? NULL : image_memory_take();
    if (!memory) return -1;
    Py_BEGIN_ALLOW_THREADS;
    failed = hr_images_run(memory, recipes, count, threads);
    Py_END_ALLOW_THREADS;
    image_memory_keep(memory);
    return failed;
}

/* ---- steps ---- */

static int set_steps(struct hr_image_recipe *recipe, PyObject *steps, PyObject *weights) {
    Py_ssize_t bytes = PyBytes_GET_SIZE(steps), step_bytes = (Py_ssize_t)sizeof(struct hr_image_step);
    if (bytes % step_bytes || bytes / step_bytes > 1000000) {
        PyErr_Format(PyExc_ValueError, "headrace: %zd bytes are not steps of %zd bytes", bytes, step_bytes);
        return -1;
    }
    recipe->steps = (const struct hr_image_step *)(const void *)PyBytes_AS_STRING(steps);
    recipe->step_count = (uint32_t)(bytes / step_bytes);
    recipe->weights = (const float *)(const void *)PyBytes_AS_STRING(weights);
    recipe->weight_count = (uint32_t)Py_MIN((size_t)PyBytes_GET_SIZE(weights) / sizeof(float), UINT32_MAX);
    return 0;
}

/* ---- one image as bytes ---- */

PyObject *image_pixels(PyObject *self, PyObject *arguments) {
    struct hr_image_recipe recipe = {.image = image_of(self), .item_bytes = 1};
    struct hr_image_size size;
    PyObject *steps, *weights;
    unsigned int layout;
    if (!PyArg_ParseTuple(arguments, "SSI:pixels", &steps, &weights, &layout)) return NULL;
    if (set_steps(&recipe, steps, weights) < 0) return NULL;
    recipe.layout = layout;
    int r = hr_image_measure(&recipe, &size);
    if (r < 0) return core_raise(r);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size.bytes);
    if (!bytes) return NULL;
    recipe.target = PyBytes_AS_STRING(bytes);
    recipe.target_bytes = size.bytes;
    int failed = run(&recipe, 1, 1);
    if (failed == 0) return bytes;
    Py_DECREF(bytes);
    if (failed < 0) return NULL;
    if (recipe.result == -EBADMSG) Py_RETURN_NONE;
    return core_raise(recipe.result);
}

/* ---- many images into memory ---- */

struct targets {
    struct hr_image_recipe *recipes;
    Py_buffer *buffers; /* the buffers of the targets */
    Py_ssize_t count;
};

static int set_table(struct hr_image_recipe *recipe, PyObject *table) {
    if (table == Py_None) return 0;
    if (!PyBytes_Check(table)) {
        PyErr_Format(PyExc_TypeError, "headrace: a table is bytes or None, not %s", Py_TYPE(table)->tp_name);
        return -1;
    }
    recipe->table = PyBytes_AS_STRING(table);
    uint32_t channels = recipe->table_channels, item_bytes = recipe->item_bytes;
    size_t bytes = (size_t)PyBytes_GET_SIZE(table);
    if (channels <= 4 && item_bytes <= 8 && bytes >= (size_t)256 * channels * item_bytes) return 0;
    PyErr_Format(PyExc_ValueError, "headrace: a table of %zd bytes is not one of %u channels with items of %u bytes",
                 (Py_ssize_t)bytes, channels, item_bytes);
    return -1;
}

int recipe_of(PyObject *tuple, struct hr_image_recipe *ret_recipe) {
    enum { PARTS = 6 };
    PyObject *image, *steps, *weights, *table;
    unsigned int channels, item_bytes;
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) < PARTS) {
        PyErr_SetString(PyExc_TypeError, "headrace: a recipe is a tuple of 6 parts");
        return -1;
    }
    PyObject *parts = PyTuple_GetSlice(tuple, 0, PARTS);
    if (!parts) return -1;
    int is_parsed = PyArg_ParseTuple(parts, "O!SSOII:recipe", &PictureType, &image, &steps, &weights, &table, &channels,
                                     &item_bytes);
    Py_DECREF(parts); /* the tuple itself has the references */
    if (!is_parsed) return -1;
    *ret_recipe = (struct hr_image_recipe){
        .image = image_of(image), .layout = HR_IMAGE_PLANES, .table_channels = channels, .item_bytes = item_bytes};
    return set_steps(ret_recipe, steps, weights) < 0 ? -1 : set_table(ret_recipe, table);
}

static int set_target(struct hr_image_recipe *recipe, PyObject *tuple, Py_buffer *buffer) {
    enum { TARGET = 6 };
    if (PyTuple_GET_SIZE(tuple) != TARGET + 1) {
        PyErr_SetString(PyExc_TypeError, "headrace: a recipe lacks its target");
        return -1;
    }
    if (PyObject_GetBuffer(PyTuple_GET_ITEM(tuple, TARGET), buffer, PyBUF_CONTIG) < 0) return -1;
    recipe->target = buffer->buf;
    recipe->target_bytes = (size_t)buffer->len;
    return 0;
}

static PyObject *list_results(const struct targets *targets) {
    PyObject *results = PyList_New(targets->count);
    for (Py_ssize_t i = 0; i < targets->count && results; i++) {
        PyObject *result = PyLong_FromLong(targets->recipes[i].result);
        if (result)
            PyList_SET_ITEM(results, i, result);
        else
            Py_CLEAR(results);
    }
    return results;
}

static PyObject *run_targets(struct targets *targets, PyObject *tuple, uint32_t threads) {
    for (Py_ssize_t i = 0; i < targets->count; i++)
        if (recipe_of(PyTuple_GET_ITEM(tuple, i), &targets->recipes[i]) < 0 ||
            set_target(&targets->recipes[i], PyTuple_GET_ITEM(tuple, i), &targets->buffers[i]) < 0)
            return NULL;
    return run(targets->recipes, (size_t)targets->count, threads) < 0 ? NULL : list_results(targets);
}

PyObject *images_run(PyObject *module, PyObject *arguments) {
    PyObject *recipes, *results = NULL;
    unsigned int threads;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OI:run_images", &recipes, &threads)) return NULL;
    PyObject *tuple = PySequence_Tuple(recipes); /* keeps all that the recipes use */
    if (!tuple) return NULL;
    struct targets targets = {.count = PyTuple_GET_SIZE(tuple)};
    targets.recipes = PyMem_Calloc((size_t)targets.count + 1, sizeof *targets.recipes);
    targets.buffers = PyMem_Calloc((size_t)targets.count + 1, sizeof *targets.buffers);
    if (targets.recipes && targets.buffers)
        results = run_targets(&targets, tuple, threads);
    else
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; targets.buffers && i < targets.count; i++) PyBuffer_Release(&targets.buffers[i]);
    PyMem_Free(targets.recipes);
    PyMem_Free(targets.buffers);
    Py_DECREF(tuple);
    return results;
}
