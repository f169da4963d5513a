/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_MACHINE_H
#define HEADRACE_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the machine, its container and its limits give the calling process. No state: any thread, any time. */

#define HR_NO_LIMIT UINT64_MAX /* there is no limit, or it is not known */

struct hr_machine {
    uint64_t memory_bytes;          /* of the machine */
    uint64_t available_bytes;       /* of them, MemAvailable */
    uint64_t cgroup_limit_bytes;    /* the least limit of this process's memory cgroups and those above */
    uint64_t cgroup_headroom_bytes; /* what they leave, page cache counted as free */
    uint64_t spare_bytes;           /* the least of MemAvailable and the headroom: what loaders go by */
    uint64_t cgroup_millicores;     /* thousandths of a core, by the quota of processor time */
    uint64_t process_room;          /* processes and threads that the pids cgroup still allows */
    uint32_t core_count;            /* cores that this process may run on */
    uint32_t has_pidfd;             /* can processes be watched and signalled without mistaking one for another? */
    uint32_t has_memfd;             /* is there shared memory without a file in /dev/shm? */
    uint32_t has_end_signals;       /* does a pipe's end send a signal, and nothing else of it? (Linux 5.6) */
    uint32_t gives_holes_back;      /* can a part of shared memory be given back to the machine? (gVisor: no) */
};

HR_API void hr_machine_look(struct hr_machine *ret_machine);

/* The memory of this process that is its own: pages that are mapped by nobody else, in bytes, by smaps_rollup. Walks
 * the page tables: some 10 ms per GB. 0: not known. */
HR_API uint64_t hr_machine_private_bytes(void);

/* What the kernel says of a page. Private: anonymous memory that only this process maps; a page that was shared with
 * its parent since the fork becomes that when it is written to and so copied. */
enum hr_page { HR_PAGE_ABSENT, HR_PAGE_SHARED, HR_PAGE_PRIVATE };

/* Looks, without touching them, at the pages of `count` addresses of this process: one enum hr_page for each into
 * `ret_pages`. Needs no privilege; quickest when the addresses rise. A negative errno where there is no
 * /proc/self/pagemap. */
HR_API int hr_machine_pages(const uint64_t *addresses, size_t count, unsigned char *ret_pages);

#ifdef __cplusplus
}
#endif
#endif
