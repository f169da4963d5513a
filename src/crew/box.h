/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_CREW_BOX_H
#define HR_CREW_BOX_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/crew.h>

/*
 * A worker's box: a small file without a name that outlives the worker in the trainer's mapping.
 *
 *     0                said_count, u64: bytes said so far          writer: the worker
 *     8                told_count, u64: texts told so far          writer: the worker
 *     64, 4096 + 64    of a text told its bytes, u64, and itself;  writer: the worker
 *                      the last one is at told_count % 2
 *     8192             the last HR_BOX_SAID_BYTES of them, a ring  writer: the worker
 *     HR_BOX_STACK_AT  stack dumps, one after the other            writer: the worker, also from a signal handler
 *
 * It cannot grow, so that a dump of many threads ends at its end. If the worker dies, what it wrote stays.
 */
struct hr__box {
    void *mapping; /* NULL: none */
    char said[16 << 10];
    char told[HR_BOX_TOLD_BYTES];
};

/* A fresh box: maps it, and gives its descriptor, owned by the caller. A box of before is dropped. */
int hr__box_open(struct hr__box *box, int *ret_fd);
void hr__box_close(struct hr__box *box);
void hr__box_stack(const struct hr__box *box, const char **ret_text, size_t *ret_bytes);
/* In order, in `box->said`. */
void hr__box_said(struct hr__box *box, const char **ret_text, size_t *ret_bytes);
/* In `box->told`; 0 bytes where its length cannot be. */
void hr__box_told(struct hr__box *box, const char **ret_text, size_t *ret_bytes);

#endif
