/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes a board, takes a page, and handles forks. */
#include "board.h"

#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/error.h"

/* The board of this process, for the handlers of forks. */
static pthread_mutex_t current_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t install_once = PTHREAD_ONCE_INIT;
static hr_board *current;

/* ---- forks ---- */

static void before_fork(void) {
    pthread_mutex_lock(&current_lock);
    if (current) pthread_mutex_lock(&current->lock);
}

static void after_fork_in_parent(void) {
    if (current) pthread_mutex_unlock(&current->lock);
    pthread_mutex_unlock(&current_lock);
}

/* The child has neither the mapping nor the thread nor the lock on the page. The socket has to be closed, or the name
 * would stay in use after the end of the parent. */
static void after_fork_in_child(void) {
    if (current && !atomic_load(&current->is_orphan)) {
        atomic_store(&current->is_orphan, true);
        hr__close(&current->listen_fd);
        hr__close(&current->bell_fd);
        hr__close(&current->fd);
    }
    after_fork_in_parent();
}

static void install(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* Makes `board` the board of this process. -EBUSY: there is one. */
static int register_board(hr_board *board) {
    pthread_once(&install_once, install);
    pthread_mutex_lock(&current_lock);
    bool is_free = !current || atomic_load(&current->is_orphan);
    if (is_free) current = board;
    pthread_mutex_unlock(&current_lock);
    return is_free ? 0 : hr__fail(-EBUSY, "board: this process has one");
}

static void unregister_board(hr_board *board) {
    pthread_mutex_lock(&current_lock);
    if (current == board) current = NULL;
    pthread_mutex_unlock(&current_lock);
}

/* ---- pages ---- */

static uint64_t page_offset(uint32_t page) {
    return (page + UINT64_C(1)) * HR__BOARD_PAGE_BYTES;
}

bool hr__board_is_live(const hr_board *board, uint32_t page) {
    return page != board->own_page && hr__range_is_locked(board->fd, page_offset(page), HR__BOARD_PAGE_BYTES);
}

/* Takes a page that no running process has, and makes it look as if no loader had used it. */
static int claim_page(hr_board *board) {
    int r = -EAGAIN;
    for (board->own_page = 0; board->own_page < board->page_count; board->own_page++) {
        r = hr__lock_range(board->fd, page_offset(board->own_page), HR__BOARD_PAGE_BYTES);
        if (r != -EAGAIN) break;
    }
    if (r == -EAGAIN) return hr__fail(-EBUSY, "board: other processes have all of its %u pages", board->page_count);
    if (r < 0) return hr__fail(r, "board: cannot lock a page: %s", hr_error_text(r));
    hr__stop_at(HR__AT_BOARD_CLAIMED);
    struct hr__shared_page *page = hr__board_page_at(board, board->own_page);
    atomic_store(&page->over, 0);
    for (int i = 0; i < HR_BOARD_MAX_ENTRIES; i++) {
        atomic_store(&page->entries[i].key, 0);
        board->entries[i] = (struct hr_board_entry){.board = board, .shared = &page->entries[i]};
    }
    return 0;
}

/* ---- opening and closing ---- */

static hr_board *new_board(const struct hr_board_options *options) {
    hr_board *board = hr__realloc(NULL, sizeof *board);
    if (!board) return NULL;
    *board = (hr_board){.fd = -1, .listen_fd = -1, .bell_fd = -1, .report = options->report};
    pthread_mutex_init(&board->lock, NULL);
    return board;
}

static int fill_board(hr_board *board, const struct hr_board_options *options, int64_t deadline_ns) {
    int r = hr__fail_at("board");
    if (r < 0) return hr__fail(r, "board: a failpoint turns it off");
    r = register_board(board);
    if (r == 0) r = hr__board_join(board, options, deadline_ns);
    if (r == 0) r = claim_page(board);
    if (r < 0) return r;
    r = hr__eventfd(&board->bell_fd);
    if (r == 0) r = hr__board_start_watch(board);
    return r < 0 ? hr__fail(r, "board: cannot start its thread: %s", hr_error_text(r)) : 0;
}

int hr_board_open(const struct hr_board_options *options, int64_t deadline_ns, hr_board **ret_board) {
    uint64_t bytes;
    int r = hr__board_measure(options, &bytes);
    if (r < 0) return r;
    hr_board *board = new_board(options);
    if (!board) return hr__fail(-ENOMEM, "board: no memory");
    r = fill_board(board, options, deadline_ns);
    if (r < 0)
        hr_board_close(board);
    else
        *ret_board = board;
    return r;
}

hr_board *hr_board_close(hr_board *board) {
    if (!board) return NULL;
    hr__board_end_watch(board);
    unregister_board(board);
    if (!atomic_load(&board->is_orphan)) hr__unmap(board->memory, board->bytes);
    hr__close(&board->listen_fd);
    hr__close(&board->bell_fd);
    hr__close(&board->fd);
    for (int i = 0; i < HR_BOARD_MAX_ENTRIES; i++) {
        hr__free(board->entries[i].rivals);
        hr__free(board->entries[i].starts);
    }
    pthread_mutex_destroy(&board->lock);
    hr__stop_at(HR__AT_BOARD_CLOSED);
    hr__free(board);
    return NULL;
}

uint32_t hr_board_process_count(const hr_board *board) {
    uint32_t count = 0;
    if (atomic_load(&board->is_orphan)) return 0;
    for (uint32_t page = 0; page < board->page_count; page++)
        count += page == board->own_page || hr__board_is_live(board, page);
    return count;
}

uint32_t hr_board_page(const hr_board *board) {
    return board->own_page;
}

void hr_board_finish(hr_board *board) {
    if (atomic_load(&board->is_orphan)) return;
    atomic_store(&hr__board_page_at(board, board->own_page)->over, 1);
    hr__stop_at(HR__AT_BOARD_OVER);
}
