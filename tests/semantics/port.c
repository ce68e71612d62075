/* Ports: which binds conflict while a connection exists, and the port that a connection gets. */
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

/* The ephemeral port of a connection cannot be bound while the connection exists. */
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

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* Connections of a process and its child to one listener have different ports, and both ends report the same port. */
static void of_a_child(void) {
    enum { EACH = 9 };
    struct sockaddr_storage to;
    socklen_t len;
    int l = listener(AF_INET, 2 * EACH, &to, &len), told[2], done[2], own[2 * EACH], peers[2 * EACH];
    MUST(pipe(told));
    MUST(pipe(done));
    for (int i = 0; i < EACH / 2; i++) own[i] = ntohs(name_of_socket(dial(&to, len)).sin_port);
    pid_t child = fork();
    if (!child) {
        for (int i = 0; i < EACH; i++) {
            int port = ntohs(name_of_socket(dial(&to, len)).sin_port);
            MUST(write(told[1], &port, sizeof port));
        }
        close(done[1]);
        char end;
        MUST(read(done[0], &end, 1));
        _exit(0);
    }
    close(done[0]);
    for (int i = EACH / 2; i < EACH; i++) own[i] = ntohs(name_of_socket(dial(&to, len)).sin_port);
    for (int i = EACH; i < 2 * EACH; i++) MUST(read(told[0], &own[i], sizeof own[i]));
    for (int i = 0; i < 2 * EACH; i++) {
        struct sockaddr_in peer = {0};
        socklen_t size = sizeof peer;
        int s = (int)MUST(accept(l, NULL, NULL));
        MUST(getpeername(s, (struct sockaddr *)&peer, &size));
        peers[i] = ntohs(peer.sin_port);
    }
    qsort(own, 2 * EACH, sizeof *own, by_number);
    qsort(peers, 2 * EACH, sizeof *peers, by_number);
    int same = 0;
    for (int i = 1; i < 2 * EACH; i++) same += own[i] == own[i - 1];
    say("the same port %d, others at the other end %d", same, memcmp(own, peers, sizeof own) != 0);
    close(done[1]);
    reap(child);
}

/* Sockets that share a port may have one connection to each destination. */
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

/* Returns the first of four free ports. Connections of an earlier case hold theirs for a minute (TIME_WAIT). */
static unsigned four_free(void) {
    for (unsigned first = 41000;; first += 4) {
        int taken = 0;
        for (unsigned port = first; port < first + 4; port++) {
            struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
            int s = tcp(AF_INET, 0);
            taken |= bind(s, (struct sockaddr *)&at, sizeof at) != 0;
            close(s);
        }
        if (!taken) return first;
    }
}

/* IP_LOCAL_PORT_RANGE of four ports allows four connections to one destination. */
static void range(void) {
    struct sockaddr_storage to;
    socklen_t len;
    listener(AF_INET, 16, &to, &len);
    unsigned first = four_free();
    for (int i = 0; i < 5; i++) {
        int a = tcp(AF_INET, 0);
        unsigned ports = (first + 3) << 16 | first;
        MUST(setsockopt(a, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &ports, sizeof ports));
        if (CALL(connect(a, (struct sockaddr *)&to, len)) == 0) {
            unsigned port = ntohs(name_of_socket(a).sin_port);
            say("in the range %d", port >= first && port <= first + 3);
        }
    }
}

/* connect(AF_UNSPEC) releases the port, and the socket can connect again. */
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
    /* Not tested: on the kernel, the old port may or may not be free at once. */
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

/* IP_BIND_ADDRESS_NO_PORT: connect chooses the port. */
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

/* Binds a former listener's port, without and with SO_REUSEADDR. */
static void bind_again(struct sockaddr_in at) {
    for (int reuse = 0; reuse < 2; reuse++) {
        int fd = tcp(AF_INET, 0);
        set_int(fd, SOL_SOCKET, SO_REUSEADDR, reuse);
        say("reuse %d", reuse);
        BIND(fd, at);
        MUST(close(fd));
    }
}

enum end { SERVER_FIRST, CLIENT_FIRST, SERVER_SHUTS, CLIENT_SHUTS, RESET, UNREAD };

/* A port after its listener and an accepted connection. `before`: the listener is closed before the connection. */
static void of_a_listener(bool reuse, bool before, enum end end) {
    struct sockaddr_in at = loopback(0);
    int l = tcp(AF_INET, 0), c = tcp(AF_INET, 0);
    set_int(l, SOL_SOCKET, SO_REUSEADDR, reuse);
    MUST(bind(l, (struct sockaddr *)&at, sizeof at));
    MUST(listen(l, 8));
    at = name_of_socket(l);
    MUST(connect(c, (struct sockaddr *)&at, sizeof at));
    int s = (int)MUST(accept(l, NULL, NULL));
    say("reuse %d before %d end %d", reuse, before, end);
    if (before) {
        MUST(close(l));
        bind_again(at);
    }
    struct linger none = {1, 0};
    switch (end) {
    case SERVER_FIRST:
        MUST(close(s));
        if (before) bind_again(at);
        MUST(close(c));
        break;
    case CLIENT_FIRST:
        MUST(close(c));
        if (before) bind_again(at);
        MUST(close(s));
        break;
    case SERVER_SHUTS:
        MUST(shutdown(s, SHUT_WR));
        MUST(close(c));
        MUST(close(s));
        break;
    case CLIENT_SHUTS:
        MUST(shutdown(c, SHUT_WR));
        MUST(close(s));
        MUST(close(c));
        break;
    case RESET:
        MUST(setsockopt(c, SOL_SOCKET, SO_LINGER, &none, sizeof none));
        MUST(close(c));
        if (before) bind_again(at);
        MUST(close(s));
        break;
    case UNREAD:
        put(s, "unread", 6);
        await_bytes(c, 6);
        MUST(close(s));
        MUST(close(c));
        break;
    }
    if (!before) MUST(close(l));
    bind_again(at);
}
static void after_listener(void) {
    for (int end = SERVER_FIRST; end <= UNREAD; end++) of_a_listener(false, true, end);
}
static void after_listener_reuse(void) {
    for (int end = SERVER_FIRST; end <= UNREAD; end++) of_a_listener(true, true, end);
}
static void waits(void) {
    for (int end = SERVER_FIRST; end <= UNREAD; end++) of_a_listener(end & 1, false, end);
}

/* An accepted connection of a wildcard listener holds the port of one address only. */
static void after_any(void) {
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    socklen_t len = sizeof any;
    int l = tcp(AF_INET6, 0), c = tcp(AF_INET, 0);
    MUST(bind(l, (struct sockaddr *)&any, len));
    MUST(listen(l, 8));
    MUST(getsockname(l, (struct sockaddr *)&any, &len));
    struct sockaddr_in at = loopback(ntohs(any.sin6_port)), other = at;
    other.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    MUST(connect(c, (struct sockaddr *)&at, sizeof at));
    int s = (int)MUST(accept(l, NULL, NULL));
    MUST(close(l));
    bind_again(at);
    bind_again(other);
    MUST(close(c));
    MUST(close(s));
    bind_again(at);
}

static bool is_taken(struct sockaddr_in at) {
    int fd = tcp(AF_INET, 0);
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    bool taken = bind(fd, (struct sockaddr *)&at, sizeof at);
    close(fd);
    return taken;
}

/* A restarted server cannot bind its port while its old connection is in TIME_WAIT, except with SO_REUSEADDR. */
static void restart(bool reuse) {
    struct sockaddr_in at = loopback(0);
    for (int round = 0; round < 2; round++) {
        int told[2];
        MUST(pipe(told));
        pid_t server = fork();
        if (!server) {
            int l = tcp(AF_INET, 0);
            set_int(l, SOL_SOCKET, SO_REUSEADDR, reuse);
            /* Waits until the former server's listener is closed. */
            for (int i = 0; reuse && i < 1000 && is_taken(at); i++) usleep(10000);
            if (BIND(l, at)) _exit(1);
            MUST(listen(l, 8));
            at = name_of_socket(l);
            MUST(write(told[1], &at, sizeof at));
            int s = (int)MUST(accept(l, NULL, NULL));
            put(s, "bye", 3);
            _exit(0);
        }
        MUST(close(told[1]));
        if (read(told[0], &at, sizeof at) == sizeof at) {
            char byte[3];
            int c = tcp(AF_INET, 0);
            MUST(connect(c, (struct sockaddr *)&at, sizeof at));
            get(c, byte, 3);
            CALL(recv(c, byte, 1, 0));
            MUST(close(c));
        }
        reap(server);
        usleep(300000);
    }
}
static void restarted(void) { restart(false); }
static void restarted_reuse(void) { restart(true); }

const struct test port_cases[] = {{"port_of_a_connection", of_a_connection},
                                  {"port_of_a_child", of_a_child},
                                  {"port_tuple_reuseaddr", tuple_reuseaddr},
                                  {"port_tuple_reuseport", tuple_reuseport},
                                  {"port_range", range},
                                  {"port_disconnected", disconnected},
                                  {"port_address_only", address_only},
                                  {"port_after_listener", after_listener},
                                  {"port_after_listener_reuse", after_listener_reuse},
                                  {"port_waits", waits},
                                  {"port_after_any", after_any},
                                  {"port_of_a_restarted_server", restarted},
                                  {"port_of_a_restarted_server_reuse", restarted_reuse},
                                  {NULL, NULL}};
