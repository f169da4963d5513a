/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what a process waits for remote objects. */
#include "network.h"

#include <pthread.h>

#include "os/os.h"

static _Atomic(struct hr__shown_network *) used_place;
static _Atomic uint32_t inside;  /* threads that use the place now */
static _Atomic uint32_t waiting; /* threads that wait for the fetcher */
static pthread_once_t install_once = PTHREAD_ONCE_INIT;

static void forget_in_child(void) {
    atomic_store(&used_place, NULL);
    atomic_store(&inside, 0);
    atomic_store(&waiting, 0);
}

static void install(void) {
    pthread_atfork(NULL, NULL, forget_in_child);
}

/* Pairs with hr__network_leave: it takes the place away and then reads `inside`, which this changes before it reads the
 * place. */
static struct hr__shown_network *enter(void) {
    if (!atomic_load_explicit(&used_place, memory_order_relaxed)) return NULL;
    atomic_fetch_add(&inside, 1);
    struct hr__shown_network *place = atomic_load(&used_place);
    if (!place) atomic_fetch_sub(&inside, 1);
    return place;
}

static void leave(void) {
    atomic_fetch_sub(&inside, 1);
}

static void add(_Atomic uint64_t *word, uint64_t value) {
    atomic_fetch_add_explicit(word, value, memory_order_relaxed);
}

void hr__network_use(struct hr__shown_network *place) {
    pthread_once(&install_once, install);
    /* That of a worker which was killed while it waited. */
    atomic_store_explicit(&place->since_ns, 0, memory_order_relaxed);
    atomic_store(&used_place, place);
}

void hr__network_leave(struct hr__shown_network *place) {
    struct hr__shown_network *expected = place;
    if (!atomic_compare_exchange_strong(&used_place, &expected, NULL)) return;
    while (atomic_load(&inside)) hr__yield();
    atomic_store_explicit(&place->since_ns, 0, memory_order_relaxed);
}

void hr__network_begin(void) {
    bool is_first = atomic_fetch_add(&waiting, 1) == 0;
    struct hr__shown_network *place = enter();
    if (!place) return;
    add(&place->wait_count, 1);
    if (is_first) atomic_store_explicit(&place->since_ns, (uint64_t)hr__now_ns(), memory_order_relaxed);
    leave();
}

void hr__network_end(void) {
    bool is_last = atomic_fetch_sub(&waiting, 1) == 1;
    struct hr__shown_network *place = enter();
    if (!place) return;
    uint64_t since_ns = is_last ? atomic_exchange_explicit(&place->since_ns, 0, memory_order_relaxed) : 0;
    if (since_ns) add(&place->wait_ns, (uint64_t)hr__now_ns() - since_ns);
    leave();
}

void hr__network_hit(void) {
    struct hr__shown_network *place = enter();
    if (!place) return;
    add(&place->hit_count, 1);
    leave();
}
