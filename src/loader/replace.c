/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/arena.h"
#include "loader.h"

#include <errno.h>

#include "base/error.h"
#include "os/os.h"

/* Moves the tasks of a dead worker: those that it lost are taken back and granted to its successor, which the crew of
 * the trainer has started. */

int hr__loader_nothing_outstanding(void) {
    return hr__fail(HR_E_END, "loader: no task is outstanding");
}

int hr__loader_take_back(hr_loader *loader, uint32_t worker) {
    int count = hr__arena_take_back(loader->arena, worker);
    if (count < 0) return count;
    struct hr__loader_peer *peer = &loader->peers[worker];
    peer->lost_count += (uint32_t)count - peer->has_last_task;
    peer->has_last_task = false;
    hr__stop_at(HR__AT_LOADER_TAKEN_BACK);
    return 0;
}

/* In the queue, published tasks come first, then lost ones. */
static int grant_again(hr_loader *loader, uint32_t worker) {
    struct hr__loader_peer *peer = &loader->peers[worker];
    const struct hr__outstanding *outstanding = peer->first;
    for (uint32_t i = peer->lost_count; i < peer->undelivered_count; i++) outstanding = outstanding->next;
    for (; outstanding; outstanding = outstanding->next) {
        int r = hr__arena_grant(loader->arena, worker, HR_TASK_MAKE, outstanding->task, outstanding->payload,
                                outstanding->payload_bytes);
        if (r < 0) return hr__fail_more(r, "loader: task %llu, made again", (unsigned long long)outstanding->task);
        peer->lost_count--;
        hr__stop_at(HR__AT_LOADER_GRANTED_AGAIN);
    }
    return peer->is_dismissed ? hr__loader_grant_last(loader, worker) : 0;
}

/* For a successor that starts with the new epoch: tasks of the old epoch are not made again, and the new epoch is not
 * announced to it. */
static void begin_again(struct hr__loader_peer *peer) {
    peer->unanswered_count -= peer->lost_count;
    peer->lost_count = 0;
    peer->is_dismissed = false;
}

int hr_loader_replace(hr_loader *loader, uint32_t worker, struct hr_succession *ret_succession) {
    int r = hr__loader_take_back(loader, worker);
    if (r < 0) return r;
    struct hr__loader_peer *peer = &loader->peers[worker];
    struct hr_succession succession = {0};
    if (loader->is_draining) {
        begin_again(peer);
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
    if (!loader->is_draining && loader->answered == loader->submitted) return hr__loader_nothing_outstanding();
    *ret_worker = is_one ? *hr__loader_owner(loader, loader->answered) : HR_ANY_WORKER;
    return 0;
}

int hr_loader_outstanding(const hr_loader *loader, uint32_t worker, uint32_t nth, uint64_t *ret_task,
                          const void **ret_payload, size_t *ret_payload_bytes) {
    if (worker >= loader->worker_count)
        return hr__fail(-EINVAL, "loader: worker %u of %u", worker, loader->worker_count);
    const struct hr__outstanding *outstanding = loader->peers[worker].first;
    while (outstanding && nth-- > 0) outstanding = outstanding->next;
    if (!outstanding) return hr__loader_nothing_outstanding();
    *ret_task = outstanding->task;
    *ret_payload = outstanding->payload;
    *ret_payload_bytes = outstanding->payload_bytes;
    return 0;
}
