/* SPDX-License-Identifier: Apache-2.0 */
/* Converts text between Python's form and UTF-8 with lone surrogates. */
#include "frozen/frozen.h"

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

/* ---- texts that are made one after the other ---- */

static PyObject *copied(PyObject *text, const void *bytes, size_t count) {
    PyASCIIObject *ascii = (PyASCIIObject *)text;
    unsigned char *data = (unsigned char *)(ascii + 1);
    ascii->length = (Py_ssize_t)count;
    memcpy(data, bytes, count);
    data[count] = 0;
    return text;
}

#ifdef Py_GIL_DISABLED /* reference counts are split between threads, so unused texts cannot be recognized */

PyObject *text_new(const void *bytes, size_t count) {
    PyObject *text = PyUnicode_New((Py_ssize_t)count, 127);
    return text && count ? copied(text, bytes, count) : text;
}

#else

/*
 * A program that reads texts usually drops each one soon after it reads the next. The last few texts are remembered. If
 * no other code has a reference to one, its memory becomes the next text, so that it is not freed and allocated again.
 * Python code cannot see a difference from a new text: texts that have more than their bytes are not used again.
 */
enum { RECENT_COUNT = 4, RECENT_MOST_BYTES = 256, RECENT_SLACK_BYTES = 64, ALLOCATION_BYTES = 16 };

static struct recent {
    PyObject *text; /* owned; made here, so ASCII and exactly a str */
    size_t room;    /* how many bytes it can hold */
} recent_texts[RECENT_COUNT];
static unsigned recent_turn;

static bool is_plain(PyObject *text) {
#if PY_VERSION_HEX < 0x030c0000
    if (((PyASCIIObject *)text)->wstr) return false;
#endif
    return !PyUnicode_CHECK_INTERNED(text);
}

/* Makes a text with room for some more bytes, as many as its allocation has anyway. */
static PyObject *make_recent(struct recent *recent, const void *bytes, size_t count) {
    size_t own = sizeof(PyASCIIObject) + 1;
    size_t room = (own + count + ALLOCATION_BYTES - 1) / ALLOCATION_BYTES * ALLOCATION_BYTES - own;
    PyObject *text = PyUnicode_New((Py_ssize_t)room, 127);
    if (!text) return NULL;
    Py_XDECREF(recent->text);
    recent->text = Py_NewRef(text);
    recent->room = room;
    return copied(text, bytes, count);
}

PyObject *text_new(const void *bytes, size_t count) {
    if (count < 2 || count > RECENT_MOST_BYTES) { /* Python keeps the shortest texts itself */
        PyObject *text = PyUnicode_New((Py_ssize_t)count, 127);
        return text && count ? copied(text, bytes, count) : text;
    }
    struct recent *recent = &recent_texts[recent_turn++ % RECENT_COUNT];
    PyObject *text = recent->text;
    if (!text || Py_REFCNT(text) != 1 || recent->room - count > RECENT_SLACK_BYTES || !is_plain(text))
        return make_recent(recent, bytes, count);
    ((PyASCIIObject *)text)->hash = -1;
    return copied(Py_NewRef(text), bytes, count);
}

#endif
