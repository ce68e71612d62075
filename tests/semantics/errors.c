/* Each call with an invalid descriptor or argument. */
#include "semantics.h"

static char byte[16];

/* Makes every call on a descriptor that is not a connected socket. */
static void every_call(int fd) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(1), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    struct iovec part = {byte, 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr many = {.msg_hdr = message};
    int value = 1;
    socklen_t size = sizeof value;
    CALL(send(fd, byte, 4, MSG_NOSIGNAL));
    CALL(sendto(fd, byte, 4, MSG_NOSIGNAL, NULL, 0));
    CALL(sendmsg(fd, &message, MSG_NOSIGNAL));
    CALL(sendmmsg(fd, &many, 1, MSG_NOSIGNAL));
    CALL(recv(fd, byte, 4, MSG_DONTWAIT));
    CALL(recvfrom(fd, byte, 4, MSG_DONTWAIT, NULL, NULL));
    CALL(recvmsg(fd, &message, MSG_DONTWAIT));
    CALL(recvmmsg(fd, &many, 1, MSG_DONTWAIT, NULL));
    CALL(accept(fd, NULL, NULL));
    CALL(accept4(fd, NULL, NULL, SOCK_CLOEXEC));
    CALL(getpeername(fd, (struct sockaddr *)&at, &len));
    len = sizeof at;
    CALL(getsockname(fd, (struct sockaddr *)&at, &len));
    CALL(shutdown(fd, SHUT_RDWR));
    CALL(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &size));
    CALL(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value));
    CALL(pread(fd, byte, 4, 0));
    CALL(pwrite(fd, byte, 4, 0));
    CALL(lseek(fd, 0, SEEK_CUR));
    (void)to;
}

static void bad_descriptor(void) {
    for (int i = 0; i < 3; i++) {
        int fd = i == 0 ? -1 : i == 1 ? 1000000 : tcp(AF_INET, 0);
        if (i == 2) close(fd);
        say("descriptor %s", i == 0 ? "-1" : i == 1 ? "too large" : "closed");
        every_call(fd);
        CALL(read(fd, byte, 4));
        CALL(write(fd, byte, 4));
        CALL(readv(fd, &(struct iovec){byte, 4}, 1));
        CALL(writev(fd, &(struct iovec){byte, 4}, 1));
        CALL(close(fd));
        CALL(dup(fd));
        CALL(dup2(fd, 50));
        CALL(dup3(fd, 50, O_CLOEXEC));
        CALL(fcntl(fd, F_GETFL));
        CALL(fcntl(fd, F_DUPFD, 3));
        CALL(listen(fd, 1));
        int n;
        CALL(ioctl(fd, FIONREAD, &n));
        struct sockaddr_in to = {.sin_family = AF_INET};
        CALL(bind(fd, (struct sockaddr *)&to, sizeof to));
        CALL(connect(fd, (struct sockaddr *)&to, sizeof to));
        CALL(sendfile(fd, fd, NULL, 1));
        CALL(splice(fd, NULL, fd, NULL, 1, 0));
    }
}

static void not_a_socket(void) {
    int ends[2];
    MUST(pipe(ends));
    struct sockaddr_in to = {.sin_family = AF_INET};
    every_call(ends[0]);
    CALL(listen(ends[0], 1));
    CALL(bind(ends[0], (struct sockaddr *)&to, sizeof to));
    CALL(connect(ends[0], (struct sockaddr *)&to, sizeof to));
}

static void never_connected(void) {
    int fd = tcp(AF_INET, 0);
    signal(SIGPIPE, SIG_IGN);
    every_call(fd);
    CALL(read(fd, byte, 4));
    CALL(write(fd, byte, 4));
    CALL(readv(fd, &(struct iovec){byte, 4}, 1));
    CALL(writev(fd, &(struct iovec){byte, 4}, 1));
    CALL(recv(fd, byte, 4, MSG_PEEK));
    CALL(recv(fd, byte, 4, MSG_OOB));
    CALL(send(fd, byte, 4, MSG_OOB | MSG_NOSIGNAL));
    CALL(send(fd, byte, 0, MSG_NOSIGNAL));
    CALL(recv(fd, byte, 0, 0));
    int n = -1;
    CALL(ioctl(fd, FIONREAD, &n));
    say("FIONREAD %d", n);
    CALL(ioctl(fd, SIOCATMARK, &n));
    say("poll %s", events(await(fd, POLLIN | POLLOUT | POLLRDHUP)));
}

static void on_a_listener(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int fd = listener(AF_INET, 5, &at, &len);
    signal(SIGPIPE, SIG_IGN);
    CALL(send(fd, byte, 4, MSG_NOSIGNAL));
    CALL(recv(fd, byte, 4, 0));
    CALL(read(fd, byte, 4));
    CALL(write(fd, byte, 4));
    CALL(connect(fd, (struct sockaddr *)&at, len));
    CALL(bind(fd, (struct sockaddr *)&at, len));
    CALL(getpeername(fd, (struct sockaddr *)&at, &len));
    int n = -1;
    CALL(ioctl(fd, FIONREAD, &n));
    CALL(listen(fd, 7));
    CALL(accept4(fd, NULL, NULL, 0x40000000));
    MUST(fcntl(fd, F_SETFL, O_NONBLOCK));
    CALL(accept(fd, NULL, NULL));
    CALL(shutdown(fd, SHUT_WR));
    CALL(shutdown(fd, SHUT_RD));
    CALL(accept(fd, NULL, NULL));
}

static void connected(void) {
    int a, b;
    pair(&a, &b);
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    MUST(getpeername(a, (struct sockaddr *)&at, &len));
    CALL(connect(a, (struct sockaddr *)&at, len));
    CALL(listen(a, 1));
    CALL(bind(a, (struct sockaddr *)&at, len));
    CALL(accept(a, NULL, NULL));
    CALL(sendto(a, byte, 4, 0, (struct sockaddr *)&at, len));
    CALL(pread(a, byte, 4, 0));
    CALL(pwrite(a, byte, 4, 0));
    CALL(lseek(a, 0, SEEK_SET));
    CALL(shutdown(a, 7));
    CALL(recv(a, byte, 4, MSG_DONTWAIT));
    CALL(recv(a, byte, 4, MSG_OOB));
    CALL(recv(a, byte, 4, MSG_DONTWAIT | MSG_ERRQUEUE));
    CALL(fsync(a));
    CALL(ftruncate(a, 1));
}

static void bad_memory(void) {
    int a, b;
    pair(&a, &b);
    char *bad = (char *)8;
    put(b, "12345678", 8);
    await_bytes(a, 8);
    CALL(send(a, bad, 4, 0));
    CALL(recv(a, bad, 4, 0));
    CALL(read(a, bad, 4));
    CALL(write(a, bad, 4));
    CALL(writev(a, (struct iovec *)bad, 1));
    CALL(sendmsg(a, (struct msghdr *)bad, 0));
    CALL(recvmsg(a, (struct msghdr *)bad, 0));
    CALL(getsockname(a, (struct sockaddr *)bad, (socklen_t *)bad));
    CALL(getsockopt(a, SOL_SOCKET, SO_ERROR, bad, (socklen_t *)bad));
    CALL(setsockopt(a, SOL_SOCKET, SO_KEEPALIVE, bad, 4));
    CALL(connect(a, (struct sockaddr *)bad, 16));
    CALL(ioctl(a, FIONREAD, bad));
    CALL(poll((struct pollfd *)bad, 1, 0));
    say("what was sent is still there: %zd", recv(a, byte, 8, MSG_DONTWAIT));
}

static void bad_arguments(void) {
    int a, b, value = 1;
    socklen_t len = sizeof value;
    struct sockaddr_in to = {.sin_family = AF_INET};
    CALL(socket(AF_INET, SOCK_STREAM, 17));
    CALL(socket(AF_INET, 77, 0));
    CALL(socket(99, SOCK_STREAM, 0));
    CALL(socket(AF_INET, SOCK_STREAM | 0x10000000, 0));
    OPEN(socket(AF_INET, SOCK_STREAM, IPPROTO_TCP));
    OPEN(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
    int fd = tcp(AF_INET, 0);
    CALL(bind(fd, (struct sockaddr *)&to, 3));
    CALL(connect(fd, (struct sockaddr *)&to, 3));
    CALL(connect(fd, (struct sockaddr *)&to, 1));
    to.sin_family = AF_INET6;
    CALL(bind(fd, (struct sockaddr *)&to, sizeof to));
    CALL(connect(fd, (struct sockaddr *)&to, sizeof to));
    to.sin_family = 99;
    CALL(connect(fd, (struct sockaddr *)&to, sizeof to));
    pair(&a, &b);
    CALL(getsockopt(a, SOL_SOCKET, 9999, &value, &len));
    CALL(setsockopt(a, SOL_SOCKET, 9999, &value, sizeof value));
    CALL(getsockopt(a, 77, 1, &value, &len));
    CALL(setsockopt(a, IPPROTO_TCP, 9999, &value, sizeof value));
    CALL(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &value, 1));
    CALL(setsockopt(a, SOL_SOCKET, SO_LINGER, &value, 4));
    CALL(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &value, 4));
    CALL(ioctl(a, 0x9999, &value));
    CALL(fcntl(a, 9999, 0));
    struct iovec none[1] = {{byte, 4}};
    CALL(writev(a, none, -1));
    CALL(writev(a, none, 5000));
    CALL(writev(a, none, 0));
    CALL(readv(a, none, 0));
    CALL(dup3(a, a, 0));
    CALL(dup3(a, 60, 0x40000000));
    CALL(dup2(a, -1));
    CALL(dup2(a, a) == a);
    CALL(epoll_create1(0x1234));
    CALL(epoll_create(0));
}

const struct test error_cases[] = {
    {"bad_descriptor", bad_descriptor}, {"not_a_socket", not_a_socket},   {"never_connected", never_connected},
    {"on_a_listener", on_a_listener},   {"calls_on_a_connected", connected}, {"bad_memory", bad_memory},
    {"bad_arguments", bad_arguments},   {NULL, NULL}};
