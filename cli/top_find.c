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

/* ---- pids ---- */

void top_add_pid(struct top_pids *pids, int pid) {
    if (pids->count == pids->room) {
        uint32_t room = pids->room ? 2 * pids->room : 64;
        int *grown = realloc(pids->all, room * sizeof *grown);
        if (!grown) return;
        pids->all = grown;
        pids->room = room;
    }
    pids->all[pids->count++] = pid;
}

/* ---- by sockets ---- */

/* A line of /proc/net/unix ends with the name. Those of loaders are @headrace/UID/PID/FD. */
static bool read_name(const char *line, int *ret_pid, int *ret_fd) {
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

void top_each_socket(void visit(void *context, int pid, int fd), void *context) {
    FILE *file = fopen("/proc/net/unix", "re");
    char *line = NULL;
    size_t room = 0;
    int pid, fd;
    while (file && getline(&line, &room, file) > 0)
        if (read_name(line, &pid, &fd)) visit(context, pid, fd);
    free(line);
    if (file) fclose(file);
}

static void visit_by_socket(void *top, int pid, int fd) {
    top_visit(top, pid, fd, true);
}

/* ---- by a walk ---- */

static bool read_link(const char *path, char *ret_text, size_t bytes) {
    ssize_t length = readlink(path, ret_text, bytes - 1);
    ret_text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static bool has_other(const char *kind, int pid) {
    char path[64], theirs[64], own[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, kind);
    if (!read_link(path, theirs, sizeof theirs)) return false;
    snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
    return read_link(path, own, sizeof own) && strcmp(theirs, own) != 0;
}

/* Returns the next entry whose name is a number; NULL: there are no more. */
static const struct dirent *next_number(DIR *folder) {
    const struct dirent *entry = NULL;
    while (folder && (entry = readdir(folder)) && !isdigit((unsigned char)entry->d_name[0])) continue;
    return entry;
}

void top_each_process(void visit(void *context, int pid), void *context) {
    DIR *folder = opendir("/proc");
    for (const struct dirent *entry; (entry = next_number(folder));)
        visit(context, (int)strtol(entry->d_name, NULL, 10));
    if (folder) closedir(folder);
}

void top_each_descriptor(int pid, void visit(void *context, int pid, int fd, const char *target), void *context) {
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    for (const struct dirent *entry; (entry = next_number(folder));) {
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        visit(context, pid, (int)strtol(entry->d_name, NULL, 10), target);
    }
    if (folder) closedir(folder);
}

bool top_is_elsewhere(int pid) {
    return has_other("net", pid) || has_other("pid", pid);
}

static void visit_by_target(void *top, int pid, int fd, const char *target) {
    if (strcmp(target, TOP_MEMORY) == 0) top_visit(top, pid, fd, false);
}

static void note_process(void *context, int pid) {
    struct top *top = context;
    top_add_pid(&top->walked, pid);
}

/* Loaders that the walk has found are looked at in each look, until it comes to their process again. */
static void look_at_known(struct top *top) {
    for (uint32_t i = 0; i < top->count; i++)
        if (!top->loaders[i].is_seen) top_visit(top, top->loaders[i].pid, top->loaders[i].fd, false);
}

static void list_processes(struct top *top) {
    top->walked.count = top->walked_next = 0;
    top_each_process(note_process, top);
}

static void walk(struct top *top, int64_t slice_ns, bool is_all) {
    int64_t end_ns = slice_ns == INT64_MAX ? INT64_MAX : top_now_ns() + slice_ns;
    if (top->walked_next == top->walked.count) list_processes(top);
    while (top->walked_next < top->walked.count && top_now_ns() < end_ns) {
        int pid = top->walked.all[top->walked_next++];
        if (is_all || top_is_elsewhere(pid)) top_each_descriptor(pid, visit_by_target, top);
    }
    if (top->walked_next == top->walked.count) top->has_walked = true;
}

void top_find(struct top *top, int64_t slice_ns) {
    bool has_sockets = access("/proc/net/unix", R_OK) == 0;
    top_begin_look(top);
    top_each_socket(visit_by_socket, top);
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
