/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "options.h"

#include <headrace/error.h>

#include <stdio.h>
#include <string.h>

/* headrace cache: finds the command, and shows help. */

static const char general_help[] = "Usage: headrace cache COMMAND [ARGUMENT...]\n"
                                   "\n"
                                   "  warm     copy .npy and .npz files into the cache, once for all jobs\n"
                                   "  ls       list what is in the cache, and what is kept of remote objects\n"
                                   "  info     show one object, and the processes that have it\n"
                                   "  verify   compare objects, or files of frozen data, with their checksums\n"
                                   "  rm       remove an object\n"
                                   "  gc       delete what no process has, by age or down to a size\n"
                                   "\n"
                                   "Each has --help. All take --root FOLDER (default: HEADRACE_CACHE, else a folder\n"
                                   "in /dev/shm), --version V of an object (default: 0) and --json.\n"
                                   "\n"
                                   "  headrace cache warm 'features/*.npy' --name features\n"
                                   "  python -c 'import headrace; print(headrace.cache(\"features\").keys())'\n";

/* The rows of options that several commands have. */
#define VERSION_ROW "  --version V    the version of the object (default: 0)\n"
#define ROOT_AND_JSON_ROWS                                                                                             \
    "  --root FOLDER  another folder for the cache\n"                                                                  \
    "  --json         print the result as JSON\n"

static const char warm_help[] = "Usage: headrace cache warm PATH... --name NAME [OPTION...]\n"
                                "\n"
                                "Copies .npy and .npz files into one object of the cache. In Python,\n"
                                "headrace.cache(NAME)[STEM] is then the array of the file STEM.npy, and\n"
                                "headrace.cache(NAME)[STEM][MEMBER] an array of STEM.npz, in every process and\n"
                                "without a copy. PATH is a file, a folder, or a pattern in quotes.\n"
                                "\n"
                                "  --name NAME          the name of the object\n"
                                "  --version V          its version (default: 0)\n"
                                "  --workers N          threads that copy (default: one for each core)\n"
                                "  --require-keys A,B   before anything is copied: list each scene that lacks a\n"
                                "                       key, and exit with 1. A scene is SCENE.npz, whose members\n"
                                "                       are its keys, or all files SCENE_KEY.npy\n"
                                "  --keep HOW           job: until the last process that has it ends; boot: until\n"
                                "                       the machine restarts (default); disk: on a disk\n"
                                "  --dataset SOURCE     instead of PATH: keep the samples of a dataset, for\n"
                                "                       DataLoader(cache=...); headrace cache warm --dataset --help\n"
                                "  URL...               instead of PATH: fetch objects in a bucket or behind https as\n"
                                "                       a whole, for sources; without --name. --storage FILE has the\n"
                                "                       settings that sources take as storage=, in JSON\n"
                                "  --hold               stay until Ctrl-C, SIGTERM or SIGHUP, then remove the\n"
                                "                       object; processes that have it keep it\n"
                                "  --dry-run            say how large it is and where it would be; copy nothing\n"
                                "  --root FOLDER        another folder for the cache\n"
                                "  --json               print the result as JSON\n"
                                "\n"
                                "If it is interrupted or killed, the next run continues with the parts that are\n"
                                "missing. If the files have not changed, it does nothing.\n"
                                "Exit code: 0 done, 1 it failed or keys are missing, 2 wrong usage, 130 stopped.\n";

static const char ls_help[] = "Usage: headrace cache ls [--root FOLDER] [--json]\n"
                              "\n"
                              "Lists the objects of the cache, builds that are not finished, and removed objects\n"
                              "that some processes still have. Then come remote objects (of sources over URLs),\n"
                              "with what is kept of them.\n"
                              "\n" ROOT_AND_JSON_ROWS;

static const char info_help[] = "Usage: headrace cache info NAME-or-URL [--version V] [--root FOLDER] [--json]\n"
                                "\n"
                                "Shows an object: its size, where it is and why, who built it and when, from what,\n"
                                "and which processes have it since when; of a remote object what is kept. Exit\n"
                                "code: 1 if there is no such object.\n"
                                "\n" VERSION_ROW ROOT_AND_JSON_ROWS;

static const char verify_help[] =
    "Usage: headrace cache verify NAME-or-FILE-or-URL... [--version V] [--root FOLDER] [--json]\n"
    "\n"
    "Reads objects of the cache as a whole and compares each chunk with its checksum;\n"
    "of a URL, what is kept of it. A FILE has frozen data (headrace.freeze, Builder).\n"
    "Exit code: 1 if one is damaged, truncated, or does not exist.\n"
    "\n" VERSION_ROW ROOT_AND_JSON_ROWS;

static const char rm_help[] =
    "Usage: headrace cache rm NAME-or-URL... [--version V] [--force] [--root FOLDER] [--json]\n"
    "\n"
    "Removes objects. What a process has is removed with --force only: the name becomes\n"
    "free, processes that have the object keep it, and its memory is freed when the\n"
    "last of them ends. Of a URL, what is kept of it is removed; a process that still\n"
    "reads it has what is missing fetched again. Exit code: 1 if one does not exist or\n"
    "is in use.\n"
    "\n" VERSION_ROW "  --force        remove the name of what a process has, too\n" ROOT_AND_JSON_ROWS;

static const char gc_help[] =
    "Usage: headrace cache gc [--older TIME] [--quota SIZE] [--remote-quota SIZE] [--dry-run] [--root FOLDER]\n"
    "                         [--json]\n"
    "\n"
    "Deletes what no process has: removed objects, unfinished builds, objects of jobs\n"
    "that have ended. What a process has or builds always stays.\n"
    "\n"
    "  --older TIME   also objects that were not attached for so long, and remote objects\n"
    "                 that were not used for so long: 7d, 12h, 90s\n"
    "  --quota SIZE   also objects that were attached longest ago, until the rest is no\n"
    "                 larger than SIZE: 40G\n"
    "  --remote-quota SIZE   also remote objects that were used longest ago, until the\n"
    "                 rest is no larger than SIZE (default: HEADRACE_REMOTE_QUOTA, else none)\n"
    "  --dry-run      only list them\n" ROOT_AND_JSON_ROWS;

struct command {
    const char *name, *help;
    int (*run)(int count, char **words);
};
static const struct command commands[] = {
    {"warm", warm_help, cache_warm},       {"ls", ls_help, cache_ls}, {"info", info_help, cache_info},
    {"verify", verify_help, cache_verify}, {"rm", rm_help, cache_rm}, {"gc", gc_help, cache_gc},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

int fail_with_message(void) {
    fprintf(stderr, "headrace: %s\n", hr_error_message());
    return 1;
}

hr_cache *open_cache(const char *root) {
    hr_cache *cache = NULL;
    if (hr_cache_open(root, &cache) < 0) fail_with_message();
    return cache;
}

hr_cache *find_cache(const char *root, bool *ret_is_missing) {
    *ret_is_missing = !hr_cache_exists(root);
    return *ret_is_missing ? NULL : open_cache(root);
}

static int is_help(const char *word) {
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int show(FILE *to, const char *text) {
    fputs(text, to);
    return to == stdout ? 0 : EXIT_USAGE;
}

static int run_words(const struct command *command, int count, char **words) {
    for (int i = 0; i < count; i++)
        if (is_help(words[i])) return show(stdout, command->help);
    int code = command->run(count, words);
    if (code == EXIT_USAGE && count == 0) show(stderr, command->help);
    return code;
}

/* The samples of a dataset are made by Python. */
static bool is_about_dataset(int argc, char **argv) {
    if (strcmp(argv[2], "warm") != 0) return false;
    for (int i = 3; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--dataset") == 0 || strncmp(argv[i], "--dataset=", 10) == 0) return true;
    return false;
}

/* Remote objects are fetched by Python. */
static bool is_about_remote(int argc, char **argv) {
    if (strcmp(argv[2], "warm") != 0) return false;
    for (int i = 3; i < argc; i++)
        if (is_url(argv[i])) return true;
    return false;
}

int cache_command(int argc, char **argv) {
    if (argc < 3) return show(stderr, general_help);
    if (is_help(argv[2])) return show(stdout, general_help);
    if (is_about_dataset(argc, argv)) return become_python(argc - 1, argv + 1);
    if (is_about_remote(argc, argv)) {
        static char fill[] = "fill"; /* the command's name in Python */
        argv[2] = fill;
        return become_python(argc - 1, argv + 1);
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(argv[2], commands[i].name) == 0) return run_words(&commands[i], argc - 3, argv + 3);
    fprintf(stderr, "headrace: unknown cache command '%s'; there is", argv[2]);
    for (size_t i = 0; i < COMMAND_COUNT; i++) fprintf(stderr, "%s %s", i ? "," : "", commands[i].name);
    fputs("\n", stderr);
    return EXIT_USAGE;
}
