/* SPDX-License-Identifier: Apache-2.0 */
/* The environment and the words of a rank's command. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"

extern char **environ;

/* ---- words ---- */

static size_t name_length(const char *at) {
    size_t length = 0;
    if (!isalpha((unsigned char)*at) && *at != '_') return 0;
    while (isalnum((unsigned char)at[length]) || at[length] == '_') length++;
    return length;
}

static const struct hr__macro *find_macro(const struct hr__macro *macros, const char *name, size_t length) {
    for (; macros->name; macros++)
        if (strlen(macros->name) == length && memcmp(macros->name, name, length) == 0) return macros;
    return NULL;
}

/* Expands what begins at the `$` at `at`. Returns the number of characters that were taken. */
static size_t expand_one(struct hr__text *to, const char *at, const struct hr__macro *macros) {
    if (at[1] == '$') {
        hr__text_add(to, "$", 1);
        return 2;
    }
    bool is_braced = at[1] == '{';
    const char *name = at + 1 + is_braced;
    size_t length = name_length(name);
    const struct hr__macro *macro = find_macro(macros, name, length);
    if (macro && (!is_braced || name[length] == '}')) {
        hr__text_adds(to, macro->value);
        return 1 + length + 2 * (size_t)is_braced;
    }
    hr__text_add(to, at, 1);
    return 1;
}

void hr__expand(struct hr__text *to, const char *word, const struct hr__macro *macros) {
    while (*word) {
        size_t plain = strcspn(word, "$");
        hr__text_add(to, word, plain);
        word += plain;
        if (*word) word += expand_one(to, word, macros);
    }
}

/* ---- lists of strings ---- */

/* Strings one after the other, each with its zero byte, and where they begin. */
struct strings {
    struct hr__text bytes;
    size_t count;
};

static void end_string(struct strings *strings) {
    hr__text_add(&strings->bytes, "", 1);
    strings->count++;
}

/* Makes one piece of memory of an array of pointers and the strings. Frees the strings. */
static const char **finish(struct strings *strings) {
    size_t table_bytes = (strings->count + 1) * sizeof(char *);
    const char **table = strings->bytes.is_short ? NULL : malloc(table_bytes + strings->bytes.length);
    if (table) {
        char *at = (char *)table + table_bytes;
        if (strings->bytes.length) memcpy(at, strings->bytes.bytes, strings->bytes.length);
        for (size_t i = 0; i < strings->count; i++, at += strlen(at) + 1) table[i] = at;
        table[strings->count] = NULL;
    }
    hr__text_free(&strings->bytes);
    return table;
}

const char **hr__rank_words(const struct hr_launch_job *job, uint32_t local) {
    struct strings words = {0};
    char number[12];
    snprintf(number, sizeof number, "%u", local);
    const struct hr__macro macros[] = {{"local_rank", number}, {NULL, NULL}};
    for (const char *const *word = job->words; *word; word++) {
        bool is_interpreter = job->is_python && word == job->words;
        if (job->has_macros && !is_interpreter)
            hr__expand(&words.bytes, *word, macros);
        else
            hr__text_adds(&words.bytes, *word);
        end_string(&words);
    }
    return finish(&words);
}

/* ---- the environment ---- */

/* Variables that run sets in each rank. A variable of the same name is not inherited. */
static const char *const of_ranks[] = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "HEADRACE_BOARD_FD",
    "HEADRACE_RANK_FD",
    "HEADRACE_RUN",
    "HEADRACE_PYTHONPATH",
};
/* Variables that are also set for a program that is no rank. */
static const char *const of_all[] = {"HEADRACE_RANK_FD", "HEADRACE_RUN", "HEADRACE_PYTHONPATH"};

static bool has_name(const char *variable, const char *name) {
    size_t length = strlen(name);
    return strncmp(variable, name, length) == 0 && variable[length] == '=';
}

static bool is_replaced(const struct hr__attempt *attempt, const char *variable) {
    bool is_rank = attempt->job->kind == HR_LAUNCH_RANKS;
    const char *const *names = is_rank ? of_ranks : of_all;
    size_t count = is_rank ? sizeof of_ranks / sizeof *of_ranks : sizeof of_all / sizeof *of_all;
    for (size_t i = 0; i < count; i++)
        if (has_name(variable, names[i])) return true;
    return attempt->launch->hook_fd >= 0 && has_name(variable, "PYTHONPATH");
}

/* Folders that are taken from where headrace run was started, also if a script changes its folder before it imports
 * headrace. Adds such a variable, if it is a relative path. */
static bool add_absolute(struct strings *variables, const char *variable) {
    static const char *const folders[] = {"HEADRACE_RECORD", "HEADRACE_CACHE"};
    char current[HR__PATH_BYTES];
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const char *path = variable + strlen(folders[i]) + 1;
        if (!has_name(variable, folders[i]) || !*path || *path == '/') continue;
        if (hr__folder_current(current, sizeof current) < 0) return false;
        hr__text_addf(&variables->bytes, "%s=%s/%s", folders[i], current, path);
        end_string(variables);
        return true;
    }
    return false;
}

static void inherit(struct strings *variables, const struct hr__attempt *attempt) {
    for (char **variable = environ; *variable; variable++) {
        if (is_replaced(attempt, *variable) || add_absolute(variables, *variable)) continue;
        hr__text_adds(&variables->bytes, *variable);
        end_string(variables);
    }
}

static void set_text(struct strings *variables, const char *name, const char *value) {
    hr__text_addf(&variables->bytes, "%s=%s", name, value);
    end_string(variables);
}

static void set_number(struct strings *variables, const char *name, uint64_t value) {
    hr__text_addf(&variables->bytes, "%s=%llu", name, (unsigned long long)value);
    end_string(variables);
}

static void set_default(struct strings *variables, const char *name, const char *value) {
    if (!getenv(name)) set_text(variables, name, value);
}

static void set_place(struct strings *variables, const struct hr__attempt *attempt, const struct hr__rank *rank) {
    const struct hr_launch_job *job = attempt->job;
    uint64_t world_size = (uint64_t)job->local_size * job->node_count;
    set_number(variables, "RANK", rank->global);
    set_number(variables, "LOCAL_RANK", rank->local);
    set_number(variables, "WORLD_SIZE", world_size);
    set_number(variables, "LOCAL_WORLD_SIZE", job->local_size);
    set_number(variables, "GROUP_RANK", job->node_rank);
    set_number(variables, "GROUP_WORLD_SIZE", job->node_count);
    set_number(variables, "ROLE_RANK", rank->global);
    set_number(variables, "ROLE_WORLD_SIZE", world_size);
    set_text(variables, "ROLE_NAME", job->role ? job->role : "default");
}

static void set_job(struct strings *variables, const struct hr__attempt *attempt) {
    const struct hr_launch_job *job = attempt->job;
    set_text(variables, "MASTER_ADDR", job->master_addr ? job->master_addr : "127.0.0.1");
    set_number(variables, "MASTER_PORT", attempt->port);
    set_number(variables, "TORCHELASTIC_RESTART_COUNT", attempt->number);
    set_number(variables, "TORCHELASTIC_MAX_RESTARTS", job->max_restarts);
    set_text(variables, "TORCHELASTIC_RUN_ID", job->run_id ? job->run_id : "none");
    set_text(variables, "TORCHELASTIC_USE_AGENT_STORE", "False"); /* rank 0 hosts the store */
    set_default(variables, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    if (job->local_size > 1) set_default(variables, "OMP_NUM_THREADS", "1");
}

static void set_error_file(struct strings *variables, const struct hr__attempt *attempt, const struct hr__rank *rank) {
    char path[HR__PATH_BYTES];
    if (hr__error_file(attempt, rank, path) == 0) set_text(variables, "TORCHELASTIC_ERROR_FILE", path);
}

static void set_hook(struct strings *variables, const struct hr__attempt *attempt, const struct hr__rank *rank) {
    const char *path = getenv("PYTHONPATH"), *outer = getenv("HEADRACE_RUN");
    hr__text_addf(&variables->bytes, "HEADRACE_RUN=%s%s%s", outer ? outer : "", outer ? "." : "", attempt->launch->id);
    end_string(variables);
    if (attempt->launch->hook_fd < 0) return;
    set_number(variables, "HEADRACE_RANK_FD", (uint64_t)rank->page_fd);
    hr__text_addf(&variables->bytes, "PYTHONPATH=/proc/%u/fd/%d%s%s", attempt->launch->front_pid,
                  attempt->launch->hook_fd, path && *path ? ":" : "", path ? path : "");
    end_string(variables);
    if (path) set_text(variables, "HEADRACE_PYTHONPATH", path);
}

const char **hr__rank_environment(const struct hr__attempt *attempt, const struct hr__rank *rank) {
    struct strings variables = {0};
    inherit(&variables, attempt);
    set_hook(&variables, attempt, rank);
    if (attempt->job->kind == HR_LAUNCH_RANKS) {
        set_place(&variables, attempt, rank);
        set_job(&variables, attempt);
        set_error_file(&variables, attempt, rank);
        if (attempt->board_fd >= 0) set_number(&variables, "HEADRACE_BOARD_FD", (uint64_t)attempt->board_fd);
    }
    return finish(&variables);
}
