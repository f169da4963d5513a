/* SPDX-License-Identifier: Apache-2.0 */
/* The recorder: it looks at the loaders that it is given, and writes a recording. `headrace record` calls it. */
#ifndef HEADRACE_FACE_RECORDER_H
#define HEADRACE_FACE_RECORDER_H

#include <stdbool.h>
#include <stdint.h>

#include <headrace/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A recorder is in a process of its own, which only observes: it reads the memory of loaders (headrace/look.h) and
 * /proc. The caller finds the loaders, and calls hr_recorder_look four times a second and hr_recorder_glance twenty
 * times. One thread.
 */
typedef struct hr_recorder hr_recorder;

/* Makes the folder, if it is missing. `recording`: only loaders that show this number are recorded, as record= makes
 * them; 0: all. Errors: negative errnos, with a message. hr_recorder_end frees what it returns. */
HR_API int hr_recorder_open(const char *folder, uint64_t recording, hr_recorder **ret_recorder);

/* Writes what is left, with the reason, closes all files and frees the recorder. NULL is fine. Returns 0, or a negative
 * errno with a message if something could not be written. */
HR_API int hr_recorder_end(hr_recorder *recorder, enum hr_record_end end);

/* Notes that a process has this memory open. Returns whether the recorder knows it: it records it, or has seen that it
 * is not to be recorded. Memory that was not noted since the last hr_recorder_look is no longer there for the next. */
HR_API bool hr_recorder_note(hr_recorder *recorder, uint64_t device, uint64_t inode);

/* Looks at memory that process `pid` has open and that the recorder does not know. `fd`: open for reading; the recorder
 * owns it from now on. Returns 0, or a negative errno with a message: a file cannot be written. */
HR_API int hr_recorder_add(hr_recorder *recorder, int pid, int fd);

/* Looks at all numbers, and writes what is new. 0, or a negative errno with a message: a file cannot be written. */
HR_API int hr_recorder_look(hr_recorder *recorder);
/* Looks at the samples that workers read. */
HR_API void hr_recorder_glance(hr_recorder *recorder);

/* How many loaders it has recorded. */
HR_API uint32_t hr_recorder_count(const hr_recorder *recorder);

#ifdef __cplusplus
}
#endif
#endif
