/* SPDX-License-Identifier: Apache-2.0 */
#include "batch/helper.h"

#include "base/base.h"

enum {
    AWAKE_NS = 50000, /* how long it stays awake, and how soon work must come to have come right after another... */
    AWAKE_PART = 4,   /* ...or for this part of what the work before lasted, if that is longer */
    REST_NS = 1000000 /* once it could not be started or came too late, small pieces of work do without for so long */
};

enum state { ENDED, AWAKE, OFFERED, WORKING };

static bool turn(struct hr__helper *helper, enum state from, enum state to) {
    uint32_t expected = from;
    return atomic_compare_exchange_strong(&helper->state, &expected, to);
}

static void help(void *context) {
    struct hr__helper *helper = context;
    int64_t until_ns = 0;
    do {
        if (turn(helper, OFFERED, WORKING)) {
            helper->run(helper->context);
            if (helper->awake_ns) until_ns = hr__now_ns() + helper->awake_ns;
            atomic_store(&helper->state, AWAKE);
        } else if (hr__now_ns() >= until_ns)
            turn(helper, AWAKE, ENDED);
        else
            hr__yield(); /* whoever else has work for this core goes first */
    } while (atomic_load(&helper->state) != ENDED);
}

/* A child of fork inherits what this says, and not the thread. */
static bool is_there(const struct hr__helper *helper) {
    return helper->is_started && helper->pid == hr__pid();
}

void hr__helper_done(struct hr__helper *helper) {
    turn(helper, AWAKE, ENDED);
    if (is_there(helper)) hr__thread_join(&helper->thread);
    helper->is_started = false;
}

static void rest(struct hr__helper *helper) {
    helper->rests_until_ns = hr__now_ns() + REST_NS;
}

static bool start(struct hr__helper *helper) {
    hr__helper_done(helper);
    atomic_store(&helper->state, OFFERED);
    helper->pid = hr__pid();
    helper->is_started = hr__thread_start(&helper->thread, help, helper) == 0;
    if (!helper->is_started) rest(helper);
    return helper->is_started;
}

/* Takes the offer back, or waits until what was taken is done. */
static void end_offer(struct hr__helper *helper) {
    if (turn(helper, OFFERED, AWAKE)) rest(helper);
    while (atomic_load(&helper->state) == WORKING) hr__yield();
}

void hr__helper_run(struct hr__helper *helper, bool is_large, void (*run)(void *context), void *context) {
    int64_t now_ns = hr__now_ns();
    int64_t awake_ns = (int64_t)hr__max(AWAKE_NS, (uint64_t)helper->lasted_ns / AWAKE_PART);
    bool follows = now_ns - helper->ended_ns <= awake_ns;
    bool pays = is_large || (follows && now_ns >= helper->rests_until_ns);
    helper->run = run;
    helper->context = context;
    helper->awake_ns = follows ? awake_ns : 0;
    bool is_offered = (is_there(helper) && turn(helper, AWAKE, OFFERED)) || (pays && start(helper));
    run(context);
    if (is_offered) end_offer(helper);
    helper->ended_ns = hr__now_ns();
    helper->lasted_ns = helper->ended_ns - now_ns;
}
