/* SPDX-License-Identifier: Apache-2.0 */
/* A part of an image, flipped and turned, that has not been read. */
#ifndef HR_IMAGE_VIEW_H
#define HR_IMAGE_VIEW_H

#include "image.h"

/*
 * A view: pixels of an image that were cut out, flipped and turned any number of times, without having been read.
 *
 * `rect` is the part of the image that the view shows. It may reach beyond the image, and beyond the parts that earlier
 * crops left of it; only the pixels in `valid` exist, the others are black. The view shows the part mirrored if
 * flips_across or flips_down is set, and then with rows and columns exchanged if `swaps` is set.
 */
struct hr__view {
    struct hr__rect rect, valid;
    bool swaps, flips_across, flips_down; /* the flips are those of the image's columns and rows */
};

struct hr__view hr__view_of(uint32_t width, uint32_t height);
uint32_t hr__view_width(const struct hr__view *view);
uint32_t hr__view_height(const struct hr__view *view);
void hr__view_transpose(struct hr__view *view, uint32_t method); /* enum hr_image_transpose */
void hr__view_crop(struct hr__view *view, const struct hr__rect *box);
/* The part of the image that the view shows and that exists; it may be empty. */
struct hr__rect hr__view_needs(const struct hr__view *view);
/* Returns true if the pixels of the view are those of the image, in place. */
bool hr__view_is_plain(const struct hr__view *view);
/* Writes the pixels of the view to `to`, which has its size. `decoded` has at least what the view needs. */
void hr__view_read(const struct hr__view *view, const struct hr__decoded *decoded, const struct hr__pixels *to);

#endif
