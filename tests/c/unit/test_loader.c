/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/arena.h"
#include "loader_scene.h"

/*
 * The loader's workers are ports in this process and thread. The deliveries and the workers of tasks are compared with
 * a transcription of torch's _MultiProcessingDataLoaderIter (torch/utils/data/dataloader.py, torch 2.13):
 * _try_put_index, _next_data and _process_data, without their pin_memory and shutdown.
 */

enum { TASKS_MAX = 400 };

/* ---- torch ---- */

struct torch {
    int workers, prefetch, in_order;
    int index_count, next_index; /* the sampler */
    int send_idx, rcvd_idx, outstanding, cycle;
    int status[WORKERS_MAX], num_tasks[WORKERS_MAX];
    int owner[TASKS_MAX]; /* the worker of each task; NONE: it is deleted */
    int index[TASKS_MAX]; /* that the task is about */
    bool has_data[TASKS_MAX];
    int left[WORKERS_MAX]; /* batches that the worker's dataset still has */
};

static void try_put_index(struct torch *t) {
    int max_tasks = t->prefetch * t->workers, active = 0, worker = NONE;
    if (t->next_index == t->index_count) return;
    int index = t->next_index++;
    for (int i = 0; i < t->workers; i++) active += t->status[i];
    for (int i = 0; i < t->workers; i++) {
        int candidate = t->cycle;
        t->cycle = (t->cycle + 1) % t->workers;
        if (!t->status[candidate]) continue;
        if (!t->in_order && t->num_tasks[candidate] >= max_tasks / active) continue;
        worker = candidate;
        break;
    }
    if (worker == NONE) return;
    t->owner[t->send_idx] = worker;
    t->index[t->send_idx] = index;
    t->num_tasks[worker]++;
    t->outstanding++;
    t->send_idx++;
}

static void reset(struct torch *t) {
    for (int i = 0; i < t->workers; i++) t->status[i] = 1;
    for (int i = 0; i < t->prefetch * t->workers; i++) try_put_index(t);
}

static int process_data(struct torch *t, int task) {
    t->num_tasks[t->owner[task]]--;
    int index = t->index[task];
    t->owner[task] = NONE;
    try_put_index(t);
    return index;
}

/* The oldest task of a worker that it has not worked on. */
static int next_task_of(const struct torch *t, int worker) {
    for (int task = 0; task < t->send_idx; task++)
        if (t->owner[task] == worker && !t->has_data[task]) return task;
    return NONE;
}

/* _next_data, with `choose` for the arrival of the next result. The index of the batch, or NONE at the end. */
static int next_data(struct torch *t, int (*choose)(struct torch *t)) {
    for (;;) {
        for (; t->rcvd_idx < t->send_idx; t->rcvd_idx++) {
            int owner = t->owner[t->rcvd_idx];
            if (owner != NONE && (t->has_data[t->rcvd_idx] || t->status[owner])) break;
        }
        if (t->rcvd_idx == t->send_idx) return NONE;
        if (t->has_data[t->rcvd_idx]) return process_data(t, t->rcvd_idx++);
        int task = choose(t), worker = t->owner[task];
        t->outstanding--;
        if (t->left[worker] == 0) {
            t->status[worker] = 0;
            t->owner[task] = NONE;
            try_put_index(t);
            continue;
        }
        t->left[worker]--;
        if (task == t->rcvd_idx) {
            t->rcvd_idx++;
            return process_data(t, task);
        }
        if (!t->in_order) return process_data(t, task);
        t->has_data[task] = true;
    }
}

static int choose_in_order(struct torch *t) {
    return t->rcvd_idx;
}

static uint64_t random_state;
static uint32_t next_random(uint32_t below) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(random_state >> 33) % below;
}

static int chosen_worker; /* the same for torch's model and for ours */

static int choose_any(struct torch *t) {
    for (;;) {
        chosen_worker = (int)next_random((uint32_t)t->workers);
        int task = t->status[chosen_worker] ? next_task_of(t, chosen_worker) : NONE;
        if (task != NONE) return task;
    }
}

/* ---- the comparison ---- */

static void compare_in_order(uint64_t seed) {
    struct room room;
    random_state = seed;
    int workers = 1 + (int)next_random(WORKERS_MAX), prefetch = 1 + (int)next_random(4), next_index = 0;
    struct torch torch = {
        .workers = workers, .prefetch = prefetch, .in_order = 1, .index_count = (int)next_random(100)};
    open_room(&room, workers, prefetch, 0);
    for (int i = 0; i < workers; i++) torch.left[i] = room.left[i] = (int)next_random(3) ? (int)next_random(30) : 1000;
    reset(&torch);
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    prime(&room, prefetch, &next_index, torch.index_count);
    for (;;) {
        struct hr_delivery *delivery = NULL;
        work_off(&room);
        int r = hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery);
        if (r == 1) {
            submit(&room, &next_index, torch.index_count);
            continue;
        }
        int expected = next_data(&torch, choose_in_order);
        if (r == HR_E_END) {
            assert_int_equal(expected, NONE);
            break;
        }
        must(r);
        assert_int_equal(*(int64_t *)delivery->data, expected);
        submit(&room, &next_index, torch.index_count);
        hr_delivery_done(delivery);
    }
    for (int i = 0; i < workers; i++) assert_int_equal(hr_loader_has_data(room.loader, (uint32_t)i), torch.status[i]);
    close_room(&room);
}

static void in_order_tasks_and_batches_are_torchs(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 150; seed++) compare_in_order(seed);
}

/* The next answer comes from the worker that torch's model chose; a worker that has ended skips what it still has. */
static void compare_out_of_order(uint64_t seed) {
    struct room room;
    random_state = seed;
    int workers = 1 + (int)next_random(WORKERS_MAX), prefetch = 1 + (int)next_random(4), next_index = 0;
    struct torch torch = {.workers = workers, .prefetch = prefetch, .index_count = (int)next_random(100)};
    open_room(&room, workers, prefetch, 1);
    for (int i = 0; i < workers; i++) torch.left[i] = room.left[i] = (int)next_random(3) ? (int)next_random(30) : 1000;
    reset(&torch);
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    prime(&room, prefetch, &next_index, torch.index_count);
    uint64_t random_before = random_state;
    for (int expected; (expected = next_data(&torch, choose_any)) != NONE;) {
        struct hr_delivery *delivery = NULL;
        struct torch *model = &torch;
        uint64_t random_after = random_state;
        random_state = random_before;
        for (;;) { /* replay the arrivals up to this batch */
            int worker = (int)next_random((uint32_t)model->workers);
            if (!hr_loader_has_data(room.loader, (uint32_t)worker) || !work(&room, worker)) continue;
            int r = hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery);
            must(r);
            submit(&room, &next_index, torch.index_count);
            if (r == 0) break;
        }
        assert_int_equal(*(int64_t *)delivery->data, expected);
        hr_delivery_done(delivery);
        assert_int_equal(random_state, random_after);
        random_before = random_after;
    }
    close_room(&room);
}

static void out_of_order_tasks_and_batches_are_torchs(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 150; seed++) compare_out_of_order(seed);
}

/* ---- the rest ---- */

static void more_tasks_than_agreed_are_refused(void **state) {
    (void)state;
    struct room room;
    int64_t index = 0;
    open_room(&room, 2, 3, 0);
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    for (int i = 0; i < 6; i++) assert_int_equal(hr_loader_submit(room.loader, &index, sizeof index), 1);
    assert_int_equal(hr_loader_submit(room.loader, &index, sizeof index), -EAGAIN);
    assert_non_null(strstr(hr_error_message(), "6 tasks"));
    close_room(&room);
}

static void without_tasks_the_epoch_is_over_at_once(void **state) {
    (void)state;
    struct room room;
    struct hr_delivery *delivery;
    open_room(&room, 2, 2, 0);
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    assert_int_equal(hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery), HR_E_END);
    close_room(&room);
}

static void an_epoch_that_was_broken_off_is_dropped_and_the_next_is_whole(void **state) {
    (void)state;
    struct room room;
    open_room(&room, 3, 2, 0);
    for (int epoch = 0; epoch < 4; epoch++) {
        int next_index = 0;
        int r = hr_loader_begin(room.loader, NULL, 0, now_ns());
        if (epoch > 0) assert_int_equal(r, -ETIMEDOUT); /* the workers have not answered yet */
        work_off(&room);
        if (r < 0) must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
        for (int i = 0; i < 3; i++) assert_true(hr_loader_has_data(room.loader, (uint32_t)i));
        for (int i = 0; i < 3; i++) room.left[i] = epoch == 2 ? 1 : 1000;
        prime(&room, 2, &next_index, 20);
        for (int expected = 0; expected < (epoch == 3 ? 20 : 3); expected++) {
            struct hr_delivery *delivery;
            work_off(&room);
            while ((r = hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery)) == 1) submit(&room, &next_index, 20);
            must(r);
            assert_int_equal(*(int64_t *)delivery->data, expected);
            submit(&room, &next_index, 20);
            hr_delivery_done(delivery);
        }
    }
    close_room(&room);
}

static void a_dismissed_worker_gets_its_last_task_after_the_others(void **state) {
    (void)state;
    struct room room;
    struct hr_task task;
    int64_t index = 5;
    open_room(&room, 1, 2, 0);
    room.left[0] = 9;
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    must(hr_loader_submit(room.loader, &index, sizeof index));
    must(hr_loader_dismiss(room.loader, 0));
    assert_true(work(&room, 0));
    must(hr_port_take(room.ports[0], in_s(PATIENCE_S), &task));
    assert_int_equal(task.kind, HR_TASK_STOP);
    close_room(&room);
}

/* Both workers skip the numbers from 10 to 19. */
static void a_skipped_task_makes_room_for_another(void **state) {
    (void)state;
    enum { COUNT = 100, FIRST = 10, PAST = 20 };
    struct room room;
    struct hr_delivery *delivery;
    int next_index = 0, expected = 0, r;
    open_room(&room, 2, 2, 0);
    room.left[0] = room.left[1] = COUNT;
    room.first_skipped = FIRST;
    room.past_skipped = PAST;
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    prime(&room, 2, &next_index, COUNT);
    work_off(&room);
    while ((r = hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery)) != HR_E_END) {
        must(r);
        if (r == 0) {
            if (expected == FIRST) expected = PAST;
            assert_int_equal(*(int64_t *)delivery->data, expected++);
            hr_delivery_done(delivery);
        }
        submit(&room, &next_index, COUNT);
        work_off(&room);
    }
    assert_int_equal(expected, COUNT);
    close_room(&room);
}

static void assert_no_epoch(struct room *room) {
    struct hr_delivery *delivery;
    int64_t index = 0;
    assert_int_equal(hr_loader_submit(room->loader, &index, sizeof index), HR_E_STATE);
    assert_int_equal(hr_loader_next(room->loader, in_s(PATIENCE_S), &delivery), HR_E_STATE);
    assert_non_null(strstr(hr_error_message(), "call hr_loader_begin"));
}

static void nothing_is_submitted_or_received_before_an_epoch_has_begun(void **state) {
    (void)state;
    struct room room;
    open_room(&room, 2, 2, 0);
    assert_no_epoch(&room);
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    assert_int_equal(hr_loader_begin(room.loader, NULL, 0, now_ns()), -ETIMEDOUT); /* no worker has answered yet */
    assert_non_null(strstr(hr_error_message(), "the deadline has passed"));
    assert_no_epoch(&room);
    close_room(&room);
}

static void a_dismissed_worker_gets_no_task_in_this_epoch_or_a_later_one(void **state) {
    (void)state;
    struct room room;
    struct hr_task task;
    open_room(&room, 2, 2, 0);
    room.left[0] = room.left[1] = 100;
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    must(hr_loader_dismiss(room.loader, 0));
    must(hr_port_take(room.ports[0], in_s(PATIENCE_S), &task));
    assert_int_equal(task.kind, HR_TASK_STOP);
    must(hr_port_publish(room.ports[0], HR_STATUS_SKIPPED, 0));
    for (int epoch = 0; epoch < 2; epoch++) {
        struct hr_delivery *delivery;
        int next_index = 0;
        assert_false(hr_loader_has_data(room.loader, 0));
        prime(&room, 2, &next_index, 4);
        for (int i = 0; i < 4; i++) assert_true(work(&room, 1));
        assert_false(work(&room, 0));
        for (int i = 0; i < 4; i++) {
            assert_int_equal(hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery), 0);
            assert_int_equal(*(int64_t *)delivery->data, i);
            hr_delivery_done(delivery);
        }
        assert_int_equal(hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery), HR_E_END);
        assert_int_equal(hr_loader_begin(room.loader, NULL, 0, now_ns()), -ETIMEDOUT);
        assert_true(work(&room, 1)); /* to worker 1 the epoch is announced, and only to it */
        assert_false(work(&room, 0));
        must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    }
    close_room(&room);
}

static void a_dismissed_worker_reports_skipped_tasks_until_its_end(void **state) {
    (void)state;
    static const uint32_t answers[] = {HR_STATUS_SKIPPED, HR_STATUS_END, HR_STATUS_SKIPPED};
    struct room room;
    struct hr_task task;
    struct hr_delivery *delivery;
    int next_index = 0;
    open_room(&room, 1, 3, 0);
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    prime(&room, 3, &next_index, 3);
    must(hr_loader_dismiss(room.loader, 0));
    for (int i = 0; i < 3; i++) {
        must(hr_port_take(room.ports[0], in_s(PATIENCE_S), &task));
        must(hr_port_publish(room.ports[0], answers[i], 0));
    }
    assert_int_equal(hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery), 1);
    assert_int_equal(hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery), 1);
    assert_int_equal(hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery), HR_E_END);
    close_room(&room);
}

/* An epoch that is continued begins with the worker whose turn it is. */
static void an_epoch_can_begin_with_any_worker(void **state) {
    (void)state;
    struct room room;
    int64_t index = 0;
    uint32_t worker;
    open_room(&room, 3, 2, 0);
    for (int i = 0; i < 3; i++) room.left[i] = 1000;
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    assert_int_equal(hr_loader_start_at(room.loader, 3), -EINVAL);
    must(hr_loader_start_at(room.loader, 2));
    for (uint32_t expected = 2; expected < 5; expected++) {
        struct hr_delivery *delivery;
        assert_int_equal(hr_loader_submit(room.loader, &index, sizeof index), 1);
        must(hr_loader_awaited(room.loader, &worker));
        assert_int_equal(worker, expected % 3);
        work_off(&room);
        must(hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery));
        hr_delivery_done(delivery);
    }
    assert_int_equal(hr_loader_start_at(room.loader, 0), HR_E_STATE);
    close_room(&room);
}

/* ---- parked workers ---- */

enum { PREFETCH = 2 };

/* Delivers tasks up to number `until`, and checks that they come in order. */
static void answer_in_order(struct room *room, int *next_index, int *answered, int index_count, int until) {
    for (; *answered < until; ++*answered) {
        struct hr_delivery *delivery;
        work_off(room);
        must(hr_loader_next(room->loader, in_s(PATIENCE_S), &delivery));
        int64_t index;
        memcpy(&index, delivery->data, sizeof index);
        assert_int_equal(index, *answered);
        hr_delivery_done(delivery);
        submit(room, next_index, index_count);
    }
}

static void parked_workers_get_no_tasks_and_the_order_stays(void **state) {
    (void)state;
    enum { TASKS = 100 };
    static const uint32_t uses[] = {1, 4, 2, 3, 1, 4};
    struct room room;
    struct hr_worker_status before[WORKERS_MAX], after;
    open_room(&room, WORKERS_MAX, PREFETCH, 0);
    for (int i = 0; i < WORKERS_MAX; i++) room.left[i] = TASKS;
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    int next_index = 0, answered = 0;
    prime(&room, PREFETCH, &next_index, TASKS);
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        must(hr_loader_use(room.loader, uses[i]));
        answer_in_order(&room, &next_index, &answered, TASKS, answered + WORKERS_MAX * PREFETCH);
        for (uint32_t w = 0; w < WORKERS_MAX; w++) must(hr__arena_worker_status(room.scene.arena, w, &before[w]));
        answer_in_order(&room, &next_index, &answered, TASKS, answered + 5);
        for (uint32_t w = 0; w < WORKERS_MAX; w++) {
            must(hr__arena_worker_status(room.scene.arena, w, &after));
            assert_true((after.done_count > before[w].done_count) == (w < uses[i]));
        }
    }
    close_room(&room);
}

static void a_worker_that_is_not_expected_is_not_waited_for(void **state) {
    (void)state;
    struct room room;
    open_room(&room, 3, PREFETCH, 0);
    for (int i = 0; i < 3; i++) room.left[i] = 10;
    must(hr_loader_use(room.loader, 2));
    must(hr_loader_expect(room.loader, 2));
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    assert_int_equal(hr_loader_begin(room.loader, NULL, 0, 0), -ETIMEDOUT); /* their answers are missing */
    struct hr_task task;
    assert_int_equal(hr_port_take(room.ports[2], 0, &task), -ETIMEDOUT);
    work_off(&room);
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    close_room(&room);
}

static void numbers_of_workers_out_of_range_are_refused(void **state) {
    (void)state;
    struct room room;
    open_room(&room, 3, PREFETCH, 0);
    assert_int_equal(hr_loader_use(room.loader, 0), -EINVAL);
    assert_int_equal(hr_loader_use(room.loader, 4), -EINVAL);
    assert_int_equal(hr_loader_expect(room.loader, 0), -EINVAL);
    assert_int_equal(hr_loader_expect(room.loader, 4), -EINVAL);
    assert_string_equal(hr_error_message(), "loader: 4 of 3 workers; 1 to 3 are possible");
    close_room(&room);
}

static void options_out_of_range_are_refused(void **state) {
    (void)state;
    hr_loader *loader = (hr_loader *)&state;
    assert_int_equal(hr_loader_open(&(struct hr_loader_options){0, 2, 0, 0}, &loader), -EINVAL);
    assert_int_equal(hr_loader_open(&(struct hr_loader_options){2, 0, 0, 0}, &loader), -EINVAL);
    assert_int_equal(hr_loader_open(&(struct hr_loader_options){2, UINT32_MAX, 0, 0}, &loader), -EINVAL);
    assert_ptr_equal(loader, &state);
    assert_null(hr_loader_close(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_order_tasks_and_batches_are_torchs),
        cmocka_unit_test(out_of_order_tasks_and_batches_are_torchs),
        cmocka_unit_test(more_tasks_than_agreed_are_refused),
        cmocka_unit_test(without_tasks_the_epoch_is_over_at_once),
        cmocka_unit_test(an_epoch_that_was_broken_off_is_dropped_and_the_next_is_whole),
        cmocka_unit_test(a_dismissed_worker_gets_its_last_task_after_the_others),
        cmocka_unit_test(a_skipped_task_makes_room_for_another),
        cmocka_unit_test(parked_workers_get_no_tasks_and_the_order_stays),
        cmocka_unit_test(a_worker_that_is_not_expected_is_not_waited_for),
        cmocka_unit_test(numbers_of_workers_out_of_range_are_refused),
        cmocka_unit_test(nothing_is_submitted_or_received_before_an_epoch_has_begun),
        cmocka_unit_test(a_dismissed_worker_gets_no_task_in_this_epoch_or_a_later_one),
        cmocka_unit_test(a_dismissed_worker_reports_skipped_tasks_until_its_end),
        cmocka_unit_test(an_epoch_can_begin_with_any_worker),
        cmocka_unit_test(options_out_of_range_are_refused),
    };
    return cmocka_run_group_tests_name("loader", tests, NULL, NULL);
}
