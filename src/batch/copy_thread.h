/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_BATCH_COPY_THREAD_H
#define HR_BATCH_COPY_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "os/os.h"

/*
 * A second thread that takes part in a piece of work that is cut into parts: whoever is free takes the next.
 *
 *             by the owner             by the thread            by the thread
 *     AWAKE ---------------> OFFERED ----------------> WORKING ---------------> AWAKE
 *       ^                       |                                                 | by either
 *       +-----------------------+ by the owner, whose work is done                v
 *                                                                               ENDED
 *
 * To start it costs more than a small piece of work saves. So where one piece comes right after another it stays awake
 * for a moment after each, letting anybody else have the core, and then ends: between pieces that come seldom there is
 * no second thread. Whatever the owner writes, it writes where the thread does not look: in AWAKE and ENDED.
 *
 * Belongs to one thread. A child of fork has no such thread, and starts its own.
 */
struct hr__copy_thread {
    struct hr__thread thread;
    _Atomic uint32_t state;
    void (*run)(void *context);
    void *context;
    int64_t awake_ns; /* how long to stay awake after this piece of work */

    /* The owner's: */
    bool is_started;             /* and not joined */
    uint32_t pid;                /* of the process that started it */
    int64_t ended_ns, lasted_ns; /* the last piece of work */
    int64_t rests_until_ns;
};

/* Runs `run(context)` here and, if it can be had, in the second thread too; returns when both have. `is_large`: that
 * pays even where the thread has to be started for it. */
void hr__copy_thread_run(struct hr__copy_thread *copy_thread, bool is_large, void (*run)(void *context), void *context);

/* Ends the thread, if there is one. */
void hr__copy_thread_end(struct hr__copy_thread *copy_thread);

#endif
