/* SPDX-License-Identifier: Apache-2.0 */
/* The terminal of `headrace top`: keys, signals, and its state, which is restored at any end. */
#define _GNU_SOURCE
#include "cli.h"
#include "top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { PERIOD_MS = 1000, CACHE_LOOKS = 5, SLICE_NS = 2000000 };

/* The other screen, without a cursor; and back, with all attributes off. */
static const char enter_text[] = "\x1b[?1049h\x1b[?25l\x1b[2J", leave_text[] = "\x1b[0m\x1b[?25h\x1b[?1049l";
static struct termios saved, raw;
static volatile sig_atomic_t has_terminal, is_resized, must_end;

/* Another program may have left the terminal so that writing does not block. */
static bool may_write_later(void) {
    struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return errno == EINTR || (errno == EAGAIN && !must_end && (poll(&output, 1, -1) > 0 || errno == EINTR));
}

static void write_all(const char *text, size_t bytes) {
    while (bytes) {
        ssize_t written = write(STDOUT_FILENO, text, bytes);
        if (written < 0 && may_write_later()) continue;
        if (written <= 0) {
            must_end = SIGHUP; /* the terminal is gone */
            return;
        }
        text += written;
        bytes -= (size_t)written;
    }
}

/* Only functions that a handler of a signal may call. */
static void leave_terminal(void) {
    if (!has_terminal) return;
    has_terminal = 0;
    ssize_t written = write(STDOUT_FILENO, leave_text, sizeof leave_text - 1);
    (void)written; /* the modes of the terminal matter more */
    tcsetattr(STDIN_FILENO, TCSANOW, &saved);
}

static void set_raw(void) {
    has_terminal = 1; /* first: a signal may come at any time */
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    write_all(enter_text, sizeof enter_text - 1);
}

static void enter_terminal(void) {
    if (tcgetattr(STDIN_FILENO, &saved) < 0) return;
    raw = saved;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    set_raw();
}

static void note_size(int number) {
    (void)number;
    is_resized = 1;
}

static void note_end(int number) {
    must_end = number;
}

/* Ctrl-Z: the shell gets its terminal as it was. */
static void stop(int number) {
    (void)number;
    leave_terminal();
    raise(SIGSTOP);
}

/* After a SIGSTOP, which no handler sees, the shell has set its own modes. */
static void go_on(int number) {
    (void)number;
    if (has_terminal)
        set_raw();
    else
        enter_terminal();
    is_resized = 1;
}

/* A crash: the terminal is restored, and the signal has its effect. */
static void crash(int number) {
    leave_terminal();
    signal(number, SIG_DFL);
    raise(number);
}

static void handle(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

static void handle_signals(void) {
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT},
                     ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++) handle(crashes[i], crash);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) handle(ends[i], note_end);
    handle(SIGWINCH, note_size);
    handle(SIGTSTP, stop);
    handle(SIGCONT, go_on);
}

static void measure(struct top_view *view) {
    struct winsize size;
    bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col;
    view->lines = is_known ? size.ws_row : 24;
    view->columns = is_known ? size.ws_col : 80;
}

static void draw(struct top *top, struct top_view *view) {
    size_t bytes = 0;
    bool must_measure = is_resized;
    is_resized = 0; /* before the size is read, so that a signal in between is not lost */
    if (must_measure) measure(view);
    char *text = top_draw(top, view, true, &bytes);
    if (text) write_all(text, bytes); /* one write for a picture */
    free(text);
}

static void look(struct top *top, struct top_view *view, unsigned count) {
    top_find(top, SLICE_NS);
    top_sort(top, view);
    struct top_loader *chosen = top_chosen(top, view);
    if (chosen) top_look_at_workers(top, chosen);
    top_look_at_machine(top);
    top_look_at_fetcher(top);
    if (count % CACHE_LOOKS == 0) top_look_at_cache(top);
}

static void choose(struct top *top, struct top_view *view, int step) {
    if (!top->count) return;
    if (step < 0 && view->chosen > 0) view->chosen--;
    if (step > 0 && view->chosen + 1 < top->count) view->chosen++;
    view->chosen_pid = top->loaders[view->chosen].pid;
    view->chosen_loader = top->loaders[view->chosen].look.loader;
    top_look_at_workers(top, &top->loaders[view->chosen]);
}

static void answer_stacks(struct top *top, struct top_view *view, char key) {
    struct top_loader *chosen = top_chosen(top, view);
    view->asks_stacks = false;
    if (key == 'y' && chosen) view->stacks = top_stacks(chosen);
}

/* Returns false if the user quits. */
static bool press(struct top *top, struct top_view *view, char key) {
    if (view->asks_stacks) {
        answer_stacks(top, view, key);
        return true;
    }
    if (view->shows_help || view->stacks) {
        free(view->stacks);
        view->stacks = NULL;
        view->shows_help = false;
        return true;
    }
    if (key == 'q') return false;
    if (key == '?' || key == 'h') view->shows_help = true;
    if (key == 'o') {
        view->order = (view->order + 1) % 3;
        top_sort(top, view);
    }
    if (key == ' ') view->is_frozen = !view->is_frozen;
    if (key == '\n' || key == '\r') view->has_detail = !view->has_detail;
    if (key == 's') view->asks_stacks = top->count > 0;
    if (key == 'k' || key == 'j') choose(top, view, key == 'j' ? 1 : -1);
    return true;
}

/* An arrow is three bytes. */
static bool press_all(struct top *top, struct top_view *view, const char *keys, ssize_t count) {
    for (ssize_t i = 0; i < count; i++) {
        bool is_arrow = i + 2 < count && keys[i] == '\x1b' && (keys[i + 1] == '[' || keys[i + 1] == 'O');
        if (is_arrow && (keys[i + 2] == 'A' || keys[i + 2] == 'B')) choose(top, view, keys[i + 2] == 'B' ? 1 : -1);
        if (is_arrow)
            i += 2;
        else if (!press(top, view, keys[i]))
            return false;
    }
    return true;
}

/* Waits until the time or a key. Returns false if the user quits. */
static bool wait_for_keys(struct top *top, struct top_view *view, int64_t until_ns) {
    char keys[64];
    for (;;) {
        int64_t left_ms = (until_ns - top_now_ns()) / 1000000;
        if (left_ms <= 0 || must_end) return true;
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        int ready = poll(&input, 1, (int)left_ms);
        if (ready < 0 && !must_end && is_resized) draw(top, view);
        if (ready <= 0) continue;
        ssize_t count = read(STDIN_FILENO, keys, sizeof keys);
        if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) return false; /* the terminal is gone */
        if (!press_all(top, view, keys, count)) return false;
        draw(top, view);
    }
}

int top_watch(struct top *top) {
    struct top_view view = {.order = 1};
    bool goes_on = true;
    handle_signals();
    measure(&view);
    enter_terminal();
    for (unsigned count = 0; goes_on && !must_end; count++) {
        int64_t next_ns = top_now_ns() + PERIOD_MS * INT64_C(1000000);
        if (!view.is_frozen) look(top, &view, count);
        draw(top, &view);
        goes_on = wait_for_keys(top, &view, next_ns);
    }
    leave_terminal();
    free(view.stacks);
    return must_end == SIGINT || !must_end ? 0 : 128 + must_end;
}
