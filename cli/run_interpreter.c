/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "run.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Finds the interpreter of the ranks: PYTHON_EXEC, else the one next to this program if it has torch, else python3 of
 * PATH. Without torch, the one next to this program comes last: headrace may be installed as a tool, apart from the
 * packages that the script needs.
 */

/* Returns 0 if the file can be executed, or errno. */
static int check_program(const char *path) {
    struct stat status;
    if (access(path, X_OK) < 0 || stat(path, &status) < 0) return errno;
    return S_ISDIR(status.st_mode) ? EISDIR : 0;
}

const char *run_find_program(struct run *run, const char *name) {
    int error = strchr(name, '/') ? check_program(name) : ENOENT;
    if (!error) return name;
    const char *folder = run_variable(run, "PATH");
    if (!folder) folder = "/bin:/usr/bin";
    for (bool is_more = !strchr(name, '/') && *name; is_more;) {
        size_t length = strcspn(folder, ":");
        const char *path = run_print(run, "%.*s/%s", length ? (int)length : 1, length ? folder : ".", name);
        int found = check_program(path);
        if (!found) return path;
        if (found == EACCES) error = EACCES;
        is_more = folder[length] == ':';
        folder += length + is_more;
    }
    errno = error;
    return NULL;
}

/* Returns true if a folder pythonN.N in `lib` has torch. */
static bool lib_has_torch(struct run *run, const char *lib) {
    static const char *const folders[] = {"site-packages", "dist-packages"};
    DIR *listing = opendir(lib);
    bool is_found = false;
    if (!listing) return false;
    for (const struct dirent *entry; !is_found && (entry = readdir(listing));)
        for (size_t i = 0; i < 2 && !strncmp(entry->d_name, "python3", 7); i++)
            is_found |= !access(run_print(run, "%s/%s/%s/torch/__init__.py", lib, entry->d_name, folders[i]), R_OK);
    closedir(listing);
    return is_found;
}

/* Returns the interpreter next to this program, or NULL. */
static const char *find_neighbour(struct run *run, bool *ret_has_torch) {
    char path[PATH_MAX];
    if (!find_next_to("python3", path, sizeof path) && !find_next_to("python", path, sizeof path)) return NULL;
    int length = (int)(strrchr(path, '/') - path);
    *ret_has_torch = lib_has_torch(run, run_print(run, "%.*s/../lib", length, path)) ||
                     lib_has_torch(run, run_print(run, "%.*s/../lib64", length, path));
    return run_print(run, "%s", path);
}

/* Says which interpreter was chosen if the user may expect that of the active environment. */
static void say_choice(struct run *run, const char *interpreter, const char *why) {
    char own[PATH_MAX], active[PATH_MAX];
    const char *environment = run_variable(run, "VIRTUAL_ENV"), *slash = strrchr(interpreter, '/');
    if (!environment || !*environment) environment = run_variable(run, "CONDA_PREFIX");
    if (!environment || !*environment || !slash) return;
    if (!realpath(run_print(run, "%.*s", (int)(slash - interpreter + 1), interpreter), own)) return;
    if (!realpath(run_print(run, "%s/bin", environment), active) || !strcmp(own, active)) return;
    run_say(run,
            "the ranks run under %s, %s, and not in the active environment %s; PYTHON_EXEC=%s/python3 chooses that",
            interpreter, why, environment, active);
}

bool run_find_interpreter(struct run *run, const char **ret_path) {
    const char *named = run_variable(run, "PYTHON_EXEC");
    bool has_torch = false;
    if (named && *named) {
        *ret_path = run_find_program(run, named);
        if (*ret_path) return true;
        return run_fail(run, "PYTHON_EXEC is '%s', which cannot be executed: %s; name a Python interpreter", named,
                        strerror(errno));
    }
    const char *neighbour = find_neighbour(run, &has_torch);
    const char *found = neighbour && has_torch ? neighbour : run_find_program(run, "python3"), *why = "python3 of PATH";
    if (!found) found = neighbour;
    if (neighbour && found == neighbour) why = "which is in the directory of headrace";
    if (!found)
        return run_fail(run, "there is no Python interpreter: no python3 in PATH, and none in the directory of this "
                             "program; name one: PYTHON_EXEC=/path/to/python3, or add --no-python to start another "
                             "program");
    say_choice(run, found, why);
    *ret_path = found;
    return true;
}
