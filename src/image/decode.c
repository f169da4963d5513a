/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Decodes a part of a JPEG file with libjpeg-turbo, exactly as Pillow decodes the whole: accurate integer DCT, fancy
 * upsampling, conversion to R, G, B. Rows above the part are skipped, and columns outside it are not transformed.
 *
 * Upsampling reads pixels next to the part. libjpeg knows that for rows, but treats the first and last column of a part
 * as the borders of the image. So the part is decoded with a margin of MARGIN columns, which makes it exact.
 */

#include "image.h"

#include <errno.h>

#ifdef HR__HAS_JPEG

#include <setjmp.h>
#include <stdio.h> /* jpeglib.h needs it */
#include <string.h>

#include <jpeglib.h>

enum { MARGIN = 2, ROWS_AT_ONCE = 16 };

struct failure {
    struct jpeg_error_mgr manager;
    jmp_buf back;
};

static void fail(j_common_ptr codec) {
    longjmp(((struct failure *)(void *)codec->err)->back, 1);
}

static void ignore_message(j_common_ptr codec) {
    (void)codec;
}

/* Copies the columns of the part out of decoded rows that begin at column `first`. */
static void copy_columns(const struct hr__pixels *pixels, uint32_t y, unsigned char *const *rows, uint32_t count,
                         size_t skip_bytes) {
    size_t row_bytes = (size_t)pixels->width * pixels->pixel_bytes;
    for (uint32_t i = 0; i < count; i++) memcpy(hr__row(pixels, y + i), rows[i] + skip_bytes, row_bytes);
}

/* Returns how many rows were read, at least one. Without any, the data is damaged, and it leaves by longjmp. */
static uint32_t read_some(struct jpeg_decompress_struct *codec, unsigned char **rows, uint32_t wanted) {
    uint32_t got = jpeg_read_scanlines(codec, rows, wanted);
    if (got == 0) fail((j_common_ptr)codec);
    return got;
}

static void read_rows(struct jpeg_decompress_struct *codec, const struct hr__pixels *pixels, unsigned char *buffer,
                      size_t stride, size_t skip_bytes) {
    unsigned char *rows[ROWS_AT_ONCE];
    for (uint32_t i = 0; i < ROWS_AT_ONCE; i++) rows[i] = buffer + i * stride;
    for (uint32_t y = 0; y < pixels->height;) {
        uint32_t wanted = (uint32_t)hr__min(ROWS_AT_ONCE, pixels->height - y), got = 0;
        while (got < wanted) got += read_some(codec, rows + got, wanted - got);
        copy_columns(pixels, y, rows, got, skip_bytes);
        y += got;
    }
}

/* Decodes whole rows directly to their place. */
static void read_whole_rows(struct jpeg_decompress_struct *codec, const struct hr__pixels *pixels) {
    unsigned char *rows[ROWS_AT_ONCE];
    for (uint32_t y = 0; y < pixels->height;) {
        uint32_t wanted = (uint32_t)hr__min(ROWS_AT_ONCE, pixels->height - y);
        for (uint32_t i = 0; i < wanted; i++) rows[i] = hr__row(pixels, y + i);
        y += read_some(codec, rows, wanted);
    }
}

/* The memory for the pixels was measured by the header that was scanned. The data is borrowed, and may have changed. */
static bool is_as_scanned(const struct jpeg_decompress_struct *codec, const struct hr_image_info *info) {
    return codec->image_width == info->width && codec->image_height == info->height &&
           (uint32_t)codec->num_components == info->channels;
}

/* Leaves by longjmp if it cannot. */
static void start(struct jpeg_decompress_struct *codec, const hr_image *image) {
    jpeg_create_decompress(codec);
    jpeg_mem_src(codec, image->data, (size_t)image->info.data_bytes);
    jpeg_read_header(codec, TRUE);
    if (!is_as_scanned(codec, &image->info)) fail((j_common_ptr)codec);
    codec->out_color_space = codec->num_components == 1 ? JCS_GRAYSCALE : JCS_EXT_RGBX;
    codec->dct_method = JDCT_ISLOW;
    codec->do_fancy_upsampling = TRUE;
    jpeg_start_decompress(codec);
}

/* May leave by longjmp, with *ret_buffer set if it was taken. */
static int decode(struct jpeg_decompress_struct *codec, const struct hr__rect *rect, struct hr__scratch *scratch,
                  const struct hr__pixels *pixels, unsigned char *volatile *ret_buffer) {
    JDIMENSION left = rect->left > MARGIN ? (JDIMENSION)rect->left - MARGIN : 0;
    JDIMENSION right = (JDIMENSION)hr__min((uint64_t)rect->right + MARGIN, codec->output_width);
    bool is_whole = left == 0 && right == codec->output_width;
    if (!is_whole) {
        JDIMENSION width = right - left;
        jpeg_crop_scanline(codec, &left, &width);
    }
    if (rect->top > 0) jpeg_skip_scanlines(codec, (JDIMENSION)rect->top);
    if (hr__rect_width(rect) == codec->output_width) {
        read_whole_rows(codec, pixels);
        return 0;
    }
    size_t stride = (size_t)codec->output_width * pixels->pixel_bytes;
    unsigned char *buffer = hr__scratch_take(scratch, stride * ROWS_AT_ONCE);
    if (!buffer) return -ENOMEM;
    *ret_buffer = buffer;
    read_rows(codec, pixels, buffer, stride, (size_t)((uint32_t)rect->left - left) * pixels->pixel_bytes);
    return 0;
}

int hr__jpeg_decode(const hr_image *image, const struct hr__rect *rect, struct hr__scratch *scratch,
                    const struct hr__pixels *pixels) {
    struct jpeg_decompress_struct codec;
    struct failure failure;
    unsigned char *volatile buffer = NULL;
    volatile int r = -EBADMSG;
    memset(&codec, 0, sizeof codec); /* so that it can be destroyed if creating it fails */
    codec.err = jpeg_std_error(&failure.manager);
    failure.manager.error_exit = fail;
    failure.manager.output_message = ignore_message;
    if (setjmp(failure.back) == 0) {
        start(&codec, image);
        r = decode(&codec, rect, scratch, pixels, &buffer);
    }
    hr__scratch_give(scratch, buffer);
    if (r == 0 && failure.manager.num_warnings) r = -EBADMSG;
    jpeg_destroy_decompress(&codec);
    return r == -EBADMSG ? hr__fail(r, "image: the compressed data is damaged") : r;
}

bool hr_image_has_jpeg(void) {
    return true;
}

#else

int hr__jpeg_decode(const hr_image *image, const struct hr__rect *rect, struct hr__scratch *scratch,
                    const struct hr__pixels *pixels) {
    (void)image, (void)rect, (void)scratch, (void)pixels;
    return hr__fail(-ENOSYS, "image: headrace was built without libjpeg-turbo");
}

bool hr_image_has_jpeg(void) {
    return false;
}

#endif
