/* SPDX-License-Identifier: Apache-2.0 */
/* A folder in memory for fuzzers whose parsers read files. It is removed at the end of the process. */
#ifndef HR_FUZZ_FOLDER_H
#define HR_FUZZ_FOLDER_H

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];

/* The path of a file in the folder, until the next call. */
static const char *path_of(const char *name) {
    static char path[sizeof folder + 256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const uint8_t *input, size_t bytes) {
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, input, bytes) != (ssize_t)bytes) abort();
    close(fd);
}

static void remove_folder(void) {
    DIR *open_folder = opendir(folder);
    const struct dirent *entry;
    while (open_folder && (entry = readdir(open_folder)))
        if (entry->d_name[0] != '.') unlink(path_of(entry->d_name));
    if (open_folder) closedir(open_folder);
    rmdir(folder);
}

static void make_folder(void) {
    snprintf(folder, sizeof folder, "/dev/shm/hr-fuzz-XXXXXX");
    if (!mkdtemp(folder)) abort();
    atexit(remove_folder);
}

#endif
