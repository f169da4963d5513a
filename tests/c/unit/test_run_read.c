/* SPDX-License-Identifier: Apache-2.0 */
#include "run_scene.h"

/* The grammar of command lines: which words are options, values, and the script. */

/* ---- the grammar; what argparse makes of each of these lines was tried with Python 3.10 to 3.13 ---- */

static void words_after_the_script_are_its_own(void **state) {
    (void)state;
    assert_command("run --nproc 2 train.py --nnodes 3 -m x", "/bin/python3 -u train.py --nnodes 3 -m x");
    assert_command("run train.py --r", "/bin/python3 -u train.py --r");
    assert_command("run train.py --logs d --prefix x", "/bin/python3 -u train.py --logs d --prefix x");
    assert_command("run -m train --logs d --logs-specs x", "/bin/python3 -u -m train --logs d --logs-specs x");
    assert_command("run -- train.py x", "/bin/python3 -u train.py x");
    assert_command("run -- train.py -- x", "/bin/python3 -u train.py -- x");
    assert_command("run train.py -- x", "/bin/python3 -u train.py x");
    assert_command("run train.py x -- y", "/bin/python3 -u train.py x -- y");
    assert_command("run -- -train.py", "/bin/python3 -u -train.py");
    assert_command("run -1 x", "/bin/python3 -u -1 x");
    assert_command("run - x", "/bin/python3 -u - x");
    assert_command("run '' ''", "/bin/python3 -u '' ''");
}

static void modules_and_programs_are_started_as_torchrun_does(void **state) {
    (void)state;
    assert_command("run -m package.train --lr 1", "/bin/python3 -u -m package.train --lr 1");
    assert_command("run --no-python ./train.sh 1", "./train.sh 1");
    assert_command("run --run-path /a.py 1", "/bin/python3 -u /a.py 1");
    assert_command("run --run_path --no_python /a.py", "/bin/python3 -u /a.py");
    assert_command("run --run-path -m /a.py", "/bin/python3 -u /a.py");
    assert_refused("run -m --no-python a", "--module and --no-python exclude each other");
}

static void values_are_found_as_argparse_finds_them(void **state) {
    static const char *const lines[] = {
        "run --role=3 a", "run --role 3 a",    "run --ro 3 a",
        "run --ro=3 a",   "run -m --role 3 a", "run --role 1 --role 3 a",
    };
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct scene scene;
        assert_string_equal(job_of(&scene, lines[i])->role, "3");
        run_done(&scene.run);
    }
    struct scene scene;
    assert_string_equal(job_of(&scene, "run --role - a")->role, "-");
    run_done(&scene.run);
    assert_string_equal(job_of(&scene, "run --role -1.5 a")->role, "-1.5");
    run_done(&scene.run);
    assert_refused("run --role -x a", "--role needs a value: --role NAME");
    assert_refused("run --role --nnodes a", "--role needs a value");
    assert_refused("run --role -- a", "--role needs a value");
    assert_refused("run --role", "--role needs a value");
    assert_refused("run --standalone=1 a", "--standalone takes no value, and has '1'");
}

static void letters_may_be_joined(void **state) {
    static const char *const lines[] = {"run -r3 a",  "run -r 3 a",   "run -r=3 a",
                                        "run -mr3 a", "run -mmr 3 a", "run --redirects=3 a"};
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct scene scene;
        assert_int_equal(job_of(&scene, lines[i])->redirects[0], 3);
        run_done(&scene.run);
    }
    assert_refused("run -m3 a", "-m in -m3 takes no value");
    assert_refused("run -m=1 a", "-m in -m=1 takes no value");
    assert_refused("run -r", "-r needs a value: -r STREAMS");
    assert_refused("run -x a", "there is no option -x");
}

static void shortened_names_mean_torchruns_options_first(void **state) {
    struct scene scene;
    (void)state;
    assert_int_equal(job_of(&scene, "run --nproc 3 a")->local_size, 3);
    run_done(&scene.run);
    assert_int_equal(job_of(&scene, "run --nproc_per-node=3 a")->local_size, 3);
    run_done(&scene.run);
    assert_string_equal(job_of(&scene, "run --rep x a")->report, "x");
    run_done(&scene.run);
    assert_int_equal(job_of(&scene, "run --std none a")->stdin_rank, -1);
    run_done(&scene.run);
    assert_refused("run --st a", "--st can be one of --standalone, --start-method; write more of the name");
    assert_refused("run --rdzv=1 a", "--rdzv can be one of --rdzv-id, --rdzv-backend, --rdzv-endpoint, --rdzv-conf");
}

static void unknown_options_are_answered_with_the_closest(void **state) {
    (void)state;
    assert_refused("run --nprocs 3 a", "there is no option --nprocs; did you mean --nproc? See headrace run --help");
    assert_refused("run --nproc-pernode=3 a", "there is no option --nproc-pernode; did you mean --nproc-per-node?");
    assert_refused("run --grade 3 a", "did you mean --grace?");
    assert_refused("run --lr 0.1 train.py", "there is no option --lr; options of the script go after it");
    assert_refused("exec --nproc 3 a", "there is no option --nproc; options of the command go after it");
}

static void without_a_script_the_usage_is_shown(void **state) {
    (void)state;
    assert_refused("run", "there is no script; headrace run [OPTION...] SCRIPT [ARGUMENT...]");
    assert_refused("run --nproc 3", "there is no script");
    assert_refused("run --", "there is no script");
    assert_refused("exec --grace 3", "there is no command; headrace exec [OPTION...] [--] COMMAND [ARGUMENT...]");
}

static void help_is_given_before_a_script_only(void **state) {
    struct scene scene;
    (void)state;
    for (const char *const *line = (const char *const[]){"run --he", "run -mh a", "run --nproc 2 -h", "exec -h", NULL};
         *line; line++) {
        plan(&scene, "", *line);
        assert_true(scene.run.wants_help);
        run_done(&scene.run);
    }
    assert_command("run a.py --help", "/bin/python3 -u a.py --help");
}

/* ---- PET_ variables ---- */

static void variables_are_defaults(void **state) {
    struct scene scene;
    (void)state;
    assert_int_equal(job_in(&scene, "PET_NPROC_PER_NODE=3 PET_MODULE=1", "run a")->local_size, 3);
    assert_words(scene.run.job.words, "/bin/python3 -u -m a");
    run_done(&scene.run);
    assert_int_equal(job_in(&scene, "PET_NPROC_PER_NODE=3 PET_MODULE=0", "run --nproc 2 a")->local_size, 2);
    assert_words(scene.run.job.words, "/bin/python3 -u a");
    run_done(&scene.run);
    assert_refused_in("PET_STANDALONE=yes", "run a", "PET_STANDALONE is 'yes'; set it to 1 for --standalone, or to 0");
    assert_refused_in("PET_NPROC_PER_NODE=many", "run a", "PET_NPROC_PER_NODE is 'many'; give a number from 1 to 4096");
    assert_refused_in("PET_NNODES=2 PET_STANDALONE=1", "run a",
                      "PET_STANDALONE is for one machine, and PET_NNODES is '2'");
    assert_silent_in("PET_GRACE=x PET_NUMA_BINDING=x PET_START_METHODS=x", "run a");
    assert_silent_in("PET_NNODES=x", "exec a");
}

static void misplaced_words_are_noted(void **state) {
    (void)state;
    assert_note_in("", "run python3.11 a.py",
                   "'python3.11' is run as a Python script; leave it out, or add --no-python");
    assert_silent_in("", "run --no-python python3 a.py");
    assert_note_in("", "run a.py --nproc_per_node=4", "--nproc_per_node is after a.py, and is passed to it");
    assert_silent_in("", "run --nproc 2 a.py --nproc_per_node 4");
    assert_note_in("", "run a.py --nnodes 4", "--nnodes is after a.py");
}

/* ---- exec ---- */

static void exec_starts_the_command_unchanged(void **state) {
    struct scene scene;
    (void)state;
    const struct hr_launch_job *job = job_of(&scene, "exec --grace 3 --report f -- /x/python3 -u -m mod $local_rank");
    assert_words(job->words, "/x/python3 -u -m mod $local_rank");
    assert_int_equal(job->kind, HR_LAUNCH_ONE);
    assert_false(job->has_macros);
    assert_true(job->is_python);
    assert_string_equal(job->script, "mod");
    assert_string_equal(job->report, "f");
    run_done(&scene.run);
    assert_command("exec -- a -- b", "a -- b");
    assert_command("exec a -- b", "a -- b");
    job = job_of(&scene, "exec python -Bu a.py x");
    assert_string_equal(job->script, "a.py");
    run_done(&scene.run);
    job = job_of(&scene, "exec accelerate launch a.py");
    assert_false(job->is_python);
    run_done(&scene.run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_after_the_script_are_its_own),
        cmocka_unit_test(modules_and_programs_are_started_as_torchrun_does),
        cmocka_unit_test(values_are_found_as_argparse_finds_them),
        cmocka_unit_test(letters_may_be_joined),
        cmocka_unit_test(shortened_names_mean_torchruns_options_first),
        cmocka_unit_test(unknown_options_are_answered_with_the_closest),
        cmocka_unit_test(without_a_script_the_usage_is_shown),
        cmocka_unit_test(help_is_given_before_a_script_only),
        cmocka_unit_test(variables_are_defaults),
        cmocka_unit_test(misplaced_words_are_noted),
        cmocka_unit_test(exec_starts_the_command_unchanged),
    };
    return cmocka_run_group_tests_name("run_read", tests, NULL, NULL);
}
