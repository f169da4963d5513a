/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's port: takes tasks, reserves memory, publishes batches. */
#include <errno.h>
#include <stdlib.h>

#include <headrace/face/arena.h>

#include "base/base.h"
#include "base/error.h"
#include "layout.h"
#include "network.h"
#include "os/os.h"
#include "ring.h"
#include "spin.h"
#include "timing.h"

/* The part of a slot that is in the page table of this process. */
struct seen {
    uint64_t mapped_bytes;
    uint32_t trims;
};

struct hr_port {
    struct hr__arena_layout layout;
    struct hr_worker_fds fds;
    int own_life_fd; /* -1 if the kernel cannot kill this process when the trainer dies; then waits also watch
                        fds.life_fd */
    struct hr__worker *record;
    struct hr__ring grants;
    struct hr__ring completions;
    struct hr__spin spin;
    struct hr__timing timing;
    struct seen *seen; /* layout.slot_count */
    uint64_t asks;
    uint64_t kept_bytes;     /* bytes that malloc keeps; 0: malloc is unchanged */
    uint64_t reserved_bytes; /* bytes that were reserved for the current grant */
    uint32_t own_pid;
    int64_t phase_since_ns;
    int64_t rss_looked_ns;
    atomic_bool has_rung; /* hr_port_ring was called since hr_port_look has returned 0 */
    bool has_grant;
    struct hr__record grant; /* the current one */
};

/* ---- waiting ---- */

/* The event that a port waits for, apart from the end: a grant, or the reply to an ask. */
struct awaited {
    hr_port *port;
    bool is_reply;
};

static bool is_open(const hr_port *port) {
    return !atomic_load(&port->layout.header->stopped);
}

static bool has_come(void *context) {
    const struct awaited *awaited = context;
    hr_port *port = awaited->port;
    if (!is_open(port)) return true;
    if (awaited->is_reply) return atomic_load(&port->record->reply) == port->asks;
    return hr__ring_has_record(&port->grants);
}

/* The user's dataset may have closed all descriptors, and may have opened other files under their numbers. The arena's
 * file is recognized by its size. */
static int check_descriptors(const hr_port *port) {
    uint64_t bytes = 0;
    int r = hr__memory_bytes(port->fds.memory_fd, &bytes);
    if (r == 0 && bytes == port->layout.total_bytes) return 0;
    return hr__fail(-EBADF,
                    "arena: the arena's descriptors were closed in worker %u; close only what you have opened there "
                    "(no os.closerange)",
                    port->fds.worker);
}

static int sleep_once(hr_port *port, int64_t deadline_ns) {
    const int fds[] = {port->fds.worker_bell_fd, port->fds.life_fd};
    bool ready[2] = {false, false};
    int r = check_descriptors(port);
    if (r < 0) return r;
    r = hr__poll(fds, ready, 2, deadline_ns);
    if (r < 0) return hr__fail(r, "arena: no task arrived: %s", hr__wait_error_text(r));
    if (ready[1]) return hr__fail(HR_E_CLOSED, "arena: the trainer has ended");
    hr__eventfd_drain(port->fds.worker_bell_fd);
    return 0;
}

static int wait_for(hr_port *port, bool is_reply, int64_t deadline_ns) {
    struct awaited awaited = {port, is_reply};
    int64_t start_ns = hr__now_ns();
    int r = 0;
    while (r == 0 && !hr__spin_until(&port->spin, has_come, &awaited)) {
        hr__ring_sleep(&port->grants, is_reply ? HR__SLEEPS_UNLESS_URGENT : HR__SLEEPS);
        if (!has_come(&awaited)) r = sleep_once(port, deadline_ns);
        hr__ring_sleep(&port->grants, HR__AWAKE);
    }
    hr__spin_learn(&port->spin, start_ns);
    if (r == 0 && !is_open(port)) r = hr__fail(HR_E_CLOSED, "arena: the trainer stopped it");
    return r;
}

static void wake_trainer(hr_port *port, bool urgent) {
    if (hr__ring_must_wake(&port->completions, urgent) && check_descriptors(port) == 0)
        hr__eventfd_ring(port->fds.trainer_bell_fd);
}

/* ---- opening ---- */

static int attach(hr_port *port) {
    uint64_t bytes = 0;
    void *mapping = NULL;
    int r = hr__memory_bytes(port->fds.memory_fd, &bytes);
    if (r == 0 && bytes < HR__HEADER_ROOM)
        return hr__fail(HR_E_CORRUPT, "arena: a file of %llu bytes is not an arena", (unsigned long long)bytes);
    if (r == 0) r = hr__map(port->fds.memory_fd, bytes, &mapping);
    if (r < 0) return hr__fail(r, "arena: cannot map the trainer's arena: %s", hr_error_text(r));
    r = hr__layout_check(mapping, bytes, &port->layout);
    if (r < 0) {
        hr__unmap(mapping, bytes);
        return r;
    }
    hr__keep_from_children(mapping, bytes);
    hr__stop_at(HR__AT_PORT_MAPPED);
    if (port->fds.worker < port->layout.worker_count) return 0;
    return hr__fail(-EINVAL, "arena: worker %u of %u", port->fds.worker, port->layout.worker_count);
}

/* A worker that replaces a dead one continues at the trainer's position in both rings. */
static void open_rings(hr_port *port) {
    uint32_t worker = port->fds.worker, capacity = port->layout.ring_capacity;
    port->record = hr__layout_worker(&port->layout, worker);
    port->grants = (struct hr__ring){hr__layout_grant_ring(&port->layout, worker), 0, capacity};
    port->completions = (struct hr__ring){hr__layout_completion_ring(&port->layout, worker), 0, capacity};
    port->grants.at = atomic_load(&port->grants.shared->head);
    port->completions.at = atomic_load(&port->completions.shared->tail);
    port->asks = atomic_load(&port->record->ask);
    /* This is done before the pid is stored, because the status of the predecessor must not be taken for that of this
     * process. */
    atomic_store_explicit(&port->record->phase, HR_PHASE_WAIT, memory_order_relaxed);
    atomic_store_explicit(&port->record->rss_bytes, 0, memory_order_relaxed);
    for (int i = 0; i < HR_MAKING_THREADS; i++)
        atomic_store_explicit(&port->record->making[i], 0, memory_order_relaxed);
    atomic_store_explicit(&port->record->pid, hr__pid(), memory_order_release);
    hr__stop_at(HR__AT_PORT_PID);
    atomic_fetch_add_explicit(&port->record->starts, 1, memory_order_relaxed);
    hr__stop_at(HR__AT_PORT_STARTS);
    port->phase_since_ns = hr__coarse_now_ns();
    hr__timing_open(&port->timing, hr__layout_sight(&port->layout, worker));
    hr__network_use(&hr__layout_sight(&port->layout, worker)->network);
    hr__stop_at(HR__AT_PORT_OPENED);
}

/* ---- the worker's status ---- */

void hr_port_enter(hr_port *port, enum hr_phase phase) {
    struct hr__worker *record = port->record;
    uint32_t from = atomic_load_explicit(&record->phase, memory_order_relaxed);
    if (from == (uint32_t)phase || from >= HR_PHASE_COUNT) return;
    int64_t now_ns = hr__coarse_now_ns(); /* its error averages out over batches */
    uint64_t spent_ns = atomic_load_explicit(&record->phase_ns[from], memory_order_relaxed);
    spent_ns += (uint64_t)(now_ns - port->phase_since_ns);
    atomic_store_explicit(&record->phase_ns[from], spent_ns, memory_order_relaxed);
    hr__stop_at(HR__AT_PORT_PHASE_NS);
    atomic_store_explicit(&record->phase_since_ns, (uint64_t)now_ns, memory_order_relaxed);
    atomic_store_explicit(&record->phase, (uint32_t)phase,
                          memory_order_release); /* pairs with hr__arena_worker_status */
    port->phase_since_ns = now_ns;
    if (phase == HR_PHASE_COLLATE) hr__timing_collate(&port->timing);
    hr__stop_at(HR__AT_PORT_PHASE);
}

void hr_port_note(hr_port *port, uint64_t sample) {
    atomic_store_explicit(&port->record->sample, sample, memory_order_relaxed);
    hr__stop_at(HR__AT_PORT_NOTED);
}

void hr_port_note_index(hr_port *port, uint64_t sample, uint64_t index) {
    hr_port_note(port, sample);
    hr__timing_sample(&port->timing, index);
}

void hr_port_note_last(hr_port *port, uint64_t sample) {
    hr_port_note(port, sample);
    hr__timing_no_sample(&port->timing);
}

void hr_port_note_making(hr_port *port, uint32_t thread, uint64_t sample) {
    if (thread >= HR_MAKING_THREADS) return;
    uint32_t value = sample < UINT32_MAX ? (uint32_t)sample + 1 : 0;
    atomic_store_explicit(&port->record->making[thread], value, memory_order_relaxed);
    hr__stop_at(HR__AT_PORT_MAKING);
}

void hr_port_note_oldest(hr_port *port, uint64_t sample, uint64_t index) {
    hr_port_note_making(port, 0, sample);
    hr__timing_show_sample(&port->timing, sample == HR_NO_SAMPLE ? HR_NO_SAMPLE : index);
}

void hr_port_count_sample(hr_port *port, uint64_t index, uint64_t took_ns) {
    hr__timing_count_sample(&port->timing, index, took_ns);
}

static uint64_t count_sharers(const hr_port *port, uint32_t trainer_count) {
    return hr__max(trainer_count, 1) * (uint64_t)port->layout.worker_count;
}

uint32_t hr_port_core_share(const hr_port *port, uint32_t trainer_count) {
    return (uint32_t)(hr__usable_core_count() / count_sharers(port, trainer_count));
}

uint64_t hr_port_keep_heap(hr_port *port, uint32_t trainer_count) {
    enum { PART = 8 }; /* the divisor of the available memory: batches may use half of it */
    port->kept_bytes = hr__keep_heap(hr__available_memory() / PART / count_sharers(port, trainer_count));
    return port->kept_bytes;
}

void hr_port_keep_blocks(const hr_port *port, uint64_t block_bytes) {
    hr__keep_blocks(block_bytes, port->kept_bytes);
}

int hr_port_diagnostics_fd(const hr_port *port) {
    return port->fds.diagnostics_fd;
}

static void enter_task(hr_port *port) {
    atomic_store_explicit(&port->record->task, port->grant.task, memory_order_relaxed);
    hr__stop_at(HR__AT_PORT_TASK);
    hr_port_note(port, HR_NO_SAMPLE);
    hr_port_enter(port, HR_PHASE_FETCH);
    hr__timing_take(&port->timing, port->phase_since_ns);
}

static void leave_task(hr_port *port) {
    hr_port_enter(port, HR_PHASE_WAIT);
    if (port->phase_since_ns - port->rss_looked_ns < HR_NS_PER_S) return;
    port->rss_looked_ns = port->phase_since_ns;
    atomic_store_explicit(&port->record->rss_bytes, hr__resident_bytes((int)port->own_pid), memory_order_relaxed);
    hr__stop_at(HR__AT_PORT_RSS);
}

int hr_port_open(struct hr_worker_fds *fds, hr_port **ret_port) {
    hr_port *port = calloc(1, sizeof *port);
    if (!port) return hr__fail(-ENOMEM, "arena: no memory for a port");
    port->fds = *fds;
    port->own_life_fd = -1;
    port->own_pid = hr__pid();
    int r = attach(port);
    if (r == 0) port->seen = calloc(port->layout.slot_count, sizeof *port->seen);
    if (r == 0 && !port->seen) r = hr__fail(-ENOMEM, "arena: no memory for a port");
    if (r < 0) {
        port->fds = hr__no_worker_fds(0); /* the caller keeps them */
        hr_port_close(port);
        return r;
    }
    if (port->layout.header->trainer_pid != hr__pid()) hr__die_with(port->fds.life_fd, &port->own_life_fd);
    hr__stop_at(HR__AT_PORT_ARMED);
    hr__spin_init(&port->spin, port->layout.worker_count + 1);
    open_rings(port);
    *fds = hr__no_worker_fds(fds->worker);
    *ret_port = port;
    return 0;
}

hr_port *hr_port_close(hr_port *port) {
    if (!port) return NULL;
    /* A child of this process does not have the mapping, and may have another one at this address. */
    if (port->layout.header && port->own_pid == hr__pid()) {
        if (port->record) hr__network_leave(&hr__layout_sight(&port->layout, port->fds.worker)->network);
        hr__unmap(port->layout.header, port->layout.total_bytes);
    }
    hr__stop_at(HR__AT_PORT_UNMAPPED);
    hr__close(&port->own_life_fd);
    hr_worker_fds_close(&port->fds);
    free(port->seen);
    free(port);
    hr__stop_at(HR__AT_PORT_CLOSED);
    return NULL;
}

/* ---- taking ---- */

static bool is_possible(const struct hr__arena_layout *layout, const struct hr__record *grant) {
    return grant->slot < layout->slot_count && grant->windows >= 1 &&
           grant->windows <= layout->slot_count - grant->slot &&
           grant->allowance <= grant->windows * layout->window_bytes && grant->bytes <= grant->allowance;
}

static int invalid_grant(const hr_port *port) {
    return hr__fail(HR_E_CORRUPT, "arena: worker %u received an invalid grant; the shared memory is damaged",
                    port->fds.worker);
}

static struct hr_task task_of(const hr_port *port, const struct hr__record *grant) {
    return (struct hr_task){.task = grant->task,
                            .kind = grant->kind,
                            .payload = hr__layout_window(&port->layout, grant->slot),
                            .payload_bytes = grant->bytes};
}

int hr_port_take(hr_port *port, int64_t deadline_ns, struct hr_task *ret_task) {
    if (!is_open(port)) return hr__fail(HR_E_CLOSED, "arena: the trainer stopped it");
    if (port->has_grant) return hr__fail(HR_E_STATE, "arena: publish the current task before taking another");
    int r = wait_for(port, false, deadline_ns);
    if (r == 0) r = hr__ring_pop(&port->grants, &port->grant);
    if (r < 0) return r;
    if (r == 0 || !is_possible(&port->layout, &port->grant)) return invalid_grant(port);
    port->has_grant = true;
    port->reserved_bytes = 0;
    hr__stop_at(HR__AT_PORT_TAKEN);
    *ret_task = task_of(port, &port->grant);
    enter_task(port);
    return 0;
}

/* ---- looking ahead ---- */

/* Returns what hr__ring_look does, and 0 for a grant behind one that is no batch. */
static int look_at(const hr_port *port, uint32_t ahead, struct hr__record *ret_grant) {
    struct hr__record before;
    for (uint32_t i = 0; i < ahead; i++) {
        int r = hr__ring_look(&port->grants, i, &before);
        if (r <= 0 || before.kind != HR__BATCH_KIND) return r < 0 ? r : 0;
    }
    return hr__ring_look(&port->grants, ahead, ret_grant);
}

int hr_port_look(hr_port *port, uint32_t ahead, int64_t deadline_ns, struct hr_task *ret_task) {
    struct hr__record grant;
    int r = 0;
    while (r == 0) {
        if (!is_open(port)) return hr__fail(HR_E_CLOSED, "arena: the trainer stopped it");
        hr__ring_sleep(&port->grants, HR__SLEEPS);
        r = look_at(port, ahead, &grant);
        bool has_rung = r == 0 && atomic_exchange(&port->has_rung, false);
        if (r == 0 && !has_rung && is_open(port)) r = sleep_once(port, deadline_ns);
        hr__ring_sleep(&port->grants, HR__AWAKE);
        if (has_rung) return 0;
    }
    if (r < 0) return r;
    hr__stop_at(HR__AT_PORT_LOOKED);
    if (!is_possible(&port->layout, &grant)) return invalid_grant(port);
    *ret_task = task_of(port, &grant);
    return 1;
}

void hr_port_ring(hr_port *port) {
    atomic_store(&port->has_rung, true);
    hr__stop_at(HR__AT_PORT_RUNG);
    if (check_descriptors(port) == 0) hr__eventfd_ring(port->fds.worker_bell_fd);
}

/* ---- writing ---- */

static int refused(hr_port *port, uint64_t bytes) {
    return hr__fail(HR_E_TOO_BIG, "arena: a batch of %llu bytes does not fit the limit of %llu bytes",
                    (unsigned long long)bytes, (unsigned long long)port->layout.header->limit_bytes);
}

/* Asks the trainer for memory, and uses the grant of the reply, even if the trainer refuses, because the slot may be
 * another one. */
static int ask(hr_port *port, uint64_t bytes) {
    struct hr__worker *record = port->record;
    atomic_store_explicit(&record->ask_bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&record->ask_slot, port->grant.slot, memory_order_relaxed);
    hr__stop_at(HR__AT_PORT_ASK_BYTES);
    atomic_store_explicit(&record->ask, ++port->asks, memory_order_release); /* pairs with note_new_asks in grant.c */
    hr__stop_at(HR__AT_PORT_ASK);
    atomic_fetch_add(&port->layout.header->asks, 1); /* as C in ring.h; the partner is has_work in receive.c */
    hr__stop_at(HR__AT_PORT_ASKS);
    wake_trainer(port, true);
    int r;
    do r = wait_for(port, true, HR_NO_DEADLINE);
    while (r == -EINTR);
    if (r < 0) return r;
    hr__stop_at(HR__AT_PORT_REPLIED);

    bool is_refused = atomic_load_explicit(&record->reply_refused, memory_order_relaxed);
    struct hr__record grant = port->grant;
    grant.bytes = 0;
    grant.slot = atomic_load_explicit(&record->reply_slot, memory_order_relaxed);
    grant.windows = atomic_load_explicit(&record->reply_windows, memory_order_relaxed);
    grant.generation = atomic_load_explicit(&record->reply_generation, memory_order_relaxed);
    grant.allowance = atomic_load_explicit(&record->reply_bytes, memory_order_relaxed);
    if (!is_possible(&port->layout, &grant) || (!is_refused && grant.allowance < bytes))
        return hr__fail(HR_E_CORRUPT, "arena: worker %u received an invalid reply; the shared memory is damaged",
                        port->fds.worker);
    if (grant.slot != port->grant.slot) port->reserved_bytes = port->seen[grant.slot].mapped_bytes = 0;
    port->grant = grant;
    return is_refused ? refused(port, bytes) : 0;
}

/* Announces the size before it commits the memory. If this process dies in between, the trainer counts too much, and
 * not too little. */
static int commit(hr_port *port, uint64_t bytes) {
    struct hr__slot *slot = hr__layout_slot(&port->layout, port->grant.slot);
    uint64_t has = atomic_load_explicit(&slot->committed_bytes, memory_order_relaxed);
    uint64_t target = hr__min(hr__round_up(bytes, HR_COMMIT_STEP), port->grant.allowance);
    if (target <= has) return 0;
    int r = check_descriptors(port);
    if (r < 0) return r;
    atomic_store(&slot->committed_bytes, target);
    hr__stop_at(HR__AT_PORT_ANNOUNCED);
    uint64_t window_at = hr__layout_window_at(&port->layout, port->grant.slot);
    r = hr__commit(port->fds.memory_fd, window_at + has, target - has);
    hr__stop_at(HR__AT_PORT_COMMITTED);
    if (r == 0) return 0;
    atomic_store(&slot->committed_bytes, has);
    hr__stop_at(HR__AT_PORT_WITHDRAWN);
    return hr__fail(r,
                    "arena: the kernel has no memory for a batch of %llu bytes: %s; lower batch_size or "
                    "prefetch_factor, or make more memory available",
                    (unsigned long long)bytes, hr_error_text(r));
}

static void enter_pages(hr_port *port, uint64_t bytes) {
    struct seen *seen = &port->seen[port->grant.slot];
    if (seen->trims != port->grant.trims) *seen = (struct seen){.trims = port->grant.trims};
    if (seen->mapped_bytes >= bytes) return;
    unsigned char *window = hr__layout_window(&port->layout, port->grant.slot);
    hr__populate(window + seen->mapped_bytes, bytes - seen->mapped_bytes);
    hr__stop_at(HR__AT_PORT_POPULATED);
    seen->mapped_bytes = bytes;
}

int hr_port_reserve(hr_port *port, uint64_t bytes, void **ret_data) {
    if (!port->has_grant) return hr__fail(HR_E_STATE, "arena: take a task first");
    hr_port_enter(port, HR_PHASE_COLLATE);
    int r = bytes > port->grant.allowance ? ask(port, bytes) : 0;
    if (r == 0) r = commit(port, bytes);
    if (r < 0) return r;
    enter_pages(port, hr__round_up(bytes, hr__page_bytes()));
    port->reserved_bytes = hr__max(port->reserved_bytes, bytes);
    *ret_data = hr__layout_window(&port->layout, port->grant.slot);
    return 0;
}

int hr_port_publish(hr_port *port, uint32_t status, uint64_t bytes) {
    if (!port->has_grant) return hr__fail(HR_E_STATE, "arena: take a task first");
    if (bytes > port->reserved_bytes)
        return hr__fail(-EINVAL, "arena: %llu bytes published, %llu reserved", (unsigned long long)bytes,
                        (unsigned long long)port->reserved_bytes);
    struct hr__record record = {.task = port->grant.task,
                                .generation = port->grant.generation,
                                .bytes = bytes,
                                .slot = port->grant.slot,
                                .kind = status};
    if (bytes && port->grant.kind == HR__BATCH_KIND)
        hr__timing_publish(&port->timing, port->grant.task, bytes, port->phase_since_ns);
    int r = hr__ring_push(&port->completions, &record);
    if (r < 0) return hr__fail(r, "arena: the completions of worker %u are full", port->fds.worker);
    port->has_grant = false;
    hr__stop_at(HR__AT_PORT_PUSHED);
    atomic_fetch_add_explicit(&port->record->done_count, 1, memory_order_relaxed);
    hr__stop_at(HR__AT_PORT_PUBLISHED);
    wake_trainer(port, false);
    leave_task(port);
    hr__stop_at(HR__AT_PORT_LEFT);
    return 0;
}
