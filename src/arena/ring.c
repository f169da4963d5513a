/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of records with one writer and one reader. */
#include "ring.h"

#include <errno.h>

#include "base/error.h"
#include "os/os.h"

int hr__ring_push(struct hr__ring *ring, const struct hr__record *record) {
    struct hr__ring_shared *shared = ring->shared;
    uint64_t head = atomic_load_explicit(&shared->head, memory_order_acquire); /* pairs with the store in pop */
    if (ring->at - head >= ring->capacity) return -EAGAIN;
    hr__stop_at(HR__AT_RING_PUSH);
    shared->records[ring->at & (ring->capacity - 1)] = *record;
    hr__stop_at(HR__AT_RING_RECORD);
    atomic_store(&shared->tail, ++ring->at); /* C; pairs with the loads in look and has_record */
    hr__stop_at(HR__AT_RING_TAIL);
    return 0;
}

int hr__ring_look(const struct hr__ring *ring, uint64_t ahead, struct hr__record *ret_record) {
    const struct hr__ring_shared *shared = ring->shared;
    uint64_t count = atomic_load(&shared->tail) - ring->at; /* B */
    if (count > ring->capacity)
        return hr__fail(HR_E_CORRUPT, "arena: a ring's index is damaged (%llu records in a ring of %u)",
                        (unsigned long long)count, ring->capacity);
    if (ahead >= count) return 0;
    *ret_record = shared->records[(ring->at + ahead) & (ring->capacity - 1)];
    return 1;
}

int hr__ring_pop(struct hr__ring *ring, struct hr__record *ret_record) {
    int r = hr__ring_look(ring, 0, ret_record);
    if (r <= 0) return r;
    hr__stop_at(HR__AT_RING_POP);
    atomic_store_explicit(&ring->shared->head, ++ring->at,
                          memory_order_release); /* the producer may overwrite the record */
    hr__stop_at(HR__AT_RING_HEAD);
    return 1;
}

bool hr__ring_has_record(const struct hr__ring *ring) {
    return atomic_load(&ring->shared->tail) != ring->at; /* B */
}

void hr__ring_sleep(struct hr__ring *ring, enum hr__sleep level) {
    atomic_store(&ring->shared->sleeping, (uint32_t)level); /* A */
    hr__stop_at(HR__AT_RING_SLEEPING);
}

bool hr__ring_must_wake(const struct hr__ring *ring, bool urgent) {
    uint32_t level = atomic_load(&ring->shared->sleeping); /* D */
    return level >= (urgent ? HR__SLEEPS_UNLESS_URGENT : HR__SLEEPS);
}
