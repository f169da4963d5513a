/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that main.c and the commands share. */
#ifndef HR_CLI_H
#define HR_CLI_H

#include <headrace/cache.h>

#include <stdbool.h>
#include <stddef.h>

enum { EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* `headrace cache`, `completion`, `exec`, `index`, `record`, `run` and `top`, with the program's own arguments. They
 * return the exit code. */
int cache_command(int argc, char **argv);
int index_command(int argc, char **argv);
int run_command(int argc, char **argv);
int exec_command(int argc, char **argv);
int completion_command(int argc, char **argv);
int record_command(int argc, char **argv);
int top_command(int argc, char **argv);
/* Replaces this process by the interpreter, which runs the command argv[1] of `python -m headrace`, so that signals
 * reach it and its exit code is returned. Returns only if that fails. */
int become_python(int argc, char **argv);

/* ---- interpreter.c ---- */

/* Writes to `path` the path of this program. */
bool find_own_path(char *path, size_t size);
/* Returns the interpreter in which the package is installed, or NULL. `path` is memory for its name. */
const char *find_interpreter(char *path, size_t size);

/* The commands of headrace cache, with the words that follow their names. Each returns the exit code. */
int cache_warm(int count, char **words);
int cache_ls(int count, char **words);
int cache_info(int count, char **words);
int cache_verify(int count, char **words);
int cache_rm(int count, char **words);
int cache_gc(int count, char **words);

/* Opens the cache in `root`, or the default one. Returns NULL after a message on stderr. */
hr_cache *open_cache(const char *root);
/* The same for a command that only looks: NULL without a message, and without a new folder, if there is no cache. */
hr_cache *find_cache(const char *root, bool *ret_is_missing);
/* Prints the library's message. Returns 1, the exit code. */
int fail_with_message(void);

#endif
