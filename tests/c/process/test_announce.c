/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/arena_scene.h"

#include <ftw.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"
#include "remote/fetcher.h"
#include "remote/remote.h"

/* Ranges that are announced to a fetcher become jobs in their order, within limits, or are withdrawn. This program is
 * reader, fetcher and the thread that takes jobs, so that each step can be looked at. */

enum { UNIT = 64 << 10, OBJECTS = 3, DEAD = OBJECTS - 1, HOST_MOST = 64, SOON_MOST = 48 };

static const uint64_t OBJECT_BYTES = UINT64_C(256) << 20, NONE = UINT64_MAX;
static char folder[64];
static hr_fetcher *fetcher;
static hr_announcer *announcer;
static const struct hr__known *known[OBJECTS];

/* ---- the scene ---- */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info, (void)kind, (void)at;
    return remove(path);
}

static void start_fetcher(uint64_t quota_bytes) {
    char below[HR__PATH_BYTES];
    struct hr_fetcher_options options = {.quota_bytes = quota_bytes, .idle_ms = 60000};
    must(hr_remote_folder(below, sizeof below));
    must(hr_fetcher_open(below, &fetcher));
    must(hr_fetcher_start(fetcher, &options));
}

static int make_scene(void **state) {
    (void)state;
    strcpy(folder, "/tmp/headrace-announce-XXXXXX");
    check(mkdtemp(folder) && setenv("HEADRACE_REMOTE", folder, 1) == 0);
    for (int i = 0; i < OBJECTS; i++) {
        char url[64], name[HR__NAME_BYTES + 1];
        snprintf(url, sizeof url, "https://%s/%d", i == DEAD ? "dead" : "host", i);
        snprintf(name, sizeof name, "0123456789abcdef0123456789abcde%d", i);
        struct hr_remote_object object = {url, url, "{}", name, "etag:1", OBJECT_BYTES};
        must(hr_remote_add(&object));
        known[i] = hr__known_find(url);
    }
    must(hr_announcer_new(&announcer));
    return 0;
}

static int remove_scene(void **state) {
    (void)state;
    announcer = hr_announcer_free(announcer);
    fetcher = hr_fetcher_close(fetcher);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return 0;
}

static struct hr_fetcher_info look(void) {
    struct hr_fetcher_info info;
    hr_fetcher_look(fetcher, &info);
    return info;
}

/* Waits until so many announced ranges are not fetched yet. */
static void await_announced(uint64_t count) {
    int64_t deadline_ns = in_s(PATIENCE_S);
    while (look().announced != count && now_ns() < deadline_ns) hr__sleep_until(now_ns() + HR_NS_PER_S / 1000);
    check(look().announced == count);
}

static void await_connections(uint64_t count) {
    int64_t deadline_ns = in_s(PATIENCE_S);
    while (look().connections != count && now_ns() < deadline_ns) hr__sleep_until(now_ns() + HR_NS_PER_S / 1000);
    check(look().connections == count);
}

/* It does not try to connect all the time. */
static void await_connection(void) {
    int64_t deadline_ns = in_s(PATIENCE_S);
    int r;
    while ((r = hr_announcer_begin(announcer)) < 0 && now_ns() < deadline_ns)
        hr__sleep_until(now_ns() + HR_NS_PER_S / 100);
    check(r == 1);
}

static void announce(int object, uint64_t at, uint64_t bytes, uint64_t position) {
    check(hr_announcer_begin(announcer) >= 0);
    hr__announcer_add(announcer, known[object], at, bytes);
    must(hr_announcer_send(announcer, position));
}

/* Takes a job that is there. */
static struct hr_fetcher_job take(void) {
    struct hr_fetcher_job job;
    check(hr_fetcher_take(fetcher, in_s(PATIENCE_S), &job) == 1 && job.kind == HR_FETCHER_PART);
    return job;
}

static void take_none(void) {
    struct hr_fetcher_job job;
    check(hr_fetcher_take(fetcher, now_ns(), &job) == 0);
}

static void give(const struct hr_fetcher_job *job) {
    void *data = calloc(1, job->bytes);
    check(data);
    must(hr_fetcher_give(fetcher, job->id, data, job->bytes));
    free(data);
}

static void check_job(const struct hr_fetcher_job *job, int object, uint64_t at, uint64_t bytes) {
    assert_string_equal(job->url, known[object]->object.url);
    check(job->at == at && job->bytes == bytes && !strcmp(job->version, "etag:1"));
}

static void fetch(int object, uint64_t at, uint64_t bytes) {
    struct hr_fetcher_job job = take();
    check_job(&job, object, at, bytes);
    give(&job);
}

/* ---- readers ---- */

static struct hr__link connect_reader(void) {
    struct hr__link link = {.fd = -1};
    must(hr__link_open(&link));
    return link;
}

static void send_range(const struct hr__link *link, enum hr__message_type type, int object, uint64_t at,
                       uint64_t bytes) {
    struct hr__range_request request = hr__range_request(known[object], type, 1, (struct hr__range){at, bytes});
    struct hr__read_part parts[HR__RANGE_PARTS];
    hr__range_parts(parts, &request, known[object]);
    must(hr__socket_send(link->fd, parts, HR__RANGE_PARTS, true));
}

/* Returns the code of the answer to a READ; 1: it has not come. */
static int answer_of(const struct hr__link *link) {
    static char message[HR__MESSAGE_BYTES];
    struct hr__answer answer;
    int bytes;
    do {
        bytes = hr__socket_receive(link->fd, message, sizeof message);
        if (bytes == -EAGAIN) return 1;
        check(bytes >= (int)sizeof answer);
        memcpy(&answer, message, sizeof answer);
    } while (answer.head.type == HR__DATA);
    return answer.code;
}

static int await_answer(const struct hr__link *link) {
    int64_t deadline_ns = in_s(PATIENCE_S);
    int code;
    while ((code = answer_of(link)) == 1 && now_ns() < deadline_ns) hr__sleep_until(now_ns() + HR_NS_PER_S / 1000);
    check(code != 1);
    return code;
}

/* Waits until so many requests are open. */
static void await_requests(uint64_t count) {
    int64_t deadline_ns = in_s(PATIENCE_S);
    for (uint64_t found = UINT64_MAX; found != count; hr__sleep_until(now_ns() + HR_NS_PER_S / 1000)) {
        check(now_ns() < deadline_ns);
        pthread_mutex_lock(&fetcher->lock);
        found = fetcher->open_requests;
        pthread_mutex_unlock(&fetcher->lock);
    }
}

/* ---- tests ---- */

static void ranges_are_fetched_in_their_order(void **state) {
    (void)state;
    start_fetcher(UINT64_MAX);
    check(hr_announcer_begin(announcer) == 1 && hr_announcer_begin(announcer) == 0);
    announce(1, 10, 2 * UNIT, 0);
    announce(0, 5 * UNIT, UNIT, 1);
    announce(1, UNIT, UNIT, 2); /* is being fetched already */
    announce(0, 0, UNIT + 1, 3);
    await_announced(4);
    struct hr_fetcher_job first = take();
    check(first.at == 0 && first.bytes == 3 * UNIT);
    fetch(0, 5 * UNIT, UNIT);
    fetch(0, 0, 2 * UNIT);
    give(&first);
    check(look().announced == 0);
}

static void ranges_of_one_object_are_one_message(void **state) {
    (void)state;
    start_fetcher(UINT64_MAX);
    check(hr_announcer_begin(announcer) == 1);
    for (uint64_t i = 0; i < 100; i++) hr__announcer_add(announcer, known[i % 2], (99 - i) * UNIT, UNIT);
    must(hr_announcer_send(announcer, 0));
    await_announced(100);
    for (uint64_t i = 0; i < 100; i++) {
        struct hr_fetcher_job job = take();
        check(job.at == (2 * (i % 50) + !strcmp(job.url, "https://host/0")) * UNIT);
        give(&job);
    }
}

static void small_ranges_are_fetched_in_blocks(void **state) {
    (void)state;
    start_fetcher(UINT64_MAX);
    announce(0, MIB + 5, 100, 0);
    announce(0, 2 * MIB - 5, 100, 1); /* in two blocks, of which the first one is being fetched */
    announce(0, OBJECT_BYTES - 5, 5, 2);
    await_announced(3);
    fetch(0, MIB, MIB);
    fetch(0, 2 * MIB, MIB);
    fetch(0, OBJECT_BYTES - MIB, MIB);
    take_none();
}

static void withdrawn_ranges_are_not_fetched(void **state) {
    (void)state;
    start_fetcher(UINT64_MAX);
    for (uint64_t i = 0; i < 10; i++) announce(0, 2 * i * UNIT, UNIT, i);
    await_announced(10);
    must(hr_announcer_withdraw(announcer, 4, 6)); /* those of which a worker reads two are kept, so they are fetched */
    await_announced(6);
    fetch(0, 8 * UNIT, UNIT);
    must(hr_announcer_withdraw(announcer, NONE, NONE));
    await_announced(0);
    take_none();
}

static void the_end_of_the_connection_withdraws(void **state) {
    (void)state;
    start_fetcher(UINT64_MAX);
    for (uint64_t i = 0; i < 10; i++) announce(0, 2 * i * UNIT, UNIT, i);
    await_announced(10);
    int status;
    pid_t pid = fork(); /* a child has a copy of the descriptor, and announces on a connection of its own */
    if (pid == 0) {
        bool is_new = hr_announcer_begin(announcer) == 1;
        hr__announcer_add(announcer, known[1], 0, UNIT);
        int r = hr_announcer_send(announcer, NONE);
        kill(getpid(), SIGSTOP);
        _exit(is_new && r == 1 ? 0 : 1);
    }
    check(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    await_announced(11);
    announcer = hr_announcer_free(announcer);
    await_announced(1);
    check(kill(pid, SIGCONT) == 0 && waitpid(pid, &status, 0) == pid && status == 0);
    await_announced(0);
    await_connections(0);
    take_none();
}

static void a_quarter_of_the_quota_is_fetched_ahead(void **state) {
    (void)state;
    start_fetcher(8 * MIB);
    for (uint64_t i = 0; i < 5; i++) announce(0, i * MIB, MIB, i);
    await_announced(5);
    fetch(0, 0, MIB);
    fetch(0, MIB, MIB);
    take_none();
    check(look().announced == 3);
    must(hr_announcer_withdraw(announcer, 1, 1));
    fetch(0, 2 * MIB, MIB);
    take_none();
}

static void loaders_take_turns(void **state) {
    hr_announcer *other;
    (void)state;
    start_fetcher(UINT64_MAX);
    must(hr_announcer_new(&other));
    for (uint64_t i = 0; i < 4; i++) announce(0, i * MIB, MIB, i);
    hr_announcer *first = announcer;
    announcer = other;
    for (uint64_t i = 0; i < 4; i++) announce(1, i * MIB, MIB, i);
    await_announced(8);
    int of_first = 0;
    for (int i = 0; i < 4; i++) {
        struct hr_fetcher_job job = take();
        of_first += !strcmp(job.url, "https://host/0");
        give(&job);
    }
    check(of_first == 2);
    announcer = first;
    hr_announcer_free(other);
    await_announced(2);
}

static void what_is_not_kept_waits_in_memory(void **state) {
    static unsigned char data[1000];
    (void)state;
    start_fetcher(0);
    for (uint64_t i = 0; i < 4; i++) announce(0, 5000 * i, 1000, i);
    await_announced(4);
    must(hr_announcer_withdraw(announcer, 1, 2)); /* the second one is asked for by the worker that reads it */
    await_announced(3);
    fetch(0, 10000, 1000);
    fetch(0, 15000, 1000);
    take_none();
    /* It is read from memory: a thread that takes jobs sends it, and gets none. */
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct hr__read_part part = {data, sizeof data};
        _exit(hr__remote_get(known[0], 10000, sizeof data, false, &part, 1) == 1 ? 0 : 1);
    }
    while (waitpid(pid, &status, WNOHANG) == 0) take_none();
    check(status == 0 && look().sent_bytes == 1000 && look().fetched_bytes == 2000);
    must(hr_announcer_withdraw(announcer, NONE, NONE)); /* drops the other one */
    announce(0, 15000, 1000, 0);
    fetch(0, 15000, 1000);
}

/* Two loaders have announced a range that a worker asks for: it is that of the loader which needs it sooner. */
static void the_nearest_announcement_is_that_of_the_worker(void **state) {
    (void)state;
    start_fetcher(0);
    hr_announcer *near = announcer, *far;
    must(hr_announcer_new(&far));
    announce(0, 5000, 1000, 0);
    announcer = far;
    await_connection();
    for (uint64_t i = 0; i < 2; i++) announce(0, 5000 * i, 1000, i);
    await_announced(3);
    struct hr__link reader = connect_reader();
    send_range(&reader, HR__READ, 0, 5000, 1000);
    await_requests(1);
    fetch(0, 5000, 1000);
    check(await_answer(&reader) == 0);
    fetch(0, 0, 1000);
    fetch(0, 5000, 1000); /* waits in memory for the other loader */
    take_none();
    hr__link_drop(&reader);
    announcer = near;
    hr_announcer_free(far);
}

/* A worker may ask for a range before a thread is free for the announcement. */
static void what_is_asked_for_first_is_not_fetched_twice(void **state) {
    (void)state;
    start_fetcher(0);
    for (uint64_t i = 0; i < 3; i++) announce(0, 5000 * i, 1000, i);
    await_announced(3);
    struct hr__link reader = connect_reader();
    send_range(&reader, HR__ASK, 0, 10000, 1000);
    send_range(&reader, HR__READ, 0, 5000, 1000);
    await_requests(1);
    fetch(0, 5000, 1000);
    check(await_answer(&reader) == 0);
    fetch(0, 10000, 1000);
    fetch(0, 0, 1000);
    take_none();
    check(look().announced == 0 && look().fetched_bytes == 3000);
    hr__link_drop(&reader);
}

static void without_a_fetcher_nothing_is_announced(void **state) {
    (void)state;
    check(hr_announcer_begin(announcer) < 0);
    hr__announcer_add(announcer, known[0], 0, 10);
    check(hr_announcer_send(announcer, 0) < 0 && hr_announcer_withdraw(announcer, 1, 1) < 0);
    start_fetcher(UINT64_MAX);
    await_connection();
    announce(0, 0, UNIT, 0);
    await_announced(1);
    fetcher = hr_fetcher_close(fetcher);
    check(hr_announcer_withdraw(announcer, 0, 0) < 0);
    start_fetcher(UINT64_MAX);
    await_connection();
    announce(1, 0, UNIT, 0);
    fetch(1, 0, UNIT);
    take_none();
}

static void invalid_messages_are_no_announcements(void **state) {
    struct hr__link link = {.fd = -1};
    char message[512] = {0};
    (void)state;
    start_fetcher(UINT64_MAX);
    announce(0, 0, UNIT, 7);
    must(hr__link_open(&link));
    struct hr__range_request request = hr__range_request(known[1], HR__ANNOUNCE, 0, (struct hr__range){0, UNIT});
    struct hr__range outside[] = {{OBJECT_BYTES, 1}, {0, 0}, {1, OBJECT_BYTES}, {UINT64_MAX, 2}, {UNIT, UNIT}};
    struct hr__read_part parts[HR__RANGE_PARTS + 1];
    hr__range_parts(parts, &request, known[1]);
    parts[HR__RANGE_PARTS] = (struct hr__read_part){outside, sizeof outside - 1}; /* and half of the last one */
    must(hr__socket_send(link.fd, parts, HR__RANGE_PARTS + 1, true));
    await_announced(2);
    request.at = OBJECT_BYTES;
    must(hr__socket_send(link.fd, parts, HR__RANGE_PARTS, true));
    request.at = 0;
    request.url_bytes++;
    must(hr__socket_send(link.fd, parts, HR__RANGE_PARTS, true));
    struct hr__message head = {HR__REMOTE_MAGIC, HR__WITHDRAW, 0};
    memcpy(message, &head, sizeof head);
    must(hr__socket_send(link.fd, &(struct hr__read_part){message, sizeof head + 4}, 1, true));
    head.type = HR__ANNOUNCE;
    memcpy(message, &head, sizeof head);
    must(hr__socket_send(link.fd, &(struct hr__read_part){message, sizeof message}, 1, true));
    hr__link_drop(&link);
    await_connections(1);
    check(look().announced == 1);
    fetch(0, 0, UNIT);
    take_none();
}

/* ---- a host that does not answer ---- */

static void a_dead_host_holds_back_no_announced_range(void **state) {
    struct hr_fetcher_job jobs[SOON_MOST];
    (void)state;
    for (int is_kept = 0; is_kept < 2; is_kept++) {
        start_fetcher(is_kept ? UINT64_MAX : 0);
        await_connection();
        hr_announcer *of_dead = announcer;
        for (uint64_t i = 0; i < 2 * SOON_MOST; i++) announce(DEAD, 2 * i * UNIT, UNIT, i);
        await_announced(2 * SOON_MOST);
        for (int i = 0; i < SOON_MOST; i++) {
            jobs[i] = take();
            check_job(&jobs[i], DEAD, 2 * (uint64_t)i * UNIT, UNIT);
        }
        take_none();
        must(hr_announcer_new(&announcer));
        announce(0, 0, UNIT, 0);
        fetch(0, 0, UNIT);
        take_none();
        announcer = hr_announcer_free(announcer);
        announcer = of_dead;
        give(&jobs[0]); /* then it gets the next one */
        jobs[0] = take();
        check_job(&jobs[0], DEAD, 2 * SOON_MOST * (uint64_t)UNIT, UNIT);
        for (int i = 0; i < SOON_MOST; i++) must(hr_fetcher_fail(fetcher, jobs[i].id, -ETIMEDOUT, "remote: no"));
        fetcher = hr_fetcher_close(fetcher);
        check(hr_announcer_withdraw(announcer, 0, 0) < 0); /* its connection has ended */
    }
}

static void a_dead_host_holds_back_no_reader(void **state) {
    struct hr__link links[HOST_MOST + 2];
    (void)state;
    start_fetcher(UINT64_MAX);
    for (uint64_t i = 0; i <= HOST_MOST; i++) {
        links[i] = connect_reader();
        send_range(&links[i], HR__READ, DEAD, i * MIB, UNIT);
    }
    await_requests(HOST_MOST + 1);
    struct hr_fetcher_job first = take();
    for (int i = 1; i < HOST_MOST; i++) check(!strcmp(take().url, "https://dead/2"));
    take_none();
    links[HOST_MOST + 1] = connect_reader();
    send_range(&links[HOST_MOST + 1], HR__READ, 0, 0, UNIT);
    fetch(0, 0, UNIT);
    check(await_answer(&links[HOST_MOST + 1]) == 0);
    send_range(&links[HOST_MOST + 1], HR__ASK, 1, 0, UNIT); /* what is only asked for has threads, too */
    fetch(1, 0, UNIT);
    take_none();
    must(hr_fetcher_fail(fetcher, first.id, -ETIMEDOUT, "remote: no"));
    check(!strcmp(take().url, "https://dead/2"));
    for (int i = 0; i < HOST_MOST + 2; i++) hr__link_drop(&links[i]);
}

static void calls_to_a_dead_host_hold_back_no_others(void **state) {
    static const char dead[] = "look\n{}\nhttps://user@dead/9", other[] = "look\n{}\nhttps://host/9",
                      status[] = "status";
    struct hr__link links[HOST_MOST + 1];
    struct hr_fetcher_job job;
    (void)state;
    start_fetcher(UINT64_MAX);
    for (int i = 0; i <= HOST_MOST; i++) {
        struct hr__message head = {HR__REMOTE_MAGIC, HR__CALL, 1};
        links[i] = connect_reader();
        must(hr__socket_send(links[i].fd, (struct hr__read_part[]){{&head, sizeof head}, {(char *)dead, strlen(dead)}},
                             2, true));
    }
    await_requests(HOST_MOST + 1);
    for (int i = 0; i < HOST_MOST; i++) check(hr_fetcher_take(fetcher, in_s(PATIENCE_S), &job) == 1);
    take_none();
    for (int i = 0; i < 2; i++) {
        struct hr__link link = connect_reader();
        struct hr__message head = {HR__REMOTE_MAGIC, HR__CALL, 1};
        const char *text = i ? status : other;
        must(hr__socket_send(link.fd, (struct hr__read_part[]){{&head, sizeof head}, {(char *)text, strlen(text)}}, 2,
                             true));
        check(hr_fetcher_take(fetcher, in_s(PATIENCE_S), &job) == 1 && job.text_bytes == strlen(text));
        must(hr_fetcher_give(fetcher, job.id, "x", 1));
        hr__link_drop(&link);
    }
    for (int i = 0; i <= HOST_MOST; i++) hr__link_drop(&links[i]);
}

/* ---- a reader that comes late ---- */

static void a_reader_that_comes_late_has_its_own_time(void **state) {
    (void)state;
    start_fetcher(UINT64_MAX);
    announce(0, 0, UNIT, 0);
    struct hr_fetcher_job tried = take(); /* no request waits for it: it is tried since now */
    struct hr__link first = connect_reader(), second = connect_reader();
    int64_t before_ns = now_ns();
    check(tried.asked_ns <= before_ns);
    send_range(&first, HR__READ, 0, 10, 100);
    await_requests(1);
    int64_t between_ns = now_ns();
    must(hr_fetcher_fail(fetcher, tried.id, -ETIMEDOUT, "remote: it was tried for 120 s"));
    struct hr_fetcher_job again = take();
    check_job(&again, 0, 0, UNIT);
    check(again.asked_ns >= before_ns && again.asked_ns <= between_ns && answer_of(&first) == 1);
    send_range(&second, HR__READ, 0, 20, 100);
    await_requests(2);
    must(hr_fetcher_fail(fetcher, again.id, -ETIMEDOUT, "remote: it was tried for 120 s"));
    check(await_answer(&first) == -ETIMEDOUT);
    again = take();
    check(again.asked_ns >= between_ns && answer_of(&second) == 1);
    give(&again);
    check(await_answer(&second) == 0);
    announce(0, 10 * UNIT, UNIT, 1); /* another failure is one for all */
    tried = take();
    send_range(&first, HR__READ, 0, 10 * UNIT, 100);
    await_requests(1);
    must(hr_fetcher_fail(fetcher, tried.id, -ENOENT, "remote: it does not exist"));
    check(await_answer(&first) == -ENOENT);
    hr__link_drop(&first);
    hr__link_drop(&second);
}

/* ---- what is in use ---- */

static void an_object_is_in_use_until_its_last_reader_ends(void **state) {
    enum { READERS = 130 };
    struct hr__link links[READERS];
    const char *name = known[0]->object.name;
    (void)state;
    start_fetcher(UINT64_MAX);
    for (int i = 0; i < READERS; i++) links[i] = connect_reader();
    await_connections(READERS);
    for (int i = 0; i < READERS; i += READERS - 1) { /* the first one and the last one */
        send_range(&links[i], HR__READ, 0, 0, UNIT);
        if (i == 0) fetch(0, 0, UNIT);
        check(await_answer(&links[i]) == 0);
    }
    check(hr_fetcher_remove(fetcher, name, false) == -EBUSY);
    hr__link_drop(&links[0]);
    await_connections(READERS - 1);
    check(hr_fetcher_remove(fetcher, name, false) == -EBUSY);
    hr__link_drop(&links[READERS - 1]);
    await_connections(READERS - 2);
    must(hr_fetcher_remove(fetcher, name, false)); /* the others have not asked for it */
    links[0] = connect_reader();                   /* nor has one that gets a number which was in use */
    send_range(&links[0], HR__READ, 0, 0, UNIT);
    fetch(0, 0, UNIT);
    check(await_answer(&links[0]) == 0 && hr_fetcher_remove(fetcher, name, false) == -EBUSY);
    for (int i = 0; i < READERS - 1; i++) hr__link_drop(&links[i]);
}

static atomic_int removing_tid, removed;

static void remove_first(void *ignored) {
    (void)ignored;
    atomic_store(&removing_tid, (int)syscall(SYS_gettid));
    atomic_store(&removed, hr_fetcher_remove(fetcher, known[0]->object.name, false));
}

static bool sleeps(int tid) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "r");
    char *end = file && fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    if (file) fclose(file);
    return end && end[2] == 'S';
}

static struct hr__object *only_object(void) {
    for (size_t i = 0; i < HR__OBJECT_LISTS; i++)
        if (fetcher->objects[i]) return fetcher->objects[i];
    return NULL;
}

static void an_object_that_is_being_saved_is_removed_afterwards(void **state) {
    enum { RUNS = 1 };
    struct hr__thread thread;
    (void)state;
    start_fetcher(UINT64_MAX);
    struct hr__link link = connect_reader();
    send_range(&link, HR__READ, 0, 0, UNIT);
    fetch(0, 0, UNIT);
    check(await_answer(&link) == 0);
    hr__link_drop(&link);
    await_connections(0);
    pthread_mutex_lock(&fetcher->lock);
    only_object()->is_saving = true; /* as while its file system is synced */
    pthread_mutex_unlock(&fetcher->lock);
    atomic_store(&removed, RUNS);
    must(hr__thread_start(&thread, remove_first, NULL));
    int64_t deadline_ns = in_s(PATIENCE_S);
    while (atomic_load(&removed) == RUNS && !sleeps(atomic_load(&removing_tid)) && now_ns() < deadline_ns)
        hr__sleep_until(now_ns() + HR_NS_PER_S / 1000);
    check(atomic_load(&removed) == RUNS);
    hr_fetcher_save(fetcher);
    hr__thread_join(&thread);
    check(atomic_load(&removed) == 0);
}

/* ---- a loop that is paused ---- */

static uint64_t bytes_in_memory(void) {
    pthread_mutex_lock(&fetcher->lock);
    uint64_t bytes = fetcher->parcel_bytes;
    pthread_mutex_unlock(&fetcher->lock);
    return bytes;
}

static void await_memory(uint64_t bytes) {
    int64_t deadline_ns = in_s(PATIENCE_S);
    while (bytes_in_memory() != bytes && now_ns() < deadline_ns) hr__sleep_until(now_ns() + HR_NS_PER_S / 1000);
    check(bytes_in_memory() == bytes);
}

/* Says that no message of a reader has come for an hour. */
static void make_readers_silent(void) {
    pthread_mutex_lock(&fetcher->lock);
    for (struct hr__reader *reader = fetcher->readers; reader; reader = reader->next)
        reader->heard_ns -= 3600 * HR_NS_PER_S;
    pthread_mutex_unlock(&fetcher->lock);
}

static void memory_of_a_paused_loop_is_given_back(void **state) {
    (void)state;
    start_fetcher(0);
    for (uint64_t i = 0; i < 3; i++) announce(0, 5000 * i, 1000, i);
    fetch(0, 0, 1000);
    fetch(0, 5000, 1000);
    struct hr_fetcher_job third = take(); /* on its way */
    check(bytes_in_memory() == 3000);
    make_readers_silent();
    await_memory(0);
    give(&third);
    check(bytes_in_memory() == 0);
    struct hr__link reader = connect_reader(); /* it gets its bytes all the same */
    send_range(&reader, HR__READ, 0, 5000, 1000);
    fetch(0, 5000, 1000);
    check(await_answer(&reader) == 0);
    hr__link_drop(&reader);
    announce(0, 20000, 1000, 3);
    fetch(0, 20000, 1000); /* the loop goes on */
    check(bytes_in_memory() == 1000);
    announce(0, 30000, 1000, 4);
    must(hr_announcer_withdraw(announcer, NONE, NONE));
    await_memory(0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_scene, remove_scene)
    const struct CMUnitTest tests[] = {
        TEST(ranges_are_fetched_in_their_order),
        TEST(ranges_of_one_object_are_one_message),
        TEST(small_ranges_are_fetched_in_blocks),
        TEST(withdrawn_ranges_are_not_fetched),
        TEST(the_end_of_the_connection_withdraws),
        TEST(a_quarter_of_the_quota_is_fetched_ahead),
        TEST(loaders_take_turns),
        TEST(what_is_not_kept_waits_in_memory),
        TEST(what_is_asked_for_first_is_not_fetched_twice),
        TEST(the_nearest_announcement_is_that_of_the_worker),
        TEST(without_a_fetcher_nothing_is_announced),
        TEST(invalid_messages_are_no_announcements),
        TEST(a_dead_host_holds_back_no_announced_range),
        TEST(a_dead_host_holds_back_no_reader),
        TEST(calls_to_a_dead_host_hold_back_no_others),
        TEST(a_reader_that_comes_late_has_its_own_time),
        TEST(an_object_is_in_use_until_its_last_reader_ends),
        TEST(an_object_that_is_being_saved_is_removed_afterwards),
        TEST(memory_of_a_paused_loop_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
