/* SPDX-License-Identifier: Apache-2.0 */
/* Locks on parts of a file and on a whole file. */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

static struct flock whole(uint64_t offset, uint64_t bytes) {
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = (off_t)bytes};
}

int hr__lock_range(int fd, uint64_t offset, uint64_t bytes) {
    struct flock range = whole(offset, bytes);
    if (fcntl(fd, F_SETLK, &range) == 0) return 0;
    return errno == EACCES ? -EAGAIN : -errno; /* POSIX allows both for a range that is locked */
}

bool hr__range_is_locked(int fd, uint64_t offset, uint64_t bytes) {
    struct flock range = whole(offset, bytes);
    return fcntl(fd, F_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

int hr__lock_file(int fd, enum hr__share share) {
    int r = hr__fail_at("flock");
    if (r < 0) return r;
    if (flock(fd, (share == HR__SHARED ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return 0;
    return errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

void hr__unlock_file(int fd) {
    flock(fd, LOCK_UN);
}

int hr__byte_lock(int fd, uint64_t offset) {
    struct flock range = whole(offset, 1);
    if (fcntl(fd, F_OFD_SETLK, &range) == 0) return 0;
    return errno == EACCES ? -EAGAIN : -errno;
}

int hr__byte_look(int fd, uint64_t offset) {
    struct flock range = whole(offset, 1);
    if (fcntl(fd, F_OFD_GETLK, &range) < 0) return -errno;
    return range.l_type != F_UNLCK;
}

bool hr__byte_is_locked(int fd, uint64_t offset) {
    return hr__byte_look(fd, offset) == 1;
}
