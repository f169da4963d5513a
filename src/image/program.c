/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Makes the result of one recipe.
 *
 * The steps at its beginning that only cut out, flip, turn or convert are noted in a view. If a resize follows, and a
 * crop follows that, then only the pixels that the crop keeps are made, and only those are read that this needs. So one
 * rectangle of the image is needed, and often it is much smaller than the image. Later steps are done one by one.
 *
 * A grey image that was converted to RGB keeps pixels of one byte, because each step does the same to all three
 * channels. A conversion to grey at the beginning is done after the pixels have been read, which changes nothing.
 */

#include "blur.h"
#include "image.h"
#include "resize.h"
#include "view.h"

#include <errno.h>
#include <string.h>

/* ---- checks ---- */

#define BAD(...) hr__fail(-EINVAL, "image: " __VA_ARGS__)

static bool is_side(int64_t pixels) {
    return pixels >= 1 && pixels <= HR_IMAGE_MOST_SIDE;
}

static int check_area(const struct hr_image_step *step, const struct hr_image_size *size) {
    const float *area = step->area; /* compared so that a NaN is refused */
    bool is_inside = area[0] >= 0 && area[1] >= 0 && area[2] <= (float)size->width && area[3] <= (float)size->height;
    if (is_inside && area[2] > area[0] && area[3] > area[1]) return 0;
    return BAD("the area %g, %g, %g, %g of a resize is empty or not within %u x %u", (double)area[0], (double)area[1],
               (double)area[2], (double)area[3], size->width, size->height);
}

static int measure_resize(const struct hr_image_step *step, struct hr_image_size *size) {
    if (!is_side(step->width) || !is_side(step->height))
        return BAD("cannot resize to %u x %u", step->width, step->height);
    if (step->filter < HR_IMAGE_LANCZOS || step->filter > HR_IMAGE_HAMMING || step->passes > HR_IMAGE_SMALLER_FIRST)
        return BAD("filter %u or order of passes %u does not exist", step->filter, step->passes);
    int r = check_area(step, size);
    if (r < 0) return r;
    size->width = step->width;
    size->height = step->height;
    return 0;
}

static int measure_crop(const struct hr_image_step *step, struct hr_image_size *size) {
    int64_t width = (int64_t)step->box[2] - step->box[0], height = (int64_t)step->box[3] - step->box[1];
    if (!is_side(width) || !is_side(height))
        return BAD("cannot crop to %lld x %lld", (long long)width, (long long)height);
    size->width = (uint32_t)width;
    size->height = (uint32_t)height;
    return 0;
}

static int measure_transpose(const struct hr_image_step *step, struct hr_image_size *size) {
    if (step->method > HR_IMAGE_TRANSVERSE) return BAD("method %u of transpose does not exist", step->method);
    if (step->method == HR_IMAGE_ROTATE_90 || step->method >= HR_IMAGE_ROTATE_270) {
        uint32_t width = size->width;
        size->width = size->height;
        size->height = width;
    }
    return 0;
}

/* The borders are mirrored once, so a side must be longer than half of the weights. */
static int check_blur(const struct hr_image_recipe *recipe, const struct hr_image_step *step,
                      const struct hr_image_size *size) {
    uint64_t end = step->weights_at + (uint64_t)step->width * step->height;
    bool is_odd = step->width % 2 && step->height % 2, has_weights = recipe->weights && end <= recipe->weight_count;
    if (is_odd && has_weights && step->width / 2 < size->width && step->height / 2 < size->height) return 0;
    return BAD("%u x %u weights from %u of %u on cannot blur %u x %u pixels", step->width, step->height,
               step->weights_at, recipe->weight_count, size->width, size->height);
}

static int measure_step(const struct hr_image_step *step, struct hr_image_size *size) {
    switch (step->kind) {
    case HR_IMAGE_CROP:
        return measure_crop(step, size);
    case HR_IMAGE_RESIZE:
        return measure_resize(step, size);
    case HR_IMAGE_TRANSPOSE:
        return measure_transpose(step, size);
    case HR_IMAGE_CONVERT:
        if (step->channels != 1 && step->channels != 3) return BAD("cannot convert to %u channels", step->channels);
        size->channels = step->channels;
        return 0;
    case HR_IMAGE_BRIGHTNESS:
    case HR_IMAGE_CONTRAST:
    case HR_IMAGE_SATURATION:
        return step->factor >= 0 && step->factor <= HR_IMAGE_MOST_FACTOR
                   ? 0
                   : BAD("factor %g is out of range", (double)step->factor);
    case HR_IMAGE_HUE:
        return step->shift <= 255 ? 0 : BAD("a hue is shifted by %u; 0 to 255 is possible", step->shift);
    default:
        return BAD("step %u does not exist", step->kind);
    }
}

static int measure_output(const struct hr_image_recipe *recipe, struct hr_image_size *size) {
    uint64_t item_bytes = 1;
    if (recipe->layout == HR_IMAGE_PADDED && size->channels == 3) item_bytes = 4;
    if (recipe->layout == HR_IMAGE_PACKED) item_bytes = size->channels;
    if (recipe->layout == HR_IMAGE_PLANES) {
        uint32_t items = recipe->item_bytes;
        if (items != 1 && (items != 2 && items != 4 && items != 8)) return BAD("items have %u bytes", items);
        if (!recipe->table && items != 1) return BAD("items of %u bytes need a table", items);
        if (recipe->table) {
            bool fits = recipe->table_channels >= 1 && recipe->table_channels <= 4;
            if (!fits || (size->channels == 3 && recipe->table_channels != 3))
                return BAD("a table of %u channels does not fit %u", recipe->table_channels, size->channels);
            size->channels = recipe->table_channels;
        }
        item_bytes = (uint64_t)items * size->channels;
    } else if (recipe->layout > HR_IMAGE_PLANES || recipe->table) {
        return BAD("layout %u does not exist, or has no table", recipe->layout);
    }
    uint64_t bytes;
    if (!hr__mul((uint64_t)size->width * size->height, item_bytes, &bytes) || bytes > SIZE_MAX / 2)
        return hr__fail(-EOVERFLOW, "image: the result is too large");
    size->bytes = (size_t)bytes;
    return 0;
}

int hr_image_measure(const struct hr_image_recipe *recipe, struct hr_image_size *ret_size) {
    if (!recipe->image || (recipe->step_count && !recipe->steps)) return BAD("a recipe has no image or no steps");
    const struct hr_image_info *info = &recipe->image->info;
    struct hr_image_size size = {.width = info->width, .height = info->height, .channels = info->channels};
    for (uint32_t i = 0; i < recipe->step_count; i++) {
        const struct hr_image_step *step = &recipe->steps[i];
        int r = step->kind == HR_IMAGE_BLUR ? check_blur(recipe, step, &size) : measure_step(step, &size);
        if (r < 0) return r;
    }
    int r = measure_output(recipe, &size);
    if (r == 0) *ret_size = size;
    return r;
}

/* ---- the beginning: one rectangle of the image ---- */

struct beginning {
    struct hr__view view; /* of the pixels to read; if there is a resize, those that it needs */
    bool to_grey;         /* pixels of 4 bytes become pixels of 1 byte */
    bool has_resize;
    struct hr__resize_plan resize;
    struct hr__rect out; /* the part of the resize's result that is made */
    uint32_t channels;   /* of the image so far */
    uint32_t next;       /* the first step that is still to be done */
};

static struct hr__rect rect_of(const int32_t box[4]) {
    return (struct hr__rect){box[0], box[1], box[2], box[3]};
}

static uint32_t image_pixel_bytes(const hr_image *image) {
    return image->info.channels == 1 ? 1 : 4;
}

static struct hr__resize resize_of(const struct hr_image_step *step, uint32_t width, uint32_t height) {
    struct hr__resize resize = {.in_width = width,
                                .in_height = height,
                                .out_width = step->width,
                                .out_height = step->height,
                                .filter = step->filter,
                                .passes = step->passes,
                                .out = {0, 0, step->width, step->height}};
    memcpy(resize.area, step->area, sizeof resize.area);
    return resize;
}

/* Lets the resize make only what a crop that follows keeps, if that is within its result. */
static bool narrow(struct hr__resize *resize, const struct hr_image_step *step) {
    struct hr__rect box = rect_of(step->box);
    struct hr__rect common = hr__rect_common(&resize->out, &box);
    if (step->kind != HR_IMAGE_CROP || memcmp(&common, &box, sizeof box) != 0) return false;
    resize->out = box;
    return true;
}

static int begin_resize(const struct hr_image_recipe *recipe, struct hr__scratch *scratch,
                        struct beginning *beginning) {
    const struct hr_image_step *step = &recipe->steps[beginning->next++];
    struct hr__resize resize = resize_of(step, hr__view_width(&beginning->view), hr__view_height(&beginning->view));
    if (beginning->next < recipe->step_count && narrow(&resize, step + 1)) beginning->next++;
    int r = hr__resize_plan(&resize, scratch, &beginning->resize);
    if (r < 0) return r;
    beginning->has_resize = true;
    beginning->out = resize.out;
    hr__view_crop(&beginning->view, &beginning->resize.in);
    return 0;
}

/* A conversion between modes, of which only that of colours to grey changes pixels. */
static bool loses_colours(uint32_t pixel_bytes, uint32_t channels) {
    return pixel_bytes == 4 && channels == 1;
}

static int begin(const struct hr_image_recipe *recipe, struct hr__scratch *scratch, struct beginning *ret_beginning) {
    const struct hr_image_info *info = &recipe->image->info;
    struct beginning *beginning = ret_beginning;
    *beginning = (struct beginning){.view = hr__view_of(info->width, info->height), .channels = info->channels};
    uint32_t pixel_bytes = image_pixel_bytes(recipe->image);
    for (; beginning->next < recipe->step_count; beginning->next++) {
        const struct hr_image_step *step = &recipe->steps[beginning->next];
        if (step->kind == HR_IMAGE_RESIZE) return begin_resize(recipe, scratch, beginning);
        if (step->kind == HR_IMAGE_CROP) {
            struct hr__rect box = rect_of(step->box);
            hr__view_crop(&beginning->view, &box);
        } else if (step->kind == HR_IMAGE_TRANSPOSE) {
            hr__view_transpose(&beginning->view, step->method);
        } else if (step->kind == HR_IMAGE_CONVERT) {
            beginning->channels = step->channels;
            if (loses_colours(pixel_bytes, step->channels)) beginning->to_grey = true;
        } else {
            return 0;
        }
    }
    return 0;
}

int hr__recipe_need(const struct hr_image_recipe *recipe, struct hr__scratch *scratch, struct hr__rect *ret_needed) {
    struct beginning beginning;
    int r = begin(recipe, scratch, &beginning);
    if (r < 0) return r;
    hr__resize_done(&beginning.resize, scratch);
    *ret_needed = hr__view_needs(&beginning.view);
    return 0;
}

/* ---- one step after the other ---- */

/* The pixels so far. They are in a block of the scratch memory, unless they are a part of what was decoded, which
 * other recipes read too. */
struct work {
    struct hr__scratch *scratch;
    struct hr__pixels pixels;
    void *block; /* NULL: the pixels must not be changed */
    uint32_t channels;
};

static void replace(struct work *work, const struct hr__pixels *pixels) {
    hr__scratch_give(work->scratch, work->block);
    work->pixels = *pixels;
    work->block = pixels->data;
}

static int take(struct work *work, uint64_t width, uint64_t height, uint32_t pixel_bytes, struct hr__pixels *ret) {
    return hr__pixels_take(work->scratch, width, height, pixel_bytes, ret);
}

/* Makes `view`, which is one of the pixels so far, the pixels. */
static int read_view(struct work *work, const struct hr__view *view) {
    struct hr__decoded from = {.pixels = work->pixels, .rect = {0, 0, work->pixels.width, work->pixels.height}};
    struct hr__pixels to;
    if (hr__view_is_plain(view)) { /* a part of the same block */
        work->pixels = hr__pixels_part(&work->pixels, &view->rect);
        return 0;
    }
    int r = take(work, hr__view_width(view), hr__view_height(view), work->pixels.pixel_bytes, &to);
    if (r < 0) return r;
    hr__view_read(view, &from, &to);
    replace(work, &to);
    return 0;
}

static int do_resize(struct work *work, const struct hr__resize *resize) {
    struct hr__resize_plan plan;
    struct hr__pixels to;
    int r = hr__resize_plan(resize, work->scratch, &plan);
    if (r < 0) return r;
    struct hr__pixels in = hr__pixels_part(&work->pixels, &plan.in);
    r = take(work, (uint64_t)hr__rect_width(&resize->out), (uint64_t)hr__rect_height(&resize->out), in.pixel_bytes,
             &to);
    if (r == 0) {
        r = hr__resize_run(&plan, work->scratch, &in, &to);
        if (r == 0)
            replace(work, &to);
        else
            hr__scratch_give(work->scratch, to.data);
    }
    hr__resize_done(&plan, work->scratch);
    return r;
}

static int make_grey(struct work *work) {
    struct hr__pixels to;
    int r = take(work, work->pixels.width, work->pixels.height, 1, &to);
    if (r < 0) return r;
    hr__grey(&work->pixels, &to);
    replace(work, &to);
    return 0;
}

static int own(struct work *work) {
    struct hr__view view = hr__view_of(work->pixels.width, work->pixels.height);
    struct hr__decoded from = {.pixels = work->pixels, .rect = view.rect};
    struct hr__pixels to;
    if (work->block) return 0;
    int r = take(work, work->pixels.width, work->pixels.height, work->pixels.pixel_bytes, &to);
    if (r < 0) return r;
    hr__view_read(&view, &from, &to);
    replace(work, &to);
    return 0;
}

static int do_colour(struct work *work, const struct hr_image_step *step) {
    int r = own(work);
    if (r < 0) return r;
    switch (step->kind) {
    case HR_IMAGE_BRIGHTNESS:
        hr__brightness(&work->pixels, step->factor);
        break;
    case HR_IMAGE_CONTRAST:
        hr__contrast(&work->pixels, step->factor);
        break;
    case HR_IMAGE_SATURATION:
        hr__saturation(&work->pixels, step->factor);
        break;
    default:
        hr__hue(&work->pixels, step->shift);
    }
    return 0;
}

static int do_blur(struct work *work, const struct hr_image_recipe *recipe, const struct hr_image_step *step) {
    struct hr__kernel kernel = {recipe->weights + step->weights_at, step->width, step->height};
    int r = own(work);
    return r < 0 ? r : hr__blur(&work->pixels, &kernel, work->scratch);
}

/* Does the step at *next, and advances it by the number of steps that were done. */
static int do_step(struct work *work, const struct hr_image_recipe *recipe, uint32_t *next) {
    const struct hr_image_step *step = &recipe->steps[(*next)++];
    struct hr__view view = hr__view_of(work->pixels.width, work->pixels.height);
    struct hr__rect box = rect_of(step->box);
    struct hr__resize resize;
    switch (step->kind) {
    case HR_IMAGE_CROP:
        hr__view_crop(&view, &box);
        return read_view(work, &view);
    case HR_IMAGE_TRANSPOSE:
        hr__view_transpose(&view, step->method);
        return read_view(work, &view);
    case HR_IMAGE_RESIZE:
        resize = resize_of(step, work->pixels.width, work->pixels.height);
        if (*next < recipe->step_count && narrow(&resize, step + 1)) (*next)++;
        return do_resize(work, &resize);
    case HR_IMAGE_CONVERT:
        work->channels = step->channels;
        return loses_colours(work->pixels.pixel_bytes, step->channels) ? make_grey(work) : 0;
    case HR_IMAGE_BLUR:
        return do_blur(work, recipe, step);
    default:
        return do_colour(work, step);
    }
}

/* Reads the pixels of the beginning's view. */
static int read_beginning(struct work *work, const struct beginning *beginning, const struct hr__decoded *decoded,
                          uint32_t pixel_bytes) {
    if (hr__view_is_plain(&beginning->view)) {
        struct hr__rect part = {.left = beginning->view.rect.left - decoded->rect.left,
                                .top = beginning->view.rect.top - decoded->rect.top,
                                .right = beginning->view.rect.right - decoded->rect.left,
                                .bottom = beginning->view.rect.bottom - decoded->rect.top};
        work->pixels = hr__pixels_part(&decoded->pixels, &part);
    } else {
        struct hr__pixels to;
        int r = take(work, hr__view_width(&beginning->view), hr__view_height(&beginning->view), pixel_bytes, &to);
        if (r < 0) return r;
        hr__view_read(&beginning->view, decoded, &to);
        replace(work, &to);
    }
    return beginning->to_grey ? make_grey(work) : 0;
}

static int run_resize(struct work *work, const struct beginning *beginning) {
    struct hr__pixels to;
    int r = take(work, (uint64_t)hr__rect_width(&beginning->out), (uint64_t)hr__rect_height(&beginning->out),
                 work->pixels.pixel_bytes, &to);
    if (r < 0) return r;
    r = hr__resize_run(&beginning->resize, work->scratch, &work->pixels, &to);
    if (r < 0)
        hr__scratch_give(work->scratch, to.data);
    else
        replace(work, &to);
    return r;
}

int hr__recipe_make(const struct hr_image_recipe *recipe, struct hr__scratch *scratch,
                    const struct hr__decoded *decoded) {
    struct beginning beginning;
    struct work work = {.scratch = scratch};
    int r = begin(recipe, scratch, &beginning);
    if (r < 0) return r;
    r = read_beginning(&work, &beginning, decoded, image_pixel_bytes(recipe->image));
    if (r == 0 && beginning.has_resize) r = run_resize(&work, &beginning);
    hr__resize_done(&beginning.resize, scratch);
    work.channels = beginning.channels;
    for (uint32_t next = beginning.next; r == 0 && next < recipe->step_count;) r = do_step(&work, recipe, &next);
    if (r == 0) hr__output(recipe, &work.pixels, work.channels);
    hr__scratch_give(scratch, work.block);
    return r;
}
