/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cache/cache.h"
#include "cache/shared.h"

/* Asks for an object: attaches it if it exists, makes this process its builder if it has no builder, or waits. */

enum { MAX_FAILURE_BYTES = 16 << 20 };

struct hr_cache_ticket {
    hr_cache *cache;
    struct hr__cache_record plan;
    char key[KEY_BYTES];
    bool takes_any_stamp, only_try;
    bool is_alone;    /* no process built it or waited for it when this ticket was made */
    bool has_polled;  /* the first attempt to become the builder is over */
    bool has_awaited; /* `awaited` is set */
    uint64_t awaited; /* the generation that was being built when this ticket began to wait */
    int wait_fd;      /* its lock shows others that this process waits; -1: none */
    void *failure;
    uint64_t failure_bytes;
};

/* ---- asking ---- */

static bool is_word(const char *text) {
    return strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-") == strlen(text);
}

static int check_request(const struct hr_cache_request *request) {
    int r = hr_cache_check_name(request->name, request->version);
    if (r == 0 && request->keep > HR_CACHE_KEEP_DISK)
        r = hr__fail(-EINVAL, "cache: keep is %" PRIu32 "; give one of enum hr_cache_keep", request->keep);
    if (r == 0 && request->format && !is_word(request->format))
        r = hr__fail(-EINVAL, "cache: the format '%.40s' is not a word of small letters", request->format);
    return r;
}

/* Shows that this process waits, and finds out whether it is the only one. A process that is finding it out at the same
 * time has the exclusive lock for microseconds. */
static void join_waiting(hr_cache_ticket *ticket) {
    char path[HR__PATH_BYTES];
    if (hr__path(path, "%s/locks/%s.wait", ticket->cache->stores[0].path, ticket->key) < 0) return;
    if (hr__file_open_or_make(path, &ticket->wait_fd) < 0) return;
    ticket->is_alone = hr__lock_file(ticket->wait_fd, HR__EXCLUSIVE) == 0;
    int r = -EAGAIN;
    for (int i = 0; r == -EAGAIN && i < RETRIES; i++) {
        r = hr__lock_file(ticket->wait_fd, HR__SHARED);
        if (r == -EAGAIN) hr__sleep_until(hr__now_ns() + RETRY_NS);
    }
}

static int fill_plan(struct hr__cache_record *plan, const struct hr_cache_request *request) {
    char command[HR_CACHE_COMMAND_BYTES];
    hr__command_line((int)hr__pid(), command, sizeof command);
    hr__record_init(plan);
    plan->keep = request->keep;
    int r = hr__record_set(&plan->name, request->name);
    if (r == 0) r = hr__record_set(&plan->version, request->version);
    if (r == 0) r = hr__record_set(&plan->format, request->format);
    if (r == 0) r = hr__record_set(&plan->stamp, request->stamp);
    if (r == 0) r = hr__record_set(&plan->meta, "");
    if (r == 0) r = hr__record_set(&plan->place, "");
    if (r == 0) r = hr__record_set(&plan->command, command);
    return r;
}

int hr_cache_ask(hr_cache *cache, const struct hr_cache_request *request, hr_cache_ticket **ret_ticket) {
    int r = check_request(request);
    if (r < 0) return r;
    hr_cache_ticket *ticket = hr__realloc(NULL, sizeof *ticket);
    if (!ticket) return hr__fail(-ENOMEM, "cache: no memory");
    memset(ticket, 0, sizeof *ticket);
    ticket->wait_fd = -1;
    ticket->cache = hr__cache_ref(cache);
    ticket->takes_any_stamp = !request->stamp;
    ticket->only_try = request->only_try != 0;
    hr__cache_key(request->name, request->version, ticket->key);
    r = fill_plan(&ticket->plan, request);
    if (r < 0) {
        hr_cache_ticket_free(ticket);
        return r;
    }
    *ret_ticket = ticket;
    return 0;
}

hr_cache_ticket *hr_cache_ticket_free(hr_cache_ticket *ticket) {
    if (!ticket) return NULL;
    hr__close(&ticket->wait_fd);
    hr__record_done(&ticket->plan);
    hr__free(ticket->failure);
    hr_cache_close(ticket->cache);
    hr__free(ticket);
    return NULL;
}

/* ---- what is published ---- */

static int not_replaced(const hr_cache_ticket *ticket) {
    return hr__fail(-EBUSY,
                    "cache: '%s' is an array that processes write, and is not replaced by other data; remove it first "
                    "(headrace cache rm), or give another name",
                    ticket->plan.name);
}

/* Returns true if the name has an array that processes write, which may be damaged. */
static bool has_array(const hr_cache_ticket *ticket) {
    bool has_array = false;
    for (uint32_t i = 0; !has_array && i < ticket->cache->store_count; i++) {
        char folder[HR__PATH_BYTES];
        struct hr__cache_record record;
        if (hr__path(folder, "%s/objects/%s", ticket->cache->stores[i].path, ticket->key) < 0) continue;
        if (hr__record_read(folder, &record) < 0) continue;
        has_array = strcmp(record.format, HR_SHARED_FORMAT) == 0;
        hr__record_done(&record);
    }
    return has_array;
}

/* -ENOENT: it does not exist, it has another stamp, or it is damaged: it has to be built. */
static int attach_published(hr_cache_ticket *ticket, hr_cached **ret_cached) {
    hr_cached *cached;
    int r = hr__attach(ticket->cache, ticket->plan.name, ticket->plan.version, NULL, &cached);
    bool builds_array = strcmp(ticket->plan.format, HR_SHARED_FORMAT) == 0;
    if (r == HR_E_CORRUPT) return !builds_array && has_array(ticket) ? not_replaced(ticket) : -ENOENT;
    if (r < 0) return r;
    if (ticket->takes_any_stamp || strcmp(cached->record.stamp, ticket->plan.stamp) == 0) {
        *ret_cached = cached;
        return 0;
    }
    bool is_shared = strcmp(cached->record.format, HR_SHARED_FORMAT) == 0;
    hr_cached_detach(cached);
    return is_shared ? not_replaced(ticket) : -ENOENT;
}

/* ---- builders that failed or died ---- */

static void read_failure(hr_cache_ticket *ticket, uint64_t generation) {
    struct hr__file_info info;
    char path[HR__PATH_BYTES];
    uint64_t written = 0;
    int fd = -1;
    if (hr__path(path, "%s/locks/%s.failed", ticket->cache->stores[0].path, ticket->key) < 0) return;
    int r = hr__file_open(path, &fd);
    if (r == 0) r = hr__file_look_fd(fd, &info);
    if (r == 0) r = hr__read_at(fd, 0, &written, sizeof written);
    if (r == 0 && written == generation && info.bytes - sizeof written <= MAX_FAILURE_BYTES) {
        uint64_t bytes = info.bytes - sizeof written;
        void *text = hr__realloc(NULL, bytes + 1);
        if (text && hr__read_at(fd, sizeof written, text, bytes) == 0) {
            hr__free(ticket->failure);
            ticket->failure = text;
            ticket->failure_bytes = bytes;
        } else
            hr__free(text);
    }
    hr__close(&fd);
}

static int judge_failure(hr_cache_ticket *ticket, const struct hr__build_state *state) {
    if (!ticket->has_awaited || state->failed_generation < ticket->awaited) return 0;
    read_failure(ticket, state->failed_generation);
    return hr__fail(HR_E_BUILD_FAILED, "cache: the process that built '%s' failed (pid %" PRIu32 ", %.120s)",
                    ticket->plan.name, state->pid, state->command);
}

static int too_many_deaths(const hr_cache_ticket *ticket, const struct hr__build_state *state) {
    uint64_t headroom = hr__cgroup_headroom();
    char cgroup[64] = "no limit";
    if (headroom != UINT64_MAX) snprintf(cgroup, sizeof cgroup, "%" PRIu64 " MiB left", headroom >> 20);
    return hr__fail(HR_E_BUILDERS_DIED,
                    "cache: %" PRIu32 " processes in a row died while they built '%s', the last one with pid %" PRIu32
                    " (%.120s). If the kernel killed them because memory ran out: %" PRIu64
                    " MiB are available, and the limit of the cgroup is: %s. Build it alone (headrace cache warm), "
                    "with fewer workers, or in pieces (headrace.cache.writer)" HR_HELP("cache-builders-died"),
                    state->deaths, ticket->plan.name, state->pid, state->command, hr__available_memory() >> 20, cgroup);
}

/* ---- becoming the builder ---- */

static int begin_build(hr_cache_ticket *ticket, struct hr__held_lock *lock, hr_cache_build **ret_build) {
    struct hr__build_state *state = &lock->state;
    state->generation++;
    state->phase = PHASE_BUILDING;
    state->pid = hr__pid();
    state->pid_namespace = hr__pid_namespace();
    state->since_ns = hr__now_ns();
    state->done = state->total = 0;
    state->waits_for[0] = '\0';
    snprintf(state->command, sizeof state->command, "%s", ticket->plan.command);
    int r = hr__lock_write_state(lock);
    if (r == 0) r = hr__build_new(ticket->cache, ticket->key, lock, &ticket->plan, ret_build);
    hr__stop_at(HR__AT_CACHE_BEGUN);
    if (r == 0) hr__close(&ticket->wait_fd);
    return r;
}

/* This process has the lock. It counts the death of the last builder, if it died. */
static int judge_state(hr_cache_ticket *ticket, struct hr__held_lock *lock) {
    struct hr__build_state *state = &lock->state;
    int r = judge_failure(ticket, state);
    if (r < 0) return r;
    uint32_t deaths = state->deaths + (state->phase == PHASE_BUILDING);
    if (!ticket->has_polled && ticket->is_alone) deaths = 0; /* no other process built or waited: a new try */
    if (deaths == state->deaths && state->phase == PHASE_IDLE) return 0;
    state->deaths = deaths;
    state->phase = PHASE_IDLE;
    return hr__lock_write_state(lock);
}

static int use_lock(hr_cache_ticket *ticket, struct hr__held_lock *lock, hr_cached **ret_cached,
                    hr_cache_build **ret_build) {
    int r = attach_published(ticket, ret_cached); /* it may have been published before the lock became free */
    if (r != -ENOENT) return r;
    r = judge_state(ticket, lock);
    if (r == 0 && lock->state.deaths >= HR_CACHE_MAX_DEATHS) r = too_many_deaths(ticket, &lock->state);
    if (r == 0) r = begin_build(ticket, lock, ret_build);
    return r < 0 ? r : HR_CACHE_BUILD;
}

static int deadlock(const hr_cache_ticket *ticket, const char *own) {
    hr__lock_note_wait("");
    return hr__fail(-EDEADLK,
                    "cache: '%s' is needed to build '%s', and the other way round; build the one before the other, not "
                    "inside it",
                    ticket->plan.name, own);
}

/* Another process or thread builds it. */
static int look_at_builder(hr_cache_ticket *ticket) {
    struct hr__build_state state;
    hr__state_read(ticket->cache, ticket->key, &state);
    int r = judge_failure(ticket, &state);
    if (r < 0) return r;
    if (!ticket->has_awaited) {
        ticket->has_awaited = true;
        ticket->awaited = state.generation + (state.phase != PHASE_BUILDING);
    }
    if (ticket->only_try) return hr__fail(-EBUSY, "cache: another process builds '%s'", ticket->plan.name);
    hr__lock_note_wait(ticket->key);
    const char *own = hr__lock_find_cycle(ticket->cache, ticket->key);
    return own ? deadlock(ticket, own) : -EAGAIN;
}

/* One attempt. -EAGAIN: wait. */
static int try_once(hr_cache_ticket *ticket, hr_cached **ret_cached, hr_cache_build **ret_build) {
    struct hr__held_lock *lock = NULL;
    int r = attach_published(ticket, ret_cached);
    if (r != -ENOENT) return r;
    if (ticket->wait_fd < 0) join_waiting(ticket);
    r = hr__lock_take(ticket->cache, ticket->key, &lock);
    if (r == 0) {
        hr__stop_at(HR__AT_CACHE_LOCKED);
        r = use_lock(ticket, lock, ret_cached, ret_build);
        if (r != HR_CACHE_BUILD) hr__lock_release(lock);
    } else if (r == -EDEADLK)
        r = hr__fail(r, "cache: the function that builds '%s' asks for '%s' itself; give the other data another name",
                     ticket->plan.name, ticket->plan.name);
    else if (r == -EAGAIN)
        r = look_at_builder(ticket);
    ticket->has_polled = true;
    return r;
}

int hr_cache_wait(hr_cache_ticket *ticket, int64_t deadline_ns, hr_cached **ret_cached, hr_cache_build **ret_build) {
    for (;;) {
        int r = try_once(ticket, ret_cached, ret_build);
        if (r != -EAGAIN) {
            hr__lock_note_wait("");
            return r;
        }
        int64_t now_ns = hr__now_ns();
        if (now_ns >= deadline_ns) return -ETIMEDOUT;
        hr__sleep_until(now_ns + POLL_NS < deadline_ns ? now_ns + POLL_NS : deadline_ns);
    }
}

const void *hr_cache_ticket_failure(const hr_cache_ticket *ticket, uint64_t *ret_count) {
    *ret_count = ticket->failure_bytes;
    return ticket->failure;
}

void hr_cache_ticket_look(hr_cache_ticket *ticket, struct hr_cache_builder *ret_builder) {
    struct hr__build_state state;
    hr__state_read(ticket->cache, ticket->key, &state);
    hr__builder_describe(&state, hr__lock_is_taken(ticket->cache, ticket->key), ret_builder);
}
