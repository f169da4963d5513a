/* SPDX-License-Identifier: Apache-2.0 */
/* Indexes of files: where the members of tar files and the lines of text files are. */
#ifndef HR_SOURCE_INDEX_H
#define HR_SOURCE_INDEX_H

#include <headrace/index.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/os.h"

/*
 * The serial form is the index: what is made, mapped, pickled and saved are the same bytes. All numbers are
 * little-endian, and each part begins at a multiple of 8:
 *
 *     struct hr__index_head
 *     struct hr_index_file[file_count]
 *     struct hr__entry[entry_count]        in the order of the files, and in that of the members or lines
 *     uint32_t starts[start_count]         the first entry of each sample, counted from that of its file; there are
 *                                          none (start_count 0) if each entry is a sample
 *     uint32_t name_ends[name_count]       where the names end
 *     char names[name_bytes]
 *
 * hr_index_open checks that the parts fill the block exactly, that the counts of the files add up, and that the names
 * are in order, which takes no time. Starts and entries are checked when they are used: hr__index_sample, and the
 * kind's own code, which compares an entry with the file.
 *
 * To add a kind: a constant in enum hr_index_kind, a scanner (below) in its own file, and a line in the table `kinds`
 * of indexing.c. What is in the 16 bytes of an entry is the kind's own.
 */

struct hr__entry {
    uint64_t low, high;
};

struct hr__index_head {
    char magic[8];
    uint32_t version, kind;
    uint64_t bytes; /* of the whole block */
    uint64_t sum;   /* of this head with sum = 0, and of all behind it */
    uint64_t file_count, entry_count, start_count, name_count, name_bytes;
    uint64_t unused[6]; /* 0 */
};

struct hr_index {
    const struct hr__index_head *head;
    const struct hr_index_file *files;
    const struct hr__entry *entries;
    const uint32_t *starts; /* NULL: each entry is a sample */
    const uint32_t *name_ends;
    const char *names;
    void *owned; /* the block, if it is freed with the index; else NULL */
};

/* ---- index.c ---- */

struct hr__sample {
    uint64_t file;
    uint64_t first, count; /* its entries; first: in index->entries */
};
/* Finds a sample. -ERANGE: there is no such sample. -EINVAL: the index is damaged. With a message. */
int hr__index_sample(const hr_index *index, uint64_t number, struct hr__sample *ret_sample);
/* The same for a sample that is known to be of a file. */
int hr__index_sample_of(const hr_index *index, uint64_t file, uint64_t number, struct hr__sample *ret_sample);

/* A block that is filled by the caller: sizes in the head (file_count to name_bytes), which gets the rest. */
int hr__index_new(const struct hr__index_head *sizes, hr_index **ret_index);
/* Computes the checksum of a block that was filled. */
void hr__index_seal(hr_index *index);

/* ---- window.c: a file that is read from its begin to its end ---- */

enum { HR__WINDOW_BYTES = 256 << 10 };

struct hr__pool;

struct hr__window {
    int fd;
    struct hr__pool *pool; /* of a remote object, which is its only file; NULL: it is the open file `fd` */
    uint64_t asked;        /* of a remote object: the fetcher knows that what is before it is read soon */
    const char *path;
    uint64_t file_bytes; /* when it was opened; hr__window_get does not read behind it */
    uint64_t at;         /* the part of the file that is in memory */
    size_t count;
    unsigned char *memory;        /* HR__WINDOW_BYTES */
    const _Atomic bool *stop;     /* ends the scan; NULL: nothing does */
    _Atomic uint64_t *bytes_done; /* what was read is added to it; NULL is fine */
};

/* Returns the bytes [at, at + bytes) of the file, which have to be within it, and at most HR__WINDOW_BYTES. If they are
 * not in memory, it reads them and up to `ahead` bytes from `at` on, in one read. They are valid until the next call.
 * -ECANCELED: the scan is to end. -ESTALE: the file became shorter. Others: it cannot be read. With a message. */
int hr__window_get(struct hr__window *window, uint64_t at, size_t bytes, size_t ahead, const unsigned char **ret_data);

/* ---- draft.c: the index of one file, while it is made ---- */

struct hr__draft {
    struct hr_index_file file; /* a scanner fills data_bytes, good_bytes, damage and counts */
    struct hr__entry *entries;
    uint64_t entry_room;
    uint32_t *starts;
    uint64_t start_count, start_room;
    char *names;
    uint32_t *name_ends;
    uint64_t name_bytes, name_room, name_count, ends_room;
    uint64_t next_name; /* the name that is tried first */
    bool has_starts;    /* set by the first hr__draft_start */
};

void hr__draft_init(struct hr__draft *draft);
void hr__draft_done(struct hr__draft *draft);
/* Adds an entry. -ENOMEM; -EOVERFLOW: a file has 2^32 of them. With a message. */
int hr__draft_add(struct hr__draft *draft, struct hr__entry entry);
/* Says that the next entry is the first one of a sample. A kind whose entries are all samples never calls it. */
int hr__draft_start(struct hr__draft *draft);
/* Finds a name among those of this file, or adds it. -E2BIG: there are HR_FIELDS_MOST. -ENOMEM with a message. */
int hr__draft_name(struct hr__draft *draft, const char *name, size_t bytes, uint32_t *ret_number);

/* A scanner reads a whole file and adds its entries. Returns 0 also for a damaged file, after it set file.damage and
 * file.good_bytes; a sample that the damage cuts in two should not be in it. Negative errno with a message: the file
 * cannot be read; -ECANCELED. */
typedef int (*hr__scanner)(struct hr__window *window, struct hr__draft *draft);

/* ---- tar_scan.c ---- */

int hr__tar_scan(struct hr__window *window, struct hr__draft *draft);

#endif
