/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "os.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/base.h"

/* The first number in a file; UINT64_MAX for "max" and for a file that is not there. */
static uint64_t read_number(const char *path) {
    char text[64] = "";
    FILE *file = fopen(path, "re");
    if (!file) return UINT64_MAX;
    char *line = fgets(text, sizeof text, file);
    fclose(file);
    if (!line || text[0] < '0' || text[0] > '9') return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/* The value of the line that starts with `key`, in its own unit; UINT64_MAX if there is none. */
static uint64_t read_field(const char *path, const char *key) {
    char line[256];
    uint64_t value = UINT64_MAX;
    size_t length = strlen(key);
    FILE *file = fopen(path, "re");
    if (!file) return UINT64_MAX;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) != 0) continue;
        value = strtoull(line + length, NULL, 10);
        break;
    }
    fclose(file);
    return value;
}

static uint64_t minus(uint64_t limit, uint64_t used) {
    if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    return limit > used ? limit - used : 0;
}

/* Headroom of one memory cgroup: its limit less what is in use and cannot be reclaimed. */
static uint64_t group_headroom(const char *folder, const char *limit_name, const char *usage_name) {
    char path[4608];
    snprintf(path, sizeof path, "%s/%s", folder, limit_name);
    uint64_t limit = read_number(path);
    if (limit == UINT64_MAX) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", folder, usage_name);
    uint64_t usage = read_number(path);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    uint64_t cache = read_field(path, "inactive_file ");
    if (cache != UINT64_MAX && usage != UINT64_MAX) usage -= hr__min(usage, cache);
    return minus(limit, usage);
}

/* The least headroom from the group `path` below `root` up to the root itself. */
static uint64_t hierarchy_headroom(const char *root, char *path, const char *limit_name, const char *usage_name) {
    char folder[4352];
    uint64_t least = UINT64_MAX;
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", root, path);
        least = hr__min(least, group_headroom(folder, limit_name, usage_name));
        char *slash = strrchr(path, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

/* /proc/self/cgroup has a line "0::/path" (v2) and, with v1, lines like "4:memory:/path". */
static uint64_t cgroup_headroom(void) {
    char line[4096];
    uint64_t least = UINT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file) return least;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        controllers++;
        if (*controllers == '\0')
            least = hr__min(least, hierarchy_headroom("/sys/fs/cgroup", path, "memory.max", "memory.current"));
        else if (strcmp(controllers, "memory") == 0)
            least = hr__min(least, hierarchy_headroom("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
                                                      "memory.usage_in_bytes"));
    }
    fclose(file);
    return least;
}

uint64_t hr__memory_to_spare(void) {
    enum { KIB = 1024 };
    uint64_t available = read_field("/proc/meminfo", "MemAvailable:");
    available = available == UINT64_MAX ? UINT64_C(1) << 30 : available * KIB; /* no /proc: a modest guess */
    return hr__min(available, cgroup_headroom());
}

static uint64_t limited_address_space(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    uint64_t used_pages = read_number("/proc/self/statm");
    uint64_t used = used_pages == UINT64_MAX ? 0 : used_pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return minus(limit.rlim_cur, used);
}

/* A processor may have far less than 47 bits of it (39 on many an arm64), and what is free may lie in pieces. */
uint64_t hr__address_space_left(void) {
    uint64_t left = hr__min(limited_address_space(), UINT64_C(1) << 44);
    for (; left; left -= left / 8 + 1) {
        void *address = mmap(NULL, left, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (address == MAP_FAILED) continue;
        munmap(address, left);
        break;
    }
    return left;
}

uint32_t hr__core_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t holds */
    return online > 0 ? (uint32_t)online : 1;
}

uint32_t hr__pid(void) {
    return (uint32_t)getpid();
}
