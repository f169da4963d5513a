/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_FACE_VERDICT_H
#define HEADRACE_FACE_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The verdict: why a training loop waits for data. `headrace top` asks for one about the last seconds, and
 * `headrace report` about a recording; each has its own words for it. It is a function of numbers and keeps nothing.
 */

/* The numbers of a loader over some time. Shares are from 0 to 1. */
struct hr_waits {
    bool is_short;       /* too little is known for a verdict */
    bool is_cause;       /* it is the rank that the others wait for: the question is why it is slow */
    double wait;         /* share of the time inside next(), without the first batches of epochs */
    double start;        /* share of the time until these first batches */
    uint32_t workers;    /* that get tasks */
    double busy;         /* share of their time in which workers have a batch to make */
    double collate;      /* share of the busy time: in the collate function */
    double network;      /* share of the busy time: waiting for remote objects. Without workers: of all time */
    double cpu;          /* share of the busy time: on a core. Without workers: of all time, of the training process */
    double delay;        /* the same: waiting for a core; negative: not known */
    double cores, free;  /* cores that the job may use, and those of them that are idle */
    double throttled;    /* share of the time in which a quota stops the job */
    double first_pass;   /* how many times as long a batch takes in the first epoch as in the second; 1: not known */
    double slow_samples; /* share of the waiting that is for batches with a slow sample; 0: not known */
    double lag;          /* share of the steps in which one rank is the slowest; 0: not known */
    double lag_of_wait;  /* share of the waiting that this rank alone has */
};

/* In the order in which a cause rules out the next one. */
enum hr_verdict_kind {
    HR_VERDICT_SHORT,
    HR_VERDICT_TRAINER,  /* the loop hardly waits */
    HR_VERDICT_STARTING, /* it waits for the first batches of epochs */
    HR_VERDICT_RANK,
    HR_VERDICT_NO_WORKERS, /* the training process makes its batches itself */
    HR_VERDICT_SLOW_SAMPLES,
    HR_VERDICT_NETWORK, /* workers wait for remote objects */
    HR_VERDICT_COLLATE,
    HR_VERDICT_STORAGE, /* workers wait for a disk or a network */
    HR_VERDICT_NO_CORES,
    HR_VERDICT_TOO_FEW, /* workers */
    HR_VERDICT_UNKNOWN
};

struct hr_verdict {
    enum hr_verdict_kind kind;
    uint32_t workers; /* that would be enough; 0: no other number helps */
    uint32_t room;    /* workers that the free cores are enough for, of HR_VERDICT_TOO_FEW */
    bool is_cold;     /* of HR_VERDICT_STORAGE and _NETWORK: only the first epoch is slow */
    bool is_storage;  /* of HR_VERDICT_NO_WORKERS: while the process makes batches, it mostly waits, */
    bool is_network;  /* for remote objects */
};

/* Returns why the loop waits. */
HR_API struct hr_verdict hr_judge(const struct hr_waits *waits);

/* Returns the name of a kind, such as "slow samples", which programs read in reports. */
HR_API const char *hr_verdict_name(enum hr_verdict_kind kind);

#ifdef __cplusplus
}
#endif
#endif
