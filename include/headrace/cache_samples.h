/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CACHE_SAMPLES_H
#define HEADRACE_CACHE_SAMPLES_H

#include <stdint.h>

#include <headrace/cache.h>
#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The samples of a dataset, shared by all jobs of a machine: an object of the cache that is empty when it is published
 * and fills while it is used. A sample is made by one process; the others read it where it is.
 *
 *     hr_samples_begin(samples, index, &sample)
 *         HR_SAMPLE_READY      sample.data, sample.bytes
 *         HR_SAMPLE_MAKE       make it, then hr_samples_reserve, write to sample.data, hr_samples_publish; or
 *                              hr_samples_refuse, or hr_samples_give_back
 *         HR_SAMPLE_BUSY       another process or thread makes it: hr_samples_wait, then begin again
 *         HR_SAMPLE_REFUSED    it is not kept: make it for this process only
 *
 * A sample that was published never changes and is never removed while the object exists. There is no eviction: if each
 * epoch reads each sample once in a random order, no rule of eviction has more hits than keeping the first ones that
 * fit (MinIO in CoorDL, arXiv 2007.06775).
 *
 * A process that dies while it makes a sample loses only that sample: the next one that needs it makes it. Threads: all
 * functions may be called by several threads; a struct hr_sample belongs to one. Forks: a child uses the samples as a
 * process of its own; what its parent was making stays with the parent.
 */

#define HR_SAMPLES_FORMAT "samples" /* the format of such an object, in a request and in struct hr_cached_info */

enum { HR_SAMPLES_LEAST_BYTES = 1 << 20 }; /* the smallest budget */

typedef struct hr_samples hr_samples; /* the table of an attached object */

/* Returns a budget for this machine: four fifths of what the first folder of the cache has room for now (the file
 * system, the cgroup, half of the available memory). */
HR_API int hr_samples_auto_budget(const hr_cache *cache, uint64_t *ret_bytes);

/* Makes the data of a build an empty table for `count` samples of at most `budget_bytes` bytes together, whose space is
 * committed while it fills; hr_cache_build_finish publishes it. The format of the request is HR_SAMPLES_FORMAT.
 * -EINVAL: the budget is smaller than HR_SAMPLES_LEAST_BYTES, or a size overflows. Other errors as
 * hr_cache_build_reserve. */
HR_API int hr_samples_build(hr_cache_build *build, uint64_t count, uint64_t budget_bytes);

/* Opens the table of an attached object, which has to stay attached. Owned by the caller. HR_E_CORRUPT: it is damaged.
 * HR_E_VERSION: it was made by a newer headrace. -EINVAL: it is an object of another format. Other errno. */
HR_API int hr_samples_open(const hr_cached *cached, hr_samples **ret_samples);
HR_API hr_samples *hr_samples_close(hr_samples *samples); /* NULL is fine; returns NULL */

struct hr_sample {
    uint64_t index;
    uint64_t bytes;
    void *data;       /* READY: to read only. After hr_samples_reserve: to write. 64-aligned */
    int64_t begun_ns; /* the rest is the library's */
    uint64_t place;
    void *memory;
};

/* The state in which a process finds a sample. */
enum hr_sample_answer { HR_SAMPLE_READY = 0, HR_SAMPLE_MAKE = 1, HR_SAMPLE_BUSY = 2, HR_SAMPLE_REFUSED = 3 };
/* Returns an enum hr_sample_answer. A process that cannot take part in making samples, for example because it has no
 * descriptor left, gets HR_SAMPLE_REFUSED instead of the others. -ERANGE: there is no sample `index`. HR_E_CORRUPT: the
 * entry of the sample is damaged. */
HR_API int hr_samples_begin(hr_samples *samples, uint64_t index, struct hr_sample *ret_sample);

/* Waits after HR_SAMPLE_BUSY while another process or thread makes the sample, at most four times as long as a sample
 * has taken on average. 0: begin again. -ETIMEDOUT: it takes longer; make it for this process only. -EAGAIN: the
 * deadline (CLOCK_MONOTONIC) has come; call again. */
HR_API int hr_samples_wait(hr_samples *samples, const struct hr_sample *sample, int64_t deadline_ns);

/* Finds a place for `bytes` bytes. 0: sample->data. HR_SAMPLE_REFUSED: the budget is used up, and the sample is refused
 * for good. HR_SAMPLE_MAKE: the machine has no room now (file system, cgroup), and the sample is given back. */
HR_API int hr_samples_reserve(hr_samples *samples, struct hr_sample *sample, uint64_t bytes);
/* Publishes what was written to sample->data. An errno: it could not be written, and the sample is given back. */
HR_API int hr_samples_publish(hr_samples *samples, struct hr_sample *sample);
/* Ends a sample that HR_SAMPLE_MAKE began, without keeping it: another call makes it. */
HR_API void hr_samples_give_back(hr_samples *samples, struct hr_sample *sample);

enum hr_sample_reason {
    HR_SAMPLE_NO_ROOM = 1, /* the budget is used up */
    HR_SAMPLE_UNFIT = 2,   /* the caller cannot write it as bytes */
    HR_SAMPLE_REASON_END_
};
/* The same, but no call makes it for the cache again. */
HR_API void hr_samples_refuse(hr_samples *samples, struct hr_sample *sample, enum hr_sample_reason reason);

/* Counts since the object was made, of all processes. */
struct hr_samples_report {
    uint64_t count, budget_bytes;
    uint64_t ready;                          /* samples that are there */
    uint64_t refused[HR_SAMPLE_REASON_END_]; /* samples, by reason */
    uint64_t used_bytes; /* bytes of the budget that are used; space that a dead process left counts */
    uint64_t hits;       /* reads of a sample that was there */
    uint64_t made;       /* samples that were made for the cache */
    uint64_t made_alone; /* made for one process: it did not want to wait longer, or they are not kept */
    uint64_t no_memory;  /* samples given back because the machine had no room */
    uint64_t mean_ns;    /* time to make a sample; 0: none was made */
};
HR_API void hr_samples_look(const hr_samples *samples, struct hr_samples_report *ret_report);

#ifdef __cplusplus
}
#endif
#endif
