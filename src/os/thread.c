/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a thread with all signals blocked. */
#include "os.h"

#include <signal.h>

static void *run_thread(void *argument) {
    const struct hr__thread *thread = argument;
    thread->run(thread->context);
    return NULL;
}

int hr__thread_start(struct hr__thread *thread, void (*run)(void *), void *context) {
    int r = hr__fail_at("thread");
    if (r < 0) return r;
    sigset_t all, before;
    *thread = (struct hr__thread){.run = run, .context = context};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a new thread inherits the signal mask */
    r = pthread_create(&thread->id, NULL, run_thread, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}

void hr__thread_join(struct hr__thread *thread) {
    pthread_join(thread->id, NULL);
}
