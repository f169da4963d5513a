/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Writes records into a file of frozen data, which any number of processes can map, reads them by field and looks them
 * up by key.
 *
 *     cc records.c $(pkg-config --cflags --libs --static headrace) -o records && ./records
 */

#include <headrace/headrace.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDS = 1000 };

static int check(int r, const char *what) {
    if (r >= 0) return r;
    fprintf(stderr, "records: %s: %s\n", what, *hr_error_message() ? hr_error_message() : hr_error_text(r));
    exit(1);
}

static hr_value text(hr_builder *builder, const char *characters) {
    hr_value value;
    check(hr_builder_bytes_of(builder, HR_KIND_TEXT, characters, strlen(characters), &value), "a text");
    return value;
}

/* {"name": "image-7", "size": 49} */
static hr_value record(hr_builder *builder, uint32_t shape, int number) {
    char name[32];
    hr_value row, size;
    snprintf(name, sizeof name, "image-%d", number);
    check(hr_builder_record(builder, shape, &row), "a record");
    check(hr_builder_int(builder, (int64_t)number * number, &size), "a size");
    check(hr_builder_put(builder, row, 0, text(builder, name)), "a name");
    check(hr_builder_put(builder, row, 1, size), "a size");
    return row;
}

/* {"image-0": record, "image-1": record, ...} */
static hr_frozen *write_contents(const char *path) {
    hr_builder *builder;
    hr_frozen *frozen;
    hr_value dict;
    uint32_t shape;
    check(hr_builder_open(path, &builder), "the builder");
    hr_value names[] = {text(builder, "name"), text(builder, "size")};
    check(hr_builder_shape(builder, HR_SHAPE_DICT, hr_value_none(), names, 2, &shape), "the shape");
    check(hr_builder_container(builder, HR_KIND_DICT, RECORDS, &dict), "the dict");
    for (int i = 0; i < RECORDS; i++) {
        char key[32];
        snprintf(key, sizeof key, "image-%d", i);
        check(hr_builder_put(builder, dict, (uint64_t)i, text(builder, key)), "a key");
        check(hr_builder_put_entry(builder, dict, (uint64_t)i, record(builder, shape, i)), "an entry");
    }
    check(hr_builder_index(builder, dict), "the index");
    check(hr_builder_finish(builder, dict, &frozen), "the frozen data");
    return frozen;
}

static int64_t size_of(const hr_frozen *frozen, const char *name) {
    struct hr_item dict, row, size;
    uint64_t place;
    struct hr_key key = {.kind = HR_KIND_TEXT, .bytes = name, .count = strlen(name)};
    check(hr_frozen_read(frozen, hr_frozen_root(frozen), &dict), "the root");
    if (!check(hr_frozen_find(frozen, &dict, &key, &place), "the key")) return -1;
    check(hr_frozen_value(frozen, &dict, place, &row), "the record");
    check(hr_frozen_at(frozen, &row, 1, &size), "the field");
    return size.integer;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "example.frozen";
    hr_frozen_close(write_contents(path));

    hr_frozen *frozen;
    check(hr_frozen_open(path, HR_FROZEN_VERIFY, &frozen), "opening");
    int64_t size = size_of(frozen, "image-31"), none = size_of(frozen, "image-x");
    printf("image-31 has size %lld; image-x is %s\n", (long long)size, none < 0 ? "not there" : "there");
    hr_frozen_close(frozen);
    remove(path);
    return size == 31 * 31 && none < 0 ? 0 : 1;
}
