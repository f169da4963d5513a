/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "cache/cache.h"

/* Names, versions and the keys that are made of them. */

static int check_text(const char *text, const char *what, size_t max) {
    size_t length = strlen(text);
    if (length > max)
        return hr__fail(-EINVAL, "cache: the %s has %zu bytes, and can have %zu; shorten it: '%.40s...'", what, length,
                        max, text);
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            return hr__fail(-EINVAL, "cache: the %s has a control character (byte %d) at position %zu; remove it", what,
                            *at, (size_t)(at - text));
    return 0;
}

int hr_cache_check_name(const char *name, const char *version) {
    int r = check_text(name, "name", HR_CACHE_NAME_BYTES);
    if (r == 0) r = check_text(version, "version", HR_CACHE_VERSION_BYTES);
    if (r < 0) return r;
    if (!*name) return hr__fail(-EINVAL, "cache: the name is empty; give the data a name");
    if (strchr(name, '/'))
        return hr__fail(-EINVAL,
                        "cache: the name '%s' has a slash, but a name is not a path; use another character, such as -",
                        name);
    if (*name == '.') return hr__fail(-EINVAL, "cache: the name '%s' begins with a dot; begin with a letter", name);
    return 0;
}

static bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

void hr__cache_key(const char *name, const char *version, char ret_key[KEY_BYTES]) {
    enum { READABLE = 40 };
    uint64_t hash = hr__hash(name, strlen(name), hr__hash(version, strlen(version), 1));
    char readable[READABLE + 1];
    size_t length = 0;
    for (; name[length] && length < READABLE; length++) readable[length] = is_plain(name[length]) ? name[length] : '_';
    readable[length] = '\0';
    snprintf(ret_key, KEY_BYTES, "%s-%016" PRIx64, readable, hash);
}

void hr__cache_draw_id(char ret_id[HR_CACHE_ID_CHARACTERS]) {
    uint64_t number = (uint64_t)hr__now_ns() * 0x9e3779b97f4a7c15 ^ hr__pid();
    hr__random(&number, sizeof number);
    snprintf(ret_id, HR_CACHE_ID_CHARACTERS, "%016" PRIx64, number);
}
