/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of samples in the cache, for our own faces: the check that they are the same each time, and counts. */
#ifndef HEADRACE_FACE_CACHE_SAMPLES_H
#define HEADRACE_FACE_CACHE_SAMPLES_H

#include <headrace/cache_samples.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counts a sample that was made although it was HR_SAMPLE_BUSY or HR_SAMPLE_REFUSED. */
HR_API void hr_samples_count_alone(hr_samples *samples);

/* Calls `visit` for each sample that a process has begun and not ended, also one that has died, until it returns
 * something else than 0. Returns that, or 0. */
HR_API int hr_samples_unfinished(const hr_samples *samples, int (*visit)(void *context, uint64_t index), void *context);

/* The state of the check that the samples are the same each time they are made. One process checks that; if it dies,
 * another one does. */
enum hr_samples_check {
    HR_SAMPLES_CHECK = 0,    /* this process has to check, and then call hr_samples_end_check */
    HR_SAMPLES_CHECKING = 1, /* another process or thread does */
    HR_SAMPLES_RIGHT = 2,
    HR_SAMPLES_WRONG = 3 /* no process should use them */
};
/* Returns an enum hr_samples_check, or an errno. */
HR_API int hr_samples_begin_check(hr_samples *samples);

/* `result`: HR_SAMPLES_RIGHT or HR_SAMPLES_WRONG, or HR_SAMPLES_CHECK if the check was broken off. */
HR_API void hr_samples_end_check(hr_samples *samples, enum hr_samples_check result);

/* Reads the counts of the table in the file `path` without attaching it. `used_bytes` has extents that are not full. A
 * negative errno, HR_E_CORRUPT: it is no table. */
HR_API int hr_samples_peek(const char *path, struct hr_samples_report *ret_report);

#ifdef __cplusplus
}
#endif
#endif
