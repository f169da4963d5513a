/* SPDX-License-Identifier: Apache-2.0 */
/* The signals that end a job, and the time: for commands that take long. */
#ifndef HR_CLI_STOP_H
#define HR_CLI_STOP_H

#include <stdbool.h>
#include <stdint.h>

/* From now on, SIGINT, SIGTERM and SIGHUP stop the work, and what is finished is kept. */
void watch_stop_signals(void);
bool is_stopped(void);

int64_t clock_ns(void); /* CLOCK_MONOTONIC */

#endif
