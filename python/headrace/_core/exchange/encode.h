/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_EXCHANGE_ENCODE_H
#define HEADRACE_CORE_EXCHANGE_ENCODE_H

#include "exchange/arrays.h"

/* Writes an object as a batch (encode.c), or collates a list of samples into one (collate.c, packed.c, recipes.c). Used
 * by port.c. */

/* A tensor of a batch, borrowed, and the address of its elements. */
struct seen_tensor {
    PyObject *tensor;
    const char *data;
    uint64_t item_bytes;
};

/* The row of a reserved array that a recipe makes, and the place of its sample in the batch. */
struct row {
    uint64_t place, inside_bytes;
    uint32_t sample;
};

/* The images of a batch that are made in its memory (recipes.c). */
struct recipes {
    struct hr_image_recipe *items;
    struct row *rows; /* the row of each recipe */
    size_t count, room;
    hr_image_memory *memory; /* while they are made */
    hr_port *port;           /* as `memory` */
};

struct encoder {
    hr_batch *batch;
    struct inputs inputs;
    struct recipes recipes;
    PyObject *rows;       /* borrowed from the inputs; NULL: the batch has no rows to gather */
    PyObject *dump;       /* borrowed: pickles instead of core.dump; NULL: core.dump */
    PyObject *seen_types; /* dict: named tuple class -> its pickle, bytes */
    const void **seen;    /* hash set of the containers and tensors that were met in this batch */
    size_t seen_count, seen_room;
    size_t seen_most;                /* the maximum of seen_count for this batch, up to the last reset */
    struct seen_tensor first_tensor; /* the storage of it is added to `seen` only if there is a second tensor */
    size_t tensor_count;
};
int encoder_init(struct encoder *encoder);
void encoder_free(struct encoder *encoder);
/* Empties the encoder, to start the same batch again or, if that one `is_done`, for the next one. */
void encoder_reset(struct encoder *encoder, bool is_done);

/* Puts an object into the encoder's empty batch: as a tree if it is one, else as a pickle. -1: exception. */
int encode(struct encoder *encoder, PyObject *object);
/* Adds the class of a named tuple, as the first child of its node. */
int encode_class(struct encoder *encoder, PyObject *type);
bool is_named_tuple(PyObject *object);
/* Adds an object as a node. FOUND_NOT: it is not a tree of plain parts, or a part of it occurs twice. */
enum found encode_node(struct encoder *encoder, PyObject *object, int depth);
/* Turns the code of an hr_batch_* call into 0 or an exception. FOUND_NOT: the tree is too deep. */
enum found encode_result(int code);

/* Puts the collation of collate_packed into the encoder's empty batch (packed.c). names: a tuple of what is joined in
 * addition to the tokens. FOUND_NOT: Python has to collate. */
enum found collate_packed(struct encoder *encoder, PyObject *samples, PyObject *names);

/* Returns true for a deferred tensor of headrace.images. */
bool is_deferred(PyObject *object);
/* Adds a column of deferred tensors as one array, and their recipes. FOUND_NOT: their shapes or dtypes differ, or one
 * was collated before; then Python makes them ordinary tensors. */
enum found collate_deferred(struct encoder *encoder, PyObject **items, uint32_t count, enum hr_flavor flavor);
/* Make the recipes, in three steps: recipes_begin (-1: exception), recipes_run, which needs no GIL, when the batch was
 * written to `data`, and recipes_end. recipes_run returns how many failed, or a negative code. */
int recipes_begin(struct recipes *recipes);
int recipes_run(struct recipes *recipes, hr_batch *batch, void *data, hr_port *port, uint32_t threads);
void recipes_end(struct recipes *recipes);
void recipes_free(struct recipes *recipes);

/* Returns true if torch.as_tensor takes the array. It refuses negative strides, long doubles and np.uint64 scalars,
 * with its own messages. */
bool is_for_torch(const struct hr_array *array, bool is_array);
/* Puts the default collation of a list of samples into the encoder's empty batch. FOUND_NOT: Python has to collate. */
enum found collate(struct encoder *encoder, PyObject *samples, enum hr_flavor flavor);

#endif
