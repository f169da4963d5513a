/* SPDX-License-Identifier: Apache-2.0 */
/* Orders with random access: sequential, stream, a table, a mixture, or one of machines. */
#include "check.h"
#include "machines.h"
#include "mixture.h"
#include "stream.h"

#include <errno.h>
#include <string.h>

static int start(struct hr_order *order, int64_t n, enum hr_order_kind kind, const void *table) {
    if (hr__check_n(n) < 0) return -EINVAL;
    memset(order, 0, sizeof *order);
    order->n = n;
    order->kind = kind;
    order->table = table;
    return 0;
}

int hr_order_sequential(int64_t n, struct hr_order *ret_order) {
    return start(ret_order, n, HR_ORDER_SEQUENTIAL, NULL);
}

int hr_order_int32(int64_t n, const int32_t *table, struct hr_order *ret_order) {
    return start(ret_order, n, HR_ORDER_INT32, table);
}

int hr_order_int64(int64_t n, const int64_t *table, struct hr_order *ret_order) {
    return start(ret_order, n, HR_ORDER_INT64, table);
}

int hr_order_stream(int64_t n, uint64_t seed, uint64_t epoch, struct hr_order *ret_order) {
    int r = start(ret_order, n, HR_ORDER_STREAM, NULL);
    if (r == 0) hr__stream_start(ret_order, seed, epoch);
    return r;
}

void hr_order_mixture(const hr_mixture *mixture, struct hr_order *ret_order) {
    start(ret_order, mixture->length, HR_ORDER_MIXTURE, mixture);
}

static bool is_small(const struct hr_order *order) {
    return order->kind == HR_ORDER_STREAM && order->n <= HR_STREAM_SMALL;
}

static int64_t look(const struct hr_order *order, int64_t position) {
    if (order->kind == HR_ORDER_INT32) return ((const int32_t *)order->table)[position];
    if (order->kind == HR_ORDER_INT64) return ((const int64_t *)order->table)[position];
    if (order->kind == HR_ORDER_SEQUENTIAL) return position;
    if (order->kind == HR_ORDER_MIXTURE) return hr__mixture_at(order->table, position);
    if (order->kind == HR_ORDER_MACHINES) return hr__machines_at(order, position);
    return is_small(order) ? order->small[position] : (int64_t)hr__stream_at(order, (uint64_t)position);
}

static int check_number(const struct hr_order *order, const char *what, int64_t number) {
    if (number >= 0 && number < order->n) return 0;
    return hr__fail(-EINVAL, "sampler: %s %lld is not in an order of %lld samples", what, (long long)number,
                    (long long)order->n);
}

int64_t hr_order_at(const struct hr_order *order, int64_t position) {
    int r = check_number(order, "position", position);
    return r < 0 ? r : look(order, position);
}

int64_t hr_order_find(const struct hr_order *order, int64_t index) {
    int r = order->kind == HR_ORDER_MIXTURE ? 0 : check_number(order, "index", index);
    if (r < 0) return r;
    if (order->kind == HR_ORDER_SEQUENTIAL) return index;
    if (order->kind == HR_ORDER_STREAM && !is_small(order)) return (int64_t)hr__stream_find(order, (uint64_t)index);
    for (int64_t position = 0; position < order->n; position++)
        if (look(order, position) == index) return position;
    return hr__fail(-EINVAL, "sampler: index %lld is not in an order of %lld samples", (long long)index,
                    (long long)order->n);
}

/* Returns `step` modulo n, from 0 to n - 1. */
static uint64_t positive_step(int64_t step, int64_t n) {
    int64_t rest = step % n;
    return (uint64_t)(rest < 0 ? rest + n : rest);
}

int hr_order_fill(const struct hr_order *order, int64_t first, int64_t step, int64_t count, int64_t *ret_indices) {
    if (hr__check_count(count) < 0) return -EINVAL;
    if (order->n == 0 && count == 0) return 0;
    int r = check_number(order, "position", first);
    if (r < 0) return r;
    uint64_t n = (uint64_t)order->n, position = (uint64_t)first, forward = positive_step(step, order->n);
    if (order->kind == HR_ORDER_STREAM && !is_small(order)) {
        hr__stream_fill(order, position, forward, count, ret_indices);
        return 0;
    }
    if (order->kind == HR_ORDER_MIXTURE) {
        hr__mixture_fill(order->table, position, forward, count, ret_indices);
        return 0;
    }
    if (order->kind == HR_ORDER_MACHINES) {
        hr__machines_fill(order, position, forward, count, ret_indices);
        return 0;
    }
    for (int64_t i = 0; i < count; i++) {
        ret_indices[i] = look(order, (int64_t)position);
        position += forward;
        if (position >= n) position -= n;
    }
    return 0;
}
