/* SPDX-License-Identifier: Apache-2.0 */
/* The program headrace: runs commands that need no Python, and starts Python for the others. */
#include <headrace/version.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* Output that cannot be written (a full disk, a closed pipe) is a failure too. */
static int finish(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    perror("headrace: standard output");
    return 1;
}

/* Does what `python -P -m headrace` does for a command that Python runs itself, because Python 3.10 does not have -P. A
 * file in the current folder may have the name of a module that headrace needs, so this folder is not on the path until
 * headrace adds it. */
static const char bootstrap[] = "import sys\n"
                                "if sys.path[:1] == ['']: del sys.path[0]\n"
                                "try:\n"
                                "    from headrace.__main__ import main\n"
                                "except ModuleNotFoundError as error:\n"
                                "    print(f'headrace: {sys.executable} does not have the package ({error}); install "
                                "headrace there, or set HEADRACE_PYTHON to an '\n"
                                "          'interpreter that has it', file=sys.stderr)\n"
                                "    sys.exit(2)\n"
                                "sys.exit(main(sys.argv[1:]))\n";

int become_python(int argc, char **argv) {
    char path[PATH_MAX];
    const char *interpreter = find_interpreter(path, sizeof path);
    if (!interpreter) {
        fprintf(stderr,
                "headrace: %s needs Python, and there is no interpreter in the directory of this program; name the one "
                "in which "
                "headrace is installed: HEADRACE_PYTHON=python3 headrace %s ...\n",
                argv[1], argv[1]);
        return EXIT_USAGE;
    }
    const char **words = calloc((size_t)argc + 3, sizeof *words);
    if (words) {
        words[0] = interpreter;
        words[1] = "-c";
        words[2] = bootstrap;
        memcpy(words + 3, argv + 1, (size_t)argc * sizeof *words); /* includes the NULL at the end */
        execvp(interpreter, (char *const *)words);
    }
    fprintf(stderr, "headrace: cannot start the interpreter '%s': %s\n", interpreter, strerror(errno));
    free(words);
    return EXIT_USAGE;
}

static int show_help(FILE *to);
static int show_version(FILE *to);

/* All commands. `python -m headrace` knows none but those of become_python, and becomes this program for all other
 * words.
 */
struct command {
    const char *name;
    const char *short_name; /* NULL: it has no short name */
    int (*show)(FILE *to);  /* for a command without arguments; else NULL */
    int (*run)(int argc, char **argv);
    const char *arguments; /* for the line of usage; NULL: it has none */
    const char *about;     /* lines that are indented as the help needs it */
};

#define INDENT "\n                 "

static const struct command commands[] = {
    {"--version", "-V", show_version, NULL, NULL, "show the version"},
    {"--help", "-h", show_help, NULL, NULL, "show this text"},
    {"cache", NULL, NULL, cache_command, "COMMAND [ARGUMENT...]",
     "one copy of data for all jobs on this machine: copy files" INDENT
     "there, list, check and remove; see `headrace cache --help`"},
    {"completion", NULL, NULL, completion_command, "bash|zsh|fish",
     "what makes a shell complete commands and options; see" INDENT "`headrace completion --help`"},
    {"doctor", NULL, NULL, become_python, "[SOURCE] [OPTION...]",
     "list the objects in SOURCE that cannot be sent to worker" INDENT
     "processes, with a fix for each; without SOURCE: check this" INDENT "machine"},
    {"exec", NULL, NULL, exec_command, "[OPTION...] [--] COMMAND [ARGUMENT...]",
     "start one command, explain how it fails, and end what it" INDENT "leaves behind; see `headrace exec --help`"},
    {"help", NULL, NULL, become_python, "[KEY]",
     "explain a message of headrace, by the key of its page or" INDENT "by its words"},
    {"index", NULL, NULL, index_command, "FILE... [OPTION...]",
     "write where the samples of tar and text files are, next to" INDENT "each file; see `headrace index --help`"},
    {"record", NULL, NULL, record_command, "-o FOLDER PID...",
     "record what the loaders of a running job do, for `headrace" INDENT "report`; see `headrace record --help`"},
    {"replay", NULL, NULL, become_python, "SOURCE INDEX... [OPTION...]",
     "make samples of a dataset in the foreground, to see why one" INDENT "fails; see `headrace replay --help`"},
    {"report", NULL, NULL, become_python, "RECORDING [OPTION...]",
     "say from a recording why a training waited for its data, and" INDENT
     "what to change; see `headrace report --help`"},
    {"run", NULL, NULL, run_command, "[OPTION...] SCRIPT [ARGUMENT...]",
     "start the ranks of a training job as torchrun does, and end" INDENT
     "all of them if one fails; see `headrace run --help`"},
    {"top", NULL, NULL, top_command, "[PID...] [OPTION...]",
     "show what the loaders of this machine do, and how long" INDENT
     "training loops wait for them; see `headrace top --help`"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static int show_version(FILE *to) {
    fprintf(to, "headrace %s\n", hr_version());
    return 0;
}

static int show_help(FILE *to) {
    fputs("Usage: headrace [--version | --help]\n", to);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (commands[i].arguments) fprintf(to, "       headrace %s %s\n", commands[i].name, commands[i].arguments);
    fputs("\n", to);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        const char *short_name = commands[i].short_name, *comma = short_name ? ", " : "";
        int width = short_name ? 11 : 15;
        fprintf(to, "  %s%s%-*s%s\n", short_name ? short_name : "", comma, width, commands[i].name, commands[i].about);
    }
    fputs("\n"
          "headrace brings samples to training processes. Use it from Python\n"
          "(from headrace.torch import DataLoader) or from C (headrace/headrace.h).\n"
          "doctor, help, replay and report need Python. They use the interpreter that\n"
          "HEADRACE_PYTHON names, or else the one in the directory of this program.\n",
          to);
    return 0;
}

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
