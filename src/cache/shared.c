/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/shared.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* Makes and opens arrays that several processes write. shared.h has a picture of the file. */

/* ---- what an array is ---- */

/* Returns the bytes of an element; 0: the dtype is not allowed. */
static uint64_t element_bytes(const char *dtype) {
    static const char *const allowed[] = {"|b1", "|i1", "|u1", "<i2", "<u2", "<f2", "<i4",
                                          "<u4", "<f4", "<i8", "<u8", "<f8", "<c8", "<c16"};
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (strcmp(allowed[i], dtype) == 0)
            return (uint64_t)(dtype[2] - '0') * (dtype[3] ? 10 : 1) + (dtype[3] ? 6 : 0);
    return 0;
}

static bool is_text(const char *text, size_t room) {
    return memchr(text, '\0', room) != NULL;
}

static int check_plan(const char *name, const struct hr_shared_plan *plan, struct hr_shared_info *ret_info) {
    struct hr_shared_info info = {.plan = *plan, .row_count = 1};
    if (!is_text(plan->dtype, sizeof plan->dtype) || !(info.element_bytes = element_bytes(plan->dtype)))
        return hr__fail(-EINVAL,
                        "cache: the dtype '%.15s' of the shared array '%s' is not allowed; give bool, int8 to int64, "
                        "uint8 to uint64, float16 to float64, complex64 or complex128, in this machine's byte order",
                        plan->dtype, name);
    if (plan->dimension_count > HR_SHARED_MAX_DIMENSIONS)
        return hr__fail(-EINVAL, "cache: the shared array '%s' has %" PRIu32 " dimensions, and can have %d", name,
                        plan->dimension_count, HR_SHARED_MAX_DIMENSIONS);
    info.bytes = info.element_bytes;
    for (uint32_t i = 0; i < plan->dimension_count; i++) {
        if (!plan->dimensions[i])
            return hr__fail(-EINVAL, "cache: dimension %" PRIu32 " of the shared array '%s' is 0; give 1 or more", i,
                            name);
        if (!hr__mul(info.bytes, plan->dimensions[i], &info.bytes) || info.bytes > HR__SHARED_MAX_BYTES)
            return hr__fail(-EINVAL, "cache: the shared array '%s' is larger than any machine's memory", name);
    }
    if (plan->dimension_count) info.row_count = plan->dimensions[0];
    info.stripe_count = (uint32_t)hr__min(info.row_count, HR_SHARED_STRIPES);
    *ret_info = info;
    return 0;
}

static struct hr__shared_head head_of(const struct hr_shared_info *info) {
    uint64_t members_at = SHARED_HEAD + LOCK_COUNT * sizeof(struct hr__shared_lock);
    uint64_t end = members_at + HR_SHARED_MEMBERS * sizeof(struct hr__shared_member);
    return (struct hr__shared_head){.magic = HR__SHARED_MAGIC,
                                    .version = SHARED_VERSION,
                                    .head_bytes = sizeof(struct hr__shared_head),
                                    .plan = info->plan,
                                    .stripe_count = info->stripe_count,
                                    .locks_at = SHARED_HEAD,
                                    .members_at = members_at,
                                    .data_at = hr__round_up(end, SHARED_ALIGN),
                                    .bytes = info->bytes};
}

/* ---- making one ---- */

/* A damaged array counts as absent for those that build; it is not replaced, because it may be all that is left. */
static int check_absent(const hr_cache_build *build) {
    for (uint32_t i = 0; i < build->cache->store_count; i++) {
        char folder[HR__PATH_BYTES];
        struct hr__file_info info;
        int r = hr__path(folder, "%s/objects/%s", build->cache->stores[i].path, build->key);
        if (r == 0 && hr__file_look(folder, &info) == 0)
            return hr__fail(HR_E_CORRUPT,
                            "cache: %s has '%s', which is truncated or has a damaged record; copy what you need from "
                            "it, and remove it (headrace cache rm %s)",
                            folder, build->record.name, build->record.name);
    }
    return 0;
}

/* Memory was asked for, or a disk on which a write to a mapped page can be promised not to fail. */
static int check_place(const hr_cache_build *build) {
    struct hr__file_system system;
    const struct hr__store *store = &build->cache->stores[build->store];
    if (build->store != 0 && build->record.keep != HR_CACHE_KEEP_DISK)
        return hr__fail(-ENOSPC,
                        "cache: no room in memory for the shared array '%s': %s; free some space (headrace cache gc), "
                        "or keep it on a disk (persist=\"file\")" HR_HELP("cache-no-room"),
                        build->record.name, build->record.place);
    if (hr__file_system_look(store->path, &system) == 0 && system.copies_on_write)
        return hr__fail(
            -EOPNOTSUPP,
            "cache: %s is on a file system that copies on write (btrfs, bcachefs or ZFS), where a write to "
            "the shared array '%s' may kill the process when the disk is full; give a folder on ext4 or XFS "
            "(root=)",
            store->path, build->record.name);
    return 0;
}

static int write_fill(int fd, const struct hr__shared_head *head, uint64_t bytes, const void *fill) {
    enum { PIECE = 1 << 20 };
    static const unsigned char zeros[16];
    if (!fill || memcmp(fill, zeros, bytes) == 0) return 0; /* committed space reads as zeros */
    unsigned char *piece = hr__realloc(NULL, PIECE);
    if (!piece) return -ENOMEM;
    for (uint64_t at = 0; at < PIECE; at += bytes) memcpy(piece + at, fill, bytes);
    int r = 0;
    for (uint64_t at = 0; r == 0 && at < head->bytes; at += PIECE)
        r = hr__write_at(fd, head->data_at + at, piece, hr__min(PIECE, head->bytes - at));
    hr__free(piece);
    return r;
}

static int make_file(hr_cache_build *build, const struct hr__shared_head *head, uint64_t bytes, const void *fill) {
    const char *path;
    uint64_t end = head->data_at + head->bytes;
    int r = hr_cache_build_file(build, end, &path);
    if (r == 0) r = check_place(build);
    if (r < 0) return r;
    r = hr__file_make(path, &build->fd);
    if (r == 0) r = hr__lock_file(build->fd, HR__SHARED);
    hr__stop_at(HR__AT_SHARED_MADE);
    if (r < 0) return hr__fail(r, "cache: cannot make %s: %s", path, hr_error_text(r));
    r = hr__cache_commit(build->fd, build->cache->stores[build->store].is_memory, end);
    hr__stop_at(HR__AT_SHARED_COMMITTED);
    if (r < 0) return hr__fail_more(r, "cache: no room for the shared array '%s'", build->record.name);
    r = hr__fail_at("shared_write");
    if (r == 0) r = write_fill(build->fd, head, bytes, fill);
    if (r == 0) r = hr__write_at(build->fd, 0, head, sizeof *head);
    hr__stop_at(HR__AT_SHARED_FILLED);
    return r < 0 ? hr__fail(r, "cache: cannot write %s: %s", path, hr_error_text(r)) : 0;
}

/* The meta of the object, for those that list it: {"kind": "shared", "dtype": "<f4", "shape": [3, 4]}. */
static int set_meta(hr_cache_build *build, const struct hr_shared_plan *plan) {
    char text[64 + HR_SHARED_MAX_DIMENSIONS * 24];
    int length = snprintf(text, sizeof text, "{\"kind\": \"shared\", \"dtype\": \"%s\", \"shape\": [", plan->dtype);
    for (uint32_t i = 0; i < plan->dimension_count; i++)
        length +=
            snprintf(text + length, sizeof text - (size_t)length, "%s%" PRIu64, i ? ", " : "", plan->dimensions[i]);
    snprintf(text + length, sizeof text - (size_t)length, "]}");
    return hr__record_set(&build->record.meta, text);
}

int hr_shared_build(hr_cache_build *build, const struct hr_shared_plan *plan, const void *fill) {
    struct hr_shared_info info;
    int r = check_plan(build->record.name, plan, &info);
    if (r == 0) r = check_absent(build);
    if (r < 0) return r;
    struct hr__shared_head head = head_of(&info);
    r = make_file(build, &head, info.element_bytes, fill);
    if (r == 0) r = set_meta(build, plan);
    if (r < 0) return r;
    build->record.bytes = build->record.chunk_bytes = head.data_at + head.bytes;
    build->chunk_count = 0; /* what is written has no checksums */
    build->sums = hr__realloc(build->sums, sizeof *build->sums);
    return build->sums ? 0 : hr__fail(-ENOMEM, "cache: no memory for a build");
}

/* ---- opening ---- */

/* Checks a head that was copied, and computes what it says. */
static int check_head(const char *name, const struct hr__shared_head *head, uint64_t file_bytes,
                      struct hr_shared_info *ret_info) {
    if (head->magic != HR__SHARED_MAGIC)
        return hr__fail(HR_E_CORRUPT, "cache: '%s' is not a shared array; remove it (headrace cache rm)", name);
    if (head->version != SHARED_VERSION)
        return hr__fail(HR_E_VERSION,
                        "cache: the shared array '%s' has format %" PRIu32 ", and this version of headrace reads %d; "
                        "use the other version, or remove it (headrace cache rm)",
                        name, head->version, SHARED_VERSION);
    struct hr_shared_info info;
    if (check_plan(name, &head->plan, &info) == 0) {
        struct hr__shared_head right = head_of(&info);
        bool is_right = head->head_bytes == right.head_bytes && head->stripe_count == right.stripe_count &&
                        head->locks_at == right.locks_at && head->members_at == right.members_at &&
                        head->data_at == right.data_at && head->bytes == right.bytes;
        if (is_right && file_bytes >= right.data_at + right.bytes) {
            *ret_info = info;
            return 0;
        }
    }
    return hr__fail(HR_E_CORRUPT, "cache: the head of the shared array '%s' is damaged; remove it (headrace cache rm)",
                    name);
}

int hr__shared_read_head(int fd, const char *path, struct hr_shared_info *ret_info) {
    struct hr__shared_head head;
    struct hr__file_info file;
    int r = hr__file_look_fd(fd, &file);
    if (r >= 0) r = hr__read_at(fd, 0, &head, sizeof head);
    if (r < 0) return hr__fail(r, "cache: cannot read %s: %s", path, hr_error_text(r));
    return check_head(path, &head, file.bytes, ret_info);
}

int hr_shared_read_plan(const char *path, struct hr_shared_plan *ret_plan) {
    struct hr_shared_info info;
    int fd = -1;
    int r = hr__file_open(path, &fd);
    if (r < 0) return hr__fail(r, "cache: cannot read %s: %s", path, hr_error_text(r));
    r = hr__shared_read_head(fd, path, &info);
    hr__close(&fd);
    if (r == 0) *ret_plan = info.plan;
    return r;
}

static int open_file(hr_shared *shared, const struct hr_cached_info *info) {
    struct hr__file_info file;
    int r = hr__file_reopen_to_write(info->fd, &shared->fd);
    if (r >= 0) r = hr__file_look_fd(shared->fd, &file);
    if (r < 0)
        return hr__fail(r, "cache: cannot open the shared array '%s' (%s) to write: %s", info->name, info->path,
                        hr_error_text(r));
    if (file.user != hr__user())
        return hr__fail(-EPERM,
                        "cache: the shared array '%s' (%s) belongs to user %" PRIu32 ", not to user %" PRIu32
                        ", who runs this process",
                        info->name, info->path, file.user, hr__user());
    if (info->bytes < SHARED_ALIGN || file.bytes < info->bytes)
        return hr__fail(HR_E_CORRUPT, "cache: the shared array '%s' is truncated; remove it (headrace cache rm)",
                        info->name);
    shared->device = file.device;
    shared->inode = file.inode;
    return 0;
}

static int map_file(hr_shared *shared, const struct hr_cached_info *info) {
    void *file = NULL;
    if (strcmp(info->format, HR_SHARED_FORMAT) != 0)
        return hr__fail(-EINVAL, "cache: '%s' is not a shared array; it is data of another kind. Give another name",
                        info->name);
    int r = open_file(shared, info);
    if (r < 0) return r;
    r = hr__map(shared->fd, info->bytes, &file);
    if (r < 0 || !file) return hr__fail(r, "cache: cannot map the shared array '%s': %s", info->name, hr_error_text(r));
    shared->file = file;
    shared->file_bytes = info->bytes;
    shared->head = file;
    struct hr__shared_head head = *shared->head;
    r = check_head(info->name, &head, info->bytes, &shared->info);
    if (r < 0) return r;
    shared->locks = (struct hr__shared_lock *)(shared->file + head.locks_at);
    shared->members = (struct hr__shared_member *)(shared->file + head.members_at);
    shared->info.data = shared->file + head.data_at;
    shared->kind = hr__shared_kind(head.plan.dtype);
    return 0;
}

int hr_shared_open(const hr_cached *cached, hr_shared **ret_shared) {
    struct hr_cached_info info;
    hr_shared *shared = hr__realloc(NULL, sizeof *shared);
    if (!shared) return hr__fail(-ENOMEM, "cache: no memory");
    memset(shared, 0, sizeof *shared);
    hr_cached_look(cached, &info);
    shared->cached = cached;
    shared->fd = -1;
    pthread_mutex_init(&shared->lock, NULL);
    int r = map_file(shared, &info);
    if (r < 0) {
        hr_shared_close(shared);
        return r;
    }
    hr__shared_enter(shared);
    *ret_shared = shared;
    return 0;
}

hr_shared *hr_shared_close(hr_shared *shared) {
    if (!shared) return NULL;
    hr__shared_leave(shared);
    hr__close(&shared->fd);
    hr__unmap(shared->file, shared->file_bytes);
    pthread_mutex_destroy(&shared->lock);
    hr__free(shared);
    return NULL;
}

void hr_shared_look(const hr_shared *shared, struct hr_shared_info *ret_info) {
    *ret_info = shared->info;
}

int hr_shared_flush(hr_shared *shared) {
    if (shared->cached->cache->stores[shared->cached->store].is_memory) return 0;
    int r = hr__flush(shared->file, shared->file_bytes);
    return r < 0 ? hr__fail(r, "cache: cannot write the shared array '%s' to the disk: %s", shared->cached->record.name,
                            hr_error_text(r))
                 : 0;
}
