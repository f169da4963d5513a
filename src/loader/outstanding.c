/* SPDX-License-Identifier: Apache-2.0 */
#include "loader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "os/os.h"

/* The queues of outstanding tasks, one for each worker. */

void hr__outstanding_release(hr_loader *loader, struct hr__outstanding *outstanding) {
    outstanding->next = loader->free_outstanding;
    loader->free_outstanding = outstanding;
}

/* A free one always exists: see most_outstanding. */
int hr__outstanding_keep(hr_loader *loader, struct hr__loader_peer *peer, const void *payload, size_t bytes) {
    struct hr__outstanding *outstanding = loader->free_outstanding;
    if (bytes > outstanding->payload_room) {
        void *room = realloc(outstanding->payload, bytes);
        if (!room) return hr__fail(-ENOMEM, "loader: no memory for a task of %llu bytes", (unsigned long long)bytes);
        outstanding->payload = room;
        outstanding->payload_room = bytes;
    }
    if (bytes) memcpy(outstanding->payload, payload, bytes);
    hr__stop_at(HR__AT_LOADER_KEPT);
    loader->free_outstanding = outstanding->next;
    outstanding->next = NULL;
    outstanding->task = loader->submitted;
    outstanding->payload_bytes = bytes;
    if (peer->first)
        peer->last->next = outstanding;
    else
        peer->first = outstanding;
    peer->last = outstanding;
    return 0;
}

void hr__outstanding_drop_first(hr_loader *loader, struct hr__loader_peer *peer) {
    struct hr__outstanding *outstanding = peer->first;
    peer->first = outstanding->next;
    hr__outstanding_release(loader, outstanding);
}

void hr__outstanding_drop_last(hr_loader *loader, struct hr__loader_peer *peer) {
    struct hr__outstanding *outstanding = peer->last;
    if (peer->first == outstanding) {
        peer->first = NULL;
    } else {
        struct hr__outstanding *before = peer->first;
        while (before->next != outstanding) before = before->next;
        before->next = NULL;
        peer->last = before;
    }
    hr__outstanding_release(loader, outstanding);
}
