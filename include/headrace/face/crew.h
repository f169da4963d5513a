/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of the crew, for our own faces: the signals of a worker, and its diagnostics file. */
#ifndef HEADRACE_FACE_CREW_H
#define HEADRACE_FACE_CREW_H

#include <headrace/crew.h>

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In a worker: ignores SIGTERM, SIGUSR1 and SIGUSR2 from now on if another process than `trainer` or the worker itself
 * has sent them. Schedulers and launchers send these to the process group of a trainer that has to write a checkpoint,
 * and it may need its workers for that. Sent by the trainer or the worker itself, they end the worker as before, and so
 * they do in processes that the worker forks.
 *
 * It sets a handler for those of the signals that have their default action, and leaves others. Setting another action
 * later replaces it. May be called again, also in a forked child. -EINVAL: `trainer` is no process ID.
 *
 * `interrupts`: SIGINT too, which a terminal and a notebook send to the process group of a trainer that goes on. The
 * handler that it has now is called if the trainer, the worker itself or a timer has sent it. Ignored, it stays so. */
HR_API int hr_worker_ignore_others(int trainer, bool interrupts);

/* ---- the diagnostics file: the last output of a worker, which is still there after its death ---- */

enum {
    HR_DIAGNOSTICS_STDERR_BYTES = 16 << 10, /* the end of its stderr (hr_diagnostics_log_stderr) */
    HR_DIAGNOSTICS_STATUS_BYTES = 3840,     /* maximum length of a status text (hr_diagnostics_post_status) */
    HR_DIAGNOSTICS_STACK_BYTES =
        64 << 10, /* stack dumps, written by the process that dumps them, from file offset HR_DIAGNOSTICS_STACK_AT on */
    HR_DIAGNOSTICS_STACK_AT = HR_DIAGNOSTICS_STDERR_BYTES + 2 * 4096,
    HR_DIAGNOSTICS_BYTES = HR_DIAGNOSTICS_STACK_AT + HR_DIAGNOSTICS_STACK_BYTES,
};

/* In the worker: adds text to the kept end of its stderr. `fd` is the one of hr_port_diagnostics_fd. -EBADF. */
HR_API int hr_diagnostics_log_stderr(int fd, const void *text, size_t bytes);

/* In the worker: replaces its status text, any bytes for the trainer. The trainer sees the old text until all of the
 * new one is written. -EBADF; -EMSGSIZE: more than HR_DIAGNOSTICS_STATUS_BYTES. */
HR_API int hr_diagnostics_post_status(int fd, const void *text, size_t bytes);

/* In the trainer: the stack dump of worker `worker`, from its newest diagnostics file, and its last status text (0
 * bytes: it posted none). Borrowed as by hr_crew_stderr. */
HR_API int hr_crew_stack(hr_crew *crew, uint32_t worker, const char **ret_text, size_t *ret_bytes);
HR_API int hr_crew_posted_status(hr_crew *crew, uint32_t worker, const char **ret_text, size_t *ret_bytes);

#ifdef __cplusplus
}
#endif
#endif
