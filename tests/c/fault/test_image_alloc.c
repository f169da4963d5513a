/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/jpeg_scene.h"

#include <errno.h>

#include "base/alloc.h"

/* Each allocation of a run fails once: the run reports -ENOMEM, leaks nothing, and works the next time. */

#if !defined(HR__TEST_HAS_JPEG) || !defined(HR_FAILPOINTS)

int main(void) {
    fputs("test_image_alloc: built without libjpeg-turbo or without failpoints\n", stderr);
    return 77;
}

#else

enum { BYTES = 20 * 20 * 3 };

static const struct hr_image_step steps[] = {
    {.kind = HR_IMAGE_CROP, .box = {-3, 2, 40, 30}},
    {.kind = HR_IMAGE_TRANSPOSE, .method = HR_IMAGE_ROTATE_90},
    {.kind = HR_IMAGE_RESIZE, .filter = HR_IMAGE_BICUBIC, .width = 20, .height = 20, .area = {0, 0, 28, 43}},
    {.kind = HR_IMAGE_BRIGHTNESS, .factor = 0.5f},
    {.kind = HR_IMAGE_BLUR, .width = 3, .height = 1},
    {.kind = HR_IMAGE_TRANSPOSE, .method = HR_IMAGE_ROTATE_270},
};

static const float weights[] = {0.25f, 0.5f, 0.25f};

static int make(const struct jpeg_file *file, unsigned char *target) {
    hr_image_memory *memory = NULL;
    hr_image *image = NULL;
    int r = hr_image_open(file->data, file->bytes, &image);
    if (r == 0) r = hr_image_memory_new(&memory);
    if (r == 0) {
        struct hr_image_recipe recipe = {.image = image,
                                         .steps = steps,
                                         .step_count = sizeof steps / sizeof *steps,
                                         .weights = weights,
                                         .weight_count = 3,
                                         .layout = HR_IMAGE_PACKED,
                                         .target = target,
                                         .target_bytes = BYTES};
        hr_images_run(memory, &recipe, 1, 1);
        r = recipe.result;
        if (r == 0) { /* a second run decodes the whole image */
            hr_images_run(memory, &recipe, 1, 1);
            r = recipe.result;
        }
    }
    hr_image_memory_free(memory);
    hr_image_close(image);
    return r;
}

static void each_failed_allocation_is_reported(void **context) {
    (void)context;
    struct jpeg_kind kind = {.width = 50, .height = 40, .components = 3, .across = 2, .down = 2};
    struct jpeg_file file = make_jpeg(&kind);
    unsigned char expected[BYTES], target[BYTES];
    assert_int_equal(make(&file, expected), 0);
    int failures = 0;
    for (uint64_t nth = 1;; nth++, failures++) {
        hr__alloc_fail_at(nth);
        int r = make(&file, target);
        hr__alloc_fail_at(0);
        if (r == 0) break;
        assert_int_equal(r, -ENOMEM);
        assert_true(strlen(hr_error_message()) > 0);
    }
    assert_true(failures > 8);
    assert_int_equal(make(&file, target), 0);
    assert_memory_equal(target, expected, BYTES);
    free(file.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_failed_allocation_is_reported)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
