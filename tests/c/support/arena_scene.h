/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_ARENA_SCENE_H
#define HR_TESTS_ARENA_SCENE_H

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <headrace/face/face.h>
#include <headrace/headrace.h>

#include "arena/arena.h"
#include "os/os.h"
#include "sanitized.h"

/*
 * An arena with worker processes for tests: a task's payload is an order for so many bytes, which the worker fills with
 * words that follow from the task's number.
 */

enum { CREW_MAX = 8, KIB = 1024, MIB = 1024 * 1024, SKIP_CODE = 77, TOO_BIG = 100 };

/* An event that has not come by then does not come, however busy the machine is. The time that something may take is
 * another thing: such bounds have names of their own, and are compared with the quickest of a few TRIES. */
enum { PATIENCE_S = 60, TRIES = 5 };

struct order {
    uint64_t bytes;
};

struct scene {
    hr_arena *arena;
    uint32_t worker_count;
    pid_t pids[CREW_MAX];
    int pidfds[CREW_MAX];
};

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline int64_t in_s(int seconds) {
    return now_ns() + seconds * INT64_C(1000000000);
}

static pid_t test_pid;
__attribute__((constructor)) static inline void note_test_pid(void) {
    test_pid = getpid();
}

/* Checks a condition in the process of the test or in its children, in which cmocka cannot jump out of the test. */
#define check(condition)                                                                                               \
    do {                                                                                                               \
        if (condition) break;                                                                                          \
        fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, hr_error_message());                       \
        if (getpid() != test_pid) _exit(99);                                                                           \
        fail();                                                                                                        \
    } while (0)

/* A call that must succeed. */
#define must(call) check((call) >= 0)

/* ---- what is in a batch ---- */

static inline uint64_t word_of(uint64_t task, uint64_t i) {
    return (task + 1) * UINT64_C(0x9E3779B97F4A7C15) + i;
}

static inline void fill(void *data, uint64_t bytes, uint64_t task) {
    uint64_t *words = data;
    for (uint64_t i = 0; i < bytes / 8; i++) words[i] = word_of(task, i);
}

static inline bool is_filled(const void *data, uint64_t bytes, uint64_t task) {
    const uint64_t *words = data;
    for (uint64_t i = 0; i < bytes / 8; i++)
        if (words[i] != word_of(task, i)) return false;
    return true;
}

/* ---- a worker ---- */

/* Makes one batch. A batch that is refused is published with status TOO_BIG. Returns a code of hr_port_take's. */
static inline int work_once(hr_port *port, int64_t deadline_ns) {
    struct hr_task task;
    void *data;
    int r = hr_port_take(port, deadline_ns, &task);
    if (r < 0) return r;
    uint64_t bytes = ((const struct order *)task.payload)->bytes;
    r = hr_port_reserve(port, bytes, &data);
    if (r == HR_E_TOO_BIG) {
        r = hr_port_reserve(port, sizeof bytes, &data);
        if (r < 0) return r;
        memcpy(data, &bytes, sizeof bytes);
        return hr_port_publish(port, TOO_BIG, sizeof bytes);
    }
    if (r < 0) return r;
    fill(data, bytes, task.task);
    return hr_port_publish(port, HR_STATUS_BATCH, bytes);
}

/* The life of a worker process: 0 when the trainer stopped the arena. */
static inline _Noreturn void be_worker(struct hr_worker_fds *fds) {
    hr_port *port;
    int r = hr_port_open(fds, &port);
    while (r == 0) r = work_once(port, HR_NO_DEADLINE);
    if (r != HR_E_CLOSED) fprintf(stderr, "worker: %d, %s\n", r, hr_error_message());
    hr_port_close(port);
    _exit(r == HR_E_CLOSED ? 0 : 98);
}

/* ---- the crew ---- */

static inline void watch(struct scene *scene, uint32_t worker, pid_t pid) {
    scene->pids[worker] = pid;
    must(hr__pidfd(pid, &scene->pidfds[worker]));
    must(hr__arena_watch(scene->arena, worker, scene->pidfds[worker]));
}

/* Starts worker `worker` with `stop` as its $HEADRACE_STOP if that is not NULL, running `life`. */
static inline void start_as(struct scene *scene, uint32_t worker, const char *stop,
                            void (*life)(struct hr_worker_fds *)) {
    struct hr_worker_fds fds;
    must(hr__arena_open_worker_fds(scene->arena, worker, &fds));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (stop) setenv("HEADRACE_STOP", stop, 1);
        life(&fds);
        _exit(0);
    }
    hr_worker_fds_close(&fds);
    watch(scene, worker, pid);
}

static inline void start(struct scene *scene, uint32_t worker) {
    start_as(scene, worker, NULL, be_worker);
}

/* Has the process behind the pidfd ended by then? */
static inline bool has_ended(int pidfd, int64_t deadline_ns) {
    struct pollfd poller = {.fd = pidfd, .events = POLLIN};
    int64_t left_ms = (deadline_ns - now_ns()) / 1000000;
    return poll(&poller, 1, left_ms > 0 ? (int)left_ms : 0) == 1;
}

/* For a child that is not a worker: a failed test leaves no process behind. */
static inline void die_with_test(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != test_pid) _exit(99);
}

/* Waits for a child of ours and returns its wait status; kills it when it does not end by itself. */
static inline int reap_pid(pid_t pid) {
    int status = -1, pidfd = -1;
    must(hr__pidfd(pid, &pidfd));
    if (!has_ended(pidfd, in_s(PATIENCE_S))) {
        print_error("process %d does not end\n", (int)pid);
        kill(pid, SIGKILL);
    }
    waitpid(pid, &status, 0);
    close(pidfd);
    return status;
}

static inline int reap(struct scene *scene, uint32_t worker) {
    int status = reap_pid(scene->pids[worker]);
    if (scene->arena) hr__arena_watch(scene->arena, worker, -1);
    close(scene->pidfds[worker]);
    scene->pids[worker] = 0;
    return status;
}

static inline void assert_child_succeeds(pid_t pid) {
    int status = reap_pid(pid);
    if (status != 0) print_error("child: wait status 0x%x\n", (unsigned)status);
    check(status == 0);
}

static inline void set_scene(struct scene *scene, uint32_t workers, uint32_t prefetch, uint64_t limit_bytes) {
    struct hr__arena_options options = {
        .worker_count = workers, .prefetch_count = prefetch, .limit_bytes = limit_bytes};
    *scene = (struct scene){.worker_count = workers};
    must(hr__arena_open(&options, &scene->arena));
}

static inline void set_scene_with_crew(struct scene *scene, uint32_t workers, uint32_t prefetch, uint64_t limit_bytes) {
    set_scene(scene, workers, prefetch, limit_bytes);
    for (uint32_t i = 0; i < workers; i++) start(scene, i);
}

/* Stops, waits for the crew, closes. Workers that were stopped orderly must have ended so. */
static inline void clear_scene(struct scene *scene) {
    hr_arena_stop(scene->arena);
    for (uint32_t i = 0; i < scene->worker_count; i++) {
        if (!scene->pids[i]) continue;
        int status = reap_pid(scene->pids[i]);
        if (status != 0) print_error("worker %u: wait status 0x%x\n", i, (unsigned)status);
        check(status == 0);
        close(scene->pidfds[i]);
    }
    scene->arena = hr_arena_close(scene->arena);
}

static inline hr_port *open_port_here(struct scene *scene, uint32_t worker) {
    struct hr_worker_fds fds;
    hr_port *port;
    must(hr__arena_open_worker_fds(scene->arena, worker, &fds));
    must(hr_port_open(&fds, &port));
    return port;
}

/* ---- the trainer ---- */

static inline int order(struct scene *scene, uint32_t worker, uint64_t task, uint64_t bytes) {
    struct order wanted = {bytes};
    return hr__arena_grant(scene->arena, worker, 0, task, &wanted, sizeof wanted);
}

/* Receives a batch and checks every word of it. */
static inline struct hr_delivery *expect(struct scene *scene, uint32_t worker, uint64_t task, uint64_t bytes) {
    struct hr_delivery *delivery = NULL;
    must(hr__arena_receive(scene->arena, worker, in_s(PATIENCE_S), &delivery));
    check(delivery->status == HR_STATUS_BATCH);
    check(delivery->task == task);
    check(delivery->bytes == bytes);
    check(is_filled(delivery->data, bytes, task));
    return delivery;
}

/* A batch of worker 0, whose port is in this process, from order to delivery. */
static inline struct hr_delivery *hand_over(struct scene *scene, hr_port *port, uint64_t task, uint64_t bytes) {
    must(order(scene, 0, task, bytes));
    must(work_once(port, in_s(PATIENCE_S)));
    return expect(scene, 0, task, bytes);
}

static inline hr_lease *lease_all(struct hr_delivery *delivery) {
    hr_lease *lease = NULL;
    must(hr_delivery_lease(delivery, 0, delivery->bytes, &lease));
    return lease;
}

static inline struct hr_arena_report report_of(struct scene *scene) {
    struct hr_arena_report report;
    hr_arena_report(scene->arena, &report);
    return report;
}

/* ---- what can be observed from outside ---- */

static inline int count_descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        struct stat info;
        count += fstat(fd, &info) == 0;
    }
    return count;
}

/* Bytes of this process's address space. */
static inline uint64_t mapped_bytes(void) {
    char line[64];
    FILE *file = fopen("/proc/self/statm", "r");
    check(file && fgets(line, sizeof line, file));
    fclose(file);
    return strtoull(line, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Bytes of memory that a shared file occupies. */
static inline uint64_t bytes_of(int memory_fd) {
    struct stat info;
    check(fstat(memory_fd, &info) == 0);
    return (uint64_t)info.st_blocks * 512;
}

#endif
