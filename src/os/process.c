/* SPDX-License-Identifier: Apache-2.0 */
/* Forks, pidfds, signals, and the state of a process from /proc. */
#define _GNU_SOURCE
#include "os.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

int hr__pidfd(int pid, int *ret_fd) {
    int r = hr__fail_at("pidfd_open");
    if (r < 0) return r;
    return hr__own((int)syscall(SYS_pidfd_open, pid, 0), ret_fd);
}

int hr__fork(int *ret_pid) {
    int r = hr__fail_at("fork");
    if (r < 0) return r;
    pid_t pid = fork();
    if (pid < 0) return -errno;
    *ret_pid = pid;
    return 0;
}

_Noreturn void hr__exit(int code) {
    _exit(code);
}

int hr__send_signal(int pidfd, int pid, int signal) {
    if (pidfd >= 0 && syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0) == 0) return 0;
    if (pidfd >= 0 && errno != ENOSYS && errno != EPERM) return -errno;
    return kill(pid, signal) < 0 ? -errno : 0;
}

const char *hr__signal_name(int signal) {
    static_assert(HR__HUP == SIGHUP && HR__INT == SIGINT && HR__QUIT == SIGQUIT && HR__ABRT == SIGABRT, "the kernel's");
    static_assert(HR__KILL == SIGKILL && HR__PIPE == SIGPIPE && HR__TERM == SIGTERM && HR__CHLD == SIGCHLD, "numbers");
    static_assert(HR__CONT == SIGCONT && HR__STOP == SIGSTOP && HR__TSTP == SIGTSTP && HR__WINCH == SIGWINCH, "");
    return signal > 0 && signal < SIGRTMIN ? strsignal(signal) : NULL;
}

static void tell_end(const siginfo_t *info, struct hr__end *ret_end) {
    bool has_exited = info->si_code == CLD_EXITED;
    *ret_end = (struct hr__end){
        .is_known = true, .signal = has_exited ? 0 : info->si_status, .exit_code = has_exited ? info->si_status : 0};
}

int hr__process_end(int pid, bool reaps, struct hr__end *ret_end) {
    siginfo_t info = {0};
    int flags = WEXITED | WNOHANG | (reaps ? 0 : WNOWAIT);
    while (waitid(P_PID, (id_t)pid, &info, flags) < 0)
        if (errno != EINTR) return -errno;
    if (info.si_pid == 0) return -EAGAIN;
    tell_end(&info, ret_end);
    return 0;
}

/* ---- /proc ---- */

static size_t read_proc(int pid, const char *name, char *text, size_t bytes) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    FILE *file = fopen(path, "re");
    size_t length = file ? fread(text, 1, bytes - 1, file) : 0;
    if (file) fclose(file);
    text[length] = '\0';
    return length;
}

uint64_t hr__resident_bytes(int pid) {
    char text[128], *second;
    if (!read_proc(pid, "statm", text, sizeof text) || !(second = strchr(text, ' '))) return 0;
    return strtoull(second + 1, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Returns the value of a line "Name:<tab>value" of /proc/PID/status. */
static const char *status_of(const char *status, const char *name) {
    const char *line = strstr(status, name);
    return line ? line + strlen(name) + strspn(line + strlen(name), " \t") : "";
}

static void copy_line(char *to, size_t bytes, const char *from) {
    snprintf(to, bytes, "%.*s", (int)strcspn(from, "\n"), from);
}

static uint64_t number_of(const char *status, const char *name) {
    return strtoull(status_of(status, name), NULL, 10);
}

uint64_t hr__private_bytes(int pid) {
    enum { KIB = 1024 };
    char status[4096];
    return read_proc(pid, "status", status, sizeof status) ? number_of(status, "\nRssAnon:") * KIB : 0;
}

int hr__inner_pid(int pid) {
    char status[4096], line[256], *last;
    if (!read_proc(pid, "status", status, sizeof status)) return 0;
    copy_line(line, sizeof line, status_of(status, "\nNSpid:"));
    last = strrchr(line, '\t');
    return (int)strtol(last ? last + 1 : line, NULL, 10);
}

uint64_t hr__cpu_ns(int pid) {
    enum { FIELDS = 12 }; /* from the end of the name to the times */
    char text[1024], *at;
    if (!read_proc(pid, "stat", text, sizeof text)) return 0;
    at = strrchr(text, ')');
    for (int i = 0; at && i < FIELDS; i++) at = strchr(at + 1, ' ');
    if (!at) return 0;
    uint64_t user = strtoull(at, &at, 10), kernel = strtoull(at, NULL, 10);
    return (user + kernel) * (uint64_t)(HR_NS_PER_S / sysconf(_SC_CLK_TCK));
}

uint64_t hr__delay_ns(int pid) {
    char text[128], *second;
    if (!read_proc(pid, "schedstat", text, sizeof text) || !(second = strchr(text, ' '))) return 0;
    return strtoull(second + 1, NULL, 10);
}

/* Parses "NUMBER 0xADDRESS 0xOPERATION 0xVALUE 0xTIMEOUT ...". Returns true if the thread waits for a private futex of
 * its process, from which only another thread of the same process can wake it. */
static bool is_endless_private_wait(const char *system_call) {
    enum { OPERATION = 2, TIMEOUT = 4 };
    unsigned long words[TIMEOUT + 1] = {0};
    char *end = NULL;
    for (int i = 0; i <= TIMEOUT; i++, system_call = end) {
        words[i] = strtoul(system_call, &end, 0);
        if (end == system_call) return false;
    }
    unsigned long command = words[OPERATION] & (unsigned long)FUTEX_CMD_MASK;
    return words[0] == SYS_futex && (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET) &&
           words[OPERATION] & FUTEX_PRIVATE_FLAG && words[TIMEOUT] == 0;
}

int hr__process_look(int pid, struct hr__process *ret_process) {
    enum { KIB = 1024 };
    char status[4096], text[256];
    struct hr__process process = {0};
    if (!read_proc(pid, "status", status, sizeof status)) return -ESRCH;
    process.state = *status_of(status, "\nState:");
    process.thread_count = (uint32_t)strtoul(status_of(status, "\nThreads:"), NULL, 10);
    process.tracer_pid = (uint32_t)strtoul(status_of(status, "\nTracerPid:"), NULL, 10);
    process.rss_bytes = strtoull(status_of(status, "\nVmRSS:"), NULL, 10) * KIB;
    process.caught_signals = strtoull(status_of(status, "\nSigCgt:"), NULL, 16);
    read_proc(pid, "wchan", text, sizeof text);
    copy_line(process.kernel_function, sizeof process.kernel_function, strcmp(text, "0") ? text : "");
    read_proc(pid, "syscall", text, sizeof text);
    copy_line(process.system_call, sizeof process.system_call, text);
    process.is_deadlocked = process.thread_count == 1 && is_endless_private_wait(process.system_call);
    *ret_process = process;
    return 0;
}

void hr__command_line(int pid, char *ret_text, size_t bytes) {
    size_t length = read_proc(pid, "cmdline", ret_text, bytes);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)ret_text[i] < ' ') ret_text[i] = ' ';
    while (length && ret_text[length - 1] == ' ') ret_text[--length] = '\0';
}

uint64_t hr__pid_namespace(void) {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) < 0 ? 0 : (uint64_t)info.st_ino;
}

void hr__boot_id(char ret_id[HR__BOOT_ID_BYTES]) {
    char path[512];
    int count = snprintf(path, sizeof path, "%s/proc/sys/kernel/random/boot_id", hr__root());
    FILE *file = count < (int)sizeof path ? fopen(path, "re") : NULL;
    size_t length = file ? fread(ret_id, 1, HR__BOOT_ID_BYTES - 1, file) : 0;
    if (file) fclose(file);
    ret_id[length] = '\0';
    ret_id[strcspn(ret_id, "\n")] = '\0';
}
