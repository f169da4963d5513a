/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/build.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"

/* Makes the keys of a dict, or the items of a set, findable (hr_builder_index). How they are found is in key.c. */

static unsigned slot_bits_for(uint64_t count) {
    unsigned bits = 4;
    while ((UINT64_C(1) << bits) < count + count / 2) bits++;
    return bits;
}

static void store_slot(hr_builder *builder, const struct hr_item *dict, uint64_t number, uint64_t slot) {
    uint64_t offset = (uint64_t)(dict->keyed.slots - builder->base) + number * dict->shape;
    memcpy(builder->base + offset, &slot, dict->shape);
}

/* The offset of the word for the slots in a dict's node. */
static uint64_t slots_word_at(hr_value dict) {
    return hr__word_offset(dict) + offsetof(struct hr__dict_node, slots);
}

/* Makes empty slots, wide enough for all places up to the end of the frozen data. */
static int make_slots(hr_builder *builder, hr_value dict, const struct hr_item *item) {
    uint64_t most = item->kind == HR_KIND_DICT ? (builder->used - hr__word_offset(dict)) / 8 : item->count;
    unsigned slot_bytes = most < (1 << SLOT4_INDEX_BITS) - 1 ? 4 : 8, slot_bits = slot_bits_for(item->count);
    uint64_t offset = 0;
    int r = hr__builder_room(builder, (uint64_t)slot_bytes << slot_bits, 8, &offset);
    if (r < 0) return r;
    hr_value slots = hr__word(false, slot_bytes << 8 | slot_bits, offset);
    memcpy(builder->base + slots_word_at(dict), &slots, sizeof slots);
    return 0;
}

/* Removes the slots of a dict that cannot be indexed. They are the last allocation of the builder. */
static void drop_slots(hr_builder *builder, hr_value dict, const struct hr_item *item) {
    memset(builder->base + slots_word_at(dict), 0, sizeof(hr_value));
    if (!item->keyed.slots) return;
    uint64_t offset = (uint64_t)(item->keyed.slots - builder->base);
    memset(builder->base + offset, 0, builder->used - offset);
    builder->used = offset;
}

/* Enters item `index`. Returns 1; 0: it cannot be looked up, or occurs twice. */
static int enter(hr_builder *builder, const struct hr__contents *contents, const struct hr_item *dict, uint64_t index) {
    struct hr__key_room room;
    struct hr_item item;
    struct hr_key key;
    room.used = 0;
    uint64_t place, found;
    int r = hr__contents_place(contents, dict, index, &place);
    if (r == 0) r = hr__contents_at(contents, dict, index, &item);
    if (r == 0) r = hr__key_of(contents, &item, &room, &key);
    if (r <= 0) return r;
    uint64_t hash = hr__key_hash(&key, builder->seed);
    r = hr__key_find(contents, dict, &key, hash, &found);
    if (r < 0) return r;
    if (!dict->keyed.slots) return found == place;
    if (r == 1) return 0;
    store_slot(builder, dict, found, hr__slot_of(dict->shape, hash, place - hr__first_place(contents, dict)));
    return 1;
}

static int read_keyed(const hr_builder *builder, hr_value dict, struct hr__contents *ret_contents,
                      struct hr_item *ret_item) {
    *ret_contents = hr__builder_contents(builder);
    int r = hr__contents_read(ret_contents, dict, ret_item);
    if (r < 0) return hr__fail_more(-EINVAL, "frozen data: that is not a dict of this builder");
    if (ret_item->kind != HR_KIND_DICT && ret_item->kind != HR_KIND_SET && ret_item->kind != HR_KIND_FROZEN_SET)
        return hr__fail(-EINVAL, "frozen data: a value of kind %d has no keys", ret_item->kind);
    return 0;
}

int hr_builder_index(hr_builder *builder, hr_value dict) {
    struct hr__contents contents;
    struct hr_item item;
    int r = read_keyed(builder, dict, &contents, &item);
    if (r == 0 && item.count > SCAN_MAX) {
        r = make_slots(builder, dict, &item);
        if (r == 0) r = read_keyed(builder, dict, &contents, &item); /* the mapping may have moved */
    }
    if (r < 0) return r;
    r = 1;
    for (uint64_t i = 0; r == 1 && i < item.count; i++) r = enter(builder, &contents, &item, i);
    if (r == 1) builder->base[slots_word_at(dict)] = true; /* the word's tag */
    if (r == 0) drop_slots(builder, dict, &item);
    return r;
}
