/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a recording of what loaders did, which `headrace record` and record= have written. */
#ifndef HEADRACE_RECORD_H
#define HEADRACE_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include <headrace/look.h>
#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A recording is a folder. Each loader of each process has a file of at most 16 MiB in it, whose name ends with
 * HR_RECORD_SUFFIX: the seconds of the last two hours, the minutes of the last 14 days, histograms by hour, the 256
 * slowest samples, the last 65,536 timed batches and the last 65,536 steps. With more than eight workers, seconds and
 * minutes are kept for a shorter time, so that they fit.
 *
 * A loader whose number of workers grows gets another file. Times are nanoseconds of CLOCK_MONOTONIC; each second and
 * each minute also has its CLOCK_REALTIME. Each entry of a file has a checksum: one that was torn, because the machine
 * or the recorder ended while it was written, is left out.
 */

#define HR_RECORD_SUFFIX ".hrr"
enum {
    HR_RECORD_MAX_BYTES = 16 << 20,
    HR_RECORD_SLOWEST = 256,
    HR_RECORD_HOST_BYTES = 64,      /* with the NUL at the end, as those below */
    HR_RECORD_COMMAND_BYTES = 1024, /* a longer command line is cut */
    HR_RECORD_VERSION_BYTES = 32,
};

struct hr_record_identity {
    uint32_t pid;    /* as the trainer sees itself */
    uint32_t loader; /* its number in the process */
    int32_t rank;    /* -1: not known */
    int32_t world_size;
    uint32_t worker_count; /* 0: it made its batches in the training process */
    uint32_t queue_room;
    uint32_t core_count;           /* of the machine */
    int64_t opened_ns;             /* when the loader was made */
    int64_t began_ns;              /* when the recording of this file began */
    int64_t began_real_ns;         /* the same moment, on CLOCK_REALTIME */
    uint64_t memory_bytes;         /* of the machine */
    char name[HR_LOOK_NAME_BYTES]; /* the line that made it, such as train.py:88; any bytes */
    char host[HR_RECORD_HOST_BYTES];
    char command[HR_RECORD_COMMAND_BYTES]; /* of the training process, with spaces between words; any bytes */
    char version[HR_RECORD_VERSION_BYTES]; /* of the headrace that recorded it */
};

/* A second or a minute. Counts and times are what was added in it. */
struct hr_record_row {
    int64_t at_ns;   /* its end */
    int64_t real_ns; /* the same moment, on CLOCK_REALTIME */
    uint64_t length_ns;
    uint64_t epoch; /* at its end, as step, queue_count and the bytes of memory */
    uint64_t step;
    uint64_t batches;
    uint64_t samples;
    uint64_t bytes;
    uint64_t errors;
    uint64_t inside_ns; /* inside next(), without first batches; with a wait that goes on at its end */
    uint64_t start_ns;  /* until first batches of epochs */
    uint64_t starts;
    uint64_t wait_ns; /* parts of inside_ns, as in headrace/look.h */
    uint64_t pin_ns;
    uint64_t draw_ns;
    uint64_t rebuild_ns;
    uint64_t restarts;
    uint64_t bad_samples;
    uint64_t queue_count;
    uint64_t used_bytes;
    uint64_t cores_busy;       /* thousandths of cores that all processes of the machine used */
    uint64_t cores_allowed;    /* thousandths of cores that the job may use: affinity and quota */
    uint64_t throttled_ns;     /* for how long the quota stopped the job */
    uint64_t memory_available; /* bytes of the machine, or of the cgroup if those are fewer */
    uint64_t used_workers; /* that get tasks, at its end: the first ones. The others are parked (num_workers="auto") */
    uint64_t trainer_cpu_ns;   /* CPU time of the training process; 0: not known */
    uint64_t trainer_delay_ns; /* for how long its main thread could have run, and waited for a core */
    uint64_t network_ns;       /* for how long the training process waited for remote objects that it reads itself */
    uint64_t hit_count;        /* reads of remote objects, by it and all workers, that found all bytes, */
    uint64_t wait_count;       /* and those that waited */
    uint64_t fetched_bytes;    /* by the fetcher of remote objects, for all jobs of the user */
    uint64_t requests;         /* that it sent to servers, */
    uint64_t retries;          /* and those of them that were made again */
};

/* A worker in a second or a minute. */
struct hr_record_worker {
    uint64_t fetch_ns; /* with the phase that goes on at the end */
    uint64_t collate_ns;
    uint64_t wait_ns;       /* for tasks; 0 while it is parked */
    uint64_t delay_ns;      /* for how long it could have run, and waited for a core */
    uint64_t cpu_ns;        /* 0 with private_bytes 0: its process was not seen */
    uint64_t private_bytes; /* RssAnon, at the end */
    uint64_t network_ns;    /* for how long a read of a remote object waited, in fetch_ns or collate_ns */
};

/* How long samples and collating took in an hour: counts as in struct hr_times. */
struct hr_record_hour {
    int64_t at_ns; /* its begin */
    uint64_t samples[HR_LOOK_BUCKETS];
    uint64_t collates[HR_LOOK_BUCKETS];
};

struct hr_record_sample {
    uint64_t ns; /* measured by the worker; or seen from outside, and up to 100 ms less than it took */
    uint64_t index;
    uint32_t worker;
    uint64_t task;
    int64_t began_ns; /* of its batch */
};

/* A batch whose phases were timed. */
struct hr_record_batch {
    uint32_t worker;
    struct hr_batch_look look;
};

/* A step of the loop. */
struct hr_record_step {
    int64_t at_ns; /* its end, in microseconds; if that call was not timed, when the recorder saw it */
    uint64_t epoch;
    uint64_t step;      /* from 1 */
    uint32_t inside_us; /* HR_LOOK_NO_STEP: the first of an epoch */
};

enum hr_record_part {
    HR_RECORD_SECONDS,
    HR_RECORD_MINUTES,
    HR_RECORD_HOURS,
    HR_RECORD_BATCHES,
    HR_RECORD_STEPS,
    HR_RECORD_SAMPLES, /* the slowest, the slowest one first */
    HR_RECORD_PARTS
};

enum hr_record_end {
    HR_RECORD_OPEN,      /* the recorder still runs, or was killed */
    HR_RECORD_JOB_ENDED, /* the training process has ended */
    HR_RECORD_STOPPED,   /* the recorder was told to end */
    HR_RECORD_DISK_FULL,
    HR_RECORD_WORKERS_GREW, /* it goes on in another file */
    HR_RECORD_ENDS
};

struct hr_record_info {
    enum hr_record_end end;
    int64_t ended_ns;    /* 0: not known */
    uint64_t torn_count; /* entries that were left out because their checksum is wrong */
};

/* The file of a loader, in memory. */
typedef struct hr_record hr_record;

/* Reads and checks the file of a loader. -EINVAL: it is no recording; HR_E_VERSION: a newer headrace wrote it;
 * -EBADMSG: it is damaged or cut; other negative errnos of files. hr_record_close frees what it returns. */
HR_API int hr_record_open(const char *path, hr_record **ret_record);
HR_API hr_record *hr_record_close(hr_record *record);

/* The loader that it is of; valid until the file is closed. */
HR_API const struct hr_record_identity *hr_record_identity_of(const hr_record *record);
HR_API void hr_record_look(const hr_record *record, struct hr_record_info *ret_info);

/* How many entries a part has. They are numbered from 0, oldest first. The functions below expect smaller numbers. */
HR_API uint64_t hr_record_count(const hr_record *record, enum hr_record_part part);
/* `part`: HR_RECORD_SECONDS or HR_RECORD_MINUTES; `worker` below the worker_count of the identity. */
HR_API void hr_record_read_row(const hr_record *record, enum hr_record_part part, uint64_t number,
                               struct hr_record_row *ret_row);
HR_API void hr_record_read_worker(const hr_record *record, enum hr_record_part part, uint64_t number, uint32_t worker,
                                  struct hr_record_worker *ret_worker);
HR_API void hr_record_read_hour(const hr_record *record, uint64_t number, struct hr_record_hour *ret_hour);
HR_API void hr_record_read_batch(const hr_record *record, uint64_t number, struct hr_record_batch *ret_batch);
HR_API void hr_record_read_step(const hr_record *record, uint64_t number, struct hr_record_step *ret_step);
HR_API void hr_record_read_sample(const hr_record *record, uint64_t number, struct hr_record_sample *ret_sample);

#ifdef __cplusplus
}
#endif
#endif
