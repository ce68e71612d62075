/* The end of a connection by shutdown, half-close, linger or reset, and what the peer observes. */
#include "semantics.h"

static char text[64];

static void half_close(void) {
    int a, b;
    pair(&a, &b);
    signal(SIGPIPE, SIG_IGN);
    put(a, "request", 7);
    CALL(shutdown(a, SHUT_WR));
    CALL(send(a, "x", 1, MSG_NOSIGNAL));
    CALL(write(a, "x", 1));
    get(b, text, 7);
    CALL(recv(b, text, 1, 0));
    CALL(recv(b, text, 1, 0));
    say("b: %s", events(await(b, POLLIN | POLLOUT | POLLRDHUP)));
    put(b, "answer", 6);
    get(a, text, 6);
    say("%.6s", text);
    struct pollfd one = {a, POLLIN | POLLOUT | POLLRDHUP, 0};
    poll(&one, 1, 0);
    say("a: %s", events(one.revents));
    CALL(shutdown(b, SHUT_WR));
    CALL(recv(a, text, 1, 0));
    say("a: %s", events(await(a, POLLHUP)));
    CALL(shutdown(a, SHUT_RD));
    CALL(shutdown(b, SHUT_RDWR));
}

static void shutdown_read(void) {
    int a, b;
    pair(&a, &b);
    CALL(shutdown(b, SHUT_RD));
    CALL(recv(b, text, 1, 0));
    say("b: %s", events(await(b, POLLIN | POLLRDHUP)));
    put(a, "x", 1);
    await_bytes(b, 1);
    CALL(recv(b, text, 4, 0));
    CALL(recv(b, text, 4, 0));
    put(b, "y", 1);
    get(a, text, 1);
    say("%c", text[0]);
}

static void shutdown_both(void) {
    int a, b;
    pair(&a, &b);
    put(a, "last", 4);
    CALL(shutdown(a, SHUT_RDWR));
    CALL(recv(a, text, 1, 0));
    CALL(send(a, "x", 1, MSG_NOSIGNAL));
    get(b, text, 4);
    CALL(recv(b, text, 1, 0));
    CALL(close(a));
    await(b, POLLIN);
    CALL(shutdown(b, SHUT_WR));
}

static int pipes;
static void count_pipe(int signal) { pipes += signal == SIGPIPE; }

/* The first send after the peer's close succeeds. The next one finds the reset. */
static void sigpipe(void) {
    int a, b;
    pair(&a, &b);
    signal(SIGPIPE, count_pipe);
    MUST(shutdown(a, SHUT_WR));
    CALL(send(a, "x", 1, 0));
    say("signals %d", pipes);
    CALL(write(a, "x", 1));
    say("signals %d", pipes);
    CALL(send(a, "x", 1, MSG_NOSIGNAL));
    say("signals %d", pipes);
    struct iovec part = {"x", 1};
    CALL(writev(a, &part, 1));
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    CALL(sendmsg(a, &message, 0));
    CALL(sendmsg(a, &message, MSG_NOSIGNAL));
    say("signals %d", pipes);
    int c, d;
    pair(&c, &d);
    MUST(close(d));
    await(c, POLLIN);
    CALL(send(c, "x", 1, 0));
    await(c, POLLHUP);
    CALL(send(c, "x", 1, 0));
    say("signals %d", pipes);
}

static void sigpipe_kills(void) {
    int a, b;
    pair(&a, &b);
    pid_t child = fork();
    if (!child) {
        MUST(shutdown(a, SHUT_WR));
        if (write(a, "x", 1) < 0) _exit(5);
        _exit(6);
    }
    reap(child);
    child = fork();
    if (!child) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGPIPE);
        sigprocmask(SIG_BLOCK, &set, NULL);
        MUST(shutdown(a, SHUT_WR));
        ssize_t n = write(a, "x", 1);
        int error = errno;
        sigset_t pending;
        sigpending(&pending);
        say("blocked: %zd %s, pending %d", n, name_of(error), sigismember(&pending, SIGPIPE));
        _exit(0);
    }
    reap(child);
}

static void reset_by_unread(void) {
    int a, b;
    pair(&a, &b);
    put(a, "never read", 10);
    await_bytes(b, 10);
    CALL(close(b));
    say("a: %s", events(await(a, POLLHUP)));
    CALL(recv(a, text, 1, 0));
    CALL(recv(a, text, 1, 0));
    CALL(send(a, "x", 1, MSG_NOSIGNAL));
}

/* After a reset, send fails and the bytes received before it are lost. */
static void reset_by_linger(void) {
    int a, b;
    pair(&a, &b);
    struct linger now = {1, 0};
    put(b, "lost", 4);
    await_bytes(a, 4);
    MUST(setsockopt(b, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    CALL(close(b));
    say("a: %s", events(await(a, POLLHUP)));
    int error = -1;
    socklen_t len = sizeof error;
    MUST(getsockopt(a, SOL_SOCKET, SO_ERROR, &error, &len));
    say("SO_ERROR %s", name_of(error));
    MUST(getsockopt(a, SOL_SOCKET, SO_ERROR, &error, &len));
    say("SO_ERROR %s", name_of(error));
    CALL(recv(a, text, 60, 0));
    CALL(recv(a, text, 60, 0));
    CALL(send(a, "x", 1, MSG_NOSIGNAL));
    struct sockaddr_storage at;
    len = sizeof at;
    CALL(getpeername(a, (struct sockaddr *)&at, &len));
}

static void reset_wakes_a_reader(void) {
    int a, b;
    pair(&a, &b);
    pid_t child = fork();
    if (!child) {
        MUST(close(b));
        CALL(recv(a, text, 1, 0));
        _exit(0);
    }
    MUST(close(a));
    usleep(20000);
    struct linger now = {1, 0};
    MUST(setsockopt(b, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    MUST(close(b));
    reap(child);
}

/* SO_LINGER belongs to the open file description: it also applies if another process closes last. */
static void reset_by_linger_of_another(void) {
    for (int on = 0; on < 2; on++) {
        int a, b, order[2];
        pair(&a, &b);
        MUST(pipe(order));
        struct linger now = {!on, 0};
        MUST(setsockopt(b, SOL_SOCKET, SO_LINGER, &now, sizeof now));
        pid_t child = fork();
        if (!child) {
            char go;
            MUST(read(order[0], &go, 1));
            CALL(close(b));
            CALL(recv(a, text, 1, 0));
            _exit(0);
        }
        MUST(close(a));
        now.l_onoff = on;
        MUST(setsockopt(b, SOL_SOCKET, SO_LINGER, &now, sizeof now));
        MUST(close(b));
        MUST(write(order[1], "x", 1));
        reap(child);
        close(order[0]);
        close(order[1]);
    }
}

static void close_with_data_under_way(void) {
    int a, b;
    pair(&a, &b);
    static char block[200000];
    pid_t child = fork();
    if (!child) {
        close(a);
        usleep(20000);
        _exit(drain(b) == sizeof block ? 0 : 1);
    }
    close(b);
    put(a, block, sizeof block);
    CALL(close(a));
    reap(child);
}

static void linger_waits(void) {
    int a, b;
    pair(&a, &b);
    struct linger some = {1, 10};
    MUST(setsockopt(a, SOL_SOCKET, SO_LINGER, &some, sizeof some));
    put(a, "x", 1);
    CALL(close(a));
    get(b, text, 1);
    CALL(recv(b, text, 1, 0));
}

static void close_twice(void) {
    int a, b;
    pair(&a, &b);
    CALL(close(a));
    CALL(close(a));
    CALL(recv(b, text, 1, 0));
}

static void listener_shutdown(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 5, &at, &len);
    CALL(shutdown(l, SHUT_RD));
    CALL(accept(l, NULL, NULL));
    int fd = tcp(AF_INET, 0);
    CALL(connect(fd, (struct sockaddr *)&at, len));
    CALL(listen(l, 5));
    MUST(getsockname(l, (struct sockaddr *)&at, &len));
    fd = tcp(AF_INET, 0);
    CALL(connect(fd, (struct sockaddr *)&at, len));
    OPEN(accept(l, NULL, NULL));
}

/* The peer of a killed process gets the end of the stream, or a reset if the process had unread bytes. */
static void peer_killed(void) {
    for (int unread = 0; unread < 2; unread++) {
        int a, b, ready[2];
        pair(&a, &b);
        MUST(pipe(ready));
        pid_t child = fork();
        if (!child) {
            close(a);
            put(b, "hello", 5);
            await_bytes(b, 4);
            if (!unread) get(b, text, 4);
            MUST(write(ready[1], "x", 1));
            for (;;) pause();
        }
        close(b);
        put(a, "data", 4);
        get(a, text, 5);
        MUST(read(ready[0], text, 1));
        MUST(kill(child, SIGKILL));
        reap(child);
        await(a, POLLIN);
        CALL(recv(a, text, 1, 0));
        close(a);
    }
}

/* A server answers a large request in the middle and closes the connection with unread bytes. The client's send
 * ends, and the client reads the answer. */
static void answered_in_the_middle(void) {
    enum { LARGE = 300000, TRIES = 50 };
    static char large[LARGE];
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), whole = 0, answers = 0;
    char text[8];
    pid_t server = (pid_t)MUST(fork());
    if (!server) {
        for (int i = 0; i < TRIES; i++) {
            int s = (int)MUST(accept(l, NULL, NULL));
            MUST(recv(s, text, 1, MSG_PEEK));
            put(s, "no", 2);
            MUST(close(s));
        }
        _exit(0);
    }
    for (int i = 0; i < TRIES; i++) {
        int c = dial(&at, len);
        whole += send(c, large, LARGE, MSG_NOSIGNAL) == LARGE;
        answers += recv(c, text, sizeof text, 0) == 2;
        MUST(close(c));
    }
    reap(server);
    say("of %d sent whole %d", TRIES, whole);
    say("answered %d", answers);
}

const struct test close_cases[] = {{"close_half", half_close},
                                   {"close_shutdown_read", shutdown_read},
                                   {"close_shutdown_both", shutdown_both},
                                   {"close_sigpipe", sigpipe},
                                   {"close_sigpipe_kills", sigpipe_kills},
                                   {"close_reset_by_unread", reset_by_unread},
                                   {"close_reset_by_linger", reset_by_linger},
                                   {"close_reset_wakes_a_reader", reset_wakes_a_reader},
                                   {"close_reset_by_linger_of_another", reset_by_linger_of_another},
                                   {"close_with_data_under_way", close_with_data_under_way},
                                   {"close_linger_waits", linger_waits},
                                   {"close_twice", close_twice},
                                   {"close_listener_shutdown", listener_shutdown},
                                   {"close_peer_killed", peer_killed},
                                   {"close_answered_in_the_middle", answered_in_the_middle},
                                   {NULL, NULL}};
