/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run_scene.h"

/* How devices are counted: CUDA_VISIBLE_DEVICES, and interpreters that answer or do not. */

static void visible_devices_are_counted_as_cuda_does(void **state) {
    static const struct {
        const char *visible;
        uint32_t present, count;
    } cases[] = {
        {"", 8, 0},
        {"-1", 8, 0},
        {"0", 8, 1},
        {"0,1,2", 8, 3},
        {"2, 1 ,0", 8, 3},
        {"0,-1,1", 8, 1},
        {"0,1,9", 8, 2},
        {"0,1,0", 8, 0},
        {"0,01", 8, 2},
        {"1gpu2,2ampere", 8, 2},
        {"0,x,1", 8, 1},
        {"x", 8, 0},
        {"NoDevFiles", 8, 0},
        {"0,,1", 8, 1},
        {"0,", 8, 1},
        {"0,1", 1, 1},
        {"GPU-a,GPU-b", 8, 2},
        {"GPU-a,1", 8, 1},
        {"GPU-a,GPU-a", 8, 0},
        {"MIG-a,MIG-b,MIG-c", 1, 3},
        {"MIG-a,GPU-b", 8, 1},
        {"GPU-", 8, 0},
        {"+1,2", 8, 2},
        {"99999999999999999999", 8, 0},
        {"0,1,,1", 8, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (run_visible_count(cases[i].visible, cases[i].present) != cases[i].count)
            fail_msg("'%s': %u", cases[i].visible, run_visible_count(cases[i].visible, cases[i].present));
}

/* ---- an interpreter that is asked for its devices ---- */

/* Asks a shell script. */
static int64_t ask_script(const char *script, int limit_ms, char why[100]) {
    struct scene scene;
    const char *reason = "";
    char path[] = "/tmp/headrace-ask-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && !fchmod(fd, 0700) && dprintf(fd, "#!/bin/sh\n%s\n", script) > 0);
    close(fd);
    job_in(&scene, "PATH=/usr/bin:/bin", "run a");
    int64_t count = run_ask_torch(&scene.run, path, "gpu", limit_ms, &reason);
    snprintf(why, 100, "%s", reason);
    run_done(&scene.run);
    unlink(path);
    return count;
}

static void answer_is_found_in_what_an_interpreter_prints(void **state) {
    char why[100];
    (void)state;
    assert_int_equal(ask_script("echo a warning; echo headrace 3; exec sleep 1000", 100000, why), 3);
    assert_int_equal(ask_script("echo '\nheadrace 0'", 100000, why), 0);
    assert_int_equal(ask_script("yes | head -c 1000000; echo headrace 5", 100000, why), 5);
}

static void interpreter_that_does_not_answer_is_given_up(void **state) {
    char why[100];
    (void)state;
    assert_int_equal(ask_script("exec sleep 1000", 100, why), -1);
    assert_string_equal(why, "there was no answer after 0.1 s");
    assert_int_equal(ask_script("echo Traceback; echo 'ImportError: No module named x' >&2; exit 1", 100000, why), -1);
    assert_string_equal(why, "ImportError: No module named x");
    assert_int_equal(ask_script("exit 1", 100000, why), -1);
    assert_string_equal(why, "it ended without an answer");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(visible_devices_are_counted_as_cuda_does),
        cmocka_unit_test(answer_is_found_in_what_an_interpreter_prints),
        cmocka_unit_test(interpreter_that_does_not_answer_is_given_up),
    };
    return cmocka_run_group_tests_name("run_devices", tests, NULL, NULL);
}
