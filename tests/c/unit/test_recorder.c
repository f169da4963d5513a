/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/arena_scene.h"
#include "arena/arena.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <headrace/face/show.h>

#include "arena/ledger.h"
#include "record/recorder.h"

/* The recorder looks at loaders of this process, which make batches when the test says so. */

enum { WORKERS = 2, BYTES = 1000, RECORDING = 99, LIMIT_BYTES = 8192 };

static char folder[64];

/* A loader whose worker 0 is in this process. */
struct room {
    struct scene scene;
    hr_show *show;
    hr_port *port;
};

static int set_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/hr-recorder-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return hr__folder_remove(folder);
}

static int keep_path(void *context, const char *name) {
    return snprintf(context, 200, "%s/%s", folder, name) > 0;
}

/* Opens the only file of the folder, and removes it. */
static hr_record *open_file(void) {
    char path[200] = "";
    hr_record *record = NULL;
    must(hr__folder_visit(folder, keep_path, path));
    must(hr_record_open(path, &record));
    unlink(path);
    return record;
}

static void open_arena(struct room *room, uint32_t worker_count) {
    set_scene(&room->scene, worker_count, 4, 64 << 20);
    hr_show_attach(room->show, room->scene.arena, 8);
    room->port = open_port_here(&room->scene, 0);
}

static void close_arena(struct room *room) {
    room->port = hr_port_close(room->port);
    clear_scene(&room->scene);
}

static void open_room(struct room *room) {
    room->show = hr_show_open(
        &(struct hr_show_who){.name = "folder/train it.py:88", .rank = 1, .world_size = 4, .recording = RECORDING});
    assert_non_null(room->show);
    open_arena(room, WORKERS);
    hr_show_begin(room->show, 3, 0);
}

static void close_room(struct room *room) {
    close_arena(room);
    room->show = hr_show_close(room->show);
}

/* A worker makes a batch of sample `index`, and the loop takes it. */
static void step_by(struct room *room, uint32_t worker, hr_port *port, uint64_t index) {
    struct hr_task task;
    struct hr_show_visit visit;
    struct hr_delivery *delivery;
    void *data;
    must(order(&room->scene, worker, index, BYTES));
    must(hr_port_take(port, in_s(PATIENCE_S), &task));
    hr_port_note_index(port, 0, index);
    hr_port_note_last(port, 1);
    must(hr_port_reserve(port, BYTES, &data));
    must(hr_port_publish(port, HR_STATUS_BATCH, BYTES));
    hr_show_enter(room->show, &visit);
    must(hr__arena_receive(room->scene.arena, worker, in_s(PATIENCE_S), &delivery));
    hr_show_leave(room->show, &visit, HR_SHOW_BATCH, 5, 2);
    hr_delivery_done(delivery);
}

static void step(struct room *room, uint64_t index) {
    step_by(room, 0, room->port, index);
}

/* Notes the memory, as a walk over descriptors does. Returns whether the recorder knew it. */
static bool note(hr_recorder *recorder, const struct room *room) {
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/self/fd/%d", room->scene.arena->memory_fd);
    must(stat(path, &info));
    if (hr__recorder_note(recorder, info.st_dev, info.st_ino)) return true;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    check(fd >= 0);
    must(hr__recorder_add(recorder, getpid(), fd));
    return false;
}

static uint64_t sum_batches(const hr_record *record) {
    struct hr_record_row row;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < hr_record_count(record, HR_RECORD_SECONDS); i++) {
        hr_record_read_row(record, HR_RECORD_SECONDS, i, &row);
        sum += row.batches;
    }
    return sum;
}

static void numbers_of_several_memories_are_in_one_file(void **state) {
    hr_recorder *recorder;
    struct room room;
    struct hr_record_info info;
    struct hr_record_step last;
    (void)state;
    must(hr_recorder_open(folder, RECORDING, &recorder));
    open_room(&room);
    step(&room, 7);
    assert_false(note(recorder, &room));
    assert_true(note(recorder, &room));
    step(&room, 8);
    hr_recorder_glance(recorder);
    must(hr_recorder_look(recorder));
    close_arena(&room);
    must(hr_recorder_look(recorder)); /* nothing was noted: the memory is gone */
    open_arena(&room, WORKERS);
    hr_show_begin(room.show, 4, 0);
    step(&room, 9);
    assert_false(note(recorder, &room));
    must(hr_recorder_look(recorder));
    usleep(20000); /* a rest of less than 10 ms is no row */
    must(hr_recorder_end(recorder, HR_RECORD_JOB_ENDED));
    close_room(&room);

    hr_record *record = open_file();
    const struct hr_record_identity *identity = hr_record_identity_of(record);
    assert_int_equal(identity->pid, getpid());
    assert_int_equal(identity->worker_count, WORKERS);
    assert_string_equal(identity->name, "folder/train it.py:88");
    assert_int_equal(sum_batches(record), 3);
    assert_int_equal(hr_record_count(record, HR_RECORD_STEPS), 3);
    hr_record_read_step(record, 2, &last);
    assert_int_equal(last.epoch, 4);
    assert_int_equal(last.step, 1);
    hr_record_look(record, &info);
    assert_int_equal(info.end, HR_RECORD_JOB_ENDED);
    hr_record_close(record);
}

/* The look sees two epochs at once: the counts say how many steps the first one had. */
static void steps_before_an_epoch_ended_are_recorded(void **state) {
    hr_recorder *recorder;
    struct room room;
    struct hr_record_step found;
    (void)state;
    must(hr_recorder_open(folder, 0, &recorder));
    open_room(&room);
    for (uint64_t i = 0; i < 3; i++) step(&room, i);
    assert_false(note(recorder, &room));
    must(hr_recorder_look(recorder));
    for (uint64_t i = 0; i < 4; i++) step(&room, i);
    hr_show_begin(room.show, 4, 0);
    for (uint64_t i = 0; i < 2; i++) step(&room, i);
    assert_true(note(recorder, &room));
    must(hr_recorder_look(recorder));
    must(hr_recorder_end(recorder, HR_RECORD_STOPPED));
    close_room(&room);

    hr_record *record = open_file();
    static const uint64_t wanted[][2] = {{3, 1}, {3, 2}, {3, 3}, {3, 4}, {3, 5}, {3, 6}, {3, 7}, {4, 1}, {4, 2}};
    assert_int_equal(hr_record_count(record, HR_RECORD_STEPS), 9);
    for (uint64_t i = 0; i < 9; i++) {
        hr_record_read_step(record, i, &found);
        assert_int_equal(found.epoch, wanted[i][0]);
        assert_int_equal(found.step, wanted[i][1]);
    }
    hr_record_close(record);
}

static void look_after(hr_recorder *recorder, const struct room *room, useconds_t us) {
    usleep(us);
    assert_true(note(recorder, room));
    must(hr_recorder_look(recorder));
}

/* Worker 1 is parked before its first task, and again after it. */
/* The kernel counts CPU time in ticks of up to 10 ms. */
static void use_cpu(void) {
    struct timespec used;
    int64_t begun_ns = 0, now_ns = 0;
    do {
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
        now_ns = used.tv_sec * INT64_C(1000000000) + used.tv_nsec;
        if (!begun_ns) begun_ns = now_ns;
    } while (now_ns - begun_ns < 50000000);
}

static void waiting_of_parked_workers_does_not_count(void **state) {
    enum { LONG_US = 200000, LONG_NS = LONG_US * 1000 };
    hr_recorder *recorder;
    struct room room;
    struct hr_record_row row;
    struct hr_record_worker worker;
    (void)state;
    must(hr_recorder_open(folder, 0, &recorder));
    open_room(&room);
    hr_port *port = open_port_here(&room.scene, 1);
    hr_show_use(room.show, 1, 2);
    step(&room, 1);
    assert_false(note(recorder, &room));
    look_after(recorder, &room, LONG_US);
    hr_show_use(room.show, 2, 4);
    look_after(recorder, &room, 0); /* it has no task yet */
    step_by(&room, 1, port, 2);
    look_after(recorder, &room, 0);
    use_cpu();
    hr_show_use(room.show, 1, 2);
    look_after(recorder, &room, LONG_US);
    step(&room, 3);
    must(hr_recorder_end(recorder, HR_RECORD_STOPPED));
    hr_port_close(port);
    close_room(&room);

    hr_record *record = open_file();
    assert_int_equal(hr_record_count(record, HR_RECORD_SECONDS), 1);
    hr_record_read_row(record, HR_RECORD_SECONDS, 0, &row);
    assert_int_equal(row.used_workers, 1);
    assert_in_range(row.trainer_cpu_ns, 1, INT64_MAX);
    hr_record_read_worker(record, HR_RECORD_SECONDS, 0, 0, &worker);
    assert_in_range(worker.wait_ns, LONG_NS, INT64_MAX);
    hr_record_read_worker(record, HR_RECORD_SECONDS, 0, 1, &worker);
    assert_in_range(worker.wait_ns, 0, LONG_NS / 2);
    hr_record_close(record);
}

static void other_loaders_are_not_recorded(void **state) {
    hr_recorder *recorder;
    struct room room;
    (void)state;
    must(hr_recorder_open(folder, RECORDING + 1, &recorder));
    open_room(&room);
    assert_false(note(recorder, &room));
    assert_true(note(recorder, &room)); /* it is remembered that this is another one */
    must(hr_recorder_look(recorder));
    assert_int_equal(hr_recorder_count(recorder), 0);
    int rubbish = memfd_create("headrace-arena", MFD_CLOEXEC);
    must(ftruncate(rubbish, 1 << 20));
    must(hr__recorder_add(recorder, getpid(), rubbish));
    assert_int_equal(hr_recorder_count(recorder), 0);
    must(hr_recorder_end(recorder, HR_RECORD_STOPPED));
    close_room(&room);
}

static void a_file_that_cannot_grow_ends_the_recording(void **state) {
    struct rlimit before, small = {.rlim_cur = LIMIT_BYTES, .rlim_max = RLIM_INFINITY};
    hr_recorder *recorder;
    struct room room;
    struct hr_record_info info;
    (void)state;
    must(getrlimit(RLIMIT_FSIZE, &before));
    small.rlim_max = before.rlim_max;
    must(hr_recorder_open(folder, 0, &recorder));
    open_room(&room);
    assert_false(note(recorder, &room));
    step(&room, 1);
    must(setrlimit(RLIMIT_FSIZE, &small));
    assert_true(note(recorder, &room));
    assert_int_equal(hr_recorder_look(recorder), -EFBIG);
    assert_non_null(strstr(hr_error_message(), "the recording ends here, and the job goes on"));
    assert_int_equal(hr_recorder_end(recorder, HR_RECORD_STOPPED), -EFBIG);
    must(setrlimit(RLIMIT_FSIZE, &before));
    close_room(&room);
    hr_record *record = open_file();
    hr_record_look(record, &info);
    assert_int_equal(info.end, HR_RECORD_DISK_FULL);
    hr_record_close(record);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_several_memories_are_in_one_file),
        cmocka_unit_test(steps_before_an_epoch_ended_are_recorded),
        cmocka_unit_test(waiting_of_parked_workers_does_not_count),
        cmocka_unit_test(other_loaders_are_not_recorded),
        cmocka_unit_test(a_file_that_cannot_grow_ends_the_recording),
    };
    return cmocka_run_group_tests(tests, set_folder, remove_folder);
}
