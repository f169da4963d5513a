/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of `headrace top` share. */
#ifndef HR_CLI_TOP_H
#define HR_CLI_TOP_H

#include <headrace/face/fetcher.h>
#include <headrace/look.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum {
    TOP_HISTORY = 12,       /* looks that are kept: rates are those of the last ten seconds */
    TOP_PIDS = 64,          /* processes that the command line can name */
    TOP_GROWTH_LOOKS = 128, /* looks at the memory of a worker, a minute apart */
};

#define TOP_MEMORY "/memfd:headrace-arena (deleted)" /* what the link of a loader's memory in /proc/PID/fd shows */

/* A look at a loader, for rates. */
struct top_mark {
    int64_t now_ns;
    uint64_t batches, samples, bytes;
    uint64_t inside_ns;  /* with the wait that is going on */
    uint64_t busy_ns;    /* of all workers */
    uint64_t collate_ns; /* of that, */
    uint64_t network_ns; /* and for remote objects. Without workers: of the training process */
    uint64_t alive_ns;
};

struct top_worker_mark {
    int64_t now_ns;
    uint64_t done, busy_ns, cpu_ns;
    uint64_t delay_ns; /* its main thread waited for a core; UINT64_MAX: not known */
    bool has_cpu;      /* cpu_ns is known */
};

struct top_worker {
    struct hr_worker_look look;
    int pid;       /* as this process sees it; 0: not known */
    bool is_known; /* /proc has told its memory */
    uint64_t private_bytes;
    uint64_t first_bytes; /* the memory at the first look, and when that was */
    int64_t first_ns;
    struct top_worker_mark marks[TOP_HISTORY];
    uint32_t mark_count;
};

struct top_loader {
    int pid; /* of the trainer, as this process sees it */
    int fd;
    dev_t device;
    ino_t inode;
    bool is_same_namespace; /* its workers have the pids that they see themselves */
    bool is_seen;           /* in this look */
    bool is_over;           /* it was not seen in the last look, while its process lives */
    int64_t seen_ns;
    struct hr_arena_look look;
    struct top_worker *workers; /* look.worker_count */
    uint32_t worker_room;
    struct top_mark marks[TOP_HISTORY];
    uint32_t mark_count;
};

/* A table of samples or another object of the cache. */
struct top_cached {
    char name[64];
    char place[128];
    uint64_t bytes;
    uint32_t jobs;
    bool is_table;
    uint64_t budget_bytes, used_bytes, hits;
    uint64_t earlier_hits; /* in the look before */
    double hits_per_s;
};

/* The fetcher of remote objects of this user. */
struct top_fetcher {
    bool is_there;
    struct hr_fetcher_figures now;
    double fetched, requests, retries; /* per second, since the look before */
    double hits;                       /* share of the reads of all loaders that found all bytes; negative: none was */
    uint64_t hit_count, wait_count;    /* of all loaders, since the loaders were made */
    char folder[4096];
};

struct top_pids {
    int *all;
    uint32_t count, room;
};

struct top {
    struct top_loader *loaders;
    uint32_t count, room;
    struct top_cached *cached;
    uint32_t cached_count;
    int64_t cached_ns;
    struct top_fetcher fetcher;
    int pids[TOP_PIDS];
    int pid_count;
    int64_t now_ns;

    uint32_t refused;       /* loaders whose memory the kernel does not let this process read */
    uint32_t refused_users; /* of these, those of other users */
    uint32_t other_versions;
    uint32_t damaged;
    char problem[160]; /* of the last damaged one */

    struct hr_worker_look *scratch; /* of the loader that is looked at */
    uint32_t scratch_room;
    int inner_of, inner; /* the innermost pid of a process */

    struct top_pids walked; /* where the walk over /proc is, */
    uint32_t walked_next;   /* and how far */
    bool has_walked;        /* all of /proc, once */

    double cores_used, cores;
    uint64_t memory_used, memory_total;
    uint64_t cpu_busy, cpu_all; /* of the last look at /proc/stat */
};

int64_t top_now_ns(void);
int64_t top_wall_s(void);

/* ---- top_find.c: which loaders there are ---- */

/* Looks at all loaders that can be found by their sockets, and walks over other processes for at most `slice_ns`;
 * INT64_MAX: until all have been walked. */
void top_find(struct top *top, int64_t slice_ns);
/* Calls `visit` for each socket of a loader that this process sees, with the process and the descriptor of its name. */
void top_each_socket(void visit(void *context, int pid, int fd), void *context);
void top_each_process(void visit(void *context, int pid), void *context);
/* `target`: what the link in /proc/PID/fd shows, cut if it is long. */
void top_each_descriptor(int pid, void visit(void *context, int pid, int fd, const char *target), void *context);
/* Without memory, the pid is left out. */
void top_add_pid(struct top_pids *pids, int pid);
/* Returns true if a process has other namespaces than this one, so that its sockets are not seen or show other pids.
 * Those of a process that may not be read are not known. */
bool top_is_elsewhere(int pid);
/* The innermost pid of a process: the one that it sees itself; 0: there is no such process. */
int top_inner_pid(int pid);

/* ---- top_look.c: their numbers ---- */

enum top_visited { TOP_SEEN, TOP_ELSEWHERE /* it is no arena of this process */, TOP_REFUSED };
/* Looks at the arena that `pid` has as descriptor `fd`. is_by_socket: the kernel said that it has one. */
enum top_visited top_visit(struct top *top, int pid, int fd, bool is_by_socket);
void top_begin_look(struct top *top);
void top_end_look(struct top *top);
void top_free(struct top *top);
/* Returns true if a process is one of these, or was started by one of them or their descendants. */
bool top_descends(int pid, const int *pids, int count);
/* Reads /proc/PID/stat into `line`. Returns the end of the name there, which the state and the other fields follow;
 * NULL: there is no such process. */
const char *top_read_stat(int pid, char *line, int bytes);
/* Reads a number after spaces, and moves the text behind it. Returns false if it begins with no number, or with one
 * that is too large. */
bool top_read_number(const char **text, int base, uint64_t *ret_number);
/* Reads the number of a line such as "PPid:\t17". Returns false if the line has another name. */
bool top_read_field(const char *line, const char *name, int base, uint64_t *ret_number);
void top_look_at_workers(struct top *top, struct top_loader *loader); /* their processes */
void top_look_at_machine(struct top *top);
void top_look_at_cache(struct top *top);
void top_look_at_fetcher(struct top *top);

/* ---- top_rates.c ---- */

/* Keeps the numbers of a look at a loader. */
void top_mark(struct top_loader *loader, int64_t now_ns);

struct top_rates {
    double wait;                    /* 0 to 1 */
    double batches, samples, bytes; /* per second */
    double busy;                    /* of the workers, 0 to 1 */
    double collate;                 /* of the busy time, 0 to 1, */
    double network;                 /* and waiting for remote objects; without workers, of all time */
};
struct top_rates top_rates_of(const struct top *top, const struct top_loader *loader);
struct top_worker_rates {
    double batches, busy, cpu; /* cpu and busy: of a core */
    double delay;              /* share of the time in which it waited for a core; negative: not known */
    double growth;             /* bytes per hour; 0: not known */
};
struct top_worker_rates top_worker_rates_of(const struct top_worker *worker);
const char *top_state_of(const struct top *top, const struct top_loader *loader);
/* Since when the loop waits for the batch that it asked for, in seconds; 0: it does not. */
double top_waits_s(const struct top *top, const struct top_loader *loader);
/* The share of the time that a job waits whose ranks wait for the slowest in each step; negative: not known. */
double top_job_wait(const struct top *top, const struct top_loader *loader, int *ret_behind, uint64_t *ret_steps);
/* Adds up what the processes of a loader wait for remote objects, with the waits that go on. */
struct hr_network_look top_sum_network(int64_t now_ns, const struct top_loader *loader);
void top_sum_times(const struct top_loader *loader, struct hr_times *ret_samples, struct hr_times *ret_collates);

/* ---- top_screen.c ---- */

struct top_view {
    uint32_t chosen; /* the row */
    int chosen_pid;  /* and the loader that it was */
    uint32_t chosen_loader;
    bool is_frozen, shows_help, asks_stacks, has_detail;
    int order;
    int lines, columns;
    char *stacks; /* text that is shown instead of the picture, owned */
};
/* Returns true if there is nothing to show: no loader, and none that cannot be read. top_why_empty says why, in one
 * line.
 */
bool top_is_empty(const struct top *top);
const char *top_why_empty(const struct top *top);
/* Writes the picture as one text. The caller frees it. `is_terminal`: with cursor movements and reverse rows. */
char *top_draw(struct top *top, struct top_view *view, bool is_terminal, size_t *ret_bytes);
void top_sort(struct top *top, const struct top_view *view);
struct top_loader *top_chosen(struct top *top, struct top_view *view);

/* ---- top_verdict.c ---- */

/* Writes why the loop of a loader waits, and what would help. */
void top_explain(const struct top *top, const struct top_loader *loader, char *text, size_t bytes);

/* ---- top_text.c ---- */

/* Copies a text for a terminal: control characters and what is no UTF-8 become '?'. */
void top_clean(const char *text, char *ret_text, size_t bytes);
size_t top_columns_of(const char *text);
/* Cuts a text to so many columns, between two characters. */
void top_cut(char *text, size_t columns);
/* Write a number into `text`, which has UNITS_BYTES bytes (top_in_count: 32), and return it. */
const char *top_in_count(uint64_t count, char *text); /* 1,234 */
const char *top_in_size(double bytes, char *text);
const char *top_in_short(double s, char *text); /* 12ms */
const char *top_in_hours(double s, char *text); /* 2 h 5 min */

/* ---- top_stacks.c ---- */

/* Makes the workers of a loader write their stacks, and returns the text, owned by the caller. */
char *top_stacks(struct top_loader *loader);

/* ---- top_terminal.c ---- */

/* Shows pictures until the user ends it. Returns the exit code. */
int top_watch(struct top *top);

/* ---- top_metrics.c ---- */

void top_put_json(FILE *to, struct top *top);
void top_put_metrics(FILE *to, struct top *top);

#endif
