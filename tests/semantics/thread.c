/* Threads on one socket: many readers and writers, close, shutdown and cancellation while another thread waits. */
#include "semantics.h"

static char text[64];
static int subject, how;
static pid_t sleeper;
static char result[64];
static struct sockaddr_storage where;

static int set_of(int fd) {
    int set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLIN, {0}});
    return set;
}

static void *waits(void *data) {
    char byte[8];
    (void)data;
    sleeper = thread_id();
    errno = 0;
    long n = how == 0   ? recv(subject, byte, 1, 0)
             : how == 1 ? (accept(subject, NULL, NULL) < 0 ? -1 : 0)
             : how == 2 ? read(subject, byte, 1)
             : how == 3 ? poll(&(struct pollfd){subject, POLLIN, 0}, 1, -1)
             : how == 5 ? poll((struct pollfd[]){{subject, POLLIN, 0}, {0, POLLPRI, 0}}, 2, -1)
             : how == 6 ? epoll_wait(set_of(subject), &(struct epoll_event){0}, 1, -1)
                        : send(subject, calloc(1, 32 << 20), 32 << 20, MSG_NOSIGNAL);
    int error = errno;
    if (how == 4)
        snprintf(result, sizeof result, "%s %s", n == -1 ? "-1" : n < 32 << 20 ? "some" : "all", n == -1 ? name_of(error) : "");
    else
        snprintf(result, sizeof result, "%ld %s", n, n < 0 ? name_of(error) : "");
    return NULL;
}

static void start(pthread_t *thread, int fd, int what) {
    subject = fd;
    how = what;
    sleeper = 0;
    MUST(pthread_create(thread, NULL, waits, NULL));
    while (!*(volatile pid_t *)&sleeper) usleep(100);
    await_asleep(sleeper);
}

static void join(pthread_t thread) {
    pthread_join(thread, NULL);
    say("woken: %s", result);
}

static void shutdown_wakes(void) {
    int a, b;
    socklen_t len;
    pthread_t thread;
    pair(&a, &b);
    start(&thread, a, 0);
    CALL(shutdown(a, SHUT_RD));
    join(thread);
    pair(&a, &b);
    start(&thread, a, 2);
    CALL(shutdown(a, SHUT_RDWR));
    join(thread);
    pair(&a, &b);
    start(&thread, a, 3);
    CALL(shutdown(b, SHUT_WR));
    join(thread);
    int l = listener(AF_INET, 5, &where, &len);
    start(&thread, l, 1);
    CALL(shutdown(l, SHUT_RD));
    join(thread);
    pair(&a, &b);
    start(&thread, a, 4);
    CALL(shutdown(a, SHUT_WR));
    join(thread);
    pair(&a, &b);
    start(&thread, a, 4);
    MUST(close(b));
    join(thread);
}

/* A sleeping call holds the open file description after close: bytes still arrive, and the peer gets no end. */
static void close_while_waiting(void) {
    int a, b;
    pthread_t thread;
    pair(&a, &b);
    start(&thread, b, 0);
    CALL(close(b));
    CALL(recv(a, text, 1, MSG_DONTWAIT));
    put(a, "x", 1);
    join(thread);
    await(a, POLLIN);
    CALL(recv(a, text, 1, 0));
}

static void close_listener_while_waiting(void) {
    socklen_t len;
    pthread_t thread;
    int l = listener(AF_INET, 5, &where, &len);
    int copy = (int)MUST(dup(l));
    start(&thread, l, 1);
    subject = -1;
    CALL(close(l));
    int c = dial(&where, len);
    join(thread);
    close(c);
    close(copy);
}

static void dup2_while_waiting(void) {
    int a, b, c, d;
    pthread_t thread;
    pair(&a, &b);
    pair(&c, &d);
    start(&thread, b, 0);
    CALL(dup2(d, b) == b);
    put(a, "x", 1);
    join(thread);
    put(c, "y", 1);
    get(b, text, 1);
    say("%c", text[0]);
}

/* Eight writers send messages of 64 bytes to eight readers, each by one call. The kernel itself tears about one message in twenty
   million: MSG_WAITALL releases the socket at the end of a segment, and so does a sender that waits for memory. */
static int ends[2];
static unsigned counts[8];
static int sum;

static void *writer(void *data) {
    unsigned char block[64];
    memset(block, (int)(intptr_t)data, sizeof block);
    for (int i = 0; i < 3000; i++) {
        ssize_t n = send(ends[0], block, sizeof block, 0);
        if (n != sizeof block) die("send %zd", n);
    }
    return NULL;
}

static void *reader(void *data) {
    unsigned char block[64];
    (void)data;
    for (;;) {
        ssize_t n = recv(ends[1], block, sizeof block, MSG_WAITALL);
        if (n == 0) return NULL;
        if (n < 0) die("recv: %s", name_of(errno));
        if (n != sizeof block) again();
        __atomic_add_fetch(&sum, 1, __ATOMIC_SEQ_CST);
        for (int i = 0; i < 64; i++) __atomic_add_fetch(&counts[block[i] & 7], 1, __ATOMIC_SEQ_CST);
    }
}

static void many_on_one(void) {
    pthread_t w[8], r[8];
    pair(&ends[0], &ends[1]);
    for (intptr_t i = 0; i < 8; i++) {
        MUST(pthread_create(&w[i], NULL, writer, (void *)i));
        MUST(pthread_create(&r[i], NULL, reader, NULL));
    }
    for (int i = 0; i < 8; i++) pthread_join(w[i], NULL);
    MUST(shutdown(ends[0], SHUT_WR));
    for (int i = 0; i < 8; i++) pthread_join(r[i], NULL);
    say("messages %d", sum);
    for (int i = 0; i < 8; i++) say("of %d: %u", i, counts[i]);
}

/* Several threads open and close connections. No connection gets another one's bytes. */
static void *opens(void *data) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len);
    for (int i = 0; i < 300; i++) {
        unsigned out = (unsigned)(i * 8 + (intptr_t)data), in = 0;
        int c = dial(&at, len), s = (int)MUST(accept(l, NULL, NULL));
        put(c, &out, sizeof out);
        get(s, &in, sizeof in);
        if (in != out) die("got another's bytes");
        put(s, &out, sizeof out);
        get(c, &in, sizeof in);
        if (in != out) die("got another's bytes");
        MUST(close(c));
        MUST(close(s));
    }
    MUST(close(l));
    return NULL;
}

static void open_and_close(void) {
    pthread_t threads[8];
    for (intptr_t i = 0; i < 8; i++) MUST(pthread_create(&threads[i], NULL, opens, (void *)i));
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    say("2400 connections");
}

static void *accept_one(void *data) {
    int s = accept(*(int *)data, NULL, NULL);
    if (s < 0) die("accept %s", name_of(errno));
    put(s, "w", 1);
    close(s);
    return NULL;
}

static void accept_in_many_threads(void) {
    pthread_t threads[16];
    socklen_t len;
    int l = listener(AF_INET, 64, &where, &len);
    for (int i = 0; i < 16; i++) MUST(pthread_create(&threads[i], NULL, accept_one, &l));
    for (int i = 0; i < 16; i++) {
        int c = dial(&where, len);
        get(c, text, 1);
        close(c);
    }
    for (int i = 0; i < 16; i++) pthread_join(threads[i], NULL);
    say("each accepted one");
}

static void *poll_and_accept_one(void *data) {
    struct pollfd one = {.fd = *(int *)data, .events = POLLIN};
    int b = -1;
    while (b < 0 && poll(&one, 1, 30000) == 1) b = accept(*(int *)data, NULL, NULL);
    if (b >= 0) put(b, "x", 1);
    if (b >= 0) close(b);
    return NULL;
}

/* Four threads sleep when a process connects for the first time. Each of its connections wakes one of them. */
static void accept_when_asleep(void) {
    for (int polls = 0; polls < 2; polls++) {
        pthread_t threads[4];
        struct sockaddr_storage at;
        socklen_t len;
        int l = listener(AF_INET, 64, &at, &len);
        if (polls) MUST(fcntl(l, F_SETFL, O_NONBLOCK));
        for (int i = 0; i < 4; i++) MUST(pthread_create(&threads[i], NULL, polls ? poll_and_accept_one : accept_one, &l));
        usleep(300000);
        int answered = 0;
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < 4; i++) {
                int c = dial(&at, len);
                struct timeval most = {.tv_sec = 20};
                MUST(setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most));
                answered += recv(c, text, 1, 0) == 1;
                close(c);
            }
            _exit(answered);
        }
        int status;
        MUST(waitpid(child, &status, 0));
        say("%s: %d answered", polls ? "poll" : "accept", WEXITSTATUS(status));
        if (WEXITSTATUS(status) != 4) _exit(1);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        close(l);
    }
}

static void *cancelled(void *data) {
    recv(*(int *)data, text, 1, 0);
    return NULL;
}

static void cancellation(void) {
    int a, b;
    void *end;
    pair(&a, &b);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, cancelled, &b));
    MUST(pthread_cancel(thread));
    pthread_join(thread, &end);
    say("cancelled in recv %d", end == PTHREAD_CANCELED);
    put(a, "x", 1);
    get(b, text, 1);
    say("the socket works still %c", text[0]);
    int e = (int)MUST(epoll_create1(0));
    socklen_t len;
    int l = listener(AF_INET, 5, &where, &len);
    (void)e;
    start(&thread, l, 1);
    MUST(pthread_cancel(thread));
    pthread_join(thread, &end);
    say("cancelled in accept %d", end == PTHREAD_CANCELED);
}

/* The first pthread_cancel of the process cancels a thread that has slept for two seconds. */
static void first_cancellation(int what) {
    int a, b;
    void *end;
    pthread_t thread;
    pair(&a, &b);
    socklen_t len;
    start(&thread, what == 1 ? listener(AF_INET, 5, &where, &len) : b, what);
    usleep(2200000);
    MUST(pthread_cancel(thread));
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    int late = pthread_timedjoin_np(thread, &end, &until);
    say("%d: cancelled %d", what, !late && end == PTHREAD_CANCELED);
}

static void cancel_recv(void) { first_cancellation(0); }
static void cancel_accept(void) { first_cancellation(1); }
static void cancel_poll(void) { first_cancellation(3); }
static void cancel_polls(void) { first_cancellation(5); }
static void cancel_epoll(void) { first_cancellation(6); }

static void *idle(void *data) {
    for (;;) pause();
    return data;
}

/* Cancels a thread that does nothing, so that the process has used pthread_cancel. */
static void cancel_an_idle_one(void) {
    pthread_t thread;
    void *end;
    MUST(pthread_create(&thread, NULL, idle, NULL));
    MUST(pthread_cancel(thread));
    pthread_join(thread, &end);
    say("cancelled %d", end == PTHREAD_CANCELED);
}

static void cancel_and_timeouts(void) {
    int a, b;
    socklen_t len;
    alarm(40);
    cancel_an_idle_one();
    pair(&a, &b);
    struct timeval most = {.tv_usec = 400000};
    MUST(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most));
    MUST(setsockopt(b, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most));
    CALL(recv(b, text, 1, 0));
    size_t big = 32 << 20;
    say("some %d", send(b, calloc(1, big), big, 0) < (ssize_t)big);
    int l = listener(AF_INET, 5, &where, &len);
    MUST(setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most));
    CALL(accept(l, NULL, NULL));
    CALL(poll(&(struct pollfd){a, POLLPRI, 0}, 1, 400));
}

static void *takes_all_late(void *data) {
    static char block[1 << 16];
    usleep(500000);
    for (size_t left = 16 << 20; left != 0;) {
        ssize_t n = recv(*(int *)data, block, sizeof block, 0);
        if (n <= 0) die("recv %zd", n);
        left -= (size_t)n;
    }
    return NULL;
}

static void *sends_two(void *data) {
    put(*(int *)data, "x", 1);
    usleep(400000);
    put(*(int *)data, "y", 1);
    return NULL;
}

/* Receives with cancellation disabled, while another thread cancels this one. */
static void *receives_two_disabled(void *data) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    sleeper = thread_id();
    CALL(recv(*(int *)data, text, 2, MSG_WAITALL));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    pthread_testcancel();
    return NULL;
}

static void cancel_and_whole_calls(void) {
    int a, b;
    void *end;
    pthread_t thread;
    alarm(40);
    cancel_an_idle_one();
    pair(&a, &b);
    size_t big = 16 << 20;
    MUST(pthread_create(&thread, NULL, takes_all_late, &b));
    say("all %d", send(a, calloc(1, big), big, 0) == (ssize_t)big);
    pthread_join(thread, NULL);
    MUST(pthread_create(&thread, NULL, sends_two, &a));
    CALL(recv(b, text, 2, MSG_WAITALL));
    pthread_join(thread, NULL);
    sleeper = 0;
    MUST(pthread_create(&thread, NULL, receives_two_disabled, &b));
    while (!*(volatile pid_t *)&sleeper) usleep(100);
    await_asleep(sleeper);
    MUST(pthread_cancel(thread));
    sends_two(&a);
    pthread_join(thread, &end);
    say("cancelled %d", end == PTHREAD_CANCELED);
}

const struct test thread_cases[] = {{"thread_shutdown_wakes", shutdown_wakes},
                                    {"thread_close_while_waiting", close_while_waiting},
                                    {"thread_close_listener_while_waiting", close_listener_while_waiting},
                                    {"thread_dup2_while_waiting", dup2_while_waiting},
                                    {"thread_many_on_one", many_on_one},
                                    {"thread_open_and_close", open_and_close},
                                    {"thread_accepts", accept_in_many_threads},
                                    {"thread_accepts_asleep", accept_when_asleep},
                                    {"thread_cancellation", cancellation},
                                    {"thread_cancel_recv", cancel_recv},
                                    {"thread_cancel_accept", cancel_accept},
                                    {"thread_cancel_poll", cancel_poll},
                                    {"thread_cancel_polls", cancel_polls},
                                    {"thread_cancel_epoll", cancel_epoll},
                                    {"thread_cancel_and_timeouts", cancel_and_timeouts},
                                    {"thread_cancel_and_whole_calls", cancel_and_whole_calls},
                                    {NULL, NULL}};
