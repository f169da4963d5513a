/* SPDX-License-Identifier: Apache-2.0 */
/* The output of the ranks, on its way to the screen and to log files. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "launch.h"

/* ---- the screen ---- */

/* An unfinished line is shown after so long: on a terminal a person may wait for it. Elsewhere lines had better be
 * whole: `python -u` writes each word that print() gets by itself, and a busy machine may stop it in between. */
static const int64_t UNFINISHED_NS = 50000000, UNFINISHED_ELSEWHERE_NS = 500000000;
static const int64_t OTHER_BAR_NS =
    HR_NS_PER_S; /* the bar of a rank, if the unfinished line on the screen is another's */

/* Which stream the unfinished line on the screen belongs to. */
static bool is_open(const struct hr__screen *screen, const struct hr__stream *stream) {
    return screen->open == stream;
}

static void put(struct hr__launch *launch, uint8_t target, const struct hr__text *text) {
    if (!hr__writer_add(launch->writer, target, text, true)) launch->writer->dropped++;
}

static void say_dropped(struct hr__launch *launch) {
    struct hr__text text = {0};
    hr__text_addf(&text, "headrace: %llu lines were not shown, because the terminal was blocked\n",
                  (unsigned long long)launch->writer->dropped);
    if (hr__writer_add(launch->writer, HR_LAUNCH_STDERR, &text, true)) launch->writer->dropped = 0;
    hr__text_free(&text);
}

/* Ends the unfinished line of any stream. */
static void close_open(struct hr__screen *screen, struct hr__text *text, uint8_t target) {
    if (!screen->open) return;
    if (screen->open->target == target || screen->is_one_terminal) hr__text_adds(text, "\n");
    screen->open = NULL;
}

/* The prefix of lines that are also logged, as torchrun has it. */
static void add_logged_prefix(const struct hr_launch_job *job, const struct hr__rank *rank, struct hr__text *text) {
    const char *role = job->role ? job->role : "default";
    char global[12], local[12], host[256];
    hr__host_name(host, sizeof host);
    snprintf(global, sizeof global, "%u", rank->global);
    snprintf(local, sizeof local, "%u", rank->local);
    const struct hr__macro macros[] = {
        {"role_name", role}, {"rank", global}, {"local_rank", local}, {"hostname", host}, {NULL, NULL}};
    hr__expand(text, job->logged_prefix ? job->logged_prefix : "[${role_name}${local_rank}]:", macros);
}

static void add_prefix(const struct hr__attempt *attempt, const struct hr__rank *rank, const struct hr__stream *stream,
                       struct hr__text *text) {
    if (stream->log_fd >= 0)
        add_logged_prefix(attempt->job, rank, text);
    else if (attempt->job->has_prefix && attempt->job->local_size > 1)
        hr__text_addf(text, "[%u] ", rank->global);
}

struct shown {
    struct hr__attempt *attempt;
    struct hr__rank *rank;
    struct hr__stream *stream;
};

/* Shows a part of a line. `is_again`: it replaces what is shown of this line. */
static void show(const struct shown *shown, const char *bytes, size_t length, bool is_again) {
    struct hr__launch *launch = shown->attempt->launch;
    struct hr__screen *screen = &launch->screen;
    struct hr__text text = {0};
    bool goes_on = is_open(screen, shown->stream);
    if (goes_on && is_again) hr__text_adds(&text, "\r");
    if (!goes_on) close_open(screen, &text, shown->stream->target);
    if (!goes_on || is_again) add_prefix(shown->attempt, shown->rank, shown->stream, &text);
    hr__text_add(&text, bytes, length);
    put(launch, shown->stream->target, &text);
    screen->open = length && bytes[length - 1] != '\n' ? shown->stream : NULL;
    hr__text_free(&text);
    if (launch->writer->dropped) say_dropped(launch);
}

static void show_line(void *context, const char *line, size_t bytes) {
    const struct shown *shown = context;
    const struct hr__lines *lines = &shown->stream->lines;
    size_t skipped = lines->shown_bytes;
    bool is_new_state = lines->is_bar && skipped == 0;
    show(shown, line + skipped, bytes - skipped, is_new_state);
}

static void show_unfinished(const struct shown *shown) {
    struct hr__lines *lines = &shown->stream->lines;
    size_t length = hr__lines_pending(lines), from = lines->shown_bytes;
    if (length <= from) return;
    show(shown, lines->rest.bytes + from, length - from, lines->is_bar && from == 0);
    lines->shown_bytes = length;
}

/* Returns when the unfinished line of a stream is shown. */
static int64_t show_due(const struct hr__attempt *attempt, const struct hr__stream *stream) {
    const struct hr__launch *launch = attempt->launch;
    const struct hr__lines *lines = &stream->lines;
    bool is_terminal = launch->writer->is_terminal[stream->target - 1];
    if (!stream->is_shown || hr__lines_pending(lines) <= lines->shown_bytes) return INT64_MAX;
    if (lines->is_bar) {
        if (!is_terminal) return INT64_MAX;
        return lines->since_ns + (launch->screen.open && launch->screen.open != stream ? OTHER_BAR_NS : UNFINISHED_NS);
    }
    /* While the writer is full, the rest of the line is not read. */
    int64_t since_ns = (int64_t)hr__max((uint64_t)lines->since_ns, (uint64_t)launch->writer->full_ns);
    return since_ns + (is_terminal ? UNFINISHED_NS : UNFINISHED_ELSEWHERE_NS);
}

int64_t hr__output_tick(struct hr__attempt *attempt, int64_t now_ns) {
    int64_t next_ns = INT64_MAX;
    if (!attempt->launch->is_piped) return next_ns;
    if (attempt->launch->writer->dropped) say_dropped(attempt->launch);
    hr__each_rank (rank, attempt) {
        for (int i = 0; i < 2; i++) {
            struct hr__stream *stream = &rank->streams[i];
            int64_t due_ns = show_due(attempt, stream);
            if (due_ns <= now_ns && !hr__readable_bytes(stream->fd)) /* else the rest of the line is there */
                show_unfinished(&(struct shown){attempt, rank, stream});
            else if (due_ns > now_ns && due_ns < next_ns)
                next_ns = due_ns;
        }
    }
    return next_ns;
}

/* Output to a terminal is passed on as it is, because programs move the cursor there. */
static void pass(const struct shown *shown, const char *data, size_t bytes) {
    while (bytes) {
        const char *end = memchr(data, '\n', bytes);
        size_t length = end ? (size_t)(end + 1 - data) : bytes;
        show(shown, data, length, false);
        data += length;
        bytes -= length;
    }
}

/* ---- log files ---- */

static void log_bytes(struct hr__attempt *attempt, struct hr__rank *rank, struct hr__stream *stream, const char *data,
                      size_t bytes) {
    if (stream->log_fd < 0 || stream->is_log_full) return;
    int r = hr__write_all(stream->log_fd, data, bytes);
    if (r == 0) return;
    stream->is_log_full = true; /* the descriptor stays: it says which prefix lines have */
    hr__say(attempt->launch, "headrace: the %s log of %s cannot be written: %s; its output is only shown from here on",
            stream->target == HR_LAUNCH_STDERR ? "stderr" : "stdout", rank->name, hr_error_text(r));
}

/* ---- streams ---- */

static void take(struct hr__attempt *attempt, struct hr__rank *rank, struct hr__stream *stream, const char *data,
                 size_t bytes) {
    const struct shown shown = {attempt, rank, stream};
    hr__tail_add(&rank->tail, data, bytes);
    log_bytes(attempt, rank, stream, data, bytes);
    hr__watch_output(attempt);
    if (!stream->is_shown) return;
    if (rank->has_terminal)
        pass(&shown, data, bytes);
    else
        hr__lines_feed(&stream->lines, data, bytes, hr__now_ns(), show_line, (void *)&shown);
}

static void end_stream(struct hr__attempt *attempt, struct hr__rank *rank, struct hr__stream *stream) {
    const struct shown shown = {attempt, rank, stream};
    struct hr__lines *lines = &stream->lines;
    if (stream->is_shown && lines->rest.length > lines->shown_bytes)
        show_line((void *)&shown, lines->rest.bytes, lines->rest.length);
    hr__lines_free(lines);
    *lines = (struct hr__lines){0};
    if (attempt->terminal_fd == stream->fd) attempt->terminal_fd = -1;
    hr__close(&stream->fd);
}

/* Returns how many bytes it has read; 0: nothing is there now. */
static size_t read_some(struct hr__attempt *attempt, struct hr__rank *rank, struct hr__stream *stream) {
    static char data[1 << 16];
    int length = hr__read(stream->fd, data, sizeof data);
    if (length == -EAGAIN) return 0;
    if (length <= 0) {
        end_stream(attempt, rank, stream); /* -EIO: no process has the terminal open */
        return 0;
    }
    take(attempt, rank, stream, data, (size_t)length);
    return (size_t)length;
}

void hr__output_read(struct hr__attempt *attempt, struct hr__rank *rank, struct hr__stream *stream) {
    read_some(attempt, rank, stream);
}

/* Reads what is in the pipe now, and no more: a process that is left may write without an end. */
static void read_rest(struct hr__attempt *attempt, struct hr__rank *rank, struct hr__stream *stream) {
    size_t left = hr__readable_bytes(stream->fd), count;
    while (left && (count = read_some(attempt, rank, stream)) > 0) left -= hr__min(count, left);
}

static void end_open_line(struct hr__launch *launch) {
    const struct hr__stream *open = launch->screen.open;
    struct hr__text text = {0};
    if (!open) return;
    hr__text_adds(&text, "\n");
    put(launch, open->target, &text);
    hr__text_free(&text);
    launch->screen.open = NULL;
}

/* The summary shows what a rank wrote last, also if it went to a log file only. */
static void read_log_end(const struct hr__attempt *attempt, struct hr__rank *rank, int number) {
    const struct hr_launch_job *job = attempt->job;
    char path[4096], bytes[HR__TAIL_BYTES];
    uint64_t size = 0;
    int fd = -1;
    bool is_redirected = job->redirects && job->redirects[rank->local] & number;
    if (!is_redirected || rank->streams[number - 1].log_fd >= 0 || !hr__rank_failed(rank)) return;
    snprintf(path, sizeof path, "%s/%u/%s.log", attempt->folder, rank->local, number == 1 ? "stdout" : "stderr");
    if (hr__file_open(path, &fd) < 0) return;
    if (hr__memory_bytes(fd, &size) == 0) {
        size_t count = hr__min(size, sizeof bytes);
        if (hr__read_at(fd, size - count, bytes, count) >= 0) hr__tail_add(&rank->tail, bytes, count);
    }
    hr__close(&fd);
}

void hr__output_end(struct hr__attempt *attempt) {
    hr__each_rank (rank, attempt) {
        for (int i = 0; i < 2; i++) {
            struct hr__stream *stream = &rank->streams[i];
            read_rest(attempt, rank, stream);
            if (stream->fd >= 0) end_stream(attempt, rank, stream);
            read_log_end(attempt, rank, i + 1);
        }
    }
    end_open_line(attempt->launch);
    if (attempt->launch->writer && attempt->launch->writer->dropped) say_dropped(attempt->launch);
}

void hr__say(struct hr__launch *launch, const char *format, ...) {
    struct hr__text text = {0};
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    close_open(&launch->screen, &text, HR_LAUNCH_STDERR);
    hr__text_addf(&text, "%s\n", line);
    hr__show_text(launch, &text);
    hr__text_free(&text);
}

void hr__show_text(struct hr__launch *launch, const struct hr__text *text) {
    if (launch->writer)
        hr__writer_add(launch->writer, HR_LAUNCH_STDERR, text, false);
    else
        hr__write_all(HR_LAUNCH_STDERR, hr__text_string(text), text->length);
}
