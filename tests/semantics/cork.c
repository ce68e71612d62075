/* TCP_CORK and MSG_MORE hold back an incomplete segment, for 200 ms at most. */
#include "semantics.h"
#include <linux/sockios.h>
#include <sys/mman.h>

static int64_t sent_at;

/* Sends bytes that TCP_CORK holds back. */
static void hold(int fd, const void *data, size_t len) {
    sent_at = now_ms();
    put(fd, data, len);
}

/* Repeats the case if the 200 ms are nearly over: the held bytes may have been sent. */
static void held_still(void) {
    if (now_ms() - sent_at > 150) again();
}

/* Prints what has arrived after 30 ms. */
static void come(int fd) {
    int bytes = -1;
    usleep(30000);
    MUST(ioctl(fd, FIONREAD, &bytes));
    struct pollfd entry = {fd, POLLIN, 0};
    MUST(poll(&entry, 1, 0));
    held_still();
    say("%d bytes", bytes);
    /* Whether the bytes are held or not: POLLIN exactly if there are some. */
    say("other events: %s", events(entry.revents ^ (bytes > 0 ? POLLIN : 0)));
}

static void queued(int fd) {
    int bytes = -1;
    MUST(ioctl(fd, SIOCOUTQ, &bytes));
    held_still();
    say("queued %d", bytes);
}

/* Waits until all sent bytes are acknowledged. An answer through the ring acknowledges nothing in the kernel, so the
 * peer's timer for delayed acknowledgments does after 40 ms. An acknowledgment sends what MSG_MORE holds back
 * (tcp_data_snd_check). */
static void acknowledged(int fd) {
    for (int left = 1000, bytes = 1; left && bytes; left--) {
        MUST(ioctl(fd, SIOCOUTQ, &bytes));
        if (bytes) usleep(1000);
    }
}

static void held_and_let_go(void) {
    int a, b;
    pair(&a, &b);
    acknowledged(a);
    char text[16];
    set_int(a, IPPROTO_TCP, TCP_CORK, 1);
    hold(a, "abc", 3);
    queued(a);
    come(b);
    size_t early = CALL(recv(b, text, sizeof text, MSG_DONTWAIT)) > 0 ? 3 : 0;
    // The 200 ms began with the first send.
    put(a, "def", 3);
    queued(a);
    come(b);
    set_int(a, IPPROTO_TCP, TCP_CORK, 0);
    await_bytes(b, 6 - (int)early);
    get(b, text + early, 6 - early);
    say("%.6s", text);
    put(a, "g", 1);
    await_bytes(b, 1);
    get(b, text, 1);
    /* The other direction. Setting TCP_NODELAY sends the held bytes once. */
    set_int(b, IPPROTO_TCP, TCP_CORK, 1);
    hold(b, "x", 1);
    come(a);
    set_int(b, IPPROTO_TCP, TCP_NODELAY, 1);
    await_bytes(a, 1);
    hold(b, "y", 1);
    come(a);
    CALL(send(b, "!", 1, MSG_OOB));
    held_still();
    await(a, POLLPRI);
    get(a, text, 2);
    say("%.2s", text);
}

static void ends_by_itself(void) {
    int a, b;
    pair(&a, &b);
    char text[8];
    set_int(a, IPPROTO_TCP, TCP_CORK, 1);
    for (int i = 0; i < 3; i++) {
        int64_t began = now_ms();
        put(a, "late", 4);
        await(b, POLLIN);
        int64_t took = now_ms() - began;
        if (took < 150 || took > 5000) say("after %d ms", (int)took);
        get(b, text, 4);
        say("%.4s", text);
    }
    acknowledged(a);
    sent_at = now_ms();
    send(a, "more", 4, MSG_MORE);
    come(b);
    get(b, text, 4);
    say("%.4s", text);
}

static void segments(void) {
    int a, b;
    pair(&a, &b);
    static char block[40000];
    int bytes = -1;
    set_int(a, IPPROTO_TCP, TCP_CORK, 1);
    hold(a, block, 10000);
    come(b);
    put(a, block, 30000);
    await(b, POLLIN);
    usleep(20000);
    MUST(ioctl(b, FIONREAD, &bytes));
    held_still();
    say("some %d", bytes > 0);
    say("not all %d", bytes < 40000);
    set_int(a, IPPROTO_TCP, TCP_CORK, 0);
    await_bytes(b, 40000);
}

static void more(void) {
    int a, b;
    pair(&a, &b);
    char text[16];
    acknowledged(a);
    sent_at = now_ms();
    CALL(send(a, "head", 4, MSG_MORE));
    CALL(send(a, "er", 2, MSG_MORE));
    come(b);
    CALL(send(a, " body", 5, 0));
    await_bytes(b, 11);
    get(b, text, 11);
    say("%.11s", text);
    struct iovec part = {"one", 3};
    struct msghdr out = {.msg_iov = &part, .msg_iovlen = 1};
    acknowledged(a);
    sent_at = now_ms();
    CALL(sendmsg(a, &out, MSG_MORE));
    come(b);
    CALL(writev(a, &part, 1));
    await_bytes(b, 6);
}

/* shutdown, close and the end of the process send the held bytes. */
static void ends(void) {
    for (int how = 0; how < 4; how++) {
        int a, b;
        pair(&a, &b);
        char text[8];
        set_int(a, IPPROTO_TCP, TCP_CORK, 1);
        if (how < 2) put(a, "held", 4);
        if (how == 0) MUST(shutdown(a, SHUT_WR));
        if (how == 1) close(a);
        if (how > 1) {
            pid_t child = MUST(fork());
            if (!child) {
                put(a, "held", 4);
                if (how == 2) _exit(0);
                kill(getpid(), SIGKILL);
            }
            close(a);
            reap(child);
        }
        await(b, POLLIN);
        CALL(recv(b, text, sizeof text, 0));
        CALL(recv(b, text, sizeof text, 0));
        close(b);
    }
}

/* A reset discards the held bytes. */
static void resets(void) {
    int a, b;
    char text[8];
    struct linger off = {1, 0};
    pair(&a, &b);
    set_int(a, IPPROTO_TCP, TCP_CORK, 1);
    put(a, "held", 4);
    MUST(setsockopt(a, SOL_SOCKET, SO_LINGER, &off, sizeof off));
    close(a);
    await(b, POLLIN);
    CALL(recv(b, text, sizeof text, 0));
    CALL(recv(b, text, sizeof text, 0));
}

/* Responses as nginx sends them with tcp_nopush: TCP_CORK is set, the head and the body are sent by several calls, TCP_CORK is cleared.
   The peer then has all bytes. */
static void answers(void) {
    int a, b, tube[2], value = 0, file = (int)MUST(memfd_create("body", MFD_CLOEXEC));
    socklen_t size = sizeof value;
    char text[16];
    pair(&a, &b);
    MUST(pwrite(file, "file", 4, 0));
    MUST(pipe2(tube, O_CLOEXEC));
    for (int i = 0; i < 40; i++) {
        off_t at = 0;
        set_int(a, IPPROTO_TCP, TCP_CORK, 1);
        MUST(getsockopt(a, IPPROTO_TCP, TCP_CORK, &value, &size));
        CALL(send(a, "head", 4, i & 1 ? MSG_MORE : 0));
        MUST(write(tube[1], "tube", 4));
        if (i & 2) CALL(splice(tube[0], NULL, a, NULL, 4, SPLICE_F_MORE));
        else MUST(read(tube[0], text, 4)), put(a, "copy", 4);
        CALL(sendfile(a, file, &at, 4));
        if (i & 4) set_int(a, IPPROTO_TCP, TCP_NODELAY, i >> 3 & 1);
        set_int(a, IPPROTO_TCP, TCP_CORK, 0);
        get(b, text, 12);
        say("corked %d, %.12s", value, text);
        put(b, "next", 4);
        get(a, text, 4);
    }
}

/* TCP_CORK is set before connect, and on the listener. */
static void before(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 8, &at, &len), c = tcp(AF_INET, 0);
    set_int(l, IPPROTO_TCP, TCP_CORK, 1);
    set_int(c, IPPROTO_TCP, TCP_CORK, 1);
    MUST(connect(c, (struct sockaddr *)&at, len));
    int s = (int)MUST(accept(l, NULL, NULL)), ends[] = {c, s};
    for (int i = 0; i < 2; i++) {
        int value = -1;
        socklen_t size = sizeof value;
        MUST(getsockopt(ends[i], IPPROTO_TCP, TCP_CORK, &value, &size));
        say("corked %d", value);
        hold(ends[i], "x", 1);
        come(ends[1 - i]);
        set_int(ends[i], IPPROTO_TCP, TCP_CORK, 0);
        await_bytes(ends[1 - i], 1);
    }
}

const struct test cork_cases[] = {{"cork_holds", held_and_let_go}, {"cork_ends_by_itself", ends_by_itself},
                                  {"cork_segments", segments},     {"cork_more", more},
                                  {"cork_ends", ends},             {"cork_before", before},
                                  {"cork_resets", resets},         {"cork_answers", answers},
                                  {NULL, NULL}};
