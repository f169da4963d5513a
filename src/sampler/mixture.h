/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_SAMPLER_MIXTURE_H
#define HR_SAMPLER_MIXTURE_H

#include "feistel.h"

#include <headrace/sampler.h>

/* The parts of a mixture (see hr_mixture_new), for the files of the sampler. */

/* A position of the period: its source, and how many positions before it in the period have that source. */
struct hr__turn {
    uint16_t source, number;
};

/* A source. Its samples are numbered without end: pass after pass, each in an order of its own. `before` of them were
 * read before the epoch, which begins in pass `first_pass` and reads `count`; the pass begins with number `pass_begin`.
 */
struct hr__mixed {
    int64_t size, first_index, before, count, pass_begin, first_pass;
    uint64_t key;         /* of the orders of all passes */
    uint64_t left, right; /* the halves of a number below `size` */
    uint32_t share;       /* positions of the period */
    int rounds;
    uint64_t keys[HR_FEISTEL_MOST_ROUNDS]; /* of the order of `first_pass` */
};

struct hr_mixture {
    int64_t length, total; /* positions of the epoch; samples of all sources */
    int64_t walk;          /* positions before the epoch */
    uint64_t run_key;      /* of the shuffles of the runs */
    uint32_t source_count;
    uint32_t period, repeat;    /* positions of the table, in which the shortest period comes `repeat` times */
    struct hr__turn *turns;     /* `period` of them */
    struct hr__mixed sources[]; /* `source_count` of them */
};

/* Sets the shares of sources by their weights, which are 1 or more (shares.c). Returns the sum of the shares, the
 * period. */
uint32_t hr__shares(const struct hr_mixture_source *sources, uint32_t count, uint32_t *ret_shares);

/* Writes the turns of a period, the sum of the shares (chairman.c). */
void hr__chairman(struct hr__mixed *sources, uint32_t count, uint32_t period, int64_t *rooms,
                  struct hr__turn *ret_turns);

/* The indices at positions (mixture_at.c). They are from 0 to length - 1, and so is `step`. */
int64_t hr__mixture_at(const struct hr_mixture *mixture, int64_t position);
void hr__mixture_fill(const struct hr_mixture *mixture, uint64_t first, uint64_t step, int64_t count,
                      int64_t *ret_indices);

/* Sets the keys of the order of a source in a pass. */
void hr__mixed_keys(const struct hr__mixed *source, int64_t pass, uint64_t *ret_keys);

#endif
