/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a thread with all signals blocked; names of threads. */
#include "os.h"

#include <signal.h>
#include <sys/prctl.h>

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

void hr__thread_name(char ret_name[HR__THREAD_NAME_BYTES]) {
    if (prctl(PR_GET_NAME, ret_name) < 0) ret_name[0] = '\0';
}

void hr__thread_rename(const char *name) {
    prctl(PR_SET_NAME, name);
}
