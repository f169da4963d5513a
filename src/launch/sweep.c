/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "launch.h"

/*
 * A process that dies leaves its children to this process, because it is their subreaper. So killing the children
 * again and again, until no child is left, reaches all descendants. Only children are killed: nothing but this process
 * can reap them, so none of their pids can belong to another process by now.
 */

enum { ROUND_NS = 2000000, MAX_CHILDREN = 4096 };

struct round {
    int pids[MAX_CHILDREN];
    size_t count;
    int refused; /* a child that may not be killed; 0: none */
};

static void kill_children(struct round *round) {
    round->count = hr__min(hr__children_of((int)hr__pid(), round->pids, MAX_CHILDREN), MAX_CHILDREN);
    round->refused = 0;
    for (size_t i = 0; i < round->count; i++)
        if (hr__kill(round->pids[i], HR__KILL) == -EPERM) round->refused = round->pids[i];
}

/* Reaps all children that have ended. Returns how many; -ECHILD: there are no children left. */
static int reap_ended(const struct hr__sweep *sweep) {
    int pid, count = 0, r;
    while ((r = hr__ended_child(&pid)) == 0) {
        sweep->reaped(sweep->context, pid);
        count++;
    }
    return r == -ECHILD ? r : count;
}

static void name_stuck(const struct hr__sweep *sweep, const struct round *round) {
    for (size_t i = 0; i < round->count; i++)
        sweep->stuck(sweep->context, round->pids[i], round->pids[i] == round->refused ? -EPERM : -ETIMEDOUT);
}

void hr__sweep(const struct hr__sweep *sweep) {
    static struct round round; /* large; one process sweeps at a time */
    int64_t deadline_ns = hr__now_ns() + sweep->patience_ns;
    for (;;) {
        kill_children(&round);
        int reaped = reap_ended(sweep);
        if (reaped == -ECHILD) return;
        if (reaped > 0) {
            deadline_ns = hr__now_ns() + sweep->patience_ns;
            continue;
        }
        if (hr__now_ns() > deadline_ns) {
            name_stuck(sweep, &round);
            return;
        }
        hr__poll(NULL, NULL, 0, hr__now_ns() + ROUND_NS);
    }
}
