/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../src/base/hash.h"
#include "../src/frozen/frozen.h"
#include "../tests/c/unit/frozen_touch.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

enum { SAMPLE_MOST_BYTES = 1 << 16 };

static unsigned char sample[SAMPLE_MOST_BYTES];
static uint64_t sample_bytes;

/* Makes a valid frozen data with a value of each kind. It is made once, because all its bytes except its id are the
 * same each time. */
static void make_sample(void) {
    hr_builder *builder;
    hr_frozen *frozen;
    struct hr_frozen_info info;
    SURE(hr_builder_open(NULL, &builder));
    SURE(hr_builder_finish(builder, build_each_kind(builder), &frozen));
    hr_frozen_look(frozen, &info);
    if (info.bytes > sizeof sample) abort();
    memcpy(sample, info.contents, info.bytes);
    sample_bytes = info.bytes;
    hr_frozen_close(frozen);
}

/* Reads from memory that is exactly as long as the frozen data, so that AddressSanitizer sees each byte that is read
 * outside.
 */
static void read_copy(const void *from, uint64_t bytes, bool signs) {
    void *data = NULL;
    if (posix_memalign(&data, 64, bytes ? bytes : 1)) return;
    memcpy(data, from, bytes);
    if (signs && bytes >= sizeof(struct hr__frozen_header)) { /* or the reader would stop at the checksum */
        struct hr__frozen_header *header = data;
        header->magic = HR__FROZEN_MAGIC;
        header->version = HR_FROZEN_VERSION;
        header->checksum = hr__header_sum(header);
    }
    touch_contents(data, bytes);
    free(data);
}

/* Changes one byte of the sample for every five bytes of input: which word, which byte of it, how, and with what. */
static void read_changed(const uint8_t *input, size_t bytes) {
    static unsigned char changed[SAMPLE_MOST_BYTES];
    memcpy(changed, sample, sample_bytes);
    for (; bytes >= 5; input += 5, bytes -= 5) {
        uint64_t at = ((uint64_t)(input[0] | input[1] << 8) * 8 + input[2] % 8) % sample_bytes;
        changed[at] = input[3] & 1 ? input[4] : changed[at] ^ input[4];
    }
    read_copy(changed, sample_bytes, true);
}

/* Checks that any bytes are refused, give an error, or give values that are inside the frozen data. */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    if (!sample_bytes) make_sample();
    if (!bytes) return 0;
    if (input[0] % 4 == 0)
        read_copy(input + 1, bytes - 1, input[0] & 4);
    else
        read_changed(input + 1, bytes - 1);
    return 0;
}
