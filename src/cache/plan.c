/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"
#include "cache/files.h"
#include "os/os.h"

/* Reads the headers of array files, and plans the object that they become. */

/* ---- headers ---- */

struct head {
    unsigned char bytes[HR__NPY_HEADER_MAX];
    uint64_t count;
};

static int keep_head(void *context, const unsigned char *bytes, uint64_t count) {
    struct head *head = context;
    uint64_t taken = hr__min(count, sizeof head->bytes - head->count);
    memcpy(head->bytes + head->count, bytes, taken);
    head->count += taken;
    return head->count == sizeof head->bytes; /* that is enough */
}

/* Reads the first bytes of a .npy file or member. */
static int read_head(int fd, const struct hr__plan_file *file, const struct hr__zip_member *member, struct head *head) {
    head->count = 0;
    if (member && member->is_deflated) {
        int r = hr__inflate(fd, member->data_at, member->packed_bytes, keep_head, head);
        return r < 0 ? r : 0;
    }
    uint64_t at = member ? member->data_at : 0, left = member ? member->bytes : file->bytes;
    head->count = hr__min(left, sizeof head->bytes);
    return hr__read_at(fd, at, head->bytes, head->count);
}

static int refuse_header(int code, const char *name, const struct hr__npy *npy) {
    if (code == -EINVAL)
        return hr__fail(-EINVAL, "cache: %s is not a .npy file that NumPy has written, or is damaged", name);
    if (!*npy->dtype)
        return hr__fail(-EINVAL,
                        "cache: %s has records (a structured dtype), which cannot be cached as a file; save each field "
                        "as an array of its own",
                        name);
    return hr__fail(-EINVAL,
                    "cache: %s has elements of dtype %s; Python objects cannot be shared by processes. Save numbers or "
                    "texts of fixed size, or cache it with headrace.cache(name, build)",
                    name, npy->dtype);
}

static int plan_array(int fd, const struct hr__plan_file *file, uint32_t number, const struct hr__zip_member *member,
                      struct head *head, struct hr__plan_array *ret_array) {
    char name[HR__PATH_BYTES];
    struct hr__plan_array array = {.file = number, .member = member};
    if (hr__path(name, "%s%s%s", file->path, member ? ": " : "", member ? member->name : "") < 0) return -ENAMETOOLONG;
    int r = read_head(fd, file, member, head);
    if (r < 0) return hr__fail(-EINVAL, "cache: %s is damaged or cannot be read: %s", name, hr_error_text(r));
    r = hr__npy_parse(head->bytes, head->count, &array.npy);
    if (r < 0) return refuse_header(r, name, &array.npy);
    uint64_t bytes = member ? member->bytes : file->bytes;
    if (array.npy.header_bytes + array.npy.bytes > bytes)
        return hr__fail(-EINVAL, "cache: %s is truncated: it has %" PRIu64 " bytes, and its array needs %" PRIu64, name,
                        bytes, array.npy.header_bytes + array.npy.bytes);
    array.source_at = array.npy.header_bytes + (member && !member->is_deflated ? member->data_at : 0);
    *ret_array = array;
    return 0;
}

static int compare_members(const void *one, const void *other) {
    return strcmp(((const struct hr__zip_member *)one)->name, ((const struct hr__zip_member *)other)->name);
}

static int read_members(int fd, struct hr__plan_file *file) {
    int r = hr__zip_read(fd, file->bytes, file->path, &file->members);
    if (r < 0) return r;
    if (file->members.count)
        qsort(file->members.members, file->members.count, sizeof *file->members.members, compare_members);
    for (size_t i = 1; i < file->members.count; i++)
        if (strcmp(file->members.members[i - 1].name, file->members.members[i].name) == 0)
            return hr__fail(-EINVAL, "cache: %s has two members %s.npy; write it again", file->path,
                            file->members.members[i].name);
    return 0;
}

static int plan_file(hr_files_plan *plan, uint32_t number, int fd, struct head *head) {
    struct hr__plan_file *file = &plan->files[number];
    int r = file->is_npz ? read_members(fd, file) : 0;
    file->first_array = plan->array_count;
    file->array_count = file->is_npz ? file->members.count : 1;
    if (r < 0) return r;
    struct hr__plan_array *more = hr__realloc(plan->arrays, (plan->array_count + file->array_count + 1) * sizeof *more);
    if (!more) return -ENOMEM;
    plan->arrays = more;
    for (uint64_t i = 0; r == 0 && i < file->array_count; i++) {
        r = plan_array(fd, file, number, file->is_npz ? &file->members.members[i] : NULL, head,
                       &plan->arrays[plan->array_count]);
        if (r == 0) plan->array_count++;
    }
    return r;
}

static int look_at_file(hr_files_plan *plan, uint32_t number, struct head *head) {
    struct hr__plan_file *file = &plan->files[number];
    struct hr__file_info info = {0};
    int fd = -1;
    int r = hr__file_open(file->path, &fd);
    if (r == 0) r = hr__file_look_fd(fd, &info);
    if (r < 0) return hr__fail(r, "cache: cannot open %s: %s", file->path, hr_error_text(r));
    file->bytes = info.bytes;
    file->inode = info.inode;
    file->changed_ns = info.changed_ns;
    r = plan_file(plan, number, fd, head);
    hr__close(&fd);
    return r;
}

/* ---- the whole ---- */

static int compare_files(const void *one, const void *other) {
    return strcmp(((const struct hr__plan_file *)one)->stem, ((const struct hr__plan_file *)other)->stem);
}

static int check_stems(const hr_files_plan *plan) {
    for (size_t i = 1; i < plan->file_count; i++) {
        const struct hr__plan_file *one = &plan->files[i - 1], *other = &plan->files[i];
        if (strcmp(one->stem, other->stem) != 0) continue;
        return hr__fail(-EEXIST,
                        "cache: %s and %s would both be found as '%s'; rename one of them, or cache them under two "
                        "names",
                        one->path, other->path, one->stem);
    }
    return 0;
}

static void make_stamp(hr_files_plan *plan) {
    uint64_t hash = plan->file_count;
    for (size_t i = 0; i < plan->file_count; i++) {
        const struct hr__plan_file *file = &plan->files[i];
        hash = hr__hash(file->path, strlen(file->path), hash);
        hash = hr__hash_word(file->bytes, hash);
        hash = hr__hash_word((uint64_t)file->changed_ns, hash);
        hash = hr__hash_word(file->inode, hash);
    }
    snprintf(plan->stamp, sizeof plan->stamp, "files %zu %016" PRIx64, plan->file_count, hash);
}

static int fill_plan(hr_files_plan *plan, const char *const *paths, size_t path_count, struct head *head) {
    int r = hr__files_collect(plan, paths, path_count);
    if (r < 0) return r;
    qsort(plan->files, plan->file_count, sizeof *plan->files, compare_files);
    r = check_stems(plan);
    for (uint32_t i = 0; r == 0 && i < plan->file_count; i++) r = look_at_file(plan, i, head);
    if (r < 0) return r;
    make_stamp(plan);
    return hr__files_make_index(plan);
}

int hr_files_plan_new(const char *const *paths, size_t path_count, hr_files_plan **ret_plan) {
    hr_files_plan *plan = hr__realloc(NULL, sizeof *plan);
    struct head *head = hr__realloc(NULL, sizeof *head);
    int r = plan && head ? 0 : -ENOMEM;
    if (plan) memset(plan, 0, sizeof *plan);
    if (r == 0) r = fill_plan(plan, paths, path_count, head);
    hr__free(head);
    if (r == -ENOMEM) r = hr__fail(r, "cache: no memory for the plan of %zu files", plan ? plan->file_count : 0);
    if (r < 0)
        hr_files_plan_free(plan);
    else
        *ret_plan = plan;
    return r;
}

hr_files_plan *hr_files_plan_free(hr_files_plan *plan) {
    if (!plan) return NULL;
    for (size_t i = 0; i < plan->file_count; i++) {
        hr__free(plan->files[i].path);
        hr__free(plan->files[i].stem);
        hr__zip_free(&plan->files[i].members);
    }
    hr__free(plan->files);
    hr__free(plan->arrays);
    hr__free(plan->index);
    hr__free(plan);
    return NULL;
}

void hr_files_plan_look(const hr_files_plan *plan, struct hr_files_totals *ret_totals) {
    struct hr_files_totals totals = {
        .file_count = plan->file_count, .array_count = plan->array_count, .bytes = plan->index_at + plan->index_bytes};
    for (size_t i = 0; i < plan->array_count; i++) totals.array_bytes += plan->arrays[i].npy.bytes;
    *ret_totals = totals;
}

const char *hr_files_plan_stamp(const hr_files_plan *plan) {
    return plan->stamp;
}
