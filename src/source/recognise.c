/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out what a token file is, by its head and its name, and checks its size. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/npy.h"
#include "lines.h"
#include "tokens.h"

enum { LLMC_HEAD_BYTES = 1024, LLMC_UINT16 = 20240520, LLMC_UINT32 = 20240801, LLMC_EVAL = 20240522 };

static const struct hr_dtype UINT16 = {1, 16, 1};

const char *hr__dtype_name(struct hr_dtype dtype) {
    static const char *const names[2][4] = {{"int8", "int16", "int32", "int64"},
                                            {"uint8", "uint16", "uint32", "uint64"}};
    int size = dtype.bits == 8 ? 0 : dtype.bits == 16 ? 1 : dtype.bits == 32 ? 2 : dtype.bits == 64 ? 3 : -1;
    return dtype.code > 1 || size < 0 || dtype.lanes != 1 ? "" : names[dtype.code][size];
}

bool hr__has_suffix(const char *path, const char *suffix) {
    size_t length = hr__remote_is(path) ? strcspn(path, "?") : strlen(path), end = strlen(suffix);
    return length > end && strncmp(path + length - end, suffix, end) == 0;
}

/* The begin of a file. */
struct head {
    _Alignas(8) unsigned char bytes[HR__NPY_HEADER_MAX];
    uint64_t count;
};

static uint64_t bytes_of(const hr_tokens *tokens, const struct hr__tokens_file *file) {
    return hr__pool_file(tokens->pool, file->data)->first.bytes;
}

/* ---- sizes ---- */

/* Checks that the bytes behind the head are whole tokens, and counts them. */
static int count_tokens(const hr_tokens *tokens, struct hr__tokens_file *file) {
    uint64_t bytes = bytes_of(tokens, file) - file->data_at, item = hr__item_bytes(file->dtype);
    file->token_count = bytes / item;
    if (bytes % item == 0) return 0;
    return hr__fail(-EINVAL,
                    "source: %s has %" PRIu64 " bytes of tokens from offset %" PRIu64
                    " on, which is no multiple of the "
                    "%" PRIu64 " bytes of %s; it is truncated, or dtype is wrong",
                    hr__tokens_path(tokens, file->data), bytes, file->data_at, item, hr__dtype_name(file->dtype));
}

/* Compares the count in a head with the size of the file. */
static int check_count(const hr_tokens *tokens, struct hr__tokens_file *file, uint64_t count) {
    uint64_t bytes = bytes_of(tokens, file), item = hr__item_bytes(file->dtype);
    if (bytes - file->data_at == count * item && count <= bytes) return count_tokens(tokens, file);
    return hr__fail(-EINVAL,
                    "source: %s is truncated or damaged: its head says %" PRIu64
                    " tokens of %s, but behind its %" PRIu64 " bytes of head it has %" PRIu64 " bytes and not %" PRIu64,
                    hr__tokens_path(tokens, file->data), count, hr__dtype_name(file->dtype), file->data_at,
                    bytes - file->data_at, count * item);
}

/* ---- kinds ---- */

static int read_llmc(const hr_tokens *tokens, struct hr__tokens_file *file, const int32_t *head, uint64_t count) {
    const char *path = hr__tokens_path(tokens, file->data);
    int32_t version = head[0] == LLMC_UINT16 ? 1 : 7; /* those that llm.c writes */
    if (count < LLMC_HEAD_BYTES)
        return hr__fail(-EINVAL, "source: %s is truncated: it has %" PRIu64 " bytes, llm.c's head alone has %d", path,
                        count, LLMC_HEAD_BYTES);
    if (head[1] != version)
        return hr__fail(-EINVAL, "source: %s has llm.c's number %d, but version %d at offset 4 instead of %d", path,
                        head[0], head[1], version);
    if (head[2] < 0) return hr__fail(-EINVAL, "source: %s says at offset 8 that it has %d tokens", path, head[2]);
    file->kind = HR_TOKENS_LLMC;
    file->dtype = (struct hr_dtype){1, head[0] == LLMC_UINT16 ? 16 : 32, 1};
    file->data_at = LLMC_HEAD_BYTES;
    return check_count(tokens, file, (uint64_t)head[2]);
}

static int take_npy_dtype(const char *path, const char *text, struct hr_dtype *ret_dtype) {
    static const uint16_t one = 1;
    bool is_little = *(const unsigned char *)&one == 1;
    char order = strchr("<>|=", *text) ? *text++ : '=';
    uint8_t bytes = text[0] && text[1] && !text[2] ? (uint8_t)(text[1] - '0') : 0;
    if ((*text != 'i' && *text != 'u') || (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8))
        return hr__fail(-EINVAL, "source: %s has elements of dtype '%s', which are no tokens; save integers", path,
                        text);
    if (bytes > 1 && (order == '<' || order == '>') && (order == '<') != is_little)
        return hr__fail(-EINVAL,
                        "source: %s has elements of dtype '%c%s', in the byte order of another machine; save it again "
                        "with array.astype(array.dtype.newbyteorder('='))",
                        path, order, text);
    *ret_dtype = (struct hr_dtype){*text == 'u', (uint8_t)(8 * bytes), 1};
    return 0;
}

static int read_npy(const hr_tokens *tokens, struct hr__tokens_file *file, const unsigned char *head, uint64_t count) {
    const char *path = hr__tokens_path(tokens, file->data);
    struct hr__npy npy = {.dtype = ""};
    int r = hr__npy_parse(head, count, &npy);
    if (r == -EINVAL)
        return hr__fail(r, "source: %s begins as a .npy file, but its head is not NumPy's, or is damaged", path);
    if (!*npy.dtype) return hr__fail(-EINVAL, "source: %s has records, which are no tokens; save one field", path);
    r = take_npy_dtype(path, npy.dtype, &file->dtype);
    if (r < 0) return r;
    if (npy.dimension_count != 1)
        return hr__fail(-EINVAL,
                        "source: %s has %u dimensions; tokens are read from one: save array.reshape(-1), or use "
                        "sources.Arrays",
                        path, npy.dimension_count);
    file->kind = HR_TOKENS_NPY;
    file->data_at = npy.header_bytes;
    return check_count(tokens, file, npy.dimensions[0]);
}

static int read_headless(const hr_tokens *tokens, struct hr__tokens_file *file, const struct head *head) {
    const char *path = hr__tokens_path(tokens, file->data);
    struct hr_dtype given = tokens->options.dtype;
    if (hr__is_pointer(head->bytes, head->count)) return hr__refuse_pointer(path); /* whatever dtype is */
    int r = given.bits ? 0 : hr__tokens_check_foreign(path, head->bytes, head->count, bytes_of(tokens, file));
    if (r < 0) return r;
    if (!given.bits && hr__has_suffix(path, ".npy"))
        return hr__fail(-EINVAL,
                        "source: %s has no head of NumPy's, which OLMo's .npy files lack too. Give the dtype that it "
                        "was written with, such as dtype=\"uint16\" for OLMo's, to read it as tokens only",
                        path);
    if (!given.bits && !hr__has_suffix(path, ".bin"))
        return hr__fail(-EINVAL,
                        "source: %s does not begin as a known token file; give its dtype, such as dtype=\"uint16\", to "
                        "read it as tokens only",
                        path);
    file->kind = HR_TOKENS_HEADLESS;
    file->dtype = given.bits ? given : UINT16;
    return count_tokens(tokens, file);
}

static int check_dtype(const hr_tokens *tokens, const struct hr__tokens_file *file) {
    struct hr_dtype given = tokens->options.dtype;
    if (!given.bits || (given.code == file->dtype.code && given.bits == file->dtype.bits)) return 0;
    return hr__fail(-EINVAL, "source: %s has tokens of %s by its head, but dtype is \"%s\"; leave it out",
                    hr__tokens_path(tokens, file->data), hr__dtype_name(file->dtype), hr__dtype_name(given));
}

/* ---- heads ---- */

static int read_by_head(const hr_tokens *tokens, struct hr__tokens_file *file, struct head *head) {
    int32_t magic = 0;
    head->count = hr__min(bytes_of(tokens, file), sizeof head->bytes);
    int r = head->count ? hr__pool_read(tokens->pool, file->data, 0, head->bytes, head->count) : 0;
    if (r < 0) return r;
    if (head->count >= sizeof magic) memcpy(&magic, head->bytes, sizeof magic);
    if (head->count >= 6 && memcmp(head->bytes, "\x93NUMPY", 6) == 0)
        return read_npy(tokens, file, head->bytes, head->count);
    if (magic == LLMC_UINT16 || magic == LLMC_UINT32)
        return read_llmc(tokens, file, (const int32_t *)head->bytes, head->count);
    if (magic == LLMC_EVAL)
        return hr__fail(-EINVAL,
                        "source: %s is an evaluation file of llm.c (number %d), whose examples are no tokens in a row",
                        hr__tokens_path(tokens, file->data), magic);
    return read_headless(tokens, file, head);
}

static int read_single(hr_tokens *tokens, const char *path, struct hr__tokens_file *file) {
    struct head *head = hr__realloc(NULL, sizeof *head);
    if (!head) return -ENOMEM;
    int r = hr__pool_add(tokens->pool, path, &file->data);
    if (r == 0) r = read_by_head(tokens, file, head);
    hr__free(head);
    return r;
}

static int read_megatron(hr_tokens *tokens, const char *data, const char *index, struct hr__tokens_file *file) {
    int r = hr__pool_add(tokens->pool, data, &file->data);
    if (r == 0) r = hr__pool_add(tokens->pool, index, &file->index);
    file->kind = HR_TOKENS_MEGATRON;
    if (r == 0) r = hr__megatron_open(tokens, file);
    return r < 0 ? r : count_tokens(tokens, file);
}

/* The .idx file of a remote object has to be known: the process that opens the source asks for it once. */
static bool has_index_next_to_it(const char *path, const char *index) {
    return hr__remote_is(path) ? hr__known_find(index) != NULL : hr__place_exists(index);
}

int hr__tokens_recognise(hr_tokens *tokens, const char *path, struct hr__tokens_file *ret_file) {
    char data[HR__PATH_BYTES], index[HR__PATH_BYTES];
    struct hr__tokens_file file = {0};
    bool is_named = hr__has_suffix(path, ".idx") || hr__has_suffix(path, ".bin");
    int stem = (int)strlen(path) - (is_named ? 4 : 0);
    if (hr__path(data, "%.*s.bin", stem, path) < 0 || hr__path(index, "%.*s.idx", stem, path) < 0)
        return hr__fail(-ENAMETOOLONG, "source: the path %s is too long", path);
    bool has_index =
        hr__has_suffix(path, ".idx") || ((is_named || !hr__place_exists(path)) && has_index_next_to_it(path, index));
    int r = has_index ? read_megatron(tokens, data, index, &file) : read_single(tokens, path, &file);
    if (r == 0) r = check_dtype(tokens, &file);
    if (r == 0) *ret_file = file;
    return r;
}
