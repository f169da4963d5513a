/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the options, sizes and times of commands, and writes JSON texts. */
#ifndef HR_CLI_OPTIONS_H
#define HR_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* An option of a command. Without `value` it is a flag. */
struct option {
    const char *name;   /* "--name" */
    const char **value; /* where the text after it goes */
    int *flag;          /* set to 1 if it is given */
};

/* Sorts the words of a command into options and others, which it moves to the beginning of `words`. "--option=value" is
 * understood, and all after "--" are others. Returns the number of others, or -1 after a message on stderr. command:
 * "cache ls". */
int parse_options(const char *command, int count, char **words, const struct option *options, size_t option_count);

/* Parses "40G" or a number of bytes, and "7d" or a number of seconds. Returns 0, or -1 after a message on stderr. */
int parse_bytes(const char *text, const char *option, uint64_t *ret_bytes);
int parse_seconds(const char *text, const char *option, double *ret_seconds);
int parse_count(const char *text, const char *option, uint32_t *ret_count);

/* Returns true if a word is the URL of an object, and not a path. */
bool is_url(const char *word);

/* Formats a size ("1.5 GiB") or a time ("12 s", "3 h") into `text`, which has 32 bytes, and returns it. */
enum { UNITS_BYTES = 32 };
const char *in_bytes(uint64_t bytes, char *text);
const char *in_time(double seconds, char *text);

/* Writes a text as JSON. Bytes that are not UTF-8 are written as "\ufffd". */
void put_json(FILE *to, const char *text);

#endif
