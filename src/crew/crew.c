/* SPDX-License-Identifier: Apache-2.0 */
/* Starts, watches, signals and stops worker processes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/face/arena.h>
#include <headrace/face/crew.h>

#include "arena/arena.h"
#include "base/base.h"
#include "base/error.h"
#include "crew.h"
#include "diagnostics.h"
#include "os/os.h"

struct entry {
    int pid;     /* 0: never started */
    int watched; /* owned: its pidfd, or a copy of the adopter's sentinel; -1: its end cannot be noticed */
    int pidfd;   /* the same as `watched`; -1: the kernel has no pidfd */
    bool is_forked;
    bool is_reaped;
    struct hr__end end;
    uint64_t oom_kills;       /* count of the cgroup when the worker was started */
    uint64_t rss_bytes;       /* when hr_crew_look last saw it alive; 0: never */
    uint64_t noted_rss_bytes; /* as its status had it then */
    struct hr__diagnostics diagnostics;
};

struct hr_crew {
    hr_arena *arena;
    uint32_t count;
    uint32_t own_pid;
    struct entry *entries;
    int *fds; /* scratch memory of hr_crew_stop */
    bool *ready;
};

int hr__crew_open(hr_arena *arena, uint32_t worker_count, hr_crew **ret_crew) {
    hr_crew *crew = calloc(1, sizeof *crew);
    if (crew) {
        crew->arena = arena;
        crew->own_pid = hr__pid();
        crew->entries = calloc(worker_count, sizeof *crew->entries);
        crew->fds = calloc(worker_count, sizeof *crew->fds);
        crew->ready = calloc(worker_count, sizeof *crew->ready);
    }
    if (!crew || !crew->entries || !crew->fds || !crew->ready) {
        hr__crew_close(crew);
        return hr__fail(-ENOMEM, "crew: no memory for %u workers", worker_count);
    }
    crew->count = worker_count;
    for (uint32_t i = 0; i < worker_count; i++) crew->entries[i].pidfd = crew->entries[i].watched = -1;
    *ret_crew = crew;
    return 0;
}

static void forget(hr_crew *crew, uint32_t worker) {
    struct entry *entry = &crew->entries[worker];
    hr__arena_watch(crew->arena, worker, -1);
    hr__close(&entry->watched);
    entry->pidfd = -1;
}

hr_crew *hr__crew_close(hr_crew *crew) {
    if (!crew) return NULL;
    for (uint32_t i = 0; i < crew->count; i++) {
        forget(crew, i);
        /* A child does not have the mapping, and may have another one at this address. */
        if (crew->own_pid == hr__pid()) hr__diagnostics_close(&crew->entries[i].diagnostics);
    }
    hr__stop_at(HR__AT_CREW_CLOSED);
    free(crew->entries);
    free(crew->fds);
    free(crew->ready);
    free(crew);
    return NULL;
}

/* A forked child could signal its parent's workers, and does not have the diagnostics files. */
static int check_owner(const hr_crew *crew) {
    if (crew->own_pid == hr__pid()) return 0;
    return hr__fail(HR_E_STATE, "crew: process %u owns this crew; a forked child can only close it", crew->own_pid);
}

static int find(hr_crew *crew, uint32_t worker, struct entry **ret_entry) {
    int r = check_owner(crew);
    if (r < 0) return r;
    if (worker >= crew->count) return hr__fail(-EINVAL, "crew: worker %u of %u", worker, crew->count);
    *ret_entry = &crew->entries[worker];
    return 0;
}

static bool has_ended(const struct entry *entry) {
    return entry->is_reaped || entry->pid == 0 || (entry->watched >= 0 && hr__is_readable(entry->watched));
}

/* ---- starting ---- */

/* Finds the entry of a worker number that no running process has. */
static int find_free(hr_crew *crew, uint32_t worker, struct entry **ret_entry) {
    int r = find(crew, worker, ret_entry);
    if (r < 0 || has_ended(*ret_entry)) return r;
    return hr__fail(HR_E_STATE, "crew: worker %u still runs, as process %d; end it before another process replaces it",
                    worker, (*ret_entry)->pid);
}

int hr_crew_open_worker_fds(hr_crew *crew, uint32_t worker, struct hr_worker_fds *ret_fds) {
    struct entry *entry;
    struct hr_worker_fds fds;
    int r = find(crew, worker, &entry);
    if (r == 0) r = hr__arena_open_worker_fds(crew->arena, worker, &fds);
    if (r < 0) return r;
    r = hr__diagnostics_open(&entry->diagnostics, &fds.diagnostics_fd);
    hr__stop_at(HR__AT_CREW_WORKER_FDS);
    if (r < 0) {
        hr_worker_fds_close(&fds);
        return hr__fail(r, "crew: cannot create the diagnostics file of worker %u: %s; raise the limit on %s", worker,
                        hr_error_text(r),
                        r == -EFBIG ? "file sizes (ulimit -f)" : "open files (ulimit -n)" HR_HELP("open-files"));
    }
    *ret_fds = fds;
    return 0;
}

int hr_crew_adopt(hr_crew *crew, uint32_t worker, int pid, int sentinel_fd) {
    struct entry *entry;
    int r = find_free(crew, worker, &entry), watched = -1;
    if (r < 0) return r;
    /* A signal to 0 or -1 reaches many processes, and one to this process ends the trainer. */
    if (pid <= 0 || (uint32_t)pid == crew->own_pid)
        return hr__fail(-EINVAL, "crew: process %d cannot be worker %u; give the pid of a child", pid, worker);
    r = hr__pidfd(pid, &watched);
    bool has_pidfd = r == 0;
    if (!has_pidfd && sentinel_fd >= 0) r = hr__dup(sentinel_fd, &watched);
    if (r < 0)
        return hr__fail(r, "crew: cannot open a pidfd of process %d, worker %u: %s", pid, worker, hr_error_text(r));
    forget(crew, worker);
    bool is_restart = entry->pid != 0;
    entry->pid = pid;
    entry->watched = watched;
    entry->pidfd = has_pidfd ? watched : -1;
    entry->is_forked = entry->is_reaped = false;
    entry->end = (struct hr__end){0};
    entry->oom_kills = hr__oom_kill_count();
    entry->rss_bytes = entry->noted_rss_bytes = 0;
    hr__stop_at(HR__AT_CREW_ADOPTED);
    r = hr__arena_watch(crew->arena, worker, entry->watched);
    return r == 0 && is_restart ? hr_arena_count(crew->arena, 1, 0) : r;
}

static _Noreturn void be_worker(struct hr_worker_fds *fds, hr_work *work, void *context) {
    enum { CANNOT_OPEN = 127 };
    hr_port *port;
    if (hr_port_open(fds, &port) < 0) {
        hr_diagnostics_log_stderr(fds->diagnostics_fd, hr_error_message(), strlen(hr_error_message()));
        hr__exit(CANNOT_OPEN);
    }
    int code = work(port, context);
    hr_port_close(port);
    hr__exit(code);
}

int hr_crew_fork(hr_crew *crew, uint32_t worker, hr_work *work, void *context) {
    struct entry *entry;
    struct hr_worker_fds fds;
    int pid = -1;
    int r = find_free(crew, worker, &entry);
    if (r == 0) r = hr_crew_open_worker_fds(crew, worker, &fds);
    if (r < 0) return r;
    hr__stop_at(HR__AT_CREW_FORK);
    r = hr__fork(&pid);
    if (r == 0 && pid == 0) be_worker(&fds, work, context);
    hr_worker_fds_close(&fds);
    if (r < 0)
        return hr__fail(r,
                        "crew: cannot fork worker %u: %s; check the limits on processes (ulimit -u, pids.max of the "
                        "cgroup) and on memory",
                        worker, hr_error_text(r));
    hr__stop_at(HR__AT_CREW_FORKED);
    r = hr_crew_adopt(crew, worker, pid, -1);
    if (r < 0) {
        struct hr__end end;
        hr__send_signal(-1, pid, HR__KILL);
        while (hr__process_end(pid, true, &end) == -EAGAIN) hr__yield();
        return r;
    }
    entry->is_forked = true;
    return 0;
}

int hr__crew_expect_end(hr_crew *crew, uint32_t worker) {
    struct entry *entry;
    int r = find(crew, worker, &entry);
    return r < 0 ? r : hr__arena_watch(crew->arena, worker, -1);
}

int hr_worker_ignore_others(int trainer, bool interrupts) {
    int r = trainer > 0 ? hr__ignore_others(trainer, interrupts) : -EINVAL;
    return r < 0 ? hr__fail(r, "crew: cannot ignore signals of other processes than %d: %s", trainer, hr_error_text(r))
                 : 0;
}

/* ---- looking ---- */

/* Reads how a worker ended while the kernel still knows it. */
static void note_end(struct entry *entry) {
    if (entry->is_reaped || entry->pid == 0) return;
    struct hr__end end;
    if (hr__process_end(entry->pid, entry->is_forked, &end) < 0) return;
    entry->end = end;
    entry->is_reaped = entry->is_forked;
    hr__stop_at(HR__AT_CREW_REAPED);
}

static void look_at_process(const struct entry *entry, struct hr_worker_report *report) {
    struct hr__process process;
    if (hr__process_look(entry->pid, &process) < 0) return;
    report->state = process.state;
    report->thread_count = process.thread_count;
    report->tracer_pid = process.tracer_pid;
    report->rss_bytes = process.rss_bytes;
    report->caught_signals = process.caught_signals;
    memcpy(report->kernel_function, process.kernel_function, sizeof report->kernel_function);
    memcpy(report->system_call, process.system_call, sizeof report->system_call);
    report->is_deadlocked = process.is_deadlocked;
}

/* Sets the last known resident memory: from /proc while the process lived, or from its own status if that is newer. */
static void add_memory(struct entry *entry, struct hr_worker_report *report) {
    bool is_its_own = report->status.pid == (uint32_t)entry->pid; /* else the status is of its predecessor */
    uint64_t noted = is_its_own ? report->status.rss_bytes : 0;
    if (report->rss_bytes) {
        entry->rss_bytes = report->rss_bytes;
        entry->noted_rss_bytes = noted;
    }
    report->rss_bytes = noted == entry->noted_rss_bytes ? entry->rss_bytes : noted;
}

int hr_crew_look(hr_crew *crew, uint32_t worker, struct hr_worker_report *ret_report) {
    struct entry *entry;
    int r = find(crew, worker, &entry);
    if (r < 0) return r;
    struct hr_worker_report report = {.worker = worker, .pid = entry->pid, .is_alive = !has_ended(entry)};
    if (report.is_alive)
        look_at_process(entry, &report);
    else
        note_end(entry);
    report.is_end_known = entry->end.is_known;
    report.signal = entry->end.signal;
    report.exit_code = entry->end.exit_code;
    uint64_t oom_kills = hr__oom_kill_count();
    report.oom_kills = oom_kills != UINT64_MAX && oom_kills > entry->oom_kills ? oom_kills - entry->oom_kills : 0;
    /* The status is read after the process, so that the status of a dead worker is its last one, and that of a live
     * worker is not older than its state. */
    r = hr__arena_worker_status(crew->arena, worker, &report.status);
    if (r < 0) return r;
    add_memory(entry, &report);
    *ret_report = report;
    return 0;
}

int hr_crew_stack(hr_crew *crew, uint32_t worker, const char **ret_text, size_t *ret_bytes) {
    struct entry *entry;
    int r = find(crew, worker, &entry);
    if (r == 0) hr__diagnostics_stack(&entry->diagnostics, ret_text, ret_bytes);
    return r;
}

int hr_crew_stderr(hr_crew *crew, uint32_t worker, const char **ret_text, size_t *ret_bytes) {
    struct entry *entry;
    int r = find(crew, worker, &entry);
    if (r == 0) hr__diagnostics_stderr(&entry->diagnostics, ret_text, ret_bytes);
    return r;
}

int hr_crew_posted_status(hr_crew *crew, uint32_t worker, const char **ret_text, size_t *ret_bytes) {
    struct entry *entry;
    int r = find(crew, worker, &entry);
    if (r == 0) hr__diagnostics_posted_status(&entry->diagnostics, ret_text, ret_bytes);
    return r;
}

/* ---- ending ---- */

int hr_crew_signal(hr_crew *crew, uint32_t worker, int signal) {
    struct entry *entry;
    int r = find(crew, worker, &entry);
    if (r == 0) r = has_ended(entry) ? -ESRCH : hr__send_signal(entry->pidfd, entry->pid, signal);
    return r < 0 ? hr__fail(r, "crew: cannot send signal %d to worker %u: %s", signal, worker, hr_error_text(r)) : 0;
}

int hr__crew_wait(hr_crew *crew, uint32_t worker, int64_t deadline_ns) {
    struct entry *entry;
    bool ready;
    int r = find(crew, worker, &entry);
    if (r < 0) return r;
    if (!has_ended(entry)) {
        r = hr__poll(&entry->watched, &ready, 1, deadline_ns);
        if (r < 0) return hr__fail(r, "crew: worker %u (pid %d) has not ended", worker, entry->pid);
    }
    note_end(entry);
    return 0;
}

/* Waits for all workers until the deadline. Returns how many still run. */
static int wait_all(hr_crew *crew, int64_t deadline_ns) {
    for (;;) {
        int running = 0;
        for (uint32_t i = 0; i < crew->count; i++) {
            bool runs = !has_ended(&crew->entries[i]);
            crew->fds[i] = runs ? crew->entries[i].watched : -1;
            running += runs;
            if (!runs) note_end(&crew->entries[i]);
        }
        if (running == 0) return 0;
        int r = hr__poll(crew->fds, crew->ready, crew->count, deadline_ns);
        if (r < 0 && r != -EINTR) return running;
    }
}

static void signal_all(hr_crew *crew, int signal) {
    for (uint32_t i = 0; i < crew->count; i++)
        if (!has_ended(&crew->entries[i])) hr__send_signal(crew->entries[i].pidfd, crew->entries[i].pid, signal);
}

int hr_crew_stop(hr_crew *crew, int64_t timeout_ns) {
    enum { PARTS = 10, TERM_AT = 8, KILL_AT = 9 };
    int r = check_owner(crew);
    if (r < 0) return r;
    int64_t start_ns = hr__now_ns();
    if (timeout_ns > HR_NO_DEADLINE - start_ns) timeout_ns = HR_NO_DEADLINE - start_ns;
    int64_t part_ns = timeout_ns / PARTS;
    for (uint32_t i = 0; i < crew->count; i++) hr__arena_watch(crew->arena, i, -1);
    hr_arena_stop(crew->arena);
    hr__stop_at(HR__AT_CREW_STOPPED);
    int running = wait_all(crew, start_ns + TERM_AT * part_ns);
    if (running > 0) {
        signal_all(crew, HR__TERM);
        hr__stop_at(HR__AT_CREW_TERM);
        running = wait_all(crew, start_ns + KILL_AT * part_ns);
    }
    if (running > 0) {
        signal_all(crew, HR__KILL);
        hr__stop_at(HR__AT_CREW_KILL);
        running = wait_all(crew, start_ns + timeout_ns);
    }
    hr__stop_at(HR__AT_CREW_ENDED);
    return running;
}
