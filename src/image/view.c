/* SPDX-License-Identifier: Apache-2.0 */

/* Crops, flips and turns, noted first and done once. */

#include "view.h"

#include <string.h>

struct hr__view hr__view_of(uint32_t width, uint32_t height) {
    struct hr__rect all = {0, 0, width, height};
    return (struct hr__view){.rect = all, .valid = all};
}

uint32_t hr__view_width(const struct hr__view *view) {
    return (uint32_t)(view->swaps ? hr__rect_height(&view->rect) : hr__rect_width(&view->rect));
}

uint32_t hr__view_height(const struct hr__view *view) {
    return (uint32_t)(view->swaps ? hr__rect_width(&view->rect) : hr__rect_height(&view->rect));
}

static void flip_left_right(struct hr__view *view) {
    if (view->swaps)
        view->flips_down = !view->flips_down;
    else
        view->flips_across = !view->flips_across;
}

static void flip_top_bottom(struct hr__view *view) {
    if (view->swaps)
        view->flips_across = !view->flips_across;
    else
        view->flips_down = !view->flips_down;
}

/* Each of the seven is an exchange of rows and columns or none, then flips. */
void hr__view_transpose(struct hr__view *view, uint32_t method) {
    bool swaps = method == HR_IMAGE_ROTATE_90 || method >= HR_IMAGE_ROTATE_270;
    if (swaps) view->swaps = !view->swaps;
    if (method == HR_IMAGE_FLIP_LEFT_RIGHT || method == HR_IMAGE_ROTATE_180 || method == HR_IMAGE_ROTATE_270 ||
        method == HR_IMAGE_TRANSVERSE)
        flip_left_right(view);
    if (method == HR_IMAGE_FLIP_TOP_BOTTOM || method == HR_IMAGE_ROTATE_180 || method == HR_IMAGE_ROTATE_90 ||
        method == HR_IMAGE_TRANSVERSE)
        flip_top_bottom(view);
}

void hr__view_crop(struct hr__view *view, const struct hr__rect *box) {
    struct hr__rect rect = view->rect, asked = *box;
    if (view->swaps) asked = (struct hr__rect){box->top, box->left, box->bottom, box->right};
    view->rect.left = view->flips_across ? rect.right - asked.right : rect.left + asked.left;
    view->rect.right = view->flips_across ? rect.right - asked.left : rect.left + asked.right;
    view->rect.top = view->flips_down ? rect.bottom - asked.bottom : rect.top + asked.top;
    view->rect.bottom = view->flips_down ? rect.bottom - asked.top : rect.top + asked.bottom;
    view->valid = hr__rect_common(&view->valid, &view->rect);
}

struct hr__rect hr__view_needs(const struct hr__view *view) {
    return hr__rect_common(&view->rect, &view->valid);
}

bool hr__view_is_plain(const struct hr__view *view) {
    struct hr__rect real = hr__view_needs(view);
    return !view->swaps && !view->flips_across && !view->flips_down && memcmp(&real, &view->rect, sizeof real) == 0;
}

/* Copies `count` pixels to memory where they are `step` pixels apart. */
static void spread(const unsigned char *from, uint32_t count, uint32_t pixel_bytes, unsigned char *to,
                   ptrdiff_t step_bytes) {
    if (pixel_bytes == 1) {
        for (uint32_t i = 0; i < count; i++, to += step_bytes) *to = from[i];
        return;
    }
    for (uint32_t i = 0; i < count; i++, to += step_bytes, from += 4) memcpy(to, from, 4);
}

static void copy_reversed(const unsigned char *from, uint32_t count, uint32_t pixel_bytes, unsigned char *to) {
    if (pixel_bytes == 1) {
        for (uint32_t i = 0; i < count; i++) to[i] = from[count - 1 - i];
        return;
    }
    for (uint32_t i = 0; i < count; i++) memcpy(to + (size_t)4 * i, from + (size_t)4 * (count - 1 - i), 4);
}

/* Writes the existing pixels of one row of the image. `first` and `step_bytes`: where its first pixel belongs, and how
 * far apart two pixels are. */
static void read_row(const struct hr__view *view, const unsigned char *from, uint32_t count, uint32_t pixel_bytes,
                     unsigned char *first, ptrdiff_t step_bytes) {
    if (view->swaps)
        spread(from, count, pixel_bytes, first, step_bytes);
    else if (view->flips_across)
        copy_reversed(from, count, pixel_bytes, first - (size_t)(count - 1) * pixel_bytes);
    else
        memcpy(first, from, (size_t)count * pixel_bytes);
}

void hr__view_read(const struct hr__view *view, const struct hr__decoded *decoded, const struct hr__pixels *to) {
    struct hr__rect real = hr__view_needs(view);
    bool has_black = memcmp(&real, &view->rect, sizeof real) != 0;
    for (uint32_t y = 0; y < to->height && has_black; y++)
        memset(hr__row(to, y), 0, (size_t)to->width * to->pixel_bytes);
    if (hr__rect_is_empty(&real)) return;
    uint32_t count = (uint32_t)hr__rect_width(&real);
    ptrdiff_t along = view->swaps ? (ptrdiff_t)to->stride : (ptrdiff_t)to->pixel_bytes;
    if (view->flips_across) along = -along;
    for (int64_t y = real.top; y < real.bottom; y++) {
        size_t across = (size_t)(view->flips_across ? view->rect.right - 1 - real.left : real.left - view->rect.left);
        size_t down = (size_t)(view->flips_down ? view->rect.bottom - 1 - y : y - view->rect.top);
        size_t to_x = view->swaps ? down : across, to_y = view->swaps ? across : down;
        const unsigned char *from = hr__row(&decoded->pixels, (uint32_t)(y - decoded->rect.top)) +
                                    (size_t)(real.left - decoded->rect.left) * to->pixel_bytes;
        read_row(view, from, count, to->pixel_bytes, to->data + to_y * to->stride + to_x * to->pixel_bytes, along);
    }
}
