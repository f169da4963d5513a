/* SPDX-License-Identifier: Apache-2.0 */
#include <headrace/store.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"
#include "os/os.h"
#include "store/store.h"

/* ---- checksums ---- */

uint64_t hr__chunk_sum(const unsigned char *base, uint64_t number, uint64_t sums_at) {
    uint64_t begin = sizeof(struct image_header) + number * CHUNK_BYTES;
    return hr__hash(base + begin, hr__min(CHUNK_BYTES, sums_at - begin), number);
}

uint64_t hr__header_sum(const struct image_header *header) {
    return hr__hash(header, offsetof(struct image_header, checksum), header->version);
}

void hr__image_digest(const struct image_header *header, const uint64_t *sums, unsigned char *ret_digest) {
    uint64_t seed = header->root ^ header->heap_end;
    for (uint64_t half = 0; half < 2; half++) {
        uint64_t hash = hr__hash(sums, header->sum_count * sizeof *sums, seed + half);
        memcpy(ret_digest + 8 * half, &hash, sizeof hash);
    }
}

/* ---- opening ---- */

static const struct image_header *header_of(const hr_store *store) {
    return (const struct image_header *)(const void *)store->image.base;
}

static int refuse(const char *name, int code, const char *why) {
    return hr__fail(code, "store: %s %s", name, why);
}

static bool lies_within(uint64_t at, uint64_t count, uint64_t end) {
    uint64_t bytes;
    return at % 8 == 0 && at <= end && hr__mul(count, 8, &bytes) && bytes <= end - at;
}

static int check_header(const struct image_header *header, uint64_t bytes, const char *name) {
    const char *damaged = "is damaged: its header does not match its checksum; make the image again";
    if (bytes < sizeof *header || header->magic != HR__IMAGE_MAGIC)
        return refuse(name, -EINVAL,
                      "is not an image: its first bytes are others. Images are made by headrace.freeze(..., path=...) "
                      "or hr_builder_open; their first bytes are written last");
    if (header->version < HR_STORE_OLDEST_VERSION || header->version > HR_STORE_VERSION)
        return hr__fail(HR_E_VERSION,
                        "store: %s is an image of format version %" PRIu32 "; this headrace reads %d to %d; make "
                        "it again with this one",
                        name, header->version, HR_STORE_OLDEST_VERSION, HR_STORE_VERSION);
    if (header->checksum != hr__header_sum(header)) return refuse(name, HR_E_CORRUPT, damaged);
    if (header->total_bytes != bytes)
        return hr__fail(HR_E_CORRUPT,
                        "store: %s has %" PRIu64 " bytes, but its header says %" PRIu64
                        ": it was truncated or extended; copy or make it again",
                        name, bytes, header->total_bytes);
    if (header->header_bytes != sizeof *header || header->heap_end < sizeof *header || header->heap_end > bytes ||
        header->heap_end % 8 || header->shape_count > HR_STORE_MAX_SHAPES || header->chunk_bytes != CHUNK_BYTES ||
        !lies_within(header->shapes_at, header->shape_count, bytes) || header->shapes_at < header->heap_end ||
        !lies_within(header->sums_at, header->sum_count, bytes) || header->sums_at < header->heap_end ||
        header->sum_count != (header->sums_at - sizeof *header + CHUNK_BYTES - 1) / CHUNK_BYTES)
        return refuse(name, HR_E_CORRUPT, "is damaged: its sections are not inside it; make the image again");
    return 0;
}

/* Reads the header and the sections at `base`, and accepts the image only if all of them are consistent. */
static int check_image(hr_store *store, const unsigned char *base, uint32_t flags) {
    if (!base || store->bytes < sizeof(struct image_header)) return check_header(NULL, 0, store->name);
    struct image_header header;
    memcpy(&header, base, sizeof header);
    int r = check_header(&header, store->bytes, store->name);
    if (r < 0) return r;
    store->image = (struct hr__image){.base = base,
                                      .heap_end = header.heap_end,
                                      .shapes = (const uint64_t *)(const void *)(base + header.shapes_at),
                                      .shape_count = header.shape_count,
                                      .seed = header.seed};
    struct hr_item root;
    r = hr__image_read(&store->image, header.root, &root);
    if (r < 0) return hr__fail_more(r, "store: %s cannot be opened: its root is damaged", store->name);
    return flags & HR_STORE_VERIFY ? hr_store_verify(store) : 0;
}

static hr_store *new_store(const char *name) {
    hr_store *store = hr__realloc(NULL, sizeof *store);
    if (!store) return NULL;
    *store = (hr_store){.fd = -1};
    size_t length = hr__min(strlen(name), sizeof store->name - 1);
    memcpy(store->name, name + strlen(name) - length, length); /* the end of a long path is more useful */
    return store;
}

hr_store *hr_store_close(hr_store *store) {
    if (!store) return NULL;
    hr__unmap(store->mapped, store->bytes);
    hr__close(&store->fd);
    hr__free(store);
    return NULL;
}

static void drop_store(hr_store **store) {
    hr_store_close(*store);
}

int hr_store_open_memory(const void *image, uint64_t bytes, uint32_t flags, hr_store **ret_store) {
    if ((uintptr_t)image % ARRAY_ALIGN)
        return hr__fail(-EINVAL, "store: the address of an image must be a multiple of %d bytes", ARRAY_ALIGN);
    hr_cleanup(drop_store) hr_store *store = new_store("the image in memory");
    if (!store) return hr__fail(-ENOMEM, "store: no memory to open an image");
    store->bytes = bytes;
    int r = check_image(store, image, flags);
    if (r == 0) *ret_store = hr_take(store);
    return r;
}

int hr__store_open_taken(int fd, const char *name, uint32_t flags, hr_store **ret_store) {
    hr_cleanup(drop_store) hr_store *store = new_store(name);
    if (!store) {
        hr__close(&fd);
        return hr__fail(-ENOMEM, "store: no memory to open %s", name);
    }
    store->fd = fd;
    const void *base = NULL;
    uint64_t bytes = 0;
    int r = hr__memory_bytes(fd, &bytes);
    if (r == 0 && bytes >= sizeof(struct image_header)) r = hr__map_to_read(fd, bytes, &base);
    if (r < 0) return hr__fail(r, "store: cannot map %s: %s", store->name, hr_error_text(r));
    store->bytes = bytes;
    store->mapped = (void *)(uintptr_t)base;
    r = check_image(store, base, flags);
    if (r == 0) *ret_store = hr_take(store);
    return r;
}

int hr_store_open_fd(int fd, const char *name, uint32_t flags, hr_store **ret_store) {
    int own;
    int r = hr__dup(fd, &own);
    if (r < 0) return hr__fail(r, "store: cannot open a descriptor of %s: %s", name, hr_error_text(r));
    return hr__store_open_taken(own, name, flags, ret_store);
}

int hr_store_open(const char *path, uint32_t flags, hr_store **ret_store) {
    int fd;
    int r = hr__file_open(path, &fd);
    if (r == -EINVAL) return refuse(path, r, "is not a regular file");
    if (r < 0) return hr__fail(r, "store: cannot open %s: %s", path, hr_error_text(r));
    r = hr__store_open_taken(fd, path, flags, ret_store);
    if (r == 0) hr__close(&(*ret_store)->fd); /* the mapping keeps the file, and other processes open it by its path */
    return r;
}

/* ---- looking ---- */

void hr_store_look(const hr_store *store, struct hr_store_info *ret_info) {
    const struct image_header *header = header_of(store);
    *ret_info = (struct hr_store_info){.bytes = store->bytes,
                                       .version = header->version,
                                       .shape_count = (uint32_t)store->image.shape_count,
                                       .image = store->image.base,
                                       .fd = store->fd};
    memcpy(ret_info->id, header->id, sizeof ret_info->id);
    memcpy(ret_info->digest, header->digest, sizeof ret_info->digest);
}

int hr_store_verify(const hr_store *store) {
    struct image_header header;
    unsigned char digest[16];
    memcpy(&header, header_of(store), sizeof header);
    int r = check_header(&header, store->bytes, store->name);
    if (r < 0) return r;
    const uint64_t *sums = (const uint64_t *)(const void *)(store->image.base + header.sums_at);
    for (uint64_t i = 0; i < header.sum_count; i++)
        if (sums[i] != hr__chunk_sum(store->image.base, i, header.sums_at))
            return hr__fail(HR_E_CORRUPT,
                            "store: %s is damaged between byte %" PRIu64 " and %" PRIu64 "; make it again", store->name,
                            sizeof header + i * CHUNK_BYTES,
                            hr__min(sizeof header + (i + 1) * CHUNK_BYTES, header.sums_at));
    hr__image_digest(&header, sums, digest);
    if (memcmp(digest, header.digest, sizeof digest) != 0)
        return refuse(store->name, HR_E_CORRUPT, "is damaged in its checksums; make the image again");
    return 0;
}

hr_value hr_store_root(const hr_store *store) {
    return header_of(store)->root;
}

int hr_store_read(const hr_store *store, hr_value value, struct hr_item *ret_item) {
    return hr__image_read(&store->image, value, ret_item);
}

int hr_store_at(const hr_store *store, const struct hr_item *container, uint64_t index, struct hr_item *ret_item) {
    return hr__image_at(&store->image, container, index, ret_item);
}

int hr_store_text(const hr_store *store, const struct hr_item *texts, uint64_t index, const void **ret_bytes,
                  uint64_t *ret_count) {
    return hr__image_text(&store->image, texts, index, ret_bytes, ret_count);
}

int hr_store_place(const hr_store *store, const struct hr_item *dict, uint64_t index, uint64_t *ret_place) {
    if (dict->kind < HR_KIND_DICT || dict->kind > HR_KIND_FROZEN_SET)
        return hr__fail(-EINVAL, "store: a value of kind %d has no entries", dict->kind);
    if (index >= dict->count)
        return hr__fail(-ERANGE, "store: there is no entry %" PRIu64 " among %" PRIu64, index, dict->count);
    return hr__image_place(&store->image, dict, index, ret_place);
}

int hr_store_value(const hr_store *store, const struct hr_item *dict, uint64_t place, struct hr_item *ret_value) {
    hr_value key, value;
    if (dict->kind != HR_KIND_DICT) return hr__fail(-EINVAL, "store: a value of kind %d has no values", dict->kind);
    int r = hr__image_words(&store->image, dict, place, &key, &value);
    return r < 0 ? r : hr__image_read(&store->image, value, ret_value);
}

int hr_store_entry(const hr_store *store, const struct hr_item *dict, uint64_t index, struct hr_item *ret_value) {
    uint64_t place;
    int r = hr_store_place(store, dict, index, &place);
    return r < 0 ? r : hr_store_value(store, dict, place, ret_value);
}

uint64_t hr_store_hash(const hr_store *store, const struct hr_key *key) {
    return hr__key_hash(key, store->image.seed);
}

int hr_store_find_hashed(const hr_store *store, const struct hr_item *dict, const struct hr_key *key, uint64_t hash,
                         uint64_t *ret_place) {
    if (!dict->is_native)
        return hr__fail(-EINVAL, "store: the keys of this value have no index; compare them one by one");
    uint64_t place;
    int r = hr__key_find(&store->image, dict, key, hash, &place);
    if (r == 1) *ret_place = place;
    return r;
}

int hr_store_find(const hr_store *store, const struct hr_item *dict, const struct hr_key *key, uint64_t *ret_place) {
    return hr_store_find_hashed(store, dict, key, hr_store_hash(store, key), ret_place);
}

/* ---- hints ---- */

static void fetch(const void *address) {
    __builtin_prefetch(address, 0, 1);
}

static void fetch_target(const hr_store *store, const unsigned char *word_at) {
    hr_value word;
    memcpy(&word, word_at, sizeof word);
    uint64_t offset = hr__word_offset(word);
    if (offset < store->image.heap_end) fetch(store->image.base + offset);
}

static void prefetch_text(const hr_store *store, const struct hr_item *texts, uint64_t index, int stage) {
    struct hr_item item;
    if (stage == 0)
        fetch(texts->data + sizeof(struct texts_node) + index * (texts->layout == LAYOUT_TEXTS ? 4 : 5));
    else if (hr__image_at(&store->image, texts, index, &item) == 0)
        fetch(item.data), fetch(item.data + 63);
}

static void prefetch_row(const hr_store *store, const struct hr_item *rows, uint64_t index) {
    struct shape_node shape;
    if (hr__image_shape(&store->image, rows->shape, &shape, NULL) == 0)
        fetch(rows->data + index * shape.field_count * 8);
}

void hr_store_prefetch(const hr_store *store, const struct hr_item *container, uint64_t index, int stage) {
    bool is_list = container->kind == HR_KIND_LIST || container->kind == HR_KIND_TUPLE;
    unsigned layout = is_list ? container->layout : LAYOUT_WORDS;
    if (index >= container->count) return;
    if (layout == LAYOUT_TEXTS || layout == LAYOUT_WIDE_TEXTS) {
        prefetch_text(store, container, index, stage);
        return;
    }
    if (layout == LAYOUT_ROWS) {
        prefetch_row(store, container, index);
        return;
    }
    const unsigned char *at = container->data + index * (layout == LAYOUT_INT32 ? 4 : 8);
    if (stage == 0)
        fetch(at);
    else if (layout == LAYOUT_WORDS)
        fetch_target(store, at);
}

void hr_store_prefetch_hash(const hr_store *store, const struct hr_item *dict, uint64_t hash, int stage) {
    if (!dict->is_native || !dict->shape) return;
    const unsigned char *slot = dict->keyed.slots + (hash & ((UINT64_C(1) << dict->layout) - 1)) * dict->shape;
    if (stage == 0) {
        fetch(slot);
        return;
    }
    const unsigned char *at = hr__words_at(&store->image, dict, hr__slot_place(&store->image, dict, slot));
    if (!at) return;
    if (stage == 1) {
        fetch(at);
        fetch(at - HR_CACHE_LINE); /* a text is before its entry */
        return;
    }
    fetch_target(store, at);
    if (dict->kind == HR_KIND_DICT) fetch_target(store, at + 8);
}
