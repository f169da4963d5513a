/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_SAMPLER_CHECK_H
#define HR_SAMPLER_CHECK_H

#include <errno.h>
#include <stdint.h>

#include "base/error.h"

/* Checks of arguments that several functions of the sampler take. */

static inline int hr__check_n(int64_t n) {
    return n >= 0 ? 0 : hr__fail(-EINVAL, "sampler: n is %lld; give 0 or more", (long long)n);
}

static inline int hr__check_count(int64_t count) {
    return count >= 0 ? 0 : hr__fail(-EINVAL, "sampler: the count is %lld; give 0 or more", (long long)count);
}

#endif
