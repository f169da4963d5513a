/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cache/cache.h"

/* Finds, makes and checks the folders of a cache. */

enum { LONGEST_ROOT = HR__PATH_BYTES - 512 };

/* ---- checks ---- */

static int check_folder(const char *path, const struct hr__file_info *info) {
    if (info->is_link) return hr__fail(-ELOOP, "cache: %s is a symbolic link; give the folder that it leads to", path);
    if (!info->is_folder) return hr__fail(-ENOTDIR, "cache: %s is not a folder; give another one", path);
    if (info->user != hr__user())
        return hr__fail(-EPERM,
                        "cache: %s belongs to user %u, not to user %u, who runs this process; give a folder of your "
                        "own (root=, or HEADRACE_CACHE)" HR_HELP("cache-folder"),
                        path, info->user, hr__user());
    if (info->mode & 022)
        return hr__fail(-EPERM,
                        "cache: other users may write to %s (mode %04o), and could replace what is there; run "
                        "chmod go-w %s" HR_HELP("cache-folder"),
                        path, info->mode, path);
    return 0;
}

static int check_file_system(const char *path, struct hr__file_system *ret_system) {
    int r = hr__file_system_look(path, ret_system);
    if (r < 0) return hr__fail(r, "cache: cannot look at the file system of %s: %s", path, hr_error_text(r));
    if (ret_system->refused)
        return hr__fail(-EOPNOTSUPP,
                        "cache: %s is on %s, whose locks are not reliable; give a folder on a local disk or in "
                        "/dev/shm (root=, or HEADRACE_CACHE)" HR_HELP("cache-folder"),
                        path, ret_system->refused);
    return 0;
}

static int make_folder(const char *path) {
    int r = hr__folder_make_new(path);
    if (r == 0 || r == -EEXIST) return 0;
    struct hr__file_info info;
    if (r == -EROFS && hr__file_look(path, &info) == 0) return 0; /* it is there, and can be read */
    return hr__fail(r, "cache: cannot make the folder %s: %s", path, hr_error_text(r));
}

static int make_parts(const char *folder, const char *const *parts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char path[HR__PATH_BYTES];
        int r = hr__path(path, "%s%s", folder, parts[i]);
        if (r == 0) r = make_folder(path);
        if (r < 0) return r;
    }
    return 0;
}

/* Makes and checks a root, and the folders in it. */
static int open_store(const char *root, bool has_locks, struct hr__store *ret_store, struct hr__file_info *ret_info) {
    static const char *const parts[] = {"",          "/v1",       "/v1/objects", "/v1/partial",
                                        "/v1/trash", "/v1/locks", "/v1/claims"};
    enum { ALL = sizeof parts / sizeof *parts, WITHOUT_LOCKS = ALL - 2 };
    struct hr__file_system system;
    if (strlen(root) > LONGEST_ROOT) return hr__fail(-ENAMETOOLONG, "cache: the path of the folder is too long");
    int r = make_parts(root, parts, 1);
    if (r == 0 && (r = hr__file_look(root, ret_info)) < 0)
        r = hr__fail(r, "cache: cannot look at %s: %s", root, hr_error_text(r));
    if (r == 0) r = check_folder(root, ret_info);
    if (r == 0) r = check_file_system(root, &system);
    if (r == 0) r = make_parts(root, parts + 1, (has_locks ? ALL : WITHOUT_LOCKS) - 1);
    if (r == 0) r = hr__path(ret_store->path, "%s/v1", root);
    if (r == 0) ret_store->is_memory = system.is_memory;
    return r;
}

/* ---- the places ---- */

static const char *setting(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

enum { ROOTS = 3 };

/* The paths to try, in order, if the caller gives none. Returns their number. */
static size_t list_roots(char roots[][HR__PATH_BYTES]) {
    size_t count = 0;
    const char *temporary = setting("TMPDIR");
    if (hr__fail_at("dev_shm") == 0) count += hr__path(roots[count], "/dev/shm/headrace-%u", hr__user()) == 0;
    if (temporary) count += hr__path(roots[count], "%s/headrace-%u", temporary, hr__user()) == 0;
    count += hr__path(roots[count], "/tmp/headrace-%u", hr__user()) == 0;
    return count;
}

/* A worker opens the cache of its trainer by its path, and has to find the same data as the trainer. */
static bool is_default_root(const char *root) {
    char roots[ROOTS][HR__PATH_BYTES];
    size_t count = list_roots(roots);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(roots[i], root)) return true;
    return false;
}

static int open_given(hr_cache *cache, const char *root, struct hr__file_info *ret_info) {
    int r = hr__path(cache->root, "%s", root);
    if (r < 0) return hr__fail(r, "cache: the path of the folder is too long");
    for (size_t end = strlen(cache->root); end > 1 && cache->root[end - 1] == '/';) cache->root[--end] = '\0';
    cache->is_given = !is_default_root(cache->root);
    return open_store(cache->root, true, &cache->stores[0], ret_info);
}

static int open_default(hr_cache *cache, struct hr__file_info *ret_info) {
    char roots[ROOTS][HR__PATH_BYTES];
    size_t count = list_roots(roots);
    int r = 0;
    for (size_t i = 0; i < count; i++) {
        r = open_store(roots[i], true, &cache->stores[0], ret_info);
        if (r == 0) return hr__path(cache->root, "%s", roots[i]);
    }
    return hr__fail_more(r, "cache: no folder can be used, neither in /dev/shm nor in TMPDIR nor in /tmp; give one "
                            "(root=, or HEADRACE_CACHE)" HR_HELP("cache-folder"));
}

static int name_disk(char *ret_root) {
    const char *base = setting("XDG_CACHE_HOME"), *home = setting("HOME");
    if (base) return hr__path(ret_root, "%s/headrace", base);
    return home ? hr__path(ret_root, "%s/.cache/headrace", home) : -ENOENT;
}

/* Opens the second folder if it exists; hr__cache_make_disk makes it when it is needed. */
static void find_disk(hr_cache *cache) {
    struct hr__file_info info;
    char root[HR__PATH_BYTES];
    if (cache->is_given || name_disk(root) < 0 || hr__file_look(root, &info) < 0) return;
    if (open_store(root, false, &cache->stores[1], &info) == 0) cache->store_count = STORES;
}

int hr__cache_make_disk(hr_cache *cache) {
    struct hr__file_info info;
    struct hr__store disk;
    char root[HR__PATH_BYTES], parent[HR__PATH_BYTES];
    if (cache->is_given) return hr__fail(-ENOENT, "cache: all data is in %s, which was given", cache->root);
    if (cache->store_count == STORES) return 0;
    int r = name_disk(root);
    if (r < 0) return hr__fail(r, "cache: there is no folder for data on disk: HOME and XDG_CACHE_HOME are not set");
    memcpy(parent, root, sizeof parent);
    *strrchr(parent, '/') = '\0';
    r = make_folder(parent);
    if (r == 0) r = open_store(root, false, &disk, &info);
    if (r < 0) return r;
    cache->stores[1] = disk;
    cache->store_count = STORES;
    return 0;
}

/* ---- open, close ---- */

hr_cache *hr__cache_ref(hr_cache *cache) {
    atomic_fetch_add(&cache->owners, 1);
    return cache;
}

hr_cache *hr_cache_close(hr_cache *cache) {
    if (cache && atomic_fetch_sub(&cache->owners, 1) == 1) hr__free(cache);
    return NULL;
}

int hr_cache_open(const char *root, hr_cache **ret_cache) {
    struct hr__file_info info = {0};
    hr_cache *cache = hr__realloc(NULL, sizeof *cache);
    if (!cache) return hr__fail(-ENOMEM, "cache: no memory");
    memset(cache, 0, sizeof *cache);
    atomic_store(&cache->owners, 1);
    cache->store_count = 1;
    if (!root || !*root) root = setting("HEADRACE_CACHE");
    int r = root ? open_given(cache, root, &info) : open_default(cache, &info);
    if (r < 0) {
        hr_cache_close(cache);
        return r;
    }
    cache->root_device = info.device;
    cache->root_inode = info.inode;
    find_disk(cache);
    *ret_cache = cache;
    return 0;
}

static bool has_folder(const char *root, const char *part) {
    struct hr__file_info info;
    char path[HR__PATH_BYTES];
    return hr__path(path, "%s/v1/%s", root, part) == 0 && hr__file_look(path, &info) == 0 && info.is_folder;
}

int hr_cache_exists(const char *root) {
    char roots[ROOTS][HR__PATH_BYTES], disk[HR__PATH_BYTES];
    if (!root || !*root) root = setting("HEADRACE_CACHE");
    struct hr__file_info info;
    if (root && hr__file_look(root, &info) < 0) return 0;
    if (root) return !info.is_folder || has_folder(root, "locks"); /* hr_cache_open says what is wrong with a file */
    size_t count = list_roots(roots);
    for (size_t i = 0; i < count; i++)
        if (has_folder(roots[i], "locks")) return 1;
    return name_disk(disk) == 0 && has_folder(disk, "objects");
}

const char *hr_cache_root(const hr_cache *cache) {
    return cache->root;
}

bool hr__cache_is_rooted(const hr_cache *cache) {
    struct hr__file_info info;
    return hr__file_look(cache->root, &info) == 0 && info.device == cache->root_device &&
           info.inode == cache->root_inode;
}
