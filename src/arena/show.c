/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's side of what observers see of a loader. The extension calls it in each next(). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/face/show.h>

#include "base/base.h"
#include "ledger.h"
#include "look.h"
#include "network.h"
#include "os/os.h"
#include "shown.h"

enum {
    LONG_NS = 100000,    /* calls of next() from here on are all timed */
    SHARE = 200,         /* the part of the time that clocks may take: 1/SHARE, 0.5 % */
    READS = 6,           /* of a clock in a call that is timed */
    MOST_LEFT = 1023,    /* calls that are not timed in a row */
    GUARD_NS = 20000000, /* and for how long */
    NAME_TRIES = 4,
    TELL_NS = 100000000, /* the other ranks are told so often how long this one waits */
};

struct hr_show {
    hr_arena *arena; /* the one that it is shown in, or NULL */
    struct hr__header *header;
    struct hr__shown *shown; /* in `header`; NULL: nothing is shown */
    struct hr__arena_layout layout;
    bool has_page; /* `header` is a page of its own */
    int page_fd;
    int socket_fd;
    uint32_t loader;
    int32_t rank;
    int32_t world_size;
    int64_t opened_ns;
    uint64_t recording;
    char name[HR_LOOK_NAME_BYTES];

    uint64_t counts[HR__COUNT_COUNT];
    uint64_t begun[HR__COUNT_COUNT]; /* the counts when the epoch began */
    int64_t first_ns;                /* when the loop had its first batch; 0: it has none yet */
    int64_t ended_ns;                /* when the epoch ended; 0: it has not */
    uint64_t epoch;
    uint64_t step;
    uint32_t step_us[HR_LOOK_STEPS];
    uint32_t step_end_us[HR_LOOK_STEPS];
    uint64_t earlier_waited_ns; /* counts of earlier arenas */
    uint64_t earlier_bytes;
    uint64_t earlier_restarts;
    uint64_t earlier_bad;
    struct hr_worker_look *earlier; /* workers of earlier arenas */
    uint32_t earlier_count;

    bool is_first; /* the next batch is the first one of its epoch */
    bool is_timed; /* the call of next() that is running */
    uint32_t weight;
    uint32_t left;    /* calls that are not timed before the next one that is */
    uint32_t untimed; /* calls since the last one that was timed */
    int64_t timed_ns; /* the end of that one */
    int64_t told_ns;  /* when hr_show_is_due was true */
    uint64_t period_ns;
    int64_t pin_began_ns;
    uint64_t pinned_ns;          /* waits for the pinning thread, */
    uint64_t attached_pinned_ns; /* and those before it was attached */

    hr_show *next; /* in the registry */
    hr_show *previous;
};

/* ---- the registry: a forked child shows nothing, and frees the names of the sockets ---- */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t install_once = PTHREAD_ONCE_INIT;
static hr_show *registry;
static uint32_t page_count;
static uint32_t loader_count;

/* Returns the place in which this process counts what it waits for remote objects, while it makes batches itself; NULL:
 * it has none. */
static struct hr__shown_network *network_of(const hr_show *show) {
    return show->has_page && !show->arena && show->shown ? &show->shown->network : NULL;
}

static void drop_page(hr_show *show) {
    if (show->has_page) hr__unmap(show->header, HR__HEADER_ROOM);
    show->has_page = false;
    hr__close(&show->page_fd);
}

static void forget_place(hr_show *show) {
    show->arena = NULL;
    show->header = NULL;
    show->shown = NULL;
    hr__close(&show->socket_fd);
}

static void before_fork(void) {
    pthread_mutex_lock(&registry_lock);
}

static void after_fork_in_parent(void) {
    pthread_mutex_unlock(&registry_lock);
}

static void after_fork_in_child(void) {
    for (hr_show *show = registry; show; show = show->next) {
        drop_page(show);
        forget_place(show);
        memset(show->counts, 0, sizeof show->counts);
        memset(show->begun, 0, sizeof show->begun);
        show->earlier_bytes = show->earlier_restarts = show->earlier_bad = show->earlier_count = 0;
    }
    page_count = 0;
    pthread_mutex_unlock(&registry_lock);
}

static void install(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void enter_registry(hr_show *show) {
    pthread_once(&install_once, install);
    pthread_mutex_lock(&registry_lock);
    show->loader = ++loader_count;
    show->next = registry;
    if (registry) registry->previous = show;
    registry = show;
    pthread_mutex_unlock(&registry_lock);
}

static void leave_registry(hr_show *show) {
    pthread_mutex_lock(&registry_lock);
    if (show->previous) show->previous->next = show->next;
    if (show->next) show->next->previous = show->previous;
    if (registry == show) registry = show->next;
    if (show->has_page) page_count--;
    pthread_mutex_unlock(&registry_lock);
}

/* ---- opening ---- */

hr_show *hr_show_open(const struct hr_show_who *who) {
    hr_show *show = calloc(1, sizeof *show);
    if (!show) return NULL;
    show->page_fd = show->socket_fd = -1;
    show->rank = who->rank;
    show->world_size = who->world_size;
    show->recording = who->recording;
    show->opened_ns = show->timed_ns = hr__now_ns();
    snprintf(show->name, sizeof show->name, "%s", who->name);
    for (int i = 0; i < HR_LOOK_STEPS; i++) show->step_us[i] = HR_LOOK_NO_STEP;
    enter_registry(show);
    return show;
}

hr_show *hr_show_close(hr_show *show) {
    if (!show) return NULL;
    if (network_of(show)) hr__network_leave(network_of(show));
    if (show->arena) hr__show_leave(show);
    leave_registry(show);
    drop_page(show);
    forget_place(show);
    free(show->earlier);
    free(show);
    return NULL;
}

/* ---- where it is shown ---- */

static void store(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_relaxed);
}

static uint64_t load(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}

static uint64_t waited_for_workers(const hr_show *show) {
    return show->earlier_waited_ns + (show->arena ? load(&show->header->waited_ns) : 0);
}

/* The numbers of the arena, which begin at 0 with each arena. */
static void add_arena_counts(hr_show *show) {
    if (!show->arena) return;
    show->counts[HR__COUNT_BYTES] = show->earlier_bytes + load(&show->header->delivered_bytes);
    show->counts[HR__COUNT_RESTARTS] =
        show->earlier_restarts + atomic_load_explicit(&show->header->restart_count, memory_order_relaxed);
    show->counts[HR__COUNT_BAD] = show->earlier_bad + load(&show->header->skipped_count);
}

static void show_counts(const hr_show *show) {
    struct hr__shown *shown = show->shown;
    for (int i = 0; i < HR__COUNT_COUNT; i++) store(&shown->counts[i], show->counts[i]);
    store(&shown->epoch, show->epoch);
    store(&shown->step, show->step);
}

void hr_show_use(hr_show *show, uint32_t workers, uint32_t queue_room) {
    if (!show->arena) return;
    atomic_store_explicit(&show->shown->used_count, workers, memory_order_relaxed);
    atomic_store_explicit(&show->shown->queue_room, queue_room, memory_order_relaxed);
}

/* The names of sockets outlive a descriptor while a child has a copy of it, so a name may be taken. */
static void take_name(hr_show *show, int memory_fd) {
    char name[64];
    int r = -1;
    for (int i = 0; r < 0 && i < NAME_TRIES; i++) {
        int length = snprintf(name, sizeof name, "headrace/%u/%u/%d", hr__user(), hr__pid(), memory_fd);
        if (i) snprintf(name + length, sizeof name - (size_t)length, "/%d", i);
        r = hr__socket_name(name, &show->socket_fd);
    }
}

static void show_step(const hr_show *show, uint64_t step) {
    uint64_t at = step % HR_LOOK_STEPS;
    atomic_store_explicit(&show->shown->step_us[at], show->step_us[at], memory_order_relaxed);
    atomic_store_explicit(&show->shown->step_end_us[at], show->step_end_us[at], memory_order_relaxed);
}

static void show_who(hr_show *show, uint32_t queue_room) {
    struct hr__shown *shown = show->shown;
    shown->loader = show->loader;
    shown->rank = show->rank;
    shown->world_size = show->world_size;
    hr_show_use(show, show->layout.worker_count, queue_room);
    shown->opened_ns = show->opened_ns;
    shown->recording = show->recording;
    memcpy(shown->name, show->name, sizeof shown->name);
    for (uint64_t i = 0; i < HR_LOOK_STEPS; i++) show_step(show, i);
    show_counts(show);
    hr__stop_at(HR__AT_SHOW_WHO);
    atomic_store_explicit(&shown->is_named, 1, memory_order_release); /* pairs with the check in look.c */
    hr__stop_at(HR__AT_SHOW_NAMED);
}

static void seed_times(struct hr__shown_times *to, const struct hr_times *from) {
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) store(&to->buckets[i], from->buckets[i]);
    store(&to->sum_ns, from->sum_ns);
    store(&to->worst_ns, from->worst_ns);
    store(&to->worst_index, from->worst_index);
}

/* Workers of a new arena go on with the numbers of those of the last one. */
static void seed_workers(hr_show *show) {
    for (uint32_t i = 0; i < show->earlier_count && i < show->layout.worker_count; i++) {
        const struct hr_worker_look *from = &show->earlier[i];
        struct hr__sight *to = hr__layout_sight(&show->layout, i);
        store(&to->earlier_done, from->status.done_count);
        store(&to->earlier_starts, from->status.starts);
        for (int phase = 0; phase < HR_PHASE_COUNT; phase++)
            store(&to->earlier_phase_ns[phase], from->status.phase_ns[phase]);
        seed_times(&to->samples, &from->samples);
        seed_times(&to->collates, &from->collates);
        store(&to->network.wait_ns, from->network.wait_ns);
        store(&to->network.wait_count, from->network.wait_count);
        store(&to->network.hit_count, from->network.hit_count);
    }
    hr__stop_at(HR__AT_SHOW_SEEDED);
}

void hr_show_attach(hr_show *show, hr_arena *arena, uint32_t queue_room) {
    if (show->arena) hr__show_leave(show);
    if (arena->is_orphan || !arena->layout.header) return;
    show->attached_pinned_ns = show->pinned_ns;
    show->arena = arena;
    show->layout = arena->layout;
    show->header = arena->layout.header;
    show->shown = hr__shown_of(show->header);
    arena->show = show;
    seed_workers(show);
    show_who(show, queue_room);
    take_name(show, arena->memory_fd);
}

static bool take_page_place(hr_show *show) {
    pthread_mutex_lock(&registry_lock);
    bool is_free = page_count < HR_SHOW_MAX_PAGES;
    page_count += is_free;
    pthread_mutex_unlock(&registry_lock);
    show->has_page = is_free;
    return is_free;
}

static bool make_page(hr_show *show) {
    enum hr__memory_kind kind;
    void *mapping = NULL;
    int r = hr__memory_create(HR__ARENA_FILE, HR__HEADER_ROOM, HR__HEADER_ROOM, &show->page_fd, &kind);
    if (r == 0) r = hr__map(show->page_fd, HR__HEADER_ROOM, &mapping);
    if (r < 0) {
        hr__close(&show->page_fd);
        return false;
    }
    show->layout = (struct hr__arena_layout){.total_bytes = HR__HEADER_ROOM};
    hr__layout_write(&show->layout, mapping, 0, hr__pid());
    show->header = mapping;
    show->shown = hr__shown_of(show->header);
    return true;
}

void hr_show_attach_page(hr_show *show) {
    if (show->has_page || show->arena || !take_page_place(show)) return;
    if (make_page(show)) {
        show_who(show, 0);
        take_name(show, show->page_fd);
        return;
    }
    pthread_mutex_lock(&registry_lock);
    page_count--;
    show->has_page = false;
    pthread_mutex_unlock(&registry_lock);
}

void hr__show_leave(hr_show *show) {
    uint32_t count = show->layout.worker_count;
    add_arena_counts(show);
    show->earlier_waited_ns = waited_for_workers(show);
    show->earlier_bytes = show->counts[HR__COUNT_BYTES];
    show->earlier_restarts = show->counts[HR__COUNT_RESTARTS];
    show->earlier_bad = show->counts[HR__COUNT_BAD];
    if (count > show->earlier_count) {
        struct hr_worker_look *grown = realloc(show->earlier, count * sizeof *grown);
        if (grown) {
            show->earlier = grown;
            show->earlier_count = count;
        }
    }
    for (uint32_t i = 0; i < count && i < show->earlier_count; i++)
        hr__look_worker(hr__layout_worker(&show->layout, i), hr__layout_sight(&show->layout, i), &show->earlier[i]);
    show->arena->show = NULL;
    forget_place(show);
}

/* ---- an epoch ---- */

void hr_show_begin(hr_show *show, uint64_t epoch, int64_t since_ns) {
    int64_t now_ns = hr__now_ns();
    add_arena_counts(show);
    memcpy(show->begun, show->counts, sizeof show->begun);
    if (since_ns > 0 && since_ns < now_ns) show->counts[HR__COUNT_START_NS] += (uint64_t)(now_ns - since_ns);
    show->first_ns = show->ended_ns = 0;
    show->epoch = epoch;
    show->step = 0;
    show->is_first = true;
    show->untimed = show->left = 0;
    show->timed_ns = now_ns;
    if (show->shown) show_counts(show);
}

bool hr_show_end(hr_show *show) {
    bool has_ended = show->first_ns && !show->ended_ns;
    if (has_ended) show->ended_ns = hr__now_ns();
    return has_ended;
}

int64_t hr_show_elapsed_ns(const hr_show *show) {
    return show->first_ns ? (show->ended_ns ? show->ended_ns : hr__now_ns()) - show->first_ns : 0;
}

void hr_show_read_epoch(const hr_show *show, struct hr_arena_look *ret_look) {
    uint64_t counts[HR__COUNT_COUNT];
    for (int i = 0; i < HR__COUNT_COUNT; i++) counts[i] = show->counts[i] - show->begun[i];
    *ret_look = (struct hr_arena_look){.epoch = show->epoch, .step = show->step};
    hr__look_counts(counts, ret_look);
}

/* ---- a call of next() ---- */

void hr_show_enter(hr_show *show, struct hr_show_visit *ret_visit) {
    if (network_of(show)) hr__network_use(network_of(show));
    *ret_visit = (struct hr_show_visit){
        .waited_ns = waited_for_workers(show) + show->pinned_ns, .pinned_ns = show->pinned_ns, .weight = 1};
    if (show->left && !show->is_first && hr__coarse_now_ns() - show->timed_ns < GUARD_NS) {
        show->left--;
        return;
    }
    ret_visit->weight = show->is_first ? 1 : 1 + show->untimed;
    ret_visit->began_ns = hr__now_ns();
    show->is_timed = true;
    show->weight = ret_visit->weight;
    if (show->shown) store(&show->shown->inside_since_ns, (uint64_t)ret_visit->began_ns);
}

/* Learns how often a call is timed, at the end of one that was. */
static void learn(hr_show *show, int64_t now_ns) {
    uint64_t period_ns = (uint64_t)(now_ns - show->timed_ns) / (show->untimed + 1);
    show->period_ns = show->period_ns ? (3 * show->period_ns + period_ns) / 4 : period_ns;
    uint64_t every = READS * hr__clock_cost_ns() * SHARE / hr__max(show->period_ns, 1);
    show->left = show->period_ns >= LONG_NS ? 0 : (uint32_t)hr__min(every, MOST_LEFT);
    show->timed_ns = now_ns;
    show->untimed = 0;
}

/* Adds the time of a call, and returns it; if it was not timed, how long it waited. */
static uint64_t add_time(hr_show *show, const struct hr_show_visit *visit) {
    uint64_t waited_ns = waited_for_workers(show) + show->pinned_ns - visit->waited_ns;
    uint64_t took_ns = waited_ns, counted_ns = waited_ns;
    if (visit->began_ns) {
        int64_t now_ns = hr__now_ns();
        took_ns = (uint64_t)(now_ns - visit->began_ns);
        if (took_ns > waited_ns) counted_ns = waited_ns + (took_ns - waited_ns) * visit->weight;
        learn(show, now_ns);
        show->is_timed = false;
        if (show->shown) store(&show->shown->inside_since_ns, 0);
    } else {
        show->untimed++;
        if (waited_ns >= LONG_NS) show->left = 0;
    }
    show->counts[show->is_first ? HR__COUNT_START_NS : HR__COUNT_INSIDE_NS] += counted_ns;
    if (!show->is_first) {
        show->counts[HR__COUNT_PIN_NS] += show->pinned_ns - visit->pinned_ns;
        show->counts[HR__COUNT_WAIT_NS] += waited_ns - (show->pinned_ns - visit->pinned_ns);
    }
    return took_ns;
}

static void count_step(hr_show *show, enum hr_show_result result, uint64_t took_ns, bool is_timed) {
    show->counts[HR__COUNT_BATCHES] += result == HR_SHOW_BATCH;
    show->counts[HR__COUNT_ERRORS] += result == HR_SHOW_ERROR;
    show->counts[HR__COUNT_STARTS] += show->is_first;
    if (show->is_first) show->first_ns = hr__now_ns();
    show->step++;
    uint64_t us = hr__min(took_ns / 1000, HR_LOOK_NO_STEP - 1);
    show->step_us[show->step % HR_LOOK_STEPS] = show->is_first ? HR_LOOK_NO_STEP : (uint32_t)us;
    show->step_end_us[show->step % HR_LOOK_STEPS] = is_timed ? (uint32_t)(show->timed_ns / 1000) : 0;
    if (show->shown) show_step(show, show->step);
    show->is_first = false;
}

void hr_show_leave(hr_show *show, const struct hr_show_visit *visit, enum hr_show_result result, uint64_t sample_count,
                   uint64_t ahead_count) {
    if (network_of(show)) hr__network_leave(network_of(show));
    uint64_t took_ns = add_time(show, visit);
    show->counts[HR__COUNT_SAMPLES] += sample_count;
    if (result != HR_SHOW_NOTHING) count_step(show, result, took_ns, visit->began_ns != 0);
    add_arena_counts(show);
    if (!show->shown) return;
    store(&show->shown->ahead_count, ahead_count);
    if (show->arena) store(&show->shown->used_bytes, load(&show->header->used_bytes));
    show_counts(show);
    hr__stop_at(HR__AT_SHOW_STEP);
}

/* ---- parts of a call ---- */

bool hr_show_is_due(hr_show *show) {
    if (show->timed_ns - show->told_ns < TELL_NS) return false;
    show->told_ns = show->timed_ns;
    return true;
}

int64_t hr_show_part_begin(const hr_show *show) {
    return show->is_timed && !show->is_first ? hr__now_ns() : 0;
}

void hr_show_part_end(hr_show *show, enum hr_show_part part, int64_t began_ns) {
    if (!began_ns) return;
    enum hr__count count = part == HR_SHOW_DRAW ? HR__COUNT_DRAW_NS : HR__COUNT_REBUILD_NS;
    show->counts[count] += (uint64_t)(hr__now_ns() - began_ns) * show->weight;
}

void hr_show_pin_begin(hr_show *show) {
    show->pin_began_ns = hr__now_ns();
    if (show->shown) store(&show->shown->wait_since_ns, (uint64_t)show->pin_began_ns);
}

void hr_show_pin_end(hr_show *show) {
    if (!show->pin_began_ns) return;
    uint64_t took_ns = (uint64_t)(hr__now_ns() - show->pin_began_ns);
    show->pin_began_ns = 0;
    show->pinned_ns += took_ns;
    if (show->shown) store(&show->shown->wait_since_ns, 0);
}

uint64_t hr_show_pinned_ns(const hr_show *show) {
    return show->pinned_ns - show->attached_pinned_ns;
}

uint64_t hr_show_waited_ns(const hr_show *show) {
    return waited_for_workers(show);
}

int64_t hr_show_timed_ns(const hr_show *show) {
    return show->timed_ns;
}

/* ---- reading one's own ---- */

uint32_t hr_show_read(const hr_show *show, struct hr_arena_look *ret_look, struct hr_worker_look *ret_workers,
                      uint32_t room) {
    struct hr_arena_look *look = ret_look;
    *look = (struct hr_arena_look){.trainer_pid = hr__pid(),
                                   .worker_count = show->arena ? show->layout.worker_count : show->earlier_count,
                                   .used_count = show->arena ? 0 : show->earlier_count,
                                   .loader = show->loader,
                                   .rank = show->rank,
                                   .world_size = show->world_size,
                                   .opened_ns = show->opened_ns,
                                   .epoch = show->epoch,
                                   .step = show->step};
    memcpy(look->name, show->name, sizeof look->name);
    memcpy(look->step_us, show->step_us, sizeof look->step_us);
    memcpy(look->step_end_us, show->step_end_us, sizeof look->step_end_us);
    hr__look_counts(show->counts, look);
    if (network_of(show)) hr__look_network(network_of(show), &look->network);
    if (show->arena) {
        look->queue_room = atomic_load_explicit(&show->shown->queue_room, memory_order_relaxed);
        look->used_count = atomic_load_explicit(&show->shown->used_count, memory_order_relaxed);
        look->used_bytes = load(&show->header->used_bytes);
        look->queue_count = (uint32_t)load(&show->shown->ahead_count);
    }
    for (uint32_t i = 0; i < look->worker_count; i++) {
        if (show->arena) look->queue_count += hr__look_ring(hr__layout_completion_ring(&show->layout, i));
        if (i >= room) continue;
        if (show->arena)
            hr__look_worker(hr__layout_worker(&show->layout, i), hr__layout_sight(&show->layout, i), &ret_workers[i]);
        else
            ret_workers[i] = show->earlier[i];
    }
    return look->worker_count;
}
