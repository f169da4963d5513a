/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/arena_scene.h"

#include <sys/mman.h>
#include <sys/wait.h>

#include <headrace/face/machine.h>

#include "os/os.h"

enum { PAGES = 300 };

static unsigned char *map_pages(int flags) {
    unsigned char *pages =
        mmap(NULL, PAGES * (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(pages, MAP_FAILED);
    madvise(pages, PAGES * (size_t)sysconf(_SC_PAGESIZE), MADV_NOHUGEPAGE); /* each page on its own */
    return pages;
}

static void write_to(unsigned char *pages, int from, int to) {
    for (int i = from; i < to; i++) pages[i * sysconf(_SC_PAGESIZE)]++;
}

/* How many of all pages are in a state. */
static int count(const unsigned char *pages, enum hr_page state) {
    uint64_t addresses[PAGES];
    unsigned char states[PAGES];
    int found = 0;
    for (int i = 0; i < PAGES; i++) addresses[i] = (uint64_t)(uintptr_t)&pages[i * sysconf(_SC_PAGESIZE) + i];
    if (hr_machine_pages(addresses, PAGES, states) < 0) return -1;
    for (int i = 0; i < PAGES; i++) found += states[i] == (unsigned char)state;
    return found;
}

static int exit_code_of(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void a_page_is_absent_until_it_is_touched(void **state) {
    (void)state;
    unsigned char *pages = map_pages(MAP_PRIVATE);
    assert_int_equal(count(pages, HR_PAGE_ABSENT), PAGES);
    write_to(pages, 100, 170);
    assert_int_equal(count(pages, HR_PAGE_ABSENT), PAGES - 70);
    assert_int_equal(count(pages, HR_PAGE_PRIVATE), 70);
    munmap(pages, PAGES * (size_t)sysconf(_SC_PAGESIZE));
}

static void a_forked_process_has_of_its_own_what_it_writes_to(void **state) {
    (void)state;
    unsigned char *pages = map_pages(MAP_PRIVATE);
    write_to(pages, 0, PAGES);
    pid_t child = fork();
    if (child == 0) {
        bool is_right = count(pages, HR_PAGE_SHARED) == PAGES;
        write_to(pages, 10, 60);
        is_right = is_right && count(pages, HR_PAGE_PRIVATE) == 50 && count(pages, HR_PAGE_SHARED) == PAGES - 50;
        _exit(is_right ? 0 : 1);
    }
    assert_int_equal(exit_code_of(child), 0);
    assert_int_equal(count(pages, HR_PAGE_PRIVATE), PAGES); /* no other process has them any more */
    munmap(pages, PAGES * (size_t)sysconf(_SC_PAGESIZE));
}

static void shared_memory_is_not_private(void **state) {
    (void)state;
    unsigned char *pages = map_pages(MAP_SHARED);
    write_to(pages, 0, PAGES);
    assert_int_equal(count(pages, HR_PAGE_SHARED), PAGES);
    munmap(pages, PAGES * (size_t)sysconf(_SC_PAGESIZE));
}

static void written_memory_is_counted_as_private(void **state) {
    (void)state;
    if (IS_SANITIZED) skip(); /* a sanitizer's shadow comes and goes */
    enum { BYTES = 32 << 20 };
    uint64_t before = hr_machine_private_bytes();
    if (!before) skip(); /* a kernel without smaps_rollup */
    unsigned char *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(bytes, MAP_FAILED);
    memset(bytes, 1, BYTES);
    assert_in_range(hr_machine_private_bytes() - before, BYTES - MIB, BYTES + MIB);
    munmap(bytes, BYTES);
}

static void the_machine_gives_no_more_than_it_has(void **state) {
    (void)state;
    struct hr_machine machine;
    hr_machine_look(&machine);
    assert_in_range(machine.available_bytes, 1, machine.memory_bytes);
    assert_true(machine.spare_bytes <= machine.available_bytes);
    assert_true(machine.cgroup_headroom_bytes <= machine.cgroup_limit_bytes);
    assert_in_range(machine.core_count, 1, sysconf(_SC_NPROCESSORS_CONF));
    assert_true(machine.gives_holes_back);
}

#ifdef HR_FAILPOINTS
static void a_refusal_of_the_kernel_is_returned(void **state) {
    (void)state;
    struct hr_machine machine;
    uint64_t address = (uint64_t)(uintptr_t)&machine;
    unsigned char page;
    int descriptors = count_descriptors();
    setenv("HEADRACE_FAIL", "memfd_create:EPERM,pidfd_open:ENOSYS,async:ENOSYS,pagemap:EACCES,remove:ENOSYS", 1);
    hr_machine_look(&machine);
    assert_int_equal(hr_machine_pages(&address, 1, &page), -EACCES);
    unsetenv("HEADRACE_FAIL");
    assert_false(machine.has_memfd);
    assert_false(machine.has_pidfd);
    assert_false(machine.has_end_signals);
    assert_false(machine.gives_holes_back);
    assert_int_equal(count_descriptors(), descriptors);
}
#endif

static void the_cpu_has_what_the_compiler_finds(void **state) {
    (void)state;
#ifdef __x86_64__
    assert_int_equal(hr__cpu_has(HR__CPU_AVX2), !!__builtin_cpu_supports("avx2"));
    assert_int_equal(hr__cpu_has(HR__CPU_FMA), !!__builtin_cpu_supports("fma"));
    assert_int_equal(hr__cpu_has(HR__CPU_AVX2 | HR__CPU_FMA), hr__cpu_has(HR__CPU_AVX2) && hr__cpu_has(HR__CPU_FMA));
#else
    assert_false(hr__cpu_has(HR__CPU_AVX2));
#endif
    assert_true(hr__cpu_has(0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_is_absent_until_it_is_touched),
        cmocka_unit_test(a_forked_process_has_of_its_own_what_it_writes_to),
        cmocka_unit_test(shared_memory_is_not_private),
        cmocka_unit_test(written_memory_is_counted_as_private),
        cmocka_unit_test(the_machine_gives_no_more_than_it_has),
        cmocka_unit_test(the_cpu_has_what_the_compiler_finds),
#ifdef HR_FAILPOINTS
        cmocka_unit_test(a_refusal_of_the_kernel_is_returned),
#endif
    };
    return cmocka_run_group_tests_name("machine", tests, NULL, NULL);
}
