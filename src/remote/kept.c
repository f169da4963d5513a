/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what is kept of remote objects, and compares it with its checksums. */
#include "kept.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "blocks.h"
#include "remote.h"

_Static_assert((int)HR_KEPT_NAME_BYTES == (int)HR__NAME_BYTES + 1, "a name and its end");
_Static_assert(sizeof(((struct hr__blocks_head *)0)->shown) == HR_KEPT_SHOWN_BYTES, "the address in a head");

enum { BITS_PER_BYTE = 8, CHUNK_BYTES = 4096, SUMS_AT_ONCE = 512 };

/* ---- all files ---- */

struct walk {
    const char *folder;
    char below[HR__PATH_BYTES];
    int (*visit)(void *context, const struct hr__kept_file *file);
    void *context;
};

static int walk_file(void *context, const char *name) {
    struct walk *walk = context;
    struct hr__kept_file file = {.name = name};
    char path[HR__PATH_BYTES];
    if (!hr__is_name(name) || hr__path(path, "%s/%s", walk->below, name) < 0) return 0;
    if (hr__file_look(path, &file.info) < 0 || !file.info.is_regular) return 0;
    file.path = path;
    return walk->visit(walk->context, &file);
}

static int walk_folder(void *context, const char *name) {
    struct walk *walk = context;
    if (strlen(name) != 2 || strspn(name, "0123456789abcdef") != 2) return 0;
    if (hr__path(walk->below, "%s/%s", walk->folder, name) < 0) return 0;
    int r = hr__folder_visit(walk->below, walk_file, walk);
    return r == -ENOENT || r == -ENOTDIR ? 0 : r;
}

int hr__kept_visit(const char *folder, int (*visit)(void *context, const struct hr__kept_file *file), void *context) {
    struct walk walk = {.folder = folder, .visit = visit, .context = context};
    return hr__folder_visit(folder, walk_folder, &walk);
}

/* ---- by age ---- */

struct rows {
    struct hr__kept_row *rows;
    size_t count, room;
    uint64_t disk_bytes;
};

static int add_row(void *context, const struct hr__kept_file *file) {
    struct rows *rows = context;
    if (rows->count == rows->room) {
        size_t room = 2 * rows->room + 64;
        struct hr__kept_row *grown = hr__realloc(rows->rows, room * sizeof *grown);
        if (!grown) return -ENOMEM;
        rows->rows = grown;
        rows->room = room;
    }
    struct hr__kept_row *row = &rows->rows[rows->count++];
    *row = (struct hr__kept_row){.disk_bytes = file->info.committed_bytes, .used_ns = file->info.changed_ns};
    memcpy(row->name, file->name, HR__NAME_BYTES);
    rows->disk_bytes += row->disk_bytes;
    return 0;
}

static int compare_ages(const void *one, const void *other) {
    int64_t first = ((const struct hr__kept_row *)one)->used_ns, second = ((const struct hr__kept_row *)other)->used_ns;
    return first < second ? -1 : first > second;
}

int hr__kept_by_age(const char *folder, struct hr__kept_row **ret_rows, size_t *ret_count, uint64_t *ret_disk_bytes) {
    struct rows rows = {0};
    int r = hr__kept_visit(folder, add_row, &rows);
    if (r < 0) {
        hr__free(rows.rows);
        return r;
    }
    if (rows.count) qsort(rows.rows, rows.count, sizeof *rows.rows, compare_ages);
    *ret_rows = rows.rows;
    *ret_count = rows.count;
    *ret_disk_bytes = rows.disk_bytes;
    return 0;
}

/* ---- one object ---- */

static uint64_t unit_bytes(const struct hr__blocks_look *look, uint64_t unit) {
    return hr__min(HR__UNIT_BYTES, look->head.bytes - unit * HR__UNIT_BYTES);
}

/* Calls `visit` for each unit that is kept. */
static int visit_units(int fd, const struct hr__blocks_look *look,
                       int (*visit)(void *context, const struct hr__blocks_look *look, uint64_t unit), void *context) {
    unsigned char bits[CHUNK_BYTES];
    int r = 0;
    for (uint64_t first = 0; first < look->plan.bit_bytes && r == 0; first += CHUNK_BYTES) {
        uint64_t some = hr__min(CHUNK_BYTES, look->plan.bit_bytes - first);
        r = hr__blocks_bits(fd, look, first, bits, some);
        uint64_t end = hr__min((first + some) * BITS_PER_BYTE, look->plan.unit_count);
        for (uint64_t unit = first * BITS_PER_BYTE; unit < end && r == 0; unit++) {
            unsigned char byte = bits[unit / BITS_PER_BYTE - first];
            if (byte >> unit % BITS_PER_BYTE & 1) r = visit(context, look, unit);
        }
    }
    return r;
}

static int count_unit(void *context, const struct hr__blocks_look *look, uint64_t unit) {
    *(uint64_t *)context += unit_bytes(look, unit);
    return 0;
}

static void describe(const struct hr__kept_file *file, struct hr_kept *ret_kept) {
    struct hr__blocks_look look;
    int fd = -1;
    *ret_kept = (struct hr_kept){.disk_bytes = file->info.committed_bytes, .used_ns = file->info.changed_ns};
    memcpy(ret_kept->name, file->name, HR__NAME_BYTES);
    int r = hr__file_open(file->path, &fd);
    if (r == 0) r = hr__blocks_look(fd, file->name, &look);
    if (r == 0) r = visit_units(fd, &look, count_unit, &ret_kept->kept_bytes);
    if (r == 0) {
        ret_kept->bytes = look.head.bytes;
        memcpy(ret_kept->shown, look.head.shown, sizeof ret_kept->shown);
    }
    ret_kept->is_damaged = r < 0;
    hr__close(&fd);
}

int hr__kept_look(const char *folder, const char *name, struct hr_kept *ret_kept) {
    char path[HR__PATH_BYTES];
    struct hr__kept_file file = {.name = name, .path = path};
    if (!hr__is_name(name) || hr__blocks_path(folder, name, path) < 0) return -ENOENT;
    if (hr__file_look(path, &file.info) < 0 || !file.info.is_regular) return -ENOENT;
    describe(&file, ret_kept);
    return 0;
}

struct listing {
    int (*visit)(void *context, const struct hr_kept *kept);
    void *context;
    struct hr_kept kept;
    bool has_ended; /* `visit` did: its result is no error */
};

static int list_file(void *context, const struct hr__kept_file *file) {
    struct listing *listing = context;
    describe(file, &listing->kept);
    int r = listing->visit(listing->context, &listing->kept);
    listing->has_ended = r != 0;
    return r;
}

int hr_kept_list(const char *folder, int (*visit)(void *context, const struct hr_kept *kept), void *context) {
    struct listing listing = {.visit = visit, .context = context};
    int r = hr__kept_visit(folder, list_file, &listing);
    if (r < 0 && !listing.has_ended) hr__fail(r, "remote: cannot list %s: %s", folder, hr_error_text(r));
    return r;
}

bool hr_kept_is_of(const struct hr_kept *kept, const char *url) {
    char shown[HR_KEPT_SHOWN_BYTES];
    if (kept->is_damaged) return false;
    if (!strcmp(kept->name, url)) return true;
    hr__shown_url(url, shown, sizeof shown);
    return !strcmp(kept->shown, shown) || hr__hub_names(shown, kept->shown);
}

bool hr_kept_is_open(const char *folder, const char *name) {
    char path[HR__PATH_BYTES];
    int fd = -1;
    if (!hr__is_name(name) || hr__blocks_path(folder, name, path) < 0 || hr__file_open(path, &fd) < 0) return false;
    bool is_open = hr__file_is_free(fd) == -EAGAIN;
    hr__close(&fd);
    return is_open;
}

/* ---- checksums ---- */

struct check {
    int fd;
    bool (*is_stopped)(void);
    unsigned char *data;
    uint64_t sums[SUMS_AT_ONCE];
    uint64_t first_sum, sum_count; /* the units of `sums` */
    struct hr_kept_check found;
};

static int read_sums(struct check *check, const struct hr__blocks_look *look, uint64_t unit) {
    const uint64_t units_of_chunk = CHUNK_BYTES * BITS_PER_BYTE; /* whose bits were read together */
    if (unit >= check->first_sum && unit - check->first_sum < check->sum_count) return 0;
    check->first_sum = unit;
    check->sum_count =
        hr__min(hr__min(SUMS_AT_ONCE, look->plan.unit_count - unit), units_of_chunk - unit % units_of_chunk);
    return hr__blocks_sums(check->fd, look, unit, check->sums, check->sum_count);
}

/* The sums are read after the bits of their units, so those of units that the fetcher writes meanwhile are there. */
static int check_unit(void *context, const struct hr__blocks_look *look, uint64_t unit) {
    struct check *check = context;
    uint64_t bytes = unit_bytes(look, unit);
    if (check->is_stopped && check->is_stopped()) return -EINTR;
    int r = read_sums(check, look, unit);
    if (r == 0) r = hr__read_at(check->fd, unit * HR__UNIT_BYTES, check->data, bytes);
    if (r < 0) return r;
    check->found.bytes += bytes;
    if (hr__unit_sum(unit, check->data, bytes) == check->sums[unit - check->first_sum]) return 0;
    if (!check->found.damaged_bytes) check->found.first = unit * HR__UNIT_BYTES;
    check->found.damaged_bytes += bytes;
    return 0;
}

static int report(const struct hr__blocks_look *look, const struct hr_kept_check *found) {
    if (!found->damaged_bytes) return 0;
    return hr__fail(HR_E_CORRUPT,
                    "remote: what is kept of %s is damaged: %" PRIu64 " bytes from offset %" PRIu64
                    " on differ from their checksums. Look at the disk, and remove it (headrace cache rm %s): it is "
                    "then fetched again",
                    look->head.shown, found->damaged_bytes, found->first, look->head.shown);
}

int hr_kept_verify(const char *folder, const char *name, bool (*is_stopped)(void), struct hr_kept_check *ret_check) {
    struct hr__blocks_look look;
    char path[HR__PATH_BYTES];
    int fd = -1;
    int r = hr__is_name(name) ? hr__blocks_path(folder, name, path) : -ENOENT;
    if (r == 0) r = hr__file_open(path, &fd);
    if (r < 0) return hr__fail(r, "remote: nothing is kept under the name %.64s: %s", name, hr_error_text(r));
    *ret_check = (struct hr_kept_check){0};
    r = hr__blocks_look(fd, name, &look);
    struct check *check = r == 0 ? hr__realloc(NULL, sizeof *check + HR__UNIT_BYTES) : NULL;
    if (r == -ENOENT) {
        r = hr__fail(HR_E_CORRUPT, "remote: %s is damaged, or of another version of headrace, and is not used", path);
    } else if (!check) {
        r = hr__fail(r < 0 ? r : -ENOMEM, "remote: cannot read %s: %s", path, hr_error_text(r < 0 ? r : -ENOMEM));
    } else {
        *check = (struct check){.fd = fd, .is_stopped = is_stopped, .data = (unsigned char *)(check + 1)};
        r = visit_units(fd, &look, check_unit, check);
        *ret_check = check->found;
        if (r < 0 && r != -EINTR) hr__fail(r, "remote: cannot read %s: %s", path, hr_error_text(r));
        if (r == 0) r = report(&look, &check->found);
    }
    hr__free(check);
    hr__close(&fd);
    return r;
}
