/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../c/support/product.h"

#include <sys/prctl.h>
#include <sys/time.h>

#include "os/os.h"

/*
 * Random kills of workers and trainers, at points and at instants, until there were as many as asked for: every epoch
 * stays exact, and nothing is left behind. `soak_kills [KILLS [SEED]]`. What is drawn follows from the seed; when it
 * happens does not.
 */

enum { ROUND_ITEMS_MAX = 600, TRAINER_SHARE = 5, GONE_WITHIN_MS = 1000, ALARM_US_MAX = 4000, TRAINER_US_MAX = 20000 };

/* ---- chance ---- */

static uint64_t random_state;

static uint64_t draw(uint64_t below) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (random_state >> 33) % below;
}

static enum hr__point draw_point(enum hr__side side) {
    for (;;) {
        enum hr__point point = (enum hr__point)draw(HR__POINT_COUNT);
        if (hr__failpoints[point].side & side) return point;
    }
}

static const char *draw_plan(enum hr__side side, uint64_t passages) {
    static char plan[64];
    snprintf(plan, sizeof plan, "%s:%d:%d", hr__failpoints[draw_point(side)].name, SIGKILL, (int)draw(passages) + 1);
    return plan;
}

/* ---- what was measured ---- */

struct times {
    int64_t *ns;
    size_t count, room;
};
static struct times recoveries, orphans;
static uint64_t worker_kills, trainer_kills, alarm_kills, too_big_count, item_count;

static void note_time(struct times *times, int64_t ns) {
    if (times->count == times->room) {
        times->room = 2 * times->room + 1024;
        times->ns = realloc(times->ns, times->room * sizeof *times->ns);
        check(times->ns);
    }
    times->ns[times->count++] = ns;
}

static int compare_times(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void print_times(const char *what, struct times *times) {
    if (times->count == 0) return;
    qsort(times->ns, times->count, sizeof *times->ns, compare_times);
    printf("%s, %zu times: ", what, times->count);
    const double parts[] = {0.5, 0.9, 0.99, 0.999};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        printf("%g %% %.2f ms, ", 100 * parts[i],
               (double)times->ns[(size_t)(parts[i] * (double)(times->count - 1))] / 1e6);
    printf("longest %.2f ms\n", (double)times->ns[times->count - 1] / 1e6);
}

/* ---- a round's setting ---- */

/* Shared with the workers, which enter themselves. */
struct board {
    _Atomic int pids[CREW_MAX];
};
static struct board *board;

static uint64_t round_number, words_max, words_seed;
static bool has_plans, has_alarms; /* one at least, in a round of killed workers */
static struct setting round_setting;

static uint64_t random_words(uint64_t item) {
    return 1 + (item + words_seed) * UINT64_C(0x9E3779B97F4A7C15) / 65536 % words_max;
}

static void enter_pid(hr_port *port, uint32_t worker, uint32_t life, uint64_t task_count, uint64_t item) {
    (void)port, (void)life, (void)item;
    if (task_count == 0) atomic_store(&board->pids[worker], getpid());
}

/* Half of the processes have a point to die at. */
static const char *plan_worker(struct product *product, uint32_t worker) {
    (void)product;
    atomic_store(&board->pids[worker], 0);
    return has_plans && draw(2) ? draw_plan(HR__BY_WORKER, 10) : NULL;
}

static void draw_setting(void) {
    static const uint64_t words[] = {16, 1024, 8192, 32768};
    words_max = words[draw(4)];
    words_seed = draw(1 << 20);
    round_setting = (struct setting){.workers = 1 + (uint32_t)draw(4),
                                     .prefetch = 1 + (uint32_t)draw(4),
                                     .out_of_order = (int)draw(2),
                                     .words_of_item = random_words,
                                     .visit = enter_pid,
                                     .keep_count = draw(8),
                                     .plan = plan_worker};
    uint64_t in_flight = (uint64_t)round_setting.workers * round_setting.prefetch + round_setting.keep_count;
    round_setting.limit_bytes = MIB + (1 + draw(3)) * (in_flight + 2) * (words_max * 8 + 192 * KIB);
}

static void print_setting(void) {
    fprintf(stderr, "round %llu: %u workers, prefetch %u, %s, limit %llu KiB, up to %llu words, %llu kept\n",
            (unsigned long long)round_number, round_setting.workers, round_setting.prefetch,
            round_setting.out_of_order ? "out of order" : "in order",
            (unsigned long long)round_setting.limit_bytes / KIB, (unsigned long long)words_max,
            (unsigned long long)round_setting.keep_count);
}

/* ---- workers that die ---- */

static volatile sig_atomic_t alarm_target;
static _Atomic int killed_pid; /* 0: no worker was killed, or its death is recovered */
static _Atomic int64_t killed_ns;

/* At any instant of the trainer's and the worker's. */
static void kill_target(int signal_number) {
    (void)signal_number;
    int pid = atomic_exchange(&board->pids[alarm_target], 0);
    if (pid <= 0) return;
    atomic_store(&killed_ns, now_ns());
    atomic_store(&killed_pid, pid);
    kill(pid, SIGKILL);
}

static void set_alarm(void) {
    if (!has_alarms) return;
    suseconds_t us = 50 + (suseconds_t)draw(ALARM_US_MAX);
    alarm_target = (sig_atomic_t)draw(round_setting.workers);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_usec = us}}, NULL);
}

/* From the kill to the first batch that is delivered after the replacement. One kill after the other. */
static void run_epoch_with_deaths(struct product *product) {
    uint32_t deaths = product->death_count;
    int r = 0;
    atomic_store(&killed_pid, 0);
    set_alarm();
    while (r != HR_E_END) {
        r = step_product(product, in_s(PATIENCE_S));
        check(r != -ETIMEDOUT);
        if (r != 0 || product->death_count == deaths) continue;
        deaths = product->death_count;
        if (atomic_load(&killed_pid) == product->last_death.pid) {
            note_time(&recoveries, now_ns() - atomic_load(&killed_ns));
            alarm_kills++;
        }
        set_alarm();
    }
}

static void run_worker_round(void) {
    struct product product;
    has_plans = draw(3) > 0;
    has_alarms = !has_plans || draw(2);
    open_product(&product, &round_setting);
    for (uint64_t epoch = 0; epoch <= draw(2); epoch++) {
        begin_epoch(&product, 1 + draw(ROUND_ITEMS_MAX));
        item_count += product.item_count;
        run_epoch_with_deaths(&product);
    }
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
    check(stop_product(&product, 20000) == 0);
    worker_kills += product.death_count;
    too_big_count += product.too_big_count;
    close_product(&product);
}

/* ---- trainers that die ---- */

static _Noreturn void be_trainer(const char *plan) {
    struct product product;
    if (plan) setenv("HEADRACE_STOP", plan, 1);
    has_plans = false;
    open_product(&product, &round_setting);
    for (int epoch = 0; epoch < 2; epoch++) {
        begin_epoch(&product, ROUND_ITEMS_MAX / 4);
        finish_epoch(&product);
    }
    check(stop_product(&product, 20000) == 0);
    close_product(&product);
    _exit(0);
}

/* After a random time, if it lives as long. */
static void kill_at_instant(pid_t pid) {
    int pidfd;
    int64_t us = (int64_t)draw(TRAINER_US_MAX);
    must(hr__pidfd(pid, &pidfd));
    struct pollfd poller = {.fd = pidfd, .events = POLLIN};
    ppoll(&poller, 1, &(struct timespec){0, us * 1000}, NULL);
    kill(pid, SIGKILL); /* ours, and not reaped yet */
    close(pidfd);
}

static void run_trainer_round(void) {
    const char *plan = draw(2) ? draw_plan(HR__BY_TRAINER, draw(4) ? 20 : 200) : NULL;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) be_trainer(plan);
    if (!plan) kill_at_instant(pid);
    int status = reap_pid(pid);
    int64_t start_ns = now_ns();
    check(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    check(reap_all(start_ns + GONE_WITHIN_MS * INT64_C(1000000)));
    if (status == 0) return;
    trainer_kills++;
    note_time(&orphans, now_ns() - start_ns);
}

/* ---- the whole ---- */

static uint64_t seed, kills_wanted;

static void run_rounds(void) {
    while (worker_kills + trainer_kills < kills_wanted) {
        round_number++;
        draw_setting();
        if (trainer_kills * TRAINER_SHARE < worker_kills)
            run_trainer_round();
        else
            run_worker_round();
    }
}

/* The memory of an arena exists as long as a process has it mapped or open; of its processes only this one is left. */
static int count_shared_mappings(void) {
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    check(maps);
    while (fgets(line, sizeof line, maps)) count += strstr(line, "/memfd:") || strstr(line, "/dev/shm/");
    fclose(maps);
    return count;
}

static void soak(void **state) {
    (void)state;
    sigset_t set;
    block_child_signal(&set);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = kill_target, .sa_flags = SA_RESTART}, NULL);
    random_state = seed;
    int descriptors = count_descriptors(), mappings = count_shared_mappings();
    uint64_t shared_before = hr__read_field("/proc/meminfo", "Shmem:");
    int64_t start_ns = now_ns();
    run_rounds();
    double seconds = (double)(now_ns() - start_ns) / 1e9;
    uint64_t kills = worker_kills + trainer_kills;
    assert_int_equal(count_descriptors(), descriptors);
    assert_int_equal(count_shared_mappings(), mappings);
    assert_true(no_named_file_is_left());
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    printf(
        "%llu kills in %.1f s, %.0f a second, in %llu rounds: %llu workers (%llu at a random instant, the others at a "
        "point), %llu trainers\n",
        (unsigned long long)kills, seconds, (double)kills / seconds, (unsigned long long)round_number,
        (unsigned long long)worker_kills, (unsigned long long)alarm_kills, (unsigned long long)trainer_kills);
    printf("%llu batches checked in rounds of killed workers, %llu of them refused because memory ran out\n",
           (unsigned long long)item_count, (unsigned long long)too_big_count);
    print_times("From a worker's kill to a batch after its replacement", &recoveries);
    print_times("From a trainer's death to its last worker's", &orphans);
    printf("Shared memory of the machine: %llu kB before, %llu kB after\n", (unsigned long long)shared_before,
           (unsigned long long)hr__read_field("/proc/meminfo", "Shmem:"));
    free(recoveries.ns);
    free(orphans.ns);
}

int main(int argc, char **argv) {
    enum { KILLS = 10000 };
    kills_wanted = argc > 1 ? strtoull(argv[1], NULL, 10) : KILLS;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)now_ns();
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(soak)};
    int failed = cmocka_run_group_tests_name("soak_kills", tests, NULL, NULL);
    if (failed) print_setting();
    return failed;
}
