/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/order_scene.h"

#include "../support/sanitized.h"

/* Stream orders are bijections for n up to 2^17: for a sample of n, and with HEADRACE_LARGE=1 for each n, which takes
 * minutes. */

enum { MOST = 1 << 17, SAMPLED = IS_SANITIZED ? 997 : 97 };

static int64_t indices[MOST];
static unsigned char seen[MOST];

static void every_size_gives_a_bijection(void **state) {
    (void)state;
    const char *large = getenv("HEADRACE_LARGE");
    int64_t step = large && strcmp(large, "1") == 0 ? 1 : SAMPLED;
    for (int64_t n = 0; n <= MOST; n += step) assert_bijection(n, (uint64_t)n, (uint64_t)n / 3, indices, seen);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_size_gives_a_bijection)};
    return cmocka_run_group_tests_name("streams", tests, NULL, NULL);
}
