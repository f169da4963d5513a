/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "lines_scene.h"

#include "source/lines.h"

/* Lines of text files: what is found, what is refused, and what happens if a file or its index is another one. */

static void lines_of_several_files_are_read(void **state) {
    struct hr_line line;
    (void)state;
    puts_at("a", "\xef\xbb\xbf"
                 "one\r\n\n \t\r\ntwo\n");
    puts_at("b", "");
    puts_at("c", "\xef\xbb\xbf");
    puts_at("d", "three\r\r\n\nfour\r");
    const char *paths[] = {path_of("a"), path_of("b"), path_of("c"), path_of("d")};
    struct text text = open_text(paths, 4);
    assert_line(text.lines, 0, "one");
    assert_line(text.lines, 1, "two");
    assert_line(text.lines, 2, "three\r");
    assert_line(text.lines, 3, "four\r"); /* no line feed is behind it */
    must(hr_lines_find(text.lines, 3, &line));
    check(line.file == 3 && line.at == 9 && line.bytes == 5 && strcmp(line.path, paths[3]) == 0);
    check(text.index->files[0].counts[HR_LINES_BLANK] == 2 && text.index->files[3].counts[HR_LINES_BLANK] == 1);
    assert_refused(read_line(text.lines, 4, NULL), -ERANGE, "no sample 4");
    close_text(&text);
}

static void lines_have_numbers_and_lengths(void **state) {
    static const uint64_t wanted[] = {2, 3, 6, 1, 2};
    int64_t lengths[5];
    uint64_t number;
    (void)state;
    puts_at("a", "\none\r\ntwo\n\n\r\nthree");
    puts_at("b", "four\nfive\n");
    const char *paths[] = {path_of("a"), path_of("b")};
    struct text text = open_text(paths, 2);
    for (uint64_t i = 0; i < 5; i++) {
        must(hr_lines_number(text.lines, i, &number));
        check(number == wanted[i]);
    }
    must(hr_lines_lengths(text.lines, 0, 5, lengths));
    check(lengths[0] == 3 && lengths[2] == 5 && lengths[4] == 4);
    assert_refused(hr_lines_lengths(text.lines, 3, 3, lengths), -ERANGE, "no 3 lines from 3");
    assert_refused(hr_lines_number(text.lines, 5, &number), -ERANGE, "no sample 5");
    close_text(&text);
}

/* Lengths around those of a piece and of the window, with and without "\r". */
static void long_lines_are_whole(void **state) {
    static const uint64_t piece = HR__LINE_PIECE_BYTES, window = HR__WINDOW_BYTES;
    const uint64_t lengths[] = {piece - 1, piece, piece + 1, 2 * piece, window - 2, window, window + piece, 1, 1000000};
    enum { COUNT = sizeof lengths / sizeof *lengths };
    (void)state;
    for (int returns = 0; returns < 2; returns++) {
        FILE *file = fopen(path_of("a"), "w");
        for (int i = 0; i < COUNT; i++) {
            for (uint64_t j = 0; j < lengths[i]; j++) putc("abcdefg"[j % 7], file);
            fputs(returns ? "\r\n" : "\n", file);
        }
        check(fclose(file) == 0);
        const char *paths[] = {path_of("a")};
        struct text text = open_text(paths, 1);
        for (int i = 0; i < COUNT; i++) {
            char *copy = NULL;
            must(read_line(text.lines, (uint64_t)i, &copy));
            check(strlen(copy) == lengths[i] && copy[lengths[i] - 1] == "abcdefg"[(lengths[i] - 1) % 7]);
            free(copy);
        }
        close_text(&text);
    }
}

static void files_of_other_formats_are_refused(void **state) {
    static const struct {
        const char *bytes;
        size_t count;
        const char *text;
    } cases[] = {
        {"\x1f\x8b\x08\0", 4, "gzip -dk"},
        {"\x28\xb5\x2f\xfd", 4, "zstd -d"},
        {"BZh91AY&SYxx", 12, "bzip2 -dk"},
        {"\xfd\x37zXZ\0\0", 7, "xz -dk"},
        {"\xff\xfe"
         "a\0\n\0",
         6, "iconv -f UTF-16"},
        {"PK\3\4\n", 5, "unzip"},
    };
    hr_lines *lines;
    hr_index *index;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put("a", cases[i].bytes, cases[i].count);
        const char *paths[] = {path_of("a")};
        make_index(paths, 1, &index);
        check(index->files[0].damage != HR_DAMAGE_NONE && index->files[0].good_bytes == 0);
        assert_refused(hr_lines_open(paths, 1, index, &lines), -EINVAL, cases[i].text);
        assert_refused(hr_lines_open(paths, 0, index, &lines), -EINVAL, "of 1 files is not the one of 0");
        hr_index_close(index);
    }
}

/* ---- files and indexes that are not what they were ---- */

static void put_same_time(const char *name, const char *string) {
    struct stat before;
    check(stat(path_of(name), &before) == 0);
    puts_at(name, string);
    const struct timespec times[2] = {before.st_atim, before.st_mtim};
    check(utimensat(AT_FDCWD, path_of(name), times, 0) == 0);
}

static void rewritten_lines_are_noticed(void **state) {
    (void)state;
    puts_at("a", "one\ntwo\nthree\nfour\nfive\n");
    const char *paths[] = {path_of("a")};
    struct text text = open_text(paths, 1);
    put_same_time("a", "one\ntwe\nthree\n\nour\nfive\n");
    assert_line(text.lines, 0, "one");
    assert_refused(read_line(text.lines, 1, NULL), -ESTALE, "there is another line at offset 4");
    assert_line(text.lines, 2, "three");
    assert_refused(read_line(text.lines, 3, NULL), -ESTALE, "no line begins or ends at offset 14");
    assert_line(text.lines, 4, "five");
    puts_at("a", "one\n");
    assert_refused(read_line(text.lines, 0, NULL), -ESTALE, "was changed since it was opened");
    close_text(&text);
}

static void changed_file_is_refused_with_its_old_index(void **state) {
    hr_lines *lines;
    hr_index *index;
    (void)state;
    puts_at("a", "one\ntwo\n");
    const char *paths[] = {path_of("a")};
    make_index(paths, 1, &index);
    puts_at("a", "one\ntwo\n\n");
    assert_refused(hr_lines_open(paths, 1, index, &lines), -ESTALE, "changed or replaced since its index was made");
    hr_index_close(index);
}

/* Entries that name other bytes, with the hash that these have. */
static void forged_entries_give_no_other_bytes(void **state) {
    static const char file[] = "\xef\xbb\xbf"
                               "one\ntwo\r\nthree";
    static const struct {
        uint64_t at, bytes;
        const char *text;
    } cases[] = {
        {4, 2, "no line begins"},
        {3, 2, "no line begins or ends"},
        {3, 7, "no line begins or ends"},
        {0, 6, "no line"},
        {1, 5, "no line"},
        {12, 6, "there is no line"},
        {12, 1, "no line"},
        {UINT64_C(1) << 40, 4, "no line"},
        {7, (UINT64_C(1) << 40) - 1, "no line"},
    };
    (void)state;
    puts_at("a", file);
    const char *paths[] = {path_of("a")};
    struct text text = open_text(paths, 1);
    struct hr__entry *entries = (struct hr__entry *)(uintptr_t)text.index->entries;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t at = cases[i].at, bytes = cases[i].bytes;
        bool is_within = at + bytes < sizeof file;
        uint64_t hash = is_within ? hr__line_hash((const unsigned char *)file + at, bytes) : 0;
        entries[1] = hr__line_entry(at, bytes, hash);
        int r = read_line(text.lines, 1, NULL);
        check(r == -ESTALE && strstr(hr_error_message(), cases[i].text));
    }
    assert_line(text.lines, 2, "three");
    close_text(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_of_several_files_are_read, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(lines_have_numbers_and_lengths, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(long_lines_are_whole, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(files_of_other_formats_are_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(rewritten_lines_are_noticed, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(changed_file_is_refused_with_its_old_index, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(forged_entries_give_no_other_bytes, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
