/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_LOADER_SCENE_H
#define HR_TESTS_LOADER_SCENE_H

#include "../support/arena_scene.h"

/* A loader whose workers are ports in this process and thread. A task is about a number, and so is its batch. */

enum { WORKERS_MAX = 4, NONE = -1 };

struct room {
    hr_loader *loader;
    struct scene scene;
    hr_port *ports[WORKERS_MAX];
    int left[WORKERS_MAX];
    int64_t first_skipped, past_skipped; /* no batches are made of these numbers */
    bool ended[WORKERS_MAX];
};

static inline void open_room(struct room *room, int workers, int prefetch, int out_of_order) {
    struct hr_loader_options options = {.worker_count = (uint32_t)workers,
                                        .prefetch_factor = (uint32_t)prefetch,
                                        .out_of_order = out_of_order,
                                        .limit_bytes = UINT64_C(1) << 30};
    *room = (struct room){.loader = NULL};
    must(hr_loader_open(&options, &room->loader));
    room->scene = (struct scene){.arena = hr_loader_arena(room->loader), .worker_count = (uint32_t)workers};
    for (int i = 0; i < workers; i++) room->ports[i] = open_port_here(&room->scene, (uint32_t)i);
}

static inline void close_room(struct room *room) {
    for (uint32_t i = 0; i < room->scene.worker_count; i++) hr_port_close(room->ports[i]);
    hr_loader_close(room->loader);
}

/* Worker `i` answers its next task, if it has one: with a batch, its end, or nothing. */
static inline bool work(struct room *room, int i) {
    struct hr_task task;
    void *data;
    if (hr_port_take(room->ports[i], 0, &task) == -ETIMEDOUT) return false;
    int64_t index = NONE;
    if (task.kind == HR_TASK_MAKE) memcpy(&index, task.payload, sizeof index);
    must(hr_port_reserve(room->ports[i], sizeof index, &data));
    memcpy(data, &index, sizeof index);
    uint32_t status = HR_STATUS_BATCH;
    if (task.kind == HR_TASK_EPOCH) {
        room->ended[i] = false;
        status = HR_STATUS_SKIPPED;
    } else if (room->ended[i]) {
        status = HR_STATUS_SKIPPED;
    } else if (index >= room->first_skipped && index < room->past_skipped) {
        status = HR_STATUS_SKIPPED;
    } else if (room->left[i] == 0) {
        room->ended[i] = true;
        status = HR_STATUS_END;
    } else {
        room->left[i]--;
    }
    must(hr_port_publish(room->ports[i], status, sizeof index));
    return true;
}

static inline void work_off(struct room *room) {
    for (uint32_t i = 0; i < room->scene.worker_count; i++)
        while (work(room, (int)i)) continue;
}

static inline int submit(struct room *room, int *next_index, int index_count) {
    if (*next_index == index_count) return 0;
    int64_t index = (*next_index)++;
    int r = hr_loader_submit(room->loader, &index, sizeof index);
    must(r);
    return r;
}

static inline void prime(struct room *room, int prefetch, int *next_index, int index_count) {
    for (uint32_t i = 0; i < room->scene.worker_count * (uint32_t)prefetch; i++) submit(room, next_index, index_count);
}

#endif
