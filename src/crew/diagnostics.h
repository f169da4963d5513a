/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_CREW_DIAGNOSTICS_H
#define HR_CREW_DIAGNOSTICS_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/crew.h>

/*
 * A worker's box: a small file without a name that outlives the worker in the trainer's mapping.
 *
 *     0                said_count, u64: bytes said so far          writer: the worker
 *     8                status_count, u64: texts told so far          writer: the worker
 *     64, 4096 + 64    of a text told its bytes, u64, and itself;  writer: the worker
 *                      the last one is at status_count % 2
 *     8192             the last HR_DIAGNOSTICS_STDERR_BYTES of them, a ring  writer: the worker
 *     HR_DIAGNOSTICS_STACK_AT  stack dumps, one after the other            writer: the worker, also from a signal
 * handler
 *
 * It cannot grow, so that a dump of many threads ends at its end. If the worker dies, what it wrote stays.
 */
struct hr__diagnostics {
    void *mapping; /* NULL: none */
    char stderr_end[HR_DIAGNOSTICS_STDERR_BYTES];
    char status[HR_DIAGNOSTICS_STATUS_BYTES];
};

/* A fresh box: maps it, and gives its descriptor, owned by the caller. A box of before is dropped. */
int hr__diagnostics_open(struct hr__diagnostics *diagnostics, int *ret_fd);
void hr__diagnostics_close(struct hr__diagnostics *diagnostics);
void hr__diagnostics_stack(const struct hr__diagnostics *diagnostics, const char **ret_text, size_t *ret_bytes);
/* In order, in `diagnostics->stderr_end`. */
void hr__diagnostics_stderr(struct hr__diagnostics *diagnostics, const char **ret_text, size_t *ret_bytes);
/* In `diagnostics->status`; 0 bytes where its length cannot be. */
void hr__diagnostics_posted_status(struct hr__diagnostics *diagnostics, const char **ret_text, size_t *ret_bytes);

#endif
