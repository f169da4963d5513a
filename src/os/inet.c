/* SPDX-License-Identifier: Apache-2.0 */
/* Holds a TCP port for torch's store. */
#define _GNU_SOURCE
#include "os.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/* Binds an address of a family, with SO_REUSEADDR, so that another socket with this option can be bound to it as long
 * as neither listens. */
static int bind_to(int family, const void *address, socklen_t bytes, int *ret_fd) {
    int fd = -1, on = 1;
    int r = hr__own(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), &fd);
    if (r < 0) return r;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 || bind(fd, address, bytes) < 0) {
        r = -errno;
        hr__close(&fd);
        return r;
    }
    *ret_fd = fd;
    return 0;
}

static int bind_any(uint16_t port, int *ret_fd) {
    const struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    const struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    int r = hr__fail_at("ipv6");
    if (r == 0) r = bind_to(AF_INET6, &six, sizeof six, ret_fd);
    return r == 0 || r == -EADDRINUSE || r == -EACCES ? r : bind_to(AF_INET, &four, sizeof four, ret_fd);
}

int hr__hold_port(uint16_t *port, int *ret_fd) {
    union {
        struct sockaddr_in6 six;
        struct sockaddr_in four;
        struct sockaddr any;
    } address = {.any = {.sa_family = AF_INET}};
    socklen_t bytes = sizeof address;
    int fd = -1;
    int r = bind_any(*port, &fd);
    if (r < 0) return r;
    if (getsockname(fd, &address.any, &bytes) < 0) {
        r = -errno;
        hr__close(&fd);
        return r;
    }
    *port = ntohs(address.any.sa_family == AF_INET6 ? address.six.sin6_port : address.four.sin_port);
    *ret_fd = fd;
    return 0;
}
