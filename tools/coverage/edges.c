/* SPDX-License-Identifier: Apache-2.0
 * Records which edges of instrumented code each test reaches, for tools/choose_tests.py. clang's
 * -fsanitize-coverage=trace-pc-guard,pc-table calls these functions; tools/coverage/build.py compiles this file.
 *
 * HEADRACE_EDGES/MODULE.pcs       the address of each edge, relative to its module, as uint64
 * HEADRACE_EDGES/MODULE/TEST      a byte for each edge: 1 if a process of this test reached it
 *
 * The processes of a test map one file, so what a process reached is kept even if it is killed. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uint8_t *reached;
static size_t edge_count;
static char module[256];
static uintptr_t module_base;

static void name_module(const void *address) {
    Dl_info info;
    if (!dladdr(address, &info)) abort();
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(module, sizeof module, "%s", slash ? slash + 1 : info.dli_fname);
    module_base = (uintptr_t)info.dli_fbase;
}

/* Opens the file of a test. Returns -1 if this process cannot open files, which is what some tests are about. */
static int open_file(const char *folder, const char *test) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, module);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s", folder, module, test);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0 && ftruncate(fd, (off_t)edge_count) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Notes edges for the test that HEADRACE_TEST names from now on. The plugin calls it before each test. The file takes
 * the place of that of the test before, because other threads may write there at this moment. */
__attribute__((visibility("default"))) void headrace_follow_test(void) {
    const char *folder = getenv("HEADRACE_EDGES"), *test = getenv("HEADRACE_TEST");
    if (!edge_count) return;
    int fd = folder && test ? open_file(folder, test) : -1;
    int flags = (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | (reached ? MAP_FIXED : 0);
    void *map = mmap(reached, edge_count, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (fd >= 0) close(fd);
    if (map == MAP_FAILED) abort();
    reached = map;
}

/* Called once for each file of a module, all of which have the same range. */
__attribute__((visibility("default"))) void __sanitizer_cov_trace_pc_guard_init(uint32_t *start, uint32_t *stop) {
    if (start == stop || *start) return;
    if (edge_count) abort(); /* a process has one instrumented module: the extension, the program or a C test */
    edge_count = (size_t)(stop - start);
    for (uint32_t i = 0; i < edge_count; i++) start[i] = i + 1;
    name_module(start);
    headrace_follow_test();
}

__attribute__((visibility("default"))) void __sanitizer_cov_trace_pc_guard(uint32_t *guard) {
    if (*guard) reached[*guard - 1] = 1;
}

/* The table has two words for each edge: its address, and flags. */
__attribute__((visibility("default"))) void __sanitizer_cov_pcs_init(const uintptr_t *start, const uintptr_t *stop) {
    const char *folder = getenv("HEADRACE_EDGES");
    static int is_written;
    if (!folder || is_written++) return;
    char path[4096], temporary[4200];
    snprintf(path, sizeof path, "%s/%s.pcs", folder, module);
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    if (access(path, F_OK) == 0) return;
    FILE *file = fopen(temporary, "w");
    for (; file && start < stop; start += 2) {
        uint64_t address = *start - module_base;
        fwrite(&address, sizeof address, 1, file);
    }
    if (file && fclose(file) == 0) rename(temporary, path);
}
