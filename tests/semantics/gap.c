/* Cases in which the library once differed from the kernel. Reviews found them. */
#include "semantics.h"
#include <linux/errqueue.h>
#include <sys/mman.h>

static char text[64];

struct later {
    int fd;
    pid_t tid;
    int flags;
    int64_t sent_ms;
};

static void *send_later(void *argument) {
    struct later *later = argument;
    await_asleep(later->tid);
    later->sent_ms = now_ms();
    if (send(later->fd, "!", 1, later->flags) != 1) die("send: %s", name_of(errno));
    return NULL;
}

/* poll sleeps for POLLPRI together with other events. */
static void poll_urgent(void) {
    static const short asked[] = {POLLPRI, POLLIN | POLLPRI, POLLIN | POLLPRI | POLLRDHUP};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        int a, b;
        pair(&a, &b);
        struct later later = {.fd = a, .tid = thread_id(), .flags = MSG_OOB};
        pthread_t thread;
        struct pollfd one = {b, asked[i], 0};
        int64_t began = now_ms();
        pthread_create(&thread, NULL, send_later, &later);
        int n = poll(&one, 1, -1);
        pthread_join(thread, NULL);
        say("%s: %d %s", events(asked[i]), n, events(one.revents));
        /* The urgent byte must wake poll. A time-out of the library, after a second, must not be what ends it. */
        if (later.sent_ms - began >= 500) again();
        if (now_ms() - began >= 900) late();
        CALL(close(a));
        CALL(close(b));
    }
}

/* poll on an epoll set that has a connection: alone, with other descriptors, and asleep. */
static void poll_epoll_set(void) {
    int a, b, other, end, set = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    pair(&other, &end);
    struct epoll_event event = {.events = EPOLLIN}, got;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, b, &event));
    struct pollfd both[2] = {{set, POLLIN, 0}, {other, POLLIN, 0}};
    CALL(poll(both, 1, 0));
    CALL(poll(both, 2, 20));
    for (int round = 0; round < 20; round++) {
        struct later later = {round % 4 == 3 ? end : a, thread_id(), 0};
        pthread_t thread;
        pthread_create(&thread, NULL, send_later, &later);
        int n = poll(both, 2, -1);
        pthread_join(thread, NULL);
        say("%d %s %s", n, events(both[0].revents), events(both[1].revents));
        int ready = epoll_wait(set, &got, 1, 0);
        say("in the set: %d", ready);
        if (both[1].revents) get(other, text, 1);
        if (ready == 1) get(b, text, 1);
    }
    int wake[2];
    MUST(pipe(wake));
    event.data.fd = wake[0];
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, wake[0], &event));
    CALL(poll(both, 2, 20));
    MUST(write(wake[1], "x", 1));
    CALL(poll(both, 2, -1));
    say("%s", events(both[0].revents));
    MUST(read(wake[0], text, 1));
    put(a, "y", 1);
    CALL(poll(both, 2, -1));
    say("%s", events(both[0].revents));
}

/* select with nfds far above the number of descriptors: the kernel reads no more of the sets than it has
 * descriptors for. The page after the set is not readable. */
static void select_beyond(void) {
    int a, b;
    pair(&a, &b);
    if (b >= 1024) die("b");
    long page = sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(mprotect(memory + page, page, PROT_NONE));
    fd_set *set = (fd_set *)(memory + page - sizeof(fd_set));
    FD_ZERO(set);
    FD_SET(b, set);
    struct timeval none = {0, 0};
    CALL(select(60000, set, NULL, NULL, &none));
    FD_SET(b, set);
    put(a, "x", 1);
    await(b, POLLIN);
    CALL(select(60000, set, NULL, NULL, NULL));
    say("%d", FD_ISSET(b, set) != 0);
}

/* stdio on a connection that dup2 has put in place of the standard streams. */
static void stdio_by_dup2(void) {
    int a, b, out = (int)MUST(dup(1)), in = (int)MUST(dup(0));
    pair(&a, &b);
    MUST(dup2(a, 1));
    MUST(dup2(a, 0));
    printf("through %s\n", "stdout");
    fflush(stdout);
    fputs("second line\n", stdout);
    fflush(stdout);
    put(b, "a line for stdin\n", 17);
    char *got = fgets(text, sizeof text, stdin);
    MUST(dup2(out, 1));
    MUST(dup2(in, 0));
    say("stdin: %s", got ? got : "(nothing)");
    char line[32] = "";
    get(b, line, 27);
    say("%s", line);
    MUST(close(a));
    CALL(recv(b, text, 1, 0));
    /* A server's child, as of inetd but without exec. */
    pair(&a, &b);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        MUST(dup3(b, 1, 0));
        MUST(close(a));
        MUST(close(b));
        printf("from the child\n");
        exit(0);
    }
    MUST(close(b));
    reap(child);
    get(a, line, 15);
    say("%.15s", line);
    CALL(recv(a, text, 1, 0));
}

static void addresses_of_bytes(void) {
    int a, b;
    pair(&a, &b);
    struct sockaddr_storage from;
    socklen_t len = sizeof from;
    put(a, "abcdefgh", 8);
    await_bytes(b, 8);
    CALL(recvfrom(b, text, 1, 0, (struct sockaddr *)&from, &len));
    say("length %u", len);
    CALL(recvfrom(b, text, 1, 0, (struct sockaddr *)&from, NULL));
    len = (socklen_t)-5;
    CALL(recvfrom(b, text, 1, 0, (struct sockaddr *)&from, &len));
    CALL(recvfrom(b, text, 1, 0, NULL, &len));
    CALL(sendto(a, "x", 1, 0, (struct sockaddr *)&from, 200));
    CALL(sendto(a, "x", 1, 0, (struct sockaddr *)&from, (socklen_t)-1));
    CALL(sendto(a, "x", 1, 0, (struct sockaddr *)8, 16));
    CALL(sendto(a, "x", 1, 0, (struct sockaddr *)&from, 16));
    CALL(sendto(a, "x", 1, 0, NULL, 200));
    struct iovec piece = {"x", 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_name = (void *)8, .msg_namelen = 16};
    CALL(sendmsg(a, &message, 0));
    message = (struct msghdr){.msg_iov = &piece, .msg_iovlen = 2000};
    CALL(sendmsg(a, &message, 0));
    CALL(recvmsg(b, &message, 0));
    CALL(writev(a, &piece, 1025));
    CALL(readv(b, &piece, -1));
}

/* sendfile from each kind of file. */
static void sendfile_sources(void) {
    int a, b, ends[2], file, c, d;
    pair(&a, &b);
    pair(&c, &d);
    MUST(pipe(ends));
    MUST(write(ends[1], "pipe", 4));
    put(d, "sock", 4);
    await_bytes(c, 4);
    CALL(sendfile(a, ends[0], NULL, 4));
    CALL(sendfile(a, c, NULL, 4));
    file = (int)MUST(open("/tmp", O_RDONLY));
    CALL(sendfile(a, file, NULL, 4));
    MUST(close(file));
    file = (int)MUST(open("/dev/zero", O_RDONLY));
    CALL(sendfile(a, file, NULL, 1000));
    CALL(sendfile(a, file, NULL, 0));
    CALL(sendfile(a, file, NULL, -1));
    get(b, text, 64);
    MUST(close(file));
    file = (int)MUST(open("/dev/null", O_WRONLY));
    CALL(sendfile(a, file, NULL, 4));
    CALL(sendfile(a, -1, NULL, 4));
    CALL(sendfile(-1, file, NULL, 4));
    CALL(shutdown(a, SHUT_WR));
    file = (int)MUST(open("/proc/self/exe", O_RDONLY));
    signal(SIGPIPE, SIG_IGN);
    CALL(sendfile(a, file, NULL, 4));
}

/* SPLICE_F_NONBLOCK applies to the pipe, O_NONBLOCK to the socket. */
static void splice_waits(void) {
    int a, b, ends[2], full[2];
    pair(&a, &b);
    MUST(pipe(ends));
    MUST(pipe(full));
    MUST(fcntl(full[1], F_SETFL, O_NONBLOCK));
    static char block[65536];
    while (write(full[1], block, sizeof block) > 0) continue;
    MUST(fcntl(full[1], F_SETFL, 0));
    CALL(splice(ends[0], NULL, a, NULL, 5, SPLICE_F_NONBLOCK));
    CALL(splice(ends[0], NULL, a, NULL, 0, 0));
    CALL(splice(a, NULL, ends[1], NULL, 0, 0));
    CALL(splice(a, NULL, full[1], NULL, 5, SPLICE_F_NONBLOCK));
    struct later later = {b, thread_id(), 0};
    pthread_t thread;
    pthread_create(&thread, NULL, send_later, &later);
    CALL(splice(a, NULL, ends[1], NULL, 5, SPLICE_F_NONBLOCK));
    pthread_join(thread, NULL);
    CALL(read(ends[0], text, 10));
    MUST(fcntl(a, F_SETFL, O_NONBLOCK));
    CALL(splice(a, NULL, ends[1], NULL, 5, 0));
    put(b, "abc", 3);
    await_bytes(a, 3);
    MUST(fcntl(full[1], F_SETFL, O_NONBLOCK));
    CALL(splice(a, NULL, full[1], NULL, 5, 0));
    CALL(splice(a, NULL, ends[1], NULL, 5, 0));
    CALL(splice(ends[0], NULL, a, NULL, 5, 0));
    get(b, text, 3);
    say("%.3s", text);
}

static void name_and_mark(void) {
    int a, b, n = -1;
    pair(&a, &b);
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    CALL(getsockopt(a, SOL_SOCKET, 28 /* SO_PEERNAME */, &at, &len));
    say("family %d, address %s, length %u", at.sin_family, inet_ntoa(at.sin_addr), len);
    char room[100];
    len = sizeof room;
    CALL(getsockopt(a, SOL_SOCKET, 28, room, &len));
    len = 4;
    CALL(getsockopt(a, SOL_SOCKET, 28, room, &len));
    /* FIONREAD counts the bytes up to the urgent byte, also after that was read with MSG_OOB. */
    put(a, "ab", 2);
    MUST(send(a, "c", 1, MSG_OOB));
    put(a, "de", 2);
    await(b, POLLPRI);
    CALL(ioctl(b, FIONREAD, &n));
    say("%d", n);
    CALL(recv(b, text, 10, 0));
    CALL(recv(b, text, 1, MSG_OOB));
    CALL(ioctl(b, FIONREAD, &n));
    say("%d", n);
    await(b, POLLIN);
    CALL(recv(b, text, 10, 0));
    CALL(ioctl(b, FIONREAD, &n));
    say("%d", n);
}

static volatile sig_atomic_t heard;
static void hear(int signal) { (void)signal, heard++; }

/* Calls that do not wait, or that ask for no bytes. */
static void in_vain(void) {
    int a, b;
    pair(&a, &b);
    sigset_t none, alarm;
    sigemptyset(&none);
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    signal(SIGALRM, hear);
    MUST(sigprocmask(SIG_BLOCK, &alarm, NULL));
    MUST(raise(SIGALRM));
    struct pollfd one = {a, POLLIN, 0};
    struct timespec zero = {0, 0};
    CALL(ppoll(&one, 1, &zero, &none));
    say("%d signals", heard);
    CALL(ppoll(&one, 1, &zero, &none));
    MUST(raise(SIGALRM));
    put(b, "x", 1);
    await(a, POLLIN);
    CALL(ppoll(&one, 1, &zero, &none));
    /* A call that finds events does not take the pending signal. 1 ms later the library also asks the kernel. */
    usleep(1000);
    CALL(ppoll(&one, 1, &zero, &none));
    say("%d signals", heard);
    get(a, text, 1);
    struct timeval soon = {0, 20000};
    MUST(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon));
    CALL(recv(a, text, 0, 0));
    CALL(recv(a, text, 0, MSG_DONTWAIT));
    CALL(recv(a, text, 1, 0));
}

static volatile sig_atomic_t pipes;
static void count_pipe(int signal) { (void)signal, pipes++; }

/* Each failed call raises one SIGPIPE, also splice from a connection into a pipe. */
static void splice_broken_pipe(void) {
    int a, b, ends[2];
    pair(&a, &b);
    signal(SIGPIPE, count_pipe);
    MUST(pipe(ends));
    MUST(close(ends[0]));
    put(a, "abc", 3);
    await_bytes(b, 3);
    CALL(splice(b, NULL, ends[1], NULL, 3, 0));
    say("%d signals", pipes);
    MUST(shutdown(a, SHUT_WR));
    MUST(pipe(ends));
    MUST(write(ends[1], "abc", 3));
    CALL(splice(ends[0], NULL, a, NULL, 3, 0));
    say("%d signals", pipes);
    CALL(write(a, "x", 1));
    say("%d signals", pipes);
    CALL(send(a, "x", 1, MSG_NOSIGNAL));
    say("%d signals", pipes);
    CALL(writev(a, &(struct iovec){"x", 1}, 1));
    say("%d signals", pipes);
}

/* The error queue reports the completion of a send with MSG_ZEROCOPY. */
static void zerocopy(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int one = 1, l = listener(AF_INET, 16, &at, &len), c = tcp(AF_INET, 0);
    MUST(setsockopt(c, SOL_SOCKET, 60 /* SO_ZEROCOPY */, &one, sizeof one));
    MUST(connect(c, (struct sockaddr *)&at, len));
    int s = (int)MUST(accept(l, NULL, NULL));
    CALL(send(c, text, 64, 0x4000000 /* MSG_ZEROCOPY */));
    get(s, text, 64);
    struct pollfd errors = {c, 0, 0};
    CALL(poll(&errors, 1, -1));
    say("%s", events(errors.revents));
    char room[256];
    struct msghdr message = {.msg_control = room, .msg_controllen = sizeof room};
    CALL(recvmsg(c, &message, MSG_ERRQUEUE));
}

const struct test gap_cases[] = {{"gap_poll_urgent", poll_urgent},
                                 {"gap_poll_epoll_set", poll_epoll_set},
                                 {"gap_select_beyond", select_beyond},
                                 {"gap_stdio_by_dup2", stdio_by_dup2},
                                 {"gap_addresses_of_bytes", addresses_of_bytes},
                                 {"gap_sendfile_sources", sendfile_sources},
                                 {"gap_splice_waits", splice_waits},
                                 {"gap_in_vain", in_vain},
                                 {"gap_name_and_mark", name_and_mark},
                                 {"gap_splice_broken_pipe", splice_broken_pipe},
                                 {"gap_zerocopy", zerocopy},
                                 {NULL, NULL}};
