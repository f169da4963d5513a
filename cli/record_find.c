/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the loaders of some processes, and of those that they have started, for `headrace record`. */
#define _GNU_SOURCE
#include "record.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "stop.h"
#include "top.h"

#define S_NS INT64_C(1000000000)
static const int64_t TREE_NS = S_NS - S_NS / 10; /* between two searches for trainers by their sockets, */
static const int64_t SEARCH_NS = 5 * S_NS;       /* and in /proc, which costs more */
enum { WALK_SHARE = 50 /* walks take at most 1/WALK_SHARE of a core */, MAX_ANCESTORS = 32 };

uint64_t record_started(int pid) {
    enum { FIELDS_TO_START = 20 }; /* from the end of the name */
    char path[64], text[1024];
    uint64_t started = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    const char *at = file && fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    if (file) fclose(file);
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
    static const char ours[] = "/memfd:headrace-arena (deleted)", other[] = "/memfd:", end[] = " (deleted)";
    size_t length = strlen(target);
    if (strcmp(target, ours) == 0) return true;
    return length > sizeof end && strcmp(target + length - sizeof end + 1, end) == 0 &&
           strncmp(target, other, sizeof other - 1) != 0;
}

/* Only regular files are opened, because to open a pipe or a terminal would change something. */
static void show_memory(struct record *record, int pid, int fd) {
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    if (stat(path, &info) < 0 || !S_ISREG(info.st_mode)) return;
    keep(record, &(struct record_memory){pid, fd, info.st_dev, info.st_ino});
    if (hr_recorder_note(record->recorder, info.st_dev, info.st_ino)) return;
    int memory = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (memory >= 0 && record->failed == 0) record->failed = hr_recorder_add(record->recorder, pid, memory);
}

static void walk(struct record *record, int pid) {
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (may_be_arena(target)) show_memory(record, pid, (int)strtol(entry->d_name, NULL, 10));
    }
    if (folder) closedir(folder);
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

static bool has_pid(const struct record_pids *pids, int pid) {
    for (uint32_t i = 0; i < pids->count; i++)
        if (pids->all[i] == pid) return true;
    return false;
}

static void add_pid(struct record_pids *pids, int pid) {
    if (pids->count == pids->room) {
        uint32_t room = pids->room ? 2 * pids->room : 64;
        int *grown = realloc(pids->all, room * sizeof *grown);
        if (!grown) return;
        pids->all = grown;
        pids->room = room;
    }
    pids->all[pids->count++] = pid;
}

static bool is_named(const struct record *record, int pid) {
    for (int i = 0; i < record->named_count; i++)
        if (record->named[i].pid == pid) return true;
    return false;
}

/* Other jobs of the machine may have many processes, so what they are is remembered until the next search. */
static bool is_descendant(struct record *record, int pid) {
    int first = pid;
    if (has_pid(&record->strangers, pid)) return false;
    for (int i = 0; pid > 0 && i < MAX_ANCESTORS; i++, pid = top_parent_of(pid))
        if (is_named(record, pid)) return true;
    add_pid(&record->strangers, first);
    return false;
}

static void add_trainer(struct record *record, int pid) {
    if (!has_pid(&record->trainers, pid) && is_descendant(record, pid)) add_pid(&record->trainers, pid);
}

static void drop_ended(struct record_pids *pids) {
    for (uint32_t i = pids->count; i-- > 0;)
        if (!record_started(pids->all[i])) pids->all[i] = pids->all[--pids->count];
}

static void find_by_sockets(struct record *record) {
    FILE *file = fopen("/proc/net/unix", "re");
    char *line = NULL;
    size_t room = 0;
    int pid, fd;
    while (file && getline(&line, &room, file) > 0)
        if (top_read_socket(line, &pid, &fd)) add_trainer(record, pid);
    free(line);
    if (file) fclose(file);
}

/* Finds processes in other namespaces, whose sockets are not seen or show other pids. Most processes of a machine are
 * in the namespaces of this one, so their parents are not asked for. */
static void search(struct record *record) {
    bool has_sockets = access("/proc/net/unix", R_OK) == 0;
    DIR *folder = opendir("/proc");
    record->strangers.count = 0; /* a pid may be that of another process by now */
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        int pid = isdigit((unsigned char)entry->d_name[0]) ? (int)strtol(entry->d_name, NULL, 10) : 0;
        if (pid && (!has_sockets || top_is_elsewhere(pid, "net") || top_is_elsewhere(pid, "pid")))
            add_trainer(record, pid);
    }
    if (folder) closedir(folder);
}

static void find_trainers(struct record *record, int64_t now_ns) {
    if (now_ns < record->tree_ns) return;
    record->tree_ns = now_ns + TREE_NS;
    drop_ended(&record->trainers);
    for (int i = 0; i < record->named_count; i++) add_trainer(record, record->named[i].pid);
    if (!record->has_descendants) return;
    find_by_sockets(record);
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
    for (uint32_t i = 0; i < record->trainers.count; i++) walk(record, record->trainers.all[i]);
    record->walk_ns = now_ns + (used_ns() - before_ns) * WALK_SHARE;
    return record->failed;
}

void record_free(struct record *record) {
    free(record->trainers.all);
    free(record->strangers.all);
    free(record->memories);
}
