/* SPDX-License-Identifier: Apache-2.0 */
/* Images: what module.c adds to the module. */
#ifndef HEADRACE_CORE_IMAGE_IMAGE_H
#define HEADRACE_CORE_IMAGE_IMAGE_H

#include "core.h"

/* image.c: _core.Picture, an encoded or decoded image. */
extern PyTypeObject PictureType;
hr_image *image_of(PyObject *self);

/* run.c: reads a recipe (Picture, steps, weights, table, table_channels, item_bytes) from the beginning of a tuple,
 * which keeps all that it uses. -1: exception. */
int recipe_of(PyObject *tuple, struct hr_image_recipe *ret_recipe);

/* run.c: scratch memory for a run, and its return. NULL: exception. */
hr_image_memory *image_memory_take(void);
void image_memory_keep(hr_image_memory *memory);

/* run.c: the functions of the module. */
PyObject *images_run(PyObject *module, PyObject *arguments);
PyObject *image_pixels(PyObject *self, PyObject *arguments);

#endif
