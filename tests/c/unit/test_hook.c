/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/hook.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { LOCAL_HEADER_BYTES = 30, END_BYTES = 22 };

static const unsigned char *find(const char *text) {
    size_t bytes = strlen(text);
    for (size_t at = 0; at + bytes <= hr__hook_zip_bytes; at++)
        if (memcmp(hr__hook_zip + at, text, bytes) == 0) return hr__hook_zip + at;
    return NULL;
}

static void the_hook_is_a_zip_that_begins_with_sitecustomize(void **state) {
    (void)state;
    assert_true(hr__hook_zip_bytes > LOCAL_HEADER_BYTES + END_BYTES);
    assert_memory_equal(hr__hook_zip, "PK\3\4", 4);
    assert_memory_equal(hr__hook_zip + LOCAL_HEADER_BYTES, "sitecustomize.py", 16);
    assert_memory_equal(hr__hook_zip + hr__hook_zip_bytes - END_BYTES, "PK\5\6", 4);
}

static void the_hook_can_be_read_without_zlib(void **state) {
    (void)state;
    const unsigned char stored[2] = {0, 0};
    assert_memory_equal(hr__hook_zip + 8, stored, 2); /* the method of compression */
    assert_non_null(find("class _Page:"));
    assert_non_null(find("def is_lost_peer("));
}

static void the_hook_has_no_date(void **state) {
    (void)state;
    const unsigned char midnight_of_1980[4] = {0, 0, 0x21, 0};
    assert_memory_equal(hr__hook_zip + 10, midnight_of_1980, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hook_is_a_zip_that_begins_with_sitecustomize),
        cmocka_unit_test(the_hook_can_be_read_without_zlib),
        cmocka_unit_test(the_hook_has_no_date),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
