/* SPDX-License-Identifier: Apache-2.0 */
/* Creates, publishes and removes files; random bytes. */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/base.h"

int hr__file_open(const char *path, int *ret_fd) {
    struct stat info;
    int fd = -1;
    int r = hr__own(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK),
                    &fd); /* without O_NONBLOCK, a FIFO would wait for a writer */
    if (r < 0) return r;
    r = fstat(fd, &info) < 0 ? -errno : S_ISDIR(info.st_mode) ? -EISDIR : S_ISREG(info.st_mode) ? 0 : -EINVAL;
    if (r < 0) {
        hr__close(&fd);
        return r;
    }
    *ret_fd = fd;
    return 0;
}

static int open_nameless(const char *path, int *ret_fd) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) + 1 : 0;
    if (length >= sizeof folder) return -ENAMETOOLONG;
    memcpy(folder, path, length);
    folder[length] = '\0';
    int r = hr__fail_at("tmpfile");
    if (r < 0) return r;
    return hr__own(open(length ? folder : ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666), ret_fd);
}

/* PATH.PID-NUMBER.tmp */
static int name_temporary(const char *path, char **ret_name) {
    static _Atomic unsigned number;
    size_t room = strlen(path) + 40;
    char *name = hr__realloc(NULL, room);
    if (!name) return -ENOMEM;
    snprintf(name, room, "%s.%d-%u.tmp", path, (int)getpid(), atomic_fetch_add(&number, 1));
    *ret_name = name;
    return 0;
}

int hr__file_create(const char *path, int *ret_fd, char **ret_temporary) {
    struct stat info;
    *ret_temporary = NULL;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) /* or the file would replace a pipe or a device */
        return S_ISDIR(info.st_mode) ? -EISDIR : -EEXIST;
    if (open_nameless(path, ret_fd) == 0) return 0;
    char *name;
    int r = name_temporary(path, &name);
    if (r < 0) return r;
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    r = hr__own(fd, ret_fd);
    if (r < 0) {
        if (fd >= 0) unlink(name);
        hr__free(name);
        return r;
    }
    *ret_temporary = name;
    return 0;
}

static int link_nameless(int fd, const char *name) {
    char from[40];
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, from, AT_FDCWD, name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

int hr__file_publish(int fd, const char *temporary, const char *path) {
    if (temporary) return rename(temporary, path) < 0 ? -errno : 0;
    int r = link_nameless(fd, path);
    if (r != -EEXIST) return r;
    char *name;
    r = name_temporary(path, &name);
    if (r < 0) return r;
    r = link_nameless(fd, name);
    if (r == 0 && rename(name, path) < 0) {
        r = -errno;
        unlink(name);
    }
    hr__free(name);
    return r;
}

void hr__file_remove(const char *path) {
    if (path) unlink(path);
}

int hr__file_cut(int fd, uint64_t bytes) {
    if (bytes > hr__file_limit()) return -EFBIG;
    return ftruncate(fd, (off_t)bytes) < 0 ? -errno : 0;
}

int hr__file_sync(int fd) {
    int r;
    do r = fdatasync(fd) < 0 ? -errno : 0;
    while (r == -EINTR);
    return r == -EINVAL ? 0 : r; /* there is nothing to sync in memory */
}

void hr__file_read_ahead(int fd) {
    posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
}

void hr__file_ask(int fd, uint64_t at, uint64_t bytes) {
    posix_fadvise(fd, (off_t)at, (off_t)bytes, POSIX_FADV_WILLNEED);
}

int hr__file_reopen(int fd, int *ret_fd) {
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDONLY | O_CLOEXEC);
    if (again < 0) return hr__dup(fd, ret_fd);
    return hr__own(again, ret_fd);
}

int hr__file_reopen_to_write(int fd, int *ret_fd) {
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    return again < 0 ? -errno : hr__own(again, ret_fd);
}

void hr__seal(int fd) {
    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
}

void hr__random(void *bytes, size_t count) {
    unsigned char *at = bytes;
    while (count) {
        long n = syscall(SYS_getrandom, at, count, 0); /* glibc has a function for it since 2.25 only */
        if (n < 0 && errno != EINTR) return;           /* getrandom is not available: the caller's bytes stay */
        if (n > 0) at += n, count -= (size_t)n;
    }
}

int hr__folder_make(const char *path) {
    return mkdir(path, 0777) < 0 && errno != EEXIST ? -errno : 0;
}

int hr__folder_current(char *ret_path, size_t size) {
    return getcwd(ret_path, size) ? 0 : -errno;
}

int hr__folder_make_unique(char *path) {
    return mkdtemp(path) ? 0 : -errno;
}

int hr__log_create(const char *path, int *ret_fd) {
    int r = hr__fail_at("log_create");
    if (r < 0) return r;
    /* Without O_NONBLOCK, a FIFO would wait for a reader. */
    r = hr__own(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND | O_NONBLOCK, 0666), ret_fd);
    if (r == 0) fcntl(*ret_fd, F_SETFL, O_APPEND);
    return r;
}

int hr__log_append(const char *path, int *ret_fd) {
    return hr__own(open(path, O_WRONLY | O_CLOEXEC | O_APPEND | O_NONBLOCK), ret_fd);
}

int hr__file_changed_ns(int fd, int64_t *ret_changed_ns) {
    struct stat info;
    struct timespec wall;
    if (fstat(fd, &info) < 0) return -errno;
    clock_gettime(CLOCK_REALTIME, &wall);
    int64_t age_ns = (wall.tv_sec - info.st_mtim.tv_sec) * HR_NS_PER_S + (wall.tv_nsec - info.st_mtim.tv_nsec);
    *ret_changed_ns = hr__now_ns() - age_ns;
    return 0;
}
