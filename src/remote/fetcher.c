/* SPDX-License-Identifier: Apache-2.0 */
/* The fetcher: its folder, its socket, and the thread that takes the messages of readers. */
#include "fetcher.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"

enum { SEND_S = 30, MESSAGES_AT_ONCE = 16 };

static const int64_t LOOK_NS = HR_NS_PER_S;

/* ---- opening ---- */

static int lock_folder(hr_fetcher *fetcher) {
    char path[HR__PATH_BYTES];
    int r = hr__path(path, "%s/lock", fetcher->folder);
    if (r == 0) r = hr__file_open_or_make(path, &fetcher->lock_fd);
    if (r == 0) r = hr__lock_file(fetcher->lock_fd, HR__EXCLUSIVE);
    hr__stop_at(HR__AT_FETCHER_LOCKED);
    if (r == -EAGAIN) return hr__fail(r, "remote: another process is the fetcher of %s", fetcher->folder);
    return r < 0 ? hr__fail(r, "remote: cannot lock %s: %s", path, hr_error_text(r)) : 0;
}

static int listen_in_folder(hr_fetcher *fetcher) {
    struct hr__file_info info = {0};
    char path[HR__PATH_BYTES];
    int r = hr__folder_open(fetcher->folder, &fetcher->folder_fd);
    if (r == 0) r = hr__socket_listen_in(fetcher->folder_fd, "sock", &fetcher->listen_fd);
    if (r == 0) r = hr__path(path, "%s/sock", fetcher->folder);
    if (r == 0) r = hr__file_look(path, &info);
    if (r == 0) r = hr__eventfd(&fetcher->wake_fd);
    hr__stop_at(HR__AT_FETCHER_BOUND);
    if (r < 0) return hr__fail(r, "remote: cannot make a socket in %s: %s", fetcher->folder, hr_error_text(r));
    fetcher->socket_inode = info.inode;
    return 0;
}

int hr_fetcher_open(const char *folder, hr_fetcher **ret_fetcher) {
    hr_fetcher *fetcher = hr__realloc(NULL, sizeof *fetcher);
    if (!fetcher) return hr__fail(-ENOMEM, "remote: no memory for the fetcher");
    *fetcher = (hr_fetcher){.folder_fd = -1, .lock_fd = -1, .listen_fd = -1, .wake_fd = -1, .figures_fd = -1};
    fetcher->began_ns = hr__now_ns();
    pthread_mutex_init(&fetcher->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&fetcher->has_jobs, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&fetcher->has_saved, NULL);
    int r = hr__path(fetcher->folder, "%s", folder);
    if (r < 0) hr__fail(r, "remote: the path of the folder is too long");
    if (r == 0) r = lock_folder(fetcher);
    if (r == 0) r = listen_in_folder(fetcher);
    if (r < 0)
        hr_fetcher_close(fetcher);
    else
        *ret_fetcher = fetcher;
    return r;
}

/* ---- answers ---- */

void hr__answer(struct hr__reader *reader, uint64_t id, int code, const char *text) {
    struct hr__answer answer = {.head = {HR__REMOTE_MAGIC, code < 0 ? HR__FAILED : HR__DONE, id}, .code = code};
    struct hr__read_part parts[] = {{&answer, sizeof answer}, {(void *)text, code < 0 ? strlen(text) : 0}};
    hr__stop_at(HR__AT_FETCHER_ANSWERED);
    if (!reader->is_gone && hr__socket_send(reader->fd, parts, 2, false) < 0) reader->is_gone = true;
}

int hr__answer_bytes(struct hr__reader *reader, uint64_t id, const void *data, uint64_t bytes) {
    struct hr__answer answer = {.head = {HR__REMOTE_MAGIC, HR__DATA, id}};
    const uint64_t room = HR__MESSAGE_BYTES - sizeof answer;
    for (uint64_t done = 0; done < bytes;) {
        uint64_t some = hr__min(room, bytes - done);
        struct hr__read_part parts[] = {{&answer, sizeof answer}, {(char *)data + done, some}};
        int r = hr__socket_send(reader->fd, parts, 2, true);
        if (r < 0) return r;
        done += some;
    }
    answer.head.type = HR__DONE;
    return hr__socket_send(reader->fd, &(struct hr__read_part){&answer, sizeof answer}, 1, true);
}

/* ---- messages ---- */

/* Takes a text that ends with a zero byte, and has none before. NULL: it is not one. */
static const char *take_text(const char **at, size_t *left, uint32_t bytes) {
    const char *text = *at;
    if (!bytes || bytes > *left || strnlen(text, bytes) != bytes - 1) return NULL;
    *at += bytes;
    *left -= bytes;
    return text;
}

/* READ, ASK and ANNOUNCE. */
static void take_range(hr_fetcher *fetcher, struct hr__reader *reader, const char *message, size_t bytes) {
    struct hr__range_request range;
    char name[HR__NAME_BYTES + 1] = "";
    if (bytes < sizeof range) return;
    memcpy(&range, message, sizeof range);
    memcpy(name, range.name, HR__NAME_BYTES);
    const char *at = message + sizeof range;
    size_t left = bytes - sizeof range;
    const char *version = take_text(&at, &left, range.version_bytes);
    const char *url = version ? take_text(&at, &left, range.url_bytes) : NULL;
    const char *storage = url ? take_text(&at, &left, range.storage_bytes) : NULL;
    bool is_within = range.bytes > 0 && range.at < range.object_bytes && range.bytes <= range.object_bytes - range.at;
    bool is_valid = storage && is_within && hr__is_name(name);
    if (is_valid && range.head.type == HR__ANNOUNCE)
        hr__announced_add(fetcher, reader, &range, version, url, storage, at, left / sizeof(struct hr__range));
    else if (is_valid)
        hr__jobs_read(fetcher, reader, &range, version, url, storage);
    else
        hr__answer(reader, range.head.id, -EPROTO, "remote: the fetcher received an invalid request");
}

static void take_withdrawal(hr_fetcher *fetcher, struct hr__reader *reader, const char *message, size_t bytes) {
    struct hr__withdrawal withdrawal;
    if (bytes < sizeof withdrawal) return;
    memcpy(&withdrawal, message, sizeof withdrawal);
    hr__announced_withdraw(fetcher, reader, withdrawal.read, withdrawal.given);
}

void hr__fetcher_take_message(hr_fetcher *fetcher, struct hr__reader *reader, const char *message, size_t bytes) {
    struct hr__message head = {0};
    reader->heard_ns = hr__now_ns();
    if (bytes >= sizeof head) memcpy(&head, message, sizeof head);
    hr__stop_at(HR__AT_FETCHER_RECEIVED);
    if (head.magic != HR__REMOTE_MAGIC)
        hr__answer(reader, head.id, -EPROTO, "remote: the fetcher is that of another version of headrace");
    else if (head.type == HR__READ || head.type == HR__ASK || head.type == HR__ANNOUNCE)
        take_range(fetcher, reader, message, bytes);
    else if (head.type == HR__WITHDRAW)
        take_withdrawal(fetcher, reader, message, bytes);
    else if (head.type == HR__CALL)
        hr__jobs_call(fetcher, reader, head.id, message + sizeof head, bytes - sizeof head);
    else
        hr__answer(reader, head.id, -EPROTO, "remote: the fetcher received an unknown request");
}

/* Takes some messages of a reader, so that one reader does not keep the others waiting. */
static void take_messages(hr_fetcher *fetcher, struct hr__reader *reader, char *memory) {
    for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
        int bytes = hr__socket_receive(reader->fd, memory, HR__MESSAGE_BYTES);
        if (bytes == -EAGAIN) return;
        pthread_mutex_lock(&fetcher->lock);
        if (bytes > 0)
            hr__fetcher_take_message(fetcher, reader, memory, (size_t)bytes);
        else
            reader->is_gone = true;
        pthread_mutex_unlock(&fetcher->lock);
        if (bytes <= 0) return;
    }
}

/* ---- readers ---- */

void hr__reader_unref(struct hr__reader *reader) {
    if (--reader->references) return;
    hr__close(&reader->fd);
    hr__free(reader);
}

static void accept_reader(hr_fetcher *fetcher) {
    int fd = -1;
    if (hr__socket_accept_blocking(fetcher->listen_fd, SEND_S, &fd) < 0) return;
    hr__stop_at(HR__AT_FETCHER_ACCEPTED);
    struct hr__reader *reader = hr__socket_is_of_user(fd) ? hr__realloc(NULL, sizeof *reader) : NULL;
    if (!reader) {
        hr__close(&fd);
        return;
    }
    *reader = (struct hr__reader){.fd = fd, .references = 1, .heard_ns = hr__now_ns()};
    pthread_mutex_lock(&fetcher->lock);
    if (hr__claims_enter(fetcher, reader)) {
        reader->next = fetcher->readers;
        fetcher->readers = reader;
        fetcher->reader_count++;
    } else {
        hr__reader_unref(reader);
    }
    pthread_mutex_unlock(&fetcher->lock);
}

static void drop_gone(hr_fetcher *fetcher) {
    pthread_mutex_lock(&fetcher->lock);
    for (struct hr__reader **place = &fetcher->readers; *place;) {
        struct hr__reader *reader = *place;
        if (!reader->is_gone) {
            place = &reader->next;
            continue;
        }
        *place = reader->next;
        hr__announced_withdraw(fetcher, reader, UINT64_MAX, UINT64_MAX);
        fetcher->reader_count--;
        hr__claims_leave(fetcher, reader);
        hr__reader_unref(reader);
    }
    pthread_mutex_unlock(&fetcher->lock);
}

/* ---- the thread ---- */

/* A clean-up may have removed the files, and another process may then have become the fetcher of the folder. */
static bool is_ours(const hr_fetcher *fetcher) {
    struct hr__file_info info, own;
    char path[HR__PATH_BYTES];
    if (hr__path(path, "%s/sock", fetcher->folder) < 0 || hr__file_look(path, &info) < 0) return false;
    if (info.inode != fetcher->socket_inode) return false;
    if (hr__path(path, "%s/lock", fetcher->folder) < 0 || hr__file_look(path, &info) < 0) return false;
    return hr__file_look_fd(fetcher->lock_fd, &own) == 0 && own.inode == info.inode && own.device == info.device;
}

struct serving {
    hr_fetcher *fetcher;
    struct hr__reader **readers; /* of fds from the third on */
    int *fds;
    bool *is_ready;
    size_t room;
    char *memory; /* for a message */
    int64_t used_ns, looked_ns;
    bool is_leaving; /* the folder is not ours any more: what was asked for is answered, and nothing else taken */
};

static int make_room(struct serving *serving, size_t count) {
    if (count <= serving->room) return 0;
    size_t room = 2 * count;
    struct hr__reader **readers = hr__realloc(serving->readers, room * sizeof(struct hr__reader *));
    if (readers) serving->readers = readers;
    int *fds = hr__realloc(serving->fds, room * sizeof *fds);
    if (fds) serving->fds = fds;
    bool *is_ready = hr__realloc(serving->is_ready, room * sizeof *is_ready);
    if (is_ready) serving->is_ready = is_ready;
    if (!readers || !fds || !is_ready) return -ENOMEM;
    serving->room = room;
    return 0;
}

enum { OWN_FDS = 2 };

static size_t list_fds(struct serving *serving) {
    hr_fetcher *fetcher = serving->fetcher;
    size_t count = OWN_FDS;
    pthread_mutex_lock(&fetcher->lock);
    int r = make_room(serving, OWN_FDS + fetcher->reader_count);
    if (r < 0 || !serving->readers || !serving->fds || !serving->is_ready) count = 0;
    if (count) {
        serving->fds[0] = serving->is_leaving ? -1 : fetcher->listen_fd;
        serving->fds[1] = fetcher->wake_fd;
        for (struct hr__reader *reader = fetcher->readers; reader; reader = reader->next) {
            serving->readers[count] = reader;
            serving->fds[count++] = serving->is_leaving ? -1 : reader->fd;
        }
        memset(serving->is_ready, 0, count * sizeof *serving->is_ready);
    }
    pthread_mutex_unlock(&fetcher->lock);
    return count;
}

/* Returns true if the fetcher is to end. */
static bool has_ended(struct serving *serving) {
    hr_fetcher *fetcher = serving->fetcher;
    int64_t now_ns = hr__now_ns();
    pthread_mutex_lock(&fetcher->lock);
    bool is_ending = fetcher->is_ending, is_idle = !fetcher->reader_count, is_done = !fetcher->open_requests;
    pthread_mutex_unlock(&fetcher->lock);
    if (!is_idle) serving->used_ns = now_ns;
    if (now_ns - serving->looked_ns > LOOK_NS) {
        serving->looked_ns = now_ns;
        if (!is_ours(fetcher)) serving->is_leaving = true;
        pthread_mutex_lock(&fetcher->lock);
        hr__jobs_drop_old(fetcher);
        hr__announced_give_back(fetcher);
        pthread_mutex_unlock(&fetcher->lock);
    }
    if (serving->is_leaving && is_done) return true;
    return is_ending || now_ns - serving->used_ns > (int64_t)fetcher->options.idle_ms * (HR_NS_PER_S / 1000);
}

static void take_events(struct serving *serving, size_t count) {
    if (serving->is_ready[1]) hr__eventfd_drain(serving->fetcher->wake_fd);
    if (serving->is_ready[0]) {
        accept_reader(serving->fetcher);
        return; /* what it has announced is taken before what its workers ask for, which they sent later */
    }
    for (size_t i = OWN_FDS; i < count; i++)
        if (serving->is_ready[i]) take_messages(serving->fetcher, serving->readers[i], serving->memory);
}

static void serve(struct serving *serving) {
    enum { PART_OF_IDLE = 4 };
    int64_t idle_ns = (int64_t)serving->fetcher->options.idle_ms * (HR_NS_PER_S / 1000) / PART_OF_IDLE;
    int64_t slice_ns = (int64_t)hr__min((uint64_t)LOOK_NS / PART_OF_IDLE, (uint64_t)idle_ns + 1);
    while (!has_ended(serving)) {
        size_t count = list_fds(serving);
        int r = count ? hr__poll(serving->fds, serving->is_ready, count, hr__now_ns() + slice_ns) : -ENOMEM;
        if (r < 0 && r != -ETIMEDOUT && r != -EINTR) hr__sleep_until(hr__now_ns() + HR_NS_PER_S / 100);
        if (r > 0) take_events(serving, count);
        drop_gone(serving->fetcher); /* also those to which an answer could not be sent */
    }
}

static void run(void *context) {
    hr_fetcher *fetcher = context;
    struct serving serving = {.fetcher = fetcher, .used_ns = hr__now_ns(), .looked_ns = hr__now_ns()};
    hr__jobs_count_kept(fetcher);
    serving.memory = hr__realloc(NULL, HR__MESSAGE_BYTES);
    if (serving.memory) serve(&serving);
    hr__free(serving.memory);
    hr__free(serving.readers);
    hr__free(serving.fds);
    hr__free(serving.is_ready);
    pthread_mutex_lock(&fetcher->lock);
    fetcher->is_ending = true;
    pthread_cond_broadcast(&fetcher->has_jobs);
    pthread_mutex_unlock(&fetcher->lock);
}

int hr_fetcher_start(hr_fetcher *fetcher, const struct hr_fetcher_options *options) {
    fetcher->options = *options;
    hr__raise_open_files();
    int r = hr__thread_start(&fetcher->thread, run, fetcher);
    if (r < 0) return hr__fail(r, "remote: cannot start a thread: %s", hr_error_text(r));
    fetcher->is_started = true;
    return 0;
}

hr_fetcher *hr_fetcher_close(hr_fetcher *fetcher) {
    if (!fetcher) return NULL;
    if (fetcher->is_started) {
        pthread_mutex_lock(&fetcher->lock);
        fetcher->is_ending = true;
        pthread_mutex_unlock(&fetcher->lock);
        hr__eventfd_ring(fetcher->wake_fd);
        hr__thread_join(&fetcher->thread);
        hr_fetcher_save(fetcher);
    }
    for (struct hr__reader *reader = fetcher->readers; reader; reader = reader->next)
        hr__announced_withdraw(fetcher, reader, UINT64_MAX, UINT64_MAX);
    hr__jobs_free(fetcher);
    while (fetcher->readers) {
        struct hr__reader *reader = fetcher->readers;
        fetcher->readers = reader->next;
        hr__reader_unref(reader);
    }
    hr__close(&fetcher->figures_fd);
    hr__close(&fetcher->listen_fd);
    hr__close(&fetcher->wake_fd);
    hr__close(&fetcher->folder_fd);
    hr__close(&fetcher->lock_fd); /* last: the next fetcher may begin */
    pthread_mutex_destroy(&fetcher->lock);
    pthread_cond_destroy(&fetcher->has_jobs);
    pthread_cond_destroy(&fetcher->has_saved);
    hr__free(fetcher);
    return NULL;
}
