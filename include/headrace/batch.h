/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_BATCH_H
#define HEADRACE_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A batch: a tree of containers and scalars whose leaves are arrays, in one contiguous block of memory.
 *
 *     +------+-----------------------------+---------------+-------------------------------+
 *     | head | tree: one record per node,  | small leaves, | large leaves, then huge ones, |
 *     | 64 B | in pre-order, 8-aligned     | 64-aligned    | each at a page boundary       |
 *     +------+-----------------------------+---------------+-------------------------------+
 *
 * All positions are offsets from the head, so the bytes mean the same at any address. The writer collects the tree and
 * the addresses of the arrays; hr_batch_write then copies each byte once, to its final place.
 *
 * Threads: a writer or a reader belongs to one thread at a time. Nothing here allocates shared memory or does I/O.
 */

/* An element type, as DLPack has it: code is DLDataTypeCode (0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool,
 * 7 and up float8), bits per lane, lanes. */
struct hr_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};

enum {
    HR_BATCH_MAX_NDIM = 64,
    HR_BATCH_MAX_DEPTH = 1000,
    HR_BATCH_SMALL_ALIGN = 64,
    HR_BATCH_LARGE_BYTES = 32 * 1024, /* leaves of this size and above begin at a multiple of... */
    HR_BATCH_LARGE_ALIGN = 4096,      /* ...this: a page of their own if pages have 4 KiB */
    HR_BATCH_HUGE_BYTES = 1 << 20,    /* leaves of this size and above come last */
    HR_BATCH_MAX_THREADS = 2,
};

/* The kind of object that an array leaf becomes in the trainer. The C library only stores it. */
enum hr_flavor { HR_FLAVOR_TENSOR = 0, HR_FLAVOR_NUMPY = 1, HR_FLAVOR_BUFFER = 2 };

/* Describes an array: `data` is its first element, `strides` count elements and may be negative or 0, NULL means C
 * order. `shape` and `strides` are borrowed. */
struct hr_array {
    const void *data;
    struct hr_dtype dtype;
    uint32_t ndim;
    const int64_t *shape;
    const int64_t *strides;
};

enum hr_node_kind {
    HR_NODE_NONE = 1,
    HR_NODE_BOOL,   /* integer: 0 or 1 */
    HR_NODE_INT,    /* integer */
    HR_NODE_FLOAT,  /* real */
    HR_NODE_TEXT,   /* bytes: UTF-8 (surrogates passed through), no terminator */
    HR_NODE_BYTES,  /* bytes */
    HR_NODE_TUPLE,  /* count children */
    HR_NODE_LIST,   /* count children */
    HR_NODE_DICT,   /* 2 * count children: key, value, key, value... */
    HR_NODE_NAMED,  /* a named tuple: child 0 names the class (the face's business), then count fields */
    HR_NODE_ARRAY,  /* array */
    HR_NODE_PICKLE, /* bytes: the pickle; then count children: the buffers and arrays that it refers to by number */
    HR_NODE_KIND_END_
};

/* ---- writing ---- */

typedef struct hr_batch hr_batch; /* a writer */

/* A new, empty writer, owned by the caller. -ENOMEM. */
HR_API int hr_batch_new(hr_batch **ret_batch);
HR_API hr_batch *hr_batch_free(hr_batch *batch); /* NULL is fine; returns NULL */

/* Empties the writer and keeps its memory for the next batch. If a batch was written that used only a small part of a
 * large memory, the rest is freed. */
HR_API void hr_batch_reset(hr_batch *batch);

/* Sets how many threads hr_batch_write uses for a large batch: 1 at first, HR_BATCH_MAX_THREADS at most (-EINVAL). The
 * additional threads exist only while it runs and, in a stream of batches, for a moment after each batch. They block
 * all signals. If they cannot be started, hr_batch_write writes alone. Use this only if the process has as many cores
 * for itself. */
HR_API int hr_batch_set_threads(hr_batch *batch, uint32_t count);

/* Each of these functions adds one node. A batch has one root, so more nodes can follow only if the root is a
 * container. -ENOMEM, -EINVAL (bad kind, too deep, a second root, a dtype that is not of whole bytes, more than
 * HR_BATCH_MAX_NDIM dimensions, negative shape), -EOVERFLOW (sizes that do not fit 63 bits). A call that fails adds
 * nothing: the caller may add another node instead. */
HR_API int hr_batch_add_none(hr_batch *batch);
HR_API int hr_batch_add_bool(hr_batch *batch, int value);
HR_API int hr_batch_add_int(hr_batch *batch, int64_t value);
HR_API int hr_batch_add_float(hr_batch *batch, double value);
HR_API int hr_batch_add_text(hr_batch *batch, const char *utf8, size_t length);   /* copied */
HR_API int hr_batch_add_bytes(hr_batch *batch, const void *bytes, size_t length); /* copied */

/* Opens a container (HR_NODE_TUPLE, LIST, DICT, NAMED) of `count` entries; its children are the nodes added next. */
HR_API int hr_batch_open(hr_batch *batch, enum hr_node_kind kind, uint32_t count);

/* Opens a pickle with `count` children; `bytes` is copied. */
HR_API int hr_batch_open_pickle(hr_batch *batch, const void *bytes, size_t length, uint32_t count);

/* Adds one array. Its bytes are borrowed until hr_batch_write has run or the writer is reset. An array that is dense in
 * some order of its dimensions keeps its strides; a dimension of size 1, whose stride has no meaning, gets the stride
 * of C order. Any other array arrives in C order, without gaps. */
HR_API int hr_batch_add_array(hr_batch *batch, enum hr_flavor flavor, const struct hr_array *array);

/* `count` > 0 arrays of the same dtype and shape, stacked along a new first dimension, in C order: arrays[0] gives the
 * dtype and shape; it is checked that the others have the same (-EINVAL). Data is borrowed as by hr_batch_add_array. */
HR_API int hr_batch_add_stack(hr_batch *batch, enum hr_flavor flavor, const struct hr_array *arrays, uint32_t count);

/* `count` > 0 arrays of one or more dimensions, of the same dtype and, apart from the first dimension, the same shape
 * (-EINVAL), joined along the first dimension, in C order. Data is borrowed as by hr_batch_add_array. */
HR_API int hr_batch_add_joined(hr_batch *batch, enum hr_flavor flavor, const struct hr_array *arrays, uint32_t count);

/* Adds a new contiguous array whose bytes the caller fills in, for columns of scalars. `*ret_data` is valid until the
 * next add, write or reset. */
HR_API int hr_batch_add_filled(hr_batch *batch, enum hr_flavor flavor, struct hr_dtype dtype, uint32_t ndim,
                               const int64_t *shape, void **ret_data);

/* Adds a new contiguous array whose bytes the caller writes itself, to their final place: hr_batch_write leaves them as
 * they are, and hr_batch_place says where they are. `*ret_place` is the number of the array for that. */
HR_API int hr_batch_add_reserved(hr_batch *batch, enum hr_flavor flavor, struct hr_dtype dtype, uint32_t ndim,
                                 const int64_t *shape, uint64_t *ret_place);

/* The parts of a packed batch, which has documents laid end to end in one row, as models with attention over packed
 * rows expect it. */
enum hr_packed_part {
    HR_PACKED_TOKENS,    /* the elements of the documents: int64, shape (1, total) */
    HR_PACKED_LABELS,    /* the same with HR_PACKED_IGNORED for the first one of each document: int64, (1, total) */
    HR_PACKED_POSITIONS, /* 0, 1, 2, ... in each document: int64, (1, total) */
    HR_PACKED_NUMBERS,   /* the number of the document, from 0: int32, (1, total) */
    HR_PACKED_STARTS,    /* where each document begins, and at last the total: int32, (count + 1) */
    HR_PACKED_PART_END_
};
#define HR_PACKED_IGNORED (-100) /* the label that torch's cross_entropy leaves out */

/* Adds a part of a packed batch of `count` > 0 documents: arrays of one dimension, of int8 to int64 or uint8 to uint32,
 * with any strides, together INT32_MAX elements at most (-EINVAL). The structs and their data are borrowed as by
 * hr_batch_add_array; no other memory is used, because the part is computed where it is written. */
HR_API int hr_batch_add_packed(hr_batch *batch, enum hr_flavor flavor, enum hr_packed_part part,
                               const struct hr_array *documents, uint32_t count);

/* For several arrays that are views of one storage. A storage of `bytes` bytes at `data` is added once (borrowed). Then
 * each view is added by hr_batch_add_view: its first element is `offset_bytes` into the storage, array->data is not
 * used, and strides arrive as given. `*ret_storage` is the number of the storage in this batch; a storage is not a
 * node. -EINVAL if a view reaches outside its storage. */
HR_API int hr_batch_add_storage(hr_batch *batch, const void *data, uint64_t bytes, uint32_t *ret_storage);
HR_API int hr_batch_add_view(hr_batch *batch, enum hr_flavor flavor, uint32_t storage, uint64_t offset_bytes,
                             const struct hr_array *array);

/* Returns the number of bytes that hr_batch_write needs. -EOVERFLOW; -EINVAL if containers lack children or no node was
 * added. */
HR_API int hr_batch_measure(hr_batch *batch, uint64_t *ret_bytes);

/* Tells where a reserved array begins: `*ret_offset` bytes from the batch's head, a multiple of HR_BATCH_SMALL_ALIGN.
 * It is known when all nodes were added. -EINVAL: no such array; otherwise as hr_batch_measure. */
HR_API int hr_batch_place(hr_batch *batch, uint64_t place, uint64_t *ret_offset);

/* Writes the batch to `to` (64-aligned; page-aligned for page-aligned leaves), which has `capacity` bytes. -EINVAL,
 * -ENOSPC. It only copies, so it may run without an interpreter lock. */
HR_API int hr_batch_write(hr_batch *batch, void *to, uint64_t capacity);

/* ---- reading ---- */

/* One node that was read. Pointers are borrowed from the memory of the batch. If another process can still write there,
 * copy what they point to before use, and check the copy. Fields that a kind does not have are 0. */
struct hr_node {
    enum hr_node_kind kind;
    uint32_t count;
    int64_t integer;
    double real;
    const void *bytes;
    uint64_t length;
    /* the fields below are those of an array */
    enum hr_flavor flavor;
    struct hr_dtype dtype;
    uint32_t ndim;
    const int64_t *shape;
    const int64_t *strides;  /* in elements, never NULL unless ndim is 0 */
    uint64_t storage_offset; /* bytes from the batch's head to the storage of the array */
    uint64_t storage_bytes;
    uint64_t data_offset; /* bytes from the batch's head to the first element */
    int is_shared;        /* other arrays of this batch have the same storage */
};

/* A reader: a plain value that needs no free. Fields are private. */
struct hr_batch_reader {
    const unsigned char *base;
    uint64_t bytes;
    uint64_t at;
    uint64_t end;
    uint64_t nodes;    /* left to read, according to the head */
    uint64_t promised; /* left to read, according to the containers read so far */
};

/* Checks the head. `data` is borrowed and 64-aligned (-EINVAL); `bytes` may be more than the batch has. HR_E_CORRUPT or
 * HR_E_VERSION: the batch cannot be read. */
HR_API int hr_batch_read(struct hr_batch_reader *reader, const void *data, uint64_t bytes);

/* Reads the next node in pre-order. Returns 1 and the node, 0 after the last one, HR_E_CORRUPT if the bytes are not a
 * batch. Every offset and size is checked: whatever the bytes are, nothing outside `data` is read, and all that a node
 * refers to is inside. The writer refuses trees deeper than HR_BATCH_MAX_DEPTH; a reader that recurses has to count the
 * depth itself.
 *  */
HR_API int hr_batch_read_node(struct hr_batch_reader *reader, struct hr_node *ret_node);

#ifdef __cplusplus
}
#endif
#endif
