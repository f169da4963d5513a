/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_STORE_STORE_H
#define HR_STORE_STORE_H

#include "store/format.h"

struct hr_store {
    struct hr__image image;
    uint64_t bytes;
    int fd; /* -1: the image is in the caller's memory, or a file that has a name */
    void *mapped;
    char name[256]; /* for messages */
};

/* Opens an image that a builder has finished, and takes ownership of the descriptor, also if it fails. */
int hr__store_open_taken(int fd, const char *name, uint32_t flags, hr_store **ret_store);

uint64_t hr__chunk_sum(const unsigned char *base, uint64_t number, uint64_t sums_at);
uint64_t hr__header_sum(const struct image_header *header);
void hr__image_digest(const struct image_header *header, const uint64_t *sums, unsigned char *ret_digest);

#endif
