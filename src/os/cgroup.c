/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the limits of cgroups, version 1 and 2. */
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

/* The two versions of cgroups: the folder of memory limits, and the names of the files. */
struct kind {
    const char *root, *limit, *usage, *events;
};
enum { V1, V2, NO_MORE };
static const struct kind memory[] = {
    [V1] = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"},
    [V2] = {"/sys/fs/cgroup", "memory.max", "memory.current", "memory.events"},
};

/* Returns true if `name` is in a list such as "cpu,cpuacct". */
static bool has_controller(const char *controllers, const char *name) {
    size_t length = strlen(name);
    for (const char *at = controllers; at; at = strchr(at, ','), at = at ? at + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || !at[length])) return true;
    return false;
}

/* Finds the next cgroup of this process for a controller, relative to the root of its version. /proc/self/cgroup has a
 * line "0::/path" (v2) and, with v1, lines like "4:memory:/path". Returns the version, or NO_MORE. */
static int next_group(FILE *file, const char *controller, char path[static LINE]) {
    char line[LINE];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *at = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!at) continue;
        *at++ = '\0';
        bool is_v2 = !controllers[1];
        if (!is_v2 && !has_controller(controllers + 1, controller)) continue;
        memcpy(path, at, strlen(at) + 1);
        return is_v2 ? V2 : V1;
    }
    return NO_MORE;
}

static const char *file_of(char path[static PATH], const char *root, const char *group, const char *name) {
    snprintf(path, PATH, "%s%s/%s", root, strcmp(group, "/") == 0 ? "" : group, name);
    return path;
}

/* Returns how much of a resource one group allows this process; UINT64_MAX: no limit. */
typedef uint64_t look(int version, const char *group);

/* Returns the lowest value of a group and its parents, up to the root. */
static uint64_t least_of_hierarchy(look *look_at, int version, char *group) {
    uint64_t least = UINT64_MAX;
    for (;;) {
        least = hr__min(least, look_at(version, group));
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

/* pid 0: of this process. */
static FILE *open_groups(int pid) {
    char path[64] = "/proc/self/cgroup";
    if (pid) snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
    return open_file(path);
}

static uint64_t least_of_groups(int pid, const char *controller, look *look_at) {
    char group[LINE];
    uint64_t least = UINT64_MAX;
    int version;
    FILE *file = open_groups(pid);
    if (!file) return least;
    while ((version = next_group(file, controller, group)) != NO_MORE)
        least = hr__min(least, least_of_hierarchy(look_at, version, group));
    fclose(file);
    return least;
}

/* ---- memory ---- */

static uint64_t memory_limit(int version, const char *group) {
    char path[PATH];
    return hr__read_number(file_of(path, memory[version].root, group, memory[version].limit));
}

/* Returns the limit minus the memory that is in use and cannot be reclaimed. */
static uint64_t memory_headroom(int version, const char *group) {
    char path[PATH];
    const char *root = memory[version].root;
    uint64_t limit = memory_limit(version, group);
    if (limit == UINT64_MAX) return UINT64_MAX;
    uint64_t usage = hr__read_number(file_of(path, root, group, memory[version].usage));
    uint64_t cache = hr__read_field(file_of(path, root, group, "memory.stat"), "inactive_file ");
    if (usage == UINT64_MAX) return UINT64_MAX;
    if (cache != UINT64_MAX) usage -= hr__min(usage, cache);
    return limit > usage ? limit - usage : 0;
}

uint64_t hr__cgroup_headroom(void) {
    return least_of_groups(0, "memory", memory_headroom);
}

uint64_t hr__cgroup_limit(void) {
    return least_of_groups(0, "memory", memory_limit);
}

/* ---- processors and processes ---- */

/* Thousandths of a core: the first number of `quota` for the second, or for the number in `period`. */
static uint64_t millicores(const char *quota_path, const char *period_path) {
    char text[64] = "", *rest;
    FILE *file = open_file(quota_path);
    if (!file) return UINT64_MAX;
    bool is_read = fgets(text, sizeof text, file);
    fclose(file);
    if (!is_read || text[0] < '0' || text[0] > '9') return UINT64_MAX; /* "max", or -1 with v1 */
    uint64_t quota = strtoull(text, &rest, 10);
    uint64_t period = period_path ? hr__read_number(period_path) : strtoull(rest, NULL, 10);
    uint64_t thousandfold;
    if (!period || period == UINT64_MAX || !hr__mul(quota, 1000, &thousandfold)) return UINT64_MAX;
    return thousandfold / period;
}

static uint64_t cpu_quota(int version, const char *group) {
    char quota[PATH], period[PATH];
    if (version == V2) return millicores(file_of(quota, "/sys/fs/cgroup", group, "cpu.max"), NULL);
    return millicores(file_of(quota, "/sys/fs/cgroup/cpu", group, "cpu.cfs_quota_us"),
                      file_of(period, "/sys/fs/cgroup/cpu", group, "cpu.cfs_period_us"));
}

uint64_t hr__cgroup_millicores(void) {
    return hr__cgroup_millicores_of(0);
}

uint64_t hr__cgroup_millicores_of(int pid) {
    return least_of_groups(pid, "cpu", cpu_quota);
}

/* Returns what is left of UINT64_MAX after the time that a group was throttled: so the least is that of the group that
 * was throttled most, and UINT64_MAX means that it is not known. */
static uint64_t not_throttled(int version, const char *group) {
    enum { NS_PER_US = 1000 };
    char path[PATH];
    bool is_v2 = version == V2;
    const char *root = is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    uint64_t time =
        hr__read_field(file_of(path, root, group, "cpu.stat"), is_v2 ? "throttled_usec " : "throttled_time ");
    if (time == UINT64_MAX || !hr__mul(time, is_v2 ? NS_PER_US : 1, &time)) return UINT64_MAX;
    return UINT64_MAX - hr__max(time, 1);
}

uint64_t hr__cgroup_throttled_ns(int pid) {
    uint64_t rest = least_of_groups(pid, "cpu", not_throttled);
    return rest == UINT64_MAX ? UINT64_MAX : UINT64_MAX - rest;
}

static uint64_t process_room(int version, const char *group) {
    char path[PATH];
    const char *root = version == V2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
    uint64_t limit = hr__read_number(file_of(path, root, group, "pids.max"));
    uint64_t count = hr__read_number(file_of(path, root, group, "pids.current"));
    if (limit == UINT64_MAX || count == UINT64_MAX) return UINT64_MAX;
    return limit > count ? limit - count : 0;
}

uint64_t hr__cgroup_process_room(void) {
    return least_of_groups(0, "pids", process_room);
}

/* ---- kills ---- */

/* In a container the path of the group is the one on the host, but the group itself is mounted as the root. */
static uint64_t group_oom_kills(int version, const char *group) {
    char path[PATH];
    const struct kind *kind = &memory[version];
    uint64_t kills = hr__read_field(file_of(path, kind->root, group, kind->events), "oom_kill ");
    return kills != UINT64_MAX ? kills : hr__read_field(file_of(path, kind->root, "", kind->events), "oom_kill ");
}

uint64_t hr__oom_kill_count(void) {
    char group[LINE];
    uint64_t kills = UINT64_MAX;
    int version;
    FILE *file = open_file("/proc/self/cgroup");
    while (file && kills == UINT64_MAX && (version = next_group(file, "memory", group)) != NO_MORE)
        kills = group_oom_kills(version, group);
    if (file) fclose(file);
    return kills != UINT64_MAX ? kills : hr__read_field("/proc/vmstat", "oom_kill ");
}
