/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/arena_scene.h"

#include <stdatomic.h>

#include "os/os.h"

/* The board of several processes that find each other, die and stop at any point, and come late. */

enum { RANKS = 3, RANKS_MAX = 8, SHORT_NS = 100000000 };

/* Shared with the ranks. */
struct stage {
    _Atomic uint32_t joined_count;
    _Atomic uint32_t gate; /* what a rank waits for, see pass_gate */
    _Atomic uint32_t peers[RANKS_MAX];
};
static struct stage *stage;

static char key[64]; /* the key of the job: another one for each test */

static void set_stage(void) {
    static int number;
    memset(stage, 0, sizeof *stage);
    snprintf(key, sizeof key, "test %d.%d", (int)getpid(), number++);
}

static void await(_Atomic uint32_t *value, uint32_t wanted) {
    int64_t deadline = in_s(PATIENCE_S);
    while (atomic_load(value) < wanted) {
        check(now_ns() < deadline);
        poll(NULL, 0, 1);
    }
}

/* ---- a rank ---- */

static _Atomic uint32_t report_count;

static void count_report(const char *text) {
    const char *wanted = "rank 0 is at the end of epoch 4 of the loader at train.py:12 after 2 batches, and rank 1 has "
                         "taken 3";
    if (strstr(text, wanted)) atomic_fetch_add(&report_count, 1);
}

static hr_board *join(uint32_t world_size) {
    struct hr_board_options options = {key, world_size, world_size, -1, count_report};
    hr_board *board = NULL;
    must(hr_board_open(&options, in_s(PATIENCE_S), &board));
    return board;
}

static hr_board_entry *enter(hr_board *board, uint32_t rank) {
    hr_board_entry *entry = NULL;
    must(hr_board_enter(board, "train.py:12", 0, rank, RANKS, &entry));
    return entry;
}

static int begin(hr_board_entry *entry, int64_t epoch, int64_t steps, uint32_t count, int64_t deadline_ns) {
    struct hr_board_facts facts = {.steps = steps, .epoch = epoch, .length = -1, .seed = -1, .digest = -1};
    must(hr_board_publish(entry, &facts));
    return hr_board_await(entry, count, deadline_ns);
}

static uint32_t look(hr_board_entry *entry, uint32_t rank, struct hr_board_peer *ret_peers) {
    uint32_t count = (uint32_t)hr_board_peers(entry, ret_peers);
    atomic_store(&stage->peers[rank], count);
    return count;
}

/* Two epochs with all steps that the sweep needs, and no more patience than a moment. If the process that serves is
 * stopped, the others have no board. */
static void live(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    struct hr_board_ended ended;
    struct hr_board_options options = {key, RANKS, RANKS, -1, NULL};
    hr_board *board = NULL;
    int r = hr_board_open(&options, now_ns() + SHORT_NS, &board);
    check(r == 0 || r == -ETIMEDOUT);
    if (r < 0) atomic_fetch_add(&stage->joined_count, 1);
    if (r < 0) return;
    hr_board_entry *entry = enter(board, rank);
    for (int64_t epoch = 1; epoch <= 2; epoch++) {
        begin(entry, epoch, 2, RANKS, now_ns() + SHORT_NS);
        atomic_fetch_add(&stage->joined_count, epoch == 1);
        look(entry, rank, peers);
        for (uint64_t step = 1; step <= 2; step++) check(hr_board_step(entry, step, &ended) == 0);
        hr_board_show_wait(entry, 1, 2);
        hr_board_show_first(entry, (uint64_t[]){rank}, 1);
        check(hr_board_end(entry, 2, &ended) == 0);
    }
    hr_board_leave(entry);
    hr_board_finish(board);
    hr_board_close(board);
}

static pid_t start_rank(void (*run)(uint32_t), uint32_t rank, const char *plan) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    die_with_test();
    if (plan) setenv("HEADRACE_STOP", plan, 1);
    run(rank);
    _exit(0);
}

static void start_ranks(void (*run)(uint32_t), uint32_t count, pid_t *ret_pids) {
    for (uint32_t i = 0; i < count; i++) ret_pids[i] = start_rank(run, i, NULL);
}

static void expect_ends(const pid_t *pids, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) assert_child_succeeds(pids[i]);
}

/* ---- finding each other ---- */

static void meet(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    bool seen[RANKS_MAX] = {false};
    hr_board *board = join(RANKS_MAX);
    hr_board_entry *entry = enter(board, rank);
    must(begin(entry, 4, rank, RANKS_MAX, in_s(PATIENCE_S)));
    check(look(entry, rank, peers) == RANKS_MAX - 1);
    seen[rank] = true;
    for (int i = 0; i < RANKS_MAX - 1; i++) {
        check(peers[i].rank < RANKS_MAX && !seen[peers[i].rank]);
        check(peers[i].facts.steps == peers[i].rank && peers[i].facts.epoch == 4);
        seen[peers[i].rank] = true;
    }
    atomic_fetch_add(&stage->joined_count, 1);
    await(&stage->joined_count, RANKS_MAX); /* until then this process runs */
    hr_board_close(board);
}

static void ranks_that_start_together_find_each_other(void **state) {
    (void)state;
    for (int i = 0; i < 10; i++) {
        pid_t pids[RANKS_MAX];
        set_stage();
        start_ranks(meet, RANKS_MAX, pids);
        expect_ends(pids, RANKS_MAX);
    }
}

/* A rank that goes through many short epochs is at most one ahead of the others, which still see its facts. */
static void hurry(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    hr_board *board = join(2);
    hr_board_entry *entry = enter(board, rank);
    for (int64_t epoch = 0; epoch < 2000; epoch++) {
        must(begin(entry, epoch, epoch + 5, 2, in_s(PATIENCE_S)));
        check(look(entry, rank, peers) == 1);
        check(peers[0].facts.epoch == epoch && peers[0].facts.steps == epoch + 5);
    }
    atomic_fetch_add(&stage->joined_count, 1);
    await(&stage->joined_count, 2);
    hr_board_close(board);
}

static void facts_of_short_epochs_are_seen_by_all(void **state) {
    pid_t pids[2];
    (void)state;
    set_stage();
    start_ranks(hurry, 2, pids);
    expect_ends(pids, 2);
}

/* Two ranks show their first indices at the same time: at least one sees those of the other, as they are. */
static void show_first(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    struct hr_board_first first[HR_BOARD_MAX_PROCESSES];
    uint64_t digests[HR_BOARD_MAX_FIRST];
    hr_board *board = join(2);
    hr_board_entry *entry = enter(board, rank);
    for (uint32_t epoch = 1; epoch <= 2000; epoch++) {
        must(begin(entry, epoch, 5, 2, in_s(PATIENCE_S)));
        look(entry, rank, peers);
        for (uint64_t i = 0; i < HR_BOARD_MAX_FIRST; i++) digests[i] = epoch * 1000 + i * 2 + rank;
        hr_board_show_first(entry, digests, HR_BOARD_MAX_FIRST);
        int count = hr_board_first(entry, first);
        if (count) check(first[0].rank == 1 - rank && first[0].count == HR_BOARD_MAX_FIRST);
        for (uint64_t i = 0; count && i < HR_BOARD_MAX_FIRST; i++)
            check(first[0].digests[i] == epoch * 1000 + i * 2 + 1 - rank);
        atomic_fetch_add(&stage->gate, (uint32_t)count);
        atomic_fetch_add(&stage->joined_count, 1);
        await(&stage->joined_count, 2 * epoch);
        check(atomic_load(&stage->gate) >= epoch);
    }
    hr_board_close(board);
}

static void of_two_ranks_one_sees_the_first_indices(void **state) {
    pid_t pids[2];
    (void)state;
    set_stage();
    start_ranks(show_first, 2, pids);
    expect_ends(pids, 2);
}

/* ---- ends that are not equal ---- */

/* Each rank takes batches as fast as it can, and rank 1 has one more: at least one of them is told, in each epoch. */
static void race_to_end(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    struct hr_board_ended ended;
    hr_board *board = join(2);
    hr_board_entry *entry = enter(board, rank);
    for (uint32_t epoch = 1; epoch <= 2000; epoch++) {
        uint64_t steps = 3 + rank, step = 1;
        must(begin(entry, epoch, -1, 2, in_s(PATIENCE_S)));
        look(entry, rank, peers);
        int told = 0;
        for (; step <= steps && !told; step++) told = hr_board_step(entry, step, &ended);
        if (!told) told = hr_board_end(entry, steps, &ended);
        if (told) check(ended.rank == 1 - rank && ended.steps == (rank ? 3 : 4));
        atomic_fetch_add(&stage->gate, (uint32_t)told);
        atomic_fetch_add(&stage->joined_count, 1);
        await(&stage->joined_count, 2 * epoch);
        check(atomic_load(&stage->gate) >= epoch);
    }
    await(&stage->joined_count, 4000);
    hr_board_close(board);
}

static void of_two_ranks_with_unequal_ends_one_is_told(void **state) {
    pid_t pids[2];
    (void)state;
    set_stage();
    start_ranks(race_to_end, 2, pids);
    expect_ends(pids, 2);
}

/* Rank 1 has taken three batches and is in a collective operation; then rank 0 is at its END after two. */
static void be_stuck(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    struct hr_board_ended ended;
    hr_board *board = join(2);
    hr_board_entry *entry = enter(board, rank);
    must(begin(entry, 4, -1, 2, in_s(PATIENCE_S)));
    look(entry, rank, peers);
    if (rank == 1) check(hr_board_step(entry, 3, &ended) == 0);
    atomic_fetch_add(&stage->joined_count, 1);
    await(&stage->joined_count, 2);
    if (rank == 0) {
        check(hr_board_end(entry, 2, &ended) == 1);
        await(&stage->gate, 1);
    } else {
        await(&report_count, 1);
        atomic_store(&stage->gate, 1);
    }
    hr_board_close(board);
}

static void a_rank_in_a_collective_operation_reports_the_end(void **state) {
    pid_t pids[2];
    (void)state;
    set_stage();
    start_ranks(be_stuck, 2, pids);
    expect_ends(pids, 2);
}

/* Ranks 1 and 2 are at their ends after 5 and 3 batches, then after 3 and 5; rank 0 has taken 6. */
static void be_behind(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    struct hr_board_ended ended;
    hr_board *board = join(RANKS);
    hr_board_entry *entry = enter(board, rank);
    for (uint32_t epoch = 1; epoch <= 2; epoch++) {
        must(begin(entry, epoch, -1, RANKS, in_s(PATIENCE_S)));
        look(entry, rank, peers);
        if (rank) hr_board_end(entry, rank == epoch ? 5 : 3, &ended);
        atomic_fetch_add(&stage->joined_count, 1);
        await(&stage->joined_count, RANKS * epoch);
        if (rank == 0) {
            check(hr_board_step(entry, 6, &ended) == 1);
            check(ended.rank == 3 - epoch && ended.steps == 3);
            atomic_store(&stage->gate, epoch);
        }
        await(&stage->gate, epoch);
    }
    hr_board_close(board);
}

static void a_rank_is_told_of_the_most_unequal_end(void **state) {
    pid_t pids[RANKS];
    (void)state;
    set_stage();
    start_ranks(be_behind, RANKS, pids);
    expect_ends(pids, RANKS);
}

/* ---- late, dead and earlier processes ---- */

static void come_first(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    struct hr_board_ended ended;
    hr_board *board = join(2);
    hr_board_entry *entry = enter(board, rank);
    check(begin(entry, 6, 7, 2, now_ns() + SHORT_NS) == -ETIMEDOUT);
    check(look(entry, rank, peers) == 0);
    check(hr_board_step(entry, 5, &ended) == 0);
    atomic_store(&stage->gate, 1);
    await(&stage->gate, 2);
    check(hr_board_end(entry, 5, &ended) == 1); /* the late rank has taken 6 */
    check(ended.rank == 1 && ended.steps == 6);
    atomic_store(&stage->gate, 3);
    hr_board_close(board);
}

static void come_late(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    struct hr_board_ended ended;
    await(&stage->gate, 1);
    hr_board *board = join(2);
    hr_board_entry *entry = enter(board, rank);
    must(begin(entry, 6, 8, 2, in_s(PATIENCE_S)));
    check(look(entry, rank, peers) == 1);
    check(peers[0].rank == 0 && peers[0].facts.steps == 7);
    check(hr_board_step(entry, 6, &ended) == 0);
    atomic_store(&stage->gate, 2);
    await(&stage->gate, 3);
    hr_board_close(board);
}

static void a_late_rank_sees_the_facts_of_the_others(void **state) {
    pid_t pids[2];
    (void)state;
    set_stage();
    pids[0] = start_rank(come_first, 0, NULL);
    pids[1] = start_rank(come_late, 1, NULL);
    expect_ends(pids, 2);
}

/* Rank 0 looks at one batch before the training, so all its epochs have other numbers than those of rank 1. */
static void peek(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    hr_board *board = join(2);
    hr_board_entry *entry = enter(board, rank);
    if (rank == 0) check(begin(entry, 0, 9, 2, now_ns() + SHORT_NS) == -ETIMEDOUT);
    if (rank == 0) atomic_store(&stage->gate, 1);
    await(&stage->gate, 1);
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        begin(entry, epoch, 9, 2, now_ns() + SHORT_NS);
        uint32_t count = look(entry, rank, peers);
        check(count == 0 || peers[0].facts.epoch == epoch);
        atomic_fetch_add(&stage->joined_count, 1);
        await(&stage->joined_count, 2 * ((uint32_t)epoch + 1));
    }
    hr_board_close(board);
}

static void epochs_of_a_rank_that_peeked_are_matched_by_epoch(void **state) {
    pid_t pids[2];
    (void)state;
    set_stage();
    start_ranks(peek, 2, pids);
    expect_ends(pids, 2);
}

static void hold_until_gate_9(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    hr_board *board = join(2);
    hr_board_entry *entry = enter(board, rank % 2);
    must(begin(entry, 1, rank < 2 ? 10 : 20, 2, in_s(PATIENCE_S)));
    check(look(entry, rank, peers) == 1);
    check(peers[0].facts.steps == (rank < 2 ? 10 : 20));
    atomic_fetch_add(&stage->joined_count, 1);
    await(&stage->gate, 9);
    hr_board_close(board);
}

/* The board of a complete job has no name any more, so another job with the same key makes its own. */
static void a_later_job_with_the_same_key_has_its_own_board(void **state) {
    pid_t pids[4];
    (void)state;
    set_stage();
    for (uint32_t i = 0; i < 2; i++) pids[i] = start_rank(hold_until_gate_9, i, NULL);
    await(&stage->joined_count, 2);
    for (uint32_t i = 2; i < 4; i++) pids[i] = start_rank(hold_until_gate_9, i, NULL);
    await(&stage->joined_count, 4);
    atomic_store(&stage->gate, 9);
    expect_ends(pids, 4);
}

static void die_after_publishing(uint32_t rank) {
    hr_board_entry *entry = enter(join(2), rank);
    begin(entry, 1, 10, 0, now_ns());
    raise(SIGKILL);
}

static void serve_until_gate_9(uint32_t rank) {
    (void)rank;
    hr_board *board = join(2);
    atomic_store(&stage->gate, 1);
    await(&stage->gate, 9);
    hr_board_close(board);
}

static void find_no_dead(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    hr_board *board = join(2);
    check(hr_board_process_count(board) == 2);
    hr_board_entry *entry = enter(board, rank);
    check(begin(entry, 1, 20, 2, now_ns() + SHORT_NS) == -ETIMEDOUT);
    check(look(entry, rank, peers) == 0);
    hr_board_close(board);
}

static void the_page_of_a_dead_process_is_ignored_and_taken(void **state) {
    (void)state;
    set_stage();
    pid_t server = start_rank(serve_until_gate_9, 0, NULL);
    await(&stage->gate, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(reap_pid(start_rank(die_after_publishing, 1, NULL)), SIGKILL);
        assert_child_succeeds(start_rank(find_no_dead, 1, NULL));
    }
    atomic_store(&stage->gate, 9);
    assert_child_succeeds(server);
}

/* A rank that has found a disagreement ends at once; the others have to find it too. Rank 2 comes after rank 1 has
 * published, and ends before that looks. */
static void be_slow_to_look(uint32_t rank) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    struct hr_board_facts facts = {.steps = 20, .epoch = 1};
    hr_board *board = join(3);
    hr_board_entry *entry = enter(board, rank);
    await(&stage->gate, 1);
    must(hr_board_publish(entry, &facts));
    atomic_store(&stage->gate, 2);
    await(&stage->gate, 4);
    must(hr_board_await(entry, 3, in_s(PATIENCE_S)));
    check(look(entry, rank, peers) == 2 && peers[0].facts.steps == 10 && peers[1].facts.steps == 10);
    hr_board_close(board);
}

static void be_quick_to_end(uint32_t rank) {
    if (rank == 2) await(&stage->gate, 2);
    hr_board_entry *entry = enter(join(3), rank);
    atomic_fetch_add(&stage->gate, rank == 0);
    await(&stage->gate, 2);
    begin(entry, 1, 10, 0, now_ns());
    atomic_fetch_add(&stage->joined_count, 1);
    await(&stage->joined_count, 2); /* rank 2 could take the page of rank 0 if that ended before */
    raise(SIGKILL);
}

static void facts_of_ranks_that_ended_in_the_epoch_count(void **state) {
    pid_t pids[3];
    (void)state;
    set_stage();
    for (uint32_t i = 0; i < 3; i++) pids[i] = start_rank(i == 1 ? be_slow_to_look : be_quick_to_end, i, NULL);
    for (int i = 0; i < 3; i += 2) assert_int_equal(reap_pid(pids[i]), SIGKILL);
    atomic_store(&stage->gate, 4);
    assert_child_succeeds(pids[1]);
}

/* Rank 0 has left its main program, and still runs. */
static void be_over(uint32_t rank) {
    hr_board *board = join(2);
    if (rank == 0) {
        hr_board_finish(board);
        atomic_store(&stage->gate, 1);
        await(&stage->gate, 2);
    } else {
        await(&stage->gate, 1);
        must(begin(enter(board, rank), 1, 10, 2, in_s(PATIENCE_S)));
        atomic_store(&stage->gate, 2);
    }
    hr_board_close(board);
}

static void a_rank_whose_main_program_is_over_is_not_awaited(void **state) {
    pid_t pids[2];
    (void)state;
    set_stage();
    start_ranks(be_over, 2, pids);
    expect_ends(pids, 2);
}

/* ---- forks ---- */

static void leave_a_child(uint32_t rank) {
    struct hr_board_ended ended;
    struct hr_board_facts facts = {0};
    hr_board *board = join(2);
    hr_board_entry *entry = enter(board, rank);
    pid_t pid = fork();
    if (pid) raise(SIGKILL);
    check(hr_board_step(entry, 1, &ended) == 0 && hr_board_end(entry, 1, &ended) == 0);
    check(hr_board_publish(entry, &facts) == HR_E_STATE);
    check(hr_board_await(entry, 2, in_s(PATIENCE_S)) == HR_E_STATE);
    check(hr_board_process_count(board) == 0);
    hr_board_finish(board);
    hr_board_leave(entry);
    hr_board_close(board);
    atomic_store(&stage->gate, 1);
    await(&stage->gate, 2);
    atomic_store(&stage->gate, 3);
    _exit(0);
}

static void open_alone(uint32_t rank) {
    hr_board *board = join(2);
    check(hr_board_process_count(board) == 1);
    atomic_store(&stage->peers[rank], 1);
    hr_board_close(board);
}

static void a_forked_child_takes_no_part_and_keeps_no_name(void **state) {
    (void)state;
    set_stage();
    assert_int_equal(reap_pid(start_rank(leave_a_child, 0, NULL)), SIGKILL);
    await(&stage->gate, 1);
    assert_child_succeeds(start_rank(open_alone, 0, NULL));
    atomic_store(&stage->gate, 2);
    await(&stage->gate, 3);
    waitpid(-1, NULL, 0); /* the child of the rank, which the test has adopted */
}

/* ---- at every point ---- */

#ifdef HR_FAILPOINTS

static const char *plan_for(enum hr__point point, int signal) {
    static char plan[64];
    snprintf(plan, sizeof plan, "%s:%d:1", hr__failpoints[point].name, signal);
    return plan;
}

/* Returns the signal that ended or stopped a child, 0 if it exited, or -1 while it runs. */
static int signal_of(pid_t pid) {
    siginfo_t info = {0};
    check(waitid(P_PID, (id_t)pid, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) == 0);
    if (info.si_pid == 0) return -1;
    return info.si_code == CLD_EXITED ? 0 : info.si_status;
}

/* Waits until it has begun an epoch, if that counts, has ended or was stopped. Returns the same. */
static int await_signal(pid_t pid, bool may_have_begun) {
    int64_t deadline = in_s(PATIENCE_S);
    int signal = signal_of(pid);
    for (; signal < 0 && !(may_have_begun && atomic_load(&stage->joined_count)); signal = signal_of(pid)) {
        check(now_ns() < deadline);
        poll(NULL, 0, 1);
    }
    return signal;
}

/* Rank 1 meets a signal at the point, and starts before the others or after them. Returns true if it came there. */
static bool run_with_plan(enum hr__point point, int signal, bool is_first) {
    pid_t pids[RANKS];
    set_stage();
    pids[1] = is_first ? start_rank(live, 1, plan_for(point, signal)) : 0;
    if (is_first) await_signal(pids[1], true);
    pids[0] = start_rank(live, 0, NULL);
    pids[2] = start_rank(live, 2, NULL);
    if (!is_first) {
        await(&stage->joined_count, 1);
        pids[1] = start_rank(live, 1, plan_for(point, signal));
    }
    assert_child_succeeds(pids[0]);
    assert_child_succeeds(pids[2]);
    int met = await_signal(pids[1], false);
    if (met == SIGSTOP) kill(pids[1], SIGCONT);
    int status = reap_pid(pids[1]);
    assert_int_equal(status, met == SIGKILL ? SIGKILL : 0);
    return met == signal;
}

static void disturb_at_every_point(int signal) {
    for (enum hr__point point = 0; point < HR__POINT_COUNT; point++) {
        if (hr__failpoints[point].side != HR__BY_RANK) continue;
        bool is_passed = false;
        for (int i = 0; i < TRIES * 2 && !is_passed; i++) is_passed = run_with_plan(point, signal, i % 2 == 0);
        if (!is_passed) print_error("%s: not passed\n", hr__failpoints[point].name);
        assert_true(is_passed);
    }
}

static void ranks_go_on_after_one_is_killed_at_any_point(void **state) {
    (void)state;
    disturb_at_every_point(SIGKILL);
}

static void ranks_go_on_while_one_is_stopped_at_any_point(void **state) {
    (void)state;
    disturb_at_every_point(SIGSTOP);
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_start_together_find_each_other),
        cmocka_unit_test(facts_of_short_epochs_are_seen_by_all),
        cmocka_unit_test(of_two_ranks_one_sees_the_first_indices),
        cmocka_unit_test(of_two_ranks_with_unequal_ends_one_is_told),
        cmocka_unit_test(a_rank_in_a_collective_operation_reports_the_end),
        cmocka_unit_test(a_rank_is_told_of_the_most_unequal_end),
        cmocka_unit_test(a_late_rank_sees_the_facts_of_the_others),
        cmocka_unit_test(epochs_of_a_rank_that_peeked_are_matched_by_epoch),
        cmocka_unit_test(a_later_job_with_the_same_key_has_its_own_board),
        cmocka_unit_test(the_page_of_a_dead_process_is_ignored_and_taken),
        cmocka_unit_test(facts_of_ranks_that_ended_in_the_epoch_count),
        cmocka_unit_test(a_rank_whose_main_program_is_over_is_not_awaited),
        cmocka_unit_test(a_forked_child_takes_no_part_and_keeps_no_name),
#ifdef HR_FAILPOINTS
        cmocka_unit_test(ranks_go_on_after_one_is_killed_at_any_point),
        cmocka_unit_test(ranks_go_on_while_one_is_stopped_at_any_point),
#endif
    };
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests_name("board_ranks", tests, NULL, NULL);
}
