/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <glob.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cache/files.h"
#include "os/os.h"

/* Finds the array files that a user's paths name: files, folders and patterns. plan.c calls it. */

enum { MAX_DEPTH = 32 };

static bool has_suffix(const char *name, const char *suffix) {
    size_t length = strlen(name), own = strlen(suffix);
    return length > own && strcmp(name + length - own, suffix) == 0;
}

static bool is_array_file(const char *name) {
    return has_suffix(name, ".npy") || has_suffix(name, ".npz");
}

static char *copy_text(const char *text, size_t length) {
    char *copy = hr__realloc(NULL, length + 1);
    if (!copy) return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

static int add_file(hr_files_plan *plan, const char *path) {
    if (plan->file_count == plan->file_room) {
        size_t room = 2 * plan->file_room + 64;
        struct hr__plan_file *more = hr__realloc(plan->files, room * sizeof *more);
        if (!more) return -ENOMEM;
        plan->files = more;
        plan->file_room = room;
    }
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct hr__plan_file *file = &plan->files[plan->file_count++];
    *file = (struct hr__plan_file){.path = copy_text(path, strlen(path)),
                                   .stem = copy_text(name, strlen(name) - strlen(".npy")),
                                   .is_npz = has_suffix(name, ".npz")};
    return file->path && file->stem ? 0 : -ENOMEM;
}

/* ---- folders ---- */

struct walk {
    hr_files_plan *plan;
    const char *folder;
    const struct walk *above; /* the folder that it is in, or NULL */
    uint64_t device, inode;
    int depth;
};

static int walk_folder(const struct walk *walk);

/* A link may lead back to a folder that it is in. */
static bool is_in(const struct walk *walk, const struct hr__file_info *info) {
    for (; walk; walk = walk->above)
        if (walk->device == info->device && walk->inode == info->inode) return true;
    return false;
}

static int visit_name(void *context, const char *name) {
    const struct walk *walk = context;
    struct hr__file_info info;
    char path[HR__PATH_BYTES];
    if (*name == '.') return 0;
    int r = hr__path(path, "%s/%s", walk->folder, name);
    if (r < 0) return r;
    if (is_array_file(name)) return add_file(walk->plan, path);
    if (hr__file_look_through(path, &info) == 0 && info.is_folder && walk->depth < MAX_DEPTH && !is_in(walk, &info))
        return walk_folder(&(struct walk){walk->plan, path, walk, info.device, info.inode, walk->depth + 1});
    return 0;
}

static int walk_folder(const struct walk *walk) {
    return hr__folder_visit(walk->folder, visit_name, (void *)walk);
}

/* ---- paths ---- */

static int add_path(hr_files_plan *plan, const char *path) {
    struct hr__file_info info;
    char folder[HR__PATH_BYTES];
    int r = hr__file_look_through(path, &info);
    if (r == 0 && info.is_folder) {
        size_t before = plan->file_count, length = strlen(path);
        while (length > 1 && path[length - 1] == '/') length--;
        r = hr__path(folder, "%.*s", (int)length, path);
        if (r == 0) r = walk_folder(&(struct walk){plan, folder, NULL, info.device, info.inode, 0});
        if (r == 0 && plan->file_count == before)
            return hr__fail(-ENOENT, "cache: there is no .npy or .npz file in %s", path);
    } else if (r == 0) {
        if (!is_array_file(path))
            return hr__fail(-EINVAL, "cache: %s is not a .npy or .npz file; give such files, or a folder of them",
                            path);
        r = add_file(plan, path);
    }
    return r < 0 ? hr__fail(r, "cache: cannot look at %s: %s", path, hr_error_text(r)) : 0;
}

static int add_pattern(hr_files_plan *plan, const char *pattern) {
    glob_t found;
    int r = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (r == GLOB_NOMATCH) return hr__fail(-ENOENT, "cache: no file matches %s", pattern);
    if (r != 0) return hr__fail(r == GLOB_NOSPACE ? -ENOMEM : -EIO, "cache: cannot expand %s", pattern);
    for (size_t i = 0; r == 0 && i < found.gl_pathc; i++) r = add_path(plan, found.gl_pathv[i]);
    globfree(&found);
    return r;
}

int hr__files_collect(hr_files_plan *plan, const char *const *paths, size_t path_count) {
    int r = path_count ? 0 : hr__fail(-EINVAL, "cache: give files, folders or patterns");
    for (size_t i = 0; r == 0 && i < path_count; i++) {
        struct hr__file_info info;
        bool is_pattern = strpbrk(paths[i], "*?[") && hr__file_look(paths[i], &info) < 0;
        r = is_pattern ? add_pattern(plan, paths[i]) : add_path(plan, paths[i]);
    }
    return r;
}
