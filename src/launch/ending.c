/* SPDX-License-Identifier: Apache-2.0 */
/* The way from a failure or a signal to the end of all processes; asks ranks for their stacks. */
#include "launch.h"

static const int64_t HINT_NS = 2 * HR_NS_PER_S;
static const int64_t STACKS_NS = 250000000;   /* for a rank to write its stacks */
static const int64_t IMPATIENT_NS = 50000000; /* the same while a person waits */
static const int64_t AGAIN_NS = 250000000;    /* a signal that comes sooner after the first one means the same */

static void send(struct hr__attempt *attempt, int signal) {
    hr__attempt_command(attempt, HR__COMMAND_SIGNAL, -1, signal);
}

/* ---- stacks ---- */

/* Reads what has come. Returns true if it is still growing or has not begun. */
static bool is_writing(struct hr__rank *rank, uint64_t *size) {
    uint64_t now = 0;
    if (hr__memory_bytes(rank->page_fd, &now) < 0) return false;
    bool is_done = now > HR__PAGE_STACKS_AT + rank->stacks_bytes && now == *size;
    *size = now;
    return !is_done;
}

static void await_stacks(struct hr__rank *rank, int64_t deadline_ns) {
    static const int64_t ROUND_NS = 3000000;
    uint64_t size = 0;
    while (is_writing(rank, &size) && hr__now_ns() < deadline_ns) hr__poll(NULL, NULL, 0, hr__now_ns() + ROUND_NS);
    hr__page_read_stacks(rank);
}

void hr__ending_take_stack(struct hr__attempt *attempt, struct hr__rank *rank) {
    if (rank->has_ended || !hr__page_stack_signal(rank)) return;
    hr__attempt_command(attempt, HR__COMMAND_STACKS, (int32_t)rank->local, 0);
    await_stacks(rank, hr__now_ns() + STACKS_NS);
}

void hr__ending_take_stacks(struct hr__attempt *attempt) {
    int64_t patience_ns = attempt->reason == HR__SIGNALLED ? IMPATIENT_NS : STACKS_NS;
    int64_t deadline_ns = hr__now_ns() + patience_ns;
    hr__attempt_command(attempt, HR__COMMAND_STACKS, -1, 0);
    hr__each_rank (rank, attempt)
        if (!rank->has_ended && hr__page_stack_signal(rank)) await_stacks(rank, deadline_ns);
}

/* ---- the end ---- */

static void kill_ranks(struct hr__attempt *attempt) {
    if (attempt->phase == HR__KILLING || attempt->phase == HR__OVER) return;
    if (attempt->ended_count < attempt->job->local_size) hr__ending_take_stacks(attempt);
    attempt->phase = HR__KILLING;
    hr__stop_at(HR__AT_LAUNCH_KILLS);
    hr__kill(attempt->guardian_pid, HR__CONT); /* a guardian that is stopped would obey later */
    hr__attempt_command(attempt, HR__COMMAND_SWEEP, -1, 0);
}

void hr__ending_begin(struct hr__attempt *attempt, enum hr__reason reason, int signal) {
    if (attempt->phase != HR__RUNNING) return;
    bool is_signalled = reason == HR__SIGNALLED;
    attempt->phase = HR__ENDING;
    attempt->reason = reason;
    attempt->signal = signal;
    attempt->ending_ns = hr__now_ns();
    if (!is_signalled) hr__ending_take_stacks(attempt);
    int sent = is_signalled ? signal : HR__TERM;
    hr__each_rank (rank, attempt)
        if (!rank->has_ended) rank->sent_signal = sent;
    if (!is_signalled || !attempt->is_from_step) send(attempt, sent);
    send(attempt, HR__CONT); /* a rank that is stopped gets the other signal only when it continues */
    attempt->deadline_ns = hr__now_ns() + (is_signalled ? attempt->job->shutdown_ns : attempt->job->grace_ns);
    atomic_store(&attempt->ranks[0].page->others_over, 1); /* it keeps its store no longer */
    hr__stop_at(HR__AT_LAUNCH_ENDING);
    if (attempt->ended_count == attempt->job->local_size) kill_ranks(attempt);
}

static void end_of_last(struct hr__attempt *attempt) {
    if (attempt->phase == HR__ENDING) kill_ranks(attempt);
    if (attempt->phase == HR__RUNNING) {
        attempt->phase = HR__KILLING;
        hr__attempt_command(attempt, HR__COMMAND_LEAVE, -1, 0);
    }
}

static bool is_over(const struct hr__attempt *attempt, const struct hr__rank *rank) {
    return rank->has_ended || hr__page_over_ns(attempt, rank);
}

static void tell_rank_0(struct hr__attempt *attempt) {
    uint32_t over = 0;
    hr__each_rank (rank, attempt)
        if (rank->local && is_over(attempt, rank)) over++;
    if (over + 1 < attempt->job->local_size || attempt->others_over_ns) return;
    attempt->others_over_ns = hr__now_ns();
    atomic_store(&attempt->ranks[0].page->others_over, 1);
}

/* Says what a person who waits after a Ctrl-C can do. */
static void hint(struct hr__attempt *attempt, int64_t now_ns) {
    uint32_t left = attempt->job->local_size - attempt->ended_count;
    if (attempt->is_hinted) return;
    attempt->is_hinted = true;
    hr__say(
        attempt->launch,
        "headrace: note: %u rank%s still running, and killed in %.0f s; the same signal again (Ctrl-C) kills at once",
        left, left > 1 ? "s are" : " is", hr__seconds(attempt->deadline_ns - now_ns));
}

/* A launcher whose ranks run under `headrace exec` may be killed; then nothing else ends them. A person who logs out
 * makes the shell send SIGHUP, unless nohup has had it ignored: then the job is meant to go on. */
static void check_parent(struct hr__attempt *attempt) {
    bool is_meant_to_stay = attempt->launch->ignored_signals & hr__signal_bit(HR__HUP);
    bool follows = attempt->job->ends_with_parent || (attempt->launch->has_launcher && !is_meant_to_stay);
    if (follows && hr__parent() != attempt->launch->parent) hr__ending_begin(attempt, HR__PARENT_DIED, 0);
}

void hr__ending_tick(struct hr__attempt *attempt) {
    tell_rank_0(attempt);
    check_parent(attempt);
    if (attempt->phase != HR__ENDING) return;
    int64_t now_ns = hr__now_ns();
    if (now_ns >= attempt->deadline_ns)
        kill_ranks(attempt);
    else if (attempt->reason == HR__SIGNALLED && now_ns - attempt->ending_ns > HINT_NS)
        hint(attempt, now_ns);
}

void hr__ending_note_end(struct hr__attempt *attempt, struct hr__rank *rank) {
    attempt->ended_count++;
    hr__stop_at(HR__AT_LAUNCH_ENDED);
    if (hr__rank_failed(rank)) hr__ending_begin(attempt, HR__FAILED, 0);
    if (attempt->ended_count == attempt->job->local_size) end_of_last(attempt);
}

/* Returns true for the second signal, and for one while the ranks end after a failure. A terminal that is lost and a
 * time limit send a signal twice in a moment, and mean it once. */
static bool is_impatient(const struct hr__attempt *attempt, int signal) {
    bool is_again = attempt->reason == HR__SIGNALLED;
    return signal != HR__HUP && (!is_again || hr__now_ns() - attempt->ending_ns > AGAIN_NS);
}

void hr__ending_signal(struct hr__attempt *attempt, int signal) {
    const struct hr_launch_job *job = attempt->job;
    uint64_t bit = hr__signal_bit(signal);
    if (job->end_signals & bit) {
        attempt->launch->last_signal = signal;
        if (attempt->phase == HR__RUNNING)
            hr__ending_begin(attempt, HR__SIGNALLED, signal);
        else if (is_impatient(attempt, signal))
            kill_ranks(attempt);
    } else if (job->passed_signals & bit && !attempt->is_from_step) {
        send(attempt, signal);
    }
}
