/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the header of a .npy file. */
#ifndef HR_BASE_NPY_H
#define HR_BASE_NPY_H

#include <stdbool.h>
#include <stdint.h>

enum { HR__NPY_MAX_DIMENSIONS = 32, HR__NPY_DTYPE_BYTES = 32, HR__NPY_HEADER_MAX = 65536 };

struct hr__npy {
    char dtype[HR__NPY_DTYPE_BYTES]; /* as in the file, such as "<f4" */
    uint32_t header_bytes;           /* the data follows */
    uint32_t dimension_count;
    uint64_t dimensions[HR__NPY_MAX_DIMENSIONS];
    uint64_t bytes; /* size of the data */
    bool is_fortran;
};

/* Parses the first `count` bytes of a .npy file of version 1 to 3. It sets no message. -EINVAL: this is not such a
 * header. -ENOTSUP: the elements are records, or objects, or have another kind that is not known; only the field dtype
 * of `ret_npy` is then set, "" for records. */
int hr__npy_parse(const unsigned char *head, uint64_t count, struct hr__npy *ret_npy);

#endif
