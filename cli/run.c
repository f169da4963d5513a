/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <headrace/error.h>
#include <headrace/face/launch.h>

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli.h"

/* `headrace run` and `headrace exec`: reads the command line, starts the job, and ends as it did. */

extern char **environ;

static const char HEADSPACE_STEPS[] = "100";

static uint64_t bit(int signal) {
    return UINT64_C(1) << (signal - 1);
}

/* Returns a random UUID (version 4), as torchrun names a job that has no name. */
static const char *random_id(struct run *run) {
    unsigned char bytes[16];
    if (syscall(SYS_getrandom, bytes, sizeof bytes, 0) != (long)sizeof bytes)
        return run_print(run, "%ld", (long)getpid());
    bytes[6] = (unsigned char)((bytes[6] & 0x0F) | 0x40);
    bytes[8] = (unsigned char)((bytes[8] & 0x3F) | 0x80);
    const char *text = "";
    for (size_t i = 0; i < sizeof bytes; i++)
        text = run_print(run, "%s%s%02x", text, i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
    return text;
}

/* Makes the folder of the logs if the user wants logs and names none. */
static bool make_log_dir(struct run *run) {
    const char *parent = run_variable(run, "TMPDIR");
    char *path = (char *)(intptr_t)run_print(run, "%s/headrace_XXXXXX", parent && *parent ? parent : "/tmp");
    if (!mkdtemp(path))
        return run_fail(run, "cannot make a folder for logs (%s): %s; name one with --log-dir", path, strerror(errno));
    run->job.log_dir = path;
    run_say(run, "logs are in %s; --log-dir names another folder", path);
    return true;
}

/* Refuses a script that Python could not read in any rank, so that nothing is started. */
static bool check_script(struct run *run) {
    const char *script = run->script[0];
    bool is_file = run->job.is_python && (!run_has(run, MODULE) || run_has(run, RUN_PATH));
    struct stat status;
    if (run->is_exec || !is_file || !strcmp(script, "-") || strchr(script, '$')) return true;
    if (stat(script, &status) < 0 || access(script, R_OK) < 0)
        return run_fail(run, "cannot read the script '%s': %s; give the path of a Python script, or a module with -m",
                        script, strerror(errno));
    if (S_ISDIR(status.st_mode) && access(run_print(run, "%s/__main__.py", script), R_OK) < 0)
        return run_fail(run, "'%s' is a directory without __main__.py; give the path of a Python script", script);
    return true;
}

static bool plan(struct run *run) {
    char program[PATH_MAX];
    if (!find_own_path(program, sizeof program))
        return run_fail(run, "cannot read /proc/self/exe: %s; mount /proc", strerror(errno));
    char folder[PATH_MAX];
    struct run_machine machine = {.program = run_print(run, "%s", program),
                                  .folder = getcwd(folder, sizeof folder),
                                  .run_id = random_id(run),
                                  .find_interpreter = run_find_interpreter,
                                  .count_devices = run_count_devices};
    return run_plan(run, &machine) && check_script(run);
}

static void show_notes(const struct run *run) {
    for (const struct run_note *note = run->notes; note; note = note->next)
        fprintf(stderr, "headrace: note: %s\n", note->text);
}

/* Ends this process by a signal, so that a shell sees it. Returns if this process is PID 1, which no signal ends. */
static void die_of(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    fflush(NULL);
    if (getpid() == 1) return;
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigaction(signal, &action, NULL);
    raise(signal);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* Returns 0 if the command can be executed, or the exit code of a shell if it cannot. */
static int check_command(struct run *run) {
    const char *command = run->job.words[0];
    if (strchr(command, '$') || run_find_program(run, command)) return 0; /* $local_rank is replaced later */
    int code = errno == ENOENT || errno == ENOTDIR ? HR_LAUNCH_NOT_FOUND : HR_LAUNCH_CANNOT_RUN;
    fprintf(stderr, "headrace: cannot execute '%s': %s", command, strerror(errno));
    if (!strchr(command, '/') && access(command, F_OK) == 0)
        fprintf(stderr, "; names without / are looked up in PATH: for the file in this directory, write ./%s", command);
    fputs("\n", stderr);
    return code;
}

/* Returns true if a failure is not the command line's: there are not enough processes, descriptors or memory. */
static bool is_shortage(int code) {
    return code == -EAGAIN || code == -ENOMEM || code == -EMFILE || code == -ENFILE;
}

/* The variables in which ranks find an option; headrace/_loader/headspace has the name of this one, too. */
static bool set_environment(const struct run *run) {
    if (run->handed_on) { /* the module and the path are in the command of the ranks */
        unsetenv(run_rows[MODULE].variable);
        unsetenv(run_rows[RUN_PATH].variable);
    }
    static const char name[] = "HEADRACE_HEADSPACE";
    const char *steps = getenv(name);
    bool is_asked = steps && *steps && strcmp(steps, "0") != 0; /* perhaps for another number of steps */
    return is_asked || !run_has(run, HEADSPACE) || setenv(name, HEADSPACE_STEPS, 1) == 0;
}

static int start(struct run *run) {
    struct hr_launch_job *job = &run->job;
    struct hr_launch_end end;
    uint64_t terminal = bit(SIGTSTP) | bit(SIGCONT) | bit(SIGWINCH);
    if (!set_environment(run)) {
        fprintf(stderr, "headrace: cannot set HEADRACE_HEADSPACE: %s\n", strerror(errno));
        return HR_LAUNCH_ERROR;
    }
    signal(SIGCHLD, SIG_DFL); /* a parent that ignores it passes this on, and then the kernel reaps the ranks */
    int code = hr_launch_signals(job->end_signals | job->passed_signals | terminal, &job->signal_fd);
    if (code >= 0) code = hr_launch(job, &end);
    if (code < 0) {
        fprintf(stderr, "headrace: %s\n", hr_error_message());
        if (run->needs_temporary) rmdir(job->log_dir);
        return is_shortage(code) ? HR_LAUNCH_ERROR : EXIT_USAGE;
    }
    if (end.signal) die_of(end.signal);
    return end.signal ? HR_LAUNCH_SIGNAL_BASE + end.signal : end.exit_code;
}

static int refuse(const struct run *run) {
    fprintf(stderr, "headrace: %s\n", run->error);
    return EXIT_USAGE;
}

static int read_and_start(struct run *run, bool is_exec, char **argv) {
    if (!run_read(run, is_exec, (const char *const *)argv + 2, (const char *const *)environ)) return refuse(run);
    if (run->wants_help) return is_exec ? run_show_exec_help(stdout) : run_show_help(stdout);
    if (!plan(run)) return refuse(run);
    int code = check_command(run);
    if (code) return code;
    if (run->needs_temporary && !make_log_dir(run)) return refuse(run);
    show_notes(run);
    return start(run);
}

int run_command(int argc, char **argv) {
    struct run run;
    (void)argc; /* argv ends with NULL */
    int code = read_and_start(&run, false, argv);
    run_done(&run);
    return code;
}

int exec_command(int argc, char **argv) {
    struct run run;
    (void)argc;
    int code = read_and_start(&run, true, argv);
    run_done(&run);
    return code;
}
