/* SPDX-License-Identifier: Apache-2.0 */
/* Knows .bin files without a known head whose bytes cannot be uint16 tokens of a text, and says what they are. Such a
 * file would otherwise be read as tokens without a word. */
#include <errno.h>
#include <string.h>

#include "base/base.h"
#include "base/error.h"
#include "lines.h"
#include "tokens.h"

/* ---- by their first bytes ---- */

struct magic {
    const char *bytes;
    uint32_t at, count;
    const char *format;
};

static const struct magic magics[] = {
    {"LITPKDS", 0, 7, "a PackedDataset of lit-gpt, whose first 24 bytes are a head"},
    {"PK\5\6", 0, 4, "an empty zip archive"},
    {"7z\xbc\xaf\x27\x1c", 0, 6, "a 7z archive"},
    {"ustar", 257, 5, "a tar file"},
    {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20", 0, 10, "a file of torch.save"},
    {"\x80\x04\x95", 0, 3, "a pickle"},
    {"\x80\x05\x95", 0, 3, "a pickle"},
    {"{\"", 8, 2, "a file of safetensors"}, /* and a count of bytes before it: see is_magic */
    {"GGUF", 0, 4, "a model in GGUF"},
    {"\x89HDF\r\n\x1a\n", 0, 8, "an HDF5 file"},
    {"PAR1", 0, 4, "a Parquet file"},
    {"ARROW1\0\0", 0, 8, "an Arrow file"},
    {"SQLite format 3", 0, 16, "a database of SQLite"},
    {"\xc6\xd7\x34\x01", 0, 4, "a checkpoint of llm.c"}, /* 20240326 */
    {"\xc7\xd7\x34\x01", 0, 4, "a checkpoint of llm.c"}, /* 20240327 */
    {"TNTIDX\0\0", 0, 8, "an index of fairseq"},
    {"MMIDIDX\0\0", 0, 9, "an index of Megatron"},
};

static uint64_t word(const unsigned char *from, uint32_t bytes) {
    uint64_t value = 0;
    for (uint32_t i = bytes; i-- > 0;) value = value << 8 | from[i];
    return value;
}

static bool is_magic(const struct magic *magic, const unsigned char *head, uint64_t count, uint64_t bytes) {
    if (count < magic->at + magic->count || memcmp(head + magic->at, magic->bytes, magic->count) != 0) return false;
    return magic->at != 8 || word(head, 8) < bytes;
}

/* A chunk of LitData, and a shard of MosaicML's Streaming: a count of items, and the offsets of all items and of the
 * end, the first of which is behind the offsets. */
static bool is_chunk(const unsigned char *head, uint64_t count, uint64_t bytes) {
    uint64_t items = count < 12 ? 0 : word(head, 4), first = 4 * (items + 2);
    return items && items < UINT32_MAX / 8 && word(head + 4, 4) == first && first <= bytes;
}

/* A pickle of protocol 2 or 3: 0x80, the protocol, and an opcode with which one usually goes on. */
static bool is_old_pickle(const unsigned char *head, uint64_t count) {
    return count > 3 && head[0] == 0x80 && (head[1] == 2 || head[1] == 3) && head[2] && strchr("}](c", head[2]);
}

static const char *find_format(const unsigned char *head, uint64_t count, uint64_t bytes) {
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++)
        if (is_magic(&magics[i], head, count, bytes)) return magics[i].format;
    if (is_old_pickle(head, count)) return "a pickle";
    return is_chunk(head, count, bytes) ? "a chunk of LitData or of Streaming, which has a head" : NULL;
}

/* ---- by what is in them ---- */

/* Bytes that judge a file: of less, anything may be the tokens of a text. */
enum { TEXT_LEAST = 32, ZEROS_LEAST = 64, SMALL_LEAST = 256, NARROW_LEAST = 512, ORDER_LEAST = 4096 };
enum { VOCABULARY_UPPER = 50257 >> 8 }; /* no upper byte of GPT-2's tokens is larger; lower bytes have all values */
enum { UPPER_MOST = 16 }; /* the upper half of a token of uint32 is below: no vocabulary has 2^20 tokens */

/* Returns true if the bytes are text in UTF-8, the end of which may be cut. */
static bool is_text(const unsigned char *head, uint64_t count) {
    uint32_t behind = 0;
    for (uint64_t i = 0; i < count; i++) {
        unsigned char byte = head[i];
        bool is_behind = (byte & 0xc0) == 0x80;
        if (is_behind != (behind > 0)) return false;
        if (is_behind)
            behind--;
        else if (byte >= 0xc2 && byte < 0xf5)
            behind = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
        else if (byte >= 0x7f || (byte < 0x20 && (byte < '\t' || byte > '\r')))
            return false;
    }
    return true;
}

/* The largest uint16 of the head, by their places modulo 4, and the largest of their lower and upper bytes. */
struct seen {
    uint32_t most[4]; /* without 0xffff, the upper half of -1 */
    uint32_t lower, upper;
};

static struct seen look(const unsigned char *head, uint64_t count, bool is_swapped) {
    struct seen seen = {{0}, 0, 0};
    for (uint64_t i = 0; i + 1 < count; i += 2) {
        uint32_t lower = head[i + is_swapped], upper = head[i + !is_swapped], token = upper << 8 | lower;
        uint32_t *most = &seen.most[i / 2 % 4];
        if (token != UINT16_MAX && token > *most) *most = token;
        if (lower > seen.lower) seen.lower = lower;
        if (upper > seen.upper) seen.upper = upper;
    }
    return seen;
}

static uint32_t most_of_two(const struct seen *seen, int place) {
    return seen->most[place] > seen->most[place + 2] ? seen->most[place] : seen->most[place + 2];
}

/* Returns true if the uint16 at `place` and `place` + 2 (modulo 4) are the upper halves of tokens of uint32, and the
 * others are not. */
static bool are_upper_halves(const struct seen *seen, int place, uint64_t count) {
    uint32_t upper = most_of_two(seen, place), lower = most_of_two(seen, 1 - place);
    if (upper == 0) return lower > 0 && count >= ZEROS_LEAST;
    return upper < UPPER_MOST && lower >= UPPER_MOST && count >= SMALL_LEAST;
}

static const char *judge(const unsigned char *head, uint64_t count) {
    struct seen seen = look(head, count, false), swapped = look(head, count, true);
    if (are_upper_halves(&seen, 1, count))
        return seen.most[2] == 0 ? "tokens of 8 bytes, because of four uint16 only the first is large (dtype=\"int64\")"
                                 : "tokens of 4 bytes, because every second uint16 is 0 or small (dtype=\"uint32\" or "
                                   "\"int32\"; or a "
                                   ".bin of Megatron whose .idx is missing)";
    if (are_upper_halves(&swapped, 0, count))
        return "tokens of 4 or 8 bytes in the byte order of another machine, because every second uint16 is 0 or small";
    if (count >= TEXT_LEAST && is_text(head, count)) return "text, which has not been made into tokens";
    if (count >= NARROW_LEAST && seen.lower < 0x80 && seen.upper < 0x80 && seen.upper > 0)
        return "tokens of 1 byte, because no byte is above 127 (dtype=\"uint8\")";
    if (count >= ORDER_LEAST && seen.lower <= VOCABULARY_UPPER && seen.upper > VOCABULARY_UPPER)
        return "tokens in the byte order of another machine, because only their upper bytes have large values";
    if (count >= NARROW_LEAST && seen.lower == 0 && seen.upper == 0)
        return "a file that begins with zeros only, as one that was not filled";
    return NULL;
}

/* ---- refusing ---- */

static int refuse(const char *path, const char *format) {
    return hr__fail(-EINVAL,
                    "source: %s cannot be read as tokens of uint16, because it seems to be %s. If it has tokens and no "
                    "head, give their dtype, such as dtype=\"uint16\"",
                    path, format);
}

int hr__tokens_check_foreign(const char *path, const unsigned char *head, uint64_t count, uint64_t bytes) {
    const char *format = hr__lines_format(head, count);
    if (!format) format = find_format(head, count, bytes);
    if (!format && (hr__has_suffix(path, "_document.bin") || hr__has_suffix(path, "_sentence.bin")))
        return hr__fail(-EINVAL,
                        "source: %s is named as Megatron's files, but its index %.*s.idx is missing, which says what "
                        "tokens it has. Copy the index too, or give the dtype of the tokens, such as dtype=\"int32\"",
                        path, (int)strlen(path) - 4, path);
    if (!format && hr__has_suffix(path, ".bin")) format = judge(head, count);
    return format ? refuse(path, format) : 0;
}
