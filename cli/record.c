/* SPDX-License-Identifier: Apache-2.0 */
/* headrace record: keeps what the loaders of a job do. Loaders with record= start it, too. */
#define _GNU_SOURCE
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <headrace/error.h>

#include "cli.h"
#include "stop.h"

enum { TICK_NS = 50000000, TICKS_A_LOOK = 5, TICKS_TO_WAIT_SILENTLY = 20 };

static const char help[] = "Usage: headrace record -o FOLDER PID...\n"
                           "\n"
                           "Records what the loaders of running processes do, and of the processes that they\n"
                           "have started or will start, until they end. It only reads: the job does not\n"
                           "change. A loader has a file of at most 16 MiB in FOLDER; several jobs and ranks\n"
                           "may have the same folder. `headrace report FOLDER` says what it shows.\n"
                           "\n"
                           "  PID                  the training process, or that of headrace run or torchrun\n"
                           "  -o, --output FOLDER  where to write; it is made if it is missing\n"
                           "  -h, --help           show this text\n"
                           "\n"
                           "In a script: DataLoader(..., record=\"run1/\"), or HEADRACE_RECORD=run1/ for all\n"
                           "of its loaders.\n";

struct request {
    const char *folder;
    uint64_t recording; /* a loader has started this: record only those that ask for it */
    bool is_of_job, is_help;
};

static int refuse(const char *what, const char *word) {
    fprintf(stderr, "headrace: %s '%s'; see headrace record --help\n", what, word);
    return EXIT_USAGE;
}

static int read_pid(struct record *record, const char *word) {
    char *end;
    errno = 0;
    long pid = strtol(word, &end, 10);
    if (*end || end == word || errno || pid < 1 || pid > INT_MAX) return refuse("this is no process ID:", word);
    if (record->named_count == RECORD_PIDS) return refuse("there are too many process IDs, from", word);
    record->named[record->named_count] = (int)pid;
    record->started[record->named_count++] = record_started((int)pid);
    return 0;
}

static int read_words(struct record *record, int count, char **words, struct request *request) {
    static const char job[] = "--of-job=";
    for (int i = 0; i < count; i++) {
        const char *word = words[i];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
            request->is_help = true;
        else if (strncmp(word, "--output=", 9) == 0)
            request->folder = word + 9;
        else if (strncmp(word, job, sizeof job - 1) == 0) {
            request->is_of_job = true;
            request->recording = strtoull(word + sizeof job - 1, NULL, 10);
        } else if (strcmp(word, "-o") == 0 || strcmp(word, "--output") == 0) {
            if (++i == count) return refuse("a folder is missing after", word);
            request->folder = words[i];
        } else if (word[0] == '-')
            return refuse("unknown option", word);
        else if (read_pid(record, word))
            return EXIT_USAGE;
    }
    if (request->is_help) return 0;
    if (!request->folder || !*request->folder) return refuse("there is no folder to write to; give", "-o FOLDER");
    return record->named_count ? 0 : refuse("there is no process to record; give", "PID");
}

/* A process of another user has its descriptors where only root can read them. */
static int check_processes(const struct record *record) {
    char path[64];
    for (int i = 0; i < record->named_count; i++) {
        int pid = record->named[i];
        if (!record->started[i]) {
            fprintf(stderr, "headrace: there is no process %d\n", pid);
            return 1;
        }
        snprintf(path, sizeof path, "/proc/%d/fd", pid);
        if (access(path, R_OK) == 0) continue;
        fprintf(stderr,
                "headrace: the kernel does not let this process read process %d (%s); run this command as its user "
                "or as root\n",
                pid, strerror(errno));
        return 1;
    }
    return 0;
}

static bool is_running(const struct record *record) {
    for (int i = 0; i < record->named_count; i++)
        if (record_started(record->named[i]) == record->started[i]) return true;
    return false;
}

/* The process that started this one goes on at once. What stops a job, such as Ctrl-C, does not stop its recorder,
 * which ends when the job does. Its warnings go where those of the job go. */
static bool leave_job(void) {
    pid_t pid = fork();
    if (pid < 0) return false;
    if (pid > 0) _exit(0);
    setsid();
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], SIG_IGN);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) dup2(null, STDIN_FILENO);
    if (null >= 0) dup2(null, STDOUT_FILENO);
    if (null > STDERR_FILENO) close(null);
    return chdir("/") == 0; /* so that the folder of the job can be unmounted; ours is an absolute path */
}

/* Sleeps until the next tick. A process that was stopped does not catch up with the ticks that it has missed. */
static void sleep_until(int64_t *deadline_ns) {
    int64_t now_ns = clock_ns();
    *deadline_ns += TICK_NS;
    if (*deadline_ns < now_ns) *deadline_ns = now_ns;
    struct timespec at = {.tv_sec = *deadline_ns / 1000000000, .tv_nsec = *deadline_ns % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static void say_that_it_waits(void) {
    fputs("headrace: there is no loader in these processes yet; waiting for one (Ctrl-C ends)\n", stderr);
}

/* Returns the reason for the end. */
static enum hr_record_end watch(struct record *record, bool is_of_job, int *ret_code) {
    int64_t deadline_ns = clock_ns();
    for (uint64_t tick = 0; *ret_code == 0 && !is_stopped(); tick++) {
        if (!is_running(record)) return HR_RECORD_JOB_ENDED;
        if (tick % TICKS_A_LOOK == 0) {
            *ret_code = record_find(record);
            if (*ret_code == 0) *ret_code = hr_recorder_look(record->recorder);
        }
        hr_recorder_glance(record->recorder);
        if (tick == TICKS_TO_WAIT_SILENTLY && !is_of_job && !hr_recorder_count(record->recorder)) say_that_it_waits();
        sleep_until(&deadline_ns);
    }
    return HR_RECORD_STOPPED;
}

/* It has two open for each loader. */
static void raise_open_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static int warn(void) {
    fprintf(stderr, "headrace: %s\n", hr_error_message());
    return 1;
}

static int run(struct record *record, const struct request *request) {
    int failed = 0, code = 0;
    enum hr_record_end end = watch(record, request->is_of_job, &failed);
    uint32_t count = hr_recorder_count(record->recorder);
    if (failed < 0) code = warn();
    int r = hr_recorder_end(record->recorder, end);
    if (r < 0 && failed == 0) code = warn();
    if (!request->is_of_job && code == 0)
        printf("headrace: recorded %u loader%s in %s\n", count, count == 1 ? "" : "s", request->folder);
    return code;
}

int record_command(int argc, char **argv) {
    struct record record = {0};
    struct request request = {0};
    int code = read_words(&record, argc - 2, argv + 2, &request);
    if (code) return code;
    if (request.is_help) {
        fputs(help, stdout);
        return 0;
    }
    code = check_processes(&record);
    if (code) return code;
    if (hr_recorder_open(request.folder, request.recording, &record.recorder) < 0) return warn();
    raise_open_files();
    record.has_descendants = !request.is_of_job;
    if (request.is_of_job && !leave_job()) {
        fprintf(stderr, "headrace: the recorder cannot leave its job: %s\n", strerror(errno));
        return 1;
    }
    if (!request.is_of_job) watch_stop_signals();
    code = run(&record, &request);
    record_free(&record);
    return code;
}
