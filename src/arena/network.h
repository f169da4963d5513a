/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what a process waits for remote objects, for observers. */
#ifndef HR_ARENA_NETWORK_H
#define HR_ARENA_NETWORK_H

#include "shown.h"

/*
 * src/remote calls this where a read waits for the fetcher. The numbers go to the part of the arena that this process
 * shows: a worker to its sight, a trainer that makes its batches itself to the page of the loader whose next() runs.
 * Without such a part they are not counted. All threads of a process count together: the time in which at least one of
 * them waits.
 *
 * The memory may go away while another thread waits. So a thread that uses it is counted meanwhile, and
 * hr__network_leave returns when none does. A forked child does not have the memory, and counts nothing.
 */

/* From now on, this process counts there. Borrowed until hr__network_leave. */
void hr__network_use(struct hr__shown_network *place);
/* Ends it, if `place` is the one that is used. */
void hr__network_leave(struct hr__shown_network *place);

void hr__network_begin(void); /* this thread waits for the fetcher */
void hr__network_end(void);   /* it does not any more */
void hr__network_hit(void);   /* a read of a remote object did not have to wait */

#endif
