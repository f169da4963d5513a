/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_RUN_SCENE_H
#define HR_TESTS_RUN_SCENE_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "run.h"

/* Command lines of `headrace run` and `headrace exec` for tests, and what comes of them. Nothing is started. */

enum { WORDS_MOST = 64, LINE_MOST_BYTES = 512 };
#define SECOND INT64_C(1000000000)

static inline uint64_t bit(int number) {
    return UINT64_C(1) << (number - 1);
}

/* ---- a machine with an interpreter and eight devices ---- */

static inline bool find_interpreter(struct run *run, const char **ret_path) {
    (void)run;
    *ret_path = "/bin/python3";
    return true;
}

static inline bool count_devices(struct run *run, const char *kind, uint32_t *ret_count) {
    if (!strcmp(kind, "xpu")) return run_fail(run, "this machine has no xpu");
    *ret_count = 8;
    return true;
}

static const struct run_machine machine = {"/bin/headrace", "random", find_interpreter, count_devices, "/here"};

/* ---- a command line as a text; its words are separated by blanks, and '' is an empty one ---- */

struct scene {
    char line[LINE_MOST_BYTES], environment[LINE_MOST_BYTES];
    const char *words[WORDS_MOST], *variables[WORDS_MOST];
    struct run run;
};

static inline void split(char *text, const char **words) {
    size_t count = 0;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        assert_true(count < WORDS_MOST - 1);
        words[count++] = strcmp(word, "''") ? word : "";
    }
    words[count] = NULL;
}

/* Returns true if there is a job. The first word is run or exec. */
static inline bool plan(struct scene *scene, const char *environment, const char *line) {
    assert_true(strlen(line) < LINE_MOST_BYTES && strlen(environment) < LINE_MOST_BYTES);
    snprintf(scene->line, sizeof scene->line, "%s", line);
    snprintf(scene->environment, sizeof scene->environment, "%s", environment);
    split(scene->line, scene->words);
    split(scene->environment, scene->variables);
    bool is_exec = !strcmp(scene->words[0], "exec");
    return run_read(&scene->run, is_exec, scene->words + 1, scene->variables) && run_plan(&scene->run, &machine);
}

static inline const struct hr_launch_job *job_in(struct scene *scene, const char *environment, const char *line) {
    if (!plan(scene, environment, line)) fail_msg("%s: %s", line, scene->run.error);
    return &scene->run.job;
}

static inline const struct hr_launch_job *job_of(struct scene *scene, const char *line) {
    return job_in(scene, "", line);
}

static inline void assert_words(const char *const *words, const char *expected) {
    char text[LINE_MOST_BYTES * 2] = "";
    size_t length = 0;
    for (const char *const *word = words; *word && length < sizeof text; word++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s", word > words ? " " : "",
                                   **word ? *word : "''");
    assert_string_equal(text, expected);
}

static inline void assert_command(const char *line, const char *expected) {
    struct scene scene;
    assert_words(job_of(&scene, line)->words, expected);
    run_done(&scene.run);
}

static inline void assert_refused_in(const char *environment, const char *line, const char *expected) {
    struct scene scene;
    if (plan(&scene, environment, line)) fail_msg("%s is not refused", line);
    if (!strstr(scene.run.error, expected)) fail_msg("%s: '%s' is not in: %s", line, expected, scene.run.error);
    assert_null(strchr(scene.run.error, '\n'));
    run_done(&scene.run);
}

static inline void assert_refused(const char *line, const char *expected) {
    assert_refused_in("", line, expected);
}

static inline void assert_note_in(const char *environment, const char *line, const char *expected) {
    struct scene scene;
    int count = 0;
    job_in(&scene, environment, line);
    for (const struct run_note *note = scene.run.notes; note; note = note->next)
        count += !!strstr(note->text, expected);
    if (count != 1) fail_msg("%s: %d notes have '%s'", line, count, expected);
    run_done(&scene.run);
}

static inline void assert_silent_in(const char *environment, const char *line) {
    struct scene scene;
    job_in(&scene, environment, line);
    if (scene.run.notes) fail_msg("%s: %s", line, scene.run.notes->text);
    run_done(&scene.run);
}

#endif
