/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cache/shared.h"

/* The locks of a shared array. shared.h says what a word means, and what the death of a process means. */

enum { SPINS = 100, LOOK_NS = 50000000, HOLDER_POLL_NS = 500000 };

/* A wait for one word. */
struct attempt {
    hr_shared *shared;
    uint32_t index;
    const struct hr_shared_wait *wait;
    int64_t begun_ns, next_look_ns;
};

static uint64_t this_thread(void) {
    return (uint64_t)pthread_self();
}

static const char *name_of(const hr_shared *shared) {
    return shared->cached->record.name;
}

/* ---- one word ---- */

static void tell_state(const struct hr__shared_holder *holder, char *ret_text, size_t room) {
    struct hr__process process;
    if (!holder->is_visible)
        snprintf(ret_text, room, " of another container");
    else if (hr__process_look((int)holder->pid, &process) < 0)
        snprintf(ret_text, room, ", which has ended,");
    else if (process.state == 'T' || process.state == 't')
        snprintf(ret_text, room, ", which is stopped (state %c; SIGSTOP or a debugger; kill -CONT continues it),",
                 process.state);
    else
        snprintf(ret_text, room, " (state %c)", process.state);
}

static int not_in_time(const struct attempt *attempt, uint32_t word) {
    hr_shared *shared = attempt->shared;
    struct hr__shared_holder holder;
    char who[160], state[96];
    double waited_s = (double)(hr__now_ns() - attempt->begun_ns) / (double)HR_NS_PER_S;
    const char *what = attempt->index == WHOLE ? "the lock" : "the lock of some rows";
    hr__shared_describe(shared, word, &holder);
    bool is_other = holder.pid != hr__pid() || !holder.is_visible;
    if (hr__shared_owner(word) == atomic_load(&shared->own))
        snprintf(who, sizeof who, "another thread of this process (pid %" PRIu32 ")", hr__pid());
    else if (!is_other)
        snprintf(who, sizeof who, "another handle of this process (pid %" PRIu32 ")", hr__pid());
    else {
        tell_state(&holder, state, sizeof state);
        snprintf(who, sizeof who, "process %" PRIu32 "%s", holder.pid, state);
    }
    return hr__fail(-ETIMEDOUT, "cache: %s of '%s' was not free within %.3g s: %s has it%s%.47s", what, name_of(shared),
                    waited_s, who, is_other ? ": " : "", is_other ? holder.command : "");
}

/* Says in the word that this thread waits. Returns the word as it is then; 0: it is free. */
static uint32_t announce(_Atomic uint32_t *at) {
    uint32_t word = atomic_load(at);
    while (word && !(word & SHARED_WAITERS))
        if (atomic_compare_exchange_weak(at, &word, word | SHARED_WAITERS)) word |= SHARED_WAITERS;
    return word;
}

/* Takes a word that is free, or that of a holder that has ended. Others may wait, so the word says so. */
static bool try_to_take(const struct attempt *attempt, uint32_t word, bool judges, uint32_t *ret_dead) {
    hr_shared *shared = attempt->shared;
    if (word && !(judges && hr__shared_has_ended(shared, word))) return false;
    if (word) hr__stop_at(HR__AT_SHARED_JUDGED);
    uint32_t own = atomic_load(&shared->own) | SHARED_WAITERS, found = word;
    if (!atomic_compare_exchange_strong(&shared->locks[attempt->index].word, &found, own)) return false;
    if (word) hr__stop_at(HR__AT_SHARED_RECOVERED);
    *ret_dead = hr__shared_owner(word);
    return true;
}

/* Sleeps until the word changes, or until the holder has to be looked at. Returns 1 if it has to be: no wake-up came.
 */
static int sleep_once(struct attempt *attempt, uint32_t word) {
    int64_t now_ns = hr__now_ns(), until_ns = now_ns + HOLDER_POLL_NS;
    const struct hr_shared_wait *wait = attempt->wait;
    if (now_ns >= wait->deadline_ns) return not_in_time(attempt, word);
    if (wait->look && now_ns >= attempt->next_look_ns) {
        if (wait->look(wait->context) != 0) return hr__fail(-EINTR, "cache: waiting for a lock was ended");
        attempt->next_look_ns = now_ns + LOOK_NS;
    }
    hr__stop_at(HR__AT_SHARED_WAITING);
    int r = hr__futex_wait(&attempt->shared->locks[attempt->index].word, word,
                           until_ns < wait->deadline_ns ? until_ns : wait->deadline_ns);
    hr__stop_at(HR__AT_SHARED_WOKEN);
    return r != 0 && r != -EAGAIN;
}

static int wait_for(struct attempt *attempt, uint32_t *ret_dead) {
    _Atomic uint32_t *at = &attempt->shared->locks[attempt->index].word;
    int judges = 1; /* at first, and whenever no wake-up came */
    attempt->begun_ns = hr__now_ns();
    attempt->next_look_ns = attempt->begun_ns + LOOK_NS;
    for (int i = 0; i < SPINS && atomic_load_explicit(at, memory_order_relaxed); i++) hr__pause();
    for (;;) {
        uint32_t word = announce(at);
        if (try_to_take(attempt, word, judges, ret_dead)) return 0;
        if (!word) continue;
        judges = sleep_once(attempt, word);
        if (judges < 0) return judges;
    }
}

static int is_own(const hr_shared *shared) {
    return hr__fail(-EDEADLK,
                    "cache: this thread has a lock of '%s' already, and would wait for itself; end that one first, or "
                    "take all rows that you need with one lock",
                    name_of(shared));
}

static bool has_thread(const hr_shared *shared, uint32_t index) {
    return atomic_load_explicit(&shared->threads[index], memory_order_relaxed) == this_thread();
}

/* shared->dead gets the word of a holder that died, or 0. */
static int take_word(hr_shared *shared, uint32_t index, const struct hr_shared_wait *wait) {
    uint32_t word = 0, dead = 0;
    hr__stop_at(HR__AT_SHARED_LOCKING);
    if (!atomic_compare_exchange_strong(&shared->locks[index].word, &word, atomic_load(&shared->own))) {
        if (has_thread(shared, index)) return is_own(shared);
        struct attempt attempt = {shared, index, wait, 0, 0};
        if (!wait && !try_to_take(&attempt, word, true, &dead)) return -EAGAIN;
        int r = wait ? wait_for(&attempt, &dead) : 0;
        if (r < 0) return r;
    }
    hr__stop_at(HR__AT_SHARED_LOCKED);
    atomic_store_explicit(&shared->threads[index], this_thread(), memory_order_relaxed);
    atomic_store_explicit(&shared->dead[index], dead, memory_order_relaxed);
    return 0;
}

/* Leaves 0 in the word, or the word of the dead holder, so that the next one is told. Returns false if this process
 * does not have it. */
static bool release_word(hr_shared *shared, uint32_t index, bool leaves_dead) {
    uint32_t leave = leaves_dead ? atomic_load_explicit(&shared->dead[index], memory_order_relaxed) : 0;
    _Atomic uint32_t *at = &shared->locks[index].word;
    uint32_t own = atomic_load(&shared->own), word = own;
    if (!own || hr__shared_owner(atomic_load_explicit(at, memory_order_relaxed)) != own) return false;
    atomic_store_explicit(&shared->threads[index], 0, memory_order_relaxed);
    hr__stop_at(HR__AT_SHARED_UNLOCKING);
    if (atomic_compare_exchange_strong(at, &word, leave)) return true;
    word = atomic_exchange(at, leave);
    hr__stop_at(HR__AT_SHARED_UNLOCKED);
    if (word & SHARED_WAITERS) hr__futex_wake(at);
    return true;
}

/* ---- several words ---- */

static void note_dead(const hr_shared *shared, uint32_t word, struct hr_shared_hold *hold) {
    struct hr__shared_holder holder;
    hr__shared_describe(shared, word, &holder);
    for (uint32_t i = 0; i < hold->dead_count; i++)
        if (hold->dead[i].pid == holder.pid && (bool)hold->dead[i].is_visible == holder.is_visible) return;
    if (hold->dead_count == HR_SHARED_DEAD) return;
    hold->dead[hold->dead_count++] = (struct hr_shared_dead){.pid = holder.pid, .is_visible = holder.is_visible};
}

/* Takes them in order, so that no two processes can wait for each other. */
static int take_words(hr_shared *shared, uint32_t first, uint32_t count, const struct hr_shared_wait *wait,
                      struct hr_shared_hold *hold) {
    hold->first = first;
    hold->count = count;
    hold->dead_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        int r = take_word(shared, first + i, wait);
        if (r < 0) {
            while (i--) release_word(shared, first + i, true);
            return r;
        }
        uint32_t dead = atomic_load_explicit(&shared->dead[first + i], memory_order_relaxed);
        if (dead) note_dead(shared, dead, hold);
    }
    hold->own = atomic_load_explicit(&shared->own, memory_order_relaxed);
    hold->number = atomic_load_explicit(&shared->holds[first], memory_order_relaxed);
    return 0;
}

/* A thread that has some stripes does not get others, because two such threads could wait for each other. The stripes
 * are counted, so that this costs nothing if the process has none. WHOLE needs no count: a thread that has it meets
 * itself there. */
static int take_stripes(hr_shared *shared, uint32_t first, uint32_t count, const struct hr_shared_wait *wait,
                        struct hr_shared_hold *hold) {
    uint32_t held = atomic_load_explicit(&shared->held, memory_order_relaxed);
    for (uint32_t i = 0; held && i < shared->info.stripe_count; i++)
        if (has_thread(shared, i)) return is_own(shared);
    int r = take_words(shared, first, count, wait, hold);
    if (r == 0) atomic_fetch_add_explicit(&shared->held, 1, memory_order_relaxed);
    return r;
}

static bool is_striped(const hr_shared *shared) {
    return atomic_load_explicit(&shared->head->is_striped, memory_order_acquire);
}

static int take_all(hr_shared *shared, const struct hr_shared_wait *wait, struct hr_shared_hold *hold) {
    if (!is_striped(shared)) {
        int r = take_words(shared, WHOLE, 1, wait, hold);
        if (r < 0 || !is_striped(shared)) return r;
        release_word(shared, WHOLE, false);
    }
    return take_stripes(shared, 0, shared->info.stripe_count, wait, hold);
}

/* Rows are locked for the first time. */
static int begin_stripes(hr_shared *shared, const struct hr_shared_wait *wait) {
    if (is_striped(shared)) return 0;
    int r = take_word(shared, WHOLE, wait);
    if (r < 0) return r;
    hr__stop_at(HR__AT_SHARED_STRIPING);
    for (uint32_t i = 0; !is_striped(shared) && i < shared->info.stripe_count; i++)
        atomic_store(&shared->locks[i].word, atomic_load(&shared->dead[WHOLE]));
    atomic_store_explicit(&shared->head->is_striped, 1, memory_order_release);
    hr__stop_at(HR__AT_SHARED_STRIPED);
    release_word(shared, WHOLE, false);
    return 0;
}

static uint32_t stripe_of(const hr_shared *shared, uint64_t row) {
    return (uint32_t)(row * shared->info.stripe_count / shared->info.row_count);
}

static int take_rows(hr_shared *shared, uint64_t first_row, uint64_t row_count, const struct hr_shared_wait *wait,
                     struct hr_shared_hold *hold) {
    int r = begin_stripes(shared, wait);
    if (r < 0) return r;
    uint32_t first = stripe_of(shared, first_row), last = stripe_of(shared, first_row + row_count - 1);
    return take_stripes(shared, first, last - first + 1, wait, hold);
}

/* ---- the interface ---- */

static int check_rows(const hr_shared *shared, uint64_t first_row, uint64_t row_count) {
    uint64_t rows = shared->info.row_count;
    if (row_count && first_row < rows && row_count <= rows - first_row) return 0;
    return hr__fail(-ERANGE, "cache: '%s' has %" PRIu64 " rows; there are no %" PRIu64 " rows from row %" PRIu64 " on",
                    name_of(shared), rows, row_count, first_row);
}

int hr_shared_lock(hr_shared *shared, uint64_t first_row, uint64_t row_count, const struct hr_shared_wait *wait,
                   struct hr_shared_hold *ret_hold) {
    bool is_all = row_count == HR_SHARED_ALL || (first_row == 0 && row_count == shared->info.row_count);
    int r = is_all ? 0 : check_rows(shared, first_row, row_count);
    if (r == 0 && !atomic_load_explicit(&shared->own, memory_order_relaxed)) r = hr__shared_join(shared);
    if (r < 0) return r;
    return is_all ? take_all(shared, wait, ret_hold) : take_rows(shared, first_row, row_count, wait, ret_hold);
}

/* Returns true for one caller only, and only for a hold that is not ended. If it was ended before, or was that of a
 * parent, another one may have the locks by now. */
static bool begin_end(hr_shared *shared, const struct hr_shared_hold *hold) {
    uint64_t number = hold->number;
    return hold->own && hold->own == atomic_load_explicit(&shared->own, memory_order_relaxed) &&
           atomic_compare_exchange_strong(&shared->holds[hold->first], &number, number + 1);
}

static int end_hold(hr_shared *shared, const struct hr_shared_hold *hold, bool leaves_dead) {
    if (hold->count > LOCK_COUNT || hold->first > LOCK_COUNT - hold->count || !hold->count)
        return hr__fail(-EINVAL, "cache: this is not a hold of '%s'", name_of(shared));
    bool has_all = begin_end(shared, hold);
    for (uint32_t i = 0; has_all && i < hold->count; i++) has_all = release_word(shared, hold->first + i, leaves_dead);
    if (!has_all)
        return hr__fail(HR_E_STATE,
                        "cache: this process does not have this lock of '%s': it was ended already, or taken in front "
                        "of the fork that made this process",
                        name_of(shared));
    if (hold->first != WHOLE) atomic_fetch_sub_explicit(&shared->held, 1, memory_order_relaxed);
    return 0;
}

int hr_shared_unlock(hr_shared *shared, const struct hr_shared_hold *hold) {
    return end_hold(shared, hold, false);
}

int hr_shared_give_back(hr_shared *shared, const struct hr_shared_hold *hold) {
    return end_hold(shared, hold, true);
}
