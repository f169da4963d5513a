/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../tests/c/unit/batch_touch.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

enum { SAMPLE_MOST_BYTES = 4096 };

/* Makes a valid batch with a node of each kind. */
static uint64_t write_sample(void *to) {
    hr_batch *batch = NULL;
    uint64_t bytes = 0;
    if (hr_batch_new(&batch) < 0 || add_each_kind(batch) < 0 || hr_batch_measure(batch, &bytes) < 0) abort();
    if (hr_batch_write(batch, to, SAMPLE_MOST_BYTES) < 0) abort();
    hr_batch_free(batch);
    return bytes;
}

/* Changes one byte of the sample for every three bytes of input. */
static void change(unsigned char *sample, uint64_t sample_bytes, const uint8_t *input, size_t bytes) {
    for (; bytes >= 3; input += 3, bytes -= 3) sample[(input[0] | input[1] << 8) % sample_bytes] = input[2];
}

/* Reads from memory that is exactly as long as the batch, so that AddressSanitizer sees each byte that is read outside.
 */
static void read_copy(const void *from, uint64_t bytes) {
    void *data = NULL;
    if (posix_memalign(&data, HR_BATCH_SMALL_ALIGN, bytes)) return;
    memcpy(data, from, bytes);
    touch_batch(data, bytes);
    free(data);
}

/* Checks that any bytes are refused, or give nodes that are inside the batch. The first byte of input decides whether
 * the rest is a batch or changes one. */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    if (bytes < 2) return 0;
    if (input[0] & 1) {
        read_copy(input + 1, bytes - 1);
        return 0;
    }
    _Alignas(HR_BATCH_SMALL_ALIGN) unsigned char sample[SAMPLE_MOST_BYTES];
    uint64_t sample_bytes = write_sample(sample);
    change(sample, sample_bytes, input + 1, bytes - 1);
    read_copy(sample, sample_bytes);
    return 0;
}
