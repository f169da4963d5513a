/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks of the workers of a loader, for `headrace top`: they write them into their diagnostics files. */
#define _GNU_SOURCE
#include "top.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <headrace/face/crew.h>

enum { WAIT_MS = 10, WAITS = 100 };

/* Opens the diagnostics file of a process. */
static int open_diagnostics(int pid) {
    char path[64], target[64];
    int found = -1;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    for (struct dirent *entry; found < 0 && folder && (entry = readdir(folder));) {
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strcmp(target, "/memfd:headrace-worker (deleted)") == 0)
            found = openat(dirfd(folder), entry->d_name, O_RDONLY | O_CLOEXEC);
    }
    if (folder) closedir(folder);
    return found;
}

/* Returns true if the process has a handler for the signal: without one, it would end the process. */
static bool handles(int pid, int number) {
    char path[64], line[128];
    uint64_t caught = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (top_read_field(line, "SigCgt:", 16, &caught)) break;
    if (file) fclose(file);
    return caught >> (number - 1) & 1;
}

static size_t read_stacks(int fd, char *text) {
    ssize_t length = pread(fd, text, HR_DIAGNOSTICS_STACK_BYTES, HR_DIAGNOSTICS_STACK_AT);
    text[length > 0 ? length : 0] = '\0';
    return strlen(text);
}

/* Returns the length of what was there before; negative: it cannot be asked. */
static void write_stacks(FILE *to, int pid, int fd, char *text) {
    int number = SIGRTMAX - 5; /* STACK_SIGNAL of headrace/_loader/worker/diagnostics.py */
    size_t before = read_stacks(fd, text), after = before, settled = 0;
    if (before > HR_DIAGNOSTICS_STACK_BYTES / 2) {
        fprintf(to, "  its file for stacks is half full; run: py-spy dump --pid %d\n", pid);
        return;
    }
    if (!handles(pid, number) || kill(pid, number) < 0) {
        fprintf(to, "  it does not write stacks; run: py-spy dump --pid %d\n", pid);
        return;
    }
    for (int i = 0; i < WAITS && (after == before || after != settled); i++) {
        settled = after;
        poll(NULL, 0, WAIT_MS);
        after = read_stacks(fd, text);
    }
    if (after == before)
        fprintf(to, "  it has not written stacks within a second; run: py-spy dump --pid %d\n", pid);
    else
        fputs(text + before, to);
}

char *top_stacks(struct top_loader *loader) {
    char *all = NULL, *text = malloc(HR_DIAGNOSTICS_STACK_BYTES + 1);
    size_t bytes;
    FILE *to = text ? open_memstream(&all, &bytes) : NULL;
    for (uint32_t i = 0; to && i < loader->look.worker_count; i++) {
        int pid = loader->is_same_namespace ? (int)loader->workers[i].look.status.pid : 0;
        int fd = pid > 0 ? open_diagnostics(pid) : -1;
        fprintf(to, "worker %u, pid %d\n", i, pid);
        if (fd >= 0)
            write_stacks(to, pid, fd, text);
        else
            fprintf(to, "  its diagnostics file cannot be read\n");
        if (fd >= 0) close(fd);
    }
    if (to) fputs("Press any key.\n", to);
    if (to) fclose(to);
    free(text);
    return all;
}
