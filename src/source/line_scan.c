/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the lines of a text file, for an index. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"
#include "lines.h"

/* ---- the bytes of a line ---- */

static const uint64_t HASH_SEED = 0x6c696e65;

static bool is_space(unsigned char byte) {
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static bool has_only_spaces(const unsigned char *bytes, uint64_t count) {
    while (count && is_space(*bytes)) bytes++, count--;
    return count == 0;
}

/* Hashes whole pieces as long as there are more bytes than `more_than`. Returns what was hashed. */
static uint64_t hash_pieces(const unsigned char *bytes, uint64_t count, uint64_t more_than, uint64_t *hash) {
    uint64_t done = 0;
    for (; count - done > more_than; done += HR__LINE_PIECE_BYTES)
        *hash = hr__hash(bytes + done, HR__LINE_PIECE_BYTES, *hash);
    return done;
}

static uint64_t hash_rest(const unsigned char *bytes, uint64_t count, uint64_t hash) {
    uint64_t done = hash_pieces(bytes, count, HR__LINE_PIECE_BYTES, &hash);
    return hr__hash(bytes + done, count - done, hash);
}

uint64_t hr__line_hash(const unsigned char *bytes, uint64_t count) {
    return hash_rest(bytes, count, HASH_SEED);
}

/* ---- a scan ---- */

/* All places are offsets in the file. A line may be longer than the window: what is hashed leaves it. */
struct scan {
    struct hr__window *window;
    struct hr__draft *draft;
    uint64_t line_at;     /* the begin of the line */
    uint64_t at;          /* its first byte that is not hashed */
    uint64_t searched;    /* where the search for its end goes on */
    uint64_t hash;        /* of its bytes before `at` */
    bool has_only_spaces; /* they are white space */
};

static void begin_line(struct scan *scan, uint64_t at) {
    scan->line_at = scan->at = scan->searched = at;
    scan->hash = HASH_SEED;
    scan->has_only_spaces = true;
}

static int check_size(const struct scan *scan, uint64_t bytes) {
    if (bytes >> HR__LINE_BYTES_BITS == 0) return 0;
    return hr__fail(-EFBIG, "source: %s has a line of more than 2^%d bytes at offset %" PRIu64 "; is it a text file?",
                    scan->window->path, HR__LINE_BYTES_BITS, scan->line_at);
}

/* Adds a line of which the last `count` bytes are at `bytes`; those before are hashed. A "\r" at its end belongs to the
 * line end if a line feed is behind it; the last line of a file may have none. */
static int add_line(struct scan *scan, const unsigned char *bytes, uint64_t count, bool has_feed) {
    struct hr_index_file *file = &scan->draft->file;
    if (has_feed && count && bytes[count - 1] == '\r') count--;
    if (scan->has_only_spaces && has_only_spaces(bytes, count)) {
        file->counts[HR_LINES_BLANK]++;
        return 0;
    }
    uint64_t line_bytes = scan->at + count - scan->line_at;
    int r = check_size(scan, line_bytes);
    if (r < 0) return r;
    file->data_bytes += line_bytes;
    return hr__draft_add(scan->draft, hr__line_entry(scan->line_at, line_bytes, hash_rest(bytes, count, scan->hash)));
}

/* Adds the lines that end within `count` bytes at scan->at. `bytes` and `count` are then what is left of these. */
static int add_lines(struct scan *scan, const unsigned char **bytes, uint64_t *count) {
    for (;;) {
        uint64_t skip = scan->searched - scan->at;
        const unsigned char *end = memchr(*bytes + skip, '\n', *count - skip);
        if (!end) break;
        uint64_t line = (uint64_t)(end - *bytes);
        int r = add_line(scan, *bytes, line, true);
        if (r < 0) return r;
        begin_line(scan, scan->at + line + 1);
        *bytes = end + 1;
        *count -= line + 1;
    }
    scan->searched = scan->at + *count;
    return 0;
}

/* Hashes the begin of a long line. A "\r" at its end may belong to the end of the line. */
static void hash_begin(struct scan *scan, const unsigned char *bytes, uint64_t count) {
    uint64_t done = hash_pieces(bytes, count, HR__LINE_PIECE_BYTES + 1, &scan->hash);
    scan->has_only_spaces = scan->has_only_spaces && has_only_spaces(bytes, done);
    scan->at += done;
}

/* Returns what is left of the line in the window, and at least a byte more that has not been searched. */
static int get_more(struct scan *scan, const unsigned char **ret_bytes, uint64_t *ret_count) {
    struct hr__window *window = scan->window;
    uint64_t wanted = scan->searched - scan->at + 1;
    int r = hr__window_get(window, scan->at, wanted, HR__WINDOW_BYTES, ret_bytes);
    if (r == 0) *ret_count = window->at + window->count - scan->at;
    return r;
}

static int scan_lines(struct scan *scan) {
    const unsigned char *bytes = NULL;
    uint64_t count = 0;
    while (scan->searched < scan->window->file_bytes) {
        int r = get_more(scan, &bytes, &count);
        if (r == 0) r = add_lines(scan, &bytes, &count);
        if (r < 0) return r;
        if (scan->searched < scan->window->file_bytes) hash_begin(scan, bytes, count);
    }
    return scan->line_at < scan->searched ? add_line(scan, bytes, count, false) : 0;
}

/* ---- a file ---- */

static int check_file(struct scan *scan) {
    struct hr__window *window = scan->window;
    struct hr_index_file *file = &scan->draft->file;
    const unsigned char *head = NULL;
    uint64_t count = hr__min(HR__LINES_HEAD_BYTES, window->file_bytes);
    if (window->file_bytes >> HR__LINE_AT_BITS)
        return hr__fail(-EFBIG, "source: %s has more than 2^%d bytes", window->path, HR__LINE_AT_BITS);
    int r = count ? hr__window_get(window, 0, count, HR__WINDOW_BYTES, &head) : 0;
    if (r < 0) return r;
    file->damage = hr__lines_check_head(head, count);
    begin_line(scan, hr__lines_mark_bytes(head, count));
    return 0;
}

int hr__lines_scan(struct hr__window *window, struct hr__draft *draft) {
    struct scan scan = {.window = window, .draft = draft};
    int r = check_file(&scan);
    draft->file.good_bytes = draft->file.damage ? 0 : window->file_bytes;
    return r < 0 || draft->file.damage ? r : scan_lines(&scan);
}
