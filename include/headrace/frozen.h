/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_FROZEN_H
#define HEADRACE_FROZEN_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Frozen data: nested data as one run of bytes, in sealed memory or in a file, that any number of processes map and
 * read.
 *
 * A builder writes the frozen data front to back; a reader needs nothing else. Whatever the bytes of frozen data are, a
 * reader refuses it, fails with HR_E_CORRUPT, or returns another value: it never reads beyond the frozen data, and the
 * time of each call is bounded by the sizes that it returns. Frozen data of HR_FROZEN_OLDEST_VERSION to
 * HR_FROZEN_VERSION can be read, on little-endian machines only.
 *
 * Threads: any number may read the same frozen data, without a lock. A builder belongs to one thread at a time. Fork: a
 * child may go on reading; it must not use a builder.
 */

/* The format that is written, the oldest one that is read, limits, and the bytes at the beginning that differ in frozen
 * data with other contents. */
enum {
    HR_FROZEN_VERSION = 3,
    HR_FROZEN_OLDEST_VERSION = 2,
    HR_FROZEN_MAX_SHAPES = 65535,
    HR_FROZEN_MAX_FIELDS = 1024,
    HR_FROZEN_HEADER_BYTES = 256
};

/* The kinds of values. The numbers are stored in frozen data, so their meaning must not change. */
enum hr_kind {
    HR_KIND_INVALID = 0,
    HR_KIND_NONE = 1,
    HR_KIND_FALSE = 2,
    HR_KIND_TRUE = 3,
    HR_KIND_INT = 4,     /* an int of 64 bits */
    HR_KIND_BIG_INT = 5, /* bytes: two's complement, little-endian */
    HR_KIND_FLOAT = 6,   /* a float of 64 bits, bit for bit */
    HR_KIND_COMPLEX = 7, /* two floats */
    HR_KIND_TEXT = 8,    /* bytes: UTF-8, in which lone surrogates are encoded like other code points */
    HR_KIND_BYTES = 9,   /* bytes */
    HR_KIND_BYTE_ARRAY = 10,
    HR_KIND_PICKLE = 11, /* bytes that the library does not interpret */
    HR_KIND_LIST = 12,   /* items */
    HR_KIND_TUPLE = 13,  /* items */
    HR_KIND_DICT = 14,   /* entries in insertion order, each an item for its key and one for its value */
    HR_KIND_SET = 15,    /* items */
    HR_KIND_FROZEN_SET = 16,
    HR_KIND_RECORD = 17, /* a row of a shape: fields with names */
    HR_KIND_ARRAY = 18,  /* raw elements, 64-byte-aligned, with a dtype and dimensions */
    HR_KIND_TYPED = 19,  /* two items: a name, and a value whose meaning depends on the name */
    HR_KIND_COUNT
};

/* A value as it is stored in its frozen data: a tagged word. It has no meaning without its frozen data. */
typedef uint64_t hr_value;

/* A value that was read. */
struct hr_item {
    uint8_t kind;      /* enum hr_kind */
    uint8_t layout;    /* private: how its items or bytes are stored */
    uint8_t is_ascii;  /* all bytes of a text, or of all texts of a packed list, are below 128 */
    uint8_t is_native; /* all keys of a dict or set are of kinds that hr_frozen_find looks up */
    uint32_t shape;    /* the number of the shape of a record, or of the records of a packed list or tuple; UINT32_MAX:
                          another list or tuple. Otherwise private */
    uint64_t count;    /* items, entries, fields or bytes */
    hr_value value; /* the value from which hr_frozen_read makes this item again; 0: it has no such value (an item of a
                       packed list). Two containers are one object if their values are equal. */
    union {
        int64_t integer;
        double real;
        struct {
            double real, imaginary;
        } pair;                    /* a complex number */
        unsigned char small[8];    /* private: a short text's bytes; use hr_item_bytes */
        const unsigned char *data; /* bytes, or private: the items. Borrowed from the frozen data */
        struct {
            const unsigned char *data, *slots;
        } keyed; /* private: of a dict or set; its `data` is the same as above */
    };
};

/* The bytes of a text, bytes, byte array, pickle or big integer: `count` of them, borrowed from the item and its frozen
 * data.
 */
HR_API const void *hr_item_bytes(const struct hr_item *item);

/* ---- reading ---- */

typedef struct hr_frozen hr_frozen; /* frozen data that is open */

/* Flags for opening frozen data. */
enum { HR_FROZEN_VERIFY = 1 /* check every chunk against its checksum, which reads the whole frozen data */ };

/* Opens the frozen data in file `path` (copied). Maps the file, and reads only the header, the section table and the
 * root. Owned by the caller. An errno; -EINVAL: not frozen data; HR_E_VERSION; HR_E_CORRUPT: truncated or damaged. */
HR_API int hr_frozen_open(const char *path, uint32_t flags, hr_frozen **ret_frozen);

/* Opens the frozen data behind a descriptor, which is borrowed: the frozen data makes a duplicate. `name` is for
 * messages. Errors as hr_frozen_open. */
HR_API int hr_frozen_open_fd(int fd, const char *name, uint32_t flags, hr_frozen **ret_frozen);

/* Opens frozen data of `bytes` bytes at `contents`, 64-byte-aligned and borrowed until the frozen data is closed.
 * Errors as hr_frozen_open. */
HR_API int hr_frozen_open_memory(const void *contents, uint64_t bytes, uint32_t flags, hr_frozen **ret_frozen);

/* Closes the frozen data. All that was borrowed from it becomes invalid. NULL is fine; returns NULL. */
HR_API hr_frozen *hr_frozen_close(hr_frozen *frozen);

struct hr_frozen_info {
    uint64_t bytes; /* size of the whole frozen data */
    uint32_t version;
    uint32_t shape_count;
    unsigned char
        id[16]; /* random, drawn when the frozen data was made: frozen data with the same id are the same frozen data */
    unsigned char digest[16]; /* digest of its contents, computed from all checksums */
    const void *contents;     /* borrowed */
    int fd; /* the descriptor of frozen data that has no file name, borrowed; -1: the frozen data was opened by path or
             * in memory
             */
};
HR_API void hr_frozen_look(const hr_frozen *frozen, struct hr_frozen_info *ret_info);

/* Checks every chunk against its checksum. HR_E_CORRUPT names the first that does not match. */
HR_API int hr_frozen_verify(const hr_frozen *frozen);

/* The value that the builder was finished with. */
HR_API hr_value hr_frozen_root(const hr_frozen *frozen);

/* Reads a value. HR_E_CORRUPT. In this and the following functions `*ret_item` must not be the container itself, and
 * its contents are undefined after a failure. */
HR_API int hr_frozen_read(const hr_frozen *frozen, hr_value value, struct hr_item *ret_item);

/* The item at `index` of a list, tuple or set, the field of a record, a part of a typed value (0: its name, 1: its
 * value), or an entry's key. -ERANGE: there are fewer. HR_E_CORRUPT. */
HR_API int hr_frozen_at(const hr_frozen *frozen, const struct hr_item *container, uint64_t index,
                        struct hr_item *ret_item);

/* The value of a dict's entry at `index`. Errors as hr_frozen_at. */
HR_API int hr_frozen_entry(const hr_frozen *frozen, const struct hr_item *dict, uint64_t index,
                           struct hr_item *ret_value);
/* The value of a dict's entry at a place that hr_frozen_find returned. HR_E_CORRUPT, -EINVAL. */
HR_API int hr_frozen_value(const hr_frozen *frozen, const struct hr_item *dict, uint64_t place,
                           struct hr_item *ret_value);

/* A key to look up, of one of the kinds NONE, FALSE, TRUE, INT, FLOAT, TEXT, BYTES, TUPLE and TYPED. 1 == 1.0 == True.
 * The name and the value of a typed value are compared separately. hr_builder_index makes these typed values findable:
 * "date", "timedelta", "UUID", "Path" if it is a "PosixPath", and "datetime" and "time" without time zone and fold. */
struct hr_key {
    uint8_t kind;
    uint64_t count; /* bytes of a text or of bytes, or keys of a tuple; a typed value has 2: its name and its value */
    union {
        int64_t integer;
        double real;
        const void *bytes;         /* UTF-8 for a text. Borrowed */
        const struct hr_key *keys; /* borrowed */
    };
};

/* The place of a key's entry in a dict, or the index of an item in a set, whose `is_native` is set. Returns 1 if it was
 * found, 0 if not; HR_E_CORRUPT; -EINVAL: `is_native` is not set, which is also true of any other kind of value. The
 * number of probes is bounded by the size of the dict. */
HR_API int hr_frozen_find(const hr_frozen *frozen, const struct hr_item *dict, const struct hr_key *key,
                          uint64_t *ret_place);

/* A shape: the kind, the class and the field names that several records have in common. */
enum hr_shape_kind {
    HR_SHAPE_DICT = 1,   /* a dict with these keys */
    HR_SHAPE_OBJECT = 2, /* an instance of the class, with these attributes */
    HR_SHAPE_TUPLE = 3   /* a named tuple of the class */
};
struct hr_shape {
    uint32_t kind; /* enum hr_shape_kind */
    uint32_t field_count;
    struct hr_item type; /* the class: a text "module:qualified.name". NONE for HR_SHAPE_DICT */
};
/* Reads shape `number`. HR_E_CORRUPT, also if there are fewer shapes. */
HR_API int hr_frozen_shape(const hr_frozen *frozen, uint32_t number, struct hr_shape *ret_shape);
/* The name of a shape's field, a text. Errors as hr_frozen_shape; -ERANGE. */
HR_API int hr_frozen_field(const hr_frozen *frozen, uint32_t number, uint32_t field, struct hr_item *ret_name);

/* An array, a tensor or a numpy scalar. */
enum { HR_FROZEN_MAX_DIMENSIONS = 64 };
enum hr_array_kind { HR_ARRAY_NUMPY = 1, HR_ARRAY_NUMPY_SCALAR = 2, HR_ARRAY_TORCH = 3 };
struct hr_frozen_array {
    uint32_t kind; /* enum hr_array_kind */
    uint32_t item_bytes;
    uint32_t dimension_count;
    uint32_t is_strided; /* 0: C order without gaps. 1: several places of the array may be the same stored element */
    uint64_t dimensions[HR_FROZEN_MAX_DIMENSIONS]; /* elements; their product is at most INT64_MAX */
    int64_t
        strides[HR_FROZEN_MAX_DIMENSIONS]; /* distance to the next place, in stored elements; may be 0 or negative */
    uint64_t first;                        /* the number of the stored element at index 0 of all dimensions */
    struct hr_item dtype;                  /* a text: dtype.str of numpy, or the name of a torch dtype */
    const void *data;                      /* the stored elements. Borrowed. Every place of the array is among them */
    uint64_t bytes; /* size of the stored elements: all dimensions multiplied, or less if it is strided */
};
HR_API int hr_frozen_array(const hr_frozen *frozen, const struct hr_item *array, struct hr_frozen_array *ret_array);

/* ---- building ---- */

typedef struct hr_builder hr_builder; /* frozen data that is being written */

/*
 * Values can be made bottom up or top down: a container is made with its size and room for its items, which are put
 * (hr_builder_put) at any time before the frozen data is finished. An item that was never put is NONE; the keys of a
 * dict must all be put. Make a key right before it is put: lookups are fastest if it is stored next to its entry.
 *
 * Every function that can run out of room returns -ENOSPC, -ENOMEM or another error of the file system. After that only
 * hr_builder_close may be called.
 */

/* Opens a builder for frozen data in memory (`path` NULL) or in file `path` (copied). The file appears, and replaces a
 * file of that name, only when the frozen data is finished. Owned by the caller. An errno. */
HR_API int hr_builder_open(const char *path, hr_builder **ret_builder);

/* Drops frozen data that is not finished, and removes its file. NULL is fine; returns NULL. */
HR_API hr_builder *hr_builder_close(hr_builder *builder);

HR_API uint64_t hr_builder_bytes(const hr_builder *builder); /* written so far */

/* Values. What needs room in the frozen data can fail. */
HR_API hr_value hr_value_none(void);
HR_API hr_value hr_value_bool(int truth);
HR_API int hr_builder_int(hr_builder *builder, int64_t integer, hr_value *ret_value);
HR_API int hr_builder_float(hr_builder *builder, double real, hr_value *ret_value);
HR_API int hr_builder_complex(hr_builder *builder, double real, double imaginary, hr_value *ret_value);
/* `kind`: BIG_INT, TEXT, BYTES, BYTE_ARRAY or PICKLE. A short text that was put recently is stored only once. */
HR_API int hr_builder_bytes_of(hr_builder *builder, enum hr_kind kind, const void *bytes, uint64_t count,
                               hr_value *ret_value);

/* A container of `count` items: LIST, TUPLE, SET, FROZEN_SET, DICT (count entries) or TYPED (2). */
HR_API int hr_builder_container(hr_builder *builder, enum hr_kind kind, uint64_t count, hr_value *ret_value);

/* Puts item `index` of a container, key `index` of a dict, or field `index` of a record. -EINVAL: it is not a container
 * of this builder, or the item is not a value of it; -ERANGE. */
HR_API int hr_builder_put(hr_builder *builder, hr_value container, uint64_t index, hr_value item);
/* Puts the value of a dict's entry. Errors as hr_builder_put. */
HR_API int hr_builder_put_entry(hr_builder *builder, hr_value dict, uint64_t index, hr_value item);

/* Makes the keys of a dict or the items of a set findable. Call it after all of them are put, and the items of those
 * that are tuples. If one of them is of a kind that hr_frozen_find does not know, is NaN, or occurs twice, the dict
 * gets no index and is not native. 1: native; 0: not. */
HR_API int hr_builder_index(hr_builder *builder, hr_value dict);

/* A packed list or tuple. The caller fills `*ret_items`, which is borrowed until the next call of the builder. */
HR_API int hr_builder_ints(hr_builder *builder, enum hr_kind kind, uint64_t count, hr_value *ret_value,
                           int64_t **ret_items);
HR_API int hr_builder_small_ints(hr_builder *builder, enum hr_kind kind, uint64_t count, hr_value *ret_value,
                                 int32_t **ret_items);
HR_API int hr_builder_floats(hr_builder *builder, enum hr_kind kind, uint64_t count, hr_value *ret_value,
                             double **ret_items);

/* A packed list or tuple of texts (`item_kind` TEXT) or bytes (BYTES): `count` of them with `bytes` bytes in all. Add
 * all of them in order with hr_texts_add, without another call of the builder in between. */
struct hr_texts {
    unsigned char *offsets, *guide, *bytes; /* private */
    uint64_t count, room, used, added;
    uint32_t width;
};
HR_API int hr_builder_texts(hr_builder *builder, enum hr_kind kind, enum hr_kind item_kind, uint64_t count,
                            uint64_t bytes, int is_ascii, hr_value *ret_value, struct hr_texts *ret_texts);
/* -ERANGE: more texts or bytes than were announced. */
HR_API int hr_texts_add(struct hr_texts *texts, const void *bytes, uint64_t count);

/* Returns the number of a shape, which is made if the frozen data does not have it yet. `type` is a text, or NONE;
 * `names` are `field_count` texts; -EINVAL: they are not. -EOVERFLOW: there are HR_FROZEN_MAX_SHAPES shapes already, or
 * too many fields; use a dict. */
HR_API int hr_builder_shape(hr_builder *builder, enum hr_shape_kind kind, hr_value type, const hr_value *names,
                            uint32_t field_count, uint32_t *ret_number);
HR_API int hr_builder_record(hr_builder *builder, uint32_t shape, hr_value *ret_value);
/* A packed list or tuple of `count` records of one shape. hr_builder_row returns record `index` of it. */
HR_API int hr_builder_rows(hr_builder *builder, enum hr_kind kind, uint32_t shape, uint64_t count, hr_value *ret_value);
HR_API int hr_builder_row(const hr_builder *builder, hr_value rows, uint64_t index, hr_value *ret_record);

/* Makes an array. The caller fills `*ret_data`, which has `item_bytes` times the product of `dimensions` bytes. `dtype`
 * is a text; -EINVAL: it is not. */
HR_API int hr_builder_array(hr_builder *builder, enum hr_array_kind kind, hr_value dtype, uint32_t item_bytes,
                            const uint64_t *dimensions, uint32_t dimension_count, hr_value *ret_value, void **ret_data);

/* Finishes the frozen data: writes its checksums and header, then seals the memory or gives the file its name. Returns
 * the frozen data as open frozen data. The builder is closed, also after a failure. */
HR_API int hr_builder_finish(hr_builder *builder, hr_value root, hr_frozen **ret_frozen);

#ifdef __cplusplus
}
#endif
#endif
