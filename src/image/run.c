/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Runs recipes in several threads. The recipes of one image are one piece of work, so that the image is decoded once
 * for them. Each thread takes the next piece when it is free. The threads live as long as the run: starting one takes a
 * fiftieth of the time of one image, and between two runs there is no thread that a fork could lose.
 */

#include "image.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "os/os.h"

enum { MESSAGE_BYTES = 256 };

struct hr_image_memory {
    struct hr__scratch *scratches; /* one for each thread that ever ran */
    uint32_t count;
    uint32_t run_count; /* since the last time that unused memory was freed */
    hr_image_watch *watch;
    void *context;
};

int hr_image_memory_new(hr_image_memory **ret_memory) {
    hr_image_memory *memory = hr__realloc(NULL, sizeof *memory);
    if (!memory) return hr__fail(-ENOMEM, "image: cannot allocate %zu bytes", sizeof *memory);
    *memory = (hr_image_memory){0};
    *ret_memory = memory;
    return 0;
}

void hr_image_memory_free(hr_image_memory *memory) {
    if (!memory) return;
    for (uint32_t i = 0; i < memory->count; i++) hr__scratch_done(&memory->scratches[i]);
    hr__free(memory->scratches);
    hr__free(memory);
}

void hr_image_memory_watch(hr_image_memory *memory, hr_image_watch *watch, void *context) {
    memory->watch = watch;
    memory->context = context;
}

/* One large image would otherwise leave its memory with each thread for good. */
static void free_unused(hr_image_memory *memory) {
    enum { EVERY = 16 }; /* runs */
    bool is_due = ++memory->run_count >= EVERY;
    for (uint32_t i = 0; i < memory->count; i++) hr__scratch_trim(&memory->scratches[i], is_due);
    if (is_due) memory->run_count = 0;
}

static int need_scratches(hr_image_memory *memory, uint32_t count) {
    if (memory->count >= count) return 0;
    struct hr__scratch *scratches = hr__realloc(memory->scratches, count * sizeof *scratches);
    if (!scratches) return hr__fail(-ENOMEM, "image: cannot allocate memory for %u threads", count);
    memset(scratches + memory->count, 0, (count - memory->count) * sizeof *scratches);
    memory->scratches = scratches;
    memory->count = count;
    return 0;
}

/* ---- one image and its recipes ---- */

struct piece {
    struct hr_image_recipe **recipes;
    size_t count;
};

/* Checks the recipes of a piece, and finds the part of the image that the valid ones need together. */
static struct hr__rect measure_piece(const struct piece *piece, struct hr__scratch *scratch) {
    struct hr__rect all = {0}, needed;
    for (size_t i = 0; i < piece->count; i++) {
        struct hr_image_recipe *recipe = piece->recipes[i];
        struct hr_image_size size;
        recipe->result = hr_image_measure(recipe, &size);
        if (recipe->result == 0 && (!recipe->target || recipe->target_bytes < size.bytes))
            recipe->result = hr__fail(-ENOSPC, "image: the result needs %zu bytes, and there are %zu", size.bytes,
                                      recipe->target ? recipe->target_bytes : 0);
        if (recipe->result == 0) recipe->result = hr__recipe_need(recipe, scratch, &needed);
        if (recipe->result == 0) all = hr__rect_union(&all, &needed);
    }
    return all;
}

/* Decodes the whole image, and keeps it. */
static int decode_whole(hr_image *image, struct hr__scratch *scratch) {
    struct hr__rect all = {0, 0, image->info.width, image->info.height};
    struct hr__pixels pixels = {
        .width = image->info.width, .height = image->info.height, .pixel_bytes = image->info.channels == 1 ? 1 : 4};
    uint64_t bytes;
    pixels.stride = (size_t)pixels.width * pixels.pixel_bytes;
    if (!hr__mul(pixels.stride, pixels.height, &bytes) || bytes > SIZE_MAX / 2)
        return hr__fail(-EOVERFLOW, "image: it is too large for this machine");
    pixels.data = hr__realloc(NULL, (size_t)bytes);
    if (!pixels.data) return hr__fail(-ENOMEM, "image: cannot allocate %llu bytes", (unsigned long long)bytes);
    int r = hr__jpeg_decode(image, &all, scratch, &pixels);
    if (r < 0) {
        hr__free(pixels.data);
        return r;
    }
    image->whole = pixels;
    image->owns_whole = true;
    return 0;
}

/* Decodes the part `rect`, which lies within the image, unless there are pixels already. */
static int decode_part(hr_image *image, const struct hr__rect *rect, struct hr__scratch *scratch,
                       struct hr__decoded *ret_decoded, void **ret_block) {
    if (!image->whole.data && image->was_used) {
        int r = decode_whole(image, scratch);
        if (r < 0) return r;
    }
    if (image->whole.data) {
        *ret_decoded = (struct hr__decoded){image->whole, {0, 0, image->info.width, image->info.height}};
        return 0;
    }
    struct hr__pixels pixels;
    int r = hr__pixels_take(scratch, (uint64_t)hr__rect_width(rect), (uint64_t)hr__rect_height(rect),
                            image->info.channels == 1 ? 1 : 4, &pixels);
    if (r < 0) return r;
    *ret_block = pixels.data;
    r = hr__jpeg_decode(image, rect, scratch, &pixels);
    image->was_used = true;
    if (r == 0) *ret_decoded = (struct hr__decoded){pixels, *rect};
    return r;
}

static void make_piece(const struct piece *piece, struct hr__scratch *scratch) {
    hr_image *image = piece->recipes[0]->image;
    struct hr__rect rect = measure_piece(piece, scratch);
    struct hr__decoded decoded = {.rect = rect};
    void *block = NULL;
    int r = 0;
    if (!image) return;
    pthread_mutex_lock(&image->lock);
    if (!hr__rect_is_empty(&rect)) r = decode_part(image, &rect, scratch, &decoded, &block);
    for (size_t i = 0; i < piece->count; i++) {
        struct hr_image_recipe *recipe = piece->recipes[i];
        if (recipe->result == 0) recipe->result = r < 0 ? r : hr__recipe_make(recipe, scratch, &decoded);
    }
    pthread_mutex_unlock(&image->lock);
    hr__scratch_give(scratch, block);
}

/* ---- threads ---- */

struct run {
    struct piece *pieces;
    size_t count;
    _Atomic size_t next;   /* partners: the threads of the run, which each take another piece */
    _Atomic int has_error; /* the first thread that sets it writes `message`, which is read after all have ended */
    char message[MESSAGE_BYTES];
};

struct part {
    struct run *run;
    const hr_image_memory *memory;
    uint32_t number;
    struct hr__thread thread;
};

static void tell(const struct part *part, const struct hr_image_recipe *recipe) {
    if (part->memory->watch) part->memory->watch(part->memory->context, part->number, recipe);
}

static void keep_message(struct run *run) {
    if (atomic_exchange_explicit(&run->has_error, 1, memory_order_relaxed)) return;
    const char *message = hr_error_message();
    size_t length = strnlen(message, MESSAGE_BYTES - 1);
    memcpy(run->message, message, length);
    run->message[length] = 0;
}

static bool has_failed(const struct piece *piece) {
    for (size_t i = 0; i < piece->count; i++)
        if (piece->recipes[i]->result < 0) return true;
    return false;
}

static void work(void *context) {
    struct part *part = context;
    struct run *run = part->run;
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed);
        if (i >= run->count) return;
        tell(part, run->pieces[i].recipes[0]);
        make_piece(&run->pieces[i], &part->memory->scratches[part->number]);
        tell(part, NULL);
        if (has_failed(&run->pieces[i])) keep_message(run);
    }
}

static void run_threads(struct run *run, hr_image_memory *memory, uint32_t threads, struct part *parts) {
    uint32_t started = 0;
    for (uint32_t i = 0; i < threads; i++) parts[i] = (struct part){.run = run, .memory = memory, .number = i};
    while (started + 1 < threads && hr__thread_start(&parts[started + 1].thread, work, &parts[started + 1]) == 0)
        started++;
    work(&parts[0]);
    for (uint32_t i = 1; i <= started; i++) hr__thread_join(&parts[i].thread);
}

/* ---- pieces ---- */

static int compare_images(const void *one, const void *other) {
    const struct hr_image_recipe *a = *(struct hr_image_recipe *const *)one,
                                 *b = *(struct hr_image_recipe *const *)other;
    if (a->image != b->image) return (uintptr_t)a->image < (uintptr_t)b->image ? -1 : 1;
    return a < b ? -1 : a > b;
}

static int compare_pieces(const void *one, const void *other) {
    const struct hr_image_recipe *a = ((const struct piece *)one)->recipes[0],
                                 *b = ((const struct piece *)other)->recipes[0];
    return a < b ? -1 : a > b;
}

/* Sorts the recipes by image, and makes a piece of each image's, in the order in which they come first. Returns the
 * number of pieces. */
static size_t divide(struct hr_image_recipe *recipes, size_t count, struct hr_image_recipe **sorted,
                     struct piece *pieces) {
    size_t made = 0;
    for (size_t i = 0; i < count; i++) sorted[i] = &recipes[i];
    qsort(sorted, count, sizeof(struct hr_image_recipe *), compare_images);
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || sorted[i]->image != sorted[i - 1]->image) pieces[made++] = (struct piece){.recipes = &sorted[i]};
        pieces[made - 1].count++;
    }
    qsort(pieces, made, sizeof *pieces, compare_pieces);
    return made;
}

static int fail_all(struct hr_image_recipe *recipes, size_t count, int r) {
    for (size_t i = 0; i < count; i++) recipes[i].result = r;
    return (int)count;
}

int hr_images_run(hr_image_memory *memory, struct hr_image_recipe *recipes, size_t count, uint32_t threads) {
    struct run run = {.count = 0};
    if (!count) return 0;
    if (count > INT32_MAX) return hr__fail(-EINVAL, "image: a run of %zu recipes is too long", count);
    size_t per_recipe = sizeof(struct piece) + sizeof(struct hr_image_recipe *);
    char *lists = hr__realloc(NULL, count * per_recipe + HR_IMAGE_MOST_THREADS * sizeof(struct part));
    if (!lists) return fail_all(recipes, count, hr__fail(-ENOMEM, "image: no memory to sort %zu recipes", count));
    struct part *parts = (struct part *)(void *)lists;
    run.pieces = (struct piece *)(void *)(parts + HR_IMAGE_MOST_THREADS);
    run.count = divide(recipes, count, (struct hr_image_recipe **)(void *)(run.pieces + count), run.pieces);
    threads = (uint32_t)hr__min(hr__min(hr__max(threads, 1), HR_IMAGE_MOST_THREADS), run.count);
    int r = need_scratches(memory, threads);
    if (r == 0)
        run_threads(&run, memory, threads, parts);
    else
        fail_all(recipes, count, r);
    free_unused(memory);
    hr__free(lists);
    int failed = 0;
    for (size_t i = 0; i < count; i++) failed += recipes[i].result < 0;
    if (run.has_error) hr__message_set("%s", run.message);
    return failed;
}
