/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/order_scene.h"

#include "base/hash.h"

/* Mixtures of sources. tests/python/sampling/test_mixture.py compares them with a slow implementation. */

enum { MOST = 1 << 16, MOST_SOURCES = 20 };

static int64_t indices[MOST];
static struct hr_order order;

static struct hr_mixture_settings settings_of(int64_t length) {
    return (struct hr_mixture_settings){HR_MIXTURE_LENGTH, length, 3, 0};
}

static hr_mixture *mixture_of(const struct hr_mixture_source *sources, uint32_t count,
                              const struct hr_mixture_settings *settings) {
    hr_mixture *mixture = NULL;
    assert_int_equal(hr_mixture_new(sources, count, settings, &mixture), 0);
    return mixture;
}

/* Writes the whole epoch to `indices`, and returns its length. */
static int64_t fill(const hr_mixture *mixture) {
    hr_order_mixture(mixture, &order);
    assert_true(order.n <= MOST);
    assert_int_equal(hr_order_fill(&order, 0, 1, order.n, indices), 0);
    return order.n;
}

static uint32_t source_of(const struct hr_mixture_source *sources, uint32_t count, int64_t index) {
    int64_t total = 0;
    for (uint32_t i = 0; i < count; i++) total += sources[i].size;
    index %= total;
    for (uint32_t i = 0; i < count; index -= sources[i++].size)
        if (index < sources[i].size) return i;
    fail_msg("no source has the index");
    return 0;
}

/* Asserts Tijdeman's bound at the ends of runs: |counts - n * weight / sum| <= 1 - 1 / (2k - 2). */
static void assert_shares(const struct hr_mixture_source *sources, uint32_t count) {
    struct hr_mixture_settings settings = settings_of(HR_MIXTURE_RUN * INT64_C(200));
    hr_mixture *mixture = mixture_of(sources, count, &settings);
    int64_t n = fill(mixture), counts[MOST_SOURCES] = {0}, sum = 0, scale = count > 1 ? 2 * (int64_t)count - 2 : 1;
    for (uint32_t i = 0; i < count; i++) sum += (int64_t)sources[i].weight;
    for (int64_t p = 0; p < n; p++) {
        counts[source_of(sources, count, indices[p])]++;
        for (uint32_t i = 0; (p + 1) % HR_MIXTURE_RUN == 0 && i < count; i++)
            assert_true(llabs(counts[i] * sum - (p + 1) * (int64_t)sources[i].weight) * scale <= (scale - 1) * sum);
    }
    hr_mixture_free(mixture);
}

static void shares_are_exact_at_the_ends_of_runs(void **state) {
    (void)state;
    static const uint64_t ratios[][2] = {{1, 1}, {2, 1}, {7, 3}, {1, 65535}, {123, 4567}};
    for (size_t i = 0; i < sizeof ratios / sizeof *ratios; i++) {
        struct hr_mixture_source two[] = {{"a", 900, ratios[i][0]}, {"b", 70, ratios[i][1]}};
        assert_shares(two, 2);
        assert_shares(two, 1);
    }
    static const char *names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j",
                                  "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"};
    struct hr_mixture_source many[MOST_SOURCES];
    for (uint32_t i = 0; i < MOST_SOURCES; i++)
        many[i] = (struct hr_mixture_source){names[i], 100 + i, 1 + UINT64_C(7) * i * i % 31};
    for (uint32_t count = 3; count <= MOST_SOURCES; count++) assert_shares(many, count);
}

static void no_index_comes_twice_in_an_epoch(void **state) {
    (void)state;
    static unsigned char seen[1 << 18];
    const struct hr_mixture_source sources[] = {{"a", 40, 5}, {"b", 5000, 2}, {"c", 1, 1}, {"d", 33, 3}};
    for (uint64_t epoch = 0; epoch < 5; epoch++) {
        struct hr_mixture_settings settings = {HR_MIXTURE_LENGTH, 333, 8, epoch};
        hr_mixture *mixture = mixture_of(sources, 4, &settings);
        memset(seen, 0, sizeof seen);
        fill(mixture);
        for (int64_t p = 0; p < 333; p++) {
            assert_true(indices[p] >= 0 && indices[p] < (int64_t)sizeof seen);
            assert_int_equal(seen[indices[p]]++, 0);
        }
        hr_mixture_free(mixture);
    }
}

/* The samples of a source, through several epochs: each pass has each of them before the next pass begins. */
static void a_pass_ends_before_the_next_begins(void **state) {
    (void)state;
    static unsigned char seen[4][600];
    const struct hr_mixture_source sources[] = {{"a", 50, 7}, {"b", 600, 8}, {"c", 1, 1}, {"d", 17, 3}};
    const int64_t firsts[] = {0, 50, 650, 651, 668};
    int64_t counts[4] = {0};
    memset(seen, 0, sizeof seen);
    for (uint64_t epoch = 0; epoch < 6; epoch++) {
        struct hr_mixture_settings settings = {HR_MIXTURE_LENGTH, 777, 3, epoch};
        hr_mixture *mixture = mixture_of(sources, 4, &settings);
        fill(mixture);
        for (int64_t p = 0; p < 777; p++) {
            int64_t sample = indices[p] % 668;
            int source = sample < firsts[1] ? 0 : sample < firsts[2] ? 1 : sample < firsts[3] ? 2 : 3;
            assert_int_equal(seen[source][sample - firsts[source]]++, counts[source]++ / sources[source].size);
        }
        hr_mixture_free(mixture);
    }
}

static void positions_are_read_one_by_one_and_in_strides(void **state) {
    (void)state;
    static const int64_t steps[] = {0, 1, -1, 2, 7, 64, -65, 4096, INT64_MAX, INT64_MIN};
    const struct hr_mixture_source sources[] = {{"a", 4097, 7}, {"b", 60, 3}};
    struct hr_mixture_settings settings = settings_of(1000);
    hr_mixture *mixture = mixture_of(sources, 2, &settings);
    int64_t n = fill(mixture), found[100];
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        for (int64_t first = 0; first < n; first += 331) {
            assert_int_equal(hr_order_fill(&order, first, steps[i], 100, found), 0);
            int64_t step = (steps[i] % n + n) % n;
            for (int64_t k = 0, p = first; k < 100; k++, p = (p + step) % n) {
                assert_int_equal(found[k], indices[p]);
                assert_int_equal(hr_order_at(&order, p), indices[p]);
            }
        }
    for (int64_t p = 0; p < n; p += 99) assert_int_equal(hr_order_find(&order, indices[p]), p);
    assert_fails((int)hr_order_find(&order, -1), "index -1 is not in an order of 1000 samples");
    assert_fails((int)hr_order_at(&order, n), "position 1000 is not in an order");
    hr_mixture_free(mixture);
}

static void mixtures_are_the_same_on_every_machine(void **state) {
    (void)state;
    const struct hr_mixture_source sources[] = {{"a", 10000, 7}, {"b", 10001, 3}, {"c", 50, 1}, {"d", 3, 1}};
    struct hr_mixture_settings settings = {HR_MIXTURE_ALL, 0, (uint64_t)-3, 2};
    hr_mixture *mixture = mixture_of(sources, 4, &settings);
    int64_t n = fill(mixture);
    uint64_t hash = hr__hash(indices, (uint64_t)n * sizeof *indices, 0);
    if (hash != UINT64_C(0xBB40297774B63C28))
        fail_msg("%lld indices have 0x%016llx", (long long)n, (unsigned long long)hash);
    hr_mixture_free(mixture);
}

static void an_epoch_ends_after_the_first_or_the_last_source(void **state) {
    (void)state;
    const struct hr_mixture_source sources[] = {{"a", 10, 1}, {"b", 1000, 4}};
    struct hr_mixture_settings settings = {HR_MIXTURE_FIRST, 0, 0, 0};
    struct hr_mixture_epoch epoch;
    struct hr_mixture_part parts[2];
    hr_mixture *mixture = mixture_of(sources, 2, &settings);
    hr_mixture_look(mixture, &epoch, parts);
    assert_int_equal(parts[0].count, 10);
    assert_true(parts[1].count < 41 && epoch.length == parts[0].count + parts[1].count);
    assert_int_equal(epoch.period, 5);
    assert_int_equal(epoch.source_count, 2);
    hr_mixture_free(mixture);
    settings.until = HR_MIXTURE_ALL;
    settings.epoch = 3;
    mixture = mixture_of(sources, 2, &settings);
    hr_mixture_look(mixture, &epoch, parts);
    assert_true(parts[1].before >= 2999 && parts[1].before <= 3001);
    assert_true(llabs(parts[1].count - 1000) <= 1 && epoch.total == 1010);
    hr_mixture_look(mixture, &epoch, NULL);
    hr_mixture_free(mixture);
    assert_null(hr_mixture_free(NULL));
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    hr_mixture *mixture = NULL;
    struct hr_mixture_settings settings = settings_of(10), endless = settings_of(0), late = settings_of(INT64_MAX);
    struct hr_mixture_settings unknown = {(enum hr_mixture_until)7, 0, 0, 0};
    struct hr_mixture_source one[] = {{"a", 5, 1}}, two[] = {{"a", 5, 1}, {"a", 5, 1}};
    assert_fails(hr_mixture_new(one, 0, &settings, &mixture), "the mixture has 0 sources; give 1 to 4096");
    assert_fails(hr_mixture_new(one, 4097, &settings, &mixture), "the mixture has 4097 sources");
    assert_fails(hr_mixture_new(two, 2, &settings, &mixture), "two sources of the mixture have the name a");
    assert_fails(hr_mixture_new(one, 1, &endless, &mixture), "the length of the mixture is 0; give 1 or more");
    assert_fails(hr_mixture_new(one, 1, &unknown, &mixture), "until is 7; give a value of enum hr_mixture_until");
    late.epoch = 1;
    assert_fails(hr_mixture_new(one, 1, &late, &mixture), "the positions of all epochs of the mixture do not fit");
    late.epoch = UINT64_MAX;
    assert_fails(hr_mixture_new(one, 1, &late, &mixture), "the positions of all epochs of the mixture do not fit");
    struct hr_mixture_source bad[] = {{NULL, 5, 1}, {"b", 0, 1}, {"c", -1, 1}, {"d", 5, 0}};
    static const char *texts[] = {"source 0 of the mixture has no name", "source b has 0 samples", "source c has -1 s",
                                  "the weight of source d is 0"};
    for (int i = 0; i < 4; i++) assert_fails(hr_mixture_new(&bad[i], 1, &settings, &mixture), texts[i]);
    assert_null(mixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_exact_at_the_ends_of_runs),
        cmocka_unit_test(no_index_comes_twice_in_an_epoch),
        cmocka_unit_test(a_pass_ends_before_the_next_begins),
        cmocka_unit_test(positions_are_read_one_by_one_and_in_strides),
        cmocka_unit_test(mixtures_are_the_same_on_every_machine),
        cmocka_unit_test(an_epoch_ends_after_the_first_or_the_last_source),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
