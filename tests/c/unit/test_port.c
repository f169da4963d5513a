/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "../support/arena_scene.h"
#include "../support/sanitized.h"
#include "arena/arena.h"

#include "arena/ledger.h"
#include "os/os.h"

/*
 * A worker that lies. Its completions are written straight into the ring, and the trainer must believe no number that
 * its ledger does not bear out.
 */

struct room {
    struct scene scene;
    hr_port *port;
    struct hr__ring forger; /* the producer's end of worker 0's completions */
    struct hr__record honest;
};

static void write_honest_record(struct room *room) {
    hr_arena *arena = room->scene.arena;
    for (uint32_t slot = 0; slot < arena->layout.slot_count; slot++)
        if (arena->entries[slot].state == HR__GRANTED)
            room->honest =
                (struct hr__record){.generation = arena->entries[slot].generation, .slot = slot, .bytes = 64};
}

static int open_room(void **state) {
    struct room *room = calloc(1, sizeof *room);
    set_scene(&room->scene, 2, 4, UINT64_C(1) << 30);
    room->port = open_port_here(&room->scene, 0);
    room->forger = room->scene.arena->peers[0].completions;
    must(order(&room->scene, 0, 5, 64));
    write_honest_record(room);
    *state = room;
    return 0;
}

static int close_room(void **state) {
    struct room *room = *state;
    hr_port_close(room->port);
    hr_arena_close(room->scene.arena);
    free(room);
    return 0;
}

static void no_more_is_published_than_was_reserved(void **state) {
    struct room *room = *state;
    struct hr_task task;
    void *data;
    must(hr_port_take(room->port, in_s(PATIENCE_S), &task));
    assert_int_equal(hr_port_publish(room->port, HR_STATUS_BATCH, 1), -EINVAL);
    must(hr_port_reserve(room->port, 100, &data));
    must(hr_port_reserve(room->port, 50, &data));
    assert_int_equal(hr_port_publish(room->port, HR_STATUS_BATCH, 101), -EINVAL);
    assert_non_null(strstr(hr_error_message(), "101 bytes published, 100 reserved"));
    must(hr_port_publish(room->port, HR_STATUS_BATCH, 100));
}

static int receive_forged(struct room *room, struct hr__record record) {
    struct hr_delivery *delivery = NULL;
    assert_int_equal(hr__ring_push(&room->forger, &record), 0);
    int r = hr__arena_receive(room->scene.arena, 0, in_s(PATIENCE_S), &delivery);
    if (r < 0) assert_null(delivery);
    hr_delivery_done(delivery);
    return r;
}

static void a_valid_record_is_accepted(void **state) {
    struct room *room = *state;
    assert_int_equal(receive_forged(room, room->honest), 0);
}

static void a_slot_that_is_not_the_workers_is_corrupt(void **state) {
    struct room *room = *state;
    const uint32_t slots[] = {room->honest.slot + 1, room->scene.arena->layout.slot_count, UINT32_MAX};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        struct hr__record record = room->honest;
        record.slot = slots[i];
        assert_int_equal(receive_forged(room, record), HR_E_CORRUPT);
        assert_non_null(strstr(hr_error_message(), "worker 0"));
    }
    assert_int_equal(receive_forged(room, room->honest), 0);
}

static void another_generation_is_corrupt(void **state) {
    struct room *room = *state;
    struct hr__record record = room->honest;
    record.generation++;
    assert_int_equal(receive_forged(room, record), HR_E_CORRUPT);
    record.generation = 0;
    assert_int_equal(receive_forged(room, record), HR_E_CORRUPT);
}

static void the_same_batch_twice_is_corrupt(void **state) {
    struct room *room = *state;
    assert_int_equal(receive_forged(room, room->honest), 0);
    assert_int_equal(receive_forged(room, room->honest), HR_E_CORRUPT);
}

static void a_length_beyond_what_is_committed_is_corrupt(void **state) {
    struct room *room = *state;
    const uint64_t lengths[] = {64 * KIB + 1, UINT64_C(1) << 40, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct hr__record record = room->honest;
        record.bytes = lengths[i];
        assert_int_equal(receive_forged(room, record), HR_E_CORRUPT);
    }
}

static void committed_bytes_beyond_the_allowance_are_corrupt(void **state) {
    struct room *room = *state;
    struct hr__slot *slot = hr__layout_slot(&room->scene.arena->layout, room->honest.slot);
    struct hr__record record = room->honest;
    atomic_store(&slot->committed_bytes, UINT64_C(1) << 40);
    record.bytes = UINT64_C(1) << 39;
    assert_int_equal(receive_forged(room, record), HR_E_CORRUPT);
}

static void another_workers_slot_is_corrupt(void **state) {
    struct room *room = *state;
    room->forger = room->scene.arena->peers[1].completions;
    struct hr_delivery *delivery = NULL;
    assert_int_equal(hr__ring_push(&room->forger, &room->honest), 0);
    assert_int_equal(hr__arena_receive(room->scene.arena, 1, in_s(PATIENCE_S), &delivery), HR_E_CORRUPT);
    assert_null(delivery);
}

static void a_damaged_index_is_corrupt_and_names_the_worker(void **state) {
    struct room *room = *state;
    struct hr_delivery *delivery = NULL;
    atomic_store(&room->forger.shared->tail, UINT64_C(1) << 50);
    assert_int_equal(hr__arena_receive(room->scene.arena, HR_ANY_WORKER, in_s(PATIENCE_S), &delivery), HR_E_CORRUPT);
    assert_non_null(strstr(hr_error_message(), "worker 0"));
}

static void an_ask_without_a_grant_changes_nothing(void **state) {
    struct room *room = *state;
    struct hr__worker *record = hr__layout_worker(&room->scene.arena->layout, 1);
    struct hr_delivery *delivery;
    atomic_store(&record->ask_bytes, UINT64_C(1) << 20);
    atomic_store(&record->ask, 7);
    atomic_fetch_add(&room->scene.arena->layout.header->asks, 1);
    uint64_t used = report_of(&room->scene).used_bytes;
    assert_int_equal(hr__arena_receive(room->scene.arena, 1, now_ns() + 2000000, &delivery), -ETIMEDOUT);
    assert_int_equal(report_of(&room->scene).used_bytes, used);
    must(work_once(room->port, in_s(PATIENCE_S)));
    hr_delivery_done(expect(&room->scene, 0, 5, 64));
}

static void cores_are_shared_by_the_workers_of_all_trainers(void **state) {
    struct room *room = *state; /* two workers */
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    uint32_t cores = hr__usable_core_count();
    assert_int_equal(hr_port_core_share(room->port, 1), cores / 2);
    assert_int_equal(hr_port_core_share(room->port, 0), cores / 2);
    assert_int_equal(hr_port_core_share(room->port, cores), 0);
    assert_int_equal(hr_port_core_share(room->port, UINT32_C(1) << 31), 0); /* twice that is 2^32 */
    assert_int_equal(hr_port_core_share(room->port, UINT32_MAX), 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(hr_port_core_share(room->port, 1), 0);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

enum { SAMPLES = 64, SAMPLE_BYTES = 3 * 224 * 224 * 4, BLOCKS = 4, BLOCK_BYTES = 40 * MIB };

/* One that a compiler does not leave out for never being read. */
static void *make_block(size_t bytes) {
    void *block = malloc(bytes);
    check(block);
    memset(block, 1, bytes);
    __asm__ volatile("" : : "r"(block) : "memory");
    return block;
}

/* Makes blocks and frees them. Gives the pages that were faulted in. */
static long make_blocks(int count, size_t bytes) {
    struct rusage before, after;
    void *blocks[SAMPLES];
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < count; i++) blocks[i] = make_block(bytes);
    for (int i = 0; i < count; i++) free(blocks[i]);
    getrusage(RUSAGE_SELF, &after);
    return after.ru_minflt - before.ru_minflt;
}

/* Calls `run` in a child, because the configuration of malloc cannot be undone. */
static void assert_of_malloc(struct room *room, void (*run)(hr_port *)) {
    if (IS_SANITIZED || hr__available_memory() < UINT64_C(2) << 30)
        skip(); /* another malloc, or no room to keep it in */
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* each page has its own fault */
        run(room->port);
        _exit(0);
    }
    assert_child_succeeds(pid);
}

static void keep_samples(hr_port *port) {
    uint64_t kept = hr_port_keep_heap(port, 1);
    check(kept >= (uint64_t)SAMPLES * SAMPLE_BYTES && kept <= INT32_MAX);
    make_blocks(SAMPLES, SAMPLE_BYTES);
    check(make_blocks(SAMPLES, SAMPLE_BYTES) <= SAMPLES);
}

static void the_memory_of_samples_is_kept_for_the_next_batch(void **state) {
    assert_of_malloc(*state, keep_samples);
}

static void keep_large_blocks(hr_port *port) {
    const long pages = BLOCK_BYTES / (long)hr__page_bytes();
    check(hr_port_keep_heap(port, 1) >= 2 * BLOCK_BYTES);
    make_blocks(1, BLOCK_BYTES);
    hr_port_keep_blocks(port, BLOCK_BYTES / 2);
    check(make_blocks(1, BLOCK_BYTES) >= pages);
    hr_port_keep_blocks(port, BLOCK_BYTES);
    make_blocks(1, BLOCK_BYTES);
    check(make_blocks(1, BLOCK_BYTES) <= pages / 10);
}

static void larger_blocks_are_kept_when_a_batch_has_come_from_them(void **state) {
    assert_of_malloc(*state, keep_large_blocks);
}

/* Keeps the memory that is allocated behind each block. */
static void leave_holes(hr_port *port) {
    const uint64_t kept = 3 * BLOCK_BYTES;
    void *blocks[BLOCKS];
    (void)port;
    check(hr__keep_heap(kept) == kept);
    hr__keep_blocks(BLOCK_BYTES, kept);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = make_block(BLOCK_BYTES);
        make_block(MIB);
    }
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    uint64_t resident = hr__resident_bytes((int)hr__pid());
    hr__keep_blocks(BLOCK_BYTES, kept);
    check(hr__resident_bytes((int)hr__pid()) + 3 * BLOCK_BYTES < resident);
}

static void holes_between_larger_blocks_are_returned(void **state) {
    assert_of_malloc(*state, leave_holes);
}

static void keep_heap_respects_malloc_environment(void **state) {
    static const char *const chosen[][2] = {{"MALLOC_TRIM_THRESHOLD_", "131072"},
                                            {"MALLOC_MMAP_THRESHOLD_", "131072"},
                                            {"GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072"},
                                            {"GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072"}};
    struct room *room = *state;
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++) {
        setenv(chosen[i][0], chosen[i][1], 1);
        assert_int_equal(hr_port_keep_heap(room->port, 1), 0);
        unsetenv(chosen[i][0]);
    }
    assert_int_equal(hr_port_keep_heap(room->port, UINT32_MAX), 0); /* a share of nothing */
}

static void map_large_blocks(hr_port *port) {
    setenv("MALLOC_MMAP_MAX_", "65536", 1);
    hr_port_keep_heap(port, 1);
    hr_port_keep_blocks(port, BLOCK_BYTES);
    make_blocks(1, BLOCK_BYTES);
    check(make_blocks(1, BLOCK_BYTES) >= BLOCK_BYTES / (long)hr__page_bytes());
}

static void keep_blocks_respects_malloc_environment(void **state) {
    assert_of_malloc(*state, map_large_blocks);
}

/* ---- and a trainer that lies ---- */

static int take_forged(struct room *room, struct hr__record record) {
    struct hr_task task;
    hr__ring_push(&room->scene.arena->peers[1].grants, &record);
    hr_port *port = open_port_here(&room->scene, 1);
    int r = hr_port_take(port, in_s(PATIENCE_S), &task);
    hr_port_close(port);
    return r;
}

static void an_invalid_grant_is_corrupt(void **state) {
    struct room *room = *state;
    uint32_t slots = room->scene.arena->layout.slot_count;
    const struct hr__record forged[] = {
        {.slot = slots, .windows = 1},
        {.slot = 0, .windows = 0},
        {.slot = slots - 1, .windows = 2},
        {.slot = 0, .windows = 1, .allowance = UINT64_MAX},
        {.slot = 0, .windows = 1, .allowance = 64, .bytes = 65},
    };
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++)
        assert_int_equal(take_forged(room, forged[i]), HR_E_CORRUPT);
}

static void a_port_on_something_else_is_refused_and_the_descriptors_stay_the_callers(void **state) {
    struct room *room = *state;
    struct hr_worker_fds fds;
    hr_port *port = (hr_port *)room;
    FILE *file = tmpfile();
    int before = count_descriptors();
    must(hr__arena_open_worker_fds(room->scene.arena, 0, &fds));
    int memory_fd = fds.memory_fd;
    fds.memory_fd = fileno(file);
    assert_int_equal(hr_port_open(&fds, &port), HR_E_CORRUPT); /* empty */
    assert_int_equal(ftruncate(fileno(file), 1 << 20), 0);
    assert_int_equal(hr_port_open(&fds, &port), HR_E_CORRUPT); /* zeros */
    fds.memory_fd = memory_fd;
    fds.worker = 2;
    assert_int_equal(hr_port_open(&fds, &port), -EINVAL);
    assert_ptr_equal(port, room);
    assert_int_equal(count_descriptors(), before + 4);
    hr_worker_fds_close(&fds);
    assert_int_equal(count_descriptors(), before);
    fclose(file);
}

static void a_note_and_the_process_are_there_for_reports(void **state) {
    struct room *room = *state;
    struct hr__worker *record = hr__layout_worker(&room->scene.arena->layout, 0);
    hr_port_note(room->port, 4711);
    assert_int_equal(atomic_load(&record->sample), 4711);
    assert_int_equal(atomic_load(&record->pid), getpid());
    struct hr_worker_status status;
    hr_port_note_making(room->port, 0, 0);
    hr_port_note_making(room->port, 3, 4711);
    hr_port_note_making(room->port, HR_MAKING_THREADS, 1); /* is not recorded */
    must(hr__arena_worker_status(room->scene.arena, 0, &status));
    for (int i = 0; i < HR_MAKING_THREADS; i++)
        assert_true(status.making[i] == (i == 0 ? 0 : i == 3 ? 4711 : HR_NO_SAMPLE));
    hr_port_note_making(room->port, 3, HR_NO_SAMPLE);
    hr_port_note_oldest(room->port, 21, 4711);
    must(hr__arena_worker_status(room->scene.arena, 0, &status));
    assert_int_equal(status.making[0], 21);
    hr_port_note_oldest(room->port, HR_NO_SAMPLE, 0);
    must(hr__arena_worker_status(room->scene.arena, 0, &status));
    assert_true(status.making[0] == HR_NO_SAMPLE && status.making[3] == HR_NO_SAMPLE);
    must(work_once(room->port, in_s(PATIENCE_S)));
    assert_int_equal(atomic_load(&record->done_count), 1);
}

/* ---- looking ahead ---- */

static void the_tasks_behind_the_current_one_can_be_looked_at(void **state) {
    struct room *room = *state;
    struct hr_task task;
    must(order(&room->scene, 0, 6, 64));
    assert_int_equal(hr_port_look(room->port, 0, 0, &task), 1);
    assert_int_equal(task.task, 5);
    assert_int_equal(hr_port_look(room->port, 1, 0, &task), 1);
    assert_int_equal(task.task, 6);
    assert_int_equal(hr_port_look(room->port, 2, 0, &task), -ETIMEDOUT);
    must(hr_port_take(room->port, in_s(PATIENCE_S), &task)); /* looking takes nothing */
    assert_int_equal(task.task, 5);
    assert_int_equal(hr_port_look(room->port, 0, 0, &task), 1);
    assert_int_equal(task.task, 6);
    must(hr_port_publish(room->port, HR_STATUS_SKIPPED, 0));
    must(hr_port_take(room->port, in_s(PATIENCE_S), &task));
    assert_int_equal(task.task, 6);
}

static void nothing_behind_a_task_that_is_no_batch_is_looked_at(void **state) {
    struct room *room = *state;
    struct hr_task task;
    must(hr__arena_grant(room->scene.arena, 0, HR__BATCH_KIND + 1, 6, NULL, 0));
    must(order(&room->scene, 0, 7, 64));
    assert_int_equal(hr_port_look(room->port, 1, 0, &task), 1);
    assert_int_equal(task.kind, HR__BATCH_KIND + 1);
    assert_int_equal(hr_port_look(room->port, 2, 0, &task), -ETIMEDOUT);
}

static void *ring(void *port) {
    hr_port_ring(port);
    return NULL;
}

static void a_ring_ends_a_look_once(void **state) {
    struct room *room = *state;
    struct hr_task task;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, ring, room->port), 0);
    assert_int_equal(hr_port_look(room->port, 1, in_s(PATIENCE_S), &task), 0);
    pthread_join(thread, NULL);
    assert_int_equal(hr_port_look(room->port, 1, 0, &task), -ETIMEDOUT);
    hr_port_ring(room->port);                                                  /* before it looks */
    assert_int_equal(hr_port_look(room->port, 0, in_s(PATIENCE_S), &task), 1); /* a grant comes first */
    assert_int_equal(hr_port_look(room->port, 1, in_s(PATIENCE_S), &task), 0);
    assert_int_equal(hr_port_look(room->port, 1, 0, &task), -ETIMEDOUT);
}

static void a_look_ends_with_the_arena(void **state) {
    struct room *room = *state;
    struct hr_task task;
    hr_arena_stop(room->scene.arena);
    assert_int_equal(hr_port_look(room->port, 0, in_s(PATIENCE_S), &task), HR_E_CLOSED);
}

static void an_invalid_grant_is_corrupt_for_a_look(void **state) {
    struct room *room = *state;
    struct hr_task task;
    struct hr__ring grants = room->scene.arena->peers[0].grants;
    struct hr__record record = {.task = 6, .slot = 1 << 20, .windows = 1};
    must(hr__ring_push(&grants, &record));
    assert_int_equal(hr_port_look(room->port, 0, 0, &task), 1);
    assert_int_equal(hr_port_look(room->port, 1, 0, &task), HR_E_CORRUPT);
}

static void the_time_of_a_sample_that_a_thread_made_is_counted(void **state) {
    struct room *room = *state;
    struct hr_task task;
    struct hr__sight *sight = hr__layout_sight(&room->scene.arena->layout, 0);
    must(hr_port_take(room->port, in_s(PATIENCE_S), &task));
    hr_port_count_sample(room->port, 17, 5000000);
    hr_port_count_sample(room->port, 18, 9000000);
    assert_int_equal(atomic_load(&sight->samples.sum_ns), 14000000);
    assert_int_equal(atomic_load(&sight->samples.worst_ns), 9000000);
    assert_int_equal(atomic_load(&sight->samples.worst_index), 18);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_room, close_room)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(no_more_is_published_than_was_reserved),
        TEST(a_valid_record_is_accepted),
        TEST(a_slot_that_is_not_the_workers_is_corrupt),
        TEST(another_generation_is_corrupt),
        TEST(the_same_batch_twice_is_corrupt),
        TEST(a_length_beyond_what_is_committed_is_corrupt),
        TEST(committed_bytes_beyond_the_allowance_are_corrupt),
        TEST(another_workers_slot_is_corrupt),
        TEST(a_damaged_index_is_corrupt_and_names_the_worker),
        TEST(an_ask_without_a_grant_changes_nothing),
        TEST(cores_are_shared_by_the_workers_of_all_trainers),
        TEST(the_memory_of_samples_is_kept_for_the_next_batch),
        TEST(larger_blocks_are_kept_when_a_batch_has_come_from_them),
        TEST(holes_between_larger_blocks_are_returned),
        TEST(keep_heap_respects_malloc_environment),
        TEST(keep_blocks_respects_malloc_environment),
        TEST(an_invalid_grant_is_corrupt),
        TEST(a_port_on_something_else_is_refused_and_the_descriptors_stay_the_callers),
        TEST(a_note_and_the_process_are_there_for_reports),
        TEST(the_tasks_behind_the_current_one_can_be_looked_at),
        TEST(nothing_behind_a_task_that_is_no_batch_is_looked_at),
        TEST(a_ring_ends_a_look_once),
        TEST(a_look_ends_with_the_arena),
        TEST(an_invalid_grant_is_corrupt_for_a_look),
        TEST(the_time_of_a_sample_that_a_thread_made_is_counted),
    };
    return cmocka_run_group_tests_name("port", tests, NULL, NULL);
}
