/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/cache_scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include <headrace/face/cache_samples.h>

#include "base/hash.h"
#include "cache/samples.h"

/* A table of samples with several processes: what is published is right, at whatever point a process is killed. */

enum { COUNT = 60, BUDGET = 4 << 20, RACERS = 8, LARGE = 40 };

static hr_cached *cached;
static hr_samples *samples;

/* Sizes differ; every LARGEth sample is larger than an extent of 64 KiB. */
static uint64_t size_of(uint64_t index) {
    return index % LARGE == LARGE - 1 ? 150000 + index : 1 + index * 777 % 9000;
}

static bool has_sample(const struct hr_sample *sample) {
    unsigned char *bytes = malloc(sample->bytes + 1);
    check(bytes != NULL);
    fill_bytes(bytes, sample->bytes, 0, sample->index);
    bool has = sample->bytes == size_of(sample->index) && memcmp(bytes, sample->data, sample->bytes) == 0;
    free(bytes);
    return has;
}

static void open_table(uint64_t budget) {
    struct hr_cache_request request = request_for("drawings", "s");
    hr_cache_build *build = NULL;
    request.format = HR_SAMPLES_FORMAT;
    int r = ask(&request, &cached, &build);
    must(r);
    if (r == HR_CACHE_BUILD) {
        must(hr_samples_build(build, COUNT, budget));
        must(hr_cache_build_finish(build, "meta", &cached));
    }
    must(hr_samples_open(cached, &samples));
}

static void close_table(void) {
    samples = hr_samples_close(samples);
    cached = hr_cached_detach(cached);
}

static int open_all(void **state) {
    open_scene(state);
    open_table(BUDGET);
    return 0;
}

static int close_all(void **state) {
    close_table();
    return close_scene(state);
}

/* Writes a sample that was begun. Returns what hr_samples_reserve returned. */
static int write_sample(struct hr_sample *sample) {
    int r = hr_samples_reserve(samples, sample, size_of(sample->index));
    if (r != HR_SAMPLE_READY) return r;
    fill_bytes(sample->data, sample->bytes, 0, sample->index);
    must(hr_samples_publish(samples, sample));
    return r;
}

/* Reads a sample or makes it. Returns the answer of hr_samples_begin at last. */
static int need_sample(uint64_t index) {
    struct hr_sample sample;
    int r;
    do {
        r = hr_samples_begin(samples, index, &sample);
        must(r);
    } while (r == HR_SAMPLE_BUSY && hr_samples_wait(samples, &sample, in_s(PATIENCE_S)) == 0);
    if (r == HR_SAMPLE_READY) check(has_sample(&sample));
    if (r == HR_SAMPLE_MAKE) write_sample(&sample);
    return r;
}

static void need_all(void) {
    for (uint64_t i = 0; i < COUNT; i++) need_sample(i);
}

static struct hr_samples_report report(void) {
    struct hr_samples_report found;
    hr_samples_look(samples, &found);
    return found;
}

/* ---- one process ---- */

static void samples_are_made_once(void **state) {
    (void)state;
    for (uint64_t i = 0; i < COUNT; i++) assert_int_equal(need_sample(i), HR_SAMPLE_MAKE);
    for (uint64_t i = 0; i < COUNT; i++) assert_int_equal(need_sample(i), HR_SAMPLE_READY);
    assert_int_equal(report().ready, COUNT);
    assert_int_equal(report().hits, COUNT);
    assert_int_equal(report().made, COUNT);
    must(hr_cached_verify(cached));
    struct hr_sample sample;
    assert_refused(hr_samples_begin(samples, COUNT, &sample), -ERANGE, "60 samples, and no sample 60");
}

static void a_sample_that_is_given_back_is_made_by_another(void **state) {
    struct hr_sample sample;
    (void)state;
    assert_int_equal(hr_samples_begin(samples, 3, &sample), HR_SAMPLE_MAKE);
    hr_samples_give_back(samples, &sample);
    assert_int_equal(need_sample(3), HR_SAMPLE_MAKE);
    assert_int_equal(hr_samples_begin(samples, 4, &sample), HR_SAMPLE_MAKE);
    hr_samples_refuse(samples, &sample, HR_SAMPLE_UNFIT);
    assert_int_equal(need_sample(4), HR_SAMPLE_REFUSED);
    assert_int_equal(report().refused[HR_SAMPLE_UNFIT], 1);
}

static void what_does_not_fit_the_budget_is_refused(void **state) {
    uint64_t refused = 0;
    open_scene(state);
    open_table(HR_SAMPLES_LEAST_BYTES);
    struct hr_sample sample;
    for (uint64_t i = 0; i < COUNT; i++) {
        int r = hr_samples_begin(samples, i, &sample);
        assert_int_equal(r, HR_SAMPLE_MAKE);
        r = hr_samples_reserve(samples, &sample, 40000);
        if (r == HR_SAMPLE_READY) {
            memset(sample.data, (int)i, 40000);
            must(hr_samples_publish(samples, &sample));
        } else
            assert_int_equal(r, HR_SAMPLE_REFUSED);
        refused += r == HR_SAMPLE_REFUSED;
    }
    assert_true(refused > 0 && report().ready > 10);
    assert_int_equal(report().refused[HR_SAMPLE_NO_ROOM], refused);
    assert_int_equal(report().ready + refused, COUNT);
    assert_true(report().used_bytes <= report().budget_bytes);
    must(hr__samples_verify(samples));
    close_all(state);
}

static void bad_arguments_are_refused(void **state) {
    struct hr_cache_request request = request_for("small", "s");
    hr_samples *none = NULL;
    (void)state;
    hr_cache_build *build = begin(&request);
    assert_refused(hr_samples_build(build, 3, 1000), -EINVAL, "give at least 1 MiB");
    assert_refused(hr_samples_build(build, UINT64_MAX, BUDGET), -EINVAL, "cannot have");
    hr_cache_build_abandon(build);
    request.name = "raw";
    hr_cached *raw = put_object(&request, 1);
    assert_refused(hr_samples_open(raw, &none), -EINVAL, "has no samples");
    hr_cached_detach(raw);
    assert_null(hr_samples_close(NULL));
}

static void the_sum_of_a_damaged_sample_is_noticed(void **state) {
    struct hr_sample sample;
    (void)state;
    need_all();
    assert_int_equal(hr_samples_begin(samples, 5, &sample), HR_SAMPLE_READY);
    *(unsigned char *)sample.data ^= 1;
    assert_refused(hr_cached_verify(cached), HR_E_CORRUPT, "sample 5");
}

static void a_damaged_entry_or_head_is_an_error(void **state) {
    struct hr_sample sample;
    hr_samples *none = NULL;
    (void)state;
    need_all();
    atomic_store(&samples->entries[7].word, UINT64_MAX << STATE_BITS | READY);
    assert_refused(hr_samples_begin(samples, 7, &sample), HR_E_CORRUPT, "sample 7");
    samples->entries[8].bytes = UINT64_MAX - 10;
    assert_refused(hr_samples_begin(samples, 8, &sample), HR_E_CORRUPT, "sample 8");
    struct hr__samples_head whole = *samples->head;
    uint64_t *fields[] = {&samples->head->count, &samples->head->extent_bytes, &samples->head->extent_count,
                          &samples->head->extents_at, &samples->head->data_at};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        uint64_t kept = *fields[i];
        *fields[i] = UINT64_MAX - 63;
        assert_refused(hr_samples_open(cached, &none), HR_E_CORRUPT, "is damaged");
        *fields[i] = kept;
    }
    samples->head->version = 99;
    assert_refused(hr_samples_open(cached, &none), HR_E_VERSION, "another version");
    samples->head->magic = 0;
    assert_refused(hr_samples_open(cached, &none), HR_E_CORRUPT, "not a table");
    samples->head->magic = whole.magic;
    samples->head->version = whole.version;
}

/* A sample that was written before the machine stopped is compared with its checksum: a torn sample is made again. */
static void after_a_stop_of_the_machine_torn_samples_are_made_again(void **state) {
    struct hr_sample sample;
    (void)state;
    need_all();
    assert_int_equal(hr_samples_begin(samples, 5, &sample), HR_SAMPLE_READY);
    *(unsigned char *)sample.data ^= 1;
    uint64_t busy = (UINT64_C(77) << STATE_BITS) | BUSY;
    atomic_store(&samples->entries[6].word, busy);
    atomic_store(&samples->head->next_extent, 0); /* an older page than that of the entries */
    atomic_store(&samples->head->boot, 1);
    samples = hr_samples_close(samples);
    must(hr_samples_open(cached, &samples));
    for (uint64_t i = 0; i < COUNT; i++)
        assert_int_equal(need_sample(i), i == 5 || i == 6 ? HR_SAMPLE_MAKE : HR_SAMPLE_READY);
    need_all();
    must(hr__samples_verify(samples));
}

/* ---- several ---- */

static void *need_in_thread(void *ignored) {
    need_all();
    return ignored;
}

static void threads_share_a_handle(void **state) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    (void)state;
    for (int i = 0; i < THREADS; i++) check(pthread_create(&threads[i], NULL, need_in_thread, NULL) == 0);
    for (int i = 0; i < THREADS; i++) check(pthread_join(threads[i], NULL) == 0);
    assert_int_equal(report().ready, COUNT);
    must(hr__samples_verify(samples));
}

static void forked_children_fill_it_together(void **state) {
    pid_t pids[RACERS];
    (void)state;
    assert_int_equal(need_sample(0), HR_SAMPLE_MAKE);
    for (int i = 0; i < RACERS; i++) pids[i] = launch(need_all, NULL);
    for (int i = 0; i < RACERS; i++) assert_child_succeeds(pids[i]);
    assert_int_equal(report().ready, COUNT);
    assert_int_equal(report().made, COUNT);
    must(hr__samples_verify(samples));
}

/* The child of a process that makes a sample does not have its lease. */
static void a_forked_child_is_not_the_maker_that_its_parent_is(void **state) {
    struct hr_sample sample;
    int fds[2], end[2];
    char byte;
    (void)state;
    check(pipe(fds) == 0 && pipe(end) == 0);
    pid_t parent = fork();
    if (parent == 0) {
        close(end[1]);
        check(hr_samples_begin(samples, 9, &sample) == HR_SAMPLE_MAKE);
        pid_t child = fork();
        check(write(fds[1], "", 1) == 1);
        if (child) raise(SIGKILL);
        check(read(end[0], &byte, 1) == 0); /* until the test is over */
        _exit(0);
    }
    assert_int_equal(reap_pid(parent), SIGKILL);
    check(read(fds[0], &byte, 1) == 1 && read(fds[0], &byte, 1) == 1); /* both have left fork */
    assert_int_equal(need_sample(9), HR_SAMPLE_MAKE);
    int all[] = {fds[0], fds[1], end[0], end[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) close(all[i]);
}

static void check_and_die(void) {
    check(hr_samples_begin_check(samples) == HR_SAMPLES_CHECK);
    raise(SIGKILL);
}

static void begin_check_as_other(void) {
    check(hr_samples_begin_check(samples) == HR_SAMPLES_CHECKING);
}

static void a_check_that_was_begun_is_ended_by_some_process(void **state) {
    (void)state;
    assert_int_equal(reap_pid(launch(check_and_die, NULL)), SIGKILL);
    assert_int_equal(hr_samples_begin_check(samples), HR_SAMPLES_CHECK);
    assert_child_succeeds(launch(begin_check_as_other, NULL));
    hr_samples_end_check(samples, HR_SAMPLES_CHECK);
    assert_int_equal(hr_samples_begin_check(samples), HR_SAMPLES_CHECK);
    hr_samples_end_check(samples, HR_SAMPLES_RIGHT);
    assert_int_equal(hr_samples_begin_check(samples), HR_SAMPLES_RIGHT);
    hr_samples_end_check(samples, HR_SAMPLES_WRONG);
    assert_int_equal(hr_samples_begin_check(samples), HR_SAMPLES_WRONG);
}

/* A process without a descriptor reads samples that are there, and makes the others for itself. */
static void without_a_descriptor_samples_are_read(void **state) {
    struct hr_sample sample;
    struct rlimit limit, none = {0};
    (void)state;
    assert_int_equal(need_sample(1), HR_SAMPLE_MAKE);
    check(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    none.rlim_max = limit.rlim_max;
    pid_t pid = fork();
    if (pid == 0) {
        check(setrlimit(RLIMIT_NOFILE, &none) == 0);
        check(hr_samples_begin(samples, 1, &sample) == HR_SAMPLE_READY && has_sample(&sample));
        check(hr_samples_begin(samples, 2, &sample) == HR_SAMPLE_REFUSED);
        _exit(0);
    }
    assert_child_succeeds(pid);
}

#ifdef HR_FAILPOINTS

static void fill_again(void) {
    close_table();
    open_table(BUDGET);
    need_all();
}

static void a_process_killed_at_any_point_loses_one_sample(void **state) {
    for (int i = 0; i < HR__POINT_COUNT; i++) {
        char plan[64];
        const struct hr__failpoint *point = &hr__failpoints[i];
        if (point->side != HR__BY_SAMPLES) continue;
        open_all(state);
        snprintf(plan, sizeof plan, "%s:9:3", point->name);
        if (reap_pid(launch(fill_again, plan)) != SIGKILL) fail_msg("%s: no run passes it", point->name);
        uint64_t before = report().ready;
        need_all();
        assert_int_equal(report().ready, COUNT);
        assert_true(report().made >= COUNT - before);
        must(hr__samples_verify(samples));
        for (uint64_t k = 0; k < COUNT; k++) assert_int_equal(need_sample(k), HR_SAMPLE_READY);
        close_all(state);
    }
}

static int note_index(void *context, uint64_t index) {
    *(uint64_t *)context = index;
    return 1;
}

static void a_stopped_maker_is_not_robbed_and_not_waited_for(void **state) {
    struct hr_sample sample;
    int status;
    (void)state;
    assert_int_equal(need_sample(0), HR_SAMPLE_MAKE); /* a mean time, so that the wait is short */
    pid_t pid = launch(need_all, "samples.taken:19");
    check(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    assert_int_equal(hr_samples_begin(samples, 1, &sample), HR_SAMPLE_BUSY);
    assert_int_equal(hr_samples_wait(samples, &sample, in_s(PATIENCE_S)), -ETIMEDOUT);
    assert_int_equal(hr_samples_begin(samples, 1, &sample), HR_SAMPLE_BUSY);
    assert_int_equal(hr_samples_wait(samples, &sample, 0), -EAGAIN);
    kill(pid, SIGKILL);
    assert_int_equal(reap_pid(pid), SIGKILL);
    uint64_t unfinished = COUNT;
    assert_int_equal(hr_samples_unfinished(samples, note_index, &unfinished), 1);
    assert_int_equal(unfinished, 1);
    assert_int_equal(hr_samples_wait(samples, &sample, in_s(PATIENCE_S)), 0);
    assert_int_equal(need_sample(1), HR_SAMPLE_MAKE);
}

static void an_extent_of_a_dead_process_is_filled_by_another(void **state) {
    (void)state;
    for (int i = 0; i < 100; i++) /* each leaves an extent, more than there are */
        assert_int_equal(reap_pid(launch(need_all, "samples.reserved:9")), SIGKILL);
    need_all();
    assert_int_equal(report().ready, COUNT - 1); /* the large one needs several extents that no process has had */
    assert_int_equal(report().refused[HR_SAMPLE_NO_ROOM], 1);
    must(hr__samples_verify(samples));
}

static void without_memory_samples_are_given_back(void **state) {
    struct hr_sample sample;
    (void)state;
    setenv("HEADRACE_FAIL", "samples_commit:ENOMEM", 1);
    assert_int_equal(hr_samples_begin(samples, 2, &sample), HR_SAMPLE_MAKE);
    assert_int_equal(write_sample(&sample), HR_SAMPLE_MAKE);
    unsetenv("HEADRACE_FAIL");
    assert_int_equal(report().no_memory, 1);
    samples->no_memory_until = 0;
    assert_int_equal(need_sample(2), HR_SAMPLE_MAKE);
    assert_int_equal(need_sample(2), HR_SAMPLE_READY);
}

#endif

#define T(test) cmocka_unit_test_setup_teardown(test, open_all, close_all)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(samples_are_made_once),
        T(a_sample_that_is_given_back_is_made_by_another),
        cmocka_unit_test(what_does_not_fit_the_budget_is_refused),
        T(bad_arguments_are_refused),
        T(the_sum_of_a_damaged_sample_is_noticed),
        T(a_damaged_entry_or_head_is_an_error),
        T(after_a_stop_of_the_machine_torn_samples_are_made_again),
        T(threads_share_a_handle),
        T(forked_children_fill_it_together),
        T(a_forked_child_is_not_the_maker_that_its_parent_is),
        T(a_check_that_was_begun_is_ended_by_some_process),
        T(without_a_descriptor_samples_are_read),
#ifdef HR_FAILPOINTS
        cmocka_unit_test(a_process_killed_at_any_point_loses_one_sample),
        T(a_stopped_maker_is_not_robbed_and_not_waited_for),
        T(an_extent_of_a_dead_process_is_filled_by_another),
        T(without_memory_samples_are_given_back),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
