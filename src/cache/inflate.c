/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/base.h"
#include "cache/files.h"
#include "os/os.h"

/* Unpacks deflated data with zlib: the members of .npz files that numpy.savez_compressed wrote. fill.c and plan.c call
 * it. */

enum { INPUT = 1 << 16, OUTPUT = 1 << 16, NO_HEADER = -MAX_WBITS };

struct inflater {
    z_stream stream;
    unsigned char input[INPUT], output[OUTPUT];
};

/* A build with failpoints can make an allocation of zlib fail, as it can those of the library. */
static void *allocate(void *ignored, uInt count, uInt bytes) {
    (void)ignored;
    return hr__realloc(NULL, (size_t)count * bytes);
}

static void release(void *ignored, void *memory) {
    (void)ignored;
    hr__free(memory);
}

static int refill_input(struct inflater *state, int fd, uint64_t *at, uint64_t *left) {
    uint64_t count = hr__min(*left, INPUT);
    int r = count ? hr__read_at(fd, *at, state->input, count) : 0;
    state->stream.next_in = state->input;
    state->stream.avail_in = (uInt)count;
    *at += count;
    *left -= count;
    return r;
}

static int unpack(struct inflater *state, int fd, uint64_t at, uint64_t left,
                  int (*write)(void *context, const unsigned char *bytes, uint64_t count), void *context) {
    z_stream *stream = &state->stream;
    int result = Z_OK, r = 0;
    while (r == 0 && result != Z_STREAM_END) {
        r = stream->avail_in ? 0 : refill_input(state, fd, &at, &left);
        if (r < 0) return r;
        stream->next_out = state->output;
        stream->avail_out = OUTPUT;
        result = inflate(stream, Z_NO_FLUSH);
        if (result == Z_MEM_ERROR) return -ENOMEM;
        if (result != Z_OK && result != Z_STREAM_END) return -EINVAL; /* Z_BUF_ERROR: the data ends too early */
        if (stream->avail_out < OUTPUT) r = write(context, state->output, OUTPUT - stream->avail_out);
    }
    return r;
}

int hr__inflate(int fd, uint64_t at, uint64_t packed_bytes,
                int (*write)(void *context, const unsigned char *bytes, uint64_t count), void *context) {
    struct inflater *state = hr__realloc(NULL, sizeof *state);
    if (!state) return -ENOMEM;
    state->stream = (z_stream){.zalloc = allocate, .zfree = release};
    int r = inflateInit2(&state->stream, NO_HEADER) == Z_OK ? 0 : -ENOMEM;
    if (r == 0) {
        r = unpack(state, fd, at, packed_bytes, write, context);
        inflateEnd(&state->stream);
    }
    hr__free(state);
    return r;
}
