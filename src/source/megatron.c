/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's index of a .bin file. It stays in its file: only the entries of a sample are read, and checked again.
 *
 *     offset  0  "MMIDIDX\0\0"
 *             9  uint64: version, 1
 *            17  uint8: code of the dtype, 1 to 8
 *            18  uint64: number of sequences
 *            26  uint64: number of the bounds of documents, one more than there are documents
 *            34  int32 for each sequence: its number of tokens
 *             .  int64 for each sequence: its offset in the .bin file, in bytes
 *             .  int64 for each bound: the number of the first sequence of the document; at the end that of all
 *             .  int8 for each sequence: its mode, in multimodal files only
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/base.h"
#include "base/error.h"
#include "tokens.h"

enum { MAGIC_BYTES = 9, VERSION_AT = 9, CODE_AT = 17, SEQUENCES_AT = 18, BOUNDS_AT = 26, HEAD_BYTES = 34 };
enum { SIZE_BYTES = 4, POINTER_BYTES = 8, BOUND_BYTES = 8, SOME = 1024 };

static const char *path_of(const hr_tokens *tokens, const struct hr__tokens_file *file) {
    return hr__tokens_path(tokens, file->index);
}

static int read_index(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t at, void *data,
                      uint64_t bytes) {
    return hr__pool_read(tokens->pool, file->index, at, data, bytes);
}

static uint64_t size_at(uint64_t number) {
    return HEAD_BYTES + SIZE_BYTES * number;
}

static uint64_t pointer_at(const struct hr__tokens_file *file, uint64_t number) {
    return size_at(file->sequence_count) + POINTER_BYTES * number;
}

static uint64_t bound_at(const struct hr__tokens_file *file, uint64_t number) {
    return pointer_at(file, file->sequence_count) + BOUND_BYTES * number;
}

/* ---- the head ---- */

static uint64_t number_in(const unsigned char *head, size_t at) {
    uint64_t number;
    memcpy(&number, head + at, sizeof number);
    return number;
}

static int take_dtype(const char *path, uint8_t code, struct hr_dtype *ret_dtype) {
    static const struct hr_dtype by_code[] = {{0},        {1, 8, 1},  {0, 8, 1},  {0, 16, 1}, {0, 32, 1},
                                              {0, 64, 1}, {2, 64, 1}, {2, 32, 1}, {1, 16, 1}};
    if (code < 1 || code >= sizeof by_code / sizeof *by_code)
        return hr__fail(-EINVAL, "source: %s has the dtype code %u at offset %d, but Megatron's are 1 to 8", path, code,
                        CODE_AT);
    *ret_dtype = by_code[code];
    if (ret_dtype->code == 2)
        return hr__fail(-EINVAL, "source: %s says that its elements are float%u, which are no tokens", path,
                        ret_dtype->bits);
    return 0;
}

/* Checks that the counts are those of a file of this size, which also keeps all offsets within 64 bits. */
static int check_counts(const char *path, uint64_t bytes, uint64_t sequences, uint64_t bounds) {
    uint64_t left = bytes - HEAD_BYTES;
    bool fits = bounds >= 1 && sequences <= left / (SIZE_BYTES + POINTER_BYTES) && bounds <= left / BOUND_BYTES;
    uint64_t wanted = fits ? (SIZE_BYTES + POINTER_BYTES) * sequences + BOUND_BYTES * bounds : 0;
    if (fits && (wanted == left || wanted + sequences == left)) return 0;
    return hr__fail(-EINVAL,
                    "source: %s has %" PRIu64 " bytes, which is not the size of an index of %" PRIu64
                    " sequences and %" PRIu64 " bounds of documents (offsets %d and %d); it is truncated or damaged",
                    path, bytes, sequences, bounds, SEQUENCES_AT, BOUNDS_AT);
}

static int check_magic(const char *path, const unsigned char *head) {
    static const unsigned char magic[MAGIC_BYTES] = "MMIDIDX\0";
    if (memcmp(head, "TNTIDX", 6) == 0)
        return hr__fail(-EINVAL, "source: %s is an index of an old Megatron (TNTIDX); write it again with mmap's",
                        path);
    if (memcmp(head, magic, sizeof magic) != 0)
        return hr__fail(-EINVAL,
                        "source: %s does not begin as an index of Megatron's. If it does not belong to the .bin file "
                        "of that name, move it to another folder",
                        path);
    if (number_in(head, VERSION_AT) != 1)
        return hr__fail(-EINVAL, "source: %s has version %" PRIu64 " at offset %d; only version 1 is known", path,
                        number_in(head, VERSION_AT), VERSION_AT);
    return 0;
}

static int read_head(hr_tokens *tokens, struct hr__tokens_file *file) {
    unsigned char head[HEAD_BYTES] = {0};
    const char *path = path_of(tokens, file);
    uint64_t bytes = hr__pool_file(tokens->pool, file->index)->first.bytes;
    int r = read_index(tokens, file, 0, head, hr__min(bytes, sizeof head));
    if (r < 0) return r;
    if ((r = check_magic(path, head)) < 0) return r;
    if (bytes < HEAD_BYTES)
        return hr__fail(-EINVAL, "source: %s is truncated: it has %" PRIu64 " bytes, its head alone has %d", path,
                        bytes, HEAD_BYTES);
    if ((r = take_dtype(path, head[CODE_AT], &file->dtype)) < 0) return r;
    file->sequence_count = number_in(head, SEQUENCES_AT);
    uint64_t bounds = number_in(head, BOUNDS_AT);
    if ((r = check_counts(path, bytes, file->sequence_count, bounds)) < 0) return r;
    file->document_count = bounds - 1;
    return 0;
}

/* ---- entries ---- */

static int check_sequence(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t number, int32_t size,
                          int64_t pointer) {
    const struct hr__pool_file *data = hr__pool_file(tokens->pool, file->data);
    uint64_t bytes = data->first.bytes, item = hr__item_bytes(file->dtype);
    if (size >= 0 && pointer >= 0 && (uint64_t)pointer <= bytes && (uint64_t)size <= (bytes - (uint64_t)pointer) / item)
        return 0;
    return hr__fail(-EINVAL,
                    "source: %s: sequence %" PRIu64 " has %d tokens (offset %" PRIu64 ") at byte %" PRId64
                    " (offset %" PRIu64 "), which are not all in %s with its %" PRIu64
                    " bytes; one of the files is damaged or truncated, or they do not belong together",
                    path_of(tokens, file), number, size, size_at(number), pointer, pointer_at(file, number), data->path,
                    bytes);
}

/* Sizes and pointers of some sequences. */
struct part {
    int32_t sizes[SOME];
    int64_t pointers[SOME];
};

static int read_part(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t first, uint64_t count,
                     struct part *ret_part) {
    int r = read_index(tokens, file, size_at(first), ret_part->sizes, SIZE_BYTES * count);
    if (r == 0) r = read_index(tokens, file, pointer_at(file, first), ret_part->pointers, POINTER_BYTES * count);
    for (uint64_t i = 0; r == 0 && i < count; i++)
        r = check_sequence(tokens, file, first + i, ret_part->sizes[i], ret_part->pointers[i]);
    return r;
}

static int check_sequences(const hr_tokens *tokens, struct hr__tokens_file *file) {
    struct part part;
    for (uint64_t first = 0, count; first < file->sequence_count; first += count) {
        count = hr__min(SOME, file->sequence_count - first);
        int r = read_part(tokens, file, first, count, &part);
        if (r < 0) return r;
        for (uint64_t i = 0; i < count; i++) file->used_count += (uint64_t)part.sizes[i];
    }
    return 0;
}

/* Reads some bounds, and checks that they follow `before` and each other. */
static int read_bounds(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t first, uint64_t count,
                       int64_t before, int64_t *ret_bounds) {
    int r = read_index(tokens, file, bound_at(file, first), ret_bounds, BOUND_BYTES * count);
    if (r < 0) return r;
    for (uint64_t i = 0; i < count; before = ret_bounds[i++])
        if (ret_bounds[i] < before || (uint64_t)ret_bounds[i] > file->sequence_count)
            return hr__fail(-EINVAL,
                            "source: %s: document %" PRIu64 " begins with sequence %" PRId64 " (offset %" PRIu64
                            "), after %" PRId64 " and of %" PRIu64 "; it is damaged",
                            path_of(tokens, file), first + i, ret_bounds[i], bound_at(file, first + i), before,
                            file->sequence_count);
    return 0;
}

static int check_bounds(const hr_tokens *tokens, const struct hr__tokens_file *file) {
    int64_t bounds[SOME], last = 0;
    for (uint64_t first = 0, count; first <= file->document_count; first += count) {
        count = hr__min(SOME, file->document_count + 1 - first);
        int r = read_bounds(tokens, file, first, count, last, bounds);
        if (r < 0) return r;
        if (first == 0 && bounds[0] != 0)
            return hr__fail(-EINVAL,
                            "source: %s: the first document begins with sequence %" PRId64 " (offset %" PRIu64
                            ") and not with 0; it is damaged",
                            path_of(tokens, file), bounds[0], bound_at(file, 0));
        last = bounds[count - 1];
    }
    if ((uint64_t)last == file->sequence_count) return 0;
    return hr__fail(-EINVAL,
                    "source: %s: the last document ends at sequence %" PRId64 " (offset %" PRIu64 ") of %" PRIu64
                    "; it was not finished, or is damaged",
                    path_of(tokens, file), last, bound_at(file, file->document_count), file->sequence_count);
}

int hr__megatron_open(hr_tokens *tokens, struct hr__tokens_file *file) {
    int r = read_head(tokens, file);
    if (r == 0) r = check_sequences(tokens, file);
    return r < 0 ? r : check_bounds(tokens, file);
}

/* ---- samples ---- */

static int find_sequences(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t number,
                          uint64_t *ret_first, uint64_t *ret_end) {
    int64_t bounds[2] = {(int64_t)number, (int64_t)number + 1};
    int r = tokens->options.unit == HR_TOKENS_DOCUMENTS ? read_bounds(tokens, file, number, 2, 0, bounds) : 0;
    *ret_first = (uint64_t)bounds[0];
    *ret_end = (uint64_t)bounds[1];
    return r;
}

int hr__megatron_visit(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t number,
                       int (*visit)(void *context, struct hr__span span), void *context) {
    struct part part;
    struct hr__span span = {0, 0};
    uint64_t first, end, count, item = hr__item_bytes(file->dtype);
    int r = find_sequences(tokens, file, number, &first, &end);
    for (; r == 0 && first < end; first += count) {
        count = hr__min(SOME, end - first);
        r = read_part(tokens, file, first, count, &part);
        for (uint64_t i = 0; r == 0 && i < count; i++) {
            struct hr__span next = {(uint64_t)part.pointers[i], (uint64_t)part.sizes[i]};
            bool follows = span.at + span.count * item == next.at;
            if (!follows && span.count) r = visit(context, span);
            span = follows && span.count ? (struct hr__span){span.at, span.count + next.count} : next;
        }
    }
    return r == 0 && span.count ? visit(context, span) : r;
}

/* The sizes of all sequences in turn. */
struct sizes {
    int32_t sizes[SOME];
    uint64_t first, count;
};

/* Adds up the sizes of sequences up to `end`, and goes on there. */
static int add_up(const hr_tokens *tokens, const struct hr__tokens_file *file, struct sizes *sizes, uint64_t *first,
                  uint64_t end, int64_t *ret_sum) {
    int64_t sum = 0;
    for (; *first < end; (*first)++) {
        if (*first >= sizes->first + sizes->count) {
            sizes->first = *first;
            sizes->count = hr__min(SOME, file->sequence_count - *first);
            int r = read_index(tokens, file, size_at(*first), sizes->sizes, SIZE_BYTES * sizes->count);
            if (r < 0) return r;
        }
        int32_t size = sizes->sizes[*first - sizes->first];
        if (size < 0)
            return hr__fail(-EINVAL, "source: %s: sequence %" PRIu64 " has %d tokens (offset %" PRIu64 ")",
                            path_of(tokens, file), *first, size, size_at(*first));
        sum += size;
    }
    *ret_sum = sum;
    return 0;
}

int hr__megatron_lengths(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t first, uint64_t count,
                         int64_t *ret_lengths) {
    struct sizes sizes = {.count = 0};
    int64_t bounds[SOME + 1];
    uint64_t sequence, end;
    for (uint64_t done = 0, some; done < count; done += some) {
        some = hr__min(SOME, count - done);
        for (uint64_t i = 0; i <= some; i++) bounds[i] = (int64_t)(first + done + i);
        int r = tokens->options.unit == HR_TOKENS_DOCUMENTS
                    ? read_bounds(tokens, file, first + done, some + 1, 0, bounds)
                    : 0;
        for (uint64_t i = 0; r == 0 && i < some; i++) {
            sequence = (uint64_t)bounds[i];
            end = (uint64_t)bounds[i + 1];
            r = add_up(tokens, file, &sizes, &sequence, end, &ret_lengths[done + i]);
        }
        if (r < 0) return r;
    }
    return 0;
}
