/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tokens_scene.h"

/* Token files: what is read of each kind, what is refused, and what happens to files that change. */

static const struct hr_tokens_options BY_4 = {.length = 4};
static const struct hr_tokens_options SEQUENCES = {.unit = HR_TOKENS_SEQUENCES};
static const struct hr_tokens_options DOCUMENTS = {.unit = HR_TOKENS_DOCUMENTS};
static const uint16_t TEN[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 65535};

static uint64_t count_of(const hr_tokens *tokens) {
    struct hr_tokens_info info;
    hr_tokens_look(tokens, &info);
    return info.sample_count;
}

/* ---- windows ---- */

static void windows_of_several_files_are_read(void **state) {
    static const uint16_t other[5] = {100, 101, 102, 103, 104};
    struct hr_tokens_info info;
    hr_tokens *tokens;
    (void)state;
    put("a.bin", TEN, sizeof TEN);
    put("b.bin", "", 0);
    put("c.bin", other, sizeof other);
    const char *paths[] = {path_of("a.bin"), path_of("b.bin"), path_of("c.bin")};
    must(hr_tokens_open(paths, 3, &BY_4, &tokens));
    hr_tokens_look(tokens, &info);
    check(info.sample_count == 3 && info.token_count == 15 && info.used_count == 12 && info.file_count == 3);
    assert_sample(tokens, 0, 0, 1, 2, 3);
    assert_sample(tokens, 1, 4, 5, 6, 7);
    assert_sample(tokens, 2, 100, 101, 102, 103);
    assert_refused((int)read_sample(tokens, 3, NULL, NULL), -ERANGE, "no sample 3");
    hr_tokens_close(tokens);
}

static void labels_and_strides_shift_windows(void **state) {
    struct hr_tokens_options options = {.length = 3, .stride = 2, .has_labels = true};
    int64_t x[3], y[3], batch_x[6], batch_y[6];
    static const int64_t wanted_x[] = {6, 7, 8}, wanted_y[] = {7, 8, 65535}, indices[] = {3, 0}, bad[] = {0, -1};
    hr_tokens *tokens;
    (void)state;
    put("a.bin", TEN, sizeof TEN);
    must(open_one("a.bin", options, &tokens));
    check(count_of(tokens) == 4);
    check(read_sample(tokens, 3, x, y) == 3);
    assert_memory_equal(x, wanted_x, sizeof x);
    assert_memory_equal(y, wanted_y, sizeof y);
    must(hr_tokens_gather(tokens, indices, 2, batch_x, batch_y));
    assert_memory_equal(batch_x, wanted_x, sizeof x);
    assert_memory_equal(batch_y, wanted_y, sizeof y);
    check(batch_x[3] == 0 && batch_x[5] == 2 && batch_y[3] == 1 && batch_y[5] == 3);
    assert_refused(hr_tokens_gather(tokens, bad, 2, batch_x, batch_y), -ERANGE, "no sample -1");
    assert_refused(hr_tokens_gather(tokens, indices, 2, batch_x, NULL), -EINVAL, "with labels");
    hr_tokens_close(tokens);
}

/* A window that is larger than the buffer through which it is converted. */
static void long_windows_are_read_in_pieces(void **state) {
    enum { COUNT = 50000 };
    struct hr_tokens_options options = {.length = COUNT - 1, .has_labels = true};
    static uint16_t file[COUNT];
    static int64_t x[COUNT], y[COUNT];
    hr_tokens *tokens;
    (void)state;
    for (int i = 0; i < COUNT; i++) file[i] = (uint16_t)(i * 31);
    put("a.bin", file, sizeof file);
    must(open_one("a.bin", options, &tokens));
    check(count_of(tokens) == 1 && read_sample(tokens, 0, x, y) == COUNT - 1);
    for (int i = 0; i < COUNT - 1; i++) check(x[i] == file[i] && y[i] == file[i + 1]);
    hr_tokens_close(tokens);
}

static void every_dtype_becomes_int64(void **state) {
    static const struct hr_dtype dtypes[] = {{0, 8, 1}, {0, 16, 1}, {0, 32, 1}, {0, 64, 1},
                                             {1, 8, 1}, {1, 16, 1}, {1, 32, 1}, {1, 64, 1}};
    hr_tokens *tokens;
    (void)state;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        unsigned char file[16] = {[0] = 0x7f};
        int64_t found[2] = {0}, largest = dtypes[i].code == 0 ? -1 : (INT64_C(1) << (dtypes[i].bits % 64)) - 1;
        size_t item = dtypes[i].bits / 8;
        memset(file + item, 0xff, item);
        if (dtypes[i].code == 1 && dtypes[i].bits == 64) file[15] = 0x7f, largest = INT64_MAX;
        put("a.tok", file, 2 * item);
        must(open_one("a.tok", (struct hr_tokens_options){.dtype = dtypes[i], .length = 2}, &tokens));
        check(read_sample(tokens, 0, found, NULL) == 2);
        check(found[0] == 0x7f && found[1] == largest);
        hr_tokens_close(tokens);
    }
}

static void tokens_above_the_vocabulary_are_refused(void **state) {
    struct hr_tokens_options options = {.length = 5, .vocab_size = 8};
    uint64_t huge[2] = {1, UINT64_MAX};
    int64_t found[5];
    hr_tokens *tokens;
    (void)state;
    put("a.bin", TEN, sizeof TEN);
    must(open_one("a.bin", options, &tokens));
    check(read_sample(tokens, 0, found, NULL) == 5);
    assert_refused((int)read_sample(tokens, 1, found, NULL), -EINVAL, "token 8 at byte 16");
    hr_tokens_close(tokens);
    put("b.bin", huge, sizeof huge);
    must(open_one("b.bin", (struct hr_tokens_options){.dtype = {1, 64, 1}, .length = 2}, &tokens));
    assert_refused((int)read_sample(tokens, 0, found, NULL), -EINVAL, "at byte 8 that is above 2^63 - 1");
    hr_tokens_close(tokens);
}

/* ---- kinds of files ---- */

static void llmc_heads_are_checked(void **state) {
    static const uint32_t wide[4] = {128000, 1, 2, 3};
    struct hr_tokens_file file;
    hr_tokens *tokens;
    (void)state;
    put_llmc("a.bin", 20240520, 1, 10, TEN, sizeof TEN);
    must(open_one("a.bin", BY_4, &tokens));
    must(hr_tokens_look_file(tokens, 0, &file));
    check(file.kind == HR_TOKENS_LLMC && file.data_at == 1024 && file.token_count == 10 && file.dtype.bits == 16);
    assert_sample(tokens, 1, 4, 5, 6, 7);
    assert_refused(hr_tokens_look_file(tokens, 1, &file), -ERANGE, "no file 1 of 1");
    hr_tokens_close(tokens);
    put_llmc("b.bin", 20240801, 7, 4, wide, sizeof wide);
    must(open_one("b.bin", BY_4, &tokens));
    assert_sample(tokens, 0, 128000, 1, 2, 3);
    hr_tokens_close(tokens);
    put_llmc("c.bin", 20240520, 2, 10, TEN, sizeof TEN);
    assert_refused(open_one("c.bin", BY_4, &tokens), -EINVAL, "version 2 at offset 4 instead of 1");
    put_llmc("c.bin", 20240522, 1, 10, TEN, sizeof TEN);
    assert_refused(open_one("c.bin", BY_4, &tokens), -EINVAL, "is an evaluation file of llm.c");
    put_llmc("c.bin", 20240520, 1, 11, TEN, sizeof TEN);
    assert_refused(open_one("c.bin", BY_4, &tokens), -EINVAL, "its head says 11 tokens of uint16");
    put_llmc("c.bin", 20240520, 1, -1, TEN, sizeof TEN);
    assert_refused(open_one("c.bin", BY_4, &tokens), -EINVAL, "at offset 8 that it has -1 tokens");
    must(truncate(path_of("c.bin"), 700));
    assert_refused(open_one("c.bin", BY_4, &tokens), -EINVAL, "llm.c's head alone has 1024");
}

static void npy_heads_are_checked(void **state) {
    static const struct {
        const char *header, *text;
    } cases[] = {
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (11,), }\n", "its head says 11 tokens of uint16"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (9,), }\n", "its head says 9 tokens of uint16"},
        {"{'descr': '>u2', 'fortran_order': False, 'shape': (10,), }\n", "the byte order of another machine"},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (10,), }\n", "dtype 'f2', which are no tokens"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (10,), }\n", "dtype 'O', which are no tokens"},
        {"{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (10,), }\n", "has records"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (5, 2), }\n", "has 2 dimensions"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (10,", "its head is not NumPy's"},
    };
    hr_tokens *tokens;
    (void)state;
    for (int version = 1; version <= 3; version++) {
        put_npy("a.npy", version, "{'descr': '<u2', 'fortran_order': False, 'shape': (10,), }    \n", TEN, sizeof TEN);
        must(open_one("a.npy", BY_4, &tokens));
        assert_sample(tokens, 1, 4, 5, 6, 7);
        hr_tokens_close(tokens);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_npy("a.npy", 1, cases[i].header, TEN, sizeof TEN);
        assert_refused(open_one("a.npy", BY_4, &tokens), -EINVAL, cases[i].text);
    }
}

static void headless_files_need_a_dtype(void **state) {
    struct hr_tokens_options given = {.dtype = {1, 16, 1}, .length = 4}, wide = {.dtype = {1, 32, 1}, .length = 4};
    hr_tokens *tokens;
    (void)state;
    put("a.npy", TEN, sizeof TEN);
    assert_refused(open_one("a.npy", BY_4, &tokens), -EINVAL, "OLMo's");
    must(open_one("a.npy", given, &tokens));
    hr_tokens_close(tokens);
    put("a.tokens", TEN, sizeof TEN);
    assert_refused(open_one("a.tokens", BY_4, &tokens), -EINVAL, "give its dtype");
    put("a.bin", TEN, sizeof TEN - 1);
    assert_refused(open_one("a.bin", BY_4, &tokens), -EINVAL, "19 bytes of tokens from offset 0 on");
    put_llmc("b.bin", 20240520, 1, 10, TEN, sizeof TEN);
    assert_refused(open_one("b.bin", wide, &tokens), -EINVAL,
                   "has tokens of uint16 by its head, but dtype is \"uint32\"");
    assert_refused(open_one("b.bin", SEQUENCES, &tokens), -EINVAL, "so it has no sequences");
    assert_refused(open_one("none.bin", BY_4, &tokens), -ENOENT, "cannot open");
    assert_refused(open_one(".", given, &tokens), -EISDIR, "cannot open");
    must(mkfifo(path_of("pipe.bin"), 0600));
    assert_refused(open_one("pipe.bin", BY_4, &tokens), -EINVAL, "not a regular file");
}

static void foreign_files_need_a_dtype(void **state) {
    static const uint32_t wide[16] = {7, 70000, 9, 11, 50256, 1};
    static const char text[] = "A text that has not been made into tokens.";
    struct hr_tokens_options given = {.dtype = {1, 16, 1}, .length = 4};
    hr_tokens *tokens;
    (void)state;
    put("a.bin", "PK\3\4________", 12);
    assert_refused(open_one("a.bin", BY_4, &tokens), -EINVAL, "seems to be a zip archive");
    must(open_one("a.bin", given, &tokens));
    hr_tokens_close(tokens);
    put("a.bin", text, sizeof text - 1);
    assert_refused(open_one("a.bin", BY_4, &tokens), -EINVAL, "seems to be text");
    uint16_t many[256] = {0};
    for (int i = 0; i < 256; i++) many[i] = i % 2 ? 1 : (uint16_t)(i + 40);
    put("a.bin", many, sizeof many);
    assert_refused(open_one("a.bin", BY_4, &tokens), -EINVAL, "tokens of 4 bytes");
    put("a.bin", wide, sizeof wide);
    must(open_one("a.bin", BY_4, &tokens)); /* too few to say */
    hr_tokens_close(tokens);
    put("a_document.bin", TEN, sizeof TEN);
    assert_refused(open_one("a_document.bin", BY_4, &tokens), -EINVAL, "a_document.idx is missing");
    put("a.bin", "version https://git-lfs.github.com/spec/v1\n", 43);
    assert_refused(open_one("a.bin", given, &tokens), -EINVAL, "a pointer of Git LFS");
}

static void wrong_options_are_refused(void **state) {
    hr_tokens *tokens;
    (void)state;
    put("a.bin", TEN, sizeof TEN);
    assert_refused(open_one("a.bin", (struct hr_tokens_options){.length = 0}, &tokens), -EINVAL, "length is 0");
    assert_refused(open_one("a.bin", (struct hr_tokens_options){.length = UINT64_MAX}, &tokens), -EINVAL, "length is");
    assert_refused(open_one("a.bin", (struct hr_tokens_options){.length = 1, .stride = UINT64_MAX}, &tokens), -EINVAL,
                   "stride is");
    assert_refused(open_one("a.bin", (struct hr_tokens_options){.length = 1, .dtype = {2, 32, 1}}, &tokens), -EINVAL,
                   "integers of 8 to 64 bits");
}

/* ---- Megatron ---- */

static const int32_t SIZES[] = {3, 0, 2, 4};
static const int64_t POINTERS[] = {2, 8, 8, 12}, BOUNDS[] = {0, 2, 2, 4};

static void put_megatron(uint8_t code) {
    struct idx idx = make_idx(code, 4, SIZES, POINTERS, 4, BOUNDS);
    put_idx("m.idx", &idx);
    put("m.bin", TEN, sizeof TEN);
}

static void megatrons_sequences_and_documents_are_read(void **state) {
    static const char *const names[] = {"m", "m.bin", "m.idx"};
    static const int64_t wanted[] = {3, 0, 6};
    int64_t lengths[3];
    hr_tokens *tokens;
    (void)state;
    put_megatron(8);
    for (size_t i = 0; i < 3; i++) {
        must(open_one(names[i], SEQUENCES, &tokens));
        check(count_of(tokens) == 4 && read_sample(tokens, 1, NULL, NULL) == 0);
        assert_sample(tokens, 0, 1, 2, 3);
        assert_sample(tokens, 3, 6, 7, 8, 65535);
        hr_tokens_close(tokens);
    }
    must(open_one("m", DOCUMENTS, &tokens));
    check(count_of(tokens) == 3 && read_sample(tokens, 1, NULL, NULL) == 0);
    assert_sample(tokens, 2, 4, 5, 6, 7, 8, 65535);
    must(hr_tokens_lengths(tokens, 0, 3, lengths));
    assert_memory_equal(lengths, wanted, sizeof wanted);
    assert_refused(hr_tokens_lengths(tokens, 1, 3, lengths), -ERANGE, "no sample 3");
    hr_tokens_close(tokens);
    must(open_one("m", BY_4, &tokens));
    check(count_of(tokens) == 2 && hr_tokens_scan(tokens, UINT64_MAX) == -EINVAL);
    hr_tokens_close(tokens);
}

static void documents_of_scattered_sequences_are_joined(void **state) {
    static const int32_t sizes[] = {2, 2, 1, 3};
    static const int64_t pointers[] = {12, 16, 1, 0}, bounds[] = {0, 4};
    struct hr_tokens_options options = {.unit = HR_TOKENS_DOCUMENTS, .has_labels = true};
    static const int64_t wanted[] = {6, 7, 8, 65535, 0x100, 0, 1, 2};
    struct idx idx = make_idx(8, 4, sizes, pointers, 2, bounds);
    int64_t x[8], y[8];
    hr_tokens *tokens;
    (void)state;
    put_idx("m.idx", &idx);
    put("m.bin", TEN, sizeof TEN);
    must(open_one("m", options, &tokens));
    check(read_sample(tokens, 0, x, y) == 7);
    assert_memory_equal(x, wanted, 7 * sizeof *x);
    assert_memory_equal(y, wanted + 1, 7 * sizeof *y);
    hr_tokens_close(tokens);
}

static void bad_indexes_of_megatron_are_named(void **state) {
    static const struct {
        size_t at;
        uint8_t bytes[8];
        size_t count;
        const char *text;
    } cases[] = {
        {0, {'x'}, 1, "does not begin as an index of Megatron's"},
        {0, {'T', 'N', 'T', 'I', 'D', 'X', 0, 0}, 8, "old Megatron"},
        {9, {2}, 1, "version 2 at offset 9"},
        {17, {0}, 1, "dtype code 0 at offset 17"},
        {17, {9}, 1, "dtype code 9 at offset 17"},
        {17, {6}, 1, "float64"},
        {18, {5}, 1, "not the size of an index of 5 sequences"},
        {18, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 8, "not the size of an index"},
        {26, {0}, 1, "0 bounds of documents"},
        {34, {10}, 1, "sequence 0 has 10 tokens"},
        {34, {0xff, 0xff, 0xff, 0xff}, 4, "sequence 0 has -1 tokens"},
        {50, {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 8, "at byte -2 (offset 50)"},
        {74, {13}, 1, "sequence 3 has 4 tokens (offset 46) at byte 13 (offset 74)"},
        {82, {1}, 1, "the first document begins with sequence 1 (offset 82)"},
        {90, {5}, 1, "document 1 begins with sequence 5 (offset 90)"},
        {98, {1}, 1, "document 2 begins with sequence 1 (offset 98), after 2"},
        {106, {3}, 1, "the last document ends at sequence 3 (offset 106) of 4"},
    };
    hr_tokens *tokens;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct idx idx = make_idx(8, 4, SIZES, POINTERS, 4, BOUNDS);
        put("m.bin", TEN, sizeof TEN);
        memcpy(idx.bytes + cases[i].at, cases[i].bytes, cases[i].count);
        put_idx("m.idx", &idx);
        assert_refused(open_one("m", SEQUENCES, &tokens), -EINVAL, cases[i].text);
        check(strstr(hr_error_message(), "m.idx") != NULL);
    }
}

static void every_truncated_index_is_refused(void **state) {
    struct idx idx = make_idx(8, 4, SIZES, POINTERS, 4, BOUNDS);
    hr_tokens *tokens;
    (void)state;
    put("m.bin", TEN, sizeof TEN);
    for (size_t count = 0; count < idx.count; count++) {
        put("m.idx", idx.bytes, count);
        check(open_one("m", SEQUENCES, &tokens) == -EINVAL);
    }
    add(&idx, "\0\1\0\1", 4); /* the modes of a multimodal file */
    put_idx("m.idx", &idx);
    must(open_one("m", SEQUENCES, &tokens));
    assert_sample(tokens, 2, 4, 5);
    hr_tokens_close(tokens);
}

/* ---- separators ---- */

static void documents_between_separators_are_found(void **state) {
    static const uint16_t tokens_of_a[] = {1, 2, 9, 9, 3}, tokens_of_b[] = {9, 4, 5, 9};
    struct hr_tokens_options options = {.unit = HR_TOKENS_SEPARATED, .separator = 9};
    uint64_t count, wrong[] = {3, 4, 4, 1, 4};
    int64_t lengths[5];
    hr_tokens *tokens, *other;
    (void)state;
    put("a.bin", tokens_of_a, sizeof tokens_of_a);
    put_llmc("b.bin", 20240520, 1, 4, tokens_of_b, sizeof tokens_of_b);
    const char *paths[] = {path_of("a.bin"), path_of("b.bin")};
    must(hr_tokens_open(paths, 2, &options, &tokens));
    check(count_of(tokens) == 0 && hr_tokens_scan(tokens, 9) == 0 && hr_tokens_scan(tokens, 10) == 0);
    check(count_of(tokens) == 3 && hr_tokens_scan(tokens, 100) == 1 && count_of(tokens) == 5);
    assert_sample(tokens, 0, 1, 2, 9);
    assert_sample(tokens, 1, 9);
    assert_sample(tokens, 2, 3);
    assert_sample(tokens, 3, 9, 4, 5);
    assert_sample(tokens, 4, 9);
    must(hr_tokens_lengths(tokens, 0, 5, lengths));
    check(lengths[0] == 3 && lengths[1] == 1 && lengths[2] == 1 && lengths[3] == 3 && lengths[4] == 1);
    must(hr_tokens_open(paths, 2, &options, &other));
    const uint64_t *ends = hr_tokens_ends(tokens, &count);
    must(hr_tokens_set_ends(other, ends, count));
    assert_sample(other, 3, 9, 4, 5);
    assert_refused(hr_tokens_set_ends(other, wrong, 5), -EINVAL, "not the ends");
    check(hr_tokens_set_ends(other, ends, count - 1) == -EINVAL && hr_tokens_scan(other, 100) == 1);
    assert_sample(other, 4, 9);
    hr_tokens_close(tokens);
    hr_tokens_close(other);
}

/* ---- files that change ---- */

/* Writes to a file without a change of its time. */
static void write_silently(const char *name, off_t at, const void *bytes, size_t count) {
    struct stat before;
    int fd = open(path_of(name), O_WRONLY | O_CLOEXEC);
    check(fd >= 0 && fstat(fd, &before) == 0 && pwrite(fd, bytes, count, at) == (ssize_t)count);
    struct timespec times[] = {before.st_atim, before.st_mtim};
    check(futimens(fd, times) == 0 && close(fd) == 0);
}

static void changed_files_are_errors(void **state) {
    int64_t found[4];
    hr_tokens *tokens;
    (void)state;
    put("a.bin", TEN, sizeof TEN);
    must(open_one("a.bin", BY_4, &tokens));
    must(truncate(path_of("a.bin"), 10));
    assert_refused((int)read_sample(tokens, 1, found, NULL), -ESTALE, "it had 20 bytes, and now has 10");
    check(strstr(hr_error_message(), "wanted 8 bytes at offset 8") != NULL);
    must(truncate(path_of("a.bin"), 20));
    assert_refused((int)read_sample(tokens, 1, found, NULL), -ESTALE, "was written to since it was opened");
    hr_tokens_close(tokens);
    put_megatron(8);
    must(open_one("m", SEQUENCES, &tokens));
    write_silently("m.idx", 34, "\x60", 1);
    assert_refused((int)read_sample(tokens, 0, found, NULL), -EINVAL, "sequence 0 has 96 tokens");
    hr_tokens_close(tokens);
    setenv("HEADRACE_FAIL", "source_read:ESTALE", 1);
    assert_refused(open_one("a.bin", BY_4, &tokens), -ESTALE, "cannot read 20 bytes at offset 0 of");
    unsetenv("HEADRACE_FAIL");
}

static void a_separator_that_is_gone_is_an_error(void **state) {
    struct hr_tokens_options options = {.unit = HR_TOKENS_SEPARATED, .separator = 3};
    int64_t found[8];
    hr_tokens *tokens;
    (void)state;
    put("a.bin", TEN, sizeof TEN);
    must(open_one("a.bin", options, &tokens));
    check(hr_tokens_scan(tokens, UINT64_MAX) == 1);
    assert_sample(tokens, 0, 0, 1, 2, 3);
    write_silently("a.bin", 6, "\x07", 1);
    assert_refused((int)read_sample(tokens, 0, found, NULL), -ESTALE, "token 7 and not the separator 3 at byte 6");
    hr_tokens_close(tokens);
}

static int count_open_files(void) {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Many files under a low limit; one of those that were closed meanwhile was replaced. */
static void closed_files_are_opened_again(void **state) {
    enum { FILES = 200, LIMIT = 32 };
    struct rlimit before, low;
    int64_t found[4];
    hr_tokens *tokens;
    (void)state;
    check(getrlimit(RLIMIT_NOFILE, &before) == 0);
    low = before;
    low.rlim_cur = LIMIT;
    check(setrlimit(RLIMIT_NOFILE, &low) == 0);
    int others = count_open_files();
    must(hr_tokens_open(put_numbered(FILES), FILES, &BY_4, &tokens));
    for (int i = 0; i < 3 * FILES; i++) {
        uint64_t index = (uint64_t)i * 77 % FILES;
        check(read_sample(tokens, index, found, NULL) == 4 && found[0] == (int64_t)index);
        check(count_open_files() <= others + LIMIT / 8);
    }
    check(setrlimit(RLIMIT_NOFILE, &before) == 0);
    put("other", TEN, 8);
    must(rename(path_of("other"), path_of("7.bin")));
    assert_refused((int)read_sample(tokens, 7, found, NULL), -ESTALE, "7.bin was replaced by another file");
    hr_tokens_close(tokens);
    check(count_open_files() == others);
}

/* A program closes all descriptors, and opens other files, which get their numbers. */
static void descriptors_that_the_program_closed_are_not_used(void **state) {
    int64_t found[4];
    hr_tokens *tokens;
    (void)state;
    put("a.bin", TEN, sizeof TEN);
    put("b.bin", "other bytes that are no tokens", 20);
    must(open_one("a.bin", BY_4, &tokens));
    int next = open(path_of("b.bin"), O_RDONLY | O_CLOEXEC), fd = next - 1;
    must(dup2(next, fd)); /* the file that was opened last has the number before */
    assert_sample(tokens, 1, 4, 5, 6, 7);
    check(read_sample(tokens, 0, found, NULL) == 4 && fcntl(fd, F_GETFD) >= 0);
    hr_tokens_close(tokens);
    check(fcntl(fd, F_GETFD) >= 0 && close(fd) == 0 && close(next) == 0);
}

static void relative_paths_outlive_a_chdir(void **state) {
    const char *paths[] = {"a.bin"};
    char before[4096];
    hr_tokens *tokens;
    int64_t found[4];
    struct rlimit limit, low;
    (void)state;
    check(getcwd(before, sizeof before) != NULL && chdir(folder) == 0);
    put("a.bin", TEN, sizeof TEN);
    must(hr_tokens_open(paths, 1, &BY_4, &tokens));
    check(chdir(before) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
    low = limit;
    low.rlim_cur = 8; /* one file at a time */
    check(setrlimit(RLIMIT_NOFILE, &low) == 0);
    check(read_sample(tokens, 1, found, NULL) == 4 && found[0] == 4);
    check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    hr_tokens_close(tokens);
}

/* 2^33 tokens in a file without blocks, with a few at its end. */
static void offsets_above_32_bits_are_read(void **state) {
    enum { COUNT = 4 };
    static const uint16_t last[COUNT] = {5, 6, 7, 8};
    const uint64_t count = UINT64_C(1) << 33;
    int64_t indices[] = {(int64_t)(count / COUNT) - 1, 0}, found[2 * COUNT];
    struct hr_tokens_options given = {.dtype = {1, 16, 1}, .length = COUNT}; /* without it, zeros are refused */
    hr_tokens *tokens;
    (void)state;
    put("a.bin", "", 0);
    int fd = open(path_of("a.bin"), O_WRONLY | O_CLOEXEC);
    check(fd >= 0 && ftruncate(fd, (off_t)(2 * count)) == 0);
    check(pwrite(fd, last, sizeof last, (off_t)(2 * count - sizeof last)) == sizeof last && close(fd) == 0);
    must(open_one("a.bin", given, &tokens));
    check(count_of(tokens) == count / COUNT);
    must(hr_tokens_gather(tokens, indices, 2, found, NULL));
    check(found[0] == 5 && found[3] == 8 && found[4] == 0);
    hr_tokens_close(tokens);
}

/* ---- threads ---- */

/* They open and close each other's files. */
static void threads_share_the_files(void **state) {
    struct reader readers[READERS];
    struct hr__thread threads[READERS];
    struct rlimit before;
    hr_tokens *tokens;
    (void)state;
    lower_limit(&before);
    must(hr_tokens_open(put_numbered(READ_FILES), READ_FILES, &BY_4, &tokens));
    start_readers(tokens, readers, threads);
    join_readers(readers, threads);
    check(setrlimit(RLIMIT_NOFILE, &before) == 0);
    hr_tokens_close(tokens);
}

#define T(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(windows_of_several_files_are_read),
        T(labels_and_strides_shift_windows),
        T(long_windows_are_read_in_pieces),
        T(every_dtype_becomes_int64),
        T(tokens_above_the_vocabulary_are_refused),
        T(llmc_heads_are_checked),
        T(npy_heads_are_checked),
        T(headless_files_need_a_dtype),
        T(foreign_files_need_a_dtype),
        T(wrong_options_are_refused),
        T(megatrons_sequences_and_documents_are_read),
        T(documents_of_scattered_sequences_are_joined),
        T(bad_indexes_of_megatron_are_named),
        T(every_truncated_index_is_refused),
        T(documents_between_separators_are_found),
        T(changed_files_are_errors),
        T(a_separator_that_is_gone_is_an_error),
        T(closed_files_are_opened_again),
        T(descriptors_that_the_program_closed_are_not_used),
        T(relative_paths_outlive_a_chdir),
        T(offsets_above_32_bits_are_read),
        T(threads_share_the_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
