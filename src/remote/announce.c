/* SPDX-License-Identifier: Apache-2.0 */
/* Announces to the fetcher what will be read later. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "remote.h"

static const int64_t CONNECT_NS = HR_NS_PER_S / 5; /* between two tries to connect */

struct wanted {
    const struct hr__known *known;
    struct hr__range range;
};

/* The lock is only tried: a forked child may have inherited it from a thread that it does not have. */
struct hr_announcer {
    pthread_mutex_t lock;
    struct hr__link link;
    int64_t tried_ns; /* when it tried to connect */
    struct wanted *wanted;
    size_t count, room;
    bool is_short; /* there was no memory for a range */
};

int hr_announcer_new(hr_announcer **ret_announcer) {
    hr_announcer *announcer = hr__realloc(NULL, sizeof *announcer);
    if (!announcer) return hr__fail(-ENOMEM, "remote: no memory for an announcer");
    *announcer = (hr_announcer){.link = {.fd = -1}};
    pthread_mutex_init(&announcer->lock, NULL);
    *ret_announcer = announcer;
    return 0;
}

static bool enter(hr_announcer *announcer) {
    return pthread_mutex_trylock(&announcer->lock) == 0;
}

static void leave(hr_announcer *announcer) {
    pthread_mutex_unlock(&announcer->lock);
}

/* ---- messages ---- */

/* Sends without waiting. If the fetcher has ended, the connection is dropped. */
static int send_now(hr_announcer *announcer, const struct hr__read_part *parts, size_t count) {
    if (!hr__link_is_open(&announcer->link)) return -ENOTCONN;
    int r = hr__socket_send(announcer->link.fd, parts, count, false);
    if (r < 0 && r != -EAGAIN) hr__link_drop(&announcer->link);
    return r;
}

static int withdraw(hr_announcer *announcer, uint64_t read, uint64_t given) {
    struct hr__withdrawal message = {.head = {.magic = HR__REMOTE_MAGIC, .type = HR__WITHDRAW}};
    message.read = read;
    message.given = given;
    return send_now(announcer, &(struct hr__read_part){&message, sizeof message}, 1);
}

/* Sends ranges of one object: as many as fit one message. Returns how many, or a negative errno. */
static int send_some(hr_announcer *announcer, const struct wanted *wanted, size_t count, uint64_t position) {
    enum { MORE_MOST = 1024 };
    struct hr__range more[MORE_MOST];
    struct hr__read_part parts[HR__RANGE_PARTS + 1];
    struct hr__range_request request = hr__range_request(wanted->known, HR__ANNOUNCE, position, wanted->range);
    size_t used = sizeof request + request.version_bytes + request.url_bytes + request.storage_bytes;
    if (used > HR__MESSAGE_BYTES) return -EMSGSIZE;
    size_t some = (size_t)hr__min(hr__min(count - 1, MORE_MOST), (HR__MESSAGE_BYTES - used) / sizeof *more);
    for (size_t i = 0; i < some; i++) more[i] = wanted[i + 1].range;
    hr__range_parts(parts, &request, wanted->known);
    parts[HR__RANGE_PARTS] = (struct hr__read_part){more, some * sizeof *more};
    int r = send_now(announcer, parts, HR__RANGE_PARTS + 1);
    return r < 0 ? r : (int)some + 1;
}

/* By object, and within one by place. */
static int compare(const void *a, const void *b) {
    const struct wanted *one = a, *other = b;
    if (one->known != other->known) return (uintptr_t)one->known < (uintptr_t)other->known ? -1 : 1;
    return (one->range.at > other->range.at) - (one->range.at < other->range.at);
}

static int send_all(hr_announcer *announcer, uint64_t position) {
    struct wanted *wanted = announcer->wanted;
    int sent = 0, count = (int)announcer->count;
    qsort(wanted, announcer->count, sizeof *wanted, compare);
    for (size_t i = 0; sent >= 0 && i < announcer->count; i += (size_t)sent) {
        size_t end = i + 1;
        while (end < announcer->count && wanted[end].known == wanted[i].known) end++;
        sent = send_some(announcer, &wanted[i], end - i, position);
        if (sent < 0) return sent;
    }
    return announcer->is_short ? -ENOMEM : count;
}

/* ---- what callers do ---- */

hr_announcer *hr_announcer_free(hr_announcer *announcer) {
    if (!announcer) return NULL;
    /* A forked child may have a copy of the descriptor, with which the connection does not end. */
    withdraw(announcer, UINT64_MAX, UINT64_MAX);
    hr__link_drop(&announcer->link);
    pthread_mutex_destroy(&announcer->lock);
    hr__free(announcer->wanted);
    hr__free(announcer);
    return NULL;
}

int hr_announcer_begin(hr_announcer *announcer) {
    if (!enter(announcer)) return -EBUSY;
    int64_t now_ns = hr__now_ns();
    int r = 0;
    announcer->count = 0;
    announcer->is_short = false;
    if (!hr__link_is_open(&announcer->link)) {
        if (announcer->link.fd >= 0) announcer->tried_ns = 0; /* it has just ended, or is that of the parent */
        hr__link_drop(&announcer->link);
        r = -ENOTCONN;
        if (!announcer->tried_ns || now_ns - announcer->tried_ns > CONNECT_NS) {
            announcer->tried_ns = now_ns;
            r = hr__link_open(&announcer->link);
        }
        if (r == 0) r = 1;
    }
    leave(announcer);
    return r;
}

void hr__announcer_add(hr_announcer *announcer, const struct hr__known *known, uint64_t at, uint64_t bytes) {
    if (!enter(announcer)) return;
    if (announcer->count == announcer->room) {
        size_t room = 2 * announcer->room + 64;
        struct wanted *wanted = hr__realloc(announcer->wanted, room * sizeof *wanted);
        if (wanted) {
            announcer->wanted = wanted;
            announcer->room = room;
        }
    }
    if (announcer->count < announcer->room)
        announcer->wanted[announcer->count++] = (struct wanted){known, {at, bytes}};
    else
        announcer->is_short = true;
    leave(announcer);
}

int hr_announcer_send(hr_announcer *announcer, uint64_t position) {
    if (!enter(announcer)) return -EBUSY;
    int r = send_all(announcer, position);
    announcer->count = 0;
    announcer->is_short = false;
    leave(announcer);
    return r;
}

int hr_announcer_withdraw(hr_announcer *announcer, uint64_t read, uint64_t given) {
    if (!enter(announcer)) return -EBUSY;
    int r = withdraw(announcer, read, given);
    leave(announcer);
    return r;
}
