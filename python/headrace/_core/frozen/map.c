/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table from addresses to values, which keeps shared references. */
#include "frozen/frozen.h"

enum { FIRST_ROOM = 64 };

static size_t place(const struct map *map, uint64_t key) {
    size_t at = (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & (map->room - 1);
    while (map->entries[at].key && map->entries[at].key != key) at = (at + 1) & (map->room - 1);
    return at;
}

uint64_t *map_find(const struct map *map, uint64_t key) {
    if (!map->count) return NULL;
    size_t at = place(map, key);
    return map->entries[at].key ? &map->entries[at].value : NULL;
}

static int grow(struct map *map) {
    struct map larger = {.room = map->room ? 2 * map->room : FIRST_ROOM, .count = map->count};
    larger.entries = PyMem_Calloc(larger.room, sizeof *larger.entries);
    if (!larger.entries) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < map->room; i++)
        if (map->entries[i].key) larger.entries[place(&larger, map->entries[i].key)] = map->entries[i];
    PyMem_Free(map->entries);
    *map = larger;
    return 0;
}

int map_add(struct map *map, uint64_t key, uint64_t value) {
    if (3 * (map->count + 1) > 2 * map->room && grow(map) < 0) return -1;
    map->entries[place(map, key)] = (struct map_entry){key, value};
    map->count++;
    return 0;
}

void map_free(struct map *map) {
    PyMem_Free(map->entries);
    *map = (struct map){0};
}
