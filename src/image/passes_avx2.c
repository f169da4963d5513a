/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The passes of a resize with AVX2, which give the same bytes as those in resize.c.
 *
 * AVX2 multiplies 16-bit numbers in pairs and adds each pair (vpmaddwd), twice as fast as 32-bit numbers. A weight has
 * more than 16 bits, so it is split: weight = high * 2^11 + low, 0 <= low < 2^11. The two sums are added at the end.
 * All of it is modulo 2^32, and so equal to the sum of 32-bit products.
 */

#include "resize.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "os/os.h"

#define AVX2 __attribute__((target("avx2")))

enum { LOW_BITS = 11, LOW_MASK = (1 << LOW_BITS) - 1, GROUP = 4, ROWS = 4 };

static bool has_avx2(void) {
    return hr__cpu_has(HR__CPU_AVX2);
}

/* ---- along rows, pixels of 4 bytes ---- */

/* GROUP weights: the low parts, then the high parts. */
struct group {
    int16_t low[GROUP], high[GROUP];
};

/* The taps of one pass in groups. The first pixel of a row of groups is moved to the left where the last group would
 * read beyond the end of the row. */
struct grouped {
    uint32_t length, count; /* `count` groups for each pixel */
    int32_t *first;
    struct group *groups;
};

static bool group_taps(const struct hr__taps *taps, struct hr__scratch *scratch, uint32_t width,
                       struct grouped *ret_grouped) {
    uint32_t most = 0;
    for (uint32_t x = 0; x < taps->length; x++)
        if ((uint32_t)taps->count[x] > most) most = (uint32_t)taps->count[x];
    uint32_t count = (most + GROUP - 1) / GROUP;
    if (count == 0 || count * GROUP > width) return false;
    size_t first_bytes = hr__round_up(taps->length * sizeof(int32_t), sizeof(struct group));
    size_t group_bytes = (size_t)taps->length * count * sizeof(struct group);
    char *memory = hr__scratch_take(scratch, first_bytes + group_bytes);
    if (!memory) return false;
    memset(memory + first_bytes, 0, group_bytes);
    *ret_grouped = (struct grouped){.length = taps->length,
                                    .count = count,
                                    .first = (int32_t *)(void *)memory,
                                    .groups = (struct group *)(void *)(memory + first_bytes)};
    for (uint32_t x = 0; x < taps->length; x++) {
        int32_t latest = (int32_t)(width - count * GROUP), first = taps->first[x];
        int32_t moved = first > latest ? first - latest : 0;
        ret_grouped->first[x] = first - moved;
        for (int32_t i = 0; i < taps->count[x]; i++) {
            struct group *group = &ret_grouped->groups[(size_t)x * count + (uint32_t)(i + moved) / GROUP];
            int32_t weight = taps->weights[(size_t)x * taps->most + (uint32_t)i];
            group->low[(i + moved) % GROUP] = (int16_t)(weight & LOW_MASK);
            group->high[(i + moved) % GROUP] = (int16_t)(weight >> LOW_BITS);
        }
    }
    return true;
}

/* Adds the two sums, then the two halves, which hold different taps of the same pixel. */
AVX2 static inline __m128i add_up(__m256i low, __m256i high) {
    __m256i sum = _mm256_add_epi32(low, _mm256_slli_epi32(high, LOW_BITS));
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return _mm_srai_epi32(_mm_add_epi32(both, _mm_set1_epi32(1 << (HR__WEIGHT_BITS - 1))), HR__WEIGHT_BITS);
}

/* One group of pixels as 16-bit numbers: in each half two pixels, channel by channel. */
AVX2 static inline __m256i load_group(const unsigned char *from) {
    const __m256i order = _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1, /**/
                                           8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)from)),
                               order);
}

/* Makes ROWS rows at the same time, so that each group of weights is loaded once for all of them. */
AVX2 static void across_rows(const struct grouped *taps, const unsigned char *const *in, unsigned char *const *out) {
    const __m256i low_order = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    const __m256i high_order = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
    for (uint32_t x = 0; x < taps->length; x++) {
        const struct group *group = taps->groups + (size_t)x * taps->count;
        size_t at = (size_t)4 * (size_t)taps->first[x];
        __m256i low[ROWS], high[ROWS];
        for (int i = 0; i < ROWS; i++) low[i] = high[i] = _mm256_setzero_si256();
        for (uint32_t g = 0; g < taps->count; g++, at += 4 * GROUP) {
            __m256i both = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(group + g)));
            __m256i low_weights = _mm256_permutevar8x32_epi32(both, low_order);
            __m256i high_weights = _mm256_permutevar8x32_epi32(both, high_order);
            for (int i = 0; i < ROWS; i++) {
                __m256i pixels = load_group(in[i] + at);
                low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(pixels, low_weights));
                high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(pixels, high_weights));
            }
        }
        __m128i one = _mm_packs_epi32(add_up(low[0], high[0]), add_up(low[1], high[1]));
        __m128i other = _mm_packs_epi32(add_up(low[2], high[2]), add_up(low[3], high[3]));
        uint32_t bytes[ROWS];
        _mm_storeu_si128((__m128i *)(void *)bytes, _mm_packus_epi16(one, other));
        for (int i = 0; i < ROWS; i++) memcpy(out[i] + (size_t)4 * x, &bytes[i], 4);
    }
}

bool hr__across_avx2(const struct hr__taps *taps, struct hr__scratch *scratch, const struct hr__pixels *in,
                     const struct hr__pixels *out) {
    struct grouped grouped;
    if (in->pixel_bytes != 4 || !has_avx2() || !group_taps(taps, scratch, in->width, &grouped)) return false;
    for (uint32_t y = 0; y < out->height; y += ROWS) {
        const unsigned char *from[ROWS];
        unsigned char *to[ROWS];
        for (uint32_t i = 0; i < ROWS; i++) { /* the last row is made several times if there are too few */
            uint32_t row = y + i < out->height ? y + i : out->height - 1;
            from[i] = hr__row(in, row);
            to[i] = hr__row(out, row);
        }
        across_rows(&grouped, from, to);
    }
    hr__scratch_give(scratch, grouped.first);
    return true;
}

/* ---- along columns ---- */

enum { STEP = 32 }; /* bytes at the same time */

AVX2 static inline __m256i round_down(__m256i low, __m256i high) {
    __m256i sum = _mm256_add_epi32(low, _mm256_slli_epi32(high, LOW_BITS));
    return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << (HR__WEIGHT_BITS - 1))), HR__WEIGHT_BITS);
}

/* The parts of two weights, for two rows whose bytes alternate. */
AVX2 static inline __m256i pair(int32_t one, int32_t other) {
    return _mm256_set1_epi32((int32_t)((uint32_t)(uint16_t)one | (uint32_t)(uint16_t)other << 16));
}

AVX2 static inline __m256i load(const unsigned char *from) {
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

/* Sums STEP bytes of `count` rows, which are `stride` apart. An odd last row is paired with itself, with weight 0. */
AVX2 static inline void sum_step(const unsigned char *from, size_t stride, const int32_t *weights, int32_t count,
                                 unsigned char *to) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i low[4] = {zero, zero, zero, zero}, high[4] = {zero, zero, zero, zero};
    for (int32_t k = 0; k < count; k += 2) {
        bool has_other = k + 1 < count;
        int32_t one = weights[k], other = has_other ? weights[k + 1] : 0;
        const unsigned char *row = from + (size_t)k * stride;
        __m256i a = load(row), b = load(has_other ? row + stride : row);
        __m256i low_weights = pair(one & LOW_MASK, other & LOW_MASK);
        __m256i high_weights = pair(one >> LOW_BITS, other >> LOW_BITS);
        __m256i front = _mm256_unpacklo_epi8(a, b), back = _mm256_unpackhi_epi8(a, b);
        __m256i quarters[4] = {_mm256_unpacklo_epi8(front, zero), _mm256_unpackhi_epi8(front, zero),
                               _mm256_unpacklo_epi8(back, zero), _mm256_unpackhi_epi8(back, zero)};
        for (int i = 0; i < 4; i++) {
            low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(quarters[i], low_weights));
            high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(quarters[i], high_weights));
        }
    }
    __m256i front = _mm256_packs_epi32(round_down(low[0], high[0]), round_down(low[1], high[1]));
    __m256i back = _mm256_packs_epi32(round_down(low[2], high[2]), round_down(low[3], high[3]));
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_packus_epi16(front, back));
}

AVX2 static void down_rows(const struct hr__taps *taps, const struct hr__pixels *in, const struct hr__pixels *out) {
    size_t row_bytes = (size_t)out->width * out->pixel_bytes;
    for (uint32_t y = 0; y < out->height; y++) {
        const unsigned char *from = hr__row(in, (uint32_t)taps->first[y]);
        const int32_t *weights = taps->weights + (size_t)y * taps->most;
        for (size_t at = 0; at < row_bytes; at += STEP) {
            size_t begin = at + STEP <= row_bytes ? at : row_bytes - STEP; /* the last step makes some bytes again */
            sum_step(from + begin, in->stride, weights, taps->count[y], hr__row(out, y) + begin);
        }
    }
}

bool hr__down_avx2(const struct hr__taps *taps, const struct hr__pixels *in, const struct hr__pixels *out) {
    if ((size_t)out->width * out->pixel_bytes < STEP || !has_avx2()) return false;
    down_rows(taps, in, out);
    return true;
}

#else

bool hr__across_avx2(const struct hr__taps *taps, struct hr__scratch *scratch, const struct hr__pixels *in,
                     const struct hr__pixels *out) {
    (void)taps, (void)scratch, (void)in, (void)out;
    return false;
}

bool hr__down_avx2(const struct hr__taps *taps, const struct hr__pixels *in, const struct hr__pixels *out) {
    (void)taps, (void)in, (void)out;
    return false;
}

#endif
