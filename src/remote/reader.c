/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the fetcher for parts of objects, and takes its answers. */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "arena/network.h"
#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/text.h"
#include "remote.h"

/* A fetcher that ends again and again at the same request is not started for ever. */
enum { FETCHERS_MOST = 20 };

static _Atomic uint64_t last_id;

static uint64_t new_id(void) {
    return atomic_fetch_add(&last_id, 1) + 1;
}

/* ---- answers ---- */

int hr__answer_take(const char *message, size_t bytes, uint64_t id, hr__taker take, void *context) {
    struct hr__answer answer;
    if (bytes < sizeof answer) return hr__fail(-EPROTO, "remote: the fetcher sent half a message");
    memcpy(&answer, message, sizeof answer);
    const char *text = message + sizeof answer;
    size_t text_bytes = bytes - sizeof answer;
    if (answer.head.magic != HR__REMOTE_MAGIC)
        return hr__fail(-EPROTO, "remote: the fetcher of this folder is that of another version of headrace; give "
                                 "another folder (HEADRACE_REMOTE)" HR_HELP("remote-fetcher"));
    if (answer.head.id != id) return 0; /* of an earlier request, whose wait a signal has ended */
    if (answer.head.type == HR__DATA) return take(context, text, text_bytes);
    if (answer.head.type == HR__DONE) return 1;
    return hr__fail(answer.code < 0 ? answer.code : -EPROTO, "%.*s", (int)text_bytes, text);
}

/* Receives one message. Returns 1: it was the last of the answer; 0: there is more. -EPIPE: the fetcher has ended. */
static int take_message(char *message, uint64_t id, hr__taker take, void *context) {
    int bytes = hr__link_receive(message, HR__MESSAGE_BYTES);
    if (bytes == -EINTR || bytes == -ECANCELED) return bytes;
    return bytes <= 0 ? -EPIPE : hr__answer_take(message, (size_t)bytes, id, take, context);
}

static int take_answer(uint64_t id, hr__taker take, void *context) {
    char *message = hr__realloc(NULL, HR__MESSAGE_BYTES);
    if (!message) return hr__fail(-ENOMEM, "remote: no memory for an answer");
    int r;
    do r = take_message(message, id, take, context);
    while (r == 0);
    hr__free(message);
    hr__stop_at(HR__AT_READER_ANSWERED);
    return r < 0 ? r : 0;
}

/* Sends a request and takes its answer; if the fetcher ends meanwhile, it asks the next one. `restart` forgets what was
 * taken. */
static int request(struct hr__read_part *parts, size_t count, uint64_t id, hr__taker take, void (*restart)(void *),
                   void *context) {
    for (int i = 0; i < FETCHERS_MOST; i++) {
        int r = hr__link_send(parts, count);
        if (r < 0) return r;
        restart(context);
        r = take_answer(id, take, context);
        if (r != -EPIPE) {
            if (r == -EINTR || r == -ECANCELED || r == -EPROTO || r == -ENOMEM)
                hr__link_close(); /* more of the answer may come */
            return r;
        }
        hr__link_close();
    }
    return hr__fail(-EIO, "remote: %d fetchers ended while they had this request" HR_HELP("remote-fetcher"),
                    FETCHERS_MOST);
}

/* ---- parts of objects ---- */

static void restart_target(void *context) {
    struct hr__target *target = context;
    target->place = target->used = 0;
    target->taken = 0;
}

int hr__target_take(void *context, const char *bytes, size_t count) {
    struct hr__target *target = context;
    if (count > target->wanted - target->taken)
        return hr__fail(-EPROTO, "remote: the fetcher sent more bytes than were wanted");
    target->taken += count;
    while (count) {
        const struct hr__read_part *place = &target->places[target->place];
        size_t some = (size_t)hr__min(count, place->bytes - target->used);
        memcpy((char *)place->data + target->used, bytes, some);
        bytes += some;
        count -= some;
        target->used += some;
        if (target->used == place->bytes && target->place + 1 < target->count) target->place++, target->used = 0;
    }
    return 0;
}

struct hr__range_request hr__range_request(const struct hr__known *known, enum hr__message_type type, uint64_t id,
                                           struct hr__range range) {
    const struct hr_remote_object *object = &known->object;
    struct hr__range_request request = {.head = {.magic = HR__REMOTE_MAGIC, .type = type, .id = id}};
    memcpy(request.name, object->name, HR__NAME_BYTES);
    request.object_bytes = object->bytes;
    request.at = range.at;
    request.bytes = range.bytes;
    request.version_bytes = (uint32_t)strlen(object->version) + 1;
    request.url_bytes = (uint32_t)strlen(object->url) + 1;
    request.storage_bytes = (uint32_t)strlen(object->storage) + 1;
    return request;
}

void hr__range_parts(struct hr__read_part parts[HR__RANGE_PARTS], struct hr__range_request *request,
                     const struct hr__known *known) {
    const struct hr_remote_object *object = &known->object;
    parts[0] = (struct hr__read_part){request, sizeof *request};
    parts[1] = (struct hr__read_part){(void *)object->version, request->version_bytes};
    parts[2] = (struct hr__read_part){(void *)object->url, request->url_bytes};
    parts[3] = (struct hr__read_part){(void *)object->storage, request->storage_bytes};
}

int hr__remote_get(const struct hr__known *known, uint64_t at, uint64_t bytes, bool is_direct,
                   struct hr__read_part *places, size_t count) {
    struct hr__range_request range = hr__range_request(known, HR__READ, new_id(), (struct hr__range){at, bytes});
    struct hr__target target = {.places = places, .count = count, .wanted = bytes};
    struct hr__read_part parts[HR__RANGE_PARTS];
    range.is_direct = is_direct;
    hr__range_parts(parts, &range, known);
    hr__network_begin();
    int r = request(parts, HR__RANGE_PARTS, range.head.id, hr__target_take, restart_target, &target);
    hr__network_end();
    if (r < 0) return r;
    if (target.taken != 0 && target.taken != bytes)
        return hr__fail(-EPROTO, "remote: the fetcher sent %" PRIu64 " of %" PRIu64 " bytes", target.taken, bytes);
    return target.taken != 0;
}

void hr__remote_ask(const struct hr__known *known, uint64_t at, uint64_t bytes) {
    struct hr__range_request range = hr__range_request(known, HR__ASK, new_id(), (struct hr__range){at, bytes});
    struct hr__read_part parts[HR__RANGE_PARTS];
    hr__range_parts(parts, &range, known);
    hr__link_try_send(parts, HR__RANGE_PARTS);
}

/* ---- calls ---- */

static int take_text(void *context, const char *bytes, size_t count) {
    struct hr__text *text = context;
    hr__text_add(text, bytes, count);
    return text->is_short ? hr__fail(-ENOMEM, "remote: no memory for an answer") : 0;
}

static void restart_text(void *context) {
    hr__text_cut(context, 0);
}

int hr_remote_call(const char *text, size_t bytes, char **ret_answer, size_t *ret_bytes) {
    struct hr__message head = {.magic = HR__REMOTE_MAGIC, .type = HR__CALL, .id = new_id()};
    struct hr__read_part parts[] = {{&head, sizeof head}, {(void *)text, bytes}};
    struct hr__text answer = {0};
    if (bytes > HR__CALL_BYTES) return hr__fail(-EMSGSIZE, "remote: a request is too long");
    int r = request(parts, 2, head.id, take_text, restart_text, &answer);
    if (r == 0) {
        hr__text_add(&answer, "", 1); /* memory, also for an empty answer */
        if (answer.is_short) r = hr__fail(-ENOMEM, "remote: no memory for an answer");
    }
    if (r < 0) {
        hr__text_free(&answer);
        return r;
    }
    *ret_answer = answer.bytes;
    *ret_bytes = answer.length - 1;
    return 0;
}

void hr_remote_free(char *answer) {
    hr__free(answer);
}
