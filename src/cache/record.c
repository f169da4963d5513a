/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/record.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"

/* Writes and reads the record of an object. build.c and reserve.c write it; attach.c, list.c and collect.c read it. */

enum { MAX_BYTES = 16 << 20 };

static const char first_line[] = "headrace-cache 1\n";

void hr__record_done(struct hr__cache_record *record) {
    char **texts[] = {&record->name, &record->version, &record->format, &record->stamp,
                      &record->meta, &record->place,   &record->command};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        hr__free(*texts[i]);
        *texts[i] = NULL;
    }
}

void hr__record_init(struct hr__cache_record *record) {
    *record = (struct hr__cache_record){0};
}

int hr__record_set(char **field, const char *value) {
    if (!value) value = "";
    size_t bytes = strlen(value) + 1;
    char *copy = hr__realloc(NULL, bytes);
    if (!copy) return hr__fail(-ENOMEM, "cache: no memory for a record");
    memcpy(copy, value, bytes);
    hr__free(*field);
    *field = copy;
    return 0;
}

int hr__record_copy(const struct hr__cache_record *from, struct hr__cache_record *to) {
    struct hr__cache_record copy = *from;
    copy.name = copy.version = copy.format = copy.stamp = copy.meta = copy.place = copy.command = NULL;
    int r = hr__record_set(&copy.name, from->name);
    if (r == 0) r = hr__record_set(&copy.version, from->version);
    if (r == 0) r = hr__record_set(&copy.format, from->format);
    if (r == 0) r = hr__record_set(&copy.stamp, from->stamp);
    if (r == 0) r = hr__record_set(&copy.meta, from->meta);
    if (r == 0) r = hr__record_set(&copy.place, from->place);
    if (r == 0) r = hr__record_set(&copy.command, from->command);
    if (r < 0)
        hr__record_done(&copy);
    else
        *to = copy;
    return r;
}

/* ---- writing ---- */

struct text {
    char *bytes;
    size_t count, room;
    bool has_failed;
};

static void put(struct text *text, const char *bytes, size_t count) {
    if (text->has_failed) return;
    if (text->count + count > text->room) {
        size_t room = 2 * (text->count + count) + 1024;
        char *more = hr__realloc(text->bytes, room);
        text->has_failed = !more;
        if (!more) return;
        text->bytes = more;
        text->room = room;
    }
    memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
}

static void put_line(struct text *text, const char *field, const char *value) {
    put(text, field, strlen(field));
    put(text, " ", 1);
    for (const char *at = value ? value : ""; *at; at++) {
        if (*at == '\n')
            put(text, "\\n", 2);
        else if (*at == '\\')
            put(text, "\\\\", 2);
        else
            put(text, at, 1);
    }
    put(text, "\n", 1);
}

static void put_number(struct text *text, const char *field, uint64_t value) {
    char number[24];
    snprintf(number, sizeof number, "%" PRIu64, value);
    put_line(text, field, number);
}

static void put_all(struct text *text, const struct hr__cache_record *record) {
    put(text, first_line, sizeof first_line - 1);
    put_line(text, "name", record->name);
    put_line(text, "version", record->version);
    put_line(text, "format", record->format);
    put_line(text, "stamp", record->stamp);
    put_line(text, "meta", record->meta);
    put_line(text, "place", record->place);
    put_line(text, "command", record->command);
    put_line(text, "id", record->id);
    put_line(text, "boot", record->boot_id);
    put_number(text, "keep", record->keep);
    put_number(text, "pid", record->pid);
    put_number(text, "built", (uint64_t)record->built_ns);
    put_number(text, "bytes", record->bytes);
    put_number(text, "chunk", record->chunk_bytes);
    put_number(text, "sums", record->sums_hash);
    put_number(text, "end", hr__hash(text->bytes, text->count, 0));
}

static int write_text(const char *folder, const struct text *text) {
    char path[HR__PATH_BYTES], temporary[HR__PATH_BYTES];
    int fd = -1;
    int r = hr__path(path, "%s/info", folder);
    if (r == 0) r = hr__path(temporary, "%s/info.tmp", folder);
    if (r == 0) r = hr__file_open_or_make(temporary, &fd);
    if (r < 0) return r;
    r = hr__file_cut(fd, 0);
    if (r == 0) r = hr__fail_at("write_record");
    if (r == 0) r = hr__write_at(fd, 0, text->bytes, text->count);
    if (r == 0) r = hr__file_sync(fd);
    hr__close(&fd);
    return r < 0 ? r : hr__rename(temporary, path);
}

int hr__record_write(const struct hr__cache_record *record, const char *folder) {
    struct text text = {0};
    put_all(&text, record);
    int r = text.has_failed ? -ENOMEM : write_text(folder, &text);
    hr__free(text.bytes);
    return r < 0
               ? hr__fail(r, "cache: cannot write the record of '%s' in %s: %s", record->name, folder, hr_error_text(r))
               : 0;
}

/* ---- reading ---- */

static int read_file(const char *path, char **ret_text, size_t *ret_count) {
    struct hr__file_info info;
    int fd = -1;
    int r = hr__file_open(path, &fd);
    if (r < 0) return r;
    r = hr__file_look_fd(fd, &info);
    if (r == 0 && info.bytes > MAX_BYTES) r = HR_E_CORRUPT;
    char *text = r < 0 ? NULL : hr__realloc(NULL, info.bytes + 1);
    if (r == 0 && !text) r = -ENOMEM;
    if (r == 0) r = hr__read_at(fd, 0, text, info.bytes);
    hr__close(&fd);
    if (r < 0) {
        hr__free(text);
        return r;
    }
    text[info.bytes] = '\0';
    *ret_text = text;
    *ret_count = info.bytes;
    return 0;
}

/* Undoes the escapes in place. */
static void unescape(char *value) {
    char *to = value;
    for (const char *from = value; *from; from++) {
        if (*from == '\\' && (from[1] == 'n' || from[1] == '\\'))
            *to++ = *++from == 'n' ? '\n' : '\\';
        else
            *to++ = *from;
    }
    *to = '\0';
}

static int take_field(struct hr__cache_record *record, const char *field, const char *value) {
    const struct {
        const char *field;
        char **text;
    } texts[] = {{"name", &record->name},      {"version", &record->version}, {"format", &record->format},
                 {"stamp", &record->stamp},    {"meta", &record->meta},       {"place", &record->place},
                 {"command", &record->command}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(texts[i].field, field) == 0) return hr__record_set(texts[i].text, value);
    uint64_t number = strtoull(value, NULL, 10);
    if (strcmp(field, "id") == 0) snprintf(record->id, sizeof record->id, "%s", value);
    if (strcmp(field, "boot") == 0) snprintf(record->boot_id, sizeof record->boot_id, "%s", value);
    if (strcmp(field, "keep") == 0) record->keep = (uint32_t)number;
    if (strcmp(field, "pid") == 0) record->pid = (uint32_t)number;
    if (strcmp(field, "built") == 0) record->built_ns = (int64_t)number;
    if (strcmp(field, "bytes") == 0) record->bytes = number;
    if (strcmp(field, "chunk") == 0) record->chunk_bytes = number;
    if (strcmp(field, "sums") == 0) record->sums_hash = number;
    return 0;
}

/* Splits a text whose checksum matches into its lines. */
static int take_lines(struct hr__cache_record *record, char *text) {
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *value = strchr(line, ' ');
        if (!value) continue;
        *value++ = '\0';
        unescape(value);
        int r = take_field(record, line, value);
        if (r < 0) return r;
    }
    bool is_whole = record->name && record->version && record->format && record->stamp && record->meta &&
                    record->place && record->command && *record->id && record->chunk_bytes;
    return is_whole ? 0 : HR_E_CORRUPT;
}

static int parse(char *text, size_t count, struct hr__cache_record *record) {
    if (strncmp(text, "headrace-cache ", 15) == 0 && strncmp(text, first_line, sizeof first_line - 1) != 0)
        return HR_E_VERSION;
    char *end = count ? strstr(text, "\nend ") : NULL;
    if (!end || strncmp(text, first_line, sizeof first_line - 1) != 0) return HR_E_CORRUPT;
    end++;
    if (strtoull(end + 4, NULL, 10) != hr__hash(text, (uint64_t)(end - text), 0)) return HR_E_CORRUPT;
    *end = '\0';
    return take_lines(record, text + sizeof first_line - 1);
}

int hr__record_read(const char *folder, struct hr__cache_record *ret_record) {
    struct hr__cache_record record;
    char path[HR__PATH_BYTES];
    char *text = NULL;
    size_t count = 0;
    hr__record_init(&record);
    int r = hr__path(path, "%s/info", folder);
    if (r == 0) r = read_file(path, &text, &count);
    if (r == 0) r = parse(text, count, &record);
    hr__free(text);
    if (r == 0) {
        *ret_record = record;
        return 0;
    }
    hr__record_done(&record);
    if (r == HR_E_VERSION)
        return hr__fail(r, "cache: %s was written by a newer version of headrace; update headrace, or remove it", path);
    if (r == HR_E_CORRUPT || r == -EIO)
        return hr__fail(HR_E_CORRUPT, "cache: the record %s is damaged; remove the object and build it again", path);
    return hr__fail(r, "cache: cannot read %s: %s", path, hr_error_text(r));
}
