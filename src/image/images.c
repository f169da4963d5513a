/* SPDX-License-Identifier: Apache-2.0 */

/* Opens and closes images. */

#include "image.h"

#include <errno.h>

#include "base/alloc.h"
#include "os/os.h"

static int new_image(hr_image **ret_image) {
    hr_image *image = hr__realloc(NULL, sizeof *image);
    if (!image) return hr__fail(-ENOMEM, "image: cannot allocate %zu bytes", sizeof *image);
    *image = (hr_image){.pid = hr__pid()};
    if (pthread_mutex_init(&image->lock, NULL)) {
        hr__free(image);
        return hr__fail(-ENOMEM, "image: cannot make a lock");
    }
    *ret_image = image;
    return 0;
}

int hr_image_open(const void *data, size_t bytes, hr_image **ret_image) {
    struct hr_image_info info;
    hr_image *image;
    if (!hr_image_has_jpeg()) return hr__fail(-ENOSYS, "image: headrace was built without libjpeg-turbo");
    if (!data || !bytes) return hr__fail(-EINVAL, "image: there is no data");
    int r = hr__jpeg_scan(data, bytes, &info);
    if (r < 0) return r;
    r = new_image(&image);
    if (r < 0) return r;
    image->info = info;
    image->data = data;
    *ret_image = image;
    return 0;
}

int hr_image_wrap(const void *pixels, uint32_t width, uint32_t height, uint32_t pixel_bytes, size_t stride_bytes,
                  hr_image **ret_image) {
    hr_image *image;
    bool fits = pixels && width && height && width <= HR_IMAGE_MOST_SIDE && height <= HR_IMAGE_MOST_SIDE &&
                (pixel_bytes == 1 || pixel_bytes == 4) && stride_bytes / pixel_bytes >= width;
    if (!fits)
        return hr__fail(-EINVAL, "image: %u x %u pixels of %u bytes, in rows of %zu bytes, are out of range", width,
                        height, pixel_bytes, stride_bytes);
    int r = new_image(&image);
    if (r < 0) return r;
    image->info = (struct hr_image_info){.width = width, .height = height, .channels = pixel_bytes == 1 ? 1 : 3};
    image->whole = (struct hr__pixels){.data = (unsigned char *)(uintptr_t)pixels, /* only read */
                                       .width = width,
                                       .height = height,
                                       .pixel_bytes = pixel_bytes,
                                       .stride = stride_bytes};
    *ret_image = image;
    return 0;
}

/* The parent's thread may have been interrupted while it kept pixels: those are used only if they are complete. */
int hr_image_adopt(hr_image *image) {
    const struct hr__pixels *whole = &image->whole;
    if (image->pid == hr__pid()) return 0;
    if (pthread_mutex_init(&image->lock, NULL)) return hr__fail(-ENOMEM, "image: cannot make a lock");
    bool is_complete = whole->width == image->info.width && whole->height == image->info.height && whole->stride &&
                       whole->pixel_bytes && (image->owns_whole || !image->data);
    if (!is_complete) image->whole = (struct hr__pixels){.data = NULL};
    image->pid = hr__pid();
    return 0;
}

void hr_image_look(const hr_image *image, struct hr_image_info *ret_info) {
    *ret_info = image->info;
}

void hr_image_close(hr_image *image) {
    if (!image) return;
    if (image->owns_whole) hr__free(image->whole.data);
    pthread_mutex_destroy(&image->lock);
    hr__free(image);
}
