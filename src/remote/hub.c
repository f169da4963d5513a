/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of the Hugging Face hub: hf://[KIND/]OWNER/NAME[@REVISION][/PATH]. python/headrace/_remote/addresses.py
 * takes the same ones. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "remote.h"

enum { COMMIT_DIGITS = 40 };

static const char SCHEME[] = "hf://";

static const char *after(const char *text, const char *begin) {
    size_t length = strlen(begin);
    return strncmp(text, begin, length) == 0 ? text + length : NULL;
}

/* Returns the place behind a revision. Those of pull requests and of conversions have slashes. */
static const char *revision_end(const char *at) {
    static const char *const begins[] = {"refs/convert/", "refs/pr/"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (after(at, begins[i])) return after(at, begins[i]) + strcspn(after(at, begins[i]), "/");
    return at + strcspn(at, "/");
}

bool hr__hub_split(const char *url, struct hr__hub_url *ret_parts) {
    static const char *const kinds[] = {"datasets/", "models/", "spaces/"};
    const char *repo = after(url, SCHEME), *kind = "models/";
    if (!repo) return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (after(repo, kinds[i])) {
            kind = kinds[i];
            repo = after(repo, kind);
            break;
        }
    size_t owner = strcspn(repo, "/@");
    size_t name = repo[owner] == '/' ? strcspn(repo + owner + 1, "/@") : 0;
    if (!owner || !name) return false;
    const char *end = repo + owner + 1 + name, *revision = *end == '@' ? end + 1 : end;
    const char *path = *end == '@' ? revision_end(revision) : end;
    *ret_parts = (struct hr__hub_url){.kind = kind,
                                      .repo = repo,
                                      .revision = revision,
                                      .path = path + (*path == '/'),
                                      .repo_bytes = (size_t)(end - repo),
                                      .revision_bytes = (size_t)(path - revision)};
    return true;
}

bool hr__hub_has_commit(const struct hr__hub_url *parts) {
    return parts->revision_bytes == COMMIT_DIGITS && strspn(parts->revision, "0123456789abcdef") >= COMMIT_DIGITS;
}

static bool is_same(const char *one, size_t one_bytes, const char *other, size_t other_bytes) {
    return one_bytes == other_bytes && memcmp(one, other, one_bytes) == 0;
}

bool hr__hub_names(const char *url, const char *file) {
    struct hr__hub_url wanted, found;
    if (!hr__hub_split(url, &wanted) || !hr__hub_split(file, &found)) return false;
    if (wanted.kind != found.kind || !is_same(wanted.repo, wanted.repo_bytes, found.repo, found.repo_bytes))
        return false;
    if (hr__hub_has_commit(&wanted) &&
        !is_same(wanted.revision, wanted.revision_bytes, found.revision, found.revision_bytes))
        return false;
    return !*wanted.path || strcmp(wanted.path, found.path) == 0;
}

int hr__hub_check(const char *url) {
    struct hr__hub_url parts;
    char shown[HR__PATH_BYTES];
    if (!hr__hub_split(url, &parts) || hr__hub_has_commit(&parts)) return 0;
    hr__shown_url(url, shown, sizeof shown);
    return hr__fail(-EINVAL,
                    "remote: %s has no commit, and a branch or a tag may become another one while it is read; give "
                    "hf://%.*s%.*s@COMMIT/PATH, which hr_remote_pin finds",
                    shown, (int)strlen(parts.kind), parts.kind, (int)parts.repo_bytes, parts.repo);
}

int hr_remote_pin(const char *url, const char *storage, char *ret_url, size_t room) {
    struct hr__hub_url parts;
    struct hr__text call = {0};
    char *answer = NULL;
    size_t bytes = strlen(url);
    int r = 0;
    if (strpbrk(url, "\t\n\r")) return hr__fail(-EINVAL, "remote: a URL should have no tab and no line feed");
    if (hr__hub_split(url, &parts) && !hr__hub_has_commit(&parts)) {
        hr__text_addf(&call, "pin\n%s\n%s", storage, url);
        r = call.is_short ? hr__fail(-ENOMEM, "remote: no memory for a request")
                          : hr_remote_call(call.bytes, call.length, &answer, &bytes);
    }
    if (r == 0 && bytes >= room) r = hr__fail(-ENAMETOOLONG, "remote: the URL with its commit has %zu bytes", bytes);
    if (r == 0) memcpy(ret_url, answer ? answer : url, bytes + 1);
    hr_remote_free(answer);
    hr__text_free(&call);
    return r;
}
