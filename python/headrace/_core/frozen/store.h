/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_STORE_H
#define HEADRACE_CORE_STORE_H

#include "core.h"

/*
 * Frozen data: Python objects to images (headrace/store.h) and back.
 *
 *     freeze.c         objects into an image: the work list            freeze_scan.c  lists that can be packed
 *     freeze_path.c    where the work is                       freeze_inline.c attributes without a __dict__
 *     freeze_leaf.c    texts, numbers, arrays, tensors                 freeze_class.c instances, and what has a name
 *     freeze_stride.c  arrays whose elements share memory              freeze_image.c _core.freeze, _core.Builder
 *     image.c          _core.Image: an open image and what is remembered of it
 *     read.c           an item as an object: a scalar, an array, a view
 *     build.c          instances and ordinary containers out of an image: thaw   build_begin.c  how each begins
 *     view.c           what views share   view_list.c  view_dict.c  view_set.c  view_many.c   view_iterator.c
 *     key.c            a Python key as a key of the library
 *     text.c, map.c    UTF-8 without a trace in the str; numbers to numbers
 *
 * What is decided rather by words than by bytes (which classes are plain, how a Decimal is told) is Python's,
 * headrace/store/types/hooks.py; store_hook calls it.
 */

/* ---- map.c ---- */

/* Numbers to numbers; no key is 0. All zero is an empty map. */
struct map_entry {
    uint64_t key, value;
};
struct map {
    struct map_entry *entries;
    size_t count, room;
};
/* NULL: not there. Valid until the map changes. */
uint64_t *map_find(const struct map *map, uint64_t key);
/* Adds a key that is not there. -1 with MemoryError. */
int map_add(struct map *map, uint64_t key, uint64_t value);
void map_free(struct map *map);

/* ---- text.c ---- */

/* A str in UTF-8, lone surrogates like other code points. Unlike PyUnicode_AsUTF8 it leaves nothing in the str. */
size_t text_bytes(PyObject *text);
void text_write(PyObject *text, unsigned char *out);
/* A str of ASCII bytes. New reference. */
PyObject *text_new(const void *bytes, size_t count);

/* ---- image.c ---- */

extern PyObject *StoreError; /* a RuntimeError */

/* Sets the exception of a negative code of the store's; returns NULL. */
void *store_raise(int code);

/* Calls a function of headrace.store.types.hooks. New reference. */
PyObject *store_hook(const char *name, const char *format, ...);

/* What is remembered of a shape once a record of it has been met. */
struct shape {
    enum hr_shape_kind kind;
    uint32_t field_count;
    PyObject *names;    /* tuple of interned str */
    PyObject *numbers;  /* dict: name -> number */
    PyTypeObject *type; /* of an object or a named tuple */
    /* Of an object, per field, owned: a slot's descriptor, or None: into __dict__ past a property; NULL: an ordinary
     * attribute. */
    PyObject **places;
};

struct image {
    PyObject_HEAD hr_store *store;
    const char *start;
    uint64_t bytes;
    struct shape **shapes; /* by number, NULL until met */
    uint32_t shape_count;
    int trusted;          /* may it import classes and load pickles? */
    bool is_sealed;       /* in memory that only this library wrote: what it says of its texts holds */
    void *memory;         /* what it lies in, where that is neither a file nor shared */
    PyObject *lookups;    /* dict: value of a dict or set -> bytes, a table of its keys, where C cannot look them up */
    PyObject *dtypes;     /* dict: text -> numpy.dtype */
    PyObject *attributes; /* dict, for the Python side: instances have a __dict__ */
    PyObject *weakrefs;
};
extern PyTypeObject ImageType;

/* Takes the store over, failure included. */
PyObject *image_new(hr_store *store, int trusted);
/* Borrowed; NULL with an exception. */
struct shape *image_shape(struct image *image, uint32_t number);
/* The number of a field; -1: there is none; -2: exception. */
Py_ssize_t shape_find(const struct shape *shape, PyObject *name);

/* ---- view.c ---- */

struct view {
    PyObject_HEAD struct image *image;
    struct hr_item item;
    hr_value typed; /* of a deque, Counter...: the value that says so; 0: a list, tuple, dict or set as such */
    Py_ssize_t count, first, stride; /* a slice of a list or tuple: items first, first + stride...; else 0 and 1 */
};
extern PyTypeObject FrozenListType, FrozenTupleType, FrozenDictType, FrozenSetType;
extern PyTypeObject FrozenKeysType, FrozenValuesType, FrozenItemsType, FrozenIteratorType;

bool is_view(PyObject *object);
/* `item` is a list, tuple, set or dict, or a record of HR_SHAPE_DICT. New reference. */
PyObject *view_new(struct image *image, const struct hr_item *item, hr_value typed);
void view_dealloc(PyObject *self);
bool is_slice(const struct view *view);
/* What its type is called in Python: list, Counter... New reference. */
PyObject *view_name(const struct view *view);
/* An ordinary container of the view's items, which stay views. New reference. */
PyObject *view_shallow(PyObject *self);
PyObject *view_repr(PyObject *self);
PyObject *view_compare(PyObject *self, PyObject *other, int operation);
PyObject *view_hash_object(PyObject *self);
PyObject *view_refuse(PyObject *self, PyObject *arguments, PyObject *keywords);
int view_refuse_item(PyObject *self, PyObject *key, PyObject *value);
PyObject *view_reduce(PyObject *self, PyObject *protocol);
PyObject *view_copy(PyObject *self, PyObject *ignored);
PyObject *view_deepcopy(PyObject *self, PyObject *memo);
PyObject *view_iterate(PyObject *self);
/* Operators: what they give for ordinary copies. */
extern PyNumberMethods sequence_numbers, set_numbers, dict_numbers;
/* The keys, values or items of a dict; NULL without an exception: the object is none of them. */
PyObject *part_thaw(PyObject *object);
/* What refuses writes, for tables of methods. */
#define REFUSE(name)                                                                                                   \
    { name, (PyCFunction)(void (*)(void))view_refuse, METH_VARARGS | METH_KEYWORDS, NULL }
/* What all views have. */
#define VIEW_METHODS                                                                                                   \
    {"__reduce_ex__", view_reduce, METH_O, NULL},                                                                      \
        {"__copy__", view_copy, METH_NOARGS, "An ordinary container of the same items, not deeper."},                  \
        {"__deepcopy__", view_deepcopy, METH_O, "headrace.thaw."}, {                                                   \
        "copy", view_copy, METH_NOARGS, "copy()\n\nAn ordinary container of the same items, not deeper."               \
    }

/* ---- view_iterator.c ---- */

enum part { PART_ITEM, PART_KEY, PART_VALUE, PART_PAIR };
PyObject *iterator_new(struct view *view, enum part part, bool is_reversed);
/* One part of a view at an index within its count. New reference. */
PyObject *view_part(struct view *view, enum part part, uint64_t index);

/* ---- view_many.c ---- */

PyObject *list_get_many(PyObject *self, PyObject *indices);
PyObject *dict_get_many(PyObject *self, PyObject *keys);
PyObject *list_column(PyObject *self, PyObject *name);

/* ---- view_dict.c ---- */

/* The place of a key in a dict or set, or the number of a record's field. 1: found; 0: not; -1: exception. */
int view_find(struct view *view, PyObject *key, uint64_t *ret_place);
/* The value at a place that view_find gave, and of an entry of a dict or a field of a record by its number. */
int view_value(struct view *view, uint64_t place, struct hr_item *ret_value);
int view_entry(struct view *view, uint64_t index, struct hr_item *ret_value);

/* ---- key.c ---- */

enum { KEY_SMALL_BYTES = 256, KEY_MAX_ITEMS = 32, KEY_MAX_DEPTH = 4, KEY_MAX_KEPT = 4 };
/* Room that a key borrows from. */
struct key_room {
    unsigned char bytes[KEY_SMALL_BYTES];
    size_t used;
    struct hr_key keys[KEY_MAX_ITEMS];
    uint32_t key_count;
    PyObject *kept[KEY_MAX_KEPT]; /* owned: bytes of a long text, the parts of a date... */
    uint32_t kept_count;
};
/* FOUND: `*ret_key` is the key, borrowing from `room` and the object. FOUND_NOT: equal to no key that the library can
 * look up if `*ret_never`, else Python must look. */
enum found key_of(PyObject *object, struct key_room *room, struct hr_key *ret_key, bool *ret_never);
void key_done(struct key_room *room);

/* ---- read.c ---- */

/* An item as an object: a fresh scalar, a view, an array over the image, an instance. New reference. */
PyObject *read_item(struct image *image, const struct hr_item *item);
PyObject *read_value(struct image *image, hr_value value);
/* An item that others hash: as an ordinary object. */
PyObject *read_key(struct image *image, const struct hr_item *item);
/* A scalar; NULL without an exception where the item is none. */
PyObject *read_scalar(struct image *image, const struct hr_item *item);
PyObject *read_text(struct image *image, const struct hr_item *item);
/* A text that its image says to be ASCII. */
PyObject *read_ascii(struct image *image, const void *bytes, uint64_t count);
/* An array, a tensor or a numpy scalar over the image. */
PyObject *read_array(struct image *image, const struct hr_item *item);
/* An ordinary one that can be written. `copies` keeps, under hr_values of no kind, the memory that arrays share. */
PyObject *read_private_array(struct image *image, const struct hr_item *item, struct map *copies);

/* ---- build.c ---- */

enum depth {
    BUILD_RECORD, /* instances; their containers and arrays as views */
    BUILD_ALL,    /* ordinary Python all through */
    BUILD_KEY     /* likewise, and small enough to be hashed */
};
PyObject *build(struct image *image, const struct hr_item *item, enum depth depth);
/* A list of many that share what they refer to. `next` gives one after the other: 1; 0: there are no more; -1:
 * exception. */
typedef int build_next(void *state, struct hr_item *ret_item);
PyObject *build_many(struct image *image, build_next *next, void *state, enum depth depth);
/* Reads the two parts of a deque, Counter...: 1; 0: it is another type; -1: exception. */
int typed_parts(struct image *image, const struct hr_item *typed, struct hr_item *ret_extra, struct hr_item *ret_items);

/* ---- freeze.c and its parts ---- */

enum frame_kind { FRAME_LIST, FRAME_ROWS, FRAME_DICT, FRAME_RECORD, FRAME_FIELDS, FRAME_SET };

/* A container that is being written. */
struct frame {
    enum frame_kind kind;
    bool is_hidden;   /* no step of a path: the parts of a deque */
    bool is_object;   /* its fields are attributes */
    bool has_key;     /* of a dict: the key is put, `extra` is its value */
    PyObject *object; /* owned: list, tuple, dict, or a tuple of an instance's values */
    PyObject *names;  /* owned: of a record */
    PyObject *extra;  /* owned: a set's iterator, a dict's pending value, the class of rows that are instances */
    PyObject *key;    /* owned: of a dict, for the path */
    hr_value value;
    uint64_t next, count;
    Py_ssize_t at; /* PyDict_Next's */
    uint64_t mark; /* the image's bytes, when they were accounted for last */
    uint32_t shape;
};

struct freezer {
    hr_builder *builder;
    struct frame *frames;
    size_t frame_count, frame_room;
    struct map memo;    /* address -> value; holds a reference to each */
    PyObject *shapes;   /* dict: (class or None, names) -> number */
    PyObject *classes;  /* dict: class -> what headrace.store.types.hooks.classify says */
    PyObject *fields;   /* dict: class -> the names of the fields of an instance that was met lately */
    PyObject *dtypes;   /* dict: dtype -> text */
    PyObject *strided;  /* dict: once_key -> (value, array that owns the memory), or NULL: none yet */
    PyObject *progress; /* callable or NULL */
    PyObject *pickles;  /* list of paths kept as pickles */
    PyObject *paths;    /* dict: path -> bytes, or NULL: nobody asks */
    struct sources sources;
    unsigned char *scratch;
    size_t scratch_bytes;
    uint64_t done_count, dict_shape_count;
    uint64_t ahead_bytes; /* of the image's, have a place and are not written yet */
    uint64_t told_bytes;
    uint64_t counts[HR_KIND_COUNT];
    uint64_t bytes[HR_KIND_COUNT];
    bool keeps_pickles;
};

/* Opens an image in memory (None) or in file `path` (bytes). -1 with an exception; freezer_close follows in any case.
 */
int freezer_open(struct freezer *freezer, PyObject *path, PyObject *progress, bool keeps_pickles);
/* Writes an object and all that it refers to. */
int freezer_run(struct freezer *freezer, PyObject *object, hr_value *ret_root);
/* Forgets the objects that were written: what follows shares nothing with them. */
void freezer_forget(struct freezer *freezer);
/* Drops an image that is not finished. Twice is fine. */
void freezer_close(struct freezer *freezer);

/* -1 with an exception from a negative code, else 0. */
int freeze_result(int code);
/* Writes an object, or begins to: pushes a frame. `is_shared`: others may refer to it. -1: exception. */
int freeze_object(struct freezer *freezer, PyObject *object, bool is_shared, hr_value *ret_value);
/* A frame on top. Steals nothing. -1: exception. */
int freeze_push(struct freezer *freezer, struct frame frame);
int freeze_memo(struct freezer *freezer, PyObject *object, hr_value value);
/* Every so many items or bytes: signals and progress. */
int freeze_tick(struct freezer *freezer, uint64_t items);
void freeze_count(struct freezer *freezer, enum hr_kind kind, uint64_t bytes_before);
PyObject *freeze_path(struct freezer *freezer);
/* Adds what was written since the last time to the path at which frame `top` is. -1: exception. */
int freeze_account(struct freezer *freezer, size_t top);
int freeze_changed(struct freezer *freezer);

/* freeze_leaf.c: 1: written; 0: not of this kind; -1: exception. */
int freeze_scalar(struct freezer *freezer, PyObject *object, hr_value *ret_value);
int freeze_bytes(struct freezer *freezer, PyObject *object, hr_value *ret_value);
int freeze_array(struct freezer *freezer, PyObject *object, hr_value *ret_value);
int freeze_text(struct freezer *freezer, PyObject *text, hr_value *ret_value);
/* The bytes of a text: in the str if it is ASCII, else in the scratch. NULL: MemoryError. */
const void *freeze_utf8(struct freezer *freezer, PyObject *text, size_t *ret_bytes);

/* ---- freeze_stride.c ---- */

/* An array of which several places are one element. */
struct once {
    struct hr_store_array layout; /* for hr_builder_strided: all but its kind */
    Py_buffer elements;           /* what is to be written, not held: each element once */
    Py_ssize_t shape[HR_STORE_MAX_DIMENSIONS], steps[HR_STORE_MAX_DIMENSIONS]; /* of `elements` */
};
/* false: every place is an element of its own. The view has at most HR_STORE_MAX_DIMENSIONS. */
bool once_of(const Py_buffer *view, struct once *ret_once);
/* What arrays that write the same elements have in common. New reference. */
PyObject *once_key(const struct once *once);

/* freeze_scan.c: a list or tuple that can be packed: 1 when written or begun. */
int freeze_packed(struct freezer *freezer, PyObject *sequence, hr_value *ret_value);
/* Are a dict's keys these names, in this order? */
bool has_names(PyObject *dict, PyObject *names);
/* The keys of a dict if they can be a shape's: new reference; NULL without an exception if not. */
PyObject *names_of(PyObject *dict);
/* 1: the number of the shape; 0: there is no room for more. */
int freeze_shape(struct freezer *freezer, PyObject *type, PyObject *type_name, enum hr_shape_kind kind, PyObject *names,
                 uint32_t *ret_number);

/* freeze_class.c */
int freeze_other(struct freezer *freezer, PyObject *object, bool is_shared, hr_value *ret_value);
/* What is known of a class: borrowed. NULL with an exception. */
PyObject *freeze_class(struct freezer *freezer, PyTypeObject *type);
/* An instance's field names and values, new tuples. 1; 0: it has what is no field; -1: exception. */
int freeze_fields(PyObject *known, PyObject *object, PyObject **ret_names, PyObject **ret_values);
/* The values of an instance that has exactly these fields, in this order, unless `ret_values` is NULL. 1; 0: it has
 * others; -1: exception. */
int freeze_match(PyObject *known, PyObject *object, PyObject *names, PyObject **ret_values);
/* Has an object attributes of its own, but for slots? */
bool has_attributes(PyObject *object);

/* freeze_inline.c: has an instance its attributes in itself, and no dict? */
bool has_inline(PyObject *object);
/* Such an attribute by its number, in the order in which they were set, borrowed; false: there are not that many. */
bool inline_at(PyObject *object, Py_ssize_t index, PyObject **ret_name, PyObject **ret_value);
/* The dict that it has else: new reference; NULL without an exception: it has none. */
PyObject *held_dict(PyObject *object);

/* freeze_image.c */
extern PyTypeObject BuilderType; /* _core.Builder */

/* _core.freeze, _core.thaw */
PyObject *core_freeze(PyObject *module, PyObject *arguments, PyObject *keywords);
PyObject *core_thaw(PyObject *module, PyObject *view);
PyObject *core_thaw_together(PyObject *module, PyObject *views);
PyObject *core_where(PyObject *module, PyObject *view);
/* The functions and types of the store, into the module. */
int store_add(PyObject *module);

#endif
