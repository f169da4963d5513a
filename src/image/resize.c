/* SPDX-License-Identifier: Apache-2.0 */

/* Plans and runs a resize: which passes it needs, in which order, and what part of the image they read. */

#include "resize.h"

#include <errno.h>
#include <string.h>

/* ---- the plan ---- */

static bool is_integer(float value) {
    return value == (float)(int32_t)value;
}

/* Pillow cuts the area out if it has the size of the result. */
static bool is_cut(const struct hr__resize *resize) {
    const float *area = resize->area;
    return is_integer(area[0]) && is_integer(area[1]) && area[2] - area[0] == (float)resize->out_width &&
           area[3] - area[1] == (float)resize->out_height;
}

static struct hr__rect shifted(const struct hr__rect *rect, int64_t across, int64_t down) {
    return (struct hr__rect){rect->left + across, rect->top + down, rect->right + across, rect->bottom + down};
}

static bool changes(uint32_t in_size, uint32_t out_size, float from, float to) {
    return out_size != in_size || from != 0 || to != (float)out_size;
}

/* Sets the range of pixels that a pass reads, and makes its positions count from there. */
static void find_range(struct hr__taps *taps, int64_t *ret_begin, int64_t *ret_end) {
    int32_t begin = INT32_MAX, end = 0;
    for (uint32_t i = 0; i < taps->length; i++) {
        if (taps->first[i] < begin) begin = taps->first[i];
        if (taps->first[i] + taps->count[i] > end) end = taps->first[i] + taps->count[i];
    }
    for (uint32_t i = 0; i < taps->length; i++) taps->first[i] -= begin;
    *ret_begin = begin;
    *ret_end = end;
}

/* Pillow 13's rule: the vertical pass comes first if it removes more rows than twice the columns that the other one
 * removes. */
static bool is_down_first(const struct hr__resize *resize) {
    int64_t rows = (int64_t)resize->in_height - resize->out_height;
    int64_t columns = (int64_t)resize->in_width - resize->out_width;
    return resize->passes == HR_IMAGE_SMALLER_FIRST && rows > 0 && rows > 2 * columns;
}

int hr__resize_plan(const struct hr__resize *resize, struct hr__scratch *scratch, struct hr__resize_plan *ret_plan) {
    const float *area = resize->area;
    struct hr__resize_plan plan = {.is_copy = is_cut(resize), .in = resize->out};
    plan.has_across = !plan.is_copy && changes(resize->in_width, resize->out_width, area[0], area[2]);
    plan.has_down = !plan.is_copy && changes(resize->in_height, resize->out_height, area[1], area[3]);
    if (plan.is_copy) {
        plan.in = shifted(&resize->out, (int64_t)area[0], (int64_t)area[1]);
        *ret_plan = plan;
        return 0;
    }
    uint32_t width = (uint32_t)hr__rect_width(&resize->out), height = (uint32_t)hr__rect_height(&resize->out);
    uint64_t across = plan.has_across ? hr__taps_bytes(resize->filter, area[0], area[2], resize->out_width, width) : 0;
    uint64_t down = plan.has_down ? hr__taps_bytes(resize->filter, area[1], area[3], resize->out_height, height) : 0;
    across = hr__round_up(across, sizeof(double));
    char *memory = hr__scratch_take(scratch, across + down);
    if (!memory) return -ENOMEM;
    plan.memory = memory;
    plan.is_down_first = plan.has_across && plan.has_down && is_down_first(resize);
    if (plan.has_across) {
        hr__taps_fill(&plan.across, resize->filter, resize->in_width, area[0], area[2], resize->out_width,
                      (uint32_t)resize->out.left, width, memory);
        find_range(&plan.across, &plan.in.left, &plan.in.right);
    }
    if (plan.has_down) {
        hr__taps_fill(&plan.down, resize->filter, resize->in_height, area[1], area[3], resize->out_height,
                      (uint32_t)resize->out.top, height, memory + across);
        find_range(&plan.down, &plan.in.top, &plan.in.bottom);
    }
    *ret_plan = plan;
    return 0;
}

void hr__resize_done(struct hr__resize_plan *plan, struct hr__scratch *scratch) {
    hr__scratch_give(scratch, plan->memory);
    plan->memory = NULL;
}

/* ---- the passes ---- */

static unsigned char clip(int32_t sum) {
    int32_t value = sum >> HR__WEIGHT_BITS;
    return (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value);
}

enum { HALF = 1 << (HR__WEIGHT_BITS - 1) };

static void across_1(const struct hr__taps *taps, const unsigned char *in, unsigned char *out) {
    for (uint32_t x = 0; x < taps->length; x++) {
        const int32_t *weights = taps->weights + (size_t)x * taps->most;
        const unsigned char *from = in + taps->first[x];
        int32_t sum = HALF;
        for (int32_t i = 0; i < taps->count[x]; i++) sum += from[i] * weights[i];
        out[x] = clip(sum);
    }
}

static void across_4(const struct hr__taps *taps, const unsigned char *in, unsigned char *out) {
    for (uint32_t x = 0; x < taps->length; x++, out += 4) {
        const int32_t *weights = taps->weights + (size_t)x * taps->most;
        const unsigned char *from = in + (size_t)4 * (size_t)taps->first[x];
        int32_t sums[4] = {HALF, HALF, HALF, HALF};
        for (int32_t i = 0; i < taps->count[x]; i++, from += 4)
            for (int c = 0; c < 4; c++) sums[c] += from[c] * weights[i];
        for (int c = 0; c < 4; c++) out[c] = clip(sums[c]);
    }
}

void hr__across_c(const struct hr__taps *taps, const struct hr__pixels *in, const struct hr__pixels *out) {
    for (uint32_t y = 0; y < out->height; y++) {
        if (in->pixel_bytes == 1)
            across_1(taps, hr__row(in, y), hr__row(out, y));
        else
            across_4(taps, hr__row(in, y), hr__row(out, y));
    }
}

void hr__down_c(const struct hr__taps *taps, const struct hr__pixels *in, const struct hr__pixels *out) {
    enum { PIECE = 256 };
    size_t row_bytes = (size_t)out->width * out->pixel_bytes;
    int32_t sums[PIECE];
    for (uint32_t y = 0; y < out->height; y++) {
        const int32_t *weights = taps->weights + (size_t)y * taps->most;
        for (size_t begin = 0; begin < row_bytes; begin += PIECE) {
            size_t bytes = hr__min(PIECE, row_bytes - begin);
            for (size_t i = 0; i < bytes; i++) sums[i] = HALF;
            for (int32_t k = 0; k < taps->count[y]; k++) {
                const unsigned char *from = hr__row(in, (uint32_t)(taps->first[y] + k)) + begin;
                for (size_t i = 0; i < bytes; i++) sums[i] += from[i] * weights[k];
            }
            unsigned char *to = hr__row(out, y) + begin;
            for (size_t i = 0; i < bytes; i++) to[i] = clip(sums[i]);
        }
    }
}

static void pass_across(const struct hr__taps *taps, struct hr__scratch *scratch, const struct hr__pixels *in,
                        const struct hr__pixels *out) {
    if (!hr__across_avx2(taps, scratch, in, out)) hr__across_c(taps, in, out);
}

static void pass_down(const struct hr__taps *taps, const struct hr__pixels *in, const struct hr__pixels *out) {
    if (!hr__down_avx2(taps, in, out)) hr__down_c(taps, in, out);
}

static void copy_pixels(const struct hr__pixels *in, const struct hr__pixels *out) {
    for (uint32_t y = 0; y < out->height; y++)
        memcpy(hr__row(out, y), hr__row(in, y), (size_t)out->width * out->pixel_bytes);
}

static int run_both(const struct hr__resize_plan *plan, struct hr__scratch *scratch, const struct hr__pixels *in,
                    const struct hr__pixels *out) {
    struct hr__pixels between;
    int r = plan->is_down_first ? hr__pixels_take(scratch, in->width, out->height, in->pixel_bytes, &between)
                                : hr__pixels_take(scratch, out->width, in->height, in->pixel_bytes, &between);
    if (r < 0) return r;
    if (plan->is_down_first) {
        pass_down(&plan->down, in, &between);
        pass_across(&plan->across, scratch, &between, out);
    } else {
        pass_across(&plan->across, scratch, in, &between);
        pass_down(&plan->down, &between, out);
    }
    hr__scratch_give(scratch, between.data);
    return 0;
}

int hr__resize_run(const struct hr__resize_plan *plan, struct hr__scratch *scratch, const struct hr__pixels *in,
                   const struct hr__pixels *out) {
    if (plan->has_across && plan->has_down) return run_both(plan, scratch, in, out);
    if (plan->has_across)
        pass_across(&plan->across, scratch, in, out);
    else if (plan->has_down)
        pass_down(&plan->down, in, out);
    else
        copy_pixels(in, out);
    return 0;
}
