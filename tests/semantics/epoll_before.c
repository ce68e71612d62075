/* epoll sets that have members before the first promoted connection, and listeners that leave a set. */
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

/* Starts a server in another process, which sends a byte on each connection. Stores its address in `at`. */
static pid_t serve(int connections, struct sockaddr_storage *at, socklen_t *len) {
    int l = listener(AF_INET, 16, at, len);
    pid_t child = fork();
    if (!child) {
        int e = (int)MUST(epoll_create1(0));
        MUST(add(e, l, EPOLLIN, 1));
        for (int i = 0; i < connections; i++) {
            MUST(epoll_wait(e, got, 16, -1));
            int c = (int)MUST(accept(l, NULL, NULL));
            put(c, "x", 1);
            get(c, text, 1);
            MUST(close(c));
        }
        _exit(0);
    }
    MUST(close(l));
    return child;
}

static void ask(int e, const struct sockaddr_storage *at, socklen_t len, uint64_t data) {
    int c = dial(at, len);
    MUST(add(e, c, EPOLLIN, data));
    wait_for(e, 60000);
    get(c, text, 1);
    put(c, "y", 1);
    MUST(close(c));
}

/* After a listener has left a set, the set still reports its connections. */
static void listener_leaves(void) {
    struct sockaddr_storage at, own;
    socklen_t len, own_len;
    pid_t server = serve(6, &at, &len);
    int e = (int)MUST(epoll_create1(0));
    int first = listener(AF_INET, 16, &own, &own_len), second = listener(AF_INET, 16, &own, &own_len);
    MUST(add(e, first, EPOLLIN, 1));
    MUST(add(e, second, EPOLLIN | EPOLLEXCLUSIVE, 2));
    ask(e, &at, len, 3);
    ask(e, &at, len, 4);
    MUST(epoll_ctl(e, EPOLL_CTL_DEL, first, NULL));
    ask(e, &at, len, 5);
    MUST(close(second));
    ask(e, &at, len, 6);
    MUST(add(e, first, EPOLLIN, 7));
    MUST(shutdown(first, SHUT_RDWR));
    MUST(epoll_ctl(e, EPOLL_CTL_DEL, first, NULL));
    ask(e, &at, len, 8);
    MUST(close(e));
    e = (int)MUST(epoll_create1(0));
    ask(e, &at, len, 9);
    reap(server);
}

/* A connection that is not promoted because of SO_ZEROCOPY is in the set before a promoted one. */
static void kernel_socket(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), e = (int)MUST(epoll_create1(0)), c = tcp(AF_INET, 0);
    set_int(c, SOL_SOCKET, SO_ZEROCOPY, 1);
    MUST(connect(c, (struct sockaddr *)&at, len));
    int s = (int)MUST(accept(l, NULL, NULL)), copy = (int)MUST(dup(c));
    CALL(add(e, c, EPOLLIN, 1));
    CALL(add(e, copy, EPOLLIN, 2));
    int a, b;
    pair(&a, &b);
    CALL(add(e, a, EPOLLIN, 3));
    CALL(add(e, l, EPOLLIN, 4));
    CALL(modify(e, c, EPOLLIN | EPOLLOUT, 5));
    wait_for(e, 0);
    CALL(add(e, c, EPOLLIN, 6));
    put(s, "x", 1);
    await(c, POLLIN);
    wait_for(e, -1);
    CALL(epoll_ctl(e, EPOLL_CTL_DEL, c, NULL));
    CALL(epoll_ctl(e, EPOLL_CTL_DEL, c, NULL));
    CALL(modify(e, c, EPOLLIN, 7));
    wait_for(e, -1);
    CALL(modify(e, copy, EPOLLIN | EPOLLONESHOT, 8));
    wait_for(e, -1);
    wait_for(e, 0);
    CALL(add(e, c, EPOLLIN, 9));
    wait_for(e, -1);
    MUST(close(c));
    wait_for(e, -1);
    CALL(epoll_ctl(e, EPOLL_CTL_DEL, copy, NULL));
    wait_for(e, 0);
}

/* Nested sets that are empty at first. */
static void nested(void) {
    int ends[2], inner = (int)MUST(epoll_create1(0)), middle = (int)MUST(epoll_create1(0)),
                 outer = (int)MUST(epoll_create1(0));
    MUST(pipe(ends));
    CALL(add(middle, inner, EPOLLIN, 1));
    CALL(add(outer, middle, EPOLLIN, 2));
    CALL(add(inner, outer, EPOLLIN, 3));
    CALL(add(inner, ends[0], EPOLLIN, 4));
    wait_for(outer, 0);
    MUST(write(ends[1], "x", 1));
    wait_for(outer, -1);
    MUST(read(ends[0], text, 1));
    wait_for(outer, 0);
    int a, b;
    pair(&a, &b);
    CALL(add(inner, b, EPOLLIN, 5));
    CALL(add(inner, outer, EPOLLIN, 3));
    CALL(add(middle, inner, EPOLLIN, 3));
    wait_for(outer, 0);
    put(a, "y", 1);
    wait_for(outer, -1);
    wait_for(middle, -1);
    wait_for(inner, -1);
    CALL(modify(outer, middle, 0, 6));
    wait_for(outer, 0);
    CALL(modify(outer, middle, EPOLLIN, 7));
    wait_for(outer, 0);
    get(b, text, 1);
    wait_for(outer, 0);
    MUST(write(ends[1], "x", 1));
    wait_for(outer, -1);
    CALL(epoll_ctl(middle, EPOLL_CTL_DEL, inner, NULL));
    wait_for(outer, 0);
    CALL(add(middle, inner, EPOLLIN, 8));
    wait_for(outer, 0);
    MUST(close(inner));
    wait_for(outer, 0);
    /* A socket connects while it is in the innermost set. Then this process sleeps in the outermost. */
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), c = tcp(AF_INET, 0);
    inner = (int)MUST(epoll_create1(0)), middle = (int)MUST(epoll_create1(0)), outer = (int)MUST(epoll_create1(0));
    CALL(add(outer, middle, EPOLLIN, 9));
    CALL(add(middle, inner, EPOLLIN, 10));
    CALL(add(inner, c, EPOLLIN | EPOLLONESHOT, 11));
    wait_for(inner, 0);
    CALL(modify(inner, c, EPOLLIN, 12));
    wait_for(outer, 0);
    CALL(connect(c, (struct sockaddr *)&at, len));
    wait_for(outer, 0);
    int s = (int)MUST(accept(l, NULL, NULL));
    pid_t child = fork();
    if (!child) {
        await_asleep(getppid());
        put(s, "z", 1);
        _exit(0);
    }
    wait_for(outer, 60000);
    wait_for(inner, 0);
    reap(child);
}

const struct test epoll_before_cases[] = {{"epoll_listener_leaves", listener_leaves},
                                          {"epoll_before_kernel_socket", kernel_socket},
                                          {"epoll_before_nested", nested},
                                          {NULL, NULL}};
