/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "options.h"
#include "stop.h"

#include <headrace/error.h>
#include <headrace/face/index.h>
#include <headrace/lines.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* headrace index: writes an index next to each file. */

enum { JOBS_MOST = 32, OPEN_SHARE = 4, SHOW_NS = 200000000, LOG_S = 10 };

static const char help[] = "Usage: headrace index FILE... [OPTION...]\n"
                           "       headrace index URL... --to FOLDER [--kind KIND] [--storage FILE]\n"
                           "\n"
                           "Writes FILE.hri next to each tar file (for sources.Tar) and each text file (for\n"
                           "sources.Lines and sources.Jsonl): where its members or lines are. Without it, each\n"
                           "machine finds that out once, and keeps it in its cache; with it, all machines\n"
                           "that share the folder need not. A source compares what it reads with the index,\n"
                           "so that an index which is old gives an error, and no other data.\n"
                           "\n"
                           "Of objects in a bucket or behind https, the indexes are written to a folder, for\n"
                           "an upload next to the objects: NAME.hri next to NAME. A URL may have braces, of a\n"
                           "bucket also a pattern, in quotes.\n"
                           "\n"
                           "  --to FOLDER   where the indexes of URLs are written\n"
                           "  --storage FILE   the settings that sources take as storage=, in JSON (default:\n"
                           "                keys of the environment)\n"
                           "  --kind KIND   tar or lines (default: by the name and the first bytes of each\n"
                           "                file)\n"
                           "  --again       also if FILE.hri is there, and has the size and the time of FILE\n"
                           "  --check       write nothing: read the files, and compare each FILE.hri with them\n"
                           "\n"
                           "Files named *.hri are left out, so that a pattern can name a whole folder.\n"
                           "Exit code: 0 all is done, 1 some file failed or its index is not right, 2 wrong\n"
                           "usage, 130 stopped; what is finished is kept.\n";

struct command {
    const char *kind_text;
    int again, checks;
    int kind; /* enum hr_index_kind; 0: by each file */
    uint64_t total_bytes, finished_bytes;
    uint64_t file_count, done_count, current_count, failed_count, sample_count;
    int64_t shown_ns;
    bool is_terminal, is_shown;
};

/* A file that is being read. */
struct job {
    const char *path;
    enum hr_index_kind kind;
    hr_indexing *indexing;
};

/* The files that are read at the same time, the first one first. */
struct jobs {
    struct job jobs[JOBS_MOST];
    uint32_t first, count, most;
};

/* ---- progress ---- */

static void hide(struct command *command) {
    if (command->is_terminal && command->is_shown) fputs("\r\033[K", stderr);
    command->is_shown = false;
}

/* Shows how far it is: on a terminal in one line, elsewhere in a line from time to time. */
static void show(struct command *command, const struct jobs *jobs) {
    int64_t interval_ns = command->is_terminal ? SHOW_NS : LOG_S * INT64_C(1000000000);
    char done[UNITS_BYTES], total[UNITS_BYTES];
    uint64_t bytes = command->finished_bytes;
    if (clock_ns() - command->shown_ns < interval_ns) return;
    command->shown_ns = clock_ns();
    command->is_shown = true;
    for (uint32_t i = 0; i < jobs->count; i++) {
        struct hr_indexing_info info;
        hr_indexing_look(jobs->jobs[(jobs->first + i) % JOBS_MOST].indexing, &info);
        bytes += info.bytes_done;
    }
    fprintf(stderr,
            command->is_terminal ? "\r%" PRIu64 " of %" PRIu64 " files, %s of %s\033[K"
                                 : "%" PRIu64 " of %" PRIu64 " files, %s of %s\n",
            command->done_count, command->file_count, in_bytes(bytes, done), in_bytes(command->total_bytes, total));
    fflush(stderr);
}

static void fail_file(struct command *command) {
    hide(command);
    command->failed_count++;
    fail_with_message();
}

/* ---- one file ---- */

/* Texts for a damaged tar file, and whether what is before the damage can be used. */
static const struct damage {
    bool is_usable;
    const char *text;
} damages[HR_DAMAGE_COUNT] = {
    [HR_DAMAGE_EMPTY] = {false, "it is empty"},
    [HR_DAMAGE_COMPRESSED] = {false, "it is compressed, so its samples cannot be read at any place; unpack it first"},
    [HR_DAMAGE_HEADER] = {true, "there is no header of a member, or it has a wrong checksum"},
    [HR_DAMAGE_TRUNCATED] = {true, "it ends within a member"},
    [HR_DAMAGE_SPARSE] = {true, "a member is sparse, which is not supported"},
    [HR_DAMAGE_REFUSED] = {true, "a member has headers that are not supported"},
    [HR_DAMAGE_FIELDS] = {true, "it has too many different fields"},
};

static bool judge_tar(const struct job *job, const struct hr_index_file *file) {
    const struct damage *damage = &damages[file->damage];
    bool is_usable = damage->is_usable && file->good_bytes;
    fprintf(stderr, "headrace: %s, offset %" PRIu64 ": %s%s\n", job->path, file->good_bytes, damage->text,
            is_usable ? "; the samples before it are in the index" : "");
    return is_usable;
}

static bool judge_lines(const struct job *job, const hr_index *index) {
    hr_lines *lines;
    if (hr_lines_open(&job->path, 1, index, &lines) == 0) hr_lines_close(lines);
    fail_with_message();
    return false;
}

/* Says what is wrong with a file. Returns false if it can have no index. */
static bool judge(struct command *command, const struct job *job, const hr_index *index) {
    const struct hr_index_file *file = hr_index_look_file(index, 0);
    if (file->damage == HR_DAMAGE_NONE) return true;
    command->failed_count++;
    hide(command);
    return job->kind == HR_INDEX_TAR ? judge_tar(job, file) : judge_lines(job, index);
}

static void check_saved(struct command *command, const struct job *job, const hr_index *index) {
    hr_index *saved = NULL;
    int r = hr_index_load(job->kind, job->path, &saved);
    hide(command);
    if (r == -ENOENT)
        fprintf(stderr, "headrace: %s has no index\n", job->path);
    else if (r < 0)
        fail_with_message();
    else if (!hr_index_is_same(index, saved))
        fprintf(stderr,
                "headrace: the index of %s has other entries than the file; write it again: headrace index "
                "--again %s\n",
                job->path, job->path);
    else
        command->current_count++;
    hr_index_close(saved);
}

static int save(struct command *command, const struct job *job, const hr_index *index) {
    int r = hr_index_save(index, job->path);
    if (r >= 0) return 0;
    fail_file(command);
    if (r == -EACCES || r == -EROFS || r == -EPERM)
        fputs("headrace: without an index next to it, each machine makes its own in the cache; nothing else is lost\n",
              stderr);
    return r == -ENOSPC || r == -EDQUOT ? r : 0; /* no other file would have room either */
}

static int finish(struct command *command, struct job *job) {
    struct hr_index_info info;
    hr_index *index = NULL;
    int r = hr_indexing_take(job->indexing, &index);
    if (r < 0) {
        fail_file(command);
        return 0;
    }
    hr_index_look(index, &info);
    command->sample_count += info.sample_count;
    command->finished_bytes += hr_index_look_file(index, 0)->bytes;
    if (judge(command, job, index)) {
        if (command->checks)
            check_saved(command, job, index);
        else
            r = save(command, job, index);
    }
    hr_index_close(index);
    return r;
}

/* ---- all files ---- */

static int wait_for_first(struct command *command, struct jobs *jobs) {
    struct job *job = &jobs->jobs[jobs->first];
    int r;
    while ((r = hr_indexing_wait(job->indexing, clock_ns() + SHOW_NS)) == 0 || r == -EINTR) {
        if (is_stopped()) return -ECANCELED;
        show(command, jobs);
    }
    if (r < 0) fail_file(command);
    r = r < 0 ? 0 : finish(command, job);
    job->indexing = hr_indexing_free(job->indexing);
    jobs->first = (jobs->first + 1) % JOBS_MOST;
    jobs->count--;
    command->done_count++;
    return r;
}

static bool is_index(const char *path) {
    size_t length = strlen(path);
    return length >= 4 && strcmp(path + length - 4, ".hri") == 0;
}

/* Returns true if a file has to be read; it has failed or is done otherwise. */
static bool has_to_be_read(struct command *command, const char *path, enum hr_index_kind *ret_kind) {
    hr_index *saved = NULL;
    if (command->kind) *ret_kind = (enum hr_index_kind)command->kind;
    if (!command->kind && hr_index_guess(path, ret_kind) < 0) {
        fail_file(command);
        return false;
    }
    if (command->checks || command->again) return true;
    bool is_current = hr_index_load(*ret_kind, path, &saved) == 0;
    command->current_count += is_current;
    hr_index_close(saved);
    return !is_current;
}

static int start(struct command *command, struct jobs *jobs, const char *path) {
    struct job job = {.path = path};
    int r = 0;
    if (!has_to_be_read(command, path, &job.kind)) {
        command->done_count++;
        return 0;
    }
    while (jobs->count == jobs->most && r == 0) r = wait_for_first(command, jobs);
    if (r < 0) return r;
    if (hr_indexing_start(job.kind, &path, 1, false, &job.indexing) < 0) {
        fail_file(command);
        command->done_count++;
        return 0;
    }
    jobs->jobs[(jobs->first + jobs->count++) % JOBS_MOST] = job;
    return 0;
}

static int run_all(struct command *command, int count, char **paths) {
    struct jobs jobs = {.most = JOBS_MOST};
    long open_most = sysconf(_SC_OPEN_MAX);
    int r = 0;
    if (open_most > 0 && open_most / OPEN_SHARE < JOBS_MOST)
        jobs.most = open_most < OPEN_SHARE ? 1 : (uint32_t)(open_most / OPEN_SHARE);
    for (int i = 0; i < count && r == 0; i++) {
        if (is_stopped()) r = -ECANCELED;
        if (r == 0 && !is_index(paths[i])) r = start(command, &jobs, paths[i]);
    }
    while (jobs.count && r == 0) r = wait_for_first(command, &jobs);
    for (; jobs.count; jobs.count--) hr_indexing_free(jobs.jobs[jobs.first++ % JOBS_MOST].indexing);
    hide(command);
    return r;
}

static void count_files(struct command *command, int count, char **paths) {
    struct stat info;
    for (int i = 0; i < count; i++) {
        if (is_index(paths[i])) continue;
        command->file_count++;
        if (stat(paths[i], &info) == 0) command->total_bytes += (uint64_t)info.st_size;
    }
}

static void sum_up(const struct command *command) {
    uint64_t made = command->file_count - command->current_count - command->failed_count;
    if (command->checks)
        printf("%" PRIu64 " of %" PRIu64 " files have a right index\n", command->current_count, command->file_count);
    else
        printf("%" PRIu64 " indexes written, of %" PRIu64 " samples; %" PRIu64 " were there already, %" PRIu64
               " failed\n",
               made, command->sample_count, command->current_count, command->failed_count);
}

static int read_kind(struct command *command) {
    if (!command->kind_text) return 0;
    if (strcmp(command->kind_text, "tar") == 0) return command->kind = HR_INDEX_TAR, 0;
    if (strcmp(command->kind_text, "lines") == 0) return command->kind = HR_INDEX_LINES, 0;
    fprintf(stderr, "headrace: --kind is '%s'; give tar or lines\n", command->kind_text);
    return -1;
}

static int run(struct command *command, int count, char **paths) {
    count_files(command, count, paths);
    command->is_terminal = isatty(STDERR_FILENO);
    command->shown_ns = clock_ns();
    watch_stop_signals();
    int r = run_all(command, count, paths);
    if (r == -ECANCELED) {
        fputs("headrace: stopped; the indexes that are written stay\n", stderr);
        return EXIT_INTERRUPTED;
    }
    sum_up(command);
    return r < 0 || command->failed_count || (command->checks && command->current_count < command->file_count);
}

/* Returns true if there is a URL, or a folder for indexes: Python reads remote objects. */
static bool is_about_remote(int argc, char **argv) {
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (is_url(argv[i]) || strcmp(argv[i], "--to") == 0 || strncmp(argv[i], "--to=", 5) == 0) return true;
    return false;
}

int index_command(int argc, char **argv) {
    struct command command = {0};
    const struct option options[] = {
        {"--kind", &command.kind_text, NULL}, {"--again", NULL, &command.again}, {"--check", NULL, &command.checks}};
    if (is_about_remote(argc, argv)) return become_python(argc, argv);
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return fputs(help, stdout), 0;
    int count = parse_options("index", argc - 2, argv + 2, options, sizeof options / sizeof *options);
    if (count == 0) fputs("headrace: give the files; see headrace index --help\n", stderr);
    if (count <= 0 || read_kind(&command) < 0) return EXIT_USAGE;
    return run(&command, count, argv + 2);
}
