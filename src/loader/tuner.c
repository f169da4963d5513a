/* SPDX-License-Identifier: Apache-2.0 */
/* Decides how many workers get tasks. See headrace/face/tuner.h. */
#include <math.h>
#include <stdlib.h>

#include <headrace/face/tuner.h>

#include "base/base.h"

enum {
    MOST_ROUNDS = 128, /* that a window keeps */
    LEAST_ROUNDS = 7,  /* of a window, which is also */
    MOST_GROWTH = 4,   /* a try has at most so many times the workers */
    NEAR_SHARE = 8,    /* fewer workers by this share or less are not tried */
    MOST_REJECTED = 2, /* of a search: then fewer are tried */
};
#define WINDOW_NS HR_NS_PER_S        /* so long at least */
#define ROUND_NS (HR_NS_PER_S / 100) /* of shorter rounds, several are measured at once */
#define DRAIN_NS                                                                                                       \
    HR_NS_PER_S /* batches that were ready before a change hide, for so long at most, that the loop waits */
#define MINUTE_NS (60 * HR_NS_PER_S)
#define LONGEST_PAUSE_NS (10 * MINUTE_NS)
#define TURN_NS (10 * HR_NS_PER_S)
static const double GAIN = 0.03;        /* of the rate, that counts */
static const double NOISES = 2;         /* and so many times its noise */
static const double LITTLE_WAIT = 0.03; /* more workers are not tried below this share of the time, */
static const double LONG_WAIT = 0.10;   /* and after a pause below this one */
static const double CHANGED = 0.25;     /* a period or a wait that differs so much is another work */

/* The rate of a number of workers. */
struct rate {
    uint32_t workers;
    double period_ns; /* of a batch: the median */
    double noise;
    double wait;
};

/* Rounds that are measured with one number of workers. */
struct window {
    uint32_t count;
    int64_t took_ns;
    uint64_t waited_ns;
};

struct hr_tuner {
    struct hr_tuner_options options;
    uint32_t workers; /* that get tasks */
    uint32_t wanted;
    uint32_t most; /* in this search */
    enum hr_tuner_state state;
    bool is_held;

    /* Batches that do not count: those that were on the way when the number changed, or the epoch began. */
    uint64_t skip_count;
    uint64_t skip_waited_ns; /* since then */
    int64_t drain_until_ns;  /* 0: not known yet */

    /* The round that is measured, and the window that it is a part of. */
    int64_t round_ns; /* its beginning; 0: it has not begun */
    uint64_t round_waited_ns;
    uint64_t round_count;
    uint64_t round_room;         /* batches until its end */
    double periods[MOST_ROUNDS]; /* a ring */
    struct window window;

    /* The epoch, which counts as one round if its rounds are less than half of it. */
    int64_t epoch_ns;
    uint64_t epoch_waited_ns;
    uint64_t epoch_count;
    int64_t epoch_measured_ns; /* of its rounds */
    bool has_changed;          /* the number of workers, in this epoch */
    struct window before;      /* the window when the epoch began */

    /* The search. */
    struct rate best;
    struct rate candidate; /* was better than the old number, which gets a second look */
    uint32_t candidate_try;
    uint32_t too_many; /* was no better than `best`; 0: not known */
    uint32_t too_few;  /* was worse; 0: not known */
    uint32_t rejected_count;
    bool is_repeated;   /* the work is that of the search before: only one number is tried */
    double fastest_ns;  /* the shortest period, when fewer are tried */
    struct rate rested; /* with which the last search ended */
    int64_t rested_ns;
    int64_t pause_ns;

    uint32_t changes;
    uint32_t try_count;
    struct hr_tuner_try tries[HR_TUNER_TRIES];
};

/* ---- measuring ---- */

static void forget_window(hr_tuner *tuner) {
    tuner->window = tuner->before = (struct window){0};
    tuner->round_room = tuner->workers;
}

/* The batches that are on the way do not count, nor the first round after them. */
static void settle(hr_tuner *tuner, uint64_t outstanding, uint64_t waited_ns) {
    tuner->skip_count = outstanding + tuner->workers;
    tuner->skip_waited_ns = waited_ns;
    tuner->drain_until_ns = 0;
    tuner->round_ns = 0;
}

void hr_tuner_begin(hr_tuner *tuner, int64_t now_ns, uint64_t waited_ns) {
    settle(tuner, (uint64_t)tuner->workers * tuner->options.prefetch_factor, waited_ns);
    tuner->epoch_ns = now_ns;
    tuner->epoch_waited_ns = waited_ns;
    tuner->epoch_count = 0;
    tuner->epoch_measured_ns = 0;
    tuner->has_changed = false;
    tuner->before = tuner->window;
}

static void add_round(hr_tuner *tuner, int64_t took_ns, uint64_t waited_ns, uint64_t count) {
    tuner->periods[tuner->window.count++ % MOST_ROUNDS] = (double)took_ns / (double)count;
    tuner->window.took_ns += took_ns;
    tuner->window.waited_ns += waited_ns;
    tuner->epoch_measured_ns += took_ns;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, uint32_t count) {
    qsort(values, count, sizeof *values, compare);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* The standard error of a median of normal values is 1.25 / sqrt(n) of their deviation, which is 1.48 of the median of
 * distances to it. */
static struct rate measure(const hr_tuner *tuner) {
    double values[MOST_ROUNDS];
    uint32_t count = (uint32_t)hr__min(tuner->window.count, MOST_ROUNDS);
    for (uint32_t i = 0; i < count; i++) values[i] = tuner->periods[i];
    struct rate rate = {.workers = tuner->workers, .period_ns = median(values, count)};
    for (uint32_t i = 0; i < count; i++) values[i] = fabs(values[i] - rate.period_ns);
    rate.noise = 1.25 * 1.48 * median(values, count) / sqrt(count) / rate.period_ns;
    rate.wait = (double)tuner->window.waited_ns / (double)tuner->window.took_ns;
    return rate;
}

static bool is_better(const struct rate *rate, const struct rate *other) {
    double gain = other->period_ns / rate->period_ns - 1;
    double noise = sqrt(rate->noise * rate->noise + other->noise * other->noise);
    return gain > GAIN && gain > NOISES * noise;
}

static void note(hr_tuner *tuner, const struct rate *rate, bool is_kept) {
    tuner->tries[tuner->try_count++ % HR_TUNER_TRIES] =
        (struct hr_tuner_try){.workers = rate->workers,
                              .why = tuner->state,
                              .is_kept = is_kept,
                              .batches_per_s = (double)HR_NS_PER_S / rate->period_ns,
                              .noise = rate->noise,
                              .wait = rate->wait,
                              .seconds = (double)tuner->window.took_ns / (double)HR_NS_PER_S};
}

/* ---- the search ---- */

static void want(hr_tuner *tuner, uint32_t workers, enum hr_tuner_state state) {
    tuner->wanted = workers;
    tuner->state = state;
    forget_window(tuner);
}

static void rest(hr_tuner *tuner, int64_t now_ns) {
    tuner->rested = tuner->best;
    tuner->rested_ns = now_ns;
    want(tuner, tuner->best.workers, HR_TUNER_REST);
}

/* Half way between a number that is too small and the best one. */
static void try_half(hr_tuner *tuner, int64_t now_ns) {
    uint32_t workers = (tuner->too_few + tuner->best.workers) / 2;
    if (tuner->best.workers - tuner->too_few <= 1 + tuner->best.workers / NEAR_SHARE)
        rest(tuner, now_ns);
    else
        want(tuner, workers, HR_TUNER_FEWER);
}

static void try_fewer(hr_tuner *tuner, int64_t now_ns) {
    tuner->fastest_ns = tuner->best.period_ns;
    if (tuner->is_repeated)
        rest(tuner, now_ns);
    else
        try_half(tuner, now_ns);
}

/* The number that keeps up with the loop: workers make a batch in `workers` periods, and the loop takes a period
 * without its wait. */
static uint32_t enough(const hr_tuner *tuner) {
    const struct rate *best = &tuner->best;
    double most = (double)hr__min((uint64_t)best->workers * MOST_GROWTH, tuner->most);
    double needed = best->wait < 1 ? ceil(best->workers / (1 - best->wait)) : most;
    return (uint32_t)(needed < most ? needed : most);
}

static void try_more(hr_tuner *tuner, int64_t now_ns) {
    uint32_t now = tuner->best.workers, workers = (uint32_t)hr__max(enough(tuner), now + 1);
    if (tuner->too_many) workers = (uint32_t)hr__min(workers, (now + tuner->too_many) / 2);
    bool is_possible =
        workers > now && workers <= tuner->most && tuner->rejected_count < (tuner->is_repeated ? 1 : MOST_REJECTED);
    if (tuner->best.wait < LITTLE_WAIT || !is_possible)
        try_fewer(tuner, now_ns);
    else
        want(tuner, workers, HR_TUNER_MORE);
}

static bool is_my_turn(const hr_tuner *tuner, int64_t now_ns) {
    uint32_t turns = tuner->options.turns;
    return turns <= 1 || now_ns / TURN_NS % turns == tuner->options.turn;
}

static void end_first(hr_tuner *tuner, const struct rate *rate, int64_t now_ns) {
    if (!is_my_turn(tuner, now_ns)) {
        forget_window(tuner);
        return;
    }
    note(tuner, rate, true);
    tuner->best = *rate;
    tuner->too_many = tuner->too_few = tuner->rejected_count = 0;
    try_more(tuner, now_ns);
}

static void end_more(hr_tuner *tuner, const struct rate *rate, int64_t now_ns) {
    bool is_more = is_better(rate, &tuner->best);
    tuner->candidate_try = tuner->try_count;
    note(tuner, rate, is_more);
    if (is_more) {
        tuner->candidate = *rate;
        want(tuner, tuner->best.workers, HR_TUNER_AGAIN);
        return;
    }
    tuner->too_many = rate->workers;
    tuner->rejected_count++;
    try_more(tuner, now_ns);
}

static void end_again(hr_tuner *tuner, const struct rate *rate, int64_t now_ns) {
    bool is_more = is_better(&tuner->candidate, rate);
    note(tuner, rate, !is_more);
    tuner->tries[tuner->candidate_try % HR_TUNER_TRIES].is_kept = is_more;
    if (is_more) {
        tuner->too_few = rate->workers;
        tuner->best = tuner->candidate;
        tuner->is_repeated = false;
    } else {
        tuner->too_many = tuner->candidate.workers;
        tuner->rejected_count++;
        tuner->best = *rate;
    }
    try_more(tuner, now_ns);
}

static void end_fewer(hr_tuner *tuner, const struct rate *rate, int64_t now_ns) {
    bool is_enough = rate->period_ns <= tuner->fastest_ns * (1 + GAIN);
    note(tuner, rate, is_enough);
    if (is_enough)
        tuner->best = *rate;
    else
        tuner->too_few = rate->workers;
    if (rate->period_ns < tuner->fastest_ns) tuner->fastest_ns = rate->period_ns;
    try_half(tuner, now_ns);
}

static bool differs(double one, double other) {
    return fabs(one - other) > CHANGED * other;
}

/* The last minute of a rest. The same work would give the same answers, so a search of it comes after the longest pause
 * only. */
static void end_minute(hr_tuner *tuner, const struct rate *rate, int64_t now_ns) {
    int64_t rested_ns = now_ns - tuner->rested_ns;
    bool is_other = differs(rate->period_ns, tuner->rested.period_ns) || differs(rate->wait, tuner->rested.wait);
    bool is_due = rested_ns >= (is_other ? tuner->pause_ns : LONGEST_PAUSE_NS);
    forget_window(tuner);
    if (rate->wait < LONG_WAIT || !is_due) return;
    tuner->pause_ns = (int64_t)hr__min((uint64_t)tuner->pause_ns * 2, LONGEST_PAUSE_NS);
    tuner->most = tuner->options.most;
    tuner->is_repeated = !is_other;
    tuner->state = HR_TUNER_FIRST;
    if (is_my_turn(tuner, now_ns)) end_first(tuner, rate, now_ns);
}

static void end_window(hr_tuner *tuner, int64_t now_ns) {
    struct rate rate = measure(tuner);
    switch (tuner->state) {
    case HR_TUNER_FIRST:
        end_first(tuner, &rate, now_ns);
        break;
    case HR_TUNER_MORE:
        end_more(tuner, &rate, now_ns);
        break;
    case HR_TUNER_AGAIN:
        end_again(tuner, &rate, now_ns);
        break;
    case HR_TUNER_FEWER:
        end_fewer(tuner, &rate, now_ns);
        break;
    case HR_TUNER_REST:
        end_minute(tuner, &rate, now_ns);
        break;
    }
}

static void end_round(hr_tuner *tuner, int64_t took_ns, uint64_t waited_ns, uint64_t count, int64_t now_ns) {
    add_round(tuner, took_ns, waited_ns, count);
    int64_t least_ns = tuner->state == HR_TUNER_REST ? MINUTE_NS : WINDOW_NS;
    if (tuner->window.took_ns >= least_ns && tuner->window.count >= LEAST_ROUNDS) end_window(tuner, now_ns);
}

/* ---- a batch ---- */

/* Batches that were ready before the change keep the loop from waiting, so it has to wait once, or the time is over. */
static bool is_settled(hr_tuner *tuner, int64_t now_ns, uint64_t waited_ns) {
    if (tuner->skip_count) return false;
    if (!tuner->drain_until_ns) tuner->drain_until_ns = now_ns + DRAIN_NS;
    return waited_ns > tuner->skip_waited_ns || now_ns >= tuner->drain_until_ns;
}

static void begin_round(hr_tuner *tuner, int64_t now_ns, uint64_t waited_ns) {
    tuner->round_ns = now_ns;
    tuner->round_waited_ns = waited_ns;
    tuner->round_count = 0;
}

uint32_t hr_tuner_step(hr_tuner *tuner, int64_t now_ns, uint64_t waited_ns) {
    tuner->epoch_count++;
    tuner->round_count++;
    if (tuner->skip_count) tuner->skip_count--;
    if (!now_ns || tuner->is_held || tuner->wanted != tuner->workers) return tuner->wanted;
    if (!tuner->round_ns) {
        if (is_settled(tuner, now_ns, waited_ns)) begin_round(tuner, now_ns, waited_ns);
        return tuner->wanted;
    }
    if (tuner->round_count < tuner->round_room) return tuner->wanted;
    int64_t took_ns = now_ns - tuner->round_ns;
    uint64_t round_waited_ns = waited_ns - tuner->round_waited_ns, count = tuner->round_count;
    if (took_ns < ROUND_NS) tuner->round_room = count * 2 / tuner->workers * tuner->workers;
    begin_round(tuner, now_ns, waited_ns);
    end_round(tuner, took_ns, round_waited_ns, count, now_ns);
    return tuner->wanted;
}

void hr_tuner_end(hr_tuner *tuner, int64_t now_ns, uint64_t waited_ns) {
    uint64_t count = tuner->epoch_count;
    int64_t took_ns = now_ns - tuner->epoch_ns;
    tuner->round_ns = 0;
    tuner->epoch_count = 0;
    bool is_still = !tuner->is_held && !tuner->has_changed && tuner->wanted == tuner->workers;
    if (!count || !is_still || tuner->epoch_measured_ns > took_ns / 2) return;
    tuner->window = tuner->before;
    end_round(tuner, took_ns, waited_ns - tuner->epoch_waited_ns, count, now_ns);
}

/* ---- the number ---- */

hr_tuner *hr_tuner_open(const struct hr_tuner_options *options) {
    hr_tuner *tuner = calloc(1, sizeof *tuner);
    if (!tuner) return NULL;
    tuner->options = *options;
    tuner->workers = tuner->wanted = options->first;
    tuner->most = options->most;
    tuner->pause_ns = MINUTE_NS;
    forget_window(tuner);
    return tuner;
}

hr_tuner *hr_tuner_close(hr_tuner *tuner) {
    free(tuner);
    return NULL;
}

void hr_tuner_use(hr_tuner *tuner, uint32_t workers, uint64_t waited_ns) {
    uint64_t outstanding = (uint64_t)tuner->workers * tuner->options.prefetch_factor;
    if (workers == tuner->workers) return;
    tuner->workers = workers;
    tuner->changes++;
    tuner->has_changed = true;
    if (tuner->is_held) tuner->wanted = workers;
    settle(tuner, outstanding, waited_ns);
    forget_window(tuner);
}

void hr_tuner_limit(hr_tuner *tuner, uint32_t most) {
    tuner->most = (uint32_t)hr__max(most, 1);
    if (tuner->wanted <= tuner->most) return;
    if (tuner->state == HR_TUNER_MORE) tuner->wanted = (uint32_t)hr__max(tuner->best.workers, tuner->most);
    if (tuner->state == HR_TUNER_FIRST) tuner->wanted = (uint32_t)hr__max(tuner->workers, tuner->most);
}

uint32_t hr_tuner_wanted(const hr_tuner *tuner) {
    return tuner->wanted;
}

void hr_tuner_restart(hr_tuner *tuner, uint32_t workers) {
    tuner->most = tuner->options.most;
    tuner->pause_ns = MINUTE_NS;
    tuner->is_repeated = false;
    want(tuner, (uint32_t)hr__min(workers, tuner->most), HR_TUNER_FIRST);
}

void hr_tuner_hold(hr_tuner *tuner) {
    tuner->is_held = true;
    tuner->wanted = tuner->workers;
}

void hr_tuner_read(const hr_tuner *tuner, struct hr_tuner_report *ret_report) {
    uint32_t kept = (uint32_t)hr__min(tuner->try_count, HR_TUNER_TRIES), first = tuner->try_count - kept;
    *ret_report = (struct hr_tuner_report){.workers = tuner->workers,
                                           .most = tuner->options.most,
                                           .state = tuner->state,
                                           .changes = tuner->changes,
                                           .try_count = tuner->try_count};
    for (uint32_t i = 0; i < kept; i++) ret_report->tries[i] = tuner->tries[(first + i) % HR_TUNER_TRIES];
}
