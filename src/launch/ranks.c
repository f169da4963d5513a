/* SPDX-License-Identifier: Apache-2.0 */
/* Opens what a rank gets: its page, its streams, its log files; in the forked child, becomes the command. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"

/* SIGINT, SIGTERM and SIGCHLD: a shell lets background jobs ignore SIGINT, but it reaches the ranks only if it was
 * meant for them. */
static const uint64_t ENDING_SIGNALS = UINT64_C(1) << 1 | UINT64_C(1) << 14 | UINT64_C(1) << 16;

enum { BOTH = HR_LAUNCH_STDOUT | HR_LAUNCH_STDERR, PATH_BYTES = 4096 };

static uint8_t streams_of(const uint8_t *table, const struct hr__rank *rank) {
    return table ? table[rank->local] & BOTH : 0;
}

/* Returns true if its output is neither logged nor hidden. */
static bool is_plain(const struct hr_launch_job *job, const struct hr__rank *rank) {
    bool is_shown = !job->is_shown || job->is_shown[rank->local];
    return is_shown && !streams_of(job->redirects, rank) && !streams_of(job->tees, rank);
}

static bool reads_stdin(const struct hr_launch_job *job, const struct hr__rank *rank) {
    return job->stdin_rank >= 0 && (uint32_t)job->stdin_rank == rank->local;
}

/* Gives the rank a copy of one of the front's own streams, or nothing if that is closed. */
static int copy_stream(struct hr__launch *launch, int number, int *ret_fd) {
    int r = hr__dup(number, ret_fd);
    return r == -EBADF ? hr__dup(launch->null_fd, ret_fd) : r;
}

static int open_stdin(struct hr__attempt *attempt, struct hr__rank *rank) {
    if (!reads_stdin(attempt->job, rank)) return hr__dup(attempt->launch->null_fd, &rank->child_fds[0]);
    return copy_stream(attempt->launch, 0, &rank->child_fds[0]);
}

static int open_log(struct hr__attempt *attempt, struct hr__rank *rank, int number, int *ret_fd) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%u/%s.log", attempt->folder, rank->local, number == 1 ? "stdout" : "stderr");
    int r = hr__log_create(path, ret_fd);
    return r < 0 ? hr__fail(r, "launch: cannot create the log file %s: %s", path, hr_error_text(r)) : 0;
}

static int open_pipe(struct hr__stream *stream, int *child_fd) {
    int r = hr__output_pipe(&stream->fd, child_fd);
    return r < 0 ? hr__fail(r, "launch: cannot create a pipe for a rank: %s", hr_error_text(r)) : 0;
}

/* Opens stdout (1) or stderr (2) of a rank. */
static int open_output(struct hr__attempt *attempt, struct hr__rank *rank, int number) {
    const struct hr_launch_job *job = attempt->job;
    struct hr__stream *stream = &rank->streams[number - 1];
    int *child_fd = &rank->child_fds[number];
    uint8_t bit = (uint8_t)number; /* HR_LAUNCH_STDOUT or HR_LAUNCH_STDERR */
    bool is_teed = streams_of(job->tees, rank) & bit, is_redirected = streams_of(job->redirects, rank) & bit;
    stream->target = bit;
    stream->is_shown = !job->is_shown || job->is_shown[rank->local];
    if (is_teed) {
        int r = open_log(attempt, rank, number, &stream->log_fd);
        return r < 0 ? r : open_pipe(stream, child_fd);
    }
    if (is_redirected) return open_log(attempt, rank, number, child_fd);
    if (!stream->is_shown) return hr__dup(attempt->launch->null_fd, child_fd);
    if (!attempt->launch->is_piped) return copy_stream(attempt->launch, number, child_fd);
    if (number == 2 && attempt->launch->joins_streams && is_plain(job, rank))
        return hr__dup(rank->child_fds[1], child_fd);
    return open_pipe(stream, child_fd);
}

/* Gives the rank that reads stdin a terminal of its own, so that debuggers and prompts work. */
static int open_terminal(struct hr__attempt *attempt, struct hr__rank *rank) {
    int r = hr__terminal_open(0, &rank->streams[0].fd, &rank->child_fds[0]);
    if (r == 0) r = hr__dup(rank->child_fds[0], &rank->child_fds[1]);
    if (r == 0) r = hr__dup(rank->child_fds[0], &rank->child_fds[2]);
    if (r < 0) return hr__fail(r, "launch: cannot open a terminal for rank %u: %s", rank->global, hr_error_text(r));
    rank->streams[0].is_shown = true;
    rank->streams[0].target = HR_LAUNCH_STDOUT;
    rank->has_terminal = true;
    attempt->terminal_fd = rank->streams[0].fd;
    return 0;
}

static int make_folder(const struct hr__attempt *attempt, const struct hr__rank *rank) {
    char path[PATH_BYTES];
    if (!attempt->folder) return 0;
    snprintf(path, sizeof path, "%s/%u", attempt->folder, rank->local);
    int r = hr__folder_make(path);
    return r < 0 ? hr__fail(r, "launch: cannot create the log folder %s: %s", path, hr_error_text(r)) : 0;
}

static int open_rank(struct hr__attempt *attempt, struct hr__rank *rank) {
    const struct hr_launch_job *job = attempt->job;
    bool keeps_store = rank->local == 0 && job->kind == HR_LAUNCH_RANKS && job->local_size > 1 && job->node_count == 1;
    int r = hr__page_open(rank, keeps_store);
    if (r == 0) r = make_folder(attempt, rank);
    if (r < 0) return r;
    if (attempt->launch->is_terminal && reads_stdin(job, rank) && is_plain(job, rank))
        return open_terminal(attempt, rank);
    r = open_stdin(attempt, rank);
    for (int number = 1; r == 0 && number <= 2; number++) r = open_output(attempt, rank, number);
    return r;
}

/* A command of another launcher is the rank that the launcher has made it. */
static void name_rank(const struct hr_launch_job *job, struct hr__rank *rank) {
    const char *number = job->kind == HR_LAUNCH_ONE ? getenv("RANK") : NULL;
    bool is_number = number && *number && strspn(number, "0123456789") == strlen(number) && strlen(number) < 10;
    if (is_number) rank->global = (uint32_t)strtoul(number, NULL, 10);
    if (job->kind == HR_LAUNCH_RANKS || is_number)
        snprintf(rank->name, sizeof rank->name, "rank %u", rank->global);
    else
        snprintf(rank->name, sizeof rank->name, "the command");
}

static void init_rank(const struct hr__attempt *attempt, uint32_t local) {
    struct hr__rank *rank = &attempt->ranks[local];
    *rank = (struct hr__rank){.local = local,
                              .global = attempt->job->node_rank * attempt->job->local_size + local,
                              .page_fd = -1,
                              .streams = {{.fd = -1, .log_fd = -1}, {.fd = -1, .log_fd = -1}},
                              .child_fds = {-1, -1, -1}};
    name_rank(attempt->job, rank);
}

static int open_folder(struct hr__attempt *attempt) {
    char path[PATH_BYTES];
    if (!attempt->launch->folder) return 0;
    if (snprintf(path, sizeof path, "%s/attempt_%u", attempt->launch->folder, attempt->number) >= PATH_BYTES - 64)
        return hr__fail(-ENAMETOOLONG, "launch: the path of the log folder is too long");
    int r = hr__folder_make(path);
    if (r < 0) return hr__fail(r, "launch: cannot create the log folder %s: %s", path, hr_error_text(r));
    attempt->folder = strdup(path);
    return attempt->folder ? 0 : hr__fail(-ENOMEM, "launch: out of memory");
}

int hr__ranks_open(struct hr__attempt *attempt) {
    uint32_t count = attempt->job->local_size;
    attempt->ranks = calloc(count, sizeof *attempt->ranks);
    if (!attempt->ranks) return hr__fail(-ENOMEM, "launch: out of memory for %u ranks", count);
    for (uint32_t i = 0; i < count; i++) init_rank(attempt, i);
    int r = open_folder(attempt);
    for (uint32_t i = 0; r == 0 && i < count; i++) r = open_rank(attempt, &attempt->ranks[i]);
    if (r == -EMFILE || r == -ENFILE)
        return hr__fail_more(
            r, "launch: %u ranks need about %u open files; raise the limit (ulimit -n)" HR_HELP("open-files"), count,
            6 * count);
    return r;
}

void hr__rank_give(struct hr__rank *rank) {
    for (int i = 0; i < 3; i++) hr__close(&rank->child_fds[i]);
}

void hr__ranks_give(struct hr__attempt *attempt) {
    hr__each_rank (rank, attempt)
        for (int i = 0; i < 3; i++) hr__close(&rank->child_fds[i]);
}

void hr__ranks_close(struct hr__attempt *attempt) {
    if (!attempt->ranks) return;
    hr__ranks_give(attempt);
    hr__each_rank (rank, attempt) {
        for (int i = 0; i < 2; i++) {
            hr__close(&rank->streams[i].fd);
            hr__close(&rank->streams[i].log_fd);
            hr__lines_free(&rank->streams[i].lines);
        }
        hr__tail_free(&rank->tail);
        hr__text_free(&rank->keepers);
        hr__page_close(rank);
    }
    free(attempt->ranks);
    attempt->ranks = NULL;
    free(attempt->folder);
    attempt->folder = NULL;
}

int hr__rank_become(const struct hr__attempt *attempt, const struct hr__rank *rank, int parent) {
    const char **words = hr__rank_words(attempt->job, rank->local);
    const char **environment = hr__rank_environment(attempt, rank);
    char path[PATH_BYTES];
    if (!words || !environment) return -ENOMEM;
    int r = hr__find_program(words[0], getenv("PATH"), path, sizeof path); /* its name may have the local rank in it */
    if (r < 0) return r;
    const int inherited[] = {rank->page_fd, attempt->board_fd};
    struct hr__program program = {
        .path = path,
        .words = words,
        .environment = environment,
        .streams = {rank->child_fds[0], rank->child_fds[1], rank->child_fds[2]},
        .inherited = inherited,
        .inherited_count = attempt->board_fd < 0 ? 1 : 2,
        .kept_ignored = attempt->launch->ignored_signals & ~ENDING_SIGNALS,
        .open_files = attempt->launch->open_files,
        .has_own_group = true,
        .has_terminal = rank->has_terminal,
        .dies_with_parent = true,
        .parent = parent,
    };
    return hr__become(&program);
}
