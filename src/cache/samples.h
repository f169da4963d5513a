/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_CACHE_SAMPLES_H
#define HR_CACHE_SAMPLES_H

#include <headrace/face/cache_samples.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cache/cache.h"

/*
 * The file of a table of samples. It is sparse: an extent is committed when a process takes it.
 *
 *     head      struct hr__samples_head, 4 KiB
 *     entries   16 bytes for each sample: a word and the number of bytes
 *     extents   16 bytes for each extent: who fills it, and how far it is filled
 *     data      the extents; the sample itself is preceded by a struct hr__sample_head of 64 bytes
 *
 * The word of an entry: the state in the two lowest bits, and a value above.
 *
 *     EMPTY  --compare-and-swap-->  BUSY (the number of its maker)  -->  READY (the place / 64), for ever
 *       ^                             |   |                       `->  REFUSED (an enum hr_sample_reason), for ever
 *       +------- given back ----------+   +--> BUSY of another process, if its maker has ended
 *
 * A maker is an open handle with a number. It has a byte lock on the file, at MAKERS_AT + number, for its open
 * file description, so the kernel ends it with the process. A forked child closes that descriptor.
 *
 * An extent is filled by one handle, from front to back. When it changes to another extent, is closed or dies, another
 * handle fills the rest. Nothing is ever moved or freed.
 */

enum { SAMPLES_VERSION = 1, SAMPLES_HEAD = 4096, SAMPLE_ALIGN = 64, SAMPLE_HEAD = 64 };
#define HR__SAMPLES_MAGIC UINT64_C(0x314c504d41535248) /* "HRSAMPL1" */
#define HR__MAKERS_AT (UINT64_C(1) << 62)              /* behind the end of any file */

enum { EMPTY = 0, BUSY = 1, READY = 2, REFUSED = 3, STATE_BITS = 2 };

struct hr__samples_entry {
    _Atomic uint64_t word;
    uint64_t bytes; /* written before the word becomes READY */
};

struct hr__samples_extent {
    _Atomic uint64_t owner; /* number of the maker that fills it; 0: no maker does */
    _Atomic uint64_t used;  /* bytes; only the owner writes it */
};

struct hr__sample_head {
    uint64_t sum, bytes;
};

struct hr__samples_head {
    uint64_t magic;
    uint32_t version, head_bytes;
    uint64_t count, extent_bytes, extent_count, entries_at, extents_at, data_at, end;
    _Atomic uint64_t boot;        /* a hash of the start of the machine in which it is used */
    _Atomic uint32_t was_stopped; /* 1: the machine has stopped since it was made, so checksums have to be compared */
    uint32_t spare_word;
    _Atomic uint64_t check;       /* a word as that of an entry: EMPTY, BUSY, READY (right) or REFUSED (wrong) */
    _Atomic uint64_t makers;      /* numbers of makers that were given out */
    _Atomic uint64_t next_extent; /* the first that no handle has taken yet */
    uint64_t spare[8];            /* each hit writes the next word, so it is in a cache line of its own */
    _Atomic uint64_t hits;
    uint64_t spare_too[7];
    _Atomic uint64_t ready, made, made_alone, no_memory, sum_ns;
    _Atomic uint64_t refused[HR_SAMPLE_REASON_END_];
};

/* The extent that a handle fills. */
struct hr__samples_filling {
    uint64_t extent, used, committed;
    bool is_taken;
};

struct hr_samples {
    hr_samples *next; /* the next one in the table of open handles */
    const hr_cached *cached;
    unsigned char *file; /* the mapped file */
    uint64_t bytes;
    struct hr__samples_head *head;
    struct hr__samples_entry *entries;
    struct hr__samples_extent *extents;
    pthread_mutex_t lock; /* guards the fields that follow */
    int fd;               /* has the maker's byte lock; -1: in a forked child that has not used the handle yet */
    _Atomic uint64_t maker;
    struct hr__samples_filling filling;
    bool is_memory, wants_huge;
    uint64_t refused_from;    /* so many bytes found no place */
    int64_t no_memory_until;  /* the machine had no room a moment ago */
    _Atomic uint8_t *checked; /* NULL, or a byte for each sample: its checksum was right */
};

/* ---- samples_space.c: a place for a sample. The caller has the lock ---- */

/* Finds a place for `bytes` bytes with their head, and commits it. -ENOSPC: the budget is used up. -ENOMEM: the machine
 * has no room. */
int hr__samples_place(hr_samples *samples, uint64_t bytes, uint64_t *ret_place);
/* Lets another handle fill the rest of the extent. */
void hr__samples_release_extent(hr_samples *samples);
bool hr__samples_maker_lives(const hr_samples *samples, uint64_t maker);

/* Compares each sample that is there with its checksum. HR_E_CORRUPT names the first that differs. */
int hr__samples_verify(hr_samples *samples);

#endif
