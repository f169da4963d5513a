/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <ftw.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <headrace/headrace.h>

#include "folder.h"
#include "remote/fetcher.h"
#include "remote/remote.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

/* The messages between readers and the fetcher of remote objects, in both directions. Whatever they are, they are
 * refused or taken, and no byte outside of them is read. */

enum { MESSAGE_MOST = 1024, TEXT_MOST = 64, GIVEN_MOST = 100 << 10, OBJECTS = 4 };

static const uint64_t OBJECT_MOST = UINT64_C(1) << 32;

/* A message of exactly its length, so that AddressSanitizer sees each byte that is read outside. */
static char *copy_of(const void *message, size_t bytes) {
    char *copy = malloc(bytes + !bytes);
    if (!copy) abort();
    memcpy(copy, message, bytes);
    return copy;
}

/* ---- input ---- */

struct input {
    const uint8_t *at;
    size_t left;
};

static unsigned next(struct input *input) {
    if (!input->left) return 0;
    input->left--;
    return *input->at++;
}

/* Changes one byte of the message for every three bytes of input. */
static void change(struct input *input, char *message, size_t bytes) {
    for (unsigned count = next(input) % 8; count && bytes; count--) {
        unsigned low = next(input), high = next(input);
        message[(low | high << 8) % bytes] = (char)next(input);
    }
}

/* ---- messages of readers ---- */

static size_t add(char *message, size_t used, const void *part, size_t bytes) {
    memcpy(message + used, part, bytes);
    return used + bytes;
}

static size_t write_range(struct input *input, enum hr__message_type type, char *message) {
    static const char version[] = "etag:1", url[] = "https://host/name", storage[] = "{}";
    struct hr__range_request request = {.head = {HR__REMOTE_MAGIC, type, next(input)}};
    unsigned object = next(input) % OBJECTS;
    memset(request.name, '0' + (int)object, HR__NAME_BYTES);
    request.object_bytes = UINT64_C(1) << (10 + 5 * object);
    request.at = (uint64_t)next(input) * 1000 % request.object_bytes;
    request.bytes = 1 + (uint64_t)next(input) * 500 % (request.object_bytes - request.at);
    request.is_direct = next(input) & 1;
    request.version_bytes = sizeof version;
    request.url_bytes = sizeof url;
    request.storage_bytes = sizeof storage;
    size_t used = add(message, 0, &request, sizeof request);
    used = add(message, used, version, sizeof version);
    used = add(message, used, url, sizeof url);
    used = add(message, used, storage, sizeof storage);
    for (unsigned count = type == HR__ANNOUNCE ? next(input) % 4 : 0; count; count--) {
        struct hr__range range = {(uint64_t)next(input) * 4000, 1 + (uint64_t)next(input) * 100};
        used = add(message, used, &range, sizeof range);
    }
    return used;
}

static size_t write_request(struct input *input, char *message) {
    struct hr__withdrawal withdrawal = {.head = {HR__REMOTE_MAGIC, HR__WITHDRAW, 0}};
    struct hr__message call = {HR__REMOTE_MAGIC, HR__CALL, next(input)};
    switch (next(input) % 5) {
    case 0:
        return write_range(input, HR__READ, message);
    case 1:
        return write_range(input, HR__ASK, message);
    case 2:
        return write_range(input, HR__ANNOUNCE, message);
    case 3:
        withdrawal.read = next(input) == 255 ? UINT64_MAX : next(input);
        withdrawal.given = next(input);
        return add(message, 0, &withdrawal, sizeof withdrawal);
    default:
        return add(message, add(message, 0, &call, sizeof call), "status", 6);
    }
}

/* Keeps the sizes of objects so small that their bits need little memory. */
static void limit_size(char *message, size_t bytes) {
    struct hr__range_request request;
    if (bytes < sizeof request) return;
    memcpy(&request, message, sizeof request);
    request.object_bytes %= OBJECT_MOST;
    memcpy(message, &request, sizeof request);
}

/* ---- the fetcher ---- */

static hr_fetcher *fetcher;
static int peer_fd = -1;

static void add_reader(void) {
    struct timeval little = {.tv_usec = 1000};
    int fds[2];
    struct hr__reader *reader = malloc(sizeof *reader);
    if (!reader || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) abort();
    setsockopt(fds[0], SOL_SOCKET, SO_SNDTIMEO, &little, sizeof little);
    peer_fd = fds[1];
    *reader = (struct hr__reader){.fd = fds[0], .references = 1, .next = fetcher->readers};
    fetcher->readers = reader;
    fetcher->reader_count++;
}

static void remove_reader(void) {
    struct hr__reader *reader = fetcher->readers;
    close(peer_fd);
    hr__announced_withdraw(fetcher, reader, UINT64_MAX, UINT64_MAX);
    fetcher->readers = reader->next;
    fetcher->reader_count--;
    hr__reader_unref(reader);
}

static void drain(void) {
    static char message[HR__MESSAGE_BYTES];
    while (recv(peer_fd, message, sizeof message, MSG_DONTWAIT) > 0) continue;
}

/* Does a job, if there is one: all requests are answered in the end. */
static bool do_job(bool is_failed) {
    static char data[GIVEN_MOST];
    struct hr_fetcher_job job;
    if (hr_fetcher_take(fetcher, 0, &job) != 1) return false;
    if (job.kind == HR_FETCHER_PART && (!job.bytes || job.at >= job.object_bytes || !job.url || !job.version)) abort();
    if (job.kind == HR_FETCHER_PART && job.bytes > job.object_bytes - job.at) abort();
    size_t bytes = job.kind == HR_FETCHER_PART ? job.bytes : 10;
    if (is_failed || bytes > sizeof data)
        hr_fetcher_fail(fetcher, job.id, -EIO, "remote: no");
    else
        hr_fetcher_give(fetcher, job.id, data, bytes);
    drain();
    return true;
}

static void take_request(struct input *input, bool is_raw) {
    char message[MESSAGE_MOST];
    size_t bytes = is_raw ? input->left : write_request(input, message);
    if (is_raw) {
        bytes = bytes > sizeof message ? sizeof message : bytes;
        memcpy(message, input->at, bytes);
        input->left = 0;
    } else {
        change(input, message, bytes);
        if (next(input) & 1) bytes = bytes * (next(input) + 1) / 256;
    }
    limit_size(message, bytes);
    char *copy = copy_of(message, bytes);
    pthread_mutex_lock(&fetcher->lock);
    hr__fetcher_take_message(fetcher, fetcher->readers, copy, bytes);
    pthread_mutex_unlock(&fetcher->lock);
    free(copy);
    drain();
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info, (void)kind;
    return at->level ? remove(path) : 0;
}

static void fetch(struct input *input) {
    enum { KEPT_MOST = 8 << 20, JOBS_MOST = 1000 };
    char path[HR__PATH_BYTES];
    snprintf(path, sizeof path, "%s", folder);
    if (hr_fetcher_open(path, &fetcher) < 0) abort();
    fetcher->options.quota_bytes = fetcher->quota_bytes = next(input) & 1 ? KEPT_MOST : 0;
    add_reader();
    while (input->left) {
        unsigned what = next(input) % 8;
        if (what < 4) take_request(input, false);
        if (what == 4) take_request(input, true);
        if (what > 4) do_job(what == 5);
    }
    for (int i = 0; i < JOBS_MOST && do_job(false); i++) continue;
    remove_reader();
    fetcher = hr_fetcher_close(fetcher);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- answers ---- */

static int note_text(void *context, const char *bytes, size_t count) {
    size_t *total = context;
    for (size_t i = 0; i < count; i++) *total += bytes[i] != 0;
    return 0;
}

/* Takes messages as the answer to a READ of two places, and to a CALL. */
static void read_answers(struct input *input) {
    char one[10], other[TEXT_MOST];
    struct hr__read_part places[] = {{one, sizeof one}, {other, sizeof other}};
    struct hr__target target = {.places = places, .count = 2, .wanted = sizeof one + sizeof other};
    size_t total = 0;
    while (input->left) {
        struct hr__answer answer = {.head = {HR__REMOTE_MAGIC, HR__DATA + next(input) % 3, 1}};
        size_t bytes = next(input) % TEXT_MOST;
        char message[sizeof answer + TEXT_MOST] = {0};
        memcpy(message, &answer, sizeof answer);
        for (size_t i = 0; i < bytes; i++) message[sizeof answer + i] = (char)next(input);
        bytes += sizeof answer;
        change(input, message, bytes);
        if (next(input) & 1) bytes = next(input) % bytes;
        char *copy = copy_of(message, bytes);
        hr__answer_take(copy, bytes, 1, hr__target_take, &target);
        hr__answer_take(copy, bytes, 1, note_text, &total);
        free(copy);
        if (target.taken > target.wanted) abort();
    }
}

/* The answer to a call "look". */
static void read_lines(const struct input *input) {
    static const char *const urls[] = {"https://host/one", "https://host/two"};
    char *answer = malloc(input->left + 1);
    if (!answer) abort();
    memcpy(answer, input->at, input->left);
    answer[input->left] = '\0';
    hr__known_take(answer, urls, 2, "{}");
    free(answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    struct input rest = {input, bytes};
    if (!*folder) make_folder();
    switch (next(&rest) % 4) {
    case 0:
        read_answers(&rest);
        break;
    case 1:
        read_lines(&rest);
        break;
    default:
        fetch(&rest);
        break;
    }
    return 0;
}
