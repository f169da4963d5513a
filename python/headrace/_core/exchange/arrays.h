/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_EXCHANGE_ARRAYS_H
#define HEADRACE_CORE_EXCHANGE_ARRAYS_H

#include "core.h"

/* Tensors and numpy arrays: as struct hr_array on their way into a batch (array_in.c), and made from a batch
 * (array_out.c). */

/* ---- array_in.c ---- */

/* Keeps the objects and buffers alive from which a batch is being written. */
struct inputs {
    Py_buffer *buffers;
    size_t buffer_count, buffer_room;
    PyObject **objects;
    size_t object_count, object_room;
};
void inputs_clear(struct inputs *inputs); /* keeps the memory for the next batch */
void inputs_free(struct inputs *inputs);
int inputs_keep(struct inputs *inputs, PyObject *object); /* until inputs_clear; -1: exception */
/* Returns memory that is valid until inputs_clear, aligned for any type of C, or NULL with an exception. */
void *inputs_room(struct inputs *inputs, size_t bytes);

/* Describe a tensor (an exact torch.Tensor: CPU, strided, without gradient, not lazy) or an array (an exact
 * numpy.ndarray or a scalar of a plain dtype). FOUND_NOT: encode the object in another way. The description is valid
 * until inputs_clear. */
enum found input_tensor(struct inputs *inputs, PyObject *object, struct hr_array *ret_array);
enum found input_array(struct inputs *inputs, PyObject *object, struct hr_array *ret_array);
/* Returns true if the elements follow each other in C order. Strides of a dimension of size 1, or of an empty array,
 * have no meaning. */
bool array_is_c_order(const struct hr_array *array);
bool is_tensor(PyObject *object);
bool is_numpy(PyObject *object);
bool is_array(PyObject *object);

/* ---- array_out.c ---- */

extern PyTypeObject LeaseType; /* _core.Lease: a buffer over leased or private memory */

/* Which arrays of a delivery have leases on it. The others are private copies. */
enum leased { LEASED_LARGE, LEASED_ALL, LEASED_NONE };

/* The bytes that are decoded, and who keeps them. Arrays of a delivery may have leases on it. Of other bytes, numpy
 * arrays become read-only views that keep `owner` alive; without an owner every array is a private copy. */
struct origin {
    const void *data;
    uint64_t bytes;
    struct hr_delivery *delivery; /* NULL: the bytes belong to `owner` */
    PyObject *owner;              /* borrowed; NULL: copy */
    enum leased leased;
};

/* Makes a tensor or array of the array leaf `node`. New reference. */
PyObject *output_array(const struct origin *origin, const struct hr_node *node);

/* Makes a tensor of `bytes` bytes (uint8) of a delivery from `offset` on, with a lease. New reference. */
PyObject *output_bytes(const struct origin *origin, uint64_t offset, uint64_t bytes);

/* Makes a tuple of `count` numbers, each multiplied by `factor`. New reference. */
PyObject *numbers_tuple(const int64_t *numbers, uint32_t count, int64_t factor);

#endif
