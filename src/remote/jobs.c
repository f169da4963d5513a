/* SPDX-License-Identifier: Apache-2.0 */
/* Decides what is fetched: requests become jobs, each part of an object one at a time, and jobs become answers. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"
#include "fetcher.h"
#include "kept.h"
#include "remote.h"

enum {
    PART_BYTES = 1 << 20,           /* of a job, at most */
    SOON_QUEUED_MOST = 4096,        /* jobs of a host that no request waits for */
    FILL_SHARE = 16,                /* an object of which so large a part was wanted is fetched as a whole */
    PARCEL_BYTES_MOST = 64 << 20,   /* of a range that is fetched into memory */
    PARCELS_BYTES_MOST = 512 << 20, /* of all of them */
    OPEN_SHARE = 4                  /* of the files that may be open, the part that is for readers and requests */
};

static const int64_t FULL_NS = 60 * HR_NS_PER_S, CHECK_FREE_NS = HR_NS_PER_S, EVICT_NS = 10 * HR_NS_PER_S;
static const int64_t PARCEL_NS = 120 * HR_NS_PER_S;

static char *copy_text(const char *text, size_t bytes) {
    char *copied = hr__realloc(NULL, bytes + 1);
    if (!copied) return NULL;
    memcpy(copied, text, bytes);
    copied[bytes] = '\0';
    return copied;
}

/* ---- objects ---- */

static struct hr__object **list_of(hr_fetcher *fetcher, const char *name) {
    return &fetcher->objects[hr__hash(name, HR__NAME_BYTES, 0) % HR__OBJECT_LISTS];
}

/* Puts an object behind all that were used before. */
static void note_use(hr_fetcher *fetcher, struct hr__object *object) {
    object->older = fetcher->newest_object;
    object->newer = NULL;
    *(object->older ? &object->older->newer : &fetcher->oldest_object) = object;
    fetcher->newest_object = object;
}

static void take_from_uses(hr_fetcher *fetcher, struct hr__object *object) {
    *(object->older ? &object->older->newer : &fetcher->oldest_object) = object->newer;
    *(object->newer ? &object->newer->older : &fetcher->newest_object) = object->older;
}

/* The caller takes it out of its list of the table. */
static void free_object(hr_fetcher *fetcher, struct hr__object *object) {
    take_from_uses(fetcher, object);
    hr__host_unref(fetcher, object->host);
    hr__bits_free(&object->users);
    if (object->blocks) fetcher->open_files--;
    hr__blocks_close(object->blocks);
    hr__free(object->version);
    hr__free(object->url);
    hr__free(object->storage);
    hr__free(object->in_flight);
    hr__free(object);
    fetcher->object_count--;
}

static bool is_idle(const struct hr__object *object) {
    return object->job_count == 0 && object->announced_count == 0 && !object->is_saving;
}

static void forget(hr_fetcher *fetcher, struct hr__object *object) {
    struct hr__object **place = list_of(fetcher, object->name);
    while (*place != object) place = &(*place)->next;
    *place = object->next;
    free_object(fetcher, object);
}

/* Forgets the object that was not used for the longest time, and closes its file. What was written to it since the last
 * save stays until the machine stops. One that has jobs is being used: it is the newest one then, and so not looked at
 * again each time. */
static bool forget_one(hr_fetcher *fetcher) {
    for (uint64_t left = fetcher->object_count; left; left--) {
        struct hr__object *object = fetcher->oldest_object;
        if (is_idle(object)) {
            forget(fetcher, object);
            return true;
        }
        take_from_uses(fetcher, object);
        note_use(fetcher, object);
    }
    return false;
}

static void start_filling(hr_fetcher *fetcher, struct hr__object *object) {
    struct hr__host *host = object->host;
    if (!host->fill_first) hr__host_enter(fetcher, host, HR__FILL);
    object->is_filling = true;
    object->job_count++;
    object->next_to_fill = NULL;
    *(host->fill_last ? &host->fill_last->next_to_fill : &host->fill_first) = object;
    host->fill_last = object;
}

static void stop_filling(hr_fetcher *fetcher, struct hr__object *object) {
    struct hr__host *host = object->host;
    struct hr__object **place = &host->fill_first, *before = NULL;
    for (; *place != object; place = &before->next_to_fill) before = *place;
    *place = object->next_to_fill;
    if (host->fill_last == object) host->fill_last = before;
    if (!host->fill_first) hr__host_leave(fetcher, host, HR__FILL);
    object->is_filling = false;
    object->job_count--;
}

/* Forgets objects until there is room for one more, also some that were to be fetched as a whole. */
static void make_room(hr_fetcher *fetcher) {
    while (fetcher->object_count >= hr__jobs_open_most()) {
        const struct hr__host *filling = fetcher->turns[HR__FILL].first;
        if (forget_one(fetcher)) continue;
        if (!filling) return;
        stop_filling(fetcher, filling->fill_first);
    }
}

uint64_t hr__jobs_open_most(void) {
    uint64_t limit = hr__open_file_limit();
    return hr__min(limit / OPEN_SHARE, 1 << 16);
}

static bool set_text(char **text, const char *wanted) {
    if (*text && !strcmp(*text, wanted)) return true;
    char *copied = copy_text(wanted, strlen(wanted));
    if (!copied) return false;
    hr__free(*text);
    *text = copied;
    return true;
}

static struct hr__object *find_object(hr_fetcher *fetcher, const struct hr__range_request *range) {
    struct hr__object *object = *list_of(fetcher, range->name);
    while (object && (memcmp(object->name, range->name, HR__NAME_BYTES) != 0 || object->bytes != range->object_bytes))
        object = object->next;
    return object;
}

static struct hr__object *add_object(hr_fetcher *fetcher, const struct hr__range_request *range, const char *url) {
    make_room(fetcher);
    struct hr__host *host = hr__host_ref(fetcher, url);
    struct hr__object *object = host ? hr__realloc(NULL, sizeof *object) : NULL;
    if (!object) {
        if (host) hr__host_unref(fetcher, host);
        return NULL;
    }
    *object = (struct hr__object){.host = host, .bytes = range->object_bytes};
    memcpy(object->name, range->name, HR__NAME_BYTES);
    note_use(fetcher, object);
    struct hr__object **list = list_of(fetcher, range->name);
    object->next = *list;
    *list = object;
    fetcher->object_count++;
    return object;
}

static unsigned char *new_bits(uint64_t object_bytes) {
    struct hr__blocks_plan plan;
    if (hr__blocks_plan(object_bytes, &plan) < 0) return NULL;
    unsigned char *bits = hr__realloc(NULL, plan.bit_bytes + 1);
    if (bits) memset(bits, 0, plan.bit_bytes + 1);
    return bits;
}

/* Opens the file of an object, also if a clean-up has removed it. Without one, the object is not kept. */
static void open_blocks(hr_fetcher *fetcher, struct hr__object *object) {
    char shown[HR__PATH_BYTES];
    if (object->blocks && object->job_count == 0 && !object->is_saving && !hr__blocks_are_linked(object->blocks)) {
        object->blocks = hr__blocks_close(object->blocks);
        fetcher->open_files--;
    }
    if (object->blocks || fetcher->options.quota_bytes == 0) return;
    hr__shown_url(object->url, shown, sizeof shown);
    if (!object->in_flight) object->in_flight = new_bits(object->bytes);
    if (object->in_flight && hr__blocks_make(fetcher->folder, object->name, shown, object->bytes, &object->blocks) == 0)
        fetcher->open_files++;
    else
        object->blocks = NULL;
}

struct hr__object *hr__jobs_object(hr_fetcher *fetcher, const struct hr__range_request *range, const char *version,
                                   const char *url, const char *storage) {
    struct hr__object *object = find_object(fetcher, range);
    if (!object) object = add_object(fetcher, range, url);
    if (!object) return NULL;
    if (!set_text(&object->version, version) || !set_text(&object->url, url) || !set_text(&object->storage, storage))
        return NULL;
    take_from_uses(fetcher, object);
    note_use(fetcher, object);
    return object;
}

static struct hr__object *take_object(hr_fetcher *fetcher, const struct hr__range_request *range, const char *version,
                                      const char *url, const char *storage) {
    struct hr__object *object = hr__jobs_object(fetcher, range, version, url, storage);
    if (object) open_blocks(fetcher, object);
    return object;
}

/* ---- what is kept ---- */

static int add_bytes(void *context, const struct hr__kept_file *file) {
    *(uint64_t *)context += file->info.committed_bytes;
    return 0;
}

void hr__jobs_count_kept(hr_fetcher *fetcher) {
    struct hr__file_system system = {0};
    uint64_t bytes = 0;
    hr__kept_visit(fetcher->folder, add_bytes, &bytes);
    hr__file_system_look(fetcher->folder, &system);
    pthread_mutex_lock(&fetcher->lock);
    fetcher->kept_bytes = bytes;
    fetcher->quota_bytes = fetcher->options.quota_bytes;
    if (fetcher->quota_bytes == UINT64_MAX) fetcher->quota_bytes = (system.free_bytes + bytes) / 2;
    pthread_mutex_unlock(&fetcher->lock);
}

/* Closes the file of an object, so that it is open elsewhere only if it is in use. Returns false if it is being fetched
 * or saved. */
static bool let_go(hr_fetcher *fetcher, const char *name) {
    for (struct hr__object **place = list_of(fetcher, name); *place;) {
        struct hr__object *object = *place;
        if (memcmp(object->name, name, HR__NAME_BYTES) != 0) {
            place = &object->next;
            continue;
        }
        if (object->is_filling) stop_filling(fetcher, object);
        if (!is_idle(object)) return false;
        *place = object->next;
        free_object(fetcher, object);
    }
    return true;
}

static bool is_saving(const struct hr__object *object) {
    return object->is_saving;
}

/* Returns true if one of the objects with a name, which may have several URLs, is so. */
static bool has_any(hr_fetcher *fetcher, const char *name, bool (*is_so)(const struct hr__object *)) {
    const struct hr__object *object = *list_of(fetcher, name);
    while (object && (memcmp(object->name, name, HR__NAME_BYTES) != 0 || !is_so(object))) object = object->next;
    return object != NULL;
}

/* A part that is being fetched is then written to a file without a name, and the next request makes a new file. */
static int remove_kept(hr_fetcher *fetcher, const char *name, bool force) {
    uint64_t disk_bytes = 0;
    if (!force && has_any(fetcher, name, hr__is_claimed)) return -EBUSY;
    if (!let_go(fetcher, name) && !force) return -EBUSY;
    int r = hr__kept_remove_file(fetcher->folder, name, force, &disk_bytes);
    fetcher->kept_bytes -= hr__min(fetcher->kept_bytes, disk_bytes);
    return r;
}

int hr_fetcher_remove(hr_fetcher *fetcher, const char *name, bool force) {
    if (!hr__is_name(name)) return -ENOENT;
    pthread_mutex_lock(&fetcher->lock);
    int r = remove_kept(fetcher, name, force);
    while (r == -EBUSY && has_any(fetcher, name, is_saving)) { /* the fetcher itself has the file open */
        pthread_cond_wait(&fetcher->has_saved, &fetcher->lock);
        r = remove_kept(fetcher, name, force);
    }
    pthread_mutex_unlock(&fetcher->lock);
    return r;
}

/* Removes objects that no process has used for an hour, the longest unused first, until there is room for more bytes of
 * `object`, which stays. */
static void evict(hr_fetcher *fetcher, const struct hr__object *object, uint64_t bytes) {
    const int64_t hour_ns = 3600 * HR_NS_PER_S;
    struct hr__kept_row *rows = NULL;
    size_t count = 0;
    if (hr__now_ns() < fetcher->evicted_ns + EVICT_NS && fetcher->evicted_ns) return;
    fetcher->evicted_ns = hr__now_ns();
    if (hr__kept_by_age(fetcher->folder, &rows, &count, &fetcher->kept_bytes) < 0) return;
    for (size_t i = 0; i < count && fetcher->kept_bytes + bytes > fetcher->quota_bytes; i++)
        if (rows[i].used_ns < hr__wall_ns() - hour_ns && strcmp(rows[i].name, object->name) != 0)
            remove_kept(fetcher, rows[i].name, false);
    hr__free(rows);
}

static bool has_free_space(hr_fetcher *fetcher) {
    struct hr__file_system system;
    int64_t now_ns = hr__now_ns();
    if (fetcher->free_checked_ns && now_ns - fetcher->free_checked_ns < CHECK_FREE_NS) return fetcher->has_free_space;
    fetcher->free_checked_ns = now_ns;
    fetcher->has_free_space = hr__file_system_look(fetcher->folder, &system) == 0 &&
                              system.free_bytes >= fetcher->options.free_bytes && system.free_files > 1;
    return fetcher->has_free_space;
}

/* Says whether so many more bytes may be kept. */
static bool may_keep(hr_fetcher *fetcher, const struct hr__object *object, uint64_t bytes) {
    if (!object->blocks || hr__now_ns() < fetcher->full_until_ns || !has_free_space(fetcher)) return false;
    if (fetcher->kept_bytes + bytes > fetcher->quota_bytes) evict(fetcher, object, bytes);
    return fetcher->kept_bytes + bytes <= fetcher->quota_bytes;
}

/* ---- jobs ---- */

/* host: of a call, whose reference the job takes; NULL: that of the object. */
static struct hr__job *new_job(hr_fetcher *fetcher, enum hr_fetcher_kind kind, struct hr__object *object,
                               struct hr__host *host) {
    struct hr__job *job = hr__realloc(NULL, sizeof *job);
    if (!job) return NULL;
    *job = (struct hr__job){.id = ++fetcher->last_job, .kind = kind, .object = object, .host = host};
    if (object) object->job_count++;
    return job;
}

static void free_job(hr_fetcher *fetcher, struct hr__job *job) {
    if (job->object) job->object->job_count--;
    if (!job->object) hr__host_unref(fetcher, job->host);
    hr__free(job->text);
    hr__free(job->url);
    hr__free(job->version);
    hr__free(job->storage);
    hr__free(job->requests);
    hr__free(job);
}

/* Says whether the bytes of a job are in memory, or in the file of its object, which is another one than that of the
 * reader. */
static bool is_at_hand(const struct hr__job *job) {
    if (!job->is_direct || !job->request_count) return false;
    if (job->parcel) return job->parcel->data != NULL;
    return job->object->blocks && hr__blocks_have_range(job->object->blocks, job->at, job->bytes);
}

/* Bytes that are at hand are sent however many jobs their host has. */
static void queue(hr_fetcher *fetcher, struct hr__job *job) {
    if (job->object) job->host = is_at_hand(job) ? &fetcher->at_hand : job->object->host;
    hr__job_queue(fetcher, job);
}

/* ---- requests ---- */

static struct hr__request *new_request(hr_fetcher *fetcher, struct hr__reader *reader, uint64_t id) {
    struct hr__request *request = hr__realloc(NULL, sizeof *request);
    if (!request) return NULL;
    *request = (struct hr__request){.reader = reader, .id = id, .asked_ns = hr__now_ns()};
    reader->references++;
    fetcher->open_requests++;
    return request;
}

static void free_request(hr_fetcher *fetcher, struct hr__request *request) {
    hr__reader_unref(request->reader);
    hr__free(request->text);
    hr__free(request->url);
    hr__free(request->storage);
    hr__free(request);
    fetcher->open_requests--;
}

static void finish(hr_fetcher *fetcher, struct hr__request *request) {
    if (!request->is_answered)
        hr__answer(request->reader, request->id, request->code, request->text ? request->text : "");
    free_request(fetcher, request);
}

static void note_failure(struct hr__request *request, int code, const char *text) {
    if (request->code) return;
    request->code = code;
    request->text = copy_text(text, strlen(text));
}

static bool wait_for(struct hr__request *request, struct hr__job *job) {
    if (job->request_count == job->request_room) {
        uint32_t room = 2 * job->request_room + 2;
        struct hr__request **requests = hr__realloc(job->requests, room * sizeof(struct hr__request *));
        if (!requests) return false;
        job->requests = requests;
        job->request_room = room;
    }
    job->requests[job->request_count++] = request;
    request->open_jobs++;
    if (job->state == HR__JOB_QUEUED && job->asked_ns < request->asked_ns) job->asked_ns = request->asked_ns;
    return true;
}

static const char no_memory[] = "remote: the fetcher has no memory for a request";

/* ---- parts that are kept ---- */

static bool is_in_flight(const struct hr__object *object, uint64_t at) {
    uint64_t unit = at / HR__UNIT_BYTES;
    return object->in_flight[unit / 8] >> unit % 8 & 1;
}

static void mark_in_flight(const struct hr__job *job, bool is_in) {
    for (uint64_t at = job->at; at < job->at + job->bytes; at += HR__UNIT_BYTES) {
        uint64_t unit = at / HR__UNIT_BYTES;
        unsigned char bit = (unsigned char)(1u << unit % 8), *byte = &job->object->in_flight[unit / 8];
        *byte = (unsigned char)(is_in ? *byte | bit : *byte & ~bit);
    }
}

static struct hr__job *find_job(const struct hr__object *object, uint64_t at) {
    if (!is_in_flight(object, at)) return NULL;
    struct hr__job *job = object->jobs;
    while (job && (at < job->at || at >= job->at + job->bytes)) job = job->next_of_object;
    return job;
}

/* Adds a job for units that are missing from `at` on, and ends before `end`. */
static struct hr__job *add_part(hr_fetcher *fetcher, struct hr__object *object, uint64_t at, uint64_t end,
                                bool is_soon) {
    uint64_t stop = at + HR__UNIT_BYTES;
    while (stop < end && stop - at < PART_BYTES && !is_in_flight(object, stop) &&
           !hr__blocks_has_unit(object->blocks, stop / HR__UNIT_BYTES))
        stop += HR__UNIT_BYTES;
    struct hr__job *job = new_job(fetcher, HR_FETCHER_PART, object, NULL);
    if (!job) return NULL;
    job->at = at;
    job->bytes = hr__min(stop, object->bytes) - at;
    job->is_soon = is_soon;
    job->next_of_object = object->jobs;
    object->jobs = job;
    mark_in_flight(job, true);
    queue(fetcher, job);
    return job;
}

/* ---- the rest of objects ---- */

/* Notes that units were wanted. An object of which enough were is fetched as a whole, when no request is open: in
 * random order all of it will be needed. */
static void note_wanted(hr_fetcher *fetcher, struct hr__object *object, uint64_t bytes) {
    object->wanted_units += (bytes + HR__UNIT_BYTES - 1) / HR__UNIT_BYTES;
    if (bytes >= object->bytes) return; /* all of it is wanted: there is no rest */
    if (object->is_filling || object->wanted_units < object->bytes / HR__UNIT_BYTES / FILL_SHARE) return;
    if (object->fill_at < object->bytes) start_filling(fetcher, object);
}

/* Adds a job for the next missing part of an object that is fetched as a whole. NULL: nothing is missing, or there is
 * no room. */
static struct hr__job *add_rest(hr_fetcher *fetcher, struct hr__object *object) {
    while (object->fill_at < object->bytes && (is_in_flight(object, object->fill_at) ||
                                               hr__blocks_has_unit(object->blocks, object->fill_at / HR__UNIT_BYTES)))
        object->fill_at += HR__UNIT_BYTES;
    uint64_t left = object->fill_at < object->bytes ? object->bytes - object->fill_at : 0;
    if (!left || !may_keep(fetcher, object, left)) return NULL;
    return add_part(fetcher, object, object->fill_at, object->bytes, true);
}

/* Adds a job for one of the objects that are fetched as a whole. NULL: there is nothing to do. */
static struct hr__job *add_fill(hr_fetcher *fetcher) {
    struct hr__host *host;
    while (fetcher->reader_count && (host = hr__hosts_next(fetcher, HR__FILL))) {
        struct hr__job *job = add_rest(fetcher, host->fill_first);
        if (!job) {
            stop_filling(fetcher, host->fill_first);
            continue;
        }
        hr__host_leave(fetcher, host, HR__FILL);
        hr__host_enter(fetcher, host, HR__FILL); /* others come before its next part */
        return job;
    }
    return NULL;
}

/* ---- what requests want ---- */

/* Has all missing units of a range fetched. request NULL: no request waits for them. */
static void fetch_units(hr_fetcher *fetcher, struct hr__object *object, uint64_t at, uint64_t end,
                        struct hr__request *request) {
    note_wanted(fetcher, object, end - at);
    at -= at % HR__UNIT_BYTES;
    while (at < end) {
        if (hr__blocks_has_unit(object->blocks, at / HR__UNIT_BYTES)) {
            at += HR__UNIT_BYTES;
            continue;
        }
        struct hr__job *job = find_job(object, at);
        if (job && request) hr__job_hurry(fetcher, job);
        if (!job && !request && object->host->queues[HR__SOON].count >= SOON_QUEUED_MOST) return;
        if (!job) job = add_part(fetcher, object, at, end, !request);
        if (!job || (request && !wait_for(request, job))) {
            if (request) note_failure(request, -ENOMEM, no_memory);
            return;
        }
        at = job->at + hr__round_up(job->bytes, HR__UNIT_BYTES);
    }
}

/* ---- ranges that wait in memory ---- */

static void unref_parcel(struct hr__parcel *parcel) {
    if (--parcel->references) return;
    parcel->object->job_count--;
    hr__free(parcel->data);
    hr__free(parcel);
}

/* Drops a parcel that is in the list. Jobs that send it go on. */
static void drop_parcel(hr_fetcher *fetcher, struct hr__parcel *parcel) {
    struct hr__parcel **place = &parcel->object->parcels;
    while (*place != parcel) place = &(*place)->next_of_object;
    *place = parcel->next_of_object;
    *(parcel->previous ? &parcel->previous->next : &fetcher->oldest) = parcel->next;
    *(parcel->next ? &parcel->next->previous : &fetcher->newest) = parcel->previous;
    parcel->is_listed = false;
    fetcher->parcel_bytes -= parcel->bytes;
    unref_parcel(parcel);
}

void hr__jobs_drop_old(hr_fetcher *fetcher) {
    int64_t now_ns = hr__now_ns();
    for (struct hr__parcel *parcel = fetcher->oldest, *next; parcel; parcel = next) {
        next = parcel->next;
        if (now_ns - parcel->made_ns <= PARCEL_NS) return;
        if (parcel->data && !parcel->is_announced) drop_parcel(fetcher, parcel);
    }
}

static struct hr__parcel *find_parcel(const struct hr__object *object, uint64_t at, uint64_t bytes) {
    struct hr__parcel *parcel = object->parcels;
    while (parcel && (at < parcel->at || at + bytes > parcel->at + parcel->bytes)) parcel = parcel->next_of_object;
    return parcel;
}

static struct hr__parcel *add_parcel(hr_fetcher *fetcher, struct hr__object *object, uint64_t at, uint64_t bytes) {
    struct hr__parcel *parcel = hr__realloc(NULL, sizeof *parcel);
    if (!parcel) return NULL;
    *parcel = (struct hr__parcel){.object = object, .at = at, .bytes = bytes, .references = 1, .is_listed = true};
    parcel->made_ns = hr__now_ns();
    parcel->next_of_object = object->parcels;
    object->parcels = parcel;
    object->job_count++;
    parcel->previous = fetcher->newest;
    *(fetcher->newest ? &fetcher->newest->next : &fetcher->oldest) = parcel;
    fetcher->newest = parcel;
    fetcher->parcel_bytes += bytes;
    return parcel;
}

/* Has a range fetched into memory. Returns false if there is no room for it now, of `most` bytes for all of them. */
static bool fetch_parcel(hr_fetcher *fetcher, struct hr__object *object, struct hr__range range, bool is_announced,
                         uint64_t most) {
    struct hr__parcel *found = find_parcel(object, range.at, range.bytes);
    if (range.bytes > PARCEL_BYTES_MOST) return true;
    if (found && !found->taken) { /* one that was read is soon dropped */
        found->is_announced |= is_announced;
        return true;
    }
    bool is_full = fetcher->parcel_bytes + range.bytes > most;
    if (is_full || object->host->queues[HR__SOON].count >= SOON_QUEUED_MOST) return false;
    struct hr__job *job = new_job(fetcher, HR_FETCHER_PART, object, NULL);
    struct hr__parcel *parcel = job ? add_parcel(fetcher, object, range.at, range.bytes) : NULL;
    if (!parcel) {
        if (job) free_job(fetcher, job);
        return false;
    }
    if (!is_announced) hr__announced_asked(fetcher, object, range.at, range.bytes);
    parcel->is_announced = is_announced;
    parcel->references++;
    job->parcel = parcel;
    parcel->filling = job;
    job->at = range.at;
    job->bytes = range.bytes;
    job->is_direct = job->is_soon = true;
    queue(fetcher, job);
    return true;
}

/* The bytes of a parcel have come; data NULL: they have not. The jobs that wait for it are queued. */
static void fill_parcel(hr_fetcher *fetcher, struct hr__parcel *parcel, char *data) {
    parcel->data = data;
    parcel->filling = NULL;
    while (parcel->waiting) {
        struct hr__job *job = parcel->waiting;
        parcel->waiting = job->next_waiting;
        if (!data) {
            job->parcel = NULL;
            unref_parcel(parcel);
        }
        queue(fetcher, job);
    }
    if (!data && parcel->is_listed) drop_parcel(fetcher, parcel);
}

/* ---- parts that are sent ---- */

static void fetch_direct(hr_fetcher *fetcher, struct hr__request *request) {
    struct hr__job *job = new_job(fetcher, HR_FETCHER_PART, request->object, NULL);
    request->needs_direct = false;
    if (job && wait_for(request, job)) {
        job->at = request->at;
        job->bytes = request->bytes;
        job->is_direct = true;
        job->parcel = find_parcel(request->object, request->at, request->bytes);
        if (job->parcel)
            job->parcel->references++;
        else
            hr__announced_asked(fetcher, request->object, request->at, request->bytes);
        if (job->parcel && !job->parcel->data) {
            job->next_waiting = job->parcel->waiting;
            job->parcel->waiting = job;
            if (job->parcel->filling) hr__job_hurry(fetcher, job->parcel->filling);
        } else {
            queue(fetcher, job);
        }
        return;
    }
    if (job) free_job(fetcher, job);
    note_failure(request, -ENOMEM, no_memory);
    finish(fetcher, request);
}

/* ---- requests of readers ---- */

static uint64_t missing_bytes(const struct hr__object *object, uint64_t at, uint64_t end) {
    if (!object->blocks) return end - at;
    uint64_t bytes = 0;
    for (at -= at % HR__UNIT_BYTES; at < end; at += HR__UNIT_BYTES)
        if (!hr__blocks_has_unit(object->blocks, at / HR__UNIT_BYTES)) bytes += HR__UNIT_BYTES;
    return bytes;
}

enum hr__soon hr__jobs_fetch_soon(hr_fetcher *fetcher, struct hr__object *object, struct hr__range range,
                                  bool is_announced, uint64_t kept_most, uint64_t memory_most, uint64_t *ret_bytes) {
    open_blocks(fetcher, object);
    uint64_t end = range.at + range.bytes, missing = missing_bytes(object, range.at, end);
    *ret_bytes = 0;
    if (!missing) return HR__SOON_KEPT;
    if (!may_keep(fetcher, object, missing))
        return fetch_parcel(fetcher, object, range, is_announced, memory_most) ? HR__SOON_IN_MEMORY : HR__SOON_NO_ROOM;
    if (missing > kept_most) return HR__SOON_NO_ROOM;
    fetch_units(fetcher, object, range.at, end, NULL);
    *ret_bytes = missing;
    return HR__SOON_KEPT;
}

void hr__jobs_drop_soon(hr_fetcher *fetcher, const struct hr__object *object, struct hr__range range) {
    struct hr__parcel *parcel = find_parcel(object, range.at, range.bytes);
    if (parcel) parcel->is_announced = false; /* what is not read of it is dropped when it is old */
    if (parcel && !parcel->waiting) drop_parcel(fetcher, parcel);
}

/* All of an object is needed in an epoch, and a request for a unit costs as much as one for a block. */
struct hr__range hr__jobs_widen(hr_fetcher *fetcher, struct hr__object *object, struct hr__range range) {
    if (range.bytes >= HR__UNIT_BYTES) return range;
    uint64_t at = range.at - range.at % PART_BYTES;
    uint64_t end = hr__min(hr__round_up(range.at + range.bytes, PART_BYTES), object->bytes);
    open_blocks(fetcher, object);
    bool is_missing = missing_bytes(object, range.at, range.at + range.bytes) > 0;
    if (!is_missing || !may_keep(fetcher, object, missing_bytes(object, at, end))) return range;
    return (struct hr__range){at, end - at};
}

static void begin_read(hr_fetcher *fetcher, struct hr__request *request, bool is_direct) {
    struct hr__object *object = request->object;
    uint64_t end = request->at + request->bytes;
    request->asks_again = false;
    bool is_kept = object->blocks && hr__blocks_have_range(object->blocks, request->at, request->bytes);
    if (is_direct || (!is_kept && !may_keep(fetcher, object, missing_bytes(object, request->at, end)))) {
        fetch_direct(fetcher, request);
        return;
    }
    fetch_units(fetcher, object, request->at, end, request);
    if (request->open_jobs == 0) finish(fetcher, request);
}

void hr__jobs_read(hr_fetcher *fetcher, struct hr__reader *reader, const struct hr__range_request *range,
                   const char *version, const char *url, const char *storage) {
    bool is_read = range->head.type == HR__READ;
    struct hr__object *object = take_object(fetcher, range, version, url, storage);
    uint64_t bytes;
    if (object && !hr__claim(object, reader)) object = NULL;
    if (object && !is_read)
        hr__jobs_fetch_soon(fetcher, object, (struct hr__range){range->at, range->bytes}, false, UINT64_MAX,
                            PARCELS_BYTES_MOST, &bytes);
    if (!is_read) return;
    struct hr__request *request = object ? new_request(fetcher, reader, range->head.id) : NULL;
    if (request) {
        request->url = copy_text(url, strlen(url));
        request->storage = copy_text(storage, strlen(storage));
    }
    if (request && (!request->url || !request->storage)) {
        free_request(fetcher, request);
        request = NULL;
    }
    if (!request) {
        hr__answer(reader, range->head.id, -ENOMEM, no_memory);
        return;
    }
    request->object = object;
    request->at = range->at;
    request->bytes = range->bytes;
    begin_read(fetcher, request, range->is_direct != 0);
}

/* A call that asks a server has its URL in the third line. */
static struct hr__host *host_of_call(hr_fetcher *fetcher, const char *text) {
    const char *line = strchr(text, '\n');
    line = line ? strchr(line + 1, '\n') : NULL;
    return line && hr__remote_is(line + 1) ? hr__host_ref(fetcher, line + 1) : &fetcher->at_hand;
}

void hr__jobs_call(hr_fetcher *fetcher, struct hr__reader *reader, uint64_t id, const char *text, size_t bytes) {
    struct hr__request *request = new_request(fetcher, reader, id);
    char *copied = request ? copy_text(text, bytes) : NULL;
    struct hr__host *host = copied ? host_of_call(fetcher, copied) : NULL;
    struct hr__job *job = host ? new_job(fetcher, HR_FETCHER_CALL, NULL, host) : NULL;
    if (job) {
        job->text = copied;
        job->text_bytes = bytes;
    }
    if (job && wait_for(request, job)) {
        queue(fetcher, job);
        return;
    }
    if (job) {
        free_job(fetcher, job);
    } else {
        hr__free(copied);
        if (host) hr__host_unref(fetcher, host);
    }
    if (request) free_request(fetcher, request);
    hr__answer(reader, id, -ENOMEM, no_memory);
}

/* ---- the end of a job ---- */

static struct hr__job *find_running(hr_fetcher *fetcher, uint64_t id) {
    pthread_mutex_lock(&fetcher->lock);
    struct hr__job *job = fetcher->running.first;
    while (job && job->id != id) job = job->next;
    pthread_mutex_unlock(&fetcher->lock);
    return job;
}

static void leave_object(struct hr__job *job) {
    struct hr__job **place = &job->object->jobs;
    while (*place && *place != job) place = &(*place)->next_of_object;
    if (*place) *place = job->next_of_object;
    mark_in_flight(job, false);
}

/* Ends a job, with the lock. Requests that wait for no other job are answered, or begin again. */
static void end_job(hr_fetcher *fetcher, struct hr__job *job) {
    hr__job_stop(fetcher, job);
    if (job->object && !job->is_direct) leave_object(job);
    for (uint32_t i = 0; i < job->request_count; i++) {
        struct hr__request *request = job->requests[i];
        if (--request->open_jobs) continue;
        if (request->needs_direct && !request->code)
            fetch_direct(fetcher, request);
        else if (request->asks_again && !request->code)
            begin_read(fetcher, request, false);
        else
            finish(fetcher, request);
    }
    struct hr__parcel *parcel = job->parcel;
    job->parcel = NULL;
    free_job(fetcher, job);
    if (parcel) unref_parcel(parcel);
    pthread_cond_signal(&fetcher->has_jobs);
}

/* A failure is one of the requests that have the address and the settings of the job: their credentials, how long they
 * try, a commit that is gone. Others fetch the bytes with their own. A request that came while the job was being tried
 * has more time than the job had, and asks again. */
static void note_failures(struct hr__job *job, int code, const char *text) {
    for (uint32_t i = 0; i < job->request_count; i++) {
        struct hr__request *request = job->requests[i];
        bool is_of_others =
            job->object && (strcmp(request->storage, job->storage) != 0 || strcmp(request->url, job->url) != 0);
        if (is_of_others) {
            request->needs_direct = true;
            request->asked_ns = hr__now_ns(); /* its own tries begin now */
        } else if (code == -ETIMEDOUT && job->object && request->asked_ns > job->asked_ns) {
            request->asks_again = true;
        } else {
            note_failure(request, code, text);
        }
    }
}

/* Sends the bytes to the request of a job. It has one, which no other thread answers meanwhile. */
static void send_bytes(hr_fetcher *fetcher, struct hr__job *job, const void *data, size_t bytes) {
    struct hr__request *request = job->requests[0];
    int r = hr__answer_bytes(request->reader, request->id, data, bytes);
    pthread_mutex_lock(&fetcher->lock);
    if (r < 0) request->reader->is_gone = true;
    request->is_answered = true;
    fetcher->sent_bytes += bytes;
    struct hr__parcel *parcel = job->parcel;
    if (parcel) parcel->taken += bytes;
    if (parcel && parcel->is_listed && parcel->taken >= parcel->bytes) drop_parcel(fetcher, parcel);
    end_job(fetcher, job);
    pthread_mutex_unlock(&fetcher->lock);
}

/* ---- threads that do jobs ---- */

static struct hr__job *next_in(const hr_fetcher *fetcher, enum hr__turn turn) {
    const struct hr__host *host = hr__hosts_next(fetcher, turn);
    return host ? host->queues[turn].first : NULL;
}

static struct hr__job *next_job(hr_fetcher *fetcher) {
    struct hr__job *job = next_in(fetcher, HR__NOW);
    if (job || !hr__hosts_have_room_for_soon(fetcher)) return job;
    hr__announced_begin(fetcher);
    job = next_in(fetcher, HR__SOON);
    return job ? job : add_fill(fetcher);
}

/* Starts a job. Returns false if there is no memory for its texts. */
static bool begin_job(hr_fetcher *fetcher, struct hr__job *job, struct hr_fetcher_job *ret_job) {
    const struct hr__object *object = job->object;
    const struct hr__request *request = job->request_count ? job->requests[0] : NULL;
    if (object) {
        const char *url = request ? request->url : object->url;
        const char *storage = request ? request->storage : object->storage;
        job->url = copy_text(url, strlen(url));
        job->version = copy_text(object->version, strlen(object->version));
        job->storage = copy_text(storage, strlen(storage));
        if (!job->url || !job->version || !job->storage) return false;
    }
    hr__job_run(fetcher, job);
    if (!job->asked_ns) job->asked_ns = hr__now_ns();
    *ret_job = (struct hr_fetcher_job){.id = job->id,
                                       .kind = job->kind,
                                       .asked_ns = job->asked_ns,
                                       .url = job->url,
                                       .version = job->version,
                                       .storage = job->storage,
                                       .object_bytes = object ? object->bytes : 0,
                                       .at = job->at,
                                       .bytes = job->bytes,
                                       .text = job->text,
                                       .text_bytes = job->text_bytes};
    return true;
}

static bool wait_until(hr_fetcher *fetcher, int64_t deadline_ns) {
    struct timespec deadline = {.tv_sec = deadline_ns / HR_NS_PER_S, .tv_nsec = deadline_ns % HR_NS_PER_S};
    return pthread_cond_timedwait(&fetcher->has_jobs, &fetcher->lock, &deadline) != ETIMEDOUT;
}

/* Finds the bytes of a job that are at hand. NULL: they have to be fetched. to_free: owned by the caller. */
static const char *find_at_hand(const struct hr__job *job, char **ret_to_free) {
    const struct hr__parcel *parcel = job->parcel;
    *ret_to_free = NULL;
    if (!is_at_hand(job)) return NULL;
    if (parcel) return parcel->data + (job->at - parcel->at);
    *ret_to_free = hr__realloc(NULL, job->bytes);
    if (*ret_to_free && hr__blocks_read(job->object->blocks, job->at, *ret_to_free, job->bytes) == 0)
        return *ret_to_free;
    hr__free(*ret_to_free);
    *ret_to_free = NULL;
    return NULL;
}

/* Sends the bytes of a job that need not be fetched. Returns false if they have to be. */
static bool send_at_hand(hr_fetcher *fetcher, struct hr__job *job) {
    char *to_free;
    const char *data = find_at_hand(job, &to_free);
    if (!data) return false;
    hr__job_run(fetcher, job);
    pthread_mutex_unlock(&fetcher->lock);
    send_bytes(fetcher, job, data, job->bytes);
    pthread_mutex_lock(&fetcher->lock);
    hr__free(to_free);
    return true;
}

int hr_fetcher_take(hr_fetcher *fetcher, int64_t deadline_ns, struct hr_fetcher_job *ret_job) {
    int r = 0;
    pthread_mutex_lock(&fetcher->lock);
    for (bool is_in_time = true; r == 0; is_in_time = wait_until(fetcher, deadline_ns)) {
        struct hr__job *job = next_job(fetcher);
        while (job && !fetcher->is_ending && send_at_hand(fetcher, job)) job = next_job(fetcher);
        if (fetcher->is_ending)
            r = HR_E_END;
        else if (job)
            r = begin_job(fetcher, job, ret_job) ? 1 : -ENOMEM;
        else if (!is_in_time)
            break;
        if (r) break;
    }
    pthread_mutex_unlock(&fetcher->lock);
    if (r == 1) hr__stop_at(HR__AT_FETCHER_TAKEN);
    return r == -ENOMEM ? hr__fail(r, "remote: no memory for a job") : r;
}

/* ---- what threads bring ---- */

/* Writes the bytes to the file of the object. If it cannot, those who wait get them in another way. */
static void keep_bytes(hr_fetcher *fetcher, struct hr__job *job, const void *data, size_t bytes) {
    int r = hr__blocks_write(job->object->blocks, job->at, data, bytes);
    hr__stop_at(HR__AT_FETCHER_GIVEN);
    pthread_mutex_lock(&fetcher->lock);
    if (r < 0) fetcher->full_until_ns = hr__now_ns() + FULL_NS;
    for (uint32_t i = 0; r < 0 && i < job->request_count; i++) job->requests[i]->needs_direct = true;
    if (r == 0) fetcher->kept_bytes += bytes;
    end_job(fetcher, job);
    pthread_mutex_unlock(&fetcher->lock);
}

/* Keeps the bytes in memory, until they are read. */
static void keep_in_memory(hr_fetcher *fetcher, struct hr__job *job, const void *data, size_t bytes) {
    char *copied = copy_text(data, bytes);
    pthread_mutex_lock(&fetcher->lock);
    fill_parcel(fetcher, job->parcel, copied);
    end_job(fetcher, job);
    pthread_cond_broadcast(&fetcher->has_jobs);
    pthread_mutex_unlock(&fetcher->lock);
}

int hr_fetcher_give(hr_fetcher *fetcher, uint64_t id, const void *data, size_t bytes) {
    struct hr__job *job = find_running(fetcher, id);
    if (!job) return hr__fail(-EINVAL, "remote: there is no job %" PRIu64, id);
    if (job->kind == HR_FETCHER_PART && bytes != job->bytes)
        return hr__fail(-EINVAL, "remote: a job was for %" PRIu64 " bytes, and got %zu", job->bytes, bytes);
    if (job->kind == HR_FETCHER_PART) {
        pthread_mutex_lock(&fetcher->lock);
        fetcher->fetched_bytes += bytes;
        pthread_mutex_unlock(&fetcher->lock);
    }
    if (job->parcel)
        keep_in_memory(fetcher, job, data, bytes);
    else if (job->kind == HR_FETCHER_CALL || job->is_direct)
        send_bytes(fetcher, job, data, bytes);
    else
        keep_bytes(fetcher, job, data, bytes);
    return 0;
}

int hr_fetcher_keep(hr_fetcher *fetcher, const struct hr_fetcher_object *given, const void *data, size_t bytes) {
    struct hr__range_request range = {.object_bytes = given->bytes};
    struct hr__object *object = NULL;
    if (!hr__is_name(given->name)) return hr__fail(-EINVAL, "remote: this is not the name of an object");
    memcpy(range.name, given->name, HR__NAME_BYTES);
    pthread_mutex_lock(&fetcher->lock);
    fetcher->fetched_bytes += bytes;
    if (bytes) object = take_object(fetcher, &range, given->version, given->url, given->storage);
    bool is_wanted = object && may_keep(fetcher, object, bytes) && !hr__blocks_has_unit(object->blocks, 0);
    if (is_wanted) object->job_count++;
    pthread_mutex_unlock(&fetcher->lock);
    if (!is_wanted) return 0;
    int r = hr__blocks_write(object->blocks, 0, data, bytes);
    pthread_mutex_lock(&fetcher->lock);
    object->job_count--;
    if (r == 0) fetcher->kept_bytes += bytes;
    pthread_mutex_unlock(&fetcher->lock);
    return r < 0 ? hr__fail(r, "remote: cannot keep the begin of an object: %s", hr_error_text(r)) : 0;
}

int hr_fetcher_fail(hr_fetcher *fetcher, uint64_t id, int code, const char *text) {
    struct hr__job *job = find_running(fetcher, id);
    if (!job || code >= 0) return hr__fail(-EINVAL, "remote: there is no job %" PRIu64 " that fails with %d", id, code);
    pthread_mutex_lock(&fetcher->lock);
    note_failures(job, code, text);
    if (job->parcel) fill_parcel(fetcher, job->parcel, NULL); /* requests that wait for it ask themselves */
    end_job(fetcher, job);
    pthread_mutex_unlock(&fetcher->lock);
    return 0;
}

/* ---- saving ---- */

struct saved {
    struct hr__object *object;
    unsigned char *bits;
};

/* Takes the bits of objects that have changed. They are not forgotten until end_saves. */
static size_t begin_saves(hr_fetcher *fetcher, struct saved *saves, size_t room) {
    size_t count = 0;
    for (size_t i = 0; i < HR__OBJECT_LISTS; i++)
        for (struct hr__object *object = fetcher->objects[i]; object && count < room; object = object->next) {
            unsigned char *bits = NULL;
            if (!object->blocks || hr__blocks_begin_save(object->blocks, &bits) != 1) continue;
            object->is_saving = true;
            saves[count++] = (struct saved){object, bits};
        }
    return count;
}

void hr_fetcher_save(hr_fetcher *fetcher) {
    pthread_mutex_lock(&fetcher->lock);
    size_t room = fetcher->object_count;
    struct saved *saves = room ? hr__realloc(NULL, room * sizeof *saves) : NULL;
    size_t count = saves ? begin_saves(fetcher, saves, room) : 0;
    pthread_mutex_unlock(&fetcher->lock);
    bool is_synced = count && hr__file_system_sync(fetcher->folder_fd) == 0;
    if (count) hr__stop_at(HR__AT_BLOCKS_SYNCED);
    for (size_t i = 0; i < count; i++) hr__blocks_finish_save(saves[i].object->blocks, saves[i].bits, is_synced);
    pthread_mutex_lock(&fetcher->lock);
    for (size_t i = 0; i < count; i++) saves[i].object->is_saving = false;
    pthread_cond_broadcast(&fetcher->has_saved);
    pthread_mutex_unlock(&fetcher->lock);
    hr__free(saves);
}

/* ---- the end ---- */

void hr_fetcher_look(hr_fetcher *fetcher, struct hr_fetcher_info *ret_info) {
    pthread_mutex_lock(&fetcher->lock);
    *ret_info = (struct hr_fetcher_info){.kept_bytes = fetcher->kept_bytes,
                                         .quota_bytes = fetcher->quota_bytes,
                                         .fetched_bytes = fetcher->fetched_bytes,
                                         .sent_bytes = fetcher->sent_bytes,
                                         .connections = fetcher->reader_count,
                                         .announced = fetcher->waiting_count,
                                         .is_ending = fetcher->is_ending,
                                         .jobs = fetcher->queued_count + fetcher->running.count};
    pthread_mutex_unlock(&fetcher->lock);
}

/* Drops a job that is in no list any more. */
static void drop_job(hr_fetcher *fetcher, struct hr__job *job) {
    for (uint32_t i = 0; i < job->request_count; i++)
        if (--job->requests[i]->open_jobs == 0) free_request(fetcher, job->requests[i]);
    if (job->parcel && !job->request_count) fill_parcel(fetcher, job->parcel, NULL);
    if (job->parcel) unref_parcel(job->parcel);
    free_job(fetcher, job);
}

static void drop_queued(hr_fetcher *fetcher, enum hr__turn turn) {
    while (fetcher->turns[turn].first) {
        struct hr__job *job = fetcher->turns[turn].first->queues[turn].first;
        hr__job_unqueue(fetcher, job);
        drop_job(fetcher, job);
    }
}

void hr__jobs_free(hr_fetcher *fetcher) {
    while (fetcher->running.first) {
        struct hr__job *job = fetcher->running.first;
        hr__job_stop(fetcher, job);
        drop_job(fetcher, job);
    }
    drop_queued(fetcher, HR__SOON); /* jobs that wait for a parcel are then in the queue */
    drop_queued(fetcher, HR__NOW);
    while (fetcher->turns[HR__FILL].first) stop_filling(fetcher, fetcher->turns[HR__FILL].first->fill_first);
    while (fetcher->oldest) drop_parcel(fetcher, fetcher->oldest);
    while (fetcher->oldest_object) forget(fetcher, fetcher->oldest_object);
    hr__bits_free(&fetcher->reader_numbers);
}
