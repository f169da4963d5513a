/* SPDX-License-Identifier: Apache-2.0 */
/* Kills all descendants of a process that adopts orphans. */
#include <errno.h>

#include "launch.h"

/*
 * A process that dies leaves its children to this process, because it is their subreaper. So killing the children
 * again and again, until no child is left, reaches all descendants. Only children are killed: nothing but this process
 * can reap them, so none of their pids can belong to another process by now.
 */

enum { ROUND_NS = 2000000, MAX_CHILDREN = 4096 };

/* So long no child has ended. One that hangs in the kernel, or that a debugger holds, may never end; one that only
 * exits may have much memory to free, on a GPU too. */
static const int64_t STUCK_NS = 2 * HR_NS_PER_S, SLOW_NS = 10 * HR_NS_PER_S;

struct round {
    int pids[MAX_CHILDREN];
    size_t count;
    int refused; /* a child that may not be killed; 0: all may */
};

static bool is_spared(const struct hr__sweep *sweep, int pid) {
    for (size_t i = 0; sweep->spared && i < sweep->spared->count; i++)
        if (sweep->spared->pids[i] == pid) return true;
    return false;
}

static void list_children(const struct hr__sweep *sweep, struct round *round) {
    size_t found = hr__min(hr__children_of((int)hr__pid(), round->pids, MAX_CHILDREN), MAX_CHILDREN);
    round->count = 0;
    for (size_t i = 0; i < found; i++)
        if (!is_spared(sweep, round->pids[i])) round->pids[round->count++] = round->pids[i];
}

static void kill_children(struct round *round) {
    round->refused = 0;
    for (size_t i = 0; i < round->count; i++)
        if (hr__kill(round->pids[i], HR__KILL) == -EPERM) round->refused = round->pids[i];
}

/* Reaps all children that have ended, and returns how many. */
static int reap_ended(const struct hr__sweep *sweep) {
    int pid, count = 0;
    while (hr__ended_child(&pid) == 0) {
        sweep->reaped(sweep->context, pid);
        count++;
    }
    return count;
}

static bool is_stuck(const struct round *round, int pid) {
    struct hr__process process;
    return pid == round->refused ||
           (hr__process_look(pid, &process) == 0 && (process.state == 'D' || process.state == 't'));
}

static int64_t patience_for(const struct round *round) {
    for (size_t i = 0; i < round->count; i++)
        if (!is_stuck(round, round->pids[i])) return SLOW_NS;
    return STUCK_NS;
}

static void name_stuck(const struct hr__sweep *sweep, const struct round *round) {
    for (size_t i = 0; i < round->count; i++)
        sweep->stuck(sweep->context, round->pids[i], round->pids[i] == round->refused ? -EPERM : -ETIMEDOUT);
}

void hr__sweep(const struct hr__sweep *sweep) {
    static struct round round; /* large; one process sweeps at a time */
    int64_t ended_ns = hr__now_ns();
    for (;;) {
        list_children(sweep, &round);
        if (!round.count) return;
        kill_children(&round);
        int64_t now_ns = hr__now_ns();
        if (reap_ended(sweep) > 0) {
            ended_ns = now_ns;
        } else if (now_ns - ended_ns > STUCK_NS && now_ns - ended_ns > patience_for(&round)) {
            name_stuck(sweep, &round);
            return;
        } else {
            hr__poll(NULL, NULL, 0, now_ns + ROUND_NS);
        }
    }
}
