/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_TOKENS_H
#define HEADRACE_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <headrace/batch.h>
#include <headrace/remote.h>
#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Token files as samples: the numbers of a text, in the files that nanoGPT, llm.c, NumPy and Megatron write.
 *
 * Files are read with pread into the memory of the caller and never mapped, so a file that shrinks is an error. A read
 * compares device, inode, size and time of the file with those at hr_tokens_open: -ESTALE if it was changed or
 * replaced. Of all files of a process about 64 are open at a time, fewer under a low limit of descriptors. What a file
 * says about itself (a head, Megatron's index) is checked when it is opened, and again when it is read.
 *
 * Tokens come as int64. Samples are numbered over all files in their order. Messages name file and offset.
 *
 * Threads: all functions that take a const pointer may run in several threads at the same time. A child that was forked
 * can go on with the hr_tokens of its parent.
 */

typedef struct hr_tokens hr_tokens; /* token files that are open, and their samples */

/* The layout of a file. All numbers are little-endian. */
enum hr_tokens_kind {
    HR_TOKENS_HEADLESS, /* tokens and nothing else: nanoGPT's .bin, OLMo's .npy */
    HR_TOKENS_LLMC,     /* llm.c's .bin: a head of 1,024 bytes, magic 20240520 (uint16) or 20240801 (uint32) */
    HR_TOKENS_NPY,      /* a .npy file with one dimension */
    HR_TOKENS_MEGATRON  /* a .bin file with an .idx file: sequences, and documents of several sequences */
};

/* The part of a file that is a sample. */
enum hr_tokens_unit {
    HR_TOKENS_WINDOWS,   /* `length` tokens from i * stride on, within one file */
    HR_TOKENS_SEQUENCES, /* a sequence; all files are Megatron's */
    HR_TOKENS_DOCUMENTS, /* the sequences of a document, joined; all files are Megatron's */
    HR_TOKENS_SEPARATED  /* the tokens up to and with a separator; in llm.c's files, which put it before each document,
                            from a separator up to the next one */
};

struct hr_tokens_options {
    struct hr_dtype dtype; /* of headless files, and that of others if they are to be checked; bits = 0: uint16 for a
                              headless .bin, while another headless file is an error */
    enum hr_tokens_unit unit;
    uint64_t length, stride; /* HR_TOKENS_WINDOWS; stride 0: the same as length */
    uint64_t separator;      /* HR_TOKENS_SEPARATED */
    uint64_t vocab_size;     /* a token that is not below it is an error when it is read; 0: any */
    bool has_labels; /* samples are pairs: the tokens except the last one, and those from the second on. A window then
                        takes length + 1 tokens. */
};

/* Opens token files. A path names a file, or for Megatron's also the .idx file or what both names begin with.
 * -ENOENT and others: a file cannot be opened. -EINVAL: it is damaged, has elements that are no tokens, or an option is
 * wrong. Owned by the caller. */
HR_API int hr_tokens_open(const char *const *paths, size_t path_count, const struct hr_tokens_options *options,
                          hr_tokens **ret_tokens);
HR_API hr_tokens *hr_tokens_close(hr_tokens *tokens); /* NULL is fine; returns NULL */

/* ---- separators: HR_TOKENS_SEPARATED needs one of these before samples are read ---- */

/* Reads up to `most_bytes` of the files to find separators; less than 32 KiB may be too few for a step. Returns 1 when
 * all are found, 0 when there is more to read. Errors as hr_tokens_read; another call then goes on where it stopped.
 */
HR_API int hr_tokens_scan(hr_tokens *tokens, uint64_t most_bytes);
/* Returns where the documents end, in tokens from the begin of their file: what a scan has found. Borrowed. */
HR_API const uint64_t *hr_tokens_ends(const hr_tokens *tokens, uint64_t *ret_count);
/* Takes the ends that hr_tokens_ends gave for the same files, instead of a scan; copies them. -EINVAL: they are not of
 * these files. */
HR_API int hr_tokens_set_ends(hr_tokens *tokens, const uint64_t *ends, uint64_t count);

/* ---- what there is ---- */

struct hr_tokens_info {
    uint64_t sample_count; /* HR_TOKENS_SEPARATED: of the files that were scanned */
    uint64_t token_count;  /* of all files */
    uint64_t used_count;   /* tokens that are in a sample */
    uint32_t file_count;
};
HR_API void hr_tokens_look(const hr_tokens *tokens, struct hr_tokens_info *ret_info);

struct hr_tokens_file {
    const char *path; /* absolute; of Megatron's, the .bin file. Borrowed. */
    enum hr_tokens_kind kind;
    struct hr_dtype dtype;
    uint64_t data_at; /* offset of the first token */
    uint64_t token_count, sample_count;
    uint64_t stamp; /* changes with the size and the time of the file, and of its .idx file */
};
/* -ERANGE: there is no such file. */
HR_API int hr_tokens_look_file(const hr_tokens *tokens, uint32_t number, struct hr_tokens_file *ret_file);

/* ---- samples ---- */

struct hr_tokens_sample {
    uint32_t file;
    uint64_t at;     /* offset of its first token */
    uint64_t count;  /* tokens that are read */
    uint64_t length; /* tokens that come: with labels one less than count, else count */
};
/* Finds a sample. -ERANGE: there is no such sample. -ESTALE, -EIO and others: the index cannot be read. */
HR_API int hr_tokens_find(const hr_tokens *tokens, uint64_t index, struct hr_tokens_sample *ret_sample);

/* Reads a sample that hr_tokens_find has found to ret_tokens[0..length-1]; its labels, if there are any, to ret_labels
 * of the same size. -EINVAL: a token is not below vocab_size. -ESTALE, -EIO and others: a file cannot be read. After a
 * failure the contents of the arrays are undefined. */
HR_API int hr_tokens_read(const hr_tokens *tokens, uint64_t index, const struct hr_tokens_sample *sample,
                          int64_t *ret_tokens, int64_t *ret_labels);

/* Reads `count` windows to rows of `length` tokens, one behind the other. Only with HR_TOKENS_WINDOWS. The kernel is
 * asked for all of them first, so that a disk can read several at a time. Errors as hr_tokens_find and hr_tokens_read.
 */
HR_API int hr_tokens_gather(const hr_tokens *tokens, const int64_t *indices, uint64_t count, int64_t *ret_tokens,
                            int64_t *ret_labels);

/* Asks the kernel to read samples ahead. Best effort; numbers that are out of range are ignored, and so are sequences
 * and documents of Megatron's files, whose places would have to be read. announcer: see headrace/remote.h; NULL: they
 * are read now. */
HR_API void hr_tokens_ask(const hr_tokens *tokens, const int64_t *indices, size_t count, hr_announcer *announcer);

/* Writes the lengths of `count` samples from `first` on. Errors as hr_tokens_find. */
HR_API int hr_tokens_lengths(const hr_tokens *tokens, uint64_t first, uint64_t count, int64_t *ret_lengths);

#ifdef __cplusplus
}
#endif
#endif
