/* SPDX-License-Identifier: Apache-2.0 */
/* The file that has the kept part of an object. */
#ifndef HR_REMOTE_BLOCKS_H
#define HR_REMOTE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

/*
 * A blocks file has the bytes of an object that were fetched, each at its place, and says which ones these are:
 *
 *     0            the bytes of the object; a unit of 64 KiB that was not fetched is a hole
 *     tail         struct hr__blocks_head; tail: the size of the object, rounded up to 4 KiB
 *     bits_at      a bit for each unit: it is kept
 *     saved_at     a bit for each unit: it is also on the disk, not only in the memory of the kernel
 *     sums_at      eight bytes for each unit: its checksum
 *     size_at      the size of the object, by which a process that does not know it finds the head
 *
 * Why it is right. The fetcher writes a unit, its checksum, and then its bit, with one pwrite of one byte. What was
 * written is in the page cache of the kernel, whichever process dies, so a bit that is set has its unit behind it until
 * the machine stops. The head names the boot of the machine in which the bits were written. In another boot the fetcher
 * takes the saved bits instead, and then changes the name of the boot. A saved bit is written after fdatasync of its
 * unit, so a mixture of old and new saved bits, after a crash, is right too. The bits are in the same file as the
 * bytes, so that no removal or replacement of files can join bits with bytes of another time. A process that has the
 * file open can read what it has, whatever happens to its name.
 *
 * Only the fetcher writes. A reader opens it read-only and reads the bits with pread, so a file that is cut is an error
 * and not a SIGBUS. No bit is taken back.
 */

enum { HR__UNIT_BYTES = 64 << 10, HR__TAIL_ALIGN = 4096, HR__BLOCKS_VERSION = 2, HR__BOOT_BYTES = 40 };

struct hr__blocks_head {
    char magic[8];
    uint32_t version, unit_bytes;
    uint64_t bytes; /* of the object */
    char name[HR__NAME_BYTES];
    char boot[HR__BOOT_BYTES]; /* in which the bits were written; the writer: the fetcher, when it opens the file */
    uint64_t sum;              /* of all before `boot` */
    char shown[1024];          /* the address without its query, for people; not used */
};

struct hr__blocks_plan {
    uint64_t unit_count, tail, bits_at, saved_at, sums_at, size_at, file_bytes;
    uint64_t bit_bytes;
};
/* -EFBIG: the object is too large for a file. */
int hr__blocks_plan(uint64_t bytes, struct hr__blocks_plan *ret_plan);

/* Writes the path of the file of an object. -ENAMETOOLONG. */
int hr__blocks_path(const char *root, const char *name, char *ret_path);
bool hr__is_name(const char *name); /* HR__NAME_BYTES hexadecimal digits, in lower case */

/* ---- readers ---- */

/* Opens the file of an object to read. -ENOENT: it does not exist, or is not that of this object, of this version of
 * headrace or of this boot: nothing of the object is kept that can be read. Others: it cannot be opened. */
int hr__blocks_open(const char *root, const char *name, uint64_t bytes, int *ret_fd);
/* Returns true if all bytes of a range are in the open file. */
bool hr__blocks_have(int fd, uint64_t object_bytes, uint64_t at, uint64_t bytes);

/* The head of an open file. */
struct hr__blocks_look {
    struct hr__blocks_head head;
    struct hr__blocks_plan plan;
    bool is_of_this_boot;
};
/* Looks at the open file of a name. -ENOENT: it is damaged, or not that of an object, or of another version. */
int hr__blocks_look(int fd, const char *name, struct hr__blocks_look *ret_look);
/* Reads `count` bytes of the bits of the units that are kept, from byte `first` on: those that the file says, or in
 * another boot those that were saved. */
int hr__blocks_bits(int fd, const struct hr__blocks_look *look, uint64_t first, unsigned char *bits, size_t count);
/* Reads the checksums of `count` units, and computes that of the bytes of one. */
int hr__blocks_sums(int fd, const struct hr__blocks_look *look, uint64_t unit, uint64_t *sums, size_t count);
uint64_t hr__unit_sum(uint64_t unit, const void *data, uint64_t bytes);

/* ---- the fetcher ---- */

struct hr__blocks; /* a file that is written; threads may use it at the same time */

/* Opens the file of an object, or makes it. Negative errno: it cannot be made, and the object is not kept. */
int hr__blocks_make(const char *root, const char *name, const char *shown, uint64_t bytes,
                    struct hr__blocks **ret_blocks);
struct hr__blocks *hr__blocks_close(struct hr__blocks *blocks); /* NULL is fine; returns NULL */
bool hr__blocks_are_linked(const struct hr__blocks *blocks);    /* the file still has its name */

bool hr__blocks_has_unit(struct hr__blocks *blocks, uint64_t unit);
bool hr__blocks_have_range(struct hr__blocks *blocks, uint64_t at, uint64_t bytes); /* all of it is kept */
/* Writes whole units (the last one of the object may be shorter), their checksums, and then their bits. */
int hr__blocks_write(struct hr__blocks *blocks, uint64_t at, const void *data, uint64_t bytes);
int hr__blocks_read(struct hr__blocks *blocks, uint64_t at, void *data, uint64_t bytes);
/* Says in the file what is on the disk: takes the bits of now; the caller then syncs the file system; then writes what
 * was taken. begin returns 1 with the bits, which finish frees, or 0: nothing was written since the last time. */
int hr__blocks_begin_save(struct hr__blocks *blocks, unsigned char **ret_bits);
int hr__blocks_finish_save(struct hr__blocks *blocks, unsigned char *bits, bool is_synced);

#endif
