/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "source/lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

/* Scans a text file, and compares the lines that are found with those of a plain loop. */

enum { BYTES_MOST = 1 << 20 };

static char path[64];
static int fd;
static unsigned char text[BYTES_MOST], memory[HR__WINDOW_BYTES];

static void must(bool holds) {
    if (!holds) abort();
}

static void remove_file(void) {
    unlink(path);
}

static void begin(void) {
    snprintf(path, sizeof path, "/dev/shm/hr-fuzz-XXXXXX");
    fd = mkstemp(path);
    must(fd >= 0);
    atexit(remove_file);
}

/* Repeats each byte of the input so often that lines are longer than a piece or the window. */
static size_t stretch(const uint8_t *input, size_t bytes, size_t times) {
    size_t count = 0;
    for (size_t i = 0; i < bytes && count + times <= BYTES_MOST; i++) {
        size_t some = input[i] == '\n' || input[i] == '\r' ? 1 : times;
        memset(text + count, input[i], some);
        count += some;
    }
    return count;
}

static bool is_blank(const unsigned char *line, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!memchr(" \t\n\v\f\r", line[i], 6)) return false;
    return true;
}

static void check_lines(size_t bytes, const struct hr__draft *draft) {
    size_t at = bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    uint64_t number = 0, blank_count = 0;
    while (at < bytes) {
        const unsigned char *end = memchr(text + at, '\n', bytes - at);
        size_t next = end ? (size_t)(end - text) + 1 : bytes, count = next - at - (end != NULL);
        if (end && count && text[at + count - 1] == '\r') count--;
        if (is_blank(text + at, count))
            blank_count++;
        else {
            must(number < draft->file.entry_count);
            struct hr__entry entry = draft->entries[number++];
            must(hr__line_at(entry) == at && hr__line_bytes(entry) == count);
            must(hr__line_has_hash(entry, hr__line_hash(text + at, count)));
        }
        at = next;
    }
    must(number == draft->file.entry_count && blank_count == draft->file.counts[HR_LINES_BLANK]);
}

/* The first byte decides how long lines are. */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    static const size_t times[] = {1, 300, 65536, 65537};
    struct hr__draft draft;
    if (!*path) begin();
    if (bytes == 0) return 0;
    size_t count = stretch(input + 1, bytes - 1, times[input[0] % 4]);
    must(ftruncate(fd, 0) == 0 && pwrite(fd, text, count, 0) == (ssize_t)count);
    struct hr__window window = {.fd = fd, .path = path, .file_bytes = count, .memory = memory};
    hr__draft_init(&draft);
    must(hr__lines_scan(&window, &draft) == 0);
    if (!draft.file.damage) check_lines(count, &draft);
    hr__draft_done(&draft);
    return 0;
}
