/* SPDX-License-Identifier: Apache-2.0 */
/* Children and orphans of this process, and how a child becomes a program. */
#define _GNU_SOURCE
#include "os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

int hr__adopt_orphans(void) {
    int r = hr__fail_at("subreaper");
    if (r < 0) return r;
    return prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 ? -errno : 0;
}

int hr__new_session(void) {
    return setsid() < 0 ? -errno : 0;
}

int hr__parent(void) {
    return getppid();
}

/* ---- the end of children ---- */

int hr__ended_child(int *ret_pid) {
    siginfo_t info = {0};
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
        if (errno != EINTR) return -errno;
    if (info.si_pid == 0) return -EAGAIN;
    *ret_pid = info.si_pid;
    return 0;
}

int hr__reap(int pid, struct hr__end *ret_end, uint64_t *ret_peak_bytes) {
    enum { KIB = 1024 };
    struct rusage usage;
    int status;
    pid_t reaped;
    do reaped = wait4(pid, &status, WNOHANG, &usage);
    while (reaped < 0 && errno == EINTR);
    if (reaped <= 0) return reaped == 0 ? -EAGAIN : -errno;
    *ret_end = (struct hr__end){.is_known = true,
                                .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                                .exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0};
    *ret_peak_bytes = (uint64_t)usage.ru_maxrss * KIB;
    return 0;
}

/* ---- the list of children ---- */

struct list {
    int *ret_pids;
    size_t count, room;
};

static void add(struct list *list, int pid) {
    if (list->count < list->room) list->ret_pids[list->count] = pid;
    list->count++;
}

static int parse_pid(const char *text) {
    long pid = strtol(text, NULL, 10);
    return pid > 0 && pid <= INT_MAX ? (int)pid : 0;
}

static void read_pids(FILE *file, struct list *list) {
    char *word = NULL;
    size_t room = 0;
    while (getdelim(&word, &room, ' ', file) > 0)
        if (parse_pid(word)) add(list, parse_pid(word));
    free(word);
}

/* Reads the list that the kernel keeps for each thread. -ENOENT: this kernel has none. */
static int list_by_kernel(int parent, struct list *list) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", parent);
    DIR *tasks = opendir(path);
    if (!tasks) return -errno;
    int r = 0;
    for (const struct dirent *entry; r == 0 && (entry = readdir(tasks));) {
        if (*entry->d_name == '.') continue;
        char name[128];
        snprintf(name, sizeof name, "/proc/%d/task/%.20s/children", parent, entry->d_name);
        FILE *file = fopen(name, "re");
        if (!file) {
            r = -errno;
            break;
        }
        read_pids(file, list);
        fclose(file);
    }
    closedir(tasks);
    return r;
}

/* -ESRCH and others. */
static int parent_of(int pid) {
    enum { STATE_BYTES = 3 }; /* ") S" is followed by a space and the parent */
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -errno;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    const char *name_end = strrchr(text, ')'); /* the name of the program may have spaces and parentheses */
    bool is_whole = name_end && strlen(name_end) > STATE_BYTES;
    return is_whole ? (int)strtol(name_end + STATE_BYTES, NULL, 10) : -ESRCH;
}

/* Goes over all processes. */
static int list_by_search(int parent, struct list *list) {
    DIR *processes = opendir("/proc");
    if (!processes) return -errno;
    for (const struct dirent *entry; (entry = readdir(processes));) {
        int pid = parse_pid(entry->d_name);
        if (pid > 0 && parent_of(pid) == parent) add(list, pid);
    }
    closedir(processes);
    return 0;
}

size_t hr__children_of(int parent, int *ret_pids, size_t room) {
    struct list list = {ret_pids, 0, room};
    if (room) *ret_pids = 0;
    if (hr__fail_at("children") < 0 || list_by_kernel(parent, &list) < 0) {
        list.count = 0;
        list_by_search(parent, &list);
    }
    return list.count;
}

int hr__kill(int pid, int signal) {
    return kill(pid, signal) < 0 ? -errno : 0;
}

void hr__process_name(int pid, char *ret_name, size_t bytes) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, ret_name, bytes - 1);
    hr__close(&fd);
    ret_name[length > 0 ? length : 0] = '\0';
    ret_name[strcspn(ret_name, "\n")] = '\0';
}

/* ---- becoming a program ---- */

static void prepare_signals(uint64_t kept_ignored) {
    sigset_t none;
    struct sigaction action;
    for (int number = 1; number < NSIG; number++) {
        bool is_kept = number <= 64 && kept_ignored >> (number - 1) & 1;
        if (is_kept || sigaction(number, NULL, &action) < 0 || action.sa_handler == SIG_DFL) continue;
        signal(number, SIG_DFL);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Puts descriptors on the numbers 0, 1 and 2. All of them are above 2 (hr__own). */
static int place_streams(const struct hr__program *program) {
    for (int number = 0; number < 3; number++) {
        int fd = program->streams[number];
        int r = fd < 0 ? close(number) : dup2(fd, number);
        if (r < 0 && fd >= 0) return -errno;
    }
    return 0;
}

static int keep_inherited(const struct hr__program *program) {
    for (size_t i = 0; i < program->inherited_count; i++)
        if (fcntl(program->inherited[i], F_SETFD, 0) < 0) return -errno;
    return 0;
}

static int take_terminal(const struct hr__program *program) {
    if (!program->has_terminal) return 0;
    if (setsid() < 0 || ioctl(program->streams[0], TIOCSCTTY, 0) < 0) return -errno;
    return 0;
}

static int run_program(const struct hr__program *program) {
    if (program->has_own_group && !program->has_terminal) setpgid(0, 0);
    if (program->dies_with_parent) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        if (getppid() != program->parent) _exit(HR__KILL); /* it died before the kernel knew what to do */
    }
    int r = take_terminal(program);
    if (r == 0) r = place_streams(program);
    if (r == 0) r = keep_inherited(program);
    if (r < 0) return r;
    prepare_signals(program->kept_ignored);
    hr__restore_open_files(program->open_files);
    execve(program->path, (char *const *)program->words, (char *const *)program->environment);
    return -errno;
}

static int run_by_shell(const struct hr__program *program) {
    size_t count = 0;
    while (program->words[count]) count++;
    const char **words = calloc(count + 2, sizeof *words);
    if (!words) return -ENOMEM;
    words[0] = "/bin/sh";
    words[1] = program->path;
    if (count) memcpy(words + 2, program->words + 1, count * sizeof *words); /* includes the NULL at the end */
    execve(words[0], (char *const *)words, (char *const *)program->environment);
    int r = -errno;
    free(words);
    return r;
}

int hr__become(const struct hr__program *program) {
    int r = run_program(program);
    return r == -ENOEXEC ? run_by_shell(program) : r; /* a script without #!, as execvp does it */
}

uint64_t hr__ignored_signals(void) {
    uint64_t ignored = 0;
    struct sigaction action;
    for (int number = 1; number <= 64 && number < NSIG; number++)
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
            ignored |= UINT64_C(1) << (number - 1);
    return ignored;
}

static bool is_program(const char *path) {
    struct stat info;
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    if (is_folder) errno = EISDIR;
    return !is_folder && access(path, X_OK) == 0;
}

int hr__find_program(const char *name, const char *folders, char *ret_path, size_t bytes) {
    if (strchr(name, '/')) {
        if ((size_t)snprintf(ret_path, bytes, "%s", name) >= bytes) return -ENAMETOOLONG;
        return is_program(name) ? 0 : -errno;
    }
    if (!folders) folders = "/bin:/usr/bin"; /* as glibc */
    int r = -ENOENT;
    while (*name) {
        size_t length = strcspn(folders, ":");
        int size = length ? snprintf(ret_path, bytes, "%.*s/%s", (int)length, folders, name)
                          : snprintf(ret_path, bytes, "./%s", name);
        if (size > 0 && (size_t)size < bytes) {
            if (is_program(ret_path)) return 0;
            if (errno == EACCES) r = -EACCES;
        }
        if (!folders[length]) break;
        folders += length + 1;
    }
    return r;
}

/* ---- a program that is not forked ---- */

static int prepare_spawn(posix_spawn_file_actions_t *actions, posix_spawnattr_t *attributes, int error_fd) {
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int r = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (r == 0) r = posix_spawn_file_actions_addopen(actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (r == 0) r = posix_spawn_file_actions_adddup2(actions, error_fd, STDERR_FILENO);
    if (r == 0) r = posix_spawnattr_setsigmask(attributes, &none);
    if (r == 0) r = posix_spawnattr_setsigdefault(attributes, &all);
    if (r == 0) r = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    return r;
}

int hr__spawn(const char *const *words, int error_fd, int *ret_pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    pid_t pid;
    int r = hr__fail_at("spawn");
    if (r < 0) return r;
    r = posix_spawn_file_actions_init(&actions);
    if (r) return -r;
    r = posix_spawnattr_init(&attributes);
    if (r == 0) {
        r = prepare_spawn(&actions, &attributes, error_fd);
        if (r == 0) r = posix_spawnp(&pid, words[0], &actions, &attributes, (char *const *)words, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    if (r == 0) *ret_pid = pid;
    return -r;
}
