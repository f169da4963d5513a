/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_IMAGE_IMAGE_H
#define HEADRACE_CORE_IMAGE_IMAGE_H

#include "core.h"

/* image.c: _core.Picture, an encoded or decoded image. */
extern PyTypeObject PictureType;
hr_image *image_of(PyObject *self);

/* run.c: the functions of the module. */
PyObject *images_run(PyObject *module, PyObject *arguments);
PyObject *image_pixels(PyObject *self, PyObject *arguments);

#endif
