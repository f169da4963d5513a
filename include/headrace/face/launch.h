/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_FACE_LAUNCH_H
#define HEADRACE_FACE_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Launch: starts the ranks of a job on this machine, shows what they write, explains how they fail, and ends them.
 *
 *     this process, the front -> the guardian -> the ranks
 *
 * The front stays in the session of the caller: it has the terminal and the signals, and writes what the ranks write.
 * The guardian is forked for each attempt. It has a session of its own, starts the ranks, and adopts what their
 * children leave behind. After a failure it kills the ranks and all of these processes; if the front dies, it does the
 * same. If the guardian dies, the kernel kills the ranks, and the front ends what they leave.
 *
 * hr_launch is called from a process with one thread that has no other children: it waits for all children of the
 * process, so SIGCHLD must not be ignored. It makes the process a child subreaper (prctl(2)) and blocks SIGPIPE and
 * SIGXFSZ in the calling thread.
 */

enum {
    HR_LAUNCH_MAX_RANKS = 4096, /* ranks on this machine */
    HR_LAUNCH_STDOUT = 1,       /* the streams, as torchrun numbers them; both: 3 */
    HR_LAUNCH_STDERR = 2,
    HR_LAUNCH_TIMEOUT = 124,     /* exit codes: exit_timeout_ns or stall_after_ns has passed */
    HR_LAUNCH_ERROR = 125,       /* headrace itself failed */
    HR_LAUNCH_CANNOT_RUN = 126,  /* the command cannot be executed */
    HR_LAUNCH_NOT_FOUND = 127,   /* there is no such command */
    HR_LAUNCH_SIGNAL_BASE = 128, /* 128 + n: a rank died of signal n */
};

enum hr_launch_kind {
    HR_LAUNCH_RANKS, /* ranks of a job: each gets the environment variables of a rank */
    HR_LAUNCH_ONE,   /* one rank of another launcher, or a launcher: its environment is not changed */
};

/* Describes what to start, and how. All memory is borrowed until hr_launch returns. */
struct hr_launch_job {
    enum hr_launch_kind kind;
    /* The command and its arguments, ended by NULL. The command is looked up in PATH. If `has_macros`, each word
     * (except an interpreter) is a template as of Python's string.Template.safe_substitute: $local_rank and
     * ${local_rank} become the local rank. */
    const char *const *words;
    bool has_macros;
    bool is_python;     /* for messages: words[0] is an interpreter, and the script is at `script` */
    const char *script; /* what the user calls the program, for messages; NULL: words[0] */

    uint32_t local_size; /* ranks on this machine, 1 or more; 1 if the kind is HR_LAUNCH_ONE */
    uint32_t node_count; /* machines, each with local_size ranks */
    uint32_t node_rank;
    const char *master_addr; /* "127.0.0.1" if NULL */
    uint16_t master_port;    /* 0: a free port, another one for each attempt */
    const char *run_id;      /* TORCHELASTIC_RUN_ID, and in the names of log folders; NULL: "none" */
    const char *role;        /* ROLE_NAME; NULL: "default" */
    uint32_t max_restarts;   /* restarts of all ranks together, with node_count 1 */

    /* Logs: LOG_DIR/RUN_ID_XXXXXXXX/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}. `redirects` and `tees`
     * have one entry per local rank: the streams that go to the log file only, and those that are also shown. NULL:
     * none. */
    const char *log_dir; /* NULL: no logs; then redirects and tees are all 0 */
    const uint8_t *redirects;
    const uint8_t *tees;
    const char *logged_prefix; /* template of the prefix of lines of `tees`, with $role_name, $rank, $local_rank and
                                  $hostname; NULL: "[${role_name}${local_rank}]:" */
    const bool *is_shown;      /* per local rank: its streams are shown if they are not redirected; NULL: all are */

    bool ends_with_parent; /* the job ends when the parent of this process has ended. Otherwise it does so if this is
                            * a rank of another launcher, unless SIGHUP is ignored */
    bool has_prefix;       /* lines are shown as "[rank] line"; false: as they are. Without effect for one rank */
    int32_t stdin_rank;    /* the local rank that reads stdin; the others read /dev/null. -1: none */

    int64_t grace_ns;        /* after a failure: from SIGTERM to SIGKILL */
    int64_t shutdown_ns;     /* after a signal to the front: from its passing on to SIGKILL */
    int64_t exit_timeout_ns; /* a rank whose main program is over has so long to exit; -1: it is only reported */
    int64_t stall_after_ns;  /* ranks that make no step for so long are ended; -1: they are only reported */
    uint64_t end_signals;    /* bit n - 1: signal n ends the job, and is passed on to the ranks first */
    uint64_t passed_signals; /* bit n - 1: signal n is passed on to the ranks and changes nothing else */

    const char *report; /* a file for the report as JSON; NULL: none */
    int signal_fd;      /* the result of hr_launch_signals; borrowed. -1: the front takes no signals */
};

/* How the job ended. */
struct hr_launch_end {
    int exit_code;
    int signal; /* not 0: the caller ends itself by this signal, so that a shell sees that it was interrupted */
};

/* Blocks these signals in the calling thread (bit n - 1: signal n), and SIGCHLD, and opens a descriptor from which
 * hr_launch reads them. Signals that are ignored stay ignored. The caller owns the descriptor. */
HR_API int hr_launch_signals(uint64_t signals, int *ret_fd);

/* Starts the ranks, waits until the job has ended, writes a summary to stderr if it failed, and the report. Returns 0
 * and `ret_end`, or a negative code with a message if nothing was started: -EINVAL: the job is invalid;
 * -EADDRINUSE: master_port is taken by another job or program; -EACCES, -ENOENT, -ENOTDIR ...: a log folder or the
 * report cannot be written; -ENOENT, -EACCES: the command cannot be found or executed. */
HR_API int hr_launch(const struct hr_launch_job *job, struct hr_launch_end *ret_end);

/* Finds a program as execvp and hr_launch do, and writes its path to `ret_path`, which has `bytes` bytes. `folders`:
 * what PATH is, or NULL. -ENOENT, -EACCES, -ENAMETOOLONG, -EISDIR: `name` is the path of a folder. */
HR_API int hr_launch_find_program(const char *name, const char *folders, char *ret_path, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
