/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the kernel which pages a process has alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <headrace/face/machine.h>

#include "base/base.h"
#include "os.h"

/* An entry of /proc/self/pagemap (the kernel's Documentation/admin-guide/mm/pagemap.rst). Without privileges the page
 * number reads as 0, but these bits are correct. */
#define IS_EXCLUSIVE (UINT64_C(1) << 56)
#define IS_FILE_OR_SHARED (UINT64_C(1) << 61)
#define IS_PRESENT (UINT64_C(1) << 63)

enum { ENTRIES = 64 }; /* read at once, because the next address is likely to be near */

struct pagemap {
    int fd;
    uint64_t page_bytes;
    uint64_t first; /* number of the page of entries[0] */
    size_t count;
    uint64_t entries[ENTRIES];
};

static int read_entries(struct pagemap *map, uint64_t page) {
    map->first = page;
    map->count = 0;
    ssize_t n;
    do n = pread(map->fd, map->entries, sizeof map->entries, (off_t)(page * sizeof(uint64_t)));
    while (n < 0 && errno == EINTR);
    if (n < 0) return -errno;
    map->count = (size_t)n / sizeof(uint64_t);
    return 0;
}

static enum hr_page judge(uint64_t entry) {
    if (!(entry & IS_PRESENT)) return HR_PAGE_ABSENT;
    return entry & IS_EXCLUSIVE && !(entry & IS_FILE_OR_SHARED) ? HR_PAGE_PRIVATE : HR_PAGE_SHARED;
}

static int look(struct pagemap *map, uint64_t address, unsigned char *ret_page) {
    uint64_t page = address / map->page_bytes;
    if (page < map->first || page - map->first >= map->count) {
        int r = read_entries(map, page);
        if (r < 0) return r;
    }
    *ret_page = map->count ? (unsigned char)judge(map->entries[page - map->first]) : HR_PAGE_ABSENT;
    return 0;
}

int hr_machine_pages(const uint64_t *addresses, size_t count, unsigned char *ret_pages) {
    struct pagemap map = {.page_bytes = (uint64_t)sysconf(_SC_PAGESIZE)};
    int r = hr__fail_at("pagemap");
    if (r < 0) return r;
    map.fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (map.fd < 0) return -errno;
    for (size_t i = 0; r == 0 && i < count; i++) r = look(&map, addresses[i], &ret_pages[i]);
    hr__close(&map.fd);
    return r;
}

uint64_t hr_machine_private_bytes(void) {
    enum { KIB = 1024 };
    static const char path[] = "/proc/self/smaps_rollup";
    uint64_t clean = hr__read_field(path, "Private_Clean:"), dirty = hr__read_field(path, "Private_Dirty:");
    return clean == UINT64_MAX || dirty == UINT64_MAX ? 0 : (clean + dirty) * KIB;
}
