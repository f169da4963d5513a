/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of images, for our own faces: which image a thread was making when it crashed. */
#ifndef HEADRACE_FACE_IMAGE_H
#define HEADRACE_FACE_IMAGE_H

#include <headrace/image.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Is called by each thread of a run before it makes the recipes of an image, with the first of them, and with NULL when
 * it has made them. Threads count from 0, the calling one. */
typedef void hr_image_watch(void *context, uint32_t thread, const struct hr_image_recipe *recipe);

/* Sets the function that watches the runs which use this memory, so that a crash can be reported with the image that
 * caused it. NULL: none, as at first. */
HR_API void hr_image_memory_watch(hr_image_memory *memory, hr_image_watch *watch, void *context);

#ifdef __cplusplus
}
#endif
#endif
