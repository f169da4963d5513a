/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_LAUNCH_PROTOCOL_H
#define HR_LAUNCH_PROTOCOL_H

#include <stdint.h>

/*
 * What the front and the guardian say to each other, over two connected sockets, in records of a fixed size. The
 * guardian never waits for a command: if the front is gone, the end of the socket makes it kill everything.
 */

enum hr__command_kind {
    HR__COMMAND_SIGNAL = 1, /* send a signal to a rank, or to all (local -1); not to their children */
    HR__COMMAND_STACKS,     /* send a rank, or all, the signal for stacks that its page names */
    HR__COMMAND_STOP,       /* send SIGSTOP or SIGCONT to all ranks and their descendants */
    HR__COMMAND_SWEEP,      /* kill all ranks and what they have left, then end */
    HR__COMMAND_LEAVE,      /* all ranks have ended: say what they have left running, then end */
};

struct hr__command {
    uint32_t kind;
    int32_t local;
    int32_t signal;
    int32_t reserved;
};

enum hr__event_kind {
    HR__EVENT_STARTED = 1, /* pid */
    HR__EVENT_NOT_STARTED, /* error: a negative errno of fork */
    HR__EVENT_ENDED,       /* pid, signal, exit_code, peak_bytes, was_killed */
    HR__EVENT_STUCK,       /* pid of a process that could not be killed; error: -EPERM, or -ETIMEDOUT */
    HR__EVENT_LEFT,        /* pid of a process that runs on */
    HR__EVENT_SWEPT,       /* count of processes that were killed and are no ranks */
    HR__EVENT_LEAVES,      /* count of processes that run on */
};

enum { HR__EVENT_NAME_BYTES = 16 };

struct hr__event {
    uint32_t kind;
    int32_t local; /* local rank; -1: it is not about a rank */
    int32_t pid;
    int32_t signal;
    int32_t exit_code;
    int32_t error;
    uint32_t was_killed;
    uint32_t count;
    uint64_t peak_bytes;
    int64_t at_ns;
    char name[HR__EVENT_NAME_BYTES]; /* name of the program of STUCK and LEFT */
};

struct hr__attempt;

/* The guardian, in the forked child. `control_fd` is its end of the sockets. It does not return. */
_Noreturn void hr__guardian_run(struct hr__attempt *attempt, int control_fd);

/* Children of this process that are not of the job: it had them before. */
struct hr__others {
    int *pids;
    size_t count;
};

/* Kills all children of this process, except those that are spared, and what they leave, until none is left, and reaps
 * them. Calls `reaped` for each process that has ended, to reap it, and `stuck` for each that could not be killed. */
struct hr__sweep {
    void (*reaped)(void *context, int pid);
    void (*stuck)(void *context, int pid, int error);
    void *context;
    const struct hr__others *spared; /* NULL: no child is */
};
void hr__sweep(const struct hr__sweep *sweep);

#endif
