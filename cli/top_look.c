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
    top_mark(loader, top->now_ns);
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
