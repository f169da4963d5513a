/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { LINE = 4096, PATH = LINE + 512 };

static FILE *open_file(const char *path) {
    char full[PATH + 512];
    int length = snprintf(full, sizeof full, "%s%s", hr__root(), path);
    return length < (int)sizeof full ? fopen(full, "re") : NULL;
}

uint64_t hr__read_number(const char *path) {
    char text[64] = "";
    FILE *file = open_file(path);
    if (!file) return UINT64_MAX;
    char *line = fgets(text, sizeof text, file);
    fclose(file);
    if (!line || text[0] < '0' || text[0] > '9') return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

uint64_t hr__read_field(const char *path, const char *key) {
    char line[256];
    uint64_t value = UINT64_MAX;
    size_t length = strlen(key);
    FILE *file = open_file(path);
    if (!file) return UINT64_MAX;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) != 0) continue;
        value = strtoull(line + length, NULL, 10);
        break;
    }
    fclose(file);
    return value;
}

/* The two kinds of memory cgroup: where they are mounted, and what their files are called. */
struct kind {
    const char *root, *limit, *usage, *events;
};
static const struct kind v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                               "memory.oom_control"};
static const struct kind v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "memory.events"};

/* This process's memory cgroup below its kind's root: the next one that /proc/self/cgroup has, which has a line
 * "0::/path" (v2) and, with v1, lines like "4:memory:/path". NULL: no more. */
static const struct kind *next_group(FILE *file, char path[static LINE]) {
    char line[LINE];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *at = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!at) continue;
        *at++ = '\0';
        const struct kind *kind = !controllers[1] ? &v2 : strcmp(controllers + 1, "memory") == 0 ? &v1 : NULL;
        if (!kind) continue;
        memcpy(path, at, strlen(at) + 1);
        return kind;
    }
    return NULL;
}

static const char *file_of(char path[static PATH], const struct kind *kind, const char *group, const char *name) {
    snprintf(path, PATH, "%s%s/%s", kind->root, strcmp(group, "/") == 0 ? "" : group, name);
    return path;
}

/* Headroom of one memory cgroup: its limit less what is in use and cannot be reclaimed. */
static uint64_t group_headroom(const struct kind *kind, const char *group) {
    char path[PATH];
    uint64_t limit = hr__read_number(file_of(path, kind, group, kind->limit));
    if (limit == UINT64_MAX) return UINT64_MAX;
    uint64_t usage = hr__read_number(file_of(path, kind, group, kind->usage));
    uint64_t cache = hr__read_field(file_of(path, kind, group, "memory.stat"), "inactive_file ");
    if (usage == UINT64_MAX) return UINT64_MAX;
    if (cache != UINT64_MAX) usage -= hr__min(usage, cache);
    return limit > usage ? limit - usage : 0;
}

/* The least headroom from a group up to the root. */
static uint64_t hierarchy_headroom(const struct kind *kind, char *group) {
    uint64_t least = UINT64_MAX;
    for (;;) {
        least = hr__min(least, group_headroom(kind, group));
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

uint64_t hr__cgroup_headroom(void) {
    char group[LINE];
    uint64_t least = UINT64_MAX;
    const struct kind *kind;
    FILE *file = open_file("/proc/self/cgroup");
    if (!file) return least;
    while ((kind = next_group(file, group))) least = hr__min(least, hierarchy_headroom(kind, group));
    fclose(file);
    return least;
}

/* In a container the group's path is the host's, and its own group is mounted as the root. */
static uint64_t group_oom_kills(const struct kind *kind, const char *group) {
    char path[PATH];
    uint64_t kills = hr__read_field(file_of(path, kind, group, kind->events), "oom_kill ");
    return kills != UINT64_MAX ? kills : hr__read_field(file_of(path, kind, "", kind->events), "oom_kill ");
}

uint64_t hr__oom_kill_count(void) {
    char group[LINE];
    uint64_t kills = UINT64_MAX;
    const struct kind *kind;
    FILE *file = open_file("/proc/self/cgroup");
    while (file && kills == UINT64_MAX && (kind = next_group(file, group))) kills = group_oom_kills(kind, group);
    if (file) fclose(file);
    return kills != UINT64_MAX ? kills : hr__read_field("/proc/vmstat", "oom_kill ");
}
