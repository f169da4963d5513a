/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>

#include "ledger.h"
#include "os/os.h"

/*
 * Handles a fork in a trainer that has leases. The child may read the inherited batches as long as it lives, while the
 * parent releases its leases and would grant the slots again. Therefore:
 *
 *     before the fork   a ticket is made for each arena with leased slots: a pipe
 *     in the child      leased slots are replaced by private copies at the same address, everything else of the arena
 *                       is unmapped and closed; then the child's end of the pipe is closed
 *     in the parent     a leased slot, once released, waits for the end of the pipe before it is granted again
 *
 * A child that dies early closes the pipe too. A child that has no memory for its copies leaves the pipe open, and the
 * slots are not granted again while it lives.
 */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t install_once = PTHREAD_ONCE_INIT;
static hr_arena *registry;

/* ---- tickets ---- */

/* If no pipe can be opened, the parent cannot wait for the children of the fork, and its slots are never granted again.
 */
static struct hr__ticket never_over = {.refs = 1, .read_fd = -1, .write_fd = -1};

static struct hr__ticket *ticket_ref(struct hr__ticket *ticket) {
    if (ticket && ticket != &never_over) ticket->refs++;
    return ticket;
}

void hr__ticket_unref(struct hr__ticket *ticket) {
    while (ticket && ticket != &never_over && --ticket->refs == 0) {
        struct hr__ticket *older = ticket->older;
        hr__close(&ticket->read_fd);
        hr__close(&ticket->write_fd);
        free(ticket);
        ticket = older;
    }
}

bool hr__ticket_is_over(struct hr__ticket *ticket) {
    for (; ticket; ticket = ticket->older) {
        if (ticket == &never_over) return false;
        if (ticket->read_fd >= 0 && !hr__is_readable(ticket->read_fd)) return false;
        hr__close(&ticket->read_fd);
    }
    return true;
}

static struct hr__ticket *new_ticket(struct hr__ticket *older) {
    struct hr__ticket *ticket = calloc(1, sizeof *ticket);
    if (!ticket) return &never_over;
    ticket->refs = 1;
    if (hr__pipe(&ticket->read_fd, &ticket->write_fd) < 0) {
        free(ticket);
        return &never_over;
    }
    if (older && !hr__ticket_is_over(older)) ticket->older = ticket_ref(older);
    return ticket;
}

/* ---- around a fork ---- */

static void before_fork_of(hr_arena *arena) {
    pthread_mutex_lock(&arena->lock);
    if (arena->is_orphan) return;
    struct hr__ticket *ticket = NULL;
    for (uint32_t slot = 0; slot < arena->layout.slot_count; slot++) {
        struct hr__entry *entry = &arena->entries[slot];
        if (!hr__is_held(entry)) continue;
        if (!ticket) ticket = new_ticket(arena->ticket);
        hr__ticket_unref(entry->ticket);
        entry->ticket = ticket_ref(ticket);
    }
    if (!ticket) return;
    hr__ticket_unref(arena->ticket);
    arena->ticket = ticket;
}

static void before_fork(void) {
    pthread_mutex_lock(&registry_lock);
    for (hr_arena *arena = registry; arena; arena = arena->next) before_fork_of(arena);
    hr__stop_at(HR__AT_FORK_BEFORE);
}

static void after_fork_in_parent(void) {
    for (hr_arena *arena = registry; arena; arena = arena->next) {
        if (arena->ticket && arena->ticket != &never_over) hr__close(&arena->ticket->write_fd);
        pthread_mutex_unlock(&arena->lock);
    }
    pthread_mutex_unlock(&registry_lock);
    hr__stop_at(HR__AT_FORK_PARENT);
}

static bool copy_held(hr_arena *arena) {
    bool all_copied = true;
    for (uint32_t slot = 0; slot < arena->layout.slot_count; slot++) {
        struct hr__hold *hold = &arena->entries[slot].hold;
        uint64_t bytes = hr__hold_bytes(hold);
        if (!hr__is_held(&arena->entries[slot]) || bytes == 0) continue;
        all_copied = hr__make_private(hold->public.data, bytes) == 0 && all_copied;
    }
    return all_copied;
}

static void drop_tickets(hr_arena *arena) {
    for (uint32_t slot = 0; slot < arena->layout.slot_count; slot++) {
        hr__ticket_unref(arena->entries[slot].ticket);
        arena->entries[slot].ticket = NULL;
    }
    hr__ticket_unref(arena->ticket);
    arena->ticket = NULL;
}

/* In the child the arena is closed and marked as an orphan: leases can be read and released, and nothing else. */
static void become_orphan(hr_arena *arena) {
    if (arena->is_orphan) return;
    bool all_copied = copy_held(arena);
    if (!atomic_load(&arena->is_closed)) hr__unmap_unheld(arena, false);
    hr__arena_close_descriptors(arena);
    arena->is_orphan = true;
    atomic_store(&arena->is_closed, true);
    if (all_copied) drop_tickets(arena); /* closes this child's end of the newest pipe */
}

static void after_fork_in_child(void) {
    for (hr_arena *arena = registry; arena; arena = arena->next) {
        become_orphan(arena);
        pthread_mutex_unlock(&arena->lock);
    }
    pthread_mutex_unlock(&registry_lock);
    hr__stop_at(HR__AT_FORK_CHILD);
}

static void install(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void hr__fork_register(hr_arena *arena) {
    pthread_once(&install_once, install);
    pthread_mutex_lock(&registry_lock);
    arena->next = registry;
    if (registry) registry->previous = arena;
    registry = arena;
    pthread_mutex_unlock(&registry_lock);
}

void hr__fork_forget(hr_arena *arena) {
    pthread_mutex_lock(&registry_lock);
    if (arena->previous) arena->previous->next = arena->next;
    if (arena->next) arena->next->previous = arena->previous;
    if (registry == arena) registry = arena->next;
    pthread_mutex_unlock(&registry_lock);
}
