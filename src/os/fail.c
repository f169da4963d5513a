/* SPDX-License-Identifier: Apache-2.0 */
/* Failpoints: make a named call fail, or stop a process at a named point. */
#include "os.h"

#ifdef HR_FAILPOINTS

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static int errno_by_name(const char *name, size_t length) {
    static const struct {
        const char *name;
        int number;
    } table[] = {{"EPERM", EPERM},   {"EAGAIN", EAGAIN}, {"ENOSPC", ENOSPC}, {"ENOMEM", ENOMEM}, {"ENOSYS", ENOSYS},
                 {"EMFILE", EMFILE}, {"EACCES", EACCES}, {"EINVAL", EINVAL}, {"ESTALE", ESTALE}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0) return table[i].number;
    return EIO;
}

int hr__fail_at(const char *point) {
    const char *at = getenv("HEADRACE_FAIL");
    size_t length = strlen(point);
    while (at && *at) {
        size_t item = strcspn(at, ",");
        if (item > length && at[length] == ':' && memcmp(at, point, length) == 0)
            return -errno_by_name(at + length + 1, item - length - 1);
        at += item + (at[item] == ',');
    }
    return 0;
}

const char *hr__root(void) {
    const char *root = getenv("HEADRACE_ROOT");
    return root ? root : "";
}

uint64_t hr__assumed_page(void) {
    const char *bytes = getenv("HEADRACE_PAGE");
    return bytes ? strtoull(bytes, NULL, 10) : 0;
}

#define HR__POINT_ROW(constant, name, side) {name, HR__BY_##side},
const struct hr__failpoint hr__failpoints[HR__POINT_COUNT] = {HR__FAILPOINTS(HR__POINT_ROW)};
#undef HR__POINT_ROW

void hr__stop_at(enum hr__point point) {
    static _Atomic unsigned long passed;
    const char *plan = getenv("HEADRACE_STOP");
    if (!plan) return;
    const char *name = hr__failpoints[point].name;
    size_t length = strlen(name);
    if (strncmp(plan, name, length) != 0 || plan[length] != ':') return;
    char *rest;
    long signal = strtol(plan + length + 1, &rest, 10);
    unsigned long nth = *rest == ':' ? strtoul(rest + 1, NULL, 10) : 1;
    if (atomic_fetch_add(&passed, 1) + 1 == nth) raise((int)signal);
}

#endif
