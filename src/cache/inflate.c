/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "cache/files.h"
#include "os/os.h"

/*
 * Unpacks deflated data (RFC 1951): the members of .npz files that numpy.savez_compressed wrote. fill.c and plan.c call
 * it. A code of up to FAST_BITS bits is decoded by one look into a table, a longer one bit by bit.
 */

enum {
    INPUT = 1 << 16,
    WINDOW = 1 << 15,
    OUTPUT = 2 * WINDOW,
    LENGTHS = 288,
    DISTANCES = 32,
    MAX_BITS = 15,
    FAST_BITS = 10
};

struct code {
    uint16_t counts[MAX_BITS + 1]; /* how many codes have each number of bits */
    uint16_t symbols[LENGTHS];     /* in the order of their codes */
    uint16_t fast[1 << FAST_BITS]; /* by the next bits: symbol << 4 | bits; 0: longer */
};

struct inflater {
    int fd;
    uint64_t at, left; /* of the packed bytes in the file */
    unsigned char input[INPUT];
    uint32_t input_at, input_count;
    uint64_t bits;
    uint32_t bit_count;
    unsigned char output[OUTPUT]; /* the last bytes; when it is full, the newer half moves to its beginning */
    uint32_t output_count;
    uint32_t written; /* of them, given to `write` */
    uint32_t history; /* bytes before output_count that exist */
    int (*write)(void *context, const unsigned char *bytes, uint64_t count);
    void *context;
    int error;
    struct code lengths, distances;
};

/* ---- bits ---- */

static bool refill_input(struct inflater *state) {
    uint64_t count = hr__min(state->left, INPUT);
    if (count == 0) return false;
    int r = hr__read_at(state->fd, state->at, state->input, count);
    if (r < 0) state->error = r;
    state->at += count;
    state->left -= count;
    state->input_at = 0;
    state->input_count = (uint32_t)count;
    return r == 0;
}

/* Makes at least `count` bits available, if there are so many. */
static void need(struct inflater *state, uint32_t count) {
    while (state->bit_count < count) {
        if (state->input_at == state->input_count && !refill_input(state)) return;
        state->bits |= (uint64_t)state->input[state->input_at++] << state->bit_count;
        state->bit_count += 8;
    }
}

static uint32_t take(struct inflater *state, uint32_t count) {
    need(state, count);
    if (state->bit_count < count) {
        if (!state->error) state->error = -EINVAL;
        return 0;
    }
    uint32_t value = (uint32_t)(state->bits & ((UINT64_C(1) << count) - 1));
    state->bits >>= count;
    state->bit_count -= count;
    return value;
}

/* ---- codes ---- */

static uint32_t reverse(uint32_t code, uint32_t bits) {
    uint32_t reversed = 0;
    for (uint32_t i = 0; i < bits; i++) reversed |= (code >> i & 1) << (bits - 1 - i);
    return reversed;
}

static void fill_fast(struct code *code, const unsigned char *bits_of, uint32_t count) {
    uint32_t next[MAX_BITS + 2] = {0};
    memset(code->fast, 0, sizeof code->fast);
    for (uint32_t bits = 1; bits <= MAX_BITS; bits++) next[bits + 1] = (next[bits] + code->counts[bits]) << 1;
    for (uint32_t symbol = 0; symbol < count; symbol++) {
        uint32_t bits = bits_of[symbol];
        if (!bits) continue;
        uint32_t own = next[bits]++;
        if (bits > FAST_BITS) continue;
        for (uint32_t at = reverse(own, bits); at < 1u << FAST_BITS; at += 1u << bits)
            code->fast[at] = (uint16_t)(symbol << 4 | bits);
    }
}

/* Makes a code of the number of bits of each symbol. Returns false if these cannot be a code. */
static bool make_code(struct code *code, const unsigned char *bits_of, uint32_t count) {
    uint16_t places[MAX_BITS + 2] = {0};
    int32_t left = 1;
    memset(code->counts, 0, sizeof code->counts);
    for (uint32_t i = 0; i < count; i++) code->counts[bits_of[i]]++;
    uint16_t unused = code->counts[0];
    code->counts[0] = 0;
    for (uint32_t bits = 1; bits <= MAX_BITS; bits++) {
        left = 2 * left - code->counts[bits];
        if (left < 0) return false;
        places[bits + 1] = (uint16_t)(places[bits] + code->counts[bits]);
    }
    for (uint32_t i = 0; i < count; i++)
        if (bits_of[i]) code->symbols[places[bits_of[i]]++] = (uint16_t)i;
    fill_fast(code, bits_of, count);
    return left == 0 || count - unused <= 1; /* a code of one symbol may be incomplete */
}

static uint32_t decode_slowly(struct inflater *state, const struct code *code) {
    int32_t value = 0, first = 0, index = 0;
    for (uint32_t bits = 1; bits <= MAX_BITS; bits++) {
        value |= (int32_t)take(state, 1);
        if (state->error) return 0;
        int32_t count = code->counts[bits];
        if (value - count < first) return code->symbols[index + (value - first)];
        index += count;
        first = (first + count) << 1;
        value <<= 1;
    }
    state->error = -EINVAL;
    return 0;
}

static uint32_t decode(struct inflater *state, const struct code *code) {
    need(state, MAX_BITS);
    uint32_t found = code->fast[state->bits & ((1u << FAST_BITS) - 1)], bits = found & 15;
    if (!bits || bits > state->bit_count) return decode_slowly(state, code);
    state->bits >>= bits;
    state->bit_count -= bits;
    return found >> 4;
}

/* ---- output ---- */

static void flush(struct inflater *state) {
    if (state->error || state->written == state->output_count) return;
    state->error = state->write(state->context, state->output + state->written, state->output_count - state->written);
    state->written = state->output_count;
}

static void put(struct inflater *state, unsigned char byte) {
    if (state->output_count == OUTPUT) {
        flush(state);
        memcpy(state->output, state->output + WINDOW, WINDOW);
        state->output_count = state->written = WINDOW;
    }
    state->output[state->output_count++] = byte;
    if (state->history < WINDOW) state->history++;
}

static void copy_match(struct inflater *state, uint32_t length, uint32_t distance) {
    if (distance > state->history) {
        state->error = -EINVAL;
        return;
    }
    while (length-- && !state->error) put(state, state->output[state->output_count - distance]);
}

/* ---- blocks ---- */

static void read_stored(struct inflater *state) {
    take(state, state->bit_count & 7);
    uint32_t length = take(state, 16), complement = take(state, 16);
    if (!state->error && (length ^ complement) != 0xFFFF) state->error = -EINVAL;
    while (length-- && !state->error) put(state, (unsigned char)take(state, 8));
}

static void read_coded(struct inflater *state) {
    static const uint16_t length_base[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                             31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static const unsigned char length_bits[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                  2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static const uint16_t distance_base[30] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                               33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                               1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    enum { END = 256, LENGTH_SYMBOLS = 29, DISTANCE_SYMBOLS = 30 };
    while (!state->error) {
        uint32_t symbol = decode(state, &state->lengths);
        if (state->error || symbol == END) return;
        if (symbol < END) {
            put(state, (unsigned char)symbol);
            continue;
        }
        symbol -= END + 1;
        uint32_t length = symbol < LENGTH_SYMBOLS ? length_base[symbol] + take(state, length_bits[symbol]) : 0;
        uint32_t far = decode(state, &state->distances);
        uint32_t distance = far < DISTANCE_SYMBOLS ? distance_base[far] + take(state, far < 2 ? 0 : far / 2 - 1) : 0;
        if (!state->error && (!length || !distance)) state->error = -EINVAL;
        if (!state->error) copy_match(state, length, distance);
    }
}

static void use_fixed(struct inflater *state) {
    unsigned char bits[LENGTHS + DISTANCES];
    for (uint32_t i = 0; i < LENGTHS; i++) bits[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    memset(bits + LENGTHS, 5, DISTANCES);
    make_code(&state->lengths, bits, LENGTHS);
    make_code(&state->distances, bits + LENGTHS, DISTANCES);
}

/* The codes of a block are themselves coded. */
static void read_lengths(struct inflater *state, unsigned char *bits, uint32_t count) {
    enum { REPEAT = 16, ZEROS = 17 };
    for (uint32_t i = 0; i < count && !state->error;) {
        uint32_t symbol = decode(state, &state->lengths), times = 1;
        unsigned char value = symbol < REPEAT ? (unsigned char)symbol : 0;
        if (symbol == REPEAT) {
            times = 3 + take(state, 2);
            if (i == 0) state->error = -EINVAL;
            value = i ? bits[i - 1] : 0;
        } else if (symbol >= ZEROS)
            times = symbol == ZEROS ? 3 + take(state, 3) : 11 + take(state, 7);
        if (times > count - i) state->error = -EINVAL;
        for (; times && !state->error; times--) bits[i++] = value;
    }
}

static void read_codes(struct inflater *state) {
    static const unsigned char order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    unsigned char bits[LENGTHS + DISTANCES] = {0};
    uint32_t length_count = take(state, 5) + 257, distance_count = take(state, 5) + 1, count = take(state, 4) + 4;
    if (length_count > LENGTHS - 2 || distance_count > DISTANCES - 2) state->error = -EINVAL;
    for (uint32_t i = 0; i < count; i++) bits[order[i]] = (unsigned char)take(state, 3);
    if (state->error || !make_code(&state->lengths, bits, 19)) {
        if (!state->error) state->error = -EINVAL;
        return;
    }
    memset(bits, 0, sizeof bits);
    read_lengths(state, bits, length_count + distance_count);
    if (state->error) return;
    if (!bits[256] || !make_code(&state->lengths, bits, length_count) ||
        !make_code(&state->distances, bits + length_count, distance_count))
        state->error = -EINVAL;
}

static void read_blocks(struct inflater *state) {
    bool is_last = false;
    while (!is_last && !state->error) {
        is_last = take(state, 1);
        uint32_t kind = take(state, 2);
        if (state->error) return;
        if (kind == 0) read_stored(state);
        if (kind == 1) use_fixed(state);
        if (kind == 2) read_codes(state);
        if (kind == 3) state->error = -EINVAL;
        if (!state->error && kind != 0) read_coded(state);
    }
    flush(state);
}

int hr__inflate(int fd, uint64_t at, uint64_t packed_bytes,
                int (*write)(void *context, const unsigned char *bytes, uint64_t count), void *context) {
    struct inflater *state = hr__realloc(NULL, sizeof *state);
    if (!state) return -ENOMEM;
    memset(state, 0, sizeof *state);
    state->fd = fd;
    state->at = at;
    state->left = packed_bytes;
    state->write = write;
    state->context = context;
    read_blocks(state);
    int r = state->error;
    hr__free(state);
    return r;
}
