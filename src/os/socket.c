/* SPDX-License-Identifier: Apache-2.0 */
/* Local sockets, with abstract names or with names in folders, and descriptors that are sent over them. */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

static int open_socket(int *ret_fd) {
    int r = hr__fail_at("socket");
    return r < 0 ? r : hr__own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), ret_fd);
}

/* An abstract address begins with a zero byte. It belongs to the network namespace and has no file. */
static socklen_t write_address(const char *name, struct sockaddr_un *ret_address) {
    size_t length = strnlen(name, sizeof ret_address->sun_path - 1);
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret_address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static int finish(int r, int fd, int *ret_fd) {
    if (r < 0)
        hr__close(&fd);
    else
        *ret_fd = fd;
    return r;
}

int hr__socket_listen(const char *name, int *ret_fd) {
    struct sockaddr_un address;
    socklen_t bytes = write_address(name, &address);
    int fd = -1;
    int r = open_socket(&fd);
    if (r < 0) return r;
    bool is_bound = bind(fd, (struct sockaddr *)&address, bytes) == 0 && listen(fd, SOMAXCONN) == 0;
    return finish(is_bound ? 0 : -errno, fd, ret_fd);
}

int hr__socket_name(const char *name, int *ret_fd) {
    struct sockaddr_un address;
    socklen_t bytes = write_address(name, &address);
    int fd = -1;
    int r = open_socket(&fd);
    if (r < 0) return r;
    return finish(bind(fd, (struct sockaddr *)&address, bytes) == 0 ? 0 : -errno, fd, ret_fd);
}

int hr__socket_connect(const char *name, int *ret_fd) {
    struct sockaddr_un address;
    socklen_t bytes = write_address(name, &address);
    int fd = -1;
    int r = open_socket(&fd);
    if (r < 0) return r;
    do r = connect(fd, (struct sockaddr *)&address, bytes) < 0 ? -errno : 0;
    while (r == -EINTR);
    return finish(r, fd, ret_fd);
}

int hr__socket_accept(int listen_fd, int *ret_fd) {
    return hr__own(accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), ret_fd);
}

bool hr__socket_is_of_user(int fd) {
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

/* A message of one byte, with room for one descriptor. */
struct message {
    char byte;
    struct iovec part;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    struct msghdr header;
};

static void init_message(struct message *message) {
    *message = (struct message){.part = {&message->byte, 1}};
    message->header = (struct msghdr){.msg_iov = &message->part,
                                      .msg_iovlen = 1,
                                      .msg_control = message->control,
                                      .msg_controllen = sizeof message->control};
}

int hr__socket_send_fd(int socket_fd, int fd) {
    struct message message;
    init_message(&message);
    struct cmsghdr *control = CMSG_FIRSTHDR(&message.header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(control), &fd, sizeof fd);
    return sendmsg(socket_fd, &message.header, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int hr__socket_receive_fd(int socket_fd, int *ret_fd) {
    struct message message;
    int fd;
    init_message(&message);
    ssize_t bytes = recvmsg(socket_fd, &message.header, MSG_CMSG_CLOEXEC);
    if (bytes < 0) return -errno;
    struct cmsghdr *control = bytes ? CMSG_FIRSTHDR(&message.header) : NULL;
    if (!control) return -ECONNRESET;
    if (control->cmsg_type != SCM_RIGHTS || control->cmsg_len != CMSG_LEN(sizeof fd)) return -EPROTO;
    memcpy(&fd, CMSG_DATA(control), sizeof fd);
    return hr__own(fd, ret_fd);
}

/* ---- names in folders ---- */

int hr__folder_open(const char *path, int *ret_fd) {
    return hr__own(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret_fd);
}

static int write_address_in(int folder_fd, const char *name, struct sockaddr_un *ret_address) {
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(ret_address->sun_path, sizeof ret_address->sun_path, "/proc/self/fd/%d/%s", folder_fd, name);
    return length < 0 || (size_t)length >= sizeof ret_address->sun_path ? -ENAMETOOLONG : 0;
}

static int open_blocking(int *ret_fd) {
    int r = hr__fail_at("socket");
    return r < 0 ? r : hr__own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), ret_fd);
}

int hr__socket_listen_in(int folder_fd, const char *name, int *ret_fd) {
    struct sockaddr_un address;
    char other[64];
    int fd = -1;
    snprintf(other, sizeof other, "%.40s.new", name);
    int r = write_address_in(folder_fd, other, &address);
    if (r == 0) r = open_blocking(&fd);
    if (r < 0) return r;
    unlinkat(folder_fd, other, 0);
    /* A process that connects to the name finds a socket that listens. */
    bool is_bound = bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                    fchmodat(folder_fd, other, 0600, 0) == 0 && listen(fd, SOMAXCONN) == 0 &&
                    renameat(folder_fd, other, folder_fd, name) == 0;
    return finish(is_bound ? 0 : -errno, fd, ret_fd);
}

int hr__socket_connect_in(int folder_fd, const char *name, int *ret_fd) {
    struct sockaddr_un address;
    int fd = -1;
    int r = write_address_in(folder_fd, name, &address);
    if (r == 0) r = open_blocking(&fd);
    if (r < 0) return r;
    do r = connect(fd, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
    while (r == -EINTR);
    return finish(r, fd, ret_fd);
}

int hr__socket_accept_blocking(int listen_fd, int send_s, int *ret_fd) {
    struct timeval timeout = {.tv_sec = send_s};
    int r = hr__own(accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC), ret_fd);
    if (r == 0) setsockopt(*ret_fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    return r;
}

int hr__socket_send(int fd, const struct hr__read_part *parts, size_t count, bool waits) {
    enum { MOST = 16 };
    struct iovec places[MOST];
    if (count > MOST) return -EMSGSIZE;
    for (size_t i = 0; i < count; i++) places[i] = (struct iovec){parts[i].data, parts[i].bytes};
    struct msghdr message = {.msg_iov = places, .msg_iovlen = count};
    for (;;) {
        if (sendmsg(fd, &message, MSG_NOSIGNAL | (waits ? 0 : MSG_DONTWAIT)) >= 0) return 0;
        if (errno != EINTR) return errno == EWOULDBLOCK ? -EAGAIN : -errno;
    }
}

int hr__socket_receive(int fd, void *data, size_t room) {
    struct iovec place = {data, room};
    struct msghdr message = {.msg_iov = &place, .msg_iovlen = 1};
    ssize_t bytes = recvmsg(fd, &message, MSG_DONTWAIT);
    if (bytes < 0) return errno == EINTR || errno == EWOULDBLOCK ? -EAGAIN : -errno;
    return message.msg_flags & MSG_TRUNC ? -EMSGSIZE : (int)bytes;
}

uint32_t hr__user(void) {
    return (uint32_t)geteuid();
}
