/* Ports: whose they are while a connection lasts, and what a connection comes from. */
#include "semantics.h"

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

static struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

static struct sockaddr_in name_of_socket(int fd) {
    struct sockaddr_in at = {0};
    socklen_t len = sizeof at;
    MUST(getsockname(fd, (struct sockaddr *)&at, &len));
    return at;
}

#define BIND(fd, at) CALL(bind(fd, (struct sockaddr *)&at, sizeof at))
#define CONNECT(fd, at) CALL(connect(fd, (struct sockaddr *)&at, sizeof at))

/* The port of a connection that was not bound is taken for as long as it lasts. */
static void of_a_connection(void) {
    int a, b;
    pair(&a, &b);
    struct sockaddr_in at = name_of_socket(a), any = at;
    any.sin_addr.s_addr = 0;
    say("port %d", at.sin_port != 0);
    int other = tcp(AF_INET, 0);
    BIND(other, at);
    BIND(other, any);
    set_int(other, SOL_SOCKET, SO_REUSEADDR, 1);
    BIND(other, at);
    close(b);
    close(a);
}

/* Two sockets on one port: one connection to each destination. */
static void one_connection(int option) {
    struct sockaddr_storage to, to2;
    socklen_t len;
    listener(AF_INET, 8, &to, &len);
    listener(AF_INET, 8, &to2, &len);
    int a = tcp(AF_INET, 0), b = tcp(AF_INET, 0), c = tcp(AF_INET, 0);
    int all[] = {a, b, c};
    struct sockaddr_in at = loopback(0);
    for (int i = 0; i < 3; i++) {
        set_int(all[i], SOL_SOCKET, option, 1);
        BIND(all[i], at);
        at = name_of_socket(a);
    }
    CALL(connect(a, (struct sockaddr *)&to, len));
    CALL(connect(b, (struct sockaddr *)&to, len));
    CALL(connect(b, (struct sockaddr *)&to2, len));
    CALL(connect(c, (struct sockaddr *)&to2, len));
    int value = -1;
    socklen_t size = sizeof value;
    CALL(getsockopt(a, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &value, &size));
    say("%d", value);
}
static void tuple_reuseaddr(void) { one_connection(SO_REUSEADDR); }
static void tuple_reuseport(void) { one_connection(SO_REUSEPORT); }

/* IP_LOCAL_PORT_RANGE: four ports, four connections to one destination. */
static void range(void) {
    struct sockaddr_storage to;
    socklen_t len;
    listener(AF_INET, 16, &to, &len);
    for (int i = 0; i < 5; i++) {
        int a = tcp(AF_INET, 0);
        unsigned ports = 41003u << 16 | 41000;
        MUST(setsockopt(a, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &ports, sizeof ports));
        if (CALL(connect(a, (struct sockaddr *)&to, len)) == 0) {
            int port = ntohs(name_of_socket(a).sin_port);
            say("in the range %d", port >= 41000 && port <= 41003);
        }
    }
}

/* connect(AF_UNSPEC) gives the port back, and the socket goes on as a new one. */
static void disconnected(void) {
    struct sockaddr_storage to;
    socklen_t len;
    int l = listener(AF_INET, 8, &to, &len);
    int a = dial(&to, len);
    struct sockaddr_in at = name_of_socket(a), none = {.sin_family = AF_UNSPEC};
    int s = MUST(accept(l, NULL, NULL));
    CONNECT(a, none);
    struct sockaddr_in now = name_of_socket(a);
    say("address %#x, still shown %d", now.sin_addr.s_addr, now.sin_port == at.sin_port);
    struct pollfd look = {a, POLLIN | POLLOUT, 0};
    CALL(poll(&look, 1, 0));
    say("%s", events(look.revents));
    int error = -1;
    socklen_t size = sizeof error;
    for (int i = 0; i < 2; i++) {
        CALL(getsockopt(a, SOL_SOCKET, SO_ERROR, &error, &size));
        say("%s", name_of(error));
    }
    char byte;
    CALL(recv(s, &byte, 1, 0));
    /* Whether the old port is free for others at once differs from run to run on the kernel. */
    CALL(connect(a, (struct sockaddr *)&to, len));
    now = name_of_socket(a);
    say("port %d", now.sin_port != 0);
    int t = MUST(accept(l, NULL, NULL));
    put(a, "x", 1);
    get(t, &byte, 1);
    int fast = -1;
    size = sizeof fast;
    CALL(getsockopt(a, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &fast, &size));
    say("%d", fast);
}

/* An address without a port: the port is chosen with the destination. */
static void address_only(void) {
    struct sockaddr_storage to;
    socklen_t len;
    listener(AF_INET, 8, &to, &len);
    int a = tcp(AF_INET, 0);
    set_int(a, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(0x7f000005)}};
    BIND(a, at);
    say("port %d", name_of_socket(a).sin_port != 0);
    CALL(connect(a, (struct sockaddr *)&to, len));
    struct sockaddr_in now = name_of_socket(a);
    say("address %#x port %d", ntohl(now.sin_addr.s_addr), now.sin_port != 0);
}

const struct test port_cases[] = {{"port_of_a_connection", of_a_connection},
                                  {"port_tuple_reuseaddr", tuple_reuseaddr, true},
                                  {"port_tuple_reuseport", tuple_reuseport, true},
                                  {"port_range", range, true},
                                  {"port_disconnected", disconnected, true},
                                  {"port_address_only", address_only, true},
                                  {NULL, NULL, false}};
