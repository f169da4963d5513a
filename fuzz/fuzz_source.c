/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers lists by offsets that may be anything: nothing outside of the data may be read. */
#include <stdlib.h>
#include <string.h>

#include <headrace/source.h>

/* The input: how wide an offset is, the length of the rows, how many offsets, the offsets; what is left is the data. */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    enum { HEAD = 3, MOST = 64 };
    if (bytes < HEAD) return 0;
    uint32_t offset_bytes = input[0] % 2 ? 4 : 8;
    int64_t length = input[1] % 16;
    uint64_t count = input[2] % MOST + 1;
    bytes -= HEAD;
    if (bytes < count * offset_bytes) return 0;
    void *offsets = malloc(count * offset_bytes);
    memcpy(offsets, input + HEAD, count * offset_bytes);
    uint64_t elements = bytes - count * offset_bytes;
    uint8_t *data = malloc(elements + 1); /* a block of its own, so that the sanitizer sees what is read outside */
    memcpy(data, input + HEAD + count * offset_bytes, elements);
    struct hr_piece piece = {.data = data,
                             .row_count = count - 1,
                             .offsets = offsets,
                             .offset_bytes = offset_bytes,
                             .element_count = elements};
    struct hr_column column = {.dtype = {1, 8, 1},
                               .to = {0, 64, 1},
                               .ndim = 1,
                               .shape = &length,
                               .pieces = &piece,
                               .piece_count = 1,
                               .row_count = count - 1};
    int64_t indices[MOST], rows[16], own;
    uint64_t row_bytes;
    if (hr_column_check(&column, &row_bytes) == 0)
        for (uint64_t i = 0; i < count; i++) {
            indices[0] = (int64_t)i;
            if (hr_list_length(&column, (int64_t)i, &own) == 0 && own > (int64_t)elements) abort();
            if (hr_gather(&column, indices, 1, 1, rows) == 0 && own != length) abort();
        }
    free(data);
    free(offsets);
    return 0;
}
