/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at a board from outside: where the loaders of each rank are. */
#include <errno.h>
#include <stdlib.h>

#include <headrace/error.h>
#include <headrace/look.h>

#include "base/error.h"
#include "board.h"
#include "look.h"

/* Finds the facts of the newest epoch of an entry. */
static bool newest_facts(const struct hr__shared_entry *entry, uint64_t *ret_number, struct hr_board_facts *ret_facts) {
    bool is_found = false;
    for (uint32_t parity = 0; parity < 2; parity++) {
        uint64_t number;
        struct hr_board_facts facts;
        if (!hr__facts_read(entry, parity, &number, &facts) || (is_found && number < *ret_number)) continue;
        *ret_number = number;
        *ret_facts = facts;
        is_found = true;
    }
    return is_found;
}

static bool see(const struct hr__shared_entry *entry, uint32_t page, struct hr__board_position *ret_position) {
    uint64_t number = 0, key = atomic_load(&entry->key), steps = 0, end = 0;
    struct hr_board_facts facts = {.epoch = -1};
    if (!key || !newest_facts(entry, &number, &facts)) return false;
    uint64_t tag = hr__board_tag(number);
    bool is_at_end = hr__board_steps_of(atomic_load(&entry->end), tag, &end);
    if (!hr__board_steps_of(atomic_load(&entry->progress), tag, &steps)) steps = 0;
    *ret_position = (struct hr__board_position){.page = page,
                                                .rank = hr__board_rank_of(entry),
                                                .loader = key,
                                                .epoch = facts.epoch,
                                                .steps = is_at_end ? end : steps,
                                                .is_at_end = is_at_end};
    return true;
}

static int look_at_page(const struct hr__shared_page *shared, uint32_t page, struct hr__board_position *ret_positions,
                        uint32_t room) {
    uint32_t count = 0;
    for (int i = 0; i < HR_BOARD_MAX_ENTRIES && count < room; i++)
        count += see(&shared->entries[i], page, &ret_positions[count]);
    return (int)count;
}

/* Reads the board into memory of this process: a mapping of it could be cut by another one. */
static int read_board(hr_board *board) {
    struct hr__board_header header = {.magic = 0};
    int r = hr__memory_bytes(board->fd, &board->bytes);
    if (r == 0) r = hr__read_at(board->fd, 0, &header, sizeof header);
    if (r == -EIO)
        return hr__fail(HR_E_CORRUPT, "board: a file of %llu bytes is not a board", (unsigned long long)board->bytes);
    if (r == 0) r = hr__board_check_size(&header, board->bytes);
    if (r < 0) return r;
    if (posix_memalign(&board->memory, HR_CACHE_LINE, board->bytes) != 0) return hr__fail(-ENOMEM, "board: no memory");
    board->page_count = header.page_count;
    board->own_page = UINT32_MAX;
    return hr__read_at(board->fd, 0, board->memory, board->bytes);
}

int hr__board_look(int fd, struct hr__board_position *ret_positions, uint32_t room) {
    hr_board board = {.fd = fd};
    int r = read_board(&board), count = 0;
    if (r < 0) hr__fail_more(r, "board: cannot be read: %s", hr_error_text(r));
    for (uint32_t page = 0; r == 0 && page < board.page_count; page++)
        if (hr__board_is_live(&board, page))
            count += look_at_page(hr__board_page_at(&board, page), page, ret_positions + count, room - (uint32_t)count);
    free(board.memory);
    return r < 0 ? r : count;
}
