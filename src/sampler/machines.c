/* SPDX-License-Identifier: Apache-2.0 */
/* Orders in which each machine keeps its samples. */
#include "machines.h"

#include "base/alloc.h"
#include "base/base.h"
#include "check.h"
#include "feistel.h"

#include <string.h>

/* The results are part of saved states: a change of this file that changes them needs another kind of order. */

/* ---- which samples a machine has ---- */

/*
 * Position p belongs to rank p % world. A machine has as many samples as positions belong to its ranks: `turns` times
 * its ranks, and of the positions that are left at the end those of its ranks. So the machines before some machine have
 * one sample more for each of their ranks, and the ones after it have none.
 */
struct division {
    int64_t n, world, ranks; /* ranks: of a machine */
    int64_t turns, rest;     /* n / world and n % world */
};

/* The samples of a machine: first, first + 1, ..., first + size - 1. */
struct part {
    int64_t machine, first, size;
};

static struct division divide(int64_t n, int64_t world, int64_t ranks) {
    return (struct division){n, world, ranks, n / world, n % world};
}

/* Returns how many of the positions that are left at the end belong to ranks before a machine. */
static int64_t rest_before(const struct division *division, int64_t machine) {
    int64_t ranks_before = machine * division->ranks;
    return ranks_before < division->rest ? ranks_before : division->rest;
}

static struct part part_of(const struct division *division, int64_t machine) {
    int64_t full = division->turns * division->ranks, before = rest_before(division, machine);
    return (struct part){machine, machine * full + before, full + rest_before(division, machine + 1) - before};
}

/* Returns the machine that has a sample. The first machines have the most samples, one of them may have a few less, and
 * those after it have the fewest. */
static int64_t machine_of(const struct division *division, int64_t index) {
    int64_t full = division->turns * division->ranks, most = full + division->ranks;
    int64_t large = division->rest / division->ranks, behind = index - large * most;
    if (behind < 0) return index / most;
    struct part middle = part_of(division, large);
    return behind < middle.size ? large : large + 1 + (behind - middle.size) / full;
}

/* Returns the position at which the `number`-th sample of a machine comes. */
static int64_t position_of(const struct division *division, int64_t machine, int64_t number) {
    return number / division->ranks * division->world + machine * division->ranks + number % division->ranks;
}

static int check(int64_t n, int64_t world, int64_t ranks) {
    int64_t padded;
    if (hr__check_n(n) < 0) return -EINVAL;
    if (ranks < 1 || world < 1 || world % ranks)
        return hr__fail(-EINVAL,
                        "sampler: %lld ranks cannot be on machines with %lld ranks each; give a number that divides "
                        "them",
                        (long long)world, (long long)ranks);
    if (__builtin_add_overflow(n, world, &padded))
        return hr__fail(-EINVAL, "sampler: %lld samples are too many for %lld ranks", (long long)n, (long long)world);
    return 0;
}

/* ---- an order without a table ---- */

/* The samples of a machine in the order of an epoch. */
struct shuffle {
    struct part part;
    uint64_t left, right, keys[HR_FEISTEL_MOST_ROUNDS];
    int rounds; /* 0: they are not shuffled */
};

static struct shuffle shuffle_of(const struct hr_order *order, const struct division *division, int64_t machine) {
    struct shuffle shuffle = {.part = part_of(division, machine)};
    uint64_t size = (uint64_t)shuffle.part.size, state = hr__mixed_seed(order->key, (uint64_t)machine);
    if (!order->is_shuffled || size == 0) return shuffle;
    shuffle.left = hr__feistel_left(size);
    shuffle.right = hr__feistel_right(size, shuffle.left);
    shuffle.rounds = hr__feistel_rounds(shuffle.part.size);
    for (int i = 0; i < shuffle.rounds; i++) shuffle.keys[i] = hr__random_next(&state);
    return shuffle;
}

/* The walk ends: it follows a cycle of a permutation, and the cycle has the number below the size that it started from.
 */
static uint64_t encrypt(const struct shuffle *shuffle, uint64_t number) {
    if (!shuffle->rounds) return number;
    struct hr__halves at = {number % shuffle->left, number / shuffle->left};
    do {
        at = hr__feistel(shuffle->left, shuffle->right, shuffle->keys, shuffle->rounds, at);
        number = at.left + shuffle->left * at.right;
    } while (number >= (uint64_t)shuffle->part.size);
    return number;
}

static struct division division_of(const struct hr_order *order) {
    return divide(order->n, order->world_size, order->machine_ranks);
}

/* `shuffle` is that of the last position, and often that of this one, too. */
static int64_t index_at(const struct hr_order *order, const struct division *division, int64_t position,
                        struct shuffle *shuffle) {
    int64_t turn = position / division->world, rank = position % division->world, machine = rank / division->ranks;
    if (machine != shuffle->part.machine) *shuffle = shuffle_of(order, division, machine);
    uint64_t number = (uint64_t)(turn * division->ranks + rank % division->ranks);
    return shuffle->part.first + (int64_t)encrypt(shuffle, number);
}

int64_t hr__machines_at(const struct hr_order *order, int64_t position) {
    struct division division = division_of(order);
    struct shuffle shuffle = {.part.machine = -1};
    return index_at(order, &division, position, &shuffle);
}

void hr__machines_fill(const struct hr_order *order, uint64_t first, uint64_t step, int64_t count,
                       int64_t *ret_indices) {
    struct division division = division_of(order);
    struct shuffle shuffle = {.part.machine = -1};
    uint64_t n = (uint64_t)order->n, position = first;
    for (int64_t i = 0; i < count; i++) {
        ret_indices[i] = index_at(order, &division, (int64_t)position, &shuffle);
        position += step;
        if (position >= n) position -= n;
    }
}

int hr_order_machines(int64_t n, int64_t world_size, int64_t machine_ranks, bool is_shuffled, uint64_t seed,
                      uint64_t epoch, struct hr_order *ret_order) {
    if (check(n, world_size, machine_ranks) < 0) return -EINVAL;
    memset(ret_order, 0, sizeof *ret_order);
    ret_order->n = n;
    ret_order->kind = HR_ORDER_MACHINES;
    ret_order->world_size = world_size;
    ret_order->machine_ranks = machine_ranks;
    ret_order->is_shuffled = is_shuffled;
    ret_order->key = hr__mixed_seed(seed, epoch);
    return 0;
}

/* ---- an order in a table ---- */

/* Counts the samples that each machine has got, and has a bit for each sample that came. */
struct dealt {
    int64_t *counts;
    unsigned char *bits;
};

static int begin(int64_t n, const struct division *division, struct dealt *dealt) {
    enum { BITS = 8 };
    uint64_t machines = (uint64_t)(n ? machine_of(division, n - 1) + 1 : 1), bytes = (uint64_t)n / BITS + 1;
    dealt->counts = machines <= SIZE_MAX / sizeof *dealt->counts
                        ? hr__realloc(NULL, (size_t)machines * sizeof *dealt->counts)
                        : NULL;
    dealt->bits = hr__realloc(NULL, (size_t)bytes);
    if (!dealt->counts || !dealt->bits)
        return hr__fail(-ENOMEM, "sampler: no memory to deal %lld samples to machines", (long long)n);
    memset(dealt->counts, 0, (size_t)machines * sizeof *dealt->counts);
    memset(dealt->bits, 0, (size_t)bytes);
    return 0;
}

/* Notes that a sample came. Returns false if it came before. */
static bool note(struct dealt *dealt, int64_t index) {
    unsigned char bit = (unsigned char)(1u << index % 8), *byte = &dealt->bits[index / 8];
    bool is_new = !(*byte & bit);
    *byte |= bit;
    return is_new;
}

static int deal(const int64_t *table, int64_t n, const struct division *division, struct dealt *dealt,
                int64_t *ret_table) {
    for (int64_t i = 0; i < n; i++) {
        int64_t index = table[i];
        if (index < 0 || index >= n || !note(dealt, index))
            return hr__fail(-EINVAL,
                            "sampler: a machine can keep its samples only in an order that has each of %lld samples "
                            "once, and index %lld, at position %lld, %s",
                            (long long)n, (long long)index, (long long)i,
                            index < 0 || index >= n ? "is not one of them" : "comes again");
        int64_t machine = machine_of(division, index);
        ret_table[position_of(division, machine, dealt->counts[machine]++)] = index;
    }
    return 0;
}

int hr_deal_machines(const int64_t *table, int64_t n, int64_t world_size, int64_t machine_ranks, int64_t *ret_table) {
    struct dealt dealt = {0};
    if (check(n, world_size, machine_ranks) < 0) return -EINVAL;
    struct division division = divide(n, world_size, machine_ranks);
    int r = begin(n, &division, &dealt);
    if (r == 0) r = deal(table, n, &division, &dealt, ret_table);
    hr__free(dealt.counts);
    hr__free(dealt.bits);
    return r;
}
