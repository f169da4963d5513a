/* SPDX-License-Identifier: Apache-2.0 */
#include <headrace/version.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static int show_help(FILE *to) {
    fputs("Usage: headrace [--version | --help]\n"
          "       headrace replay SOURCE INDEX... [OPTION...]\n"
          "       headrace doctor [SOURCE] [OPTION...]\n"
          "       headrace cache verify FILE...\n"
          "\n"
          "  cache verify   read image files of frozen data, and check them\n"
          "  doctor         say what keeps SOURCE from being sent to worker processes, and\n"
          "                 how to fix it; without SOURCE: what is wrong with this machine\n"
          "  replay         make samples of a data set in the foreground, to see why one\n"
          "                 fails; `headrace replay --help` tells more\n"
          "  -h, --help     show this text\n"
          "  -V, --version  show the version\n"
          "\n"
          "headrace brings samples to training processes. It is used from Python\n"
          "(from headrace.torch import DataLoader) and from C (headrace/headrace.h).\n"
          "doctor and replay run in the Python interpreter that stands beside this\n"
          "program, or in the one that the environment variable HEADRACE_PYTHON names.\n",
          to);
    return 0;
}

static int show_version(FILE *to) {
    fprintf(to, "headrace %s\n", hr_version());
    return 0;
}

/* Output that could not be written (a full disk, a closed pipe) is a failure too. */
static int finish(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    perror("headrace: standard output");
    return 1;
}

/* Writes the path of this program with its name replaced by `name` to `path`, if that can be executed. */
static int find_beside(const char *name, char *path, size_t size) {
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length < 0) return 0;
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    if (!slash) return 0;
    size_t room = size - (size_t)(slash + 1 - path);
    return (size_t)snprintf(slash + 1, room, "%s", name) < room && access(path, X_OK) == 0;
}

/* The interpreter that the package is installed in, or NULL. `path` is room for its name. */
static const char *find_interpreter(char *path, size_t size) {
    const char *named = getenv("HEADRACE_PYTHON");
    if (named && *named) return named;
    return find_beside("python3", path, size) || find_beside("python", path, size) ? path : NULL;
}

/* As `python -P -m headrace`, which Python 3.10 does not have: the current folder, where any file may have the name
 * of a module that headrace needs, is not on the path until headrace puts it there. */
static const char bootstrap[] = "import sys\n"
                                "if sys.path[:1] == ['']: del sys.path[0]\n"
                                "try:\n"
                                "    from headrace.__main__ import main\n"
                                "except ModuleNotFoundError as error:\n"
                                "    print(f'headrace: {sys.executable} does not have the package ({error}); install "
                                "headrace there, or name the '\n"
                                "          'interpreter that has it in HEADRACE_PYTHON', file=sys.stderr)\n"
                                "    sys.exit(2)\n"
                                "sys.exit(main(sys.argv[1:]))\n";

/* Becomes the interpreter, so that signals and its exit code pass. Returns only when that fails. */
static int become_python(int argc, char **argv) {
    char path[PATH_MAX];
    const char *interpreter = find_interpreter(path, sizeof path);
    if (!interpreter) {
        fprintf(stderr,
                "headrace: %s is written in Python, and there is no interpreter beside this program; name the one that "
                "headrace is installed in: HEADRACE_PYTHON=python3 headrace %s ...\n",
                argv[1], argv[1]);
        return EXIT_USAGE;
    }
    const char **words = calloc((size_t)argc + 3, sizeof *words);
    if (words) {
        words[0] = interpreter;
        words[1] = "-c";
        words[2] = bootstrap;
        memcpy(words + 3, argv + 1, (size_t)argc * sizeof *words); /* with the NULL at the end */
        execvp(interpreter, (char *const *)words);
    }
    fprintf(stderr, "headrace: cannot start the interpreter '%s': %s\n", interpreter, strerror(errno));
    free(words);
    return EXIT_USAGE;
}

struct command {
    const char *name;
    const char *short_name; /* NULL: none */
    int (*show)(FILE *to);  /* of one that takes no arguments; else NULL */
    int (*run)(int argc, char **argv);
};

static const struct command commands[] = {
    {"--version", "-V", show_version, NULL}, {"--help", "-h", show_help, NULL},
    {"cache", NULL, NULL, cache_command},    {"doctor", NULL, NULL, become_python},
    {"replay", NULL, NULL, become_python},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static int has_name(const struct command *command, const char *name) {
    return !strcmp(name, command->name) || (command->short_name && !strcmp(name, command->short_name));
}

static const struct command *find_command(const char *name) {
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (has_name(&commands[i], name)) return &commands[i];
    return NULL;
}

static int refuse(const char *what, const char *name) {
    fprintf(stderr, "headrace: %s '%s'; there is", what, name);
    for (size_t i = 0; i < COMMAND_COUNT; i++) fprintf(stderr, "%s %s", i ? "," : "", commands[i].name);
    fputs("\n", stderr);
    return EXIT_USAGE;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        show_help(stderr);
        return EXIT_USAGE;
    }
    const struct command *command = find_command(argv[1]);
    if (!command) return refuse(argv[1][0] == '-' ? "unknown option" : "unknown command", argv[1]);
    if (!command->show) return finish(command->run(argc, argv));
    if (argc > 2) return refuse("unexpected argument", argv[2]);
    return finish(command->show(stdout));
}
