/* SPDX-License-Identifier: Apache-2.0 */
/* Documents between separators: finds them by reading all files once, or takes what an earlier scan has found. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "tokens.h"

enum { SOME = 4096 };

static bool is_scanned(const hr_tokens *tokens) {
    return tokens->scan_file == tokens->count;
}

static int add_end(hr_tokens *tokens, uint64_t end) {
    if (tokens->end_count == tokens->end_room) {
        uint64_t room = 2 * tokens->end_room + SOME;
        uint64_t *ends = hr__realloc(tokens->ends, room * sizeof *ends);
        if (!ends) return hr__fail(-ENOMEM, "source: no memory for where %" PRIu64 " documents end", tokens->end_count);
        tokens->ends = ends;
        tokens->end_room = room;
    }
    tokens->ends[tokens->end_count++] = end;
    return 0;
}

/* Goes on with the next file, after the last end of this one was added. */
static void finish_file(hr_tokens *tokens) {
    struct hr__tokens_file *file = &tokens->files[tokens->scan_file++];
    file->sample_count = tokens->end_count - file->first_sample;
    file->used_count = file->token_count;
    tokens->scan_token = 0;
    if (!is_scanned(tokens)) tokens->files[tokens->scan_file].first_sample = tokens->end_count;
}

static bool has_ended(const hr_tokens *tokens, uint64_t at) {
    uint64_t first = tokens->files[tokens->scan_file].first_sample;
    return at == (tokens->end_count > first ? tokens->ends[tokens->end_count - 1] : 0);
}

/* Adds an end behind each separator, or before it. */
static int add_ends(hr_tokens *tokens, const int64_t *found, uint64_t count) {
    bool is_behind = tokens->files[tokens->scan_file].kind != HR_TOKENS_LLMC;
    for (uint64_t i = 0; i < count; i++) {
        if ((uint64_t)found[i] != tokens->options.separator) continue;
        uint64_t end = tokens->scan_token + i + is_behind;
        int r = has_ended(tokens, end) ? 0 : add_end(tokens, end);
        if (r < 0) return r;
    }
    return 0;
}

static int scan_some(hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t count) {
    int64_t found[SOME];
    struct hr__span span = {file->data_at + tokens->scan_token * hr__item_bytes(file->dtype), count};
    uint64_t before = tokens->end_count;
    int r = hr__tokens_read_span(tokens, file, span, found);
    if (r == 0) r = add_ends(tokens, found, count);
    if (r < 0) tokens->end_count = before; /* another call reads this part again */
    return r;
}

static int check_unit(const hr_tokens *tokens) {
    if (tokens->options.unit == HR_TOKENS_SEPARATED) return 0;
    return hr__fail(-EINVAL, "source: only documents between separators have ends that are found by a scan");
}

int hr_tokens_scan(hr_tokens *tokens, uint64_t most_bytes) {
    if (check_unit(tokens) < 0) return -EINVAL;
    while (!is_scanned(tokens)) {
        const struct hr__tokens_file *file = &tokens->files[tokens->scan_file];
        uint64_t count = hr__min(SOME, file->token_count - tokens->scan_token);
        uint64_t bytes = count * hr__item_bytes(file->dtype);
        if (bytes > most_bytes) return 0;
        int r = scan_some(tokens, file, count);
        if (r < 0) return r;
        most_bytes -= bytes;
        tokens->scan_token += count;
        if (tokens->scan_token < file->token_count) continue;
        if (!has_ended(tokens, file->token_count) && (r = add_end(tokens, file->token_count)) < 0) return r;
        finish_file(tokens);
    }
    return 1;
}

const uint64_t *hr_tokens_ends(const hr_tokens *tokens, uint64_t *ret_count) {
    *ret_count = tokens->end_count;
    return tokens->ends;
}

static void forget_ends(hr_tokens *tokens) {
    tokens->end_count = tokens->scan_token = tokens->scan_file = 0;
}

/* Takes the ends of one file, from the number `first` on. Returns false if they do not fit. */
static bool take_file(hr_tokens *tokens, const uint64_t *ends, uint64_t count) {
    uint64_t last = 0, length = tokens->files[tokens->scan_file].token_count;
    while (last < length) {
        if (tokens->end_count == count || ends[tokens->end_count] <= last || ends[tokens->end_count] > length)
            return false;
        last = ends[tokens->end_count];
        tokens->ends[tokens->end_count++] = last;
    }
    finish_file(tokens);
    return true;
}

int hr_tokens_set_ends(hr_tokens *tokens, const uint64_t *ends, uint64_t count) {
    uint64_t bytes = 0;
    if (check_unit(tokens) < 0) return -EINVAL;
    uint64_t *copy = hr__mul(count + 1, sizeof *ends, &bytes) ? hr__realloc(NULL, bytes) : NULL;
    if (!copy) return hr__fail(-ENOMEM, "source: no memory for where %" PRIu64 " documents end", count);
    hr__free(tokens->ends);
    tokens->ends = copy;
    tokens->end_room = count + 1;
    forget_ends(tokens);
    while (!is_scanned(tokens))
        if (!take_file(tokens, ends, count)) break;
    if (is_scanned(tokens) && tokens->end_count == count) return 0;
    forget_ends(tokens);
    return hr__fail(-EINVAL, "source: these are not the ends of the documents of these files");
}

uint64_t hr__separated_begin(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t index) {
    return index == file->first_sample ? 0 : tokens->ends[index - 1];
}
