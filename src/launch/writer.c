/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that writes to stdout and stderr, which may block. */
#include "writer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/error.h>
#include <headrace/face/launch.h>

#include "base/base.h"

static const int64_t BLOCKED_NS = HR_NS_PER_S;
static const int64_t END_NS = 4 * HR_NS_PER_S; /* so long the end of a job waits for a terminal that is blocked */

struct record {
    uint8_t target;
    uint32_t bytes;
};

static int index_of(uint8_t target) {
    return target - 1;
}

/* ---- the thread ---- */

/* Writes bytes that take `record_bytes` of the queue with what describes them. */
static void write_bytes(struct hr__writer *writer, uint8_t target, const char *bytes, size_t count,
                        size_t record_bytes) {
    int index = index_of(target);
    pthread_mutex_lock(&writer->mutex);
    bool is_failed = writer->error[index] != 0;
    writer->write_began_ns = hr__now_ns();
    pthread_mutex_unlock(&writer->mutex);
    int r = is_failed ? 0 : hr__write_all(target, bytes, count);
    pthread_mutex_lock(&writer->mutex);
    writer->write_began_ns = 0;
    writer->written_left -= record_bytes;
    if (r < 0) writer->error[index] = -r;
    pthread_mutex_unlock(&writer->mutex);
}

/* Moves the bytes of records with the same target together, from `at` on, so that many lines are one write(2). Returns
 * where the next record begins. */
static char *gather(char *at, const char *end, uint8_t *ret_target, size_t *ret_bytes) {
    enum { MOST = 64 << 10 };
    char *to = at, *next = at;
    struct record record;
    memcpy(&record, at, sizeof record);
    *ret_target = record.target;
    do {
        memmove(to, next + sizeof record, record.bytes);
        to += record.bytes;
        next += sizeof record + record.bytes;
        if (next < end) memcpy(&record, next, sizeof record);
    } while (next < end && record.target == *ret_target && to - at < MOST);
    *ret_bytes = (size_t)(to - at);
    return next;
}

static void write_all(struct hr__writer *writer) {
    char *at = writer->written.bytes;
    const char *end = at + writer->written.length;
    while (at < end) {
        uint8_t target;
        size_t bytes;
        char *next = gather(at, end, &target, &bytes);
        write_bytes(writer, target, at, bytes, (size_t)(next - at));
        at = next;
    }
}

/* Takes the queue. Returns false at the end. */
static bool take_queue(struct hr__writer *writer) {
    pthread_mutex_lock(&writer->mutex);
    hr__text_cut(&writer->written, 0);
    writer->written_left = 0;
    if (!writer->queue.length) hr__eventfd_ring(writer->drained_fd);
    while (!writer->queue.length && !writer->is_stopping) pthread_cond_wait(&writer->changed, &writer->mutex);
    struct hr__text taken = writer->queue;
    writer->queue = writer->written;
    writer->written = taken;
    writer->written_left = taken.length;
    pthread_mutex_unlock(&writer->mutex);
    return taken.length > 0;
}

static void run(void *context) {
    struct hr__writer *writer = context;
    while (take_queue(writer)) write_all(writer);
}

/* ---- the front ---- */

static void free_writer(struct hr__writer *writer) {
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->mutex);
    hr__text_free(&writer->queue);
    hr__text_free(&writer->written);
    hr__close(&writer->drained_fd);
    free(writer);
}

int hr__writer_open(struct hr__writer **ret_writer) {
    struct hr__writer *writer = calloc(1, sizeof *writer);
    if (!writer) return -ENOMEM;
    for (int target = 1; target <= HR__WRITER_TARGETS; target++)
        writer->is_terminal[target - 1] = hr__is_terminal(target);
    pthread_mutex_init(&writer->mutex, NULL);
    pthread_cond_init(&writer->changed, NULL);
    int r = hr__eventfd(&writer->drained_fd);
    if (r == 0) r = hr__thread_start(&writer->thread, run, writer);
    if (r < 0) {
        free_writer(writer);
        return r;
    }
    *ret_writer = writer;
    return 0;
}

static bool is_blocked(const struct hr__writer *writer, int64_t patience_ns) {
    return writer->write_began_ns && hr__now_ns() - writer->write_began_ns > patience_ns;
}

bool hr__writer_add(struct hr__writer *writer, uint8_t target, const struct hr__text *bytes, bool may_drop) {
    if (!bytes->length) return true;
    const struct record record = {.target = target, .bytes = (uint32_t)bytes->length};
    pthread_mutex_lock(&writer->mutex);
    bool is_dropped = may_drop && writer->is_terminal[index_of(target)] && is_blocked(writer, BLOCKED_NS);
    if (!is_dropped) {
        hr__text_add(&writer->queue, &record, sizeof record);
        size_t head = writer->queue.length - sizeof record;
        hr__text_add(&writer->queue, bytes->bytes, bytes->length);
        if (writer->queue.is_short) { /* memory ran out: what is half there goes */
            hr__text_cut(&writer->queue, head < writer->queue.length ? head : writer->queue.length);
            writer->queue.is_short = false;
            is_dropped = true;
        }
        pthread_cond_signal(&writer->changed);
    }
    pthread_mutex_unlock(&writer->mutex);
    return !is_dropped;
}

static size_t unwritten(struct hr__writer *writer) {
    pthread_mutex_lock(&writer->mutex);
    size_t bytes = writer->queue.length + writer->written_left;
    pthread_mutex_unlock(&writer->mutex);
    return bytes;
}

bool hr__writer_is_full(struct hr__writer *writer) {
    bool is_full = unwritten(writer) >= HR__WRITER_MOST_BYTES;
    if (is_full) writer->full_ns = hr__now_ns();
    return is_full;
}

static bool is_empty(struct hr__writer *writer) {
    return unwritten(writer) == 0;
}

static bool is_given_up(struct hr__writer *writer) {
    pthread_mutex_lock(&writer->mutex);
    bool is_any_terminal = writer->is_terminal[0] || writer->is_terminal[1];
    bool result = is_any_terminal && is_blocked(writer, END_NS);
    pthread_mutex_unlock(&writer->mutex);
    return result;
}

static void stop(struct hr__writer *writer) {
    pthread_mutex_lock(&writer->mutex);
    writer->is_stopping = true;
    pthread_cond_signal(&writer->changed);
    pthread_mutex_unlock(&writer->mutex);
    hr__thread_join(&writer->thread);
}

static bool takes_end_signal(int signal_fd, uint64_t end_signals) {
    int signal;
    while ((signal = hr__signals_take(signal_fd)) > 0)
        if (end_signals >> (signal - 1) & 1) return true;
    return false;
}

/* Says what was not written. A closed pipe is not an error, because `| head` has seen enough, and neither is a stream
 * that is closed from the start. */
static void say_errors(struct hr__writer *writer) {
    static const char *const names[] = {"standard output", "standard error"};
    for (int i = 0; i < HR__WRITER_TARGETS; i++) {
        char line[256];
        if (!writer->error[i] || writer->error[i] == EPIPE || writer->error[i] == EBADF) continue;
        int length = snprintf(line, sizeof line, "headrace: %s could not be written, and output is lost: %s\n",
                              names[i], hr_error_text(writer->error[i]));
        hr__write_all(HR_LAUNCH_STDERR, line, (size_t)length);
    }
}

void hr__writer_close(struct hr__writer *writer, int signal_fd, uint64_t end_signals) {
    static const int64_t SLICE_NS = 100000000;
    bool is_signalled = false;
    if (!writer) return;
    while (!is_empty(writer) && !is_given_up(writer) && !is_signalled) {
        const int fds[] = {writer->drained_fd, signal_fd};
        bool is_ready[2] = {false, false};
        if (hr__poll(fds, is_ready, 2, hr__now_ns() + SLICE_NS) > 0 && is_ready[0])
            hr__eventfd_drain(writer->drained_fd);
        is_signalled = is_ready[1] && takes_end_signal(signal_fd, end_signals);
    }
    if (!is_empty(writer)) return; /* the thread is blocked, and ends with the process */
    stop(writer);
    say_errors(writer);
    free_writer(writer);
}
