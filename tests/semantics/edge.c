/* Edge-triggered events: data triggers registrations for EPOLLIN, space those for EPOLLOUT, a change of state all. */
#include "semantics.h"

static int set;
static int c, s;

static void begin(unsigned asked) {
    pair(&c, &s);
    set = MUST(epoll_create1(0));
    struct epoll_event event = {asked | EPOLLET, {.u64 = 7}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, c, &event));
}

static void look(const char *what) {
    struct epoll_event event = {0, {.u64 = 0}};
    int n = MUST(epoll_wait(set, &event, 1, 0));
    say("%s: %d %s", what, n, n ? events(event.events) : "");
}

static void wait_for(const char *what) {
    struct epoll_event event = {0, {.u64 = 0}};
    int n = MUST(epoll_wait(set, &event, 1, 20000));
    say("%s: %d %s", what, n, n ? events(event.events) : "");
}

/* Reads all bytes that fill() has sent. */
static void empty(int fd, size_t left) {
    static char block[65536];
    while (left) {
        size_t n = left < sizeof block ? left : sizeof block;
        get(fd, block, n);
        left -= n;
    }
}

/* A registration for EPOLLOUT gets no event for data. */
static void out_only(void) {
    begin(EPOLLOUT);
    look("at first");
    look("again");
    put(s, "data", 4);
    await(c, POLLIN);
    look("data");
    char text[4];
    get(c, text, 2);
    put(s, "data", 4);
    look("more");
    size_t sent = fill(c);
    look("full");
    put(s, "data", 4);
    look("full, and data");
    MUST(fcntl(s, F_SETFL, O_NONBLOCK));
    empty(s, sent);
    wait_for("space");
    look("again");
    put(c, "x", 1);
    await(s, POLLIN);
    get(s, text, 1);
    look("one byte");
    MUST(shutdown(s, SHUT_WR));
    await(c, POLLRDHUP);
    look("end");
    look("again");
    struct epoll_event event = {EPOLLOUT | EPOLLET, {.u64 = 7}};
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, c, &event));
    look("modified");
    close(s);
    put(c, "x", 1);
    await(c, POLLERR | POLLHUP);
    look("reset");
    look("again");
}

/* A registration for EPOLLIN gets no event for space. */
static void in_only(void) {
    begin(EPOLLIN | EPOLLRDHUP);
    put(s, "data", 4);
    wait_for("data");
    look("again");
    size_t sent = fill(c);
    MUST(fcntl(s, F_SETFL, O_NONBLOCK));
    empty(s, sent);
    await(c, POLLOUT);
    look("space");
    char text[8];
    get(c, text, 2);
    look("part");
    put(s, "m", 1);
    wait_for("more");
    MUST(shutdown(c, SHUT_WR));
    look("own end");
    MUST(shutdown(s, SHUT_WR));
    await(c, POLLHUP);
    look("end");
    get(c, text, 3);
    look("read");
}

static void hangup_only(void) {
    begin(EPOLLRDHUP);
    put(s, "data", 4);
    await(c, POLLIN);
    look("data");
    MUST(shutdown(s, SHUT_WR));
    wait_for("end");
    look("again");
}

/* Setting some options calls sk_write_space in the kernel, which is an event for EPOLLOUT. */
static void by_option(void) {
    begin(EPOLLOUT);
    look("at first");
    set_int(c, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16384);
    look("lowat");
    look("again");
    set_int(c, SOL_SOCKET, SO_SNDBUF, 100000);
    look("buffer");
    set_int(c, SOL_SOCKET, SO_RCVBUF, 100000);
    look("other buffer");
    set_int(c, IPPROTO_TCP, TCP_NODELAY, 1);
    look("nodelay");
    close(set);
    begin(EPOLLIN);
    set_int(c, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16384);
    look("in, lowat");
}

/* SO_RCVLOWAT with poll, edge-triggered epoll and blocking reads. */
static pid_t reader;
static int got;
static void *reads(void *unused) {
    (void)unused;
    char text[64];
    __atomic_store_n(&reader, thread_id(), __ATOMIC_SEQ_CST);
    got = (int)recv(c, text, sizeof text, 0);
    return NULL;
}

static void low_water(void) {
    begin(EPOLLIN);
    set_int(c, SOL_SOCKET, SO_RCVLOWAT, 10);
    struct pollfd entry = {c, POLLIN, 0};
    put(s, "1234", 4);
    await_bytes(c, 4);
    look("four");
    CALL(poll(&entry, 1, 0));
    put(s, "123456", 6);
    await_bytes(c, 10);
    wait_for("ten");
    look("again");
    CALL(poll(&entry, 1, 0));
    put(s, "x", 1);
    await_bytes(c, 11);
    look("eleven");
    char text[64];
    get(c, text, 5);
    look("six left");
    CALL(poll(&entry, 1, 0));
    set_int(c, SOL_SOCKET, SO_RCVLOWAT, 6);
    look("lowered");
    CALL(poll(&entry, 1, 0));
    set_int(c, SOL_SOCKET, SO_RCVLOWAT, 20);
    look("raised");
    CALL(recv(c, text, sizeof text, MSG_DONTWAIT));
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, reads, NULL));
    pid_t tid;
    while (!(tid = __atomic_load_n(&reader, __ATOMIC_SEQ_CST))) usleep(1000);
    await_asleep(tid);
    put(s, "0123456789", 10);
    await_bytes(c, 10);
    await_asleep(tid);
    /* The sleeping reader has not consumed the 10 bytes. */
    int unread = -1;
    MUST(ioctl(c, FIONREAD, &unread));
    say("unread %d", unread);
    put(s, "0123456789", 10);
    pthread_join(thread, NULL);
    say("read %d", got);
    /* When SO_RCVTIMEO expires, recv returns the bytes that are there. */
    struct timeval limit = {1, 0};
    MUST(setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    reader = 0;
    int64_t began = now_ms();
    MUST(pthread_create(&thread, NULL, reads, NULL));
    while (!(tid = __atomic_load_n(&reader, __ATOMIC_SEQ_CST))) usleep(1000);
    await_asleep(tid);
    put(s, "0123", 4);
    if (now_ms() - began > 900) again();
    pthread_join(thread, NULL);
    say("read %d", got);
    /* At the end of the stream recv returns what is left, even below SO_RCVLOWAT. */
    put(s, "end", 3);
    MUST(shutdown(s, SHUT_WR));
    wait_for("end");
    CALL(recv(c, text, sizeof text, 0));
}

static bool ends;

static void *sends_all(void *unused) {
    (void)unused;
    static char block[300000];
    put(s, block, sizeof block);
    if (ends) MUST(shutdown(s, SHUT_WR));
    return NULL;
}

/* SO_RCVLOWAT above the buffer's size: recv returns before that many bytes are there. Also with an urgent byte, which
 * no plain recv returns, and with buffers of any size. At the end fewer bytes than SO_RCVLOWAT are left. */
static void low_water_beyond(bool urgent, int receives, int sends) {
    static char text[300000];
    pthread_t thread;
    size_t all = 0;
    begin(EPOLLIN);
    if (receives) set_int(c, SOL_SOCKET, SO_RCVBUF, receives);
    /* SO_SNDBUF is not set alone: a sender of small pieces makes the kernel's reader wait forever. A sender with a large
     * buffer may send the last bytes separately, and then only the end of the stream wakes the kernel's reader. */
    ends = !sends;
    if (sends) set_int(s, SOL_SOCKET, SO_SNDBUF, sends);
    set_int(c, SOL_SOCKET, SO_RCVLOWAT, 200000);
    if (urgent) MUST(send(s, "!", 1, MSG_OOB));
    MUST(pthread_create(&thread, NULL, sends_all, NULL));
    while (all < sizeof text) all += MUST(recv(c, text, sizeof text - all, 0));
    pthread_join(thread, NULL);
    say("read %zu", all);
}

static void low_water_full(void) { low_water_beyond(false, 4096, 4096); }

static void low_water_urgent(void) { low_water_beyond(true, 4096, 4096); }

static void low_water_receives(void) { low_water_beyond(false, 4096, 0); }

static void low_water_large(void) { low_water_beyond(false, 0, 0); }

const struct test edge_cases[] = {{"edge_out_only", out_only},   {"edge_in_only", in_only},
                                  {"edge_hangup_only", hangup_only}, {"edge_by_option", by_option},
                                  {"edge_low_water", low_water}, {"edge_low_water_full", low_water_full},
                                  {"edge_low_water_urgent", low_water_urgent},
                                  {"edge_low_water_receives", low_water_receives},
                                  {"edge_low_water_large", low_water_large}, {NULL, NULL}};
