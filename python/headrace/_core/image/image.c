/* SPDX-License-Identifier: Apache-2.0 */

/* _core.Picture: the bytes of an encoded image, or decoded pixels, for the recipes of run.c. */

#include "image/image.h"

#include <errno.h>

struct core_picture {
    PyObject_HEAD hr_image *image;
    Py_buffer data; /* what `image` borrows */
};

hr_image *image_of(PyObject *self) {
    return ((struct core_picture *)self)->image;
}

static void image_dealloc(PyObject *self) {
    struct core_picture *image = (struct core_picture *)self;
    hr_image_close(image->image);
    PyBuffer_Release(&image->data);
    Py_TYPE(self)->tp_free(self);
}

static struct core_picture *new_image(PyObject *data) {
    struct core_picture *self = (struct core_picture *)PictureType.tp_alloc(&PictureType, 0);
    if (self && PyObject_GetBuffer(data, &self->data, PyBUF_SIMPLE) < 0) Py_CLEAR(self);
    return self;
}

static PyObject *image_open(PyObject *type, PyObject *data) {
    (void)type;
    struct core_picture *self = new_image(data);
    if (!self) return NULL;
    int r = hr_image_open(self->data.buf, (size_t)self->data.len, &self->image);
    if (r == 0) return (PyObject *)self;
    Py_DECREF(self);
    if (r == -ENOTSUP || r == -ENOSYS || r == -EINVAL) return PyUnicode_FromString(hr_error_message());
    return core_raise(r);
}

static PyObject *image_wrap(PyObject *type, PyObject *arguments) {
    PyObject *data;
    unsigned int width, height, pixel_bytes;
    (void)type;
    if (!PyArg_ParseTuple(arguments, "OIII:wrap", &data, &width, &height, &pixel_bytes)) return NULL;
    struct core_picture *self = new_image(data);
    if (!self) return NULL;
    size_t stride = (size_t)width * pixel_bytes;
    int r = height && stride > (size_t)self->data.len / height
                ? -EINVAL
                : hr_image_wrap(self->data.buf, width, height, pixel_bytes, stride, &self->image);
    if (r == 0) return (PyObject *)self;
    PyErr_Format(PyExc_ValueError, "headrace: %zd bytes are not %u x %u pixels of %u bytes", self->data.len, width,
                 height, pixel_bytes);
    Py_DECREF(self);
    return NULL;
}

static PyObject *get_info(PyObject *self, void *ignored) {
    struct hr_image_info info;
    (void)ignored;
    hr_image_look(image_of(self), &info);
    return Py_BuildValue("IIIK", info.width, info.height, info.channels, (unsigned long long)info.data_bytes);
}

static PyGetSetDef properties[] = {
    {"info", get_info, NULL, "(width, height, channels, data_bytes), of struct hr_image_info.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    {"open", image_open, METH_O | METH_STATIC,
     "open(data) -> Picture | str\n\nChecks the bytes of a JPEG file. Returns why it is not decoded here if it is "
     "not."},
    {"wrap", image_wrap, METH_VARARGS | METH_STATIC,
     "wrap(data, width, height, pixel_bytes) -> Picture\n\nReturns an image of decoded pixels of 1 byte (grey) or 4 "
     "bytes (R, G, B, ignored). Raises ValueError if the data is too short."},
    {"pixels", image_pixels, METH_VARARGS,
     "pixels(steps, weights, layout) -> bytes | None\n\nReturns the pixels after the steps, which are structs "
     "hr_image_step; weights are floats. "
     "None: the compressed data is damaged."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject PictureType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Picture",
    .tp_basicsize = sizeof(struct core_picture),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "An image, see headrace/image.h. Picture.open and Picture.wrap make one.",
    .tp_dealloc = image_dealloc,
    .tp_methods = methods,
    .tp_getset = properties,
};
