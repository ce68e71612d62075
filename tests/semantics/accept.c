/* Listeners, and what accepted sockets inherit from them. */
#include "semantics.h"

static int value_of(int fd, int level, int option) {
    int value = -1;
    socklen_t len = sizeof value;
    MUST(getsockopt(fd, level, option, &value, &len));
    return value;
}

static void accept_inheritance(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len);
    set_int(l, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(l, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(l, IPPROTO_TCP, TCP_KEEPIDLE, 77);
    set_int(l, SOL_SOCKET, SO_RCVBUF, 70000);
    set_int(l, SOL_SOCKET, SO_SNDBUF, 60000);
    set_int(l, SOL_SOCKET, SO_PRIORITY, 3);
    struct linger linger = {1, 9};
    MUST(setsockopt(l, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    struct timeval limit = {5, 0};
    MUST(setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    MUST(fcntl(l, F_SETFL, O_NONBLOCK));
    MUST(fcntl(l, F_SETFD, FD_CLOEXEC));
    int c = dial(&at, len);
    await(l, POLLIN);
    int s = OPEN(accept(l, NULL, NULL));
    say("NONBLOCK %d CLOEXEC %ld", !!(MUST(fcntl(s, F_GETFL)) & O_NONBLOCK), MUST(fcntl(s, F_GETFD)));
    say("KEEPALIVE %d NODELAY %d KEEPIDLE %d RCVBUF %d SNDBUF %d PRIORITY %d", value_of(s, SOL_SOCKET, SO_KEEPALIVE),
        value_of(s, IPPROTO_TCP, TCP_NODELAY), value_of(s, IPPROTO_TCP, TCP_KEEPIDLE),
        value_of(s, SOL_SOCKET, SO_RCVBUF), value_of(s, SOL_SOCKET, SO_SNDBUF), value_of(s, SOL_SOCKET, SO_PRIORITY));
    len = sizeof linger;
    MUST(getsockopt(s, SOL_SOCKET, SO_LINGER, &linger, &len));
    say("LINGER %d %d", linger.l_onoff, linger.l_linger);
    len = sizeof limit;
    MUST(getsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, &len));
    say("RCVTIMEO %ld", (long)limit.tv_sec);
    say("ACCEPTCONN %d and of the listener %d", value_of(s, SOL_SOCKET, SO_ACCEPTCONN),
        value_of(l, SOL_SOCKET, SO_ACCEPTCONN));
    int c2 = dial(&at, sizeof(struct sockaddr_in));
    await(l, POLLIN);
    int s2 = OPEN(accept4(l, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    say("NONBLOCK %d CLOEXEC %ld", !!(MUST(fcntl(s2, F_GETFL)) & O_NONBLOCK), MUST(fcntl(s2, F_GETFD)));
    close(c);
    close(c2);
}

static void accept_addresses(void) {
    for (int i = 0; i < 2; i++) {
        struct sockaddr_storage at, peer, name;
        socklen_t len, n;
        int l = listener(i ? AF_INET6 : AF_INET, 16, &at, &len);
        int c = dial(&at, len);
        n = sizeof peer;
        int s = OPEN(accept(l, (struct sockaddr *)&peer, &n));
        say("family %d length %u", peer.ss_family, n);
        n = sizeof name;
        MUST(getsockname(c, (struct sockaddr *)&name, &n));
        say("accept's address is the client's name: %d", !memcmp(&peer, &name, n));
        n = sizeof name;
        MUST(getpeername(s, (struct sockaddr *)&name, &n));
        say("and the accepted socket's peer: %d", !memcmp(&peer, &name, n));
        n = sizeof name;
        MUST(getsockname(s, (struct sockaddr *)&name, &n));
        say("the accepted socket's name is the listener's: %d", !memcmp(&at, &name, n));
        n = 4;
        memset(&peer, 0, sizeof peer);
        int c2 = dial(&at, len);
        int s2 = OPEN(accept(l, (struct sockaddr *)&peer, &n));
        say("with 4 bytes of room: length %u, family %d, the rest untouched %d", n, peer.ss_family,
            ((char *)&peer)[5] == 0 && ((char *)&peer)[6] == 0);
        close(c2);
        close(s2);
    }
}

static void accept_any_v6_takes_v4(void) {
    int l = tcp(AF_INET6, 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6}, peer;
    socklen_t len = sizeof any;
    set_int(l, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    CALL(bind(l, (struct sockaddr *)&any, sizeof any));
    CALL(listen(l, 5));
    MUST(getsockname(l, (struct sockaddr *)&any, &len));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = any.sin6_port};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int c = tcp(AF_INET, 0);
    CALL(connect(c, (struct sockaddr *)&to, sizeof to));
    len = sizeof peer;
    int s = OPEN(accept(l, (struct sockaddr *)&peer, &len));
    char text[64];
    say("from %s, length %u", inet_ntop(AF_INET6, &peer.sin6_addr, text, sizeof text), len);
    len = sizeof peer;
    MUST(getsockname(s, (struct sockaddr *)&peer, &len));
    say("name %s", inet_ntop(AF_INET6, &peer.sin6_addr, text, sizeof text));
    put(c, "x", 1);
    get(s, text, 1);
}

static void accept_v6only(void) {
    int l = tcp(AF_INET6, 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    socklen_t len = sizeof any;
    set_int(l, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    MUST(bind(l, (struct sockaddr *)&any, sizeof any));
    MUST(listen(l, 5));
    MUST(getsockname(l, (struct sockaddr *)&any, &len));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = any.sin6_port};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int c = tcp(AF_INET, 0);
    CALL(connect(c, (struct sockaddr *)&to, sizeof to));
    /* The same port for IPv4 is free. */
    int l4 = tcp(AF_INET, 0);
    CALL(bind(l4, (struct sockaddr *)&to, sizeof to));
    CALL(listen(l4, 5));
    int c4 = tcp(AF_INET, 0);
    CALL(connect(c4, (struct sockaddr *)&to, sizeof to));
    int s4 = OPEN(accept(l4, NULL, NULL));
    close(s4);
}

static void bind_conflicts(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 5, &at, &len);
    int other = tcp(AF_INET, 0);
    CALL(bind(other, (struct sockaddr *)&at, len));
    set_int(other, SOL_SOCKET, SO_REUSEADDR, 1);
    CALL(bind(other, (struct sockaddr *)&at, len));
    CALL(bind(l, (struct sockaddr *)&at, len));
    struct sockaddr_in gone = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("192.0.2.77")};
    if (0) CALL(bind(other, (struct sockaddr *)&gone, sizeof gone));
    MUST(close(l));
    CALL(bind(other, (struct sockaddr *)&at, len));
    CALL(listen(other, 5));
    int c = dial(&at, len);
    int s = OPEN(accept(other, NULL, NULL));
    /* While accepted connections exist, a new listener may bind their port with SO_REUSEADDR, if no other listens. */
    MUST(close(other));
    int again = tcp(AF_INET, 0);
    CALL(bind(again, (struct sockaddr *)&at, len));
    set_int(again, SOL_SOCKET, SO_REUSEADDR, 1);
    CALL(bind(again, (struct sockaddr *)&at, len));
    CALL(listen(again, 5));
    put(c, "still", 5);
    char text[8];
    get(s, text, 5);
    say("%.5s", text);
}

static void listen_without_bind(void) {
    int l = tcp(AF_INET, 0);
    CALL(listen(l, 5));
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    MUST(getsockname(l, (struct sockaddr *)&at, &len));
    say("%s, port %s", inet_ntoa(at.sin_addr), at.sin_port ? "given" : "none");
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int c = tcp(AF_INET, 0);
    CALL(connect(c, (struct sockaddr *)&at, sizeof at));
    OPEN(accept(l, NULL, NULL));
}

static void reuseport_group(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int l[3];
    for (int i = 0; i < 3; i++) {
        l[i] = tcp(AF_INET, SOCK_NONBLOCK);
        set_int(l[i], SOL_SOCKET, SO_REUSEPORT, 1);
        CALL(bind(l[i], (struct sockaddr *)&at, sizeof at));
        CALL(listen(l[i], 300));
        if (!i) MUST(getsockname(l[i], (struct sockaddr *)&at, &len));
    }
    int without = tcp(AF_INET, 0);
    CALL(bind(without, (struct sockaddr *)&at, sizeof at));
    int c[200], accepted = 0, got[3] = {0};
    for (int i = 0; i < 200; i++) {
        c[i] = tcp(AF_INET, 0);
        MUST(connect(c[i], (struct sockaddr *)&at, sizeof at));
    }
    while (accepted < 200) {
        struct pollfd many[3] = {{l[0], POLLIN, 0}, {l[1], POLLIN, 0}, {l[2], POLLIN, 0}};
        MUST(poll(many, 3, -1));
        for (int i = 0; i < 3; i++)
            for (int s; (s = accept(l[i], NULL, NULL)) >= 0; accepted++) got[i]++, close(s);
    }
    say("accepted %d; each had some: %d", accepted, got[0] > 0 && got[1] > 0 && got[2] > 0);
}

static void accept_order(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 64, &at, &len);
    int c[20];
    for (char i = 0; i < 20; i++) {
        c[(int)i] = dial(&at, len);
        put(c[(int)i], &i, 1);
    }
    for (int i = 0; i < 20; i++) {
        char who = -1;
        int s = (int)MUST(accept(l, NULL, NULL));
        get(s, &who, 1);
        if (who != i) say("accepted %d as number %d", who, i);
        close(s);
    }
    say("in the order of connects");
}

enum { CLIENTS = 5 };

/* accept returns the connections of several processes in the order of their connects, blocking and non-blocking. */
static void accept_order_of_processes(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 64, &at, &len);
    int go[CLIENTS][2], done[2];
    pid_t clients[CLIENTS];
    MUST(pipe(done));
    for (int i = 0; i < CLIENTS; i++) {
        MUST(pipe(go[i]));
        clients[i] = MUST(fork());
        if (clients[i]) continue;
        for (int other = 0; other <= i; other++) close(go[other][1]);
        char name;
        while (read(go[i][0], &name, 1) == 1) {
            put(dial(&at, len), &name, 1);
            MUST(write(done[1], &name, 1));
        }
        _exit(0);
    }
    static const char *const rounds[] = {"1", "20", "3120", "013210", "00112233", "4", "3043", "2103", "30333330"};
    for (unsigned round = 0; round < sizeof rounds / sizeof *rounds; round++) {
        size_t count = strlen(rounds[round]);
        char name;
        for (size_t i = 0; i < count; i++) {
            MUST(write(go[rounds[round][i] - '0'][1], &rounds[round][i], 1));
            MUST(read(done[0], &name, 1));
        }
        char came[16] = "";
        MUST(fcntl(l, F_SETFL, round % 2 ? O_NONBLOCK : 0));
        for (size_t i = 0; i < count; i++) {
            int s = MUST(accept(l, NULL, NULL));
            get(s, came + i, 1);
            MUST(close(s));
        }
        say("%s came as %s", rounds[round], came);
    }
    for (int i = 0; i < CLIENTS; i++) {
        MUST(close(go[i][1]));
        reap(clients[i]);
    }
}

/* A connection whose client has closed it before accept is accepted, with its bytes. */
static void accept_of_one_that_left(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 64, &at, &len);
    int c = dial(&at, len);
    put(c, "bye", 3);
    MUST(close(c));
    say("poll %s", events(await(l, POLLIN)));
    int s = OPEN(accept(l, NULL, NULL));
    char text[8];
    get(s, text, 3);
    say("%.3s", text);
    CALL(recv(s, text, 8, 0));
}

/* The flags and numbers of descriptors from accept4 calls that block. Some clients connect at once, others while
 * accept4 sleeps. */
static void accept_waits(void) {
    static const int flags[] = {0, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_CLOEXEC | SOCK_NONBLOCK};
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 64, &at, &len), go[2];
    MUST(pipe(go));
    pid_t client = MUST(fork());
    if (!client) {
        close(go[1]);
        for (char pause, text; read(go[0], &pause, 1) == 1;) {
            usleep(pause * 1000);
            int c = dial(&at, len);
            put(c, &pause, 1);
            get(c, &text, 1);
            close(c);
        }
        _exit(0);
    }
    int lowest = MUST(dup(l));
    MUST(close(lowest));
    for (int round = 0; round < 96; round++) {
        int asked = flags[round % 4];
        char pause = round % 12 < 4 ? 20 : 0, text;
        MUST(write(go[1], &pause, 1));
        int s = MUST(accept4(l, NULL, NULL, asked));
        bool closes = MUST(fcntl(s, F_GETFD)) & FD_CLOEXEC, waits = !(MUST(fcntl(s, F_GETFL)) & O_NONBLOCK);
        if (closes != !!(asked & SOCK_CLOEXEC) || waits == !!(asked & SOCK_NONBLOCK) || s != lowest)
            say("%x: number +%d, closes %d, waits %d", asked, s - lowest, closes, waits);
        await(s, POLLIN);
        get(s, &text, 1);
        put(s, &text, 1);
        MUST(close(s));
    }
    say("as asked, and the lowest number");
    /* Without a free descriptor number accept fails at once. */
    struct rlimit limit = {lowest, lowest};
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    OPEN(accept(l, NULL, NULL));
    OPEN(accept(l, NULL, NULL));
    MUST(close(go[1]));
    reap(client);
}

/* A connection that came before 20 connections made with syscall(2) is accepted among the first two. */
static void accept_of_both(void) {
    enum { KERNELS = 20 };
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 64, &at, &len), c[KERNELS];
    put(dial(&at, len), "o", 1);
    for (int i = 0; i < KERNELS; i++) {
        c[i] = (int)MUST(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
        MUST(syscall(SYS_connect, c[i], &at, len));
        MUST(syscall(SYS_write, c[i], "k", 1));
    }
    for (int i = 0; i <= KERNELS; i++) {
        int s = MUST(accept(l, NULL, NULL));
        char whose;
        get(s, &whose, 1);
        if (whose == 'o') say("early: %d", i < 2);
        close(s);
    }
}

static pid_t forked_in_handler;
static int forked_pipe[2];

/* Reports the forked process to the client. */
static void fork_in_handler(int number) {
    (void)number;
    forked_in_handler = fork();
    if (forked_in_handler) MUST(write(forked_pipe[1], &forked_in_handler, sizeof forked_in_handler));
}

/* A signal handler forks while accept sleeps. Both processes then accept a connection of their own. */
static void accept_forked_in_handler(void) {
    enum { ROUNDS = 4, BEFORE = 8 };
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 64, &at, &len), cookies[2], same = 0;
    MUST(pipe(cookies));
    MUST(pipe(forked_pipe));
    struct sigaction restarts = {.sa_handler = fork_in_handler, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGUSR1, &restarts, NULL));
    pid_t server = getpid(), client = MUST(fork());
    if (!client) {
        for (int round = 0; round < ROUNDS; round++) {
            char text = 'x';
            for (int i = 0; i < BEFORE; i++) {
                int c = dial(&at, len);
                put(c, &text, 1);
                get(c, &text, 1);
                close(c);
            }
            /* Both processes must sleep in accept. If the handler ran after accept, the child would have the same socket. */
            pid_t forked;
            await_asleep(server);
            MUST(kill(server, SIGUSR1));
            MUST(read(forked_pipe[0], &forked, sizeof forked));
            await_asleep(forked);
            await_asleep(server);
            int c[2] = {dial(&at, len), dial(&at, len)};
            for (char i = 0; i < 2; i++) {
                put(c[(int)i], &i, 1);
                get(c[(int)i], &text, 1);
                if (text != i) say("%d came back as %d", i, text);
            }
            close(c[0]), close(c[1]);
        }
        _exit(0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        char text;
        for (int i = 0; i < BEFORE; i++) {
            int s = MUST(accept(l, NULL, NULL));
            get(s, &text, 1);
            put(s, &text, 1);
            MUST(close(s));
        }
        int s = MUST(accept(l, NULL, NULL));
        unsigned long long cookie[2] = {0};
        socklen_t size = sizeof *cookie;
        MUST(getsockopt(s, SOL_SOCKET, SO_COOKIE, cookie, &size));
        MUST(write(cookies[1], cookie, sizeof *cookie));
        get(s, &text, 1);
        put(s, &text, 1);
        if (!forked_in_handler) _exit(0);
        for (int i = 0; i < 2; i++) MUST(read(cookies[0], &cookie[i], sizeof *cookie));
        same += cookie[0] == cookie[1];
        reap(forked_in_handler);
        MUST(close(s));
    }
    say("of %d pairs %d are one socket", ROUNDS, same);
    reap(client);
}

static int get_int(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    MUST(getsockopt(fd, level, name, &value, &len));
    return value;
}

static void say_options(const char *who, int fd) {
    struct linger linger = {0};
    struct timeval limit = {0};
    socklen_t linger_len = sizeof linger, limit_len = sizeof limit;
    MUST(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &linger_len));
    MUST(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &limit_len));
    say("%s: keepalive %d, nodelay %d, idle %d, rcvbuf %d, rcvlowat %d, oobinline %d, user timeout %d, cork %d, linger %d %d, "
        "rcvtimeo %d, tos %d, priority %d",
        who, get_int(fd, SOL_SOCKET, SO_KEEPALIVE), get_int(fd, IPPROTO_TCP, TCP_NODELAY),
        get_int(fd, IPPROTO_TCP, TCP_KEEPIDLE), get_int(fd, SOL_SOCKET, SO_RCVBUF), get_int(fd, SOL_SOCKET, SO_RCVLOWAT),
        get_int(fd, SOL_SOCKET, SO_OOBINLINE), get_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), get_int(fd, IPPROTO_TCP, TCP_CORK),
        linger.l_onoff, linger.l_onoff ? linger.l_linger : 0, (int)limit.tv_sec, get_int(fd, IPPROTO_IP, IP_TOS),
        get_int(fd, SOL_SOCKET, SO_PRIORITY));
}

static void set_options(int fd, int round) {
    struct linger linger = {round & 1, round};
    struct timeval limit = {round, 0};
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, round & 1);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, round & 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30 + round);
    set_int(fd, SOL_SOCKET, SO_RCVBUF, 10000 * round);
    set_int(fd, SOL_SOCKET, SO_RCVLOWAT, round);
    set_int(fd, SOL_SOCKET, SO_OOBINLINE, round & 1);
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * round);
    set_int(fd, IPPROTO_TCP, TCP_CORK, round & 1);
    set_int(fd, IPPROTO_IP, IP_TOS, 16 * (round & 1));
    set_int(fd, SOL_SOCKET, SO_PRIORITY, 2);
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
}

/* A connection has the options that its listener had when the connection was made. */
static void options_in_backlog(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 8, &at, &len);
    set_options(l, 3);
    dial(&at, len);
    dial(&at, len);
    set_options(l, 4);
    say_options("listener", l);
    say_options("first", MUST(accept(l, NULL, NULL)));
    say_options("second", MUST(accept(l, NULL, NULL)));
    dial(&at, len);
    say_options("third", MUST(accept(l, NULL, NULL)));
    set_options(l, 5);
    dial(&at, len);
    say_options("fourth", MUST(accept(l, NULL, NULL)));
}

/* bind(2) to a specific IPv6 address sets IPV6_V6ONLY. */
static void accepted_v6only(void) {
    const char *const addresses[] = {"::1", "::", "::ffff:127.0.0.1"};
    for (int i = 0; i < 3; i++) {
        struct sockaddr_in6 at = {.sin6_family = AF_INET6};
        socklen_t len = sizeof at;
        int l = tcp(AF_INET6, 0), c = tcp(AF_INET6, 0);
        inet_pton(AF_INET6, addresses[i], &at.sin6_addr);
        MUST(bind(l, (struct sockaddr *)&at, len));
        MUST(listen(l, 4));
        MUST(getsockname(l, (struct sockaddr *)&at, &len));
        MUST(connect(c, (struct sockaddr *)&at, len));
        int s = MUST(accept(l, NULL, NULL));
        say("%s: %d %d", addresses[i], get_int(l, IPPROTO_IPV6, IPV6_V6ONLY), get_int(s, IPPROTO_IPV6, IPV6_V6ONLY));
    }
}

const struct test accept_cases[] = {
    {"accept_inheritance", accept_inheritance},
    {"accept_addresses", accept_addresses},
    {"accept_any_v6_takes_v4", accept_any_v6_takes_v4},
    {"accept_v6only", accept_v6only},
    {"bind_conflicts", bind_conflicts},
    {"listen_without_bind", listen_without_bind},
    {"reuseport_group", reuseport_group},
    {"accept_order", accept_order},
    {"accept_order_of_processes", accept_order_of_processes},
    {"accept_of_one_that_left", accept_of_one_that_left},
    {"accept_waits", accept_waits},
    {"accept_of_both", accept_of_both},
    {"accept_forked_in_handler", accept_forked_in_handler},
    {"accept_options_in_backlog", options_in_backlog},
    {"accept_v6only_of_address", accepted_v6only},
    {NULL, NULL}};
