/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <headrace/error.h>
#include <headrace/face/launch.h>

/* ---- words ---- */

static void expect_expanded(const char *word, const char *wanted) {
    struct hr__text text = {0};
    const struct hr__macro macros[] = {{"local_rank", "3"}, {"rank", "7"}, {NULL, NULL}};
    hr__expand(&text, word, macros);
    assert_string_equal(hr__text_string(&text), wanted);
    hr__text_free(&text);
}

static void words_expand_as_python_templates_do(void **state) {
    (void)state;
    expect_expanded("", "");
    expect_expanded("plain", "plain");
    expect_expanded("--gpu=${local_rank}", "--gpu=3");
    expect_expanded("$local_rank/$rank", "3/7");
    expect_expanded("$local_ranks ${local_ranks}", "$local_ranks ${local_ranks}");
    expect_expanded("$$local_rank", "$local_rank");
    expect_expanded("${local_rank", "${local_rank");
    expect_expanded("cost: 5$", "cost: 5$");
    expect_expanded("$HOME ${HOME} $1", "$HOME ${HOME} $1");
}

/* ---- lines ---- */

static void collect(void *context, const char *line, size_t bytes) {
    struct hr__text *shown = context;
    hr__text_add(shown, line, bytes);
    hr__text_adds(shown, "|");
}

static void expect_lines(const char *const *pieces, const char *shown_wanted, const char *rest_wanted) {
    struct hr__lines lines = {0};
    struct hr__text shown = {0};
    for (; *pieces; pieces++) hr__lines_feed(&lines, *pieces, strlen(*pieces), 1, collect, &shown);
    assert_string_equal(hr__text_string(&shown), shown_wanted);
    assert_string_equal(hr__text_string(&lines.rest), rest_wanted);
    hr__text_free(&shown);
    hr__lines_free(&lines);
}

static void output_is_cut_into_whole_lines(void **state) {
    (void)state;
    expect_lines((const char *[]){"a\nb", "c\n", "d", NULL}, "a\n|bc\n|", "d");
    expect_lines((const char *[]){"\n\n", NULL}, "\n|\n|", "");
    expect_lines((const char *[]){"dos\r\nunix\n", NULL}, "dos\n|unix\n|", "");
    expect_lines((const char *[]){"dos\r", "\nnext", NULL}, "dos\n|", "next");
}

static void a_bar_keeps_its_last_state(void **state) {
    (void)state;
    expect_lines((const char *[]){"10%\r20%\r30%", NULL}, "", "30%");
    expect_lines((const char *[]){"10%\r", NULL}, "", "10%\r");
    expect_lines((const char *[]){"10%\r", "20%\r", "done\n", NULL}, "done\n|", "");
    expect_lines((const char *[]){"\r10%", "\r20%", "\n", NULL}, "20%\n|", "");
}

static void a_line_without_an_end_is_cut_into_pieces(void **state) {
    (void)state;
    struct hr__lines lines = {0};
    struct hr__text shown = {0};
    static char data[HR__LINE_MOST_BYTES + 10];
    memset(data, 'x', sizeof data);
    hr__lines_feed(&lines, data, sizeof data, 1, collect, &shown);
    assert_int_equal(shown.length, HR__LINE_MOST_BYTES + 1); /* with the mark of `collect` */
    assert_int_equal(lines.rest.length, 10);
    hr__text_free(&shown);
    hr__lines_free(&lines);
}

static void expect_pending(const char *data, size_t wanted) {
    struct hr__lines lines = {0};
    struct hr__text shown = {0};
    hr__lines_feed(&lines, data, strlen(data), 1, collect, &shown);
    assert_int_equal(hr__lines_pending(&lines), wanted);
    hr__text_free(&shown);
    hr__lines_free(&lines);
}

static void an_unfinished_character_is_held_back(void **state) {
    (void)state;
    expect_pending("", 0);
    expect_pending("abc", 3);
    expect_pending("a\xC3\xA9", 3);
    expect_pending("a\xC3", 1);
    expect_pending("a\xE2\x82", 1);
    expect_pending("a\xF0\x9F\x98", 1);
    expect_pending("\xF0\x9F\x98\x80", 4);
    expect_pending("\x80\x80\x80\x80", 4); /* not UTF-8 at all */
}

/* ---- tails ---- */

static void a_tail_has_the_last_lines(void **state) {
    (void)state;
    struct hr__tail tail = {0};
    struct hr__text text = {0};
    hr__tail_write(&tail, "> ", 2, &text);
    assert_string_equal(hr__text_string(&text), "");
    hr__tail_add(&tail, "one\ntwo\nthree\nfour", 18);
    hr__tail_write(&tail, "> ", 2, &text);
    assert_string_equal(hr__text_string(&text), "> three\n> four\n");
    hr__text_cut(&text, 0);
    hr__tail_add(&tail, "\n", 1);
    hr__tail_write(&tail, "", 1, &text);
    assert_string_equal(hr__text_string(&text), "four\n");
    hr__text_free(&text);
    hr__tail_free(&tail);
}

static void a_tail_stays_small(void **state) {
    (void)state;
    struct hr__tail tail = {0};
    struct hr__text text = {0};
    static char line[1000];
    memset(line, 'y', sizeof line);
    line[sizeof line - 1] = '\n';
    for (int i = 0; i < 1000; i++) hr__tail_add(&tail, line, sizeof line);
    assert_in_range(tail.text.length, HR__TAIL_BYTES, 3 * HR__TAIL_BYTES);
    hr__tail_write(&tail, "", 1000, &text);
    assert_in_range(text.length, 1, HR__TAIL_BYTES + 1);
    hr__text_free(&text);
    hr__tail_free(&tail);
}

/* ---- the first failure ---- */

static void the_earliest_real_failure_is_first(void **state) {
    (void)state;
    const struct hr__failure none = {.is_failure = false};
    const struct hr__failure early_symptom = {.is_failure = true, .is_symptom = true, .at_ns = 5};
    const struct hr__failure late_symptom = {.is_failure = true, .is_symptom = true, .at_ns = 6};
    const struct hr__failure real = {.is_failure = true, .at_ns = 9};
    const struct hr__failure earlier = {.is_failure = true, .at_ns = 8};
    assert_int_equal(hr__first_failure((struct hr__failure[]){none, none}, 2), -1);
    assert_int_equal(hr__first_failure((struct hr__failure[]){none, real}, 2), 1);
    assert_int_equal(hr__first_failure((struct hr__failure[]){early_symptom, real, none}, 3), 1);
    assert_int_equal(hr__first_failure((struct hr__failure[]){real, earlier, early_symptom}, 3), 1);
    assert_int_equal(hr__first_failure((struct hr__failure[]){late_symptom, early_symptom}, 2), 1);
}

/* ---- stacks ---- */

static const char dump[] =
    "Thread 0x00007f01 (most recent call first):\n"
    "  File \"/usr/lib/python3.11/threading.py\", line 320 in wait\n"
    "  File \"other.py\", line 1 in run\n"
    "\n"
    "Current thread 0x00007f02 (most recent call first):\n"
    "  File \"/x/lib/python3.11/site-packages/torch/distributed/c10d.py\", line 9 in all_reduce\n"
    "  File \"train.py\", line 3 in step\n"
    "  File \"train.py\", line 30 in <module>\n";

static struct hr__text text_of(const char *string) {
    struct hr__text text = {0};
    hr__text_adds(&text, string);
    return text;
}

static void expect_described(const char *stacks, const char *wanted) {
    struct hr__text text = text_of(stacks), described = {0};
    hr__stack_describe(&text, &described);
    assert_string_equal(hr__text_string(&described), wanted);
    hr__text_free(&text);
    hr__text_free(&described);
}

static void a_stack_says_where_the_main_thread_is(void **state) {
    (void)state;
    expect_described(dump, "in all_reduce, called at File \"train.py\", line 3 in step");
    expect_described("Thread 0x01 (most recent call first):\n  File \"a.py\", line 1 in f\n\n"
                     "Thread 0x02 (most recent call first):\n  File \"b.py\", line 2 in g\n",
                     "at File \"b.py\", line 2 in g");
    expect_described("", "at a place that is not known");
    expect_described("nonsense\n  File", "at a place that is not known");
}

static void a_stack_is_written_for_the_main_thread(void **state) {
    (void)state;
    struct hr__text text = text_of(dump), lines = {0};
    hr__stack_write(&text, "", 2, &lines);
    assert_string_equal(hr__text_string(&lines),
                        "  File \"/x/lib/python3.11/site-packages/torch/distributed/c10d.py\", line 9 in all_reduce\n"
                        "  File \"train.py\", line 3 in step\n");
    hr__text_free(&text);
    hr__text_free(&lines);
}

/* ---- jobs that are refused ---- */

static void expect_refused(struct hr_launch_job job, const char *part) {
    static const char *const words[] = {"true", NULL};
    struct hr_launch_end end;
    if (!job.words) job.words = words;
    assert_true(hr_launch(&job, &end) < 0);
    assert_non_null(strstr(hr_error_message(), part));
}

static void jobs_that_cannot_be_are_refused(void **state) {
    (void)state;
    const char *const nothing[] = {NULL}, *const missing[] = {"headrace-has-no-such-program", NULL};
    const uint8_t tees[] = {HR_LAUNCH_STDOUT};
    const struct hr_launch_job fine = {.local_size = 1, .node_count = 1, .stdin_rank = -1, .signal_fd = -1};
    struct hr_launch_job job = fine;
    job.words = nothing;
    expect_refused(job, "there is no command");
    job = fine, job.words = missing;
    expect_refused(job, "there is no such program");
    job = fine, job.local_size = 0;
    expect_refused(job, "0 ranks are not from 1 to 4096");
    job = fine, job.local_size = 4097;
    expect_refused(job, "4097 ranks");
    job = fine, job.node_rank = 1;
    expect_refused(job, "node 1 of 1 does not exist");
    job = fine, job.node_count = 2;
    expect_refused(job, "needs the address and the port");
    job = fine, job.stdin_rank = 1;
    expect_refused(job, "local rank 1 cannot read stdin");
    job = fine, job.tees = tees;
    expect_refused(job, "logs need a folder");
    job = fine, job.grace_ns = -1;
    expect_refused(job, "a time limit is negative");
    job = fine, job.log_dir = "/dev/null/logs";
    expect_refused(job, "cannot create a folder for logs in /dev/null/logs");
    job = fine, job.report = "/dev/null/report";
    expect_refused(job, "the report /dev/null/report cannot be written");
}

/* ---- texts ---- */

static void a_text_that_has_no_memory_is_short(void **state) {
    (void)state;
    struct hr__text text = text_of("kept");
    hr__text_add(&text, "x", SIZE_MAX / 2);
    assert_true(text.is_short);
    assert_string_equal(hr__text_string(&text), "kept");
    hr__text_drop(&text, 2);
    assert_string_equal(hr__text_string(&text), "pt");
    hr__text_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_expand_as_python_templates_do),
        cmocka_unit_test(output_is_cut_into_whole_lines),
        cmocka_unit_test(a_bar_keeps_its_last_state),
        cmocka_unit_test(a_line_without_an_end_is_cut_into_pieces),
        cmocka_unit_test(an_unfinished_character_is_held_back),
        cmocka_unit_test(a_tail_has_the_last_lines),
        cmocka_unit_test(a_tail_stays_small),
        cmocka_unit_test(the_earliest_real_failure_is_first),
        cmocka_unit_test(a_stack_says_where_the_main_thread_is),
        cmocka_unit_test(a_stack_is_written_for_the_main_thread),
        cmocka_unit_test(jobs_that_cannot_be_are_refused),
        cmocka_unit_test(a_text_that_has_no_memory_is_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
