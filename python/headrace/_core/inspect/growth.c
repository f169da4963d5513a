/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/inspect.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <headrace/face/machine.h>

/*
 * Estimates how much of an object's memory is private to this process. It must not write to any of it, not even to a
 * reference count, because a write copies the page in a forked process. So everything here is borrowed, and no Python
 * code runs.
 *
 * A whole dataset is too large to visit, so random paths are drawn: from the object to one of its parts, to one of that
 * part's parts, to the end. A part that was picked with probability p represents 1/p parts, and a part with n
 * references counts 1/n each time it is met. The sums over all paths are unbiased estimates of the sums over all parts.
 * Each part is recorded as a spot: an address inside it, and the number of bytes that it represents. The kernel reports
 * which pages of the spots are private, and this gives the private share.
 */

enum { MOST_LEVELS = 16, FEW = 64, MOST_VISITS = 4096, GC_HEAD_BYTES = 16, ALIGNMENT = 16 };

#ifdef Py_GIL_DISABLED
enum { IS_LOCKED = 0 }; /* other threads may change the object, so nothing is measured */
#else
enum { IS_LOCKED = 1 };
#endif

struct spot {
    uint64_t address;
    double bytes;
};

struct look {
    uint64_t random; /* state of splitmix64 */
    struct spot *spots;
    size_t count, room;
    bool is_full; /* there is no memory for more spots */
};

static uint64_t draw(struct look *look) {
    uint64_t z = look->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t below(struct look *look, uint64_t limit) {
    return draw(look) % limit;
}

static double unit(struct look *look) {
    return (double)(draw(look) >> 11) * 0x1p-53;
}

/* Records a random spot in [start, start + bytes), which represents `weight` pieces of memory. */
static void note(struct look *look, const void *start, uint64_t bytes, double weight) {
    if (!bytes || look->is_full) return;
    if (look->count == look->room) {
        size_t room = look->room ? 2 * look->room : 1024;
        struct spot *spots = realloc(look->spots, room * sizeof *spots);
        look->is_full = !spots;
        if (!spots) return;
        look->spots = spots;
        look->room = room;
    }
    uint64_t address = (uint64_t)(uintptr_t)start + below(look, bytes);
    look->spots[look->count++] = (struct spot){address, weight * (double)bytes};
}

/* ---- the memory of an object ---- */

/* numpy's PyArrayObject and the head of its PyArray_Descr, as its binary interface has had them since 1.0. They are
 * copied because the buffer protocol writes to each array (its reference count, and numpy's record of its buffers), and
 * a write copies a page of a forked worker: 16 MiB for a look at 4000 of 200,000 small arrays, instead of 0.2 MiB. */
struct array {
    PyObject_HEAD char *data;
    int dimension_count;
    Py_ssize_t *dimensions, *strides;
    PyObject *base;
    struct {
        PyObject_HEAD PyTypeObject *type;
        char kind, code;
    } * descr;
    int flags;
};
enum { IS_CONTIGUOUS = 1 | 2 /* in C's order, or in Fortran's */, OWNS_DATA = 4 };

/* Returns an array without gaps; NULL: it is not one, or it is empty. */
static struct array *dense_array(PyObject *object) {
    if (!core.array_type || Py_TYPE(object) != (PyTypeObject *)core.array_type) return NULL;
    struct array *array = (struct array *)object;
    return array->flags & IS_CONTIGUOUS ? array : NULL;
}

/* The largest stride is that of the outermost dimension. */
static uint64_t array_bytes(const struct array *array) {
    uint64_t bytes = 0;
    for (int i = 0; i < array->dimension_count; i++) {
        if (array->dimensions[i] == 0) return 0;
        uint64_t reach = (uint64_t)array->strides[i] * (uint64_t)array->dimensions[i];
        if (reach > bytes) bytes = reach;
    }
    return bytes;
}

static uint64_t object_count(const struct array *array) {
    uint64_t count = array->descr->code == 'O' && array->dimension_count > 0;
    for (int i = 0; i < array->dimension_count; i++) count *= (uint64_t)array->dimensions[i];
    return count;
}

/* Another piece of memory of an object, apart from its struct. */
struct piece {
    const void *start;
    uint64_t bytes;
};

/* Returns approximately the size that CPython allocates for the keys of a dict with this many entries: indices, and
 * entries for two thirds. */
static uint64_t dict_bytes(uint64_t count) {
    uint64_t slots = 8;
    while (slots * 2 / 3 < count) slots *= 2;
    uint64_t index_bytes = slots < 256 ? 1 : slots < 65536 ? 2 : 4;
    return 32 + slots * index_bytes + slots * 2 / 3 * 24;
}

static struct piece table_of(PyObject *object) {
    if (PyList_Check(object)) {
        PyListObject *list = (PyListObject *)object;
        return (struct piece){list->ob_item, (uint64_t)list->allocated * sizeof(PyObject *)};
    }
    if (PyDict_Check(object)) {
        PyDictObject *dict = (PyDictObject *)object;
        bool is_shared = dict->ma_values || !dict->ma_used; /* an instance's: keys are the class's */
        return (struct piece){dict->ma_keys, is_shared ? 0 : dict_bytes((uint64_t)dict->ma_used)};
    }
    if (PyAnySet_Check(object)) {
        PySetObject *set = (PySetObject *)object;
        bool is_inside = set->table == set->smalltable;
        return (struct piece){set->table, is_inside ? 0 : ((uint64_t)set->mask + 1) * sizeof *set->table};
    }
    struct array *array = dense_array(object);
    bool is_own = array && array->flags & OWNS_DATA;
    return is_own ? (struct piece){array->data, array_bytes(array)} : (struct piece){NULL, 0};
}

/* Returns the size of an object's struct with the items that follow it. */
static uint64_t own_bytes(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    uint64_t bytes = (uint64_t)type->tp_basicsize;
    if (PyUnicode_Check(object)) {
        bytes = PyUnicode_IS_ASCII(object) ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject);
        return bytes + ((uint64_t)PyUnicode_GET_LENGTH(object) + 1) * PyUnicode_KIND(object);
    }
    if (PyLong_Check(object)) return bytes + sizeof(digit);
    if (type->tp_itemsize && (PyBytes_Check(object) || PyTuple_Check(object)))
        bytes += (uint64_t)Py_SIZE(object) * (uint64_t)type->tp_itemsize;
    return bytes;
}

/* Returns true for an object that does not count, because all processes share it and its pages are never copied. The
 * reference count of an immortal object is never written. */
static bool is_common(PyObject *object) {
    if (object == Py_None || PyBool_Check(object) || PyType_Check(object) || PyModule_Check(object)) return true;
    if (PyFunction_Check(object) || PyCFunction_Check(object) || PyCode_Check(object)) return true;
    if (PyUnicode_Check(object) && PyUnicode_GET_LENGTH(object) == 0) return true;
    return Py_REFCNT(object) >= (Py_ssize_t)1 << 29;
}

/* ---- an object's parts ---- */

/* Draws one of the offered parts, with a probability proportional to its size. */
struct lot {
    struct look *look;
    PyObject *drawn; /* borrowed; NULL: nothing was offered */
    double size, total;
    size_t visits;
};

static void offer(struct lot *lot, PyObject *object) {
    if (!object || is_common(object)) return;
    double size = 32.0 + (double)own_bytes(object) + 4.0 * (double)table_of(object).bytes;
    lot->total += size;
    if (lot->drawn && unit(lot->look) * lot->total >= size) return;
    lot->drawn = object;
    lot->size = size;
}

static int offer_visited(PyObject *object, void *context) {
    struct lot *lot = context;
    offer(lot, object);
    return ++lot->visits == MOST_VISITS; /* stops the traversal */
}

/* Returns the number of parts that can be picked by number; 0: they cannot be picked in this way. */
static uint64_t countable(PyObject *object) {
    if (PyList_Check(object)) return (uint64_t)PyList_GET_SIZE(object);
    if (PyTuple_Check(object)) return (uint64_t)PyTuple_GET_SIZE(object);
    if (PyDict_Check(object)) return 2 * (uint64_t)((PyDictObject *)object)->ma_used;
    if (PyAnySet_Check(object)) return (uint64_t)PySet_GET_SIZE(object);
    struct array *array = dense_array(object);
    return array ? object_count(array) : 0;
}

static PyObject *member_of_set(struct look *look, PySetObject *set) {
    uint64_t slots = (uint64_t)set->mask + 1;
    for (int i = 0; i < FEW; i++) {
        const setentry *entry = &set->table[below(look, slots)];
        if (entry->key && entry->hash != -1) return entry->key; /* -1: one that was removed */
    }
    return NULL;
}

/* Returns a part by its number. If there are gaps (in a set, or a dict that has lost entries), it may be another part.
 */
static PyObject *part(struct look *look, PyObject *object, uint64_t number) {
    PyObject *key = NULL, *value = NULL;
    Py_ssize_t at = (Py_ssize_t)number / 2;
    if (PyList_Check(object)) return PyList_GET_ITEM(object, (Py_ssize_t)number);
    if (PyTuple_Check(object)) return PyTuple_GET_ITEM(object, (Py_ssize_t)number);
    if (PyAnySet_Check(object)) return member_of_set(look, (PySetObject *)object);
    if (!PyDict_Check(object)) return ((PyObject **)(void *)dense_array(object)->data)[number];
    return PyDict_Next(object, &at, &key, &value) ? (number % 2 ? value : key) : NULL;
}

/* Draws one part of an object, and returns how many parts it represents; NULL: there is no part, or it does not count.
 */
static PyObject *draw_part(struct look *look, PyObject *object, double *ret_weight) {
    struct lot lot = {.look = look};
    uint64_t count = countable(object);
    if (count > FEW || (count && PyAnySet_Check(object))) {
        *ret_weight = (double)count;
        PyObject *drawn = part(look, object, below(look, count));
        return drawn && !is_common(drawn) ? drawn : NULL;
    }
    for (uint64_t i = 0; i < count; i++) offer(&lot, part(look, object, i));
    bool is_more = !count && PyObject_IS_GC(object) && Py_TYPE(object)->tp_traverse;
    if (is_more) Py_TYPE(object)->tp_traverse(object, offer_visited, &lot);
    *ret_weight = lot.drawn ? lot.total / lot.size : 0;
    return lot.drawn;
}

static void note_object(struct look *look, PyObject *object, double weight) {
    struct piece table = table_of(object);
    uint64_t head = PyObject_IS_GC(object) ? GC_HEAD_BYTES : 0;
    uint64_t bytes = (head + own_bytes(object) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    note(look, (const char *)object - head, bytes, weight);
    note(look, table.start, table.bytes, weight);
}

/* The parts of an object that can only be visited in order: borrowed, and listed once for all paths. */
struct list {
    PyObject **parts;
    size_t count, room;
};
enum { MOST_LISTED = 4 << 20 };

static int list_part(PyObject *object, void *context) {
    struct list *list = context;
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 1024;
        PyObject **parts = room <= MOST_LISTED ? realloc(list->parts, room * sizeof(void *)) : NULL;
        if (!parts) return 1; /* those until here, then */
        list->parts = parts;
        list->room = room;
    }
    list->parts[list->count++] = object;
    return 0;
}

static struct list list_of(PyObject *object) {
    struct list list = {0};
    bool is_more = !countable(object) && PyObject_IS_GC(object) && Py_TYPE(object)->tp_traverse;
    if (is_more) Py_TYPE(object)->tp_traverse(object, list_part, &list);
    return list;
}

static PyObject *draw_listed(struct look *look, const struct list *list, double *ret_weight) {
    PyObject *drawn = list->parts[below(look, list->count)];
    *ret_weight = (double)list->count;
    return is_common(drawn) ? NULL : drawn;
}

static void walk(struct look *look, PyObject *root, const struct list *list, double weight) {
    PyObject *object = root;
    for (int level = 0; level < MOST_LEVELS; level++) {
        double likes;
        bool is_listed = level == 0 && list->count > FEW;
        object = is_listed ? draw_listed(look, list, &likes) : draw_part(look, object, &likes);
        if (!object || object == root) return;
        weight *= likes / (double)(Py_REFCNT(object) > 1 ? Py_REFCNT(object) : 1);
        note_object(look, object, weight);
    }
}

/* ---- private pages ---- */

struct sums {
    double bytes, private_bytes;
    unsigned long long pages, private_pages;
};

static int by_address(const void *left, const void *right) {
    const struct spot *a = left, *b = right;
    return a->address < b->address ? -1 : a->address > b->address;
}

/* A part that many others share, such as a key of records, is met often, but its page counts once. */
static bool is_new_page(const uint64_t *addresses, size_t i, uint64_t page_bytes) {
    return i == 0 || addresses[i] / page_bytes != addresses[i - 1] / page_bytes;
}

static int judge(struct look *look, struct sums *ret_sums) {
    uint64_t *addresses = malloc((look->count + 1) * sizeof *addresses);
    unsigned char *pages = calloc(look->count + 1, 1);
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    int r = addresses && pages && !look->is_full ? 0 : -ENOMEM;
    if (r == 0 && look->count) {
        qsort(look->spots, look->count, sizeof *look->spots, by_address);
        for (size_t i = 0; i < look->count; i++) addresses[i] = look->spots[i].address;
        r = hr_machine_pages(addresses, look->count, pages);
    }
    for (size_t i = 0; r == 0 && i < look->count; i++) {
        if (pages[i] == HR_PAGE_ABSENT) continue;
        bool is_private = pages[i] == HR_PAGE_PRIVATE;
        ret_sums->bytes += look->spots[i].bytes;
        ret_sums->private_bytes += is_private ? look->spots[i].bytes : 0;
        bool is_new = is_new_page(addresses, i, page_bytes);
        ret_sums->pages += is_new;
        ret_sums->private_pages += is_new && is_private;
    }
    free(addresses);
    free(pages);
    return r;
}

static void collect(struct look *look, PyObject *object, unsigned paths) {
    enum { TABLE_SPOTS = 32 };
    if (is_common(object)) return;
    struct piece table = table_of(object);
    note(look, object, own_bytes(object), 1);
    for (int i = 0; i < TABLE_SPOTS; i++) note(look, table.start, table.bytes, 1.0 / TABLE_SPOTS);
    struct list list = list_of(object);
    for (unsigned i = 0; i < paths; i++) walk(look, object, &list, 1.0 / paths);
    free(list.parts);
}

PyObject *growth_look(PyObject *module, PyObject *arguments) {
    PyObject *object;
    unsigned paths;
    unsigned long long seed;
    struct look look = {0};
    struct sums sums = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OIK:private_share", &object, &paths, &seed)) return NULL;
    look.random = seed;
    if (IS_LOCKED) collect(&look, object, paths);
    int r = judge(&look, &sums);
    free(look.spots);
    if (r < 0) return core_raise(r);
    return Py_BuildValue("ddKK", sums.bytes, sums.private_bytes, sums.pages, sums.private_pages);
}
