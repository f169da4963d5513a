/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_LAUNCH_LAUNCH_H
#define HR_LAUNCH_LAUNCH_H

#include <headrace/face/launch.h>

#include "base/base.h"
#include "base/error.h"
#include "base/text.h"
#include "board/look.h"
#include "lines.h"
#include "os/os.h"
#include "page.h"
#include "protocol.h"
#include "tail.h"
#include "writer.h"

/*
 * The parts of a launch, all in the front:
 *
 *     launch.c       checks the job, and makes attempts until one succeeds or no restart is left
 *     attempt.c      one attempt: starts the guardian, and waits for whatever happens next
 *     ranks.c        what a rank gets: its page, pipes, log files and environment
 *     output.c       what the ranks write, on its way to the screen and to log files
 *     ending.c       the way from a failure or a signal to the end of all processes
 *     first.c        which rank failed first
 *     watch.c        notes about ranks that do not exit, and about ranks that make no step
 *     summary.c      what is said at the end; report.c: the same for programs
 *
 * guardian.c and sweep.c run in the guardian; both processes share protocol.h.
 */

enum { HR__LAUNCH_ID_BYTES = 17 };

struct hr__stream {
    int fd; /* the read end of a pipe, or the front's end of a terminal; -1: none, or it has ended */
    int log_fd;
    bool is_log_full;
    bool is_shown;
    uint8_t target; /* HR_LAUNCH_STDOUT or HR_LAUNCH_STDERR: where it is shown */
    struct hr__lines lines;
};

struct hr__rank {
    uint32_t local;
    uint32_t global;
    char name[24]; /* for messages: "rank 3", or "the command" */
    int pid;       /* 0: it was not started */

    int page_fd;
    struct hr__page *page;  /* mapped */
    uint64_t stacks_bytes;  /* bytes of the page's stacks that were read */
    struct hr__text stacks; /* text of the newest dump */

    struct hr__stream streams[2]; /* stdout, stderr; or both in the first */
    struct hr__tail tail;         /* the end of what it wrote */
    int child_fds[3];             /* what becomes its stdin, stdout and stderr; closed after the guardian has them */
    bool has_terminal;

    bool has_ended;
    struct hr__end end;
    int64_t ended_ns;
    uint64_t peak_bytes;
    int start_error; /* errno: it could not be forked */
    int sent_signal; /* the last one that ends it and that was sent before its end; 0: none */
    bool was_killed; /* the guardian sent SIGKILL before its end */
    bool exit_noted, exit_timed_out;
    struct hr__text keepers; /* what kept it when it was ended for that */
};

/* Knows what the terminal, or the files that stdout and stderr are, show at their ends. */
struct hr__screen {
    const struct hr__stream *open; /* the stream whose unfinished line is shown last; NULL: no such line */
    bool is_one_terminal;          /* stdout and stderr are the same terminal */
};

struct hr__terminal {
    bool passes_keys; /* the modes of stdin are changed */
    struct hr__terminal_modes before;
};

enum hr__launch_phase {
    HR__RUNNING,
    HR__ENDING, /* the ranks were asked to end */
    HR__KILLING,
    HR__OVER, /* the guardian has ended */
};

enum hr__reason {
    HR__NO_REASON, /* all ranks returned 0, or the job still runs */
    HR__FAILED,    /* a rank failed */
    HR__SIGNALLED, /* the front got a signal that ends the job */
    HR__EXIT_TIMEOUT,
    HR__STALLED,
    HR__GUARDIAN_DIED,
    HR__PARENT_DIED, /* the parent died of a program that is no rank of this launch */
};

struct hr__attempt {
    const struct hr_launch_job *job;
    struct hr__launch *launch;
    uint32_t number;
    uint16_t port;
    int port_fd, reserved_fd;
    char *folder; /* folder of the logs of this attempt, or NULL */

    struct hr__rank *ranks; /* job->local_size */
    uint32_t ended_count;
    int board_fd;
    int control_fd; /* the socket to the guardian */
    int guardian_pid;
    int terminal_fd; /* the front's end of the terminal of the rank with stdin; -1 */

    enum hr__launch_phase phase;
    enum hr__reason reason;
    int signal;             /* the signal of HR__SIGNALLED */
    bool is_from_step;      /* the newest signal is from Slurm, which sends it to each process of a step: also to the
                             * ranks */
    bool is_hinted;         /* it was said how to end sooner */
    int64_t begun_ns;       /* when the attempt began */
    int64_t ending_ns;      /* when the ranks were asked to end */
    int64_t deadline_ns;    /* HR__ENDING: then they are killed */
    uint64_t oom_kills;     /* count on this machine when the attempt began */
    bool is_swept;          /* the guardian has ended all processes */
    uint32_t adopted_count; /* processes that the guardian killed and that were not ranks */
    uint32_t stuck_count;   /* processes that could not be killed */
    struct hr__text stuck;  /* the names of these processes */
    uint32_t left_count;    /* processes that run on after success */
    struct hr__text left;
    struct hr__text stall;  /* where the ranks were when they were ended for that */
    int64_t others_over_ns; /* when the main programs of all ranks but 0 were over; 0: they are not */
    struct hr__watch *watch;
};

struct hr__launch {
    const struct hr_launch_job *job;
    char id[HR__LAUNCH_ID_BYTES]; /* HEADRACE_RUN */
    uint32_t front_pid;
    char program[4096]; /* the command, found in PATH */
    int null_fd;
    int hook_fd; /* the file with the private sitecustomize; -1: none */
    int report_fd;
    bool joins_streams;        /* stdout and stderr are one file */
    bool is_piped;             /* the ranks write to pipes */
    bool is_terminal;          /* a rank gets a terminal */
    uint64_t ignored_signals;  /* when this process began; bit n - 1: signal n */
    bool is_in_step;           /* this process is in a step of Slurm */
    uint64_t open_files;       /* so many a rank may have open; this process may have more */
    int parent;                /* when this process began */
    bool has_launcher;         /* another launcher has started this process as a rank, and ends with it */
    struct hr__others others;  /* children that this process had before */
    char *folder;              /* folder of the logs of this run, or NULL */
    char *errors;              /* without logs: folder of torchrun's error files, removed at the end; NULL: none */
    struct hr__writer *writer; /* NULL: the ranks write to the streams themselves */
    struct hr__screen screen;
    struct hr__terminal terminal;
    int last_signal;
    int64_t begun_ns;
    struct hr__text history; /* JSON of the attempts before the last */
};

#define hr__each_rank(rank, attempt)                                                                                   \
    for (struct hr__rank *rank = (attempt)->ranks; rank < (attempt)->ranks + (attempt)->job->local_size; rank++)

static inline double hr__seconds(int64_t ns) {
    return (double)ns / 1e9;
}

/* Writes to stderr, after what the ranks wrote before. */
void hr__show_text(struct hr__launch *launch, const struct hr__text *text);
/* Writes a line of headrace's own. */
__attribute__((format(printf, 2, 3))) void hr__say(struct hr__launch *launch, const char *format, ...);

/* ---- attempt.c ---- */

/* Runs one attempt to its end. The caller frees it (hr__attempt_free) after it has told about it, also on failure,
 * which is a negative code with a message: the guardian could not be started. */
int hr__attempt_run(struct hr__attempt *attempt);
void hr__attempt_free(struct hr__attempt *attempt);
void hr__attempt_command(struct hr__attempt *attempt, enum hr__command_kind kind, int32_t local, int signal);

/* ---- ranks.c ---- */

int hr__ranks_open(struct hr__attempt *attempt);  /* pages, pipes, logs */
void hr__ranks_give(struct hr__attempt *attempt); /* closes what now belongs to the ranks */
void hr__rank_give(struct hr__rank *rank);        /* the guardian calls it, for one rank */
void hr__ranks_close(struct hr__attempt *attempt);
/* In the forked child of the guardian: becomes the command. Returns a negative errno. */
int hr__rank_become(const struct hr__attempt *attempt, const struct hr__rank *rank, int parent);

/* ---- environment.c ---- */

/* Returns the environment of a rank, ended by NULL, as one piece of memory of the C library; NULL: memory ran out. */
const char **hr__rank_environment(const struct hr__attempt *attempt, const struct hr__rank *rank);
/* Returns the words of its command in the same way. */
const char **hr__rank_words(const struct hr_launch_job *job, uint32_t local);
/* Adds `word` with $name and ${name} replaced, by the rules of Python's string.Template.safe_substitute. `macros` ends
 * with a name of NULL. */
struct hr__macro {
    const char *name, *value;
};
void hr__expand(struct hr__text *to, const char *word, const struct hr__macro *macros);

/* ---- page.c ---- */

/* `keeps_store`: it is rank 0, and the front can see when the others no longer need its store. */
int hr__page_open(struct hr__rank *rank, bool keeps_store);
void hr__page_close(struct hr__rank *rank);
int64_t hr__page_word(const _Atomic int64_t *word, int64_t least, int64_t most); /* 0: it is out of range */
/* The signal that makes a rank append its stacks; 0: it does not, or does so no more. */
int hr__page_stack_signal(const struct hr__rank *rank);
/* When the main program of a rank was over; 0: it is not. A rank may be a shell that runs several interpreters, so one
 * that has ended says nothing about the rank. */
int64_t hr__page_over_ns(const struct hr__attempt *attempt, const struct hr__rank *rank);
void hr__page_text(const struct hr__rank *rank, struct hr__text *ret_text); /* gives the text of the exception */
/* The line about the exception that ended its main program: `ValueError: there is no sample 7`. */
void hr__page_reason(const struct hr__rank *rank, struct hr__text *ret_line);
void hr__page_keepers(const struct hr__rank *rank, struct hr__text *ret_text);
/* Reads stacks that were written since the last call; false: there is nothing new. */
bool hr__page_read_stacks(struct hr__rank *rank);

/* ---- output.c ---- */

void hr__output_read(struct hr__attempt *attempt, struct hr__rank *rank, struct hr__stream *stream);
/* Shows lines that are unfinished for long; returns when to call it again, INT64_MAX: not before more output. */
int64_t hr__output_tick(struct hr__attempt *attempt, int64_t now_ns);
void hr__output_end(struct hr__attempt *attempt); /* shows what is left in the pipes, and closes them */

/* ---- terminal.c ---- */

void hr__terminal_begin(struct hr__attempt *attempt);
void hr__terminal_end(struct hr__attempt *attempt);
int hr__terminal_input(struct hr__attempt *attempt); /* the descriptor to wait for; -1: none now */
void hr__terminal_pass_input(struct hr__attempt *attempt);
void hr__terminal_suspend(struct hr__attempt *attempt); /* Ctrl-Z: stops all processes of the job */
void hr__terminal_resume(struct hr__attempt *attempt);
void hr__terminal_resize(struct hr__attempt *attempt);

/* ---- ending.c ---- */

void hr__ending_begin(struct hr__attempt *attempt, enum hr__reason reason, int signal);
void hr__ending_note_end(struct hr__attempt *attempt, struct hr__rank *rank);
void hr__ending_signal(struct hr__attempt *attempt, int signal);
void hr__ending_tick(struct hr__attempt *attempt);
bool hr__rank_failed(const struct hr__rank *rank);
/* Makes the ranks that still run write their stacks, and waits for them for a moment. */
void hr__ending_take_stacks(struct hr__attempt *attempt);
void hr__ending_take_stack(struct hr__attempt *attempt, struct hr__rank *rank); /* reads the stack of one rank */

/* ---- first.c ---- */

/* Describes how a rank failed. Times are CLOCK_MONOTONIC in ns. */
struct hr__failure {
    bool is_failure;
    bool is_symptom; /* it lost a connection, or was ended because another rank had failed */
    int64_t at_ns;
};
/* Writes the path of torchrun's error file to ret_path, which has HR__PATH_BYTES bytes. -ENOENT: it has no such file.
 */
int hr__error_file(const struct hr__attempt *attempt, const struct hr__rank *rank, char *ret_path);
bool hr__rank_was_ended(const struct hr__rank *rank); /* true if a signal of this launch ended it */
struct hr__failure hr__failure_of(const struct hr__attempt *attempt, const struct hr__rank *rank);
/* Returns the index of the failure that was the first: the earliest one that is not a symptom, else the earliest one.
 * -1: no rank failed. */
int64_t hr__first_failure(const struct hr__failure *failures, uint32_t count);
struct hr__rank *hr__find_first(const struct hr__attempt *attempt); /* NULL: no rank failed */

/* ---- watch.c ---- */

int hr__watch_open(struct hr__attempt *attempt);
void hr__watch_close(struct hr__attempt *attempt);
int64_t hr__watch_tick(struct hr__attempt *attempt, int64_t now_ns); /* returns when to call it again */
void hr__watch_output(struct hr__attempt *attempt);                  /* a rank wrote something */
struct hr__board_position;
/* Returns how far a rank is, as the board showed it last; NULL: not known. */
const struct hr__board_position *hr__watch_position(const struct hr__attempt *attempt, const struct hr__rank *rank);

/* ---- stacks.c ---- */

/* Finds in a dump of faulthandler where the main thread is: its innermost call, and the innermost one in a file of the
 * user. false: the dump has no such thread. */
struct hr__where {
    const char *function; /* borrowed from the dump */
    size_t function_bytes;
    const char *user_line; /* 'File "train.py", line 3 in step' */
    size_t user_bytes;
};
bool hr__stack_where(const struct hr__text *stacks, struct hr__where *ret_where);
/* Adds a sentence part: "in all_reduce, called at File "train.py", line 3 in step". */
void hr__stack_describe(const struct hr__text *stacks, struct hr__text *to);
/* The lines of the main thread, each after `indent`, at most `line_count` of them. */
void hr__stack_write(const struct hr__text *stacks, const char *indent, uint32_t line_count, struct hr__text *to);

/* ---- summary.c, report.c ---- */

int hr__exit_code(const struct hr__attempt *attempt);
void hr__summary_write(struct hr__attempt *attempt, uint32_t restarts_left);
void hr__describe_end(const struct hr__attempt *attempt, const struct hr__rank *rank, struct hr__text *to);
void hr__report_add_attempt(struct hr__launch *launch, const struct hr__attempt *attempt);
/* Writes the summary where an outer launcher or Kubernetes looks for the reason of a failure. */
void hr__report_reason(const struct hr__rank *first, const struct hr__text *summary);
void hr__report_write(struct hr__launch *launch, const struct hr_launch_end *end);

#endif
