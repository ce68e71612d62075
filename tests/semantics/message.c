/* The MSG_ flags and urgent data. */
#include "semantics.h"

static char text[64];

static void peek(void) {
    int a, b;
    pair(&a, &b);
    put(a, "peeked", 6);
    await_bytes(b, 6);
    CALL(recv(b, text, 3, MSG_PEEK));
    CALL(recv(b, text, 60, MSG_PEEK));
    say("%.6s", text);
    CALL(recv(b, text, 60, MSG_PEEK | MSG_DONTWAIT));
    CALL(recv(b, text, 60, 0));
    CALL(recv(b, text, 60, MSG_PEEK | MSG_DONTWAIT));
    MUST(shutdown(a, SHUT_WR));
    await(b, POLLIN);
    CALL(recv(b, text, 60, MSG_PEEK));
    CALL(recv(b, text, 60, MSG_PEEK));
}

/* SO_PEEK_OFF before connect and on a connection. The library leaves such a connection to the kernel. */
static void peek_offset(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int value = 3, off = -1, l = listener(AF_INET, 16, &at, &len), c = tcp(AF_INET, 0);
    CALL(setsockopt(c, SOL_SOCKET, SO_PEEK_OFF, &value, sizeof value));
    MUST(connect(c, (struct sockaddr *)&at, len));
    int s = (int)MUST(accept(l, NULL, NULL));
    put(s, "0123456789", 10);
    await_bytes(c, 10);
    memset(text, 0, sizeof text);
    CALL(recv(c, text, 4, MSG_PEEK));
    say("%.4s", text);
    int a, b;
    pair(&a, &b);
    CALL(setsockopt(b, SOL_SOCKET, SO_PEEK_OFF, &off, sizeof off));
}

static void *later(void *data) {
    int fd = *(int *)data;
    usleep(10000);
    put(fd, "cd", 2);
    usleep(10000);
    put(fd, "efgh", 4);
    return NULL;
}

static void waitall(void) {
    int a, b;
    pair(&a, &b);
    put(a, "ab", 2);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, later, &a));
    memset(text, 0, sizeof text);
    CALL(recv(b, text, 8, MSG_WAITALL));
    say("%s", text);
    pthread_join(thread, NULL);
    put(a, "xyz", 3);
    MUST(shutdown(a, SHUT_WR));
    CALL(recv(b, text, 8, MSG_WAITALL));
    CALL(recv(b, text, 8, MSG_WAITALL));
    pair(&a, &b);
    put(a, "ab", 2);
    MUST(pthread_create(&thread, NULL, later, &a));
    memset(text, 0, sizeof text);
    CALL(recv(b, text, 6, MSG_WAITALL | MSG_PEEK));
    say("%s", text);
    CALL(recv(b, text, 60, MSG_WAITALL | MSG_DONTWAIT) >= 6);
    pthread_join(thread, NULL);
    struct iovec parts[2] = {{text, 3}, {text + 3, 5}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    pair(&a, &b);
    put(a, "ab", 2);
    MUST(pthread_create(&thread, NULL, later, &a));
    CALL(recvmsg(b, &message, MSG_WAITALL));
    say("%.8s", text);
    pthread_join(thread, NULL);
}

static void truncated(void) {
    int a, b;
    pair(&a, &b);
    put(a, "0123456789", 10);
    await_bytes(b, 10);
    memset(text, 'x', sizeof text);
    CALL(recv(b, text, 4, MSG_TRUNC));
    say("untouched: %.4s", text);
    CALL(recv(b, NULL, 3, MSG_TRUNC));
    CALL(recv(b, text, 3, 0));
    say("%.3s", text);
}

static void dontwait(void) {
    int a, b;
    pair(&a, &b);
    CALL(recv(b, text, 4, MSG_DONTWAIT));
    say("NONBLOCK %d", !!(fcntl(b, F_GETFL) & O_NONBLOCK));
    static char block[65536];
    ssize_t n;
    for (int refused = 0; refused < 3;) {
        n = send(a, block, sizeof block, MSG_DONTWAIT);
        if (n < 0) usleep(2000), refused++;
        else refused = 0;
    }
    CALL(send(a, block, sizeof block, MSG_DONTWAIT));
}

static void more(void) {
    int a, b;
    pair(&a, &b);
    CALL(send(a, "head", 4, MSG_MORE));
    CALL(send(a, "body", 4, 0));
    get(b, text, 8);
    say("%.8s", text);
    /* shutdown sends what MSG_MORE held back. */
    CALL(send(a, "rest", 4, MSG_MORE));
    MUST(shutdown(a, SHUT_WR));
    get(b, text, 4);
    say("%.4s", text);
    CALL(recv(b, text, 4, 0));
    pair(&a, &b);
    set_int(a, IPPROTO_TCP, TCP_CORK, 1);
    CALL(send(a, "cork", 4, 0));
    set_int(a, IPPROTO_TCP, TCP_CORK, 0);
    get(b, text, 4);
    say("%.4s", text);
}

static void unknown_flags(void) {
    int a, b;
    pair(&a, &b);
    CALL(send(a, "x", 1, MSG_CONFIRM | MSG_DONTROUTE | MSG_EOR));
    get(b, text, 1);
    CALL(recv(b, text, 1, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
    CALL(send(a, "y", 1, MSG_NOSIGNAL | MSG_DONTWAIT));
    get(b, text, 1);
}

static void urgent(void) {
    int a, b, mark = -1;
    pair(&a, &b);
    CALL(send(a, "abc", 3, 0));
    CALL(send(a, "xyZ", 3, MSG_OOB));
    CALL(send(a, "def", 3, 0));
    await_bytes(b, 5);
    say("poll %s", events(await(b, POLLPRI)));
    MUST(ioctl(b, SIOCATMARK, &mark));
    say("at mark %d", mark);
    CALL(recv(b, text, 1, MSG_OOB | MSG_PEEK));
    CALL(recv(b, text, 10, MSG_OOB));
    say("urgent %c", text[0]);
    CALL(recv(b, text, 1, MSG_OOB));
    memset(text, 0, sizeof text);
    CALL(recv(b, text, 60, 0));
    say("%s", text);
    MUST(ioctl(b, SIOCATMARK, &mark));
    say("at mark %d", mark);
    get(b, text, 3);
    text[3] = 0;
    say("%s", text);
    MUST(ioctl(b, SIOCATMARK, &mark));
    say("at mark %d", mark);
    CALL(recv(b, text, 1, MSG_OOB));
}

static void urgent_inline(void) {
    int a, b, mark = -1;
    pair(&a, &b);
    set_int(b, SOL_SOCKET, SO_OOBINLINE, 1);
    CALL(send(a, "ab", 2, 0));
    CALL(send(a, "!", 1, MSG_OOB));
    CALL(send(a, "cd", 2, 0));
    await_bytes(b, 2);
    await(b, POLLPRI);
    CALL(recv(b, text, 1, MSG_OOB));
    memset(text, 0, sizeof text);
    CALL(recv(b, text, 60, 0));
    say("%s", text);
    MUST(ioctl(b, SIOCATMARK, &mark));
    say("at mark %d", mark);
    await_bytes(b, 3);
    memset(text, 0, sizeof text);
    CALL(recv(b, text, 60, 0));
    say("%s", text);
}

static void message_header(void) {
    int a, b;
    pair(&a, &b);
    char control[64];
    struct iovec part = {"x", 1};
    struct msghdr out = {.msg_iov = &part, .msg_iovlen = 1};
    CALL(sendmsg(a, &out, 0));
    char in[4];
    struct iovec into = {in, 4};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control, .msg_flags = -1};
    CALL(recvmsg(b, &message, 0));
    say("flags %d controllen %zu", message.msg_flags, (size_t)message.msg_controllen);
    message.msg_iovlen = 2000;
    CALL(recvmsg(b, &message, MSG_DONTWAIT));
    out.msg_iovlen = 2000;
    CALL(sendmsg(a, &out, MSG_DONTWAIT));
    out.msg_iovlen = 0;
    CALL(sendmsg(a, &out, 0));
    struct timespec limit = {0, 1000000};
    struct mmsghdr many = {.msg_hdr = {.msg_iov = &into, .msg_iovlen = 1}};
    put(a, "z", 1);
    CALL(recvmmsg(b, &many, 1, MSG_WAITFORONE, &limit));
    CALL(recvmmsg(b, &many, 1, MSG_DONTWAIT, NULL));
}

/* A negative name length is refused before any byte is read. */
static void misnamed(void) {
    int a, b;
    pair(&a, &b);
    put(a, "abc", 3);
    await_bytes(b, 3);
    char text[8], name[128];
    struct iovec into = {text, sizeof text};
    struct msghdr header = {.msg_name = name, .msg_namelen = (socklen_t)-1, .msg_iov = &into, .msg_iovlen = 1};
    CALL(recvmsg(b, &header, 0));
    CALL(sendmsg(b, &header, 0));
    header.msg_name = NULL;
    CALL(recvmsg(b, &header, MSG_PEEK));
    socklen_t len = -1;
    CALL(recvfrom(b, text, 1, 0, (struct sockaddr *)name, &len));
    CALL(recv(b, text, 8, 0));
}

/* Receives up to `most` bytes and prints the control messages, for which there are `room` bytes. */
static void receive_beside(int fd, size_t most, size_t room, int flags) {
    _Alignas(struct cmsghdr) char control[128];
    struct iovec into = {text, most};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = room ? control : NULL, .msg_controllen = room};
    CALL(recvmsg(fd, &message, flags));
    say("flags %#x controllen %zu", message.msg_flags, (size_t)message.msg_controllen);
    if (message.msg_controllen < sizeof(struct cmsghdr)) return;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        int left = -1;
        struct timespec now, then = {0, 0};
        clock_gettime(CLOCK_REALTIME, &now);
        if (c->cmsg_len >= CMSG_LEN(4)) memcpy(&left, CMSG_DATA(c), 4);
        if (c->cmsg_len >= CMSG_LEN(16)) memcpy(&then, CMSG_DATA(c), 16);
        bool near = then.tv_sec <= now.tv_sec && then.tv_sec > now.tv_sec - 10;
        if (c->cmsg_level == SOL_SOCKET) say("level 1 type %d length %zu a time %d", c->cmsg_type, (size_t)c->cmsg_len, near);
        else say("level %d type %d length %zu: %d", c->cmsg_level, c->cmsg_type, (size_t)c->cmsg_len, left);
    }
}

#define TCP_INQ_ 36
/* TCP_INQ on a connection, on a listener, and before connect. */
static void inq(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), value = 2;
    set_int(l, IPPROTO_TCP, TCP_INQ_, 1);
    int c = tcp(AF_INET, 0);
    CALL(setsockopt(c, IPPROTO_TCP, TCP_INQ_, &value, sizeof value));
    set_int(c, IPPROTO_TCP, TCP_INQ_, 1);
    MUST(connect(c, (struct sockaddr *)&at, len));
    int s = (int)MUST(accept(l, NULL, NULL)), ends[] = {c, s};
    for (int i = 0; i < 2; i++) {
        socklen_t size = sizeof value;
        CALL(getsockopt(ends[i], IPPROTO_TCP, TCP_INQ_, &value, &size));
        say("%d", value);
        put(ends[1 - i], "0123456789", 10);
        await_bytes(ends[i], 10);
        receive_beside(ends[i], 3, 128, MSG_PEEK);
        receive_beside(ends[i], 3, 128, 0);
        receive_beside(ends[i], 1, 0, 0);
        receive_beside(ends[i], 1, 10, 0);
        receive_beside(ends[i], 1, CMSG_LEN(4), 0);
        receive_beside(ends[i], 1, CMSG_LEN(2), 0);
        receive_beside(ends[i], 9, 128, MSG_TRUNC);
    }
    int a, b;
    pair(&a, &b);
    set_int(b, IPPROTO_TCP, TCP_INQ_, 1);
    put(a, "abc", 3);
    await_bytes(b, 3);
    receive_beside(b, 1, 128, 0);
    MUST(shutdown(a, SHUT_WR));
    await(b, POLLRDHUP);
    receive_beside(b, 1, 128, 0);
    receive_beside(b, 9, 128, 0);
    receive_beside(b, 9, 128, 0);
    set_int(b, IPPROTO_TCP, TCP_INQ_, 0);
    receive_beside(b, 9, 128, 0);
}

/* The four SO_TIMESTAMP options on a connection, also with TCP_INQ, and on a listener. */
static void stamps(void) {
    static const int names[] = {29, 35, 63, 64};
    int a, b, value = 1;
    pair(&a, &b);
    set_int(b, SOL_SOCKET, SO_TIMESTAMP, 1);
    /* The kernel starts to record times a moment later. */
    for (bool is_stamped = false; !is_stamped;) {
        char byte, room[128];
        struct iovec part = {&byte, 1};
        struct msghdr in = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
        put(a, "t", 1);
        MUST(recvmsg(b, &in, 0));
        is_stamped = in.msg_controllen > 0;
    }
    for (int i = 0; i < 4; i++) {
        CALL(setsockopt(b, SOL_SOCKET, names[i], &value, sizeof value));
        for (int j = 0; j < 4; j++) {
            int shown = -1;
            socklen_t size = sizeof shown;
            MUST(getsockopt(b, SOL_SOCKET, names[j], &shown, &size));
            say("%d: %d", names[j], shown);
        }
        put(a, "abcd", 4);
        await_bytes(b, 4);
        receive_beside(b, 2, 128, MSG_PEEK);
        receive_beside(b, 2, 128, 0);
        receive_beside(b, 1, 20, 0);
        receive_beside(b, 1, CMSG_LEN(16), 0);
    }
    set_int(b, IPPROTO_TCP, TCP_INQ_, 1);
    put(a, "abcd", 4);
    await_bytes(b, 4);
    receive_beside(b, 2, 128, 0);
    receive_beside(b, 1, CMSG_SPACE(16), 0);
    set_int(b, SOL_SOCKET, SO_TIMESTAMP, 0);
    receive_beside(b, 1, 128, 0);
    set_int(b, SOL_SOCKET, SO_TIMESTAMPNS, 1);
    MUST(shutdown(a, SHUT_WR));
    await(b, POLLIN);
    receive_beside(b, 1, 128, 0);
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len);
    set_int(l, SOL_SOCKET, SO_TIMESTAMPNS, 1);
    int c = dial(&at, len), s = (int)MUST(accept(l, NULL, NULL));
    put(c, "x", 1);
    await(s, POLLIN);
    receive_beside(s, 1, 128, 0);
}

const struct test message_cases[] = {{"msg_peek", peek},
                                     {"msg_peek_offset", peek_offset},
                                     {"msg_waitall", waitall},
                                     {"msg_trunc", truncated},
                                     {"msg_dontwait", dontwait},
                                     {"msg_more", more},
                                     {"msg_unknown_flags", unknown_flags},
                                     {"msg_oob", urgent},
                                     {"msg_oob_inline", urgent_inline},
                                     {"msg_header", message_header},
                                     {"msg_misnamed", misnamed},
                                     {"msg_inq", inq},
                                     {"msg_stamps", stamps},
                                     {NULL, NULL}};
