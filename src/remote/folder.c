/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and makes the folder of remote objects. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kept.h"
#include "remote.h"

static const char *setting(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* ---- checks ---- */

static int make(const char *path) {
    int r = hr__folder_make_new(path);
    if (r == 0 || r == -EEXIST) return 0;
    return hr__fail(r, "remote: cannot make the folder %s: %s; give another one (HEADRACE_REMOTE)", path,
                    hr_error_text(r));
}

static int check(const char *path) {
    struct hr__file_info info = {0};
    struct hr__file_system system = {0};
    int r = hr__file_look_through(path, &info);
    if (r == 0) r = hr__file_system_look(path, &system);
    if (r < 0) return hr__fail(r, "remote: cannot look at %s: %s", path, hr_error_text(r));
    if (!info.is_folder) return hr__fail(-ENOTDIR, "remote: %s is not a folder (HEADRACE_REMOTE)", path);
    if (info.user != hr__user() || info.mode & 022)
        return hr__fail(-EPERM,
                        "remote: %s belongs to another user, or other users may write to it; give a folder of your "
                        "own (HEADRACE_REMOTE)" HR_HELP("remote-folder"),
                        path);
    if (system.refused)
        return hr__fail(-EOPNOTSUPP,
                        "remote: %s is on %s, where processes of several machines would mix; give a folder on a disk "
                        "of this machine (HEADRACE_REMOTE)" HR_HELP("remote-folder"),
                        path, system.refused);
    return 0;
}

/* Makes all parts of an absolute path. */
static int make_parents(const char *path) {
    char part[HR__PATH_BYTES];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        struct hr__file_info info;
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        int r = hr__file_look_through(part, &info) == 0 ? 0 : make(part);
        if (r < 0) return r;
    }
    return 0;
}

static int make_all(const char *root, char ret_path[HR__PATH_BYTES]) {
    char below[HR__PATH_BYTES];
    int r = make_parents(root);
    if (r == 0) r = make(root);
    if (r == 0) r = check(root);
    if (r == 0) r = hr__path(below, "%s/v1", root);
    if (r == 0) r = make(below);
    if (r == 0) r = hr__path(ret_path, "%s/v1/remote", root);
    if (r == 0) r = make(ret_path);
    return r;
}

/* Finds what make_all has made. -ENOENT: it has not. */
static int find_all(const char *root, char ret_path[HR__PATH_BYTES]) {
    struct hr__file_info info;
    int r = hr__path(ret_path, "%s/v1/remote", root);
    if (r == 0) r = hr__file_look_through(ret_path, &info);
    if (r == 0 && !info.is_folder) r = -ENOENT;
    return r == 0 ? check(root) : r == -ENOTDIR ? -ENOENT : r;
}

/* ---- the places ---- */

typedef int (*taker)(const char *root, char ret_path[HR__PATH_BYTES]);

/* A folder that the user names is used, or the error says why not. */
static int use_given(const char *root, taker take, char ret_path[HR__PATH_BYTES]) {
    char whole[HR__PATH_BYTES], here[HR__PATH_BYTES] = "";
    int r = *root == '/' ? 0 : hr__folder_current(here, sizeof here);
    if (r == 0) r = hr__path(whole, "%s%s%s", here, *root == '/' ? "" : "/", root);
    if (r < 0) return hr__fail(r, "remote: the path of the folder is too long (HEADRACE_REMOTE)");
    for (size_t end = strlen(whole); end > 1 && whole[end - 1] == '/';) whole[--end] = '\0';
    return take(whole, ret_path);
}

static int use_home(taker take, char ret_path[HR__PATH_BYTES]) {
    char root[HR__PATH_BYTES];
    const char *base = setting("XDG_CACHE_HOME"), *home = setting("HOME");
    int r = -ENOENT;
    if (base && *base == '/')
        r = hr__path(root, "%s/headrace", base);
    else if (home && *home == '/')
        r = hr__path(root, "%s/.cache/headrace", home);
    return r < 0 ? r : take(root, ret_path);
}

static int use_temporary(taker take, char ret_path[HR__PATH_BYTES]) {
    char root[HR__PATH_BYTES];
    const char *temporary = setting("TMPDIR");
    int r = -ENOENT;
    if (temporary && *temporary == '/' && hr__path(root, "%s/headrace-%u", temporary, hr__user()) == 0)
        r = take(root, ret_path);
    if (r < 0 && hr__path(root, "/tmp/headrace-%u", hr__user()) == 0) r = take(root, ret_path);
    return r;
}

static int take_folder(taker take, char ret_path[HR__PATH_BYTES]) {
    const char *given = setting("HEADRACE_REMOTE");
    if (!given) given = setting("HEADRACE_CACHE");
    if (given) return use_given(given, take, ret_path);
    return use_home(take, ret_path) == 0 ? 0 : use_temporary(take, ret_path);
}

int hr__remote_folder(char ret_path[HR__PATH_BYTES]) {
    int r = take_folder(make_all, ret_path);
    if (r == 0 || setting("HEADRACE_REMOTE") || setting("HEADRACE_CACHE")) return r;
    return hr__fail_more(r, "remote: there is no folder for what is fetched; give one (HEADRACE_REMOTE)");
}

static int copy_path(const char *path, char *ret_path, size_t room) {
    if (strlen(path) >= room) return hr__fail(-ENAMETOOLONG, "remote: the path of the folder is too long");
    memcpy(ret_path, path, strlen(path) + 1);
    return 0;
}

int hr_remote_folder(char *ret_path, size_t room) {
    char path[HR__PATH_BYTES];
    int r = hr__remote_folder(path);
    return r < 0 ? r : copy_path(path, ret_path, room);
}

int hr_kept_folder(char *ret_path, size_t room) {
    char path[HR__PATH_BYTES];
    int r = take_folder(find_all, path);
    return r < 0 ? r : copy_path(path, ret_path, room);
}
