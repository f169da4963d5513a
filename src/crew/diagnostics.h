/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's diagnostics file: its layout, and its functions. */
#ifndef HR_CREW_DIAGNOSTICS_H
#define HR_CREW_DIAGNOSTICS_H

#include <stddef.h>

#include <headrace/face/crew.h>

/*
 * A worker's diagnostics file: a small file without a name, which the trainer has mapped, so that it is still readable
 * after the worker's death.
 *
 *     0                        stderr_count, u64: bytes logged so far      writer: the worker
 *     8                        status_count, u64: status texts so far      writer: the worker
 *     64, 4096 + 64            a status text: its length, u64, its bytes;  writer: the worker
 *                              the last one is at status_count % 2
 *     8192                     the last HR_DIAGNOSTICS_STDERR_BYTES of     writer: the worker
 *                              the stderr, a ring
 *     HR_DIAGNOSTICS_STACK_AT  stack dumps, one after the other            writer: the worker, also in a signal handler
 *
 * It cannot grow, so a dump of many threads is cut at its end. If the worker dies, what it wrote stays.
 */
struct hr__diagnostics {
    void *mapping; /* NULL: there is no file */
    char stderr_end[HR_DIAGNOSTICS_STDERR_BYTES];
    char status[HR_DIAGNOSTICS_STATUS_BYTES];
};

/* Creates and maps a new diagnostics file, and returns its descriptor, owned by the caller. An earlier file is dropped.
 */
int hr__diagnostics_open(struct hr__diagnostics *diagnostics, int *ret_fd);
void hr__diagnostics_close(struct hr__diagnostics *diagnostics);
void hr__diagnostics_stack(const struct hr__diagnostics *diagnostics, const char **ret_text, size_t *ret_bytes);
/* Copies the end of the stderr, in order, to `diagnostics->stderr_end`. */
void hr__diagnostics_stderr(struct hr__diagnostics *diagnostics, const char **ret_text, size_t *ret_bytes);
/* Copies the status text to `diagnostics->status`; 0 bytes if its length is invalid. */
void hr__diagnostics_posted_status(struct hr__diagnostics *diagnostics, const char **ret_text, size_t *ret_bytes);

#endif
