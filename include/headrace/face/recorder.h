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
 * A recorder only observes: it reads the memory of loaders (headrace/look.h) and /proc. Usually it is in a process of
 * its own. The caller calls hr_recorder_find and then hr_recorder_look four times a second, and hr_recorder_glance
 * twenty times. One thread.
 */
typedef struct hr_recorder hr_recorder;

/* Makes the folder, if it is missing. `recording`: only loaders that show this number are recorded, as record= makes
 * them; 0: all. Errors: negative errnos, with a message. hr_recorder_end frees what it returns. */
HR_API int hr_recorder_open(const char *folder, uint64_t recording, hr_recorder **ret_recorder);

/* Writes what is left, with the reason, closes all files and frees the recorder. NULL is fine. Returns 0, or a negative
 * errno with a message if something could not be written. */
HR_API int hr_recorder_end(hr_recorder *recorder, enum hr_record_end end);

/* Finds the memory of loaders that these processes have open, notes it, and adds what is new. It walks through their
 * descriptors as often as takes 2 % of a core; in between it notes what it has found before. Returns 0, or a negative
 * errno with a message: a file cannot be written. */
HR_API int hr_recorder_find(hr_recorder *recorder, const int *pids, uint32_t count);

/* Looks at all numbers, and writes what is new. 0, or a negative errno with a message: a file cannot be written. */
HR_API int hr_recorder_look(hr_recorder *recorder);
/* Looks at the samples that workers read. */
HR_API void hr_recorder_glance(hr_recorder *recorder);

/* How many loaders it has recorded. */
HR_API uint32_t hr_recorder_count(const hr_recorder *recorder);

/* A thread that records the loaders of this process, for programs without the command headrace. Unlike a recorder in
 * its own process it ends with this one: if that is killed, the last second may be lost. A forked child has no such
 * thread. */
typedef struct hr_record_thread hr_record_thread;

/* Starts it, with the arguments of hr_recorder_open. `report`: called in the thread with a line of text if a file
 * cannot be written, which ends the recording; NULL: not called. Errors: negative errnos, with a message. */
HR_API int hr_record_thread_start(const char *folder, uint64_t recording, void (*report)(const char *text),
                                  hr_record_thread **ret_thread);
/* Writes what is left and ends the thread. In a forked child it only frees memory. NULL is fine. Returns NULL. */
HR_API hr_record_thread *hr_record_thread_end(hr_record_thread *thread);

#ifdef __cplusplus
}
#endif
#endif
