/* SPDX-License-Identifier: Apache-2.0 */
/* Finds why a training loop waits. The rules are in the order of enum hr_verdict_kind; the first one that holds is the
 * verdict. */
#include <headrace/face/verdict.h>

#include "base/base.h"

#define HARDLY_WAITS 0.03
#define RESERVE 1.2     /* of the workers that the busy time needs */
#define MOST 0.5        /* of a whole, or of all steps */
#define MANY_STEPS 0.25 /* workers of a slow rank may be late together, so not in each step */
#define COLLATES 0.4    /* of the busy time */
#define BUSY 0.8
#define HALF_OF_BUSY 0.5 /* a worker that has less CPU, and waits less for a core, waits for something else */
#define COLD 1.5         /* times as long in the first pass as in the second */
#define FULL 0.9         /* of the cores */
#define THROTTLED 0.1    /* of the time */
#define MOST_WAIT 0.9    /* in a division by 1 - wait */
#define LEAST_CPU 0.01
enum { FEWER = 2 /* to need fewer workers by less is not worth a change */, FIRST_WORKERS = 8 };

/* Returns the whole number below, of at most UINT32_MAX; 0 for a negative one, and for one that is not a number. */
static uint32_t floor_of(double value) {
    return value >= UINT32_MAX ? UINT32_MAX : value >= 1 ? (uint32_t)value : 0;
}

static double least(double one, double other) {
    return one < other ? one : other;
}

static bool are_busy(const struct hr_waits *waits) {
    return waits->workers && waits->busy > BUSY;
}

static bool are_cores_full(const struct hr_waits *waits) {
    return waits->free <= (1 - FULL) * waits->cores || waits->throttled >= THROTTLED;
}

/* Returns true if one more worker has as much of a core as it needs. */
static bool is_core_free(const struct hr_waits *waits) {
    return waits->free >= (waits->cpu > 0 ? least(1, waits->cpu) : 1);
}

static bool is_one_rank(const struct hr_waits *waits) {
    return waits->lag > MOST || (waits->lag > MANY_STEPS && waits->lag_of_wait > MOST);
}

/* Without a free core workers have little CPU, too: the time in which they wait for one does not count. */
static bool is_storage(const struct hr_waits *waits) {
    return are_busy(waits) && waits->delay >= 0 && waits->cpu + waits->delay < HALF_OF_BUSY;
}

static bool is_network(const struct hr_waits *waits) {
    return are_busy(waits) && waits->network > HALF_OF_BUSY;
}

static enum hr_verdict_kind kind_of(const struct hr_waits *waits) {
    double waiting = waits->wait + waits->start;
    if (waits->is_short) return HR_VERDICT_SHORT;
    if (!waits->is_cause && waiting < HARDLY_WAITS) return HR_VERDICT_TRAINER;
    if (!waits->is_cause && waits->start > MOST * waiting) return HR_VERDICT_STARTING;
    if (!waits->is_cause && is_one_rank(waits)) return HR_VERDICT_RANK;
    if (!waits->workers) return HR_VERDICT_NO_WORKERS;
    if (waits->slow_samples > MOST) return HR_VERDICT_SLOW_SAMPLES;
    if (is_network(waits)) return HR_VERDICT_NETWORK; /* rows are read while a batch is collated */
    if (waits->collate > COLLATES) return HR_VERDICT_COLLATE;
    if (is_storage(waits)) return HR_VERDICT_STORAGE;
    if (are_busy(waits) && are_cores_full(waits)) return HR_VERDICT_NO_CORES;
    if (are_busy(waits) && is_core_free(waits)) return HR_VERDICT_TOO_FEW;
    return HR_VERDICT_UNKNOWN;
}

/* Returns how many workers would be enough for a loop that hardly waits; 0: no fewer than now. */
static uint32_t fewer_workers(const struct hr_waits *waits) {
    double needed = RESERVE * waits->busy * waits->workers;
    uint32_t whole = floor_of(needed + 1 - 1e-9); /* rounded up */
    uint32_t count = (uint32_t)hr__max(whole, 1);
    return waits->workers >= FEWER && count <= waits->workers - FEWER ? count : 0;
}

/* Returns how many workers would be enough for a loop that waits: its steps would then take the time of the trainer. */
static uint32_t more_workers(const struct hr_waits *waits) {
    double needed = waits->workers / (1 - least(waits->wait, MOST_WAIT));
    return (uint32_t)hr__min(hr__max(floor_of(needed + 0.5), (uint64_t)waits->workers + 1), UINT32_MAX);
}

static struct hr_verdict too_few(const struct hr_waits *waits) {
    struct hr_verdict verdict = {.kind = HR_VERDICT_TOO_FEW};
    verdict.workers = more_workers(waits);
    uint64_t more = floor_of(waits->free / (waits->cpu > LEAST_CPU ? waits->cpu : LEAST_CPU));
    verdict.room = (uint32_t)hr__min(waits->workers + more, UINT32_MAX);
    return verdict;
}

/* Workers that wait for a disk or a network need no free cores. The process trains, too, so all of its CPU time may be
 * for that. */
static struct hr_verdict no_workers(const struct hr_waits *waits) {
    struct hr_verdict verdict = {.kind = HR_VERDICT_NO_WORKERS};
    double waiting = waits->wait + waits->start;
    verdict.is_storage = waits->delay >= 0 && waits->cpu + waits->delay < HALF_OF_BUSY * waiting;
    verdict.is_network = waits->network > HALF_OF_BUSY * waiting;
    if (verdict.is_storage || verdict.is_network)
        verdict.workers = FIRST_WORKERS;
    else if (!are_cores_full(waits))
        verdict.workers = (uint32_t)hr__max(hr__min(floor_of(waits->free), FIRST_WORKERS), 1);
    return verdict;
}

struct hr_verdict hr_judge(const struct hr_waits *waits) {
    struct hr_verdict verdict = {.kind = kind_of(waits)};
    switch (verdict.kind) {
    case HR_VERDICT_TRAINER:
        verdict.workers = fewer_workers(waits);
        break;
    case HR_VERDICT_NETWORK:
    case HR_VERDICT_STORAGE:
        verdict.is_cold = waits->first_pass >= COLD;
        verdict.workers = verdict.is_cold ? 0 : more_workers(waits);
        break;
    case HR_VERDICT_NO_WORKERS:
        return no_workers(waits);
    case HR_VERDICT_TOO_FEW:
        return too_few(waits);
    default:
        break;
    }
    return verdict;
}

const char *hr_verdict_name(enum hr_verdict_kind kind) {
    static const char *const names[] = {"short",   "trainer", "starting", "rank",     "no workers", "slow samples",
                                        "network", "collate", "storage",  "no cores", "too few",    "unknown"};
    return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}
