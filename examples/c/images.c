/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reads the JPEG files of a folder and writes batches of 64 images: the middle square of each, 224 x 224, as float32 of
 * (3, 224, 224), normalised as torchvision's models expect it. All pixels are those that Pillow 13 and torchvision
 * give.
 *
 *     cc images.c $(pkg-config --cflags --libs --static headrace) -o images && ./images FOLDER OUT [THREADS]
 *
 * Writes OUT/0.f32, OUT/1.f32, ..., which numpy.fromfile(path, "float32").reshape(-1, 3, 224, 224) reads.
 */

#include <headrace/headrace.h>

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, SIDE = 224, SHORT_SIDE = 256, ITEMS = 3 * SIDE * SIDE, PATH_BYTES = 4096 };

struct sample {
    unsigned char *data;
    hr_image *image;
    struct hr_image_step steps[3];
};

static float table[3][256];

/* The results of ToTensor and Normalize for each byte. */
static void fill_table(void) {
    static const float mean[] = {0.485f, 0.456f, 0.406f}, deviation[] = {0.229f, 0.224f, 0.225f};
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 256; i++) table[c][i] = ((float)i / 255 - mean[c]) / deviation[c];
}

static unsigned char *read_file(const char *path, size_t *ret_bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    unsigned char *data = NULL;
    long bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (bytes > 0 && fseek(file, 0, SEEK_SET) == 0) data = malloc((size_t)bytes);
    if (data && fread(data, 1, (size_t)bytes, file) != (size_t)bytes) {
        free(data);
        data = NULL;
    }
    fclose(file);
    *ret_bytes = (size_t)bytes;
    return data;
}

/* Returns the first of the middle SIDE pixels. Python rounds a half to the even number. */
static int32_t middle_of(uint32_t pixels) {
    return (int32_t)lrint(((double)pixels - SIDE) / 2);
}

/* Resize(256), CenterCrop(224), and grey images become RGB. */
static void set_steps(struct sample *sample) {
    struct hr_image_info info;
    hr_image_look(sample->image, &info);
    uint32_t shorter = info.width < info.height ? info.width : info.height;
    uint32_t width = (uint32_t)((uint64_t)SHORT_SIDE * info.width / shorter);
    uint32_t height = (uint32_t)((uint64_t)SHORT_SIDE * info.height / shorter);
    int32_t left = middle_of(width), top = middle_of(height);
    sample->steps[0] = (struct hr_image_step){.kind = HR_IMAGE_CONVERT, .channels = 3};
    sample->steps[1] = (struct hr_image_step){.kind = HR_IMAGE_RESIZE,
                                              .filter = HR_IMAGE_BILINEAR,
                                              .passes = HR_IMAGE_SMALLER_FIRST, /* as Pillow 13 */
                                              .width = width,
                                              .height = height,
                                              .area = {0, 0, (float)info.width, (float)info.height}};
    sample->steps[2] = (struct hr_image_step){.kind = HR_IMAGE_CROP, .box = {left, top, left + SIDE, top + SIDE}};
}

static int open_sample(const char *path, struct sample *ret_sample) {
    struct sample sample = {0};
    size_t bytes;
    sample.data = read_file(path, &bytes);
    if (!sample.data) return -1;
    if (hr_image_open(sample.data, bytes, &sample.image) < 0) {
        fprintf(stderr, "images: %s: %s\n", path, hr_error_message());
        free(sample.data);
        return -1;
    }
    set_steps(&sample);
    *ret_sample = sample;
    return 0;
}

static int write_batch(const char *folder, int number, const float *items, int count) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%d.f32", folder, number);
    FILE *file = fopen(path, "wb");
    if (!file) return -1;
    size_t wanted = (size_t)count * ITEMS, written = fwrite(items, sizeof *items, wanted, file);
    return fclose(file) == 0 && written == wanted ? 0 : -1;
}

/* Makes the batch, in several threads, and writes it. Returns the number of images that failed; -1: not written. */
static int make_batch(hr_image_memory *memory, struct sample *samples, int count, unsigned threads, const char *folder,
                      int number, float *items) {
    struct hr_image_recipe recipes[BATCH];
    for (int i = 0; i < count; i++)
        recipes[i] = (struct hr_image_recipe){.image = samples[i].image,
                                              .steps = samples[i].steps,
                                              .step_count = 3,
                                              .layout = HR_IMAGE_PLANES,
                                              .table = table,
                                              .table_channels = 3,
                                              .item_bytes = sizeof(float),
                                              .target = items + (size_t)i * ITEMS,
                                              .target_bytes = ITEMS * sizeof(float)};
    int failed = hr_images_run(memory, recipes, (size_t)count, threads);
    if (failed) fprintf(stderr, "images: %d images failed: %s\n", failed, hr_error_message());
    for (int i = 0; i < count; i++) {
        hr_image_close(samples[i].image);
        free(samples[i].data);
    }
    return write_batch(folder, number, items, count) < 0 ? -1 : failed;
}

static int read_folder(DIR *folder, const char *from, const char *to, unsigned threads, hr_image_memory *memory,
                       float *items) {
    struct sample samples[BATCH];
    int count = 0, batches = 0, failed = 0;
    for (struct dirent *entry; (entry = readdir(folder)) && failed == 0;) {
        char path[PATH_BYTES];
        if (!strstr(entry->d_name, ".jpg")) continue;
        snprintf(path, sizeof path, "%s/%s", from, entry->d_name);
        if (open_sample(path, &samples[count]) == 0) count++;
        if (count < BATCH) continue;
        failed = make_batch(memory, samples, count, threads, to, batches++, items);
        count = 0;
    }
    if (count && failed == 0) failed = make_batch(memory, samples, count, threads, to, batches++, items);
    printf("images: %d batches\n", batches);
    return failed != 0;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: images FOLDER OUT [THREADS]\n");
        return 77;
    }
    fill_table();
    DIR *folder = opendir(argv[1]);
    float *items = malloc((size_t)BATCH * ITEMS * sizeof *items);
    hr_image_memory *memory = NULL;
    int r = 1;
    if (!folder || !items || hr_image_memory_new(&memory) < 0)
        fprintf(stderr, "images: cannot read %s, or no memory\n", argv[1]);
    else
        r = read_folder(folder, argv[1], argv[2], argc > 3 ? (unsigned)atoi(argv[3]) : 1, memory, items);
    hr_image_memory_free(memory);
    free(items);
    if (folder) closedir(folder);
    return r;
}
