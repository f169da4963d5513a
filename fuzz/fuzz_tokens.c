/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <headrace/headrace.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

/* Reads token files: Megatron's index with a .bin file of fixed bytes, and files with and without heads. Whatever the
 * bytes are, they are refused, or all samples are read, or are an error, within arrays of exactly their length. */

enum { DATA_BYTES = 512, SAMPLES_MOST = 64 };

static char folder[64];

static const char *path_of(const char *name) {
    static char path[96];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const uint8_t *input, size_t bytes) {
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, input, bytes) != (ssize_t)bytes) abort();
    close(fd);
}

static void remove_folder(void) {
    static const char *const names[] = {"m.bin", "m.idx", "a.bin", "a.npy"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(path_of(names[i]));
    rmdir(folder);
}

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
    snprintf(folder, sizeof folder, "/dev/shm/hr-fuzz-XXXXXX");
    if (!mkdtemp(folder)) abort();
    atexit(remove_folder);
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
