/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <string.h>

/*
 * Jobs whose ranks torch.distributed.run starts. The job is one command:
 *
 *     python -m torch.distributed.run OPTION... --no-python -- headrace exec OPTION... -- COMMAND...
 *
 * so that the launcher is watched and cleaned up after, and so is each rank.
 */

struct words {
    const char **words;
    size_t count;
};

static void add(struct words *words, const char *word) {
    words->words[words->count++] = word;
}

/* Returns the value of an option. torch gives the ranks paths in the folder of logs, and a rank may change its working
 * directory, so a relative path is made absolute. */
static const char *value_of(struct run *run, const struct run_machine *machine, enum run_option option) {
    const char *text = run->given[option].text;
    bool is_relative = option == LOG_DIR && *text && *text != '/' && machine->folder;
    return is_relative ? run_print(run, "%s/%s", machine->folder, text) : text;
}

/* Options of the command line are repeated. Those from PET_ variables are not, because torch reads the same variables,
 * unless the value has changed. */
static void add_torchruns(struct run *run, const struct run_machine *machine, struct words *words) {
    for (enum run_option option = 0; option < OPTION_COUNT; option++) {
        const struct run_given *given = &run->given[option];
        bool is_program = option == MODULE || option == NO_PYTHON || option == RUN_PATH; /* they are in the command */
        if (!given->text || is_program || run_rows[option].origin == OWN) continue;
        const char *value = value_of(run, machine, option);
        if (given->variable && value == given->text) continue;
        add(words,
            run_rows[option].is_flag ? run_rows[option].name : run_print(run, "%s=%s", run_rows[option].name, value));
    }
}

static void add_own(struct run *run, struct words *words, enum run_option option) {
    if (run->given[option].text) add(words, run_print(run, "%s=%s", run_rows[option].name, run->given[option].text));
}

static void say_unused(struct run *run, enum run_option option) {
    if (run->given[option].text)
        run_say(run, "%s has no effect: torch.distributed.run starts the ranks of this job", run_called(run, option));
}

bool run_hand_on(struct run *run, const struct run_machine *machine, const char *const *command) {
    struct hr_launch_job *job = &run->job;
    size_t length = 0;
    while (command[length]) length++;
    struct words words = {run_keep(run, (length + OPTION_COUNT + 12) * sizeof *words.words), 0};
    const char *interpreter = command[0];
    if (!job->is_python && !machine->find_interpreter(run, &interpreter)) return false;
    add(&words, interpreter);
    add(&words, "-m");
    add(&words, "torch.distributed.run");
    add_torchruns(run, machine, &words);
    add(&words, "--no-python");
    add(&words, "--"); /* older versions of argparse check the words after the program, too */
    add(&words, machine->program);
    add(&words, "exec");
    add_own(run, &words, GRACE);
    add_own(run, &words, EXIT_TIMEOUT);
    add_own(run, &words, STALL_AFTER);
    add(&words, "--");
    memcpy(words.words + words.count, command, length * sizeof *command);
    say_unused(run, PREFIX);
    say_unused(run, STDIN);
    *job = (struct hr_launch_job){
        .kind = HR_LAUNCH_ONE,
        .words = words.words,
        .is_python = true,
        .script = "torch.distributed.run",
        .local_size = 1,
        .node_count = 1,
        .grace_ns = job->grace_ns,
        .shutdown_ns = job->shutdown_ns + job->grace_ns, /* the launcher ends its ranks first */
        .exit_timeout_ns = -1,                           /* the ranks have the options for this */
        .stall_after_ns = -1,
        .end_signals = job->end_signals,
        .passed_signals = job->passed_signals,
        .report = job->report,
        .ends_with_parent = job->ends_with_parent,
        .signal_fd = -1,
    };
    run->needs_temporary = false;
    run_say(run, "torch.distributed.run starts the ranks of this job, because %s", run->handed_on);
    return true;
}
