/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the loaders of this machine for `headrace top`: by their sockets, and where those are not seen, in /proc. */
#define _GNU_SOURCE
#include "top.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- by sockets ---- */

/* A line of /proc/net/unix ends with the name. Those of loaders are @headrace/UID/PID/FD. */
bool top_read_socket(const char *line, int *ret_pid, int *ret_fd) {
    static const char prefix[] = " @headrace/";
    const char *name = strstr(line, prefix);
    uint64_t numbers[3]; /* user, pid, descriptor */
    if (!name) return false;
    name += sizeof prefix - 1;
    for (int i = 0; i < 3; i++) {
        if (i && *name++ != '/') return false;
        if (!top_read_number(&name, 10, &numbers[i])) return false;
    }
    if (numbers[1] == 0 || numbers[1] > INT_MAX || numbers[2] > INT_MAX) return false;
    *ret_pid = (int)numbers[1];
    *ret_fd = (int)numbers[2];
    return true;
}

/* Returns whether there are loaders that the names do not lead to: they are of another namespace of pids. */
static bool find_by_sockets(struct top *top) {
    FILE *file = fopen("/proc/net/unix", "re");
    bool has_others = !file;
    char *line = NULL;
    size_t room = 0;
    int pid, fd;
    while (file && getline(&line, &room, file) > 0)
        if (top_read_socket(line, &pid, &fd)) has_others |= top_visit(top, pid, fd, true) == TOP_ELSEWHERE;
    free(line);
    if (file) fclose(file);
    return has_others;
}

/* ---- by a walk ---- */

static bool read_link(const char *path, char *ret_text, size_t bytes) {
    ssize_t length = readlink(path, ret_text, bytes - 1);
    ret_text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

bool top_is_elsewhere(int pid, const char *kind) {
    char path[64], theirs[64], own[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, kind);
    if (!read_link(path, theirs, sizeof theirs)) return false;
    snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
    return read_link(path, own, sizeof own) && strcmp(theirs, own) != 0;
}

static void walk_process(struct top *top, int pid) {
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strcmp(target, "/memfd:headrace-arena (deleted)") == 0)
            top_visit(top, pid, (int)strtol(entry->d_name, NULL, 10), false);
    }
    if (folder) closedir(folder);
}

static void list_processes(struct top *top) {
    DIR *folder = opendir("/proc");
    top->walked_count = top->walked_next = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        if (top->walked_count == top->walked_room) {
            uint32_t room = top->walked_room ? 2 * top->walked_room : 1024;
            int *grown = realloc(top->walked, room * sizeof *grown);
            if (!grown) break;
            top->walked = grown;
            top->walked_room = room;
        }
        top->walked[top->walked_count++] = (int)strtol(entry->d_name, NULL, 10);
    }
    if (folder) closedir(folder);
}

/* Loaders that the walk has found are looked at in each look, until it comes to their process again. */
static void look_at_known(struct top *top) {
    for (uint32_t i = 0; i < top->count; i++)
        if (!top->loaders[i].is_seen) top_visit(top, top->loaders[i].pid, top->loaders[i].fd, false);
}

static void walk(struct top *top, int64_t slice_ns, bool is_all) {
    int64_t end_ns = slice_ns == INT64_MAX ? INT64_MAX : top_now_ns() + slice_ns;
    if (top->walked_next == top->walked_count) list_processes(top);
    while (top->walked_next < top->walked_count && top_now_ns() < end_ns) {
        int pid = top->walked[top->walked_next++];
        if (is_all || top_is_elsewhere(pid, "net") || top_is_elsewhere(pid, "pid")) walk_process(top, pid);
    }
    if (top->walked_next == top->walked_count) top->has_walked = true;
}

void top_find(struct top *top, int64_t slice_ns) {
    bool has_sockets = access("/proc/net/unix", R_OK) == 0;
    top_begin_look(top);
    find_by_sockets(top);
    look_at_known(top);
    walk(top, slice_ns, !has_sockets);
    top_end_look(top);
}

int top_inner_pid(int pid) {
    char path[64], line[256];
    int inner = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "NSpid:", 6) != 0) continue;
        char *last = strrchr(line, '\t');
        inner = last ? (int)strtol(last, NULL, 10) : 0;
    }
    if (file) fclose(file);
    return inner;
}
