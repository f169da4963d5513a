/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the facts of other processes that belong to an entry's epoch, and ends that are not equal. */
#include "board.h"

/* Finds the entry of the same loader in another page. */
static const struct hr__shared_entry *find_entry(const hr_board_entry *entry, uint32_t page) {
    const struct hr__shared_page *shared = hr__board_page_at(entry->board, page);
    for (int i = 0; i < HR_BOARD_MAX_ENTRIES; i++)
        if (atomic_load(&shared->entries[i].key) == entry->key) return &shared->entries[i];
    return NULL;
}

/* Epochs with the same number are the same one, unless a process began one without the others: it may have looked at
 * the first batch only. Then epochs are the same if they have the same `epoch`. */
static bool is_same_epoch(const hr_board_entry *entry, bool are_in_step, uint64_t number,
                          const struct hr_board_facts *facts) {
    if (are_in_step) return number == entry->number;
    return entry->epoch >= 0 && facts->epoch == entry->epoch;
}

bool hr__board_see(const hr_board_entry *entry, uint32_t page, struct hr__board_sight *ret_sight) {
    const struct hr__shared_entry *shared = page == entry->board->own_page ? NULL : find_entry(entry, page);
    if (!shared) return false;
    bool are_in_step = !atomic_load(&entry->shared->is_late) && !atomic_load(&shared->is_late);
    uint64_t newest = 0;
    for (uint32_t parity = 0; parity < 2; parity++) {
        uint64_t number;
        struct hr_board_facts facts;
        if (!hr__facts_read(shared, parity, &number, &facts) || number <= newest) continue;
        if (!is_same_epoch(entry, are_in_step, number, &facts)) continue;
        newest = number;
        *ret_sight = (struct hr__board_sight){shared, hr__board_tag(number), facts};
    }
    return newest != 0;
}

uint64_t hr__board_newest(const hr_board_entry *entry, uint32_t page) {
    const struct hr__shared_entry *shared = find_entry(entry, page);
    uint64_t newest = 0;
    for (uint32_t parity = 0; shared && parity < 2; parity++) {
        uint64_t number;
        struct hr_board_facts facts;
        if (hr__facts_read(shared, parity, &number, &facts)) newest = hr__max(newest, number);
    }
    return newest;
}

/* Returns true if the other process is at its END with fewer batches than `steps`, or (`at_end` is false) has taken
 * more; writes the number. */
static bool is_unequal(const struct hr__board_sight *sight, uint64_t steps, bool at_end, uint64_t *ret_theirs) {
    uint64_t word = atomic_load(at_end ? &sight->shared->end : &sight->shared->progress);
    if (!hr__board_steps_of(word, sight->tag, ret_theirs)) return false;
    return at_end ? *ret_theirs < steps : *ret_theirs > steps;
}

bool hr__board_counts(const hr_board_entry *entry, uint32_t page) {
    const struct hr__board_start *start = &entry->starts[page];
    return start->was_live || hr__board_newest(entry, page) != start->newest || hr__board_is_live(entry->board, page);
}

/* Finds the rank whose number differs most, because a small difference may be right. */
static bool find(const hr_board_entry *entry, uint64_t steps, bool at_end, struct hr_board_ended *ret_ended) {
    bool is_found = false;
    for (uint32_t page = 0; page < entry->board->page_count; page++) {
        struct hr__board_sight sight;
        uint64_t theirs;
        if (!hr__board_see(entry, page, &sight) || !is_unequal(&sight, steps, at_end, &theirs)) continue;
        if (!hr__board_counts(entry, page)) continue;
        *ret_ended = (struct hr_board_ended){hr__board_rank_of(sight.shared), theirs};
        is_found = true;
        steps = theirs;
    }
    return is_found;
}

bool hr__board_find_end(const hr_board_entry *entry, uint64_t steps, struct hr_board_ended *ret_ended) {
    return find(entry, steps, true, ret_ended);
}

bool hr__board_find_progress(const hr_board_entry *entry, uint64_t steps, struct hr_board_ended *ret_ended) {
    return find(entry, steps, false, ret_ended);
}
