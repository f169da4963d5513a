/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/headrace.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

/* The first bytes of the input choose a crop and a size; the rest is the file. */
enum { HEAD = 4, MOST_PIXELS = 1 << 20 };

static void make(hr_image *image, const uint8_t *head) {
    struct hr_image_info info;
    struct hr_image_size size;
    hr_image_memory *memory;
    hr_image_look(image, &info);
    if ((uint64_t)info.width * info.height > MOST_PIXELS) return;
    int32_t left = (int32_t)(head[0] % info.width), top = (int32_t)(head[1] % info.height);
    struct hr_image_step steps[] = {
        {.kind = HR_IMAGE_CROP, .box = {left, top, (int32_t)info.width, (int32_t)info.height}},
        {.kind = HR_IMAGE_RESIZE, .filter = 1 + head[2] % 5, .width = 1 + head[3], .height = 9},
        {.kind = HR_IMAGE_BLUR, .width = 1, .height = 1 + 2 * (head[0] % 6)},
    };
    static const float weights[11] = {0.5f, 0.25f, 0.25f};
    steps[1].area[2] = (float)(info.width - (uint32_t)left);
    steps[1].area[3] = (float)(info.height - (uint32_t)top);
    struct hr_image_recipe recipe = {
        .image = image, .steps = steps, .step_count = 3, .layout = HR_IMAGE_PLANES, .item_bytes = 1};
    recipe.weights = weights;
    recipe.weight_count = 11;
    if (hr_image_measure(&recipe, &size) < 0) abort();
    recipe.target = malloc(size.bytes);
    recipe.target_bytes = size.bytes;
    if (recipe.target && hr_image_memory_new(&memory) == 0) {
        hr_images_run(memory, &recipe, 1, 1);
        hr_images_run(memory, &recipe, 1, 1); /* decodes the whole image */
        hr_image_memory_free(memory);
    }
    free(recipe.target);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    hr_image *image;
    if (bytes < HEAD) return 0;
    void *file =
        malloc(bytes > HEAD ? bytes - HEAD : 1); /* so that AddressSanitizer sees what is read beyond the end */
    if (!file) return 0;
    memcpy(file, input + HEAD, bytes - HEAD);
    if (hr_image_open(file, bytes - HEAD, &image) == 0) {
        make(image, input);
        hr_image_close(image);
    }
    free(file);
    return 0;
}
