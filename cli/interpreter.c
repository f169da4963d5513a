/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Finds Python interpreters next to this program. */

bool find_own_path(char *path, size_t size) {
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length < 0) return false;
    path[length] = '\0';
    return true;
}

bool find_next_to(const char *name, char *path, size_t size) {
    if (!find_own_path(path, size)) return false;
    char *slash = strrchr(path, '/');
    if (!slash) return false;
    size_t room = size - (size_t)(slash + 1 - path);
    return (size_t)snprintf(slash + 1, room, "%s", name) < room && access(path, X_OK) == 0;
}

const char *find_interpreter(char *path, size_t size) {
    const char *named = getenv("HEADRACE_PYTHON");
    if (named && *named) return named;
    return find_next_to("python3", path, size) || find_next_to("python", path, size) ? path : NULL;
}
