/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* pipe2 */
#include "run.h"

#include <headrace/face/machine.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/*
 * How many ranks --nproc-per-node gpu, xpu, auto and cpu mean. GPUs are counted without starting an interpreter if that
 * is possible: importing torch takes seconds. CUDA_VISIBLE_DEVICES is believed, NVIDIA's library (NVML) is asked, and
 * only without both the torch of the interpreter.
 */

enum { ASK_LIMIT_MS = 60000, ANSWER_MOST_BYTES = 65536 };

/* ---- CUDA_VISIBLE_DEVICES ---- */

/* Returns the length of the entry without blanks around it, and moves `*entry` to its first character. */
static size_t trim(const char **entry, size_t length) {
    while (length && strchr(" \t", **entry)) (*entry)++, length--;
    while (length && strchr(" \t", (*entry)[length - 1])) length--;
    return length;
}

/* Reads the number at the beginning of an entry, as CUDA does: 1gpu is 1. -1: it is invalid. */
static int64_t read_ordinal(const char *entry, size_t length) {
    int64_t value = 0;
    size_t digits = length && *entry == '+';
    if (digits == length || entry[digits] < '0' || entry[digits] > '9') return -1;
    for (; digits < length && entry[digits] >= '0' && entry[digits] <= '9' && value <= INT32_MAX; digits++)
        value = value * 10 + entry[digits] - '0';
    return value;
}

/* Returns true if `other` names the device of the entry, too. */
static bool is_same(const char *entry, size_t length, const char *other, size_t other_length, bool is_uuid) {
    if (is_uuid) return length == other_length && !memcmp(entry, other, length);
    return read_ordinal(entry, length) == read_ordinal(other, other_length);
}

/* Returns true if one of the entries before `entry` names the same device. */
static bool is_repeated(const char *visible, const char *entry, size_t length, bool is_uuid) {
    for (const char *other = visible; other < entry;) {
        size_t whole = strcspn(other, ",");
        const char *next = other + whole + 1;
        if (next > entry) break;
        size_t other_length = trim(&other, whole);
        if (is_same(entry, length, other, other_length, is_uuid)) return true;
        other = next;
    }
    return false;
}

uint32_t run_visible_count(const char *visible, uint32_t present) {
    bool is_gpu = !strncmp(visible, "GPU-", 4), is_mig = !strncmp(visible, "MIG-", 4);
    uint32_t count = 0;
    for (const char *entry = visible;; count++) {
        size_t whole = strcspn(entry, ",");
        const char *end = entry + whole;
        size_t length = trim(&entry, whole);
        bool is_valid = is_gpu || is_mig ? length > 4 && !strncmp(entry, visible, 4)
                                         : read_ordinal(entry, length) >= 0 && read_ordinal(entry, length) < present;
        if (!is_valid || count == HR_LAUNCH_MAX_RANKS) return count;
        if (is_repeated(visible, entry, length, is_gpu || is_mig)) return 0; /* CUDA shows no device then */
        if (!*end) return count + 1;
        entry = end + 1;
    }
}

/* ---- NVML ---- */

/* Finds a function of the library. A pointer to an object cannot be cast to one to a function in ISO C. */
static bool find_function(void *library, const char *name, void *ret_function) {
    void *found = dlsym(library, name);
    memcpy(ret_function, &found, sizeof found);
    return found;
}

/* Returns the number of GPUs of the machine. -1: NVIDIA's library or driver is missing. */
static int64_t ask_nvml(void) {
    int (*init)(void), (*get_count)(unsigned *), (*shut_down)(void);
    int64_t answer = -1;
    unsigned count;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return -1;
    if (find_function(library, "nvmlInit_v2", (void *)&init) &&
        find_function(library, "nvmlDeviceGetCount_v2", (void *)&get_count) &&
        find_function(library, "nvmlShutdown", (void *)&shut_down) && !init()) {
        if (!get_count(&count)) answer = count;
        shut_down();
    }
    dlclose(library);
    return answer;
}

/* ---- torch ---- */

/* It prints a line "headrace N". The current folder is not on the path, as in a script. */
static const char question[] = "import sys\n"
                               "if sys.path[:1] == ['']: del sys.path[0]\n"
                               "import torch\n"
                               "def count(of):\n"
                               "    return of.device_count() if of is not None and of.is_available() else 0\n"
                               "kind = sys.argv[1]\n"
                               "if kind == 'gpu': n = count(torch.cuda)\n"
                               "elif kind == 'xpu': n = count(getattr(torch, 'xpu', None))\n"
                               "elif hasattr(torch, 'accelerator'): n = count(torch.accelerator)\n"
                               "else: n = count(torch.cuda) or count(getattr(torch, 'xpu', None))\n"
                               "print(f'\\nheadrace {n}', flush=True)\n";

static int64_t now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Starts the interpreter with its output in a pipe. Returns 0 or errno. */
static int start_asking(const char *interpreter, const char *kind, int write_fd, char *const *environment,
                        pid_t *ret_pid) {
    char *words[] = {(char *)(intptr_t)interpreter, "-c", (char *)(intptr_t)question, (char *)(intptr_t)kind, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, write_fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, write_fd, STDERR_FILENO);
    int error = posix_spawnp(ret_pid, interpreter, &actions, NULL, words, environment);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

static const char *find_answer(const char *text) {
    const char *line = strstr(text, "\nheadrace ");
    return line && strchr(line + 1, '\n') ? line + strlen("\nheadrace ") : NULL;
}

/* Reads until the answer, the end, or the deadline. Keeps the last bytes. Returns false at the deadline. */
static bool read_answer(int fd, char *text, int64_t deadline_ms) {
    size_t length = 0;
    while (!find_answer(text)) {
        struct pollfd wanted = {.fd = fd, .events = POLLIN};
        int64_t left_ms = deadline_ms - now_ms();
        if (left_ms <= 0) return false;
        if (poll(&wanted, 1, (int)left_ms) <= 0) continue;
        if (length > ANSWER_MOST_BYTES / 2) {
            memmove(text, text + length / 2, length - length / 2 + 1);
            length -= length / 2;
        }
        ssize_t count = read(fd, text + length, ANSWER_MOST_BYTES - 1 - length);
        if (count <= 0) return count == 0 || errno != EINTR;
        length += (size_t)count;
        text[length] = '\0';
    }
    return true;
}

/* Returns the last line of a text that is not empty. */
static const char *last_line(struct run *run, const char *text) {
    size_t end = strlen(text);
    while (end && strchr(" \n", text[end - 1])) end--;
    size_t start = end;
    while (start && text[start - 1] != '\n') start--;
    return end > start ? run_print(run, "%.*s", (int)(end - start), text + start) : "it ended without an answer";
}

int64_t run_ask_torch(struct run *run, const char *interpreter, const char *kind, int limit_ms, const char **ret_why) {
    int fds[2];
    pid_t pid;
    char *text = run_keep(run, ANSWER_MOST_BYTES);
    if (pipe2(fds, O_CLOEXEC) < 0) {
        *ret_why = strerror(errno);
        return -1;
    }
    int error = start_asking(interpreter, kind, fds[1], (char *const *)(intptr_t)run->environment, &pid);
    close(fds[1]);
    bool is_in_time = !error && read_answer(fds[0], text, now_ms() + limit_ms);
    close(fds[0]);
    if (!error) {
        kill(pid, SIGKILL); /* torch needs more time to exit than to answer */
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    const char *answer = find_answer(text);
    int64_t count = answer ? strtoll(answer, NULL, 10) : -1;
    if (count >= 0) return count;
    *ret_why = error        ? strerror(error)
               : is_in_time ? last_line(run, text)
                            : run_print(run, "there was no answer after %g s", limit_ms / 1e3);
    return -1;
}

/* ---- all together ---- */

/* A count, and where it is from. */
struct answer {
    int64_t count; /* -1: not known */
    const char *from;
};

static struct answer ask_interpreter(struct run *run, const char *kind) {
    const char *interpreter, *why;
    if (!run_find_interpreter(run, &interpreter)) return (struct answer){-1, run->error};
    int64_t count = run_ask_torch(run, interpreter, kind, ASK_LIMIT_MS, &why);
    if (count < 0) return (struct answer){-1, run_print(run, "%s cannot count them: %s", interpreter, why)};
    return (struct answer){count, run_print(run, "the torch of %s", interpreter)};
}

static struct answer count_accelerators(struct run *run, const char *kind) {
    const char *visible = run_variable(run, "CUDA_VISIBLE_DEVICES");
    if (!strcmp(kind, "xpu")) return ask_interpreter(run, kind);
    int64_t present = ask_nvml();
    if (visible) {
        uint32_t count = run_visible_count(visible, present < 0 ? HR_LAUNCH_MAX_RANKS : (uint32_t)present);
        return (struct answer){count, run_print(run, "CUDA_VISIBLE_DEVICES='%s'", visible)};
    }
    if (present > 0) return (struct answer){present, "NVIDIA's driver"};
    return ask_interpreter(run, kind);
}

static bool count_cores(struct run *run, uint32_t *ret_count) {
    struct hr_machine machine;
    hr_machine_look(&machine);
    if (machine.core_count > HR_LAUNCH_MAX_RANKS)
        return run_fail(run, "this machine has %" PRIu32 " cores, and at most %d ranks are possible; give their number",
                        machine.core_count, HR_LAUNCH_MAX_RANKS);
    *ret_count = machine.core_count;
    return true;
}

bool run_count_devices(struct run *run, const char *kind, uint32_t *ret_count) {
    if (!strcmp(kind, "cpu")) return count_cores(run, ret_count);
    struct answer answer = count_accelerators(run, kind);
    if (answer.count > 0 && answer.count <= HR_LAUNCH_MAX_RANKS) {
        *ret_count = (uint32_t)answer.count;
        return true;
    }
    if (!strcmp(kind, "auto")) {
        if (answer.count < 0) run_say(run, "auto counts cores, because GPUs could not be counted: %s", answer.from);
        run->error = NULL;
        return count_cores(run, ret_count);
    }
    const char *called = run_called(run, NPROC_PER_NODE);
    if (answer.count < 0) return run_fail(run, "%s is '%s': %s; give a number", called, kind, answer.from);
    return run_fail(run, "%s is '%s', and %s has %" PRId64 "; give a number, or cpu", called, kind, answer.from,
                    answer.count);
}
