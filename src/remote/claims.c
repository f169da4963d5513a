/* SPDX-License-Identifier: Apache-2.0 */
/* Which readers have asked for an object: it is in use until all of them have gone. */
#include "base/alloc.h"
#include "base/base.h"
#include "fetcher.h"

enum { WORD_BITS = 64 };

static uint64_t bit_of(uint32_t number) {
    return UINT64_C(1) << number % WORD_BITS;
}

static bool set_bit(struct hr__bits *bits, uint32_t number) {
    uint32_t count = number / WORD_BITS + 1;
    if (count > bits->count) {
        uint64_t *words = hr__realloc(bits->words, count * sizeof *words);
        if (!words) return false;
        for (uint32_t i = bits->count; i < count; i++) words[i] = 0;
        *bits = (struct hr__bits){words, count};
    }
    bits->words[number / WORD_BITS] |= bit_of(number);
    return true;
}

static void clear_bit(struct hr__bits *bits, uint32_t number) {
    if (number / WORD_BITS < bits->count) bits->words[number / WORD_BITS] &= ~bit_of(number);
}

void hr__bits_free(struct hr__bits *bits) {
    hr__free(bits->words);
    *bits = (struct hr__bits){NULL, 0};
}

bool hr__claims_enter(hr_fetcher *fetcher, struct hr__reader *reader) {
    const struct hr__bits *numbers = &fetcher->reader_numbers;
    uint32_t number = 0;
    while (number / WORD_BITS < numbers->count && numbers->words[number / WORD_BITS] & bit_of(number)) number++;
    if (!set_bit(&fetcher->reader_numbers, number)) return false;
    reader->number = number;
    return true;
}

bool hr__claim(struct hr__object *object, struct hr__reader *reader) {
    if (!set_bit(&object->users, reader->number)) return false;
    reader->has_claims = true;
    return true;
}

bool hr__is_claimed(const struct hr__object *object) {
    for (uint32_t i = 0; i < object->users.count; i++)
        if (object->users.words[i]) return true;
    return false;
}

void hr__claims_leave(hr_fetcher *fetcher, const struct hr__reader *reader) {
    for (struct hr__object *object = reader->has_claims ? fetcher->oldest_object : NULL; object; object = object->newer)
        clear_bit(&object->users, reader->number);
    clear_bit(&fetcher->reader_numbers, reader->number);
}
