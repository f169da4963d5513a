/* SPDX-License-Identifier: Apache-2.0 */
#include "loader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "os/os.h"

/* The queues of outstanding tasks, one for each worker. */

void hr__order_release(hr_loader *loader, struct hr__order *order) {
    order->next = loader->free_orders;
    loader->free_orders = order;
}

/* A free order always exists: see most_outstanding. */
int hr__order_keep(hr_loader *loader, struct hr__loader_peer *peer, const void *payload, size_t bytes) {
    struct hr__order *order = loader->free_orders;
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

void hr__order_drop_first(hr_loader *loader, struct hr__loader_peer *peer) {
    struct hr__order *order = peer->first;
    peer->first = order->next;
    hr__order_release(loader, order);
}

void hr__order_drop_last(hr_loader *loader, struct hr__loader_peer *peer) {
    struct hr__order *order = peer->last;
    if (peer->first == order) {
        peer->first = NULL;
    } else {
        struct hr__order *before = peer->first;
        while (before->next != order) before = before->next;
        before->next = NULL;
        peer->last = before;
    }
    hr__order_release(loader, order);
}
