/* SPDX-License-Identifier: Apache-2.0 */
/* Removes what is kept of remote objects: by the fetcher while one runs, else with its lock. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "blocks.h"
#include "kept.h"

/* Any process may open the file between the look and the removal. It then reads what the file has, without a name. */
int hr__kept_remove_file(const char *folder, const char *name, bool force, uint64_t *ret_disk_bytes) {
    struct hr__file_info info = {0};
    char path[HR__PATH_BYTES];
    int fd = -1;
    int r = hr__blocks_path(folder, name, path);
    if (r == 0) r = hr__file_look(path, &info);
    if (r == 0 && !info.is_regular) r = -ENOENT;
    if (r == 0 && !force && hr__file_open(path, &fd) == 0) r = hr__file_is_free(fd) == -EAGAIN ? -EBUSY : 0;
    hr__close(&fd);
    if (r < 0) return r;
    hr__stop_at(HR__AT_KEPT_REMOVING);
    hr__file_remove(path);
    hr__stop_at(HR__AT_KEPT_REMOVED);
    *ret_disk_bytes = info.committed_bytes;
    return hr__file_look(path, &info) == 0 ? -EACCES : 0;
}

/* ---- who removes it ---- */

/* Asks the fetcher, which answers with the code. */
static int ask_fetcher(const char *name, bool force) {
    char text[64 + HR__NAME_BYTES], *answer = NULL;
    size_t bytes = 0;
    int length = snprintf(text, sizeof text, "remove\n%d\n%s", force, name);
    int r = hr_remote_call(text, (size_t)length, &answer, &bytes);
    if (r < 0) return r;
    r = (int)strtol(answer, NULL, 10);
    hr_remote_free(answer);
    if (r == 0 || r == -EBUSY || r == -ENOENT) return r;
    return hr__fail(r < 0 ? r : -EPROTO, "remote: the fetcher cannot remove %s: %s", name, hr_error_text(r));
}

static int open_lock(const char *folder, int *ret_fd) {
    char path[HR__PATH_BYTES];
    int r = hr__path(path, "%s/lock", folder);
    if (r == 0) r = hr__file_open_or_make(path, ret_fd);
    return r < 0 ? hr__fail(r, "remote: cannot open the lock of %s: %s", folder, hr_error_text(r)) : 0;
}

/* -EBUSY and -ENOENT without a message. */
static int remove_one(const char *folder, const char *name, bool force) {
    uint64_t disk_bytes = 0;
    int fd = -1;
    int r = open_lock(folder, &fd);
    if (r < 0) return r;
    r = hr__lock_file(fd, HR__EXCLUSIVE);
    if (r == -EAGAIN) {
        hr__close(&fd);
        return ask_fetcher(name, force);
    }
    hr__stop_at(HR__AT_KEPT_LOCKED);
    if (r == 0) r = hr__kept_remove_file(folder, name, force, &disk_bytes);
    hr__close(&fd);
    if (r == 0 || r == -EBUSY || r == -ENOENT) return r;
    return hr__fail(r, "remote: cannot remove %s in %s: %s", name, folder, hr_error_text(r));
}

int hr_kept_remove(const char *folder, const char *name, bool force) {
    struct hr_kept kept;
    if (hr__kept_look(folder, name, &kept) < 0)
        return hr__fail(-ENOENT, "remote: nothing is kept under the name %.64s", name);
    int r = remove_one(folder, name, force);
    if (r == -ENOENT) return 0; /* another process has removed it */
    if (r != -EBUSY) return r;
    return hr__fail(r,
                    "remote: %s is in use: a process has it open, or has asked for it; --force removes it all the "
                    "same, and such a process goes on",
                    kept.shown);
}

/* ---- by age and size ---- */

struct collecting {
    const char *folder;
    const struct hr_kept_limits *limits;
    void (*visit)(void *context, const struct hr_kept *kept);
    void *context;
    struct hr_kept_collected found;
};

static bool is_wanted(const struct collecting *collecting, const struct hr_kept *kept) {
    const struct hr_kept_limits *limits = collecting->limits;
    bool is_old = limits->older_ns >= 0 && hr__wall_ns() - kept->used_ns >= limits->older_ns;
    return kept->is_damaged || is_old || collecting->found.bytes_left > limits->quota_bytes;
}

/* One that is in use, or was removed by another process, is passed over. */
static int collect_one(struct collecting *collecting, const struct hr__kept_row *row) {
    struct hr_kept kept;
    int r = 0;
    if (hr__kept_look(collecting->folder, row->name, &kept) < 0 || !is_wanted(collecting, &kept)) return 0;
    if (collecting->limits->is_dry)
        r = hr_kept_is_open(collecting->folder, row->name) ? -EBUSY : 0;
    else
        r = remove_one(collecting->folder, row->name, false);
    if (r == -EBUSY || r == -ENOENT) return 0;
    if (r < 0) return r;
    collecting->found.objects++;
    collecting->found.bytes += row->disk_bytes;
    collecting->found.bytes_left -= row->disk_bytes;
    collecting->visit(collecting->context, &kept);
    return 0;
}

int hr_kept_collect(const char *folder, const struct hr_kept_limits *limits,
                    void (*visit)(void *context, const struct hr_kept *kept), void *context,
                    struct hr_kept_collected *ret_collected) {
    struct collecting collecting = {.folder = folder, .limits = limits, .visit = visit, .context = context};
    struct hr__kept_row *rows = NULL;
    size_t count = 0;
    int r = hr__kept_by_age(folder, &rows, &count, &collecting.found.bytes_left);
    if (r < 0) return hr__fail(r, "remote: cannot list %s: %s", folder, hr_error_text(r));
    for (size_t i = 0; i < count && r == 0; i++) r = collect_one(&collecting, &rows[i]);
    hr__free(rows);
    if (r == 0) *ret_collected = collecting.found;
    return r;
}
