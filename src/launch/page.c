/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and reads the page on which a rank's interpreter writes. */
#include <headrace/error.h>
#include <string.h>

#include "launch.h"

int hr__page_open(struct hr__rank *rank, bool keeps_store) {
    enum hr__memory_kind kind;
    void *page = NULL;
    int r = hr__memory_create("headrace-rank", HR__PAGE_STACKS_AT, HR__PAGE_TEXT_AT, &rank->page_fd, &kind);
    if (r == 0) r = hr__map(rank->page_fd, HR__PAGE_TEXT_AT, &page);
    if (r < 0) return hr__fail(r, "launch: cannot create shared memory for a rank: %s", hr_error_text(r));
    hr__keep_at_least(rank->page_fd); /* a rank that cuts it would make the front touch pages that do not exist */
    rank->page = page;
    atomic_store(&rank->page->is_watched, keeps_store);
    atomic_store(&rank->page->magic, HR__PAGE_MAGIC);
    return 0;
}

void hr__page_close(struct hr__rank *rank) {
    if (rank->page) hr__unmap(rank->page, HR__PAGE_TEXT_AT);
    rank->page = NULL;
    hr__close(&rank->page_fd);
    hr__text_free(&rank->stacks);
}

int64_t hr__page_word(const _Atomic int64_t *word, int64_t least, int64_t most) {
    int64_t value = atomic_load(word);
    return value >= least && value <= most ? value : 0;
}

/* Adds `bytes` bytes of a file, as far as it has them. */
static void read_into(struct hr__text *text, int fd, uint64_t at, uint64_t bytes) {
    enum { PIECE = 4096 };
    char piece[PIECE];
    uint64_t size;
    if (hr__memory_bytes(fd, &size) < 0 || at >= size) return;
    bytes = hr__min(bytes, size - at);
    for (uint64_t done = 0; done < bytes;) {
        size_t length = (size_t)hr__min(bytes - done, PIECE);
        if (hr__read_at(fd, at + done, piece, length) < 0) return;
        hr__text_add(text, piece, length);
        done += length;
    }
}

void hr__page_text(const struct hr__rank *rank, struct hr__text *ret_text) {
    int64_t bytes = hr__page_word(&rank->page->text_bytes, 0, HR__PAGE_TEXT_BYTES);
    read_into(ret_text, rank->page_fd, HR__PAGE_TEXT_AT, (uint64_t)bytes);
}

void hr__page_reason(const struct hr__rank *rank, struct hr__text *ret_line) {
    int64_t bytes = hr__page_word(&rank->page->reason_bytes, 0, HR__PAGE_REASON_BYTES);
    struct hr__text text = {0};
    read_into(&text, rank->page_fd, HR__PAGE_REASON_AT, (uint64_t)bytes);
    hr__text_add(ret_line, text.bytes, strcspn(hr__text_string(&text), "\n"));
    hr__text_free(&text);
}

void hr__page_keepers(const struct hr__rank *rank, struct hr__text *ret_text) {
    int64_t bytes = hr__page_word(&rank->page->keepers_bytes, 0, HR__PAGE_KEEPERS_BYTES);
    read_into(ret_text, rank->page_fd, HR__PAGE_KEEPERS_AT, (uint64_t)bytes);
}

bool hr__page_read_stacks(struct hr__rank *rank) {
    uint64_t size, from = HR__PAGE_STACKS_AT + rank->stacks_bytes;
    if (hr__memory_bytes(rank->page_fd, &size) < 0 || size <= from) return false;
    hr__text_cut(&rank->stacks, 0);
    read_into(&rank->stacks, rank->page_fd, from, HR__PAGE_STACKS_BYTES);
    rank->stacks_bytes = size - HR__PAGE_STACKS_AT;
    return rank->stacks.length > 0;
}

int hr__page_stack_signal(const struct hr__rank *rank) {
    enum { FIRST_REAL_TIME = 32, LAST_SIGNAL = 64 };
    if (!rank->pid || hr__page_word(&rank->page->pid, 1, INT32_MAX) != rank->pid) return 0;
    /* A program that this process has become since would be ended by the signal. It does not have the page. */
    if (!hr__has_file(rank->pid, rank->page_fd)) return 0;
    return (int)hr__page_word(&rank->page->stack_signal, FIRST_REAL_TIME, LAST_SIGNAL);
}

int64_t hr__page_over_ns(const struct hr__attempt *attempt, const struct hr__rank *rank) {
    int64_t over_ns = hr__page_word(&rank->page->over_ns, attempt->begun_ns, INT64_MAX);
    int pid = (int)hr__page_word(&rank->page->pid, 1, INT32_MAX);
    bool is_there = over_ns && pid && (rank->has_ended ? pid == rank->pid : hr__has_file(pid, rank->page_fd));
    return is_there ? over_ns : 0;
}
