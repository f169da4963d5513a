/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the loaders of some processes, and of those that they have started, for `headrace record`. */
#define _GNU_SOURCE
#include "record.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "stop.h"

#define S_NS INT64_C(1000000000)
static const int64_t TREE_NS = S_NS - S_NS / 10; /* between two searches for trainers by their sockets, */
static const int64_t SEARCH_NS = 5 * S_NS;       /* and in /proc, which costs more */
enum { WALK_SHARE = 50 /* walks take at most 1/WALK_SHARE of a core */ };

uint64_t record_started(int pid) {
    enum { FIELDS_TO_START = 20 }; /* from the end of the name */
    char line[1024];
    uint64_t started = 0;
    const char *at = top_read_stat(pid, line, sizeof line);
    if (!at || !at[1] || at[2] == 'Z' || at[2] == 'X') return 0;
    for (int i = 0; at && i < FIELDS_TO_START; i++) at = strchr(at + 1, ' ');
    return at && top_read_number(&at, 10, &started) ? started : 0;
}

/* ---- memory ---- */

static void keep(struct record *record, const struct record_memory *memory) {
    if (record->memory_count == record->memory_room) {
        uint32_t room = record->memory_room ? 2 * record->memory_room : 64;
        struct record_memory *grown = realloc(record->memories, room * sizeof *grown);
        if (!grown) return;
        record->memories = grown;
        record->memory_room = room;
    }
    record->memories[record->memory_count++] = *memory;
}

/* Memory without a name in a folder: a memfd of ours, or an unlinked file where there are no memfds. */
static bool may_be_arena(const char *target) {
    static const char other[] = "/memfd:", end[] = " (deleted)";
    size_t length = strlen(target);
    if (strcmp(target, TOP_MEMORY) == 0) return true;
    return length > sizeof end && strcmp(target + length - sizeof end + 1, end) == 0 &&
           strncmp(target, other, sizeof other - 1) != 0;
}

/* Only regular files are opened, because to open a pipe or a terminal would change something. */
static void show_memory(void *context, int pid, int fd, const char *target) {
    struct record *record = context;
    char path[64];
    struct stat info;
    if (!may_be_arena(target)) return;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    if (stat(path, &info) < 0 || !S_ISREG(info.st_mode)) return;
    keep(record, &(struct record_memory){pid, fd, info.st_dev, info.st_ino});
    if (hr_recorder_note(record->recorder, info.st_dev, info.st_ino)) return;
    int memory = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (memory >= 0 && record->failed == 0) record->failed = hr_recorder_add(record->recorder, pid, memory);
}

/* Between two walks: what is still where it was found. */
static void note_known(struct record *record) {
    char path[64];
    struct stat info;
    for (uint32_t i = 0; i < record->memory_count; i++) {
        const struct record_memory *memory = &record->memories[i];
        snprintf(path, sizeof path, "/proc/%d/fd/%d", memory->pid, memory->fd);
        if (stat(path, &info) == 0 && info.st_ino == memory->inode && info.st_dev == memory->device)
            hr_recorder_note(record->recorder, memory->device, memory->inode);
    }
}

/* ---- trainers ---- */

static bool has_pid(const struct top_pids *pids, int pid) {
    for (uint32_t i = 0; i < pids->count; i++)
        if (pids->all[i] == pid) return true;
    return false;
}

/* Other jobs of the machine may have many processes, so what they are is remembered until the next search. */
static bool is_descendant(struct record *record, int pid) {
    if (has_pid(&record->strangers, pid)) return false;
    if (top_descends(pid, record->named, record->named_count)) return true;
    top_add_pid(&record->strangers, pid);
    return false;
}

static void add_trainer(struct record *record, int pid) {
    if (!has_pid(&record->trainers, pid) && is_descendant(record, pid)) top_add_pid(&record->trainers, pid);
}

static void drop_ended(struct top_pids *pids) {
    for (uint32_t i = pids->count; i-- > 0;)
        if (!record_started(pids->all[i])) pids->all[i] = pids->all[--pids->count];
}

static void add_by_socket(void *record, int pid, int fd) {
    (void)fd;
    add_trainer(record, pid);
}

static void add_any(void *record, int pid) {
    add_trainer(record, pid);
}

static void add_elsewhere(void *record, int pid) {
    if (top_is_elsewhere(pid)) add_trainer(record, pid);
}

/* Finds processes in other namespaces. Most processes of a machine are in the namespaces of this one, so their parents
 * are not asked for. */
static void search(struct record *record) {
    bool has_sockets = access("/proc/net/unix", R_OK) == 0;
    record->strangers.count = 0; /* a pid may be that of another process by now */
    top_each_process(has_sockets ? add_elsewhere : add_any, record);
}

static void find_trainers(struct record *record, int64_t now_ns) {
    if (now_ns < record->tree_ns) return;
    record->tree_ns = now_ns + TREE_NS;
    drop_ended(&record->trainers);
    for (int i = 0; i < record->named_count; i++) add_trainer(record, record->named[i]);
    if (!record->has_descendants) return;
    top_each_socket(add_by_socket, record);
    if (now_ns < record->search_ns) return;
    search(record);
    record->search_ns = clock_ns() + SEARCH_NS;
}

/* On a busy machine a walk takes long, but costs no more. */
static int64_t used_ns(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * S_NS + used.tv_nsec;
}

int record_find(struct record *record) {
    find_trainers(record, clock_ns());
    int64_t now_ns = clock_ns(), before_ns = used_ns();
    if (now_ns < record->walk_ns) {
        note_known(record);
        return 0;
    }
    record->memory_count = 0;
    for (uint32_t i = 0; i < record->trainers.count; i++)
        top_each_descriptor(record->trainers.all[i], show_memory, record);
    record->walk_ns = now_ns + (used_ns() - before_ns) * WALK_SHARE;
    return record->failed;
}

void record_free(struct record *record) {
    free(record->trainers.all);
    free(record->strangers.all);
    free(record->memories);
}
