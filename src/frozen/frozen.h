/* SPDX-License-Identifier: Apache-2.0 */
/* State and functions that the files that read frozen data share. */
#ifndef HR_FROZEN_STORE_H
#define HR_FROZEN_STORE_H

#include "frozen/format.h"

struct hr_frozen {
    struct hr__contents contents;
    uint64_t bytes;
    int fd; /* -1: the frozen data is in the caller's memory, or a file that has a name */
    void *mapped;
    char name[256]; /* for messages */
};

/* Opens frozen data that a builder has finished, and takes ownership of the descriptor, also if it fails. */
int hr__frozen_open_taken(int fd, const char *name, uint32_t flags, hr_frozen **ret_frozen);

uint64_t hr__chunk_sum(const unsigned char *base, uint64_t number, uint64_t sums_at);
uint64_t hr__header_sum(const struct frozen_header *header);
void hr__contents_digest(const struct frozen_header *header, const uint64_t *sums, unsigned char *ret_digest);

#endif
