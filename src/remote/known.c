/* SPDX-License-Identifier: Apache-2.0 */
/* The remote objects that this process knows: their sizes, versions and addresses. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "blocks.h"
#include "remote.h"

/* A table that only grows: an entry is added by one compare and exchange, and is found under its path and its URL. */
struct entry {
    struct hr__known known;
    struct entry *by_path, *by_url; /* the next ones in their lists */
};

enum { LISTS = 1 << 18 }; /* a million objects make lists of four; pages that are not used take no memory */

static _Atomic(struct entry *) path_lists[LISTS], url_lists[LISTS];

static const uint64_t KEY_SEED = 0x6b6e6f77, STAMP_SEED = 0x7374616d;

static size_t list_of(const char *text) {
    return hr__hash(text, strlen(text), KEY_SEED) % LISTS;
}

/* ---- addresses ---- */

bool hr__remote_is(const char *path) {
    static const char *const schemes[] = {"https://", "http://", "s3://", "gs://", "az://", "hf://"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (strncmp(path, schemes[i], strlen(schemes[i])) == 0) return true;
    return false;
}

void hr__shown_url(const char *url, char *ret_shown, size_t room) {
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    size_t end = strcspn(url, "?#"), host_end = (size_t)(host - url) + strcspn(host, "/?#");
    const char *user_end = NULL;
    for (const char *at = host; at < url + host_end; at++)
        if (*at == '@') user_end = at + 1;
    if (!user_end) user_end = host;
    if (end < (size_t)(user_end - url)) end = (size_t)(user_end - url);
    snprintf(ret_shown, room, "%.*s%.*s", (int)(host - url), url, (int)(end - (size_t)(user_end - url)), user_end);
}

/* ---- the table ---- */

static int64_t stamp_of(const char *version) {
    return (int64_t)(hr__hash(version, strlen(version), STAMP_SEED) >> 1);
}

static bool is_same(const struct hr_remote_object *one, const struct hr_remote_object *other) {
    return one->bytes == other->bytes && !strcmp(one->name, other->name) && !strcmp(one->url, other->url) &&
           !strcmp(one->storage, other->storage) && !strcmp(one->version, other->version) &&
           !strcmp(one->path, other->path);
}

static const char *copy(char **place, const char *text) {
    const char *copied = *place;
    size_t bytes = strlen(text) + 1;
    memcpy(*place, text, bytes);
    *place += bytes;
    return copied;
}

/* Many objects have the same settings: the newest of them lends its text. */
static const char *find_storage(const char *storage) {
    static _Atomic(const char *) last;
    const char *before = atomic_load(&last);
    if (before && !strcmp(before, storage)) return before;
    char *copied = hr__realloc(NULL, strlen(storage) + 1);
    if (!copied) return NULL;
    memcpy(copied, storage, strlen(storage) + 1);
    atomic_store(&last, copied);
    return copied;
}

static struct entry *make_entry(const struct hr_remote_object *object) {
    const char *storage = find_storage(object->storage);
    size_t bytes = strlen(object->path) + strlen(object->url) + strlen(object->name) + strlen(object->version) + 4;
    struct entry *entry = storage ? hr__realloc(NULL, sizeof *entry + bytes) : NULL;
    if (!entry) return NULL;
    char *place = (char *)(entry + 1);
    *entry = (struct entry){.known.object.bytes = object->bytes, .known.stamp = stamp_of(object->version)};
    entry->known.object.storage = storage;
    entry->known.object.path = copy(&place, object->path);
    entry->known.object.url = copy(&place, object->url);
    entry->known.object.name = copy(&place, object->name);
    entry->known.object.version = copy(&place, object->version);
    return entry;
}

int hr_remote_add(const struct hr_remote_object *object) {
    if (!hr__remote_is(object->path) || !hr__remote_is(object->url) || !hr__is_name(object->name))
        return hr__fail(-EINVAL, "remote: an object has no URL or no name");
    const struct hr__known *known = hr__known_find(object->url);
    if (known && is_same(&known->object, object)) return 0;
    struct entry *entry = make_entry(object);
    if (!entry) return hr__fail(-ENOMEM, "remote: no memory for the address of an object");
    _Atomic(struct entry *) *list = &path_lists[list_of(object->path)];
    entry->by_path = atomic_load(list);
    while (!atomic_compare_exchange_weak(list, &entry->by_path, entry)) continue;
    list = &url_lists[list_of(object->url)];
    entry->by_url = atomic_load(list);
    while (!atomic_compare_exchange_weak(list, &entry->by_url, entry)) continue;
    return 0;
}

const struct hr__known *hr__known_find(const char *path) {
    struct entry *entry = atomic_load(&url_lists[list_of(path)]);
    for (; entry; entry = entry->by_url)
        if (!strcmp(entry->known.object.url, path)) return &entry->known;
    entry = atomic_load(&path_lists[list_of(path)]);
    for (; entry; entry = entry->by_path)
        if (!strcmp(entry->known.object.path, path)) return &entry->known;
    return NULL;
}

int hr_remote_find(const char *path, struct hr_remote_object *ret_object) {
    const struct hr__known *known = hr__known_find(path);
    if (!known) return -ENOENT;
    *ret_object = known->object;
    return 0;
}

/* ---- asking ---- */

/* Takes the next field of an answer, which ends with a tab or the end of the line. */
static char *next_field(char **line) {
    char *field = *line;
    size_t length = strcspn(field, "\t");
    *line = field + length + (field[length] == '\t');
    field[length] = '\0';
    return field;
}

/* A line of the answer: "ok", name, size, version and path; or "failed", errno and text. */
static int take_line(char *line, const char *url, const char *storage) {
    if (!strcmp(next_field(&line), "ok")) {
        struct hr_remote_object object = {.url = url, .storage = storage};
        object.name = next_field(&line);
        object.bytes = strtoull(next_field(&line), NULL, 10);
        object.version = next_field(&line);
        object.path = line;
        return hr_remote_add(&object);
    }
    int code = (int)strtol(next_field(&line), NULL, 10);
    return hr__fail(code < 0 ? code : -EIO, "%s", line);
}

int hr__known_take(char *answer, const char *const *urls, size_t count, const char *storage) {
    for (size_t i = 0; i < count; i++) {
        char *line = answer;
        size_t length = strcspn(line, "\n");
        answer += length + (line[length] == '\n');
        line[length] = '\0';
        int r = take_line(line, urls[i], storage);
        if (r < 0) return r;
    }
    return 0;
}

/* Adds as many URLs to a call as it has room for. Returns their number. */
static size_t write_call(struct hr__text *text, const char *const *urls, size_t count, const char *storage) {
    size_t used = 0;
    hr__text_addf(text, "look\n%s", storage);
    while (used < count && text->length + strlen(urls[used]) + 2 < HR__CALL_BYTES) {
        hr__text_addf(text, "\n%s", urls[used]);
        used++;
    }
    return used;
}

static int look_at_some(const char *const *urls, size_t *count, const char *storage) {
    struct hr__text text = {0};
    char *answer = NULL;
    size_t bytes;
    *count = write_call(&text, urls, *count, storage);
    int r = 0;
    if (text.is_short) r = hr__fail(-ENOMEM, "remote: no memory for a request");
    if (r == 0 && !*count) r = hr__fail(-ENAMETOOLONG, "remote: a URL is longer than %d bytes", HR__CALL_BYTES);
    if (r == 0) r = hr_remote_call(text.bytes, text.length, &answer, &bytes);
    if (r == 0) r = hr__known_take(answer, urls, *count, storage);
    hr_remote_free(answer);
    hr__text_free(&text);
    return r;
}

int hr_remote_look(const char *const *urls, size_t count, const char *storage) {
    for (size_t i = 0; i < count; i++) {
        if (!hr__remote_is(urls[i]) || strpbrk(urls[i], "\t\n\r"))
            return hr__fail(-EINVAL, "remote: a URL should begin with https://, http://, s3://, gs://, az:// or hf://, "
                                     "and have no line feed");
        int r = hr__hub_check(urls[i]);
        if (r < 0) return r;
    }
    for (size_t done = 0; done < count;) {
        size_t some = count - done;
        int r = look_at_some(urls + done, &some, storage);
        if (r < 0) return r;
        done += some;
    }
    return 0;
}

int hr__known_look(const char *path, const struct hr__known **ret_known) {
    const struct hr__known *known = hr__known_find(path);
    int r = known ? 0 : hr_remote_look(&path, 1, "{}");
    if (r < 0) return r;
    if (!known) known = hr__known_find(path);
    if (!known) return hr__fail(-EIO, "remote: the fetcher gave no answer for an object");
    *ret_known = known;
    return 0;
}
