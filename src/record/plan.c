/* SPDX-License-Identifier: Apache-2.0 */
/* The places of the parts of a recording's file, and checksums. The writer and the reader call it. */
#include <zlib.h>

#include "base/base.h"
#include "format.h"

enum { ALIGNMENT = 8 };

static void put(struct hr__record_place *place, uint64_t *at, uint64_t stride, uint64_t room) {
    *place = (struct hr__record_place){.at = *at, .stride = (uint32_t)stride, .room = (uint32_t)room};
    *at = hr__round_up(*at + stride * room, ALIGNMENT);
}

uint32_t hr__record_row_bytes(uint32_t version) {
    return version < HR__RECORD_VERSION ? offsetof(struct hr__record_row, network_us) : sizeof(struct hr__record_row);
}

uint32_t hr__record_worker_bytes(uint32_t version) {
    return version < HR__RECORD_VERSION ? offsetof(struct hr__record_worker, network_us)
                                        : sizeof(struct hr__record_worker);
}

void hr__record_plan(uint32_t version, uint32_t worker_count, struct hr__record_place ret_places[HR__RING_COUNT]) {
    uint64_t at = HR__RECORD_RINGS_AT, rows = HR__RECORD_SECONDS + HR__RECORD_MINUTES, seconds = HR__RECORD_SECONDS;
    uint64_t row = hr__round_up(
        hr__record_row_bytes(version) + (uint64_t)worker_count * hr__record_worker_bytes(version), ALIGNMENT);
    put(&ret_places[HR__RING_NOW], &at, sizeof(struct hr__record_now), HR__RECORD_NOWS);
    put(&ret_places[HR__RING_HOURS], &at, sizeof(struct hr__record_hour), HR__RECORD_HOURS);
    put(&ret_places[HR__RING_STEPS], &at, sizeof(struct hr__record_step), HR__RECORD_STEPS);
    put(&ret_places[HR__RING_BATCHES], &at, sizeof(struct hr__record_batch), HR__RECORD_BATCHES);
    uint64_t fitting = hr__min((HR_RECORD_MAX_BYTES - at) / row, rows);
    seconds = seconds * fitting / rows;
    put(&ret_places[HR__RING_SECONDS], &at, row, seconds);
    put(&ret_places[HR__RING_MINUTES], &at, row, fitting - seconds);
}

static uint32_t checksum(const void *data, size_t from, size_t bytes) {
    uLong check = crc32(0, Z_NULL, 0);
    return (uint32_t)crc32(check, (const Bytef *)data + from, (uInt)(bytes - from));
}

uint32_t hr__record_check_head(const struct hr__record_head *head) {
    return checksum(head, offsetof(struct hr__record_head, check) + sizeof head->check, sizeof *head);
}

uint32_t hr__record_check_finish(const struct hr__record_finish *finish) {
    return checksum(finish, sizeof finish->check, sizeof *finish);
}

uint32_t hr__record_check_entry(const void *entry, uint32_t bytes) {
    return checksum(entry, sizeof(uint32_t), bytes);
}
