/* SPDX-License-Identifier: Apache-2.0 */
/* A second thread for work that is divided into parts. */
#ifndef HR_BATCH_COPY_THREAD_H
#define HR_BATCH_COPY_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "os/os.h"

/*
 * A second thread for a piece of work that is divided into parts: each of the two threads takes the next part when it
 * is free.
 *
 *             by the owner             by the thread            by the thread
 *     AWAKE ---------------> OFFERED ----------------> WORKING ---------------> AWAKE
 *       ^                       |                                                 | by either
 *       +-----------------------+ by the owner, whose work is done                v
 *                                                                               ENDED
 *
 * Starting the thread costs more than a small piece of work saves. So if pieces follow each other closely, the thread
 * stays awake for a moment after each, while other processes may use the core, and then ends. If pieces are rare, there
 * is no second thread between them. The owner writes the fields only in AWAKE and ENDED, when the thread does not read
 * them.
 *
 * The struct belongs to one thread. A forked child has no second thread, and starts its own.
 */
struct hr__copy_thread {
    struct hr__thread thread;
    _Atomic uint32_t state;
    void (*run)(void *context);
    void *context;
    int64_t awake_ns; /* how long to stay awake after this piece of work */

    /* Only the owner uses these fields: */
    bool is_started;             /* it was started and not joined */
    uint32_t pid;                /* of the process that started it */
    int64_t ended_ns, lasted_ns; /* the last piece of work */
    int64_t rests_until_ns;
};

/* Runs `run(context)` here and, if it is available, in the second thread too. Returns when both have finished.
 * `is_large`: the second thread is worth it even if it has to be started. */
void hr__copy_thread_run(struct hr__copy_thread *copy_thread, bool is_large, void (*run)(void *context), void *context);

/* Ends the thread, if there is one. */
void hr__copy_thread_end(struct hr__copy_thread *copy_thread);

#endif
