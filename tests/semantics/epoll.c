/* epoll in one thread: level, edge, one-shot, nested sets, mixed members, close and dup. */
#include "semantics.h"

static char text[64];
static struct epoll_event got[16];

static int add(int e, int fd, uint32_t mask, uint64_t data) {
    struct epoll_event event = {.events = mask, .data.u64 = data};
    return epoll_ctl(e, EPOLL_CTL_ADD, fd, &event);
}

static int modify(int e, int fd, uint32_t mask, uint64_t data) {
    struct epoll_event event = {.events = mask, .data.u64 = data};
    return epoll_ctl(e, EPOLL_CTL_MOD, fd, &event);
}

/* Prints the events of one wait, ordered by data. */
static void wait_for(int e, int timeout) {
    int n = epoll_wait(e, got, 16, timeout);
    if (n < 0) say("epoll_wait -1 %s", name_of(errno));
    if (n == 0) say("nothing");
    for (uint64_t data = 0; data < 100; data++)
        for (int i = 0; i < n; i++)
            if (got[i].data.u64 == data) say("%d: %s", (int)data, events(got[i].events));
}

/* Prints the events of one wait for at most `max`, in the order in which epoll_wait returns them. */
static void wait_order(int e, int max) {
    char line[64] = "";
    int n = (int)MUST(epoll_wait(e, got, max, 0));
    for (int i = 0; i < n; i++) snprintf(line + strlen(line), 4, " %d", (int)got[i].data.u64);
    say("order:%s", line);
}

/* Sends a byte and waits until it has arrived. */
static void send_to(int a, int b) {
    int before = 0;
    MUST(ioctl(b, FIONREAD, &before));
    put(a, "x", 1);
    await_bytes(b, before + 1);
}

/* epoll_wait reports sockets in the order in which they became ready, not in that of their creation or addition. */
static void arrival_order(void) {
    int a[8], b[8], e = (int)MUST(epoll_create1(0)), f = (int)MUST(epoll_create1(0));
    static const int orders[3][8] = {{1, 6, 4, 2, 0, 5, 3, 7}, {0, 3, 7, 2, 1, 6, 5, 4}, {5, 2, 0, 1, 4, 3, 7, 6}};
    for (int i = 0; i < 8; i++) {
        pair(&a[i], &b[i]);
        MUST(add(e, b[i], EPOLLIN, i));
        MUST(add(f, b[i], EPOLLIN | EPOLLET, i));
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++) send_to(a[orders[round][i]], b[orders[round][i]]);
        /* A second message of a socket that has not been reported does not change its place. */
        send_to(a[orders[round][0]], b[orders[round][0]]);
        wait_order(e, 16);
        wait_order(f, 16);
        for (int i = 0; i < 8; i++) get(b[i], text, orders[round][0] == i ? 2 : 1);
        wait_order(e, 16);
    }
    /* With a small maxevents: a reported socket moves to the end, behind those that became ready since. */
    for (int i = 4; i >= 0; i--) send_to(a[i], b[i]);
    wait_order(e, 2);
    send_to(a[7], b[7]);
    for (int i = 0; i < 6; i++) wait_order(e, 2);
    for (int i = 0; i < 6; i++) wait_order(f, 1);
    for (int i = 0; i < 8; i++)
        if (i < 5 || i == 7) get(b[i], text, 1);
    wait_order(e, 16);
    /* A socket that was drained without another epoll_wait keeps its place. */
    send_to(a[3], b[3]);
    wait_order(e, 16);
    get(b[3], text, 1);
    send_to(a[1], b[1]);
    send_to(a[3], b[3]);
    wait_order(e, 16);
}

/* EPOLL_CTL_ADD and EPOLL_CTL_MOD queue a socket only if it is ready at that moment. */
static void order_of_additions(void) {
    int a[4], b[4], e = (int)MUST(epoll_create1(0));
    for (int i = 0; i < 4; i++) pair(&a[i], &b[i]);
    MUST(add(e, b[0], EPOLLIN, 0));
    MUST(add(e, b[1], EPOLLIN, 1));
    send_to(a[3], b[3]);
    send_to(a[1], b[1]);
    MUST(add(e, b[3], EPOLLIN, 3));
    MUST(add(e, b[2], EPOLLIN, 2));
    MUST(modify(e, b[0], EPOLLIN, 0));
    send_to(a[2], b[2]);
    send_to(a[0], b[0]);
    wait_order(e, 16);
    wait_order(e, 16);
    MUST(modify(e, b[1], EPOLLIN, 1));
    wait_order(e, 16);
    MUST(epoll_ctl(e, EPOLL_CTL_DEL, b[1], NULL));
    MUST(add(e, b[1], EPOLLIN, 1));
    wait_order(e, 16);
    MUST(modify(e, b[3], EPOLLIN | EPOLLONESHOT, 3));
    wait_order(e, 16);
    wait_order(e, 16);
    MUST(modify(e, b[3], EPOLLIN | EPOLLONESHOT, 3));
    wait_order(e, 16);
}

/* The order of changes by this process and by its peers. */
static void order_of_own_changes(void) {
    int a, b, c, d, e = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    MUST(add(e, a, EPOLLIN, 1));
    MUST(add(e, b, EPOLLIN | EPOLLRDHUP, 2));
    send_to(a, b);
    MUST(shutdown(b, SHUT_WR));
    await(a, POLLIN);
    wait_order(e, 16);
    /* A socket that is shut down before a message comes is queued at the shutdown. */
    int f = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    pair(&c, &d);
    MUST(add(f, b, EPOLLIN, 1));
    MUST(add(f, d, EPOLLIN, 2));
    MUST(shutdown(b, SHUT_WR));
    send_to(c, d);
    send_to(a, b);
    wait_order(f, 16);
    /* The first connection of a listener in the set, and then another descriptor. */
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), g = (int)MUST(epoll_create1(0));
    MUST(add(g, l, EPOLLIN, 3));
    int client = dial(&at, len);
    await(l, POLLIN);
    MUST(add(g, client, EPOLLOUT, 4));
    wait_order(g, 16);
}

/* A listener is ordered like any other member. A message on its connection is no event for it. */
static void order_with_listener(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), e = (int)MUST(epoll_create1(0)), f = (int)MUST(epoll_create1(0));
    int c = dial(&at, len), s = (int)MUST(accept(l, NULL, NULL));
    MUST(add(e, l, EPOLLIN, 1));
    MUST(add(e, s, EPOLLIN, 2));
    MUST(add(f, l, EPOLLIN | EPOLLET, 3));
    MUST(add(f, s, EPOLLIN | EPOLLET, 4));
    wait_order(e, 16);
    send_to(c, s);
    int d = dial(&at, len);
    await(l, POLLIN);
    wait_order(e, 16);
    wait_order(f, 16);
    send_to(c, s);
    wait_order(f, 16);
    wait_order(f, 16);
    get(s, text, 2);
    MUST(close(MUST(accept(l, NULL, NULL))));
    wait_order(e, 16);
    int g = dial(&at, len);
    await(l, POLLIN);
    send_to(c, s);
    wait_order(e, 16);
    wait_order(f, 16);
    close(d), close(g);
}

/* Edge-triggered: a change is an event only for registrations that ask for it. Data does not report EPOLLOUT again. */
static void kinds_of_changes(void) {
    int a, b, e = (int)MUST(epoll_create1(0)), f = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    MUST(add(e, b, EPOLLOUT | EPOLLET, 1));
    MUST(add(e, a, EPOLLIN | EPOLLET, 2));
    wait_order(e, 16);
    send_to(a, b);
    wait_order(e, 16);
    MUST(modify(e, b, EPOLLIN | EPOLLOUT | EPOLLET, 3));
    wait_order(e, 16);
    send_to(a, b);
    wait_order(e, 16);
    MUST(modify(e, b, EPOLLOUT | EPOLLET, 4));
    wait_order(e, 16);
    /* The peer's shutdown is an event for every registration. Its close after that is none. */
    MUST(shutdown(a, SHUT_WR));
    await(b, POLLRDHUP);
    wait_order(e, 16);
    MUST(add(f, b, EPOLLIN | EPOLLRDHUP | EPOLLET, 5));
    wait_order(f, 16);
    MUST(close(a));
    wait_order(f, 16);
    /* On a closed connection shutdown(2) fails, but is an event. */
    int c, d;
    pair(&c, &d);
    MUST(add(f, c, EPOLLIN | EPOLLET, 6));
    MUST(shutdown(c, SHUT_WR));
    MUST(shutdown(d, SHUT_WR));
    await(c, POLLHUP);
    wait_order(f, 16);
    CALL(shutdown(c, SHUT_WR));
    wait_order(f, 16);
    wait_order(f, 16);
}

/* A nested set is queued when one of its members is, and each change is an edge, at any depth. */
static void order_of_nested(void) {
    int a, b, c, d, e[4];
    for (int i = 0; i < 4; i++) e[i] = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    pair(&c, &d);
    MUST(add(e[0], b, EPOLLIN, 1));
    MUST(add(e[1], d, EPOLLIN, 2));
    MUST(add(e[0], e[1], EPOLLIN, 3));
    send_to(a, b);
    send_to(c, d);
    wait_order(e[0], 1);
    wait_order(e[0], 1);
    get(d, text, 1);
    get(b, text, 1);
    send_to(c, d);
    send_to(a, b);
    wait_order(e[0], 16);
    MUST(add(e[2], e[0], EPOLLIN | EPOLLET, 4));
    MUST(add(e[3], e[2], EPOLLIN | EPOLLET, 5));
    wait_order(e[3], 16);
    wait_order(e[3], 16);
    send_to(c, d);
    wait_order(e[3], 16);
    wait_order(e[3], 16);
    MUST(shutdown(b, SHUT_WR));
    wait_order(e[3], 16);
    /* Adding a ready member to the inner set is an edge too. */
    MUST(add(e[1], c, EPOLLOUT, 6));
    wait_order(e[3], 16);
    wait_order(e[3], 16);
}

static void level(void) {
    int a, b, e = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    pair(&a, &b);
    CALL(add(e, b, EPOLLIN, 1));
    wait_for(e, 0);
    put(a, "abcd", 4);
    wait_for(e, -1);
    wait_for(e, -1);
    get(b, text, 2);
    wait_for(e, 0);
    get(b, text, 2);
    wait_for(e, 0);
    CALL(modify(e, b, EPOLLIN | EPOLLOUT, 2));
    wait_for(e, 0);
    CALL(modify(e, b, 0, 3));
    wait_for(e, 0);
    put(a, "x", 1);
    await_bytes(b, 1);
    wait_for(e, 0);
    CALL(modify(e, b, EPOLLIN | EPOLLRDHUP, 4));
    wait_for(e, 0);
    get(b, text, 1);
    MUST(shutdown(a, SHUT_WR));
    wait_for(e, -1);
    MUST(shutdown(b, SHUT_WR));
    await(b, POLLHUP);
    wait_for(e, -1);
    CALL(modify(e, b, 0, 5));
    wait_for(e, 0);
    CALL(epoll_ctl(e, EPOLL_CTL_DEL, b, NULL));
    wait_for(e, 0);
}

static void edge(void) {
    int a, b, e = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    CALL(add(e, b, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1));
    wait_for(e, 0);
    wait_for(e, 0);
    put(a, "abcd", 4);
    wait_for(e, -1);
    wait_for(e, 0);
    get(b, text, 2);
    wait_for(e, 0);
    put(a, "ef", 2);
    wait_for(e, -1);
    wait_for(e, 0);
    /* EPOLL_CTL_MOD reports the present events again. */
    CALL(modify(e, b, EPOLLIN | EPOLLET, 2));
    wait_for(e, 0);
    wait_for(e, 0);
    get(b, text, 4);
    MUST(shutdown(a, SHUT_WR));
    wait_for(e, -1);
    wait_for(e, 0);
    /* The socket is readable when it is added. */
    int f = (int)MUST(epoll_create1(0));
    CALL(add(f, b, EPOLLIN | EPOLLET, 3));
    wait_for(f, 0);
    wait_for(f, 0);
}

static void oneshot(void) {
    int a, b, e = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    CALL(add(e, b, EPOLLIN | EPOLLONESHOT, 1));
    put(a, "ab", 2);
    wait_for(e, -1);
    wait_for(e, 0);
    put(a, "c", 1);
    await_bytes(b, 3);
    wait_for(e, 0);
    CALL(modify(e, b, EPOLLIN | EPOLLONESHOT, 2));
    wait_for(e, 0);
    wait_for(e, 0);
    MUST(shutdown(a, SHUT_RDWR));
    await(b, POLLRDHUP);
    wait_for(e, 0);
    CALL(modify(e, b, EPOLLIN | EPOLLOUT | EPOLLET | EPOLLONESHOT, 3));
    wait_for(e, 0);
    wait_for(e, 0);
}

/* A one-shot listener that has reported a connection stays in the set and reports nothing more, not even its end. */
static void oneshot_of_listener(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), e = (int)MUST(epoll_create1(0));
    MUST(add(e, l, EPOLLIN | EPOLLONESHOT, 1));
    for (int round = 0; round < 3; round++) {
        MUST(dial(&at, len));
        wait_for(e, -1);
        MUST(accept(l, NULL, NULL));
        MUST(dial(&at, len));
        wait_for(e, 0);
        CALL(add(e, l, EPOLLIN, 2));
        CALL(modify(e, l, EPOLLIN | EPOLLONESHOT, 3));
        wait_for(e, 0);
        MUST(accept(l, NULL, NULL));
        CALL(modify(e, l, EPOLLIN | EPOLLONESHOT, 4));
        /* Armed twice while a connection is queued: reported once. */
        CALL(modify(e, l, EPOLLIN | EPOLLONESHOT, 5));
        wait_for(e, 0);
    }
    MUST(dial(&at, len));
    wait_for(e, 0);
    CALL(epoll_ctl(e, EPOLL_CTL_DEL, l, NULL));
    CALL(epoll_ctl(e, EPOLL_CTL_DEL, l, NULL));
    CALL(modify(e, l, EPOLLIN, 6));
    CALL(add(e, l, EPOLLIN | EPOLLONESHOT, 7));
    wait_for(e, 0);
    MUST(shutdown(l, SHUT_RDWR));
    wait_for(e, 0);
    CALL(add(e, l, EPOLLIN, 8));
    CALL(modify(e, l, EPOLLIN | EPOLLONESHOT, 9));
    wait_for(e, 0);
    wait_for(e, 0);
    CALL(epoll_ctl(e, EPOLL_CTL_DEL, l, NULL));
    CALL(epoll_ctl(e, EPOLL_CTL_DEL, l, NULL));
}

/* An event of another descriptor with the same data does not count as the listener's. */
static void oneshot_beside_same_data(void) {
    struct sockaddr_storage at, other_at;
    socklen_t len, other_len;
    int l = listener(AF_INET, 16, &at, &len), other = listener(AF_INET, 16, &other_at, &other_len);
    int p[2], e = (int)MUST(epoll_create1(0));
    MUST(pipe(p));
    MUST(add(e, l, EPOLLIN | EPOLLONESHOT, 1));
    MUST(add(e, other, EPOLLIN | EPOLLONESHOT, 1));
    MUST(add(e, p[0], EPOLLIN, 1));
    MUST(write(p[1], "x", 1));
    wait_for(e, -1);
    MUST(read(p[0], text, 1));
    MUST(dial(&at, len));
    wait_for(e, 5000);
    MUST(accept(l, NULL, NULL));
    MUST(write(p[1], "x", 1));
    wait_for(e, -1);
    MUST(read(p[0], text, 1));
    MUST(dial(&at, len));
    wait_for(e, 0);
    MUST(dial(&other_at, other_len));
    wait_for(e, 5000);
    wait_for(e, 0);
    CALL(modify(e, l, EPOLLIN | EPOLLONESHOT, 1));
    wait_for(e, 5000);
}

/* A child that shares the set arms a one-shot listener again, and removes it. */
static void oneshot_of_listener_in_child(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), e = (int)MUST(epoll_create1(0));
    MUST(add(e, l, EPOLLIN | EPOLLONESHOT, 1));
    for (int round = 0; round < 2; round++) {
        MUST(dial(&at, len));
        if (round == 0) wait_for(e, -1);
        pid_t child = (pid_t)MUST(fork());
        if (!child) {
            if (round == 1) {
                /* The child gets the event. */
                wait_for(e, -1);
                _exit(0);
            }
            CALL(add(e, l, EPOLLIN, 2));
            CALL(modify(e, l, EPOLLIN | EPOLLONESHOT, 3));
            _exit(0);
        }
        MUST(waitpid(child, NULL, 0));
        if (round == 0) {
            wait_for(e, -1);
            MUST(accept(l, NULL, NULL));
            CALL(modify(e, l, EPOLLIN | EPOLLONESHOT, 4));
        }
    }
    CALL(add(e, l, EPOLLIN, 5));
    CALL(modify(e, l, EPOLLIN | EPOLLONESHOT, 6));
    wait_for(e, -1);
    pid_t child = (pid_t)MUST(fork());
    if (!child) {
        CALL(epoll_ctl(e, EPOLL_CTL_DEL, l, NULL));
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
    CALL(epoll_ctl(e, EPOLL_CTL_DEL, l, NULL));
}

static void on_listener(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), e = (int)MUST(epoll_create1(0)), f = (int)MUST(epoll_create1(0));
    CALL(add(e, l, EPOLLIN, 1));
    CALL(add(f, l, EPOLLIN | EPOLLOUT | EPOLLET, 2));
    wait_for(e, 0);
    wait_for(f, 0);
    int c = dial(&at, len), d = dial(&at, len);
    await(l, POLLIN);
    wait_for(e, -1);
    wait_for(f, -1);
    wait_for(f, 0);
    MUST(accept(l, NULL, NULL));
    wait_for(e, 0);
    MUST(accept(l, NULL, NULL));
    wait_for(e, 0);
    int g = dial(&at, len);
    wait_for(f, -1);
    wait_for(e, -1);
    close(c), close(d), close(g);
}

static void on_connecting(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), e = (int)MUST(epoll_create1(0)), c = tcp(AF_INET, SOCK_NONBLOCK);
    CALL(add(e, c, EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, 1));
    wait_for(e, 0);
    wait_for(e, 0);
    CALL(connect(c, (struct sockaddr *)&at, len));
    wait_for(e, -1);
    wait_for(e, 0);
    int s = (int)MUST(accept(l, NULL, NULL));
    put(s, "x", 1);
    wait_for(e, -1);
    MUST(close(s));
    wait_for(e, -1);
}

static void errors(void) {
    int a, b, e = (int)MUST(epoll_create1(0)), ends[2];
    pair(&a, &b);
    MUST(pipe(ends));
    struct epoll_event event = {.events = EPOLLIN};
    CALL(epoll_ctl(e, EPOLL_CTL_DEL, a, NULL));
    CALL(epoll_ctl(e, EPOLL_CTL_MOD, a, &event));
    CALL(epoll_ctl(e, EPOLL_CTL_ADD, a, &event));
    CALL(epoll_ctl(e, EPOLL_CTL_ADD, a, &event));
    CALL(epoll_ctl(e, 77, a, &event));
    CALL(epoll_ctl(e, EPOLL_CTL_ADD, e, &event));
    CALL(epoll_ctl(e, EPOLL_CTL_ADD, -1, &event));
    CALL(epoll_ctl(e, EPOLL_CTL_ADD, 100000, &event));
    CALL(epoll_ctl(a, EPOLL_CTL_ADD, b, &event));
    CALL(epoll_ctl(-1, EPOLL_CTL_ADD, b, &event));
    CALL(epoll_ctl(e, EPOLL_CTL_ADD, b, NULL));
    CALL(epoll_wait(e, got, 0, 0));
    CALL(epoll_wait(e, got, -1, 0));
    CALL(epoll_wait(a, got, 1, 0));
    CALL(epoll_wait(-1, got, 1, 0));
    CALL(epoll_wait(ends[0], got, 1, 0));
    CALL(epoll_wait(e, (struct epoll_event *)8, 1, 0));
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    CALL(epoll_ctl(e, EPOLL_CTL_MOD, a, &event));
    CALL(epoll_ctl(e, EPOLL_CTL_ADD, b, &event));
    event.events = EPOLLIN;
    CALL(epoll_ctl(e, EPOLL_CTL_MOD, b, &event));
    event.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT;
    int c, d;
    pair(&c, &d);
    CALL(epoll_ctl(e, EPOLL_CTL_ADD, c, &event));
    int file = (int)MUST(open("/proc/self/exe", O_RDONLY));
    event.events = EPOLLIN;
    CALL(epoll_ctl(e, EPOLL_CTL_ADD, file, &event));
    CALL(read(e, text, 1));
    CALL(lseek(e, 0, SEEK_SET));
}

static void nested(void) {
    int a, b, inner = (int)MUST(epoll_create1(0)), outer = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    CALL(add(inner, b, EPOLLIN, 1));
    CALL(add(outer, inner, EPOLLIN, 2));
    wait_for(outer, 0);
    put(a, "x", 1);
    wait_for(outer, -1);
    wait_for(inner, 0);
    struct pollfd one = {inner, POLLIN, 0};
    CALL(poll(&one, 1, 0));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(inner, &set);
    CALL(select(inner + 1, &set, NULL, NULL, &(struct timeval){0, 0}));
    get(b, text, 1);
    wait_for(outer, 0);
    CALL(poll(&one, 1, 0));
    /* The outer set is edge-triggered. */
    int third = (int)MUST(epoll_create1(0));
    CALL(add(third, inner, EPOLLIN | EPOLLET, 3));
    put(a, "y", 1);
    wait_for(third, -1);
    wait_for(third, 0);
    put(a, "z", 1);
    wait_for(third, -1);
    CALL(add(inner, outer, EPOLLIN, 4));
}

static void mixed(void) {
    int a, b, ends[2], u[2], e = (int)MUST(epoll_create1(0)), counter = (int)MUST(eventfd(0, EFD_NONBLOCK));
    pair(&a, &b);
    MUST(pipe(ends));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    CALL(add(e, b, EPOLLIN, 1));
    CALL(add(e, ends[0], EPOLLIN, 2));
    CALL(add(e, counter, EPOLLIN, 3));
    CALL(add(e, u[0], EPOLLIN, 4));
    wait_for(e, 0);
    MUST(write(ends[1], "x", 1));
    wait_for(e, -1);
    put(a, "x", 1);
    await(b, POLLIN);
    wait_for(e, -1);
    uint64_t one = 1;
    MUST(write(counter, &one, 8));
    MUST(write(u[1], "x", 1));
    wait_for(e, -1);
    MUST(read(ends[0], text, 1));
    wait_for(e, 0);
    get(b, text, 1);
    wait_for(e, 0);
    MUST(read(counter, &one, 8));
    MUST(read(u[0], text, 1));
    wait_for(e, 0);
    struct timespec none = {0, 0};
    sigset_t set;
    sigemptyset(&set);
    CALL(epoll_pwait(e, got, 16, 0, &set));
    CALL(epoll_pwait2(e, got, 16, &none, &set));
}

/* If maxevents is larger than the number of ready members, nothing is reported twice. */
static void once_each(void) {
    int a[3], b[3], ends[3][2], e = (int)MUST(epoll_create1(0));
    for (int i = 0; i < 3; i++) {
        pair(&a[i], &b[i]);
        MUST(add(e, b[i], EPOLLIN, i));
        MUST(pipe(ends[i]));
        MUST(add(e, ends[i][0], EPOLLIN, 3 + i));
    }
    MUST(write(ends[0][1], "x", 1));
    for (int room = 1; room < 5; room++) say("room %d: %d", room, (int)MUST(epoll_wait(e, got, room, 0)));
    send_to(a[1], b[1]);
    for (int room = 2; room < 5; room++) say("room %d: %d", room, (int)MUST(epoll_wait(e, got, room, 0)));
    MUST(write(ends[2][1], "x", 1));
    send_to(a[2], b[2]);
    for (int room = 4; room < 7; room++) say("room %d: %d", room, (int)MUST(epoll_wait(e, got, room, 0)));
    wait_for(e, 0);
}

/* No descriptor starves if maxevents is smaller than the number of ready members. */
static void fewer_slots_than_ready(void) {
    int a[8], b[8], e = (int)MUST(epoll_create1(0)), pipes[4][2];
    for (int i = 0; i < 8; i++) {
        pair(&a[i], &b[i]);
        put(a[i], "x", 1);
        await_bytes(b[i], 1);
        MUST(add(e, b[i], EPOLLIN, i));
    }
    for (int i = 0; i < 4; i++) {
        MUST(pipe(pipes[i]));
        MUST(write(pipes[i][1], "x", 1));
        MUST(add(e, pipes[i][0], EPOLLIN, 8 + i));
    }
    int seen = 0;
    unsigned mask = 0;
    while (seen < 200 && mask != 0xfff) {
        int n = (int)MUST(epoll_wait(e, got, 2, -1));
        if (n > 2) die("too many");
        for (int i = 0; i < n; i++) mask |= 1u << got[i].data.u64;
        seen += n;
    }
    say("all were seen: %d", mask == 0xfff);
}

/* A registration refers to the open file description: it outlives its closed number while a copy is open. */
static void close_and_dup(void) {
    int a, b, e = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    CALL(add(e, b, EPOLLIN, 1));
    int copy = (int)MUST(dup(b));
    CALL(add(e, copy, EPOLLIN, 2));
    put(a, "x", 1);
    wait_for(e, -1);
    MUST(close(b));
    wait_for(e, 0);
    CALL(epoll_ctl(e, EPOLL_CTL_DEL, b, NULL));
    MUST(close(copy));
    wait_for(e, 0);
    int c, d;
    pair(&c, &d);
    CALL(add(e, c, EPOLLIN, 3));
    CALL(add(e, d, EPOLLIN, 4));
    put(d, "y", 1);
    wait_for(e, -1);
    MUST(close(c));
    MUST(close(d));
    wait_for(e, 0);
    /* A new socket with the same number has to be added again. */
    int f, g;
    pair(&f, &g);
    put(f, "z", 1);
    put(g, "z", 1);
    await_bytes(g, 1);
    wait_for(e, 0);
    CALL(add(e, g, EPOLLIN, 5));
    wait_for(e, -1);
    /* dup2 onto a registered number. */
    int h, i;
    pair(&h, &i);
    MUST(dup2(i, g));
    wait_for(e, 0);
}

static void one_socket_in_two_sets(void) {
    int a, b, e = (int)MUST(epoll_create1(0)), f = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    CALL(add(e, b, EPOLLIN | EPOLLET, 1));
    CALL(add(f, b, EPOLLIN, 2));
    put(a, "x", 1);
    wait_for(e, -1);
    wait_for(f, -1);
    wait_for(e, 0);
    wait_for(f, 0);
    MUST(close(e));
    put(a, "y", 1);
    wait_for(f, -1);
    int copy = (int)MUST(dup(f));
    CALL(epoll_ctl(copy, EPOLL_CTL_DEL, b, NULL));
    wait_for(f, 0);
}

static void same_socket_both_ends(void) {
    int a, b, e = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    CALL(add(e, a, EPOLLIN | EPOLLOUT | EPOLLET, 1));
    CALL(add(e, b, EPOLLIN | EPOLLOUT | EPOLLET, 2));
    wait_for(e, 0);
    wait_for(e, 0);
    put(a, "ping", 4);
    wait_for(e, -1);
    get(b, text, 4);
    put(b, "pong", 4);
    wait_for(e, -1);
    get(a, text, 4);
    wait_for(e, 0);
}

static void inherited_by_fork(void) {
    int a, b, e = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    CALL(add(e, b, EPOLLIN, 1));
    pid_t child = fork();
    if (!child) {
        wait_for(e, -1);
        get(b, text, 1);
        say("child read %c", text[0]);
        int c, d;
        pair(&c, &d);
        MUST(add(e, d, EPOLLIN, 2));
        put(c, "y", 1);
        wait_for(e, -1);
        MUST(epoll_ctl(e, EPOLL_CTL_DEL, d, NULL));
        _exit(0);
    }
    put(a, "x", 1);
    reap(child);
    wait_for(e, 0);
    put(a, "z", 1);
    wait_for(e, -1);
}

static void *sends_later(void *data) {
    usleep(30000);
    put(*(int *)data, "x", 1);
    return NULL;
}

/* Waiting needs no free descriptor number, whatever the members of the set are. */
static void at_the_limit(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int a, b, c, d, ends[2], l = listener(AF_INET, 16, &at, &len);
    int e = (int)MUST(epoll_create1(0)), early = (int)MUST(epoll_create1(0)), outer = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    pair(&c, &d);
    MUST(pipe(ends));
    MUST(add(early, d, EPOLLIN, 1));
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, 64}));
    pthread_t thread;
    while (dup(0) >= 0);
    CALL(add(e, b, EPOLLIN, 1));
    CALL(add(e, ends[0], EPOLLIN, 2));
    CALL(add(e, l, EPOLLIN, 3));
    CALL(add(outer, e, EPOLLIN, 4));
    CALL(add(early, b, EPOLLIN, 5));
    wait_for(e, 10);
    struct pollfd both[] = {{b, POLLIN, 0}, {ends[0], POLLIN, 0}};
    for (int how = 0; how < 5; how++) {
        MUST(pthread_create(&thread, NULL, sends_later, how ? &a : &c));
        if (how == 0) wait_for(early, -1);
        if (how == 1) wait_for(e, -1);
        if (how == 2) CALL(poll(both, 2, -1));
        if (how == 3) wait_for(outer, -1);
        if (how == 4) {
            fd_set set;
            FD_ZERO(&set);
            FD_SET(b, &set);
            FD_SET(ends[0], &set);
            CALL(select(64, &set, NULL, NULL, NULL));
        }
        pthread_join(thread, NULL);
        get(how ? b : d, text, 1);
    }
    MUST(write(ends[1], "x", 1));
    wait_for(e, -1);
    /* With free numbers again. */
    for (int fd = 40; fd < 64; fd++) close(fd);
    MUST(read(ends[0], text, 1));
    int g = dial(&at, len);
    await(l, POLLIN);
    wait_for(e, -1);
    MUST(accept(l, NULL, NULL));
    MUST(pthread_create(&thread, NULL, sends_later, &a));
    wait_for(e, -1);
    pthread_join(thread, NULL);
    CALL(epoll_ctl(e, EPOLL_CTL_DEL, b, NULL));
    wait_for(e, 10);
    close(g);
}

static void nothing_wakes(void) {
    int a, b, e = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    CALL(add(e, b, EPOLLIN, 1));
    int64_t start = now_ms();
    CALL(epoll_wait(e, got, 16, 60));
    say("waited %d", now_ms() - start >= 60);
    struct timespec limit = {0, 50000000};
    start = now_ms();
    CALL(epoll_pwait2(e, got, 16, &limit, NULL));
    say("waited %d", now_ms() - start >= 50);
}

const struct test epoll_cases[] = {{"epoll_level", level},
                                   {"epoll_edge", edge},
                                   {"epoll_oneshot", oneshot},
                                   {"epoll_oneshot_of_listener", oneshot_of_listener},
                                   {"epoll_oneshot_beside_same_data", oneshot_beside_same_data},
                                   {"epoll_oneshot_of_listener_in_child", oneshot_of_listener_in_child},
                                   {"epoll_listener", on_listener},
                                   {"epoll_connecting", on_connecting},
                                   {"epoll_errors", errors},
                                   {"epoll_nested", nested},
                                   {"epoll_mixed", mixed},
                                   {"epoll_once_each", once_each},
                                   {"epoll_fewer_slots_than_ready", fewer_slots_than_ready},
                                   {"epoll_arrival_order", arrival_order},
                                   {"epoll_order_of_additions", order_of_additions},
                                   {"epoll_order_of_own_changes", order_of_own_changes},
                                   {"epoll_kinds_of_changes", kinds_of_changes},
                                   {"epoll_order_of_nested", order_of_nested},
                                   {"epoll_order_with_listener", order_with_listener},
                                   {"epoll_close_and_dup", close_and_dup},
                                   {"epoll_two_sets", one_socket_in_two_sets},
                                   {"epoll_both_ends", same_socket_both_ends},
                                   {"epoll_after_fork", inherited_by_fork},
                                   {"epoll_at_the_limit", at_the_limit},
                                   {"epoll_timeouts", nothing_wakes},
                                   {NULL, NULL}};
