/* SPDX-License-Identifier: Apache-2.0 */
/* The text at the end: which rank failed first, why, and how the others ended. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"

enum { STACK_LINES = 12, SHOWN_RANKS = 8 };
static const char INDENT[] = "    ";

/* ---- one rank ---- */

static int exit_code_of(const struct hr__rank *rank) {
    if (rank->start_error) return HR_LAUNCH_ERROR;
    /* It failed by an exception, and was ended before it had exited with Python's code for that. */
    if (hr__rank_was_ended(rank) && hr__page_word(&rank->page->exception_ns, 1, INT64_MAX)) return 1;
    return rank->end.signal ? HR_LAUNCH_SIGNAL_BASE + rank->end.signal : rank->end.exit_code;
}

static void describe_signal(const struct hr__rank *rank, struct hr__text *to) {
    const char *name = hr__signal_name(rank->end.signal);
    hr__text_addf(to, "was ended by signal %d (%s)", rank->end.signal, name ? name : "a real-time signal");
}

void hr__describe_end(const struct hr__attempt *attempt, const struct hr__rank *rank, struct hr__text *to) {
    int64_t exec_error = hr__page_word(&rank->page->exec_error, 1, 4095);
    if (rank->start_error)
        hr__text_addf(to, "could not be started: %s%s", hr_error_text(rank->start_error),
                      rank->start_error == EAGAIN ? "; raise the limit of processes (ulimit -u)" : "");
    else if (!rank->pid)
        hr__text_adds(to, "did not start");
    else if (!rank->has_ended)
        hr__text_adds(to, "still runs");
    else if (exec_error)
        hr__text_addf(to, "could not execute %s: %s", attempt->launch->program, hr_error_text((int)exec_error));
    else if (rank->was_killed)
        hr__text_adds(to, "did not end and was killed");
    else if (rank->end.signal)
        describe_signal(rank, to);
    else
        hr__text_addf(to, "ended with exit code %d", rank->end.exit_code);
}

static void add_indented(struct hr__text *to, const char *text) {
    while (*text) {
        size_t length = strcspn(text, "\n");
        hr__text_addf(to, "%s%.*s\n", INDENT, (int)length, text);
        text += length + (text[length] == '\n');
    }
}

/* ---- memory ---- */

/* Returns true if the kernel killed this rank because memory ran out. */
static bool is_oom(const struct hr__attempt *attempt, const struct hr__rank *rank) {
    uint64_t kills = hr__oom_kill_count();
    bool is_ours = rank->was_killed || rank->sent_signal == HR__KILL;
    return rank->end.signal == HR__KILL && !is_ours && kills != UINT64_MAX && kills > attempt->oom_kills;
}

static void explain_signal(const struct hr__attempt *attempt, const struct hr__rank *rank, struct hr__text *to) {
    double mib = (double)rank->peak_bytes / (1 << 20);
    if (is_oom(attempt, rank))
        hr__text_addf(to,
                      "; memory ran out, and the kernel killed it. It used at most %.0f MiB; lower the batch size or "
                      "the number of workers, or raise the memory limit",
                      mib);
    else if (rank->end.signal == HR__KILL && !rank->was_killed)
        hr__text_addf(
            to, "; another process killed it (a person, a batch system or the kernel). It used at most %.0f MiB", mib);
}

/* ---- the first failure ---- */

static bool is_inside(const char *path, const char *folder) {
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') length--;
    return strncmp(path, folder, length) == 0 && path[length] == '/';
}

/* A module may be missing because the ranks run in another environment than the active one. */
static void write_interpreter(const struct hr__attempt *attempt, const char *reason, struct hr__text *to) {
    const char *program = attempt->launch->program, *active = getenv("VIRTUAL_ENV");
    if (!attempt->job->is_python || strncmp(reason, "ModuleNotFoundError", 19) != 0) return;
    hr__text_addf(to, "  it ran under %s", program);
    if (active && *active && !is_inside(program, active))
        hr__text_addf(to,
                      ", and not in the active environment (VIRTUAL_ENV=%s): install headrace there, or choose it by "
                      "PYTHON_EXEC=%s/bin/python3",
                      active, active);
    hr__text_adds(to, "\n");
}

static void write_first(const struct hr__attempt *attempt, const struct hr__rank *rank, struct hr__text *to) {
    struct hr__text text = {0}, line = {0};
    hr__page_text(rank, &text);
    hr__page_reason(rank, &line);
    struct hr__failure failure = hr__failure_of(attempt, rank);
    hr__text_addf(to, "headrace: %s %s", rank->name, attempt->job->local_size > 1 ? "failed first: it " : "");
    if (line.length && hr__rank_was_ended(rank)) { /* it was still exiting when the others were asked to end, too */
        hr__text_addf(to, "raised %s", hr__text_string(&line));
    } else {
        hr__describe_end(attempt, rank, to);
        explain_signal(attempt, rank, to);
        if (line.length) hr__text_addf(to, ", after %s", hr__text_string(&line));
    }
    if (rank->pid)
        hr__text_addf(to, " (pid %d, %.1f s after the start)", rank->pid,
                      hr__seconds(failure.at_ns - attempt->begun_ns));
    hr__text_adds(to, "\n");
    write_interpreter(attempt, hr__text_string(&line), to);
    if (text.length && attempt->launch->is_piped)
        add_indented(to, hr__text_string(&text));
    else if (rank->tail.text.length) {
        hr__text_adds(to, "  the last lines that it wrote:\n");
        hr__tail_write(&rank->tail, INDENT, HR__TAIL_LINES, to);
    }
    hr__text_free(&line);
    hr__text_free(&text);
}

/* ---- the others ---- */

enum fate { NOT_TOLD, NOT_STARTED, RETURNED, LOST_PEER, ASKED, KILLED, OTHER, FATES };

static enum fate fate_of(const struct hr__attempt *attempt, const struct hr__rank *rank, const struct hr__rank *first) {
    if (rank == first) return NOT_TOLD;
    if (attempt->reason == HR__GUARDIAN_DIED && rank->was_killed)
        return NOT_TOLD; /* the line about the guardian says it */
    if (!rank->pid) return NOT_STARTED;
    if (!rank->has_ended) return KILLED;
    if (!hr__rank_failed(rank)) return RETURNED;
    if (rank->was_killed) return KILLED;
    if (hr__page_word(&rank->page->is_lost_peer, 0, 1)) return LOST_PEER;
    if (rank->sent_signal && rank->end.signal == rank->sent_signal) return ASKED;
    return OTHER;
}

static void add_ranks(const struct hr__attempt *attempt, const enum fate *fates, enum fate fate, struct hr__text *to) {
    uint32_t count = 0;
    hr__each_rank (rank, attempt) {
        if (fates[rank->local] != fate) continue;
        if (count++ < SHOWN_RANKS) hr__text_addf(to, "%s%u", count > 1 ? ", " : "", rank->global);
    }
    if (count > SHOWN_RANKS) hr__text_addf(to, " and %u more", count - SHOWN_RANKS);
}

static uint32_t count_fate(const struct hr__attempt *attempt, const enum fate *fates, enum fate fate) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < attempt->job->local_size; i++) count += fates[i] == fate;
    return count;
}

static void write_group(const struct hr__attempt *attempt, const enum fate *fates, enum fate fate, const char *what,
                        struct hr__text *to) {
    uint32_t count = count_fate(attempt, fates, fate);
    if (!count) return;
    if (count == 1) {
        hr__each_rank (rank, attempt)
            if (fates[rank->local] == fate) hr__text_addf(to, "  %s", rank->name);
    } else {
        hr__text_adds(to, "  ranks ");
        add_ranks(attempt, fates, fate, to);
    }
    hr__text_addf(to, " %s\n", what);
}

static void write_killed(const struct hr__attempt *attempt, const struct hr__rank *rank, struct hr__text *to) {
    if (rank->has_ended)
        hr__text_addf(to, "  %s did not end and was killed after %.1f s; it was ", rank->name,
                      hr__seconds(rank->ended_ns - attempt->ending_ns));
    else
        hr__text_addf(to, "  %s (pid %d) could not be killed; it was ", rank->name, rank->pid);
    hr__stack_describe(&rank->stacks, to);
    hr__text_adds(to, "\n");
    hr__stack_write(&rank->stacks, INDENT, STACK_LINES, to);
}

static void write_other(const struct hr__attempt *attempt, const struct hr__rank *rank, struct hr__text *to) {
    struct hr__text line = {0};
    hr__page_reason(rank, &line);
    hr__text_addf(to, "  %s ", rank->name);
    hr__describe_end(attempt, rank, to);
    hr__text_addf(to, "%s%s\n", line.length ? ", after " : "", hr__text_string(&line));
    hr__text_free(&line);
}

/* Ranks that have ended well close their connections. If others fail for this, that is all there is to say. */
static const char *describe_return(const struct hr__rank *first) {
    bool is_left_alone = first && hr__page_word(&first->page->is_lost_peer, 0, 1);
    return is_left_alone ? "had returned 0 before, and the others waited on; do all ranks have the same number of "
                           "batches and of collectives?"
                         : "returned 0";
}

static void write_followers(const struct hr__attempt *attempt, const struct hr__rank *first, struct hr__text *to) {
    enum fate *fates = calloc(attempt->job->local_size, sizeof *fates);
    uint32_t shown = 0;
    if (!fates) return;
    hr__each_rank (rank, attempt) fates[rank->local] = fate_of(attempt, rank, first);
    hr__each_rank (rank, attempt)
        if (fates[rank->local] == OTHER && shown++ < SHOWN_RANKS) write_other(attempt, rank, to);
    write_group(attempt, fates, LOST_PEER, "lost the connection to another rank and ended", to);
    write_group(attempt, fates, ASKED, "ended when asked to", to);
    write_group(attempt, fates, RETURNED, describe_return(first), to);
    shown = 0;
    hr__each_rank (rank, attempt)
        if (fates[rank->local] == KILLED && shown++ < SHOWN_RANKS) write_killed(attempt, rank, to);
    free(fates);
}

/* ---- the whole ---- */

int hr__exit_code(const struct hr__attempt *attempt) {
    const struct hr__rank *first = hr__find_first(attempt);
    switch (attempt->reason) {
    case HR__NO_REASON:
        return 0;
    case HR__SIGNALLED:
        return first ? HR_LAUNCH_SIGNAL_BASE + attempt->signal : 0;
    case HR__EXIT_TIMEOUT:
    case HR__STALLED:
        return HR_LAUNCH_TIMEOUT;
    case HR__PARENT_DIED:
    case HR__GUARDIAN_DIED:
        return HR_LAUNCH_ERROR;
    default:
        return first ? exit_code_of(first) : HR_LAUNCH_ERROR;
    }
}

static void write_exit_timeout(const struct hr__attempt *attempt, struct hr__text *to) {
    hr__each_rank (rank, attempt) {
        if (!rank->exit_timed_out) continue;
        hr__text_addf(to, "headrace: %s finished its main program, but did not exit within %.10g s (--exit-timeout)",
                      rank->name, hr__seconds(attempt->job->exit_timeout_ns));
        hr__text_add(to, rank->keepers.bytes, rank->keepers.length);
        hr__text_adds(to, "\n");
    }
}

/* The first failure may be of a rank that another headrace or another launcher has started. */
static void write_elsewhere(const struct hr__attempt *attempt, const struct hr__rank *first, struct hr__text *to) {
    bool has_others = attempt->job->node_count > 1 || attempt->job->kind == HR_LAUNCH_ONE;
    if (!has_others || !hr__page_word(&first->page->is_lost_peer, 0, 1)) return;
    hr__text_addf(to, "  it lost the connection to a rank %s, which failed before: look for the reason there\n",
                  attempt->job->node_count > 1 ? "of another machine" : "that was started elsewhere");
}

static void write_cause(struct hr__attempt *attempt, const struct hr__rank *first, struct hr__text *to) {
    switch (attempt->reason) {
    case HR__SIGNALLED:
        hr__text_addf(to, "headrace: signal %d (%s) came after %.1f s, and was passed on to the ranks\n",
                      attempt->signal, hr__signal_name(attempt->signal),
                      hr__seconds(attempt->ending_ns - attempt->begun_ns));
        break;
    case HR__EXIT_TIMEOUT:
        write_exit_timeout(attempt, to);
        break;
    case HR__STALLED:
        hr__text_addf(to,
                      "headrace: no rank has taken a batch or written anything for %.10g s (--stall-after), so the job "
                      "was ended\n",
                      hr__seconds(attempt->job->stall_after_ns));
        hr__text_adds(to, hr__text_string(&attempt->stall));
        break;
    case HR__GUARDIAN_DIED:
        hr__text_adds(to, "headrace: the process that watches the ranks was killed, and the ranks with it\n");
        break;
    case HR__PARENT_DIED:
        hr__text_adds(to, "headrace: the process that started headrace has ended, so the program was ended, too\n");
        break;
    default:
        if (!first) return;
        write_first(attempt, first, to);
        write_elsewhere(attempt, first, to);
    }
}

static void write_code(const struct hr__attempt *attempt, struct hr__text *to) {
    int code = hr__exit_code(attempt);
    hr__text_addf(to, "headrace: exit code %d", code);
    if (code > HR_LAUNCH_SIGNAL_BASE && hr__signal_name(code - HR_LAUNCH_SIGNAL_BASE))
        hr__text_addf(to, " (128 + signal %d)", code - HR_LAUNCH_SIGNAL_BASE);
    hr__text_adds(to, "\n");
}

/* Returns the end of a message with the page about why a job was ended; NULL: no page is about that. */
static const char *page_on(const struct hr__attempt *attempt) {
    switch (attempt->reason) {
    case HR__FAILED:
        return HR_HELP("rank-failed");
    case HR__EXIT_TIMEOUT:
        return HR_HELP("exit-hangs");
    case HR__STALLED:
        return HR_HELP("ranks-wait");
    default:
        return NULL;
    }
}

static void write_rest(const struct hr__attempt *attempt, uint32_t restarts_left, struct hr__text *to) {
    const char *starter = attempt->job->kind == HR_LAUNCH_ONE ? "the command" : "the ranks";
    if (attempt->adopted_count)
        hr__text_addf(to, "  %u process%s that %s had started %s killed\n", attempt->adopted_count,
                      attempt->adopted_count > 1 ? "es" : "", starter, attempt->adopted_count > 1 ? "were" : "was");
    if (attempt->stuck_count)
        hr__text_addf(to, "  %u process%s could not be killed, and may still run: %s\n", attempt->stuck_count,
                      attempt->stuck_count > 1 ? "es" : "", hr__text_string(&attempt->stuck));
    if (attempt->folder) hr__text_addf(to, "  the logs are in %s\n", attempt->folder);
    if (page_on(attempt)) hr__text_addf(to, " %s\n", page_on(attempt));
    if (restarts_left)
        hr__text_addf(to, "headrace: all ranks are started again; %u restart%s left\n", restarts_left - 1,
                      restarts_left == 2 ? " is" : "s are");
    else
        write_code(attempt, to);
}

static void write_left(const struct hr__attempt *attempt, struct hr__text *to) {
    if (attempt->left_count)
        hr__text_addf(to,
                      "headrace: note: the ranks have left %u process%s running: %s%s" HR_HELP("processes-left") "\n",
                      attempt->left_count, attempt->left_count > 1 ? "es" : "", hr__text_string(&attempt->left),
                      attempt->left_count > 8 ? ", ..." : "");
}

/* Returns true for a command of another launcher that a signal of that launcher has ended: the launcher says why. */
static bool ended_as_asked(const struct hr__attempt *attempt) {
    const struct hr__rank *rank = attempt->ranks;
    return attempt->job->kind == HR_LAUNCH_ONE && rank->sent_signal && rank->end.signal == rank->sent_signal;
}

void hr__summary_write(struct hr__attempt *attempt, uint32_t restarts_left) {
    struct hr__text text = {0};
    struct hr__rank *first = hr__find_first(attempt);
    bool is_ended_as_asked = attempt->reason == HR__SIGNALLED && (!first || ended_as_asked(attempt));
    bool is_quiet = attempt->reason == HR__NO_REASON || is_ended_as_asked;
    if (is_quiet) {
        write_left(attempt, &text);
    } else {
        write_cause(attempt, first, &text);
        write_followers(attempt, attempt->reason == HR__FAILED ? first : NULL, &text);
        write_rest(attempt, restarts_left, &text);
    }
    if (text.length) hr__show_text(attempt->launch, &text);
    if (!is_quiet && !restarts_left) hr__report_reason(first, &text);
    hr__text_free(&text);
}
