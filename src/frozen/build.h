/* SPDX-License-Identifier: Apache-2.0 */
/* State and functions that the files that build frozen data share. */
#ifndef HR_FROZEN_BUILD_H
#define HR_FROZEN_BUILD_H

#include "frozen/format.h"

/*
 * Frozen data that is being built: a file (or memory) that grows in steps and is mapped as a whole. The next node goes
 * to `used`; memory is committed up to `room`. The mapping moves when it grows, so pointers into it are valid until the
 * next allocation only.
 */
enum { LATE_TEXTS = 1 << 14 };

struct hr_builder {
    unsigned char *base;
    uint64_t used, room, mapped_bytes;
    uint64_t forgotten; /* of a file: its pages up to here were removed from this process */
    uint64_t seed;
    int fd;
    char *path, *temporary; /* path NULL: in memory; temporary NULL: the file has no name yet */
    uint32_t pid;           /* of the process that opened it: a forked child must not remove its file */
    uint64_t *shapes;       /* the offsets of the nodes of the shapes */
    uint32_t shape_count, shape_room;
    uint32_t *shape_slots; /* 1 + the number of a shape, by the hash of its node */
    uint32_t shape_slot_count;
    hr_value late[LATE_TEXTS]; /* texts that were put recently, by their hash */
};

/* Allocates `bytes` bytes (rounded up to 8) that read as zeros, at a multiple of `align`. */
int hr__builder_room(hr_builder *builder, uint64_t bytes, uint64_t align, uint64_t *ret_offset);

/* Checks that a value is a text of this builder (-EINVAL). `what`: for the message. */
int hr__builder_check_text(const hr_builder *builder, hr_value word, const char *what);

/* Returns the part that has been written, so that it can be read like finished frozen data. */
struct hr__contents hr__builder_contents(const hr_builder *builder);

/* build_containers.c */

/* Fails with -EFBIG. */
int hr__builder_too_large(uint64_t count);
/* The tag of a packed list or tuple. -EINVAL: `kind` is neither. */
int hr__builder_list_tag(enum hr_kind kind, enum hr__item_layout layout, unsigned *ret_tag);
/* Makes room for `count` items of `each` bytes. If the value's word has no room for the count, it is stored in front of
 * the items. */
int hr__builder_counted(hr_builder *builder, unsigned tag, uint64_t count, unsigned each, hr_value *ret_value,
                        unsigned char **ret_items);
static inline void hr__fill_with_none(unsigned char *words, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) memcpy(words + 8 * i, &(hr_value){TAG_NONE}, sizeof(hr_value));
}

#endif
