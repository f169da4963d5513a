/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TEST_JPEG_SCENE_H
#define HR_TEST_JPEG_SCENE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <headrace/face/face.h>
#include <headrace/headrace.h>

/* JPEG files of every kind that can be decoded, made by libjpeg from pixels that change everywhere. */

struct jpeg_kind {
    int width, height, components; /* 1 or 3 */
    int across, down;              /* sampling factors of the first component; those of the others are 1 */
    int is_progressive, restart_interval, quality, is_rgb;
};

struct jpeg_file {
    unsigned char *data;
    unsigned long bytes;
};

#ifdef HR__TEST_HAS_JPEG

#include <jpeglib.h>

static inline unsigned next_random(unsigned *state) {
    *state = *state * 1664525U + 1013904223U;
    return *state >> 24;
}

/* A row of edges, slopes and noise. */
static inline void draw_row(unsigned char *row, int y, const struct jpeg_kind *kind, unsigned *state) {
    for (int x = 0; x < kind->width; x++)
        for (int c = 0; c < kind->components; c++)
            row[x * kind->components + c] =
                (unsigned char)(((x * (c + 2)) ^ (y * 3)) + (x / 7 + y / 5) % 2 * 90 + (int)next_random(state) / 8);
}

static inline struct jpeg_file make_jpeg(const struct jpeg_kind *kind) {
    struct jpeg_compress_struct codec;
    struct jpeg_error_mgr errors;
    struct jpeg_file file = {0};
    unsigned state = (unsigned)(kind->width * 31 + kind->height);
    unsigned char *row = malloc((size_t)kind->width * (size_t)kind->components);
    codec.err = jpeg_std_error(&errors);
    jpeg_create_compress(&codec);
    jpeg_mem_dest(&codec, &file.data, &file.bytes);
    codec.image_width = (JDIMENSION)kind->width;
    codec.image_height = (JDIMENSION)kind->height;
    codec.input_components = kind->components;
    codec.in_color_space = kind->components == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&codec);
    if (kind->is_rgb) jpeg_set_colorspace(&codec, JCS_RGB);
    jpeg_set_quality(&codec, kind->quality ? kind->quality : 85, TRUE);
    codec.comp_info[0].h_samp_factor = kind->across;
    codec.comp_info[0].v_samp_factor = kind->down;
    codec.restart_interval = (unsigned)kind->restart_interval;
    if (kind->is_progressive) jpeg_simple_progression(&codec);
    jpeg_start_compress(&codec, TRUE);
    for (int y = 0; y < kind->height; y++) {
        draw_row(row, y, kind, &state);
        jpeg_write_scanlines(&codec, &row, 1);
    }
    jpeg_finish_compress(&codec);
    jpeg_destroy_compress(&codec);
    free(row);
    return file;
}

#endif
#endif
