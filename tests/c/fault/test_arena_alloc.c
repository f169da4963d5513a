/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/arena_scene.h"
#include "arena/arena.h"
#include "crew/crew.h"

#include <stdatomic.h>

/*
 * The n-th allocation fails. The program's own malloc stands before the C library's, which glibc allows; it counts what
 * is alive, so that a leak shows. A sanitizer brings its own malloc: there the test is skipped.
 */

#if defined(__GLIBC__) && !IS_SANITIZED
#define CAN_INTERPOSE 1
#else
#define CAN_INTERPOSE 0
#endif

static _Atomic long countdown, alive;

#if CAN_INTERPOSE
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

static void *counted(void *memory) {
    if (memory) atomic_fetch_add(&alive, 1);
    return memory;
}

static bool must_fail(void) {
    if (atomic_load(&countdown) == 0 || atomic_fetch_sub(&countdown, 1) != 1) return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes) {
    return must_fail() ? NULL : counted(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes) {
    return must_fail() ? NULL : counted(__libc_calloc(count, bytes));
}

void *realloc(void *memory, size_t bytes) {
    if (must_fail()) return NULL;
    void *moved = __libc_realloc(memory, bytes);
    return memory ? moved : counted(moved);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    return must_fail() ? NULL : counted(__libc_memalign(alignment, bytes));
}

void free(void *memory) {
    if (memory) atomic_fetch_sub(&alive, 1);
    __libc_free(memory);
}
#endif

enum { MOST = 1000 };

/* Calls `attempt` with the 1st, 2nd... allocation failing, until none is left to fail. Returns how many failed. */
static int fail_each(void *context, int (*attempt)(void *context)) {
    int failures = 0;
    for (int nth = 1; nth < MOST; nth++) {
        int descriptors = count_descriptors();
        long before = atomic_load(&alive);
        atomic_store(&countdown, nth);
        int r = attempt(context);
        bool has_failed = atomic_exchange(&countdown, 0) == 0;
        assert_int_equal(atomic_load(&alive), before);
        assert_int_equal(count_descriptors(), descriptors);
        if (r < 0) {
            failures++;
            assert_int_equal(r, -ENOMEM);
            assert_true(strlen(hr_error_message()) > 0);
        }
        if (!has_failed) {
            assert_int_equal(r, 0);
            return failures;
        }
    }
    fail_msg("no end");
    return 0;
}

static int open_arena(void *context) {
    (void)context;
    hr_arena *arena = NULL;
    struct hr__arena_options options = {.worker_count = 100, .prefetch_count = 4};
    int r = hr__arena_open(&options, &arena);
    hr_arena_close(arena);
    return r;
}

static int open_loader(void *context) {
    (void)context;
    hr_loader *loader = NULL;
    int r = hr_loader_open(&(struct hr_loader_options){.worker_count = 3, .prefetch_factor = 2}, &loader);
    hr_loader_close(loader);
    return r;
}

static int open_crew(void *context) {
    struct scene *scene = context;
    hr_crew *crew = NULL;
    int r = hr__crew_open(scene->arena, 3, &crew);
    hr__crew_close(crew);
    return r;
}

static int open_port(void *context) {
    struct scene *scene = context;
    struct hr_worker_fds fds;
    hr_port *port = NULL;
    must(hr__arena_open_worker_fds(scene->arena, 0, &fds));
    int r = hr_port_open(&fds, &port);
    hr_port_close(port);
    hr_worker_fds_close(&fds);
    return r;
}

static int lease_and_release(void *context) {
    hr_lease *lease = NULL;
    int r = hr_delivery_lease(context, 0, 100, &lease);
    if (r < 0) return r;
    atomic_fetch_sub(&alive, 1); /* a lease's memory is freed with its batch */
    hr_lease_release(lease);
    return 0;
}

static void an_arena_opens_or_leaves_nothing(void **state) {
    (void)state;
    assert_in_range(fail_each(NULL, open_arena), 6, MOST);
}

static void a_loader_opens_or_leaves_nothing(void **state) {
    (void)state;
    assert_in_range(fail_each(NULL, open_loader), 9, MOST);
}

static void a_crew_opens_or_leaves_nothing(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, 3, 2, UINT64_C(1) << 30);
    assert_int_equal(fail_each(&scene, open_crew), 4);
    hr_arena_close(scene.arena);
}

static void a_task_that_cannot_be_kept_is_refused_and_can_be_submitted_again(void **state) {
    (void)state;
    hr_loader *loader = NULL;
    static const char payload[100];
    must(hr_loader_open(&(struct hr_loader_options){.worker_count = 1, .prefetch_factor = 2}, &loader));
    must(hr_loader_begin(loader, NULL, 0, in_s(PATIENCE_S)));
    atomic_store(&countdown, 1);
    assert_int_equal(hr_loader_submit(loader, payload, sizeof payload), -ENOMEM);
    assert_non_null(strstr(hr_error_message(), "no memory for a task of 100 bytes"));
    assert_int_equal(hr_loader_submit(loader, payload, sizeof payload), 1);
    assert_int_equal(hr_loader_submit(loader, payload, sizeof payload), 1);
    hr_loader_close(loader);
}

static void a_port_opens_or_leaves_the_descriptors_to_the_caller(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, 1, 2, UINT64_C(1) << 30);
    assert_int_equal(fail_each(&scene, open_port), 2);
    hr_arena_close(scene.arena);
}

static void a_lease_is_created_or_nothing_is_leaked(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, 1, 2, UINT64_C(1) << 30);
    hr_port *port = open_port_here(&scene, 0);
    must(order(&scene, 0, 0, 4096));
    must(work_once(port, in_s(PATIENCE_S)));
    struct hr_delivery *delivery = expect(&scene, 0, 0, 4096);
    assert_int_equal(fail_each(delivery, lease_and_release), 1);
    hr_delivery_done(delivery);
    hr_port_close(port);
    hr_arena_close(scene.arena);
}

/* At its limit the arena delivers copies. Without memory for one, the batch is delivered in its slot. */
static void a_copy_that_cannot_be_made_is_the_slot_itself(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, 1, 1, 160 * KIB);
    hr_port *port = open_port_here(&scene, 0);
    for (int nth = 0; nth < 3; nth++) {
        must(order(&scene, 0, 7, 64 * KIB));
        must(work_once(port, in_s(PATIENCE_S)));
        struct hr_delivery *kept = expect(&scene, 0, 7, 64 * KIB);
        must(order(&scene, 0, 8, 64 * KIB));
        must(work_once(port, in_s(PATIENCE_S)));
        atomic_store(&countdown, nth);
        struct hr_delivery *delivery = expect(&scene, 0, 8, 64 * KIB);
        atomic_store(&countdown, 0);
        assert_int_equal(delivery->is_copy, nth == 0);
        assert_true(is_filled(kept->data, 64 * KIB, 7));
        hr_delivery_done(kept);
        hr_delivery_done(delivery);
    }
    hr_port_close(port);
    hr_arena_close(scene.arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_arena_opens_or_leaves_nothing),
        cmocka_unit_test(a_loader_opens_or_leaves_nothing),
        cmocka_unit_test(a_crew_opens_or_leaves_nothing),
        cmocka_unit_test(a_task_that_cannot_be_kept_is_refused_and_can_be_submitted_again),
        cmocka_unit_test(a_port_opens_or_leaves_the_descriptors_to_the_caller),
        cmocka_unit_test(a_lease_is_created_or_nothing_is_leaked),
        cmocka_unit_test(a_copy_that_cannot_be_made_is_the_slot_itself),
    };
    if (!CAN_INTERPOSE) {
        fputs("skipped: a sanitizer or another C library brings its own malloc\n", stderr);
        return SKIP_CODE;
    }
    return cmocka_run_group_tests_name("arena_alloc", tests, NULL, NULL);
}
