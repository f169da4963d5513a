/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_CREW_SCENE_H
#define HR_TESTS_CREW_SCENE_H

#include "arena/arena.h"
#include "arena_scene.h"
#include "crew/crew.h"

#include <ctype.h>
#include <stdatomic.h>

/* A crew for tests, and what its workers do. */

enum { WORKERS = 4 };

/* Shared with the workers. */
struct board {
    _Atomic int ready_count;
    _Atomic bool may_go;
};
static struct board *board;

struct room {
    hr_arena *arena;
    hr_crew *crew;
    int descriptors; /* before */
};

static inline void open_room(struct room *room) {
    struct hr__arena_options options = {.worker_count = WORKERS, .prefetch_count = 8, .limit_bytes = 64 * MIB};
    *room = (struct room){.descriptors = count_descriptors()};
    *board = (struct board){0};
    must(hr__arena_open(&options, &room->arena));
    must(hr__crew_open(room->arena, WORKERS, &room->crew));
}

static inline void close_room(struct room *room) {
    assert_int_equal(hr_crew_stop(room->crew, PATIENCE_S * INT64_C(1000000000)), 0);
    assert_null(hr__crew_close(room->crew));
    assert_null(hr_arena_close(room->arena));
    assert_int_equal(count_descriptors(), room->descriptors);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static inline struct hr_worker_report look(struct room *room, uint32_t worker) {
    struct hr_worker_report report;
    must(hr_crew_look(room->crew, worker, &report));
    return report;
}

static inline struct hr_worker_report await_end(struct room *room, uint32_t worker) {
    must(hr__crew_wait(room->crew, worker, in_s(PATIENCE_S)));
    return look(room, worker);
}

static inline void await_ready(int count) {
    int64_t deadline = in_s(PATIENCE_S);
    while (atomic_load(&board->ready_count) < count) {
        assert_true(now_ns() < deadline);
        poll(NULL, 0, 1);
    }
}

/* Waits for the report of a worker that has opened its port. */
static inline struct hr_worker_report await_state(struct room *room, uint32_t worker, char state) {
    int64_t deadline = in_s(PATIENCE_S);
    for (;;) {
        struct hr_worker_report report = look(room, worker);
        if (report.status.starts > 0 && report.state == state) return report;
        assert_true(now_ns() < deadline);
        poll(NULL, 0, 1);
    }
}

/* With numbers masked. */
static inline void assert_text(const struct hr_worker_report *report, const char *expected) {
    char text[1024], masked[1024];
    size_t length = 0;
    assert_true(hr_crew_describe(report, text, sizeof text) == (int)strlen(text));
    for (const char *at = text; *at; at++) {
        if (!isdigit((unsigned char)*at))
            masked[length++] = *at;
        else if (length == 0 || masked[length - 1] != 'N')
            masked[length++] = 'N';
    }
    masked[length] = '\0';
    assert_string_equal(masked, expected);
}

static inline void assert_said(struct room *room, const char *expected, size_t length) {
    const char *text;
    size_t bytes;
    must(hr_crew_stderr(room->crew, 0, &text, &bytes));
    assert_int_equal(bytes, length);
    assert_memory_equal(text, expected, length);
}

/* ---- lives of workers ---- */

static inline int serve(hr_port *port, void *context) {
    (void)context;
    int r = 0;
    while (r == 0) r = work_once(port, HR_NO_DEADLINE);
    return r == HR_E_CLOSED ? 0 : 98;
}

static inline int end_with(hr_port *port, void *context) {
    (void)port;
    return *(int *)context;
}

static inline void be_ready(void) {
    atomic_fetch_add(&board->ready_count, 1);
}

static inline int be_busy(hr_port *port, void *context) {
    (void)port, (void)context;
    be_ready();
    volatile bool goes_on = true;
    while (goes_on) continue;
    return 0;
}

static inline int be_deaf(hr_port *port, void *context) {
    (void)context;
    signal(SIGTERM, SIG_IGN);
    be_ready();
    while (port) pause();
    return 0;
}

static inline int be_stopped(hr_port *port, void *context) {
    be_ready();
    raise(SIGSTOP);
    return serve(port, context);
}

static inline void set_board(void) {
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

#endif
