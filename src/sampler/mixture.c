/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures: several sources in given shares. Checks what a mixture is made from, and computes its epoch. */
#include "mixture.h"

#include "base/alloc.h"
#include "base/base.h"
#include "base/hash.h"
#include "check.h"
#include "feistel.h"

#include <string.h>

/* ---- checks ---- */

static int check_source(const struct hr_mixture_source *sources, uint32_t number) {
    const struct hr_mixture_source *source = &sources[number];
    if (!source->name) return hr__fail(-EINVAL, "sampler: source %u of the mixture has no name", number);
    if (source->size < 1)
        return hr__fail(-EINVAL, "sampler: source %s has %lld samples; leave out a source without samples",
                        source->name, (long long)source->size);
    if (source->weight < 1)
        return hr__fail(-EINVAL, "sampler: the weight of source %s is 0; leave out the source", source->name);
    for (uint32_t i = 0; i < number; i++)
        if (!strcmp(sources[i].name, source->name))
            return hr__fail(-EINVAL, "sampler: two sources of the mixture have the name %s", source->name);
    return 0;
}

static int check(const struct hr_mixture_source *sources, uint32_t count, const struct hr_mixture_settings *settings) {
    int64_t total = 0;
    if (count < 1 || count > HR_MIXTURE_SOURCES_MAX)
        return hr__fail(-EINVAL, "sampler: the mixture has %u sources; give 1 to %d", count, HR_MIXTURE_SOURCES_MAX);
    for (uint32_t i = 0; i < count; i++) {
        if (check_source(sources, i) < 0) return -EINVAL;
        if (__builtin_add_overflow(total, sources[i].size, &total))
            return hr__fail(-EINVAL, "sampler: the sources of the mixture have more than 2^63 - 1 samples");
    }
    if (settings->until == HR_MIXTURE_LENGTH && settings->length < 1)
        return hr__fail(-EINVAL, "sampler: the length of the mixture is %lld; give 1 or more",
                        (long long)settings->length);
    if (settings->until > HR_MIXTURE_LENGTH)
        return hr__fail(-EINVAL, "sampler: until is %u; give a value of enum hr_mixture_until", settings->until);
    return 0;
}

static int fail_too_long(const char *what) {
    return hr__fail(-EINVAL, "sampler: %s of the mixture do not fit into 63 bits; give a smaller length or epoch",
                    what);
}

/* ---- the table of a period ---- */

static void begin_sources(struct hr_mixture *mixture, const struct hr_mixture_source *sources, uint64_t seed,
                          const uint32_t *shares) {
    for (uint32_t i = 0; i < mixture->source_count; i++) {
        struct hr__mixed *source = &mixture->sources[i];
        source->size = sources[i].size;
        source->first_index = mixture->total;
        mixture->total += source->size;
        source->share = shares[i] * mixture->repeat;
        source->key = hr__mixed_seed(seed, hr__hash(sources[i].name, strlen(sources[i].name), 0));
        source->left = hr__feistel_left((uint64_t)source->size);
        source->right = hr__feistel_right((uint64_t)source->size, source->left);
        source->rounds = hr__feistel_rounds(source->size);
    }
}

static int make_turns(struct hr_mixture *mixture) {
    uint32_t count = mixture->source_count;
    int64_t *rooms = hr__realloc(NULL, 2 * count * sizeof *rooms);
    mixture->turns = rooms ? hr__realloc(NULL, mixture->period * sizeof *mixture->turns) : NULL;
    if (mixture->turns) hr__chairman(mixture->sources, count, mixture->period, rooms, mixture->turns);
    hr__free(rooms);
    return mixture->turns ? 0 : hr__fail(-ENOMEM, "sampler: no memory for the period of a mixture");
}

/* ---- the epoch ---- */

/* Sets the length to the number of positions up to the last sample of the first source that was read once, or of the
 * last one. */
static int find_length(struct hr_mixture *mixture, enum hr_mixture_until until) {
    mixture->length = until == HR_MIXTURE_FIRST ? INT64_MAX : 0;
    for (uint32_t at = 0; at < mixture->period; at++) {
        const struct hr__mixed *source = &mixture->sources[mixture->turns[at].source];
        if ((source->size - 1) % source->share != mixture->turns[at].number) continue;
        hr__product end = (hr__product)((source->size - 1) / source->share) * mixture->period + at + 1;
        int64_t length = end > INT64_MAX ? INT64_MAX : (int64_t)end;
        if (until == HR_MIXTURE_FIRST ? length < mixture->length : length > mixture->length) mixture->length = length;
    }
    return mixture->length < INT64_MAX ? 0 : fail_too_long("the positions of an epoch");
}

/* Returns how many of the first positions of the walk have each source: whole periods, and a part of one. */
static void count_before(const struct hr_mixture *mixture, int64_t walk, int64_t *ret_counts) {
    for (uint32_t i = 0; i < mixture->source_count; i++)
        ret_counts[i] = walk / mixture->period * mixture->sources[i].share;
    for (uint32_t at = 0; at < walk % mixture->period; at++) ret_counts[mixture->turns[at].source]++;
}

static int begin_epoch(struct hr_mixture *mixture, const struct hr_mixture_settings *settings, int64_t *counts) {
    int64_t walk, end, last;
    if (settings->epoch >= INT64_MAX || __builtin_mul_overflow(mixture->length, (int64_t)settings->epoch, &walk) ||
        __builtin_add_overflow(walk, mixture->length, &end))
        return fail_too_long("the positions of all epochs");
    mixture->walk = walk;
    mixture->run_key = hr__mix(hr__mixed_seed(settings->seed, settings->epoch) + HR_GOLDEN);
    count_before(mixture, walk, counts);
    count_before(mixture, end, counts + mixture->source_count);
    for (uint32_t i = 0; i < mixture->source_count; i++) {
        struct hr__mixed *source = &mixture->sources[i];
        source->before = counts[i];
        source->first_pass = source->before / source->size;
        source->pass_begin = source->first_pass * source->size;
        source->count = counts[mixture->source_count + i] - source->before;
        int64_t passes = (source->before - source->pass_begin + source->count) / source->size + 1;
        if (__builtin_mul_overflow(passes, mixture->total, &last)) return fail_too_long("the indices of later passes");
        hr__mixed_keys(source, source->first_pass, source->keys);
    }
    return 0;
}

static int begin(struct hr_mixture *mixture, const struct hr_mixture_settings *settings) {
    int r = make_turns(mixture);
    mixture->length = settings->length;
    if (r == 0 && settings->until != HR_MIXTURE_LENGTH) r = find_length(mixture, settings->until);
    int64_t *counts = r == 0 ? hr__realloc(NULL, 2 * mixture->source_count * sizeof *counts) : NULL;
    if (r == 0)
        r = counts ? begin_epoch(mixture, settings, counts) : hr__fail(-ENOMEM, "sampler: no memory for a mixture");
    hr__free(counts);
    return r;
}

/* ---- the public functions ---- */

int hr_mixture_new(const struct hr_mixture_source *sources, uint32_t count, const struct hr_mixture_settings *settings,
                   hr_mixture **ret_mixture) {
    uint32_t shares[HR_MIXTURE_SOURCES_MAX];
    if (check(sources, count, settings) < 0) return -EINVAL;
    size_t bytes = sizeof(hr_mixture) + count * sizeof(struct hr__mixed);
    hr_mixture *mixture = hr__realloc(NULL, bytes);
    if (!mixture) return hr__fail(-ENOMEM, "sampler: no memory for a mixture of %u sources", count);
    memset(mixture, 0, bytes);
    mixture->source_count = count;
    uint32_t period = hr__shares(sources, count, shares);
    mixture->repeat = period < HR_MIXTURE_RUN ? (HR_MIXTURE_RUN - 1) / period + 1 : 1;
    mixture->period = period * mixture->repeat;
    begin_sources(mixture, sources, settings->seed, shares);
    int r = begin(mixture, settings);
    if (r == 0)
        *ret_mixture = mixture;
    else
        hr_mixture_free(mixture);
    return r;
}

hr_mixture *hr_mixture_free(hr_mixture *mixture) {
    if (mixture) hr__free(mixture->turns);
    hr__free(mixture);
    return NULL;
}

void hr_mixture_look(const hr_mixture *mixture, struct hr_mixture_epoch *ret_epoch, struct hr_mixture_part *ret_parts) {
    *ret_epoch = (struct hr_mixture_epoch){mixture->length, mixture->total, mixture->period / mixture->repeat,
                                           mixture->source_count};
    for (uint32_t i = 0; ret_parts && i < mixture->source_count; i++) {
        const struct hr__mixed *source = &mixture->sources[i];
        ret_parts[i] = (struct hr_mixture_part){source->share / mixture->repeat, source->before, source->count};
    }
}
