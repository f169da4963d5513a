/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>

#include <headrace/headrace.h>

#include "folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

/* Reads token files: Megatron's index with a .bin file of fixed bytes, and files with and without heads. Whatever the
 * bytes are, they are refused, or all samples are read, or are an error, within arrays of exactly their length. */

enum { DATA_BYTES = 512, SAMPLES_MOST = 64 };

static void read_sample(const hr_tokens *tokens, uint64_t index, bool has_labels) {
    struct hr_tokens_sample sample;
    int64_t length;
    if (hr_tokens_find(tokens, index, &sample) < 0) return;
    if (hr_tokens_lengths(tokens, index, 1, &length) < 0 || (uint64_t)length != sample.length) abort();
    if (sample.length > 1 << 20) return; /* many sequences over the same bytes */
    int64_t *x = malloc(sample.length * sizeof *x + 1), *y = malloc(sample.length * sizeof *y + 1);
    if (x && y) hr_tokens_read(tokens, index, &sample, x, has_labels ? y : NULL);
    free(x);
    free(y);
}

static void read_all(const char *name, const struct hr_tokens_options *options) {
    const char *paths[] = {path_of(name)};
    struct hr_tokens_info info;
    hr_tokens *tokens;
    if (hr_tokens_open(paths, 1, options, &tokens) < 0) return;
    if (options->unit == HR_TOKENS_SEPARATED) hr_tokens_scan(tokens, UINT64_MAX); /* fails for a token above 2^63 - 1 */
    hr_tokens_look(tokens, &info);
    for (uint64_t i = 0; i < info.sample_count && i < SAMPLES_MOST; i++) read_sample(tokens, i, options->has_labels);
    if (info.sample_count) read_sample(tokens, info.sample_count - 1, options->has_labels);
    hr_tokens_close(tokens);
}

static void begin(void) {
    uint8_t data[DATA_BYTES];
    for (int i = 0; i < DATA_BYTES; i++) data[i] = (uint8_t)i;
    make_folder();
    write_file("m.bin", data, sizeof data);
}

/* The first byte of input decides what the rest is, and how it is read. */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    static const char *const names[] = {"m.idx", "m.idx", "a.bin", "a.npy"};
    if (!*folder) begin();
    if (bytes == 0) return 0;
    struct hr_tokens_options options = {.length = 1 + (input[0] >> 5), .has_labels = input[0] & 8};
    const char *name = names[input[0] % 4];
    options.unit = name[0] == 'a'      ? input[0] & 4 ? HR_TOKENS_SEPARATED : HR_TOKENS_WINDOWS
                   : input[0] % 4 == 0 ? HR_TOKENS_SEQUENCES
                                       : HR_TOKENS_DOCUMENTS;
    if (input[0] & 16) options.dtype = (struct hr_dtype){1, 8, 1};
    options.separator = 3;
    write_file(name, input + 1, bytes - 1);
    read_all(name, &options);
    return 0;
}
