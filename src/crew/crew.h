/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_CREW_CREW_H
#define HR_CREW_CREW_H

#include <headrace/face/crew.h>

/* The rest of the crew, for the loader that opens it. */

/* Opens the crew of an arena, which is borrowed: close the crew first. Owned by the caller. -ENOMEM. */
int hr__crew_open(hr_arena *arena, uint32_t worker_count, hr_crew **ret_crew);

/* Frees the crew. Workers that still run keep running (hr_crew_stop ends them). NULL is fine; returns NULL. */
hr_crew *hr__crew_close(hr_crew *crew);

/* No longer watches worker `worker`: its end is expected. */
int hr__crew_expect_end(hr_crew *crew, uint32_t worker);

/* Waits until worker `worker` has ended, and reaps it if hr_crew_fork started it. -ETIMEDOUT, -EINTR. */
int hr__crew_wait(hr_crew *crew, uint32_t worker, int64_t deadline_ns);

#endif
