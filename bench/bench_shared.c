/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

/* Measures shared arrays: their locks, free and contended, their atomic changes, and how soon a lock outlives its
 * holder; next to pthread's robust mutex and to fcntl locks. Lines: "name: value unit (ratio x)". */

enum { REPETITIONS = 101, ROUNDS = 10000, PROCESSES = 4, EACH = 100000, KILLS = 1000, ROWS = 1024 };

static hr_shared *shared;

/* Shared with the processes. */
struct stage {
    pthread_mutex_t mutex;
    _Atomic uint32_t is_held, is_awaited;
    _Atomic int64_t killed_ns;
};
static struct stage *stage;

static char root[] = "/dev/shm/hrc-bench-XXXXXX";

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

static void remove_root(void) {
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void open_array(void) {
    struct hr_cache_request request = {
        .name = "counters", .version = "0", .format = HR_SHARED_FORMAT, .keep = HR_CACHE_KEEP_JOB};
    struct hr_shared_plan plan = {.dtype = "<i8", .dimension_count = 1, .dimensions = {ROWS}};
    hr_cache *cache;
    hr_cache_ticket *ticket;
    hr_cache_build *build = NULL;
    hr_cached *cached = NULL;
    if (!mkdtemp(root)) exit(1);
    atexit(remove_root); /* the processes of a measurement end by _exit or a signal */
    check(hr_cache_open(root, &cache));
    check(hr_cache_ask(cache, &request, &ticket));
    check(hr_cache_wait(ticket, HR_NO_DEADLINE, &cached, &build));
    check(hr_shared_build(build, &plan, NULL));
    check(hr_cache_build_finish(build, NULL, &cached));
    check(hr_shared_open(cached, &shared));
    check(hr_cache_remove(cache, "counters", "0", 1)); /* it goes with this program */
}

static void make_mutex(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&stage->mutex, &attributes);
}

/* ---- one process ---- */

static void lock_all(void) {
    struct hr_shared_hold hold;
    check(hr_shared_lock(shared, 0, HR_SHARED_ALL, NULL, &hold));
    check(hr_shared_unlock(shared, &hold));
}

static void lock_row(void) {
    struct hr_shared_hold hold;
    check(hr_shared_lock(shared, 5, 1, NULL, &hold));
    check(hr_shared_unlock(shared, &hold));
}

static void lock_mutex(void) {
    pthread_mutex_lock(&stage->mutex);
    pthread_mutex_unlock(&stage->mutex);
}

static void fetch_add(void) {
    const uint64_t element = 3;
    const int64_t one = 1;
    int64_t before;
    check(hr_shared_add(shared, &element, 1, &one, 1, &before));
}

static double median_ns(void (*run)(void), int rounds) {
    double values[REPETITIONS];
    for (int i = 0; i < REPETITIONS; i++) {
        int64_t start = now_ns();
        for (int round = 0; round < rounds; round++) run();
        values[i] = (double)(now_ns() - start) / rounds;
    }
    return median(values, REPETITIONS);
}

/* ---- several processes ---- */

static int64_t *element(uint64_t number) {
    struct hr_shared_info info;
    hr_shared_look(shared, &info);
    return (int64_t *)info.data + number;
}

static void count_with_lock(void) {
    struct hr_shared_wait wait = {.deadline_ns = HR_NO_DEADLINE};
    struct hr_shared_hold hold;
    for (int i = 0; i < EACH; i++) {
        check(hr_shared_lock(shared, 0, HR_SHARED_ALL, &wait, &hold));
        ++*element(0);
        check(hr_shared_unlock(shared, &hold));
    }
}

static void count_with_mutex(void) {
    for (int i = 0; i < EACH; i++) {
        pthread_mutex_lock(&stage->mutex);
        ++*element(1);
        pthread_mutex_unlock(&stage->mutex);
    }
}

static void count_without_lock(void) {
    for (int i = 0; i < EACH; i++) fetch_add();
}

static double together_s(void (*run)(void)) {
    int64_t start = now_ns();
    for (int i = 0; i < PROCESSES; i++)
        if (fork() == 0) {
            run();
            _exit(0);
        }
    for (int i = 0, status; i < PROCESSES; i++)
        if (wait(&status) < 0 || status != 0) exit(1);
    return (double)(now_ns() - start) / 1e9;
}

/* ---- deaths ---- */

static void hold_and_die(void (*lock)(void)) {
    lock();
    atomic_store(&stage->is_held, 1);
    while (!atomic_load(&stage->is_awaited)) usleep(100);
    usleep(200); /* so that the other process sleeps */
    atomic_store(&stage->killed_ns, now_ns());
    raise(SIGKILL);
}

static void hold_array(void) {
    struct hr_shared_hold hold;
    check(hr_shared_lock(shared, 0, HR_SHARED_ALL, NULL, &hold));
}

static void hold_mutex(void) {
    pthread_mutex_lock(&stage->mutex);
}

static void outlive_array(void) {
    struct hr_shared_wait wait = {.deadline_ns = HR_NO_DEADLINE};
    struct hr_shared_hold hold;
    check(hr_shared_lock(shared, 0, HR_SHARED_ALL, &wait, &hold));
    if (hold.dead_count != 1) exit(1);
    check(hr_shared_unlock(shared, &hold));
}

static void outlive_mutex(void) {
    if (pthread_mutex_lock(&stage->mutex) == 0) exit(1);
    pthread_mutex_consistent(&stage->mutex);
    pthread_mutex_unlock(&stage->mutex);
}

static void measure_deaths(const char *name, void (*hold)(void), void (*outlive)(void)) {
    static double times_us[KILLS];
    for (int i = 0; i < KILLS; i++) {
        atomic_store(&stage->is_held, 0);
        atomic_store(&stage->is_awaited, 0);
        pid_t pid = fork();
        if (pid == 0) hold_and_die(hold);
        while (!atomic_load(&stage->is_held)) usleep(100);
        atomic_store(&stage->is_awaited, 1);
        outlive();
        times_us[i] = (double)(now_ns() - atomic_load(&stage->killed_ns)) / 1e3;
        waitpid(pid, NULL, 0);
    }
    double middle = median(times_us, KILLS);
    printf(
        "from the kill of a holder to the next one, %s: %.0f us (median of %d), %.0f us (99 %%), %.0f us (longest)\n",
        name, middle, KILLS, times_us[KILLS * 99 / 100], times_us[KILLS - 1]);
}

int main(void) {
    stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    open_array();
    make_mutex();
    double own = median_ns(lock_all, ROUNDS), mutex = median_ns(lock_mutex, ROUNDS);
    printf("lock and unlock, free: %.1f ns (%.2f x pthread's robust mutex)\n", own, own / mutex);
    printf("pthread's robust mutex, free: %.1f ns\n", mutex);
    printf("fetch_add of an element: %.1f ns\n", median_ns(fetch_add, ROUNDS));
    double counted = together_s(count_with_lock), reference = together_s(count_with_mutex);
    bool is_exact = *element(0) == PROCESSES * EACH;
    printf("%d processes, %d increments each with the lock: %.3f s (%.2f x pthread's robust mutex), %s\n", PROCESSES,
           EACH, counted, counted / reference, is_exact ? "exact" : "WRONG");
    printf("%d processes, %d increments each without a lock: %.3f s\n", PROCESSES, EACH,
           together_s(count_without_lock));
    measure_deaths("shared array", hold_array, outlive_array);
    measure_deaths("pthread's robust mutex", hold_mutex, outlive_mutex);
    printf("lock and unlock of one row: %.1f ns\n", median_ns(lock_row, ROUNDS));
    printf("lock and unlock of all rows, after rows were locked: %.1f ns\n", median_ns(lock_all, ROUNDS / 100));
    return is_exact ? 0 : 1;
}
