/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_IMAGE_H
#define HEADRACE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Images: from the bytes of a JPEG file to pixels in their final place, with exactly the pixels of Pillow.
 *
 * A program makes one hr_image for each file, and one recipe for each result: the image, the steps in the order in
 * which Pillow would do them, and the memory for the result. hr_images_run makes the results of many recipes, in
 * several threads. Only the part of an image that its recipes use is decoded, as far as the format allows that.
 *
 * "Exactly" means: every byte is the one that Pillow gives for the same steps, if its libjpeg-turbo is 2.1 or newer.
 * The decoder is libjpeg-turbo (accurate integer DCT, fancy upsampling). The formulas of the steps are Pillow's.
 *
 * An hr_image may be used by one thread at a time, except that a run uses its recipes' images itself and locks them.
 * There is no global state. A forked child may use the images of its parent after hr_image_adopt.
 */

/* ---- images ---- */

enum {
    HR_IMAGE_MOST_SIDE = 65500,     /* libjpeg's limit of width and height, in pixels */
    HR_IMAGE_MOST_FACTOR = 1000000, /* of brightness, contrast and saturation */
    HR_IMAGE_MOST_THREADS = 256     /* no run uses more */
};

struct hr_image_info {
    uint32_t width, height; /* size in pixels, before any step */
    uint32_t channels;      /* 1: greyscale (Pillow's mode L); 3: RGB */
    bool is_progressive;
    uint64_t data_bytes; /* up to and with the end-of-image marker; what follows is not read */
};

/* One encoded image, or pixels that were decoded elsewhere. */
typedef struct hr_image hr_image;

/* Returns true if this library was built with libjpeg-turbo. Otherwise hr_image_open returns -ENOSYS. */
HR_API bool hr_image_has_jpeg(void);

/*
 * Checks a JPEG file from its first to its last marker, without decoding it, and returns an image. The data is
 * borrowed, and must stay unchanged until hr_image_close.
 *
 * -ENOTSUP: the file is valid or not, but this library does not decode it. The message says why: it is truncated, has
 * unexpected markers or tables, is arithmetic-coded, lossless or hierarchical, has other than 8 bits or 1 or 3
 * components, or an unusual sampling. Pillow may be able to decode it. -ENOSYS: built without libjpeg-turbo.
 * -EINVAL: no data. -ENOMEM.
 */
HR_API int hr_image_open(const void *data, size_t bytes, hr_image **ret_image);

/*
 * Returns an image of decoded pixels: rows of `width` pixels with `pixel_bytes` bytes each (1: greyscale; 4: R, G, B
 * and a byte that is ignored), `stride_bytes` apart. The pixels are borrowed, and must stay unchanged until
 * hr_image_close. -EINVAL: a size is 0 or more than HR_IMAGE_MOST_SIDE, or another value is out of range. -ENOMEM.
 */
HR_API int hr_image_wrap(const void *pixels, uint32_t width, uint32_t height, uint32_t pixel_bytes, size_t stride_bytes,
                         hr_image **ret_image);

/*
 * Makes an image that this process has inherited by fork usable, even if another thread of the parent was making
 * recipes of it at that moment. In the process that opened or adopted it, it does nothing. Call it when no other thread
 * of this process uses the image. -ENOMEM.
 */
HR_API int hr_image_adopt(hr_image *image);

/* Tells what an image is. */
HR_API void hr_image_look(const hr_image *image, struct hr_image_info *ret_info);

/* Frees the image, and the pixels that it may keep. NULL is allowed. */
HR_API void hr_image_close(hr_image *image);

/* ---- steps ---- */

enum hr_image_step_kind {
    HR_IMAGE_CROP,       /* box; parts outside the image are black. Image.crop */
    HR_IMAGE_RESIZE,     /* width, height, filter, area, passes. Image.resize */
    HR_IMAGE_TRANSPOSE,  /* method. Image.transpose */
    HR_IMAGE_CONVERT,    /* channels: 1 is mode L, 3 is mode RGB. Image.convert */
    HR_IMAGE_BRIGHTNESS, /* factor. ImageEnhance.Brightness(image).enhance(factor) */
    HR_IMAGE_CONTRAST,   /* factor. ImageEnhance.Contrast */
    HR_IMAGE_SATURATION, /* factor. ImageEnhance.Color */
    HR_IMAGE_HUE,        /* shift: added to the hue of mode HSV, modulo 256. torchvision's adjust_hue */
    HR_IMAGE_BLUR,       /* width, height (odd), weights_at. torchvision's gaussian_blur, whose products torch adds with
                            fma, one after the other */
};

/* Filters, with Pillow's numbers. */
enum hr_image_filter {
    HR_IMAGE_LANCZOS = 1,
    HR_IMAGE_BILINEAR = 2,
    HR_IMAGE_BICUBIC = 3,
    HR_IMAGE_BOX = 4,
    HR_IMAGE_HAMMING = 5,
};

/* Methods of Image.transpose, with Pillow's numbers. Rotations are counter-clockwise. */
enum hr_image_transpose {
    HR_IMAGE_FLIP_LEFT_RIGHT,
    HR_IMAGE_FLIP_TOP_BOTTOM,
    HR_IMAGE_ROTATE_90,
    HR_IMAGE_ROTATE_180,
    HR_IMAGE_ROTATE_270,
    HR_IMAGE_TRANSPOSED,
    HR_IMAGE_TRANSVERSE,
};

/* Which pass of a resize comes first decides how the pixels between the passes are rounded. Pillow up to 12 always
 * begins with the horizontal pass. Pillow 13 begins with the vertical one if that makes the image much smaller. */
enum hr_image_passes { HR_IMAGE_HORIZONTAL_FIRST, HR_IMAGE_SMALLER_FIRST };

struct hr_image_step {
    uint32_t kind; /* enum hr_image_step_kind; the comment there names the fields that it uses */
    uint32_t method, filter, passes, channels;
    uint32_t width, height; /* size of the result, 1 to HR_IMAGE_MOST_SIDE; or of the weights, less than 2 sides */
    int32_t box[4];         /* left, upper, right, lower, in pixels; right and lower are exclusive */
    float area[4];          /* the part that is resized: left, upper, right, lower, within the image */
    float factor;
    uint32_t shift;
    uint32_t weights_at; /* the place of the first one in the recipe's weights; row after row */
};

/* ---- recipes ---- */

enum hr_image_layout {
    HR_IMAGE_PACKED, /* bytes of (height, width, channels): numpy.asarray(image) */
    HR_IMAGE_PADDED, /* the same with 4 bytes for a pixel of 3 channels (the last is 255): Pillow's memory */
    HR_IMAGE_PLANES, /* items of (channels, height, width), from a table */
};

/*
 * A recipe: what to make of an image, and where. The caller owns everything that it points to, and keeps it until the
 * run has ended; two recipes must not share the memory of a result.
 *
 * With HR_IMAGE_PLANES, item [c][y][x] of the result is table[c][value], where value is the byte of channel c of the
 * pixel; if the image has 1 channel, all channels of the table are looked up with that. The table has table_channels
 * times 256 items of item_bytes bytes. Without a table, items are the bytes themselves.
 */
struct hr_image_recipe {
    hr_image *image;
    const struct hr_image_step *steps;
    uint32_t step_count;
    uint32_t weight_count;
    const float *weights;    /* the weights of all steps HR_IMAGE_BLUR */
    uint32_t layout;         /* enum hr_image_layout */
    const void *table;       /* NULL: the bytes themselves */
    uint32_t table_channels; /* 1 to 4; with an image of 3 channels 3 */
    uint32_t item_bytes;     /* 1, 2, 4 or 8; without a table 1 */
    void *target;            /* aligned for its items */
    size_t target_bytes;     /* at least what hr_image_measure returns */
    int result;              /* set by hr_images_run: 0 or a negative code */
};

/* The size of a result. */
struct hr_image_size {
    uint32_t width, height, channels;
    size_t bytes;
};

/* Checks a recipe and returns the size of its result; `target` and `target_bytes` are not used. -EINVAL: a step or
 * value is out of range, or a side of an image between two steps would be 0. -EOVERFLOW: too large. */
HR_API int hr_image_measure(const struct hr_image_recipe *recipe, struct hr_image_size *ret_size);

/* Scratch memory of the threads of runs. It is kept from run to run, as far as recent runs needed it. */
typedef struct hr_image_memory hr_image_memory;

/* -ENOMEM. */
HR_API int hr_image_memory_new(hr_image_memory **ret_memory);
/* NULL is allowed. */
HR_API void hr_image_memory_free(hr_image_memory *memory);

/*
 * Makes the results of `count` recipes in up to `threads` threads, the calling one included (0 counts as 1), and
 * returns when all threads have ended. Signals are blocked in the other threads. If a thread cannot be started, the
 * rest does its work. `memory` is used by one run at a time.
 *
 * Recipes of one image are made by one thread, from one decode of the part that they need together. An image that is
 * used in a second run is then decoded as a whole and keeps its pixels, until it is closed.
 *
 * Returns the number of recipes that failed. Their `result` says why, and their target is undefined; the others are
 * done. Results of a recipe: -EINVAL, -EOVERFLOW as hr_image_measure; -ENOSPC: the target is too small; -EBADMSG: the
 * decoder found damaged data (Pillow decides what becomes of such an image); -ENOMEM. The message is that of one of
 * them.
 */
HR_API int hr_images_run(hr_image_memory *memory, struct hr_image_recipe *recipes, size_t count, uint32_t threads);

#ifdef __cplusplus
}
#endif
#endif
