/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a file from its begin to its end, for an index. */
#include <errno.h>
#include <inttypes.h>

#include "base/base.h"
#include "base/error.h"
#include "index.h"
#include "pool.h"

/* Window by window, a remote object would take as many round trips. */
static void ask_ahead(struct hr__window *window, uint64_t at) {
    const uint64_t ahead = 8 << 20;
    uint64_t from = hr__max(at, window->asked), to = hr__min(at + ahead, window->file_bytes);
    if (from + ahead / 2 > to && to < window->file_bytes) return;
    if (from < to) hr__pool_ask(window->pool, 0, from, to - from, NULL);
    window->asked = hr__max(window->asked, to);
}

static int read_remote(struct hr__window *window, uint64_t at, size_t bytes) {
    ask_ahead(window, at);
    return hr__pool_read(window->pool, 0, at, window->memory, bytes);
}

static int read_file(struct hr__window *window, uint64_t at, size_t bytes) {
    int r = hr__fail_at("source_read");
    if (r == 0) r = hr__read_at(window->fd, at, window->memory, bytes);
    if (r == 0) return 0;
    return hr__fail(r, "source: cannot read %zu bytes at offset %" PRIu64 " of %s: %s", bytes, at, window->path,
                    hr_error_text(r));
}

static int read_from(struct hr__window *window, uint64_t at, size_t bytes) {
    window->count = 0;
    int r = (window->pool ? read_remote : read_file)(window, at, bytes);
    if (r < 0) return r;
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
