/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../c/support/cache_scene.h"

#include <stdatomic.h>
#include <sys/time.h>

#include <headrace/cache_samples.h>

/*
 * Random kills of processes that build, attach, read, replace and remove objects of one cache, and that fill tables of
 * samples, until there were as many
 * as asked for: `soak_cache [KILLS [SEED]]`. No reader ever sees a wrong byte, and at the end nothing is left that no
 * process has. What is drawn follows from the seed; when it happens does not.
 */

enum { PROCESSES = 6, NAMES = 3, ROUNDS = 40, ALARM_US_MAX = 20000, SAMPLES = 64, SAMPLE_MAX = 20000, NEEDED = 40 };

/* Shared with the processes. */
struct counts {
    _Atomic uint64_t reads, builds, takeovers, removals, samples, sample_reads;
};
static struct counts *counts;

static uint64_t random_state;

static uint64_t draw(uint64_t below) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (random_state >> 33) % below;
}

/* An object's first byte says which number it was built with; its bytes must all be of that number. */
static void read_object(const hr_cached *cached) {
    struct hr_cached_info info;
    hr_cached_look(cached, &info);
    check(info.bytes == OBJECT_BYTES);
    check(has_object(cached, *(const unsigned char *)info.data));
    atomic_fetch_add(&counts->reads, 1);
}

static int build_object(hr_cache_build *build, uint64_t number, hr_cached **ret_cached) {
    int written = write_object(build, number);
    if (written < 0) return written;
    atomic_fetch_add(written < CHUNKS ? &counts->takeovers : &counts->builds, 1);
    return hr_cache_build_finish(build, NULL, ret_cached);
}

/* The stamp has the number, so that only chunks of the same number are taken over. */
static void use_object(void) {
    char name[16], stamp[16];
    uint64_t number = draw(4);
    snprintf(name, sizeof name, "object-%d", (int)draw(NAMES));
    snprintf(stamp, sizeof stamp, "%d", (int)number);
    struct hr_cache_request request = request_for(name, draw(2) ? stamp : NULL);
    if (!request.stamp) number = 9;
    hr_cached *cached = NULL;
    hr_cache_build *build;
    int r = ask(&request, &cached, &build);
    if (r == HR_CACHE_BUILD && draw(16) == 0) {
        hr_cache_build_fail(build, "drawn", 5, (int)draw(2));
        return;
    }
    if (r == HR_CACHE_BUILD) r = build_object(build, number, &cached);
    if (r == HR_E_BUILD_FAILED || r == HR_E_BUILDERS_DIED) return; /* as others were killed */
    must(r);
    read_object(cached);
    if (draw(8) == 0) {
        r = hr_cache_remove(cache, name, "0", 1);
        check(r == 0 || r == -ENOENT || r == -EBUSY);
        atomic_fetch_add(&counts->removals, r == 0);
        read_object(cached);
    }
    hr_cached_detach(cached);
}

/* ---- samples ---- */

static uint64_t size_of_sample(uint64_t index) {
    return 1 + index * 7919 % SAMPLE_MAX;
}

static bool has_sample(const struct hr_sample *sample) {
    static unsigned char bytes[SAMPLE_MAX + 1];
    fill_bytes(bytes, sample->bytes, 0, sample->index);
    return sample->bytes == size_of_sample(sample->index) && memcmp(bytes, sample->data, sample->bytes) == 0;
}

/* Reads a sample or makes it. Samples that another process makes for long, or that have no room, are left. */
static void need_sample(hr_samples *samples, uint64_t index) {
    struct hr_sample sample;
    int r;
    do {
        r = hr_samples_begin(samples, index, &sample);
        must(r);
    } while (r == HR_SAMPLE_BUSY && hr_samples_wait(samples, &sample, in_s(PATIENCE_S)) == 0);
    if (r == HR_SAMPLE_READY) {
        check(has_sample(&sample));
        atomic_fetch_add(&counts->sample_reads, 1);
    }
    if (r != HR_SAMPLE_MAKE) return;
    if (draw(32) == 0) {
        hr_samples_give_back(samples, &sample);
        return;
    }
    r = hr_samples_reserve(samples, &sample, size_of_sample(index));
    must(r);
    if (r != HR_SAMPLE_READY) return;
    fill_bytes(sample.data, sample.bytes, 0, index);
    must(hr_samples_publish(samples, &sample));
    atomic_fetch_add(&counts->samples, 1);
}

static void use_samples(void) {
    struct hr_cache_request request = request_for(draw(2) ? "samples-a" : "samples-b", "s");
    hr_cached *cached = NULL;
    hr_cache_build *build;
    hr_samples *samples;
    request.format = HR_SAMPLES_FORMAT;
    int r = ask(&request, &cached, &build);
    if (r == HR_CACHE_BUILD) {
        must(hr_samples_build(build, SAMPLES, HR_SAMPLES_LEAST_BYTES));
        r = hr_cache_build_finish(build, "", &cached);
    }
    if (r == HR_E_BUILDERS_DIED) return;
    must(r);
    must(hr_samples_open(cached, &samples));
    for (int i = 0; i < NEEDED; i++) need_sample(samples, draw(SAMPLES));
    if (draw(16) == 0) hr_cache_remove(cache, request.name, "0", 1);
    hr_samples_close(samples);
    hr_cached_detach(cached);
}

static void read_samples(const hr_cached *cached) {
    hr_samples *samples;
    must(hr_samples_open(cached, &samples));
    for (uint64_t i = 0; i < SAMPLES; i++) need_sample(samples, i);
    hr_samples_close(samples);
}

static void collect(void) {
    struct hr_cache_collected result;
    int r = hr_cache_collect(cache, -1, draw(2) ? 0 : UINT64_MAX, NULL, NULL, &result);
    check(r == 0 || r == -EBUSY);
}

static void be_killed_later(void) {
    struct itimerval timer = {.it_value.tv_usec = (suseconds_t)draw(ALARM_US_MAX) + 1};
    setitimer(ITIMER_REAL, &timer, NULL); /* its signal has no handler: it ends the process at any instruction */
}

#ifdef HR_FAILPOINTS
static void plan_a_kill(void) {
    static char plan[64];
    for (;;) {
        const struct hr__failpoint *point = &hr__failpoints[draw(HR__POINT_COUNT)];
        if (point->side != HR__BY_CACHE && point->side != HR__BY_SAMPLES) continue;
        snprintf(plan, sizeof plan, "%s:%d:%d", point->name, SIGKILL, (int)draw(8) + 1);
        setenv("HEADRACE_STOP", plan, 1);
        return;
    }
}
#else
static void plan_a_kill(void) {
    be_killed_later();
}
#endif

static pid_t start_process(void) {
    uint64_t seed = draw(UINT32_MAX);
    pid_t pid = fork();
    if (pid) return pid;
    die_with_test();
    random_state = seed;
    if (draw(2))
        be_killed_later();
    else
        plan_a_kill();
    for (int i = 0; i < ROUNDS; i++) {
        if (draw(3))
            use_object();
        else
            use_samples();
        if (draw(16) == 0) collect();
    }
    _exit(0);
}

/* At the end no process has anything: a collection leaves whole objects, and nothing else. */
static int check_entry(void *context, const struct hr_cache_entry *entry) {
    hr_cached *cached;
    (void)context;
    check(entry->state == HR_CACHE_READY && entry->claim_count == 0);
    must(hr_cache_attach(cache, entry->info.name, entry->info.version, &cached));
    must(hr_cached_verify(cached));
    if (strcmp(entry->info.format, HR_SAMPLES_FORMAT) == 0)
        read_samples(cached);
    else
        read_object(cached);
    hr_cached_detach(cached);
    return 0;
}

static void check_end(void) {
    struct hr_cache_collected result;
    must(hr_cache_collect(cache, -1, UINT64_MAX, NULL, NULL, &result));
    must(hr_cache_list(cache, check_entry, NULL));
    check(count_in("partial") == 0 && count_in("trash") == 0 && count_in("claims") == 0);
    must(hr_cache_collect(cache, -1, 0, NULL, NULL, &result));
    check(count_in("objects") == 0 && count_in("locks") == 0);
}

int main(int argc, char **argv) {
    uint64_t wanted = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t kills = 0, ends = 0;
    random_state = seed;
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    open_scene(NULL);
    printf("cache: %llu kills, seed %llu\n", (unsigned long long)wanted, (unsigned long long)seed);
    for (int i = 0; i < PROCESSES; i++) start_process();
    while (kills < wanted) {
        int status;
        check(waitpid(-1, &status, 0) > 0);
        bool is_killed = WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGALRM);
        check(is_killed || status == 0);
        kills += is_killed;
        ends += !is_killed;
        start_process();
    }
    for (int i = 0, status; i < PROCESSES; i++) check(waitpid(-1, &status, 0) > 0);
    check_end();
    printf("cache: %llu samples, %llu reads of them\n", (unsigned long long)atomic_load(&counts->samples),
           (unsigned long long)atomic_load(&counts->sample_reads));
    printf("cache: %llu kills, %llu ends; %llu builds, %llu taken over, %llu reads, %llu removals; nothing left\n",
           (unsigned long long)kills, (unsigned long long)ends, (unsigned long long)atomic_load(&counts->builds),
           (unsigned long long)atomic_load(&counts->takeovers), (unsigned long long)atomic_load(&counts->reads),
           (unsigned long long)atomic_load(&counts->removals));
    close_scene(NULL);
    return 0;
}
