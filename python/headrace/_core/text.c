/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <string.h>

static size_t bytes_of(Py_UCS4 point) {
    return point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
}

size_t text_bytes(PyObject *text) {
    size_t length = (size_t)PyUnicode_GET_LENGTH(text), bytes = 0;
    if (PyUnicode_IS_ASCII(text)) return length;
    int kind = (int)PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    for (size_t i = 0; i < length; i++) bytes += bytes_of(PyUnicode_READ(kind, data, i));
    return bytes;
}

static unsigned char *write_point(unsigned char *out, Py_UCS4 point) {
    size_t bytes = bytes_of(point);
    if (bytes == 1) {
        *out = (unsigned char)point;
        return out + 1;
    }
    for (size_t i = bytes - 1; i > 0; i--, point >>= 6) out[i] = (unsigned char)(0x80 | (point & 0x3f));
    out[0] = (unsigned char)((0xf00u >> bytes) | point);
    return out + bytes;
}

void text_write(PyObject *text, unsigned char *out) {
    size_t length = (size_t)PyUnicode_GET_LENGTH(text);
    if (PyUnicode_IS_ASCII(text)) {
        memcpy(out, PyUnicode_DATA(text), length);
        return;
    }
    int kind = (int)PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    for (size_t i = 0; i < length; i++) out = write_point(out, PyUnicode_READ(kind, data, i));
}
