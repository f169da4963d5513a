/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/arena_scene.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <time.h>

#include <headrace/face/fetcher.h>

#include "base/base.h"
#include "remote/blocks.h"
#include "remote/fetcher.h"
#include "remote/kept.h"
#include "remote/remote.h"
#include "source/pool.h"

/* Readers and fetchers that are killed at each of their steps. This program is the fetcher, too: it makes the bytes of
 * an object from its address, so that each byte that is read can be compared. */

enum { OBJECT_BYTES = 700001, READS = 60, READ_MOST = 150000 };

static const char URL[] = "https://host/object", NAME[] = "0123456789abcdef0123456789abcdef";
#define COMMIT "0123456789abcdef0123456789abcdef01234567"
static const char PINNED[] = "hf://datasets/owner/name@" COMMIT "/a.bin";
static const char EXPIRED[] = "{\"token\":\"expired\"}"; /* settings that the fetcher refuses */
static char folder[64];

static unsigned char byte_at(uint64_t at) {
    return (unsigned char)((at * 2654435761u) >> 13 ^ at);
}

/* ---- the fetcher ---- */

static void make_file(const char *name) {
    char path[HR__PATH_BYTES];
    must(hr__path(path, "%s/%s", getenv("HEADRACE_REMOTE"), name));
    check(close(open(path, O_CREAT | O_WRONLY, 0600)) == 0);
}

static void await_file(const char *name) {
    char path[HR__PATH_BYTES];
    must(hr__path(path, "%s/%s", getenv("HEADRACE_REMOTE"), name));
    for (int64_t end_ns = hr__now_ns() + 30 * HR_NS_PER_S; access(path, F_OK) != 0; usleep(1000))
        check(hr__now_ns() < end_ns);
}

/* Refuses a job when another request waits for it, too. */
static void refuse(hr_fetcher *fetcher, const struct hr_fetcher_job *job) {
    make_file("begun");
    int64_t end_ns = hr__now_ns() + 30 * HR_NS_PER_S;
    for (uint64_t count = 0; count < 2 && hr__now_ns() < end_ns;) {
        pthread_mutex_lock(&fetcher->lock);
        count = fetcher->open_requests;
        pthread_mutex_unlock(&fetcher->lock);
        usleep(1000);
    }
    const char *code = getenv("TEST_FAILURE");
    must(hr_fetcher_fail(fetcher, job->id, code ? -atoi(code) : -EACCES, "remote: the token has expired"));
}

static void do_job(hr_fetcher *fetcher, const struct hr_fetcher_job *job) {
    static unsigned char data[2 * MIB];
    if (job->kind == HR_FETCHER_CALL) {
        bool is_look = job->text_bytes > 5 && !memcmp(job->text, "look\n", 5);
        static char line[256];
        snprintf(line, sizeof line, "ok\t%s\t%d\tetag:1\t%s\n", NAME, OBJECT_BYTES, URL);
        if (job->text_bytes > 9 && !memcmp(job->text, "remove\n", 7)) {
            int code = hr_fetcher_remove(fetcher, job->text + 9, job->text[7] == '1');
            snprintf(line, sizeof line, "%d", code);
            must(hr_fetcher_give(fetcher, job->id, line, strlen(line)));
        } else if (job->text_bytes > 4 && !memcmp(job->text, "pin\n", 4)) {
            static const char wanted[] = "pin\n{}\nhf://datasets/owner/name@v1/a.bin";
            check(job->text_bytes == strlen(wanted) && !memcmp(job->text, wanted, strlen(wanted)));
            must(hr_fetcher_give(fetcher, job->id, PINNED, strlen(PINNED)));
        } else if (is_look)
            must(hr_fetcher_give(fetcher, job->id, line, strlen(line)));
        else
            must(hr_fetcher_fail(fetcher, job->id, -ENOENT, "remote: there is no such object"));
        return;
    }
    check(!strcmp(job->url, URL) && !strcmp(job->version, "etag:1") && job->object_bytes == OBJECT_BYTES);
    if (!strcmp(job->storage, EXPIRED)) {
        refuse(fetcher, job);
        return;
    }
    for (uint64_t i = 0; i < job->bytes; i++) data[i] = byte_at(job->at + i);
    must(hr_fetcher_give(fetcher, job->id, data, job->bytes));
}

static uint64_t number_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static int fetch(const char *where) {
    struct hr_fetcher_options options = {.idle_ms = 200};
    struct hr_fetcher_job job;
    hr_fetcher *fetcher;
    if (getenv("TEST_STARTS")) {
        make_file("starts");
        await_file("forked");
    }
    options.quota_bytes = number_of("TEST_QUOTA", UINT64_MAX);
    int r = hr_fetcher_open(where, &fetcher);
    if (r == -EAGAIN) return 3;
    if (r < 0) return 1;
    if (fork()) _exit(0);
    int null_fd = open("/dev/null", O_RDWR);
    dup2(null_fd, 2);
    must(hr_fetcher_start(fetcher, &options));
    int64_t saved_ns = hr__now_ns();
    while ((r = hr_fetcher_take(fetcher, hr__now_ns() + HR_NS_PER_S / 20, &job)) != HR_E_END) {
        if (r == 1) do_job(fetcher, &job);
        if (hr__now_ns() - saved_ns > HR_NS_PER_S / 10) hr_fetcher_save(fetcher), saved_ns = hr__now_ns();
    }
    hr_fetcher_close(fetcher);
    return 0;
}

/* ---- the scene ---- */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info, (void)kind, (void)at;
    return remove(path);
}

static int make_folder(void **state) {
    (void)state;
    hr__link_close();
    strcpy(folder, "/tmp/headrace-remote-XXXXXX");
    check(mkdtemp(folder) && setenv("HEADRACE_REMOTE", folder, 1) == 0);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    hr__link_close();
    for (const char **name = (const char *[]){"HEADRACE_STOP", "HEADRACE_FAIL", "TEST_QUOTA", "HEADRACE_ROOT", NULL};
         *name; name++)
        unsetenv(*name);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return 0;
}

static struct hr__pool *open_object(void) {
    struct hr__pool *pool;
    uint32_t number;
    must(hr__pool_new(&pool));
    must(hr__pool_add(pool, URL, &number));
    check(number == 0 && hr__pool_file(pool, 0)->first.bytes == OBJECT_BYTES);
    return pool;
}

static void assert_right(const unsigned char *data, uint64_t at, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i++) check(data[i] == byte_at(at + i));
}

static void read_one(struct hr__pool *pool, uint64_t at, uint64_t bytes) {
    static unsigned char data[OBJECT_BYTES];
    memset(data, 0xaa, bytes);
    must(hr__pool_read(pool, 0, at, data, bytes));
    assert_right(data, at, bytes);
}

static void read_many(struct hr__pool *pool, unsigned seed) {
    srand(seed);
    for (int i = 0; i < READS; i++) {
        uint64_t at = (uint64_t)rand() % OBJECT_BYTES;
        read_one(pool, at, 1 + (uint64_t)rand() % hr__min(READ_MOST, OBJECT_BYTES - at));
    }
    read_one(pool, 0, OBJECT_BYTES);
}

/* ---- tests ---- */

static void bytes_are_those_of_the_object(void **state) {
    (void)state;
    struct hr__pool *pool = open_object();
    unsigned char one[10], other[20];
    struct hr__read_part parts[] = {{one, sizeof one}, {other, sizeof other}};
    must(hr__pool_read_parts(pool, 0, 65530, parts, 2));
    assert_right(one, 65530, sizeof one);
    assert_right(other, 65540, sizeof other);
    check(hr__pool_read_now(pool, 0, 65530, one, 10) == 0);
    assert_right(one, 65530, 10);
    if (hr__pool_read_now(pool, 0, 8 * 65536, one, 10) == 0) assert_right(one, 8 * 65536, 10); /* no zeros of a hole */
    hr__pool_ask(pool, 0, 4 * 65536, 10, NULL);
    read_many(pool, 1);
    check(hr__pool_read(pool, 0, OBJECT_BYTES - 1, one, 2) == -EIO &&
          hr__pool_read(pool, 0, OBJECT_BYTES, one, 0) == 0);
    hr__pool_free(pool);
}

static void what_is_read_once_is_not_kept(void **state) {
    (void)state;
    struct hr__pool *pool = open_object();
    static unsigned char data[OBJECT_BYTES];
    must(hr__pool_read_once(pool, 0, 65530, data, 3 * 65536));
    assert_right(data, 65530, 3 * 65536);
    check(hr__pool_read_now(pool, 0, 65530, data, 3 * 65536) == -EAGAIN);
    read_one(pool, 0, 65536); /* the same connection goes on, and this is kept */
    check(hr__pool_read_now(pool, 0, 0, data, 65536) == 0);
    must(hr__pool_read_once(pool, 0, 10, data, 100));
    assert_right(data, 10, 100);
    check(hr__pool_read_once(pool, 0, OBJECT_BYTES - 1, data, 2) == -EIO);
    hr__pool_free(pool);
}

static void without_room_bytes_are_sent(void **state) {
    (void)state;
    setenv("TEST_QUOTA", "0", 1);
    struct hr__pool *pool = open_object();
    read_many(pool, 2);
    hr__pool_free(pool);
}

static void announced_ranges_are_sent_from_memory(void **state) {
    (void)state;
    setenv("TEST_QUOTA", "0", 1);
    struct hr__pool *pool = open_object();
    for (int round = 0; round < 3; round++) {
        for (uint64_t at = 0; at + 20000 < OBJECT_BYTES; at += 20000) hr__pool_ask(pool, 0, at, 20000, NULL);
        for (uint64_t at = 0; at + 20000 < OBJECT_BYTES; at += 20000) {
            read_one(pool, at, 10000); /* in two parts, of which the last one ends what was announced */
            read_one(pool, at + 10000, 10000);
        }
        read_many(pool, (unsigned)round);
    }
    hr__pool_free(pool);
}

static void over_the_quota_what_came_first_stays(void **state) {
    char path[HR__PATH_BYTES], below[HR__PATH_BYTES];
    struct hr__file_info info;
    (void)state;
    setenv("TEST_QUOTA", "200000", 1);
    struct hr__pool *pool = open_object();
    read_many(pool, 3);
    must(hr_remote_folder(below, sizeof below));
    must(hr__blocks_path(below, NAME, path));
    must(hr__file_look(path, &info));
    check(info.committed_bytes > 65536 && info.committed_bytes < 300000);
    read_many(pool, 3);
    hr__pool_free(pool);
}

static void a_full_disk_gives_right_bytes(void **state) {
    static const char *const failures[] = {"blocks_write:ENOSPC", "blocks_make:ENOSPC", "statfs_full:EIO",
                                           "syncfs:EIO"};
    (void)state;
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        setenv("HEADRACE_FAIL", failures[i], 1);
        struct hr__pool *pool = open_object();
        read_many(pool, 4);
        hr__pool_free(pool);
        remove_folder(NULL);
        make_folder(NULL);
    }
}

static void a_killed_fetcher_is_replaced(void **state) {
    char below[HR__PATH_BYTES];
    struct hr_kept_check checked;
    (void)state;
    for (int point = 0; point < HR__POINT_COUNT; point++) {
        char plan[128];
        if (hr__failpoints[point].side != HR__BY_FETCHER || point == HR__AT_BLOCKS_BOOT) continue;
        /* Each fetcher dies at its third passage, so that there is progress; at its start only the first. */
        snprintf(plan, sizeof plan, "%s:9:3", hr__failpoints[point].name);
        setenv("HEADRACE_STOP", plan, 1);
        struct hr__pool *pool = open_object();
        read_many(pool, (unsigned)point);
        hr__pool_free(pool);
        must(hr_remote_folder(below, sizeof below));
        must(hr_kept_verify(below, NAME, NULL, &checked)); /* each unit that is kept has its checksum */
        check(checked.bytes > 0);
        remove_folder(NULL);
        make_folder(NULL);
    }
}

static void a_fetcher_that_dies_at_its_start_is_an_error_or_replaced(void **state) {
    static const char *const points[] = {"fetcher.locked:9", "fetcher.bound:9"};
    unsigned char byte;
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct hr__pool *pool = open_object();
        hr__link_close();
        /* The one that ran is still there for a moment. The next one is killed, and then lives. */
        setenv("HEADRACE_STOP", points[i], 1);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(3);
            _exit(hr__pool_read(pool, 0, 5, &byte, 1) < 0 ? 1 : byte != byte_at(5));
        }
        int status;
        check(waitpid(pid, &status, 0) == pid);
        unsetenv("HEADRACE_STOP");
        read_one(pool, 5, 1000);
        hr__pool_free(pool);
        remove_folder(NULL);
        make_folder(NULL);
    }
}

static void a_killed_reader_disturbs_no_other(void **state) {
    static const char *const points[] = {"reader.sent:9:2", "reader.answered:9:2", "reader.sent:19:2"};
    (void)state;
    struct hr__pool *pool = open_object();
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            setenv("HEADRACE_STOP", points[i], 1);
            read_many(pool, 100);
            _exit(0);
        }
        check(waitpid(pid, &status, WUNTRACED) == pid);
        read_many(pool, 6);
        if (WIFSTOPPED(status)) check(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    }
    hr__pool_free(pool);
}

/* A job of a child fails with a code. The reader that waits for it, too, has other settings. */
static void fail_the_other_reader(int code) {
    const struct hr_remote_object object = {URL, URL, EXPIRED, NAME, "etag:1", OBJECT_BYTES};
    char text[20];
    int status;
    snprintf(text, sizeof text, "%d", -code);
    setenv("TEST_FAILURE", text, 1);
    struct hr__pool *pool = open_object();
    pid_t pid = fork();
    if (pid == 0) {
        unsigned char data[10];
        must(hr_remote_add(&object));
        _exit(hr__pool_read(open_object(), 0, 0, data, sizeof data) == code ? 0 : 1);
    }
    await_file("begun");
    read_one(pool, 0, 10); /* waits for the job of the child, and gets its bytes by its own settings */
    check(waitpid(pid, &status, 0) == pid && status == 0);
    hr__pool_free(pool);
    unsetenv("TEST_FAILURE");
}

static void refused_credentials_fail_their_own_reader(void **state) {
    (void)state;
    fail_the_other_reader(-EACCES);
}

static void tries_of_other_settings_fail_their_own_reader(void **state) {
    (void)state;
    fail_the_other_reader(-ETIMEDOUT);
}

static void forked_children_make_their_own_connection(void **state) {
    pid_t pids[6];
    (void)state;
    setenv("TEST_QUOTA", "300000", 1);
    struct hr__pool *pool = open_object();
    read_one(pool, 0, 10);
    for (size_t i = 0; i < 6; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            read_many(pool, (unsigned)i);
            _exit(0);
        }
    }
    read_many(pool, 50);
    for (size_t i = 0; i < 6; i++) {
        int status;
        check(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
    }
    hr__pool_free(pool);
}

/* The pid of a process that has ended is given to others, also to children of its children. */
static void a_child_with_the_pid_of_an_ancestor_has_no_connection(void **state) {
    struct hr__link link = {.fd = -1};
    int status;
    (void)state;
    struct hr__pool *pool = open_object();
    read_one(pool, 0, 10); /* so that a fetcher runs */
    must(hr__link_open(&link));
    check(hr__link_is_open(&link));
    pid_t pid = fork();
    if (pid == 0) {
        link.pid = hr__pid();
        _exit(hr__link_is_open(&link));
    }
    check(waitpid(pid, &status, 0) == pid && status == 0 && hr__link_is_open(&link));
    hr__link_drop(&link);
    hr__pool_free(pool);
}

static void *read_in_thread(void *context) {
    (void)context;
    struct hr__pool *pool = open_object();
    read_one(pool, 5, 1000);
    hr__pool_free(pool);
    hr__link_close();
    return NULL;
}

/* The child has copies of the pipe on which the start is awaited, and of the lock on it, as long as it lives. */
static void a_child_that_is_forked_during_a_start_delays_no_reader(void **state) {
    int64_t begin_ns = hr__now_ns();
    char path[HR__PATH_BYTES], below[HR__PATH_BYTES];
    pthread_t thread;
    int status, fd = -1;
    (void)state;
    setenv("TEST_STARTS", "1", 1);
    check(pthread_create(&thread, NULL, read_in_thread, NULL) == 0);
    await_file("starts");
    pid_t pid = fork();
    if (pid == 0) {
        alarm(100);
        pause();
        _exit(0);
    }
    make_file("forked");
    check(pthread_join(thread, NULL) == 0 && hr__now_ns() - begin_ns < 50 * HR_NS_PER_S);
    must(hr_remote_folder(below, sizeof below));
    must(hr__path(path, "%s/start", below));
    must(hr__file_open_or_make(path, &fd));
    must(hr__lock_file(fd, HR__EXCLUSIVE));
    hr__close(&fd);
    check(waitpid(pid, &status, WNOHANG) == 0);
    check(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    unsetenv("TEST_STARTS");
}

static void a_removed_folder_is_no_error(void **state) {
    char below[HR__PATH_BYTES], path[HR__PATH_BYTES];
    static const char *const removed[] = {"", "/v1/remote/lock", "/v1/remote/sock", "/v1/remote/01"};
    (void)state;
    for (size_t i = 0; i < sizeof removed / sizeof *removed; i++) {
        struct hr__pool *pool = open_object();
        read_one(pool, 100, 1000);
        must(hr__path(path, "%s%s", folder, removed[i]));
        nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
        read_many(pool, 7);
        must(hr_remote_folder(below, sizeof below));
        read_many(pool, 8);
        hr__pool_free(pool);
    }
}

/* ---- the file of an object ---- */

static void write_boot(const char *id) {
    char path[HR__PATH_BYTES];
    static const char *const parts[] = {"proc", "proc/sys", "proc/sys/kernel", "proc/sys/kernel/random"};
    for (size_t i = 0; i < 4; i++) {
        must(hr__path(path, "%s/%s", folder, parts[i]));
        mkdir(path, 0700);
    }
    must(hr__path(path, "%s/proc/sys/kernel/random/boot_id", folder));
    FILE *file = fopen(path, "w");
    check(file && fputs(id, file) >= 0 && fclose(file) == 0);
    setenv("HEADRACE_ROOT", folder, 1);
}

static void save(struct hr__blocks *blocks, bool is_synced) {
    unsigned char *bits;
    check(hr__blocks_begin_save(blocks, &bits) == 1);
    check((hr__blocks_finish_save(blocks, bits, is_synced) == 0) == is_synced);
}

static void after_another_boot_only_saved_units_are_kept(void **state) {
    static unsigned char data[HR__UNIT_BYTES];
    struct hr__blocks *blocks;
    int fd;
    (void)state;
    write_boot("one");
    must(hr__blocks_make(folder, NAME, URL, OBJECT_BYTES, &blocks));
    must(hr__blocks_write(blocks, 0, data, sizeof data));
    save(blocks, true);
    must(hr__blocks_write(blocks, HR__UNIT_BYTES, data, sizeof data));
    must(hr__blocks_open(folder, NAME, OBJECT_BYTES, &fd));
    check(hr__blocks_have(fd, OBJECT_BYTES, 0, 2 * HR__UNIT_BYTES));
    check(!hr__blocks_have(fd, OBJECT_BYTES, 0, 2 * HR__UNIT_BYTES + 1));
    hr__close(&fd);
    hr__blocks_close(blocks);
    write_boot("two");
    check(hr__blocks_open(folder, NAME, OBJECT_BYTES, &fd) == -ENOENT);
    must(hr__blocks_make(folder, NAME, URL, OBJECT_BYTES, &blocks));
    must(hr__blocks_open(folder, NAME, OBJECT_BYTES, &fd));
    check(hr__blocks_have(fd, OBJECT_BYTES, 0, HR__UNIT_BYTES));
    check(!hr__blocks_have(fd, OBJECT_BYTES, HR__UNIT_BYTES, 1));
    hr__close(&fd);
    hr__blocks_close(blocks);
}

static void a_failed_sync_saves_nothing(void **state) {
    static unsigned char data[HR__UNIT_BYTES];
    struct hr__blocks *blocks;
    (void)state;
    write_boot("one");
    must(hr__blocks_make(folder, NAME, URL, OBJECT_BYTES, &blocks));
    must(hr__blocks_write(blocks, 0, data, sizeof data));
    save(blocks, false);
    save(blocks, true); /* it is tried again */
    hr__blocks_close(blocks);
}

static void a_file_that_is_not_right_is_made_again(void **state) {
    static unsigned char data[HR__UNIT_BYTES];
    struct hr__blocks *blocks;
    struct hr__blocks_plan plan;
    char path[HR__PATH_BYTES];
    int fd;
    (void)state;
    must(hr__blocks_plan(OBJECT_BYTES, &plan));
    must(hr__blocks_path(folder, NAME, path));
    for (int i = 0; i < 4; i++) {
        must(hr__blocks_make(folder, NAME, URL, OBJECT_BYTES, &blocks));
        must(hr__blocks_write(blocks, 0, data, sizeof data));
        check(hr__blocks_write(blocks, 1, data, 10) == -EINVAL && hr__blocks_write(blocks, 0, data, 10) == -EINVAL);
        hr__blocks_close(blocks);
        if (i == 0) check(truncate(path, (off_t)plan.file_bytes - 1) == 0);
        if (i == 1) check(truncate(path, 0) == 0);
        if (i == 2) {
            fd = open(path, O_RDWR);
            check(pwrite(fd, "x", 1, (off_t)plan.tail + 20) == 1);
            close(fd);
        }
        if (i == 3) check(hr__blocks_open(folder, NAME, OBJECT_BYTES + 1, &fd) == -ENOENT);
        check(hr__blocks_open(folder, NAME, OBJECT_BYTES, &fd) == (i == 3 ? 0 : -ENOENT));
        if (i == 3) close(fd);
    }
}

/* ---- what is kept ---- */

static int take_kept(void *context, const struct hr_kept *kept) {
    struct hr_kept *found = context;
    check(!*found->name);
    *found = *kept;
    return 0;
}

static void kept_objects_are_listed_and_compared_with_their_checksums(void **state) {
    struct hr_kept found = {.bytes = 0};
    struct hr_kept_check checked;
    char below[HR__PATH_BYTES], path[HR__PATH_BYTES];
    (void)state;
    check(hr_kept_folder(below, sizeof below) == -ENOENT);
    struct hr__pool *pool = open_object();
    read_one(pool, 3 * HR__UNIT_BYTES, 10);
    must(hr_kept_folder(below, sizeof below));
    check(hr_kept_list(below, take_kept, &found) == 0 && !strcmp(found.name, NAME) && !strcmp(found.shown, URL));
    check(found.bytes == OBJECT_BYTES && found.kept_bytes >= HR__UNIT_BYTES && found.kept_bytes <= OBJECT_BYTES);
    check(hr_kept_is_of(&found, "https://user@host/object?key=1") && !hr_kept_is_of(&found, "https://host/other"));
    read_one(pool, 0, OBJECT_BYTES);
    hr__pool_free(pool);
    must(hr_kept_verify(below, NAME, NULL, &checked));
    check(checked.bytes == OBJECT_BYTES && checked.damaged_bytes == 0);
    must(hr__blocks_path(below, NAME, path));
    int fd = open(path, O_RDWR);
    check(pwrite(fd, "x", 1, 5 * HR__UNIT_BYTES + 7) == 1 && close(fd) == 0);
    check(hr_kept_verify(below, NAME, NULL, &checked) == HR_E_CORRUPT);
    check(checked.first == 5 * HR__UNIT_BYTES && checked.damaged_bytes == HR__UNIT_BYTES);
    check(truncate(path, 100) == 0);
    check(hr_kept_verify(below, NAME, NULL, &checked) == HR_E_CORRUPT);
    check(hr__kept_look(below, NAME, &found) == 0 && found.is_damaged);
    check(hr__kept_look(below, "x", &found) == -ENOENT && hr_kept_verify(below, "../x", NULL, &checked) == -ENOENT);
}

static void after_another_boot_saved_units_are_compared(void **state) {
    static unsigned char data[HR__UNIT_BYTES];
    struct hr__blocks *blocks;
    struct hr_kept kept;
    struct hr_kept_check checked;
    (void)state;
    write_boot("one");
    must(hr__blocks_make(folder, NAME, URL, OBJECT_BYTES, &blocks));
    must(hr__blocks_write(blocks, 0, data, sizeof data));
    save(blocks, true);
    must(hr__blocks_write(blocks, HR__UNIT_BYTES, data, sizeof data));
    hr__blocks_close(blocks);
    check(hr__kept_look(folder, NAME, &kept) == 0 && kept.kept_bytes == 2 * HR__UNIT_BYTES);
    write_boot("two");
    check(hr__kept_look(folder, NAME, &kept) == 0 && kept.kept_bytes == HR__UNIT_BYTES);
    must(hr_kept_verify(folder, NAME, NULL, &checked));
    check(checked.bytes == HR__UNIT_BYTES);
}

static bool is_free_of_fetchers(const char *below) {
    struct hr__file_info info;
    char path[HR__PATH_BYTES];
    int fd = -1;
    must(hr__path(path, "%s/lock", below));
    if (hr__file_look(path, &info) < 0) return true;
    must(hr__file_open_or_make(path, &fd));
    bool is_free = hr__lock_file(fd, HR__EXCLUSIVE) == 0;
    hr__close(&fd);
    return is_free;
}

/* A fetcher ends 200 ms after its last reader. */
static void wait_for_end_of_fetcher(const char *below) {
    int64_t deadline_ns = hr__now_ns() + 30 * HR_NS_PER_S;
    hr__link_close();
    while (!is_free_of_fetchers(below)) {
        check(hr__now_ns() < deadline_ns);
        hr__sleep_until(hr__now_ns() + HR_NS_PER_S / 100);
    }
}

static void no_visit(void *context, const struct hr_kept *kept) {
    (void)kept;
    ++*(int *)context;
}

static uint64_t collect(const char *below, int64_t older_ns, uint64_t quota_bytes, bool is_dry) {
    struct hr_kept_limits limits = {.older_ns = older_ns, .quota_bytes = quota_bytes, .is_dry = is_dry};
    struct hr_kept_collected found;
    int visits = 0;
    must(hr_kept_collect(below, &limits, no_visit, &visits, &found));
    check((uint64_t)visits == found.objects);
    return found.objects;
}

static void what_is_in_use_is_not_removed(void **state) {
    char below[HR__PATH_BYTES];
    struct hr_kept kept;
    (void)state;
    struct hr__pool *pool = open_object();
    read_one(pool, 0, OBJECT_BYTES);
    must(hr_remote_folder(below, sizeof below));
    check(hr_kept_is_open(below, NAME));
    check(hr_kept_remove(below, NAME, false) == -EBUSY && collect(below, 0, 0, false) == 0); /* by the fetcher */
    wait_for_end_of_fetcher(below);
    check(hr_kept_remove(below, NAME, false) == -EBUSY && collect(below, 0, 0, false) == 0); /* with its lock */
    read_one(pool, 0, OBJECT_BYTES);
    check(collect(below, -1, UINT64_MAX, false) == 0 && collect(below, 0, UINT64_MAX, true) == 0);
    must(hr_kept_remove(below, NAME, true));
    check(hr__kept_look(below, NAME, &kept) == -ENOENT && hr_kept_remove(below, NAME, false) == -ENOENT);
    read_many(pool, 9); /* of the file without a name, or of a new one */
    hr__pool_free(pool);
    struct hr__pool *other = open_object();
    read_one(other, 0, 10);
    hr__pool_free(other);
    check(hr_kept_remove(below, NAME, false) == -EBUSY); /* this connection has asked for it */
    hr__link_close();
    int64_t deadline_ns = hr__now_ns() + 30 * HR_NS_PER_S;
    while (collect(below, 0, UINT64_MAX, false) == 0) check(hr__now_ns() < deadline_ns); /* it sees the end of that */
    check(hr__kept_look(below, NAME, &kept) == -ENOENT);
}

static void by_age_and_size_the_longest_unused_goes_first(void **state) {
    static const char *const names[] = {"00000000000000000000000000000000", "11111111111111111111111111111111",
                                        "22222222222222222222222222222222"};
    static unsigned char data[HR__UNIT_BYTES];
    char path[HR__PATH_BYTES];
    struct hr_kept kept;
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct hr__blocks *blocks;
        must(hr__blocks_make(folder, names[i], URL, OBJECT_BYTES, &blocks));
        for (uint64_t unit = 0; unit < 4; unit++)
            must(hr__blocks_write(blocks, unit * HR__UNIT_BYTES, data, sizeof data));
        hr__blocks_close(blocks);
        must(hr__blocks_path(folder, names[i], path));
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) - 1000 * (3 - i)}};
        check(utimensat(AT_FDCWD, path, times, 0) == 0);
    }
    check(collect(folder, -1, UINT64_MAX, false) == 0);
    check(collect(folder, 2500 * HR_NS_PER_S, UINT64_MAX, true) == 1);
    check(collect(folder, 2500 * HR_NS_PER_S, UINT64_MAX, false) == 1);
    check(hr__kept_look(folder, names[0], &kept) == -ENOENT && hr__kept_look(folder, names[1], &kept) == 0);
    check(collect(folder, -1, 5 * HR__UNIT_BYTES, false) == 1);
    check(hr__kept_look(folder, names[1], &kept) == -ENOENT && hr__kept_look(folder, names[2], &kept) == 0);
    must(hr__blocks_path(folder, names[2], path));
    check(truncate(path, 1000) == 0);
    check(collect(folder, -1, UINT64_MAX, false) == 1); /* it is damaged */
}

/* A child reads and compares until it is told to end, while what it reads is removed again and again, by processes that
 * are killed at each step. */
static void a_killed_removal_gives_a_reader_no_other_bytes(void **state) {
    char below[HR__PATH_BYTES], plan[64];
    int pipes[2], status;
    (void)state;
    must(hr_remote_folder(below, sizeof below));
    for (int point = 0; point < HR__POINT_COUNT; point++) {
        if (hr__failpoints[point].side != HR__BY_KEPT) continue;
        for (int has_fetcher = 0; has_fetcher < 2; has_fetcher++) {
            check(pipe(pipes) == 0);
            snprintf(plan, sizeof plan, "%s:9", hr__failpoints[point].name);
            if (has_fetcher) setenv("HEADRACE_STOP", plan, 1); /* it is the fetcher that is killed */
            pid_t reader = fork();
            if (reader == 0) {
                struct hr__pool *pool = open_object();
                close(pipes[1]);
                for (unsigned seed = 0; !hr__is_readable(pipes[0]); seed++) read_many(pool, seed);
                _exit(0);
            }
            close(pipes[0]);
            for (int i = 0; i < 4; i++) {
                pid_t remover = fork();
                if (remover == 0) {
                    setenv("HEADRACE_STOP", plan, 1);
                    hr_kept_remove(below, NAME, true);
                    _exit(0);
                }
                check(waitpid(remover, &status, 0) == remover);
            }
            close(pipes[1]);
            check(waitpid(reader, &status, 0) == reader && status == 0);
            unsetenv("HEADRACE_STOP");
            wait_for_end_of_fetcher(below);
            if (!has_fetcher) { /* alone, so that it passes the point for certain */
                struct hr__pool *pool = open_object();
                read_one(pool, 0, 10);
                hr__pool_free(pool);
                wait_for_end_of_fetcher(below);
                pid_t remover = fork();
                if (remover == 0) {
                    setenv("HEADRACE_STOP", plan, 1);
                    hr_kept_remove(below, NAME, false);
                    _exit(0);
                }
                check(waitpid(remover, &status, 0) == remover && WIFSIGNALED(status));
                pool = open_object();
                read_many(pool, 20);
                hr__pool_free(pool);
            }
        }
    }
}

static void filling_keeps_whole_objects(void **state) {
    static const char *const paths[] = {URL};
    char below[HR__PATH_BYTES];
    struct hr_filling_info info;
    struct hr_kept kept;
    hr_filling *filling;
    (void)state;
    must(hr_remote_look(paths, 1, "{}"));
    for (int i = 0; i < 2; i++) {
        must(hr_filling_start(paths, 1, &filling));
        check(hr_filling_wait(filling, INT64_MAX) == 1);
        hr_filling_look(filling, &info);
        check(info.total_bytes == OBJECT_BYTES && info.done_bytes == OBJECT_BYTES);
        check(info.kept_bytes == (i ? OBJECT_BYTES : 0));
        hr_filling_free(filling);
    }
    must(hr_remote_folder(below, sizeof below));
    check(hr__kept_look(below, NAME, &kept) == 0 && kept.kept_bytes == OBJECT_BYTES);
    wait_for_end_of_fetcher(below);
    must(hr_kept_remove(below, NAME, false));
    setenv("TEST_QUOTA", "100000", 1);
    must(hr_filling_start(paths, 1, &filling));
    check(hr_filling_wait(filling, INT64_MAX) == -ENOSPC && strstr(hr_error_message(), "HEADRACE_REMOTE_QUOTA"));
    hr_filling_free(filling);
}

static void figures_are_those_of_a_fetcher_that_runs(void **state) {
    struct hr_fetcher_figures figures;
    hr_fetcher *fetcher;
    char path[HR__PATH_BYTES];
    (void)state;
    check(hr_fetcher_peek(folder, &figures) == -ENOENT);
    must(hr_fetcher_open(folder, &fetcher));
    hr_fetcher_show(fetcher, 17, 3);
    must(hr_fetcher_peek(folder, &figures));
    check(figures.requests == 17 && figures.retries == 3 && figures.pid == (uint64_t)getpid());
    hr_fetcher_show(fetcher, 18, 4);
    must(hr_fetcher_peek(folder, &figures));
    check(figures.requests == 18);
    hr_fetcher_close(fetcher);
    must(hr__path(path, "%s/figures", folder));
    int fd = open(path, O_RDWR);
    check(pwrite(fd, "x", 1, 80) == 1 && close(fd) == 0);
    check(hr_fetcher_peek(folder, &figures) == -EAGAIN);
    check(truncate(path, 10) == 0 && hr_fetcher_peek(folder, &figures) == -ENOENT);
}

static void addresses_are_shown_without_secrets(void **state) {
    static const char *const pairs[][2] = {{"https://user:word@host/a/b?key=1#x", "https://host/a/b"},
                                           {"https://host?key=1", "https://host"},
                                           {"s3://bucket/a@b", "s3://bucket/a@b"},
                                           {"http://a@b@host:80/x", "http://host:80/x"}};
    char shown[100];
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        hr__shown_url(pairs[i][0], shown, sizeof shown);
        assert_string_equal(shown, pairs[i][1]);
    }
}

static void addresses_of_the_hub_name_files_in_all_commits(void **state) {
    static const char *const names[] = {
        "hf://datasets/owner/name/a.bin",
        "hf://datasets/owner/name@main/a.bin",
        "hf://datasets/owner/name@refs/pr/1/a.bin",
        "hf://datasets/owner/name@refs/convert/parquet/a.bin",
        "hf://datasets/owner/name",
        "hf://datasets/owner/name/",
        "hf://datasets/owner/name@main",
        "hf://datasets/owner/name@" COMMIT,
        PINNED,
    };
    static const char *const others[] = {
        "hf://owner/name/a.bin",
        "hf://datasets/owner/name/b.bin",
        "hf://datasets/owner/nam",
        "hf://datasets/owner",
        "hf://datasets/owner/other/a.bin",
        "hf://datasets/owner/name@1123456789abcdef0123456789abcdef01234567/a.bin",
        "hf://",
        "hf://datasets/",
        "https://datasets/owner/name/a.bin",
    };
    struct hr_kept kept = {.bytes = 1};
    (void)state;
    snprintf(kept.shown, sizeof kept.shown, "%s", PINNED);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) check(hr_kept_is_of(&kept, names[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) check(!hr_kept_is_of(&kept, others[i]));
    snprintf(kept.shown, sizeof kept.shown, "hf://models/owner/name@" COMMIT "/a/b.bin");
    check(hr_kept_is_of(&kept, "hf://owner/name/a/b.bin") && hr_kept_is_of(&kept, "hf://models/owner/name@v1/a/b.bin"));
}

static void addresses_of_the_hub_need_a_commit(void **state) {
    static const char url[] = "hf://datasets/owner/name@v1/a.bin", *const urls[] = {url};
    char pinned[100];
    (void)state;
    check(hr_remote_look(urls, 1, "{}") == -EINVAL && strstr(hr_error_message(), "hr_remote_pin"));
    check(strstr(hr_error_message(), "give hf://datasets/owner/name@COMMIT/PATH"));
    must(hr_remote_pin(url, "{}", pinned, sizeof pinned));
    check(!strcmp(pinned, PINNED));
    check(hr_remote_pin(url, "{}", pinned, strlen(PINNED)) == -ENAMETOOLONG);
    must(hr_remote_pin(PINNED, "{}", pinned, sizeof pinned));
    check(!strcmp(pinned, PINNED));
    must(hr_remote_pin(URL, "{}", pinned, sizeof pinned));
    check(!strcmp(pinned, URL));
    check(hr_remote_pin("hf://a/b@c\n/d", "{}", pinned, sizeof pinned) == -EINVAL);
}

int main(int count, char **words) {
    if (count == 3 && !strcmp(words[1], "--fetch")) return fetch(words[2]);
    static char own[HR__PATH_BYTES];
    check(readlink("/proc/self/exe", own, sizeof own - 1) > 0);
    must(hr_remote_use((const char *const[]){own, "--fetch", NULL}));
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(addresses_are_shown_without_secrets),
        TEST(after_another_boot_only_saved_units_are_kept),
        TEST(a_failed_sync_saves_nothing),
        TEST(a_file_that_is_not_right_is_made_again),
        TEST(bytes_are_those_of_the_object),
        TEST(what_is_read_once_is_not_kept),
        TEST(without_room_bytes_are_sent),
        TEST(announced_ranges_are_sent_from_memory),
        TEST(over_the_quota_what_came_first_stays),
        TEST(a_full_disk_gives_right_bytes),
        TEST(a_killed_fetcher_is_replaced),
        TEST(a_fetcher_that_dies_at_its_start_is_an_error_or_replaced),
        TEST(a_killed_reader_disturbs_no_other),
        TEST(refused_credentials_fail_their_own_reader),
        TEST(tries_of_other_settings_fail_their_own_reader),
        TEST(forked_children_make_their_own_connection),
        TEST(a_child_with_the_pid_of_an_ancestor_has_no_connection),
        TEST(a_child_that_is_forked_during_a_start_delays_no_reader),
        TEST(a_removed_folder_is_no_error),
        TEST(addresses_of_the_hub_name_files_in_all_commits),
        TEST(addresses_of_the_hub_need_a_commit),
        TEST(kept_objects_are_listed_and_compared_with_their_checksums),
        TEST(after_another_boot_saved_units_are_compared),
        TEST(what_is_in_use_is_not_removed),
        TEST(by_age_and_size_the_longest_unused_goes_first),
        TEST(a_killed_removal_gives_a_reader_no_other_bytes),
        TEST(filling_keeps_whole_objects),
        TEST(figures_are_those_of_a_fetcher_that_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
