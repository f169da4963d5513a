/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_TOKENS_SCENE_H
#define HR_TESTS_TOKENS_SCENE_H

#define _GNU_SOURCE
#include <fcntl.h>
#include <ftw.h>
#include <sys/resource.h>

#include "../support/arena_scene.h"

/* Token files of each kind in a folder of the test. */

static char folder[64];

static inline int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/dev/shm/hr-tokens-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_name(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

static inline int remove_folder(void **state) {
    (void)state;
    return nftw(folder, remove_name, 16, FTW_DEPTH | FTW_PHYS);
}

static inline const char *path_of(const char *name) {
    static char paths[4][160];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof *paths, "%s/%.90s", folder, name);
    return path;
}

static inline void put(const char *name, const void *bytes, size_t count) {
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    check(fd >= 0 && write(fd, bytes, count) == (ssize_t)count && close(fd) == 0);
}

enum { NUMBERED_MAX = 200 };

/* Makes files of four tokens, of which the first one is the number of the file. Returns their paths. */
static inline const char *const *put_numbered(int count) {
    static char names[NUMBERED_MAX][96];
    static const char *paths[NUMBERED_MAX];
    for (int i = 0; i < count; i++) {
        uint16_t tokens[] = {(uint16_t)i, 1, 2, 3};
        char name[24];
        snprintf(name, sizeof name, "%d.bin", i);
        put(name, tokens, sizeof tokens);
        snprintf(names[i], sizeof names[i], "%s/%s", folder, name);
        paths[i] = names[i];
    }
    return paths;
}

/* ---- heads ---- */

static inline void put_llmc(const char *name, int32_t magic, int32_t version, int32_t says, const void *tokens,
                            size_t bytes) {
    static unsigned char file[8192];
    int32_t head[256] = {magic, version, says};
    check(sizeof head + bytes <= sizeof file);
    memcpy(file, head, sizeof head);
    memcpy(file + sizeof head, tokens, bytes);
    put(name, file, sizeof head + bytes);
}

static inline void put_npy(const char *name, int version, const char *header, const void *data, size_t bytes) {
    unsigned char file[4096] = "\x93NUMPY";
    size_t length = strlen(header), at = version == 1 ? 10 : 12;
    file[6] = (unsigned char)version;
    file[8] = (unsigned char)length;
    file[9] = (unsigned char)(length >> 8);
    memcpy(file + at, header, length);
    memcpy(file + at + length, data, bytes);
    put(name, file, at + length + bytes);
}

/* An index of Megatron's in the making. */
struct idx {
    unsigned char bytes[4096];
    size_t count;
};

static inline void add(struct idx *idx, const void *data, size_t bytes) {
    memcpy(idx->bytes + idx->count, data, bytes);
    idx->count += bytes;
}

static inline struct idx make_idx(uint8_t code, uint64_t sequences, const int32_t *sizes, const int64_t *pointers,
                                  uint64_t bounds, const int64_t *documents) {
    struct idx idx = {.count = 0};
    uint64_t version = 1;
    add(&idx, "MMIDIDX\0\0", 9);
    add(&idx, &version, 8);
    add(&idx, &code, 1);
    add(&idx, &sequences, 8);
    add(&idx, &bounds, 8);
    add(&idx, sizes, sequences * sizeof *sizes);
    add(&idx, pointers, sequences * sizeof *pointers);
    add(&idx, documents, bounds * sizeof *documents);
    return idx;
}

static inline void put_idx(const char *name, const struct idx *idx) {
    put(name, idx->bytes, idx->count);
}

/* ---- reading ---- */

static inline int open_one(const char *name, struct hr_tokens_options options, hr_tokens **ret_tokens) {
    const char *paths[] = {path_of(name)};
    return hr_tokens_open(paths, 1, &options, ret_tokens);
}

/* Finds a sample and reads it; `ret_labels` may be NULL. Returns its length. */
static inline int64_t read_sample(const hr_tokens *tokens, uint64_t index, int64_t *ret_tokens, int64_t *ret_labels) {
    struct hr_tokens_sample sample;
    int r = hr_tokens_find(tokens, index, &sample);
    if (r == 0) r = hr_tokens_read(tokens, index, &sample, ret_tokens, ret_labels);
    return r < 0 ? r : (int64_t)sample.length;
}

/* ---- threads that read many of the files of put_numbered ---- */

enum { READERS = 4, READ_FILES = 40, READS = 3000 };

struct reader {
    const hr_tokens *tokens;
    uint64_t step, errors;
};

static inline void read_many(void *context) {
    struct reader *reader = context;
    int64_t found[4];
    for (uint64_t i = 0; i < READS; i++) {
        uint64_t index = i * reader->step % READ_FILES;
        reader->errors += read_sample(reader->tokens, index, found, NULL) != 4 || found[0] != (int64_t)index;
    }
}

/* Lowers the limit of open files, so that most of the files are closed at any time. */
static inline void lower_limit(struct rlimit *ret_before) {
    enum { LIMIT = 64 };
    check(getrlimit(RLIMIT_NOFILE, ret_before) == 0);
    struct rlimit low = {LIMIT, ret_before->rlim_max};
    check(setrlimit(RLIMIT_NOFILE, &low) == 0);
}

static inline void start_readers(const hr_tokens *tokens, struct reader *readers, struct hr__thread *threads) {
    for (uint64_t i = 0; i < READERS; i++) {
        readers[i] = (struct reader){tokens, 2 * i + 7, 0};
        must(hr__thread_start(&threads[i], read_many, &readers[i]));
    }
}

static inline void join_readers(struct reader *readers, struct hr__thread *threads) {
    for (int i = 0; i < READERS; i++) {
        hr__thread_join(&threads[i]);
        check(readers[i].errors == 0);
    }
}

/* ---- checks ---- */

#define assert_refused(call, code, text)                                                                               \
    do {                                                                                                               \
        check((call) == (code));                                                                                       \
        check(strstr(hr_error_message(), text) != NULL);                                                               \
    } while (0)

/* Compares a sample with numbers that are given one by one. */
#define assert_sample(tokens, index, ...)                                                                              \
    do {                                                                                                               \
        static const int64_t wanted_[] = {__VA_ARGS__};                                                                \
        int64_t found_[64];                                                                                            \
        check(read_sample(tokens, index, found_, NULL) == (int64_t)(sizeof wanted_ / sizeof *wanted_));                \
        assert_memory_equal(found_, wanted_, sizeof wanted_);                                                          \
    } while (0)

#endif
