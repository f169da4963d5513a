/* SPDX-License-Identifier: Apache-2.0 */
/* Token files that are open: shared by the files of src/source. */
#ifndef HR_SOURCE_TOKENS_H
#define HR_SOURCE_TOKENS_H

#include <headrace/tokens.h>

#include <stdbool.h>
#include <stdint.h>

#include "pool.h"

struct hr__tokens_file {
    uint32_t data, index; /* numbers in the pool; index: of Megatron's .idx file */
    enum hr_tokens_kind kind;
    struct hr_dtype dtype;
    uint64_t data_at, token_count;
    uint64_t sequence_count, document_count; /* of Megatron's */
    uint64_t first_sample, sample_count;
    uint64_t used_count; /* tokens that are in a sample */
};

struct hr_tokens {
    struct hr_tokens_options options;
    struct hr__pool *pool;
    struct hr__tokens_file *files;
    uint32_t count;
    uint64_t *ends; /* HR_TOKENS_SEPARATED: of each document, in tokens of its file */
    uint64_t end_count, end_room;
    uint32_t scan_file; /* where the scan goes on */
    uint64_t scan_token;
};

static inline uint32_t hr__item_bytes(struct hr_dtype dtype) {
    return dtype.bits / 8u;
}

static inline const char *hr__tokens_path(const hr_tokens *tokens, uint32_t number) {
    return hr__pool_file(tokens->pool, number)->path;
}

/* ---- recognise.c ---- */

/* Opens the file that a path names, finds out what it is, and checks its head. With a message. */
int hr__tokens_recognise(hr_tokens *tokens, const char *path, struct hr__tokens_file *ret_file);
bool hr__has_suffix(const char *path, const char *suffix); /* and something before it */
const char *hr__dtype_name(struct hr_dtype dtype);         /* "uint16", ...; "": tokens do not have it */

/* ---- foreign.c ---- */

/* Refuses a file without a known head that has no uint16 tokens of a text, as far as its first `count` of `bytes` bytes
 * show it. With a message that says what it is. */
int hr__tokens_check_foreign(const char *path, const unsigned char *head, uint64_t count, uint64_t bytes);

/* ---- megatron.c: the .idx file ---- */

/* Reads the index, and compares everything in it with the size of the .bin file. With a message. */
int hr__megatron_open(hr_tokens *tokens, struct hr__tokens_file *file);

/* A part of a .bin file. */
struct hr__span {
    uint64_t at, count; /* offset in bytes, number of tokens */
};
/* Calls `visit` for each part of a sequence or document (options.unit), neighbours as one, until it returns something
 * else than 0. Returns that. Checks the parts. With a message. */
int hr__megatron_visit(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t number,
                       int (*visit)(void *context, struct hr__span span), void *context);
/* Adds up the lengths of `count` sequences or documents from `first` on, each. */
int hr__megatron_lengths(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t first, uint64_t count,
                         int64_t *ret_lengths);

/* ---- tokens.c ---- */

/* Reads tokens that lie behind each other, with all checks. */
int hr__tokens_read_span(const hr_tokens *tokens, const struct hr__tokens_file *file, struct hr__span span,
                         int64_t *ret_tokens);

/* ---- separate.c ---- */

/* The first token of a document. */
uint64_t hr__separated_begin(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t index);

/* ---- widen.c ---- */

/* Converts tokens to int64. Returns the number of tokens before the first that is not below `limit`; `count` if there
 * is no such token. limit 0: only what does not fit into an int64. */
uint64_t hr__widen(struct hr_dtype dtype, const void *from, uint64_t count, uint64_t limit, int64_t *ret_tokens);

#endif
