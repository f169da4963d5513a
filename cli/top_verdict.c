/* SPDX-License-Identifier: Apache-2.0 */
/* Says in a line why a loop waits: the words of `headrace top` for a verdict (headrace/face/verdict.h). */
#include "top.h"

#include <headrace/face/verdict.h>

enum { FEW_LOOKS = 3 };

/* Adds up what the processes of the workers do, as shares of their busy time. */
static void add_workers(const struct top_loader *loader, struct hr_waits *waits) {
    double cpu = 0, delay = 0, busy = waits->busy * waits->workers;
    for (uint32_t i = 0; i < waits->workers; i++) {
        struct top_worker_rates rates = top_worker_rates_of(&loader->workers[i]);
        cpu += rates.cpu;
        delay = delay < 0 || rates.delay < 0 ? -1 : delay + rates.delay;
    }
    waits->cpu = busy > 0 ? cpu / busy : 0;
    waits->delay = delay < 0 || busy <= 0 ? -1 : delay / busy;
}

static struct hr_waits waits_of(const struct top *top, const struct top_loader *loader, struct top_rates rates) {
    struct hr_waits waits = {.is_short = loader->mark_count < FEW_LOOKS && rates.batches <= 0,
                             .wait = rates.wait,
                             .workers = loader->look.used_count,
                             .busy = rates.busy,
                             .collate = rates.collate,
                             .cores = top->cores,
                             .free = top->cores > top->cores_used ? top->cores - top->cores_used : 0,
                             .first_pass = 1};
    add_workers(loader, &waits);
    return waits;
}

static void explain_trainer(const struct hr_waits *waits, struct hr_verdict verdict, char *text, size_t bytes) {
    int length = snprintf(text, bytes, "the loop hardly waits: faster loading would save nothing");
    if (verdict.workers && length > 0 && (size_t)length < bytes)
        snprintf(text + length, bytes - (size_t)length, "; of %u workers %u would be enough", waits->workers,
                 verdict.workers);
}

static void explain_no_workers(struct hr_verdict verdict, char *text, size_t bytes) {
    if (verdict.workers)
        snprintf(text, bytes, "the training process makes its batches itself: try num_workers=%u", verdict.workers);
    else
        snprintf(text, bytes,
                 "the training process makes its batches itself (num_workers=0), and no core is free for workers: "
                 "only cheaper samples help");
}

static void explain_few(const struct hr_waits *waits, struct hr_verdict verdict, bool may_grow, char *text,
                        size_t bytes) {
    char fit[64] = "";
    if (verdict.room < verdict.workers) snprintf(fit, sizeof fit, " (the free cores are enough for %u)", verdict.room);
    if (may_grow)
        snprintf(text, bytes,
                 "the workers are busy %.0f %% and %.1f cores are free; num_workers=\"auto\" tries more when it is due",
                 100 * waits->busy, waits->free);
    else
        snprintf(text, bytes,
                 "the workers are busy %.0f %% and %.1f cores are free: about %u workers%s would be enough",
                 100 * waits->busy, waits->free, verdict.workers, fit);
}

void top_explain(const struct top *top, const struct top_loader *loader, char *text, size_t bytes) {
    if (loader->is_over) {
        snprintf(text, bytes, "it has no workers at the moment");
        return;
    }
    struct hr_waits waits = waits_of(top, loader, top_rates_of(top, loader));
    struct hr_verdict verdict = hr_judge(&waits);
    switch (verdict.kind) {
    case HR_VERDICT_SHORT:
        snprintf(text, bytes, "too short to say");
        break;
    case HR_VERDICT_TRAINER:
        explain_trainer(&waits, verdict, text, bytes);
        break;
    case HR_VERDICT_NO_WORKERS:
        explain_no_workers(verdict, text, bytes);
        break;
    case HR_VERDICT_COLLATE:
        snprintf(text, bytes, "%.0f %% of the workers' busy time is the collate function: let it do less",
                 100 * waits.collate);
        break;
    case HR_VERDICT_STORAGE:
        snprintf(
            text, bytes,
            "the workers are busy %.0f %%, and use the CPU for %.0f %% of that: they wait for a disk or a network; "
            "sample_threads=16 (raise it, if it is set), or about %u workers, also more than cores, would be enough",
            100 * waits.busy, 100 * waits.cpu, verdict.workers);
        break;
    case HR_VERDICT_NO_CORES:
        snprintf(text, bytes, "the workers are busy %.0f %% and no core is free: only cheaper samples help",
                 100 * waits.busy);
        break;
    case HR_VERDICT_TOO_FEW:
        explain_few(&waits, verdict, waits.workers < loader->look.worker_count, text, bytes);
        break;
    default: /* what is left needs numbers that only a recording has */
        snprintf(text, bytes, "the workers are busy %.0f %%; the cause is not known", 100 * waits.busy);
    }
}
