/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_SHARED_SCENE_H
#define HR_TESTS_SHARED_SCENE_H

#include "cache_scene.h"

#include <stdatomic.h>

#include <headrace/face/cache_shared.h>

#include "cache/shared.h"

/* A shared array of int64 in a cache of its own. Its first two elements are changed one after the other with the lock
 * of the whole array, so they are equal unless the last holder died in between. */

enum { ROWS = 128, SECOND_STRIPE = ROWS / HR_SHARED_STRIPES };

static hr_cached *cached;
static hr_shared *shared;

static const struct hr_shared_plan counters = {.dtype = "<i8", .dimension_count = 1, .dimensions = {ROWS}};

static inline struct hr_cache_request shared_request(const char *name) {
    struct hr_cache_request request = request_for(name, NULL);
    request.format = HR_SHARED_FORMAT;
    return request;
}

static inline int try_to_open_array(const struct hr_shared_plan *plan, const void *fill) {
    struct hr_cache_request request = shared_request("counters");
    hr_cache_build *build = NULL;
    int r = ask(&request, &cached, &build);
    if (r == HR_CACHE_BUILD) {
        r = hr_shared_build(build, plan, fill);
        if (r == 0) r = hr_cache_build_finish(build, NULL, &cached);
        if (r < 0) hr_cache_build_abandon(build);
    }
    return r < 0 ? r : hr_shared_open(cached, &shared);
}

static inline void open_array(void) {
    must(try_to_open_array(&counters, NULL));
}

static inline void close_array(void) {
    shared = hr_shared_close(shared);
    cached = hr_cached_detach(cached);
}

static inline int open_shared_scene(void **state) {
    open_scene(state);
    open_array();
    return 0;
}

static inline int close_shared_scene(void **state) {
    close_array();
    return close_scene(state);
}

static inline volatile int64_t *elements(void) {
    struct hr_shared_info info;
    hr_shared_look(shared, &info);
    return info.data;
}

static inline struct hr_shared_wait wait_until(int64_t deadline_ns) {
    return (struct hr_shared_wait){.deadline_ns = deadline_ns};
}

static inline int lock_rows(uint64_t first, uint64_t count, int64_t deadline_ns, struct hr_shared_hold *ret_hold) {
    struct hr_shared_wait wait = wait_until(deadline_ns);
    return hr_shared_lock(shared, first, count, &wait, ret_hold);
}

static inline void lock_all(struct hr_shared_hold *ret_hold) {
    must(lock_rows(0, HR_SHARED_ALL, in_s(PATIENCE_S), ret_hold));
}

/* Adds 1 to both elements. A holder that is told of a death repairs what the dead one left. */
static inline int count_once(int64_t deadline_ns) {
    struct hr_shared_hold hold;
    int r = lock_rows(0, HR_SHARED_ALL, deadline_ns, &hold);
    if (r < 0) return r;
    volatile int64_t *all = elements();
    if (hold.dead_count) all[1] = all[0];
    check(all[0] == all[1]);
    all[0]++;
    all[1]++;
    must(hr_shared_unlock(shared, &hold));
    return 0;
}

static inline uint32_t word_of_lock(uint32_t index) {
    return atomic_load(&shared->locks[index].word);
}

/* Waits until another process or thread waits for a lock. */
static inline void await_waiter(uint32_t index) {
    int64_t deadline = in_s(PATIENCE_S);
    while (!(word_of_lock(index) & SHARED_WAITERS)) {
        check(now_ns() < deadline);
        poll(NULL, 0, 1);
    }
}

#endif
