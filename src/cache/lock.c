/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cache/cache.h"

/*
 * The lock that makes a process the builder, and what builders say in the file next to it. wait.c takes it.
 *
 * The kernel ends an fcntl lock when the process closes any descriptor of the file, and does not exclude threads of one
 * process. So all locks of this process are in one table, by device and inode: a file that is in the table is not
 * opened again.
 */

static const uint64_t state_magic = UINT64_C(0x3145544154534352); /* "RCSTATE1" */
enum { STATE_VERSION = 1, CHAIN_MAX = 16 };

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t install_once = PTHREAD_ONCE_INIT;
static struct hr__held_lock *table;

/* ---- forks: a child has none of the locks ---- */

static void before_fork(void) {
    pthread_mutex_lock(&table_lock);
}

static void after_fork_in_parent(void) {
    pthread_mutex_unlock(&table_lock);
}

static void after_fork_in_child(void) {
    for (struct hr__held_lock *lock = table; lock; lock = lock->next) {
        hr__close(&lock->fd);
        hr__close(&lock->state_fd);
        if (lock->data_fd) hr__close(lock->data_fd);
    }
    table = NULL;
    pthread_mutex_unlock(&table_lock);
}

static void install(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- the state ---- */

static int path_of(const hr_cache *cache, const char *key, const char *suffix, char *ret_path) {
    return hr__path(ret_path, "%s/locks/%s.%s", cache->stores[0].path, key, suffix);
}

static bool is_valid(const struct hr__build_state *state) {
    return state->magic == state_magic && state->version == STATE_VERSION &&
           memchr(state->waits_for, '\0', sizeof state->waits_for) &&
           memchr(state->command, '\0', sizeof state->command);
}

/* A state that cannot be read, for example after a full disk, counts as that of an object that was never built. */
static struct hr__build_state read_state(int fd) {
    struct hr__build_state state;
    if (fd < 0 || hr__read_at(fd, 0, &state, sizeof state) < 0 || !is_valid(&state))
        return (struct hr__build_state){.magic = state_magic, .version = STATE_VERSION};
    return state;
}

void hr__state_read(const hr_cache *cache, const char *key, struct hr__build_state *ret_state) {
    char path[HR__PATH_BYTES];
    int fd = -1;
    if (path_of(cache, key, "state", path) == 0) hr__file_open(path, &fd);
    *ret_state = read_state(fd);
    hr__close(&fd);
}

int hr__lock_write_state(struct hr__held_lock *lock) {
    int r = hr__fail_at("write_state");
    if (r == 0) r = hr__write_at(lock->state_fd, 0, &lock->state, sizeof lock->state);
    return r < 0 ? hr__fail(r, "cache: cannot write the state of a build: %s", hr_error_text(r)) : 0;
}

/* ---- the table ---- */

static struct hr__held_lock *find_in_table(const struct hr__file_info *info) {
    for (struct hr__held_lock *lock = table; lock; lock = lock->next)
        if (lock->device == info->device && lock->inode == info->inode) return lock;
    return NULL;
}

static int judge_own(const struct hr__held_lock *lock) {
    return pthread_equal(lock->thread, pthread_self()) ? -EDEADLK : -EAGAIN;
}

/* Opens the file and locks it. -ESTALE: another file has the name by now. */
static int lock_file(const char *path, struct hr__held_lock *lock) {
    struct hr__file_info opened = {0}, named = {0};
    int r = hr__file_open_or_make(path, &lock->fd);
    if (r == 0) r = hr__file_look_fd(lock->fd, &opened);
    if (r == 0) r = hr__lock_range(lock->fd, 0, 1);
    if (r < 0) return r;
    if (hr__file_look(path, &named) < 0 || named.inode != opened.inode || named.device != opened.device) return -ESTALE;
    lock->device = opened.device;
    lock->inode = opened.inode;
    return 0;
}

/* Closing the descriptor ends the lock. */
static void drop(struct hr__held_lock *lock) {
    hr__close(&lock->state_fd);
    hr__close(&lock->fd);
    hr__free(lock);
}

static int take_new(hr_cache *cache, const char *key, const char *path, struct hr__held_lock **ret_lock) {
    char state_path[HR__PATH_BYTES];
    struct hr__held_lock *lock = hr__realloc(NULL, sizeof *lock);
    if (!lock) return -ENOMEM;
    *lock = (struct hr__held_lock){.thread = pthread_self(), .pid = hr__pid(), .fd = -1, .state_fd = -1};
    memcpy(lock->key, key, strlen(key) + 1);
    int r = lock_file(path, lock);
    if (r == 0) r = path_of(cache, key, "state", state_path);
    if (r == 0) r = hr__file_open_or_make(state_path, &lock->state_fd);
    if (r < 0) {
        drop(lock);
        return r;
    }
    lock->state = read_state(lock->state_fd);
    lock->next = table;
    table = lock;
    *ret_lock = lock;
    return 0;
}

static int take(hr_cache *cache, const char *key, struct hr__held_lock **ret_lock) {
    struct hr__file_info info;
    char path[HR__PATH_BYTES];
    int r = path_of(cache, key, "lock", path);
    if (r < 0) return r;
    const struct hr__held_lock *own = hr__file_look(path, &info) == 0 ? find_in_table(&info) : NULL;
    return own ? judge_own(own) : take_new(cache, key, path, ret_lock);
}

int hr__lock_take(hr_cache *cache, const char *key, struct hr__held_lock **ret_lock) {
    int r = -ESTALE;
    pthread_once(&install_once, install);
    pthread_mutex_lock(&table_lock);
    for (int i = 0; r == -ESTALE && i < RETRIES; i++) r = take(cache, key, ret_lock);
    pthread_mutex_unlock(&table_lock);
    if (r == 0 || r == -EAGAIN || r == -EDEADLK) return r;
    return hr__fail(r, "cache: cannot lock '%s' in %s: %s", key, cache->root, hr_error_text(r));
}

void hr__lock_release(struct hr__held_lock *lock) {
    if (!lock) return;
    if (lock->pid != hr__pid()) { /* a child of a fork, whose descriptors are closed */
        hr__free(lock);
        return;
    }
    pthread_mutex_lock(&table_lock);
    struct hr__held_lock **link = &table;
    while (*link && *link != lock) link = &(*link)->next;
    if (*link) *link = lock->next;
    drop(lock);
    pthread_mutex_unlock(&table_lock);
}

bool hr__lock_is_taken(hr_cache *cache, const char *key) {
    struct hr__file_info info;
    char path[HR__PATH_BYTES];
    int fd = -1;
    if (path_of(cache, key, "lock", path) < 0) return false;
    pthread_mutex_lock(&table_lock);
    bool is_taken = hr__file_look(path, &info) == 0 && find_in_table(&info);
    if (!is_taken && hr__file_open(path, &fd) == 0) is_taken = hr__range_is_locked(fd, 0, 1);
    hr__close(&fd);
    pthread_mutex_unlock(&table_lock);
    return is_taken;
}

/* ---- builders that wait for each other ---- */

static bool is_of_this_thread(const struct hr__held_lock *lock) {
    return pthread_equal(lock->thread, pthread_self());
}

void hr__lock_note_wait(const char *key) {
    pthread_mutex_lock(&table_lock);
    for (struct hr__held_lock *lock = table; lock; lock = lock->next) {
        if (!is_of_this_thread(lock) || strcmp(lock->state.waits_for, key) == 0) continue;
        memcpy(lock->state.waits_for, key, strlen(key) + 1);
        hr__lock_write_state(lock);
    }
    pthread_mutex_unlock(&table_lock);
}

static const char *find_own(const char *key) {
    for (struct hr__held_lock *lock = table; lock; lock = lock->next)
        if (is_of_this_thread(lock) && strcmp(lock->key, key) == 0) return lock->key;
    return NULL;
}

const char *hr__lock_find_cycle(const hr_cache *cache, const char *key) {
    struct hr__build_state state;
    const char *own = NULL;
    pthread_mutex_lock(&table_lock);
    for (int i = 0; table && !own && i < CHAIN_MAX; i++) {
        hr__state_read(cache, key, &state);
        if (state.phase != PHASE_BUILDING || !*state.waits_for) break;
        own = find_own(state.waits_for);
        key = state.waits_for;
    }
    pthread_mutex_unlock(&table_lock);
    return own;
}

void hr__builder_describe(const struct hr__build_state *state, bool is_building, struct hr_cache_builder *ret_builder) {
    struct hr__process process;
    struct hr_cache_builder builder = {.is_building = is_building,
                                       .pid = state->pid,
                                       .is_visible = state->pid_namespace == hr__pid_namespace(),
                                       .deaths = state->deaths,
                                       .since_ns = state->since_ns,
                                       .generation = state->generation,
                                       .done = state->done,
                                       .total = state->total};
    memcpy(builder.command, state->command, sizeof builder.command);
    if (is_building && builder.is_visible && hr__process_look((int)state->pid, &process) == 0)
        builder.is_stopped = process.state == 'T' || process.state == 't';
    *ret_builder = builder;
}
