/* SPDX-License-Identifier: Apache-2.0 */
/* One attempt to run the ranks: starts the guardian, and waits for output, ends, signals and times. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"

enum { TICK_NS = 100000000, FIXED_FDS = 4 };

/* ---- start ---- */

static void name_of_port(uint16_t port, char *ret_name, size_t bytes) {
    snprintf(ret_name, bytes, "headrace-port-%u", port);
}

/* Reserves a port that the user named, so that a second job on it is an error and not a member of the first job's
 * store.
 */
static int reserve_port(struct hr__attempt *attempt) {
    char name[64];
    name_of_port(attempt->job->master_port, name, sizeof name);
    int r = hr__socket_listen(name, &attempt->reserved_fd);
    if (r == -EADDRINUSE)
        return hr__fail(r,
                        "launch: another job of headrace run on this machine uses the port %u; give another "
                        "--master-port, or none: then a free one is chosen" HR_HELP("master-port"),
                        attempt->job->master_port);
    return 0; /* a machine without abstract sockets reserves no ports */
}

static int hold_port(struct hr__attempt *attempt) {
    const struct hr_launch_job *job = attempt->job;
    attempt->port = job->master_port;
    if (job->kind != HR_LAUNCH_RANKS || job->node_rank > 0) return 0;
    int r = job->master_port ? reserve_port(attempt) : 0;
    if (r == 0) {
        r = hr__hold_port(&attempt->port, &attempt->port_fd);
        if (r < 0 && job->master_port)
            return hr__fail(r,
                            "launch: the port %u cannot be used: %s; give another --master-port, or none: then a free "
                            "one is chosen" HR_HELP("master-port"),
                            job->master_port, hr_error_text(r));
        if (r < 0) return hr__fail(r, "launch: there is no free TCP port: %s", hr_error_text(r));
    }
    return r;
}

static int open_attempt(struct hr__attempt *attempt) {
    attempt->port_fd = attempt->reserved_fd = attempt->board_fd = attempt->control_fd = attempt->terminal_fd = -1;
    attempt->begun_ns = hr__now_ns();
    attempt->oom_kills = hr__oom_kill_count();
    int r = hold_port(attempt);
    if (r == 0) r = hr__ranks_open(attempt);
    if (r == 0) r = hr__watch_open(attempt);
    return r;
}

static int fork_guardian(struct hr__attempt *attempt) {
    int sockets[2], pid;
    int r = hr__stream_pair(sockets);
    if (r < 0) return hr__fail(r, "launch: cannot create sockets: %s", hr_error_text(r));
    attempt->control_fd = sockets[0];
    r = hr__fork(&pid);
    if (r == 0 && pid == 0) hr__guardian_run(attempt, sockets[1]);
    hr__close(&sockets[1]);
    if (r < 0) return hr__fail(r, "launch: cannot start a process: %s", hr_error_text(r));
    attempt->guardian_pid = pid;
    hr__stop_at(HR__AT_LAUNCH_FORKED);
    return 0;
}

/* ---- what the guardian says ---- */

void hr__attempt_command(struct hr__attempt *attempt, enum hr__command_kind kind, int32_t local, int signal) {
    const struct hr__command command = {.kind = (uint32_t)kind, .local = local, .signal = signal};
    if (attempt->control_fd >= 0) hr__write_all(attempt->control_fd, &command, sizeof command);
}

static void note_end(struct hr__attempt *attempt, struct hr__rank *rank, const struct hr__event *event) {
    rank->has_ended = true;
    rank->end = (struct hr__end){.is_known = true, .signal = event->signal, .exit_code = event->exit_code};
    rank->ended_ns = event->at_ns;
    rank->peak_bytes = event->peak_bytes;
    rank->was_killed = event->was_killed;
    hr__ending_note_end(attempt, rank);
}

/* The ranks after one that could not be forked are not started either. */
static void note_not_started(struct hr__attempt *attempt, struct hr__rank *first, const struct hr__event *event) {
    first->start_error = -event->error;
    for (struct hr__rank *rank = first; rank < attempt->ranks + attempt->job->local_size; rank++) {
        rank->has_ended = true;
        rank->ended_ns = event->at_ns;
        attempt->ended_count++;
    }
    hr__ending_begin(attempt, HR__FAILED, 0);
}

static void add_name(struct hr__text *names, const struct hr__event *event) {
    hr__text_addf(names, "%s%.*s (pid %d)", names->length ? ", " : "", HR__EVENT_NAME_BYTES,
                  event->name[0] ? event->name : "a process", event->pid);
}

static void note_rank_event(struct hr__attempt *attempt, struct hr__rank *rank, const struct hr__event *event) {
    if (event->kind == HR__EVENT_STARTED)
        rank->pid = event->pid;
    else if (event->kind == HR__EVENT_NOT_STARTED)
        note_not_started(attempt, rank, event);
    else
        note_end(attempt, rank, event);
}

static void note_event(struct hr__attempt *attempt, const struct hr__event *event) {
    if (event->local >= 0) {
        note_rank_event(attempt, &attempt->ranks[event->local], event);
    } else if (event->kind == HR__EVENT_STUCK) {
        attempt->stuck_count++;
        add_name(&attempt->stuck, event);
    } else if (event->kind == HR__EVENT_LEFT) {
        add_name(&attempt->left, event);
    } else if (event->kind == HR__EVENT_LEAVES) {
        attempt->left_count = event->count;
    } else {
        attempt->adopted_count = event->count;
        attempt->is_swept = true;
    }
}

/* Reads the rest of a record whose beginning has arrived. false: the guardian has ended. */
static bool read_event(struct hr__attempt *attempt, struct hr__event *event) {
    char *at = (char *)event, *end = at + sizeof *event;
    while (at < end) {
        int length = hr__read(attempt->control_fd, at, (size_t)(end - at));
        if (length <= 0) return false;
        at += length;
    }
    return true;
}

static void reap_guardian(struct hr__attempt *attempt) {
    static const int64_t ROUND_NS = 1000000;
    struct hr__end end;
    while (hr__process_end(attempt->guardian_pid, true, &end) == -EAGAIN)
        hr__poll(NULL, NULL, 0, hr__now_ns() + ROUND_NS);
}

static struct hr__rank *find_rank(const struct hr__attempt *attempt, int pid) {
    hr__each_rank (rank, attempt)
        if (rank->pid == pid && !rank->has_ended) return rank;
    return NULL;
}

static void when_reaped(void *context, int pid) {
    struct hr__attempt *attempt = context;
    struct hr__rank *rank = find_rank(attempt, pid);
    struct hr__end end;
    uint64_t peak_bytes;
    if (hr__reap(pid, &end, &peak_bytes) < 0) return;
    if (!rank) {
        attempt->adopted_count += pid != attempt->guardian_pid;
        return;
    }
    rank->has_ended = true;
    rank->was_killed = end.signal == HR__KILL;
    rank->end = end;
    rank->ended_ns = hr__now_ns();
    rank->peak_bytes = peak_bytes;
    attempt->ended_count++;
}

static void when_stuck(void *context, int pid, int error) {
    struct hr__attempt *attempt = context;
    struct hr__event event = {.pid = pid, .error = error};
    hr__process_name(pid, event.name, sizeof event.name);
    attempt->stuck_count++;
    add_name(&attempt->stuck, &event);
}

/* The guardian was killed. The kernel has killed the ranks; what they leave is adopted. */
static void replace_guardian(struct hr__attempt *attempt) {
    if (attempt->reason == HR__NO_REASON) attempt->reason = HR__GUARDIAN_DIED;
    if (!attempt->ending_ns) attempt->ending_ns = hr__now_ns();
    const struct hr__sweep sweep = {
        .reaped = when_reaped, .stuck = when_stuck, .context = attempt, .spared = &attempt->launch->others};
    hr__sweep(&sweep);
}

static void end_of_guardian(struct hr__attempt *attempt) {
    hr__close(&attempt->control_fd);
    bool is_leaving = attempt->phase == HR__KILLING && attempt->reason == HR__NO_REASON;
    if (attempt->is_swept || is_leaving)
        reap_guardian(attempt);
    else
        replace_guardian(attempt);
    attempt->phase = HR__OVER;
}

/* Takes all events that have come: each turn of the loop looks at all ranks. */
static void hear_guardian(struct hr__attempt *attempt) {
    do {
        struct hr__event event;
        if (read_event(attempt, &event))
            note_event(attempt, &event);
        else
            end_of_guardian(attempt);
    } while (attempt->control_fd >= 0 && hr__is_readable(attempt->control_fd));
}

/* ---- signals ---- */

/* Reaps processes that this one has adopted. As process 1 of a container, it adopts all that other processes leave. */
static void reap_adopted(const struct hr__attempt *attempt) {
    int pid;
    struct hr__end end;
    uint64_t peak_bytes;
    while (hr__ended_child(&pid) == 0 && pid != attempt->guardian_pid) hr__reap(pid, &end, &peak_bytes);
}

/* Returns true if the daemon of a step of Slurm sent a signal. One that this process cannot see is taken for it. */
static bool is_step_daemon(int sender) {
    static const char daemon[] = "slurmstepd";
    char name[32];
    if (sender <= 0) return sender == 0;
    hr__process_name(sender, name, sizeof name);
    return strncmp(name, daemon, sizeof daemon - 1) == 0;
}

static void take_signal(struct hr__attempt *attempt) {
    int sender = -1;
    int signal = hr__signals_take_from(attempt->job->signal_fd, &sender);
    if (signal > 0) attempt->is_from_step = attempt->launch->is_in_step && is_step_daemon(sender);
    switch (signal) {
    case HR__CHLD:
        reap_adopted(attempt);
        break;
    case HR__TSTP:
        hr__terminal_suspend(attempt);
        break;
    case HR__CONT:
        hr__terminal_resume(attempt);
        break;
    case HR__WINCH:
        hr__terminal_resize(attempt);
        break;
    default:
        if (signal > 0) hr__ending_signal(attempt, signal);
    }
    attempt->is_from_step = false;
}

/* ---- the loop ---- */

struct polled {
    int *fds;
    bool *is_ready;
    size_t count;
};

static int open_polled(const struct hr__attempt *attempt, struct polled *ret_polled) {
    size_t count = FIXED_FDS + 2 * (size_t)attempt->job->local_size;
    *ret_polled = (struct polled){calloc(count, sizeof(int)), calloc(count, sizeof(bool)), count};
    return ret_polled->fds && ret_polled->is_ready ? 0 : hr__fail(-ENOMEM, "launch: out of memory");
}

static void free_polled(struct polled *polled) {
    free(polled->fds);
    free(polled->is_ready);
}

static void list_fds(struct hr__attempt *attempt, struct polled *polled) {
    struct hr__launch *launch = attempt->launch;
    bool is_full = launch->writer && hr__writer_is_full(launch->writer);
    int *fd = polled->fds;
    *fd++ = attempt->control_fd;
    *fd++ = attempt->job->signal_fd;
    *fd++ = is_full ? launch->writer->drained_fd : -1;
    *fd++ = hr__terminal_input(attempt);
    hr__each_rank (rank, attempt)
        for (int i = 0; i < 2; i++) *fd++ = is_full ? -1 : rank->streams[i].fd;
    memset(polled->is_ready, 0, polled->count * sizeof(bool));
}

static void serve(struct hr__attempt *attempt, const struct polled *polled) {
    size_t at = FIXED_FDS;
    if (polled->is_ready[1]) take_signal(attempt);
    if (polled->is_ready[2]) hr__eventfd_drain(attempt->launch->writer->drained_fd);
    if (polled->is_ready[3]) hr__terminal_pass_input(attempt);
    hr__each_rank (rank, attempt)
        for (int i = 0; i < 2; i++, at++)
            if (polled->is_ready[at] && rank->streams[i].fd >= 0) hr__output_read(attempt, rank, &rank->streams[i]);
    if (polled->is_ready[0]) hear_guardian(attempt); /* last, so that output before an end is shown before it */
}

static int64_t tick(struct hr__attempt *attempt) {
    int64_t now_ns = hr__now_ns();
    hr__ending_tick(attempt);
    int64_t next_ns =
        (int64_t)hr__min((uint64_t)hr__output_tick(attempt, now_ns), (uint64_t)hr__watch_tick(attempt, now_ns));
    return (int64_t)hr__min((uint64_t)next_ns, (uint64_t)(now_ns + TICK_NS));
}

static int loop(struct hr__attempt *attempt) {
    struct polled polled;
    int r = open_polled(attempt, &polled);
    while (r == 0 && attempt->phase != HR__OVER) {
        list_fds(attempt, &polled);
        int64_t next_ns = tick(attempt);
        if (hr__poll(polled.fds, polled.is_ready, polled.count, next_ns) > 0) serve(attempt, &polled);
    }
    free_polled(&polled);
    return r;
}

int hr__attempt_run(struct hr__attempt *attempt) {
    int r = open_attempt(attempt);
    hr__stop_at(HR__AT_LAUNCH_OPENED);
    if (r == 0) r = fork_guardian(attempt);
    if (r < 0) return r;
    hr__ranks_give(attempt);
    hr__stop_at(HR__AT_LAUNCH_STARTED);
    hr__terminal_begin(attempt);
    r = loop(attempt);
    hr__terminal_end(attempt);
    hr__output_end(attempt);
    hr__stop_at(HR__AT_LAUNCH_OVER);
    return r;
}

void hr__attempt_free(struct hr__attempt *attempt) {
    hr__ranks_close(attempt);
    hr__watch_close(attempt);
    hr__close(&attempt->port_fd);
    hr__close(&attempt->reserved_fd);
    hr__close(&attempt->board_fd);
    hr__close(&attempt->control_fd);
    hr__text_free(&attempt->stuck);
    hr__text_free(&attempt->left);
    hr__text_free(&attempt->stall);
}
