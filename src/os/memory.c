/* SPDX-License-Identifier: Apache-2.0 */
/* Creates, commits, maps and returns shared memory. */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/base.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { SMALL_BYTES = 4096, HUGE_BYTES = 2 << 20 };

uint64_t hr__page_bytes(void) {
    uint64_t assumed = hr__assumed_page();
    return assumed ? assumed : (uint64_t)sysconf(_SC_PAGESIZE);
}

static bool begins_page(const void *address) {
    return (uintptr_t)address % hr__page_bytes() == 0;
}

static int open_memfd(const char *name, int *ret_fd) {
    int r = hr__fail_at("memfd_create");
    if (r < 0) return r;
    /* glibc has a function for it since 2.27 only. */
    return hr__own((int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING), ret_fd);
}

/* A file without a name: it vanishes with the last process that has it open or mapped. */
static int open_unlinked(const char *folder, int *ret_fd) {
    int fd = open(folder, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        char path[4096];
        int length = snprintf(path, sizeof path, "%s/headrace-%u-XXXXXX", folder, hr__pid());
        if (length < 0 || (size_t)length >= sizeof path) return -ENAMETOOLONG;
        fd = mkostemp(path, O_CLOEXEC);
        if (fd < 0) return -errno;
        unlink(path);
    }
    return hr__own(fd, ret_fd);
}

static int open_unlinked_shm(const char *folder, int *ret_fd) {
    int r = hr__fail_at("shm_open");
    return r < 0 ? r : open_unlinked(folder, ret_fd);
}

static int open_unlinked_tmp(const char *folder, int *ret_fd) {
    int r = hr__fail_at("tmp_open");
    return r < 0 ? r : open_unlinked(folder, ret_fd);
}

static const char *temporary_folder(void) {
    const char *folder = getenv("TMPDIR");
    return folder && *folder ? folder : "/tmp";
}

static int give_size(int fd, uint64_t bytes, uint64_t head_bytes) {
    int r = hr__file_cut(fd, bytes);
    if (r < 0) return r;
    return head_bytes ? hr__commit(fd, 0, head_bytes) : 0;
}

int hr__memory_create(const char *name, uint64_t bytes, uint64_t head_bytes, int *ret_fd,
                      enum hr__memory_kind *ret_kind) {
    const struct {
        int (*open)(const char *name_or_folder, int *ret_fd);
        const char *name_or_folder;
        enum hr__memory_kind kind;
    } ways[] = {{open_memfd, name, HR__MEMORY_MEMFD},
                {open_unlinked_shm, "/dev/shm", HR__MEMORY_SHM},
                {open_unlinked_tmp, temporary_folder(), HR__MEMORY_TMP}};
    int r = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        int fd = -1;
        r = ways[i].open(ways[i].name_or_folder, &fd);
        if (r == 0) r = give_size(fd, bytes, head_bytes);
        if (r == 0) {
            *ret_fd = fd;
            *ret_kind = ways[i].kind;
            return 0;
        }
        hr__close(&fd);
    }
    return r;
}

int hr__memory_bytes(int fd, uint64_t *ret_bytes) {
    struct stat info;
    if (fstat(fd, &info) < 0) return -errno;
    *ret_bytes = (uint64_t)info.st_size;
    return 0;
}

/* Reserves more address space than needed, then maps the file at an aligned part of it. */
static int map_aligned(int fd, uint64_t bytes, int protection, int flags, void **ret_address) {
    uint64_t whole = hr__round_up(bytes, hr__page_bytes()), room;
    if (whole < bytes || !hr__add(whole, HUGE_BYTES, &room)) return -EOVERFLOW;
    unsigned char *reserved = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return -errno;

    unsigned char *aligned = (unsigned char *)hr__round_up((uint64_t)(uintptr_t)reserved, HUGE_BYTES);
    void *mapped = mmap(aligned, bytes, protection, flags | MAP_FIXED, fd, 0);
    int r = mapped == MAP_FAILED ? -errno : 0;
    unsigned char *end = aligned + whole;
    if (aligned > reserved) munmap(reserved, (size_t)(aligned - reserved));
    if (reserved + room > end) munmap(end, (size_t)(reserved + room - end));
    if (r < 0) {
        munmap(aligned, bytes);
        return r;
    }
    madvise(aligned, bytes, MADV_HUGEPAGE); /* has an effect only if huge pages are enabled for shared memory */
    *ret_address = aligned;
    return 0;
}

int hr__map(int fd, uint64_t bytes, void **ret_address) {
    return map_aligned(fd, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ret_address);
}

int hr__map_to_read(int fd, uint64_t bytes, const void **ret_address) {
    void *address = NULL;
    int r = map_aligned(fd, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, &address);
    if (r < 0) r = map_aligned(fd, bytes, PROT_READ, MAP_SHARED, &address); /* no overcommit */
    if (r == 0) *ret_address = address;
    return r;
}

/* The kernel makes a huge page of small ones on request (MADV_COLLAPSE, Linux 6.1), even if it does not do so by
 * itself. At least one small page has to exist first. If small pages are larger than 4 KiB, huge ones are larger than
 * HUGE_BYTES, and the request has no effect, sometimes without an error. */
static int collapse(int fd, unsigned char *address, uint64_t offset) {
    if (hr__page_bytes() > SMALL_BYTES) return -EINVAL;
    int r = hr__commit(fd, offset, SMALL_BYTES);
    if (r < 0) return r;
    r = hr__fail_at("collapse");
    return r < 0 ? r : madvise(address + offset, HUGE_BYTES, MADV_COLLAPSE) < 0 ? -errno : 0;
}

int hr__commit_huge(int fd, void *address, uint64_t offset, uint64_t bytes) {
    uint64_t end = offset + bytes;
    while (offset < end && collapse(fd, address, offset) == 0) offset += HUGE_BYTES;
    return offset < end ? hr__commit(fd, offset, end - offset) : 0;
}

void hr__make_huge(void *address, uint64_t bytes) {
    if (hr__page_bytes() > SMALL_BYTES || (uintptr_t)address % HUGE_BYTES || hr__fail_at("collapse") < 0) return;
    madvise(address, bytes - bytes % HUGE_BYTES, MADV_COLLAPSE);
}

void hr__forget_pages(void *address, uint64_t bytes) {
    madvise(address, bytes,
            MADV_DONTNEED); /* for a shared file mapping this drops the page table entries, not the data */
}

int hr__flush(void *address, uint64_t bytes) {
    int r = hr__fail_at("msync");
    return r < 0 ? r : msync(address, bytes, MS_SYNC) < 0 ? -errno : 0;
}

void hr__unmap(void *address, uint64_t bytes) {
    if (!address || !bytes || !begins_page(address)) return;
    hr__note_lost(address, bytes);
    munmap(address, hr__round_up(bytes, hr__page_bytes()));
}

void hr__keep_from_children(void *address, uint64_t bytes) {
    madvise(address, bytes, MADV_DONTFORK);
}

int hr__commit(int fd, uint64_t offset, uint64_t bytes) {
    int r = hr__fail_at("fallocate");
    if (r < 0) return r;
    do r = fallocate(fd, 0, (off_t)offset, (off_t)bytes) < 0 ? -errno : 0;
    while (r == -EINTR);
    if (r != -EOPNOTSUPP) return r;
    do r = -posix_fallocate(fd, (off_t)offset, (off_t)bytes); /* it writes zeros if the file system cannot reserve */
    while (r == -EINTR);
    return r;
}

void hr__populate(void *address, uint64_t bytes) {
    if (hr__fail_at("populate") == 0 && madvise(address, bytes, MADV_POPULATE_WRITE) == 0) return;
    volatile unsigned char *page = address;
    uint64_t step = hr__page_bytes();
    for (uint64_t at = 0; at < bytes; at += step) page[at] = page[at];
}

int hr__punch(void *address, uint64_t bytes) {
    if (bytes == 0) return 0;
    if (!begins_page(address)) return -EINVAL;
    int r = hr__fail_at("remove");
    hr__note_lost(address, bytes);
    return r < 0 ? r : madvise(address, hr__round_up(bytes, hr__page_bytes()), MADV_REMOVE) < 0 ? -errno : 0;
}

int hr__make_private(void *address, uint64_t bytes) {
    int r;
    void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return -errno;
    memcpy(copy, address, bytes);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address) != MAP_FAILED) return 0;
    r = -errno;
    munmap(copy, bytes);
    return r;
}

void hr__keep_size(int fd) {
    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK);
}

void hr__keep_at_least(int fd) {
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
}

int hr__read_at(int fd, uint64_t offset, void *data, size_t bytes) {
    while (bytes) {
        ssize_t n = pread(fd, data, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? -errno : -EIO;
        data = (char *)data + n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* Takes `read` bytes off the places. Returns how many places are done. */
static size_t skip_places(struct hr__read_part *places, size_t count, size_t read) {
    size_t done = 0;
    while (done < count && read >= places[done].bytes) read -= places[done++].bytes;
    if (done < count) {
        places[done].data = (char *)places[done].data + read;
        places[done].bytes -= read;
    }
    return done;
}

int hr__read_parts(int fd, uint64_t offset, struct hr__read_part *places, size_t count) {
    size_t done = skip_places(places, count, 0);
    while (done < count) {
        struct iovec parts[HR__READ_PARTS_MOST];
        for (size_t i = done; i < count; i++) parts[i - done] = (struct iovec){places[i].data, places[i].bytes};
        ssize_t n = preadv(fd, parts, (int)(count - done), (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? -errno : -EIO;
        offset += (uint64_t)n;
        done += skip_places(places + done, count - done, (size_t)n);
    }
    return 0;
}

int hr__read_now(int fd, uint64_t offset, void *data, size_t bytes) {
#ifdef SYS_preadv2
    enum { NOWAIT = 8 };                /* RWF_NOWAIT, since Linux 4.14 */
    struct iovec whole = {data, bytes}; /* glibc has a function for it since 2.26 only */
    long n = syscall(SYS_preadv2, fd, &whole, 1L, (long)offset, 0L, NOWAIT);
    return n >= 0 && (size_t)n == bytes ? 0 : -EAGAIN;
#else
    (void)fd, (void)offset, (void)data, (void)bytes;
    return -EAGAIN;
#endif
}

int hr__write_at(int fd, uint64_t offset, const void *data, size_t bytes) {
    if (offset + bytes > hr__file_limit()) return -EFBIG;
    while (bytes) {
        ssize_t n = pwrite(fd, data, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -errno;
        data = (const char *)data + n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}
