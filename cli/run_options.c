/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <stdlib.h>
#include <string.h>

/* The table of options, and what is made from it: the help, and the option that a misspelt one is most like. */

#define T FROM_TORCHRUN
const struct run_row run_rows[OPTION_COUNT] = {
    /* name, variable, value, help, origin, letter, is a flag, is of exec */
    [NNODES] = {"--nnodes", "PET_NNODES", "N", "machines, or MIN:MAX; default 1", T, 0, 0, 0},
    [NPROC_PER_NODE] = {"--nproc-per-node", "PET_NPROC_PER_NODE", "N",
                        "ranks on this machine: a number, auto, cpu, gpu\nor xpu; default 1; --nproc is the same", T, 0,
                        0, 0},
    [NODE_RANK] = {"--node-rank", "PET_NODE_RANK", "R", "the number of this machine, from 0", T, 0, 0, 0},
    [MASTER_ADDR] = {"--master-addr", "PET_MASTER_ADDR", "HOST", "the machine of rank 0; default 127.0.0.1", T, 0, 0,
                     0},
    [MASTER_PORT] = {"--master-port", "PET_MASTER_PORT", "PORT",
                     "its port; default: a free one, or 29500 for\nseveral machines", T, 0, 0, 0},
    [STANDALONE] = {"--standalone", "PET_STANDALONE", NULL, "one machine and a free port, whatever other\noptions say",
                    T, 0, 1, 0},
    [MODULE] = {"--module", "PET_MODULE", NULL, "SCRIPT is a module, as in python -m", T, 'm', 1, 0},
    [NO_PYTHON] = {"--no-python", "PET_NO_PYTHON", NULL, "SCRIPT is a program, not a Python script", T, 0, 1, 0},
    [RUN_PATH] = {"--run-path", "PET_RUN_PATH", NULL, "SCRIPT is a Python script (the default)", T, 0, 1, 0},
    [HEADSPACE] = {"--headspace", NULL, NULL,
                   "measure what loading costs a loop, and end the\nscript; HEADRACE_HEADSPACE=100 is the same", OWN, 0,
                   1, 0},
    [LOG_DIR] = {"--log-dir", "PET_LOG_DIR", "DIR", "the folder of log files", T, 0, 0, 0},
    [REDIRECTS] = {"--redirects", "PET_REDIRECTS", "STREAMS",
                   "write to log files, not to the terminal: 1 is\nstdout, 2 stderr, 3 both; or for some ranks:\n"
                   "0:3,1:2",
                   T, 'r', 0, 0},
    [TEE] = {"--tee", "PET_TEE", "STREAMS", "write to log files and to the terminal", T, 't', 0, 0},
    [LOG_LINE_PREFIX_TEMPLATE] =
        {"--log-line-prefix-template", "PET_LOG_LINE_PREFIX_TEMPLATE", "TEXT",
         "begin the lines of --tee so; with ${role_name},\n${rank}, ${local_rank}, ${hostname}", T, 0, 0, 0},
    [LOCAL_RANKS_FILTER] = {"--local-ranks-filter", "PET_LOCAL_RANKS_FILTER", "RANKS",
                            "show the output of these ranks only: 0,1", T, 0, 0, 0},
    [PREFIX] = {"--prefix", NULL, "WHEN", "auto: lines begin with [rank] if there are\nseveral ranks (default); never",
                OWN, 0, 0, 0},
    [STDIN] = {"--stdin", NULL, "RANK", "the local rank that reads stdin, or none;\ndefault 0", OWN, 0, 0, 0},
    [REPORT] = {"--report", NULL, "FILE", "write how the job ended, as JSON", OWN, 0, 0, 1},
    [MAX_RESTARTS] = {"--max-restarts", "PET_MAX_RESTARTS", "N",
                      "start all ranks again after a failure, N times\nat most; default 0", T, 0, 0, 0},
    [GRACE] = {"--grace", NULL, "S", "after a failure: seconds from SIGTERM to SIGKILL;\ndefault 5", OWN, 0, 0, 1},
    [SHUTDOWN_TIMEOUT] = {"--shutdown-timeout", "PET_SHUTDOWN_TIMEOUT", "S",
                          "after SIGTERM, SIGINT or SIGHUP to headrace:\nseconds until SIGKILL; default 30; without\n"
                          "--grace also after a failure",
                          T, 0, 0, 0},
    [SIGNALS_TO_HANDLE] = {"--signals-to-handle", "PET_SIGNALS_TO_HANDLE", "NAMES",
                           "more signals that end the job: SIGUSR1,SIGUSR2;\nthese two are only passed on to ranks "
                           "otherwise",
                           T, 0, 0, 0},
    [EXIT_TIMEOUT] = {"--exit-timeout", NULL, "S",
                      "end a rank that does not exit in S seconds after\nthe end of its program; default: only report "
                      "it",
                      OWN, 0, 0, 1},
    [STALL_AFTER] = {"--stall-after", NULL, "S",
                     "end a job whose ranks make no step in S seconds;\ndefault: only report it", OWN, 0, 0, 1},
    [END_WITH_PARENT] = {"--end-with-parent", NULL, NULL,
                         "end the job when the process that has started\nheadrace has ended", OWN, 0, 1, 1},
    [ROLE] = {"--role", "PET_ROLE", "NAME", "the value of ROLE_NAME; default: default", T, 0, 0, 0},
    [RDZV_ID] = {"--rdzv-id", "PET_RDZV_ID", "ID", "the name of the job", T, 0, 0, 0},
    [RDZV_BACKEND] = {"--rdzv-backend", "PET_RDZV_BACKEND", "NAME",
                      "static (default) or c10d; c10d and others need\ntorch for several machines", T, 0, 0, 0},
    [RDZV_ENDPOINT] = {"--rdzv-endpoint", "PET_RDZV_ENDPOINT", "HOST:PORT",
                       "for static: as --master-addr and --master-port", T, 0, 0, 0},
    [RDZV_CONF] = {"--rdzv-conf", "PET_RDZV_CONF", "K=V,...", "settings of the rendezvous", T, 0, 0, 0},
    [LOCAL_ADDR] = {"--local-addr", "PET_LOCAL_ADDR", "HOST", "the address of this machine", T, 0, 0, 0},
    [VIRTUAL_LOCAL_RANK] = {"--virtual-local-rank", "PET_VIRTUAL_LOCAL_RANK", NULL, NULL, HANDED_ON, 0, 1, 0},
    [NUMA_BINDING] = {"--numa-binding", NULL, "MODE", NULL, HANDED_ON, 0, 0, 0},
    [LOGS_SPECS] = {"--logs-specs", NULL, "NAME", NULL, HANDED_ON, 0, 0, 0},
    [DUPLICATE_STDOUT_FILTERS] = {"--duplicate-stdout-filters", "PET_DUPLICATE_STDOUT_FILTERS", "TEXTS", NULL,
                                  HANDED_ON, 0, 0, 0},
    [DUPLICATE_STDERR_FILTERS] = {"--duplicate-stderr-filters", "PET_DUPLICATE_STDERR_FILTERS", "TEXTS", NULL,
                                  HANDED_ON, 0, 0, 0},
    [MONITOR_INTERVAL] = {"--monitor-interval", "PET_MONITOR_INTERVAL", "S", NULL, WITHOUT_EFFECT, 0, 0, 0},
    [START_METHOD] = {"--start-method", "PET_START_METHOD", "NAME", NULL, WITHOUT_EFFECT, 0, 0, 0},
    [EVENT_LOG_HANDLER] = {"--event-log-handler", "PET_EVENT_LOG_HANDLER", "NAME", NULL, WITHOUT_EFFECT, 0, 0, 0},
    [HELP] = {"--help", NULL, NULL, "show this text", T, 'h', 1, 1},
};

const char *run_called(const struct run *run, enum run_option option) {
    const char *variable = run->given[option].variable;
    return variable ? variable : run_rows[option].name;
}

bool run_has(const struct run *run, enum run_option option) {
    const char *text = run->given[option].text;
    return text && (run_rows[option].is_flag || *text);
}

/* ---- help ---- */

enum { HELP_COLUMN = 30 };

static void show_row(FILE *to, enum run_option option) {
    const struct run_row *row = &run_rows[option];
    int width = row->letter ? fprintf(to, "  -%c, %s", row->letter, row->name) : fprintf(to, "  %s", row->name);
    if (row->value) width += fprintf(to, " %s", row->value);
    if (!row->help) {
        fputc('\n', to);
        return;
    }
    bool is_short = width < HELP_COLUMN - 1;
    for (const char *line = row->help; *line; line += *line == '\n') {
        int length = (int)strcspn(line, "\n");
        if (line == row->help && is_short)
            fprintf(to, "%*s", HELP_COLUMN - width, "");
        else
            fprintf(to, "%s%*s", line == row->help ? "\n" : "", HELP_COLUMN, "");
        fprintf(to, "%.*s\n", length, line);
        line += length;
    }
}

static void show_group(FILE *to, const char *title, enum run_option first, enum run_option last) {
    fprintf(to, "\n%s\n", title);
    for (enum run_option option = first; option <= last; option++) show_row(to, option);
}

int run_show_help(FILE *to) {
    fputs("Usage: headrace run [OPTION...] SCRIPT [ARGUMENT...]\n"
          "\n"
          "Starts the ranks of a job on this machine with torchrun's options, shows\n"
          "their output, and ends all of them if one fails. `-` and `_` in options are\n"
          "the same. PET_NNODES=2 and so on set defaults, as with torchrun.\n"
          "\n"
          "  headrace run --nproc 4 train.py --lr 0.1\n"
          "  headrace run --nproc gpu -m package.train\n"
          "  headrace run --nnodes 2 --node-rank 0 --master-addr host0 train.py\n",
          to);
    show_group(to, "Ranks and machines:", NNODES, STANDALONE);
    show_group(to, "The program:", MODULE, HEADSPACE);
    show_group(to, "Output:", LOG_DIR, REPORT);
    show_group(to, "Failures and ends:", MAX_RESTARTS, END_WITH_PARENT);
    show_group(to, "Names and rendezvous:", ROLE, LOCAL_ADDR);
    show_group(to,
               "With one of these, with a rendezvous of several machines, and with restarts\n"
               "of several machines, torch.distributed.run starts the ranks, and headrace\n"
               "watches them:",
               VIRTUAL_LOCAL_RANK, DUPLICATE_STDERR_FILTERS);
    show_group(to, "Accepted, and without effect:", MONITOR_INTERVAL, EVENT_LOG_HANDLER);
    fputc('\n', to);
    show_row(to, HELP);
    fputs("\nPYTHON_EXEC names the interpreter of the ranks. Default: that of the active\n"
          "environment or python3 of PATH, if it has this headrace, else the one in the\n"
          "directory of this program if it has torch, else python3 of PATH.\n"
          "\n"
          "The exit code is that of the first rank that failed, or 128 + its signal;\n"
          "2: the command line is wrong; 124: --exit-timeout or --stall-after;\n"
          "125: headrace failed; 126, 127: the program cannot be started.\n",
          to);
    return 0;
}

int run_show_exec_help(FILE *to) {
    fputs("Usage: headrace exec [OPTION...] [--] COMMAND [ARGUMENT...]\n"
          "\n"
          "Starts one command, explains how it fails, and ends what it leaves behind.\n"
          "The command is one rank of another launcher, or a launcher:\n"
          "\n"
          "  srun headrace exec python train.py\n"
          "  headrace exec accelerate launch train.py\n"
          "\n",
          to);
    for (enum run_option option = 0; option < OPTION_COUNT; option++)
        if (run_rows[option].is_of_exec) show_row(to, option);
    fputs("\nThe exit code is the command's, or 128 + its signal; 2: the command line is\n"
          "wrong; 124: --exit-timeout or --stall-after; 125: headrace failed;\n"
          "126, 127: the command cannot be started.\n",
          to);
    return 0;
}

/* ---- misspelt options ---- */

enum { COMPARED_MOST = 32 }; /* characters of a word */

/* Returns the number of characters to insert, remove or replace (Levenshtein's distance). */
static size_t distance(const char *a, const char *b) {
    size_t row[COMPARED_MOST + 1], a_length = strlen(a), b_length = strlen(b);
    if (a_length > COMPARED_MOST || b_length > COMPARED_MOST) return SIZE_MAX;
    for (size_t j = 0; j <= b_length; j++) row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t moved = 1 + (row[j - 1] < row[j] ? row[j - 1] : row[j]);
            row[j] = replaced < moved ? replaced : moved;
        }
    }
    return row[b_length];
}

static void keep_if_closer(const char *word, const char *name, size_t *least, const char **best) {
    size_t wrong = distance(word, name);
    if (wrong > *least || (*best && wrong == *least)) return;
    *best = name;
    *least = wrong;
}

const char *run_most_like(const char *word, bool is_exec) {
    const char *best = NULL;
    size_t least = strlen(word) / 3; /* characters that may be wrong */
    if (!is_exec) keep_if_closer(word, "--nproc", &least, &best);
    for (enum run_option option = 0; option < OPTION_COUNT; option++)
        if (!is_exec || run_rows[option].is_of_exec) keep_if_closer(word, run_rows[option].name, &least, &best);
    return best;
}
