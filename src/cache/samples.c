/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "cache/samples.h"

/* The table of samples: who makes which sample, and where it is. samples.h has a picture of the file. */

enum {
    LARGEST_EXTENT = 32 << 20,
    SMALLEST_EXTENT = 64 << 10,
    HUGE_BYTES = 2 << 20,
    PARTS = 128, /* extents of the budget: more than there are processes, and few enough that each is large */
    PATIENCE = 4 /* times the mean */
};
#define LARGEST_COUNT (UINT64_C(1) << 48)
#define FIRST_WAIT_NS (5 * HR_NS_PER_S) /* before any sample was made */
#define LEAST_WAIT_NS INT64_C(1000000)
#define LONGEST_POLL_NS INT64_C(2000000)
#define SHORTEST_POLL_NS INT64_C(20000)
#define NO_MEMORY_PAUSE_NS HR_NS_PER_S

static uint64_t word_of(uint64_t state, uint64_t value) {
    return value << STATE_BITS | state;
}

static uint64_t state_of(uint64_t word) {
    return word & ((1 << STATE_BITS) - 1);
}

static uint64_t value_of(uint64_t word) {
    return word >> STATE_BITS;
}

static uint64_t this_boot(void) {
    char id[HR__BOOT_ID_BYTES] = {0};
    hr__boot_id(id);
    return hr__hash(id, strlen(id), 1) | 1; /* never 0 */
}

/* ---- making a table ---- */

int hr_samples_auto_budget(const hr_cache *cache, uint64_t *ret_bytes) {
    uint64_t left = 0;
    int r = hr__cache_memory_left(cache, &left);
    if (r == 0) *ret_bytes = left / 5 * 4;
    return r;
}

static uint64_t choose_extent(uint64_t budget) {
    uint64_t part = hr__min(budget / PARTS, LARGEST_EXTENT);
    uint64_t unit = part >= HUGE_BYTES ? HUGE_BYTES : SMALLEST_EXTENT;
    return hr__max(part / unit * unit, SMALLEST_EXTENT);
}

static struct hr__samples_head plan_of(uint64_t count, uint64_t budget) {
    uint64_t extent_bytes = choose_extent(budget), extent_count = budget / extent_bytes;
    uint64_t extents_at = SAMPLES_HEAD + hr__round_up(count * sizeof(struct hr__samples_entry), SAMPLE_ALIGN);
    uint64_t data_at = hr__round_up(extents_at + extent_count * sizeof(struct hr__samples_extent), HUGE_BYTES);
    return (struct hr__samples_head){.magic = HR__SAMPLES_MAGIC,
                                     .version = SAMPLES_VERSION,
                                     .head_bytes = sizeof(struct hr__samples_head),
                                     .count = count,
                                     .extent_bytes = extent_bytes,
                                     .extent_count = extent_count,
                                     .entries_at = SAMPLES_HEAD,
                                     .extents_at = extents_at,
                                     .data_at = data_at,
                                     .end = data_at + extent_count * extent_bytes,
                                     .boot = this_boot(),
                                     .makers = 0};
}

/* The file of hr_cache_build_file, with the head and the entries committed. */
static int make_file(hr_cache_build *build, const struct hr__samples_head *plan) {
    const char *path;
    int r = hr_cache_build_file(build, plan->end, &path);
    if (r < 0) return r;
    r = hr__file_make(path, &build->fd);
    if (r == 0) r = hr__lock_file(build->fd, HR__SHARED);
    if (r == 0) r = hr__file_cut(build->fd, plan->end);
    if (r < 0) return hr__fail(r, "cache: cannot make %s: %s", path, hr_error_text(r));
    bool is_memory = build->cache->stores[build->store].is_memory;
    r = hr__cache_commit_more(build->fd, is_memory, 0, plan->data_at);
    if (r == 0) r = hr__write_at(build->fd, 0, plan, sizeof *plan);
    return r < 0 ? hr__fail_more(r, "cache: no room for the table of '%s'", build->record.name) : 0;
}

int hr_samples_build(hr_cache_build *build, uint64_t count, uint64_t budget_bytes) {
    if (budget_bytes < HR_SAMPLES_LEAST_BYTES || budget_bytes > INT64_MAX / 2)
        return hr__fail(-EINVAL, "cache: the budget of '%s' is %" PRIu64 " bytes; give at least 1 MiB",
                        build->record.name, budget_bytes);
    if (count > LARGEST_COUNT)
        return hr__fail(-EINVAL, "cache: '%s' cannot have %" PRIu64 " samples", build->record.name, count);
    struct hr__samples_head plan = plan_of(count, budget_bytes);
    int r = make_file(build, &plan);
    if (r < 0) return r;
    build->record.bytes = build->record.chunk_bytes = plan.end;
    build->chunk_count = 0; /* each sample has its own checksum */
    build->sums = hr__realloc(build->sums, sizeof *build->sums);
    return build->sums ? 0 : hr__fail(-ENOMEM, "cache: no memory for a build");
}

/* ---- handles, and forks ---- */

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t install_once = PTHREAD_ONCE_INIT;
static hr_samples *table;

static void before_fork(void) {
    pthread_mutex_lock(&table_lock);
    for (hr_samples *one = table; one; one = one->next) pthread_mutex_lock(&one->lock);
}

static void unlock_all(void) {
    for (hr_samples *one = table; one; one = one->next) pthread_mutex_unlock(&one->lock);
    pthread_mutex_unlock(&table_lock);
}

static void after_fork_in_child(void) {
    for (hr_samples *one = table; one; one = one->next) {
        hr__close(&one->fd);
        atomic_store(&one->maker, 0);
        one->filling.is_taken = false;
    }
    unlock_all();
}

static void install(void) {
    pthread_atfork(before_fork, unlock_all, after_fork_in_child);
}

/* Gives the handle a descriptor and a number as a maker of its own. The caller has the lock. */
static int become_maker(hr_samples *samples) {
    struct hr_cached_info info;
    hr_cached_look(samples->cached, &info);
    int r = hr__file_reopen_to_write(info.fd, &samples->fd);
    uint64_t maker = atomic_fetch_add(&samples->head->makers, 1) + 1;
    if (r == 0) r = hr__byte_lock(samples->fd, HR__MAKERS_AT + maker);
    if (r == 0) {
        atomic_store(&samples->maker, maker);
        return 0;
    }
    hr__close(&samples->fd);
    return hr__fail(r, "cache: cannot take part in filling '%s': %s", info.name, hr_error_text(r));
}

static int need_maker(hr_samples *samples) {
    if (atomic_load(&samples->maker)) return 0;
    pthread_mutex_lock(&samples->lock);
    int r = atomic_load(&samples->maker) ? 0 : become_maker(samples);
    pthread_mutex_unlock(&samples->lock);
    return r;
}

/* ---- opening ---- */

static int check_head(const hr_samples *samples, const char *name) {
    const struct hr__samples_head *head = samples->head;
    uint64_t entries, extents, data;
    if (head->magic != HR__SAMPLES_MAGIC)
        return hr__fail(HR_E_CORRUPT, "cache: '%s' is not a table of samples; remove it (headrace cache rm)", name);
    if (head->version != SAMPLES_VERSION)
        return hr__fail(HR_E_VERSION, "cache: '%s' was made by another version of headrace; remove it", name);
    bool is_right = hr__mul(head->count, sizeof(struct hr__samples_entry), &entries) &&
                    hr__mul(head->extent_count, sizeof(struct hr__samples_extent), &extents) &&
                    hr__mul(head->extent_count, head->extent_bytes, &data) && head->extent_bytes >= SMALLEST_EXTENT &&
                    head->extent_bytes % SMALLEST_EXTENT == 0 && head->entries_at == SAMPLES_HEAD &&
                    head->extents_at % SAMPLE_ALIGN == 0 && head->data_at % SAMPLE_ALIGN == 0 &&
                    head->extents_at <= samples->bytes && head->data_at <= samples->bytes &&
                    entries <= head->extents_at && head->entries_at <= head->extents_at - entries &&
                    extents <= head->data_at && head->extents_at <= head->data_at - extents &&
                    data <= samples->bytes - head->data_at;
    return is_right ? 0 : hr__fail(HR_E_CORRUPT, "cache: the head of '%s' is damaged; remove it", name);
}

static void forget_unfinished(hr_samples *samples, uint64_t index, uint64_t *end) {
    const struct hr__samples_head *head = samples->head;
    uint64_t word = atomic_load(&samples->entries[index].word), place = value_of(word) * SAMPLE_ALIGN;
    if (state_of(word) == BUSY) atomic_store(&samples->entries[index].word, 0);
    if (state_of(word) != READY || place < head->data_at || place >= samples->bytes) return;
    *end = hr__max(*end, hr__min(place + samples->entries[index].bytes, samples->bytes));
}

/* The machine was stopped, so the parts of the file are of different times: what is there lies in front of the next
 * extent, and its checksums have to be compared. */
static void repair(hr_samples *samples) {
    struct hr__samples_head *head = samples->head;
    uint64_t end = head->data_at;
    for (uint64_t i = 0; i < head->count; i++) forget_unfinished(samples, i, &end);
    uint64_t used = (end - head->data_at + head->extent_bytes - 1) / head->extent_bytes;
    used = hr__min(hr__max(used, atomic_load(&head->next_extent)), head->extent_count);
    for (uint64_t i = 0; i < head->extent_count; i++) {
        atomic_store(&samples->extents[i].owner, 0);
        atomic_store(&samples->extents[i].used, i < used ? head->extent_bytes : 0);
    }
    atomic_store(&head->next_extent, used);
    atomic_store(&head->was_stopped, 1);
}

/* The process that repairs is maker 0. */
static int repair_once(hr_samples *samples) {
    uint64_t boot = this_boot();
    for (int i = 0; i < RETRIES && atomic_load(&samples->head->boot) != boot; i++) {
        int r = hr__byte_lock(samples->fd, HR__MAKERS_AT);
        if (r == 0 && atomic_load(&samples->head->boot) != boot) {
            repair(samples);
            atomic_store(&samples->head->boot, boot);
        }
        if (r == 0) break;
        hr__sleep_until(hr__now_ns() + RETRY_NS);
    }
    if (!atomic_load(&samples->head->was_stopped)) return 0;
    samples->checked = hr__realloc(NULL, samples->head->count + 1);
    if (!samples->checked) return hr__fail(-ENOMEM, "cache: no memory for %" PRIu64 " samples", samples->head->count);
    memset((void *)samples->checked, 0, samples->head->count + 1);
    return 0;
}

static int map_file(hr_samples *samples, const struct hr_cached_info *info) {
    void *file = NULL;
    int fd = -1;
    if (strcmp(info->format, HR_SAMPLES_FORMAT) != 0)
        return hr__fail(-EINVAL, "cache: '%s' has no samples; it is data of another kind", info->name);
    if (info->bytes < SAMPLES_HEAD) return hr__fail(HR_E_CORRUPT, "cache: '%s' is truncated; remove it", info->name);
    int r = hr__file_reopen_to_write(info->fd, &fd);
    if (r == 0) r = hr__map(fd, info->bytes, &file);
    hr__close(&fd);
    if (r < 0 || !file) return hr__fail(r, "cache: cannot map '%s' to write: %s", info->name, hr_error_text(r));
    samples->file = file;
    samples->bytes = info->bytes;
    samples->head = file;
    r = check_head(samples, info->name);
    if (r < 0) return r;
    samples->entries = (struct hr__samples_entry *)(samples->file + samples->head->entries_at);
    samples->extents = (struct hr__samples_extent *)(samples->file + samples->head->extents_at);
    return 0;
}

static void enter_table(hr_samples *samples) {
    pthread_once(&install_once, install);
    pthread_mutex_lock(&table_lock);
    samples->next = table;
    table = samples;
    pthread_mutex_unlock(&table_lock);
}

static void leave_table(hr_samples *samples) {
    pthread_mutex_lock(&table_lock);
    hr_samples **link = &table;
    while (*link && *link != samples) link = &(*link)->next;
    if (*link) *link = samples->next;
    pthread_mutex_unlock(&table_lock);
}

int hr_samples_open(const hr_cached *cached, hr_samples **ret_samples) {
    struct hr_cached_info info;
    hr_samples *samples = hr__realloc(NULL, sizeof *samples);
    if (!samples) return hr__fail(-ENOMEM, "cache: no memory");
    memset(samples, 0, sizeof *samples);
    hr_cached_look(cached, &info);
    samples->cached = cached;
    samples->fd = -1;
    samples->is_memory = samples->wants_huge = cached->cache->stores[cached->store].is_memory;
    samples->refused_from = UINT64_MAX;
    pthread_mutex_init(&samples->lock, NULL);
    int r = map_file(samples, &info);
    if (r == 0) samples->wants_huge = samples->is_memory && samples->head->extent_bytes % HUGE_BYTES == 0;
    if (r == 0) r = become_maker(samples);
    if (r == 0) r = repair_once(samples);
    if (r == 0) {
        enter_table(samples);
        *ret_samples = samples;
        return 0;
    }
    hr_samples_close(samples);
    return r;
}

hr_samples *hr_samples_close(hr_samples *samples) {
    if (!samples) return NULL;
    leave_table(samples);
    if (samples->file) hr__samples_release_extent(samples);
    hr__close(&samples->fd);
    hr__unmap(samples->file, samples->bytes);
    hr__free((void *)samples->checked);
    pthread_mutex_destroy(&samples->lock);
    hr__free(samples);
    return NULL;
}

/* ---- reading ---- */

static const char *name_of(const hr_samples *samples) {
    return samples->cached->record.name;
}

/* Finds a sample that is READY, and checks that it lies within the data. */
static int find(const hr_samples *samples, uint64_t index, uint64_t word, struct hr_sample *ret_sample) {
    uint64_t place = value_of(word) * SAMPLE_ALIGN, bytes = samples->entries[index].bytes;
    bool is_within = place >= samples->head->data_at && place <= samples->bytes - SAMPLE_HEAD &&
                     bytes <= samples->bytes - SAMPLE_HEAD - place;
    if (!is_within || ((const struct hr__sample_head *)(samples->file + place))->bytes != bytes)
        return hr__fail(HR_E_CORRUPT,
                        "cache: the entry of sample %" PRIu64 " of '%s' is damaged; remove it (headrace cache rm)",
                        index, name_of(samples));
    ret_sample->place = place;
    ret_sample->data = samples->file + place + SAMPLE_HEAD;
    ret_sample->bytes = bytes;
    return 0;
}

static bool has_right_sum(const hr_samples *samples, const struct hr_sample *sample) {
    const struct hr__sample_head *head = (const struct hr__sample_head *)(samples->file + sample->place);
    return hr__hash(sample->data, sample->bytes, sample->index) == head->sum;
}

/* After a stop of the machine, a sample is compared with its checksum when this handle first reads it. */
static bool is_whole(hr_samples *samples, const struct hr_sample *sample) {
    if (atomic_load(&samples->checked[sample->index])) return true;
    if (!has_right_sum(samples, sample)) return false;
    atomic_store(&samples->checked[sample->index], 1);
    return true;
}

static int take_entry(hr_samples *samples, uint64_t word, struct hr_sample *ret_sample) {
    uint64_t busy = word_of(BUSY, atomic_load(&samples->maker));
    if (!atomic_compare_exchange_strong(&samples->entries[ret_sample->index].word, &word, busy)) return -EAGAIN;
    hr__stop_at(HR__AT_SAMPLES_TAKEN);
    if (state_of(word) == READY) atomic_fetch_sub(&samples->head->ready, 1); /* it was damaged by a stop */
    ret_sample->begun_ns = hr__now_ns();
    return HR_SAMPLE_MAKE;
}

static int look(hr_samples *samples, uint64_t word, struct hr_sample *ret_sample) {
    uint64_t state = state_of(word);
    if (state == REFUSED) return HR_SAMPLE_REFUSED;
    if (state != READY && need_maker(samples) < 0) return HR_SAMPLE_REFUSED;
    if (state == BUSY && hr__samples_maker_lives(samples, value_of(word))) {
        ret_sample->begun_ns = hr__now_ns();
        return HR_SAMPLE_BUSY;
    }
    if (state != READY) return take_entry(samples, word, ret_sample);
    int r = find(samples, ret_sample->index, word, ret_sample);
    if (samples->checked && (r < 0 || !is_whole(samples, ret_sample)))
        return need_maker(samples) < 0 ? HR_SAMPLE_REFUSED : take_entry(samples, word, ret_sample);
    if (r == 0) atomic_fetch_add_explicit(&samples->head->hits, 1, memory_order_relaxed);
    return r < 0 ? r : HR_SAMPLE_READY;
}

int hr_samples_begin(hr_samples *samples, uint64_t index, struct hr_sample *ret_sample) {
    if (index >= samples->head->count)
        return hr__fail(-ERANGE, "cache: '%s' has %" PRIu64 " samples, and no sample %" PRIu64, name_of(samples),
                        samples->head->count, index);
    int r;
    *ret_sample = (struct hr_sample){.index = index};
    do r = look(samples, atomic_load(&samples->entries[index].word), ret_sample);
    while (r == -EAGAIN);
    return r;
}

static int64_t mean_ns(const hr_samples *samples) {
    uint64_t made = atomic_load(&samples->head->made);
    return made ? (int64_t)(atomic_load(&samples->head->sum_ns) / made) : 0;
}

int hr_samples_wait(hr_samples *samples, const struct hr_sample *sample, int64_t deadline_ns) {
    int64_t mean = mean_ns(samples);
    int64_t patience = mean ? (int64_t)hr__max((uint64_t)(PATIENCE * mean), LEAST_WAIT_NS) : FIRST_WAIT_NS;
    int64_t poll = (int64_t)hr__max(hr__min((uint64_t)mean / 16, LONGEST_POLL_NS), SHORTEST_POLL_NS);
    for (int64_t now = hr__now_ns();; now = hr__now_ns()) {
        uint64_t word = atomic_load(&samples->entries[sample->index].word);
        if (state_of(word) != BUSY || !hr__samples_maker_lives(samples, value_of(word))) return 0;
        if (now >= sample->begun_ns + patience) return -ETIMEDOUT;
        if (now >= deadline_ns) return -EAGAIN;
        hr__sleep_until(now + poll);
    }
}

/* ---- keeping ---- */

static void set_word(hr_samples *samples, const struct hr_sample *sample, uint64_t word) {
    atomic_store_explicit(&samples->entries[sample->index].word, word, memory_order_release);
}

void hr_samples_give_back(hr_samples *samples, struct hr_sample *sample) {
    hr__free(hr_take(sample->memory));
    set_word(samples, sample, word_of(EMPTY, 0));
}

void hr_samples_refuse(hr_samples *samples, struct hr_sample *sample, enum hr_sample_reason reason) {
    hr__free(hr_take(sample->memory));
    atomic_fetch_add(&samples->head->refused[reason], 1);
    set_word(samples, sample, word_of(REFUSED, reason));
}

/* Returns what hr__samples_place returns, and tries as rarely as possible where no room was found before. */
static int place(hr_samples *samples, uint64_t bytes, uint64_t *ret_place) {
    int r = bytes >= samples->refused_from ? -ENOSPC : 0;
    if (r == 0 && hr__now_ns() < samples->no_memory_until) r = -ENOMEM;
    if (r == 0) r = hr__samples_place(samples, bytes, ret_place);
    if (r == -ENOSPC) samples->refused_from = hr__min(samples->refused_from, bytes);
    if (r == -ENOMEM) samples->no_memory_until = hr__now_ns() + NO_MEMORY_PAUSE_NS;
    return r;
}

/* On a disk a write through the mapping could fail with SIGBUS, so the sample is written by pwrite. */
static bool give_memory(const hr_samples *samples, struct hr_sample *sample) {
    if (samples->is_memory) {
        sample->data = samples->file + sample->place + SAMPLE_HEAD;
        return true;
    }
    sample->memory = hr__realloc(NULL, sample->bytes + SAMPLE_ALIGN);
    sample->data = (void *)(uintptr_t)hr__round_up((uintptr_t)sample->memory, SAMPLE_ALIGN);
    return sample->memory != NULL;
}

int hr_samples_reserve(hr_samples *samples, struct hr_sample *sample, uint64_t bytes) {
    int r = bytes > samples->bytes ? -ENOSPC : 0;
    pthread_mutex_lock(&samples->lock);
    if (r == 0) r = place(samples, hr__round_up(bytes + SAMPLE_HEAD, SAMPLE_ALIGN), &sample->place);
    pthread_mutex_unlock(&samples->lock);
    hr__stop_at(HR__AT_SAMPLES_RESERVED);
    if (r == -ENOSPC) {
        hr_samples_refuse(samples, sample, HR_SAMPLE_NO_ROOM);
        return HR_SAMPLE_REFUSED;
    }
    sample->bytes = bytes;
    if (r == 0 && give_memory(samples, sample)) return HR_SAMPLE_READY;
    atomic_fetch_add(&samples->head->no_memory, 1);
    hr_samples_give_back(samples, sample);
    return HR_SAMPLE_MAKE;
}

static int write_sample(hr_samples *samples, struct hr_sample *sample) {
    struct hr__sample_head head = {.sum = hr__hash(sample->data, sample->bytes, sample->index), .bytes = sample->bytes};
    if (samples->is_memory) {
        memcpy(samples->file + sample->place, &head, sizeof head);
        return 0;
    }
    int r = hr__fail_at("samples_write");
    if (r == 0) r = hr__write_at(samples->fd, sample->place + SAMPLE_HEAD, sample->data, sample->bytes);
    if (r == 0) r = hr__write_at(samples->fd, sample->place, &head, sizeof head);
    return r;
}

int hr_samples_publish(hr_samples *samples, struct hr_sample *sample) {
    struct hr__samples_head *head = samples->head;
    int r = write_sample(samples, sample);
    hr__stop_at(HR__AT_SAMPLES_WRITTEN);
    if (r < 0) {
        hr_samples_give_back(samples, sample);
        return hr__fail(r, "cache: cannot write a sample of '%s': %s", name_of(samples), hr_error_text(r));
    }
    hr__free(hr_take(sample->memory));
    samples->entries[sample->index].bytes = sample->bytes;
    if (samples->checked) atomic_store(&samples->checked[sample->index], 1);
    atomic_fetch_add(&head->ready, 1);
    set_word(samples, sample, word_of(READY, sample->place / SAMPLE_ALIGN));
    hr__stop_at(HR__AT_SAMPLES_PUBLISHED);
    atomic_fetch_add(&head->sum_ns, (uint64_t)(hr__now_ns() - sample->begun_ns));
    atomic_fetch_add(&head->made, 1);
    return 0;
}

/* ---- what is there ---- */

static uint64_t used_bytes(const hr_samples *samples) {
    uint64_t bytes = 0, count = hr__min(atomic_load(&samples->head->next_extent), samples->head->extent_count);
    for (uint64_t i = 0; i < count; i++) bytes += atomic_load(&samples->extents[i].used);
    return bytes;
}

void hr_samples_look(const hr_samples *samples, struct hr_samples_report *ret_report) {
    const struct hr__samples_head *head = samples->head;
    *ret_report = (struct hr_samples_report){.count = head->count,
                                             .budget_bytes = head->extent_count * head->extent_bytes,
                                             .ready = atomic_load(&head->ready),
                                             .used_bytes = used_bytes(samples),
                                             .hits = atomic_load(&head->hits),
                                             .made = atomic_load(&head->made),
                                             .made_alone = atomic_load(&head->made_alone),
                                             .no_memory = atomic_load(&head->no_memory),
                                             .mean_ns = (uint64_t)mean_ns(samples)};
    for (int i = 0; i < HR_SAMPLE_REASON_END_; i++) ret_report->refused[i] = atomic_load(&head->refused[i]);
}

int hr_samples_peek(const char *path, struct hr_samples_report *ret_report) {
    struct hr__samples_head head = {0};
    int fd = -1, r = hr__file_open(path, &fd);
    if (r == 0) r = hr__read_at(fd, 0, &head, sizeof head);
    hr__close(&fd);
    if (r < 0) return hr__fail(r, "cache: cannot read %s: %s", path, hr_error_text(r));
    if (head.magic != HR__SAMPLES_MAGIC || head.version != SAMPLES_VERSION)
        return hr__fail(HR_E_CORRUPT, "cache: %s is no table of samples of this version", path);
    uint64_t extents = hr__min(atomic_load(&head.next_extent), head.extent_count);
    *ret_report = (struct hr_samples_report){.count = head.count,
                                             .budget_bytes = head.extent_count * head.extent_bytes,
                                             .ready = atomic_load(&head.ready),
                                             .used_bytes = extents * head.extent_bytes,
                                             .hits = atomic_load(&head.hits),
                                             .made = atomic_load(&head.made),
                                             .made_alone = atomic_load(&head.made_alone),
                                             .no_memory = atomic_load(&head.no_memory)};
    return 0;
}

int hr_samples_unfinished(const hr_samples *samples, int (*visit)(void *context, uint64_t index), void *context) {
    int r = 0;
    for (uint64_t i = 0; r == 0 && i < samples->head->count; i++)
        if (state_of(atomic_load(&samples->entries[i].word)) == BUSY) r = visit(context, i);
    return r;
}

void hr_samples_count_alone(hr_samples *samples) {
    atomic_fetch_add(&samples->head->made_alone, 1);
}

int hr__samples_verify(hr_samples *samples) {
    for (uint64_t i = 0; i < samples->head->count; i++) {
        struct hr_sample sample = {.index = i};
        uint64_t word = atomic_load(&samples->entries[i].word);
        if (state_of(word) != READY) continue;
        int r = find(samples, i, word, &sample);
        if (r < 0) return r;
        if (!has_right_sum(samples, &sample))
            return hr__fail(HR_E_CORRUPT,
                            "cache: sample %" PRIu64 " of '%s' does not match its checksum; remove it (headrace cache "
                            "rm)",
                            i, name_of(samples));
    }
    return 0;
}

int hr_samples_begin_check(hr_samples *samples) {
    int r = need_maker(samples);
    if (r < 0) return r;
    uint64_t word = atomic_load(&samples->head->check);
    for (;;) {
        if (state_of(word) == READY) return HR_SAMPLES_RIGHT;
        if (state_of(word) == REFUSED) return HR_SAMPLES_WRONG;
        if (state_of(word) == BUSY && hr__samples_maker_lives(samples, value_of(word))) return HR_SAMPLES_CHECKING;
        uint64_t own = word_of(BUSY, atomic_load(&samples->maker));
        if (atomic_compare_exchange_strong(&samples->head->check, &word, own)) return HR_SAMPLES_CHECK;
    }
}

void hr_samples_end_check(hr_samples *samples, enum hr_samples_check result) {
    uint64_t state = result == HR_SAMPLES_RIGHT ? READY : result == HR_SAMPLES_WRONG ? REFUSED : EMPTY;
    atomic_store(&samples->head->check, word_of(state, 0));
}
