/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/encode.h"

#include "image/image.h"

/*
 * Images that are made in the batch: a column of deferred tensors (headrace.images) becomes a reserved array, and a
 * recipe for each row of it. port.c runs the recipes when the batch has its memory, so the pixels are written once, to
 * their final place.
 */

bool is_deferred(PyObject *object) {
    return core.deferred_type && PyType_IsSubtype(Py_TYPE(object), (PyTypeObject *)core.deferred_type);
}

static int need_room(struct recipes *recipes, size_t count) {
    if (recipes->count + count <= recipes->room) return 0;
    size_t room = 2 * (recipes->count + count);
    struct hr_image_recipe *items = PyMem_Realloc(recipes->items, room * sizeof *items);
    if (items) recipes->items = items;
    struct row *rows = PyMem_Realloc(recipes->rows, room * sizeof *rows);
    if (rows) recipes->rows = rows;
    if (items && rows) {
        recipes->room = room;
        return 0;
    }
    PyErr_NoMemory();
    return -1;
}

void recipes_free(struct recipes *recipes) {
    PyMem_Free(recipes->items);
    PyMem_Free(recipes->rows);
    *recipes = (struct recipes){0};
}

/* Adds a recipe for each row of the array `place`. The list of tuples is kept by the encoder's inputs. */
static int add_recipes(struct recipes *recipes, PyObject *list, uint64_t place) {
    Py_ssize_t count = PyList_GET_SIZE(list);
    if (need_room(recipes, (size_t)count) < 0) return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        struct hr_image_recipe *recipe = &recipes->items[recipes->count];
        struct hr_image_size size;
        if (recipe_of(PyList_GET_ITEM(list, i), recipe) < 0) return -1;
        int r = hr_image_adopt(recipe->image);
        if (r == 0) r = hr_image_measure(recipe, &size);
        if (r < 0) {
            core_raise(r);
            return -1;
        }
        recipe->target_bytes = size.bytes;
        recipes->rows[recipes->count++] = (struct row){place, (uint64_t)i * size.bytes, (uint32_t)i};
    }
    return 0;
}

/* Checks that the recipes fill the array exactly: as many bytes in each row. */
static bool fill_rows(const struct recipes *recipes, size_t first, uint64_t row_bytes) {
    for (size_t i = first; i < recipes->count; i++)
        if (recipes->items[i].target_bytes != row_bytes) return false;
    return true;
}

static enum found add_column(struct encoder *encoder, PyObject *described, uint32_t count, enum hr_flavor flavor) {
    unsigned int code, bits, channels, height, width;
    PyObject *list;
    uint64_t place;
    size_t first = encoder->recipes.count;
    if (!PyArg_ParseTuple(described, "IIIIIO!:recipes", &code, &bits, &channels, &height, &width, &PyList_Type, &list))
        return FOUND_ERROR;
    struct hr_dtype dtype = {(uint8_t)code, (uint8_t)bits, 1};
    int64_t shape[] = {count, channels, height, width};
    if (PyList_GET_SIZE(list) != (Py_ssize_t)count || inputs_keep(&encoder->inputs, described) < 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "headrace: there is not one recipe for each sample");
        return FOUND_ERROR;
    }
    enum found found = encode_result(hr_batch_add_reserved(encoder->batch, flavor, dtype, 4, shape, &place));
    if (found != FOUND) return found;
    if (add_recipes(&encoder->recipes, list, place) < 0) return FOUND_ERROR;
    return fill_rows(&encoder->recipes, first, (uint64_t)channels * height * width * bits / 8) ? FOUND : FOUND_NOT;
}

enum found collate_deferred(struct encoder *encoder, PyObject **items, uint32_t count, enum hr_flavor flavor) {
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; i < count && list; i++) PyList_SET_ITEM(list, i, Py_NewRef(items[i]));
    PyObject *described = list ? PyObject_CallOneArg(core.describe_deferred, list) : NULL;
    enum found found = !described ? FOUND_ERROR : described == Py_None ? FOUND_NOT : FOUND;
    if (found == FOUND) found = add_column(encoder, described, count, flavor);
    Py_XDECREF(described);
    Py_XDECREF(list);
    return found;
}

/* ---- making them ---- */

/* hr_image_watch: notes the sample at which a thread is. */
static void note_making(void *context, uint32_t thread, const struct hr_image_recipe *recipe) {
    struct recipes *recipes = context;
    uint64_t sample = recipe ? recipes->rows[recipe - recipes->items].sample : HR_NO_SAMPLE;
    hr_port_note_making(recipes->port, thread, sample);
}

int recipes_run(struct recipes *recipes, hr_batch *batch, void *data, hr_port *port, uint32_t threads) {
    for (size_t i = 0; i < recipes->count; i++) {
        uint64_t offset;
        int r = hr_batch_place(batch, recipes->rows[i].place, &offset);
        if (r < 0) return r;
        recipes->items[i].target = (char *)data + offset + recipes->rows[i].inside_bytes;
    }
    recipes->port = port;
    hr_image_memory_watch(recipes->memory, note_making, recipes);
    return hr_images_run(recipes->memory, recipes->items, recipes->count, threads);
}

int recipes_begin(struct recipes *recipes) {
    if (recipes->count) recipes->memory = image_memory_take();
    return recipes->count && !recipes->memory ? -1 : 0;
}

void recipes_end(struct recipes *recipes) {
    if (!recipes->memory) return;
    hr_image_memory_watch(recipes->memory, NULL, NULL);
    image_memory_keep(recipes->memory);
    recipes->memory = NULL;
}
