/* A socket that two processes hold. Each observes what the other does to it. */
#include "semantics.h"

static struct sockaddr_storage at;
static socklen_t at_len;
static int l;

/* The two processes take turns. */
static int turns[2][2];
static bool is_child;

static pid_t split(void) {
    for (int i = 0; i < 2; i++) MUST(pipe(turns[i]));
    pid_t child = MUST(fork());
    is_child = !child;
    return child;
}

static void yield(void) {
    char byte = 0;
    if (write(turns[is_child][1], &byte, 1) != 1) die("write");
}

static void await_turn(void) {
    char byte;
    if (read(turns[!is_child][0], &byte, 1) != 1) die("read");
}

static void look(int fd) {
    struct pollfd entry = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    MUST(poll(&entry, 1, 0));
    int listens = -1;
    socklen_t len = sizeof listens;
    MUST(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len));
    say("%s, listens %d", events(entry.revents), listens);
}

/* Listens again after a shutdown. listen(2) gives the socket another port if it was not bound to a number. */
static void listen_again(int backlog) {
    CALL(listen(l, backlog));
    at_len = sizeof at;
    MUST(getsockname(l, (struct sockaddr *)&at, &at_len));
}

static int dial_now(void) {
    int c = tcp(AF_INET, 0);
    CALL(connect(c, (struct sockaddr *)&at, at_len));
    return c;
}

static void exchange(int a, int b) {
    char text[4];
    put(a, "ping", 4);
    get(b, text, 4);
    put(b, "pong", 4);
    get(a, text, 4);
    say("%.4s", text);
}

/* The child shuts the listener down, and the parent observes it. The parent listens again, and the child accepts. */
static void shut_by_child(void) {
    l = listener(AF_INET, 8, &at, &at_len);
    int waits = dial(&at, at_len);
    pid_t child = split();
    if (is_child) {
        close(waits);
        CALL(shutdown(l, SHUT_RDWR));
        look(l);
        yield();
        await_turn();
        look(l);
        int s = OPEN(accept(l, NULL, NULL));
        char text[4];
        get(s, text, 4);
        put(s, "back", 4);
        yield();
        await_turn();
        _exit(0);
    }
    await_turn();
    look(l);
    CALL(accept(l, NULL, NULL));
    CALL(accept4(l, NULL, NULL, SOCK_NONBLOCK));
    char text[4];
    CALL(recv(waits, text, 1, 0));
    close(dial_now());
    listen_again(4);
    look(l);
    int c = dial_now();
    put(c, "here", 4);
    look(l);
    yield();
    await_turn();
    get(c, text, 4);
    say("%.4s", text);
    look(l);
    c = dial_now();
    int s = OPEN(accept(l, NULL, NULL));
    exchange(c, s);
    yield();
    reap(child);
}

/* The process that has shut the listener down accepts again after the other process has called listen(2). */
static void listens_again_in_child(void) {
    l = listener(AF_INET, 8, &at, &at_len);
    pid_t child = split();
    if (is_child) {
        await_turn();
        look(l);
        CALL(listen(l, 4));
        yield();
        await_turn();
        CALL(shutdown(l, SHUT_RD));
        yield();
        await_turn();
        _exit(0);
    }
    CALL(shutdown(l, SHUT_RD));
    yield();
    await_turn();
    at_len = sizeof at;
    MUST(getsockname(l, (struct sockaddr *)&at, &at_len));
    int c = dial_now(), set = MUST(epoll_create1(0));
    look(l);
    struct epoll_event event = {EPOLLIN, {.u64 = 7}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, l, &event));
    say("%ld", (long)epoll_wait(set, &event, 1, 0));
    int s = OPEN(accept(l, NULL, NULL));
    exchange(c, s);
    say("%ld", (long)epoll_wait(set, &event, 1, 0));
    yield();
    await_turn();
    say("%ld", (long)epoll_wait(set, &event, 1, -1));
    say("%s", events(event.events));
    CALL(accept(l, NULL, NULL));
    /* The former listener can connect, or has EINVAL on Linux 6.18.44. */
    int other = listener(AF_INET, 8, &at, &at_len);
    if (CALL(connect(l, (struct sockaddr *)&at, at_len)) == 0) exchange(l, OPEN(accept(other, NULL, NULL)));
    yield();
    reap(child);
}

/* shutdown wakes a process that sleeps on the listener. */
static void sleeps(int how) {
    l = listener(AF_INET, 8, &at, &at_len);
    pid_t child = split();
    if (is_child) {
        struct pollfd entry = {l, POLLIN, 0};
        struct epoll_event event = {EPOLLIN, {.u64 = 7}};
        int set = MUST(epoll_create1(0));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, l, &event));
        yield();
        if (how == 0) CALL(accept(l, NULL, NULL));
        if (how == 1) {
            MUST(poll(&entry, 1, -1));
            say("%s", events(entry.revents));
        }
        if (how == 2) {
            MUST(epoll_wait(set, &event, 1, -1));
            say("%s", events(event.events));
        }
        look(l);
        _exit(0);
    }
    await_turn();
    await_asleep(child);
    MUST(shutdown(l, SHUT_RDWR));
    reap(child);
    look(l);
}
static void shut_wakes_accept(void) { sleeps(0); }
static void shut_wakes_poll(void) { sleeps(1); }
static void shut_wakes_epoll(void) { sleeps(2); }

/* TCP_LINGER2 is set on a listener with a connection in its backlog. */
static void kernel_option(void) {
    l = listener(AF_INET, 8, &at, &at_len);
    int first = dial_now();
    set_int(l, IPPROTO_TCP, TCP_LINGER2, 1);
    put(first, "one", 3);
    int second = dial_now();
    look(l);
    int a = OPEN(accept(l, NULL, NULL));
    exchange(second, OPEN(accept(l, NULL, NULL)));
    char text[4];
    get(a, text, 3);
    say("%.3s", text);
    CALL(listen(l, 2));
    int c = dial_now();
    exchange(c, OPEN(accept(l, NULL, NULL)));
    CALL(shutdown(l, SHUT_RD));
    close(dial_now());
    listen_again(2);
    c = dial_now();
    exchange(c, OPEN(accept(l, NULL, NULL)));
}

/* O_NONBLOCK belongs to the open file description. */
static void nonblocking(void) {
    l = listener(AF_INET, 8, &at, &at_len);
    int c = tcp(AF_INET, 0), flag = 1;
    pid_t child = split();
    if (is_child) {
        await_turn();
        CALL(accept(l, NULL, NULL));
        CALL(connect(c, (struct sockaddr *)&at, at_len));
        flag = 0;
        CALL(ioctl(l, FIONBIO, &flag));
        CALL(fcntl(c, F_SETFL, 0));
        yield();
        await_turn();
        _exit(0);
    }
    CALL(ioctl(l, FIONBIO, &flag));
    CALL(fcntl(c, F_SETFL, O_NONBLOCK));
    yield();
    await_turn();
    int s = OPEN(accept(l, NULL, NULL));
    struct timeval limit = {0, 100000};
    MUST(setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    int64_t began = now_ms();
    CALL(accept(l, NULL, NULL));
    say("waited %d", now_ms() - began >= 90);
    say("%d", (int)MUST(fcntl(s, F_GETFL)) & O_NONBLOCK);
    yield();
    reap(child);
}

/* getsockname of a socket that was corked before connect. */
static void corked_name(void) {
    l = listener(AF_INET, 8, &at, &at_len);
    int c = tcp(AF_INET, 0);
    set_int(c, IPPROTO_TCP, TCP_CORK, 1);
    MUST(connect(c, (struct sockaddr *)&at, at_len));
    int s = MUST(accept(l, NULL, NULL));
    struct sockaddr_in own, peer;
    socklen_t own_len = sizeof own, peer_len = sizeof peer;
    MUST(getsockname(c, (struct sockaddr *)&own, &own_len));
    MUST(getpeername(s, (struct sockaddr *)&peer, &peer_len));
    say("same %d", own.sin_port == peer.sin_port && own.sin_addr.s_addr == peer.sin_addr.s_addr);
}

static int in_group(void) {
    int fd = tcp(AF_INET, SOCK_NONBLOCK);
    set_int(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    if (bind(fd, (struct sockaddr *)&at, at_len) < 0) {
        say("bind: %s", name_of(errno));
        close(fd);
        return -1;
    }
    MUST(listen(fd, 64));
    return fd;
}

static int accept_all(int fd) {
    int n = 0;
    for (int s; (s = accept(fd, NULL, NULL)) >= 0; n++) close(s);
    return n;
}

/* SO_REUSEPORT: two processes of one user share a port. Another user's bind fails. */
static void group_of_processes(void) {
    at_len = sizeof(struct sockaddr_in);
    memset(&at, 0, sizeof at);
    *(struct sockaddr_in *)&at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    l = in_group();
    MUST(getsockname(l, (struct sockaddr *)&at, &at_len));
    int report_to[2], clients[64], theirs = 0, mine;
    MUST(pipe(report_to));
    pid_t child = split();
    if (is_child) {
        close(l);
        l = in_group();
        yield();
        await_turn();
        theirs = accept_all(l);
        if (write(report_to[1], &theirs, sizeof theirs) != sizeof theirs) die("write");
        await_turn();
        close(l);
        yield();
        await_turn();
        _exit(0);
    }
    await_turn();
    for (int i = 0; i < 64; i++) clients[i] = dial(&at, at_len);
    yield();
    if (read(report_to[0], &theirs, sizeof theirs) != sizeof theirs) die("read");
    mine = accept_all(l);
    say("all %d, both %d", mine + theirs, mine > 8 && theirs > 8);
    for (int i = 0; i < 64; i++) close(clients[i]);
    for (int i = 0; i < 64; i++) clients[i] = dial(&at, at_len);
    yield();
    await_turn();
    /* The child's close reset the connections in its queue. The parent gets all new ones. */
    int reset = 0;
    mine = accept_all(l);
    for (int i = 0; i < 64; i++) {
        char byte;
        reset += recv(clients[i], &byte, 1, 0) < 0 && errno == ECONNRESET;
    }
    say("all %d, some reset %d", mine + reset, reset > 8 && mine > 8);
    for (int i = 0; i < 8; i++) dial(&at, at_len);
    say("%d", accept_all(l));
    pid_t other = MUST(fork());
    if (!other) {
        if (geteuid() == 0) MUST(setuid(65534));
        in_group();
        _exit(0);
    }
    reap(other);
    yield();
    reap(child);
}

const struct test holder_cases[] = {{"holder_shut_by_child", shut_by_child},
                                    {"holder_listens_again_in_child", listens_again_in_child},
                                    {"holder_shut_wakes_accept", shut_wakes_accept},
                                    {"holder_shut_wakes_poll", shut_wakes_poll},
                                    {"holder_shut_wakes_epoll", shut_wakes_epoll},
                                    {"holder_kernel_option", kernel_option},
                                    {"holder_nonblocking", nonblocking},
                                    {"holder_corked_name", corked_name},
                                    {"holder_group_of_processes", group_of_processes},
                                    {NULL, NULL}};
