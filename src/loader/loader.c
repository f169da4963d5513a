/* SPDX-License-Identifier: Apache-2.0 */
#include <headrace/loader.h>

#include <errno.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/error.h"

/* A worker as the order of an epoch sees it. */
struct peer {
    bool has_data;
    uint32_t undelivered_count; /* its tasks of this epoch that are outstanding */
    uint32_t unanswered_count;  /* all that it has to answer, the epoch's announcement included */
};

/* The tasks [answered, submitted) are outstanding; in order, `owners` says who has each, by its number modulo
 * owner_count, a power of two. Out of order only their number counts. */
struct hr_loader {
    hr_arena *arena;
    uint32_t worker_count;
    uint32_t most_outstanding;
    bool out_of_order;
    bool is_draining;
    uint32_t epoch;
    uint64_t submitted;
    uint64_t answered;
    uint32_t next_worker; /* of the round */
    struct peer *peers;
    uint32_t *owners;
    uint32_t owner_count;
};

enum { SPARE_GRANTS = 2 /* per worker: the epoch's beginning and the last task */ };

static int check(const struct hr_loader_options *options) {
    if (options->worker_count < 1 || options->worker_count > HR_ARENA_MAX_WORKERS)
        return hr__fail(-EINVAL, "loader: worker_count is %u; 1 to %d are possible", options->worker_count,
                        HR_ARENA_MAX_WORKERS);
    if (options->prefetch_factor < 1) return hr__fail(-EINVAL, "loader: prefetch_factor is 0; give at least 1");
    return 0;
}

int hr_loader_open(const struct hr_loader_options *options, hr_loader **ret_loader) {
    int r = check(options);
    if (r < 0) return r;
    uint64_t most = (uint64_t)options->worker_count * options->prefetch_factor;
    struct hr_arena_options arena_options = {
        .worker_count = options->worker_count,
        .prefetch_count = (uint32_t)hr__min(most + SPARE_GRANTS * (uint64_t)options->worker_count, UINT32_MAX),
        .limit_bytes = options->limit_bytes};
    hr_loader *loader = calloc(1, sizeof *loader);
    if (!loader) return hr__fail(-ENOMEM, "loader: no memory");
    r = hr_arena_open(&arena_options, &loader->arena);
    if (r < 0) {
        hr_loader_close(loader);
        return r;
    }
    loader->worker_count = options->worker_count;
    loader->most_outstanding = (uint32_t)most;
    loader->out_of_order = options->out_of_order;
    loader->owner_count = 1;
    while (loader->owner_count < most) loader->owner_count *= 2;
    loader->peers = calloc(loader->worker_count, sizeof *loader->peers);
    loader->owners = calloc(loader->owner_count, sizeof *loader->owners);
    if (!loader->peers || !loader->owners) {
        hr_loader_close(loader);
        return hr__fail(-ENOMEM, "loader: no memory");
    }
    *ret_loader = loader;
    return 0;
}

hr_loader *hr_loader_close(hr_loader *loader) {
    if (!loader) return NULL;
    hr_arena_close(loader->arena);
    free(loader->peers);
    free(loader->owners);
    free(loader);
    return NULL;
}

hr_arena *hr_loader_arena(hr_loader *loader) {
    return loader->arena;
}

/* ---- an epoch's beginning ---- */

/* Waits for every answer that is still due: of an epoch that was broken off, and to the epoch's announcement. */
static int drain(hr_loader *loader, int64_t deadline_ns) {
    for (uint32_t i = 0; i < loader->worker_count; i++) {
        while (loader->peers[i].unanswered_count) {
            struct hr_delivery *delivery;
            int r = hr_arena_receive(loader->arena, i, deadline_ns, &delivery);
            if (r < 0) return r;
            loader->peers[i].unanswered_count--;
            hr_delivery_done(delivery);
        }
    }
    return 0;
}

static int announce(hr_loader *loader, const void *payload, size_t payload_bytes) {
    for (uint32_t i = 0; i < loader->worker_count; i++) {
        int r = hr_arena_grant(loader->arena, i, HR_TASK_EPOCH, loader->epoch, payload, payload_bytes);
        if (r < 0) return r;
        loader->peers[i].unanswered_count++;
    }
    return 0;
}

int hr_loader_begin(hr_loader *loader, const void *payload, size_t payload_bytes, int64_t deadline_ns) {
    int r = 0;
    if (loader->epoch > 0) {
        if (!loader->is_draining) r = announce(loader, payload, payload_bytes);
        loader->is_draining = true;
        if (r == 0) r = drain(loader, deadline_ns);
        if (r < 0) return r;
        loader->is_draining = false;
    }
    for (uint32_t i = 0; i < loader->worker_count; i++) loader->peers[i] = (struct peer){.has_data = true};
    loader->epoch++;
    loader->submitted = loader->answered = 0;
    loader->next_worker = 0;
    return 0;
}

/* ---- tasks ---- */

static uint32_t count_active(const hr_loader *loader) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < loader->worker_count; i++) count += loader->peers[i].has_data;
    return count;
}

/* The next worker of the round that still has data and, out of order, fewer than its share outstanding. */
static bool choose(hr_loader *loader, uint32_t *ret_worker) {
    uint32_t active = count_active(loader);
    for (uint32_t i = 0; active && i < loader->worker_count; i++) {
        uint32_t worker = loader->next_worker;
        loader->next_worker = (worker + 1) % loader->worker_count;
        if (!loader->peers[worker].has_data) continue;
        if (loader->out_of_order && loader->peers[worker].undelivered_count >= loader->most_outstanding / active)
            continue;
        *ret_worker = worker;
        return true;
    }
    return false;
}

static uint32_t *owner_of(hr_loader *loader, uint64_t task) {
    return &loader->owners[task & (loader->owner_count - 1)];
}

int hr_loader_submit(hr_loader *loader, const void *payload, size_t payload_bytes) {
    uint32_t worker;
    if (loader->submitted - loader->answered >= loader->most_outstanding)
        return hr__fail(-EAGAIN, "loader: %u tasks are outstanding already", loader->most_outstanding);
    if (!choose(loader, &worker)) return 0;
    int r = hr_arena_grant(loader->arena, worker, HR_TASK_MAKE, loader->submitted, payload, payload_bytes);
    if (r < 0) return hr__fail_more(r, "loader: task %llu", (unsigned long long)loader->submitted);
    *owner_of(loader, loader->submitted) = worker;
    loader->submitted++;
    loader->peers[worker].undelivered_count++;
    loader->peers[worker].unanswered_count++;
    return 1;
}

/* Receives the answer to a task: in order, the oldest one's. */
static int receive(hr_loader *loader, int64_t deadline_ns, struct hr_delivery **ret_delivery) {
    struct hr_delivery *delivery;
    uint32_t from = loader->out_of_order ? HR_ANY_WORKER : *owner_of(loader, loader->answered);
    int r = hr_arena_receive(loader->arena, from, deadline_ns, &delivery);
    if (r < 0) return r;
    if (!loader->out_of_order && delivery->task != loader->answered) {
        r = hr__fail(HR_E_CORRUPT, "loader: worker %u answered task %llu where %llu was due", delivery->worker,
                     (unsigned long long)delivery->task, (unsigned long long)loader->answered);
        hr_delivery_done(delivery);
        return r;
    }
    loader->answered++;
    loader->peers[delivery->worker].undelivered_count--;
    loader->peers[delivery->worker].unanswered_count--;
    *ret_delivery = delivery;
    return 0;
}

int hr_loader_next(hr_loader *loader, int64_t deadline_ns, struct hr_delivery **ret_delivery) {
    while (loader->answered < loader->submitted) {
        struct hr_delivery *delivery = NULL;
        int r = receive(loader, deadline_ns, &delivery);
        if (r < 0) return r;
        if (delivery->status != HR_STATUS_END && delivery->status != HR_STATUS_SKIPPED) {
            *ret_delivery = delivery;
            return 0;
        }
        bool has_ended = delivery->status == HR_STATUS_END;
        if (has_ended) loader->peers[delivery->worker].has_data = false;
        hr_delivery_done(delivery);
        if (has_ended) return 1;
    }
    return HR_E_END;
}

int hr_loader_has_data(const hr_loader *loader, uint32_t worker) {
    return worker < loader->worker_count && loader->peers[worker].has_data;
}

int hr_loader_dismiss(hr_loader *loader, uint32_t worker) {
    return hr_arena_grant(loader->arena, worker, HR_TASK_STOP, UINT64_MAX, NULL, 0);
}
