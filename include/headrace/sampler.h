/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_SAMPLER_H
#define HEADRACE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Orders of the samples of a dataset, and plans of batches.
 *
 * All functions are pure: they do no I/O and read no clock. Except for those that make a plan or a mixture, and
 * hr_deal_machines, they allocate nothing, and use no memory but that of their arguments. The caller owns every struct
 * and every array. The structs hold no resource, so they need no destructor, and may be copied byte by byte; plans and
 * mixtures are the exception, and hr_plan_free and hr_mixture_free free them. Functions that take a pointer to const
 * may run in several threads on the same struct.
 *
 * Sizes, positions and indices are int64_t from 0. A function that can fail returns -EINVAL for an argument that is out
 * of range, sets the message (headrace/error.h), and then changes no output.
 */

/* ---- torch's generator on the CPU ---- */

#define HR_MT19937_WORDS 624 /* of the state */

/* The Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998), seeded and read as torch's CPU generator does. The
 * fields belong to the functions below. */
struct hr_mt19937 {
    uint32_t state[HR_MT19937_WORDS];
    uint32_t next; /* index of the next word; HR_MT19937_WORDS: the state must be renewed first */
};

/* Starts the generator as torch.Generator().manual_seed(seed) does: only the low 32 bits of the seed count. */
HR_API void hr_mt19937_seed(struct hr_mt19937 *ret_generator, uint64_t seed);

/*
 * Writes a random permutation of 0..n-1 to ret_order[0..n-1], bit for bit that of torch.randperm(n, generator=...), and
 * leaves the generator as torch does. torch has two algorithms: below 214,748,364 a Fisher-Yates shuffle from the front
 * with n - 1 draws of 32 bits, from there the inside-out shuffle with n draws of 64 bits. The int32 function takes half
 * of the memory, and gives the same numbers. -EINVAL: n is negative, or for int32 more than 2^31.
 */
HR_API int hr_mt19937_permute_int32(struct hr_mt19937 *generator, int64_t n, int32_t *ret_order);
HR_API int hr_mt19937_permute_int64(struct hr_mt19937 *generator, int64_t n, int64_t *ret_order);

/* ---- orders with random access ---- */

/* The source of an order: nothing, a seed, a table of the caller, a mixture, or a seed and a number of machines. */
enum hr_order_kind {
    HR_ORDER_SEQUENTIAL,
    HR_ORDER_STREAM,
    HR_ORDER_INT32,
    HR_ORDER_INT64,
    HR_ORDER_MIXTURE,
    HR_ORDER_MACHINES
};

#define HR_STREAM_ROUNDS 6
#define HR_STREAM_SMALL 4096 /* up to this n a stream order is a table */

/* An order, which has the index order[p] at each position p: a permutation of 0..n-1, except for mixtures. The
 * functions below start it; the fields are theirs. It takes about 8 KiB, whatever n is. */
struct hr_order {
    int64_t n;
    uint32_t kind;                     /* enum hr_order_kind */
    const void *table;                 /* HR_ORDER_INT32, HR_ORDER_INT64, HR_ORDER_MIXTURE: borrowed; otherwise NULL */
    uint64_t left, right;              /* HR_ORDER_STREAM: the sizes of the two halves of a position */
    uint64_t keys[HR_STREAM_ROUNDS];   /* HR_ORDER_STREAM, n above HR_STREAM_SMALL: one key per round */
    uint16_t small[HR_STREAM_SMALL];   /* HR_ORDER_STREAM, n up to HR_STREAM_SMALL: the order itself */
    int64_t world_size, machine_ranks; /* HR_ORDER_MACHINES, and the two below */
    uint64_t key;
    bool is_shuffled;
};

/* The order 0, 1, ..., n-1. -EINVAL: n is negative. */
HR_API int hr_order_sequential(int64_t n, struct hr_order *ret_order);

/*
 * A shuffled order that needs no memory for its n indices: a keyed bijection of 0..n-1. It depends on nothing but n,
 * seed and epoch, and stays the same in later versions. -EINVAL: n is negative.
 *
 * A position is written as left + a * right, with a = ceil(sqrt(n)) and b = ceil(n / a). Each round adds a hash of one
 * half and a key to the other half, modulo a or b: the generalised Feistel cipher of Black and Rogaway ("Ciphers with
 * Arbitrary Finite Domains", 2002). Each round can be undone, so the six rounds permute the a * b numbers. A result of
 * n or more is encrypted again until it is below n ("cycle walking"), which happens to fewer than one in sqrt(n)
 * results. The hash is the finalizer of SplitMix64 (Steele, Lea and Flood, 2014). Small n, for which the halves would
 * be too small to mix well, use a table that is shuffled by Fisher and Yates's algorithm.
 */
HR_API int hr_order_stream(int64_t n, uint64_t seed, uint64_t epoch, struct hr_order *ret_order);

/* The order in a table that the caller owns and keeps as long as the order is used. The first call is for a table of
 * int32, the second for one of int64. The entries are not checked. -EINVAL: n is negative. */
HR_API int hr_order_int32(int64_t n, const int32_t *table, struct hr_order *ret_order);
HR_API int hr_order_int64(int64_t n, const int64_t *table, struct hr_order *ret_order);

/* Returns the index at a position. -EINVAL: the position is not in 0..n-1. */
HR_API int64_t hr_order_at(const struct hr_order *order, int64_t position);

/* Returns the position of an index: the inverse of hr_order_at. It takes constant time, except in a table, a mixture or
 * an order of machines, which are searched. -EINVAL: the index is not in the order. */
HR_API int64_t hr_order_find(const struct hr_order *order, int64_t index);

/*
 * Writes the `count` indices at the positions first, first + step, ... to ret_indices. Positions continue at the other
 * end of the order: they are taken modulo n. `step` may be negative. -EINVAL: first is not in 0..n-1 or count is
 * negative, except that an order of n = 0 allows count = 0.
 */
HR_API int hr_order_fill(const struct hr_order *order, int64_t first, int64_t step, int64_t count,
                         int64_t *ret_indices);

/* ---- mixtures of sources ---- */

#define HR_MIXTURE_SOURCES_MAX 4096
#define HR_MIXTURE_PERIOD_MAX 65536 /* the most that the shares of the sources add up to */
#define HR_MIXTURE_RUN 64           /* positions that are shuffled together */

/* A source of a mixture: its name, its number of samples, and how many of them come for those of other sources. The
 * struct and the name are borrowed by hr_mixture_new during the call. */
struct hr_mixture_source {
    const char *name;
    int64_t size;    /* 1 or more */
    uint64_t weight; /* 1 or more */
};

/* The end of an epoch. HR_MIXTURE_FIRST: when a source was read once. HR_MIXTURE_ALL: when all were read at least once.
 * HR_MIXTURE_LENGTH: after `length` samples. The first two are counted from the first position of epoch 0, and all
 * epochs are equally long. */
enum hr_mixture_until { HR_MIXTURE_FIRST, HR_MIXTURE_ALL, HR_MIXTURE_LENGTH };

struct hr_mixture_settings {
    enum hr_mixture_until until;
    int64_t length; /* only for HR_MIXTURE_LENGTH; 1 or more */
    uint64_t seed, epoch;
};

/* One epoch of a mixture. It allocates up to 256 KiB for a period, and 264 bytes for each source. */
typedef struct hr_mixture hr_mixture;

/*
 * Mixes sources by their weights. *ret_mixture belongs to the caller, who calls hr_mixture_free.
 *
 * Shares: the weights divided by their common divisor, if these add up to HR_MIXTURE_PERIOD_MAX or less. Otherwise the
 * nearest whole numbers that add up to it, at least 1 for each source (by largest remainders), and these divided by
 * their common divisor. Their sum is the period.
 *
 * Walk: the source of each position, period after period. Up to any position, the number of samples of a source differs
 * by at most 1 - 1 / (2k - 2) from its part, for k sources, which no other rule undercuts: R. Tijdeman, "The chairman
 * assignment problem" (Discrete Mathematics 32, 1980). Epoch e has the positions of the walk from e * length on.
 *
 * Runs: HR_MIXTURE_RUN positions of an epoch at a time are shuffled, by seed and epoch, so that ranks that take every
 * n-th position get all sources. So the bound holds at the ends of runs, and not between them. If a pass of a source
 * ends within a run, the samples of this source keep their order there, so that those of two passes are not mixed.
 *
 * Samples: a source is read pass after pass, each in an order of its own, from seed, name and pass (the cipher of
 * hr_order_stream, with 10 rounds for sources of up to 4,096 samples, and 16 up to 32). A pass has each sample once
 * before the next one begins. An epoch continues where the one before it ended.
 *
 * An index is that of the sample in the sources laid end to end. An epoch begins in some pass of a source; if it comes
 * to the next pass, and to the one after that, the number of all samples is added once, twice, ... to the indices. So
 * no index comes twice in an epoch. All of it depends on the arguments only, on any machine, and stays the same in
 * later versions.
 *
 * -EINVAL: a name is NULL or comes twice, a size or a weight is less than 1, there are no sources or too many, or the
 * positions of all epochs so far or the indices do not fit into 63 bits. -ENOMEM.
 */
HR_API int hr_mixture_new(const struct hr_mixture_source *sources, uint32_t count,
                          const struct hr_mixture_settings *settings, hr_mixture **ret_mixture);

/* Frees a mixture; NULL is allowed. Returns NULL. */
HR_API hr_mixture *hr_mixture_free(hr_mixture *mixture);

struct hr_mixture_epoch {
    int64_t length, total; /* positions of an epoch; samples of all sources */
    uint32_t period;       /* the sum of the shares */
    uint32_t source_count;
};

/* share: positions of a period. before: samples of the source that earlier epochs have read; count: those of this one.
 */
struct hr_mixture_part {
    uint32_t share;
    int64_t before, count;
};

/* Describes a mixture and its sources, of which ret_parts has room for as many as hr_mixture_new was given; it may be
 * NULL. */
HR_API void hr_mixture_look(const hr_mixture *mixture, struct hr_mixture_epoch *ret_epoch,
                            struct hr_mixture_part *ret_parts);

/* The order of a mixture, which the caller keeps as long as the order is used. `n` of the order is the length. */
HR_API void hr_order_mixture(const hr_mixture *mixture, struct hr_order *ret_order);

/* ---- ranks ---- */

/* The part of an order that one rank gets: `count` positions from `first` in steps of `step`, modulo n. */
struct hr_deal {
    int64_t first, step, count;
    int64_t once;  /* the first so many of `count` are no repeats; those after them fill up the rank's part */
    int64_t total; /* positions of all ranks: count * world_size */
};

/*
 * Deals an order of n indices to ranks as torch's DistributedSampler does: each rank gets every world_size-th index,
 * and all ranks get the same count. If world_size does not divide n, drop_last leaves out the end of the order;
 * otherwise the order is continued from its beginning, again and again if n is below world_size.
 *
 * `position`: the indices before it are dealt already, and what is left is dealt; 0 deals all of them. Ranks that take
 * batches from their parts have used a beginning of the order after each step (hr_deal_advance), so an epoch that was
 * stopped goes on exactly, with any world_size.
 *
 * -EINVAL: n is negative, position is not in 0..n, world_size is less than 1, rank is not in 0..world_size-1, or the
 * total does not fit into an int64_t.
 */
HR_API int hr_deal_rank(int64_t n, int64_t position, int64_t world_size, int64_t rank, bool drop_last,
                        struct hr_deal *ret_deal);

/* Returns the position after each of world_size ranks has taken `steps` batches of batch_size indices from `position`
 * on; at most n. -EINVAL: as hr_deal_rank, or batch_size is less than 1, or steps is negative. */
HR_API int64_t hr_deal_advance(int64_t n, int64_t position, int64_t world_size, int64_t batch_size, int64_t steps);

/* ---- machines that keep their samples ---- */

/*
 * An order for ranks that are dealt to by stride (hr_deal_rank), of which rank r is on machine r / machine_ranks: each
 * machine gets the same samples in every epoch, in another order, so that it reads only its part of the files. The
 * order has each of the n samples once. Machine m has neighbouring samples, as many as positions p of the order have
 * p % world_size / machine_ranks = m: the parts of two machines differ by machine_ranks samples at most.
 *
 * Within a machine, the samples are shuffled by seed, epoch and machine (is_shuffled), by the cipher of
 * hr_order_stream, with 10 rounds for up to 4,096 samples, and 16 up to 32; otherwise they come one after the other. It
 * depends on the arguments only, and stays the same in later versions. It needs no memory for its indices.
 *
 * -EINVAL: n is negative, machine_ranks does not divide world_size, or n + world_size does not fit into an int64_t.
 */
HR_API int hr_order_machines(int64_t n, int64_t world_size, int64_t machine_ranks, bool is_shuffled, uint64_t seed,
                             uint64_t epoch, struct hr_order *ret_order);

/*
 * Makes the same of an order of the caller, a table of n indices: the samples of a machine come in the order in which
 * the table has them. ret_table is another table, whose contents are undefined after a failure. It allocates a bit for
 * each sample, and 8 bytes for each machine, and frees them. -EINVAL: as above, or the table has not each of the
 * samples 0 to n - 1 once. -ENOMEM.
 */
HR_API int hr_deal_machines(const int64_t *table, int64_t n, int64_t world_size, int64_t machine_ranks,
                            int64_t *ret_table);

/* ---- plans ---- */

#define HR_PLAN_PACK_MAX (INT64_C(1) << 24) /* the largest capacity of a row */
#define HR_PLAN_WIDTH_MAX (INT64_C(1) << 24)

/* Samples up to a length, and how many of them a batch has. */
struct hr_bucket {
    int64_t longest;
    int64_t batch_size;
};

/* The use of the samples at the end that do not suffice for a whole step. HR_PLAN_DROP: they are left out. Otherwise
 * they are dealt to the batches of a shorter step, or of several if the limits do not allow one. HR_PLAN_EXACT: a batch
 * that would be empty repeats a sample. HR_PLAN_PAD: samples are repeated until their number can be divided by that of
 * the batches of a step, so that the batches of a step can have equally many. These are fewer than a step has batches,
 * each goes to a batch that does not have it, and they are the first ones of the order that are short enough for the
 * limits and not longer than the longest sample of the step. Rows of a capacity are all equally full, so that only a
 * batch that would be empty repeats a sample, or its step is left out. */
enum hr_plan_tail { HR_PLAN_PAD, HR_PLAN_DROP, HR_PLAN_EXACT };

/*
 * How batches are formed. 0: no limit. The caller gives one of these three:
 *
 * - max_sum, max_padded, max_batch, or several of them. A batch has samples of similar length: `window` entries of the
 *   order at a time are sorted by length, and each step takes neighbours of these.
 * - buckets, sorted by `longest`, whose batch sizes do not rise. A batch has as many samples as a bucket says that is
 *   large enough for its longest sample. `window` entries of a bucket at a time, and a step of it at least, are sorted
 *   by length.
 * - pack, and max_batch if wanted: batches are rows of a capacity, which are filled as well as possible.
 */
struct hr_plan_settings {
    int64_t width;      /* batches of a step: ranks times micro-batches; from 1 to HR_PLAN_WIDTH_MAX */
    int64_t max_sum;    /* limit of the sum of the lengths of a batch */
    int64_t max_padded; /* limit of the longest sample of a batch times its number of samples */
    int64_t max_batch;  /* limit of the number of samples of a batch */
    int64_t pack;       /* capacity: the most that the lengths of a batch add up to; at most HR_PLAN_PACK_MAX */
    int64_t window;     /* entries of the order, or of a bucket, that are planned together; 0: all */
    const struct hr_bucket *buckets; /* borrowed */
    int64_t bucket_count;
    uint64_t cost_linear, cost_quadratic; /* cost of a sample: 1 + cost_linear * length + cost_quadratic * length^2 */
    enum hr_plan_tail tail;
    uint64_t seed, epoch; /* shuffle the steps */
    int64_t ranks;        /* 0: batches of equal cost are neighbours in a step; more: see below */
};

/*
 * Batches for all ranks. Step s has the batches s * width to s * width + width - 1, of which those of equal cost are
 * neighbours. With `ranks`, of which the width is a multiple, a step is dealt to them instead: rank r has the batches
 * r, r + ranks, r + 2 * ranks, ... of a step, and their costs together are balanced. The samples of a step do not
 * depend on `ranks`. Batch b has the entries entries[starts[b]] to entries[starts[b + 1] - 1], which are positions in
 * the order that hr_plan_new was given, and is not empty. A position that another batch has already is written as -1 -
 * position; there are repeat_count of them, fewer than `width`, all in the last steps. The arrays belong to the plan.
 */
struct hr_plan {
    int64_t step_count, batch_count, entry_count, repeat_count;
    int32_t *entries; /* entry_count of them */
    int64_t *starts;  /* batch_count + 1 of them */
};

/*
 * Plans the batches of an epoch. lengths[i] is the length of the sample at position i of the order; they are borrowed
 * during the call. Each entry comes once, except for those at the end (see enum hr_plan_tail), and no batch exceeds a
 * limit. A sample that exceeds it alone has a batch for itself. The plan depends on the arguments only, on any machine,
 * and stays the same in later versions. *ret_plan belongs to the caller, who calls hr_plan_free.
 *
 * Costs are balanced within each step. Batches of similar lengths: a step takes neighbours of the sorted lengths and
 * deals them to its batches forwards and backwards in turn. What does not fill a step joins the next window; where in
 * the sorted window it is taken out is drawn, so that no length is always last. Buckets: a step takes neighbours of
 * sorted entries of a bucket too. What does not fill a step, the last entries of the bucket in the order, joins the
 * next larger bucket. Rows: the longest sample first, each to the row of least cost that has room for it (Graham's
 * longest processing time, 1969, with capacities). If the smallest possible number of rows does not suffice for that,
 * as many are taken as best fit decreasing needs (with the rooms in a bitmap, as in Ding et al., "Fewer Truncations
 * Improve Language Modeling", arXiv 2404.10830, 2024). Then rows of similar cost form a step.
 *
 * -EINVAL: a length is negative, a setting is out of range, or the cost of all samples does not fit into 63 bits.
 * -ENOMEM.
 */
HR_API int hr_plan_new(const int32_t *lengths, int64_t count, const struct hr_plan_settings *settings,
                       struct hr_plan **ret_plan);

/* ---- plans of samples with several lengths ---- */

#define HR_PLAN_LENGTHS_MAX 4
#define HR_PLAN_COST_MAX (UINT32_C(1) << 24) /* the most that a measured cost may be */

/* One of the lengths of the samples, such as the tokens of a text, or the patches of its images: its values, the limits
 * of a batch (as in struct hr_plan_settings; 0: none), and what it adds to the cost of a sample. A length without a
 * limit only costs. The values are borrowed. */
struct hr_plan_length {
    const int32_t *values;
    int64_t max_sum, max_padded, pack;
    uint64_t cost_linear, cost_quadratic; /* cost_linear * value + cost_quadratic * value^2 */
};

/*
 * Plans the batches of an epoch of samples that have `length_count` lengths, up to HR_PLAN_LENGTHS_MAX. No batch
 * exceeds a limit of any of them; a sample that exceeds one alone has a batch for itself. costs[i] is what the sample
 * at position i costs, from 1 to HR_PLAN_COST_MAX; NULL: 1 and what its lengths cost. If it is given, the lengths cost
 * nothing. In the settings, max_batch, width, window, tail, seed, epoch and ranks are used; everything else is 0. With
 * one length and no costs, the plan is that of hr_plan_new. The order of the lengths matters: the plan is another one
 * if they are swapped.
 *
 * Batches are filled one after the other. A batch begins with the sample of a pool that needs the largest part of a
 * limit, and gets the samples with the largest scalar product of what is left of the limits and what is needed
 * (Panigrahy, Talwar, Uyeda and Wieder, "Heuristics for Vector Bin Packing", 2011). The pool has `window` samples of
 * the order; 0: 2,048. The time of a plan grows with it. If a length is padded, `window` entries of the order (0: all)
 * are sorted by the padded length of which the samples need the largest part of its limit, and a pool of 512 samples
 * moves over them; if only the number of samples is limited, they are sorted by cost.
 *
 * Batches of similar cost form a step, those of a step exchange samples, and a few that are much cheaper than all
 * others are spread over several steps. If rows (pack) do not suffice for the last step, more rows are made, which get
 * samples of the cheapest ones. Other batches that do not suffice for a step are dealt again as `tail` says.
 *
 * The plan depends on the arguments only, on any machine, and stays the same in later versions. *ret_plan belongs to
 * the caller, who calls hr_plan_free. -EINVAL: as for hr_plan_new, or length_count or a cost is out of range, or pack
 * is given together with other limits. -ENOMEM.
 */
HR_API int hr_plan_new_several(const struct hr_plan_length *lengths, int64_t length_count, const uint32_t *costs,
                               int64_t count, const struct hr_plan_settings *settings, struct hr_plan **ret_plan);

/* Frees a plan; NULL is allowed. Returns NULL. */
HR_API struct hr_plan *hr_plan_free(struct hr_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
