/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_CACHE_SCENE_H
#define HR_TESTS_CACHE_SCENE_H

#include "arena_scene.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdatomic.h>

#include "os/os.h"

/* A cache in a folder of its own, and objects whose bytes follow from a number. */

enum { OBJECT_BYTES = 10000, CHUNK = 4096, CHUNKS = 3 };

static char root[64];
static hr_cache *cache;

static inline int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

static inline void remove_root(void) {
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline int open_scene(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/dev/shm/hrc-test-XXXXXX");
    assert_non_null(mkdtemp(root));
    must(hr_cache_open(root, &cache));
    return 0;
}

static inline int close_scene(void **state) {
    (void)state;
    cache = hr_cache_close(cache);
    unsetenv("HEADRACE_FAIL");
    remove_root();
    return 0;
}

static inline struct hr_cache_request request_for(const char *name, const char *stamp) {
    return (struct hr_cache_request){
        .name = name, .version = "0", .stamp = stamp, .format = "raw", .keep = HR_CACHE_KEEP_BOOT};
}

/* Asks until the object is attached or to be built. */
static inline int ask(const struct hr_cache_request *request, hr_cached **ret_cached, hr_cache_build **ret_build) {
    hr_cache_ticket *ticket;
    int r = hr_cache_ask(cache, request, &ticket);
    if (r < 0) return r;
    r = hr_cache_wait(ticket, in_s(PATIENCE_S), ret_cached, ret_build);
    hr_cache_ticket_free(ticket);
    return r;
}

static inline hr_cache_build *begin(const struct hr_cache_request *request) {
    hr_cached *cached;
    hr_cache_build *build = NULL;
    check(ask(request, &cached, &build) == HR_CACHE_BUILD);
    return build;
}

static inline void fill_bytes(unsigned char *bytes, uint64_t count, uint64_t first, uint64_t number) {
    for (uint64_t i = 0; i < count; i++) bytes[i] = (unsigned char)((first + i) * 7 + (first + i) / 251 + number);
}

static inline int write_chunk(hr_cache_build *build, uint64_t chunk, uint64_t number) {
    unsigned char bytes[CHUNK];
    uint64_t begins = chunk * CHUNK, count = begins + CHUNK < OBJECT_BYTES ? CHUNK : OBJECT_BYTES - begins;
    fill_bytes(bytes, count, begins, number);
    int r = hr_cache_build_write(build, begins, bytes, count);
    return r < 0 ? r : hr_cache_build_mark(build, chunk);
}

/* Reserves, and writes what is missing. Returns the number of chunks that it wrote, or an error. */
static inline int write_object(hr_cache_build *build, uint64_t number) {
    int count = 0;
    int r = hr_cache_build_reserve(build, OBJECT_BYTES, CHUNK, "meta");
    for (uint64_t i = 0; r == 0 && i < hr_cache_build_chunk_count(build); i++) {
        if (hr_cache_build_has(build, i)) continue;
        r = write_chunk(build, i, number);
        count++;
    }
    return r < 0 ? r : count;
}

static inline hr_cached *put_object(const struct hr_cache_request *request, uint64_t number) {
    hr_cached *cached = NULL;
    hr_cache_build *build = begin(request);
    must(write_object(build, number));
    must(hr_cache_build_finish(build, NULL, &cached));
    return cached;
}

static inline bool has_object(const hr_cached *cached, uint64_t number) {
    unsigned char bytes[OBJECT_BYTES];
    struct hr_cached_info info;
    hr_cached_look(cached, &info);
    fill_bytes(bytes, OBJECT_BYTES, 0, number);
    return info.bytes == OBJECT_BYTES && memcmp(info.data, bytes, OBJECT_BYTES) == 0;
}

/* The number of entries in a folder of the cache. */
static inline int count_in(const char *part) {
    char path[128];
    int count = 0;
    snprintf(path, sizeof path, "%s/v1/%s", root, part);
    DIR *folder = opendir(path);
    check(folder != NULL);
    for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

/* Asserts that a call fails with a code, and a message that has the text. */
#define assert_refused(call, code, text)                                                                               \
    do {                                                                                                               \
        check((call) == (code));                                                                                       \
        check(strstr(hr_error_message(), text) != NULL);                                                               \
    } while (0)

/* Forks a child that stops or dies as `plan`, a value of HEADRACE_STOP, says; NULL: it does not. */
static inline pid_t fork_with(const char *plan) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    die_with_test();
    if (plan) setenv("HEADRACE_STOP", plan, 1);
    return 0;
}

static inline pid_t launch(void (*run)(void), const char *plan) {
    pid_t pid = fork_with(plan);
    if (pid) return pid;
    run();
    _exit(0);
}

/* Waits until other processes have raised a value that all share. */
static inline void await(_Atomic uint32_t *value, uint32_t wanted) {
    int64_t deadline = in_s(PATIENCE_S);
    while (atomic_load(value) < wanted) {
        check(now_ns() < deadline);
        poll(NULL, 0, 1);
    }
}

#endif
