/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cache/files.h"

/* Finds the scenes that lack one of the keys that a training will ask for, before anything is copied. */

enum { KEYS_MAX = 64, TEXT_MAX = 4096 };

struct keys {
    char text[TEXT_MAX];
    const char *names[KEYS_MAX];
    uint32_t count;
};

/* A scene, and the set of keys that it has, as bits. */
struct scene {
    char *name;
    uint64_t keys;
};

static int split_keys(const char *text, struct keys *ret_keys) {
    char *rest = NULL;
    size_t length = strlen(text);
    if (length >= sizeof ret_keys->text) return hr__fail(-EINVAL, "cache: the list of keys is too long");
    memcpy(ret_keys->text, text, length + 1);
    ret_keys->count = 0;
    for (char *key = strtok_r(ret_keys->text, ", ", &rest); key; key = strtok_r(NULL, ", ", &rest)) {
        if (ret_keys->count == KEYS_MAX) return hr__fail(-EINVAL, "cache: more than %d keys", KEYS_MAX);
        ret_keys->names[ret_keys->count++] = key;
    }
    return ret_keys->count ? 0 : hr__fail(-EINVAL, "cache: no keys are given; give names with commas between them");
}

/* Finds the longest key that a stem ends with, after an underscore. Returns the length of what comes before, and sets
 * the key's bit; the whole length if it ends with no key. */
static size_t split_stem(const struct keys *keys, const char *stem, uint64_t *ret_bit) {
    size_t length = strlen(stem), longest = 0;
    *ret_bit = 0;
    for (uint32_t i = 0; i < keys->count; i++) {
        size_t own = strlen(keys->names[i]);
        if (own <= longest || own + 1 >= length) continue;
        if (stem[length - own - 1] != '_' || strcmp(stem + length - own, keys->names[i]) != 0) continue;
        longest = own;
        *ret_bit = UINT64_C(1) << i;
    }
    return longest ? length - longest - 1 : length;
}

static uint64_t keys_of_members(const struct keys *keys, const struct hr__plan_file *file) {
    uint64_t found = 0;
    for (size_t i = 0; i < file->members.count; i++)
        for (uint32_t k = 0; k < keys->count; k++)
            if (strcmp(file->members.members[i].name, keys->names[k]) == 0) found |= UINT64_C(1) << k;
    return found;
}

static int name_scene(const struct keys *keys, const struct hr__plan_file *file, struct scene *ret_scene) {
    uint64_t found = 0;
    size_t length = file->is_npz ? strlen(file->stem) : split_stem(keys, file->stem, &found);
    char *name = hr__realloc(NULL, length + 1);
    if (!name) return -ENOMEM;
    memcpy(name, file->stem, length);
    name[length] = '\0';
    *ret_scene = (struct scene){name, file->is_npz ? keys_of_members(keys, file) : found};
    return 0;
}

static int compare_scenes(const void *one, const void *other) {
    return strcmp(((const struct scene *)one)->name, ((const struct scene *)other)->name);
}

/* Writes the names of the keys that are not in `found`, with commas; they fit, because all names were one such list. */
static void join_missing(const struct keys *keys, uint64_t found, char *ret_text, size_t room) {
    size_t used = 0;
    *ret_text = '\0';
    for (uint32_t i = 0; i < keys->count && used < room; i++)
        if (!(found >> i & 1))
            used += (size_t)snprintf(ret_text + used, room - used, "%s%s", used ? "," : "", keys->names[i]);
}

static int visit_scenes(const struct keys *keys, const struct scene *scenes, size_t count,
                        void (*visit)(void *context, const char *scene, const char *missing), void *context) {
    char missing[TEXT_MAX + KEYS_MAX];
    int lacking = 0;
    for (size_t i = 0; i < count;) {
        uint64_t found = 0;
        size_t first = i;
        for (; i < count && strcmp(scenes[i].name, scenes[first].name) == 0; i++) found |= scenes[i].keys;
        join_missing(keys, found, missing, sizeof missing);
        if (!*missing) continue;
        visit(context, scenes[first].name, missing);
        lacking++;
    }
    return lacking;
}

int hr_files_check_keys(const hr_files_plan *plan, const char *text,
                        void (*visit)(void *context, const char *scene, const char *missing), void *context) {
    struct keys keys;
    size_t count = 0;
    int r = split_keys(text, &keys);
    if (r < 0) return r;
    struct scene *scenes = hr__realloc(NULL, (plan->file_count + 1) * sizeof *scenes);
    if (!scenes) return hr__fail(-ENOMEM, "cache: no memory to check keys");
    for (; r == 0 && count < plan->file_count; count += r == 0)
        r = name_scene(&keys, &plan->files[count], &scenes[count]);
    if (r == 0) qsort(scenes, count, sizeof *scenes, compare_scenes);
    if (r == 0) r = visit_scenes(&keys, scenes, count, visit, context);
    for (size_t i = 0; i < count; i++) hr__free(scenes[i].name);
    hr__free(scenes);
    return r;
}
