/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_PRODUCT_H
#define HR_TESTS_PRODUCT_H

#include "arena_scene.h"

#include <headrace/face/show.h>

#include <dirent.h>
#include <stdatomic.h>

/*
 * The whole product in C: a loader with forked workers. A task is the number of an item; its batch is a list of that
 * number and an array of words that follow from it. Every item must be delivered exactly once, in order where that was
 * asked for, and what is kept must not change.
 */

enum { ITEMS_MAX = 4096, KEEP_MAX = 32 };

struct product;

struct setting {
    uint32_t workers;
    uint32_t prefetch;
    int out_of_order;
    uint64_t limit_bytes;
    uint64_t (*words_of_item)(uint64_t item);
    /* In the worker, before it makes an item; NULL: nothing. */
    void (*visit)(hr_port *port, uint32_t worker, uint32_t life, uint64_t task_count, uint64_t item);
    /* In the worker, when the arena was stopped; NULL: nothing. */
    void (*linger)(uint32_t worker);
    uint64_t keep_count; /* so many of the newest batches are kept, up to KEEP_MAX */
    /* Before a process is started; its $HEADRACE_STOP, or NULL. */
    const char *(*plan)(struct product *product, uint32_t worker);
};

/* The state that a worker inherits at its fork. */
struct life {
    struct product *product;
    uint32_t worker;
    uint32_t number; /* processes that had this worker's number before */
    bool is_planned;
};

struct kept {
    hr_lease *lease;
    const uint64_t *words; /* the second half */
    uint64_t first, count, item;
};

struct product {
    struct setting setting;
    hr_loader *loader;
    hr_show *show; /* it outlives the loader, as that of a loader in Python does */
    struct life lives[CREW_MAX];
    uint64_t item_count, submitted, delivered;
    uint64_t too_big_count;
    uint32_t death_count;
    struct hr_worker_report last_death;
    bool seen[ITEMS_MAX];
    struct kept kept[KEEP_MAX];
};

/* ---- the worker ---- */

static inline int publish_too_big(hr_port *port, uint64_t bytes) {
    void *data;
    int r = hr_port_reserve(port, sizeof bytes, &data);
    if (r < 0) return r;
    memcpy(data, &bytes, sizeof bytes);
    return hr_port_publish(port, HR_STATUS_TOO_BIG, sizeof bytes);
}

static inline int make_item(const struct setting *setting, hr_port *port, hr_batch *batch, uint64_t item) {
    static const struct hr_dtype uint64 = {1, 64, 1};
    uint64_t words = setting->words_of_item(item), bytes = 0;
    int64_t shape = (int64_t)words;
    void *data;
    hr_batch_reset(batch);
    must(hr_batch_open(batch, HR_NODE_LIST, 2));
    must(hr_batch_add_int(batch, (int64_t)item));
    must(hr_batch_add_filled(batch, HR_FLAVOR_NUMPY, uint64, 1, &shape, &data));
    fill(data, words * sizeof(uint64_t), item);
    must(hr_batch_measure(batch, &bytes));
    int r = -ENOSPC;
    for (int i = 0; r == -ENOSPC && i < 2; i++) {
        r = hr_port_reserve(port, bytes, &data);
        unsetenv("HEADRACE_FAIL"); /* a visit's */
    }
    if (r == HR_E_TOO_BIG) return publish_too_big(port, bytes);
    if (r < 0) return r;
    must(hr_batch_write(batch, data, bytes));
    return hr_port_publish(port, HR_STATUS_BATCH, bytes);
}

/* 0: the arena was stopped, or this was the worker's last task. */
static inline int serve(hr_port *port, const struct life *life, hr_batch *batch) {
    const struct setting *setting = &life->product->setting;
    struct hr_task task;
    for (uint64_t count = 0;; count++) {
        int r = hr_port_take(port, HR_NO_DEADLINE, &task);
        if (r == HR_E_CLOSED || (r == 0 && task.kind == HR_TASK_STOP)) return 0;
        if (r == 0 && task.kind == HR_TASK_EPOCH) {
            r = hr_port_publish(port, HR_STATUS_SKIPPED, 0);
        } else if (r == 0) {
            uint64_t item = *(const uint64_t *)task.payload;
            hr_port_note_index(port, item, item);
            hr_port_note_making(port, 0, item);
            if (setting->visit) setting->visit(port, life->worker, life->number, count, item);
            r = make_item(setting, port, batch, item);
        }
        if (r == HR_E_CLOSED) return 0;
        if (r < 0) return 98;
    }
}

static inline int be_product_worker(hr_port *port, void *context) {
    const struct life *life = context;
    hr_batch *batch = NULL;
    if (!life->is_planned) unsetenv("HEADRACE_STOP"); /* it is the trainer's */
    must(hr_batch_new(&batch));
    int code = serve(port, life, batch);
    if (code) fprintf(stderr, "worker %u: %s\n", life->worker, hr_error_message());
    hr_batch_free(batch);
    if (life->product->setting.linger) life->product->setting.linger(life->worker);
    return code;
}

/* ---- the trainer ---- */

static inline void start_product_worker(struct product *product, uint32_t worker) {
    const char *plan = product->setting.plan ? product->setting.plan(product, worker) : NULL;
    struct life *life = &product->lives[worker];
    *life = (struct life){product, worker, life->number, plan != NULL};
    if (plan) setenv("HEADRACE_STOP", plan, 1);
    must(hr_crew_fork(hr_loader_crew(product->loader), worker, be_product_worker, life));
    if (plan) unsetenv("HEADRACE_STOP");
    life->number++;
}

static inline void open_product(struct product *product, const struct setting *setting) {
    struct hr_loader_options options = {setting->workers, setting->prefetch, setting->out_of_order,
                                        setting->limit_bytes};
    *product = (struct product){.setting = *setting};
    must(hr_loader_open(&options, &product->loader));
    struct hr_show_who who = {.name = "product.c:1", .world_size = 1};
    product->show = hr_show_open(&who);
    check(product->show != NULL);
    hr_show_attach(product->show, hr_loader_arena(product->loader), setting->workers * setting->prefetch);
    for (uint32_t i = 0; i < setting->workers; i++) start_product_worker(product, i);
}

static inline struct hr_worker_report look_at(struct product *product, uint32_t worker) {
    struct hr_worker_report report;
    must(hr_crew_look(hr_loader_crew(product->loader), worker, &report));
    return report;
}

static inline void replace_dead_worker(struct product *product) {
    uint32_t worker = hr_arena_dead_worker(hr_loader_arena(product->loader));
    struct hr_succession succession;
    product->last_death = look_at(product, worker);
    check(!product->last_death.is_alive && product->last_death.is_end_known);
    check(product->last_death.signal == SIGKILL); /* a test's; by another one, or an exit, it failed */
    product->death_count++;
    must(hr_loader_replace(product->loader, worker, &succession));
    start_product_worker(product, worker);
}

static inline void submit_items(struct product *product) {
    uint64_t most = product->delivered + (uint64_t)product->setting.workers * product->setting.prefetch;
    for (; product->submitted < product->item_count && product->submitted < most; product->submitted++)
        check(hr_loader_submit(product->loader, &product->submitted, sizeof product->submitted) == 1);
}

static inline void begin_epoch(struct product *product, uint64_t item_count) {
    int r;
    while ((r = hr_loader_begin(product->loader, "epoch", 5, in_s(PATIENCE_S))) < 0) {
        if (r == HR_E_WORKER_DIED) replace_dead_worker(product);
        check(r == HR_E_WORKER_DIED || r == -EINTR);
    }
    check(item_count <= ITEMS_MAX);
    product->item_count = item_count;
    product->submitted = product->delivered = 0;
    memset(product->seen, 0, sizeof product->seen);
    hr_show_begin(product->show, 1, 0);
    submit_items(product);
}

static inline bool is_word_run(const uint64_t *words, uint64_t first, uint64_t count, uint64_t item) {
    for (uint64_t i = 0; i < count; i++)
        if (words[i] != word_of(item, first + i)) return false;
    return true;
}

static inline void release_kept(struct kept *kept) {
    if (!kept->lease) return;
    check(is_word_run(kept->words, kept->first, kept->count, kept->item));
    hr_lease_release(kept->lease);
    kept->lease = NULL;
}

/* Keeps the second half of the array, and lets go of the rest. */
static inline void keep(struct product *product, struct hr_delivery *delivery, const uint64_t *words, uint64_t count,
                        uint64_t item) {
    struct kept *kept = &product->kept[product->delivered % product->setting.keep_count];
    hr_lease *dropped;
    release_kept(kept);
    *kept = (struct kept){NULL, words + count / 2, count / 2, count - count / 2, item};
    uint64_t at = (uint64_t)((const unsigned char *)kept->words - (const unsigned char *)delivery->data);
    must(hr_delivery_lease(delivery, 0, at, &dropped));
    must(hr_delivery_lease(delivery, at, kept->count * sizeof *words, &kept->lease));
    hr_lease_release(dropped);
}

static inline uint64_t check_batch(struct product *product, struct hr_delivery *delivery) {
    struct hr_batch_reader reader;
    struct hr_node node;
    must(hr_batch_read(&reader, delivery->data, delivery->bytes));
    check(hr_batch_read_node(&reader, &node) == 1 && node.kind == HR_NODE_LIST && node.count == 2);
    check(hr_batch_read_node(&reader, &node) == 1 && node.kind == HR_NODE_INT);
    uint64_t item = (uint64_t)node.integer;
    check(hr_batch_read_node(&reader, &node) == 1 && node.kind == HR_NODE_ARRAY);
    uint64_t words = product->setting.words_of_item(item);
    check(node.ndim == 1 && (uint64_t)node.shape[0] == words);
    const uint64_t *data = (const uint64_t *)(const void *)((const unsigned char *)delivery->data + node.data_offset);
    check(is_word_run(data, 0, words, item));
    if (product->setting.keep_count) keep(product, delivery, data, words, item);
    return item;
}

/* A task's number is its item's. */
static inline void accept(struct product *product, struct hr_delivery *delivery) {
    uint64_t item = delivery->task;
    if (delivery->status == HR_STATUS_TOO_BIG)
        product->too_big_count++;
    else
        check(delivery->status == HR_STATUS_BATCH && check_batch(product, delivery) == item);
    check(item < product->submitted && !product->seen[item]);
    check(product->setting.out_of_order || item == product->delivered);
    product->seen[item] = true;
    product->delivered++;
    submit_items(product);
    hr_delivery_done(delivery);
}

/* One call of hr_loader_next and what follows from it; its result. A killed worker is replaced. */
static inline int step_product(struct product *product, int64_t deadline_ns) {
    struct hr_delivery *delivery;
    struct hr_show_visit visit;
    hr_show_enter(product->show, &visit);
    int r = hr_loader_next(product->loader, deadline_ns, &delivery);
    hr_show_leave(product->show, &visit, r == 0 ? HR_SHOW_BATCH : HR_SHOW_NOTHING, r == 0, 0);
    if (r == 0) accept(product, delivery);
    if (r == HR_E_WORKER_DIED) replace_dead_worker(product);
    if (r == HR_E_END) check(product->delivered == product->item_count);
    check(r == 0 || r == HR_E_WORKER_DIED || r == HR_E_END || r == -ETIMEDOUT || r == -EINTR);
    return r;
}

static inline void finish_epoch(struct product *product) {
    int r = 0;
    while (r != HR_E_END) {
        r = step_product(product, in_s(PATIENCE_S));
        check(r != -ETIMEDOUT);
    }
}

static inline int stop_product(struct product *product, int64_t timeout_ms) {
    return hr_crew_stop(hr_loader_crew(product->loader), timeout_ms * 1000000);
}

/* Batches that were kept are unchanged after the close. */
static inline void close_product(struct product *product) {
    product->loader = hr_loader_close(product->loader);
    product->show = hr_show_close(product->show);
    for (int i = 0; i < KEEP_MAX; i++) release_kept(&product->kept[i]);
}

/* ---- what must be back to where it was ---- */

/* A file in /dev/shm that headrace made, and that its process has not removed. A process that still runs may do so. */
static inline bool is_left_file(const char *name) {
    int pid = 0;
    return sscanf(name, "headrace-%d-", &pid) == 1 && (pid == getpid() || kill(pid, 0) < 0);
}

static inline int count_named_files(void) {
    int count = 0;
    DIR *folder = opendir("/dev/shm");
    for (struct dirent *entry; folder && (entry = readdir(folder));) count += is_left_file(entry->d_name);
    if (folder) closedir(folder);
    return count;
}

static int named_file_count; /* when the test began */
__attribute__((constructor)) static inline void note_named_files(void) {
    named_file_count = count_named_files();
}

/* None has come that stays. */
static inline bool no_named_file_is_left(void) {
    int64_t deadline = in_s(PATIENCE_S);
    while (count_named_files() > named_file_count) {
        if (now_ns() > deadline) return false;
        poll(NULL, 0, 1);
    }
    return true;
}

static inline void block_child_signal(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGCHLD);
    sigprocmask(SIG_BLOCK, set, NULL);
}

/* Reaps until this process has no child any more, and says when that was; the test is to be the subreaper, so that
 * these are a dead trainer's workers as well. false: some are left at the deadline. */
static inline bool reap_all(int64_t deadline_ns) {
    sigset_t set;
    block_child_signal(&set);
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0) return errno == ECHILD;
        if (pid > 0) continue;
        int64_t left_ns = deadline_ns - now_ns();
        if (left_ns <= 0) return false;
        struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
        sigtimedwait(&set, NULL, &left);
    }
}

#endif
