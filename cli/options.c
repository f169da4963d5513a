/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <stdlib.h>
#include <string.h>

/* Options, sizes, times and JSON texts of the commands. */

static const struct option *find_option(const struct option *options, size_t count, const char *word, size_t length) {
    for (size_t i = 0; i < count; i++)
        if (strlen(options[i].name) == length && memcmp(options[i].name, word, length) == 0) return &options[i];
    return NULL;
}

static int refuse(const char *command, const char *text, const char *word) {
    fprintf(stderr, "headrace: %s '%s'; see headrace %s --help\n", text, word, command);
    return -1;
}

int parse_options(const char *command, int count, char **words, const struct option *options, size_t option_count) {
    int others = 0;
    for (int i = 0; i < count; i++) {
        char *word = words[i];
        if (strcmp(word, "--") == 0) {
            while (++i < count) words[others++] = words[i];
            break;
        }
        if (word[0] != '-' || !word[1]) {
            words[others++] = word;
            continue;
        }
        size_t length = strcspn(word, "=");
        const struct option *option = find_option(options, option_count, word, length);
        if (!option) return refuse(command, "unknown option", word);
        if (option->flag && word[length]) return refuse(command, "this option takes no value:", word);
        if (option->flag) {
            *option->flag = 1;
        } else if (word[length]) {
            *option->value = word + length + 1;
        } else {
            if (++i == count) return refuse(command, "a value is missing after", word);
            *option->value = words[i];
        }
    }
    return others;
}

/* ---- numbers ---- */

struct unit {
    char letter;
    double factor;
};

static int parse_number(const char *text, const struct unit *units, size_t count, double *ret_number) {
    char *end;
    double number = strtod(text, &end);
    if (end == text || !(number >= 0) || number > 1e18) return -1;
    for (size_t i = 0; *end && i < count; i++) {
        if (*end != units[i].letter) continue;
        number *= units[i].factor;
        end++;
        if (*end == 'i') end++;
        if (*end == 'B') end++;
        break;
    }
    if (*end) return -1;
    *ret_number = number;
    return 0;
}

int parse_bytes(const char *text, const char *option, uint64_t *ret_bytes) {
    static const struct unit units[] = {{'K', 1024.0}, {'M', 1048576.0}, {'G', 1073741824.0}, {'T', 1099511627776.0}};
    double bytes;
    if (parse_number(text, units, 4, &bytes) < 0 || bytes >= 9e18) {
        fprintf(stderr, "headrace: %s is '%s'; give a number of bytes, or for example 40G\n", option, text);
        return -1;
    }
    *ret_bytes = (uint64_t)bytes;
    return 0;
}

int parse_seconds(const char *text, const char *option, double *ret_seconds) {
    static const struct unit units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}, {'w', 604800}};
    if (parse_number(text, units, 5, ret_seconds) == 0 && *ret_seconds < 9e9) return 0;
    fprintf(stderr, "headrace: %s is '%s'; give a number of seconds, or for example 7d or 12h\n", option, text);
    return -1;
}

int parse_count(const char *text, const char *option, uint32_t *ret_count) {
    double number;
    if (parse_number(text, NULL, 0, &number) == 0 && number >= 1 && number <= 1024 && (uint32_t)number == number) {
        *ret_count = (uint32_t)number;
        return 0;
    }
    fprintf(stderr, "headrace: %s is '%s'; give a number from 1 to 1024\n", option, text);
    return -1;
}

bool is_url(const char *word) {
    size_t scheme = strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789");
    return scheme && strncmp(word + scheme, "://", 3) == 0;
}

const char *in_bytes(uint64_t bytes, char *text) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double size = (double)bytes;
    size_t unit = 0;
    while (size >= 1024 && unit < 4) size /= 1024, unit++;
    snprintf(text, UNITS_BYTES, unit ? "%.1f %s" : "%.0f %s", size, units[unit]);
    return text;
}

const char *in_time(double seconds, char *text) {
    if (seconds < 100)
        snprintf(text, UNITS_BYTES, "%.0f s", seconds);
    else if (seconds < 100 * 60)
        snprintf(text, UNITS_BYTES, "%.0f min", seconds / 60);
    else if (seconds < 100 * 3600)
        snprintf(text, UNITS_BYTES, "%.0f h", seconds / 3600);
    else
        snprintf(text, UNITS_BYTES, "%.0f d", seconds / 86400);
    return text;
}

/* ---- JSON ---- */

/* Returns the length of the UTF-8 character at `at`, or 0. */
static size_t character_at(const unsigned char *at) {
    size_t length = *at < 0x80 ? 1 : *at >= 0xC2 && *at < 0xE0 ? 2 : *at >= 0xE0 && *at < 0xF0 ? 3 : *at < 0xF5 ? 4 : 0;
    if (*at >= 0x80 && *at < 0xC2) return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xC0) != 0x80) return 0;
    return length;
}

void put_json(FILE *to, const char *text) {
    fputc('"', to);
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        size_t length = character_at(at);
        if (!length)
            fputs("\\ufffd", to), length = 1;
        else if (*at == '"' || *at == '\\')
            fprintf(to, "\\%c", *at);
        else if (*at < ' ')
            fprintf(to, "\\u%04x", *at);
        else
            fwrite(at, 1, length, to);
        at += length;
    }
    fputc('"', to);
}
