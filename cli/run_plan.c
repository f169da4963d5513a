/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Makes a job from the options: how many ranks, where they meet, what they run, and how they end. */

enum { MASTER_PORT_DEFAULT = 29500 }; /* the default for a job on several machines */

static const char *text_of(const struct run *run, enum run_option option) {
    return run->given[option].text;
}

static bool equals(const struct run *run, enum run_option option, const char *text) {
    return run_has(run, option) && !strcmp(text_of(run, option), text);
}

static uint64_t bit(int signal) {
    return UINT64_C(1) << (signal - 1);
}

/* ---- where ranks meet ---- */

/* How the machines of the job meet. */
struct meeting {
    int64_t least_nodes, most_nodes, node_rank;
    int64_t port;   /* -1: the command line has none */
    bool is_static; /* at an address that the command line has */
};

/* torchrun's rule: a static rendezvous of one machine without an address is one with a free port. */
static bool is_static(const struct run *run, int64_t most_nodes) {
    if (run_has(run, STANDALONE)) return false;
    if (run_has(run, RDZV_BACKEND) && !equals(run, RDZV_BACKEND, "static")) return false;
    return most_nodes > 1 || run_has(run, RDZV_ENDPOINT) || run_has(run, MASTER_PORT);
}

static bool read_meeting(struct run *run, struct meeting *ret_meeting) {
    struct meeting meeting = {.port = -1};
    if (!run_node_counts(run, &meeting.least_nodes, &meeting.most_nodes)) return false;
    if (run_has(run, STANDALONE) && meeting.least_nodes > 1)
        return run_fail(run, "%s is for one machine, and %s is '%s'; remove one of them", run_called(run, STANDALONE),
                        run_called(run, NNODES), text_of(run, NNODES));
    if (run_has(run, RDZV_CONF) && !run_rendezvous_configuration(run)) return false;
    meeting.is_static = is_static(run, meeting.most_nodes);
    int64_t last_node = meeting.is_static ? meeting.most_nodes - 1 : INT32_MAX;
    if (run_has(run, NODE_RANK) && !run_integer(run, NODE_RANK, 0, last_node, &meeting.node_rank)) return false;
    if (run_has(run, MASTER_PORT) && !run_integer(run, MASTER_PORT, 0, UINT16_MAX, &meeting.port)) return false;
    *ret_meeting = meeting;
    return true;
}

static bool is_own_rendezvous(const struct run *run) {
    return run_has(run, STANDALONE) || !run_has(run, RDZV_BACKEND) || equals(run, RDZV_BACKEND, "static") ||
           equals(run, RDZV_BACKEND, "c10d");
}

/* Returns why torch.distributed.run has to start the ranks; NULL: it does not. */
static const char *needs_torchrun(struct run *run, const struct meeting *meeting) {
    for (enum run_option option = 0; option < OPTION_COUNT; option++)
        if (run_rows[option].origin == HANDED_ON && run_has(run, option))
            return run_print(run, "%s is given", run_called(run, option));
    if (meeting->least_nodes != meeting->most_nodes) return "the number of machines is a range";
    if (meeting->most_nodes > 1 && !meeting->is_static) return "several machines need a rendezvous";
    if (meeting->most_nodes > 1 && run->job.max_restarts > 0) return "it restarts ranks of several machines";
    if (!is_own_rendezvous(run)) return run_print(run, "the rendezvous is %s", text_of(run, RDZV_BACKEND));
    return NULL;
}

/* MASTER_ADDR and MASTER_PORT of a static rendezvous. */
static bool read_address(struct run *run, const struct meeting *meeting) {
    int64_t node_count = meeting->most_nodes;
    int64_t port = meeting->port >= 0 ? meeting->port : node_count > 1 ? MASTER_PORT_DEFAULT : 0;
    if (run_has(run, RDZV_ENDPOINT)) {
        if (!run_endpoint(run, &run->job.master_addr, &port)) return false;
    } else {
        run->job.master_addr = "127.0.0.1";
        if (node_count > 1 && !text_of(run, MASTER_ADDR))
            run_say(run, "--master-addr is not given, so all machines look for rank 0 on themselves (127.0.0.1)");
        if (text_of(run, MASTER_ADDR) &&
            !run_address(run, MASTER_ADDR, text_of(run, MASTER_ADDR), &run->job.master_addr))
            return false;
    }
    if (!port && node_count > 1)
        return run_fail(run,
                        "%s has port 0, and %" PRId64
                        " machines cannot find a free port without each other; give one from 1 to 65535",
                        run_called(run, run_has(run, RDZV_ENDPOINT) ? RDZV_ENDPOINT : MASTER_PORT), node_count);
    run->job.master_port = (uint16_t)port;
    return true;
}

static void say_unused(struct run *run, enum run_option option, const char *why) {
    if (run_has(run, option)) run_say(run, "%s has no effect: %s", run_called(run, option), why);
}

static void say_unused_rendezvous(struct run *run, const struct meeting *meeting) {
    static const char only_static[] = "it is for a static rendezvous, and this job of one machine uses a free port";
    say_unused(run, RDZV_CONF, "ranks of one machine, or with a static address, need no rendezvous");
    if (meeting->is_static) {
        say_unused(run, LOCAL_ADDR, "the job has the address of rank 0's machine");
        return;
    }
    say_unused(run, MASTER_ADDR, only_static);
    say_unused(run, MASTER_PORT, only_static);
    if (!equals(run, NODE_RANK, "0")) say_unused(run, NODE_RANK, "the job has one machine");
}

/* Checks what is used if headrace starts the ranks. */
static bool plan_meeting(struct run *run, const struct meeting *meeting, const struct run_machine *machine) {
    struct hr_launch_job *job = &run->job;
    job->node_count = (uint32_t)meeting->most_nodes;
    if (meeting->is_static) {
        if (!read_address(run, meeting)) return false;
        job->node_rank = (uint32_t)meeting->node_rank;
    } else if (run_has(run, LOCAL_ADDR) && !run_address(run, LOCAL_ADDR, text_of(run, LOCAL_ADDR), &job->master_addr)) {
        return false;
    }
    bool is_named = run_has(run, RDZV_ID) && !run_has(run, STANDALONE);
    job->run_id = is_named ? text_of(run, RDZV_ID) : meeting->is_static ? NULL : machine->run_id;
    job->role = text_of(run, ROLE);
    say_unused_rendezvous(run, meeting);
    return true;
}

/* ---- how many ranks, and their streams ---- */

/* torch.distributed.run counts devices itself: then the largest number is used to check what names local ranks. */
static bool count_devices(struct run *run, const struct run_machine *machine, const char *kind) {
    run->job.local_size = HR_LAUNCH_MAX_RANKS;
    return run->handed_on || machine->count_devices(run, kind, &run->job.local_size);
}

static bool read_local_size(struct run *run, const struct run_machine *machine) {
    static const char *const kinds[] = {"auto", "cpu", "gpu", "xpu", NULL};
    const char *text = text_of(run, NPROC_PER_NODE);
    int64_t size = 0;
    run->job.local_size = 1;
    if (!text) return true;
    for (const char *const *kind = kinds; *kind; kind++)
        if (!strcmp(text, *kind)) return count_devices(run, machine, *kind);
    if (!run_read_integer(text, &size) || size < 1 || size > HR_LAUNCH_MAX_RANKS)
        return run_fail(run, "%s is '%s'; give a number from 1 to %d, or auto, cpu, gpu or xpu",
                        run_called(run, NPROC_PER_NODE), text, HR_LAUNCH_MAX_RANKS);
    run->job.local_size = (uint32_t)size;
    return true;
}

static bool read_streams(struct run *run, enum run_option option, const uint8_t **ret_streams) {
    if (!run_has(run, option)) return true;
    uint8_t *streams = run_keep(run, run->job.local_size);
    if (!run_streams(run, option, run->job.local_size, streams)) return false;
    for (uint32_t i = 0; i < run->job.local_size; i++)
        if (streams[i]) *ret_streams = streams;
    return true;
}

static bool plan_streams(struct run *run) {
    struct hr_launch_job *job = &run->job;
    if (!read_streams(run, REDIRECTS, &job->redirects) || !read_streams(run, TEE, &job->tees)) return false;
    job->logged_prefix = run_has(run, LOG_LINE_PREFIX_TEMPLATE)
                             ? text_of(run, LOG_LINE_PREFIX_TEMPLATE)
                             : run_variable(run, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    if (run_has(run, LOCAL_RANKS_FILTER)) {
        bool *is_shown = run_keep(run, job->local_size * sizeof *is_shown);
        if (!run_ranks(run, LOCAL_RANKS_FILTER, job->local_size, is_shown)) return false;
        job->is_shown = is_shown;
    }
    if (equals(run, LOG_DIR, "/dev/null")) { /* torchrun writes no logs then */
        job->redirects = job->tees = NULL;
    } else {
        job->log_dir = run_has(run, LOG_DIR) ? text_of(run, LOG_DIR) : NULL;
        run->needs_temporary = !job->log_dir && (job->redirects || job->tees);
    }
    return true;
}

static bool plan_terminal(struct run *run) {
    static const char *const whens[] = {"auto", "never", NULL};
    struct hr_launch_job *job = &run->job;
    int64_t rank = 0;
    if (text_of(run, PREFIX) && !run_choice(run, PREFIX, whens)) return false;
    job->has_prefix = !equals(run, PREFIX, "never");
    if (!text_of(run, STDIN)) return true;
    if (equals(run, STDIN, "none")) {
        job->stdin_rank = -1;
        return true;
    }
    if (!run_read_integer(text_of(run, STDIN), &rank) || rank < 0 || rank >= job->local_size)
        return run_fail(run, "--stdin is '%s'; give a local rank from 0 to %" PRIu32 ", or none", text_of(run, STDIN),
                        job->local_size - 1);
    job->stdin_rank = (int32_t)rank;
    return true;
}

/* ---- how it ends ---- */

static bool plan_end(struct run *run) {
    struct hr_launch_job *job = &run->job;
    job->grace_ns = INT64_C(5000000000);
    job->exit_timeout_ns = job->stall_after_ns = -1;
    if (run_has(run, SHUTDOWN_TIMEOUT) && !run_seconds(run, SHUTDOWN_TIMEOUT, &job->grace_ns)) return false;
    if (text_of(run, GRACE) && !run_seconds(run, GRACE, &job->grace_ns)) return false;
    if (text_of(run, EXIT_TIMEOUT) && !run_seconds(run, EXIT_TIMEOUT, &job->exit_timeout_ns)) return false;
    if (text_of(run, STALL_AFTER) && !run_seconds(run, STALL_AFTER, &job->stall_after_ns)) return false;
    if (text_of(run, REPORT) && !run_has(run, REPORT)) return run_fail(run, "--report is ''; give the name of a file");
    job->report = text_of(run, REPORT);
    job->ends_with_parent = run_has(run, END_WITH_PARENT);
    if (!run_shutdown_ns(run, &job->shutdown_ns) || !run_end_signals(run, &job->end_signals)) return false;
    job->passed_signals = (bit(SIGUSR1) | bit(SIGUSR2)) & ~job->end_signals;
    return true;
}

static bool plan_restarts(struct run *run) {
    int64_t restarts = 0;
    if (text_of(run, MAX_RESTARTS) && !run_integer(run, MAX_RESTARTS, 0, INT32_MAX, &restarts)) return false;
    run->job.max_restarts = (uint32_t)restarts;
    return true;
}

/* Checks the options without effect as torchrun does. */
static bool check_without_effect(struct run *run) {
    static const char *const methods[] = {"spawn", "fork", "forkserver", NULL};
    int64_t interval;
    if (text_of(run, MONITOR_INTERVAL) && !run_seconds(run, MONITOR_INTERVAL, &interval)) return false;
    return !text_of(run, START_METHOD) || run->given[START_METHOD].variable || run_choice(run, START_METHOD, methods);
}

static void say_without_effect(struct run *run) {
    const char *names = "";
    int count = 0;
    for (enum run_option option = 0; option < OPTION_COUNT; option++)
        if (run_rows[option].origin == WITHOUT_EFFECT && text_of(run, option))
            names = run_print(run, "%s%s%s", names, count++ ? ", " : "", run_called(run, option));
    if (count) run_say(run, "%s %s no effect", names, count == 1 ? "has" : "have");
}

/* ---- the command ---- */

static bool is_interpreter(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return !strncmp(name, "python", 6) && !name[6 + strspn(name + 6, "0123456789.")];
}

/* Says so if the script is an interpreter, or if an option that belongs before the script is after it. */
static void say_misplaced(struct run *run) {
    static const enum run_option options[] = {NPROC_PER_NODE, NNODES};
    static const char *const names[][3] = {{"--nproc", "--nproc-per-node", "--nproc_per_node"}, {"--nnodes"}};
    const char *script = run->script[0];
    if (is_interpreter(script) && !run_has(run, MODULE))
        run_say(run, "'%s' is run as a Python script; leave it out, or add --no-python", script);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        for (const char *const *word = run->script + 1; *word && !run_has(run, options[i]); word++)
            for (size_t j = 0; j < 3 && names[i][j]; j++)
                if (!strncmp(*word, names[i][j], strcspn(*word, "=")) && !names[i][j][strcspn(*word, "=")])
                    run_say(run, "%s is after %s, and is passed to it; if it is for headrace, write it before",
                            names[i][j], script);
}

static bool plan_command(struct run *run, const struct run_machine *machine, const char *const **ret_command) {
    size_t count = 0, length = 0;
    while (run->script[length]) length++;
    const char **words = run_keep(run, (length + 4) * sizeof *words);
    bool is_module = run_has(run, MODULE) && !run_has(run, RUN_PATH);
    run->job.is_python = !run_has(run, NO_PYTHON) || run_has(run, RUN_PATH);
    run->job.script = run->script[0];
    if (is_module && !run->job.is_python)
        return run_fail(run, "%s and %s exclude each other; give one of them", run_called(run, MODULE),
                        run_called(run, NO_PYTHON));
    if (run->job.is_python) {
        if (!machine->find_interpreter(run, &words[count++])) return false;
        words[count++] = "-u";
        if (is_module) words[count++] = "-m";
        say_misplaced(run);
    }
    memcpy(words + count, run->script, length * sizeof *words);
    *ret_command = words;
    return true;
}

/* ---- exec ---- */

/* Finds the script in the command of an interpreter, for messages. */
static void name_script(struct run *run) {
    const char *const *word = run->script + 1;
    run->job.is_python = is_interpreter(run->script[0]);
    if (!run->job.is_python) return;
    while (*word && (*word)[0] == '-' && (*word)[1] && strcspn(*word, "cm") == strlen(*word)) word++;
    if (*word && !strcmp(*word, "-m")) word++;
    if (*word && (*word)[0] != '-') run->job.script = *word;
}

static bool plan_exec(struct run *run) {
    run->job.kind = HR_LAUNCH_ONE;
    run->job.local_size = run->job.node_count = 1;
    run->job.words = run->script;
    name_script(run);
    return plan_end(run);
}

bool run_plan(struct run *run, const struct run_machine *machine) {
    struct meeting meeting;
    const char *const *command;
    run->job.signal_fd = -1;
    if (!run->script)
        return run_fail(run, run->is_exec ? "there is no command; headrace exec [OPTION...] [--] COMMAND [ARGUMENT...]"
                                          : "there is no script; headrace run [OPTION...] SCRIPT [ARGUMENT...]");
    if (run->is_exec) return plan_exec(run);
    run->job.kind = HR_LAUNCH_RANKS;
    run->job.has_macros = true;
    if (!plan_restarts(run) || !read_meeting(run, &meeting) || !plan_end(run)) return false;
    run->handed_on = needs_torchrun(run, &meeting);
    if (!plan_command(run, machine, &command) || !read_local_size(run, machine) || !plan_streams(run) ||
        !plan_terminal(run) || !check_without_effect(run))
        return false;
    if (run->handed_on) return run_hand_on(run, machine, command);
    run->job.words = command;
    say_without_effect(run);
    return plan_meeting(run, &meeting, machine);
}
