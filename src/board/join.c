/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the memory of a board, and passes it on by a socket. */
#include <errno.h>
#include <stdio.h>

#include "base/error.h"
#include "board.h"

enum { NAME_BYTES = 64, RETRY_NS = 1000000 };

static void write_name(const char *key, char *ret_name) {
    snprintf(ret_name, NAME_BYTES, "headrace-board-%u-%016llx", hr__user(),
             (unsigned long long)hr__board_hash_text(key));
}

/* ---- the memory ---- */

int hr__board_create(const struct hr_board_options *options, int *ret_fd) {
    uint64_t bytes;
    enum hr__memory_kind kind;
    struct hr__board_header header;
    int fd = -1;
    int r = hr__board_measure(options, &bytes);
    if (r < 0) return r;
    r = hr__memory_create("headrace-board", bytes, bytes, &fd, &kind);
    if (r < 0) return hr__fail(r, "board: cannot create shared memory: %s", hr_error_text(r));
    hr__keep_size(fd);
    hr__board_init_header(&header, options);
    r = hr__write_at(fd, 0, &header, sizeof header);
    if (r < 0) {
        hr__close(&fd);
        return hr__fail(r, "board: cannot write shared memory: %s", hr_error_text(r));
    }
    *ret_fd = fd;
    return 0;
}

/* Checks and maps memory that this or another process made; takes ownership of `fd`. */
static int map_board(hr_board *board, const struct hr_board_options *options, int fd) {
    struct hr__board_header header;
    board->fd = fd;
    int r = hr__memory_bytes(fd, &board->bytes);
    if (r == 0) r = hr__read_at(fd, 0, &header, sizeof header);
    if (r < 0) return hr__fail(r, "board: cannot read its memory: %s", hr_error_text(r));
    r = hr__board_check_header(&header, board->bytes, options);
    if (r < 0) return r;
    r = hr__map(fd, board->bytes, &board->memory);
    if (r < 0) return hr__fail(r, "board: cannot map its memory: %s", hr_error_text(r));
    hr__keep_from_children(board->memory, board->bytes);
    board->page_count = header.page_count;
    return 0;
}

static int inherit(hr_board *board, const struct hr_board_options *options) {
    int fd = -1;
    int r = hr__dup(options->fd, &fd);
    if (r < 0) return hr__fail(r, "board: descriptor %d was not inherited: %s", options->fd, hr_error_text(r));
    return map_board(board, options, fd);
}

/* ---- the socket ---- */

/* Returns true if the process that had the name has ended, or has not begun to listen. */
static bool has_no_server(int code) {
    return code == -ECONNREFUSED || code == -ECONNRESET || code == -EPIPE;
}

/* Sets a message, unless the caller tries again after this error. -EAGAIN: many processes are waiting. */
static int note_socket_error(int code) {
    if (has_no_server(code) || code == -EADDRINUSE || code == -EAGAIN) return code;
    return hr__fail(code, "board: a local socket cannot be used: %s", hr_error_text(code));
}

/* Waits for the descriptor that the serving process sends. -ECONNRESET: that process has ended. */
static int receive(int socket_fd, int64_t deadline_ns, int *ret_fd) {
    bool is_ready;
    int r;
    do r = hr__poll(&socket_fd, &is_ready, 1, deadline_ns);
    while (r == -EINTR);
    if (r == -ETIMEDOUT)
        return hr__fail(r, "board: a process of this job has the socket of the board, but does not answer");
    if (r > 0) r = hr__socket_receive_fd(socket_fd, ret_fd);
    return r < 0 ? note_socket_error(r) : 0;
}

static int receive_from_user(int socket_fd, int64_t deadline_ns, int *ret_fd) {
    if (!hr__socket_is_of_user(socket_fd))
        return hr__fail(-EACCES, "board: a process of another user has the socket of this job's board");
    hr__stop_at(HR__AT_BOARD_CONNECTED);
    return receive(socket_fd, deadline_ns, ret_fd);
}

/* -ECONNREFUSED or -ECONNRESET: no process serves. */
static int fetch(const char *name, int64_t deadline_ns, int *ret_fd) {
    int socket_fd = -1;
    int r = hr__socket_connect(name, &socket_fd);
    if (r < 0) return note_socket_error(r);
    r = receive_from_user(socket_fd, deadline_ns, ret_fd);
    hr__close(&socket_fd);
    return r;
}

/* Makes a board and listens. -EADDRINUSE: another process was first. */
static int serve(hr_board *board, const struct hr_board_options *options, const char *name) {
    int fd = -1;
    int r = hr__socket_listen(name, &board->listen_fd);
    if (r < 0) return note_socket_error(r);
    hr__stop_at(HR__AT_BOARD_BOUND);
    r = hr__board_create(options, &fd);
    if (r < 0) return r;
    hr__stop_at(HR__AT_BOARD_CREATED);
    return map_board(board, options, fd);
}

void hr__board_serve(const hr_board *board) {
    int socket_fd = -1;
    if (hr__socket_accept(board->listen_fd, &socket_fd) < 0) return;
    hr__stop_at(HR__AT_BOARD_SERVES);
    if (hr__socket_is_of_user(socket_fd)) hr__socket_send_fd(socket_fd, board->fd);
    hr__close(&socket_fd);
}

/* Waits a moment, because another process has the name but does not listen yet. */
static int wait_for_server(int64_t deadline_ns) {
    int64_t now_ns = hr__now_ns();
    if (now_ns >= deadline_ns) return hr__fail(-ETIMEDOUT, "board: the process that makes it is not ready in time");
    hr__poll(NULL, NULL, 0, now_ns + RETRY_NS);
    return 0;
}

static int find_or_make(hr_board *board, const struct hr_board_options *options, int64_t deadline_ns) {
    char name[NAME_BYTES];
    write_name(options->key, name);
    for (;;) {
        int fd = -1;
        int r = fetch(name, deadline_ns, &fd);
        if (r == 0) {
            hr__stop_at(HR__AT_BOARD_RECEIVED);
            return map_board(board, options, fd);
        }
        if (has_no_server(r)) r = serve(board, options, name);
        if (r != -EADDRINUSE && r != -EAGAIN) return r;
        r = wait_for_server(deadline_ns);
        if (r < 0) return r;
    }
}

int hr__board_join(hr_board *board, const struct hr_board_options *options, int64_t deadline_ns) {
    return options->fd >= 0 ? inherit(board, options) : find_or_make(board, options, deadline_ns);
}
