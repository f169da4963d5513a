/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_LAUNCH_WRITER_H
#define HR_LAUNCH_WRITER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "os/os.h"

/*
 * A thread that writes to stdout and stderr, because a terminal or a pipe may block for as long as it likes, and a
 * descriptor that other programs share must not be made non-blocking.
 */

enum { HR__WRITER_TARGETS = 2, HR__WRITER_MOST_BYTES = 64 << 20 };

struct hr__writer {
    struct hr__thread thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct hr__text queue;   /* records: the target, the length, the bytes */
    struct hr__text written; /* what the thread writes now */
    bool is_stopping;
    size_t written_left;    /* bytes of `written` that are not written yet */
    int64_t write_began_ns; /* when the write(2) in progress began; 0: none is in progress */
    int error[HR__WRITER_TARGETS];
    bool is_terminal[HR__WRITER_TARGETS];
    int drained_fd;   /* rung when everything is written */
    int64_t full_ns;  /* when it was full last; only the front uses it */
    uint64_t dropped; /* lines that were not shown, because a terminal blocked; only the front uses it */
};

int hr__writer_open(struct hr__writer **ret_writer);
/* Adds bytes for a target (HR_LAUNCH_STDOUT or HR_LAUNCH_STDERR). false: they were dropped, because memory ran out, or
 * (`may_drop`) because it is a terminal that has been blocked for a second. */
bool hr__writer_add(struct hr__writer *writer, uint8_t target, const struct hr__text *bytes, bool may_drop);
bool hr__writer_is_full(struct hr__writer *writer);
/* Waits until everything is written, or a terminal blocks for a second, or one of `end_signals` (bit n - 1: signal n)
 * comes from `signal_fd`. Then it ends the thread, or leaves it if it is blocked. */
void hr__writer_close(struct hr__writer *writer, int signal_fd, uint64_t end_signals);

#endif
