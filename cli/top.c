/* SPDX-License-Identifier: Apache-2.0 */
/* headrace top: what the loaders of this machine do. */
#define _GNU_SOURCE
#include "top.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

enum { BETWEEN_LOOKS_NS = 999999999, WIDE = 4096 };

static const char help[] = "Usage: headrace top [PID...] [--once] [--json] [--prometheus] [-o FILE]\n"
                           "\n"
                           "Shows what the loaders of this machine do: how long training loops wait for\n"
                           "batches, and what the workers do meanwhile. It only reads, and needs no change\n"
                           "of the training script.\n"
                           "\n"
                           "  PID               only loaders of these processes, and of those that they\n"
                           "                    have started; root sees the processes of all users.\n"
                           "                    Exit code 1 if they have none\n"
                           "  --once            print one picture, after two looks a second apart; so it\n"
                           "                    does, too, if its output is no terminal\n"
                           "  --json            print the numbers as JSON, with rates of one second\n"
                           "  --prometheus      print counters for Prometheus (OpenMetrics)\n"
                           "  -o, --output FILE replace FILE with the output at once, for the textfile\n"
                           "                    collector of node_exporter\n"
                           "  -h, --help        show this text\n"
                           "\n"
                           "Keys: up and down choose a loader, enter shows only it, o sorts, space freezes,\n"
                           "s shows stacks of its workers (it asks first), ? explains, q quits.\n";

struct request {
    bool is_once, is_json, is_prometheus, is_help;
    const char *output;
};

static int refuse(const char *what, const char *word) {
    fprintf(stderr, "headrace: %s '%s'; see headrace top --help\n", what, word);
    return EXIT_USAGE;
}

static int read_pid(struct top *top, const char *word) {
    char *end;
    errno = 0;
    long pid = strtol(word, &end, 10);
    if (*end || end == word || errno || pid < 1 || pid > INT_MAX) return refuse("this is no process ID:", word);
    if (top->pid_count == TOP_PIDS) return refuse("there are too many process IDs, from", word);
    top->pids[top->pid_count++] = (int)pid;
    return 0;
}

static int read_words(struct top *top, int count, char **words, struct request *request) {
    for (int i = 0; i < count; i++) {
        const char *word = words[i];
        if (strcmp(word, "--once") == 0)
            request->is_once = true;
        else if (strcmp(word, "--json") == 0)
            request->is_json = true;
        else if (strcmp(word, "--prometheus") == 0)
            request->is_prometheus = true;
        else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
            request->is_help = true;
        else if (strncmp(word, "--output=", 9) == 0)
            request->output = word + 9;
        else if (strcmp(word, "-o") == 0 || strcmp(word, "--output") == 0) {
            if (++i == count) return refuse("a file is missing after", word);
            request->output = words[i];
        } else if (word[0] == '-')
            return refuse("unknown option", word);
        else if (read_pid(top, word))
            return EXIT_USAGE;
    }
    if (request->is_json && request->is_prometheus) return refuse("--json cannot be combined with", "--prometheus");
    return 0;
}

/* A pipe or a file gets whole lines. */
static int columns_of_output(FILE *to) {
    struct winsize size;
    return ioctl(fileno(to), TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : WIDE;
}

static void put_picture(FILE *to, struct top *top) {
    struct top_view view = {.order = 1, .columns = columns_of_output(to)};
    size_t bytes = 0;
    char *text = top_draw(top, &view, false, &bytes);
    if (text) fwrite(text, 1, bytes, to);
    free(text);
}

static void put(FILE *to, struct top *top, const struct request *request) {
    if (request->is_prometheus)
        top_put_metrics(to, top);
    else if (request->is_json)
        top_put_json(to, top);
    else
        put_picture(to, top);
}

/* A reader never sees half of the file. */
static int put_to_file(struct top *top, const struct request *request) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s.%d.tmp", request->output, (int)getpid());
    FILE *file = length < (int)sizeof path ? fopen(path, "we") : NULL;
    if (file) put(file, top, request);
    bool is_written = file && fflush(file) == 0 && !ferror(file) && fsync(fileno(file)) == 0;
    if (file) is_written = fclose(file) == 0 && is_written;
    if (is_written && rename(path, request->output) == 0) return 0;
    fprintf(stderr, "headrace: cannot write %s: %s\n", request->output, strerror(errno));
    if (file) unlink(path);
    return 1;
}

static void look(struct top *top) {
    struct top_view view = {.order = 1};
    top_find(top, INT64_MAX);
    top_sort(top, &view);
    for (uint32_t i = 0; i < top->count; i++) top_look_at_workers(top, &top->loaders[i]);
    top_look_at_machine(top);
    top_look_at_fetcher(top);
}

/* For a person who names processes. What reads numbers gets an empty list. */
static bool is_for_person(const struct request *request) {
    return !request->is_json && !request->is_prometheus && !request->output;
}

static int say_why_empty(const struct top *top) {
    fprintf(stderr, "headrace: %s\n", top_why_empty(top));
    return 1;
}

static int show_once(struct top *top, const struct request *request) {
    look(top);
    if (top->pid_count && top_is_empty(top) && is_for_person(request)) return say_why_empty(top);
    if (!request->is_prometheus) {
        nanosleep(&(struct timespec){.tv_nsec = BETWEEN_LOOKS_NS}, NULL);
        look(top);
    }
    top_look_at_cache(top);
    if (request->output) return put_to_file(top, request);
    put(stdout, top, request);
    return 0;
}

int top_command(int argc, char **argv) {
    struct top top = {0};
    struct request request = {0};
    int code = read_words(&top, argc - 2, argv + 2, &request);
    if (code) return code;
    if (request.is_help) {
        fputs(help, stdout);
        return 0;
    }
    bool is_once = request.is_once || request.is_json || request.is_prometheus || request.output;
    if (is_once || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
        code = show_once(&top, &request);
    else {
        look(&top);
        code = top.pid_count && top_is_empty(&top) ? say_why_empty(&top) : top_watch(&top);
    }
    top_free(&top);
    return code;
}
