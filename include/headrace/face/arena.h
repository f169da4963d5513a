/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of the arena, for our own faces: workers whose interpreter starts late, and what they keep for reports. */
#ifndef HEADRACE_FACE_ARENA_H
#define HEADRACE_FACE_ARENA_H

#include <headrace/arena.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Windows of slots are multiples of the first number, or, if a limit on file sizes is too small for that, smaller than
 * it and multiples of the second one, in which memory is committed. */
enum { HR_WINDOW_STEP = 2 << 20, HR_COMMIT_STEP = 64 << 10 };

/* Has process `pid` killed when the trainer dies (at once if it has died). hr_port_open does the same; this function is
 * for a process that has the descriptors but opens its port much later, because it imports modules first. The trainer
 * or the process calls it. -ESRCH; another negative errno if the system refuses. */
HR_API int hr_worker_fds_guard(const struct hr_worker_fds *fds, int pid);

/* Adds to the counts of events that the arena does not see. The crew counts restarts (hr_crew_adopt, hr_crew_fork). The
 * caller that learns of bad samples counts them. HR_E_STATE in a forked child. */
HR_API int hr_arena_count(hr_arena *arena, uint32_t restart_count, uint64_t skipped_count);

/* hr_port_note with the index of the sample in the dataset, for observers; HR_NO_SAMPLE: it is not known. Each call
 * ends the time of the sample before. hr_port_note_last ends the last one. */
HR_API void hr_port_note_index(hr_port *port, uint64_t sample, uint64_t index);
HR_API void hr_port_note_last(hr_port *port, uint64_t sample);

/* ---- batches that are copied to a device, such as a GPU ----
 *
 * The trainer takes leases on a delivery for the copies, calls hr_delivery_send, and releases the leases when the
 * copies have ended. A device reads memory faster that it has registered; it goes on to read the pages that it found at
 * that moment. So registered bytes keep their pages and stay mapped until hr_arena_unregister, also when the arena is
 * closed.
 *
 * If such batches or registered memory stand in the way of others, hr_loader_next returns, once until it has
 * delivered something: -EBUSY: end the copies, release their leases, and call again; -ENOBUFS: also unregister the
 * slots, because memory has run out. */

struct hr_slot_status {
    uint32_t slot;
    uint64_t received_count; /* batches that were received in this slot so far, with this one */
    uint64_t committed_bytes;
    uint64_t registered_bytes; /* from the start of the slot; 0: it is not registered */
};

/* The slot of a delivery. HR_E_END: it is a private copy, which has no slot. */
HR_API int hr_delivery_slot(const struct hr_delivery *delivery, struct hr_slot_status *ret_status);

/* Says that all leases on a delivery belong to copies to a device. Forked children do not get such a batch. */
HR_API void hr_delivery_send(struct hr_delivery *delivery);

/* Marks at least the first `bytes` bytes of a slot as registered, before the device is called. The slot belongs to a
 * delivery, and is not marked. `has_grown`: with a quarter more, because batches grow. -EDQUOT: more than a fourth
 * of the arena's limit would be registered; -EMLINK: the slot has several windows; HR_E_STATE. */
HR_API int hr_arena_register(hr_arena *arena, uint32_t slot, uint64_t bytes, int has_grown, void **ret_address,
                             uint64_t *ret_bytes);

/* Ends that, after the device was called, or has refused. */
HR_API void hr_arena_unregister(hr_arena *arena, uint32_t slot);

/* Records which sample of the current batch, or of which a part, a thread of the worker makes; HR_NO_SAMPLE: it has
 * ended. Any thread may call it, with its own number, from 0. Numbers from HR_MAKING_THREADS on are not recorded. */
HR_API void hr_port_note_making(hr_port *port, uint32_t thread, uint64_t sample);

/* Records the sample of the current batch that was begun before all others in work, and shows its index to observers
 * as hr_port_note_index does; HR_NO_SAMPLE: none is in work. It is recorded as that of thread 0, so the threads
 * themselves have numbers from 1. Any thread may call it, one at a time. */
HR_API void hr_port_note_oldest(hr_port *port, uint64_t sample, uint64_t index);

/* Counts the time of a sample of the current batch that a thread has made; index as for hr_port_note_index. The thread
 * that takes tasks calls it. */
HR_API void hr_port_count_sample(hr_port *port, uint64_t index, uint64_t took_ns);

/* ---- a worker that makes several batches at a time ----
 *
 * Threads make the samples of the current batch and of the next ones, and the thread that takes tasks waits for the
 * next grant and for the threads at the same time. */

/* Waits until there is a grant that is `ahead` behind the one that hr_port_take takes next (0), and returns 1 with its
 * task, which stays where it is: hr_port_take takes it when it is its turn. The payload is borrowed until then. Nothing
 * behind a grant that is no batch is looked at. Returns 0 if there is no such grant and hr_port_ring was called, also
 * before. HR_E_CLOSED: the trainer stopped the arena; -ETIMEDOUT, -EINTR, HR_E_CORRUPT. */
HR_API int hr_port_look(hr_port *port, uint32_t ahead, int64_t deadline_ns, struct hr_task *ret_task);

/* Ends hr_port_look of another thread of this process, or its next call. */
HR_API void hr_port_ring(hr_port *port);

/* Records that the worker enters a phase. hr_port_take, hr_port_reserve and hr_port_publish do this too. */
HR_API void hr_port_enter(hr_port *port, enum hr_phase phase);

/* The descriptor of the worker's diagnostics file, borrowed; -1: it has none. */
HR_API int hr_port_diagnostics_fd(const hr_port *port);

/* The number of cores that each worker could use alone if `trainer_count` trainers with as many workers each run on
 * this machine. It is computed from the affinity of this process and the quota of its cgroups, and rounded down. 0: the
 * workers share cores. */
HR_API uint32_t hr_port_core_share(const hr_port *port, uint32_t trainer_count);

/* Makes malloc of this process keep freed memory for the samples of the next batch. Otherwise glibc returns the memory
 * of a batch's samples to the kernel as soon as the batch is written, and each page causes a page fault again for the
 * next batch. The workers of `trainer_count` such trainers share an eighth of the available memory. Blocks above 32 MiB
 * are still returned, see hr_port_keep_blocks. Returns the maximum number of bytes that the main heap keeps (another
 * malloc, by LD_PRELOAD, may ignore this). 0: malloc is unchanged, because MALLOC_TRIM_THRESHOLD_,
 * MALLOC_MMAP_THRESHOLD_ or GLIBC_TUNABLES configure it, because the share is less than the 64 MiB that glibc may keep
 * anyway, or because this is not built for glibc. Source: mallopt(3). */
HR_API uint64_t hr_port_keep_heap(hr_port *port, uint32_t trainer_count);

/* Reports that a batch of this worker was copied from malloc blocks of `block_bytes` bytes. From now on, blocks from 32
 * MiB to half of the value of hr_port_keep_heap are not mapped one by one, but kept like smaller ones. If more than the
 * value of hr_port_keep_heap is free in holes between smaller blocks, this call returns it to the kernel. It does
 * nothing if hr_port_keep_heap returned 0, if MALLOC_MMAP_MAX_ or its GLIBC_TUNABLES are set, and with glibc before
 * 2.33. */
HR_API void hr_port_keep_blocks(const hr_port *port, uint64_t block_bytes);

#ifdef __cplusplus
}
#endif
#endif
