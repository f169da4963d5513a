/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a file from its begin to its end, for an index. */
#include <errno.h>
#include <inttypes.h>

#include "base/base.h"
#include "base/error.h"
#include "index.h"

static int read_from(struct hr__window *window, uint64_t at, size_t bytes) {
    int r = hr__fail_at("source_read");
    window->count = 0;
    if (r == 0) r = hr__read_at(window->fd, at, window->memory, bytes);
    if (r < 0)
        return hr__fail(r, "source: cannot read %zu bytes at offset %" PRIu64 " of %s: %s", bytes, at, window->path,
                        hr_error_text(r));
    window->at = at;
    window->count = bytes;
    if (window->bytes_done) atomic_fetch_add_explicit(window->bytes_done, bytes, memory_order_relaxed);
    return 0;
}

int hr__window_get(struct hr__window *window, uint64_t at, size_t bytes, size_t ahead, const unsigned char **ret_data) {
    bool is_there =
        at >= window->at && at - window->at <= window->count && bytes <= window->count - (size_t)(at - window->at);
    if (!is_there) {
        if (window->stop && atomic_load_explicit(window->stop, memory_order_relaxed))
            return hr__fail(-ECANCELED, "source: reading %s was stopped", window->path);
        uint64_t wanted = hr__min(hr__max(bytes, ahead), hr__min(HR__WINDOW_BYTES, window->file_bytes - at));
        int r = read_from(window, at, (size_t)wanted);
        if (r < 0) return r;
    }
    *ret_data = window->memory + (at - window->at);
    return 0;
}
