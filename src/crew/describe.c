/* SPDX-License-Identifier: Apache-2.0 */
/* Describes the end of a worker in one text. */
#include <stdarg.h>
#include <stdio.h>

#include <headrace/crew.h>

#include "base/base.h"
#include "os/os.h"

/* A text that is appended to until its room is full. */
struct text {
    char *at;
    size_t room;
    int length; /* the length that it would have without a limit */
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...) {
    va_list arguments;
    size_t used = (size_t)text->length < text->room ? (size_t)text->length : text->room;
    va_start(arguments, format);
    int length = vsnprintf(used < text->room ? text->at + used : NULL, text->room - used, format, arguments);
    va_end(arguments);
    if (length > 0) text->length += length;
}

static void add_bytes(struct text *text, uint64_t bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB"};
    double count = (double)bytes;
    int unit = 0;
    while (count >= 1024 && unit < 3) count /= 1024, unit++;
    add(text, unit ? "%.1f %s" : "%.0f %s", count, units[unit]);
}

static void add_end(struct text *text, const struct hr_worker_report *report) {
    const char *name = report->signal ? hr__signal_name(report->signal) : NULL;
    if (!report->is_end_known)
        add(text, "ended with an unknown exit code");
    else if (name)
        add(text, "was killed by signal %d (%s)", report->signal, name);
    else if (report->signal)
        add(text, "was killed by signal %d", report->signal);
    else
        add(text, "exited with code %d", report->exit_code);
}

static void add_state(struct text *text, const struct hr_worker_report *report) {
    if (report->tracer_pid)
        add(text, "is traced by process %u (a debugger)", report->tracer_pid);
    else if (report->state == 'T')
        add(text, "is stopped (Ctrl-Z or SIGSTOP; SIGCONT continues it)");
    else if (report->state == 'D')
        add(text, "waits in the kernel for a disk or the network");
    else if (report->state == 'R')
        add(text, "computes");
    else
        add(text, "waits");
}

static void add_place(struct text *text, const struct hr_worker_report *report) {
    static const char *const places[HR_PHASE_COUNT] = {"waiting for a task", "in the dataset",
                                                       "collating or writing its batch"};
    if (report->status.pid != (uint32_t)report->pid)
        add(text, "it had not opened its port yet");
    else if (report->status.phase == HR_PHASE_WAIT)
        add(text, "it was %s", places[HR_PHASE_WAIT]);
    else
        add(text, "it was %s, at task %llu", places[report->status.phase], (unsigned long long)report->status.task);
}

int hr_crew_describe(const struct hr_worker_report *report, char *text_at, size_t bytes) {
    struct text text = {.at = text_at, .room = bytes};
    if (bytes) *text_at = '\0';
    if (report->pid == 0) {
        add(&text, "worker %u was never started", report->worker);
        return text.length;
    }
    add(&text, "worker %u (pid %d) ", report->worker, report->pid);
    if (report->is_alive)
        add_state(&text, report);
    else
        add_end(&text, report);
    add(&text, "; ");
    add_place(&text, report);
    if (report->rss_bytes) {
        add(&text, report->is_alive ? "; it has " : "; it had ");
        add_bytes(&text, report->rss_bytes);
        add(&text, report->is_alive ? " of memory" : " of memory when last seen");
    }
    if (report->is_alive && report->thread_count > 1) add(&text, " and %u threads", report->thread_count);
    if (report->is_alive && report->is_deadlocked) add(&text, "; it waits for a thread that it does not have");
    if (report->is_alive && report->kernel_function[0]) add(&text, "; in the kernel: %s", report->kernel_function);
    if (report->is_alive && report->system_call[0]) add(&text, "; system call: %s", report->system_call);
    if (!report->is_alive && report->oom_kills)
        add(&text, ". While it ran, the kernel's count of processes killed because memory ran out rose by %llu",
            (unsigned long long)report->oom_kills);
    return text.length;
}
