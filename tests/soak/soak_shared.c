/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../c/support/shared_scene.h"

#include <sys/time.h>

/*
 * Random kills of processes that lock one shared array and change it, until there were as many as asked for:
 * `soak_shared [KILLS [SEED]]`. Each row has two numbers, which are equal unless the last holder of its lock died, and
 * then the next one is told. No change is lost but those of the killed. What is drawn follows from the seed; when it
 * happens does not.
 */

enum { PROCESSES = 4, PAIRS = ROWS, ALARM_US_MAX = 20000 };

static const struct hr_shared_plan pairs = {.dtype = "<i8", .dimension_count = 2, .dimensions = {PAIRS + 1, 2}};

/* Shared with the processes. */
struct counts {
    _Atomic int64_t changes, additions, told, locks;
};
static struct counts *counts;

static uint64_t random_state;

static uint64_t draw(uint64_t below) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (random_state >> 33) % below;
}

/* A holder that is told of a death repairs what the dead one left in its rows. */
static void change_row(uint64_t row, const struct hr_shared_hold *hold) {
    volatile int64_t *pair = elements() + 2 * row;
    if (hold->dead_count) pair[1] = pair[0];
    check(pair[0] == pair[1]);
    pair[0]++;
    pair[1]++;
    atomic_fetch_add(&counts->changes, 1);
}

static void change_rows(void) {
    struct hr_shared_hold hold;
    uint64_t first = draw(PAIRS), count = 1 + draw(draw(8) ? 4 : PAIRS);
    if (count > PAIRS - first) count = PAIRS - first;
    bool is_all = draw(4) == 0;
    if (is_all) first = 0, count = PAIRS;
    must(lock_rows(first, is_all ? HR_SHARED_ALL : count, in_s(PATIENCE_S), &hold));
    atomic_fetch_add(&counts->locks, 1);
    atomic_fetch_add(&counts->told, hold.dead_count != 0);
    for (uint64_t row = first; row < first + count; row++) change_row(row, &hold);
    must(hr_shared_unlock(shared, &hold));
}

static void add_one(void) {
    const uint64_t element = 2 * PAIRS;
    const int64_t one = 1;
    must(hr_shared_add(shared, &element, 1, &one, 1, NULL));
    atomic_fetch_add(&counts->additions, 1);
}

static void be_killed_later(void) {
    struct itimerval timer = {.it_value.tv_usec = (suseconds_t)draw(ALARM_US_MAX) + 1};
    setitimer(ITIMER_REAL, &timer, NULL); /* its signal has no handler: it ends the process at any instruction */
}

#ifdef HR_FAILPOINTS
static void plan_a_kill(void) {
    static char plan[64];
    const struct hr__failpoint *point;
    do point = &hr__failpoints[draw(HR__POINT_COUNT)];
    while (point->side != HR__BY_SHARED);
    snprintf(plan, sizeof plan, "%s:%d:%d", point->name, SIGKILL, (int)draw(64) + 1);
    setenv("HEADRACE_STOP", plan, 1);
}
#else
static void plan_a_kill(void) {}
#endif

static void start_process(void) {
    uint64_t seed = draw(UINT32_MAX);
    if (fork()) return;
    die_with_test();
    random_state = seed;
    be_killed_later();
    if (draw(2)) plan_a_kill();
    for (;;) {
        if (draw(8))
            change_rows();
        else
            add_one();
    }
}

/* At most one change of each kill is not counted: it was made, and its process killed in front of the count. */
static void check_end(int64_t kills) {
    struct hr_shared_hold hold;
    int64_t sum = 0;
    lock_all(&hold);
    for (uint64_t row = 0; row < PAIRS; row++) {
        volatile int64_t *pair = elements() + 2 * row;
        check(hold.dead_count || pair[0] == pair[1]);
        sum += pair[0];
    }
    must(hr_shared_unlock(shared, &hold));
    int64_t counted = atomic_load(&counts->changes), added = atomic_load(&counts->additions);
    check(sum >= counted && sum <= counted + kills);
    check(elements()[2 * PAIRS] >= added && elements()[2 * PAIRS] <= added + kills);
}

int main(int argc, char **argv) {
    int64_t wanted = argc > 1 ? strtoll(argv[1], NULL, 10) : 1000, kills = 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    random_state = seed;
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    open_scene(NULL);
    must(try_to_open_array(&pairs, NULL));
    printf("shared: %lld kills, seed %llu\n", (long long)wanted, (unsigned long long)seed);
    for (int i = 0; i < PROCESSES; i++) start_process();
    for (; kills < wanted + PROCESSES; kills++) {
        int status;
        check(waitpid(-1, &status, 0) > 0);
        check(WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGALRM));
        if (kills < wanted) start_process();
    }
    check_end(kills);
    printf("shared: %lld kills; %lld locks, %lld told of a death; %lld changes of rows, %lld additions; none lost\n",
           (long long)kills, (long long)atomic_load(&counts->locks), (long long)atomic_load(&counts->told),
           (long long)atomic_load(&counts->changes), (long long)atomic_load(&counts->additions));
    close_shared_scene(NULL);
    return 0;
}
