/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "launch.h"

/*
 * The terminal of the rank that reads stdin. The real terminal passes each key on; the rank's own terminal shows and
 * edits the line, as its program wants it. Keys that mean a signal there are for the whole job, so the front takes
 * them.
 */

/* In the background, reading would stop this process. */
static bool has_keyboard(const struct hr__attempt *attempt) {
    return attempt->terminal_fd >= 0 && hr__is_foreground(0);
}

static void take_keyboard(struct hr__attempt *attempt) {
    struct hr__terminal *terminal = &attempt->launch->terminal;
    if (terminal->passes_keys || !has_keyboard(attempt) || hr__terminal_modes(0, &terminal->before) < 0) return;
    terminal->passes_keys = hr__terminal_pass_keys(0, &terminal->before) == 0;
}

static void give_keyboard_back(struct hr__attempt *attempt) {
    struct hr__terminal *terminal = &attempt->launch->terminal;
    if (terminal->passes_keys && hr__is_foreground(0)) hr__terminal_restore(0, &terminal->before);
    terminal->passes_keys = false;
}

void hr__terminal_begin(struct hr__attempt *attempt) {
    take_keyboard(attempt);
}

void hr__terminal_end(struct hr__attempt *attempt) {
    give_keyboard_back(attempt);
}

int hr__terminal_input(struct hr__attempt *attempt) {
    if (attempt->terminal_fd < 0) give_keyboard_back(attempt); /* the rank has closed its terminal */
    if (attempt->phase == HR__RUNNING) take_keyboard(attempt); /* the shell may have brought it to the foreground */
    return attempt->launch->terminal.passes_keys && has_keyboard(attempt) ? 0 : -1;
}

static int signal_of(enum hr__key key) {
    return key == HR__KEY_INTERRUPT ? HR__INT : key == HR__KEY_QUIT ? HR__QUIT : 0;
}

static void pass_key(struct hr__attempt *attempt, unsigned char byte) {
    enum hr__key key = hr__terminal_key(attempt->terminal_fd, byte);
    if (key == HR__KEY_SUSPEND)
        hr__terminal_suspend(attempt);
    else if (signal_of(key))
        hr__ending_signal(attempt, signal_of(key));
    else
        hr__write_all(attempt->terminal_fd, &byte, 1); /* if the rank reads nothing, further keys are lost */
}

void hr__terminal_pass_input(struct hr__attempt *attempt) {
    static const unsigned char END_OF_FILE = 4;
    unsigned char keys[256];
    int length = hr__read(0, keys, sizeof keys);
    if (length == 0) pass_key(attempt, END_OF_FILE);
    for (int i = 0; i < length && attempt->terminal_fd >= 0; i++) pass_key(attempt, keys[i]);
}

void hr__terminal_resize(struct hr__attempt *attempt) {
    if (attempt->terminal_fd >= 0) hr__terminal_copy_size(0, attempt->terminal_fd);
    hr__attempt_command(attempt, HR__COMMAND_SIGNAL, -1, HR__WINCH);
}

/* Stops the ranks, then this process; the shell takes over. When it continues, hr__terminal_resume continues them. */
void hr__terminal_suspend(struct hr__attempt *attempt) {
    hr__attempt_command(attempt, HR__COMMAND_STOP, -1, HR__STOP);
    give_keyboard_back(attempt);
    hr__stop_self();
    hr__terminal_resume(attempt);
}

void hr__terminal_resume(struct hr__attempt *attempt) {
    hr__attempt_command(attempt, HR__COMMAND_STOP, -1, HR__CONT);
    take_keyboard(attempt);
}
