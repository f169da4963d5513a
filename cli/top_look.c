/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at the loaders that top_find.c finds, and keeps what rates are made of. */
#define _GNU_SOURCE
#include "top.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <headrace/error.h>

#define S_NS INT64_C(1000000000)
enum { MAX_ANCESTORS = 32, FORGET_S = 60 };

int64_t top_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * S_NS + now.tv_nsec;
}

int64_t top_wall_s(void) {
    return time(NULL);
}

/* ---- which processes are wanted ---- */

static int parent_of(int pid) {
    char path[64], line[128];
    uint64_t parent = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    while (file && !parent && fgets(line, sizeof line, file))
        if (top_read_field(line, "PPid:", 10, &parent)) break;
    if (file) fclose(file);
    return parent <= INT_MAX ? (int)parent : 0;
}

bool top_descends(int pid, const int *pids, int count) {
    for (int i = 0; pid > 0 && i < MAX_ANCESTORS; i++, pid = parent_of(pid))
        for (int k = 0; k < count; k++)
            if (pids[k] == pid) return true;
    return false;
}

/* The command line names trainers, or processes that have started them. */
static bool is_wanted(const struct top *top, int pid) {
    return !top->pid_count || top_descends(pid, top->pids, top->pid_count);
}

/* ---- the table of loaders ---- */

static struct top_loader *find(struct top *top, int pid, uint32_t number) {
    for (uint32_t i = 0; i < top->count; i++)
        if (top->loaders[i].pid == pid && top->loaders[i].look.loader == number) return &top->loaders[i];
    return NULL;
}

static struct top_loader *add(struct top *top, int pid) {
    if (top->count == top->room) {
        uint32_t room = top->room ? 2 * top->room : 16;
        struct top_loader *grown = realloc(top->loaders, room * sizeof *grown);
        if (!grown) return NULL;
        top->loaders = grown;
        top->room = room;
    }
    struct top_loader *loader = &top->loaders[top->count++];
    *loader = (struct top_loader){.pid = pid};
    return loader;
}

static void drop(struct top *top, uint32_t i) {
    struct top_loader *last = &top->loaders[--top->count];
    free(top->loaders[i].workers);
    top->loaders[i] = *last;
    last->workers = NULL; /* the one that has moved has it */
}

static bool is_seen_already(const struct top *top, const struct stat *info) {
    for (uint32_t i = 0; i < top->count; i++)
        if (top->loaders[i].is_seen && top->loaders[i].inode == info->st_ino && top->loaders[i].device == info->st_dev)
            return true;
    return false;
}

static bool have_room(struct top_loader *loader, uint32_t count) {
    if (count <= loader->worker_room) return true;
    struct top_worker *grown = realloc(loader->workers, count * sizeof *grown);
    if (!grown) return false;
    memset(grown + loader->worker_room, 0, (count - loader->worker_room) * sizeof *grown);
    loader->workers = grown;
    loader->worker_room = count;
    return true;
}

/* ---- rates ---- */

static uint64_t since(int64_t now_ns, uint64_t since_ns) {
    return since_ns && (int64_t)since_ns > 0 && (int64_t)since_ns < now_ns ? (uint64_t)now_ns - since_ns : 0;
}

static uint64_t waits_ns(int64_t now_ns, const struct hr_arena_look *look) {
    uint64_t waits = since(now_ns, look->wait_since_ns), inside = since(now_ns, look->inside_since_ns);
    return waits > inside ? waits : inside;
}

double top_waits_s(const struct top *top, const struct top_loader *loader) {
    return (double)waits_ns(top->now_ns, &loader->look) / 1e9;
}

static uint64_t busy_ns_of(int64_t now_ns, const struct hr_worker_status *status) {
    uint64_t busy = status->phase_ns[HR_PHASE_FETCH] + status->phase_ns[HR_PHASE_COLLATE];
    return busy + (status->phase == HR_PHASE_WAIT ? 0 : since(now_ns, (uint64_t)status->phase_since_ns));
}

static void mark_worker(struct top_worker *worker, int64_t now_ns) {
    worker->marks[worker->mark_count++ % TOP_HISTORY] = (struct top_worker_mark){
        .now_ns = now_ns, .done = worker->look.status.done_count, .busy_ns = busy_ns_of(now_ns, &worker->look.status)};
}

static void mark(struct top_loader *loader, int64_t now_ns) {
    const struct hr_arena_look *look = &loader->look;
    struct top_mark mark = {.now_ns = now_ns,
                            .batches = look->batches,
                            .samples = look->samples,
                            .bytes = look->bytes,
                            .inside_ns = look->inside_ns + (look->step ? waits_ns(now_ns, look) : 0)};
    for (uint32_t i = 0; i < look->worker_count; i++) {
        mark_worker(&loader->workers[i], now_ns);
        mark.busy_ns += busy_ns_of(now_ns, &loader->workers[i].look.status);
    }
    loader->marks[loader->mark_count++ % TOP_HISTORY] = mark;
}

static uint32_t kept(uint32_t count) {
    return count < TOP_HISTORY ? count : TOP_HISTORY;
}

static double growth(uint64_t before, uint64_t now) {
    return now > before ? (double)(now - before) : 0;
}

static double share(double part) {
    return part < 0 ? 0 : part > 1 ? 1 : part;
}

/* Over the looks that are kept; at the first look, since the loader was made. */
struct top_rates top_rates_of(const struct top *top, const struct top_loader *loader) {
    struct top_mark none = {.now_ns = loader->look.opened_ns};
    const struct top_mark *last = &loader->marks[(loader->mark_count + TOP_HISTORY - 1) % TOP_HISTORY], *first = &none;
    if (loader->mark_count > 1) first = &loader->marks[(loader->mark_count - kept(loader->mark_count)) % TOP_HISTORY];
    double s = (double)(last->now_ns - first->now_ns) / 1e9;
    uint32_t workers = loader->look.used_count;
    (void)top;
    if (s <= 0 || loader->is_over) return (struct top_rates){0};
    return (struct top_rates){.wait = share(growth(first->inside_ns, last->inside_ns) / 1e9 / s),
                              .batches = growth(first->batches, last->batches) / s,
                              .samples = growth(first->samples, last->samples) / s,
                              .bytes = growth(first->bytes, last->bytes) / s,
                              .busy = workers ? share(growth(first->busy_ns, last->busy_ns) / 1e9 / s / workers) : 0};
}

struct top_worker_rates top_worker_rates_of(const struct top_worker *worker) {
    uint32_t count = kept(worker->mark_count);
    if (count < 2) return (struct top_worker_rates){.delay = -1};
    const struct top_worker_mark *last = &worker->marks[(worker->mark_count - 1) % TOP_HISTORY];
    const struct top_worker_mark *first = &worker->marks[(worker->mark_count - count) % TOP_HISTORY];
    double s = (double)(last->now_ns - first->now_ns) / 1e9;
    double hours = (double)(last->now_ns - worker->first_ns) / 3600e9;
    if (s <= 0) return (struct top_worker_rates){.delay = -1};
    bool has_cpu = first->has_cpu && last->has_cpu;
    bool has_delay = has_cpu && first->delay_ns != UINT64_MAX && last->delay_ns != UINT64_MAX;
    return (struct top_worker_rates){.batches = growth(first->done, last->done) / s,
                                     .busy = share(growth(first->busy_ns, last->busy_ns) / 1e9 / s),
                                     .cpu = has_cpu ? growth(first->cpu_ns, last->cpu_ns) / 1e9 / s : 0,
                                     .delay = has_delay ? growth(first->delay_ns, last->delay_ns) / 1e9 / s : -1,
                                     .growth = worker->is_known && hours > 1.0 / 120
                                                   ? growth(worker->first_bytes, worker->private_bytes) / hours
                                                   : 0};
}

const char *top_state_of(const struct top *top, const struct top_loader *loader) {
    enum { STALLED_S = 30, IDLE_LOOKS = 3 };
    double waits = top_waits_s(top, loader);
    if (loader->is_over) return "ended";
    if (loader->look.has_stopped) return "ends";
    if (waits > STALLED_S) return "stalled";
    if (loader->look.step == 0) return waits > 0 ? "starts" : "new";
    if (waits > 0) return "waits";
    return loader->mark_count > IDLE_LOOKS && top_rates_of(top, loader).batches == 0 ? "idle" : "runs";
}

/* ---- jobs ---- */

static bool is_of_job(const struct top_loader *one, const struct top_loader *other) {
    return strcmp(one->look.name, other->look.name) == 0 && one->look.world_size == other->look.world_size &&
           one->look.epoch == other->look.epoch && one->look.rank >= 0 && other->look.rank >= 0 && !other->is_over;
}

/* The steps that all ranks have done and still keep: those after *ret_from, up to *ret_to. */
static void common_steps(const struct top *top, const struct top_loader *loader, uint64_t *ret_from, uint64_t *ret_to,
                         uint32_t *ret_ranks) {
    uint64_t most = loader->look.step, least = most;
    *ret_ranks = 0;
    for (uint32_t i = 0; i < top->count; i++) {
        const struct top_loader *other = &top->loaders[i];
        if (!is_of_job(loader, other)) continue;
        ++*ret_ranks;
        if (other->look.step > most) most = other->look.step;
        if (other->look.step < least) least = other->look.step;
    }
    *ret_to = least;
    *ret_from = most > HR_LOOK_STEPS ? most - HR_LOOK_STEPS : 0;
}

static uint32_t slowest_us(const struct top *top, const struct top_loader *loader, uint64_t step) {
    uint32_t slowest = 0;
    for (uint32_t i = 0; i < top->count; i++) {
        if (!is_of_job(loader, &top->loaders[i])) continue;
        uint32_t us = top->loaders[i].look.step_us[step % HR_LOOK_STEPS];
        if (us == HR_LOOK_NO_STEP) return us;
        if (us > slowest) slowest = us;
    }
    return slowest;
}

double top_job_wait(const struct top *top, const struct top_loader *loader, int *ret_behind, uint64_t *ret_steps) {
    uint64_t from, to, steps = 0;
    double waited_s = 0, rate = top_rates_of(top, loader).batches;
    uint32_t ranks;
    common_steps(top, loader, &from, &to, &ranks);
    *ret_behind = -1;
    *ret_steps = 0;
    for (uint32_t i = 0; i < top->count; i++) {
        const struct top_loader *other = &top->loaders[i];
        if (!is_of_job(loader, other) || loader->look.step <= other->look.step + *ret_steps) continue;
        *ret_steps = loader->look.step - other->look.step;
        *ret_behind = other->look.rank;
    }
    if (ranks < 2 || rate <= 0) return -1;
    for (uint64_t step = from + 1; step <= to; step++) {
        uint32_t us = slowest_us(top, loader, step);
        if (us == HR_LOOK_NO_STEP) continue;
        waited_s += us / 1e6;
        steps++;
    }
    return steps ? share(waited_s / ((double)steps / rate)) : -1;
}

/* ---- histograms ---- */

double top_quantile_ms(const struct hr_times *times, double part) {
    double all = 0, seen = 0;
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) all += (double)times->buckets[i];
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) {
        seen += (double)times->buckets[i];
        if (times->buckets[i] && seen >= part * all) return (double)(UINT64_C(1) << i) * 1.414 / 1e6;
    }
    return 0;
}

static void add_times(struct hr_times *to, const struct hr_times *from) {
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) to->buckets[i] += from->buckets[i];
    to->sum_ns += from->sum_ns;
    if (from->worst_ns <= to->worst_ns) return;
    to->worst_ns = from->worst_ns;
    to->worst_index = from->worst_index;
}

void top_sum_times(const struct top_loader *loader, struct hr_times *ret_samples, struct hr_times *ret_collates) {
    *ret_samples = *ret_collates = (struct hr_times){.worst_index = HR_NO_SAMPLE};
    for (uint32_t i = 0; i < loader->look.worker_count; i++) {
        add_times(ret_samples, &loader->workers[i].look.samples);
        add_times(ret_collates, &loader->workers[i].look.collates);
    }
}

/* ---- a look ---- */

void top_begin_look(struct top *top) {
    top->now_ns = top_now_ns();
    top->inner_of = 0;
    top->refused = top->refused_users = top->other_versions = top->damaged = 0;
    for (uint32_t i = 0; i < top->count; i++) top->loaders[i].is_seen = false;
}

/* The kernel lets a process read memory of another one only under the conditions of ptrace. */
static enum top_visited refuse(struct top *top, int pid) {
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%d", pid);
    if (stat(path, &info) < 0) return TOP_ELSEWHERE;
    if (!is_wanted(top, pid)) return TOP_REFUSED;
    top->refused++;
    if (info.st_uid != geteuid()) top->refused_users++;
    return TOP_REFUSED;
}

static void note_failure(struct top *top, int code, int pid) {
    if (code == HR_E_STATE) return; /* it is being made */
    if (code == HR_E_VERSION) {
        top->other_versions++;
        return;
    }
    top->damaged++;
    snprintf(top->problem, sizeof top->problem, "pid %d: %s", pid, hr_error_message());
}

/* Most loaders have the same trainer as the one before. */
static int inner_pid_of(struct top *top, int pid) {
    if (top->inner_of != pid) top->inner = top_inner_pid(pid);
    top->inner_of = pid;
    return top->inner;
}

/* Looks at a loader and its workers, which are in `top->scratch` then. */
static int look_at(struct top *top, int memory, struct hr_arena_look *ret_look) {
    int r = hr_arena_look(memory, ret_look, top->scratch, top->scratch_room);
    if (r < 0 || ret_look->worker_count <= top->scratch_room) return r;
    struct hr_worker_look *grown = realloc(top->scratch, ret_look->worker_count * sizeof *grown);
    if (!grown) return -ENOMEM;
    top->scratch = grown;
    top->scratch_room = ret_look->worker_count;
    return hr_arena_look(memory, ret_look, top->scratch, top->scratch_room);
}

static void keep(struct top *top, struct top_loader *loader, int fd, const struct stat *info,
                 const struct hr_arena_look *look) {
    loader->fd = fd;
    loader->device = info->st_dev;
    loader->inode = info->st_ino;
    loader->is_seen = true;
    loader->is_over = false;
    loader->is_same_namespace = loader->pid == top->inner;
    loader->seen_ns = top->now_ns;
    loader->look = *look;
    for (uint32_t i = 0; i < look->worker_count; i++) loader->workers[i].look = top->scratch[i];
    mark(loader, top->now_ns);
}

static enum top_visited take(struct top *top, int pid, int fd, int memory, const struct stat *info) {
    struct hr_arena_look look;
    int r = look_at(top, memory, &look);
    if (r < 0) {
        if (is_wanted(top, pid)) note_failure(top, r, pid);
        return r == HR_E_CORRUPT ? TOP_ELSEWHERE : TOP_SEEN;
    }
    /* A worker and a forked child may have the memory, too. */
    if ((int)look.trainer_pid != inner_pid_of(top, pid)) return TOP_ELSEWHERE;
    if (look.worker_count > top->scratch_room || !is_wanted(top, pid)) return TOP_SEEN;
    struct top_loader *loader = find(top, pid, look.loader);
    if (!loader) loader = add(top, pid);
    if (!loader) return TOP_SEEN;
    if (have_room(loader, look.worker_count))
        keep(top, loader, fd, info, &look);
    else if (!loader->mark_count)
        top->count--;
    return TOP_SEEN;
}

/* Only regular files are opened, because to open a pipe or a terminal would change something. */
enum top_visited top_visit(struct top *top, int pid, int fd, bool is_by_socket) {
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    int memory = -1;
    errno = 0; /* that of an earlier loader says nothing about a pipe, which is not opened */
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) memory = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (memory < 0) return is_by_socket && (errno == EACCES || errno == EPERM) ? refuse(top, pid) : TOP_ELSEWHERE;
    enum top_visited visited = TOP_ELSEWHERE;
    if (fstat(memory, &info) == 0) visited = is_seen_already(top, &info) ? TOP_SEEN : take(top, pid, fd, memory, &info);
    close(memory);
    return visited;
}

static bool is_running(int pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    return access(path, F_OK) == 0;
}

/* A loader whose workers do not persist has no memory between two epochs. Its row stays for a minute. */
void top_end_look(struct top *top) {
    for (uint32_t i = top->count; i-- > 0;) {
        struct top_loader *loader = &top->loaders[i];
        if (loader->is_seen) continue;
        if (!is_running(loader->pid) || top->now_ns - loader->seen_ns > FORGET_S * S_NS)
            drop(top, i);
        else
            loader->is_over = true;
    }
}

void top_free(struct top *top) {
    while (top->count) drop(top, 0);
    free(top->loaders);
    free(top->walked.all);
    free(top->scratch);
    free(top->cached);
}
