/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the file of a loader in a recording. The recorder calls it. */
#ifndef HR_RECORD_WRITER_H
#define HR_RECORD_WRITER_H

#include <stddef.h>

#include "format.h"

struct hr__record_writer {
    int fd;
    uint32_t worker_count;
    int64_t began_ns;
    struct hr__record_place places[HR__RING_COUNT];
    uint32_t numbers[HR__RING_COUNT]; /* the entries that were written */
};

/* Creates the file `path`, which must not exist. -EEXIST; negative errnos. hr__record_close closes it. */
int hr__record_create(const char *path, const struct hr_record_identity *identity,
                      struct hr__record_writer *ret_writer);
void hr__record_close(struct hr__record_writer *writer);

/* Each returns 0 or a negative errno, without a message: -ENOSPC, -EDQUOT, -EFBIG and -EIO among others. */
int hr__record_put_row(struct hr__record_writer *writer, enum hr_record_part part, const struct hr_record_row *row,
                       const struct hr_record_worker *workers);
int hr__record_put_hour(struct hr__record_writer *writer, const struct hr_record_hour *hour);
int hr__record_put_batches(struct hr__record_writer *writer, const struct hr_record_batch *batches, size_t count);
int hr__record_put_steps(struct hr__record_writer *writer, const struct hr_record_step *steps, size_t count);
/* Replaces the hour that goes on (NULL: none does) and the slowest samples, at most HR_RECORD_SLOWEST. */
int hr__record_put_now(struct hr__record_writer *writer, const struct hr_record_hour *hour,
                       const struct hr_record_sample *slowest, size_t count);
int hr__record_finish(struct hr__record_writer *writer, enum hr_record_end end, int64_t ended_ns);

#endif
