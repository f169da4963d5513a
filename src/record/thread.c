/* SPDX-License-Identifier: Apache-2.0 */
/* hr_record_thread: records the loaders of this process in a thread of its own, for programs without the command
 * headrace, whose recorder is a process. A forked child has nothing of it. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include <headrace/error.h>

#include "base/alloc.h"
#include "base/error.h"
#include "recorder.h"

enum { TICK_NS = 50000000, TICKS_A_LOOK = 5, REPORT_BYTES = 1024 };

struct hr_record_thread {
    hr_recorder *recorder;
    void (*report)(const char *text);
    struct hr__thread thread;
    int bell_fd;
    atomic_bool is_ending;
    pthread_mutex_t lock; /* held while the recorder works, and during forks */
    bool is_orphan;       /* this is a forked child: the thread does not exist */
    hr_record_thread *next;
};

/* The threads of this process, for the handlers of forks. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t install_once = PTHREAD_ONCE_INIT;
static hr_record_thread *list;

/* ---- forks ---- */

static void before_fork(void) {
    pthread_mutex_lock(&list_lock);
    for (hr_record_thread *one = list; one; one = one->next) pthread_mutex_lock(&one->lock);
}

static void after_fork_in_parent(void) {
    for (hr_record_thread *one = list; one; one = one->next) pthread_mutex_unlock(&one->lock);
    pthread_mutex_unlock(&list_lock);
}

static void after_fork_in_child(void) {
    for (hr_record_thread *one = list; one; one = one->next) {
        if (one->is_orphan) continue;
        one->is_orphan = true;
        hr__recorder_abandon(one->recorder);
        hr__close(&one->bell_fd);
    }
    after_fork_in_parent();
}

static void install(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void add_to_list(hr_record_thread *thread) {
    pthread_once(&install_once, install);
    pthread_mutex_lock(&list_lock);
    thread->next = list;
    list = thread;
    pthread_mutex_unlock(&list_lock);
}

static void remove_from_list(hr_record_thread *thread) {
    pthread_mutex_lock(&list_lock);
    hr_record_thread **at = &list;
    while (*at && *at != thread) at = &(*at)->next;
    if (*at) *at = thread->next;
    pthread_mutex_unlock(&list_lock);
}

/* ---- the thread ---- */

static void report_failure(const hr_record_thread *thread) {
    char text[REPORT_BYTES];
    snprintf(text, sizeof text, "headrace: %s\n", hr_error_message());
    if (thread->report) thread->report(text);
}

static int look(hr_recorder *recorder) {
    int pid = (int)hr__pid();
    int r = hr_recorder_find(recorder, &pid, 1);
    return r < 0 ? r : hr_recorder_look(recorder);
}

static void record(void *context) {
    hr_record_thread *thread = context;
    int64_t deadline_ns = hr__now_ns();
    int code = 0;
    for (uint64_t tick = 0; code == 0 && !atomic_load(&thread->is_ending); tick++) {
        bool is_ringing = false;
        pthread_mutex_lock(&thread->lock);
        if (tick % TICKS_A_LOOK == 0) code = look(thread->recorder);
        hr_recorder_glance(thread->recorder);
        pthread_mutex_unlock(&thread->lock);
        int64_t now_ns = hr__now_ns();
        deadline_ns = deadline_ns + TICK_NS < now_ns ? now_ns : deadline_ns + TICK_NS;
        hr__poll(&thread->bell_fd, &is_ringing, 1, deadline_ns);
    }
    if (code < 0) report_failure(thread);
}

/* ---- beginning and end ---- */

static hr_record_thread *discard(hr_record_thread *thread) {
    hr__close(&thread->bell_fd);
    pthread_mutex_destroy(&thread->lock);
    hr__free(thread);
    return NULL;
}

int hr_record_thread_start(const char *folder, uint64_t recording, void (*report)(const char *text),
                           hr_record_thread **ret_thread) {
    hr_record_thread *thread = hr__realloc(NULL, sizeof *thread);
    if (!thread) return hr__fail(-ENOMEM, "recording: not enough memory");
    *thread = (hr_record_thread){.report = report, .bell_fd = -1};
    pthread_mutex_init(&thread->lock, NULL);
    int r = hr_recorder_open(folder, recording, &thread->recorder);
    if (r < 0) {
        discard(thread);
        return r;
    }
    add_to_list(thread);
    r = hr__eventfd(&thread->bell_fd);
    if (r == 0) r = hr__thread_start(&thread->thread, record, thread);
    if (r < 0) {
        remove_from_list(thread);
        hr_recorder_end(thread->recorder, HR_RECORD_STOPPED);
        discard(thread);
        return hr__fail(r, "recording: cannot start a thread: %s", hr_error_text(r));
    }
    *ret_thread = thread;
    return 0;
}

hr_record_thread *hr_record_thread_end(hr_record_thread *thread) {
    if (!thread) return NULL;
    if (!thread->is_orphan) {
        atomic_store(&thread->is_ending, true);
        hr__eventfd_ring(thread->bell_fd);
        hr__thread_join(&thread->thread);
        remove_from_list(thread);
        bool has_failed = hr__recorder_failed(thread->recorder) < 0;
        if (!has_failed) look(thread->recorder); /* a loader may be new, and others have their last numbers */
        int r = hr_recorder_end(thread->recorder, HR_RECORD_JOB_ENDED);
        if (r < 0 && !has_failed) report_failure(thread);
    } else
        remove_from_list(thread); /* the recorder may have been at work when it was forked: it is not freed */
    return discard(thread);
}
