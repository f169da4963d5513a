/* SPDX-License-Identifier: Apache-2.0 */
/* hr_machine_look: the kernel, the memory, the cores and their limits. */
#include <headrace/face/machine.h>

#include "base/base.h"
#include "os.h"

static uint64_t meminfo(const char *key) {
    enum { KIB = 1024 };
    uint64_t value = hr__read_field("/proc/meminfo", key);
    return value == UINT64_MAX ? UINT64_MAX : value * KIB;
}

static bool gives_pidfd(void) {
    int fd = -1;
    bool is_given = hr__pidfd((int)hr__pid(), &fd) == 0;
    hr__close(&fd);
    return is_given;
}

static bool gives_holes_back(int fd, uint64_t bytes) {
    void *memory;
    if (hr__map(fd, bytes, &memory) < 0) return false;
    int r = hr__punch(memory, bytes);
    hr__unmap(memory, bytes);
    return r == 0;
}

static void look_at_shared_memory(struct hr_machine *machine) {
    uint64_t page = hr__page_bytes();
    enum hr__memory_kind kind;
    int fd = -1;
    if (hr__memory_create("headrace-test", page, page, &fd, &kind) < 0) return;
    machine->has_memfd = kind == HR__MEMORY_MEMFD;
    machine->gives_holes_back = gives_holes_back(fd, page);
    hr__close(&fd);
}

void hr_machine_look(struct hr_machine *ret_machine) {
    *ret_machine = (struct hr_machine){
        .memory_bytes = meminfo("MemTotal:"),
        .available_bytes = meminfo("MemAvailable:"),
        .cgroup_limit_bytes = hr__cgroup_limit(),
        .cgroup_headroom_bytes = hr__cgroup_headroom(),
        .spare_bytes = hr__available_memory(),
        .cgroup_millicores = hr__cgroup_millicores(),
        .process_room = hr__cgroup_process_room(),
        .core_count = hr__core_count(),
        .has_pidfd = gives_pidfd(),
        .has_end_signals = hr__ends_are_signalled() == 0,
    };
    /* Memory may have become free between the two looks. */
    ret_machine->spare_bytes = hr__min(ret_machine->spare_bytes, ret_machine->available_bytes);
    look_at_shared_memory(ret_machine);
}
