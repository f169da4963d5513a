/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of `headrace record` share. */
#ifndef HR_CLI_RECORD_H
#define HR_CLI_RECORD_H

#include <headrace/face/recorder.h>

#include <stdbool.h>
#include <stdint.h>

#include "top.h"

enum { RECORD_PIDS = 64 /* that the command line can name */ };

struct record {
    hr_recorder *recorder;
    int named[RECORD_PIDS];        /* processes, */
    uint64_t started[RECORD_PIDS]; /* and when, in the kernel's ticks: another one with this pid is not taken for it */
    int named_count;
    bool has_descendants; /* loaders of the processes that they have started are recorded, too */

    struct top_pids trainers;  /* processes that have loaders, or may have some */
    struct top_pids strangers; /* that have loaders, and are no descendants */
    int64_t tree_ns;           /* when new trainers are looked for */
    int64_t search_ns;
};

/* When a process was started; 0: it has ended. */
uint64_t record_started(int pid);
/* Shows all memory of loaders to the recorder. Returns 0, or the code of hr_recorder_find. */
int record_find(struct record *record);
void record_free(struct record *record);

#endif
