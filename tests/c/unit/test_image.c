/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/jpeg_scene.h"

#include <errno.h>

#include "image/resize.h"

/* Recipes: parts of an image are those of the whole, passes with AVX2 are those in C, threads change nothing, and bad
 * values are refused. tests/python/images compares with Pillow. */

#ifndef HR__TEST_HAS_JPEG

int main(void) {
    fputs("test_image: built without libjpeg-turbo\n", stderr);
    return 77;
}

#else

static const int samplings[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}, {4, 2}, {2, 4}};
enum { SAMPLINGS = sizeof samplings / sizeof *samplings, SIDE = 70 };

static void *run_one(hr_image *image, const struct hr_image_step *steps, uint32_t count, uint32_t layout,
                     struct hr_image_size *ret_size) {
    struct hr_image_recipe recipe = {
        .image = image, .steps = steps, .step_count = count, .layout = layout, .item_bytes = 1};
    hr_image_memory *memory;
    assert_int_equal(hr_image_measure(&recipe, ret_size), 0);
    recipe.target = malloc(ret_size->bytes);
    recipe.target_bytes = ret_size->bytes;
    assert_int_equal(hr_image_memory_new(&memory), 0);
    assert_int_equal(hr_images_run(memory, &recipe, 1, 1), 0);
    assert_int_equal(recipe.result, 0);
    hr_image_memory_free(memory);
    return recipe.target;
}

static void crop_fresh(const struct jpeg_file *file, const struct hr_image_step *crop, const unsigned char *whole,
                       uint32_t width, uint32_t channels) {
    hr_image *image;
    struct hr_image_size size;
    assert_int_equal(hr_image_open(file->data, file->bytes, &image), 0);
    unsigned char *part = run_one(image, crop, 1, HR_IMAGE_PACKED, &size);
    for (uint32_t y = 0; y < size.height; y++) {
        size_t from = ((size_t)(crop->box[1] + (int32_t)y) * width + (size_t)crop->box[0]) * channels;
        assert_memory_equal(part + (size_t)y * size.width * channels, whole + from, (size_t)size.width * channels);
    }
    free(part);
    hr_image_close(image);
}

/* Cuts random parts out of a file of this kind, each from a new image, and compares them with the whole. */
static void compare_crops(const struct jpeg_kind *kind, int count, unsigned *state) {
    struct jpeg_file file = make_jpeg(kind);
    hr_image *image;
    struct hr_image_size size;
    assert_int_equal(hr_image_open(file.data, file.bytes, &image), 0);
    unsigned char *whole = run_one(image, NULL, 0, HR_IMAGE_PACKED, &size);
    assert_int_equal(size.width, kind->width);
    assert_int_equal(size.channels, kind->components);
    for (int i = 0; i < count; i++) {
        struct hr_image_step crop = {.kind = HR_IMAGE_CROP};
        crop.box[0] = (int32_t)next_random(state) % kind->width;
        crop.box[1] = (int32_t)next_random(state) % kind->height;
        crop.box[2] = crop.box[0] + 1 + (int32_t)next_random(state) % (kind->width - crop.box[0]);
        crop.box[3] = crop.box[1] + 1 + (int32_t)next_random(state) % (kind->height - crop.box[1]);
        crop_fresh(&file, &crop, whole, size.width, size.channels);
    }
    free(whole);
    hr_image_close(image);
    free(file.data);
}

static void parts_are_those_of_the_whole(void **context) {
    (void)context;
    unsigned state = 1;
    for (int i = 0; i < SAMPLINGS; i++)
        for (int more = 0; more < 8; more++) {
            struct jpeg_kind kind = {.width = 1 + (int)next_random(&state) % 200,
                                     .height = 1 + (int)next_random(&state) % 200,
                                     .components = more % 4 == 3 ? 1 : 3,
                                     .across = samplings[i][0],
                                     .down = samplings[i][1],
                                     .is_progressive = more % 2,
                                     .restart_interval = more / 4 * 3};
            if (kind.components == 1 && kind.across * kind.down > 4) kind.across = 1;
            compare_crops(&kind, 12, &state);
        }
}

static void parts_of_rgb_files_are_those_of_the_whole(void **context) {
    (void)context;
    unsigned state = 2;
    struct jpeg_kind kind = {.width = 61, .height = 43, .components = 3, .across = 1, .down = 1, .is_rgb = 1};
    compare_crops(&kind, 20, &state);
}

/* ---- passes ---- */

static void fill_random(struct hr__pixels *pixels, unsigned *state) {
    pixels->stride = (size_t)pixels->width * pixels->pixel_bytes;
    pixels->data = malloc(pixels->stride * pixels->height); /* exactly: AddressSanitizer sees what is read beyond */
    for (size_t i = 0; i < pixels->stride * pixels->height; i++)
        pixels->data[i] = next_random(state) > 60 ? (unsigned char)next_random(state) : 255;
}

static struct hr__pixels room(uint32_t width, uint32_t height, uint32_t pixel_bytes) {
    struct hr__pixels pixels = {.width = width, .height = height, .pixel_bytes = pixel_bytes};
    pixels.stride = (size_t)width * pixel_bytes;
    pixels.data = malloc(pixels.stride * height);
    return pixels;
}

/* Runs one pass with AVX2 and in C. Returns false if AVX2 was not used. */
static bool compare_passes(uint32_t filter, uint32_t from, uint32_t to, uint32_t other, uint32_t pixel_bytes,
                           bool is_across, unsigned *state) {
    struct hr__scratch scratch = {0};
    struct hr__taps taps;
    struct hr__pixels in = {.width = is_across ? from : other, .height = is_across ? other : from};
    in.pixel_bytes = pixel_bytes;
    fill_random(&in, state);
    struct hr__pixels in_c = room(is_across ? to : other, is_across ? other : to, pixel_bytes);
    struct hr__pixels in_avx2 = room(in_c.width, in_c.height, pixel_bytes);
    void *memory = malloc(hr__taps_bytes(filter, 0, (float)from, to, to));
    hr__taps_fill(&taps, filter, from, 0, (float)from, to, 0, to, memory);
    if (is_across)
        hr__across_c(&taps, &in, &in_c);
    else
        hr__down_c(&taps, &in, &in_c);
    bool ran = is_across ? hr__across_avx2(&taps, &scratch, &in, &in_avx2) : hr__down_avx2(&taps, &in, &in_avx2);
    if (ran) assert_memory_equal(in_c.data, in_avx2.data, in_c.stride * in_c.height);
    free(memory);
    free(in.data);
    free(in_c.data);
    free(in_avx2.data);
    hr__scratch_done(&scratch);
    return ran;
}

static void passes_with_avx2_are_those_in_c(void **context) {
    (void)context;
    unsigned state = 3;
    int ran = 0;
    for (int i = 0; i < 400; i++) {
        uint32_t filter = 1 + next_random(&state) % 5, other = 1 + next_random(&state) % 40;
        uint32_t from = 1 + next_random(&state), to = 1 + next_random(&state) % 120;
        ran += compare_passes(filter, from, to, other, i % 3 ? 4 : 1, i % 2, &state);
    }
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) assert_true(ran > 200);
#else
    assert_int_equal(ran, 0);
#endif
}

/* ---- runs ---- */

enum { IMAGES = 12, RECIPES = 60 };

struct batch {
    struct jpeg_file files[IMAGES];
    hr_image *images[IMAGES];
    struct hr_image_step steps[RECIPES][3];
    struct hr_image_recipe recipes[RECIPES];
    float table[3][256];
};

static void make_batch(struct batch *batch) {
    unsigned state = 4;
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 256; i++) batch->table[c][i] = (float)i / (float)(c + 1);
    for (int i = 0; i < IMAGES; i++) {
        struct jpeg_kind kind = {.width = SIDE + i, .height = SIDE, .components = 3, .across = 2, .down = 2};
        batch->files[i] = make_jpeg(&kind);
        assert_int_equal(hr_image_open(batch->files[i].data, batch->files[i].bytes, &batch->images[i]), 0);
    }
    for (int i = 0; i < RECIPES; i++) {
        int32_t left = (int32_t)next_random(&state) % 30, top = (int32_t)next_random(&state) % 30;
        struct hr_image_step *steps = batch->steps[i];
        steps[0] = (struct hr_image_step){.kind = HR_IMAGE_CROP, .box = {left, top, left + 40, top + 33}};
        steps[1] = (struct hr_image_step){.kind = HR_IMAGE_RESIZE, .filter = HR_IMAGE_BILINEAR, .area = {0, 0, 40, 33}};
        steps[1].width = steps[1].height = 24;
        steps[2] = (struct hr_image_step){.kind = HR_IMAGE_TRANSPOSE, .method = HR_IMAGE_FLIP_LEFT_RIGHT};
        batch->recipes[i] = (struct hr_image_recipe){.image = batch->images[next_random(&state) % IMAGES],
                                                     .steps = steps,
                                                     .step_count = i % 2 ? 3 : 2,
                                                     .layout = HR_IMAGE_PLANES,
                                                     .table = batch->table,
                                                     .table_channels = 3,
                                                     .item_bytes = sizeof(float),
                                                     .target_bytes = 3 * 24 * 24 * sizeof(float)};
        batch->recipes[i].target = malloc(batch->recipes[i].target_bytes);
    }
}

static void free_batch(struct batch *batch) {
    for (int i = 0; i < RECIPES; i++) free(batch->recipes[i].target);
    for (int i = 0; i < IMAGES; i++) {
        hr_image_close(batch->images[i]);
        free(batch->files[i].data);
    }
    free(batch);
}

static void results_do_not_depend_on_threads(void **context) {
    (void)context;
    struct batch *expected = calloc(1, sizeof *expected), *batch = calloc(1, sizeof *batch);
    hr_image_memory *memory;
    assert_int_equal(hr_image_memory_new(&memory), 0);
    make_batch(expected);
    make_batch(batch);
    assert_int_equal(hr_images_run(memory, expected->recipes, RECIPES, 1), 0);
    for (int round = 0; round < 3; round++) { /* in the later ones the images have kept their pixels */
        assert_int_equal(hr_images_run(memory, batch->recipes, RECIPES, 1 + (uint32_t)round * 3), 0);
        for (int i = 0; i < RECIPES; i++)
            assert_memory_equal(batch->recipes[i].target, expected->recipes[i].target, 3 * 24 * 24 * sizeof(float));
    }
    hr_image_memory_free(memory);
    free_batch(expected);
    free_batch(batch);
}

static void a_bad_recipe_does_not_spoil_the_others(void **context) {
    (void)context;
    struct batch *batch = calloc(1, sizeof *batch);
    hr_image_memory *memory;
    assert_int_equal(hr_image_memory_new(&memory), 0);
    make_batch(batch);
    batch->steps[5][1].filter = 9;
    batch->recipes[7].target_bytes--;
    batch->recipes[9].table_channels = 1;
    assert_int_equal(hr_images_run(memory, batch->recipes, RECIPES, 2), 3);
    assert_int_equal(batch->recipes[5].result, -EINVAL);
    assert_int_equal(batch->recipes[7].result, -ENOSPC);
    assert_int_equal(batch->recipes[9].result, -EINVAL);
    assert_int_equal(batch->recipes[6].result, 0);
    assert_true(strlen(hr_error_message()) > 0);
    hr_image_memory_free(memory);
    free_batch(batch);
}

struct watched {
    const struct hr_image_recipe *first, *now[8]; /* the first recipe of each thread, and those that it makes now */
    _Atomic int begun, ended, wrong;
};

static void watch(void *context, uint32_t thread, const struct hr_image_recipe *recipe) {
    struct watched *watched = context;
    bool is_known = !recipe || (recipe >= watched->first && recipe < watched->first + RECIPES);
    watched->wrong += !is_known || thread > 2 || !recipe == !watched->now[thread];
    watched->begun += recipe != NULL;
    watched->ended += recipe == NULL;
    watched->now[thread] = recipe;
}

static void a_watch_sees_the_image_at_which_each_thread_is(void **context) {
    (void)context;
    struct batch *batch = calloc(1, sizeof *batch);
    hr_image_memory *memory;
    assert_int_equal(hr_image_memory_new(&memory), 0);
    make_batch(batch);
    struct watched watched = {.first = batch->recipes};
    hr_image_memory_watch(memory, watch, &watched);
    assert_int_equal(hr_images_run(memory, batch->recipes, RECIPES, 3), 0);
    assert_int_equal(watched.begun, IMAGES);
    assert_int_equal(watched.ended, IMAGES);
    assert_int_equal(watched.wrong, 0);
    hr_image_memory_watch(memory, NULL, NULL);
    assert_int_equal(hr_images_run(memory, batch->recipes, RECIPES, 3), 0);
    assert_int_equal(watched.begun, IMAGES);
    hr_image_memory_free(memory);
    free_batch(batch);
}

static size_t capacity_of(const struct hr__scratch *scratch) {
    size_t bytes = 0;
    for (int i = 0; i < HR__BLOCKS; i++) bytes += scratch->blocks[i].capacity;
    return bytes;
}

/* Most images need little, one needs much, and one very much. */
static void scratch_memory_is_kept_as_far_as_it_is_needed(void **context) {
    (void)context;
    enum { SMALL = 1 << 16, LARGE = 8 << 20, HUGE_BYTES = 64 << 20 };
    struct hr__scratch scratch = {0};
    void *huge = hr__scratch_take(&scratch, HUGE_BYTES), *small = hr__scratch_take(&scratch, SMALL);
    hr__scratch_give(&scratch, huge);
    hr__scratch_give(&scratch, small);
    hr__scratch_trim(&scratch, false);
    assert_int_equal(capacity_of(&scratch), SMALL);
    hr__scratch_give(&scratch, hr__scratch_take(&scratch, LARGE));
    hr__scratch_trim(&scratch, true);
    assert_true(capacity_of(&scratch) >= LARGE); /* it was needed since the last time */
    hr__scratch_give(&scratch, hr__scratch_take(&scratch, SMALL));
    hr__scratch_trim(&scratch, false);
    assert_true(capacity_of(&scratch) >= LARGE);
    hr__scratch_trim(&scratch, true);
    assert_true(capacity_of(&scratch) <= SMALL);
    hr__scratch_done(&scratch);
}

/* Bits that are all 1, which no Huffman code is, so libjpeg warns (in a small file; it does not in its fast
 * loop for large ones, which gives the same pixels). A byte 0xFF is followed by a 0. */
static void damaged_data_is_reported(void **context) {
    (void)context;
    struct jpeg_kind kind = {.width = 40, .height = 30, .components = 3, .across = 2, .down = 2};
    struct jpeg_file file = make_jpeg(&kind);
    hr_image_memory *memory;
    hr_image *image;
    unsigned char *target = malloc(40 * 30 * 3);
    for (int i = 0; i < 40; i++) file.data[file.bytes / 2 + (unsigned)i] = i % 2 ? 0 : 0xFF;
    assert_int_equal(hr_image_memory_new(&memory), 0);
    assert_int_equal(hr_image_open(file.data, file.bytes, &image), 0);
    struct hr_image_recipe recipe = {
        .image = image, .layout = HR_IMAGE_PACKED, .target = target, .target_bytes = 40 * 30 * 3};
    for (int round = 0; round < 2; round++) { /* the second one decodes the whole image, to keep it */
        assert_int_equal(hr_images_run(memory, &recipe, 1, 1), 1);
        assert_int_equal(recipe.result, -EBADMSG);
    }
    hr_image_close(image);
    hr_image_memory_free(memory);
    free(target);
    free(file.data);
}

static void wrapped_pixels_are_an_image(void **context) {
    (void)context;
    unsigned char grey[2][3] = {{1, 2, 3}, {4, 5, 6}};
    hr_image *image;
    struct hr_image_size size;
    struct hr_image_step turn = {.kind = HR_IMAGE_TRANSPOSE, .method = HR_IMAGE_ROTATE_90};
    assert_int_equal(hr_image_wrap(grey, 3, 2, 1, 3, &image), 0);
    unsigned char *turned = run_one(image, &turn, 1, HR_IMAGE_PACKED, &size);
    assert_int_equal(size.width, 2);
    assert_memory_equal(turned, "\3\6\2\5\1\4", 6);
    free(turned);
    hr_image_close(image);
    assert_int_equal(hr_image_wrap(grey, 3, 2, 2, 6, &image), -EINVAL);
    assert_int_equal(hr_image_wrap(grey, 3, 2, 4, 6, &image), -EINVAL);
    assert_int_equal(hr_image_wrap(NULL, 3, 2, 1, 3, &image), -EINVAL);
}

/* ---- the scan ---- */

static void expect_refused(const unsigned char *data, size_t bytes) {
    hr_image *image = NULL;
    unsigned char *copy = malloc(bytes ? bytes : 1); /* exactly as long */
    memcpy(copy, data, bytes);
    assert_int_equal(hr_image_open(copy, bytes, &image), bytes ? -ENOTSUP : -EINVAL);
    assert_null(image);
    free(copy);
}

static void truncated_files_are_refused(void **context) {
    (void)context;
    for (int is_progressive = 0; is_progressive < 2; is_progressive++) {
        struct jpeg_kind kind = {.width = 40, .height = 30, .components = 3, .across = 2, .down = 1};
        kind.is_progressive = is_progressive;
        struct jpeg_file file = make_jpeg(&kind);
        for (unsigned long bytes = 0; bytes < file.bytes; bytes++) expect_refused(file.data, bytes);
        free(file.data);
    }
}

/* The last scan of a progressive file is cut out. */
static void incomplete_progressive_files_are_refused(void **context) {
    (void)context;
    struct jpeg_kind kind = {.width = 40, .height = 30, .components = 3, .across = 2, .down = 1, .is_progressive = 1};
    struct jpeg_file file = make_jpeg(&kind);
    unsigned long last = 0;
    for (unsigned long i = 0; i + 1 < file.bytes; i++)
        if (file.data[i] == 0xFF && file.data[i + 1] == 0xDA) last = i;
    memcpy(file.data + last, "\xFF\xD9", 2);
    expect_refused(file.data, last + 2);
    free(file.data);
}

static void missing_restart_markers_are_refused(void **context) {
    (void)context;
    struct jpeg_kind kind = {.width = 90, .height = 30, .components = 3, .across = 1, .down = 1, .restart_interval = 4};
    struct jpeg_file file = make_jpeg(&kind);
    hr_image *image;
    assert_int_equal(hr_image_open(file.data, file.bytes, &image), 0);
    hr_image_close(image);
    for (unsigned long i = 0; i + 1 < file.bytes; i++) {
        if (file.data[i] != 0xFF || file.data[i + 1] != 0xD3) continue;
        file.data[i + 1] = 0xD4;
        expect_refused(file.data, file.bytes);
        file.data[i + 1] = 0;
        expect_refused(file.data, file.bytes);
        break;
    }
    free(file.data);
}

/* libjpeg fails for factors above 4, and others are not tested to be exact. */
static void unusual_samplings_are_refused(void **context) {
    (void)context;
    struct jpeg_kind kind = {.width = 40, .height = 30, .components = 3, .across = 2, .down = 1};
    struct jpeg_file file = make_jpeg(&kind);
    unsigned long at = 0;
    for (unsigned long i = 0; i + 1 < file.bytes && !at; i++)
        if (file.data[i] == 0xFF && file.data[i + 1] == 0xC0) at = i + 11; /* the factors of the first component */
    assert_int_equal(file.data[at], 0x21);
    static const unsigned char factors[] = {0x00, 0x01, 0x10, 0x13, 0x31, 0x44, 0x51, 0x61, 0x81, 0x18, 0xF1};
    for (size_t i = 0; i < sizeof factors; i++) {
        file.data[at] = factors[i];
        expect_refused(file.data, file.bytes);
    }
    free(file.data);
}

static void bytes_after_the_end_are_ignored(void **context) {
    (void)context;
    struct jpeg_kind kind = {.width = 9, .height = 9, .components = 1, .across = 1, .down = 1};
    struct jpeg_file file = make_jpeg(&kind);
    unsigned char *longer = malloc(file.bytes + 100);
    struct hr_image_info info;
    hr_image *image;
    memcpy(longer, file.data, file.bytes);
    memset(longer + file.bytes, 0xFF, 100);
    assert_int_equal(hr_image_open(longer, file.bytes + 100, &image), 0);
    hr_image_look(image, &info);
    assert_int_equal(info.data_bytes, file.bytes);
    hr_image_close(image);
    free(longer);
    free(file.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_those_of_the_whole),
        cmocka_unit_test(parts_of_rgb_files_are_those_of_the_whole),
        cmocka_unit_test(passes_with_avx2_are_those_in_c),
        cmocka_unit_test(results_do_not_depend_on_threads),
        cmocka_unit_test(a_bad_recipe_does_not_spoil_the_others),
        cmocka_unit_test(a_watch_sees_the_image_at_which_each_thread_is),
        cmocka_unit_test(scratch_memory_is_kept_as_far_as_it_is_needed),
        cmocka_unit_test(damaged_data_is_reported),
        cmocka_unit_test(wrapped_pixels_are_an_image),
        cmocka_unit_test(truncated_files_are_refused),
        cmocka_unit_test(incomplete_progressive_files_are_refused),
        cmocka_unit_test(missing_restart_markers_are_refused),
        cmocka_unit_test(unusual_samplings_are_refused),
        cmocka_unit_test(bytes_after_the_end_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
