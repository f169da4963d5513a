/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/base.h"

/* Files by name, folders and file systems. The cache uses them. */

int hr__path(char *ret_path, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(ret_path, HR__PATH_BYTES, format, arguments);
    va_end(arguments);
    return length < 0 || length >= HR__PATH_BYTES ? -ENAMETOOLONG : 0;
}

static struct hr__file_info describe(const struct stat *info) {
    return (struct hr__file_info){
        .device = (uint64_t)info->st_dev,
        .inode = (uint64_t)info->st_ino,
        .bytes = (uint64_t)info->st_size,
        .committed_bytes = (uint64_t)info->st_blocks * 512,
        .changed_ns = info->st_mtim.tv_sec * HR_NS_PER_S + info->st_mtim.tv_nsec,
        .user = info->st_uid,
        .mode = info->st_mode & 07777,
        .is_folder = S_ISDIR(info->st_mode),
        .is_regular = S_ISREG(info->st_mode),
        .is_link = S_ISLNK(info->st_mode),
    };
}

int hr__file_look(const char *path, struct hr__file_info *ret_info) {
    struct stat info;
    if (lstat(path, &info) < 0) return -errno;
    *ret_info = describe(&info);
    return 0;
}

int hr__file_look_through(const char *path, struct hr__file_info *ret_info) {
    struct stat info;
    if (stat(path, &info) < 0) return -errno;
    *ret_info = describe(&info);
    return 0;
}

int hr__file_look_fd(int fd, struct hr__file_info *ret_info) {
    struct stat info;
    if (fstat(fd, &info) < 0) return -errno;
    *ret_info = describe(&info);
    return 0;
}

static int open_private(const char *path, int flags, int *ret_fd) {
    int r = hr__fail_at("open");
    if (r < 0) return r;
    return hr__own(open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | flags, 0600), ret_fd);
}

int hr__file_make(const char *path, int *ret_fd) {
    return open_private(path, O_EXCL, ret_fd);
}

int hr__file_open_or_make(const char *path, int *ret_fd) {
    return open_private(path, 0, ret_fd);
}

int hr__file_touch(const char *path) {
    return utimensat(AT_FDCWD, path, NULL, 0) < 0 ? -errno : 0;
}

int hr__file_is_free(int fd) {
    /* The kernel gives a lease to write only if the file is not open elsewhere. It would send a signal if the file were
     * opened meanwhile: one that is ignored by default, because SIGIO ends a process. */
    fcntl(fd, F_SETSIG, SIGURG);
    int r = fcntl(fd, F_SETLEASE, F_WRLCK) < 0 ? -errno : 0;
    if (r == 0) fcntl(fd, F_SETLEASE, F_UNLCK);
    return r == -EAGAIN ? r : 0;
}

int hr__folder_make_new(const char *path) {
    int r = hr__fail_at("mkdir");
    if (r < 0) return r;
    return mkdir(path, 0700) < 0 ? -errno : 0;
}

int hr__folder_sync(const char *path) {
    int fd = -1;
    int r = hr__own(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), &fd);
    if (r < 0) return r;
    r = fsync(fd) < 0 ? -errno : 0;
    hr__close(&fd);
    return r == -EINVAL || r == -EROFS ? 0 : r;
}

static int visit_entries(DIR *folder, int (*visit)(void *context, const char *name), void *context) {
    struct dirent *entry;
    int r = 0;
    while (r == 0 && (errno = 0, entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) r = visit(context, entry->d_name);
    return r ? r : -errno;
}

int hr__link_target(const char *path, char *ret_text, size_t bytes) {
    ssize_t length = readlink(path, ret_text, bytes - 1);
    if (length < 0) return -errno;
    ret_text[length] = '\0';
    return (int)length;
}

int hr__folder_visit(const char *path, int (*visit)(void *context, const char *name), void *context) {
    DIR *folder = opendir(path);
    if (!folder) return -errno;
    int r = visit_entries(folder, visit, context);
    closedir(folder);
    return r;
}

static int unlink_one(void *context, const char *name) {
    return unlinkat(*(int *)context, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

int hr__folder_remove(const char *path) {
    int fd = -1;
    int r = hr__own(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), &fd);
    if (r < 0) return r;
    r = hr__folder_visit(path, unlink_one, &fd);
    hr__close(&fd);
    return r < 0 ? r : rmdir(path) < 0 ? -errno : 0;
}

int hr__rename(const char *from, const char *to) {
    return rename(from, to) < 0 ? -errno : 0;
}

/* glibc has a function for it since 2.28 only. */
static int rename_with(const char *from, const char *to, unsigned flags) {
    return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags) < 0 ? -errno : 0;
}

int hr__rename_new(const char *from, const char *to) {
    int r = hr__fail_at("rename");
    if (r < 0) return r;
    r = rename_with(from, to, RENAME_NOREPLACE);
    if (r != -EINVAL && r != -ENOSYS) return r;
    /* The file system does not know the flag. A folder replaces only an empty folder, and the callers hold a lock. */
    struct stat info;
    if (lstat(to, &info) == 0) return -EEXIST;
    return hr__rename(from, to);
}

int hr__rename_swap(const char *one, const char *other) {
    int r = hr__fail_at("swap");
    return r < 0 ? r : rename_with(one, other, RENAME_EXCHANGE);
}

/* ---- file systems ---- */

#ifndef V9FS_MAGIC
#define V9FS_MAGIC 0x01021997
#endif
enum { LUSTRE_MAGIC = 0x0BD00BD0 };

/* File systems on which another machine or a server may change files, or whose locks are known to be unreliable. */
static const char *name_refused(int64_t magic) {
    static const struct {
        int64_t magic;
        const char *name;
    } table[] = {{NFS_SUPER_MAGIC, "NFS"},  {V9FS_MAGIC, "9p"},         {FUSE_SUPER_MAGIC, "FUSE"},
                 {LUSTRE_MAGIC, "Lustre"},  {SMB_SUPER_MAGIC, "SMB"},   {CIFS_SUPER_MAGIC, "SMB"},
                 {SMB2_SUPER_MAGIC, "SMB"}, {CEPH_SUPER_MAGIC, "Ceph"}, {AFS_SUPER_MAGIC, "AFS"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].magic == magic) return table[i].name;
    return NULL;
}

#define BTRFS_MAGIC INT64_C(0x9123683E)
#define BCACHEFS_MAGIC INT64_C(0xCA451A4E)
#define ZFS_MAGIC INT64_C(0x2FC12FC1)

static bool copies_on_write(int64_t magic) {
    return magic == BTRFS_MAGIC || magic == BCACHEFS_MAGIC || magic == ZFS_MAGIC;
}

int hr__file_system_sync(int fd) {
    int r = hr__fail_at("syncfs");
    return r < 0 ? r : syncfs(fd) < 0 ? -errno : 0;
}

int hr__file_system_look(const char *path, struct hr__file_system *ret_system) {
    struct statfs info;
    if (statfs(path, &info) < 0) return -errno;
    int64_t magic = (int64_t)(uint32_t)info.f_type;
    if (hr__fail_at("statfs_nfs") < 0) magic = NFS_SUPER_MAGIC;
    bool is_full = hr__fail_at("statfs_full") < 0;
    *ret_system = (struct hr__file_system){
        .is_memory = magic == TMPFS_MAGIC || magic == RAMFS_MAGIC,
        .copies_on_write = copies_on_write(magic) || hr__fail_at("statfs_btrfs") < 0,
        .refused = name_refused(magic),
        .free_bytes = is_full ? 0 : (uint64_t)info.f_bavail * (uint64_t)info.f_bsize,
        .free_files = info.f_files ? (uint64_t)info.f_ffree : UINT64_MAX, /* some file systems have no such limit */
    };
    return 0;
}
