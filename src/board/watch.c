/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "board.h"

/*
 * The thread of a board. It serves the memory to other processes, and looks once per second whether this process has
 * taken more batches than another rank has: the thread that iterates may be waiting for that rank in a collective
 * operation, and then cannot find out by itself.
 */

enum { REPORT_BYTES = 512, LOOK_NS = 1000000000 };

/* Returns true if there is something to report that was not reported before. */
static bool look_at(hr_board_entry *entry, char *ret_text) {
    struct hr_board_ended ended;
    uint64_t steps;
    if (!entry->is_used || entry->number == entry->reported_number) return false;
    uint64_t progress = atomic_load(&entry->shared->progress);
    if (!hr__board_steps_of(progress, hr__board_tag(entry->number), &steps)) return false;
    if (steps <= entry->allowed || !hr__board_find_end(entry, steps - entry->allowed, &ended)) return false;
    entry->reported_number = entry->number;
    snprintf(
        ret_text, REPORT_BYTES,
        "headrace: rank %u is at the end of epoch %lld of the loader at %s after %llu batches, and rank %u has taken "
        "%llu. If this job hangs, they wait for each other; give all ranks the same number of batches, for example "
        "with headrace.torch.per_rank\n",
        ended.rank, (long long)(entry->epoch >= 0 ? entry->epoch : (int64_t)entry->number), entry->where,
        (unsigned long long)ended.steps, hr__board_rank_of(entry->shared), (unsigned long long)steps);
    return true;
}

/* The text is passed on without the lock, because the reader of stderr may be slow. */
static void look(hr_board *board) {
    for (int i = 0; i < HR_BOARD_MAX_ENTRIES; i++) {
        char text[REPORT_BYTES];
        pthread_mutex_lock(&board->lock);
        bool is_news = look_at(&board->entries[i], text);
        pthread_mutex_unlock(&board->lock);
        if (is_news && board->report) board->report(text);
    }
}

void hr__board_note_complete(hr_board *board) {
    if (atomic_load(&board->is_complete) || hr_board_process_count(board) < board->page_count) return;
    atomic_store(&board->is_complete, true);
    hr__eventfd_ring(board->bell_fd);
}

/* A process that connects when the board is complete is of another job, and makes a board of its own. */
static void serve_until_complete(hr_board *board) {
    hr__board_note_complete(board);
    if (!atomic_load(&board->is_complete)) {
        hr__board_serve(board);
        return;
    }
    pthread_mutex_lock(&board->lock); /* a child that is forked now must not close the number again */
    hr__close(&board->listen_fd);
    pthread_mutex_unlock(&board->lock);
}

static void watch(void *context) {
    hr_board *board = context;
    while (!atomic_load(&board->is_closing)) {
        int fds[] = {board->bell_fd, board->listen_fd};
        bool ready[] = {false, false};
        hr__poll(fds, ready, 2, hr__now_ns() + LOOK_NS);
        if (ready[0]) hr__eventfd_drain(board->bell_fd);
        if (board->listen_fd >= 0) serve_until_complete(board);
        look(board);
    }
}

int hr__board_start_watch(hr_board *board) {
    int r = hr__thread_start(&board->thread, watch, board);
    board->has_thread = r == 0;
    return r;
}

void hr__board_end_watch(hr_board *board) {
    if (!board->has_thread || atomic_load(&board->is_orphan)) return;
    atomic_store(&board->is_closing, true);
    hr__eventfd_ring(board->bell_fd);
    hr__thread_join(&board->thread);
    board->has_thread = false;
}
