/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_ARENA_RING_H
#define HR_ARENA_RING_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

/*
 * A ring of records from one producer process to one consumer process, and the protocol by which the consumer sleeps.
 *
 *     line 0   tail       writer: the producer. Records [head, tail) are valid. If it dies, what it pushed stays.
 *     line 1   head       writer: the consumer. If it dies, the ring fills up, and a push gives -EAGAIN.
 *              sleeping   writer: the consumer. If it dies asleep, the eventfd is rung without effect.
 *     then     records, 64 B each, capacity of them
 *
 * The store of `tail` makes records visible. The eventfd is rung only if the consumer has announced that it sleeps:
 *
 *     consumer                                   producer
 *     --------                                   --------
 *     sleeping = level     (A, seq_cst)          tail = n          (C, seq_cst)
 *     tail > head ?        (B, seq_cst)          sleeping ?        (D, seq_cst)
 *     sleep on the eventfd                       ring the eventfd
 *
 * Either B sees C, or D sees A: a wake-up cannot be lost.
 *
 * Each side keeps its own index in private memory, so it stays within the ring whatever shared memory contains.
 */

/* The urgency that a push must have to wake the consumer. */
enum hr__sleep { HR__AWAKE = 0, HR__SLEEPS_UNLESS_URGENT = 1, HR__SLEEPS = 2 };

struct hr__record {
    uint64_t task;
    uint64_t generation;
    uint64_t bytes;     /* grant: of the payload; completion: of the batch */
    uint64_t allowance; /* grant: bytes that the worker may commit without asking */
    uint32_t slot;
    uint32_t windows; /* grant: windows that the slot spans */
    uint32_t kind;    /* grant: the kind of the task; completion: the status that the worker published */
    uint32_t trims;   /* grant: how often the slot's pages were released */
    uint64_t reserved[2];
};

struct hr__ring_shared {
    _Atomic uint64_t tail;
    _Alignas(HR_CACHE_LINE) _Atomic uint64_t head;
    _Atomic uint32_t sleeping;
    _Alignas(HR_CACHE_LINE) struct hr__record records[];
};

static_assert(sizeof(struct hr__record) == HR_CACHE_LINE, "shared layout");
static_assert(sizeof(struct hr__ring_shared) == 2 * HR_CACHE_LINE, "shared layout");

/* One process's end of a ring. */
struct hr__ring {
    struct hr__ring_shared *shared;
    uint64_t at; /* the producer's tail or the consumer's head */
    uint32_t capacity;
};

static inline uint64_t hr__ring_bytes(uint32_t capacity) {
    return sizeof(struct hr__ring_shared) + (uint64_t)capacity * sizeof(struct hr__record);
}

/* Pushes a record. -EAGAIN: the ring is full. */
int hr__ring_push(struct hr__ring *ring, const struct hr__record *record);

/* For the consumer: copies the record that is `ahead` behind the oldest one, which stays. Returns 1; 0: there is no
 * such record; HR_E_CORRUPT: the index of the producer is invalid. */
int hr__ring_look(const struct hr__ring *ring, uint64_t ahead, struct hr__record *ret_record);

/* Pops the oldest record. Returns 1; 0: the ring is empty; HR_E_CORRUPT: the index of the producer is invalid. */
int hr__ring_pop(struct hr__ring *ring, struct hr__record *ret_record);

/* For the consumer: returns true if there is a record, or an invalid index, which pop then reports. */
bool hr__ring_has_record(const struct hr__ring *ring);

/* For the consumer, step A. */
void hr__ring_sleep(struct hr__ring *ring, enum hr__sleep level);

/* For the producer, step D: returns true if the consumer sleeps and this push must wake it. */
bool hr__ring_must_wake(const struct hr__ring *ring, bool urgent);

#endif
