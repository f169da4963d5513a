/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>

#include "ledger.h"
#include "os/os.h"

/*
 * Handles a fork in a trainer that has leases. The child may read the inherited batches as long as it lives, while the
 * parent releases its leases and would grant the slots again. Therefore:
 *
 *     before the fork   a fork pipe is made for each arena with held slots
 *     in the child      held slots are replaced by private copies at the same address, everything else of the arena
 *                       is unmapped and closed; then the child's end of the pipe is closed
 *     in the parent     a held slot, once released, waits for the end of the pipe before it is granted again
 *
 * A batch that only copies to a device hold is not kept: the child can do nothing with it. Its slot stays mapped there.
 *
 * A child that dies early closes the pipe too. A child that has no memory for its copies leaves the pipe open, and the
 * slots are not granted again while it lives.
 */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t install_once = PTHREAD_ONCE_INIT;
static hr_arena *registry;

/* ---- fork pipes ---- */

/* If no pipe can be opened, the parent cannot wait for the children of the fork, and its slots are never granted again.
 */
static struct hr__fork_pipe never_over = {.refs = 1, .read_fd = -1, .write_fd = -1};

static struct hr__fork_pipe *fork_pipe_ref(struct hr__fork_pipe *pipe) {
    if (pipe && pipe != &never_over) pipe->refs++;
    return pipe;
}

void hr__fork_pipe_unref(struct hr__fork_pipe *pipe) {
    while (pipe && pipe != &never_over && --pipe->refs == 0) {
        struct hr__fork_pipe *older = pipe->older;
        hr__close(&pipe->read_fd);
        hr__close(&pipe->write_fd);
        free(pipe);
        pipe = older;
    }
}

bool hr__fork_pipe_is_over(struct hr__fork_pipe *pipe) {
    for (; pipe; pipe = pipe->older) {
        if (pipe == &never_over) return false;
        if (pipe->read_fd >= 0 && !hr__is_readable(pipe->read_fd)) return false;
        hr__close(&pipe->read_fd);
    }
    return true;
}

static struct hr__fork_pipe *new_fork_pipe(struct hr__fork_pipe *older) {
    struct hr__fork_pipe *pipe = calloc(1, sizeof *pipe);
    if (!pipe) return &never_over;
    pipe->refs = 1;
    if (hr__pipe(&pipe->read_fd, &pipe->write_fd) < 0) {
        free(pipe);
        return &never_over;
    }
    if (older && !hr__fork_pipe_is_over(older)) pipe->older = fork_pipe_ref(older);
    return pipe;
}

/* ---- around a fork ---- */

static void before_fork_of(hr_arena *arena) {
    pthread_mutex_lock(&arena->lock);
    if (arena->is_orphan) return;
    struct hr__fork_pipe *pipe = NULL;
    for (uint32_t slot = 0; slot < arena->layout.slot_count; slot++) {
        struct hr__entry *entry = &arena->entries[slot];
        if (!hr__is_held(entry) || entry->held.is_sent) continue;
        if (!pipe) pipe = new_fork_pipe(arena->fork_pipe);
        hr__fork_pipe_unref(entry->fork_pipe);
        entry->fork_pipe = fork_pipe_ref(pipe);
    }
    if (!pipe) return;
    hr__fork_pipe_unref(arena->fork_pipe);
    arena->fork_pipe = pipe;
}

static void before_fork(void) {
    pthread_mutex_lock(&registry_lock);
    for (hr_arena *arena = registry; arena; arena = arena->next) before_fork_of(arena);
    hr__stop_at(HR__AT_FORK_BEFORE);
}

static void after_fork_in_parent(void) {
    for (hr_arena *arena = registry; arena; arena = arena->next) {
        if (arena->fork_pipe && arena->fork_pipe != &never_over) hr__close(&arena->fork_pipe->write_fd);
        pthread_mutex_unlock(&arena->lock);
    }
    pthread_mutex_unlock(&registry_lock);
    hr__stop_at(HR__AT_FORK_PARENT);
}

static bool copy_held(hr_arena *arena) {
    bool all_copied = true;
    for (uint32_t slot = 0; slot < arena->layout.slot_count; slot++) {
        struct hr__held *held = &arena->entries[slot].held;
        uint64_t bytes = hr__held_bytes(held);
        if (!hr__is_held(&arena->entries[slot]) || held->is_sent || bytes == 0) continue;
        all_copied = hr__make_private(held->public.data, bytes) == 0 && all_copied;
    }
    return all_copied;
}

static void drop_fork_pipes(hr_arena *arena) {
    for (uint32_t slot = 0; slot < arena->layout.slot_count; slot++) {
        hr__fork_pipe_unref(arena->entries[slot].fork_pipe);
        arena->entries[slot].fork_pipe = NULL;
    }
    hr__fork_pipe_unref(arena->fork_pipe);
    arena->fork_pipe = NULL;
}

/* In the child the arena is closed and marked as an orphan: leases can be read and released, and nothing else. */
static void become_orphan(hr_arena *arena) {
    if (arena->is_orphan) return;
    bool all_copied = copy_held(arena);
    if (!atomic_load(&arena->is_closed)) hr__unmap_unheld(arena, false);
    hr__arena_close_descriptors(arena);
    arena->is_orphan = true;
    atomic_store(&arena->is_closed, true);
    if (all_copied) drop_fork_pipes(arena); /* closes this child's end of the newest pipe */
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
