/* SPDX-License-Identifier: Apache-2.0 */
/* headrace cache of remote objects: what the commands for all kinds of objects call. */
#ifndef HR_CLI_CACHE_REMOTE_H
#define HR_CLI_CACHE_REMOTE_H

#include <stdbool.h>

#include <headrace/face/kept.h>

/* Takes --root (NULL: it was not given), and the interpreter for a fetcher. Before all others. */
void remote_use_root(const char *root);

/* Print what they find. `number`: how many elements of a JSON list were printed; they add theirs. remote_list returns 0
 * or a negative errno with a message, the others an exit code. */
int remote_list(bool is_json, int *number);
int remote_info(const char *word, bool is_json);
int remote_verify(const char *word, bool is_json, int *number);
int remote_remove(const char *word, bool force, bool is_json, int *number);
int remote_collect(const struct hr_kept_limits *limits, bool is_json); /* JSON: a key behind others */

/* Prints what a check of one object, file or remote object has found. r: negative with a message if it failed. */
void put_verified(const char *name, int r, uint64_t bytes, bool is_json, int *number);

#endif
