/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/arena_scene.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "record/writer.h"

/* The file of a loader in a recording: what was written is read, and what is torn is left out. */

enum { WORKERS = 3, S = 1000000000 };

static char folder[64];

static const char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int set_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/hr-record-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(path_of("a.hrr"));
    return rmdir(folder);
}

static struct hr__record_writer create(uint32_t worker_count) {
    struct hr_record_identity identity = {.pid = 17,
                                          .loader = 2,
                                          .rank = 1,
                                          .world_size = 4,
                                          .worker_count = worker_count,
                                          .queue_room = 8,
                                          .core_count = 16,
                                          .opened_ns = 3,
                                          .began_ns = 5 * INT64_C(1000000000),
                                          .began_real_ns = 7,
                                          .name = "train.py:88",
                                          .host = "node07",
                                          .command = "python train.py",
                                          .version = "1.2"};
    struct hr__record_writer writer;
    unlink(path_of("a.hrr"));
    must(hr__record_create(path_of("a.hrr"), &identity, &writer));
    return writer;
}

static hr_record *open_again(void) {
    hr_record *record = NULL;
    must(hr_record_open(path_of("a.hrr"), &record));
    return record;
}

static uint64_t torn_count(const hr_record *record) {
    struct hr_record_info info;
    hr_record_look(record, &info);
    return info.torn_count;
}

/* Numbers of row `n`, all different, which their file form keeps. */
static struct hr_record_row row_of(uint64_t n) {
    return (struct hr_record_row){.at_ns = (int64_t)n * S,
                                  .real_ns = (int64_t)n * S + 5,
                                  .length_ns = S,
                                  .epoch = n / 10,
                                  .step = n % 10,
                                  .batches = n + 1,
                                  .samples = n + 2,
                                  .bytes = (n + 3) << 33,
                                  .errors = n + 4,
                                  .inside_ns = n * 1000,
                                  .start_ns = (n + 1) * 1000,
                                  .starts = n + 5,
                                  .wait_ns = (n + 2) * 1000,
                                  .pin_ns = (n + 3) * 1000,
                                  .draw_ns = (n + 4) * 1000,
                                  .rebuild_ns = (n + 5) * 1000,
                                  .restarts = n + 6,
                                  .bad_samples = n + 7,
                                  .queue_count = n + 8,
                                  .used_bytes = (n + 9) * KIB,
                                  .cores_busy = n + 10,
                                  .cores_allowed = n + 11,
                                  .throttled_ns = (n + 12) * 1000,
                                  .memory_available = (n + 13) * KIB,
                                  .used_workers = 1 + n % WORKERS,
                                  .trainer_cpu_ns = (n + 14) * 1000,
                                  .trainer_delay_ns = (n + 15) * 1000,
                                  .network_ns = (n + 16) * 1000,
                                  .hit_count = n + 17,
                                  .wait_count = n + 18,
                                  .fetched_bytes = (n + 19) * KIB,
                                  .requests = n + 20,
                                  .retries = n + 21};
}

static struct hr_record_worker worker_of(uint64_t n, uint32_t worker) {
    return (struct hr_record_worker){.fetch_ns = (n + worker) * 1000,
                                     .collate_ns = (n + worker + 100) * 1000,
                                     .wait_ns = (n + worker + 200) * 1000,
                                     .delay_ns = (n + worker + 250) * 1000,
                                     .cpu_ns = (n + worker + 300) * 1000,
                                     .private_bytes = (n + worker + 400) * KIB,
                                     .network_ns = (n + worker + 500) * 1000};
}

static void put_row(struct hr__record_writer *writer, enum hr_record_part part, uint64_t n) {
    struct hr_record_row row = row_of(n);
    struct hr_record_worker *workers = calloc(writer->worker_count + 1, sizeof *workers);
    check(workers != NULL);
    for (uint32_t i = 0; i < writer->worker_count; i++) workers[i] = worker_of(n, i);
    must(hr__record_put_row(writer, part, &row, workers));
    free(workers);
}

static void assert_row(const hr_record *record, enum hr_record_part part, uint64_t number, uint64_t n) {
    struct hr_record_row row, wanted = row_of(n);
    hr_record_read_row(record, part, number, &row);
    assert_memory_equal(&row, &wanted, sizeof row);
    for (uint32_t i = 0; i < hr_record_identity_of(record)->worker_count; i++) {
        struct hr_record_worker worker, its = worker_of(n, i);
        hr_record_read_worker(record, part, number, i, &worker);
        assert_memory_equal(&worker, &its, sizeof worker);
    }
}

static struct hr_record_batch batch_of(uint64_t n) {
    return (struct hr_record_batch){.worker = (uint32_t)(n % WORKERS),
                                    .look = {.number = n + 1,
                                             .task = n,
                                             .began_ns = n * 100,
                                             .fetch_ns = n + 20,
                                             .collate_ns = n + 30,
                                             .bytes = n * KIB,
                                             .slowest_index = n ? n : HR_NO_SAMPLE,
                                             .slowest_ns = n * 1000}};
}

static void assert_batch(const hr_record *record, uint64_t number, uint64_t n) {
    struct hr_record_batch batch, wanted = batch_of(n);
    hr_record_read_batch(record, number, &batch);
    assert_int_equal(batch.worker, wanted.worker);
    assert_memory_equal(&batch.look, &wanted.look, sizeof batch.look);
}

static void all_that_was_written_is_read(void **state) {
    struct hr__record_writer writer = create(WORKERS);
    struct hr_record_hour hour = {.at_ns = 11, .samples = {1, 2}, .collates = {[43] = 4}}, read;
    struct hr_record_sample slowest[2] = {{.ns = 9, .index = HR_NO_SAMPLE, .worker = 2, .task = 4, .began_ns = 6},
                                          {.ns = 8, .index = 3}};
    struct hr_record_step steps[2] = {{.at_ns = INT64_C(6) * S, .epoch = 1, .step = 1, .inside_us = HR_LOOK_NO_STEP},
                                      {.at_ns = INT64_C(7) * S + 1234 * 1000, .epoch = 1, .step = 2, .inside_us = 3}};
    struct hr_record_batch batches[2] = {batch_of(0), batch_of(1)};
    struct hr_record_sample sample;
    struct hr_record_step step;
    struct hr_record_info info;
    (void)state;
    put_row(&writer, HR_RECORD_SECONDS, 1);
    put_row(&writer, HR_RECORD_SECONDS, 2);
    put_row(&writer, HR_RECORD_MINUTES, 3);
    must(hr__record_put_hour(&writer, &hour));
    hour.at_ns = 12;
    must(hr__record_put_now(&writer, &hour, slowest, 1));
    must(hr__record_put_now(&writer, &hour, slowest, 2));
    must(hr__record_put_steps(&writer, steps, 2));
    must(hr__record_put_batches(&writer, batches, 2));
    must(hr__record_finish(&writer, HR_RECORD_JOB_ENDED, 99));
    hr__record_close(&writer);

    hr_record *record = open_again();
    const struct hr_record_identity *identity = hr_record_identity_of(record);
    assert_int_equal(identity->pid, 17);
    assert_int_equal(identity->rank, 1);
    assert_string_equal(identity->name, "train.py:88");
    assert_string_equal(identity->command, "python train.py");
    assert_int_equal(hr_record_count(record, HR_RECORD_SECONDS), 2);
    assert_int_equal(hr_record_count(record, HR_RECORD_MINUTES), 1);
    assert_row(record, HR_RECORD_SECONDS, 0, 1);
    assert_row(record, HR_RECORD_SECONDS, 1, 2);
    assert_row(record, HR_RECORD_MINUTES, 0, 3);
    assert_int_equal(hr_record_count(record, HR_RECORD_HOURS), 2);
    hr_record_read_hour(record, 1, &read);
    assert_memory_equal(&read, &hour, sizeof read);
    assert_int_equal(hr_record_count(record, HR_RECORD_SAMPLES), 2);
    hr_record_read_sample(record, 0, &sample);
    assert_int_equal(sample.ns, 9);
    assert_int_equal(sample.index, HR_NO_SAMPLE);
    assert_int_equal(sample.worker, 2);
    assert_int_equal(hr_record_count(record, HR_RECORD_STEPS), 2);
    hr_record_read_step(record, 0, &step);
    assert_int_equal(step.at_ns, INT64_C(6) * S);
    assert_int_equal(step.inside_us, HR_LOOK_NO_STEP);
    hr_record_read_step(record, 1, &step);
    assert_int_equal(step.at_ns, INT64_C(7) * S + 1234 * 1000);
    assert_int_equal(hr_record_count(record, HR_RECORD_BATCHES), 2);
    assert_batch(record, 0, 0);
    assert_batch(record, 1, 1);
    hr_record_look(record, &info);
    assert_int_equal(info.end, HR_RECORD_JOB_ENDED);
    assert_int_equal(info.ended_ns, 99);
    assert_int_equal(info.torn_count, 0);
    hr_record_close(record);
}

static void rings_keep_the_newest_and_files_stay_within_16_mib(void **state) {
    enum { BATCHES = HR__RECORD_BATCHES + 1000, SECONDS = HR__RECORD_SECONDS + 5 };
    struct hr__record_writer writer = create(WORKERS);
    struct hr_record_batch *batches = calloc(BATCHES, sizeof *batches);
    struct stat info;
    (void)state;
    assert_non_null(batches);
    for (uint64_t i = 0; i < BATCHES; i++) batches[i] = batch_of(i);
    must(hr__record_put_batches(&writer, batches, BATCHES));
    for (uint64_t i = 0; i < SECONDS; i++) put_row(&writer, HR_RECORD_SECONDS, i);
    for (uint64_t i = 0; i < HR__RECORD_MINUTES; i++) put_row(&writer, HR_RECORD_MINUTES, i);
    hr__record_close(&writer);
    free(batches);

    hr_record *record = open_again();
    assert_int_equal(hr_record_count(record, HR_RECORD_BATCHES), HR__RECORD_BATCHES);
    assert_batch(record, 0, 1000);
    assert_batch(record, HR__RECORD_BATCHES - 1, BATCHES - 1);
    assert_int_equal(hr_record_count(record, HR_RECORD_SECONDS), HR__RECORD_SECONDS);
    assert_row(record, HR_RECORD_SECONDS, 0, 5);
    assert_row(record, HR_RECORD_MINUTES, HR__RECORD_MINUTES - 1, HR__RECORD_MINUTES - 1);
    assert_int_equal(torn_count(record), 0);
    hr_record_close(record);
    must(stat(path_of("a.hrr"), &info));
    assert_true(info.st_size <= HR_RECORD_MAX_BYTES);
}

static void many_workers_shorten_the_rings_of_rows(void **state) {
    struct hr__record_place places[HR__RING_COUNT];
    (void)state;
    hr__record_plan(HR__RECORD_VERSION, 8, places);
    assert_int_equal(places[HR__RING_SECONDS].room, HR__RECORD_SECONDS);
    assert_int_equal(places[HR__RING_MINUTES].room, HR__RECORD_MINUTES);
    for (uint32_t workers = 0; workers <= HR_ARENA_MAX_WORKERS; workers++) {
        hr__record_plan(HR__RECORD_VERSION, workers, places);
        const struct hr__record_place *last = &places[HR__RING_MINUTES];
        assert_true(last->at + (uint64_t)last->stride * last->room <= HR_RECORD_MAX_BYTES);
        assert_true(places[HR__RING_SECONDS].room >= 90 && last->room >= 90);
    }
}

/* ---- damage ---- */

static void cut(off_t bytes) {
    must(truncate(path_of("a.hrr"), bytes));
}

static void flip(off_t at) {
    unsigned char byte;
    int fd = open(path_of("a.hrr"), O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void torn_entries_are_left_out(void **state) {
    struct hr__record_writer writer = create(WORKERS);
    struct hr_record_sample sample = {.ns = 9, .index = 1};
    (void)state;
    for (uint64_t i = 0; i < 5; i++) put_row(&writer, HR_RECORD_SECONDS, i);
    must(hr__record_put_now(&writer, NULL, &sample, 1));
    sample.index = 2;
    must(hr__record_put_now(&writer, NULL, &sample, 1));
    const struct hr__record_place *seconds = &writer.places[HR__RING_SECONDS];
    flip((off_t)(seconds->at + 2 * seconds->stride + 30));
    flip((off_t)(writer.places[HR__RING_NOW].at + writer.places[HR__RING_NOW].stride + 9)); /* the newer one */
    hr__record_close(&writer);

    hr_record *record = open_again();
    assert_int_equal(hr_record_count(record, HR_RECORD_SECONDS), 4);
    assert_row(record, HR_RECORD_SECONDS, 1, 1);
    assert_row(record, HR_RECORD_SECONDS, 2, 3);
    hr_record_read_sample(record, 0, &sample);
    assert_int_equal(sample.index, 1);
    assert_int_equal(torn_count(record), 2);
    hr_record_close(record);
}

/* A file that was cut anywhere behind its head has what is before the cut. */
static void a_file_that_is_cut_keeps_what_is_left(void **state) {
    struct hr__record_writer writer = create(WORKERS);
    const struct hr__record_place *seconds = &writer.places[HR__RING_SECONDS];
    (void)state;
    for (uint64_t i = 0; i < 5; i++) put_row(&writer, HR_RECORD_SECONDS, i);
    for (off_t rows = 5; rows >= 0; rows--) {
        for (off_t more = (off_t)seconds->stride - 1; more >= 0; more -= 50) {
            if (rows == 5 && more) continue;
            cut((off_t)seconds->at + rows * (off_t)seconds->stride + more);
            hr_record *record = open_again();
            assert_int_equal(hr_record_count(record, HR_RECORD_SECONDS), rows);
            hr_record_close(record);
        }
    }
    for (int ring = HR__RING_COUNT - 1; ring >= 0; ring--) {
        cut((off_t)writer.places[ring].at);
        hr_record_close(open_again());
    }
    cut(sizeof(struct hr__record_head));
    hr_record_close(open_again());
    hr__record_close(&writer);
}

static void assert_refused(int code, const char *why) {
    hr_record *record = NULL;
    assert_int_equal(hr_record_open(path_of("a.hrr"), &record), code);
    assert_non_null(strstr(hr_error_message(), why));
    assert_null(record);
}

static void other_files_are_refused(void **state) {
    struct hr__record_writer writer = create(WORKERS);
    uint32_t newer = HR__RECORD_VERSION + 1;
    (void)state;
    hr__record_close(&writer);
    cut((off_t)5 << 30);
    assert_refused(-EBADMSG, "it has 5368709120 bytes");
    flip(offsetof(struct hr__record_head, name));
    assert_refused(-EBADMSG, "its first bytes are damaged");
    int fd = open(path_of("a.hrr"), O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, &newer, sizeof newer, offsetof(struct hr__record_head, version)), sizeof newer);
    assert_refused(HR_E_VERSION, "it has format 4, and this headrace reads formats 2 to 3");
    cut(sizeof(struct hr__record_head) - 1);
    assert_refused(-EINVAL, "not the file of a recording");
    cut(0);
    assert_refused(-EINVAL, "not the file of a recording");
    for (int i = 0; i < 100; i++) assert_int_equal(write(fd, "rubbish rubbish rubbish", 23), 23);
    close(fd);
    assert_refused(-EINVAL, "not the file of a recording");
    assert_int_equal(hr_record_open(folder, &(hr_record *){NULL}), -EISDIR);
    assert_int_equal(hr_record_open(path_of("missing"), &(hr_record *){NULL}), -ENOENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_that_was_written_is_read),
        cmocka_unit_test(rings_keep_the_newest_and_files_stay_within_16_mib),
        cmocka_unit_test(many_workers_shorten_the_rings_of_rows),
        cmocka_unit_test(torn_entries_are_left_out),
        cmocka_unit_test(a_file_that_is_cut_keeps_what_is_left),
        cmocka_unit_test(other_files_are_refused),
    };
    return cmocka_run_group_tests(tests, set_folder, remove_folder);
}
