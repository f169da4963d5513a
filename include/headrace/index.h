/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_INDEX_H
#define HEADRACE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * An index says where the members of tar files, or the lines of text files, are: 16 bytes for each, so that any sample
 * can be read without its neighbours. It is made by reading the files once, several at a time.
 *
 * An index is one block of bytes that refers to nothing (its serial form). It can be kept anywhere, mapped, or written
 * next to a file, as PATH.hri. It has no paths: its files are known by their order, and each one by its size, its time
 * and its inode.
 *
 * An index is never believed. hr_index_open checks its head and its tables against its size. Whatever is read with an
 * entry is compared with the file itself, so an index that is old, damaged or forged gives an error and not other data.
 */

typedef struct hr_index hr_index;
typedef struct hr_indexing hr_indexing; /* files that threads are reading */

/* The kinds of indexes: of the members of tar files, or of the lines of text files. */
enum hr_index_kind { HR_INDEX_TAR = 1, HR_INDEX_LINES = 2 };

/* Why the entries of a file end before its end. The entries before that place are good. */
enum hr_damage {
    HR_DAMAGE_NONE,
    HR_DAMAGE_EMPTY,      /* a file of 0 bytes */
    HR_DAMAGE_COMPRESSED, /* it begins as a compressed file */
    HR_DAMAGE_HEADER,     /* no header of a member, or one with a wrong checksum */
    HR_DAMAGE_TRUNCATED,  /* the file ends within a member or its header */
    HR_DAMAGE_SPARSE,     /* a sparse member of a tar file */
    HR_DAMAGE_REFUSED,    /* a header that is valid, but not supported: more than 63 KiB, a global path or size */
    HR_DAMAGE_FIELDS,     /* more than HR_FIELDS_MOST names of fields in one file */
    HR_DAMAGE_COUNT
};

/* The version of the serial form; the most names of fields in a file; how many counts a file has room for. */
enum { HR_INDEX_VERSION = 2, HR_FIELDS_MOST = 4096, HR_INDEX_COUNTS = 10 };

/* Numbers of hr_index_file.counts. Each kind has its own. */
enum hr_tar_count {
    HR_TAR_FOLDERS,  /* members that are folders */
    HR_TAR_LINKS,    /* symbolic and hard links */
    HR_TAR_OTHERS,   /* devices, pipes and unknown types */
    HR_TAR_NAMELESS, /* files without a field: no dot in the last part of the name */
    HR_TAR_METADATA, /* WebDataset's metadata: __x__/... and __x__ */
    HR_TAR_REPEATS,  /* samples whose key another sample of this file had before, not as its neighbour */
    HR_TAR_BEHIND,   /* bytes from the first one behind the end that is not zero: archives that were joined */
    HR_TAR_ENDLESS,  /* 1: the file ends without the mark of its end; it may have been cut between two members */
    HR_TAR_FIRST,    /* with HR_TAR_REPEATS: where the first of these keys came before, */
    HR_TAR_AGAIN     /* and where it comes again: offsets of headers */
};

/* A file of an index. The struct is a part of the serial form. */
struct hr_index_file {
    uint64_t bytes;      /* its size */
    int64_t changed_ns;  /* its time: st_mtim, in ns since 1970 */
    uint64_t inode;      /* 0: not compared */
    uint64_t data_bytes; /* of all its members or lines together */
    uint64_t first_entry, entry_count;
    uint64_t first_sample, sample_count;
    uint64_t first_name, name_count; /* the names that the entries of this file refer to by number */
    uint64_t good_bytes;             /* where the entries end: the damage, or the end of the file */
    uint64_t damage;                 /* enum hr_damage */
    uint64_t counts[HR_INDEX_COUNTS];
};

struct hr_index_info {
    enum hr_index_kind kind;
    uint64_t file_count, entry_count, sample_count;
    uint64_t bytes; /* of the serial form */
};

/* ---- making an index ---- */

/* Begins to read files, 32 at a time at most. With uses_saved, a file is not read if the index next to it (PATH.hri)
 * is of its size and its time. -EINVAL: there is no such kind. -EAGAIN: no thread can be started. The paths are copied.
 */
HR_API int hr_indexing_start(enum hr_index_kind kind, const char *const *paths, size_t path_count, bool uses_saved,
                             hr_indexing **ret_indexing);
/* Waits until all files are read. Returns 1: they are; 0: the deadline (CLOCK_MONOTONIC, ns) has come first. -EINTR:
 * handle your signals and call again; the files are read on meanwhile. Other negative errnos: a file cannot be opened
 * or read, was changed meanwhile, or there is no memory. Damage is not a failure: the index has what is before it, and
 * hr_index_file.damage. */
HR_API int hr_indexing_wait(hr_indexing *indexing, int64_t deadline_ns);

struct hr_indexing_info {
    uint64_t file_count, files_done;
    uint64_t bytes_done;   /* that were read */
    uint64_t saved_count;  /* files whose saved index was used */
    uint64_t unused_count; /* files that have one that was not used, because it is old or damaged */
    const char *unused;    /* the reason for the first of these, or "". Borrowed. */
};
HR_API void hr_indexing_look(hr_indexing *indexing, struct hr_indexing_info *ret_info);

/* Makes one index of all files, when hr_indexing_wait has returned 1. Once. -ENOMEM. Owned by the caller. */
HR_API int hr_indexing_take(hr_indexing *indexing, hr_index **ret_index);
/* Stops the threads at their next read, and frees all. NULL is fine; returns NULL. */
HR_API hr_indexing *hr_indexing_free(hr_indexing *indexing);

/* ---- the serial form ---- */

/* Opens the serial form of an index, of that kind. The memory is not copied and has to stay as it is, aligned to 8
 * bytes. checks_sum: reads all of it once to compare its checksum, which finds damage; without that, damage is found
 * when an entry does not fit its file. -EINVAL: it is no such index, or it is damaged. HR_E_VERSION. Owned by the
 * caller. */
HR_API int hr_index_open(const void *data, uint64_t bytes, enum hr_index_kind kind, bool checks_sum,
                         hr_index **ret_index);
HR_API hr_index *hr_index_close(hr_index *index); /* NULL is fine; returns NULL */

/* Returns the serial form. Borrowed. */
HR_API const void *hr_index_data(const hr_index *index, uint64_t *ret_bytes);
HR_API void hr_index_look(const hr_index *index, struct hr_index_info *ret_info);
/* NULL: there is no such file. Borrowed. */
HR_API const struct hr_index_file *hr_index_look_file(const hr_index *index, uint64_t number);
/* Returns a name that entries refer to, for example a field of tar files; not ended by 0. NULL: there is no such name.
 * Borrowed. */
HR_API const char *hr_index_name(const hr_index *index, uint64_t number, uint64_t *ret_bytes);

/* ---- next to a file: PATH.hri ---- */

/* Writes an index of one file as PATH.hri, which is replaced as a whole: a process that reads it has the old one or
 * the new one, also if the machine stops. -EINVAL: the index has several files. Negative errno with a message. */
HR_API int hr_index_save(const hr_index *index, const char *path);
/* Reads PATH.hri. -ENOENT: it does not exist. -ESTALE: the file PATH has another size or time than when it was made
 * (the inode may differ, because copies of a folder have others; the index that is returned has that of PATH). -EINVAL,
 * HR_E_VERSION: see hr_index_open; -EINVAL also if it has more bytes than an index of PATH can have. Owned by the
 * caller. */
HR_API int hr_index_load(enum hr_index_kind kind, const char *path, hr_index **ret_index);

#ifdef __cplusplus
}
#endif
#endif
