/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_LAUNCH_PAGE_H
#define HR_LAUNCH_PAGE_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What a rank tells the front: a file in memory for each rank, which the front makes, of HR__PAGE_STACKS_AT bytes, and
 * the rank inherits under the number in HEADRACE_RANK_FD.
 *
 *     0        struct hr__page: words that the rank writes with pwrite(2) (src/launch/hook.py), one at a time
 *     1 KiB    one line about the exception that ended the main program
 *     4 KiB    text of the exception that ended the main program
 *     32 KiB   text about what keeps a finished process: its threads
 *     64 KiB   stacks, which faulthandler appends each time that the stack signal arrives
 *
 * All of it is a rank's word: it may be missing, wrong or half written, and the front checks each number.
 *
 * A rank may run several interpreters one after the other. Each takes the page: it resets the words of the earlier one
 * and writes its `pid`; the last one owns the page. Its stacks follow those that are there, so the front remembers the
 * size of the file before it sends the signal. The interpreter closes the descriptor on exec(2). So before the front
 * sends the signal, it looks whether /proc/PID/fd/HEADRACE_RANK_FD is this file: the signal would end another program.
 */

enum {
    HR__PAGE_REASON_AT = 1 << 10,
    HR__PAGE_TEXT_AT = 4 << 10,
    HR__PAGE_KEEPERS_AT = 32 << 10,
    HR__PAGE_STACKS_AT = 64 << 10,
    HR__PAGE_REASON_BYTES = HR__PAGE_TEXT_AT - HR__PAGE_REASON_AT,
    HR__PAGE_TEXT_BYTES = HR__PAGE_KEEPERS_AT - HR__PAGE_TEXT_AT,
    HR__PAGE_KEEPERS_BYTES = HR__PAGE_STACKS_AT - HR__PAGE_KEEPERS_AT,
    HR__PAGE_STACKS_BYTES = 1 << 20, /* so many bytes of stacks are read */
};

#define HR__PAGE_MAGIC INT64_C(0x6B6E615261657248) /* "HeaRank" */

/* Times are CLOCK_MONOTONIC in ns; 0: it has not happened. */
struct hr__page {
    _Atomic int64_t magic;         /* the front writes it */
    _Atomic int64_t pid;           /* the interpreter that writes here; 0: no interpreter has loaded the hook */
    _Atomic int64_t stack_signal;  /* makes that interpreter append its stacks; 0: it does not */
    _Atomic int64_t exception_ns;  /* an exception ended the main program */
    _Atomic int64_t text_bytes;    /* size of the exception's text; written before exception_ns */
    _Atomic int64_t over_ns;       /* the main program is over, and the interpreter begins to exit */
    _Atomic int64_t keepers_bytes; /* size of the text about threads; written before over_ns */
    _Atomic int64_t exec_error;    /* errno of the exec of the command; written by the forked child */
    _Atomic int64_t is_lost_peer;  /* 1: the exception says that a connection to another rank was lost */
    _Atomic int64_t is_watched;    /* the front writes it: 1: rank 0 keeps its store until the others are over */
    _Atomic int64_t others_over;   /* the front writes it: 1: the main programs of all other ranks are over, or the job
                                    * has failed: the rank keeps its store no longer */
    _Atomic int64_t is_keeping;    /* 1: after over_ns the rank waits for others_over, because it has the store */
    _Atomic int64_t ended_well;   /* 1: the main program that is over has returned, or has exited with 0; written before
                                   * over_ns */
    _Atomic int64_t reason_bytes; /* size of the line about the exception; written before exception_ns */
};

static_assert(sizeof(struct hr__page) <= HR__PAGE_REASON_AT, "before the line");
static_assert(offsetof(struct hr__page, reason_bytes) == 13 * sizeof(int64_t), "hook.py counts these words");

#endif
