/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/cache_scene.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mount.h>

#include <headrace/cache_shared.h>

/* The cache in other surroundings: two PID namespaces that share only the folder, a read-only mount, file systems that
 * are too small, a cgroup with a limit, another start of the machine. Most of it needs the rights of root. */

/* Shared with the processes. */
struct stage {
    _Atomic uint32_t ready, gate;
};
static struct stage *stage;

static int open_stage(void **state) {
    memset(stage, 0, sizeof *stage);
    return open_scene(state);
}

/* Runs a part of a test in a process of its own. Exit code 77: it has not the rights. */
static void run_apart(void (*run)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        die_with_test();
        run();
        _exit(0);
    }
    int status = reap_pid(pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIP_CODE) {
        print_message("skipped: it needs the rights to make namespaces or cgroups\n");
        skip();
    }
    check(status == 0);
}

static void need_right(int result) {
    if (result < 0) _exit(SKIP_CODE);
}

/* ---- PID namespaces ---- */

static void build_as_process_1(void) {
    struct hr_cache_request request = request_for("features", "s");
    check(getpid() == 1);
    hr_cache_build *build = begin(&request);
    must(hr_cache_build_reserve(build, OBJECT_BYTES, CHUNK, "meta"));
    must(write_chunk(build, 0, 1));
    atomic_store(&stage->ready, 1);
    await(&stage->gate, 1);
    raise(SIGKILL); /* which a process 1 ignores: it ends by its exit */
    _exit(0);
}

/* The builder is process 1 of its own namespace, and so is the next one of another. */
static void build_and_die_in_a_namespace(void) {
    need_right(unshare(CLONE_NEWPID));
    pid_t pid = fork();
    if (pid == 0) build_as_process_1();
    await(&stage->ready, 1);
    struct hr_cache_request request = request_for("features", "s");
    struct hr_cache_builder builder;
    hr_cache_ticket *ticket;
    hr_cached *cached;
    hr_cache_build *build;
    must(hr_cache_ask(cache, &request, &ticket));
    check(hr_cache_wait(ticket, now_ns(), &cached, &build) == -ETIMEDOUT);
    hr_cache_ticket_look(ticket, &builder);
    check(builder.is_building && builder.pid == 1 && !builder.is_visible && !builder.is_stopped);
    atomic_store(&stage->gate, 1);
    check(waitpid(pid, NULL, 0) == pid);
    check(hr_cache_wait(ticket, in_s(PATIENCE_S), &cached, &build) == HR_CACHE_BUILD);
    check(write_object(build, 1) == CHUNKS - 1);
    must(hr_cache_build_finish(build, NULL, &cached));
    check(has_object(cached, 1));
}

static void equal_pids_in_two_namespaces_do_not_matter(void **state) {
    (void)state;
    run_apart(build_and_die_in_a_namespace);
}

/* ---- mounts ---- */

static void mount_apart(void) {
    need_right(unshare(CLONE_NEWNS));
    need_right(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
}

static void attach_on_a_read_only_mount(void) {
    hr_cached *cached;
    hr_cache *other;
    struct hr_cache_request request = request_for("missing", NULL);
    hr_cache_ticket *ticket;
    hr_cache_build *build;
    mount_apart();
    need_right(mount(root, root, NULL, MS_BIND, NULL));
    need_right(mount(NULL, root, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
    must(hr_cache_open(root, &other));
    must(hr_cache_attach(other, "features", "0", &cached));
    check(has_object(cached, 1));
    must(hr_cached_verify(cached));
    hr_cached_detach(cached);
    must(hr_cache_ask(other, &request, &ticket));
    check(hr_cache_wait(ticket, 0, &cached, &build) == -EROFS);
    check(strstr(hr_error_message(), "Read-only file system") != NULL);
    hr_cache_ticket_free(ticket);
    hr_cache_close(other);
}

static void a_read_only_cache_can_be_read(void **state) {
    struct hr_cache_request request = request_for("features", NULL);
    (void)state;
    hr_cached_detach(put_object(&request, 1));
    run_apart(attach_on_a_read_only_mount);
}

static void build_on_a_small_file_system(void) {
    struct hr_cache_request request = request_for("large", NULL);
    hr_cache *small;
    hr_cache_ticket *ticket;
    hr_cached *cached;
    hr_cache_build *build;
    mount_apart();
    need_right(mount("none", root, "tmpfs", 0, "size=1m,mode=700"));
    must(hr_cache_open(root, &small));
    must(hr_cache_ask(small, &request, &ticket));
    check(hr_cache_wait(ticket, in_s(PATIENCE_S), &cached, &build) == HR_CACHE_BUILD);
    assert_refused(hr_cache_build_reserve(build, 64 << 20, 0, ""), -ENOSPC, "free in the file system 0.00 GiB");
    hr_cache_build_fail(build, "full", 4, 0);
    hr_cache_ticket_free(ticket);
    hr_cache_close(small);
}

static void a_file_system_that_is_too_small_is_named(void **state) {
    (void)state;
    run_apart(build_on_a_small_file_system);
}

/* ---- shared arrays ---- */

static int make_array(hr_cache *where, uint64_t bytes, hr_shared **ret_shared) {
    struct hr_cache_request request = request_for("bytes", NULL);
    struct hr_shared_plan plan = {.dtype = "|u1", .dimension_count = 1, .dimensions = {bytes}};
    hr_cache_ticket *ticket;
    hr_cached *cached = NULL;
    hr_cache_build *build = NULL;
    request.format = HR_SHARED_FORMAT;
    must(hr_cache_ask(where, &request, &ticket));
    check(hr_cache_wait(ticket, in_s(PATIENCE_S), &cached, &build) == HR_CACHE_BUILD);
    int r = hr_shared_build(build, &plan, NULL);
    if (r == 0) r = hr_cache_build_finish(build, NULL, &cached);
    if (r < 0) hr_cache_build_abandon(build);
    hr_cache_ticket_free(ticket);
    return r < 0 ? r : hr_shared_open(cached, ret_shared);
}

/* Fills the file system, and then writes to each page of the array. */
static void write_array_on_a_full_file_system(void) {
    enum { BYTES = 256 << 10 };
    char path[128];
    static char rest[4096];
    hr_cache *small;
    hr_shared *shared = NULL;
    struct hr_shared_info info;
    mount_apart();
    need_right(mount("none", root, "tmpfs", 0, "size=1m,mode=700"));
    must(hr_cache_open(root, &small));
    assert_refused(make_array(small, 64 << 20, &shared), -ENOSPC, "free in the file system 0.00 GiB");
    must(make_array(small, BYTES, &shared));
    snprintf(path, sizeof path, "%s/rest", root);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    while (write(fd, rest, sizeof rest) > 0) continue;
    check(errno == ENOSPC);
    hr_shared_look(shared, &info);
    memset(info.data, 7, BYTES);
}

static void a_full_file_system_does_not_end_a_writer(void **state) {
    (void)state;
    run_apart(write_array_on_a_full_file_system);
}

static void open_array_on_a_read_only_mount(void) {
    hr_shared *shared = NULL;
    hr_cached *cached = NULL;
    must(make_array(cache, 100, &shared));
    hr_shared_close(shared);
    mount_apart();
    need_right(mount(root, root, NULL, MS_BIND, NULL));
    need_right(mount(NULL, root, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
    must(hr_cache_attach(cache, "bytes", "0", &cached));
    assert_refused(hr_shared_open(cached, &shared), -EROFS, "to write");
}

static void an_array_on_a_read_only_mount_is_refused(void **state) {
    (void)state;
    run_apart(open_array_on_a_read_only_mount);
}

static void open_without_inodes(void) {
    hr_cache *full;
    mount_apart();
    need_right(mount("none", root, "tmpfs", 0, "nr_inodes=2,mode=700"));
    int r = hr_cache_open(root, &full);
    check(r == -ENOSPC && strstr(hr_error_message(), "cannot make the folder") != NULL);
}

static void a_file_system_without_inodes_is_named(void **state) {
    (void)state;
    run_apart(open_without_inodes);
}

/* ---- a cgroup ---- */

static int write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0) return -1;
    ssize_t count = write(fd, text, strlen(text));
    close(fd);
    return count < 0 ? -1 : 0;
}

/* The kernel would kill this process if it touched 64 MiB of shared memory here. */
static void build_in_a_small_cgroup(void) {
    static const char *const kinds[][2] = {{"/sys/fs/cgroup", "memory.max"},
                                           {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}};
    struct hr_cache_request request = request_for("large", NULL);
    char folder[128], path[192], own[32];
    bool is_limited = false;
    hr_cache_build *build = begin(&request);
    for (int i = 0; i < 2 && !is_limited; i++) {
        snprintf(folder, sizeof folder, "%s/hrc-test-%d", kinds[i][0], (int)getppid());
        mkdir(folder, 0700);
        snprintf(path, sizeof path, "%s/%s", folder, kinds[i][1]);
        if (write_file(path, "33554432") < 0) {
            rmdir(folder);
            continue;
        }
        snprintf(own, sizeof own, "%d", (int)getpid());
        snprintf(path, sizeof path, "%s/cgroup.procs", folder);
        is_limited = write_file(path, own) == 0;
        if (!is_limited) rmdir(folder);
    }
    need_right(is_limited ? 0 : -1);
    int r = hr_cache_build_reserve(build, 64 << 20, 0, "");
    check(r == -ENOSPC && strstr(hr_error_message(), "left in the cgroup") != NULL);
    hr_cache_build_fail(build, "small", 5, 0);
    snprintf(path, sizeof path, "%s/../cgroup.procs", folder);
    write_file(path, own);
    rmdir(folder);
}

static void a_cgroup_that_is_too_small_gives_an_error(void **state) {
    (void)state;
    run_apart(build_in_a_small_cgroup);
}

/* ---- another start of the machine ---- */

#ifdef HR_FAILPOINTS
static int open_on_disk(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/hrc-test-XXXXXX");
    assert_non_null(mkdtemp(root));
    must(hr_cache_open(root, &cache));
    return 0;
}

static void put_boot_id(const char *id) {
    char path[192];
    snprintf(path, sizeof path, "mkdir -p %s/m/proc/sys/kernel/random", root);
    check(system(path) == 0);
    snprintf(path, sizeof path, "%s/m/proc/sys/kernel/random/boot_id", root);
    FILE *file = fopen(path, "w");
    check(file && fprintf(file, "%s\n", id) > 0 && fclose(file) == 0);
    snprintf(path, sizeof path, "%s/m", root);
    setenv("HEADRACE_ROOT", path, 1);
}

/* On a disk, files outlive the machine's end: those of keep="boot" must not, and unfinished builds are continued. */
static void objects_of_an_earlier_start_are_gone(void **state) {
    struct hr_cache_request boot = request_for("boot", NULL), disk = request_for("disk", NULL),
                            rows = request_for("rows", "s");
    hr_cached *cached;
    hr_cache_build *build;
    struct hr__file_system system;
    (void)state;
    must(hr__file_system_look(root, &system));
    if (system.is_memory) skip(); /* /tmp is memory here, which does not outlive the machine's end */
    put_boot_id("one");
    hr_cached_detach(put_object(&boot, 1));
    disk.keep = HR_CACHE_KEEP_JOB;
    hr_cached *held = put_object(&disk, 2);
    build = begin(&rows);
    must(hr_cache_build_reserve(build, OBJECT_BYTES, CHUNK, "meta"));
    must(write_chunk(build, 2, 1));
    hr_cache_build_abandon(build);
    put_boot_id("two");
    check(hr_cache_attach(cache, "boot", "0", &cached) == -ENOENT);
    must(hr_cache_attach(cache, "disk", "0", &cached));
    hr_cached_detach(cached);
    hr_cached_detach(held);
    build = begin(&rows);
    check(write_object(build, 1) == CHUNKS - 1);
    hr_cache_build_abandon(build);
    unsetenv("HEADRACE_ROOT");
}
#endif

#define T(test) cmocka_unit_test_setup_teardown(test, open_stage, close_scene)

int main(void) {
    stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        T(equal_pids_in_two_namespaces_do_not_matter),
        T(a_read_only_cache_can_be_read),
        T(a_full_file_system_does_not_end_a_writer),
        T(an_array_on_a_read_only_mount_is_refused),
        T(a_file_system_that_is_too_small_is_named),
        T(a_file_system_without_inodes_is_named),
        T(a_cgroup_that_is_too_small_gives_an_error),
#ifdef HR_FAILPOINTS
        cmocka_unit_test_setup_teardown(objects_of_an_earlier_start_are_gone, open_on_disk, close_scene),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
