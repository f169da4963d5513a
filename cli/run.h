/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_CLI_RUN_H
#define HR_CLI_RUN_H

#include <headrace/face/launch.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/*
 * `headrace run` and `headrace exec`: from a command line to a job.
 *
 *     words, PET_ variables -> run_read -> run.given -> run_plan -> run.job
 *
 * run_read knows the grammar (that of Python's argparse, as torchrun has it) and the table of options, and nothing of
 * their values. run_plan checks the values, and decides what is started. Neither starts or changes anything itself:
 * what they ask of the machine is in struct run_machine, of which a test has its own.
 */

enum run_option {
    NNODES,
    NPROC_PER_NODE,
    NODE_RANK,
    MASTER_ADDR,
    MASTER_PORT,
    STANDALONE,
    MODULE,
    NO_PYTHON,
    RUN_PATH,
    HEADSPACE,
    LOG_DIR,
    REDIRECTS,
    TEE,
    LOG_LINE_PREFIX_TEMPLATE,
    LOCAL_RANKS_FILTER,
    PREFIX,
    STDIN,
    REPORT,
    MAX_RESTARTS,
    GRACE,
    SHUTDOWN_TIMEOUT,
    SIGNALS_TO_HANDLE,
    EXIT_TIMEOUT,
    STALL_AFTER,
    END_WITH_PARENT,
    ROLE,
    RDZV_ID,
    RDZV_BACKEND,
    RDZV_ENDPOINT,
    RDZV_CONF,
    LOCAL_ADDR,
    VIRTUAL_LOCAL_RANK,
    NUMA_BINDING,
    LOGS_SPECS,
    DUPLICATE_STDOUT_FILTERS,
    DUPLICATE_STDERR_FILTERS,
    MONITOR_INTERVAL,
    START_METHOD,
    EVENT_LOG_HANDLER,
    HELP,
    OPTION_COUNT,
};

enum run_origin {
    FROM_TORCHRUN,  /* an option of torchrun that headrace follows */
    HANDED_ON,      /* an option of torchrun: with it, torch.distributed.run starts the ranks */
    WITHOUT_EFFECT, /* an option of torchrun that is accepted and changes nothing */
    OWN,            /* torchrun does not have it */
};

/* A row of the table of options. */
struct run_row {
    const char *name;     /* "--nnodes" */
    const char *variable; /* the environment variable with its default; NULL: none */
    const char *value;    /* in the help: "N" */
    const char *help;     /* lines of at most 50 characters; NULL: none */
    enum run_origin origin;
    char letter;     /* 'r': also -r; 0: none */
    bool is_flag;    /* takes no value */
    bool is_of_exec; /* `headrace exec` has it, too */
};
extern const struct run_row run_rows[OPTION_COUNT];

/* The value of an option. */
struct run_given {
    const char *text;     /* NULL: it was not given; "" for a flag */
    const char *variable; /* the environment variable that it is from; NULL: the command line */
};

struct run_note {
    struct run_note *next;
    const char *text;
};

/* A command line. The texts in `error`, `notes` and `job` are borrowed from the command line and the environment, or
 * live until run_done. */
struct run {
    bool is_exec;
    const char *const *environment;
    struct run_given given[OPTION_COUNT];
    bool wants_help;
    const char *const *script; /* with its arguments, ended by NULL; NULL: no script is given */

    struct hr_launch_job job;
    const char *handed_on; /* why torch.distributed.run starts the ranks; NULL: headrace does */
    bool needs_temporary;  /* job.log_dir is to be replaced by a temporary folder */

    const char *error;      /* why the command line is refused: a text without a line end; NULL: it is not */
    struct run_note *notes; /* what the user should know, oldest first */
    struct run_block *kept;
};

/* Questions of run_plan about the machine. Both functions return false with run->error set if they fail. */
struct run_machine {
    const char *program; /* the path of this program */
    const char *run_id;  /* a new random one */
    bool (*find_interpreter)(struct run *run, const char **ret_path);
    /* Returns how many ranks `kind` means: "auto", "cpu", "gpu" or "xpu". */
    bool (*count_devices)(struct run *run, const char *kind, uint32_t *ret_count);
    const char *folder; /* the working directory; NULL: it is not known */
};

/* Reads the words after `headrace run` or `headrace exec`. Returns false with run->error. `words` and `environment` end
 * with NULL and are borrowed until run_done. run_done is called in any case. */
bool run_read(struct run *run, bool is_exec, const char *const *words, const char *const *environment);
/* Makes run->job. Returns false with run->error. */
bool run_plan(struct run *run, const struct run_machine *machine);
void run_done(struct run *run);

/* ---- run_text.c ---- */

void *run_keep(struct run *run, size_t bytes); /* zeroed memory until run_done; ends the program if it fails */
__attribute__((format(printf, 2, 3))) const char *run_print(struct run *run, const char *format, ...);
__attribute__((format(printf, 2, 3))) void run_refuse(struct run *run, const char *format, ...); /* sets run->error */
#define run_fail(run, ...) (run_refuse((run), __VA_ARGS__), false) /* a failure is one line: return run_fail(...) */
__attribute__((format(printf, 2, 3))) void run_say(struct run *run, const char *format, ...); /* adds a note */
const char *run_variable(const struct run *run,
                         const char *name); /* a variable of the environment; NULL: it is not set */

/* ---- run_options.c ---- */

/* Returns what the user called the option: "--nnodes", or the variable that it is from. */
const char *run_called(const struct run *run, enum run_option option);
bool run_has(const struct run *run, enum run_option option); /* given, and not as an empty text */
/* The name of the option that is most like `word`; NULL: no option is like it. */
const char *run_most_like(const char *word, bool is_exec);
int run_show_help(FILE *to);
int run_show_exec_help(FILE *to);

/* ---- run_values.c: each checks the value of one option, and fails with a text that names it and what is allowed ----
 */

/* Reads an integer as Python's int() does. One that is too large is INT64_MIN or INT64_MAX. */
bool run_read_integer(const char *text, int64_t *ret_value);
bool run_integer(struct run *run, enum run_option option, int64_t least, int64_t most, int64_t *ret_value);
bool run_seconds(struct run *run, enum run_option option, int64_t *ret_ns);
bool run_choice(struct run *run, enum run_option option, const char *const *choices);
bool run_node_counts(struct run *run, int64_t *ret_least, int64_t *ret_most);
/* Sets an entry per local rank of `ret_streams`. */
bool run_streams(struct run *run, enum run_option option, uint32_t local_size, uint8_t *ret_streams);
bool run_ranks(struct run *run, enum run_option option, uint32_t local_size, bool *ret_has);
bool run_address(struct run *run, enum run_option option, const char *text, const char **ret_host);
bool run_endpoint(struct run *run, const char **ret_host, int64_t *ret_port);
bool run_rendezvous_configuration(struct run *run);
bool run_end_signals(struct run *run, uint64_t *ret_signals);
/* The seconds of --shutdown-timeout, of TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30. */
bool run_shutdown_ns(struct run *run, int64_t *ret_ns);

/* ---- run_hand_on.c ---- */

/* Makes the job: torch.distributed.run, with `command` under `headrace exec` as the program of each rank. */
bool run_hand_on(struct run *run, const struct run_machine *machine, const char *const *command);

/* ---- run_devices.c ---- */

/* Says how many ranks `kind` means, as struct run_machine has it. */
bool run_count_devices(struct run *run, const char *kind, uint32_t *ret_count);
/* Returns the number of devices that CUDA shows with this value of CUDA_VISIBLE_DEVICES if there are `present` ones. */
uint32_t run_visible_count(const char *visible, uint32_t present);
/* Asks the torch of an interpreter. Returns -1 and a reason if it does not answer within `limit_ms`. */
int64_t run_ask_torch(struct run *run, const char *interpreter, const char *kind, int limit_ms, const char **ret_why);

/* ---- interpreter.c ---- */

/* Finds a program as execvp does. Returns NULL and errno if there is no such program. */
const char *run_find_program(struct run *run, const char *name);
/* Finds the interpreter of the ranks, as struct run_machine has it. */
bool run_find_interpreter(struct run *run, const char **ret_path);

#endif
