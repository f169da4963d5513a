/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to the fetcher, that of a thread among them, and the start of a fetcher. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "remote.h"

static const int64_t SLICE_NS = 200 * INT64_C(1000000), RETRY_NS = 10 * INT64_C(1000000);
static const int64_t SHOWN_NS = HR_NS_PER_S / 2;
static const int64_t CONNECT_NS = 120 * HR_NS_PER_S, START_NS = 60 * HR_NS_PER_S;

/* ---- signals ---- */

static int (*_Atomic check_signals)(void);

void hr_remote_check_signals(int (*check)(void)) {
    atomic_store(&check_signals, check);
}

static _Thread_local const _Atomic bool *stop_of_thread;

void hr__link_stop_with(const _Atomic bool *stop) {
    stop_of_thread = stop;
}

static int check_wait(void) {
    int (*check)(void) = atomic_load(&check_signals);
    if (stop_of_thread && atomic_load(stop_of_thread)) return hr__fail(-ECANCELED, "remote: reading was stopped");
    if (!check || check() >= 0) return 0;
    return hr__fail(-EINTR, "remote: a signal ended the wait for the fetcher");
}

static int64_t slice_end(void) {
    return hr__now_ns() + SLICE_NS;
}

/* ---- the command ---- */

enum { WORDS_MOST = 32 };

struct command {
    const char *words[WORDS_MOST + 2]; /* room for the folder and the NULL behind it */
    size_t count;
};

static _Atomic(struct command *) command_of_program;

/* Copies words one behind the other. A command is never freed, because another thread may be using it. */
static struct command *copy_words(const char *const *words) {
    size_t bytes = 0, count = 0;
    for (; words[count] && count < WORDS_MOST; count++) bytes += strlen(words[count]) + 1;
    struct command *command = hr__realloc(NULL, sizeof *command + bytes);
    if (!command) return NULL;
    *command = (struct command){.count = count};
    char *place = (char *)(command + 1);
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(words[i]) + 1;
        memcpy(place, words[i], length);
        command->words[i] = place;
        place += length;
    }
    return command;
}

int hr_remote_use(const char *const *words) {
    struct command *command = copy_words(words);
    if (!command) return hr__fail(-ENOMEM, "remote: no memory for the command of the fetcher");
    atomic_store(&command_of_program, command);
    return 0;
}

/* Splits $HEADRACE_FETCHER at its spaces, in `text`. */
static void split(char *text, struct command *ret_command) {
    *ret_command = (struct command){.count = 0};
    while (ret_command->count < WORDS_MOST) {
        text += strspn(text, " ");
        if (!*text) return;
        ret_command->words[ret_command->count++] = text;
        text += strcspn(text, " ");
        if (*text) *text++ = '\0';
    }
}

static int find_command(char *text, size_t room, struct command *ret_command) {
    const char *given = getenv("HEADRACE_FETCHER");
    const struct command *own = atomic_load(&command_of_program);
    if (given && *given && strlen(given) < room) {
        memcpy(text, given, strlen(given) + 1);
        split(text, ret_command);
    } else if (own) {
        *ret_command = *own;
    }
    if (ret_command->count) return 0;
    return hr__fail(-ENOENT, "remote: there is no program that fetches; set HEADRACE_FETCHER to the command of one, "
                             "such as '/path/to/python -m headrace._remote', or call hr_remote_use");
}

/* ---- starting a fetcher ---- */

/* Describes the process that was started. The fetcher goes on in a child of it, and answers when it has ended.
 */
struct start {
    int pid, error_fd;
    bool has_ended;
    struct hr__end end; /* not known if the program reaps its children itself */
    char errors[1024];  /* what it has written to its stderr */
    size_t length;
};

static void look_for_end(struct start *start) {
    uint64_t peak;
    if (!start->has_ended) start->has_ended = hr__reap(start->pid, &start->end, &peak) != -EAGAIN;
}

/* Returns false if its stderr is closed, or is empty when it has ended. The latter because the pipe is not closed while
 * another thread's forked child has a copy of it. */
static bool read_errors(struct start *start) {
    char chunk[512];
    int some = hr__read(start->error_fd, chunk, sizeof chunk);
    if (some == -EAGAIN) return !start->has_ended;
    if (some <= 0) return false;
    size_t kept = hr__min((uint64_t)some, sizeof start->errors - 1 - start->length);
    memcpy(start->errors + start->length, chunk, kept);
    start->length += kept;
    return true;
}

static int wait_for_start(struct start *start) {
    int64_t deadline_ns = hr__now_ns() + START_NS;
    bool is_open = true;
    while (is_open) {
        bool is_ready = false;
        hr__poll(&start->error_fd, &is_ready, 1, slice_end());
        int stopped = check_wait();
        if (stopped < 0) return stopped;
        if (hr__now_ns() > deadline_ns) return hr__fail(-ETIMEDOUT, "remote: the fetcher did not start within 60 s");
        look_for_end(start);
        is_open = read_errors(start);
    }
    for (; !start->has_ended && hr__now_ns() < deadline_ns; look_for_end(start))
        hr__sleep_until(hr__now_ns() + RETRY_NS / 10);
    while (start->length && start->errors[start->length - 1] == '\n') start->length--;
    start->errors[start->length] = '\0';
    return 0;
}

enum { IS_TAKEN = 3 }; /* exit code: another process is the fetcher of the folder */

static int start_fetcher(const char *folder) {
    char given[HR__PATH_BYTES];
    struct command command = {.count = 0};
    struct start start = {.error_fd = -1};
    int write_fd = -1;
    int r = find_command(given, sizeof given, &command);
    if (r < 0) return r;
    command.words[command.count] = folder;
    r = hr__pipe(&start.error_fd, &write_fd);
    if (r == 0) r = hr__spawn(command.words, write_fd, &start.pid);
    hr__close(&write_fd);
    if (r < 0) hr__fail(r, "remote: cannot start the fetcher, %s: %s", command.words[0], hr_error_text(r));
    if (r == 0) r = wait_for_start(&start);
    hr__close(&start.error_fd);
    if (r < 0) return r;
    struct hr__end end = start.end;
    if (!end.is_known || (end.signal == 0 && (end.exit_code == 0 || end.exit_code == IS_TAKEN))) return 0;
    if (end.signal) return 0; /* it was killed: the next one may live */
    return hr__fail(-EIO, "remote: the fetcher ended when it was started (exit code %d): %s" HR_HELP("remote-fetcher"),
                    end.exit_code, start.errors);
}

/* One process at a time starts a fetcher. If another one does, this waits, but not for ever: a forked child keeps the
 * lock of its parent if that is killed. */
static int start_or_wait(const char *folder, int64_t started_ns) {
    const int64_t patience_ns = 5 * HR_NS_PER_S;
    char path[HR__PATH_BYTES];
    int fd = -1;
    int r = hr__path(path, "%s/start", folder);
    if (r == 0) r = hr__file_open_or_make(path, &fd);
    if (r < 0) return hr__fail(r, "remote: cannot open %s: %s", path, hr_error_text(r));
    bool is_first = hr__lock_file(fd, HR__EXCLUSIVE) == 0;
    if (is_first || hr__now_ns() - started_ns > patience_ns)
        r = start_fetcher(folder);
    else
        hr__sleep_until(hr__now_ns() + RETRY_NS);
    if (is_first) hr__unlock_file(fd); /* to close it is not enough: a child that was forked meanwhile has a copy */
    hr__close(&fd);
    return r;
}

/* ---- connections ---- */

/* How often this process and those that it descends from were forked: a child may get the pid of one that has ended,
 * and would then take the answers to its requests for its own. */
static _Atomic uint32_t fork_count;
static pthread_once_t count_forks_once = PTHREAD_ONCE_INIT;

static void count_fork(void) {
    atomic_fetch_add(&fork_count, 1);
}

static void count_forks(void) {
    pthread_atfork(NULL, NULL, count_fork);
}

static bool has_fd(const struct hr__link *link) {
    struct hr__file_info info;
    return link->fd >= 0 && hr__file_look_fd(link->fd, &info) == 0 && info.device == link->device &&
           info.inode == link->inode;
}

bool hr__link_is_open(const struct hr__link *link) {
    return link->pid == hr__pid() && link->fork_count == atomic_load(&fork_count) && has_fd(link);
}

void hr__link_drop(struct hr__link *link) {
    if (has_fd(link)) hr__close(&link->fd);
    link->fd = -1;
}

static struct hr__link link_of(int fd) {
    struct hr__file_info info = {0};
    pthread_once(&count_forks_once, count_forks);
    hr__file_look_fd(fd, &info);
    return (struct hr__link){
        .fd = fd, .pid = hr__pid(), .fork_count = atomic_load(&fork_count), .device = info.device, .inode = info.inode};
}

static int connect_once(const char *folder, int *ret_fd) {
    int folder_fd = -1, fd = -1;
    int r = hr__folder_open(folder, &folder_fd);
    if (r == 0) r = hr__socket_connect_in(folder_fd, "sock", &fd);
    hr__close(&folder_fd);
    if (r == 0 && !hr__socket_is_of_user(fd)) {
        hr__close(&fd);
        return hr__fail(-EPERM,
                        "remote: the fetcher of %s belongs to another user; give another folder "
                        "(HEADRACE_REMOTE)" HR_HELP("remote-folder"),
                        folder);
    }
    if (r == 0) *ret_fd = fd;
    return r;
}

static bool is_absent(int code) {
    return code == -ENOENT || code == -ECONNREFUSED || code == -ECONNRESET || code == -EAGAIN;
}

/* Finds the folder and connects. The folder is made again if it was removed. */
static int try_to_connect(char folder[HR__PATH_BYTES], int *ret_fd, bool *ret_is_absent) {
    int r = hr__remote_folder(folder);
    if (r < 0) return r;
    r = connect_once(folder, ret_fd);
    *ret_is_absent = is_absent(r);
    if (r == 0 || r == -EPERM || *ret_is_absent) return r;
    return hr__fail(r, "remote: cannot connect to the fetcher in %s: %s", folder, hr_error_text(r));
}

int hr__link_open(struct hr__link *link) {
    char folder[HR__PATH_BYTES];
    bool is_fetcher_absent;
    int fd = -1;
    int r = try_to_connect(folder, &fd, &is_fetcher_absent);
    if (r == 0) *link = link_of(fd);
    return r;
}

/* ---- the connection of a thread ---- */

static _Thread_local struct hr__link own_link = {.fd = -1};
static pthread_key_t at_exit;
static pthread_once_t at_exit_once = PTHREAD_ONCE_INIT;

void hr__link_close(void) {
    hr__link_drop(&own_link);
}

void hr_remote_close(void) {
    hr__link_close();
}

static void drop_at_exit(void *link) {
    hr__link_drop(link);
}

static void make_key(void) {
    pthread_key_create(&at_exit, drop_at_exit);
}

static void take_link(int fd) {
    own_link = link_of(fd);
    pthread_once(&at_exit_once, make_key);
    pthread_setspecific(at_exit, &own_link);
}

static int make_link(void) {
    char folder[HR__PATH_BYTES];
    int64_t begin_ns = hr__now_ns();
    for (;;) {
        bool is_fetcher_absent = false;
        int fd = -1;
        int r = try_to_connect(folder, &fd, &is_fetcher_absent);
        if (r == 0) {
            take_link(fd);
            return 0;
        }
        if (!is_fetcher_absent) return r;
        int stopped = check_wait();
        if (stopped < 0) return stopped;
        if (hr__now_ns() - begin_ns > CONNECT_NS)
            return hr__fail(-ETIMEDOUT, "remote: no fetcher answers in %s: %s" HR_HELP("remote-fetcher"), folder,
                            hr_error_text(r));
        r = start_or_wait(folder, begin_ns);
        if (r < 0) return r;
    }
}

/* ---- messages ---- */

int hr__link_send(const struct hr__read_part *parts, size_t count) {
    enum { TRIES = 10 };
    int r = 0;
    for (int i = 0; i < TRIES; i++) {
        if (!hr__link_is_open(&own_link)) {
            hr__link_close(); /* that of the parent, in a forked child */
            r = make_link();
            if (r < 0) return r;
        }
        r = hr__socket_send(own_link.fd, parts, count, true);
        if (r == 0) {
            hr__stop_at(HR__AT_READER_SENT);
            return 0;
        }
        hr__link_close(); /* the fetcher has ended */
    }
    return hr__fail(r, "remote: cannot send a request to the fetcher: %s", hr_error_text(r));
}

void hr__link_try_send(const struct hr__read_part *parts, size_t count) {
    if (!hr__link_is_open(&own_link)) {
        hr__link_close();
        if (make_link() < 0) return;
    }
    hr__socket_send(own_link.fd, parts, count, false);
}

static int wait_for_message(void *message, size_t room, char *name) {
    static const char waiting[] = "hr-network"; /* python/headrace/_remote/waits.py looks for it */
    int64_t shown_ns = hr__now_ns() + SHOWN_NS;
    for (;;) {
        bool is_ready = false;
        int r = hr__poll(&own_link.fd, &is_ready, 1, slice_end());
        int stopped = r <= 0 ? check_wait() : 0;
        if (stopped < 0) return stopped;
        if (r <= 0 && !*name && hr__now_ns() > shown_ns) {
            hr__thread_name(name);
            hr__thread_rename(waiting);
        }
        if (r <= 0) continue;
        r = hr__socket_receive(own_link.fd, message, room);
        if (r == -EAGAIN) continue;
        return r == -ECONNRESET ? 0 : r;
    }
}

/* A long wait is shown in the name of the thread, so that a trainer does not take its worker for one that hangs. */
int hr__link_receive(void *message, size_t room) {
    char name[HR__THREAD_NAME_BYTES] = "";
    int r = wait_for_message(message, room, name);
    if (*name) hr__thread_rename(name);
    return r;
}
