/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/cache_scene.h"

#include <glob.h>
#include <pthread.h>
#include <stdatomic.h>

/* The cache with several processes: builders that are killed and stopped at every point, that fail, that race, and that
 * need each other; claims of forked children. */

enum { RACERS = 64, TAKEOVER_NS = 500000000 };

/* Shared with the processes. */
struct stage {
    _Atomic uint32_t builds, ready, gate;
    _Atomic int64_t killed_ns, taken_ns;
    _Atomic uint32_t chunks;
};
static struct stage *stage;

static int open_stage(void **state) {
    memset(stage, 0, sizeof *stage);
    return open_scene(state);
}

static pid_t launch_one(void (*run)(uint32_t), uint32_t number, const char *plan) {
    pid_t pid = fork_with(plan);
    if (pid) return pid;
    run(number);
    _exit(0);
}

/* ---- one object, whatever happens ---- */

/* Builds the object, or attaches it, and checks its bytes. */
static void need_object(uint32_t number) {
    struct hr_cache_request request = request_for("features", "s");
    hr_cached *cached = NULL;
    hr_cache_build *build;
    (void)number;
    int r = ask(&request, &cached, &build);
    must(r);
    if (r == HR_CACHE_BUILD) {
        atomic_fetch_add(&stage->builds, 1);
        must(write_object(build, 1));
        must(hr_cache_build_finish(build, NULL, &cached));
    }
    check(has_object(cached, 1));
    must(hr_cached_verify(cached));
    atomic_fetch_add(&stage->ready, 1);
    hr_cached_detach(cached);
}

static void racers_build_once(void **state) {
    pid_t pids[RACERS];
    (void)state;
    for (uint32_t i = 0; i < RACERS; i++) pids[i] = launch_one(need_object, i, NULL);
    for (uint32_t i = 0; i < RACERS; i++) assert_child_succeeds(pids[i]);
    assert_int_equal(atomic_load(&stage->builds), 1);
    assert_int_equal(count_in("claims"), 0);
}

static void *need_in_thread(void *ignored) {
    need_object(0);
    return ignored;
}

static void threads_build_once(void **state) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    (void)state;
    for (int i = 0; i < THREADS; i++) check(pthread_create(&threads[i], NULL, need_in_thread, NULL) == 0);
    for (int i = 0; i < THREADS; i++) check(pthread_join(threads[i], NULL) == 0);
    assert_int_equal(atomic_load(&stage->builds), 1);
}

#ifdef HR_FAILPOINTS

/* Passes all points of the cache: a build that is abandoned and taken over, one that fails, one that is replaced, and a
 * removal. */
static void live(uint32_t number) {
    struct hr_cache_request request = request_for("features", "s"), old = request_for("features", "r"),
                            failing = request_for("failing", NULL);
    hr_cached *cached = NULL;
    hr_cache_build *build;
    (void)number;
    if (ask(&old, &cached, &build) == HR_CACHE_BUILD) {
        must(write_object(build, 9));
        must(hr_cache_build_finish(build, NULL, &cached));
    }
    hr_cached_detach(cached);
    build = begin(&failing);
    must(hr_cache_build_reserve(build, OBJECT_BYTES, CHUNK, "meta"));
    hr_cache_build_fail(build, "text", 4, 0);
    if (ask(&request, &cached, &build) == HR_CACHE_BUILD) {
        must(hr_cache_build_reserve(build, OBJECT_BYTES, CHUNK, "meta"));
        must(write_chunk(build, 0, 1));
        hr_cache_build_abandon(build);
        check(ask(&request, &cached, &build) == HR_CACHE_BUILD);
        must(write_object(build, 1));
        must(hr_cache_build_finish(build, NULL, &cached));
    }
    check(has_object(cached, 1));
    hr_cached_detach(cached);
    must(hr_cache_attach(cache, "features", "0", &cached));
    hr_cached_detach(cached);
}

static bool is_of_cache(const struct hr__failpoint *point) {
    return point->side == HR__BY_CACHE;
}

/* Published data is whole, and after a collection nothing is left that no process uses. */
static void check_after(const char *point) {
    struct hr_cache_collected result;
    hr_cached *cached;
    int r = hr_cache_attach(cache, "features", "0", &cached);
    if (r == 0) {
        if (!has_object(cached, 1) && !has_object(cached, 9)) fail_msg("%s: wrong bytes", point);
        must(hr_cached_verify(cached));
        hr_cached_detach(cached);
    } else
        assert_int_equal(r, -ENOENT);
    assert_child_succeeds(launch_one(live, 0, NULL)); /* the next process can build, whatever was left */
    must(hr_cache_attach(cache, "features", "0", &cached));
    check(has_object(cached, 1));
    hr_cached_detach(cached);
    must(hr_cache_collect(cache, -1, UINT64_MAX, NULL, NULL, &result));
    if (count_in("partial") || count_in("trash") || count_in("claims")) fail_msg("%s: something is left", point);
    assert_int_equal(count_in("objects"), 1);
    assert_int_equal(count_in("locks"), 3); /* .lock, .state and .wait of the object */
}

static void a_process_killed_at_any_point_leaves_it_usable(void **state) {
    for (int i = 0; i < HR__POINT_COUNT; i++) {
        char plan[64];
        const struct hr__failpoint *point = &hr__failpoints[i];
        if (!is_of_cache(point)) continue;
        for (int passage = 1; passage <= 2; passage++) {
            snprintf(plan, sizeof plan, "%s:9:%d", point->name, passage);
            open_stage(state);
            int status = reap_pid(launch_one(live, 0, plan));
            if (passage == 1 && status != SIGKILL) fail_msg("%s: no run passes it", point->name);
            check_after(point->name);
            close_scene(state);
        }
    }
}

static int list_state(void *context, const struct hr_cache_entry *entry) {
    *(enum hr_cache_state *)context = entry->state;
    return 0;
}

/* A stopped builder is named and not robbed: it still has the lock. */
static void a_stopped_builder_is_named(void **state) {
    struct hr_cache_request request = request_for("features", "s");
    struct hr_cache_builder builder;
    enum hr_cache_state found = HR_CACHE_DAMAGED;
    hr_cache_ticket *ticket;
    hr_cached *cached;
    hr_cache_build *build;
    int status;
    (void)state;
    pid_t pid = launch_one(need_object, 0, "cache.written:19:2");
    check(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    must(hr_cache_ask(cache, &request, &ticket));
    check(hr_cache_wait(ticket, now_ns() + 50000000, &cached, &build) == -ETIMEDOUT);
    hr_cache_ticket_look(ticket, &builder);
    check(builder.is_building && builder.is_visible && builder.is_stopped && builder.pid == (uint32_t)pid);
    must(hr_cache_list(cache, list_state, &found));
    assert_int_equal(found, HR_CACHE_BUILDING);
    kill(pid, SIGCONT);
    check(hr_cache_wait(ticket, in_s(PATIENCE_S), &cached, &build) == HR_CACHE_ATTACHED);
    check(has_object(cached, 1));
    hr_cached_detach(cached);
    hr_cache_ticket_free(ticket);
    assert_child_succeeds(pid);
}

#endif

/* ---- taking over ---- */

/* Waits until a process sleeps for a while, or has ended. */
static void await_nap(pid_t pid) {
    struct hr__process process;
    int64_t deadline = in_s(PATIENCE_S);
    do {
        check(now_ns() < deadline);
        poll(NULL, 0, 1);
        must(hr__process_look(pid, &process));
    } while (process.state != 'Z' && (process.state != 'S' || !strstr(process.kernel_function, "nanosleep")));
}

static void write_two_chunks_and_die(uint32_t number) {
    struct hr_cache_request request = request_for("features", "s");
    hr_cache_build *build = begin(&request);
    must(hr_cache_build_reserve(build, OBJECT_BYTES, CHUNK, "meta"));
    for (uint64_t i = 0; i < CHUNKS - 1; i++) must(write_chunk(build, i, 1));
    if (number == 1 && fork() == 0) { /* a child of the builder that lives on */
        await(&stage->gate, 2);
        check(hr_cache_build_write(build, 0, "xxxx", 4) == HR_E_STATE);
        atomic_fetch_add(&stage->ready, 1);
        _exit(0);
    }
    atomic_store(&stage->gate, 1);
    await(&stage->gate, 2);
    atomic_store(&stage->killed_ns, now_ns());
    raise(SIGKILL);
}

static void wait_and_count_chunks(uint32_t number) {
    struct hr_cache_request request = request_for("features", "s");
    hr_cached *cached;
    hr_cache_build *build;
    (void)number;
    atomic_fetch_add(&stage->builds, 1);
    check(ask(&request, &cached, &build) == HR_CACHE_BUILD);
    atomic_store(&stage->taken_ns, now_ns());
    atomic_store(&stage->chunks, (uint32_t)write_object(build, 1));
    must(hr_cache_build_finish(build, NULL, &cached));
    check(has_object(cached, 1));
    hr_cached_detach(cached);
}

static void expect_takeover(uint32_t number) {
    pid_t first = launch_one(write_two_chunks_and_die, number, NULL);
    await(&stage->gate, 1);
    pid_t second = launch_one(wait_and_count_chunks, 0, NULL);
    await(&stage->builds, 1);
    atomic_store(&stage->gate, 2);
    assert_int_equal(reap_pid(first), SIGKILL);
    assert_child_succeeds(second);
    assert_int_equal(atomic_load(&stage->chunks), 1);
}

static void the_next_builder_makes_one_chunk_again(void **state) {
    int64_t quickest_ns = INT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        open_stage(state);
        expect_takeover(0);
        int64_t took_ns = atomic_load(&stage->taken_ns) - atomic_load(&stage->killed_ns);
        if (took_ns < quickest_ns) quickest_ns = took_ns;
        close_scene(state);
    }
    assert_in_range(quickest_ns, 0, TAKEOVER_NS);
}

#ifdef HR_FAILPOINTS

/* A process that ends closes its descriptors one after the other: that of the data may be the last. */
static void data_that_a_dead_builder_still_has_is_waited_for(void **state) {
    char pattern[128];
    glob_t found;
    int status, fd;
    (void)state;
    pid_t first = launch_one(write_two_chunks_and_die, 0, NULL);
    await(&stage->gate, 1);
    atomic_store(&stage->gate, 2);
    assert_int_equal(reap_pid(first), SIGKILL);
    pid_t next = launch_one(wait_and_count_chunks, 0, "cache.taken_over:19:1");
    check(waitpid(next, &status, WUNTRACED) == next && WIFSTOPPED(status));
    snprintf(pattern, sizeof pattern, "%s/v1/partial/*/data", root);
    check(glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc == 1);
    must(hr__file_open(found.gl_pathv[0], &fd));
    globfree(&found);
    must(hr__lock_file(fd, HR__SHARED));
    kill(next, SIGCONT);
    await_nap(next);
    hr__close(&fd);
    assert_child_succeeds(next);
    assert_int_equal(atomic_load(&stage->chunks), 1);
}

#endif

static void a_child_of_a_dead_builder_does_not_hold_up_the_next(void **state) {
    (void)state;
    expect_takeover(1);
    await(&stage->ready, 1);
}

/* ---- deaths and failures ---- */

static void begin_and_die(uint32_t number) {
    struct hr_cache_request request = request_for("features", "s");
    hr_cached *cached;
    hr_cache_build *build = NULL;
    int r = ask(&request, &cached, &build);
    if (r == HR_E_BUILDERS_DIED) {
        check(strstr(hr_error_message(), "3 processes in a row died") != NULL);
        atomic_fetch_add(&stage->ready, 1);
        return;
    }
    check(r == HR_CACHE_BUILD);
    atomic_fetch_add(&stage->builds, 1);
    if (number == 0) await(&stage->gate, 1);
    raise(SIGKILL);
}

static int count_waiting(void) {
    char path[128];
    int count = 0;
    snprintf(path, sizeof path, "%s/v1/locks", root);
    DIR *folder = opendir(path);
    for (struct dirent *entry; (entry = readdir(folder));) count += strstr(entry->d_name, ".wait") != NULL;
    closedir(folder);
    return count;
}

/* Waits until a child sleeps in hr_cache_wait, so until it has found the builder. */
static void await_sleeping(pid_t pid) {
    int64_t deadline = in_s(PATIENCE_S);
    do {
        check(now_ns() < deadline);
        await_nap(pid);
    } while (count_waiting() == 0);
}

static void the_third_dead_builder_is_an_error_for_all(void **state) {
    enum { PROCESSES = 6 };
    pid_t pids[PROCESSES];
    (void)state;
    pids[0] = launch_one(begin_and_die, 0, NULL);
    await(&stage->builds, 1);
    for (uint32_t i = 1; i < PROCESSES; i++) pids[i] = launch_one(begin_and_die, i, NULL);
    for (uint32_t i = 1; i < PROCESSES; i++) await_sleeping(pids[i]);
    atomic_store(&stage->gate, 1);
    for (uint32_t i = 0; i < PROCESSES; i++) reap_pid(pids[i]);
    assert_int_equal(atomic_load(&stage->builds), HR_CACHE_MAX_DEATHS);
    assert_int_equal(atomic_load(&stage->ready), PROCESSES - HR_CACHE_MAX_DEATHS);
    need_object(0); /* no process builds or waits any more: a new try */
}

static void begin_and_fail(uint32_t number) {
    struct hr_cache_request request = request_for("features", NULL);
    hr_cache_build *build = begin(&request);
    (void)number;
    atomic_store(&stage->gate, 1);
    await(&stage->gate, 2);
    hr_cache_build_fail(build, "Traceback\0.", 11, 0);
}

static void expect_failure(uint32_t number) {
    struct hr_cache_request request = request_for("features", NULL);
    hr_cache_ticket *ticket;
    hr_cached *cached;
    hr_cache_build *build;
    uint64_t count;
    (void)number;
    must(hr_cache_ask(cache, &request, &ticket));
    assert_refused(hr_cache_wait(ticket, in_s(PATIENCE_S), &cached, &build), HR_E_BUILD_FAILED, "failed (pid");
    const void *text = hr_cache_ticket_failure(ticket, &count);
    check(count == 11 && memcmp(text, "Traceback\0.", 11) == 0);
    hr_cache_ticket_free(ticket);
}

static void those_that_wait_get_the_text_of_a_failure(void **state) {
    pid_t waiting[3];
    (void)state;
    pid_t builder = launch_one(begin_and_fail, 0, NULL);
    await(&stage->gate, 1);
    for (uint32_t i = 0; i < 3; i++) waiting[i] = launch_one(expect_failure, i, NULL);
    for (uint32_t i = 0; i < 3; i++) await_sleeping(waiting[i]);
    atomic_store(&stage->gate, 2);
    assert_child_succeeds(builder);
    for (uint32_t i = 0; i < 3; i++) assert_child_succeeds(waiting[i]);
    need_object(0);
}

/* ---- builders that need each other ---- */

static void build_one_that_needs_the_other(uint32_t number) {
    struct hr_cache_request own = request_for(number ? "b" : "a", NULL), other = request_for(number ? "a" : "b", NULL);
    hr_cached *cached;
    hr_cache_build *build = begin(&own), *inner;
    atomic_fetch_add(&stage->ready, 1);
    await(&stage->ready, 2);
    int r = ask(&other, &cached, &inner);
    if (r == -EDEADLK) {
        check(strstr(hr_error_message(), "and the other way round") != NULL);
        atomic_fetch_add(&stage->builds, 1);
        hr_cache_build_fail(build, "cycle", 5, 0);
    } else {
        check(r == HR_E_BUILD_FAILED);
        hr_cache_build_fail(build, "other", 5, 0);
    }
}

static void builders_that_need_each_other_are_named(void **state) {
    (void)state;
    pid_t one = launch_one(build_one_that_needs_the_other, 0, NULL),
          two = launch_one(build_one_that_needs_the_other, 1, NULL);
    assert_child_succeeds(one);
    assert_child_succeeds(two);
    assert_in_range(atomic_load(&stage->builds), 1, 2);
}

/* ---- claims ---- */

static void attach_fork_and_exit(uint32_t number) {
    hr_cached *cached;
    (void)number;
    must(hr_cache_attach(cache, "features", "0", &cached));
    if (fork() == 0) {
        await(&stage->gate, 1);
        check(has_object(cached, 1));
        _exit(0);
    }
}

static void a_forked_child_keeps_the_claim(void **state) {
    struct hr_cache_request request = request_for("features", NULL);
    (void)state;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    hr_cached_detach(put_object(&request, 1));
    assert_child_succeeds(launch_one(attach_fork_and_exit, 0, NULL));
    assert_refused(hr_cache_remove(cache, "features", "0", 0), -EBUSY, "processes have 'features'");
    atomic_store(&stage->gate, 1);
    while (waitpid(-1, NULL, 0) > 0) continue;
    must(hr_cache_remove(cache, "features", "0", 0));
}

static void claim_and_die(uint32_t number) {
    hr_cached *cached;
    (void)number;
    must(hr_cache_attach(cache, "features", "0", &cached));
    raise(SIGKILL);
}

static void a_killed_process_claims_nothing(void **state) {
    struct hr_cache_request request = request_for("features", NULL);
    struct hr_cache_collected result;
    (void)state;
    request.keep = HR_CACHE_KEEP_JOB;
    hr_cached *own = put_object(&request, 1);
    assert_int_equal(reap_pid(launch_one(claim_and_die, 0, NULL)), SIGKILL);
    must(hr_cache_collect(cache, -1, UINT64_MAX, NULL, NULL, &result));
    assert_int_equal(result.objects, 0);
    assert_int_equal(count_in("claims"), 1); /* that of this process; the other is swept */
    hr_cached_detach(own);
    assert_int_equal(count_in("objects"), 0);
}

#define T(test) cmocka_unit_test_setup_teardown(test, open_stage, close_scene)

int main(void) {
    stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        T(racers_build_once),
        T(threads_build_once),
        cmocka_unit_test(the_next_builder_makes_one_chunk_again),
#ifdef HR_FAILPOINTS
        T(data_that_a_dead_builder_still_has_is_waited_for),
#endif
        T(a_child_of_a_dead_builder_does_not_hold_up_the_next),
        T(the_third_dead_builder_is_an_error_for_all),
        T(those_that_wait_get_the_text_of_a_failure),
        T(builders_that_need_each_other_are_named),
        T(a_forked_child_keeps_the_claim),
        T(a_killed_process_claims_nothing),
#ifdef HR_FAILPOINTS
        cmocka_unit_test(a_process_killed_at_any_point_leaves_it_usable),
        T(a_stopped_builder_is_named),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
