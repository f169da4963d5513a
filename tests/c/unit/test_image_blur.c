/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/jpeg_scene.h"

#include <errno.h>
#include <math.h>

#include "image/blur.h"

/* A blur is the sum of all products, one after the other, with mirrored borders; tiles with AVX2 are those in C; and
 * weights that do not fit are refused. tests/python/images compares with torchvision. */

static float random_float(unsigned *state) {
    return next_random(state) % 4 ? (float)next_random(state) / 5000 : 0;
}

static uint32_t mirrored(int at, uint32_t length) {
    if (at < 0) at = -at;
    return (uint32_t)at < length ? (uint32_t)at : 2 * length - 2 - (uint32_t)at;
}

static int expected_of(const struct hr__pixels *pixels, const struct hr__kernel *kernel, uint32_t x, uint32_t y,
                       uint32_t channel) {
    float sum = 0;
    for (uint32_t i = 0; i < kernel->height; i++)
        for (uint32_t j = 0; j < kernel->width; j++) {
            uint32_t from_x = mirrored((int)(x + j) - (int)(kernel->width / 2), pixels->width);
            uint32_t from_y = mirrored((int)(y + i) - (int)(kernel->height / 2), pixels->height);
            float value = hr__row(pixels, from_y)[(size_t)from_x * pixels->pixel_bytes + channel];
            sum = fmaf(value, kernel->weights[i * kernel->width + j], sum);
        }
    int nearest = (int)lrintf(sum);
    return nearest > 255 ? 255 : nearest;
}

static void blur_one(unsigned *state) {
    struct hr__scratch scratch = {0};
    struct hr__kernel kernel = {.width = 2 * (next_random(state) % 6) + 1, .height = 2 * (next_random(state) % 6) + 1};
    struct hr__pixels pixels = {.width = kernel.width / 2 + 1 + next_random(state) % 50,
                                .height = kernel.height / 2 + 1 + next_random(state) % 20,
                                .pixel_bytes = next_random(state) % 2 ? 4 : 1};
    float *weights = malloc((size_t)kernel.width * kernel.height * sizeof *weights);
    pixels.stride = (size_t)pixels.width * pixels.pixel_bytes;
    size_t bytes = pixels.stride * pixels.height;
    pixels.data = malloc(bytes); /* exactly: AddressSanitizer sees what is read beyond */
    unsigned char *before = malloc(bytes);
    for (uint32_t i = 0; i < kernel.width * kernel.height; i++) weights[i] = random_float(state);
    for (size_t i = 0; i < bytes; i++) before[i] = pixels.data[i] = (unsigned char)next_random(state);
    kernel.weights = weights;
    assert_int_equal(hr__blur(&pixels, &kernel, &scratch), 0);
    struct hr__pixels from = pixels;
    from.data = before;
    for (uint32_t y = 0; y < pixels.height; y++)
        for (uint32_t x = 0; x < pixels.width; x++)
            for (uint32_t c = 0; c < (pixels.pixel_bytes == 1 ? 1 : 3); c++)
                assert_int_equal(hr__row(&pixels, y)[(size_t)x * pixels.pixel_bytes + c],
                                 expected_of(&from, &kernel, x, y, c));
    free(weights);
    free(before);
    free(pixels.data);
    hr__scratch_done(&scratch);
}

static void a_blur_adds_products_one_after_the_other(void **context) {
    (void)context;
    unsigned state = 5;
    for (int i = 0; i < 60; i++) blur_one(&state);
}

static void tiles_with_avx2_are_those_in_c(void **context) {
    (void)context;
    enum { WIDTH = 9, HEIGHT = 7, ROWS = HEIGHT + 2 * (HR__TILE_ROWS - 1), STRIDE = WIDTH + HR__TILE_WIDTH };
    float values[ROWS * WIDTH] = {0}, from[(HEIGHT + HR__TILE_ROWS) * STRIDE];
    uint32_t ranges[2 * ROWS];
    unsigned state = 7;
    hr__tile_function *in_avx2 = hr__tile_avx2();
    for (uint32_t y = 0; y < ROWS; y++) ranges[2 * y] = 0, ranges[2 * y + 1] = WIDTH;
    for (int round = 0; round < 200 && in_avx2; round++) {
        for (size_t i = 0; i < HEIGHT * WIDTH; i++) values[(HR__TILE_ROWS - 1) * WIDTH + i] = random_float(&state);
        for (size_t i = 0; i < sizeof from / sizeof *from; i++) from[i] = (float)next_random(&state);
        struct hr__weights weights = {.values = values, .ranges = ranges, .width = WIDTH, .height = HEIGHT};
        hr__tile one, other;
        hr__tile_c(&weights, from, STRIDE, &one);
        in_avx2(&weights, from, STRIDE, &other);
        assert_memory_equal(one, other, sizeof one);
    }
#ifdef __x86_64__
    assert_true(in_avx2 || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"));
#endif
}

static void weights_that_do_not_fit_are_refused(void **context) {
    (void)context;
    static const unsigned char pixels[20 * 10];
    static const float weights[9 * 5 + 4];
    struct hr_image_size size;
    struct hr_image_step step = {.kind = HR_IMAGE_BLUR, .width = 9, .height = 5, .weights_at = 4};
    struct hr_image_recipe recipe = {
        .steps = &step, .step_count = 1, .weights = weights, .weight_count = 9 * 5 + 4, .layout = HR_IMAGE_PACKED};
    assert_int_equal(hr_image_wrap(pixels, 20, 10, 1, 20, &recipe.image), 0);
    assert_int_equal(hr_image_measure(&recipe, &size), 0);
    const struct hr_image_step bad[] = {
        {.width = 9, .height = 5, .weights_at = 5},
        {.width = 8, .height = 5},
        {.width = 9, .height = 4},
        {.width = 9, .height = 5, .weights_at = UINT32_MAX},
        {.width = 0, .height = 5},
        {.width = 1, .height = 21},
        {.width = 41, .height = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        step = bad[i];
        step.kind = HR_IMAGE_BLUR;
        assert_int_equal(hr_image_measure(&recipe, &size), -EINVAL);
        assert_non_null(strstr(hr_error_message(), "cannot blur 20 x 10 pixels"));
    }
    recipe.weights = NULL;
    step = (struct hr_image_step){.kind = HR_IMAGE_BLUR, .width = 1, .height = 1};
    assert_int_equal(hr_image_measure(&recipe, &size), -EINVAL);
    hr_image_close(recipe.image);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_blur_adds_products_one_after_the_other),
        cmocka_unit_test(tiles_with_avx2_are_those_in_c),
        cmocka_unit_test(weights_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests_name("image blur", tests, NULL, NULL);
}
