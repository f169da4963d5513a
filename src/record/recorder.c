/* SPDX-License-Identifier: Apache-2.0 */
/* hr_recorder: the loaders that are recorded, and what a look at them writes. `headrace record` calls it. */
#include "recorder.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <headrace/error.h>
#include <headrace/version.h>

#include "arena/look.h"
#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"

enum { NAME_BYTES = 48, NAME_TRIES = 1000, BATCHES_MOST = 256, KIB = 1024, NS_PER_US = 1000 };

/* Memory that is not recorded: of another process, of another version, or of an earlier epoch. */
struct ignored {
    struct hr__memory_place place;
    int pid;
    bool is_noted;
};

struct hr_recorder {
    char folder[HR__PATH_BYTES / 2];
    uint64_t recording;
    int64_t began_ns;
    int failed;                    /* the code with which a file could not be written */
    struct hr__recorded **loaders; /* but those whose process has ended */
    uint32_t count, room;
    uint32_t file_count; /* in all */
    struct ignored *ignored;
    uint32_t ignored_count, ignored_room;
    struct hr__finder finder;
};

struct hr__finder *hr__recorder_finder(hr_recorder *recorder) {
    return &recorder->finder;
}

bool hr__recorder_has_fd(const hr_recorder *recorder, int fd) {
    for (uint32_t i = 0; i < recorder->count; i++)
        if (recorder->loaders[i]->fd == fd) return true;
    return false;
}

int hr__recorder_failed(const hr_recorder *recorder) {
    return recorder->failed;
}

void hr__recorder_abandon(hr_recorder *recorder) {
    for (uint32_t i = 0; i < recorder->count; i++) {
        hr__close(&recorder->loaders[i]->fd);
        hr__close(&recorder->loaders[i]->writer.fd);
    }
}

static int no_memory(void) {
    return hr__fail(-ENOMEM, "recording: not enough memory");
}

static int cannot_write(int code, const char *path) {
    return hr__fail(code, "recording: cannot write %s: %s; the recording ends here, and the job goes on", path,
                    hr_error_text(code));
}

/* ---- opening ---- */

int hr_recorder_open(const char *folder, uint64_t recording, hr_recorder **ret_recorder) {
    struct hr__file_info info;
    int r = hr__folder_make(folder);
    if (r == 0) r = hr__file_look_through(folder, &info);
    if (r == 0 && !info.is_folder) r = -ENOTDIR;
    if (r < 0) return hr__fail(r, "recording: cannot make the folder %s: %s", folder, hr_error_text(r));
    hr_recorder *recorder = hr__realloc(NULL, sizeof *recorder);
    if (!recorder) return no_memory();
    memset(recorder, 0, sizeof *recorder);
    recorder->recording = recording;
    recorder->began_ns = hr__now_ns();
    int length = snprintf(recorder->folder, sizeof recorder->folder, "%s", folder);
    if (length >= (int)sizeof recorder->folder) {
        hr__free(recorder);
        return hr__fail(-ENAMETOOLONG, "recording: the path of the folder is too long: %.200s...", folder);
    }
    *ret_recorder = recorder;
    return 0;
}

uint32_t hr_recorder_count(const hr_recorder *recorder) {
    return recorder->file_count;
}

/* ---- which memory is known ---- */

static bool is_at(const struct hr__memory_place *place, uint64_t device, uint64_t inode) {
    return place->inode == inode && place->device == device;
}

bool hr__recorder_note(hr_recorder *recorder, uint64_t device, uint64_t inode) {
    for (uint32_t i = 0; i < recorder->count; i++) {
        struct hr__recorded *loader = recorder->loaders[i];
        if (loader->fd >= 0 && is_at(&loader->place, device, inode)) return loader->is_noted = true;
    }
    for (uint32_t i = 0; i < recorder->ignored_count; i++)
        if (is_at(&recorder->ignored[i].place, device, inode)) return recorder->ignored[i].is_noted = true;
    return false;
}

/* Without memory for it, it is looked at again. */
static void ignore(hr_recorder *recorder, struct hr__memory_place place, int pid) {
    if (recorder->ignored_count == recorder->ignored_room) {
        uint32_t room = recorder->ignored_room ? 2 * recorder->ignored_room : 16;
        struct ignored *grown = hr__realloc(recorder->ignored, room * sizeof *grown);
        if (!grown) return;
        recorder->ignored = grown;
        recorder->ignored_room = room;
    }
    recorder->ignored[recorder->ignored_count++] = (struct ignored){place, pid, true};
}

/* Forgets memory that is gone; and all of a process whose loader has no memory any more, because an earlier one may be
 * the loader's again. pid 0: of no process. */
static void forget_ignored(hr_recorder *recorder, int pid) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < recorder->ignored_count; i++) {
        struct ignored *ignored = &recorder->ignored[i];
        if (pid ? ignored->pid != pid : ignored->is_noted) recorder->ignored[kept++] = *ignored;
    }
    recorder->ignored_count = kept;
    for (uint32_t i = 0; !pid && i < kept; i++) recorder->ignored[i].is_noted = false;
}

/* ---- the file of a loader ---- */

static void write_name(const struct hr_arena_look *look, char ret_name[NAME_BYTES]) {
    const char *slash = strrchr(look->name, '/'), *name = slash ? slash + 1 : look->name;
    size_t i = 0;
    for (; name[i] && i < NAME_BYTES - 1; i++) {
        char c = name[i];
        bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.';
        ret_name[i] = is_plain ? c : '-';
    }
    ret_name[i] = '\0';
}

static void describe(const struct hr__recorded *loader, int64_t now_ns, struct hr_record_identity *identity) {
    const struct hr_arena_look *look = &loader->look;
    uint64_t kib = hr__read_field("/proc/meminfo", "MemTotal:");
    *identity = (struct hr_record_identity){.pid = look->trainer_pid,
                                            .loader = look->loader,
                                            .rank = look->rank,
                                            .world_size = look->world_size,
                                            .worker_count = look->worker_count,
                                            .queue_room = look->queue_room,
                                            .core_count = hr__machine_cores(),
                                            .opened_ns = look->opened_ns,
                                            .began_ns = now_ns,
                                            .began_real_ns = hr__wall_ns(),
                                            .memory_bytes = kib == UINT64_MAX ? 0 : kib * KIB};
    memcpy(identity->name, look->name, sizeof identity->name);
    hr__host_name(identity->host, sizeof identity->host);
    hr__command_line(loader->pid, identity->command, sizeof identity->command);
    snprintf(identity->version, sizeof identity->version, "%s", hr_version());
}

/* NAME.rankN.HOST.PID.LOADER.hrr, and .2, .3 and so on before the end if the name is taken. */
static int create_file(const hr_recorder *recorder, struct hr__recorded *loader, int64_t now_ns) {
    struct hr_record_identity identity;
    char name[NAME_BYTES], rank[32] = "", again[16] = "";
    describe(loader, now_ns, &identity);
    write_name(&loader->look, name);
    if (identity.rank >= 0) snprintf(rank, sizeof rank, ".rank%d", identity.rank);
    int r = -EEXIST;
    for (int i = 1; r == -EEXIST && i < NAME_TRIES; i++) {
        if (i > 1) snprintf(again, sizeof again, ".%d", i);
        r = hr__path(loader->path, "%s/%s%s.%s.%u.%u%s" HR_RECORD_SUFFIX, recorder->folder, name, rank, identity.host,
                     identity.pid, identity.loader, again);
        if (r == 0) r = hr__record_create(loader->path, &identity, &loader->writer);
    }
    return r < 0 ? cannot_write(r, loader->path) : 0;
}

static enum hr_record_end end_of(int code, enum hr_record_end end) {
    bool is_full = code == -ENOSPC || code == -EDQUOT || code == -EFBIG;
    return code == 0 ? end : is_full ? HR_RECORD_DISK_FULL : HR_RECORD_STOPPED;
}

static int finish_file(struct hr__recorded *loader, enum hr_record_end end) {
    if (loader->writer.fd < 0) return 0;
    int r = end == HR_RECORD_DISK_FULL ? 0 : hr__rows_end(loader);
    if (r < 0) cannot_write(r, loader->path);
    hr__record_finish(&loader->writer, end_of(r, end), hr__now_ns()); /* its room is in the file already */
    hr__record_close(&loader->writer);
    return r;
}

/* ---- a loader ---- */

static void free_numbers(struct hr__recorded *loader) {
    hr__rows_free(loader);
    hr__free(loader->workers);
    hr__free(loader->batches_seen);
    hr__free(loader->readings);
}

static struct hr__recorded *free_loader(struct hr__recorded *loader) {
    if (!loader) return NULL;
    hr__close(&loader->fd);
    hr__record_close(&loader->writer);
    free_numbers(loader);
    hr__free(loader);
    return NULL;
}

static int make_numbers(struct hr__recorded *loader) {
    uint32_t count = loader->writer.worker_count;
    loader->workers = hr__zeros(count, sizeof *loader->workers);
    loader->batches_seen = hr__zeros(count, sizeof *loader->batches_seen);
    loader->readings = hr__zeros(count, sizeof *loader->readings);
    bool is_made = loader->workers && loader->batches_seen && loader->readings && hr__rows_make(loader) == 0;
    return is_made ? 0 : no_memory();
}

static bool has_room(hr_recorder *recorder) {
    if (recorder->count < recorder->room) return true;
    uint32_t room = recorder->room ? 2 * recorder->room : 16;
    struct hr__recorded **grown = hr__realloc(recorder->loaders, room * sizeof(struct hr__recorded *));
    if (!grown) return false;
    recorder->loaders = grown;
    recorder->room = room;
    return true;
}

/* The file of a loader. One that has gone on in another file has several: the one that is written. */
static struct hr__recorded *find(const hr_recorder *recorder, int pid, uint32_t number) {
    struct hr__recorded *found = NULL;
    for (uint32_t i = 0; i < recorder->count; i++) {
        struct hr__recorded *loader = recorder->loaders[i];
        if (loader->pid != pid || loader->look.loader != number) continue;
        if (loader->writer.fd >= 0) return loader;
        found = loader;
    }
    return found;
}

/* Takes `fd`, also if it fails. */
static int record_loader(hr_recorder *recorder, int pid, int fd, struct hr__memory_place place,
                         const struct hr_arena_look *look) {
    struct hr__recorded *loader = has_room(recorder) ? hr__realloc(NULL, sizeof *loader) : NULL;
    if (!loader) {
        hr__close(&fd);
        return no_memory();
    }
    memset(loader, 0, sizeof *loader);
    loader->pid = pid;
    loader->is_same_namespace = hr__inner_pid(pid) == pid;
    loader->is_whole = look->opened_ns >= recorder->began_ns && !find(recorder, pid, look->loader);
    loader->fd = fd;
    loader->place = place;
    loader->is_noted = true;
    loader->look = *look;
    loader->writer.fd = -1;
    int64_t now_ns = hr__now_ns();
    int r = create_file(recorder, loader, now_ns);
    if (r == 0) r = make_numbers(loader);
    if (r < 0) {
        free_loader(loader);
        return r;
    }
    hr_arena_look(fd, &loader->look, loader->workers, loader->writer.worker_count);
    loader->epoch = loader->look.epoch;
    loader->done = loader->look.batches + loader->look.errors;
    recorder->loaders[recorder->count++] = loader;
    recorder->file_count++;
    return hr__rows_begin(loader, now_ns);
}

/* ---- what is new ---- */

static int write_batches(struct hr__recorded *loader, uint32_t worker) {
    struct hr_batch_look looks[BATCHES_MOST];
    struct hr_record_batch batches[BATCHES_MOST];
    int count = hr__arena_look_batches(loader->fd, worker, loader->batches_seen[worker], looks, BATCHES_MOST);
    for (int i = 0; i < count; i++) {
        batches[i] = (struct hr_record_batch){.worker = worker, .look = looks[i]};
        hr__slowest_offer_batch(loader, &batches[i]);
    }
    if (count <= 0) return 0; /* its memory is gone */
    loader->batches_seen[worker] = looks[count - 1].number;
    return hr__record_put_batches(&loader->writer, batches, (size_t)count);
}

/* The newest steps of the loop, those of one epoch or of two. */
struct steps {
    struct hr_record_step all[2 * HR_LOOK_STEPS];
    size_t count;
    int64_t now_ns; /* after the look */
};

/* The loader shows the low bits of the time when a step ended; 0: that call was not timed. */
static int64_t end_of_step(const struct hr_arena_look *look, uint64_t place, int64_t now_ns) {
    uint32_t now_us = (uint32_t)(now_ns / NS_PER_US), end_us = look->step_end_us[place];
    return end_us ? now_ns - (int64_t)(now_us - end_us) * NS_PER_US : now_ns;
}

static void add_steps(struct steps *steps, const struct hr__recorded *loader, uint64_t epoch, uint64_t from,
                      uint64_t to) {
    const struct hr_arena_look *look = &loader->look;
    if (to > HR_LOOK_STEPS) from = hr__max(from, to - HR_LOOK_STEPS);
    for (uint64_t step = from + 1; step <= to; step++) {
        uint64_t place = step % HR_LOOK_STEPS;
        if (epoch != look->epoch && place <= look->step && place) continue; /* a step of the newest epoch is there */
        steps->all[steps->count++] =
            (struct hr_record_step){end_of_step(look, place, steps->now_ns), epoch, step, look->step_us[place]};
    }
}

/* If an epoch has ended since the last look, the counts say how many steps it had. */
static int write_steps(struct hr__recorded *loader) {
    const struct hr_arena_look *look = &loader->look;
    struct steps steps = {.count = 0, .now_ns = hr__now_ns()};
    uint64_t done = look->batches + look->errors, more = done - loader->done, from = loader->step;
    if (look->epoch == loader->epoch + 1 && more >= look->step && more - look->step < HR_LOOK_STEPS &&
        look->step < HR_LOOK_STEPS)
        add_steps(&steps, loader, loader->epoch, from, from + more - look->step);
    if (look->epoch != loader->epoch || look->step < from) from = 0;
    add_steps(&steps, loader, look->epoch, from, look->step);
    loader->epoch = look->epoch;
    loader->step = look->step;
    loader->done = done;
    return hr__record_put_steps(&loader->writer, steps.all, steps.count);
}

/* Looks once, and writes what is new. */
static int look_at(struct hr__recorded *loader, bool is_last) {
    int64_t now_ns = hr__now_ns(), second_ns = loader->second.began_ns;
    int r = hr_arena_look(loader->fd, &loader->look, loader->workers, loader->writer.worker_count);
    loader->look.worker_count = (uint32_t)hr__min(loader->look.worker_count, loader->writer.worker_count);
    bool is_read = r == 0; /* what cannot be read now stays as it was in the last look */
    r = 0;
    for (uint32_t i = 0; r == 0 && i < loader->look.worker_count; i++) r = write_batches(loader, i);
    if (r == 0) r = hr__rows_add(loader, now_ns, is_last);
    if (r == 0 && is_read) r = write_steps(loader);
    if (r == 0 && (is_last || loader->second.began_ns != second_ns)) r = hr__slowest_write(loader, now_ns);
    return r < 0 ? cannot_write(r, loader->path) : 0;
}

/* The memory is not in its process any more, so its numbers are the last ones. */
static int leave(hr_recorder *recorder, struct hr__recorded *loader) {
    int64_t now_ns = hr__now_ns();
    for (uint32_t i = 0; i < loader->look.worker_count; i++) hr__slowest_glance(loader, i, NULL, now_ns);
    int r = look_at(loader, true);
    hr__close(&loader->fd);
    forget_ignored(recorder, loader->pid);
    return r;
}

/* ---- memory that is new ---- */

/* The loader has two memories if an iterator of an earlier epoch still exists. Its numbers have stopped. */
static bool is_older(const struct hr_arena_look *one, const struct hr_arena_look *other) {
    return one->batches < other->batches || one->start_ns < other->start_ns || one->inside_ns < other->inside_ns;
}

static int give_up(int fd, int code) {
    hr__close(&fd);
    return code;
}

static int change_memory(hr_recorder *recorder, struct hr__recorded *loader, int fd, struct hr__memory_place place,
                         const struct hr_arena_look *look) {
    int r = 0;
    if (loader->fd >= 0) {
        struct hr__memory_place before = loader->place;
        r = leave(recorder, loader);
        ignore(recorder, before, loader->pid);
    }
    if (r == 0 && look->worker_count > loader->writer.worker_count) {
        r = finish_file(loader, HR_RECORD_WORKERS_GREW);
        return r < 0 ? give_up(fd, r) : record_loader(recorder, loader->pid, fd, place, look);
    }
    loader->fd = fd;
    loader->place = place;
    loader->is_noted = true;
    loader->look = *look;
    memset(loader->batches_seen, 0, loader->writer.worker_count * sizeof *loader->batches_seen);
    int began = hr__rows_begin(loader, hr__now_ns());
    if (r == 0 && began < 0) r = cannot_write(began, loader->path);
    return r;
}

static int add(hr_recorder *recorder, int pid, int fd) {
    struct hr__file_info info;
    struct hr_arena_look look;
    int r = hr__file_look_fd(fd, &info);
    if (r == 0) r = hr_arena_look(fd, &look, NULL, 0);
    struct hr__memory_place place = {info.device, info.inode};
    bool is_its = r == 0 && (int)look.trainer_pid == hr__inner_pid(pid) &&
                  (!recorder->recording || look.recording == recorder->recording);
    struct hr__recorded *loader = is_its ? find(recorder, pid, look.loader) : NULL;
    if (loader && loader->writer.fd < 0) loader = NULL; /* another process had this pid */
    if (is_its && !loader) return record_loader(recorder, pid, fd, place, &look);
    if (is_its && !is_older(&look, &loader->look)) return change_memory(recorder, loader, fd, place, &look);
    if (r != HR_E_STATE && r != -EAGAIN) ignore(recorder, place, pid); /* else it is being made */
    hr__close(&fd);
    return 0;
}

/* ---- looks ---- */

int hr__recorder_add(hr_recorder *recorder, int pid, int fd) {
    return recorder->failed = add(recorder, pid, fd);
}

/* A job may start many processes one after the other. */
static int drop_ended(hr_recorder *recorder) {
    int r = 0;
    for (uint32_t i = recorder->count; r == 0 && i-- > 0;) {
        struct hr__recorded *loader = recorder->loaders[i];
        if (loader->fd >= 0 || hr__inner_pid(loader->pid)) continue;
        r = finish_file(loader, HR_RECORD_JOB_ENDED);
        free_loader(loader);
        recorder->loaders[i] = recorder->loaders[--recorder->count];
    }
    return r;
}

int hr_recorder_look(hr_recorder *recorder) {
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < recorder->count; i++) {
        struct hr__recorded *loader = recorder->loaders[i];
        if (loader->fd >= 0) r = loader->is_noted ? look_at(loader, false) : leave(recorder, loader);
        loader->is_noted = false;
    }
    if (r == 0) r = drop_ended(recorder);
    forget_ignored(recorder, 0);
    return recorder->failed = r;
}

void hr_recorder_glance(hr_recorder *recorder) {
    struct hr__glance glances[HR_ARENA_MAX_WORKERS];
    for (uint32_t i = 0; i < recorder->count; i++) {
        struct hr__recorded *loader = recorder->loaders[i];
        if (loader->fd < 0) continue;
        int count = hr__arena_glance(loader->fd, glances, loader->writer.worker_count);
        int64_t now_ns = hr__now_ns();
        for (int k = 0; k < count && k < (int)loader->writer.worker_count; k++)
            hr__slowest_glance(loader, (uint32_t)k, &glances[k], now_ns);
    }
}

/* ---- the end ---- */

int hr_recorder_end(hr_recorder *recorder, enum hr_record_end end) {
    if (!recorder) return 0;
    int code = recorder->failed;
    for (uint32_t i = 0; i < recorder->count; i++) {
        struct hr__recorded *loader = recorder->loaders[i];
        if (loader->fd >= 0 && code == 0) code = leave(recorder, loader);
        int r = finish_file(loader, end_of(code, end));
        if (code == 0) code = r;
        free_loader(loader);
    }
    hr__free(recorder->loaders);
    hr__free(recorder->ignored);
    hr__free(recorder->finder.found);
    hr__free(recorder);
    return code;
}
