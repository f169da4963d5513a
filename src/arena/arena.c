/* SPDX-License-Identifier: Apache-2.0 */
/* Opens, reports on, stops and closes an arena; the descriptors of its workers. */
#include <errno.h>
#include <stdlib.h>

#include "arena.h"
#include "base/error.h"
#include "ledger.h"
#include "os/os.h"

enum {
    MAX_PREFETCH = HR_ARENA_MAX_SLOTS / 2,
    HELD_SLOTS = 1024, /* additional slots for batches that the user's program keeps; without them batches are copied */
    FEW_HELD_SLOTS = 16,  /* number of these slots if address space is scarce */
    LEAST_HELD_SLOTS = 2, /* number of these slots if the limit on file sizes (ulimit -f) allows no more */
    RING_SPARE = 4,       /* grants beyond prefetch_count: epoch and stop messages */
    ADDRESS_SHARE = 4,    /* an arena uses at most a fourth of the address space that is left */
    LIMIT_SHARE = 2,      /* without a given limit, an arena uses half of the available memory */
};
#define MOST_ADDRESS_BYTES (UINT64_C(4) << 40)
#define SCARCE_WINDOW_BYTES (UINT64_C(64) << 20)

static int check_options(const struct hr__arena_options *options) {
    if (options->worker_count < 1 || options->worker_count > HR_ARENA_MAX_WORKERS)
        return hr__fail(-EINVAL, "arena: %u workers; 1 to %d are possible", options->worker_count,
                        HR_ARENA_MAX_WORKERS);
    if (options->prefetch_count < 1 || options->prefetch_count > MAX_PREFETCH)
        return hr__fail(-EINVAL,
                        "arena: %u batches in flight (prefetch_factor x workers); 1 to %d are possible: "
                        "change either",
                        options->prefetch_count, MAX_PREFETCH);
    return 0;
}

static uint32_t power_of_two_from(uint32_t count) {
    uint32_t power = 2;
    while (power < count) power *= 2;
    return power;
}

/* Returns the largest window size of at most `most_bytes`, a multiple of `align`, with which the file stays below the
 * limit on file sizes (ulimit -f); 0: no window fits. `head` is the layout without windows. */
static uint64_t window_within(const struct hr__arena_layout *head, uint64_t most_bytes, uint64_t align) {
    uint64_t limit = hr__file_limit(), before = hr__round_up(head->head_end, align);
    uint64_t room = limit > before ? (limit - before) / head->slot_count : 0;
    return hr__min(most_bytes, room) & ~(align - 1);
}

static int plan_slots(const struct hr__arena_options *options, uint32_t held_slots, uint64_t most_bytes,
                      struct hr__arena_layout *ret_layout) {
    uint32_t workers = options->worker_count, capacity = power_of_two_from(options->prefetch_count + RING_SPARE);
    struct hr__arena_layout head;
    for (;; held_slots--) {
        int r = hr__layout_plan(workers, options->prefetch_count + held_slots, capacity, 0, &head);
        if (r < 0) return r;
        uint64_t window = window_within(&head, most_bytes, HR_WINDOW_STEP);
        if (!window) window = window_within(&head, HR_WINDOW_STEP - HR_COMMIT_STEP, HR_COMMIT_STEP);
        if (!window && held_slots > LEAST_HELD_SLOTS) continue;
        return hr__layout_plan(workers, head.slot_count, capacity, hr__max(window, HR_COMMIT_STEP), ret_layout);
    }
}

/* Chooses the number of slots and their size. A window is as large as the limit if the address space and the limit on
 * file sizes allow it. */
static int plan(const struct hr__arena_options *options, uint64_t limit_bytes, struct hr__arena_layout *ret_layout) {
    uint64_t address_bytes = hr__address_space_left() / ADDRESS_SHARE;
    uint64_t room_bytes = hr__min(hr__min(MOST_ADDRESS_BYTES, hr__file_limit()), address_bytes);
    uint64_t enough = hr__round_up(hr__min(limit_bytes, MOST_ADDRESS_BYTES), HR_WINDOW_STEP);
    uint64_t many = options->prefetch_count + HELD_SLOTS, few = options->prefetch_count + FEW_HELD_SLOTS;
    bool is_scarce = room_bytes / many < hr__min(enough, SCARCE_WINDOW_BYTES);
    uint64_t window = hr__min(enough, hr__min(MOST_ADDRESS_BYTES, address_bytes) / (is_scarce ? few : many));
    return plan_slots(options, is_scarce ? FEW_HELD_SLOTS : HELD_SLOTS, hr__max(window, HR_WINDOW_STEP), ret_layout);
}

static int no_descriptor(int code) {
    if (code != -EMFILE && code != -ENFILE)
        return hr__fail(code, "arena: cannot open an eventfd or a pipe: %s", hr_error_text(code));
    return hr__fail(
        code, "arena: cannot open a descriptor: %s; raise the limit on open files (ulimit -n)" HR_HELP("open-files"),
        hr_error_text(code));
}

static int open_descriptors(hr_arena *arena) {
    enum hr__memory_kind kind = HR__MEMORY_MEMFD;
    int r =
        hr__memory_create(HR__ARENA_FILE, arena->layout.total_bytes, arena->layout.head_end, &arena->memory_fd, &kind);
    if (r == -EMFILE || r == -ENFILE) return no_descriptor(r);
    if (r < 0)
        return hr__fail(r,
                        "arena: cannot create shared memory; memfd_create, /dev/shm and $TMPDIR all failed, the last "
                        "one with: %s%s",
                        hr_error_text(r), r == -EFBIG ? "; raise the limit on file sizes (ulimit -f)" : "");
    arena->memory = (enum hr_memory_kind)kind;
    r = hr__eventfd(&arena->bell_fd);
    if (r == 0) r = hr__pipe(&arena->life_read_fd, &arena->life_write_fd);
    for (uint32_t i = 0; r == 0 && i < arena->layout.worker_count; i++) r = hr__eventfd(&arena->peers[i].bell_fd);
    return r < 0 ? no_descriptor(r) : 0;
}

static int allocate(hr_arena *arena) {
    uint32_t slots = arena->layout.slot_count, workers = arena->layout.worker_count;
    arena->entries = calloc(slots, sizeof *arena->entries);
    arena->free_slots = calloc(slots, sizeof *arena->free_slots);
    arena->peers = calloc(workers, sizeof *arena->peers);
    arena->wait_fds = calloc(workers + 1, sizeof *arena->wait_fds);
    arena->wait_ready = calloc(workers + 1, sizeof *arena->wait_ready);
    for (uint32_t i = 0; arena->peers && i < workers; i++) arena->peers[i].bell_fd = -1;
    if (!arena->entries || !arena->free_slots || !arena->peers || !arena->wait_fds || !arena->wait_ready)
        return hr__fail(-ENOMEM, "arena: no memory for the ledger of %u slots", slots);
    for (uint32_t i = 0; i < workers; i++) arena->wait_fds[i + 1] = -1;
    for (uint32_t slot = 0; slot < slots; slot++) {
        arena->entries[slot].windows = 1;
        arena->entries[slot].worker = HR__NONE;
        arena->free_slots[slots - 1 - slot] = slot; /* slot 0 on top */
    }
    arena->free_count = slots;
    return 0;
}

static int map(hr_arena *arena) {
    void *mapping;
    hr__stop_at(HR__AT_ARENA_CREATED);
    int r = hr__map(arena->memory_fd, arena->layout.total_bytes, &mapping);
    if (r < 0)
        return hr__fail(r, "arena: cannot map %llu bytes of address space: %s; raise the limit (ulimit -v)",
                        (unsigned long long)arena->layout.total_bytes, hr_error_text(r));
    hr__layout_write(&arena->layout, mapping, arena->limit_bytes, hr__pid());
    for (uint32_t i = 0; i < arena->layout.worker_count; i++) {
        struct hr__peer *peer = &arena->peers[i];
        uint32_t capacity = arena->layout.ring_capacity;
        peer->record = hr__layout_worker(&arena->layout, i);
        peer->grants = (struct hr__ring){hr__layout_grant_ring(&arena->layout, i), 0, capacity};
        peer->completions = (struct hr__ring){hr__layout_completion_ring(&arena->layout, i), 0, capacity};
    }
    arena->wait_fds[0] = arena->bell_fd;
    return 0;
}

int hr__arena_open(const struct hr__arena_options *options, hr_arena **ret_arena) {
    int r = check_options(options);
    if (r < 0) return r;
    hr_arena *arena = calloc(1, sizeof *arena);
    if (!arena) return hr__fail(-ENOMEM, "arena: no memory");
    pthread_mutex_init(&arena->lock, NULL);
    atomic_init(&arena->refs, 1);
    arena->memory_fd = arena->bell_fd = arena->life_read_fd = arena->life_write_fd = -1;
    arena->limit_bytes = options->limit_bytes ? options->limit_bytes : hr__available_memory() / LIMIT_SHARE;
    arena->prefetch_count = arena->reserved_count = options->prefetch_count;
    hr__spin_init(&arena->spin, options->worker_count + 1);

    r = plan(options, arena->limit_bytes, &arena->layout);
    if (r < 0) hr__fail(r, "arena: a limit of %llu bytes is too large", (unsigned long long)arena->limit_bytes);
    arena->has_few_slots = arena->layout.slot_count < options->prefetch_count + HELD_SLOTS;
    if (r == 0) r = allocate(arena);
    if (r == 0) r = open_descriptors(arena);
    if (r == 0) r = map(arena);
    if (r < 0) {
        hr_arena_close(arena);
        return r;
    }
    hr__fork_register(arena);
    *ret_arena = arena;
    return 0;
}

void hr__arena_close_descriptors(hr_arena *arena) {
    hr__close(&arena->memory_fd);
    hr__close(&arena->bell_fd);
    hr__close(&arena->life_read_fd);
    hr__close(&arena->life_write_fd);
    for (uint32_t i = 0; arena->peers && i < arena->layout.worker_count; i++) hr__close(&arena->peers[i].bell_fd);
}

static void drop_early(hr_arena *arena) {
    for (uint32_t i = 0; i < arena->layout.worker_count; i++)
        for (struct hr__held *held = arena->peers[i].early_first, *next; held; held = next) {
            next = held->next;
            hr_delivery_done(&held->public);
        }
}

hr_arena *hr_arena_close(hr_arena *arena) {
    if (!arena) return NULL;
    if (arena->layout.header && !arena->is_orphan) {
        hr_arena_stop(arena);
        if (arena->show) hr__show_leave(arena->show);
        drop_early(arena);
        pthread_mutex_lock(&arena->lock);
        hr__ledger_collect(arena);
        hr__unmap_unheld(arena, true);
        hr__stop_at(HR__AT_ARENA_UNMAPPED);
        atomic_store(&arena->is_closed,
                     true); /* from here on, the thread that releases a slot collects it: see return_slot in held.c */
        hr__ledger_collect(arena);
        pthread_mutex_unlock(&arena->lock);
    }
    if (!arena->is_orphan) hr__arena_close_descriptors(arena);
    hr__stop_at(HR__AT_ARENA_CLOSED);
    hr__arena_unref(arena);
    return NULL;
}

/* These checks apply to a stopped arena too. */
static int check_worker(const hr_arena *arena, uint32_t worker) {
    if (arena->is_orphan)
        return hr__fail(HR_E_STATE, "arena: the parent process owns this arena; open a new one in this forked process");
    if (worker >= arena->layout.worker_count)
        return hr__fail(-EINVAL, "arena: worker %u of %u", worker, arena->layout.worker_count);
    return 0;
}

int hr__arena_check(const hr_arena *arena, uint32_t worker) {
    int r = check_worker(arena, worker);
    return r == 0 && arena->is_stopped ? hr__fail(HR_E_CLOSED, "arena: the arena was stopped") : r;
}

int hr__arena_open_worker_fds(hr_arena *arena, uint32_t worker, struct hr_worker_fds *ret_fds) {
    int r = hr__arena_check(arena, worker);
    if (r < 0) return r;
    struct hr_worker_fds fds = hr__no_worker_fds(worker);
    r = hr__dup(arena->memory_fd, &fds.memory_fd);
    if (r == 0) r = hr__dup(arena->bell_fd, &fds.trainer_bell_fd);
    if (r == 0) r = hr__dup(arena->peers[worker].bell_fd, &fds.worker_bell_fd);
    if (r == 0 && hr__open_again(arena->life_read_fd, &fds.life_fd) < 0) r = hr__dup(arena->life_read_fd, &fds.life_fd);
    if (r < 0) {
        hr_worker_fds_close(&fds);
        return hr__fail(r,
                        "arena: cannot duplicate descriptors for worker %u: %s; raise the limit on open files "
                        "(ulimit -n)" HR_HELP("open-files"),
                        worker, hr_error_text(r));
    }
    *ret_fds = fds;
    return 0;
}

void hr_worker_fds_close(struct hr_worker_fds *fds) {
    hr__close(&fds->memory_fd);
    hr__close(&fds->trainer_bell_fd);
    hr__close(&fds->worker_bell_fd);
    hr__close(&fds->life_fd);
    hr__close(&fds->diagnostics_fd);
}

int hr_worker_fds_guard(const struct hr_worker_fds *fds, int pid) {
    int r = pid > 0 ? hr__kill_with(fds->life_fd, pid) : -ESRCH;
    return r == 0 ? 0
                  : hr__fail(r, "arena: cannot have worker %u killed when the trainer dies: %s", fds->worker,
                             hr_error_text(r));
}

int hr__arena_watch(hr_arena *arena, uint32_t worker, int fd) {
    int r = check_worker(arena, worker);
    if (r == 0) arena->wait_fds[worker + 1] = fd;
    return r;
}

int hr__arena_worker_status(const hr_arena *arena, uint32_t worker, struct hr_worker_status *ret_status) {
    int r = check_worker(arena, worker);
    if (r < 0) return r;
    hr__layout_read_status(arena->peers[worker].record, ret_status);
    return 0;
}

uint32_t hr_arena_dead_worker(const hr_arena *arena) {
    return arena->dead_worker;
}

void hr_arena_stop(hr_arena *arena) {
    pthread_mutex_lock(&arena->lock);
    if (!arena->is_orphan && !arena->is_stopped) {
        arena->is_stopped = true;
        atomic_store(&arena->layout.header->stopped, 1); /* pairs with the loads in port.c, as C and B in ring.h */
        hr__stop_at(HR__AT_ARENA_STOPPED);
        for (uint32_t i = 0; i < arena->layout.worker_count; i++) hr__eventfd_ring(arena->peers[i].bell_fd);
        hr__eventfd_ring(arena->bell_fd); /* for a thread that waits in hr__arena_receive */
    }
    pthread_mutex_unlock(&arena->lock);
}

int hr_arena_count(hr_arena *arena, uint32_t restart_count, uint64_t skipped_count) {
    pthread_mutex_lock(&arena->lock);
    int r = check_worker(arena, 0);
    if (r == 0) {
        arena->counts.restart_count += restart_count;
        arena->counts.skipped_count += skipped_count;
        hr__show_counts(arena);
    }
    pthread_mutex_unlock(&arena->lock);
    return r;
}

void hr_arena_report(hr_arena *arena, struct hr_arena_report *ret_report) {
    pthread_mutex_lock(&arena->lock);
    if (!arena->is_orphan && !atomic_load(&arena->is_closed)) {
        hr__ledger_collect(arena);
        hr__show_counts(arena);
    }
    *ret_report = arena->counts;
    ret_report->memory = arena->memory;
    ret_report->worker_count = arena->layout.worker_count;
    ret_report->slot_count = arena->layout.slot_count;
    ret_report->limit_bytes = arena->limit_bytes;
    ret_report->window_bytes = arena->layout.window_bytes;
    pthread_mutex_unlock(&arena->lock);
}
