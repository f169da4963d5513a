/* SPDX-License-Identifier: Apache-2.0 */
/* The board: what the ranks of a job on one machine show each other. */
#ifndef HEADRACE_FACE_BOARD_H
#define HEADRACE_FACE_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The board: shared memory in which the ranks of a job on one machine show each other what they read, so that ranks
 * that disagree find out before they wait for each other. Each process has one page, and each of its loaders an entry
 * in it: the facts of the newest epochs, a counter of steps, and the END of the epoch.
 *
 * Processes find the board by an abstract Unix socket, whose name has the user and a key that the caller gives. The
 * process that binds the name first makes the board and sends it to the others from a thread, until all of them have
 * it. Then it closes the socket, so a later job with the same key gets its own board even if processes of the first job
 * still run. If the process that serves ends early, the others keep the board; a process that comes later makes a new
 * one, on which it is alone until others come late too.
 *
 * A page belongs to a process as long as that holds a record lock on it, which the kernel releases when the process
 * ends in any way. A page without a lock is ignored, and may be taken by another process.
 *
 * There is at most one board per process. Its functions are called by one thread at a time, except hr_board_close. A
 * forked child has no board: its functions do nothing there, and the child keeps nothing of it alive.
 *
 * Functions return 0 or more, or a negative code with a message (headrace/error.h).
 */
typedef struct hr_board hr_board;
typedef struct hr_board_entry hr_board_entry;

#define HR_BOARD_MAX_PROCESSES 256
#define HR_BOARD_MAX_ENTRIES 12
#define HR_BOARD_MAX_FIRST 64

struct hr_board_options {
    const char *key;     /* names the job among those of this user; borrowed */
    uint32_t world_size; /* processes of the job, 2 or more; all must give the same number */
    uint32_t local_size; /* processes of the job on this machine; 0: not known */
    int fd;              /* memory of a board that this process inherited, borrowed; -1: use the socket */
    /* Called in a thread of the board with a text of one line, if this process has taken more batches than another rank
     * has. The thread that iterates may be in a collective operation then, and never find out. NULL: not called. */
    void (*report)(const char *text);
};

/* Joins the board of the job, or makes it. -EBUSY: this process has a board, or no page is free. -EACCES: another user
 * has the name. -ETIMEDOUT: the process that serves did not answer. -EINVAL: the sizes are out of range, or those of
 * the board are others. */
HR_API int hr_board_open(const struct hr_board_options *options, int64_t deadline_ns, hr_board **ret_board);

/* Leaves the board and ends its thread. Entries are invalid afterwards. NULL is fine. Returns NULL. */
HR_API hr_board *hr_board_close(hr_board *board);

/* The number of running processes that have joined, with this one. */
HR_API uint32_t hr_board_process_count(const hr_board *board);

/* Says that the main program of this process is over. Other processes do not wait for it any more. */
HR_API void hr_board_finish(hr_board *board);

/* ---- a loader's entry ---- */

/* Takes an entry for a loader. Loaders of several processes are the same one if `where`, `place` and `world_size` are
 * equal: the source line, a number for the loader among those of this line, the number of ranks. Several processes may
 * have the same rank, if they read the same part. The board owns the entry. -ENOSPC: all entries are taken. */
HR_API int hr_board_enter(hr_board *board, const char *where, uint64_t place, uint32_t rank, uint32_t world_size,
                          hr_board_entry **ret_entry);

/* Gives the entry back. Other processes may read what it shows until it is taken again. NULL is fine. */
HR_API void hr_board_leave(hr_board_entry *entry);

/* The facts that a rank knows about its epoch; -1: not known. */
struct hr_board_facts {
    int64_t length; /* samples of this rank in the epoch */
    int64_t steps;  /* batches of this rank in the epoch */
    int64_t seed;
    int64_t epoch;
    int64_t digest;  /* of the order of all ranks */
    int64_t samples; /* size of the dataset */
};

/* Shows the facts of the next epoch. HR_E_STATE: in a forked child. */
HR_API int hr_board_publish(hr_board_entry *entry, const struct hr_board_facts *facts);

/* Lets the thread of the board report an END only if this rank has taken more batches than that rank and `difference`.
 * hr_board_step and hr_board_end tell of any difference. */
HR_API void hr_board_allow(hr_board_entry *entry, uint64_t difference);

/* Waits until all processes on the board, and at least `process_count`, have published this loader's epoch with the
 * same number. After -ETIMEDOUT the epochs of this process may be other ones than those with the same numbers
 * elsewhere, so from then on facts are compared only with those of the same `epoch`. -EINTR: a signal arrived. */
HR_API int hr_board_await(hr_board_entry *entry, uint32_t process_count, int64_t deadline_ns);

struct hr_board_peer {
    uint32_t page; /* of its process */
    uint32_t rank;
    struct hr_board_facts facts;
};

/* Writes the processes whose facts belong to the same epoch as those of this entry, at most HR_BOARD_MAX_PROCESSES - 1,
 * and returns their number. They run, or have ended since this process published. */
HR_API int hr_board_peers(hr_board_entry *entry, struct hr_board_peer *ret_peers);

/* The digests of the first indices of a rank's epoch. */
struct hr_board_first {
    uint32_t rank;
    uint32_t count;
    uint64_t digests[HR_BOARD_MAX_FIRST];
};

/* Shows `count` digests of the first indices of the epoch that was published last, at most HR_BOARD_MAX_FIRST. */
HR_API void hr_board_show_first(hr_board_entry *entry, const uint64_t *digests, uint32_t count);

/* Writes what the processes that hr_board_peers found last have shown of the same epoch until now, at most
 * HR_BOARD_MAX_PROCESSES - 1, and returns their number. Of two ranks that first show and then look, at least one sees
 * what the other one has shown. */
HR_API int hr_board_first(const hr_board_entry *entry, struct hr_board_first *ret_first);

/* The number of running processes that have begun any epoch of this loader, with this one. */
HR_API uint32_t hr_board_known(const hr_board_entry *entry);

/* The page of this process. */
HR_API uint32_t hr_board_page(const hr_board *board);

/* How long the loop of a rank was inside next() in the epoch, of how long. */
struct hr_board_wait {
    uint32_t rank;
    uint64_t inside_ns;
    uint64_t elapsed_ns;
};

/* Shows how long the loop of this rank has waited. */
HR_API void hr_board_show_wait(hr_board_entry *entry, uint64_t inside_ns, uint64_t elapsed_ns);

/* Writes what the running processes of this loader have shown, with this one, at most HR_BOARD_MAX_PROCESSES, and
 * returns their number. */
HR_API int hr_board_waits(const hr_board_entry *entry, struct hr_board_wait *ret_waits);

/* Another rank that is at its END with fewer batches than this one has taken, or that has taken more batches than this
 * one had at its END. */
struct hr_board_ended {
    uint32_t rank;
    uint64_t steps;
};

/* Shows the number of batches that were taken in this epoch. Returns 1 and writes `ret_ended` if another rank is at its
 * END with fewer, else 0. */
HR_API int hr_board_step(hr_board_entry *entry, uint64_t steps, struct hr_board_ended *ret_ended);

/* Shows that this rank is at its END after `steps` batches. Returns 1 and writes `ret_ended` if another rank has taken
 * more, or is at its END with fewer, else 0. For each two ranks whose numbers differ, at least one is told. */
HR_API int hr_board_end(hr_board_entry *entry, uint64_t steps, struct hr_board_ended *ret_ended);

#ifdef __cplusplus
}
#endif
#endif
