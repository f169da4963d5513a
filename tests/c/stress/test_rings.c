/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/arena_scene.h"

#include <pthread.h>

#include "arena/ring.h"
#include "arena/spin.h"
#include "os/os.h"

/* The rings, the way of waiting and the leases, with threads in place of processes: ThreadSanitizer follows these. */

enum { CAPACITY = 8, RECORDS = 100000 };

/* One direction: a ring, the bell of its consumer, and how the consumer waits. */
struct way {
    struct hr__ring_shared *shared;
    struct hr__ring producer, consumer;
    struct hr__spin spin;
    int bell_fd;
};

static void way_open(struct way *way) {
    way->shared = aligned_alloc(HR_CACHE_LINE, hr__ring_bytes(CAPACITY));
    memset(way->shared, 0, hr__ring_bytes(CAPACITY));
    way->producer = way->consumer = (struct hr__ring){way->shared, 0, CAPACITY};
    hr__spin_init(&way->spin, 2);
    must(hr__eventfd(&way->bell_fd));
}

static void way_close(struct way *way) {
    hr__close(&way->bell_fd);
    free(way->shared);
}

static int send_record(struct way *way, uint64_t task) {
    struct hr__record record = {.task = task, .bytes = ~task, .slot = (uint32_t)task};
    int r = hr__ring_push(&way->producer, &record);
    if (r == 0 && hr__ring_must_wake(&way->producer, false)) hr__eventfd_ring(way->bell_fd);
    return r;
}

static bool has_come(void *context) {
    return hr__ring_has_record(context);
}

static int receive_record(struct way *way, struct hr__record *ret_record) {
    int64_t start_ns = hr__now_ns();
    while (!hr__spin_until(&way->spin, has_come, &way->consumer)) {
        bool ready[1];
        int r = 0;
        hr__ring_sleep(&way->consumer, HR__SLEEPS);
        if (!hr__ring_has_record(&way->consumer)) r = hr__poll(&way->bell_fd, ready, 1, in_s(PATIENCE_S));
        hr__ring_sleep(&way->consumer, HR__AWAKE);
        if (r < 0) return r; /* the eventfd was not rung: a lost wake-up */
        hr__eventfd_drain(way->bell_fd);
    }
    hr__spin_learn(&way->spin, start_ns);
    return hr__ring_pop(&way->consumer, ret_record);
}

static void delay(uint64_t *random) {
    *random = *random * UINT64_C(6364136223846793005) + 1442695040888963407;
    uint32_t kind = (uint32_t)(*random >> 33) % 256;
    for (uint32_t i = 0; kind < 64 && i < kind; i++) hr__pause();
    if (kind >= 64 && kind < 80) hr__yield();
    if (kind == 80) nanosleep(&(struct timespec){.tv_nsec = (long)(*random >> 48)}, NULL);
}

struct echo {
    struct way there, back;
    int result;
};

static void *be_echo(void *context) {
    struct echo *echo = context;
    uint64_t random = 2;
    for (uint64_t i = 0; i < RECORDS && echo->result >= 0; i++) {
        struct hr__record record = {.task = 0};
        echo->result = receive_record(&echo->there, &record);
        if (record.task != i || record.bytes != ~i || record.slot != (uint32_t)i) echo->result = -EBADMSG;
        delay(&random);
        if (echo->result >= 0) echo->result = send_record(&echo->back, record.task);
    }
    return NULL;
}

static void records_cross_both_ways_and_no_wake_up_is_lost(void **state) {
    (void)state;
    struct echo echo = {.result = 0};
    pthread_t thread;
    uint64_t random = 1, sent = 0;
    way_open(&echo.there);
    way_open(&echo.back);
    pthread_create(&thread, NULL, be_echo, &echo);
    for (uint64_t received = 0; received < RECORDS; received++) {
        struct hr__record record;
        while (sent < RECORDS && sent < received + 1 + received % 3) must(send_record(&echo.there, sent++));
        delay(&random);
        int r = receive_record(&echo.back, &record);
        check(r == 1);
        check(record.task == received && record.bytes == ~received);
    }
    pthread_join(thread, NULL);
    must(echo.result);
    way_close(&echo.there);
    way_close(&echo.back);
}

/* ---- leases that end in other threads ---- */

enum { RELEASERS = 3, HANDS = 64, BATCHES = 20000 };

static hr_lease *_Atomic hands[HANDS];
static _Atomic bool is_over;

static void *be_releaser(void *context) {
    uint64_t random = (uintptr_t)context;
    while (!atomic_load(&is_over)) {
        delay(&random);
        hr_lease_release(atomic_exchange(&hands[(random >> 40) % HANDS], NULL));
    }
    return NULL;
}

/* With deliveries that are swept while others still release, and an arena that closes in the middle of it. */
static void leases_end_anywhere_while_batches_go_on(void **state) {
    (void)state;
    struct scene scene;
    pthread_t threads[RELEASERS];
    set_scene(&scene, 1, 2, 64 * MIB);
    hr_port *port = open_port_here(&scene, 0);
    for (uintptr_t i = 0; i < RELEASERS; i++) pthread_create(&threads[i], NULL, be_releaser, (void *)(i + 1));
    for (uint64_t task = 0; task < BATCHES; task++) {
        uint64_t bytes = task % 16 == 0 ? 64 * KIB : 4096;
        hr_lease *leases[2];
        must(order(&scene, 0, task, bytes));
        must(work_once(port, in_s(PATIENCE_S)));
        struct hr_delivery *delivery = expect(&scene, 0, task, bytes);
        must(hr_delivery_lease(delivery, 0, bytes / 2, &leases[0]));
        must(hr_delivery_lease(delivery, bytes / 2, bytes / 2, &leases[1]));
        hr_delivery_done(delivery);
        for (int i = 0; i < 2; i++)
            hr_lease_release(atomic_exchange(&hands[(task * 7 + (uint64_t)i * 31) % HANDS], leases[i]));
    }
    hr_port_close(port);
    hr_arena_close(scene.arena);
    atomic_store(&is_over, true);
    for (int i = 0; i < RELEASERS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < HANDS; i++) hr_lease_release(hands[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_cross_both_ways_and_no_wake_up_is_lost),
        cmocka_unit_test(leases_end_anywhere_while_batches_go_on),
    };
    return cmocka_run_group_tests_name("rings", tests, NULL, NULL);
}
