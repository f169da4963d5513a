/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the memory of loaders among the descriptors of processes. `headrace record` and thread.c call it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena/layout.h"
#include "base/alloc.h"
#include "recorder.h"

enum { WALK_SHARE = 50 /* walks take at most 1/WALK_SHARE of a core */, TARGET_BYTES = 64 };

static void keep(struct hr__finder *finder, struct hr__found found) {
    if (finder->count == finder->room) {
        uint32_t room = finder->room ? 2 * finder->room : 64;
        struct hr__found *grown = hr__realloc(finder->found, room * sizeof *grown);
        if (!grown) return;
        finder->found = grown;
        finder->room = room;
    }
    finder->found[finder->count++] = found;
}

/* Memory without a name in a folder: a memfd of ours, or an unlinked file where there are no memfds. */
static bool may_be_arena(const char *target) {
    static const char other[] = "/memfd:", end[] = " (deleted)";
    size_t length = strlen(target);
    if (strcmp(target, "/memfd:" HR__ARENA_FILE " (deleted)") == 0) return true;
    return length > sizeof end && strcmp(target + length - sizeof end + 1, end) == 0 &&
           strncmp(target, other, sizeof other - 1) != 0;
}

struct walk {
    hr_recorder *recorder;
    int pid;
    char folder[64];
};

/* Only regular files are opened, because to open a pipe or a terminal would change something. */
static int look_at_descriptor(void *context, const char *name) {
    struct walk *walk = context;
    char path[HR__PATH_BYTES], target[TARGET_BYTES];
    struct hr__file_info info;
    int fd = (int)strtol(name, NULL, 10), memory = -1;
    if (hr__path(path, "%s/%s", walk->folder, name) < 0 || hr__link_target(path, target, sizeof target) < 0) return 0;
    if (!may_be_arena(target) || hr__file_look_through(path, &info) < 0 || !info.is_regular) return 0;
    if (walk->pid == (int)hr__pid() && hr__recorder_has_fd(walk->recorder, fd)) return 0;
    struct hr__memory_place place = {info.device, info.inode};
    keep(hr__recorder_finder(walk->recorder), (struct hr__found){walk->pid, fd, place});
    if (hr__recorder_note(walk->recorder, place.device, place.inode)) return 0;
    return hr__file_open(path, &memory) < 0 ? 0 : hr__recorder_add(walk->recorder, walk->pid, memory);
}

/* Between two walks: what is still where it was found. */
static void note_known(hr_recorder *recorder) {
    const struct hr__finder *finder = hr__recorder_finder(recorder);
    for (uint32_t i = 0; i < finder->count; i++) {
        const struct hr__found *found = &finder->found[i];
        char path[HR__PATH_BYTES];
        struct hr__file_info info;
        if (hr__path(path, "/proc/%d/fd/%d", found->pid, found->fd) < 0) continue;
        if (hr__file_look_through(path, &info) < 0) continue;
        if (info.device == found->place.device && info.inode == found->place.inode)
            hr__recorder_note(recorder, info.device, info.inode);
    }
}

static int walk_through(hr_recorder *recorder, int pid) {
    struct walk walk = {.recorder = recorder, .pid = pid};
    snprintf(walk.folder, sizeof walk.folder, "/proc/%d/fd", pid);
    int r = hr__folder_visit(walk.folder, look_at_descriptor, &walk);
    return r < 0 && hr__recorder_failed(recorder) < 0 ? r : 0; /* a process that has ended has no folder */
}

/* On a busy machine a walk takes long, but costs no more. */
int hr_recorder_find(hr_recorder *recorder, const int *pids, uint32_t count) {
    struct hr__finder *finder = hr__recorder_finder(recorder);
    int64_t now_ns = hr__now_ns(), before_ns = hr__thread_cpu_ns();
    int r = 0;
    if (now_ns < finder->walk_ns) {
        note_known(recorder);
        return 0;
    }
    finder->count = 0;
    for (uint32_t i = 0; r == 0 && i < count; i++) r = walk_through(recorder, pids[i]);
    finder->walk_ns = now_ns + (hr__thread_cpu_ns() - before_ns) * WALK_SHARE;
    return r;
}
