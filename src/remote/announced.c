/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges that readers have announced: they are fetched in the order of each reader, when no request is open for a
 * thread. */
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "fetcher.h"

/*
 * Ranges become jobs only when a thread has nothing else to do, so that what is withdrawn before costs nothing, and
 * what another reader has had fetched meanwhile is not fetched again. A range that was begun stays in the list until it
 * is withdrawn: a reader may be only so many bytes ahead.
 *
 * A trainer says with each batch that it takes what it has read. If it says nothing for minutes, its loop is paused:
 * what waits in memory for it is given back, and its workers ask for that when they read it.
 */

enum { ANNOUNCED_MOST = 1 << 20, OBJECTS_SHARE = 2, QUOTA_SHARE = 4, MEMORY_MOST = 256 << 20 };

static const uint64_t AHEAD_MOST = UINT64_C(2) << 30; /* bytes of one reader */
static const int64_t PAUSE_NS = 300 * HR_NS_PER_S;    /* a reader that says nothing for so long is paused */

/* ---- the list ---- */

static void leave_object(hr_fetcher *fetcher, struct hr__announced *announced) {
    if (!announced->object) return;
    if (--announced->object->announced_count == 0) fetcher->announced_objects--;
    announced->object = NULL;
}

static void free_first(hr_fetcher *fetcher, struct hr__reader *reader) {
    struct hr__announced *announced = reader->first_announced;
    bool is_waiting = reader->next_to_begin == announced;
    if (!is_waiting && announced->object) hr__jobs_drop_soon(fetcher, announced->object, announced->range);
    leave_object(fetcher, announced);
    reader->begun_bytes -= announced->begun_bytes;
    fetcher->begun_bytes -= announced->begun_bytes;
    reader->first_announced = announced->next;
    if (!announced->next) reader->last_announced = NULL;
    if (is_waiting) {
        reader->next_to_begin = announced->next;
        fetcher->waiting_count--;
    }
    fetcher->announced_count--;
    hr__free(announced);
}

void hr__announced_withdraw(hr_fetcher *fetcher, struct hr__reader *reader, uint64_t read, uint64_t given) {
    bool has_room = false;
    reader->given = given == UINT64_MAX ? 0 : given;
    while (reader->first_announced && (read == UINT64_MAX || reader->first_announced->position < read)) {
        has_room = true;
        free_first(fetcher, reader);
    }
    if (has_room && fetcher->waiting_count) pthread_cond_signal(&fetcher->has_jobs);
}

static void add(hr_fetcher *fetcher, struct hr__reader *reader, struct hr__object *object, struct hr__range range,
                uint64_t position) {
    bool is_within = range.bytes > 0 && range.at < object->bytes && range.bytes <= object->bytes - range.at;
    struct hr__announced *announced =
        is_within && fetcher->announced_count < ANNOUNCED_MOST ? hr__realloc(NULL, sizeof *announced) : NULL;
    if (!announced) return;
    *announced = (struct hr__announced){.object = object, .range = range, .position = position};
    if (object->announced_count++ == 0) fetcher->announced_objects++;
    *(reader->last_announced ? &reader->last_announced->next : &reader->first_announced) = announced;
    reader->last_announced = announced;
    if (!reader->next_to_begin) reader->next_to_begin = announced;
    fetcher->announced_count++;
    fetcher->waiting_count++;
}

void hr__announced_add(hr_fetcher *fetcher, struct hr__reader *reader, const struct hr__range_request *request,
                       const char *version, const char *url, const char *storage, const char *more, size_t more_count) {
    if (fetcher->announced_objects >= hr__jobs_open_most() / OBJECTS_SHARE) return;
    struct hr__object *object = hr__jobs_object(fetcher, request, version, url, storage);
    if (!object) return;
    if (!hr__claim(object, reader)) return;
    add(fetcher, reader, object, (struct hr__range){request->at, request->bytes}, request->head.id);
    for (size_t i = 0; i < more_count; i++) {
        struct hr__range range;
        memcpy(&range, more + i * sizeof range, sizeof range);
        add(fetcher, reader, object, range, request->head.id);
    }
    if (fetcher->waiting_count) pthread_cond_signal(&fetcher->has_jobs);
}

/* ---- ranges that readers ask for ---- */

/* Looks for a range among the next ones of a reader, and lowers `*most`, how many it looks at, to the place where it is
 * found. */
static struct hr__announced *find_next(const struct hr__reader *reader, const struct hr__object *object, uint64_t at,
                                       uint64_t bytes, int *most) {
    struct hr__announced *one = reader->next_to_begin;
    for (int i = 0; one && i < *most; i++, one = one->next)
        if (one->object == object && !one->is_asked && one->range.at == at && one->range.bytes == bytes) {
            *most = i;
            return one;
        }
    return NULL;
}

/* It is not known whose announcement it is. Workers read in the announced order, so it is the nearest one. */
void hr__announced_asked(hr_fetcher *fetcher, const struct hr__object *object, uint64_t at, uint64_t bytes) {
    enum { LOOKED_AT_MOST = 1024 };
    int most = LOOKED_AT_MOST;
    struct hr__announced *nearest = NULL;
    if (!object->announced_count) return;
    for (struct hr__reader *reader = fetcher->readers; reader; reader = reader->next) {
        struct hr__announced *found = find_next(reader, object, at, bytes, &most);
        if (found) nearest = found;
    }
    if (nearest) nearest->is_asked = true;
}

/* ---- fetching ---- */

static bool is_paused(const struct hr__reader *reader, int64_t now_ns) {
    return now_ns - reader->heard_ns > PAUSE_NS;
}

static bool may_begin(const hr_fetcher *fetcher, const struct hr__reader *reader, int64_t now_ns) {
    const struct hr__announced *announced = reader->next_to_begin;
    return announced && !reader->is_gone && !is_paused(reader, now_ns) &&
           hr__host_is_ready_for_soon(fetcher, announced->object->host);
}

/* The reader that has the least ahead. */
static struct hr__reader *next_reader(const hr_fetcher *fetcher) {
    int64_t now_ns = hr__now_ns();
    struct hr__reader *found = NULL;
    for (struct hr__reader *reader = fetcher->readers; reader; reader = reader->next)
        if ((!found || reader->begun_bytes < found->begun_bytes) && may_begin(fetcher, reader, now_ns)) found = reader;
    return found;
}

/* A reader with nothing ahead may go on, whatever the limits are. */
static uint64_t kept_most(const hr_fetcher *fetcher, const struct hr__reader *reader) {
    uint64_t most = fetcher->quota_bytes / QUOTA_SHARE;
    if (!reader->begun_bytes) return UINT64_MAX;
    if (reader->begun_bytes >= AHEAD_MOST || fetcher->begun_bytes >= most) return 0;
    return hr__min(AHEAD_MOST - reader->begun_bytes, most - fetcher->begun_bytes);
}

/* Begins the next range of a reader. Returns false if there is no room. */
static bool begin_one(hr_fetcher *fetcher, struct hr__reader *reader) {
    struct hr__announced *announced = reader->next_to_begin;
    bool is_given = announced->is_asked || announced->position < reader->given;
    uint64_t bytes = 0;
    struct hr__range range = hr__jobs_widen(fetcher, announced->object, announced->range);
    enum hr__soon soon = hr__jobs_fetch_soon(fetcher, announced->object, range, true, kept_most(fetcher, reader),
                                             is_given ? 0 : MEMORY_MOST, &bytes);
    if (soon == HR__SOON_NO_ROOM && !is_given) return false;
    if (soon == HR__SOON_IN_MEMORY) reader->has_in_memory = true;
    if (soon != HR__SOON_IN_MEMORY) leave_object(fetcher, announced);
    announced->begun_bytes = bytes;
    reader->begun_bytes += bytes;
    fetcher->begun_bytes += bytes;
    reader->next_to_begin = announced->next;
    fetcher->waiting_count--;
    return true;
}

void hr__announced_begin(hr_fetcher *fetcher) {
    while (fetcher->waiting_count && !hr__hosts_next(fetcher, HR__SOON)) {
        struct hr__reader *reader = next_reader(fetcher);
        if (!reader || !begin_one(fetcher, reader)) return;
    }
    if (fetcher->waiting_count) pthread_cond_signal(&fetcher->has_jobs); /* another thread begins the next one */
}

/* Drops the ranges of a reader that wait in memory. */
static void give_back(hr_fetcher *fetcher, struct hr__reader *reader) {
    for (struct hr__announced *one = reader->first_announced; one != reader->next_to_begin; one = one->next) {
        if (one->object) hr__jobs_drop_soon(fetcher, one->object, one->range);
        leave_object(fetcher, one);
    }
    reader->has_in_memory = false;
}

void hr__announced_give_back(hr_fetcher *fetcher) {
    uint64_t before = fetcher->parcel_bytes;
    int64_t now_ns = hr__now_ns();
    for (struct hr__reader *reader = fetcher->readers; reader; reader = reader->next)
        if (reader->has_in_memory && is_paused(reader, now_ns)) give_back(fetcher, reader);
    if (fetcher->parcel_bytes < before) hr__trim_heap();
}
