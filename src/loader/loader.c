/* SPDX-License-Identifier: Apache-2.0 */
/* Distributes tasks to workers, and keeps the order. */
#include "loader.h"
#include "arena/arena.h"

#include <errno.h>
#include <stdlib.h>

#include <headrace/face/arena.h>
#include <headrace/face/loader.h>

#include "arena/ledger.h"
#include "base/base.h"
#include "base/error.h"
#include "crew/crew.h"
#include "os/os.h"

enum { SPARE_GRANTS = 2 /* per worker: the announcement of the epoch and the last task */ };

static int check(const struct hr_loader_options *options) {
    if (options->worker_count < 1 || options->worker_count > HR_ARENA_MAX_WORKERS)
        return hr__fail(-EINVAL, "loader: %u workers; 1 to %d are possible", options->worker_count,
                        HR_ARENA_MAX_WORKERS);
    if (options->prefetch_factor < 1) return hr__fail(-EINVAL, "loader: prefetch_factor is 0; give at least 1");
    return 0;
}

int hr_loader_open(const struct hr_loader_options *options, hr_loader **ret_loader) {
    return hr_loader_open_in(options, NULL, ret_loader);
}

int hr_loader_open_in(const struct hr_loader_options *options, hr_arena *arena, hr_loader **ret_loader) {
    int r = check(options);
    if (r < 0) {
        hr_arena_close(arena);
        return r;
    }
    uint64_t most = (uint64_t)options->worker_count * options->prefetch_factor;
    struct hr__arena_options arena_options = {
        .worker_count = options->worker_count,
        .prefetch_count = (uint32_t)hr__min(most + SPARE_GRANTS * (uint64_t)options->worker_count, UINT32_MAX),
        .limit_bytes = options->limit_bytes};
    hr_loader *loader = calloc(1, sizeof *loader);
    if (!loader) {
        hr_arena_close(arena);
        return hr__fail(-ENOMEM, "loader: no memory");
    }
    loader->arena = arena;
    r = arena ? hr__arena_restart(arena, &arena_options) : hr__arena_open(&arena_options, &loader->arena);
    if (r < 0) {
        hr_loader_close(loader);
        return r;
    }
    loader->worker_count = loader->used_count = loader->expected_count = options->worker_count;
    loader->prefetch_factor = options->prefetch_factor;
    loader->most_outstanding = (uint32_t)most;
    loader->out_of_order = options->out_of_order;
    loader->owner_count = 1;
    while (loader->owner_count < most) loader->owner_count *= 2;
    loader->peers = calloc(loader->worker_count, sizeof *loader->peers);
    loader->owners = calloc(loader->owner_count, sizeof *loader->owners);
    loader->outstanding_tasks = calloc(most, sizeof *loader->outstanding_tasks);
    if (!loader->peers || !loader->owners || !loader->outstanding_tasks) {
        hr_loader_close(loader);
        return hr__fail(-ENOMEM, "loader: no memory");
    }
    for (uint64_t i = 0; i < most; i++) hr__outstanding_release(loader, &loader->outstanding_tasks[i]);
    r = hr__crew_open(loader->arena, loader->worker_count, &loader->crew);
    if (r < 0) {
        hr_loader_close(loader);
        return r;
    }
    *ret_loader = loader;
    return 0;
}

hr_loader *hr_loader_close(hr_loader *loader) {
    if (!loader) return NULL;
    hr__crew_close(loader->crew);
    hr_arena_close(loader->arena);
    for (uint32_t i = 0; loader->outstanding_tasks && i < loader->most_outstanding; i++)
        free(loader->outstanding_tasks[i].payload);
    free(loader->peers);
    free(loader->owners);
    free(loader->outstanding_tasks);
    free(loader);
    return NULL;
}

hr_arena *hr_loader_detach(hr_loader *loader) {
    hr_arena *arena = loader->arena;
    hr_arena_stop(arena);
    loader->crew = hr__crew_close(loader->crew);
    loader->arena = NULL;
    hr_loader_close(loader);
    return arena;
}

hr_arena *hr_loader_arena(hr_loader *loader) {
    return loader->arena;
}

hr_crew *hr_loader_crew(hr_loader *loader) {
    return loader->crew;
}

/* Receives from one worker or any. If a worker was dismissed and has answered everything, received or not, its end does
 * not count as a death. */
static int receive_from(hr_loader *loader, uint32_t worker, int64_t deadline_ns, struct hr_delivery **ret_delivery) {
    for (;;) {
        int r = hr__arena_receive(loader->arena, worker, deadline_ns, ret_delivery);
        if (r != HR_E_WORKER_DIED) return r;
        uint32_t dead = hr_arena_dead_worker(loader->arena);
        if (!loader->peers[dead].is_dismissed) return r;
        int taken = hr__loader_take_back(loader, dead);
        if (taken < 0 || loader->peers[dead].lost_count) return taken < 0 ? taken : r;
        hr__crew_expect_end(loader->crew, dead);
    }
}

/* ---- an epoch's beginning ---- */

/* Waits for every missing answer: those of an epoch that was stopped early, and those to the announcement of the epoch.
 */
static int drain(hr_loader *loader, int64_t deadline_ns) {
    for (uint32_t i = 0; i < loader->worker_count; i++) {
        while (loader->peers[i].unanswered_count) {
            struct hr_delivery *delivery;
            int r = receive_from(loader, i, deadline_ns, &delivery);
            if (r < 0) return r;
            loader->peers[i].unanswered_count--;
            hr_delivery_done(delivery);
            hr__stop_at(HR__AT_LOADER_DRAINED);
        }
    }
    return 0;
}

/* Announces the epoch to the workers. After an interruption it continues with the next worker. */
static int announce(hr_loader *loader, const void *payload, size_t payload_bytes) {
    for (uint32_t *i = &loader->announced_count; *i < loader->expected_count; ++*i) {
        if (loader->peers[*i].is_dismissed) continue;
        int r = hr__arena_grant(loader->arena, *i, HR_TASK_EPOCH, loader->epoch, payload, payload_bytes);
        if (r < 0) return r;
        loader->peers[*i].unanswered_count++;
        hr__stop_at(HR__AT_LOADER_ANNOUNCED);
    }
    return 0;
}

int hr_loader_begin(hr_loader *loader, const void *payload, size_t payload_bytes, int64_t deadline_ns) {
    int r = 0;
    if (loader->epoch > 0) {
        loader->is_draining = true;
        r = announce(loader, payload, payload_bytes);
        if (r == 0) r = drain(loader, deadline_ns);
        if (r < 0) return r;
        loader->is_draining = false;
        loader->announced_count = 0;
    }
    for (uint32_t i = 0; i < loader->worker_count; i++) {
        struct hr__loader_peer *peer = &loader->peers[i];
        while (peer->first) hr__outstanding_drop_first(loader, peer);
        *peer = (struct hr__loader_peer){.is_dismissed = peer->is_dismissed, .has_last_task = peer->has_last_task};
    }
    loader->epoch++;
    loader->submitted = loader->answered = 0;
    loader->next_worker = 0;
    return 0;
}

int hr_loader_start_at(hr_loader *loader, uint32_t worker) {
    if (worker >= loader->worker_count)
        return hr__fail(-EINVAL, "loader: worker %u of %u", worker, loader->worker_count);
    if (loader->submitted) return hr__fail(HR_E_STATE, "loader: a task of this epoch was submitted already");
    loader->next_worker = worker;
    return 0;
}

/* ---- parked workers ---- */

static int check_count(const hr_loader *loader, uint32_t count) {
    if (count >= 1 && count <= loader->worker_count) return 0;
    return hr__fail(-EINVAL, "loader: %u of %u workers; 1 to %u are possible", count, loader->worker_count,
                    loader->worker_count);
}

int hr_loader_use(hr_loader *loader, uint32_t count) {
    int r = check_count(loader, count);
    if (r < 0) return r;
    loader->used_count = count;
    uint32_t spare = SPARE_GRANTS * loader->worker_count;
    hr__arena_reserve(loader->arena, count * loader->prefetch_factor + spare);
    return 0;
}

int hr_loader_expect(hr_loader *loader, uint32_t count) {
    int r = check_count(loader, count);
    if (r == 0) loader->expected_count = count;
    return r;
}

/* ---- tasks ---- */

static int check_epoch(const hr_loader *loader) {
    if (loader->epoch > 0 && !loader->is_draining) return 0;
    return hr__fail(HR_E_STATE, "loader: no epoch has begun; call hr_loader_begin first, and again until it returns 0");
}

static bool has_data(const struct hr__loader_peer *peer) {
    return !peer->is_at_end && !peer->is_dismissed;
}

static uint32_t count_active(const hr_loader *loader) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < loader->used_count; i++) count += has_data(&loader->peers[i]);
    return count;
}

/* Chooses the next worker, round robin, that still has data and, out of order, fewer than its share outstanding. */
static bool choose(hr_loader *loader, uint32_t *ret_worker) {
    uint32_t active = count_active(loader);
    uint32_t share = active ? loader->used_count * loader->prefetch_factor / active : 0;
    for (uint32_t i = 0; active && i < loader->used_count; i++) {
        uint32_t worker = loader->next_worker % loader->used_count;
        loader->next_worker = (worker + 1) % loader->used_count;
        if (!has_data(&loader->peers[worker])) continue;
        if (loader->out_of_order && loader->peers[worker].undelivered_count >= share) continue;
        *ret_worker = worker;
        return true;
    }
    return false;
}

int hr_loader_submit(hr_loader *loader, const void *payload, size_t payload_bytes) {
    uint32_t worker;
    int r = check_epoch(loader);
    if (r < 0) return r;
    if (loader->submitted - loader->answered >= loader->most_outstanding)
        return hr__fail(-EAGAIN, "loader: %u tasks are outstanding already", loader->most_outstanding);
    if (!choose(loader, &worker)) return 0;
    struct hr__loader_peer *peer = &loader->peers[worker];
    r = hr__outstanding_keep(loader, peer, payload, payload_bytes);
    if (r < 0) return r;
    r = hr__arena_grant(loader->arena, worker, HR_TASK_MAKE, loader->submitted, payload, payload_bytes);
    if (r < 0) {
        hr__outstanding_drop_last(loader, peer);
        return hr__fail_more(r, "loader: task %llu", (unsigned long long)loader->submitted);
    }
    *hr__loader_owner(loader, loader->submitted) = worker;
    loader->submitted++;
    peer->undelivered_count++;
    peer->unanswered_count++;
    hr__stop_at(HR__AT_LOADER_SUBMITTED);
    return 1;
}

/* Receives the answer to a task. In order, this is the oldest task. */
static int receive(hr_loader *loader, int64_t deadline_ns, struct hr_delivery **ret_delivery) {
    struct hr_delivery *delivery;
    uint32_t from = loader->out_of_order ? HR_ANY_WORKER : *hr__loader_owner(loader, loader->answered);
    int r = receive_from(loader, from, deadline_ns, &delivery);
    if (r < 0) return r;
    struct hr__loader_peer *peer = &loader->peers[delivery->worker];
    if (!peer->first || delivery->task != peer->first->task) {
        r = hr__fail(HR_E_CORRUPT, "loader: worker %u answered task %llu, but the next expected task is %llu",
                     delivery->worker, (unsigned long long)delivery->task,
                     (unsigned long long)(peer->first ? peer->first->task : 0));
        hr_delivery_done(delivery);
        return r;
    }
    hr__outstanding_drop_first(loader, peer);
    loader->answered++;
    peer->undelivered_count--;
    peer->unanswered_count--;
    peer->delivered_count++;
    hr__stop_at(HR__AT_LOADER_DELIVERED);
    *ret_delivery = delivery;
    return 0;
}

int hr_loader_next(hr_loader *loader, int64_t deadline_ns, struct hr_delivery **ret_delivery) {
    int r = check_epoch(loader);
    if (r < 0) return r;
    while (loader->answered < loader->submitted) {
        struct hr_delivery *delivery = NULL;
        r = receive(loader, deadline_ns, &delivery);
        if (r < 0) return r;
        if (delivery->status != HR_STATUS_END && delivery->status != HR_STATUS_SKIPPED) {
            *ret_delivery = delivery;
            return 0;
        }
        struct hr__loader_peer *peer = &loader->peers[delivery->worker];
        bool was_at_end = peer->is_at_end;
        peer->is_at_end |= delivery->status == HR_STATUS_END;
        hr_delivery_done(delivery);
        if (!was_at_end) return 1;
    }
    return hr__loader_nothing_outstanding();
}

int hr_loader_has_data(const hr_loader *loader, uint32_t worker) {
    return loader->epoch > 0 && worker < loader->worker_count && has_data(&loader->peers[worker]);
}

int hr__loader_grant_last(hr_loader *loader, uint32_t worker) {
    int r = hr__arena_grant(loader->arena, worker, HR_TASK_STOP, UINT64_MAX, NULL, 0);
    if (r < 0) return r;
    loader->peers[worker].is_dismissed = loader->peers[worker].has_last_task = true;
    hr__stop_at(HR__AT_LOADER_DISMISSED);
    return 0;
}

int hr_loader_dismiss(hr_loader *loader, uint32_t worker) {
    if (worker < loader->worker_count && loader->peers[worker].is_dismissed) return 0;
    return hr__loader_grant_last(loader, worker);
}
