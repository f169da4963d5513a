/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/arena_scene.h"
#include "arena/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <headrace/face/show.h>

#include "arena/ledger.h"
#include "arena/look.h"
#include "os/os.h"

/* The numbers that observers see of a loader; they believe nothing that they read. */

enum { BYTES = 1000, WORKERS = 2 };

static const struct hr_show_who who = {.name = "train.py:88", .rank = 1, .world_size = 4, .recording = 99};

/* A loader whose worker 0 is in this process. */
struct room {
    struct scene scene;
    hr_show *show;
    hr_port *port;
    int fd; /* an observer's */
};

static int open_for_reading(int memory_fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory_fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void open_arena_of(struct room *room) {
    set_scene(&room->scene, WORKERS, 4, 64 << 20);
    hr_show_attach(room->show, room->scene.arena, 8);
    room->port = open_port_here(&room->scene, 0);
    room->fd = open_for_reading(room->scene.arena->memory_fd);
}

static void close_arena_of(struct room *room) {
    close(room->fd);
    room->port = hr_port_close(room->port);
    clear_scene(&room->scene);
}

static void open_room(struct room *room) {
    room->show = hr_show_open(&who);
    assert_non_null(room->show);
    open_arena_of(room);
    hr_show_begin(room->show, 3, 0);
}

static void close_room(struct room *room) {
    close_arena_of(room);
    room->show = hr_show_close(room->show);
}

/* A worker makes a batch of sample `index`, and the loop takes it. */
static void step(struct room *room, uint64_t index) {
    struct hr_task task;
    struct hr_show_visit visit;
    struct hr_delivery *delivery;
    void *data;
    must(order(&room->scene, 0, index, BYTES));
    must(hr_port_take(room->port, in_s(PATIENCE_S), &task));
    hr_port_note_index(room->port, 0, index);
    hr_port_note_last(room->port, 1);
    must(hr_port_reserve(room->port, BYTES, &data));
    must(hr_port_publish(room->port, HR_STATUS_BATCH, BYTES));
    hr_show_enter(room->show, &visit);
    must(hr__arena_receive(room->scene.arena, 0, in_s(PATIENCE_S), &delivery));
    hr_show_leave(room->show, &visit, HR_SHOW_BATCH, 5, 2);
    hr_delivery_done(delivery);
}

static uint64_t count_times(const struct hr_times *times) {
    uint64_t count = 0;
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) count += times->buckets[i];
    return count;
}

static void an_observer_sees_what_a_loader_shows(void **state) {
    struct room room;
    struct hr_arena_look look;
    struct hr_worker_look workers[WORKERS];
    (void)state;
    open_room(&room);
    for (uint64_t i = 0; i < 3; i++) step(&room, 100 + i);
    must(hr_arena_look(room.fd, &look, workers, WORKERS));
    assert_string_equal(look.name, "train.py:88");
    assert_int_equal(look.rank, 1);
    assert_int_equal(look.world_size, 4);
    assert_int_equal(look.recording, 99);
    assert_int_equal(look.trainer_pid, getpid());
    assert_int_equal(look.worker_count, WORKERS);
    assert_int_equal(look.queue_room, 8);
    assert_int_equal(look.queue_count, 2); /* those that are pinned */
    assert_int_equal(look.epoch, 3);
    assert_int_equal(look.step, 3);
    assert_int_equal(look.batches, 3);
    assert_int_equal(look.samples, 15);
    assert_int_equal(look.bytes, 3 * BYTES);
    assert_int_equal(look.starts, 1);
    assert_true(look.start_ns > 0 && look.inside_ns > 0);
    assert_int_equal(look.step_us[1], HR_LOOK_NO_STEP);
    assert_int_not_equal(look.step_us[2], HR_LOOK_NO_STEP);
    uint64_t now_us = (uint64_t)hr__now_ns() / 1000;
    assert_true((uint32_t)((uint32_t)now_us - look.step_end_us[1]) < 60 * 1000 * 1000); /* the first one is timed */
    assert_int_equal(look.step_end_us[4], 0);
    assert_int_equal(workers[0].status.pid, getpid());
    assert_int_equal(workers[0].status.done_count, 3);
    assert_int_equal(workers[0].index, HR_NO_SAMPLE); /* of none at the moment */
    assert_int_equal(workers[0].samples.worst_index / 100, 1);
    assert_in_range(count_times(&workers[0].collates), 1, 3); /* those that are not timed are counted later */
    assert_int_equal(workers[1].status.pid, 0);
    close_room(&room);
}

static void a_glance_sees_the_sample_that_a_worker_reads(void **state) {
    struct room room;
    struct hr_task task;
    struct hr__glance glances[WORKERS];
    void *data;
    (void)state;
    open_room(&room);
    must(order(&room.scene, 0, 7, BYTES));
    must(hr_port_take(room.port, in_s(PATIENCE_S), &task));
    hr_port_note_index(room.port, 0, 123);
    assert_int_equal(hr__arena_glance(room.fd, glances, WORKERS), WORKERS);
    assert_int_equal(glances[0].phase, HR_PHASE_FETCH);
    assert_int_equal(glances[0].task, 7);
    assert_int_equal(glances[0].index, 123);
    assert_int_equal(glances[1].index, HR_NO_SAMPLE);
    hr_port_note_oldest(room.port, 5, 456); /* of those that threads make */
    assert_int_equal(hr__arena_glance(room.fd, glances, 1), WORKERS);
    assert_int_equal(glances[0].index, 456);
    hr_port_note_oldest(room.port, HR_NO_SAMPLE, 456);
    assert_int_equal(hr__arena_glance(room.fd, glances, 1), WORKERS);
    assert_int_equal(glances[0].index, HR_NO_SAMPLE);
    must(hr_port_reserve(room.port, BYTES, &data));
    must(hr_port_publish(room.port, HR_STATUS_BATCH, BYTES));
    assert_int_equal(hr__arena_glance(room.fd, glances, 1), WORKERS);
    assert_int_equal(glances[0].phase, HR_PHASE_WAIT);
    close_room(&room);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(hr__arena_glance(null, glances, WORKERS), HR_E_CORRUPT);
    close(null);
}

static void published_batches_are_counted_in_the_queue(void **state) {
    struct room room;
    struct hr_arena_look look;
    (void)state;
    open_room(&room);
    for (uint64_t i = 0; i < 3; i++) {
        must(order(&room.scene, 0, i, BYTES));
        must(work_once(room.port, in_s(PATIENCE_S)));
    }
    must(hr_arena_look(room.fd, &look, NULL, 0));
    assert_int_equal(look.queue_count, 3);
    close_room(&room);
}

/* Workers that do not persist get a new arena in each epoch. */
static void counts_go_on_in_the_next_arena(void **state) {
    struct room room;
    struct hr_arena_look before, after;
    struct hr_worker_look workers[2][WORKERS];
    (void)state;
    open_room(&room);
    for (uint64_t i = 0; i < 3; i++) step(&room, i);
    must(hr_arena_look(room.fd, &before, workers[0], WORKERS));
    close_arena_of(&room);
    open_arena_of(&room);
    must(hr_arena_look(room.fd, &after, workers[1], WORKERS));
    assert_int_equal(after.batches, before.batches);
    assert_int_equal(after.bytes, before.bytes);
    assert_int_equal(after.loader, before.loader);
    assert_true(after.inside_ns >= before.inside_ns && after.wait_ns >= before.wait_ns);
    assert_int_equal(workers[1][0].status.done_count, 3);
    assert_memory_equal(&workers[1][0].samples, &workers[0][0].samples, sizeof workers[0][0].samples);
    step(&room, 9);
    must(hr_arena_look(room.fd, &after, workers[1], WORKERS));
    assert_int_equal(after.batches, before.batches + 1);
    assert_int_equal(after.bytes, before.bytes + BYTES);
    assert_int_equal(workers[1][0].status.done_count, 4);
    close_room(&room);
}

/* Short batches are timed one in n, which count n times. */
static void short_samples_are_all_counted(void **state) {
    enum { STEPS = 5000 };
    struct room room;
    struct hr_arena_look look;
    struct hr_worker_look worker;
    (void)state;
    open_room(&room);
    for (uint64_t i = 0; i < STEPS; i++) step(&room, i);
    must(hr_arena_look(room.fd, &look, &worker, 1));
    assert_int_equal(look.batches, STEPS);
    assert_in_range(count_times(&worker.samples), STEPS - STEPS / 4, STEPS);
    assert_in_range(count_times(&worker.collates), STEPS - STEPS / 4, STEPS);
    assert_true(worker.timed_batches <= STEPS);
    close_room(&room);
}

static void the_last_batches_of_a_worker_can_be_read(void **state) {
    enum { STEPS = 300 };
    struct room room;
    struct hr_batch_look batches[STEPS];
    (void)state;
    open_room(&room);
    for (uint64_t i = 0; i < STEPS; i++) {
        usleep(120); /* so long that each is timed */
        step(&room, i);
    }
    int count = hr__arena_look_batches(room.fd, 0, 0, batches, STEPS);
    assert_in_range(count, 1, 256);
    for (int i = 1; i < count; i++) assert_int_equal(batches[i].number, batches[0].number + (uint64_t)i);
    const struct hr_batch_look *last = &batches[count - 1];
    assert_int_equal(last->bytes, BYTES);
    assert_true(last->task < STEPS && last->began_ns > 0);
    assert_int_equal(hr__arena_look_batches(room.fd, 0, last->number - 2, batches, STEPS), 2);
    assert_int_equal(hr__arena_look_batches(room.fd, WORKERS, 0, batches, STEPS), -EINVAL);
    close_room(&room);
}

static uint64_t blocks_of(int fd) {
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    return (uint64_t)info.st_blocks;
}

static void looking_takes_no_memory_of_the_job(void **state) {
    struct room room;
    struct hr_arena_look look;
    struct hr_worker_look workers[WORKERS];
    (void)state;
    open_room(&room);
    uint64_t blocks = blocks_of(room.fd);
    for (int i = 0; i < 10; i++) must(hr_arena_look(room.fd, &look, workers, WORKERS));
    assert_int_equal(blocks_of(room.fd), blocks);
    close_room(&room);
}

/* ---- memory that is not what it seems ---- */

/* A copy of the arena's head, which a test damages. */
static int copy_of(const struct room *room, unsigned char **ret_bytes, size_t *ret_size) {
    struct stat info;
    fstat(room->fd, &info);
    int fd = (int)syscall(SYS_memfd_create, "copy", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, info.st_size), 0);
    *ret_size = (size_t)room->scene.arena->layout.head_end;
    *ret_bytes = mmap(NULL, *ret_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(*ret_bytes != MAP_FAILED);
    assert_int_equal(pread(room->fd, *ret_bytes, *ret_size, 0), (ssize_t)*ret_size);
    return fd;
}

static int look_at(int fd) {
    struct hr_arena_look look;
    struct hr_worker_look workers[WORKERS];
    return hr_arena_look(fd, &look, workers, WORKERS);
}

static void damaged_memory_is_refused(void **state) {
    struct room room;
    unsigned char *bytes;
    size_t size;
    (void)state;
    open_room(&room);
    step(&room, 1);
    int fd = copy_of(&room, &bytes, &size);
    must(look_at(fd));
    struct hr__header *header = (struct hr__header *)bytes;
    struct hr__shown *shown = hr__shown_of(header), saved = *shown;

    shown->magic ^= 1;
    assert_int_equal(look_at(fd), HR_E_VERSION);
    assert_non_null(strstr(hr_error_message(), "another version"));
    *shown = saved;
    shown->version = 0;
    assert_int_equal(look_at(fd), HR_E_VERSION);
    *shown = saved;
    shown->version = 99; /* a newer one only has more */
    shown->bytes = sizeof *shown + 64;
    must(look_at(fd));
    *shown = saved;
    atomic_store(&shown->is_named, 0);
    assert_int_equal(look_at(fd), HR_E_STATE);
    *shown = saved;
    header->magic ^= 1;
    assert_int_equal(look_at(fd), HR_E_CORRUPT);
    header->magic ^= 1;
    atomic_store(&header->ready, 0);
    assert_int_equal(look_at(fd), HR_E_STATE);
    atomic_store(&header->ready, 1);

    uint64_t *places[] = {&shown->records_at, &shown->rings_at, &shown->sights_at};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        *places[i] = UINT64_MAX - 100;
        assert_int_equal(look_at(fd), HR_E_CORRUPT);
        *places[i] = (uint64_t)1 << 62;
        assert_int_equal(look_at(fd), HR_E_CORRUPT);
        *shown = saved;
    }
    shown->worker_count = UINT32_MAX;
    assert_int_equal(look_at(fd), HR_E_CORRUPT);
    *shown = saved;
    shown->record_bytes = 8;
    assert_int_equal(look_at(fd), HR_E_CORRUPT);
    *shown = saved;
    must(look_at(fd));
    munmap(bytes, size);
    close(fd);
    close_room(&room);
}

static void a_loader_that_shows_less_is_looked_at(void **state) {
    struct room room;
    struct hr_arena_look look;
    struct hr_worker_look workers[WORKERS];
    unsigned char *bytes;
    size_t size;
    (void)state;
    open_room(&room);
    step(&room, 1);
    int fd = copy_of(&room, &bytes, &size);
    struct hr__shown *shown = (void *)(bytes + HR__SHOWN_AT);
    struct hr__sight *sight = (void *)(bytes + shown->sights_at);
    atomic_store(&shown->network.hit_count, 5);
    atomic_store(&sight->network.wait_count, 6);
    must(hr_arena_look(fd, &look, workers, WORKERS));
    assert_true(look.network.hit_count == 5 && workers[0].network.wait_count == 6);
    shown->bytes = offsetof(struct hr__shown, network);
    shown->sight_bytes = offsetof(struct hr__sight, network);
    must(hr_arena_look(fd, &look, workers, WORKERS));
    assert_true(look.network.hit_count == 0 && workers[0].network.wait_count == 0);
    shown->sight_bytes--;
    assert_int_equal(hr_arena_look(fd, &look, workers, WORKERS), HR_E_CORRUPT);
    munmap(bytes, size);
    close(fd);
    close_room(&room);
}

/* Each byte of the parts that are read has any value: there is an error or a look, and the name ends. */
static void rubbish_is_no_crash(void **state) {
    struct room room;
    unsigned char *bytes;
    size_t size;
    unsigned seed = 1;
    (void)state;
    open_room(&room);
    step(&room, 1);
    int fd = copy_of(&room, &bytes, &size);
    for (int round = 0; round < 2000; round++) {
        size_t at = (size_t)rand_r(&seed) % size;
        if (round % 2) at = HR__SHOWN_AT + at % sizeof(struct hr__shown);
        unsigned char old = bytes[at];
        struct hr_arena_look look;
        struct hr_worker_look workers[WORKERS];
        bytes[at] = (unsigned char)rand_r(&seed);
        if (hr_arena_look(fd, &look, workers, WORKERS) == 0) {
            assert_true(strnlen(look.name, sizeof look.name) < sizeof look.name);
            assert_true(workers[0].status.phase < HR_PHASE_COUNT);
        }
        bytes[at] = old;
    }
    munmap(bytes, size);
    close(fd);
    close_room(&room);
}

static void memory_that_is_cut_is_refused(void **state) {
    struct room room;
    unsigned char *bytes;
    size_t size;
    (void)state;
    open_room(&room);
    int fd = copy_of(&room, &bytes, &size);
    munmap(bytes, size);
    static const off_t cuts[] = {HR__HEADER_ROOM + 100, HR__HEADER_ROOM, 100, 0};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        assert_int_equal(ftruncate(fd, cuts[i]), 0);
        assert_int_equal(look_at(fd), HR_E_CORRUPT);
    }
    close(fd);
    assert_true(look_at(-1) < 0);
    close_room(&room);
}

/* ---- without workers ---- */

static bool is_named(int memory_fd) {
    char name[64], line[512];
    int length = snprintf(name, sizeof name, "@headrace/%u/%d/%d", (unsigned)geteuid(), (int)getpid(), memory_fd);
    FILE *file = fopen("/proc/net/unix", "re");
    bool found = false;
    while (!found && file && fgets(line, sizeof line, file)) {
        char *at = strstr(line, name);
        found = at && (at[length] == '\n' || at[length] == '/');
    }
    if (file) fclose(file);
    return found;
}

/* The descriptor with the largest number that is an arena. */
static int find_page(void) {
    char path[64], target[128];
    for (int fd = 200; fd > 2; fd--) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length > 0 && strstr((target[length] = '\0', target), "/memfd:headrace-arena ")) return fd;
    }
    return -1;
}

static void a_loader_without_workers_has_a_page(void **state) {
    struct hr_arena_look look;
    struct hr_show_visit visit;
    int descriptors = count_descriptors();
    (void)state;
    hr_show *show = hr_show_open(&who);
    hr_show_attach_page(show);
    hr_show_begin(show, 7, 0);
    hr_show_enter(show, &visit);
    hr_show_leave(show, &visit, HR_SHOW_BATCH, 32, 0);
    int page = find_page();
    assert_true(page >= 0 && is_named(page));
    int fd = open_for_reading(page);
    must(hr_arena_look(fd, &look, NULL, 0));
    assert_int_equal(look.worker_count, 0);
    assert_int_equal(look.epoch, 7);
    assert_int_equal(look.samples, 32);
    close(fd);
    hr_show_close(show);
    assert_false(is_named(page));
    assert_int_equal(count_descriptors(), descriptors);
}

static void pages_take_few_descriptors(void **state) {
    enum { COUNT = HR_SHOW_MAX_PAGES + 5 };
    hr_show *shows[COUNT];
    int descriptors = count_descriptors();
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        shows[i] = hr_show_open(&who);
        hr_show_attach_page(shows[i]);
        hr_show_begin(shows[i], 0, 0);
    }
    assert_int_equal(count_descriptors(), descriptors + 2 * HR_SHOW_MAX_PAGES);
    for (int i = 0; i < COUNT; i++) hr_show_close(shows[i]);
    assert_int_equal(count_descriptors(), descriptors);
}

/* A child has neither the names nor the page, and what it counts is not seen. */
static void a_forked_child_shows_nothing(void **state) {
    struct room room;
    struct hr_arena_look look;
    (void)state;
    open_room(&room);
    hr_show *page = hr_show_open(&who);
    hr_show_attach_page(page);
    hr_show_begin(page, 1, 0);
    int fd = open_for_reading(find_page());
    pid_t pid = fork();
    if (pid == 0) {
        struct hr_show_visit visit;
        for (int i = 0; i < 2; i++) {
            hr_show *show = i ? page : room.show;
            hr_show_enter(show, &visit);
            hr_show_leave(show, &visit, HR_SHOW_BATCH, 1000, 0);
        }
        hr_show_attach_page(page);
        check(find_page() >= 0);
        hr_show_close(page);
        hr_show_close(room.show);
        _exit(0);
    }
    assert_child_succeeds(pid);
    must(hr_arena_look(fd, &look, NULL, 0));
    assert_int_equal(look.samples, 0);
    must(hr_arena_look(room.fd, &look, NULL, 0));
    assert_int_equal(look.samples, 0);
    close(fd);
    hr_show_close(page);
    close_room(&room);
}

#ifdef HR_FAILPOINTS
static void without_memory_or_sockets_counts_go_on(void **state) {
    static const char *const plans[] = {"socket:EPERM", "memfd_create:EPERM,shm_open:EPERM,tmp_open:EPERM",
                                        "fallocate:ENOSPC"};
    int descriptors = count_descriptors();
    (void)state;
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        struct hr_arena_look look;
        struct hr_show_visit visit;
        setenv("HEADRACE_FAIL", plans[i], 1);
        hr_show *show = hr_show_open(&who);
        hr_show_attach_page(show);
        unsetenv("HEADRACE_FAIL");
        hr_show_begin(show, 0, 0);
        hr_show_enter(show, &visit);
        hr_show_leave(show, &visit, HR_SHOW_BATCH, 3, 0);
        hr_show_read(show, &look, NULL, 0);
        assert_int_equal(look.samples, 3);
        hr_show_close(show);
        assert_int_equal(count_descriptors(), descriptors);
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_observer_sees_what_a_loader_shows),
        cmocka_unit_test(a_glance_sees_the_sample_that_a_worker_reads),
        cmocka_unit_test(published_batches_are_counted_in_the_queue),
        cmocka_unit_test(counts_go_on_in_the_next_arena),
        cmocka_unit_test(short_samples_are_all_counted),
        cmocka_unit_test(the_last_batches_of_a_worker_can_be_read),
        cmocka_unit_test(looking_takes_no_memory_of_the_job),
        cmocka_unit_test(damaged_memory_is_refused),
        cmocka_unit_test(a_loader_that_shows_less_is_looked_at),
        cmocka_unit_test(rubbish_is_no_crash),
        cmocka_unit_test(memory_that_is_cut_is_refused),
        cmocka_unit_test(a_loader_without_workers_has_a_page),
        cmocka_unit_test(pages_take_few_descriptors),
        cmocka_unit_test(a_forked_child_shows_nothing),
#ifdef HR_FAILPOINTS
        cmocka_unit_test(without_memory_or_sockets_counts_go_on),
#endif
    };
    return cmocka_run_group_tests_name("look", tests, NULL, NULL);
}
