/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_RECORD_FORMAT_H
#define HR_RECORD_FORMAT_H

#include <assert.h>
#include <stdint.h>

#include <headrace/record.h>

/*
 * The file of a loader in a recording, little-endian:
 *
 *     0      struct hr__record_head     written once
 *     2048   struct hr__record_finish   written when the recording ends; zeros before
 *     4096   a ring of entries for each enum hr__record_ring, whose places hr__record_plan computes
 *
 * An entry begins with its number (1 for the first one of its ring) and a CRC-32 of all that follows the checksum.
 * Entry n is at place (n - 1) % room, so a ring has the newest ones. Zeros are an entry that was not written yet. Each
 * entry is written by one call, and is never changed except when its place is used again. So whatever kills the
 * recorder, at most the entries of that moment are torn; and the ring "now", which is replaced each second, has two
 * places.
 *
 * A change of any of these structs needs a new HR__RECORD_VERSION. Version 2 has rows and workers without what was
 * added at their ends, and is still read.
 */

#define HR__RECORD_MAGIC UINT64_C(0x0a6365722d72680a) /* "\nhr-rec\n" */
enum {
    HR__RECORD_VERSION = 3,
    HR__RECORD_VERSION_LEAST = 2,
    HR__RECORD_FINISH_AT = 2048,
    HR__RECORD_RINGS_AT = 4096,
};

struct hr__record_head {
    uint64_t magic;
    uint32_t version;
    uint32_t check; /* CRC-32 of the rest */
    uint32_t pid;
    uint32_t loader;
    int32_t rank;
    int32_t world_size;
    uint32_t worker_count;
    uint32_t queue_room;
    uint32_t core_count;
    uint32_t unused;
    int64_t opened_ns;
    int64_t began_ns;
    int64_t began_real_ns;
    uint64_t memory_bytes;
    char name[HR_LOOK_NAME_BYTES];
    char host[HR_RECORD_HOST_BYTES];
    char version_text[HR_RECORD_VERSION_BYTES];
    char command[HR_RECORD_COMMAND_BYTES];
};
static_assert(sizeof(struct hr__record_head) <= HR__RECORD_FINISH_AT, "file layout");

struct hr__record_finish {
    uint32_t check; /* CRC-32 of the rest */
    uint32_t end;   /* enum hr_record_end; 0: there is no finish yet */
    int64_t ended_ns;
};

enum hr__record_ring {
    HR__RING_NOW, /* two places: the slowest samples, and the hour that goes on */
    HR__RING_HOURS,
    HR__RING_STEPS,
    HR__RING_BATCHES,
    HR__RING_SECONDS,
    HR__RING_MINUTES,
    HR__RING_COUNT
};

enum {
    HR__RECORD_NOWS = 2,
    HR__RECORD_HOURS = 14 * 24,
    HR__RECORD_STEPS = 1 << 16,
    HR__RECORD_BATCHES = 1 << 16,
    HR__RECORD_SECONDS = 2 * 60 * 60,
    HR__RECORD_MINUTES = 14 * 24 * 60,
};

struct hr__record_entry {
    uint32_t check; /* CRC-32 of the rest */
    uint32_t number;
};

/* Times are rounded to microseconds, and bytes up to KiB. */
struct hr__record_row {
    struct hr__record_entry entry;
    int64_t at_ns;
    int64_t real_ns;
    uint64_t bytes;
    uint32_t length_us;
    uint32_t epoch;
    uint32_t step;
    uint32_t batches;
    uint32_t samples;
    uint32_t errors;
    uint32_t inside_us;
    uint32_t start_us;
    uint32_t starts;
    uint32_t wait_us;
    uint32_t pin_us;
    uint32_t draw_us;
    uint32_t rebuild_us;
    uint32_t restarts;
    uint32_t bad_samples;
    uint32_t queue_count;
    uint32_t used_kib;
    uint32_t cores_busy;
    uint32_t cores_allowed;
    uint32_t throttled_us;
    uint32_t available_kib;
    uint32_t used_workers; /* 0: all workers of the file */
    uint32_t trainer_cpu_us;
    uint32_t trainer_delay_us;
    /* since version 3 */
    uint32_t network_us;
    uint32_t hit_count;
    uint32_t wait_count;
    uint32_t fetched_kib;
    uint32_t requests;
    uint32_t retries;
};

/* Those of all workers follow their row. */
struct hr__record_worker {
    uint32_t fetch_us;
    uint32_t collate_us;
    uint32_t wait_us;
    uint32_t delay_us;
    uint32_t cpu_us;
    uint32_t private_kib;
    uint32_t network_us; /* since version 3 */
};

struct hr__record_hour {
    struct hr__record_entry entry;
    int64_t at_ns;
    uint32_t samples[HR_LOOK_BUCKETS];
    uint32_t collates[HR_LOOK_BUCKETS];
};

struct hr__record_sample {
    uint64_t ns; /* 0: there are no more */
    uint64_t index;
    int64_t began_ns;
    uint32_t worker;
    uint32_t task;
};

struct hr__record_now {
    struct hr__record_hour hour; /* with the entry; at_ns 0: no hour goes on */
    struct hr__record_sample slowest[HR_RECORD_SLOWEST];
};

struct hr__record_batch {
    struct hr__record_entry entry;
    uint32_t worker;
    uint32_t number;
    uint64_t task;
    uint64_t began_ns;
    uint64_t fetch_ns;
    uint64_t collate_ns;
    uint64_t slowest_index;
    uint32_t slowest_us;
    uint32_t kib;
};

struct hr__record_step {
    struct hr__record_entry entry;
    uint32_t at_ms; /* since began_ns */
    uint32_t epoch;
    uint32_t step;
    uint32_t inside_us;
    uint32_t rest_us; /* after at_ms */
};

/* The place of a ring in the file. */
struct hr__record_place {
    uint64_t at;
    uint32_t stride;
    uint32_t room;
};

/* The sizes of a row and of a worker in it, in a version. */
uint32_t hr__record_row_bytes(uint32_t version);
uint32_t hr__record_worker_bytes(uint32_t version);

/* Computes the places of the rings for so many workers, at most HR_ARENA_MAX_WORKERS. */
void hr__record_plan(uint32_t version, uint32_t worker_count, struct hr__record_place ret_places[HR__RING_COUNT]);

/* The checksum of a head, a finish or an entry of so many bytes. */
uint32_t hr__record_check_head(const struct hr__record_head *head);
uint32_t hr__record_check_finish(const struct hr__record_finish *finish);
uint32_t hr__record_check_entry(const void *entry, uint32_t bytes);

#endif
