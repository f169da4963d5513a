/* SPDX-License-Identifier: Apache-2.0 */
/* Available memory, numbers of cores, and the limits of the process. */
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

uint64_t hr__available_memory(void) {
    enum { KIB = 1024 };
    uint64_t available = hr__read_field("/proc/meminfo", "MemAvailable:");
    available = available == UINT64_MAX ? UINT64_C(1) << 30 : available * KIB; /* no /proc: a modest guess */
    return hr__min(available, hr__cgroup_headroom());
}

static uint64_t limited_address_space(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    uint64_t used_pages = hr__read_number("/proc/self/statm");
    uint64_t used = used_pages == UINT64_MAX ? 0 : used_pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

uint64_t hr__file_limit(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

/* A processor may have far less address space than 47 bits (39 on many arm64 machines), and the free space may be
 * fragmented. */
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

uint32_t hr__machine_cores(void) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

uint32_t hr__core_count_of(int pid) {
    cpu_set_t set;
    if (sched_getaffinity(pid, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
    return hr__machine_cores(); /* more cores than a cpu_set_t holds */
}

uint32_t hr__core_count(void) {
    return hr__core_count_of(0);
}

/* The line "cpu" has the ticks of all cores: user, nice, system, idle, iowait, irq, softirq, steal. */
uint64_t hr__machine_cpu_ns(void) {
    enum { FIELDS = 8, IDLE = 3, IOWAIT = 4 };
    char line[512] = "";
    uint64_t ticks = 0;
    FILE *file = fopen("/proc/stat", "re");
    char *at = file ? fgets(line, sizeof line, file) : NULL;
    if (file) fclose(file);
    if (!at || strncmp(at, "cpu ", 4) != 0) return 0;
    at += 4;
    for (int i = 0; i < FIELDS; i++) {
        uint64_t field = strtoull(at, &at, 10);
        if (i != IDLE && i != IOWAIT) ticks += field;
    }
    return ticks * (uint64_t)(HR_NS_PER_S / sysconf(_SC_CLK_TCK));
}

void hr__host_name(char *ret_name, size_t bytes) {
    if (gethostname(ret_name, bytes) < 0) snprintf(ret_name, bytes, "unknown");
    ret_name[bytes - 1] = '\0';
}

uint32_t hr__usable_core_count(void) {
    enum { MILLI = 1000 };
    return (uint32_t)hr__max(hr__min(hr__core_count(), hr__cgroup_millicores() / MILLI), 1);
}

uint32_t hr__pid(void) {
    return (uint32_t)getpid();
}

uint64_t hr__open_file_limit(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) < 0 ? UINT64_MAX : limit.rlim_cur;
}

uint64_t hr__raise_open_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) return 0;
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? 0 : before;
}

void hr__restore_open_files(uint64_t before) {
    struct rlimit limit;
    if (!before || getrlimit(RLIMIT_NOFILE, &limit) < 0) return;
    limit.rlim_cur = before;
    setrlimit(RLIMIT_NOFILE, &limit);
}
