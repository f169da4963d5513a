/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/arena_scene.h"

#include <fcntl.h>
#include <ftw.h>

#include "base/base.h"
#include "remote/blocks.h"
#include "remote/fetcher.h"
#include "remote/remote.h"
#include "source/pool.h"

/* Readers and fetchers that are killed at each of their steps. This program is the fetcher, too: it makes the bytes of
 * an object from its address, so that each byte that is read can be compared. */

enum { OBJECT_BYTES = 700001, READS = 60, READ_MOST = 150000 };

static const char URL[] = "https://host/object", NAME[] = "0123456789abcdef0123456789abcdef";
static const char EXPIRED[] = "{\"token\":\"expired\"}"; /* settings that the fetcher refuses */
static char folder[64];

static unsigned char byte_at(uint64_t at) {
    return (unsigned char)((at * 2654435761u) >> 13 ^ at);
}

/* ---- the fetcher ---- */

static void begun_path(char *ret_path) {
    must(hr__path(ret_path, "%s/begun", getenv("HEADRACE_REMOTE")));
}

/* Refuses a job when another request waits for it, too. */
static void refuse(hr_fetcher *fetcher, const struct hr_fetcher_job *job) {
    char path[HR__PATH_BYTES];
    begun_path(path);
    check(close(open(path, O_CREAT | O_WRONLY, 0600)) == 0);
    int64_t end_ns = hr__now_ns() + 30 * HR_NS_PER_S;
    for (uint64_t count = 0; count < 2 && hr__now_ns() < end_ns;) {
        pthread_mutex_lock(&fetcher->lock);
        count = fetcher->open_requests;
        pthread_mutex_unlock(&fetcher->lock);
        usleep(1000);
    }
    must(hr_fetcher_fail(fetcher, job->id, -EACCES, "remote: the token has expired"));
}

static void do_job(hr_fetcher *fetcher, const struct hr_fetcher_job *job) {
    static unsigned char data[2 * MIB];
    if (job->kind == HR_FETCHER_CALL) {
        bool is_look = job->text_bytes > 5 && !memcmp(job->text, "look\n", 5);
        static char line[256];
        snprintf(line, sizeof line, "ok\t%s\t%d\tetag:1\t%s\n", NAME, OBJECT_BYTES, URL);
        if (is_look)
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

static void refused_credentials_fail_their_own_reader(void **state) {
    const struct hr_remote_object object = {URL, URL, EXPIRED, NAME, "etag:1", OBJECT_BYTES};
    char path[HR__PATH_BYTES];
    int status;
    (void)state;
    struct hr__pool *pool = open_object();
    pid_t pid = fork();
    if (pid == 0) {
        unsigned char data[10];
        must(hr_remote_add(&object));
        _exit(hr__pool_read(open_object(), 0, 0, data, sizeof data) == -EACCES ? 0 : 1);
    }
    begun_path(path);
    for (int64_t end_ns = hr__now_ns() + 30 * HR_NS_PER_S; access(path, F_OK) != 0; usleep(1000))
        check(hr__now_ns() < end_ns);
    read_one(pool, 0, 10); /* waits for the job of the child, and gets its bytes by its own credentials */
    check(waitpid(pid, &status, 0) == pid && status == 0);
    hr__pool_free(pool);
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
        TEST(without_room_bytes_are_sent),
        TEST(announced_ranges_are_sent_from_memory),
        TEST(over_the_quota_what_came_first_stays),
        TEST(a_full_disk_gives_right_bytes),
        TEST(a_killed_fetcher_is_replaced),
        TEST(a_fetcher_that_dies_at_its_start_is_an_error_or_replaced),
        TEST(a_killed_reader_disturbs_no_other),
        TEST(refused_credentials_fail_their_own_reader),
        TEST(forked_children_make_their_own_connection),
        TEST(a_removed_folder_is_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
