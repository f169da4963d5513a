/* SPDX-License-Identifier: Apache-2.0 */
/* The second copying thread: starts it, offers it parts of the work, and ends it when idle. */
#include "batch/copy_thread.h"

#include "base/base.h"

enum {
    AWAKE_NS =
        50000, /* how long the thread stays awake; a piece of work within this time after another one follows it... */
    AWAKE_PART = 4,   /* ...or within a fourth of the duration of that work, if this is longer */
    REST_NS = 1000000 /* after the thread could not be started or was too late, small pieces of work do not use it for
                         this time */
};

enum state { ENDED, AWAKE, OFFERED, WORKING };

static bool turn(struct hr__copy_thread *copy_thread, enum state from, enum state to) {
    uint32_t expected = from;
    return atomic_compare_exchange_strong(&copy_thread->state, &expected, to);
}

static void help(void *context) {
    struct hr__copy_thread *copy_thread = context;
    int64_t until_ns = 0;
    do {
        if (turn(copy_thread, OFFERED, WORKING)) {
            copy_thread->run(copy_thread->context);
            if (copy_thread->awake_ns) until_ns = hr__now_ns() + copy_thread->awake_ns;
            atomic_store(&copy_thread->state, AWAKE);
        } else if (hr__now_ns() >= until_ns)
            turn(copy_thread, AWAKE, ENDED);
        else
            hr__yield(); /* other processes that need this core go first */
    } while (atomic_load(&copy_thread->state) != ENDED);
}

/* A forked child inherits this struct, but not the thread. */
static bool is_there(const struct hr__copy_thread *copy_thread) {
    return copy_thread->is_started && copy_thread->pid == hr__pid();
}

void hr__copy_thread_end(struct hr__copy_thread *copy_thread) {
    turn(copy_thread, AWAKE, ENDED);
    if (is_there(copy_thread)) hr__thread_join(&copy_thread->thread);
    copy_thread->is_started = false;
}

static void rest(struct hr__copy_thread *copy_thread) {
    copy_thread->rests_until_ns = hr__now_ns() + REST_NS;
}

static bool start(struct hr__copy_thread *copy_thread) {
    hr__copy_thread_end(copy_thread);
    atomic_store(&copy_thread->state, OFFERED);
    copy_thread->pid = hr__pid();
    copy_thread->is_started = hr__thread_start(&copy_thread->thread, help, copy_thread) == 0;
    if (!copy_thread->is_started) rest(copy_thread);
    return copy_thread->is_started;
}

/* Takes the offer back, or waits until the thread has finished the work that it took. */
static void end_offer(struct hr__copy_thread *copy_thread) {
    if (turn(copy_thread, OFFERED, AWAKE)) rest(copy_thread);
    while (atomic_load(&copy_thread->state) == WORKING) hr__yield();
}

void hr__copy_thread_run(struct hr__copy_thread *copy_thread, bool is_large, void (*run)(void *context),
                         void *context) {
    int64_t now_ns = hr__now_ns();
    int64_t awake_ns = (int64_t)hr__max(AWAKE_NS, (uint64_t)copy_thread->lasted_ns / AWAKE_PART);
    bool follows = now_ns - copy_thread->ended_ns <= awake_ns;
    bool pays = is_large || (follows && now_ns >= copy_thread->rests_until_ns);
    copy_thread->run = run;
    copy_thread->context = context;
    copy_thread->awake_ns = follows ? awake_ns : 0;
    bool is_offered = (is_there(copy_thread) && turn(copy_thread, AWAKE, OFFERED)) || (pays && start(copy_thread));
    run(context);
    if (is_offered) end_offer(copy_thread);
    copy_thread->ended_ns = hr__now_ns();
    copy_thread->lasted_ns = copy_thread->ended_ns - now_ns;
}
