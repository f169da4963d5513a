/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/look.h>

#include "board/board.h"
#include "board/look.h"
#include "launch.h"

/*
 * Looks at ranks that have finished but do not exit, and at ranks that make no step. Both may be right: a checkpoint is
 * written at exit, or an epoch is long. So they are noted once, and ended only if the user has asked for it.
 */

static const int64_t LOOK_NS = HR_NS_PER_S;
static const int64_t EXIT_NOTE_NS = 30 * HR_NS_PER_S;
static const int64_t STALL_NOTE_NS = 60 * HR_NS_PER_S;

struct hr__watch {
    int64_t next_ns;
    int64_t active_ns; /* time of the last step or output of any rank */
    bool is_stall_noted;
    struct hr__board_position *positions; /* of the last look */
    uint32_t count, room;
    uint64_t progress; /* a number that changes with each step */
};

/* ---- the board ---- */

/* The key under which headrace's loaders in the ranks look for the board: the same as in python/headrace/_ranks/job.py.
 */
static void write_key(const struct hr__attempt *attempt, struct hr__text *key) {
    static const char *const inherited[] = {"SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"};
    const struct hr_launch_job *job = attempt->job;
    hr__text_addf(key, "MASTER_ADDR=%s MASTER_PORT=%u TORCHELASTIC_RUN_ID=%s TORCHELASTIC_RESTART_COUNT=%u",
                  job->master_addr ? job->master_addr : "127.0.0.1", attempt->port, job->run_id ? job->run_id : "none",
                  attempt->number);
    for (size_t i = 0; i < sizeof inherited / sizeof *inherited; i++)
        if (getenv(inherited[i])) hr__text_addf(key, " %s=%s", inherited[i], getenv(inherited[i]));
}

static void open_board(struct hr__attempt *attempt) {
    const struct hr_launch_job *job = attempt->job;
    struct hr__text key = {0};
    if (job->kind != HR_LAUNCH_RANKS || job->local_size < 2 || job->local_size > HR_BOARD_MAX_PROCESSES) return;
    write_key(attempt, &key);
    const struct hr_board_options options = {.key = hr__text_string(&key),
                                             .world_size = job->local_size * job->node_count,
                                             .local_size = job->local_size,
                                             .fd = -1};
    if (hr__board_create(&options, &attempt->board_fd) < 0) attempt->board_fd = -1; /* the ranks find each other */
    hr__text_free(&key);
}

int hr__watch_open(struct hr__attempt *attempt) {
    struct hr__watch *watch = calloc(1, sizeof *watch);
    if (!watch) return hr__fail(-ENOMEM, "launch: out of memory");
    attempt->watch = watch;
    watch->active_ns = watch->next_ns = hr__now_ns();
    open_board(attempt);
    watch->room = attempt->board_fd < 0 ? 0 : attempt->job->local_size * HR_BOARD_MAX_ENTRIES;
    watch->positions = watch->room ? calloc(watch->room, sizeof *watch->positions) : NULL;
    if (!watch->positions) watch->room = 0;
    return 0;
}

void hr__watch_close(struct hr__attempt *attempt) {
    if (!attempt->watch) return;
    free(attempt->watch->positions);
    free(attempt->watch);
    attempt->watch = NULL;
}

void hr__watch_output(struct hr__attempt *attempt) {
    attempt->watch->active_ns = hr__now_ns();
}

static void look_at_board(struct hr__attempt *attempt, int64_t now_ns) {
    struct hr__watch *watch = attempt->watch;
    int count = watch->room ? hr__board_look(attempt->board_fd, watch->positions, watch->room) : 0;
    watch->count = count > 0 ? (uint32_t)count : 0;
    uint64_t progress = watch->count;
    for (uint32_t i = 0; i < watch->count; i++)
        progress +=
            watch->positions[i].steps * 3 + (uint64_t)watch->positions[i].epoch * 5 + watch->positions[i].is_at_end;
    if (progress != watch->progress) watch->active_ns = now_ns;
    watch->progress = progress;
}

/* Returns true if `a` is further than `b`. */
static bool is_further(const struct hr__board_position *a, const struct hr__board_position *b) {
    return a->epoch == b->epoch ? a->steps > b->steps : a->epoch > b->epoch;
}

const struct hr__board_position *hr__watch_position(const struct hr__attempt *attempt, const struct hr__rank *rank) {
    const struct hr__watch *watch = attempt->watch;
    const struct hr__board_position *best = NULL;
    for (uint32_t i = 0; i < watch->count; i++) {
        const struct hr__board_position *position = &watch->positions[i];
        if (position->rank == rank->global && (!best || is_further(position, best))) best = position;
    }
    return best;
}

/* ---- ranks that do not exit ---- */

static int64_t over_since_ns(const struct hr__attempt *attempt, const struct hr__rank *rank) {
    int64_t over_ns = rank->has_ended ? 0 : hr__page_over_ns(attempt, rank);
    if (!over_ns) return 0;
    if (rank->local) return over_ns;
    return attempt->others_over_ns ? (int64_t)hr__max((uint64_t)over_ns, (uint64_t)attempt->others_over_ns) : 0;
}

static void add_children(const struct hr__rank *rank, struct hr__text *to) {
    enum { SHOWN = 6 };
    int pids[SHOWN];
    size_t count = hr__children_of(rank->pid, pids, SHOWN);
    for (size_t i = 0; i < hr__min(count, SHOWN); i++) {
        char name[32];
        hr__process_name(pids[i], name, sizeof name);
        hr__text_addf(to, "%s%s (pid %d)", i ? ", " : "; its children: ", name, pids[i]);
    }
    if (count > SHOWN) hr__text_addf(to, " and %zu more", count - SHOWN);
}

/* Adds the lines of a text as a list. */
static void add_list(const char *text, struct hr__text *to) {
    for (bool is_first = true; *text; is_first = false) {
        size_t length = strcspn(text, "\n");
        hr__text_addf(to, "%s%.*s", is_first ? "" : ", ", (int)length, text);
        text += length + strspn(text + length, "\n");
    }
}

/* Adds what keeps a rank whose main program is over: threads, children and where it is. */
static void describe_keepers(const struct hr__rank *rank, struct hr__text *to) {
    struct hr__text keepers = {0};
    hr__page_keepers(rank, &keepers);
    if (keepers.length) {
        hr__text_adds(to, "; threads that keep it: ");
        add_list(keepers.bytes, to);
    }
    hr__text_free(&keepers);
    if (!rank->has_ended) add_children(rank, to);
    if (!rank->stacks.length) return;
    hr__text_adds(to, "; it is ");
    hr__stack_describe(&rank->stacks, to);
}

static void note_exit(struct hr__attempt *attempt, struct hr__rank *rank, int64_t since_ns) {
    struct hr__text text = {0};
    rank->exit_noted = true;
    hr__ending_take_stack(attempt, rank);
    hr__text_addf(&text,
                  "headrace: note: the main program of %s was over %.0f s ago, but the process (pid %d) has not exited",
                  rank->name, hr__seconds(since_ns), rank->pid);
    describe_keepers(rank, &text);
    if (attempt->job->exit_timeout_ns < 0) hr__text_adds(&text, ". --exit-timeout SECONDS ends such a rank");
    hr__text_adds(&text, HR_HELP("exit-hangs"));
    hr__say(attempt->launch, "%s", hr__text_string(&text));
    hr__text_free(&text);
}

static void end_late(struct hr__attempt *attempt, struct hr__rank *rank) {
    rank->exit_timed_out = true;
    hr__ending_take_stack(attempt, rank);
    describe_keepers(rank, &rank->keepers);
    hr__ending_begin(attempt, HR__EXIT_TIMEOUT, 0);
}

static void watch_exits(struct hr__attempt *attempt, int64_t now_ns) {
    int64_t timeout_ns = attempt->job->exit_timeout_ns;
    hr__each_rank (rank, attempt) {
        int64_t over_ns = over_since_ns(attempt, rank), since_ns = now_ns - over_ns;
        if (over_ns && timeout_ns >= 0 && since_ns >= timeout_ns) {
            end_late(attempt, rank);
            return;
        }
        if (over_ns && !rank->exit_noted && since_ns >= EXIT_NOTE_NS) note_exit(attempt, rank, since_ns);
    }
}

/* ---- ranks that make no step ---- */

static void describe_rank(const struct hr__attempt *attempt, const struct hr__rank *rank, struct hr__text *to) {
    const struct hr__board_position *position = hr__watch_position(attempt, rank);
    hr__text_addf(to, "  %s: ", rank->name);
    if (rank->has_ended) {
        hr__describe_end(attempt, rank, to);
        hr__text_adds(to, "\n");
        return;
    }
    if (position && position->epoch >= 0) hr__text_addf(to, "epoch %" PRId64 ", ", position->epoch);
    if (position)
        hr__text_addf(to, "%" PRIu64 " batches%s, ", position->steps,
                      position->is_at_end ? " (at the end of its epoch)" : "");
    hr__stack_describe(&rank->stacks, to);
    hr__text_adds(to, "\n");
}

static bool is_same_place(const struct hr__rank *a, const struct hr__rank *b) {
    struct hr__where first, second;
    if (!hr__stack_where(&a->stacks, &first) || !hr__stack_where(&b->stacks, &second)) return true;
    return first.function_bytes == second.function_bytes &&
           !memcmp(first.function, second.function, first.function_bytes);
}

static uint32_t count_elsewhere(const struct hr__attempt *attempt, const struct hr__rank *one) {
    uint32_t count = 0;
    hr__each_rank (rank, attempt)
        if (rank != one && !rank->has_ended && !is_same_place(one, rank)) count++;
    return count;
}

/* Returns the only rank that is somewhere else than all others; NULL: there is not exactly one. */
static const struct hr__rank *find_elsewhere(const struct hr__attempt *attempt) {
    enum { MOST = 256 }; /* each is compared with each */
    const struct hr__rank *found = NULL;
    uint32_t alive = attempt->job->local_size - attempt->ended_count;
    if (alive < 3 || alive > MOST) return NULL;
    hr__each_rank (rank, attempt) {
        if (rank->has_ended || count_elsewhere(attempt, rank) < alive - 1) continue;
        if (found) return NULL;
        found = rank;
    }
    return found;
}

/* Returns the only rank that is behind in the epochs of a loader that all ranks have; NULL: there is not exactly one.
 */
static const struct hr__rank *find_behind(const struct hr__attempt *attempt) {
    const struct hr__rank *found = NULL;
    const struct hr__board_position *last = NULL;
    hr__each_rank (rank, attempt) {
        if (rank->has_ended) continue;
        const struct hr__board_position *position = hr__watch_position(attempt, rank);
        if (!position || (last && position->loader != last->loader)) return NULL;
        if (last && is_further(position, last)) continue;
        found = !last || is_further(last, position) ? rank : NULL;
        last = position;
    }
    return attempt->job->local_size > 1 ? found : NULL;
}

/* Returns the rank that the others wait for; NULL: it is not known. */
static const struct hr__rank *find_awaited(const struct hr__attempt *attempt) {
    const struct hr__rank *elsewhere = find_elsewhere(attempt);
    return elsewhere ? elsewhere : find_behind(attempt);
}

static void describe_stall(struct hr__attempt *attempt, struct hr__text *to) {
    hr__each_rank (rank, attempt) describe_rank(attempt, rank, to);
    const struct hr__rank *awaited = find_awaited(attempt);
    if (awaited) hr__text_addf(to, "  The other ranks wait for %s.\n", awaited->name);
}

static void note_stall(struct hr__attempt *attempt, int64_t since_ns) {
    struct hr__text text = {0};
    attempt->watch->is_stall_noted = true;
    hr__ending_take_stacks(attempt);
    describe_stall(attempt, &text);
    hr__text_adds(&text, " " HR_HELP("ranks-wait") "\n");
    hr__say(attempt->launch,
            "headrace: note: no rank has taken a batch or written anything for %.0f s:", hr__seconds(since_ns));
    hr__show_text(attempt->launch, &text);
    hr__text_free(&text);
}

/* The ranks are described before they are ended. */
static void end_stall(struct hr__attempt *attempt) {
    hr__ending_take_stacks(attempt);
    describe_stall(attempt, &attempt->stall);
    hr__ending_begin(attempt, HR__STALLED, 0);
}

/* Without batches that are counted, silence may be a long computation. So it is only noted if the user has asked. */
static bool counts_steps(const struct hr__attempt *attempt) {
    return attempt->watch->count > 0;
}

static void watch_steps(struct hr__attempt *attempt, int64_t now_ns) {
    struct hr__watch *watch = attempt->watch;
    int64_t timeout_ns = attempt->job->stall_after_ns, since_ns;
    look_at_board(attempt, now_ns);
    since_ns = now_ns - watch->active_ns;
    if (since_ns < LOOK_NS) watch->is_stall_noted = false;
    bool is_late = timeout_ns >= 0 && since_ns >= timeout_ns;
    bool is_due = counts_steps(attempt) && since_ns >= STALL_NOTE_NS;
    if (is_late)
        end_stall(attempt);
    else if (is_due && !watch->is_stall_noted)
        note_stall(attempt, since_ns);
}

int64_t hr__watch_tick(struct hr__attempt *attempt, int64_t now_ns) {
    struct hr__watch *watch = attempt->watch;
    if (attempt->phase != HR__RUNNING) return INT64_MAX;
    if (now_ns < watch->next_ns) return watch->next_ns;
    watch_exits(attempt, now_ns);
    if (attempt->phase == HR__RUNNING) watch_steps(attempt, now_ns);
    watch->next_ns = now_ns + LOOK_NS;
    return watch->next_ns;
}
