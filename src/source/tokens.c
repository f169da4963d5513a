/* SPDX-License-Identifier: Apache-2.0 */
/* Token files as samples: finds and reads them. */
#include "tokens.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"

static const struct hr__tokens_file no_file;

/* ---- opening ---- */

static int check_options(const struct hr_tokens_options *options) {
    const uint64_t most = UINT64_C(1) << 60; /* keeps sums of lengths within 64 bits */
    if (options->dtype.bits && !*hr__dtype_name(options->dtype))
        return hr__fail(-EINVAL, "source: tokens are integers of 8 to 64 bits, not of code %u and %u bits",
                        options->dtype.code, options->dtype.bits);
    if (options->unit > HR_TOKENS_SEPARATED) return hr__fail(-EINVAL, "source: there is no unit %d", options->unit);
    if (options->unit == HR_TOKENS_WINDOWS && (options->length < 1 || options->length > most))
        return hr__fail(-EINVAL, "source: length is %" PRIu64 "; give 1 or more, and at most 2^60", options->length);
    if (options->stride > most)
        return hr__fail(-EINVAL, "source: stride is %" PRIu64 "; give at most 2^60", options->stride);
    return 0;
}

static int check_kind(const hr_tokens *tokens, const struct hr__tokens_file *file) {
    enum hr_tokens_unit unit = tokens->options.unit;
    bool is_megatron = file->kind == HR_TOKENS_MEGATRON;
    if (is_megatron || (unit != HR_TOKENS_SEQUENCES && unit != HR_TOKENS_DOCUMENTS)) return 0;
    return hr__fail(-EINVAL,
                    "source: %s is no file of Megatron's with an .idx file next to it, so it has no %s; give the "
                    "length of windows, or a separator of documents",
                    hr__tokens_path(tokens, file->data), unit == HR_TOKENS_SEQUENCES ? "sequences" : "documents");
}

static uint64_t count_windows(const hr_tokens *tokens, const struct hr__tokens_file *file) {
    uint64_t wanted = tokens->options.length + tokens->options.has_labels;
    return file->token_count < wanted ? 0 : (file->token_count - wanted) / tokens->options.stride + 1;
}

/* The tokens that windows cover. */
static uint64_t count_used(const hr_tokens *tokens, const struct hr__tokens_file *file) {
    const struct hr_tokens_options *options = &tokens->options;
    uint64_t wanted = options->length + options->has_labels;
    if (!file->sample_count) return 0;
    return hr__min(options->stride, wanted) * (file->sample_count - 1) + wanted;
}

static void count_samples(const hr_tokens *tokens, struct hr__tokens_file *file, uint64_t first) {
    enum hr_tokens_unit unit = tokens->options.unit;
    file->first_sample = first;
    if (unit == HR_TOKENS_SEQUENCES) file->sample_count = file->sequence_count;
    if (unit == HR_TOKENS_DOCUMENTS) file->sample_count = file->document_count;
    if (unit != HR_TOKENS_WINDOWS) return;
    file->sample_count = count_windows(tokens, file);
    file->used_count = count_used(tokens, file);
}

static int add_file(hr_tokens *tokens, const char *path) {
    struct hr__tokens_file file = no_file, *last = tokens->count ? &tokens->files[tokens->count - 1] : NULL;
    int r = hr__tokens_recognise(tokens, path, &file);
    if (r == 0) r = check_kind(tokens, &file);
    if (r < 0) return r;
    count_samples(tokens, &file, last ? last->first_sample + last->sample_count : 0);
    tokens->files[tokens->count++] = file;
    return 0;
}

static int fill(hr_tokens *tokens, const char *const *paths, size_t path_count) {
    int r = hr__pool_new(&tokens->pool);
    if (r == 0) tokens->files = hr__realloc(NULL, (path_count + 1) * sizeof *tokens->files);
    if (!tokens->files) return -ENOMEM;
    for (size_t i = 0; r == 0 && i < path_count; i++) r = add_file(tokens, paths[i]);
    return r;
}

int hr_tokens_open(const char *const *paths, size_t path_count, const struct hr_tokens_options *options,
                   hr_tokens **ret_tokens) {
    int r = check_options(options);
    if (r < 0) return r;
    if (path_count >= UINT32_MAX / 4) return hr__fail(-EINVAL, "source: %zu paths are too many", path_count);
    hr_tokens *tokens = hr__realloc(NULL, sizeof *tokens);
    if (!tokens) return hr__fail(-ENOMEM, "source: no memory to open token files");
    *tokens = (hr_tokens){.options = *options};
    if (!tokens->options.stride) tokens->options.stride = options->length;
    r = fill(tokens, paths, path_count);
    if (r == 0)
        *ret_tokens = tokens;
    else
        hr_tokens_close(tokens);
    return r == -ENOMEM ? hr__fail(r, "source: no memory to open %zu token files", path_count) : r;
}

hr_tokens *hr_tokens_close(hr_tokens *tokens) {
    if (!tokens) return NULL;
    hr__pool_free(tokens->pool);
    hr__free(tokens->files);
    hr__free(tokens->ends);
    hr__free(tokens);
    return NULL;
}

/* ---- what there is ---- */

void hr_tokens_look(const hr_tokens *tokens, struct hr_tokens_info *ret_info) {
    struct hr_tokens_info info = {.file_count = tokens->count};
    for (uint32_t i = 0; i < tokens->count; i++) {
        info.sample_count += tokens->files[i].sample_count;
        info.token_count += tokens->files[i].token_count;
        info.used_count += tokens->files[i].used_count;
    }
    *ret_info = info;
}

static uint64_t stamp_of(const hr_tokens *tokens, uint32_t number, uint64_t seed) {
    const struct hr__file_info *info = &hr__pool_file(tokens->pool, number)->first;
    return hr__hash_word((uint64_t)info->changed_ns, hr__hash_word(info->bytes, seed));
}

int hr_tokens_look_file(const hr_tokens *tokens, uint32_t number, struct hr_tokens_file *ret_file) {
    if (number >= tokens->count) return hr__fail(-ERANGE, "source: there is no file %u of %u", number, tokens->count);
    const struct hr__tokens_file *file = &tokens->files[number];
    uint64_t stamp = stamp_of(tokens, file->data, 0);
    if (file->kind == HR_TOKENS_MEGATRON) stamp = stamp_of(tokens, file->index, stamp);
    *ret_file = (struct hr_tokens_file){.path = hr__tokens_path(tokens, file->data),
                                        .kind = file->kind,
                                        .dtype = file->dtype,
                                        .data_at = file->data_at,
                                        .token_count = file->token_count,
                                        .sample_count = file->sample_count,
                                        .stamp = stamp};
    return 0;
}

/* ---- finding ---- */

/* The file of a sample: the last one that does not begin behind it. NULL with a message. */
static const struct hr__tokens_file *file_of(const hr_tokens *tokens, uint64_t index) {
    uint32_t low = 0, high = tokens->count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (tokens->files[middle].first_sample <= index)
            low = middle;
        else
            high = middle;
    }
    const struct hr__tokens_file *file = tokens->count ? &tokens->files[low] : &no_file;
    if (index >= file->first_sample && index - file->first_sample < file->sample_count) return file;
    hr__message_set("source: there is no sample %" PRIu64, index);
    return NULL;
}

static int note_span(void *context, struct hr__span span) {
    struct hr__span *whole = context;
    if (!whole->count) whole->at = span.at;
    whole->count += span.count;
    return 0;
}

/* Finds the tokens of a sample that lie behind each other: of all but Megatron's. */
static struct hr__span span_of(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t index) {
    const struct hr_tokens_options *options = &tokens->options;
    uint64_t first, count;
    if (options->unit == HR_TOKENS_WINDOWS) {
        first = (index - file->first_sample) * options->stride;
        count = options->length + options->has_labels;
    } else {
        first = hr__separated_begin(tokens, file, index);
        count = tokens->ends[index] - first;
    }
    return (struct hr__span){file->data_at + first * hr__item_bytes(file->dtype), count};
}

static bool is_indexed(const hr_tokens *tokens) {
    return tokens->options.unit == HR_TOKENS_SEQUENCES || tokens->options.unit == HR_TOKENS_DOCUMENTS;
}

static int visit_spans(const hr_tokens *tokens, const struct hr__tokens_file *file, uint64_t index,
                       int (*visit)(void *context, struct hr__span span), void *context) {
    if (is_indexed(tokens)) return hr__megatron_visit(tokens, file, index - file->first_sample, visit, context);
    return visit(context, span_of(tokens, file, index));
}

static uint64_t length_of(const hr_tokens *tokens, uint64_t count) {
    return count - (tokens->options.has_labels && count > 0);
}

int hr_tokens_find(const hr_tokens *tokens, uint64_t index, struct hr_tokens_sample *ret_sample) {
    const struct hr__tokens_file *file = file_of(tokens, index);
    struct hr__span whole = {0, 0};
    if (!file) return -ERANGE;
    int r = visit_spans(tokens, file, index, note_span, &whole);
    if (r < 0) return r;
    *ret_sample = (struct hr_tokens_sample){.file = (uint32_t)(file - tokens->files),
                                            .at = whole.at,
                                            .count = whole.count,
                                            .length = length_of(tokens, whole.count)};
    return 0;
}

int hr_tokens_lengths(const hr_tokens *tokens, uint64_t first, uint64_t count, int64_t *ret_lengths) {
    while (count) {
        const struct hr__tokens_file *file = file_of(tokens, first);
        if (!file) return -ERANGE;
        uint64_t within = first - file->first_sample, some = hr__min(count, file->sample_count - within);
        int r = is_indexed(tokens) ? hr__megatron_lengths(tokens, file, within, some, ret_lengths) : 0;
        if (r < 0) return r;
        for (uint64_t i = 0; i < some; i++) {
            uint64_t all = is_indexed(tokens) ? (uint64_t)ret_lengths[i] : span_of(tokens, file, first + i).count;
            ret_lengths[i] = (int64_t)length_of(tokens, all);
        }
        first += some;
        count -= some;
        ret_lengths += some;
    }
    return 0;
}

/* ---- reading ---- */

/* The arrays that a sample is read to, and how many of its tokens were read. */
struct target {
    const hr_tokens *tokens;
    const struct hr__tokens_file *file;
    int64_t *ret_tokens, *ret_labels; /* ret_labels: NULL without labels */
    uint64_t count;                   /* tokens of the sample */
    uint64_t length;                  /* of each array */
    uint64_t done;
    bool is_now; /* only what is in memory is read */
};

static int refuse_token(const struct target *target, uint64_t at, int64_t token) {
    const char *path = hr__tokens_path(target->tokens, target->file->data);
    if (!target->tokens->options.vocab_size)
        return hr__fail(-EINVAL, "source: %s has a token at byte %" PRIu64 " that is above 2^63 - 1", path, at);
    return hr__fail(-EINVAL,
                    "source: %s has token %" PRId64 " at byte %" PRIu64 ", but vocab_size is %" PRIu64
                    "; the file was made with another vocabulary, or has another dtype than %s",
                    path, token, at, target->tokens->options.vocab_size, hr__dtype_name(target->file->dtype));
}

static int index_changed(const struct target *target) {
    return hr__fail(-ESTALE, "source: the index of %s was changed while a sample was read. Open it again",
                    hr__tokens_path(target->tokens, target->file->data));
}

/* Converts those of `count` tokens that are for the positions `begin` to `begin` + length - 1 of the sample. */
static int convert(const struct target *target, const unsigned char *from, uint64_t at, uint64_t count, uint64_t begin,
                   int64_t *to) {
    uint32_t item = hr__item_bytes(target->file->dtype);
    uint64_t skip = hr__min(count, begin > target->done ? begin - target->done : 0);
    uint64_t end = begin + target->length > target->done ? begin + target->length - target->done : 0;
    count = hr__min(count, end);
    if (skip >= count) return 0;
    to += target->done + skip - begin;
    uint64_t good =
        hr__widen(target->file->dtype, from + skip * item, count - skip, target->tokens->options.vocab_size, to);
    return good == count - skip ? 0 : refuse_token(target, at + (skip + good) * item, to[good]);
}

static int read_to_target(void *context, struct hr__span span) {
    enum { CHUNK_BYTES = 16384 };
    _Alignas(HR_CACHE_LINE) unsigned char chunk[CHUNK_BYTES];
    struct target *target = context;
    uint32_t item = hr__item_bytes(target->file->dtype);
    while (span.count) {
        uint64_t count = hr__min(span.count, CHUNK_BYTES / item);
        int r = (target->is_now ? hr__pool_read_now : hr__pool_read)(target->tokens->pool, target->file->data, span.at,
                                                                     chunk, count * item);
        if (r == 0) r = convert(target, chunk, span.at, count, 0, target->ret_tokens);
        if (r == 0 && target->ret_labels) r = convert(target, chunk, span.at, count, 1, target->ret_labels);
        if (r < 0) return r;
        target->done += count;
        span.at += count * item;
        span.count -= count;
    }
    return 0;
}

int hr__tokens_read_span(const hr_tokens *tokens, const struct hr__tokens_file *file, struct hr__span span,
                         int64_t *ret_tokens) {
    struct target target = {.tokens = tokens, .file = file, .length = span.count};
    target.ret_tokens = ret_tokens;
    return read_to_target(&target, span);
}

/* An index may have changed since the sample was found: no more is read than there is room for. */
static int read_checked(void *context, struct hr__span span) {
    struct target *target = context;
    return span.count <= target->count - target->done ? read_to_target(context, span) : index_changed(target);
}

/* Compares a document with the scan that has found it: there has to be a separator at its end, or its begin. */
static int check_separator(const struct target *target, uint64_t index) {
    const struct hr__tokens_file *file = target->file;
    const hr_tokens *tokens = target->tokens;
    uint64_t begin = hr__separated_begin(tokens, file, index), end = tokens->ends[index];
    const int64_t *last = target->ret_labels ? target->ret_labels : target->ret_tokens;
    bool is_behind = file->kind != HR_TOKENS_LLMC;
    if (!target->length || (is_behind ? end == file->token_count : begin == 0)) return 0;
    uint64_t found = (uint64_t)(is_behind ? last[target->length - 1] : target->ret_tokens[0]);
    if (found == tokens->options.separator) return 0;
    return hr__fail(-ESTALE,
                    "source: %s has token %" PRIu64 " and not the separator %" PRIu64 " at byte %" PRIu64
                    ": it was changed since it was searched for separators. Open it again",
                    hr__tokens_path(tokens, file->data), found, tokens->options.separator,
                    file->data_at + (is_behind ? end - 1 : begin) * hr__item_bytes(file->dtype));
}

int hr_tokens_read(const hr_tokens *tokens, uint64_t index, const struct hr_tokens_sample *sample, int64_t *ret_tokens,
                   int64_t *ret_labels) {
    const struct hr__tokens_file *file = file_of(tokens, index);
    if (!file) return -ERANGE;
    if (sample->length != length_of(tokens, sample->count) || !ret_labels == tokens->options.has_labels)
        return hr__fail(-EINVAL, "source: sample %" PRIu64 " is not as hr_tokens_find has found it", index);
    struct target target = {.tokens = tokens, .file = file, .count = sample->count, .length = sample->length};
    target.ret_tokens = ret_tokens;
    target.ret_labels = ret_labels;
    int r = visit_spans(tokens, file, index, read_checked, &target);
    if (r < 0) return r;
    if (target.done != sample->count) return index_changed(&target);
    return tokens->options.unit == HR_TOKENS_SEPARATED ? check_separator(&target, index) : 0;
}

/* ---- asking ahead ---- */

static void ask_span(const hr_tokens *tokens, const struct hr__tokens_file *file, struct hr__span span,
                     hr_announcer *announcer) {
    hr__pool_ask(tokens->pool, file->data, span.at, span.count * hr__item_bytes(file->dtype), announcer);
}

void hr_tokens_ask(const hr_tokens *tokens, const int64_t *indices, size_t count, hr_announcer *announcer) {
    for (size_t i = 0; i < count; i++) {
        const struct hr__tokens_file *file = indices[i] < 0 ? NULL : file_of(tokens, (uint64_t)indices[i]);
        if (file && !is_indexed(tokens)) ask_span(tokens, file, span_of(tokens, file, (uint64_t)indices[i]), announcer);
    }
}

/* ---- a batch ---- */

/* Reads a window. -EAGAIN, if `now`: it is not in memory, and the kernel was asked for it. */
static int gather_one(const hr_tokens *tokens, int64_t index, uint64_t row, bool now, int64_t *ret_tokens,
                      int64_t *ret_labels) {
    const struct hr__tokens_file *file = index < 0 ? NULL : file_of(tokens, (uint64_t)index);
    uint64_t length = tokens->options.length;
    if (!file) return hr__fail(-ERANGE, "source: there is no sample %" PRId64, index);
    struct hr__span span = span_of(tokens, file, (uint64_t)index);
    struct target target = {.tokens = tokens, .file = file, .count = span.count, .length = length, .is_now = now};
    target.ret_tokens = ret_tokens + row * length;
    target.ret_labels = ret_labels ? ret_labels + row * length : NULL;
    int r = read_to_target(&target, span);
    if (r == -EAGAIN) ask_span(tokens, file, span, NULL);
    return r;
}

int hr_tokens_gather(const hr_tokens *tokens, const int64_t *indices, uint64_t count, int64_t *ret_tokens,
                     int64_t *ret_labels) {
    enum { BLOCK = 64 }; /* rows whose reads a disk may have at a time; a bit for each */
    if (tokens->options.unit != HR_TOKENS_WINDOWS || !ret_labels == tokens->options.has_labels)
        return hr__fail(-EINVAL, "source: a batch is gathered of windows, with labels if there are any");
    for (uint64_t first = 0; first < count; first += BLOCK) {
        uint64_t end = hr__min(count, first + BLOCK), cold = 0;
        for (uint64_t i = first; i < end; i++) {
            int r = gather_one(tokens, indices[i], i, true, ret_tokens, ret_labels);
            if (r == -EAGAIN) cold |= UINT64_C(1) << (i - first);
            if (r < 0 && r != -EAGAIN) return r;
        }
        for (uint64_t i = first; i < end; i++) {
            int r = cold >> (i - first) & 1 ? gather_one(tokens, indices[i], i, false, ret_tokens, ret_labels) : 0;
            if (r < 0) return r;
        }
    }
    return 0;
}
