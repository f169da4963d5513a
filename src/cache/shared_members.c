/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "cache/shared.h"

/* The processes that take part in locking a shared array: each has a byte of the file locked for as long as it lives.
 */

#define LAST_GENERATION ((UINT32_C(1) << GENERATION_BITS) - 1)

/* ---- open handles, and forks: a child is no member, and has none of the locks ---- */

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t install_once = PTHREAD_ONCE_INIT;
static hr_shared *table;

static void before_fork(void) {
    pthread_mutex_lock(&table_lock);
    for (hr_shared *one = table; one; one = one->next) pthread_mutex_lock(&one->lock);
}

static void unlock_all(void) {
    for (hr_shared *one = table; one; one = one->next) pthread_mutex_unlock(&one->lock);
    pthread_mutex_unlock(&table_lock);
}

static void after_fork_in_child(void) {
    for (hr_shared *one = table; one; one = one->next) {
        atomic_store(&one->own, 0);
        atomic_store(&one->held, 0);
        one->byte_page = NULL; /* the child does not have the mapping */
        for (int i = 0; i < LOCK_COUNT; i++) atomic_store(&one->threads[i], 0);
    }
    unlock_all();
}

static void install(void) {
    pthread_atfork(before_fork, unlock_all, after_fork_in_child);
}

void hr__shared_enter(hr_shared *shared) {
    pthread_once(&install_once, install);
    pthread_mutex_lock(&table_lock);
    shared->next = table;
    table = shared;
    pthread_mutex_unlock(&table_lock);
}

void hr__shared_leave(hr_shared *shared) {
    pthread_mutex_lock(&table_lock);
    hr_shared **link = &table;
    while (*link && *link != shared) link = &(*link)->next;
    if (*link) *link = shared->next;
    hr__unmap(shared->byte_page, hr__page_bytes()); /* this ends the byte lock */
    pthread_mutex_unlock(&table_lock);
}

/* ---- slots ---- */

static uint32_t slot_of(uint32_t word) {
    return word & (HR_SHARED_MEMBERS - 1);
}

static uint32_t generation_of(uint32_t word) {
    return hr__shared_owner(word) >> SLOT_BITS;
}

static bool is_named(const hr_shared *shared, uint32_t slot) {
    for (int i = 0; i < LOCK_COUNT; i++) {
        uint32_t word = atomic_load(&shared->locks[i].word);
        if (word && slot_of(word) == slot) return true;
    }
    return false;
}

/* A program may close the descriptors of others, and open its own under their numbers. */
static bool has_own_file(const hr_shared *shared) {
    struct hr__file_info info;
    return hr__file_look_fd(shared->fd, &info) == 0 && info.device == shared->device && info.inode == shared->inode;
}

/* The generation comes first, so that who reads about its last holder does not take the new one for it. */
static void write_member(hr_shared *shared, uint32_t slot) {
    struct hr__shared_member *member = &shared->members[slot];
    uint32_t generation = atomic_fetch_add(&member->generation, 1) + 1;
    atomic_store(&member->pid, hr__pid());
    atomic_store(&member->pid_namespace, hr__pid_namespace());
    hr__command_line((int)hr__pid(), member->command, sizeof member->command);
    atomic_store(&shared->own, slot | generation << SLOT_BITS);
}

/* Locks the byte of a slot for a description that only a mapping keeps. -EAGAIN: the slot is not free. It is looked at
 * before its byte is locked, too, so that a dead holder does not seem to live meanwhile. */
static int lock_byte(hr_shared *shared, uint32_t slot) {
    int fd = -1;
    if (is_named(shared, slot) || atomic_load(&shared->members[slot].generation) >= LAST_GENERATION) return -EAGAIN;
    int r = hr__file_reopen_to_write(shared->fd, &fd);
    if (r == 0) r = hr__byte_lock(fd, HR__SHARED_BYTES_AT + slot);
    hr__stop_at(HR__AT_SHARED_JOINING);
    if (r == 0 && is_named(shared, slot)) r = -EAGAIN;
    if (r == 0) r = hr__map(fd, hr__page_bytes(), &shared->byte_page);
    if (r == 0) hr__keep_from_children(shared->byte_page, hr__page_bytes());
    hr__close(&fd);
    return r;
}

static int join(hr_shared *shared) {
    const char *name = shared->cached->record.name;
    uint32_t first = atomic_fetch_add(&shared->head->next_slot, 1);
    int r = -EAGAIN;
    if (!has_own_file(shared))
        return hr__fail(-EBADF, "cache: this program has closed a descriptor of the shared array '%s'", name);
    for (uint32_t i = 0; r == -EAGAIN && i < HR_SHARED_MEMBERS; i++) {
        r = lock_byte(shared, slot_of(first + i));
        if (r == 0) write_member(shared, slot_of(first + i));
    }
    hr__stop_at(HR__AT_SHARED_JOINED);
    if (r == -EAGAIN)
        return hr__fail(-EUSERS, "cache: %d processes take part in locking the shared array '%s', and more cannot",
                        HR_SHARED_MEMBERS, name);
    return r < 0 ? hr__fail(r, "cache: cannot take part in locking the shared array '%s': %s", name, hr_error_text(r))
                 : 0;
}

int hr__shared_join(hr_shared *shared) {
    pthread_mutex_lock(&shared->lock);
    int r = atomic_load(&shared->own) ? 0 : join(shared);
    pthread_mutex_unlock(&shared->lock);
    return r;
}

bool hr__shared_has_ended(const hr_shared *shared, uint32_t word) {
    if (hr__shared_owner(word) == atomic_load(&shared->own)) return false;
    uint32_t slot = slot_of(word);
    if (atomic_load(&shared->members[slot].generation) != generation_of(word)) return true;
    return has_own_file(shared) && hr__byte_look(shared->fd, HR__SHARED_BYTES_AT + slot) == 0;
}

void hr__shared_describe(const hr_shared *shared, uint32_t word, struct hr__shared_holder *ret_holder) {
    const struct hr__shared_member *member = &shared->members[slot_of(word)];
    struct hr__shared_holder holder = {.pid = atomic_load(&member->pid),
                                       .is_visible = atomic_load(&member->pid_namespace) == hr__pid_namespace()};
    memcpy(holder.command, member->command, sizeof holder.command - 1);
    if (atomic_load(&member->generation) != generation_of(word)) holder = (struct hr__shared_holder){0};
    *ret_holder = holder;
}
