/* SPDX-License-Identifier: Apache-2.0 */
#include <headrace/version.h>

#include <stdio.h>
#include <string.h>

enum { EXIT_USAGE = 2 };

static int show_help(FILE *to) {
    fputs("Usage: headrace [--version | --help]\n"
          "\n"
          "  -h, --help     show this text\n"
          "  -V, --version  show the version\n"
          "\n"
          "headrace brings samples to training processes. It is used from Python\n"
          "(from headrace.torch import DataLoader) and from C (headrace/headrace.h).\n",
          to);
    return 0;
}

static int show_version(FILE *to) {
    fprintf(to, "headrace %s\n", hr_version());
    return 0;
}

struct command {
    const char *name;
    const char *short_name;
    int (*run)(FILE *to);
};

static const struct command commands[] = {
    {"--version", "-V", show_version},
    {"--help", "-h", show_help},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static const struct command *find_command(const char *name) {
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (!strcmp(name, commands[i].name) || !strcmp(name, commands[i].short_name)) return &commands[i];
    return NULL;
}

static int refuse(const char *what, const char *name) {
    fprintf(stderr, "headrace: %s '%s'; there is", what, name);
    for (size_t i = 0; i < COMMAND_COUNT; i++) fprintf(stderr, "%s %s", i ? "," : "", commands[i].name);
    fputs("\n", stderr);
    return EXIT_USAGE;
}

/* Output that could not be written (a full disk, a closed pipe) is a failure too. */
static int finish(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    perror("headrace: standard output");
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        show_help(stderr);
        return EXIT_USAGE;
    }
    const struct command *command = find_command(argv[1]);
    if (!command) return refuse(argv[1][0] == '-' ? "unknown option" : "unknown command", argv[1]);
    if (argc > 2) return refuse("unexpected argument", argv[2]);
    return finish(command->run(stdout));
}
