/* SPDX-License-Identifier: Apache-2.0 */
#include <headrace/loader.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/error.h"
#include "os/os.h"

/* A task that is outstanding, with what a successor of its worker would need. Its memory is used again. */
struct order {
    struct order *next; /* in its worker's queue, or among the free ones */
    uint64_t task;
    void *payload;
    size_t payload_bytes;
    size_t payload_room;
};

/* A worker as the order of an epoch sees it. It answers the tasks of its queue one after the other. */
struct peer {
    bool is_at_end;             /* of its data, in this epoch */
    bool is_dismissed;          /* its end is expected once it has answered everything */
    bool has_last_task;         /* granted, and never answered */
    uint32_t lost_count;        /* of the queue's end: taken back from a dead worker and not granted again yet */
    uint32_t undelivered_count; /* its tasks of this epoch that are outstanding: the queue's length */
    uint32_t unanswered_count;  /* all that it has to answer, the epoch's announcement included */
    uint64_t delivered_count;   /* in this epoch */
    struct order *first, *last;
};

/* The tasks [answered, submitted) are outstanding; in order, `owners` says who has each, by its number modulo
 * owner_count, a power of two. Out of order only their number counts. */
struct hr_loader {
    hr_arena *arena;
    hr_crew *crew;
    uint32_t worker_count;
    uint32_t most_outstanding;
    bool out_of_order;
    bool is_draining;         /* hr_loader_begin has not come to its end */
    uint32_t announced_count; /* workers that it has told of the epoch */
    uint32_t epoch;
    uint64_t submitted;
    uint64_t answered;
    uint32_t next_worker; /* of the round */
    struct peer *peers;
    uint32_t *owners;
    uint32_t owner_count;
    struct order *orders; /* most_outstanding */
    struct order *free_orders;
};

enum { SPARE_GRANTS = 2 /* per worker: the epoch's beginning and the last task */ };

static int check(const struct hr_loader_options *options) {
    if (options->worker_count < 1 || options->worker_count > HR_ARENA_MAX_WORKERS)
        return hr__fail(-EINVAL, "loader: %u workers; 1 to %d are possible", options->worker_count,
                        HR_ARENA_MAX_WORKERS);
    if (options->prefetch_factor < 1) return hr__fail(-EINVAL, "loader: prefetch_factor is 0; give at least 1");
    return 0;
}

/* ---- orders ---- */

static void release_order(hr_loader *loader, struct order *order) {
    order->next = loader->free_orders;
    loader->free_orders = order;
}

/* Keeps a task's payload at the end of its worker's queue. There is a free order: see most_outstanding. */
static int keep_order(hr_loader *loader, struct peer *peer, const void *payload, size_t bytes) {
    struct order *order = loader->free_orders;
    if (bytes > order->payload_room) {
        void *room = realloc(order->payload, bytes);
        if (!room) return hr__fail(-ENOMEM, "loader: no memory for a task of %llu bytes", (unsigned long long)bytes);
        order->payload = room;
        order->payload_room = bytes;
    }
    if (bytes) memcpy(order->payload, payload, bytes);
    hr__stop_at(HR__AT_LOADER_KEPT);
    loader->free_orders = order->next;
    order->next = NULL;
    order->task = loader->submitted;
    order->payload_bytes = bytes;
    if (peer->first)
        peer->last->next = order;
    else
        peer->first = order;
    peer->last = order;
    return 0;
}

/* The worker has answered the oldest task of its queue. */
static void drop_first_order(hr_loader *loader, struct peer *peer) {
    struct order *order = peer->first;
    peer->first = order->next;
    release_order(loader, order);
}

/* Takes back the newest order, which could not be granted. */
static void drop_last_order(hr_loader *loader, struct peer *peer) {
    struct order *order = peer->last;
    if (peer->first == order) {
        peer->first = NULL;
    } else {
        struct order *before = peer->first;
        while (before->next != order) before = before->next;
        before->next = NULL;
        peer->last = before;
    }
    release_order(loader, order);
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
    loader->orders = calloc(most, sizeof *loader->orders);
    if (!loader->peers || !loader->owners || !loader->orders) {
        hr_loader_close(loader);
        return hr__fail(-ENOMEM, "loader: no memory");
    }
    for (uint64_t i = 0; i < most; i++) release_order(loader, &loader->orders[i]);
    r = hr_crew_open(loader->arena, loader->worker_count, &loader->crew);
    if (r < 0) {
        hr_loader_close(loader);
        return r;
    }
    *ret_loader = loader;
    return 0;
}

hr_loader *hr_loader_close(hr_loader *loader) {
    if (!loader) return NULL;
    hr_crew_close(loader->crew);
    hr_arena_close(loader->arena);
    for (uint32_t i = 0; loader->orders && i < loader->most_outstanding; i++) free(loader->orders[i].payload);
    free(loader->peers);
    free(loader->owners);
    free(loader->orders);
    free(loader);
    return NULL;
}

hr_arena *hr_loader_arena(hr_loader *loader) {
    return loader->arena;
}

hr_crew *hr_loader_crew(hr_loader *loader) {
    return loader->crew;
}

static int take_back(hr_loader *loader, uint32_t worker) {
    int count = hr_arena_take_back(loader->arena, worker);
    if (count < 0) return count;
    struct peer *peer = &loader->peers[worker];
    peer->lost_count += (uint32_t)count - peer->has_last_task;
    peer->has_last_task = false;
    hr__stop_at(HR__AT_LOADER_TAKEN_BACK);
    return 0;
}

/* Receives from a worker or any. The end of a worker that was dismissed and has answered everything, received or not,
 * is no death. */
static int receive_from(hr_loader *loader, uint32_t worker, int64_t deadline_ns, struct hr_delivery **ret_delivery) {
    for (;;) {
        int r = hr_arena_receive(loader->arena, worker, deadline_ns, ret_delivery);
        if (r != HR_E_WORKER_DIED) return r;
        uint32_t dead = hr_arena_dead_worker(loader->arena);
        if (!loader->peers[dead].is_dismissed) return r;
        int taken = take_back(loader, dead);
        if (taken < 0 || loader->peers[dead].lost_count) return taken < 0 ? taken : r;
        hr_crew_expect_end(loader->crew, dead);
    }
}

/* ---- an epoch's beginning ---- */

/* Waits for every answer that is still due: of an epoch that was broken off, and to the epoch's announcement. */
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

/* Goes on where it was broken off. */
static int announce(hr_loader *loader, const void *payload, size_t payload_bytes) {
    for (uint32_t *i = &loader->announced_count; *i < loader->worker_count; ++*i) {
        if (loader->peers[*i].is_dismissed) continue;
        int r = hr_arena_grant(loader->arena, *i, HR_TASK_EPOCH, loader->epoch, payload, payload_bytes);
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
        struct peer *peer = &loader->peers[i];
        while (peer->first) drop_first_order(loader, peer);
        *peer = (struct peer){.is_dismissed = peer->is_dismissed, .has_last_task = peer->has_last_task};
    }
    loader->epoch++;
    loader->submitted = loader->answered = 0;
    loader->next_worker = 0;
    return 0;
}

/* ---- tasks ---- */

static int check_epoch(const hr_loader *loader) {
    if (loader->epoch > 0 && !loader->is_draining) return 0;
    return hr__fail(HR_E_STATE, "loader: no epoch has begun; call hr_loader_begin first, and again until it returns 0");
}

static bool has_data(const struct peer *peer) {
    return !peer->is_at_end && !peer->is_dismissed;
}

static uint32_t count_active(const hr_loader *loader) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < loader->worker_count; i++) count += has_data(&loader->peers[i]);
    return count;
}

/* The next worker of the round that still has data and, out of order, fewer than its share outstanding. */
static bool choose(hr_loader *loader, uint32_t *ret_worker) {
    uint32_t active = count_active(loader);
    for (uint32_t i = 0; active && i < loader->worker_count; i++) {
        uint32_t worker = loader->next_worker;
        loader->next_worker = (worker + 1) % loader->worker_count;
        if (!has_data(&loader->peers[worker])) continue;
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
    int r = check_epoch(loader);
    if (r < 0) return r;
    if (loader->submitted - loader->answered >= loader->most_outstanding)
        return hr__fail(-EAGAIN, "loader: %u tasks are outstanding already", loader->most_outstanding);
    if (!choose(loader, &worker)) return 0;
    struct peer *peer = &loader->peers[worker];
    r = keep_order(loader, peer, payload, payload_bytes);
    if (r < 0) return r;
    r = hr_arena_grant(loader->arena, worker, HR_TASK_MAKE, loader->submitted, payload, payload_bytes);
    if (r < 0) {
        drop_last_order(loader, peer);
        return hr__fail_more(r, "loader: task %llu", (unsigned long long)loader->submitted);
    }
    *owner_of(loader, loader->submitted) = worker;
    loader->submitted++;
    peer->undelivered_count++;
    peer->unanswered_count++;
    hr__stop_at(HR__AT_LOADER_SUBMITTED);
    return 1;
}

/* Receives the answer to a task: in order, the oldest one's. */
static int receive(hr_loader *loader, int64_t deadline_ns, struct hr_delivery **ret_delivery) {
    struct hr_delivery *delivery;
    uint32_t from = loader->out_of_order ? HR_ANY_WORKER : *owner_of(loader, loader->answered);
    int r = receive_from(loader, from, deadline_ns, &delivery);
    if (r < 0) return r;
    struct peer *peer = &loader->peers[delivery->worker];
    if (!peer->first || delivery->task != peer->first->task) {
        r = hr__fail(HR_E_CORRUPT, "loader: worker %u answered task %llu where %llu was due", delivery->worker,
                     (unsigned long long)delivery->task, (unsigned long long)(peer->first ? peer->first->task : 0));
        hr_delivery_done(delivery);
        return r;
    }
    drop_first_order(loader, peer);
    loader->answered++;
    peer->undelivered_count--;
    peer->unanswered_count--;
    peer->delivered_count++;
    hr__stop_at(HR__AT_LOADER_DELIVERED);
    *ret_delivery = delivery;
    return 0;
}

static int nothing_outstanding(void) {
    return hr__fail(HR_E_END, "loader: no task is outstanding");
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
        struct peer *peer = &loader->peers[delivery->worker];
        bool was_at_end = peer->is_at_end;
        peer->is_at_end |= delivery->status == HR_STATUS_END;
        hr_delivery_done(delivery);
        if (!was_at_end) return 1;
    }
    return nothing_outstanding();
}

/* ---- a dead worker's successor ---- */

/* What was published comes first in the queue, then what was lost. */
static int grant_again(hr_loader *loader, uint32_t worker) {
    struct peer *peer = &loader->peers[worker];
    const struct order *order = peer->first;
    for (uint32_t i = peer->lost_count; i < peer->undelivered_count; i++) order = order->next;
    for (; order; order = order->next) {
        int r = hr_arena_grant(loader->arena, worker, HR_TASK_MAKE, order->task, order->payload, order->payload_bytes);
        if (r < 0) return hr__fail_more(r, "loader: task %llu, made again", (unsigned long long)order->task);
        peer->lost_count--;
        hr__stop_at(HR__AT_LOADER_GRANTED_AGAIN);
    }
    return peer->is_dismissed ? hr_loader_dismiss(loader, worker) : 0;
}

/* Nothing of the old epoch is made again, nor is the new one announced to who begins with it. */
static void begin_anew(struct peer *peer) {
    peer->unanswered_count -= peer->lost_count;
    peer->lost_count = 0;
    peer->is_dismissed = false;
}

int hr_loader_replace(hr_loader *loader, uint32_t worker, struct hr_succession *ret_succession) {
    int r = take_back(loader, worker);
    if (r < 0) return r;
    struct peer *peer = &loader->peers[worker];
    struct hr_succession succession = {0};
    if (loader->is_draining) {
        begin_anew(peer);
    } else {
        succession = (struct hr_succession){.delivered_count = peer->delivered_count,
                                            .published_count = peer->undelivered_count - peer->lost_count,
                                            .granted_count = peer->lost_count};
        r = grant_again(loader, worker);
        if (r < 0) return r;
    }
    *ret_succession = succession;
    return 0;
}

int hr_loader_awaited(const hr_loader *loader, uint32_t *ret_worker) {
    bool is_one = !loader->is_draining && !loader->out_of_order;
    if (!loader->is_draining && loader->answered == loader->submitted) return nothing_outstanding();
    *ret_worker = is_one ? loader->owners[loader->answered & (loader->owner_count - 1)] : HR_ANY_WORKER;
    return 0;
}

int hr_loader_outstanding(const hr_loader *loader, uint32_t worker, uint32_t nth, uint64_t *ret_task,
                          const void **ret_payload, size_t *ret_payload_bytes) {
    if (worker >= loader->worker_count)
        return hr__fail(-EINVAL, "loader: worker %u of %u", worker, loader->worker_count);
    const struct order *order = loader->peers[worker].first;
    while (order && nth-- > 0) order = order->next;
    if (!order) return nothing_outstanding();
    *ret_task = order->task;
    *ret_payload = order->payload;
    *ret_payload_bytes = order->payload_bytes;
    return 0;
}

int hr_loader_has_data(const hr_loader *loader, uint32_t worker) {
    return loader->epoch > 0 && worker < loader->worker_count && has_data(&loader->peers[worker]);
}

int hr_loader_dismiss(hr_loader *loader, uint32_t worker) {
    if (worker < loader->worker_count && loader->peers[worker].has_last_task) return 0;
    int r = hr_arena_grant(loader->arena, worker, HR_TASK_STOP, UINT64_MAX, NULL, 0);
    if (r < 0) return r;
    loader->peers[worker].is_dismissed = loader->peers[worker].has_last_task = true;
    hr__stop_at(HR__AT_LOADER_DISMISSED);
    return 0;
}
