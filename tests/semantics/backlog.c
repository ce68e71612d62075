/* The backlog and TCP_DEFER_ACCEPT. The kernel repeats a SYN that found no room after a second. */
#include "semantics.h"

static struct sockaddr_storage at;
static socklen_t at_len;

/* Starts a non-blocking connect. */
static int begin(void) {
    int c = tcp(AF_INET, SOCK_NONBLOCK);
    CALL(connect(c, (struct sockaddr *)&at, at_len));
    return c;
}

static void look(int fd) {
    struct pollfd entry = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    struct tcp_info info = {0};
    struct sockaddr_storage peer;
    socklen_t len = sizeof info, peer_len = sizeof peer;
    MUST(poll(&entry, 1, 0));
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("%s, state %d", events(entry.revents), info.tcpi_state);
    CALL(getpeername(fd, (struct sockaddr *)&peer, &peer_len));
}

static int error_of(int fd) {
    int error = -1;
    socklen_t len = sizeof error;
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
    return error;
}

static void nonblocking(int fd) { MUST(fcntl(fd, F_SETFL, MUST(fcntl(fd, F_GETFL)) | O_NONBLOCK)); }

static void in_progress(void) {
    int l = listener(AF_INET, 1, &at, &at_len), c[4];
    char byte = 'a';
    for (int i = 0; i < 4; i++) c[i] = begin();
    for (int i = 0; i < 4; i++) look(c[i]);
    CALL(connect(c[2], (struct sockaddr *)&at, at_len));
    CALL(send(c[2], &byte, 1, MSG_NOSIGNAL));
    CALL(recv(c[2], &byte, 1, 0));
    say("%s", name_of(error_of(c[2])));
    for (int i = 0; i < 4; i++) {
        int s = OPEN(accept(l, NULL, NULL));
        if (i < 2) {
            /* Both repeat their SYNs. The one that comes first gets the place. */
            struct pollfd both[2] = {{c[i + 2], POLLOUT, 0}, {c[3], POLLOUT, 0}};
            MUST(poll(both, 2, -1));
            if (!both[0].revents) c[3] = c[2], c[2] = both[1].fd;
            say("%s", events(await(c[i + 2], POLLOUT)));
            CALL(connect(c[i + 2], (struct sockaddr *)&at, at_len));
            CALL(connect(c[i + 2], (struct sockaddr *)&at, at_len));
        }
        if (i < 2) {
            byte = (char)('a' + i);
            put(c[i], &byte, 1);
            get(s, &byte, 1);
            say("%c", byte);
        }
    }
    nonblocking(l);
    CALL(accept(l, NULL, NULL));
}

static void gave_up(void) {
    int l = listener(AF_INET, 0, &at, &at_len), a = begin(), b = begin(), c = begin();
    close(b);
    nonblocking(l);
    OPEN(accept(l, NULL, NULL));
    say("%s", events(await(c, POLLOUT)));
    await(l, POLLIN);
    OPEN(accept(l, NULL, NULL));
    CALL(accept(l, NULL, NULL));
    look(a);
    b = begin();
    c = begin();
    close(c);
    OPEN(accept(l, NULL, NULL));
    struct pollfd entry = {l, POLLIN, 0};
    CALL(poll(&entry, 1, 0));
    CALL(accept(l, NULL, NULL));
}

static void raised(void) {
    int l = listener(AF_INET, 0, &at, &at_len), a = begin(), b = begin();
    look(b);
    MUST(listen(l, 5));
    say("%s", events(await(b, POLLOUT)));
    look(b);
    look(a);
    OPEN(accept(l, NULL, NULL));
    OPEN(accept(l, NULL, NULL));
    nonblocking(l);
    CALL(accept(l, NULL, NULL));
}

static void refused(void) {
    int l = listener(AF_INET, 0, &at, &at_len), a = begin(), b = begin();
    char byte;
    close(l);
    await(b, POLLERR | POLLHUP);
    look(b);
    say("%s", name_of(error_of(b)));
    await(a, POLLHUP);
    CALL(recv(a, &byte, 1, 0));
}

static void shut(void) {
    int l = listener(AF_INET, 0, &at, &at_len), a = begin(), b = begin(), c = begin();
    for (int how = 0; how < 2; how++) {
        CALL(shutdown(how ? c : b, how));
        look(how ? c : b);
    }
    OPEN(accept(l, NULL, NULL));
    nonblocking(l);
    CALL(accept(l, NULL, NULL));
    look(a);
}

static pid_t connector;
static void *connects(void *unused) {
    (void)unused;
    int c = tcp(AF_INET, 0);
    __atomic_store_n(&connector, thread_id(), __ATOMIC_SEQ_CST);
    CALL(connect(c, (struct sockaddr *)&at, at_len));
    put(c, "x", 1);
    return NULL;
}

static void blocking(void) {
    int l = listener(AF_INET, 0, &at, &at_len), a = dial(&at, at_len), b = tcp(AF_INET, 0);
    struct timeval limit = {0, 200000};
    MUST(setsockopt(b, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    CALL(connect(b, (struct sockaddr *)&at, at_len));
    close(b);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, connects, NULL));
    pid_t tid;
    while (!(tid = __atomic_load_n(&connector, __ATOMIC_SEQ_CST))) usleep(1000);
    await_asleep(tid);
    // Printed after the thread has ended: the thread prints its connect's result as soon as accept makes room.
    int first = accept(l, NULL, NULL);
    pthread_join(thread, NULL);
    say("accepted %d", first >= 0);
    int s = OPEN(accept(l, NULL, NULL));
    char byte;
    get(s, &byte, 1);
    look(a);
}

/* Returns a listener with TCP_DEFER_ACCEPT: a connection is queued when it has sent data, or after `seconds`. */
static int deferring(int seconds) {
    int l = listener(AF_INET, 8, &at, &at_len);
    set_int(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, seconds);
    nonblocking(l);
    return l;
}

static int accept_now(int l) {
    struct pollfd entry = {l, POLLIN, 0};
    CALL(poll(&entry, 1, 0));
    return OPEN(accept(l, NULL, NULL));
}

static void defer(void) {
    int l = deferring(5), c = dial(&at, at_len), d = dial(&at, at_len);
    char text[8];
    accept_now(l);
    look(c);
    put(d, "second", 6);
    await(l, POLLIN);
    int s = accept_now(l);
    CALL(recv(s, text, sizeof text, MSG_DONTWAIT));
    accept_now(l);
    put(c, "first", 5);
    await(l, POLLIN);
    s = accept_now(l);
    CALL(recv(s, text, sizeof text, MSG_DONTWAIT));
    put(s, "back", 4);
    get(c, text, 4);
    /* Connections that are half-closed, reset or closed without data. */
    int ends[3];
    for (int i = 0; i < 3; i++) ends[i] = dial(&at, at_len);
    MUST(shutdown(ends[0], SHUT_WR));
    await(l, POLLIN);
    s = accept_now(l);
    CALL(recv(s, text, sizeof text, MSG_DONTWAIT));
    put(s, "y", 1);
    get(ends[0], text, 1);
    struct linger off = {1, 0};
    MUST(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &off, sizeof off));
    close(ends[1]);
    usleep(20000);
    accept_now(l);
    close(ends[2]);
    await(l, POLLIN);
    s = accept_now(l);
    CALL(recv(s, text, sizeof text, MSG_DONTWAIT));
}

static void defer_ends(void) {
    int l = deferring(1);
    char text[8];
    int64_t began = now_ms();
    int c = dial(&at, at_len);
    await(l, POLLIN);
    int64_t took = now_ms() - began;
    if (took < 700) say("after %d ms", (int)took);
    int s = accept_now(l);
    CALL(recv(s, text, sizeof text, MSG_DONTWAIT));
    put(c, "late", 4);
    get(s, text, 4);
    say("%.4s", text);
}

static void defer_of_the_dead(void) {
    int l = deferring(5);
    char text[8];
    pid_t child = MUST(fork());
    if (!child) {
        dial(&at, at_len);
        _exit(0);
    }
    reap(child);
    await(l, POLLIN);
    int s = accept_now(l);
    CALL(recv(s, text, sizeof text, MSG_DONTWAIT));
}

static void defer_without_listener(void) {
    int l = deferring(5), c = dial(&at, at_len);
    close(l);
    look(c);
    CALL(send(c, "x", 1, MSG_NOSIGNAL));
    await(c, POLLHUP);
    say("%s", name_of(error_of(c)));
    CALL(send(c, "x", 1, MSG_NOSIGNAL));
}

/* Sets and clears TCP_DEFER_ACCEPT while the socket listens. */
static void defer_changes(void) {
    int l = listener(AF_INET, 8, &at, &at_len);
    int a = dial(&at, at_len);
    nonblocking(l);
    set_int(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, 5);
    accept_now(l);
    int b = dial(&at, at_len);
    accept_now(l);
    set_int(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, 0);
    int c = dial(&at, at_len);
    accept_now(l);
    put(b, "b", 1);
    await(l, POLLIN);
    accept_now(l);
    look(a);
    look(c);
}

const struct test backlog_cases[] = {{"backlog_in_progress", in_progress},
                                     {"backlog_gave_up", gave_up},
                                     {"backlog_raised", raised},
                                     {"backlog_refused", refused},
                                     {"backlog_shut", shut},
                                     {"backlog_blocking", blocking},
                                     {"defer_accept", defer},
                                     {"defer_ends", defer_ends},
                                     {"defer_of_the_dead", defer_of_the_dead},
                                     {"defer_without_listener", defer_without_listener},
                                     {"defer_changes", defer_changes},
                                     {NULL, NULL}};
