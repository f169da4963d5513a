/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_IMAGE_IMAGE_H
#define HR_IMAGE_IMAGE_H

#include <pthread.h>

#include <headrace/face/image.h>

#include "base/base.h"
#include "base/error.h"

/* Shared by the files of this folder: an image, rectangles, pixels, and scratch memory. */

struct hr__rect {
    int64_t left, top, right, bottom; /* right and bottom are exclusive */
};

static inline int64_t hr__rect_width(const struct hr__rect *rect) {
    return rect->right - rect->left;
}
static inline int64_t hr__rect_height(const struct hr__rect *rect) {
    return rect->bottom - rect->top;
}
static inline bool hr__rect_is_empty(const struct hr__rect *rect) {
    return rect->right <= rect->left || rect->bottom <= rect->top;
}
/* The part that both have; it may be empty. */
struct hr__rect hr__rect_common(const struct hr__rect *one, const struct hr__rect *other);
/* The smallest rectangle that has both; an empty one adds nothing. */
struct hr__rect hr__rect_union(const struct hr__rect *one, const struct hr__rect *other);

/* Pixels of 1 byte (greyscale) or 4 bytes (R, G, B and one that is ignored). Borrowed memory. */
struct hr__pixels {
    unsigned char *data;
    uint32_t width, height, pixel_bytes;
    size_t stride; /* bytes from one row to the next */
};

static inline unsigned char *hr__row(const struct hr__pixels *pixels, uint32_t y) {
    return pixels->data + y * pixels->stride;
}
/* The part of `pixels` in a rectangle that lies within them. */
struct hr__pixels hr__pixels_part(const struct hr__pixels *pixels, const struct hr__rect *rect);

/* ---- scratch memory ---- */

/* How many blocks a thread uses at most at the same time. Blocks are taken and given back by number. */
enum { HR__BLOCKS = 10 };

/* The scratch memory of one thread. */
struct hr__scratch {
    struct {
        void *data;
        size_t capacity;
        size_t needed; /* the most that was taken of it since the last trim */
        bool is_used;
    } blocks[HR__BLOCKS];
};

void *hr__scratch_take(struct hr__scratch *scratch, uint64_t bytes);  /* NULL with a message: -ENOMEM */
void hr__scratch_give(struct hr__scratch *scratch, const void *data); /* NULL and other memory are ignored */
void hr__scratch_done(struct hr__scratch *scratch);
/* Frees very large blocks, and if it `is_due` those of which less than half was taken since it was due last. No block
 * is in use. */
void hr__scratch_trim(struct hr__scratch *scratch, bool is_due);

/* Takes a block for pixels of this size. -ENOMEM, -EOVERFLOW. */
int hr__pixels_take(struct hr__scratch *scratch, uint64_t width, uint64_t height, uint32_t pixel_bytes,
                    struct hr__pixels *ret_pixels);

/* ---- images ---- */

struct hr_image {
    struct hr_image_info info;
    const unsigned char *data; /* the encoded bytes; NULL: `whole` is all there is */
    struct hr__pixels whole;   /* decoded pixels of the whole image; data is NULL until they are decoded */
    bool owns_whole;           /* `whole` was allocated here */
    uint32_t pid;              /* the process that opened or adopted it */
    bool was_used;             /* an earlier run has used it */
    pthread_mutex_t lock;      /* guards `whole` and `was_used`, and is held while recipes of this image are made */
};

/* scan.c: checks the file and describes it. -ENOTSUP, with a message. */
int hr__jpeg_scan(const unsigned char *data, size_t bytes, struct hr_image_info *ret_info);

/* decode.c: decodes the part `rect` of the image, which lies within it, to `pixels`, which have its size and the
 * image's pixel size. -EBADMSG: damaged data, or another header than was scanned; -ENOMEM; -ENOSYS. */
int hr__jpeg_decode(const hr_image *image, const struct hr__rect *rect, struct hr__scratch *scratch,
                    const struct hr__pixels *pixels);

/* ---- recipes ---- */

/* Decoded pixels of an image: the part `rect` of it. */
struct hr__decoded {
    struct hr__pixels pixels;
    struct hr__rect rect;
};

/* program.c: makes the result of a recipe, whose measures are known, in two steps. First, `needed` becomes the part of
 * the image that it reads. -ENOMEM, -EOVERFLOW. */
int hr__recipe_need(const struct hr_image_recipe *recipe, struct hr__scratch *scratch, struct hr__rect *ret_needed);
/* Second, from a decoded part that has at least that. -ENOMEM, -EOVERFLOW, -ENOSPC. */
int hr__recipe_make(const struct hr_image_recipe *recipe, struct hr__scratch *scratch,
                    const struct hr__decoded *decoded);

/* output.c: writes pixels to the recipe's target, which is large enough. `channels`: of the result; an image of 3
 * channels whose pixels have 1 byte is grey. */
void hr__output(const struct hr_image_recipe *recipe, const struct hr__pixels *pixels, uint32_t channels);
/* The same with AVX2 for bytes in planes; false: nothing was done. */
bool hr__output_planes_avx2(const struct hr__pixels *pixels, unsigned char *target);
/* Writes the first pixels of a row of 4 bytes each as 3 bytes each. Returns how many; the others are left. */
uint32_t hr__pack_avx2(const unsigned char *from, uint32_t width, unsigned char *to);

/* colour.c: change pixels in place. */
void hr__brightness(const struct hr__pixels *pixels, float factor);
void hr__contrast(const struct hr__pixels *pixels, float factor);
void hr__saturation(const struct hr__pixels *pixels, float factor);
void hr__hue(const struct hr__pixels *pixels, uint32_t shift);
/* Writes the grey values of pixels of 4 bytes to pixels of 1 byte. */
void hr__grey(const struct hr__pixels *from, const struct hr__pixels *to);

#endif
