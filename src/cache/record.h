/* SPDX-License-Identifier: Apache-2.0 */
/* The record of an object or of a build, as a struct and as a file. */
#ifndef HR_CACHE_RECORD_H
#define HR_CACHE_RECORD_H

#include <stdint.h>

#include <headrace/cache.h>

#include "os/os.h"

/*
 * The record of an object or of a build: the file "info", lines of "field value" with a checksum in the last one.
 * Newlines and backslashes in values are escaped. It is written once, under another name, and renamed.
 */
struct record {
    char *name, *version, *format, *stamp, *meta, *place, *command; /* owned; never NULL after record_init */
    char id[HR_CACHE_ID_CHARACTERS];
    char boot_id[HR__BOOT_ID_BYTES];
    uint32_t keep, pid;
    int64_t built_ns;
    uint64_t bytes, chunk_bytes;
    uint64_t sums_hash; /* of the file of checksums */
};

void hr__record_init(struct record *record);
void hr__record_done(struct record *record); /* frees the texts; of a record that is all 0, too */
int hr__record_copy(const struct record *from, struct record *to);
int hr__record_set(char **field, const char *value); /* copies. -ENOMEM */
int hr__record_write(const struct record *record, const char *folder);
/* -ENOENT; HR_E_CORRUPT; HR_E_VERSION. The record is owned by the caller. */
int hr__record_read(const char *folder, struct record *ret_record);

#endif
