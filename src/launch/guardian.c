/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "launch.h"

/*
 * The guardian has one thread, no output and no state that the front needs: it starts the ranks, says how they end, and
 * sends signals for the front, because only their parent knows that a pid still belongs to a rank. When the front has
 * ended, it kills everything.
 */

struct guardian {
    struct hr__attempt *attempt;
    int control_fd;
    int signal_fd;
    int terminal_fd; /* the terminal of the front, whose modes it may have changed; -1: it has no terminal */
    bool is_killing;
    bool is_alone;        /* the front has gone */
    uint32_t other_count; /* processes that were killed and are no ranks */
};

static void send_event(struct guardian *guardian, const struct hr__event *event) {
    /* It may wait for a front that is stopped. An error means that there is no front any more. */
    hr__write_all(guardian->control_fd, event, sizeof *event);
}

static struct hr__rank *find_rank(const struct guardian *guardian, int pid) {
    hr__each_rank (rank, guardian->attempt)
        if (rank->pid == pid && !rank->has_ended) return rank;
    return NULL;
}

/* ---- ends ---- */

static void note_end(struct guardian *guardian, int pid) {
    struct hr__end end;
    uint64_t peak_bytes = 0;
    if (hr__reap(pid, &end, &peak_bytes) < 0) return;
    struct hr__rank *rank = find_rank(guardian, pid);
    if (!rank) {
        guardian->other_count += guardian->is_killing;
        return;
    }
    rank->has_ended = true;
    struct hr__event event = {.kind = HR__EVENT_ENDED,
                              .local = (int32_t)rank->local,
                              .pid = pid,
                              .signal = end.signal,
                              .exit_code = end.exit_code,
                              .was_killed = guardian->is_killing && end.signal == HR__KILL,
                              .peak_bytes = peak_bytes,
                              .at_ns = hr__now_ns()};
    send_event(guardian, &event);
}

static void reap(struct guardian *guardian) {
    int pid;
    while (hr__ended_child(&pid) == 0) note_end(guardian, pid);
}

static void when_reaped(void *context, int pid) {
    note_end(context, pid);
}

static void send_process(struct guardian *guardian, enum hr__event_kind kind, int pid, int error) {
    struct hr__event event = {.kind = (uint32_t)kind, .local = -1, .pid = pid, .error = error};
    hr__process_name(pid, event.name, sizeof event.name);
    send_event(guardian, &event);
}

static void when_stuck(void *context, int pid, int error) {
    send_process(context, HR__EVENT_STUCK, pid, error);
}

static _Noreturn void kill_all(struct guardian *guardian) {
    hr__stop_at(HR__AT_GUARDIAN_SWEEPS);
    guardian->is_killing = true;
    const struct hr__sweep sweep = {.reaped = when_reaped, .stuck = when_stuck, .context = guardian};
    hr__sweep(&sweep);
    if (guardian->is_alone && guardian->attempt->launch->errors)
        hr__folder_remove(guardian->attempt->launch->errors); /* the front would have done it */
    struct hr__event event = {.kind = HR__EVENT_SWEPT, .local = -1, .count = guardian->other_count};
    send_event(guardian, &event);
    hr__stop_at(HR__AT_GUARDIAN_SWEPT);
    hr__exit(0);
}

/* ---- starts ---- */

static _Noreturn void become_rank(const struct guardian *guardian, const struct hr__rank *rank) {
    int parent = hr__parent();
    hr__stop_at(HR__AT_RANK_FORKED);
    int error = -hr__rank_become(guardian->attempt, rank, parent);
    atomic_store(&rank->page->exec_error, error);
    hr__exit(error == ENOENT ? HR_LAUNCH_NOT_FOUND : HR_LAUNCH_CANNOT_RUN);
}

static int start(struct guardian *guardian, struct hr__rank *rank) {
    int pid;
    int r = hr__fork(&pid);
    if (r == 0 && pid == 0) become_rank(guardian, rank);
    if (r == 0) rank->pid = pid;
    struct hr__event event = {.kind = r < 0 ? HR__EVENT_NOT_STARTED : HR__EVENT_STARTED,
                              .local = (int32_t)rank->local,
                              .pid = rank->pid,
                              .error = r,
                              .at_ns = hr__now_ns()};
    send_event(guardian, &event);
    hr__rank_give(rank);
    hr__stop_at(HR__AT_GUARDIAN_STARTED);
    return r;
}

static void start_all(struct guardian *guardian) {
    hr__each_rank (rank, guardian->attempt)
        if (start(guardian, rank) < 0) break; /* the front ends the others */
    hr__ranks_give(guardian->attempt);
}

/* ---- commands ---- */

static bool is_for(const struct hr__command *command, const struct hr__rank *rank) {
    return rank->pid && !rank->has_ended && (command->local < 0 || (uint32_t)command->local == rank->local);
}

static void send_signal(struct guardian *guardian, const struct hr__command *command) {
    hr__each_rank (rank, guardian->attempt)
        if (is_for(command, rank)) hr__kill(rank->pid, command->signal);
}

static void ask_for_stacks(struct guardian *guardian, const struct hr__command *command) {
    hr__each_rank (rank, guardian->attempt)
        if (is_for(command, rank) && hr__page_stack_signal(rank)) hr__kill(rank->pid, hr__page_stack_signal(rank));
}

/* Parents first, so that no process starts others while its children are stopped. */
static void signal_descendants(int parent, int signal, int depth) {
    enum { MOST = 1024, DEEPEST = 32 };
    int pids[MOST];
    size_t count = hr__min(hr__children_of(parent, pids, MOST), MOST);
    for (size_t i = 0; i < count; i++) {
        hr__kill(pids[i], signal);
        if (depth < DEEPEST) signal_descendants(pids[i], signal, depth + 1);
    }
}

/* A process that computes, or that waits for a core, may be about to end. */
static bool has_running_child(void) {
    enum { MOST = 64 };
    int pids[MOST];
    struct hr__process process;
    size_t count = hr__min(hr__children_of((int)hr__pid(), pids, MOST), MOST);
    for (size_t i = 0; i < count; i++)
        if (hr__process_look(pids[i], &process) == 0 && strchr("RD", process.state)) return true;
    return false;
}

/* Waits a moment for processes that end by themselves soon after a rank, as Python's resource tracker does: longer for
 * those that do not sleep, because on a busy machine they wait for a core. */
static void await_helpers(struct guardian *guardian) {
    static const int64_t PATIENCE_NS = 300000000, BUSY_PATIENCE_NS = 3000000000, ROUND_NS = 5000000;
    int64_t began_ns = hr__now_ns(), waited_ns = 0;
    int pid;
    reap(guardian);
    while (hr__children_of((int)hr__pid(), &pid, 1) &&
           (waited_ns < PATIENCE_NS || (waited_ns < BUSY_PATIENCE_NS && has_running_child()))) {
        hr__poll(NULL, NULL, 0, hr__now_ns() + ROUND_NS);
        reap(guardian);
        waited_ns = hr__now_ns() - began_ns;
    }
}

static _Noreturn void leave(struct guardian *guardian) {
    enum { SHOWN = 8 };
    int pids[SHOWN];
    await_helpers(guardian);
    size_t count = hr__children_of((int)hr__pid(), pids, SHOWN);
    for (size_t i = 0; i < hr__min(count, SHOWN); i++) send_process(guardian, HR__EVENT_LEFT, pids[i], 0);
    struct hr__event event = {.kind = HR__EVENT_LEAVES, .local = -1, .count = (uint32_t)count};
    send_event(guardian, &event);
    hr__exit(0);
}

/* A front that was killed leaves the terminal as it was for a rank. */
static _Noreturn void end_without_front(struct guardian *guardian) {
    if (guardian->terminal_fd >= 0)
        hr__terminal_restore(guardian->terminal_fd, &guardian->attempt->launch->terminal.before);
    guardian->is_alone = true;
    kill_all(guardian);
}

static void obey(struct guardian *guardian) {
    struct hr__command command;
    int length = hr__read(guardian->control_fd, &command, sizeof command); /* records of 16 bytes are never split */
    if (length != sizeof command) end_without_front(guardian);
    hr__stop_at(HR__AT_GUARDIAN_OBEYS);
    switch (command.kind) {
    case HR__COMMAND_SIGNAL:
        send_signal(guardian, &command);
        break;
    case HR__COMMAND_STACKS:
        ask_for_stacks(guardian, &command);
        break;
    case HR__COMMAND_STOP:
        signal_descendants((int)hr__pid(), command.signal, 0);
        break;
    case HR__COMMAND_LEAVE:
        leave(guardian);
    default:
        kill_all(guardian);
    }
}

/* Closes what belongs to the front, so that nothing waits for the guardian to close it. */
static void let_go(struct hr__attempt *attempt) {
    hr__close(&attempt->control_fd);
    hr__each_rank (rank, attempt)
        for (int i = 0; i < 2; i++) hr__close(&rank->streams[i].fd);
    for (int number = 0; number < 3; number++) hr__replace_fd(attempt->launch->null_fd, number);
}

void hr__guardian_run(struct hr__attempt *attempt, int control_fd) {
    struct guardian guardian = {.attempt = attempt, .control_fd = control_fd, .signal_fd = -1, .terminal_fd = -1};
    hr__stop_at(HR__AT_GUARDIAN_BEGINS);
    if (attempt->launch->is_terminal) hr__dup(0, &guardian.terminal_fd);
    let_go(attempt);
    if (hr__new_session() < 0 || hr__adopt_orphans() < 0 ||
        hr__signals_open(hr__signal_bit(HR__CHLD), &guardian.signal_fd) < 0)
        hr__exit(HR_LAUNCH_ERROR);
    start_all(&guardian);
    for (;;) {
        const int fds[] = {control_fd, guardian.signal_fd};
        bool is_ready[2] = {false, false};
        int r = hr__poll(fds, is_ready, 2, INT64_MAX);
        if (r < 0 && r != -EINTR) kill_all(&guardian);
        if (is_ready[1]) {
            while (hr__signals_take(guardian.signal_fd) > 0) {
            }
            reap(&guardian);
        }
        if (is_ready[0]) obey(&guardian);
    }
}
