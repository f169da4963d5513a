/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "frozen_touch.h"

struct contents {
    unsigned char *bytes;
    uint64_t count;
};

static int make_contents(void **state) {
    static struct contents contents;
    hr_builder *builder;
    hr_frozen *frozen;
    struct hr_frozen_info info;
    SURE(hr_builder_open(NULL, &builder));
    SURE(hr_builder_finish(builder, build_each_kind(builder), &frozen));
    hr_frozen_look(frozen, &info);
    contents.count = info.bytes;
    if (posix_memalign((void **)&contents.bytes, 64, contents.count)) return -1;
    memcpy(contents.bytes, info.contents, contents.count);
    hr_frozen_close(frozen);
    *state = &contents;
    return 0;
}

static int free_contents(void **state) {
    free(((struct contents *)*state)->bytes);
    return 0;
}

/* Reads a copy that is exactly as long, so that a sanitizer sees each byte read outside. */
static int touch_copy(const struct contents *contents, uint64_t bytes) {
    void *copy = NULL;
    if (posix_memalign(&copy, 64, bytes ? bytes : 1)) abort();
    memcpy(copy, contents->bytes, bytes);
    int r = touch_contents(copy, bytes);
    free(copy);
    return r;
}

static void a_complete_image_is_read(void **state) {
    assert_int_equal(touch_copy(*state, ((struct contents *)*state)->count), 1);
}

static void every_flip_is_refused_or_an_error_or_another_value(void **state) {
    struct contents *contents = *state;
    uint64_t refused = 0;
    for (uint64_t i = 0; i < contents->count; i++) {
        static const unsigned char flips[] = {0x01, 0x80, 0xFF};
        for (int flip = 0; flip < 3; flip++) {
            contents->bytes[i] ^= flips[flip];
            refused += touch_copy(contents, contents->count) < 0;
            contents->bytes[i] ^= flips[flip];
        }
    }
    assert_true(refused >= 3 * 256); /* each byte of the header */
}

static void every_flip_is_seen_by_verify(void **state) {
    struct contents *contents = *state;
    for (uint64_t i = 0; i < contents->count; i++) {
        hr_frozen *frozen = NULL;
        contents->bytes[i] ^= 0x10;
        assert_true(hr_frozen_open_memory(contents->bytes, contents->count, HR_FROZEN_VERIFY, &frozen) < 0);
        contents->bytes[i] ^= 0x10;
    }
}

static void every_shorter_image_is_refused(void **state) {
    struct contents *contents = *state;
    for (uint64_t bytes = 0; bytes < contents->count; bytes++) assert_true(touch_copy(contents, bytes) < 0);
}

static void a_word_that_points_anywhere_is_survived(void **state) {
    struct contents *contents = *state;
    for (uint64_t i = 256; i + 8 <= contents->count; i += 8)
        for (uint64_t tag = 0; tag < 64; tag++) {
            unsigned char old[8];
            uint64_t word = (contents->count / 8 - 1) << 24 | UINT64_C(0xFFFF00) | tag;
            memcpy(old, contents->bytes + i, 8);
            memcpy(contents->bytes + i, &word, 8);
            if (tag % 8 == i / 8 % 8) touch_copy(contents, contents->count);
            memcpy(contents->bytes + i, old, 8);
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
    return cmocka_run_group_tests_name("store_corrupt", tests, make_contents, free_contents);
}
