/* SPDX-License-Identifier: Apache-2.0 */
/* The queues of jobs, by host: so many jobs of a host are done at the same time, and hosts take turns. */
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/hash.h"
#include "fetcher.h"

/*
 * A server that accepts connections and then sends nothing holds each thread that asks it until the timeout. So a host
 * gets at most HOST_MOST threads, and never all of them. Of these, a quarter is for what readers wait for now.
 */

enum { HOST_MOST = 64, THREADS_MOST = 512, FILL_MOST = 16 };

/* ---- hosts ---- */

/* Finds scheme, host and port in a URL, without its user. */
static const char *find_name(const char *url, size_t *ret_length) {
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    size_t length = strcspn(host, "/?#");
    for (const char *at = host + length; at > host; at--)
        if (at[-1] == '@') {
            length -= (size_t)(at - host);
            host = at;
            break;
        }
    *ret_length = length;
    return host;
}

static struct hr__host **list_of(hr_fetcher *fetcher, const char *name, size_t length) {
    return &fetcher->hosts[hr__hash(name, length, 0) % HR__HOST_LISTS];
}

struct hr__host *hr__host_ref(hr_fetcher *fetcher, const char *url) {
    size_t length;
    const char *name = find_name(url, &length);
    struct hr__host **list = list_of(fetcher, name, length), *host = *list;
    while (host && (host->length != length || memcmp(host->name, name, length) != 0)) host = host->next;
    if (!host) {
        host = hr__realloc(NULL, sizeof *host + length);
        if (!host) return NULL;
        *host = (struct hr__host){.name = (char *)(host + 1), .length = length, .next = *list};
        memcpy(host->name, name, length);
        *list = host;
    }
    host->references++;
    return host;
}

void hr__host_unref(hr_fetcher *fetcher, struct hr__host *host) {
    if (host == &fetcher->at_hand || --host->references) return;
    struct hr__host **place = list_of(fetcher, host->name, host->length);
    while (*place != host) place = &(*place)->next;
    *place = host->next;
    hr__free(host);
}

/* ---- limits ---- */

static uint64_t three_quarters(uint64_t count) {
    return hr__max(1, count - count / 4);
}

static uint64_t threads_of(const hr_fetcher *fetcher) {
    return fetcher->options.threads ? fetcher->options.threads : THREADS_MOST;
}

static uint64_t host_most(const hr_fetcher *fetcher) {
    return hr__min(HOST_MOST, three_quarters(threads_of(fetcher)));
}

bool hr__hosts_have_room_for_soon(const hr_fetcher *fetcher) {
    return fetcher->running_soon < three_quarters(threads_of(fetcher));
}

static bool has_room(const hr_fetcher *fetcher, const struct hr__host *host, enum hr__turn turn) {
    if (host == &fetcher->at_hand) return true;
    uint64_t most = host_most(fetcher), soon_most = three_quarters(most);
    if (host->running >= most) return false;
    if (turn == HR__FILL) return host->running < hr__min(FILL_MOST, soon_most);
    return turn == HR__NOW || host->running_soon < soon_most;
}

bool hr__host_is_ready_for_soon(const hr_fetcher *fetcher, const struct hr__host *host) {
    return !host->queues[HR__SOON].first && has_room(fetcher, host, HR__SOON);
}

/* ---- turns ---- */

void hr__host_enter(hr_fetcher *fetcher, struct hr__host *host, enum hr__turn turn) {
    struct hr__turns *turns = &fetcher->turns[turn];
    host->links[turn].previous = turns->last;
    host->links[turn].next = NULL;
    *(turns->last ? &turns->last->links[turn].next : &turns->first) = host;
    turns->last = host;
}

void hr__host_leave(hr_fetcher *fetcher, struct hr__host *host, enum hr__turn turn) {
    struct hr__turns *turns = &fetcher->turns[turn];
    struct hr__host *previous = host->links[turn].previous, *next = host->links[turn].next;
    *(previous ? &previous->links[turn].next : &turns->first) = next;
    *(next ? &next->links[turn].previous : &turns->last) = previous;
}

/* Those without room are few: each of them has many jobs that run. */
struct hr__host *hr__hosts_next(const hr_fetcher *fetcher, enum hr__turn turn) {
    struct hr__host *host = fetcher->turns[turn].first;
    while (host && !has_room(fetcher, host, turn)) host = host->links[turn].next;
    return host;
}

/* ---- jobs ---- */

static void append(struct hr__job_list *list, struct hr__job *job) {
    job->previous = list->last;
    job->next = NULL;
    *(list->last ? &list->last->next : &list->first) = job;
    list->last = job;
    list->count++;
}

static void take_out(struct hr__job_list *list, struct hr__job *job) {
    *(job->previous ? &job->previous->next : &list->first) = job->next;
    *(job->next ? &job->next->previous : &list->last) = job->previous;
    list->count--;
}

static enum hr__turn turn_of(const struct hr__job *job) {
    return job->is_soon ? HR__SOON : HR__NOW;
}

void hr__job_queue(hr_fetcher *fetcher, struct hr__job *job) {
    struct hr__job_list *queue = &job->host->queues[turn_of(job)];
    if (!queue->first) hr__host_enter(fetcher, job->host, turn_of(job));
    append(queue, job);
    fetcher->queued_count++;
    pthread_cond_signal(&fetcher->has_jobs);
}

void hr__job_unqueue(hr_fetcher *fetcher, struct hr__job *job) {
    struct hr__job_list *queue = &job->host->queues[turn_of(job)];
    take_out(queue, job);
    fetcher->queued_count--;
    if (!queue->first) hr__host_leave(fetcher, job->host, turn_of(job));
}

void hr__job_run(hr_fetcher *fetcher, struct hr__job *job) {
    enum hr__turn turn = turn_of(job);
    hr__job_unqueue(fetcher, job);
    if (job->host->queues[turn].first) { /* others come before its next job */
        hr__host_leave(fetcher, job->host, turn);
        hr__host_enter(fetcher, job->host, turn);
    }
    append(&fetcher->running, job);
    job->state = HR__JOB_RUNNING;
    job->host->running++;
    job->host->running_soon += job->is_soon;
    fetcher->running_soon += job->is_soon;
}

void hr__job_stop(hr_fetcher *fetcher, struct hr__job *job) {
    take_out(&fetcher->running, job);
    job->host->running--;
    job->host->running_soon -= job->is_soon;
    fetcher->running_soon -= job->is_soon;
}

void hr__job_hurry(hr_fetcher *fetcher, struct hr__job *job) {
    if (!job->is_soon) return;
    if (job->state == HR__JOB_RUNNING) {
        job->is_soon = false;
        job->host->running_soon--;
        fetcher->running_soon--;
        pthread_cond_signal(&fetcher->has_jobs); /* another one may run in its place */
        return;
    }
    hr__job_unqueue(fetcher, job);
    job->is_soon = false;
    hr__job_queue(fetcher, job);
}
