/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_FROZEN_FROZEN_H
#define HEADRACE_CORE_FROZEN_FROZEN_H

#include "core.h"

/*
 * Frozen data: Python objects to frozen data (headrace/frozen.h) and back. This header has what all its files share.
 *
 *     frozen.c    the functions and types that module.c adds to the module
 *     opened.h    _core.Frozen, open frozen data, and how its items are read (opened.c, read.c)
 *     view.h      the views (view*.c), and Python keys as keys of the library (key.c)
 *     thaw.h      ordinary objects from frozen data (thaw*.c)
 *     freeze.h    objects into frozen data (freeze*.c)
 *     map.c, text.c  a map from numbers to numbers, and the UTF-8 of a str
 *
 * Some decisions need words and not bytes: which classes are plain, how a Decimal is stored. They are made in Python,
 * in headrace/frozen/types/hooks.py; frozen_hook calls it.
 */

/* ---- frozen.c ---- */

/* Adds the functions and types of frozen data to the module. */
int frozen_add(PyObject *module);

/* ---- opened.c ---- */

extern PyObject *FrozenError; /* a RuntimeError */

/* Sets the exception of a negative code of the frozen data. Returns NULL. */
void *frozen_raise(int code);
/* Returns 0, or -1 with the exception of a negative code. */
int frozen_result(int code);

/* Calls a function of headrace.frozen.types.hooks. New reference. */
PyObject *frozen_hook(const char *name, const char *format, ...);

/* ---- map.c ---- */

/* A map from numbers to numbers. No key is 0. A map that is all zero is empty. */
struct map_entry {
    uint64_t key, value;
};
struct map {
    struct map_entry *entries;
    size_t count, room;
};
/* Returns the address of a value, which is valid until the map changes, or NULL if the key is not in the map. */
uint64_t *map_find(const struct map *map, uint64_t key);
/* Adds a key that is not in the map. -1 with MemoryError. */
int map_add(struct map *map, uint64_t key, uint64_t value);
void map_free(struct map *map);

/* ---- text.c ---- */

/* The UTF-8 of a str, in which a lone surrogate is encoded like other code points. PyUnicode_AsUTF8 would leave a copy
 * in the str; these functions do not. */
size_t text_bytes(PyObject *text);
void text_write(PyObject *text, unsigned char *out);
/* Makes a str of ASCII bytes. New reference. */
PyObject *text_new(const void *bytes, size_t count);

#endif
