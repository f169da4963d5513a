/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

enum { WORDS_MOST = 64 };

static bool find_interpreter(struct run *run, const char **ret_path) {
    (void)run;
    *ret_path = "python3";
    return true;
}

static bool count_devices(struct run *run, const char *kind, uint32_t *ret_count) {
    (void)kind;
    *ret_count = run_visible_count(
        run_variable(run, "CUDA_VISIBLE_DEVICES") ? run_variable(run, "CUDA_VISIBLE_DEVICES") : "0", 8);
    return *ret_count || run_fail(run, "there are no devices");
}

static const struct run_machine machine = {"headrace", "id", find_interpreter, count_devices};

/* Reads every byte of the job, so that AddressSanitizer sees one that does not belong to it. */
static size_t touch(const struct hr_launch_job *job) {
    size_t sum = 0;
    if (!job->words || !job->words[0] || job->local_size < 1 || job->node_rank >= job->node_count) abort();
    if (job->grace_ns < 0 || job->shutdown_ns < 0 || job->stdin_rank >= (int64_t)job->local_size) abort();
    for (const char *const *word = job->words; *word; word++) sum += strlen(*word);
    for (uint32_t i = 0; i < job->local_size; i++)
        sum += (job->redirects ? job->redirects[i] : 0u) + (job->tees ? job->tees[i] : 0u) +
               (job->is_shown && job->is_shown[i]);
    const char *const texts[] = {job->script, job->master_addr, job->run_id, job->role, job->log_dir, job->report};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) sum += texts[i] ? strlen(texts[i]) : 0;
    return sum;
}

/* Splits text at line ends. A line that begins with `$` is a variable of the environment, the others are words. */
static void split(char *text, const char **words, const char **variables) {
    size_t word_count = 0, variable_count = 0;
    while (text && word_count < WORDS_MOST && variable_count < WORDS_MOST) {
        char *line = strsep(&text, "\n");
        if (*line == '$')
            variables[variable_count++] = line + 1;
        else
            words[word_count++] = line;
    }
    words[word_count] = variables[variable_count] = NULL;
}

/* Checks that any words and variables are refused with one line, or give a valid job. */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    const char *words[WORDS_MOST + 1], *variables[WORDS_MOST + 1];
    struct run run;
    char *text = bytes ? malloc(bytes) : NULL;
    if (!text) return 0;
    memcpy(text, input + 1, bytes - 1);
    text[bytes - 1] = '\0';
    split(text, words, variables);
    bool is_read = run_read(&run, input[0] & 1, words, variables);
    if (is_read && !run.wants_help) {
        if (run_plan(&run, &machine) ? touch(&run.job) == SIZE_MAX : !run.error) abort();
    }
    if (!is_read && !run.error) abort();
    run_done(&run);
    free(text);
    return 0;
}
