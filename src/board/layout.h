/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_BOARD_LAYOUT_H
#define HR_BOARD_LAYOUT_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <headrace/face/board.h>

#include "base/base.h"

/*
 * The shared memory of a board:
 *
 *     0          the header, which the process that makes the board writes before any other process has it
 *     12 KiB     a page for each process: `over`, and HR_BOARD_MAX_ENTRIES entries
 *     24 KiB ...
 *
 *     an entry: | key, rank, late, waits | progress | end | facts of even epochs | facts of odd epochs |    a line each
 *               | first indices |                                                                           9 lines
 *
 * All atomics are stored and loaded in one total order, except in hr_board_step, which says why. The owner of a page is
 * its only writer. It holds a record lock on the page, so a reader can ask the kernel whether it still runs. If it
 * dies, the page stays as it is, and the next owner clears it.
 *
 * A rank may be one epoch ahead of another one: it has met it at the beginning of an epoch, has finished that quickly,
 * and begins the next one while the other has not looked yet. So an entry keeps the facts of two epochs. A reader
 * accepts facts whose check is right. The check covers all words, the key and the rank, so facts that are half written
 * (their writer is at it, or has died there) and memory that something else has overwritten are no facts.
 */

enum {
    HR__BOARD_PAGE_BYTES = 12288,
    HR__BOARD_STEP_BITS =
        40, /* bits of `progress` and `end` that count steps; the other bits are those of the epoch's number */
};

struct hr__board_header {
    uint64_t magic;
    uint32_t version;
    uint32_t page_count;
    uint32_t world_size;
    uint32_t reserved;
    uint64_t key_hash;
};

enum {
    HR__FACTS_CHECK,
    HR__FACTS_NUMBER,
    HR__FACTS_LENGTH,
    HR__FACTS_STEPS,
    HR__FACTS_SEED,
    HR__FACTS_EPOCH,
    HR__FACTS_DIGEST,
    HR__FACTS_SAMPLES,
    HR__FACTS_WORDS
};

struct hr__shared_facts {
    _Atomic uint64_t words[HR__FACTS_WORDS];
};

/* Digests of the first indices of an epoch. Its owner sets `count` to 0, writes the digests, and then `count`. */
struct hr__shared_first {
    _Atomic uint64_t count; /* hr__board_tag(number) | count; 0: not shown */
    _Atomic uint64_t digests[HR_BOARD_MAX_FIRST];
};

struct hr__shared_entry {
    _Alignas(HR_CACHE_LINE) _Atomic uint64_t key; /* the loader's; 0: no loader had this entry, or it is being taken */
    _Atomic uint64_t rank;                        /* written before `key`, read after it */
    _Atomic uint64_t is_late;                     /* 1: an epoch began without all others; see hr_board_await */

    /* How long the loop of this rank was inside next() in this epoch, since its first batch, and how long ago that was:
     * for reports only. */
    _Atomic uint64_t inside_ns;
    _Atomic uint64_t elapsed_ns;

    /* The batches that were taken: hr__board_tag(number) | steps. Its owner stores it, and then reads `end` of the
     * others. */
    _Alignas(HR_CACHE_LINE) _Atomic uint64_t progress;

    /* The batches at the END of the epoch, in the same form. Its owner stores it, and then reads `progress` and `end`
     * of the others. It is in its own line, because the others read it at each step. */
    _Alignas(HR_CACHE_LINE) _Atomic uint64_t end;

    _Alignas(HR_CACHE_LINE) struct hr__shared_facts facts[2]; /* the facts of epoch `number` are at number % 2 */

    _Alignas(HR_CACHE_LINE) struct hr__shared_first first;
};

struct hr__shared_page {
    _Alignas(HR_CACHE_LINE) _Atomic uint32_t over; /* 1: the main program is over; the others read it while they wait */
    struct hr__shared_entry entries[HR_BOARD_MAX_ENTRIES];
};

static_assert(sizeof(struct hr__shared_facts) == HR_CACHE_LINE, "a line");
static_assert(sizeof(struct hr__shared_page) <= HR__BOARD_PAGE_BYTES, "a page");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "shared between processes");

static inline uint64_t hr__board_tag(uint64_t number) {
    return number << HR__BOARD_STEP_BITS;
}

/* Returns true if `word` belongs to the epoch of `tag`; writes its steps. */
static inline bool hr__board_steps_of(uint64_t word, uint64_t tag, uint64_t *ret_steps) {
    uint64_t mask = (UINT64_C(1) << HR__BOARD_STEP_BITS) - 1;
    *ret_steps = word & mask;
    return (word & ~mask) == tag;
}

static inline uint32_t hr__board_rank_of(const struct hr__shared_entry *entry) {
    return (uint32_t)atomic_load(&entry->rank);
}

/* The seeded hash of the text that names a job or a line. */
uint64_t hr__board_hash_text(const char *text);

/* The bytes of a board, after a check of the sizes. -EINVAL. */
int hr__board_measure(const struct hr_board_options *options, uint64_t *ret_bytes);
void hr__board_init_header(struct hr__board_header *header, const struct hr_board_options *options);
/* Checks only that memory of `bytes` bytes is a board of this version. */
int hr__board_check_size(const struct hr__board_header *header, uint64_t bytes);
/* Checks the header of memory of `bytes` bytes that another process made. */
int hr__board_check_header(const struct hr__board_header *header, uint64_t bytes,
                           const struct hr_board_options *options);

/* Writes facts into an entry, and reads them. Reading returns false if there are no facts, or their check is wrong. */
void hr__facts_write(struct hr__shared_entry *entry, uint64_t number, const struct hr_board_facts *facts);
bool hr__facts_read(const struct hr__shared_entry *entry, uint32_t parity, uint64_t *ret_number,
                    struct hr_board_facts *ret_facts);

#endif
