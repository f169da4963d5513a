/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_FACE_MACHINE_H
#define HEADRACE_FACE_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The share of the machine that the calling process may use: memory, cores and kernel features, within its container
 * and limits. There is no state: any thread may call these functions at any time. */

#define HR_NO_LIMIT UINT64_MAX /* there is no limit, or it is not known */

struct hr_machine {
    uint64_t memory_bytes;          /* memory of the machine */
    uint64_t available_bytes;       /* available memory of the machine: MemAvailable */
    uint64_t cgroup_limit_bytes;    /* the lowest limit among the memory cgroups of this process and their parents */
    uint64_t cgroup_headroom_bytes; /* memory that these cgroups still allow; page cache counts as free */
    uint64_t spare_bytes;           /* the lower of MemAvailable and the headroom; loaders use this */
    uint64_t cgroup_millicores;     /* CPU quota, in thousandths of a core */
    uint64_t process_room;          /* processes and threads that the pids cgroup still allows */
    uint32_t core_count;            /* cores that this process may run on */
    uint32_t has_pidfd; /* pidfds are available: a pid that was used again cannot be mistaken for a worker */
    uint32_t has_memfd; /* memfd_create is available: shared memory needs no file in /dev/shm */
    uint32_t
        has_end_signals; /* the end of a pipe sends a signal, and nothing else that happens to it does (Linux 5.6) */
    uint32_t gives_holes_back; /* a part of shared memory can be returned to the machine (gVisor: no) */
};

HR_API void hr_machine_look(struct hr_machine *ret_machine);

/* Returns the private memory of this process in bytes: pages that no other process maps, according to smaps_rollup. The
 * kernel walks the page tables, which takes about 10 ms per GB. 0: not known. */
HR_API uint64_t hr_machine_private_bytes(void);

/* The state of a page according to the kernel. Private: anonymous memory that only this process maps. A page that is
 * shared with the parent since the fork becomes private when a process writes to it, because the kernel then copies it.
 */
enum hr_page { HR_PAGE_ABSENT, HR_PAGE_SHARED, HR_PAGE_PRIVATE };

/* Finds the state of the pages of `count` addresses of this process without touching the pages: one enum hr_page each
 * in `ret_pages`. Needs no privilege, and is fastest if the addresses rise. A negative errno if there is no
 * /proc/self/pagemap. */
HR_API int hr_machine_pages(const uint64_t *addresses, size_t count, unsigned char *ret_pages);

#ifdef HR_FAILPOINTS
/* Guards memory, for tests with a device that is simulated. -EEXIST: a part of it is guarded already. */
HR_API int hr_guard(uint64_t address, uint64_t bytes);
/* -ENOENT: no guarded memory begins at this address. */
HR_API int hr_unguard(uint64_t address);
/* How often this process has punched or unmapped guarded memory. */
HR_API uint64_t hr_guard_lost(void);
#endif

#ifdef __cplusplus
}
#endif
#endif
