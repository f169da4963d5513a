/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the rank that failed first. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "launch.h"

bool hr__rank_failed(const struct hr__rank *rank) {
    return rank->start_error || (rank->has_ended && (rank->end.signal || rank->end.exit_code));
}

/* Returns the earlier of two times, of which 0 means that there is no such time. */
static int64_t earlier(int64_t a, int64_t b) {
    return !a ? b : !b ? a : a < b ? a : b;
}

static int64_t written_ns(int fd) {
    uint64_t bytes;
    int64_t changed_ns;
    bool is_written = hr__memory_bytes(fd, &bytes) == 0 && bytes > 0 && hr__file_changed_ns(fd, &changed_ns) == 0;
    return is_written ? changed_ns : 0;
}

/* A real path, because a launcher within the rank may remove the file and put another one there, as torchrun does. */
int hr__error_file(const struct hr__attempt *attempt, const struct hr__rank *rank, char *ret_path) {
    if (attempt->folder) return hr__path(ret_path, "%s/%u/error.json", attempt->folder, rank->local);
    if (!attempt->launch->errors) return -ENOENT;
    return hr__path(ret_path, "%s/%u_%u.json", attempt->launch->errors, attempt->number, rank->local);
}

/* Returns when the error file was written, which a script with torch's @record does before it ends; 0: it was not. */
static int64_t error_file_ns(const struct hr__attempt *attempt, const struct hr__rank *rank) {
    char path[HR__PATH_BYTES];
    int fd = -1;
    if (hr__error_file(attempt, rank, path) < 0 || hr__file_open(path, &fd) < 0) return 0;
    int64_t at_ns = written_ns(fd);
    hr__close(&fd);
    return at_ns;
}

bool hr__rank_was_ended(const struct hr__rank *rank) {
    return rank->was_killed || (rank->sent_signal && rank->end.signal == rank->sent_signal);
}

/* Returns when an exception ended its main program; 0: none did. */
static int64_t exception_ns(const struct hr__attempt *attempt, const struct hr__rank *rank) {
    int64_t at_ns = hr__page_word(&rank->page->exception_ns, attempt->begun_ns, rank->ended_ns);
    int64_t file_ns = error_file_ns(attempt, rank);
    bool is_in_time = file_ns >= attempt->begun_ns && file_ns <= rank->ended_ns;
    return earlier(at_ns, is_in_time ? file_ns : 0);
}

struct hr__failure hr__failure_of(const struct hr__attempt *attempt, const struct hr__rank *rank) {
    if (!hr__rank_failed(rank)) return (struct hr__failure){.is_failure = false};
    if (rank->start_error) return (struct hr__failure){.is_failure = true, .at_ns = attempt->begun_ns};
    int64_t thrown_ns = exception_ns(attempt, rank);
    int64_t at_ns = earlier(rank->ended_ns, thrown_ns);
    /* A rank whose main program returned has not failed then, but later, while it exited. */
    int64_t over_ns = hr__page_word(&rank->page->ended_well, 0, 1) ? 0 : hr__page_over_ns(attempt, rank);
    at_ns = earlier(at_ns, over_ns);
    bool is_after = attempt->ending_ns && at_ns > attempt->ending_ns;
    bool is_symptom = is_after || hr__page_word(&rank->page->is_lost_peer, 0, 1) || rank->end.signal == HR__ABRT;
    return (struct hr__failure){.is_failure = true, .is_symptom = is_symptom, .at_ns = at_ns};
}

static bool is_before(const struct hr__failure *a, const struct hr__failure *b) {
    return a->is_symptom == b->is_symptom ? a->at_ns < b->at_ns : b->is_symptom;
}

int64_t hr__first_failure(const struct hr__failure *failures, uint32_t count) {
    int64_t first = -1;
    for (uint32_t i = 0; i < count; i++)
        if (failures[i].is_failure && (first < 0 || is_before(&failures[i], &failures[first]))) first = i;
    return first;
}

struct hr__rank *hr__find_first(const struct hr__attempt *attempt) {
    uint32_t count = attempt->job->local_size;
    struct hr__failure *failures = calloc(count, sizeof *failures);
    if (!failures) return NULL;
    for (uint32_t i = 0; i < count; i++) failures[i] = hr__failure_of(attempt, &attempt->ranks[i]);
    int64_t first = hr__first_failure(failures, count);
    free(failures);
    return first < 0 ? NULL : &attempt->ranks[first];
}
