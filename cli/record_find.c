/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the loaders of some processes, and of those that they have started, for `headrace record`. */
#define _GNU_SOURCE
#include "record.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stop.h"

#define S_NS INT64_C(1000000000)
static const int64_t TREE_NS = S_NS - S_NS / 10; /* between two searches for trainers by their sockets, */
static const int64_t SEARCH_NS = 5 * S_NS;       /* and in /proc, which costs more */

uint64_t record_started(int pid) {
    enum { FIELDS_TO_START = 20 }; /* from the end of the name */
    char line[1024];
    uint64_t started = 0;
    const char *at = top_read_stat(pid, line, sizeof line);
    if (!at || !at[1] || at[2] == 'Z' || at[2] == 'X') return 0;
    for (int i = 0; at && i < FIELDS_TO_START; i++) at = strchr(at + 1, ' ');
    return at && top_read_number(&at, 10, &started) ? started : 0;
}

/* ---- trainers ---- */

static bool has_pid(const struct top_pids *pids, int pid) {
    for (uint32_t i = 0; i < pids->count; i++)
        if (pids->all[i] == pid) return true;
    return false;
}

/* Other jobs of the machine may have many processes, so what they are is remembered until the next search. */
static bool is_descendant(struct record *record, int pid) {
    if (has_pid(&record->strangers, pid)) return false;
    if (top_descends(pid, record->named, record->named_count)) return true;
    top_add_pid(&record->strangers, pid);
    return false;
}

static void add_trainer(struct record *record, int pid) {
    if (!has_pid(&record->trainers, pid) && is_descendant(record, pid)) top_add_pid(&record->trainers, pid);
}

static void drop_ended(struct top_pids *pids) {
    for (uint32_t i = pids->count; i-- > 0;)
        if (!record_started(pids->all[i])) pids->all[i] = pids->all[--pids->count];
}

static void add_by_socket(void *record, int pid, int fd) {
    (void)fd;
    add_trainer(record, pid);
}

static void add_any(void *record, int pid) {
    add_trainer(record, pid);
}

static void add_elsewhere(void *record, int pid) {
    if (top_is_elsewhere(pid)) add_trainer(record, pid);
}

/* Finds processes in other namespaces. Most processes of a machine are in the namespaces of this one, so their parents
 * are not asked for. */
static void search(struct record *record) {
    bool has_sockets = access("/proc/net/unix", R_OK) == 0;
    record->strangers.count = 0; /* a pid may be that of another process by now */
    top_each_process(has_sockets ? add_elsewhere : add_any, record);
}

static void find_trainers(struct record *record, int64_t now_ns) {
    if (now_ns < record->tree_ns) return;
    record->tree_ns = now_ns + TREE_NS;
    drop_ended(&record->trainers);
    for (int i = 0; i < record->named_count; i++) add_trainer(record, record->named[i]);
    if (!record->has_descendants) return;
    top_each_socket(add_by_socket, record);
    if (now_ns < record->search_ns) return;
    search(record);
    record->search_ns = clock_ns() + SEARCH_NS;
}

int record_find(struct record *record) {
    find_trainers(record, clock_ns());
    return hr_recorder_find(record->recorder, record->trainers.all, record->trainers.count);
}

void record_free(struct record *record) {
    free(record->trainers.all);
    free(record->strangers.all);
}
