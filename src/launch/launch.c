/* SPDX-License-Identifier: Apache-2.0 */
/* hr_launch: checks the job, opens what all attempts share, and restarts. */
#include "launch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hook.h"

enum { SIGXFSZ_NUMBER = 25 };

int hr_launch_signals(uint64_t signals, int *ret_fd) {
    /* A signal that is ignored would come from the descriptor all the same, because it is blocked. */
    int r = hr__signals_open((signals & ~hr__ignored_signals()) | hr__signal_bit(HR__CHLD), ret_fd);
    return r < 0 ? hr__fail(r, "launch: cannot open a descriptor for signals: %s", hr_error_text(r)) : 0;
}

/* ---- checks ---- */

static bool has_streams(const struct hr_launch_job *job, const uint8_t *table) {
    for (uint32_t i = 0; table && i < job->local_size; i++)
        if (table[i]) return true;
    return false;
}

static int check_job(const struct hr_launch_job *job) {
    if (!job->words || !job->words[0]) return hr__fail(-EINVAL, "launch: there is no command");
    if (job->local_size < 1 || job->local_size > HR_LAUNCH_MAX_RANKS)
        return hr__fail(-EINVAL, "launch: %u ranks are not from 1 to %d", job->local_size, HR_LAUNCH_MAX_RANKS);
    if (job->node_count < 1 || job->node_rank >= job->node_count)
        return hr__fail(-EINVAL, "launch: node %u of %u does not exist", job->node_rank, job->node_count);
    if (job->node_count > 1 && (!job->master_addr || !job->master_port))
        return hr__fail(-EINVAL, "launch: a job of several machines needs the address and the port of rank 0");
    if (job->node_count > 1 && job->max_restarts)
        return hr__fail(-EINVAL, "launch: restarts need a job of one machine");
    if (job->kind == HR_LAUNCH_ONE && job->local_size != 1)
        return hr__fail(-EINVAL, "launch: a program that is no rank is started once, not %u times", job->local_size);
    if (job->stdin_rank >= (int64_t)job->local_size)
        return hr__fail(-EINVAL, "launch: local rank %d cannot read stdin: there are %u ranks", job->stdin_rank,
                        job->local_size);
    if (!job->log_dir && (has_streams(job, job->redirects) || has_streams(job, job->tees)))
        return hr__fail(-EINVAL, "launch: logs need a folder");
    if ((uint64_t)job->local_size * job->node_count > INT32_MAX)
        return hr__fail(-EINVAL, "launch: %u ranks on each of %u machines are too many", job->local_size,
                        job->node_count);
    if (job->grace_ns < 0 || job->shutdown_ns < 0) return hr__fail(-EINVAL, "launch: a time limit is negative");
    return 0;
}

int hr_launch_find_program(const char *name, const char *folders, char *ret_path, size_t bytes) {
    return hr__find_program(name, folders, ret_path, bytes);
}

/* ---- what all attempts share ---- */

static int find_command(struct hr__launch *launch) {
    const struct hr_launch_job *job = launch->job;
    const char **words = hr__rank_words(job, 0);
    if (!words) return hr__fail(-ENOMEM, "launch: out of memory");
    int r = hr__find_program(words[0], getenv("PATH"), launch->program, sizeof launch->program);
    if (r < 0)
        hr__fail(r, "launch: cannot run %s: %s", words[0],
                 r == -ENOENT ? "there is no such program" : hr_error_text(r));
    free(words);
    return r;
}

/* Creates the folder and those above it. */
static int make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int r = hr__folder_make(path);
        *slash = '/';
        if (r < 0) return r;
    }
    return hr__folder_make(path);
}

/* A rank may change its working directory before it opens a file in this folder. */
static int add_absolute(struct hr__text *to, const char *path) {
    char current[HR__PATH_BYTES];
    if (!*path) return -ENOENT;
    if (*path != '/') {
        int r = hr__folder_current(current, sizeof current);
        if (r < 0) return r;
        hr__text_addf(to, "%s/", current);
    }
    hr__text_adds(to, path);
    return to->is_short ? -ENOMEM : 0;
}

static int open_logs(struct hr__launch *launch) {
    const struct hr_launch_job *job = launch->job;
    struct hr__text path = {0};
    if (!job->log_dir) return 0;
    int r = add_absolute(&path, job->log_dir);
    if (r == 0) r = make_folders(path.bytes);
    if (r == 0) {
        hr__text_addf(&path, "/%s_XXXXXX", job->run_id ? job->run_id : "none");
        r = path.is_short ? -ENOMEM : hr__folder_make_unique(path.bytes);
    }
    if (r < 0)
        hr__fail(r, "launch: cannot create a folder for logs in %s: %s; give another --log-dir", job->log_dir,
                 hr_error_text(r));
    else
        launch->folder = hr_take(path.bytes);
    hr__text_free(&path);
    return r;
}

/* Makes a folder for torchrun's error files. Without it, ranks run all the same. */
static void open_errors(struct hr__launch *launch) {
    const char *parent = getenv("TMPDIR");
    struct hr__text path = {0};
    if (launch->folder || launch->job->kind != HR_LAUNCH_RANKS) return;
    if (add_absolute(&path, parent && *parent ? parent : "/tmp") == 0) {
        hr__text_adds(&path, "/headrace-errors-XXXXXX");
        if (!path.is_short && hr__folder_make_unique(path.bytes) == 0) launch->errors = hr_take(path.bytes);
    }
    hr__text_free(&path);
}

static int open_report(const char *path, int *ret_fd) {
    if (!path) return 0;
    int r = hr__log_create(path, ret_fd);
    return r < 0 ? hr__fail(r, "launch: the report %s cannot be written: %s", path, hr_error_text(r)) : 0;
}

/* Puts the private sitecustomize into a file that Python can import from. Without it, ranks run all the same. */
static void open_hook(struct hr__launch *launch) {
    enum hr__memory_kind kind;
    if (hr__memory_create("headrace-hook", hr__hook_zip_bytes, 0, &launch->hook_fd, &kind) < 0) return;
    if (hr__write_at(launch->hook_fd, 0, hr__hook_zip, hr__hook_zip_bytes) < 0) hr__close(&launch->hook_fd);
}

static void choose_streams(struct hr__launch *launch) {
    const struct hr_launch_job *job = launch->job;
    launch->is_piped = job->local_size > 1 || has_streams(job, job->tees);
    launch->joins_streams = hr__is_same_file(1, 2);
    launch->is_terminal = job->local_size > 1 && job->stdin_rank >= 0 && hr__is_terminal(0) && hr__is_terminal(1);
    if (launch->is_terminal) hr__terminal_modes(0, &launch->terminal.before);
    launch->screen.is_one_terminal = launch->joins_streams && hr__is_terminal(1);
}

static void draw_id(struct hr__launch *launch) {
    uint64_t bits;
    hr__random(&bits, sizeof bits);
    snprintf(launch->id, sizeof launch->id, "%016" PRIx64, bits);
}

static bool is_in_step(void) {
    static const unsigned long SPECIAL_STEPS = 0xFFFFFFF0; /* from here on: batch scripts and the like */
    const char *step = getenv("SLURM_STEP_ID");
    return step && *step && strtoul(step, NULL, 10) < SPECIAL_STEPS;
}

/* Returns true for a rank of another launcher. If that is killed, nothing else ends its ranks. */
static bool has_launcher(const struct hr_launch_job *job) {
    static const char *const names[] = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
    for (size_t i = 0; job->kind == HR_LAUNCH_ONE && i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return true;
    return false;
}

static int list_others(struct hr__launch *launch) {
    enum { SPARE = 16 }; /* they may start more while they are counted */
    size_t room = hr__children_of((int)launch->front_pid, NULL, 0) + SPARE;
    launch->others.pids = calloc(room, sizeof(int));
    if (!launch->others.pids) return -ENOMEM;
    launch->others.count = hr__min(hr__children_of((int)launch->front_pid, launch->others.pids, room), room);
    return 0;
}

static void note_inherited(struct hr__launch *launch) {
    const char *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");
    if (launch->job->kind == HR_LAUNCH_RANKS && (rank || size) && !getenv("HEADRACE_RUN"))
        hr__say(launch,
                "headrace: note: the environment has %s=%s, which says nothing about the ranks that are started here; "
                "it is "
                "ignored. For a job of several machines give --nnodes and --node-rank",
                rank ? "RANK" : "WORLD_SIZE", rank ? rank : size);
}

static int open_launch(struct hr__launch *launch) {
    launch->null_fd = launch->hook_fd = launch->report_fd = -1;
    launch->begun_ns = hr__now_ns();
    launch->open_files = hr__raise_open_files();
    launch->front_pid = hr__pid();
    launch->ignored_signals = hr__ignored_signals();
    launch->is_in_step = is_in_step();
    launch->parent = hr__parent();
    launch->has_launcher = has_launcher(launch->job);
    hr__default_signal(HR__CHLD); /* if it is ignored, the kernel reaps the ranks, and nothing says how they ended */
    hr__block_signal(HR__PIPE);   /* then writing fails instead: no process reads, or the file is as large as allowed */
    hr__block_signal(SIGXFSZ_NUMBER);
    draw_id(launch);
    int r = hr__open_null(&launch->null_fd);
    if (r == 0) r = list_others(launch);
    if (r == 0) r = hr__adopt_orphans();
    if (r < 0) return hr__fail(r, "launch: cannot prepare to start processes: %s", hr_error_text(r));
    r = find_command(launch);
    if (r == 0) r = open_logs(launch);
    if (r == 0) r = open_report(launch->job->report, &launch->report_fd);
    if (r < 0) return r;
    note_inherited(launch);
    choose_streams(launch);
    open_hook(launch);
    open_errors(launch);
    if (!launch->is_piped) return 0;
    r = hr__writer_open(&launch->writer);
    return r < 0 ? hr__fail(r, "launch: cannot start a thread: %s", hr_error_text(r)) : 0;
}

static void close_launch(struct hr__launch *launch) {
    hr__writer_close(launch->writer, launch->job->signal_fd, launch->job->end_signals);
    hr__close(&launch->null_fd);
    hr__close(&launch->hook_fd);
    hr__close(&launch->report_fd);
    hr__text_free(&launch->history);
    free(launch->others.pids);
    hr__restore_open_files(launch->open_files);
    free(launch->folder);
    if (launch->errors) hr__folder_remove(launch->errors);
    free(launch->errors);
}

/* ---- attempts ---- */

/* Returns true if the ranks are started again after this attempt. */
static bool may_restart(const struct hr__attempt *attempt) {
    bool is_failure =
        attempt->reason == HR__FAILED || attempt->reason == HR__EXIT_TIMEOUT || attempt->reason == HR__STALLED;
    return is_failure && !attempt->launch->last_signal && attempt->number < attempt->job->max_restarts;
}

static void write_end(const struct hr__attempt *attempt, struct hr_launch_end *ret_end) {
    int code = hr__exit_code(attempt);
    bool is_interrupted = attempt->reason == HR__SIGNALLED && attempt->signal == HR__INT && code != 0;
    *ret_end = (struct hr_launch_end){.exit_code = code, .signal = is_interrupted ? HR__INT : 0};
}

/* Returns 1 if another attempt follows. */
static int try_once(struct hr__launch *launch, uint32_t number, struct hr_launch_end *ret_end) {
    struct hr__attempt attempt = {.job = launch->job, .launch = launch, .number = number};
    int r = hr__attempt_run(&attempt);
    bool restarts = r == 0 && may_restart(&attempt);
    if (r == 0) {
        hr__summary_write(&attempt, restarts ? attempt.job->max_restarts - number : 0);
        hr__report_add_attempt(launch, &attempt);
        write_end(&attempt, ret_end);
    }
    hr__attempt_free(&attempt);
    return r < 0 ? r : restarts;
}

/* Once ranks have run, a failure of headrace is the end of a job, and no longer a job that was not started. */
static int try_all(struct hr__launch *launch, struct hr_launch_end *ret_end) {
    uint32_t number = 0;
    int r;
    while ((r = try_once(launch, number, ret_end)) > 0) number++;
    if (r == 0 || number == 0) return r;
    hr__say(launch, "headrace: the ranks cannot be started again: %s", hr_error_message());
    *ret_end = (struct hr_launch_end){.exit_code = HR_LAUNCH_ERROR};
    return 0;
}

int hr_launch(const struct hr_launch_job *job, struct hr_launch_end *ret_end) {
    struct hr__launch launch = {.job = job};
    struct hr_launch_end end = {0};
    int r = check_job(job);
    if (r < 0) return r;
    r = open_launch(&launch);
    if (r == 0) r = try_all(&launch, &end);
    if (r == 0) {
        hr__report_write(&launch, &end);
        *ret_end = end;
    }
    close_launch(&launch);
    return r;
}
