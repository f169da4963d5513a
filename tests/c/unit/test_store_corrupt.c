/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store_touch.h"

struct image {
    unsigned char *bytes;
    uint64_t count;
};

static int make_image(void **state) {
    static struct image image;
    hr_builder *builder;
    hr_store *store;
    struct hr_store_info info;
    SURE(hr_builder_open(NULL, &builder));
    SURE(hr_builder_finish(builder, build_each_kind(builder), &store));
    hr_store_look(store, &info);
    image.count = info.bytes;
    if (posix_memalign((void **)&image.bytes, 64, image.count)) return -1;
    memcpy(image.bytes, info.image, image.count);
    hr_store_close(store);
    *state = &image;
    return 0;
}

static int free_image(void **state) {
    free(((struct image *)*state)->bytes);
    return 0;
}

/* Reads a copy that is exactly as long, so that a sanitizer sees each byte read outside. */
static int touch_copy(const struct image *image, uint64_t bytes) {
    void *copy = NULL;
    if (posix_memalign(&copy, 64, bytes ? bytes : 1)) abort();
    memcpy(copy, image->bytes, bytes);
    int r = touch_image(copy, bytes);
    free(copy);
    return r;
}

static void a_complete_image_is_read(void **state) {
    assert_int_equal(touch_copy(*state, ((struct image *)*state)->count), 1);
}

static void every_flip_is_refused_or_an_error_or_another_value(void **state) {
    struct image *image = *state;
    uint64_t refused = 0;
    for (uint64_t i = 0; i < image->count; i++) {
        static const unsigned char flips[] = {0x01, 0x80, 0xFF};
        for (int flip = 0; flip < 3; flip++) {
            image->bytes[i] ^= flips[flip];
            refused += touch_copy(image, image->count) < 0;
            image->bytes[i] ^= flips[flip];
        }
    }
    assert_true(refused >= 3 * 256); /* each byte of the header */
}

static void every_flip_is_seen_by_verify(void **state) {
    struct image *image = *state;
    for (uint64_t i = 0; i < image->count; i++) {
        hr_store *store = NULL;
        image->bytes[i] ^= 0x10;
        assert_true(hr_store_open_memory(image->bytes, image->count, HR_STORE_VERIFY, &store) < 0);
        image->bytes[i] ^= 0x10;
    }
}

static void every_shorter_image_is_refused(void **state) {
    struct image *image = *state;
    for (uint64_t bytes = 0; bytes < image->count; bytes++) assert_true(touch_copy(image, bytes) < 0);
}

static void a_word_that_points_anywhere_is_survived(void **state) {
    struct image *image = *state;
    for (uint64_t i = 256; i + 8 <= image->count; i += 8)
        for (uint64_t tag = 0; tag < 64; tag++) {
            unsigned char old[8];
            uint64_t word = (image->count / 8 - 1) << 24 | UINT64_C(0xFFFF00) | tag;
            memcpy(old, image->bytes + i, 8);
            memcpy(image->bytes + i, &word, 8);
            if (tag % 8 == i / 8 % 8) touch_copy(image, image->count);
            memcpy(image->bytes + i, old, 8);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_complete_image_is_read),
        cmocka_unit_test(every_flip_is_refused_or_an_error_or_another_value),
        cmocka_unit_test(every_flip_is_seen_by_verify),
        cmocka_unit_test(every_shorter_image_is_refused),
        cmocka_unit_test(a_word_that_points_anywhere_is_survived),
    };
    return cmocka_run_group_tests_name("store_corrupt", tests, make_image, free_image);
}
