/* SPDX-License-Identifier: Apache-2.0 */

/* Rectangles, scratch memory, and the parts of pixels. */

#include "image.h"

#include <errno.h>

#include "base/alloc.h"

struct hr__rect hr__rect_common(const struct hr__rect *one, const struct hr__rect *other) {
    return (struct hr__rect){.left = one->left > other->left ? one->left : other->left,
                             .top = one->top > other->top ? one->top : other->top,
                             .right = one->right < other->right ? one->right : other->right,
                             .bottom = one->bottom < other->bottom ? one->bottom : other->bottom};
}

struct hr__rect hr__rect_union(const struct hr__rect *one, const struct hr__rect *other) {
    if (hr__rect_is_empty(one)) return *other;
    if (hr__rect_is_empty(other)) return *one;
    return (struct hr__rect){.left = one->left < other->left ? one->left : other->left,
                             .top = one->top < other->top ? one->top : other->top,
                             .right = one->right > other->right ? one->right : other->right,
                             .bottom = one->bottom > other->bottom ? one->bottom : other->bottom};
}

struct hr__pixels hr__pixels_part(const struct hr__pixels *pixels, const struct hr__rect *rect) {
    struct hr__pixels part = *pixels;
    part.data += (size_t)rect->top * pixels->stride + (size_t)rect->left * pixels->pixel_bytes;
    part.width = (uint32_t)hr__rect_width(rect);
    part.height = (uint32_t)hr__rect_height(rect);
    return part;
}

/* Finds the unused block that is large enough with the least waste, or else the largest one. */
static int find_block(const struct hr__scratch *scratch, uint64_t bytes) {
    int best = -1;
    for (int i = 0; i < HR__BLOCKS; i++) {
        if (scratch->blocks[i].is_used) continue;
        size_t size = scratch->blocks[i].capacity, known = best < 0 ? 0 : scratch->blocks[best].capacity;
        bool is_better = known < bytes ? size >= known : size >= bytes && size < known;
        if (best < 0 || is_better) best = i;
    }
    return best;
}

void *hr__scratch_take(struct hr__scratch *scratch, uint64_t bytes) {
    int i = find_block(scratch, bytes);
    if (i < 0 || bytes > SIZE_MAX / 2) {
        hr__message_set("image: cannot allocate %llu bytes", (unsigned long long)bytes);
        return NULL;
    }
    if (scratch->blocks[i].capacity < bytes || !scratch->blocks[i].data) {
        hr__free(scratch->blocks[i].data); /* its content need not be copied */
        scratch->blocks[i].capacity = 0;
        scratch->blocks[i].data = hr__realloc(NULL, bytes ? (size_t)bytes : 1);
        if (!scratch->blocks[i].data) {
            hr__message_set("image: cannot allocate %llu bytes", (unsigned long long)bytes);
            return NULL;
        }
        scratch->blocks[i].capacity = (size_t)bytes;
    }
    scratch->blocks[i].needed = hr__max(scratch->blocks[i].needed, (size_t)bytes);
    scratch->blocks[i].is_used = true;
    return scratch->blocks[i].data;
}

void hr__scratch_give(struct hr__scratch *scratch, const void *data) {
    for (int i = 0; i < HR__BLOCKS && data; i++)
        if (scratch->blocks[i].data == data) scratch->blocks[i].is_used = false;
}

void hr__scratch_trim(struct hr__scratch *scratch, bool is_due) {
    enum { LARGE_BYTES = 64 << 20 };
    for (int i = 0; i < HR__BLOCKS; i++) {
        bool is_spacious = is_due && scratch->blocks[i].needed < scratch->blocks[i].capacity / 2;
        if (is_spacious || scratch->blocks[i].capacity >= LARGE_BYTES) {
            hr__free(scratch->blocks[i].data);
            scratch->blocks[i].data = NULL;
            scratch->blocks[i].capacity = 0;
        }
        if (is_due) scratch->blocks[i].needed = 0;
    }
}

void hr__scratch_done(struct hr__scratch *scratch) {
    for (int i = 0; i < HR__BLOCKS; i++) hr__free(scratch->blocks[i].data);
    *scratch = (struct hr__scratch){0};
}

int hr__pixels_take(struct hr__scratch *scratch, uint64_t width, uint64_t height, uint32_t pixel_bytes,
                    struct hr__pixels *ret_pixels) {
    uint64_t stride = width * pixel_bytes, bytes;
    if (!hr__mul(stride, height, &bytes)) return hr__fail(-EOVERFLOW, "image: the pixels of a step are too large");
    unsigned char *data = hr__scratch_take(scratch, bytes);
    if (!data) return -ENOMEM;
    *ret_pixels = (struct hr__pixels){.data = data,
                                      .width = (uint32_t)width,
                                      .height = (uint32_t)height,
                                      .pixel_bytes = pixel_bytes,
                                      .stride = (size_t)stride};
    return 0;
}
