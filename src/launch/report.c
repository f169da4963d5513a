/* SPDX-License-Identifier: Apache-2.0 */
/* The report as JSON, and the reason for an outer launcher. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/look.h>

#include "board/board.h"
#include "board/look.h"
#include "launch.h"

/* ---- JSON ---- */

/* Returns the bytes of the character of UTF-8 at `at`; 0: it is not valid. */
static size_t valid_character(const unsigned char *at, size_t bytes) {
    if (at[0] < 0x80) return 1;
    size_t length = at[0] >= 0xF0 ? 4 : at[0] >= 0xE0 ? 3 : at[0] >= 0xC2 ? 2 : 0;
    if (length == 0 || length > bytes || at[0] > 0xF4) return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xC0) != 0x80) return 0;
    if ((at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xED && at[1] > 0x9F)) return 0;
    if ((at[0] == 0xF0 && at[1] < 0x90) || (at[0] == 0xF4 && at[1] > 0x8F)) return 0;
    return length;
}

static void add_character(struct hr__text *to, const unsigned char *at, size_t length) {
    if (length == 0)
        hr__text_adds(to, "\\ufffd");
    else if (*at == '"' || *at == '\\')
        hr__text_addf(to, "\\%c", *at);
    else if (*at < 0x20)
        hr__text_addf(to, "\\u%04x", *at);
    else
        hr__text_add(to, at, length);
}

static void add_json_text(struct hr__text *to, const char *bytes, size_t count) {
    const unsigned char *at = (const unsigned char *)bytes;
    hr__text_adds(to, "\"");
    while (count) {
        size_t length = valid_character(at, count), taken = length ? length : 1;
        add_character(to, at, length);
        at += taken;
        count -= taken;
    }
    hr__text_adds(to, "\"");
}

static void add_field(struct hr__text *to, const char *name, const struct hr__text *value) {
    if (!value->length) return;
    hr__text_addf(to, ", \"%s\": ", name);
    add_json_text(to, value->bytes, value->length);
}

/* ---- the report ---- */

static const char *name_reason(const struct hr__attempt *attempt) {
    static const char *const names[] = {
        [HR__NO_REASON] = "success",         [HR__FAILED] = "failure", [HR__SIGNALLED] = "signal",
        [HR__EXIT_TIMEOUT] = "exit-timeout", [HR__STALLED] = "stall",  [HR__GUARDIAN_DIED] = "guardian-died",
        [HR__PARENT_DIED] = "parent-died",
    };
    return names[attempt->reason];
}

static void add_rank(struct hr__text *to, const struct hr__attempt *attempt, const struct hr__rank *rank) {
    struct hr__text text = {0}, how = {0}, tail = {0};
    const struct hr__board_position *position = hr__watch_position(attempt, rank);
    hr__page_text(rank, &text);
    hr__describe_end(attempt, rank, &how);
    hr__tail_write(&rank->tail, "", HR__TAIL_LINES, &tail);
    hr__text_addf(to, "{\"rank\": %u, \"local_rank\": %u, \"pid\": %d", rank->global, rank->local, rank->pid);
    if (rank->has_ended && rank->pid) {
        hr__text_addf(to, ", \"exit_code\": %d, \"signal\": %d", rank->end.exit_code, rank->end.signal);
        hr__text_addf(to, ", \"seconds\": %.3f, \"peak_rss_bytes\": %" PRIu64,
                      hr__seconds(rank->ended_ns - attempt->begun_ns), rank->peak_bytes);
    }
    hr__text_addf(to, ", \"was_killed\": %s", rank->was_killed ? "true" : "false");
    if (position) hr__text_addf(to, ", \"epoch\": %" PRId64 ", \"steps\": %" PRIu64, position->epoch, position->steps);
    add_field(to, "end", &how);
    add_field(to, "exception", &text);
    add_field(to, "stacks", &rank->stacks);
    add_field(to, "last_lines", &tail);
    hr__text_adds(to, "}");
    hr__text_free(&text);
    hr__text_free(&how);
    hr__text_free(&tail);
}

static void add_attempt(struct hr__text *to, const struct hr__attempt *attempt) {
    const struct hr__rank *first = hr__find_first(attempt);
    hr__text_addf(to, "{\"attempt\": %u, \"reason\": \"%s\", \"exit_code\": %d, \"seconds\": %.3f", attempt->number,
                  name_reason(attempt), hr__exit_code(attempt), hr__seconds(hr__now_ns() - attempt->begun_ns));
    if (attempt->signal) hr__text_addf(to, ", \"signal\": %d", attempt->signal);
    if (first && attempt->reason == HR__FAILED) hr__text_addf(to, ", \"first_rank\": %u", first->global);
    hr__text_addf(to, ", \"processes_killed\": %u, \"processes_left\": %u", attempt->adopted_count,
                  attempt->left_count);
    add_field(to, "stuck", &attempt->stuck);
    hr__text_adds(to, ", \"ranks\": [");
    hr__each_rank (rank, attempt) {
        if (rank->local) hr__text_adds(to, ",\n  ");
        add_rank(to, attempt, rank);
    }
    hr__text_adds(to, "]}");
}

/* ---- for an outer launcher ---- */

static void append_to(const char *path, const struct hr__text *text) {
    int fd = -1;
    if (hr__log_append(path, &fd) < 0) return;
    hr__write_all(fd, text->bytes, text->length);
    hr__close(&fd);
}

/* The file of an outer torchrun, as torch's @record writes it. If a rank has written it, it stays. */
static void write_error_file(const char *path, const struct hr__rank *first, const struct hr__text *summary) {
    struct hr__text json = {0}, exception = {0};
    int fd = -1;
    uint64_t bytes = 0;
    if (hr__file_open(path, &fd) == 0) hr__memory_bytes(fd, &bytes);
    hr__close(&fd);
    if (bytes || hr__log_create(path, &fd) < 0) return;
    if (first) hr__page_text(first, &exception);
    hr__text_adds(&json, "{\"message\": {\"message\": ");
    add_json_text(&json, summary->bytes, summary->length);
    hr__text_adds(&json, ", \"extraInfo\": {\"py_callstack\": ");
    add_json_text(&json, exception.length ? exception.bytes : "", exception.length);
    hr__text_addf(&json, ", \"timestamp\": \"%" PRId64 "\"}}}\n", hr__wall_s());
    hr__write_all(fd, json.bytes, json.length);
    hr__close(&fd);
    hr__text_free(&json);
    hr__text_free(&exception);
}

void hr__report_reason(const struct hr__rank *first, const struct hr__text *summary) {
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    if (path && *path) write_error_file(path, first, summary);
    append_to("/dev/termination-log", summary);
}

void hr__report_add_attempt(struct hr__launch *launch, const struct hr__attempt *attempt) {
    if (launch->report_fd < 0) return;
    if (launch->history.length) hr__text_adds(&launch->history, ",\n ");
    add_attempt(&launch->history, attempt);
}

void hr__report_write(struct hr__launch *launch, const struct hr_launch_end *end) {
    struct hr__text text = {0};
    if (launch->report_fd < 0) return;
    hr__text_addf(&text, "{\"exit_code\": %d, \"seconds\": %.3f, \"attempts\": [", end->exit_code,
                  hr__seconds(hr__now_ns() - launch->begun_ns));
    hr__text_add(&text, launch->history.bytes, launch->history.length);
    hr__text_adds(&text, "]}\n");
    int r =
        text.is_short || launch->history.is_short ? -ENOMEM : hr__write_all(launch->report_fd, text.bytes, text.length);
    if (r < 0) hr__say(launch, "headrace: the report %s cannot be written: %s", launch->job->report, hr_error_text(r));
    hr__text_free(&text);
}
