/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of loaders: facts, steps and the END. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "board.h"

enum { FIRST_SLEEP_NS = 50000, MAX_SLEEP_NS = 5000000 };

/* ---- taking and leaving ---- */

/* The end of a source line's name says more than its beginning. */
static void shorten(const char *where, char *ret_text) {
    size_t length = strlen(where);
    if (length >= HR__WHERE_BYTES) where += length - HR__WHERE_BYTES + 1;
    strncpy(ret_text, where, HR__WHERE_BYTES - 1);
    ret_text[HR__WHERE_BYTES - 1] = '\0';
}

static uint64_t key_of(const char *where, uint64_t place, uint32_t world_size) {
    uint64_t key = hr__hash_word(world_size, hr__hash_word(place, hr__board_hash_text(where)));
    return key ? key : 1;
}

/* Prefers an entry that was not used for the longest time, because others may still read what the last loader left. */
static hr_board_entry *find_free(hr_board *board) {
    hr_board_entry *oldest = NULL;
    for (int i = 0; i < HR_BOARD_MAX_ENTRIES; i++) {
        hr_board_entry *entry = &board->entries[i];
        if (!entry->is_used && (!oldest || entry->left_count < oldest->left_count)) oldest = entry;
    }
    return oldest;
}

static void clear_shared(struct hr__shared_entry *shared) {
    atomic_store(&shared->key, 0);
    atomic_store(&shared->is_late, 0);
    atomic_store(&shared->progress, 0);
    atomic_store(&shared->end, 0);
    atomic_store(&shared->inside_ns, 0);
    atomic_store(&shared->elapsed_ns, 0);
    atomic_store(&shared->first.count, 0);
    for (int i = 0; i < 2; i++)
        for (int word = 0; word < HR__FACTS_WORDS; word++) atomic_store(&shared->facts[i].words[word], 0);
}

static void take(hr_board *board, hr_board_entry *entry, uint64_t key, const char *where) {
    pthread_mutex_lock(&board->lock);
    entry->is_used = true;
    entry->key = key;
    entry->number = entry->reported_number = 0;
    entry->epoch = -1;
    entry->rival_count = 0;
    entry->allowed = 0;
    shorten(where, entry->where);
    pthread_mutex_unlock(&board->lock);
}

static bool need_memory(hr_board_entry *entry) {
    size_t count = entry->board->page_count;
    if (!entry->rivals) entry->rivals = hr__realloc(NULL, count * sizeof *entry->rivals);
    if (!entry->starts) entry->starts = hr__realloc(NULL, count * sizeof *entry->starts);
    return entry->rivals && entry->starts;
}

int hr_board_enter(hr_board *board, const char *where, uint64_t place, uint32_t rank, uint32_t world_size,
                   hr_board_entry **ret_entry) {
    if (atomic_load(&board->is_orphan)) return hr__fail(HR_E_STATE, "board: a forked child has no board");
    hr_board_entry *entry = find_free(board);
    if (!entry)
        return hr__fail(-ENOSPC, "board: %d loaders of this process use it, which is the maximum",
                        HR_BOARD_MAX_ENTRIES);
    if (!need_memory(entry)) return hr__fail(-ENOMEM, "board: no memory for %u ranks", board->page_count);
    uint64_t key = key_of(where, place, world_size);
    take(board, entry, key, where);
    clear_shared(entry->shared);
    atomic_store(&entry->shared->rank, rank);
    atomic_store(&entry->shared->key, key);
    hr__stop_at(HR__AT_BOARD_ENTERED);
    *ret_entry = entry;
    return 0;
}

void hr_board_leave(hr_board_entry *entry) {
    if (!entry) return;
    hr_board *board = entry->board;
    pthread_mutex_lock(&board->lock);
    entry->is_used = false;
    entry->left_count = ++board->left_count;
    pthread_mutex_unlock(&board->lock);
}

/* ---- the beginning of an epoch ---- */

int hr_board_publish(hr_board_entry *entry, const struct hr_board_facts *facts) {
    hr_board *board = entry->board;
    if (atomic_load(&board->is_orphan)) return hr__fail(HR_E_STATE, "board: a forked child has no board");
    pthread_mutex_lock(&board->lock);
    uint64_t number = ++entry->number;
    entry->epoch = facts->epoch;
    entry->rival_count = 0;
    for (uint32_t page = 0; page < board->page_count; page++)
        entry->starts[page] = (struct hr__board_start){hr__board_is_live(board, page), hr__board_newest(entry, page)};
    atomic_store(&entry->shared->progress, hr__board_tag(number));
    atomic_store(&entry->shared->inside_ns, 0);
    atomic_store(&entry->shared->elapsed_ns, 0);
    pthread_mutex_unlock(&board->lock);
    hr__facts_write(entry->shared, number, facts);
    hr__stop_at(HR__AT_BOARD_PUBLISHED);
    return 0;
}

void hr_board_show_wait(hr_board_entry *entry, uint64_t inside_ns, uint64_t elapsed_ns) {
    if (atomic_load(&entry->board->is_orphan)) return;
    atomic_store_explicit(&entry->shared->inside_ns, inside_ns, memory_order_relaxed);
    atomic_store_explicit(&entry->shared->elapsed_ns, elapsed_ns, memory_order_relaxed);
    hr__stop_at(HR__AT_BOARD_WAIT);
}

static const struct hr__shared_entry *find_key(const hr_board *board, uint32_t page, uint64_t key) {
    const struct hr__shared_page *shared = hr__board_page_at(board, page);
    for (int i = 0; i < HR_BOARD_MAX_ENTRIES; i++)
        if (atomic_load(&shared->entries[i].key) == key) return &shared->entries[i];
    return NULL;
}

int hr_board_waits(const hr_board_entry *entry, struct hr_board_wait *ret_waits) {
    const hr_board *board = entry->board;
    int count = 0;
    if (atomic_load(&board->is_orphan)) return 0;
    for (uint32_t page = 0; page < board->page_count; page++) {
        const struct hr__shared_entry *found = find_key(board, page, entry->key);
        if (!found || (page != board->own_page && !hr__board_is_live(board, page))) continue;
        ret_waits[count++] = (struct hr_board_wait){hr__board_rank_of(found), atomic_load(&found->inside_ns),
                                                    atomic_load(&found->elapsed_ns)};
    }
    return count;
}

void hr_board_allow(hr_board_entry *entry, uint64_t difference) {
    pthread_mutex_lock(&entry->board->lock);
    entry->allowed = difference;
    pthread_mutex_unlock(&entry->board->lock);
}

static bool have_all_begun(const hr_board_entry *entry, uint32_t process_count) {
    const hr_board *board = entry->board;
    uint32_t count = 1;
    for (uint32_t page = 0; page < board->page_count; page++) {
        if (page == board->own_page) continue;
        bool has_begun = hr__board_newest(entry, page) >= entry->number;
        if (!has_begun && !hr__board_is_live(board, page)) continue;
        if (!has_begun && !atomic_load(&hr__board_page_at(board, page)->over)) return false;
        count += hr__board_counts(entry, page);
    }
    return count >= process_count;
}

uint32_t hr_board_known(const hr_board_entry *entry) {
    const hr_board *board = entry->board;
    uint32_t count = 1;
    if (atomic_load(&board->is_orphan)) return count;
    for (uint32_t page = 0; page < board->page_count; page++)
        count += hr__board_is_live(board, page) && hr__board_newest(entry, page) > 0;
    return count;
}

int hr_board_await(hr_board_entry *entry, uint32_t process_count, int64_t deadline_ns) {
    if (atomic_load(&entry->board->is_orphan)) return hr__fail(HR_E_STATE, "board: a forked child has no board");
    int64_t sleep_ns = FIRST_SLEEP_NS;
    while (!have_all_begun(entry, process_count)) {
        int64_t now_ns = hr__now_ns();
        if (now_ns >= deadline_ns) {
            atomic_store(&entry->shared->is_late, 1);
            hr__stop_at(HR__AT_BOARD_LATE);
            return -ETIMEDOUT;
        }
        int64_t left_ns = deadline_ns - now_ns;
        int r = hr__poll(NULL, NULL, 0, now_ns + (left_ns < sleep_ns ? left_ns : sleep_ns));
        if (r == -EINTR) return r;
        sleep_ns = (int64_t)hr__min((uint64_t)sleep_ns * 2, MAX_SLEEP_NS);
    }
    hr__board_note_complete(entry->board);
    return 0;
}

int hr_board_peers(hr_board_entry *entry, struct hr_board_peer *ret_peers) {
    hr_board *board = entry->board;
    if (atomic_load(&board->is_orphan)) return 0;
    entry->rival_count = 0;
    for (uint32_t page = 0; page < board->page_count; page++) {
        struct hr__board_sight sight;
        if (!hr__board_see(entry, page, &sight) || !hr__board_counts(entry, page)) continue;
        entry->rivals[entry->rival_count] = (struct hr__board_rival){sight.shared, sight.tag};
        ret_peers[entry->rival_count++] = (struct hr_board_peer){page, hr__board_rank_of(sight.shared), sight.facts};
    }
    return (int)entry->rival_count;
}

/* ---- the first indices ---- */

void hr_board_show_first(hr_board_entry *entry, const uint64_t *digests, uint32_t count) {
    if (atomic_load(&entry->board->is_orphan)) return;
    struct hr__shared_first *first = &entry->shared->first;
    count = (uint32_t)hr__min(count, HR_BOARD_MAX_FIRST);
    atomic_store(&first->count, 0);
    for (uint32_t i = 0; i < count; i++) atomic_store(&first->digests[i], digests[i]);
    hr__stop_at(HR__AT_BOARD_FIRST);
    atomic_store(&first->count, hr__board_tag(entry->number) | count);
}

/* `count` is read twice, because the owner may begin the next epoch meanwhile. */
static bool read_first(const hr_board_entry *entry, const struct hr__board_rival *rival,
                       struct hr_board_first *ret_first) {
    const struct hr__shared_first *first = &rival->shared->first;
    uint64_t word = atomic_load(&first->count), count;
    if (!hr__board_steps_of(word, rival->tag, &count) || count > HR_BOARD_MAX_FIRST) return false;
    ret_first->rank = hr__board_rank_of(rival->shared);
    ret_first->count = (uint32_t)count;
    for (uint64_t i = 0; i < count; i++) ret_first->digests[i] = atomic_load(&first->digests[i]);
    return atomic_load(&first->count) == word && atomic_load(&rival->shared->key) == entry->key;
}

int hr_board_first(const hr_board_entry *entry, struct hr_board_first *ret_first) {
    int count = 0;
    if (atomic_load(&entry->board->is_orphan)) return 0;
    for (uint32_t i = 0; i < entry->rival_count; i++) count += read_first(entry, &entry->rivals[i], &ret_first[count]);
    return count;
}

/* ---- steps and the END ---- */

/* The fence pairs with that of the other rank's hr_board_end: if this rank does not see the other's END, then the
 * other one sees these steps. Finds the rank with the fewest, because a small difference may be right. */
static bool meet_end(const hr_board_entry *entry, uint64_t steps, struct hr_board_ended *ret_ended) {
    bool is_found = false;
    for (uint32_t i = 0; i < entry->rival_count; i++) {
        const struct hr__board_rival *rival = &entry->rivals[i];
        uint64_t theirs;
        if (!hr__board_steps_of(atomic_load_explicit(&rival->shared->end, memory_order_acquire), rival->tag, &theirs))
            continue;
        if (theirs >= steps || atomic_load(&rival->shared->key) != entry->key) continue;
        *ret_ended = (struct hr_board_ended){hr__board_rank_of(rival->shared), theirs};
        is_found = true;
        steps = theirs;
    }
    return is_found;
}

static void frozen_progress(hr_board_entry *entry, uint64_t steps) {
    atomic_store_explicit(&entry->shared->progress, hr__board_tag(entry->number) | steps, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
}

/* If this rank is told of a difference that its thread reports, the thread need not do so. */
static int tell(hr_board_entry *entry, bool is_unequal, uint64_t steps, const struct hr_board_ended *ended) {
    if (!is_unequal) return 0;
    uint64_t difference = steps > ended->steps ? steps - ended->steps : ended->steps - steps;
    pthread_mutex_lock(&entry->board->lock);
    if (difference > entry->allowed) entry->reported_number = entry->number;
    pthread_mutex_unlock(&entry->board->lock);
    return 1;
}

int hr_board_step(hr_board_entry *entry, uint64_t steps, struct hr_board_ended *ret_ended) {
    if (atomic_load_explicit(&entry->board->is_orphan, memory_order_relaxed)) return 0;
    frozen_progress(entry, steps);
    hr__stop_at(HR__AT_BOARD_STEP);
    return tell(entry, meet_end(entry, steps, ret_ended), steps, ret_ended);
}

int hr_board_end(hr_board_entry *entry, uint64_t steps, struct hr_board_ended *ret_ended) {
    if (atomic_load(&entry->board->is_orphan)) return 0;
    atomic_store(&entry->shared->end, hr__board_tag(entry->number) | steps);
    frozen_progress(entry, steps);
    hr__stop_at(HR__AT_BOARD_END);
    bool is_unequal = meet_end(entry, steps, ret_ended) || hr__board_find_end(entry, steps, ret_ended) ||
                      hr__board_find_progress(entry, steps, ret_ended);
    return tell(entry, is_unequal, steps, ret_ended);
}
