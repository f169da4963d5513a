/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "run.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <headrace/version.h>

/*
 * Finds Python interpreters, and other programs.
 *
 * For commands that are written in Python: HEADRACE_PYTHON, else the one next to this program, which has the package.
 * For ranks: PYTHON_EXEC, else that of the active environment, or else python3 of PATH, if it has headrace of this
 * version, else the one next to this program if it has torch, else python3 of PATH. Without torch, the one next to this
 * program comes last: headrace may be installed as a tool, apart from the packages that the script needs.
 */

bool find_own_path(char *path, size_t size) {
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length < 0) return false;
    path[length] = '\0';
    return true;
}

/* Writes to `path` the path of the program `name` in the directory of this program. Returns true if it can be executed.
 */
static bool find_next_to(const char *name, char *path, size_t size) {
    if (!find_own_path(path, size)) return false;
    char *slash = strrchr(path, '/');
    if (!slash) return false;
    size_t room = size - (size_t)(slash + 1 - path);
    return (size_t)snprintf(slash + 1, room, "%s", name) < room && access(path, X_OK) == 0;
}

static bool find_neighbour(char *path, size_t size) {
    return find_next_to("python3", path, size) || find_next_to("python", path, size);
}

const char *find_interpreter(char *path, size_t size) {
    const char *named = getenv("HEADRACE_PYTHON");
    if (named && *named) return named;
    return find_neighbour(path, size) ? path : NULL;
}

const char *run_find_program(struct run *run, const char *name) {
    char path[PATH_MAX];
    int r = hr_launch_find_program(name, run_variable(run, "PATH"), path, sizeof path);
    errno = -r;
    return r < 0 ? NULL : run_print(run, "%s", path);
}

/* ---- the interpreter of the ranks ---- */

/* Returns true if the packages of a folder pythonN.N in `lib` have a file. */
static bool lib_has(struct run *run, const char *lib, const char *file) {
    static const char *const folders[] = {"site-packages", "dist-packages"};
    DIR *listing = opendir(lib);
    bool is_found = false;
    if (!listing) return false;
    for (const struct dirent *entry; !is_found && (entry = readdir(listing));)
        for (size_t i = 0; i < 2 && !strncmp(entry->d_name, "python3", 7); i++)
            is_found |= !access(run_print(run, "%s/%s/%s/%s", lib, entry->d_name, folders[i], file), R_OK);
    closedir(listing);
    return is_found;
}

static bool has_package(struct run *run, const char *interpreter, const char *file) {
    int length = (int)(strrchr(interpreter, '/') - interpreter);
    return lib_has(run, run_print(run, "%.*s/../lib", length, interpreter), file) ||
           lib_has(run, run_print(run, "%.*s/../lib64", length, interpreter), file);
}

static bool has_torch(struct run *run, const char *interpreter) {
    return has_package(run, interpreter, "torch/__init__.py");
}

/* Another version of headrace in the ranks than in this program might not understand it. */
static bool has_headrace(struct run *run, const char *interpreter) {
    return has_package(run, interpreter, run_print(run, "headrace-%s.dist-info/METADATA", hr_version()));
}

static const char *active_environment(struct run *run) {
    const char *environment = run_variable(run, "VIRTUAL_ENV");
    if (!environment || !*environment) environment = run_variable(run, "CONDA_PREFIX");
    return environment && *environment ? environment : NULL;
}

/* Returns the interpreter of the active environment or python3 of PATH, if it has this headrace; otherwise NULL. */
static const char *find_active(struct run *run) {
    const char *environment = active_environment(run);
    const char *own = environment ? run_print(run, "%s/bin/python3", environment) : NULL;
    if (own && access(own, X_OK) == 0 && has_headrace(run, own)) return own;
    const char *of_path = run_find_program(run, "python3");
    return of_path && has_headrace(run, of_path) ? of_path : NULL;
}

/* Says which interpreter was chosen if the user may expect that of the active environment. */
static void say_choice(struct run *run, const char *interpreter, const char *why) {
    char own[PATH_MAX], active[PATH_MAX];
    const char *environment = active_environment(run), *slash = strrchr(interpreter, '/');
    if (!environment || !slash) return;
    if (!realpath(run_print(run, "%.*s", (int)(slash - interpreter + 1), interpreter), own)) return;
    if (!realpath(run_print(run, "%s/bin", environment), active) || !strcmp(own, active)) return;
    run_say(run,
            "the ranks run under %s, %s, and not in the active environment %s; PYTHON_EXEC=%s/python3 chooses that",
            interpreter, why, environment, active);
}

bool run_find_interpreter(struct run *run, const char **ret_path) {
    const char *named = run_variable(run, "PYTHON_EXEC");
    char path[PATH_MAX];
    if (named && *named) {
        *ret_path = run_find_program(run, named);
        if (*ret_path) return true;
        return run_fail(run, "PYTHON_EXEC is '%s', which cannot be executed: %s; name a Python interpreter", named,
                        strerror(errno));
    }
    const char *neighbour = find_neighbour(path, sizeof path) ? run_print(run, "%s", path) : NULL;
    const char *found = find_active(run), *why = "python3 of PATH";
    if (!found && neighbour && has_torch(run, neighbour)) found = neighbour;
    if (!found) found = run_find_program(run, "python3");
    if (!found) found = neighbour;
    if (neighbour && found && strcmp(found, neighbour) == 0) why = "which is in the directory of headrace";
    if (!found)
        return run_fail(run, "there is no Python interpreter: no python3 in PATH, and none in the directory of this "
                             "program; name one: PYTHON_EXEC=/path/to/python3, or add --no-python to start another "
                             "program");
    say_choice(run, found, why);
    *ret_path = found;
    return true;
}
