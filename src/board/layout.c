/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the header of a board, and writes and reads facts. */
#include "layout.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "os/os.h"

#define MAGIC UINT64_C(0x6472616f42727248) /* "HrrBoard" */
enum { VERSION = 2 };

uint64_t hr__board_hash_text(const char *text) {
    return hr__hash(text, strlen(text), MAGIC);
}

static uint32_t count_pages(const struct hr_board_options *options) {
    uint32_t size = options->local_size ? options->local_size : options->world_size;
    return (uint32_t)hr__min(size, HR_BOARD_MAX_PROCESSES);
}

int hr__board_measure(const struct hr_board_options *options, uint64_t *ret_bytes) {
    if (options->world_size < 2 || options->local_size > options->world_size)
        return hr__fail(-EINVAL, "board: a job of %u processes, of which %u are on this machine, has no board",
                        options->world_size, options->local_size);
    *ret_bytes = (UINT64_C(1) + count_pages(options)) * HR__BOARD_PAGE_BYTES;
    return 0;
}

void hr__board_init_header(struct hr__board_header *header, const struct hr_board_options *options) {
    *header = (struct hr__board_header){.magic = MAGIC,
                                        .version = VERSION,
                                        .page_count = count_pages(options),
                                        .world_size = options->world_size,
                                        .key_hash = hr__board_hash_text(options->key)};
}

int hr__board_check_size(const struct hr__board_header *header, uint64_t bytes) {
    bool is_board = header->magic == MAGIC && header->version == VERSION &&
                    header->page_count <= HR_BOARD_MAX_PROCESSES &&
                    bytes == (UINT64_C(1) + header->page_count) * HR__BOARD_PAGE_BYTES;
    return is_board ? 0 : hr__fail(HR_E_CORRUPT, "board: the shared memory is not a board");
}

int hr__board_check_header(const struct hr__board_header *header, uint64_t bytes,
                           const struct hr_board_options *options) {
    struct hr__board_header wanted;
    hr__board_init_header(&wanted, options);
    if (header->magic != MAGIC) return hr__fail(HR_E_CORRUPT, "board: the shared memory is not a board");
    if (header->version != VERSION)
        return hr__fail(HR_E_VERSION,
                        "board: its format is %u, and this headrace knows format %u; use one version of "
                        "headrace in all ranks",
                        header->version, VERSION);
    if (header->key_hash != wanted.key_hash) return hr__fail(-EINVAL, "board: it belongs to another job");
    if (header->world_size != wanted.world_size || header->page_count != wanted.page_count)
        return hr__fail(-EINVAL, "board: it is for %u of %u processes, and this process counts %u of %u",
                        header->page_count, header->world_size, wanted.page_count, wanted.world_size);
    if (bytes != (UINT64_C(1) + wanted.page_count) * HR__BOARD_PAGE_BYTES)
        return hr__fail(HR_E_CORRUPT, "board: %llu bytes are not the size of a board of %u pages",
                        (unsigned long long)bytes, wanted.page_count);
    return 0;
}

/* ---- facts ---- */

static uint64_t check_of(uint64_t key, uint64_t rank, const uint64_t *words) {
    uint64_t seed = hr__hash_word(rank, key);
    return hr__hash(words + HR__FACTS_NUMBER, (HR__FACTS_WORDS - HR__FACTS_NUMBER) * sizeof *words, seed);
}

static void pack(uint64_t number, const struct hr_board_facts *facts, uint64_t *ret_words) {
    ret_words[HR__FACTS_NUMBER] = number;
    ret_words[HR__FACTS_LENGTH] = (uint64_t)facts->length;
    ret_words[HR__FACTS_STEPS] = (uint64_t)facts->steps;
    ret_words[HR__FACTS_SEED] = (uint64_t)facts->seed;
    ret_words[HR__FACTS_EPOCH] = (uint64_t)facts->epoch;
    ret_words[HR__FACTS_DIGEST] = (uint64_t)facts->digest;
    ret_words[HR__FACTS_SAMPLES] = (uint64_t)facts->samples;
}

static struct hr_board_facts unpack(const uint64_t *words) {
    return (struct hr_board_facts){.length = (int64_t)words[HR__FACTS_LENGTH],
                                   .steps = (int64_t)words[HR__FACTS_STEPS],
                                   .seed = (int64_t)words[HR__FACTS_SEED],
                                   .epoch = (int64_t)words[HR__FACTS_EPOCH],
                                   .digest = (int64_t)words[HR__FACTS_DIGEST],
                                   .samples = (int64_t)words[HR__FACTS_SAMPLES]};
}

void hr__facts_write(struct hr__shared_entry *entry, uint64_t number, const struct hr_board_facts *facts) {
    struct hr__shared_facts *target = &entry->facts[number % 2];
    uint64_t words[HR__FACTS_WORDS];
    pack(number, facts, words);
    words[HR__FACTS_CHECK] = check_of(atomic_load(&entry->key), atomic_load(&entry->rank), words);
    for (int i = HR__FACTS_WORDS; i-- > HR__FACTS_NUMBER;) atomic_store(&target->words[i], words[i]);
    hr__stop_at(HR__AT_BOARD_FACTS);
    atomic_store(&target->words[HR__FACTS_CHECK], words[HR__FACTS_CHECK]);
}

bool hr__facts_read(const struct hr__shared_entry *entry, uint32_t parity, uint64_t *ret_number,
                    struct hr_board_facts *ret_facts) {
    const struct hr__shared_facts *source = &entry->facts[parity];
    uint64_t words[HR__FACTS_WORDS];
    for (int i = 0; i < HR__FACTS_WORDS; i++) words[i] = atomic_load(&source->words[i]);
    uint64_t check = check_of(atomic_load(&entry->key), atomic_load(&entry->rank), words);
    if (words[HR__FACTS_NUMBER] == 0 || words[HR__FACTS_CHECK] != check) return false;
    *ret_number = words[HR__FACTS_NUMBER];
    *ret_facts = unpack(words);
    return true;
}
