/* Files that the library leaves to the kernel: UDP, Unix and netlink sockets, pipes. Also a pair over IPv6. */
#include "semantics.h"

static char text[64];

static void udp(void) {
    int a = (int)MUST(socket(AF_INET, SOCK_DGRAM, 0)), b = (int)MUST(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, from;
    socklen_t len = sizeof at;
    CALL(bind(a, (struct sockaddr *)&at, sizeof at));
    MUST(getsockname(a, (struct sockaddr *)&at, &len));
    CALL(sendto(b, "datagram", 8, 0, (struct sockaddr *)&at, sizeof at));
    CALL(poll(&(struct pollfd){a, POLLIN, 0}, 1, -1));
    len = sizeof from;
    CALL(recvfrom(a, text, 3, MSG_TRUNC, (struct sockaddr *)&from, &len));
    CALL(connect(b, (struct sockaddr *)&at, sizeof at));
    CALL(send(b, "", 0, 0));
    CALL(recv(a, text, 10, 0));
    CALL(listen(a, 5));
    CALL(accept(a, NULL, NULL));
}

static void unix_sockets(void) {
    int u[2];
    CALL(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    CALL(write(u[0], "unix", 4));
    CALL(read(u[1], text, 4));
    CALL(close(u[0]));
    CALL(read(u[1], text, 4));
    CALL(socketpair(AF_INET, SOCK_STREAM, 0, u));
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "fs-semantics-%d", getpid());
    int l = OPEN(socket(AF_UNIX, SOCK_STREAM, 0)), c = OPEN(socket(AF_UNIX, SOCK_STREAM, 0));
    CALL(bind(l, (struct sockaddr *)&at, sizeof at));
    CALL(listen(l, 5));
    CALL(connect(c, (struct sockaddr *)&at, sizeof at));
    OPEN(accept(l, NULL, NULL));
    int netlink = OPEN(socket(AF_NETLINK, SOCK_RAW, 0));
    CALL(close(netlink));
}

static void ipv6_pair(void) {
    int a, b;
    pair_of(AF_INET6, &a, &b);
    struct sockaddr_in6 name;
    socklen_t len = sizeof name;
    MUST(getpeername(b, (struct sockaddr *)&name, &len));
    say("%s, length %u, port given %d, scope %u flow %u", inet_ntop(AF_INET6, &name.sin6_addr, text, sizeof text), len,
        name.sin6_port != 0, name.sin6_scope_id, name.sin6_flowinfo);
    put(a, "over six", 8);
    get(b, text, 8);
    say("%.8s", text);
    CALL(close(a));
    CALL(recv(b, text, 1, 0));
}

static void pipes_and_files(void) {
    int ends[2];
    MUST(pipe(ends));
    CALL(write(ends[1], "pipe", 4));
    CALL(read(ends[0], text, 10));
    CALL(close(ends[1]));
    CALL(read(ends[0], text, 10));
    int file = OPEN(open("/proc/self/comm", O_RDONLY));
    CALL(read(file, text, 9));
    CALL(lseek(file, 0, SEEK_SET));
    CALL(close(file));
    CALL(send(file, "x", 1, 0));
}

const struct test address_cases[] = {{"other_udp", udp},
                                     {"other_unix", unix_sockets},
                                     {"other_ipv6", ipv6_pair},
                                     {"other_pipes_and_files", pipes_and_files},
                                     {NULL, NULL}};
