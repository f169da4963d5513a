/* SPDX-License-Identifier: Apache-2.0 */
/* Opens, verifies and closes frozen data; the public functions that read it. */
#include <headrace/face/frozen.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"
#include "frozen/frozen.h"
#include "os/os.h"

/* ---- checksums ---- */

uint64_t hr__chunk_sum(const unsigned char *base, uint64_t number, uint64_t sums_at) {
    uint64_t begin = sizeof(struct hr__frozen_header) + number * CHUNK_BYTES;
    return hr__hash(base + begin, hr__min(CHUNK_BYTES, sums_at - begin), number);
}

uint64_t hr__header_sum(const struct hr__frozen_header *header) {
    return hr__hash(header, offsetof(struct hr__frozen_header, checksum), header->version);
}

void hr__contents_digest(const struct hr__frozen_header *header, const uint64_t *sums, unsigned char *ret_digest) {
    uint64_t seed = header->root ^ header->heap_end;
    for (uint64_t half = 0; half < 2; half++) {
        uint64_t hash = hr__hash(sums, header->sum_count * sizeof *sums, seed + half);
        memcpy(ret_digest + 8 * half, &hash, sizeof hash);
    }
}

/* ---- opening ---- */

static const struct hr__frozen_header *header_of(const hr_frozen *frozen) {
    return (const struct hr__frozen_header *)(const void *)frozen->contents.base;
}

static int refuse(const char *name, int code, const char *why) {
    return hr__fail(code, "frozen data: %s %s", name, why);
}

static bool lies_within(uint64_t at, uint64_t count, uint64_t end) {
    uint64_t bytes;
    return at % 8 == 0 && at <= end && hr__mul(count, 8, &bytes) && bytes <= end - at;
}

static int check_header(const struct hr__frozen_header *header, uint64_t bytes, const char *name) {
    const char *damaged = "is damaged: its header does not match its checksum; freeze the data again";
    if (bytes < sizeof *header || header->magic != HR__FROZEN_MAGIC)
        return refuse(
            name, -EINVAL,
            "is not frozen data: its first bytes are others. Frozen data are made by headrace.freeze(..., path=...) "
            "or hr_builder_open; their first bytes are written last");
    if (header->version < HR_FROZEN_OLDEST_VERSION || header->version > HR_FROZEN_VERSION)
        return hr__fail(HR_E_VERSION,
                        "frozen data: %s is frozen data of format version %" PRIu32
                        "; this headrace reads %d to %d; make "
                        "it again with this one" HR_HELP("frozen-damaged"),
                        name, header->version, HR_FROZEN_OLDEST_VERSION, HR_FROZEN_VERSION);
    if (header->checksum != hr__header_sum(header)) return refuse(name, HR_E_CORRUPT, damaged);
    if (header->total_bytes != bytes)
        return hr__fail(HR_E_CORRUPT,
                        "frozen data: %s has %" PRIu64 " bytes, but its header says %" PRIu64
                        ": it was truncated or extended; copy or make it again" HR_HELP("frozen-damaged"),
                        name, bytes, header->total_bytes);
    if (header->header_bytes != sizeof *header || header->heap_end < sizeof *header || header->heap_end > bytes ||
        header->heap_end % 8 || header->shape_count > HR_FROZEN_MAX_SHAPES || header->chunk_bytes != CHUNK_BYTES ||
        !lies_within(header->shapes_at, header->shape_count, bytes) || header->shapes_at < header->heap_end ||
        !lies_within(header->sums_at, header->sum_count, bytes) || header->sums_at < header->heap_end ||
        header->sum_count != (header->sums_at - sizeof *header + CHUNK_BYTES - 1) / CHUNK_BYTES)
        return refuse(name, HR_E_CORRUPT, "is damaged: its sections are not inside it; freeze the data again");
    return 0;
}

/* Reads the header and the sections at `base`, and accepts the frozen data only if all of them are consistent. */
static int check_contents(hr_frozen *frozen, const unsigned char *base, uint32_t flags) {
    if (!base || frozen->bytes < sizeof(struct hr__frozen_header)) return check_header(NULL, 0, frozen->name);
    struct hr__frozen_header header;
    memcpy(&header, base, sizeof header);
    int r = check_header(&header, frozen->bytes, frozen->name);
    if (r < 0) return r;
    frozen->contents = (struct hr__contents){.base = base,
                                             .heap_end = header.heap_end,
                                             .shapes = (const uint64_t *)(const void *)(base + header.shapes_at),
                                             .shape_count = header.shape_count,
                                             .seed = header.seed};
    struct hr_item root;
    r = hr__contents_read(&frozen->contents, header.root, &root);
    if (r < 0) return hr__fail_more(r, "frozen data: %s cannot be opened: its root is damaged", frozen->name);
    return flags & HR_FROZEN_VERIFY ? hr_frozen_verify(frozen) : 0;
}

static hr_frozen *new_store(const char *name) {
    hr_frozen *frozen = hr__realloc(NULL, sizeof *frozen);
    if (!frozen) return NULL;
    *frozen = (hr_frozen){.fd = -1};
    size_t length = hr__min(strlen(name), sizeof frozen->name - 1);
    memcpy(frozen->name, name + strlen(name) - length, length); /* the end of a long path is more useful */
    return frozen;
}

hr_frozen *hr_frozen_close(hr_frozen *frozen) {
    if (!frozen) return NULL;
    hr__unmap(frozen->mapped, frozen->bytes);
    hr__close(&frozen->fd);
    hr__free(frozen);
    return NULL;
}

static void drop_store(hr_frozen **frozen) {
    hr_frozen_close(*frozen);
}

int hr_frozen_open_memory(const void *contents, uint64_t bytes, uint32_t flags, hr_frozen **ret_frozen) {
    if ((uintptr_t)contents % ARRAY_ALIGN)
        return hr__fail(-EINVAL, "frozen data: the address of frozen data must be a multiple of %d bytes", ARRAY_ALIGN);
    hr_cleanup(drop_store) hr_frozen *frozen = new_store("the frozen data in memory");
    if (!frozen) return hr__fail(-ENOMEM, "frozen data: no memory to open frozen data");
    frozen->bytes = bytes;
    int r = check_contents(frozen, contents, flags);
    if (r == 0) *ret_frozen = hr_take(frozen);
    return r;
}

int hr__frozen_open_taken(int fd, const char *name, uint32_t flags, hr_frozen **ret_frozen) {
    hr_cleanup(drop_store) hr_frozen *frozen = new_store(name);
    if (!frozen) {
        hr__close(&fd);
        return hr__fail(-ENOMEM, "frozen data: no memory to open %s", name);
    }
    frozen->fd = fd;
    const void *base = NULL;
    uint64_t bytes = 0;
    int r = hr__memory_bytes(fd, &bytes);
    if (r == 0 && bytes >= sizeof(struct hr__frozen_header)) r = hr__map_to_read(fd, bytes, &base);
    if (r < 0) return hr__fail(r, "frozen data: cannot map %s: %s", frozen->name, hr_error_text(r));
    frozen->bytes = bytes;
    frozen->mapped = (void *)(uintptr_t)base;
    r = check_contents(frozen, base, flags);
    if (r == 0) *ret_frozen = hr_take(frozen);
    return r;
}

int hr_frozen_open_fd(int fd, const char *name, uint32_t flags, hr_frozen **ret_frozen) {
    int own;
    int r = hr__dup(fd, &own);
    if (r < 0) return hr__fail(r, "frozen data: cannot open a descriptor of %s: %s", name, hr_error_text(r));
    return hr__frozen_open_taken(own, name, flags, ret_frozen);
}

int hr_frozen_open(const char *path, uint32_t flags, hr_frozen **ret_frozen) {
    int fd;
    int r = hr__file_open(path, &fd);
    if (r == -EINVAL) return refuse(path, r, "is not a regular file");
    if (r < 0) return hr__fail(r, "frozen data: cannot open %s: %s", path, hr_error_text(r));
    r = hr__frozen_open_taken(fd, path, flags, ret_frozen);
    if (r == 0) hr__close(&(*ret_frozen)->fd); /* the mapping keeps the file, and other processes open it by its path */
    return r;
}

/* ---- looking ---- */

void hr_frozen_look(const hr_frozen *frozen, struct hr_frozen_info *ret_info) {
    const struct hr__frozen_header *header = header_of(frozen);
    *ret_info = (struct hr_frozen_info){.bytes = frozen->bytes,
                                        .version = header->version,
                                        .shape_count = (uint32_t)frozen->contents.shape_count,
                                        .contents = frozen->contents.base,
                                        .fd = frozen->fd};
    memcpy(ret_info->id, header->id, sizeof ret_info->id);
    memcpy(ret_info->digest, header->digest, sizeof ret_info->digest);
}

int hr_frozen_verify(const hr_frozen *frozen) {
    struct hr__frozen_header header;
    unsigned char digest[16];
    memcpy(&header, header_of(frozen), sizeof header);
    int r = check_header(&header, frozen->bytes, frozen->name);
    if (r < 0) return r;
    const uint64_t *sums = (const uint64_t *)(const void *)(frozen->contents.base + header.sums_at);
    for (uint64_t i = 0; i < header.sum_count; i++)
        if (sums[i] != hr__chunk_sum(frozen->contents.base, i, header.sums_at))
            return hr__fail(HR_E_CORRUPT,
                            "frozen data: %s is damaged between byte %" PRIu64 " and %" PRIu64 "; make it again",
                            frozen->name, sizeof header + i * CHUNK_BYTES,
                            hr__min(sizeof header + (i + 1) * CHUNK_BYTES, header.sums_at));
    hr__contents_digest(&header, sums, digest);
    if (memcmp(digest, header.digest, sizeof digest) != 0)
        return refuse(frozen->name, HR_E_CORRUPT, "is damaged in its checksums; freeze the data again");
    return 0;
}

hr_value hr_frozen_root(const hr_frozen *frozen) {
    return header_of(frozen)->root;
}

int hr_frozen_read(const hr_frozen *frozen, hr_value value, struct hr_item *ret_item) {
    return hr__contents_read(&frozen->contents, value, ret_item);
}

int hr_frozen_at(const hr_frozen *frozen, const struct hr_item *container, uint64_t index, struct hr_item *ret_item) {
    return hr__contents_at(&frozen->contents, container, index, ret_item);
}

int hr_frozen_text(const hr_frozen *frozen, const struct hr_item *texts, uint64_t index, const void **ret_bytes,
                   uint64_t *ret_count) {
    return hr__contents_text(&frozen->contents, texts, index, ret_bytes, ret_count);
}

int hr_frozen_place(const hr_frozen *frozen, const struct hr_item *dict, uint64_t index, uint64_t *ret_place) {
    if (dict->kind < HR_KIND_DICT || dict->kind > HR_KIND_FROZEN_SET)
        return hr__fail(-EINVAL, "frozen data: a value of kind %d has no entries", dict->kind);
    if (index >= dict->count)
        return hr__fail(-ERANGE, "frozen data: there is no entry %" PRIu64 " among %" PRIu64, index, dict->count);
    return hr__contents_place(&frozen->contents, dict, index, ret_place);
}

int hr_frozen_value(const hr_frozen *frozen, const struct hr_item *dict, uint64_t place, struct hr_item *ret_value) {
    hr_value key, value;
    if (dict->kind != HR_KIND_DICT)
        return hr__fail(-EINVAL, "frozen data: a value of kind %d has no values", dict->kind);
    int r = hr__contents_words(&frozen->contents, dict, place, &key, &value);
    return r < 0 ? r : hr__contents_read(&frozen->contents, value, ret_value);
}

int hr_frozen_entry(const hr_frozen *frozen, const struct hr_item *dict, uint64_t index, struct hr_item *ret_value) {
    uint64_t place;
    int r = hr_frozen_place(frozen, dict, index, &place);
    return r < 0 ? r : hr_frozen_value(frozen, dict, place, ret_value);
}

uint64_t hr_frozen_hash(const hr_frozen *frozen, const struct hr_key *key) {
    return hr__key_hash(key, frozen->contents.seed);
}

int hr_frozen_find_hashed(const hr_frozen *frozen, const struct hr_item *dict, const struct hr_key *key, uint64_t hash,
                          uint64_t *ret_place) {
    if (!dict->is_native)
        return hr__fail(-EINVAL, "frozen data: the keys of this value have no index; compare them one by one");
    uint64_t place;
    int r = hr__key_find(&frozen->contents, dict, key, hash, &place);
    if (r == 1) *ret_place = place;
    return r;
}

int hr_frozen_find(const hr_frozen *frozen, const struct hr_item *dict, const struct hr_key *key, uint64_t *ret_place) {
    return hr_frozen_find_hashed(frozen, dict, key, hr_frozen_hash(frozen, key), ret_place);
}

/* ---- hints ---- */

static void fetch(const void *address) {
    __builtin_prefetch(address, 0, 1);
}

static void fetch_target(const hr_frozen *frozen, const unsigned char *word_at) {
    hr_value word;
    memcpy(&word, word_at, sizeof word);
    uint64_t offset = hr__word_offset(word);
    if (offset < frozen->contents.heap_end) fetch(frozen->contents.base + offset);
}

static void prefetch_text(const hr_frozen *frozen, const struct hr_item *texts, uint64_t index, int stage) {
    struct hr_item item;
    if (stage == 0)
        fetch(texts->data + sizeof(struct hr__texts_node) + index * (texts->layout == LAYOUT_TEXTS ? 4 : 5));
    else if (hr__contents_at(&frozen->contents, texts, index, &item) == 0)
        fetch(item.data), fetch(item.data + 63);
}

static void prefetch_row(const hr_frozen *frozen, const struct hr_item *rows, uint64_t index) {
    struct hr__shape_node shape;
    if (hr__contents_shape(&frozen->contents, rows->shape, &shape, NULL) == 0)
        fetch(rows->data + index * shape.field_count * 8);
}

void hr_frozen_prefetch(const hr_frozen *frozen, const struct hr_item *container, uint64_t index, int stage) {
    bool is_list = container->kind == HR_KIND_LIST || container->kind == HR_KIND_TUPLE;
    unsigned layout = is_list ? container->layout : LAYOUT_WORDS;
    if (index >= container->count) return;
    if (layout == LAYOUT_TEXTS || layout == LAYOUT_WIDE_TEXTS) {
        prefetch_text(frozen, container, index, stage);
        return;
    }
    if (layout == LAYOUT_ROWS) {
        prefetch_row(frozen, container, index);
        return;
    }
    const unsigned char *at = container->data + index * (layout == LAYOUT_INT32 ? 4 : 8);
    if (stage == 0)
        fetch(at);
    else if (layout == LAYOUT_WORDS)
        fetch_target(frozen, at);
}

void hr_frozen_prefetch_hash(const hr_frozen *frozen, const struct hr_item *dict, uint64_t hash, int stage) {
    if (!dict->is_native || !dict->shape) return;
    const unsigned char *slot = dict->keyed.slots + (hash & ((UINT64_C(1) << dict->layout) - 1)) * dict->shape;
    if (stage == 0) {
        fetch(slot);
        return;
    }
    const unsigned char *at = hr__words_at(&frozen->contents, dict, hr__slot_place(&frozen->contents, dict, slot));
    if (!at) return;
    if (stage == 1) {
        fetch(at);
        fetch(at - HR_CACHE_LINE); /* a text is before its entry */
        return;
    }
    fetch_target(frozen, at);
    if (dict->kind == HR_KIND_DICT) fetch_target(frozen, at + 8);
}
