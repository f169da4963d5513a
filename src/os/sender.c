/* SPDX-License-Identifier: Apache-2.0 */
/* Ignores in a worker the signals that another process than its trainer has sent. */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

/* Signals to the process group of a trainer reach its workers too: those of a scheduler, and the Ctrl-C of a terminal
 * or of a notebook. A handler looks who has sent them. */

static const int group_signals[] = {SIGTERM, SIGUSR1, SIGUSR2};

/* Written before the handler is set, and read by it. A forked child has the handler too, but is not the owner. */
static _Atomic int owner, trainer;
static struct sigaction interrupt; /* of SIGINT before */

static bool is_from_other(const siginfo_t *info) {
    if (info->si_code == SI_KERNEL && info->si_signo == SIGINT) return true; /* of a terminal */
    bool has_sender = info->si_code == SI_USER || info->si_code == SI_QUEUE || info->si_code == SI_TKILL;
    return has_sender && info->si_pid != atomic_load(&trainer) && info->si_pid != atomic_load(&owner);
}

/* Does what the signal would have done without this handler: by default it ends the process when the handler
 * returns. */
static void on_group_signal(int number, siginfo_t *info, void *context) {
    if (getpid() == atomic_load(&owner) && is_from_other(info)) return;
    if (number == SIGINT && interrupt.sa_flags & SA_SIGINFO) {
        interrupt.sa_sigaction(number, info, context);
        return;
    }
    if (number == SIGINT && interrupt.sa_handler != SIG_DFL) {
        interrupt.sa_handler(number);
        return;
    }
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigaction(number, &action, NULL);
    raise(number);
}

static bool is_ours(const struct sigaction *action) {
    return action->sa_flags & SA_SIGINFO && action->sa_sigaction == on_group_signal;
}

static bool is_default(const struct sigaction *action) {
    return is_ours(action) || (!(action->sa_flags & SA_SIGINFO) && action->sa_handler == SIG_DFL);
}

static int wrap_interrupt(const struct sigaction *action) {
    struct sigaction before;
    if (sigaction(SIGINT, NULL, &before) < 0) return -errno;
    bool is_ignored = !(before.sa_flags & SA_SIGINFO) && before.sa_handler == SIG_IGN;
    if (is_ours(&before) || is_ignored) return 0;
    interrupt = before;
    return sigaction(SIGINT, action, NULL) < 0 ? -errno : 0;
}

int hr__ignore_others(int trainer_pid, bool interrupts) {
    struct sigaction before, action = {.sa_sigaction = on_group_signal};
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    atomic_store(&trainer, trainer_pid);
    atomic_store(&owner, getpid());
    for (size_t i = 0; i < sizeof group_signals / sizeof *group_signals; i++) {
        if (sigaction(group_signals[i], NULL, &before) < 0) return -errno;
        if (is_default(&before) && sigaction(group_signals[i], &action, NULL) < 0) return -errno;
    }
    return interrupts ? wrap_interrupt(&action) : 0;
}
