/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_DLPACK_H
#define HEADRACE_CORE_DLPACK_H

#include <stdint.h>

/*
 * DLPack's ABI (https://dmlc.github.io/dlpack/latest/c_api.html), as far as headrace uses it: the tensor, its two
 * managed forms, and the exchange table of a type's `__dlpack_c_exchange_api__` capsule.
 */

enum { DL_CPU = 1, DL_MAJOR_VERSION = 1, DL_MINOR_VERSION = 0 };

struct dl_device {
    int32_t type;
    int32_t id;
};

struct dl_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};

struct dl_tensor {
    void *data;
    struct dl_device device;
    int32_t ndim;
    struct dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: C order */
    uint64_t byte_offset;
};

/* The contents of a capsule named "dltensor". */
struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};

struct dl_version {
    uint32_t major;
    uint32_t minor;
};

struct dl_versioned {
    struct dl_version version;
    void *context;
    void (*deleter)(struct dl_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};

/* The table in a capsule named "dlpack_exchange_api". Functions return 0, or -1 with a Python exception set. */
struct dl_exchange {
    struct dl_version version;
    struct dl_exchange *previous;
    int (*allocate)(struct dl_tensor *prototype, struct dl_versioned **out, void *error_context,
                    void (*set_error)(void *error_context, const char *kind, const char *message));
    int (*export_managed)(void *object, struct dl_versioned **out);
    int (*import_managed)(struct dl_versioned *tensor, void **out_object); /* takes ownership of the tensor */
    int (*describe)(void *object, struct dl_tensor *out);                  /* borrowed; may be NULL */
    int (*work_stream)(int32_t device_type, int32_t device_id, void **out_stream);
};

#endif
