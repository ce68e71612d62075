// Descriptors in fork, exec, SCM_RIGHTS, dup, close, shutdown, SIGKILL and signal handlers.
#include "cases.h"

static void half_close_send(struct end *e) { put(e, 5000); shutdown(e->fd, SHUT_WR); get(e, 700); char c; CHECK(recv(e->fd, &c, 1, 0) == 0); CHECK(send(e->fd, &c, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE); meet(e); }
static void half_close_receive(struct end *e) { get(e, 5000); char c; CHECK(recv(e->fd, &c, 1, 0) == 0); CHECK(recv(e->fd, &c, 1, 0) == 0); put(e, 700); shutdown(e->fd, SHUT_WR); meet(e); }

static void close_send(struct end *e) { put(e, 30000); put(e, 10); close(e->fd); meet(e); }
static void close_receive(struct end *e) { meet(e); get(e, 30010); char c; CHECK(recv(e->fd, &c, 1, 0) == 0); }

// A process that is killed with unread bytes resets the connection.
static void killed_unread_wait(struct end *e) { put(e, 2); meet(e); char c; ssize_t r = recv(e->fd, &c, 1, 0); printf("%zd %s\n", r, r < 0 ? strerror(errno) : ""); CHECK(recv(e->fd, &c, 1, 0) == 0); }
static void killed_unread_die(struct end *e) { meet(e); fflush(stdout); syscall(SYS_exit_group, 0); }

// A close with unread bytes resets the connection.
static void unread_send(struct end *e) { put(e, 100); meet(e); meet(e); usleep(20000); char c; ssize_t r = recv(e->fd, &c, 1, 0); printf("client: %zd %s\n", r, r < 0 ? strerror(errno) : ""); }
static void unread_receive(struct end *e) { meet(e); usleep(2000); close(e->fd); meet(e); }

static volatile sig_atomic_t pipes, alarms;
static void on_pipe(int s) { pipes++; }
static void on_alarm(int s) { alarms++; }
static void pipe_send(struct end *e) {
    struct sigaction a = {.sa_handler = on_pipe}; sigaction(SIGPIPE, &a, 0);
    meet(e); usleep(20000); char c = 0; ssize_t w = 0;
    for (int i = 0; i < 1000 && w >= 0; i++) { w = write(e->fd, &c, 1); usleep(1000); }
    int first = errno; if (first == ECONNRESET) { w = write(e->fd, &c, 1); first = errno; }
    printf("%zd %s, %d signal\n", w, strerror(first), pipes);
    CHECK(send(e->fd, &c, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE); printf("%d signal\n", pipes);
}
static void pipe_receive(struct end *e) { close(e->fd); meet(e); }

static void dup_both(struct end *e) {
    put(e, 8); meet(e); int old = e->fd; e->fd = dup(old); get(e, 4); CHECK(close(old) == 0); get(e, 4);
    rounds(e, 200, 0); int high = fcntl(e->fd, F_DUPFD_CLOEXEC, 100); CHECK(high >= 100 && dup2(high, e->fd) == e->fd); close(high);
    rounds(e, 200, 0); meet(e);
}

// A child and its parent use an inherited socket.
static pid_t fork_by_number(void) {
#ifdef SYS_fork
    return syscall(SYS_fork);
#else
    return fork();
#endif
}
static void fork_used_by(struct end *e, pid_t (*make)(void)) {
    put(e, 1000); meet(e); fflush(stdout);
    if (*e->role == 's') {
        pid_t p = make(); if (!p) { get(e, 400); put(e, 50); _exit(0); }
        int st; CHECK(waitpid(p, &st, 0) == p && st == 0); e->got += 400; e->sent += 50; get(e, 600);
        CHECK(!close(e->meet + 100) || 1);
    } else { get(e, 1050); }
    rounds(e, 300, 0); meet(e);
}
static void fork_used(struct end *e) { fork_used_by(e, fork); }
// Makes a second connection, which has no ring yet.
static struct end second(struct end *e) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}; socklen_t n = sizeof a; struct end o = {.meet = e->meet, .role = e->role};
    if (*e->role == 's') {
        int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(bind(l, (void *)&a, n) == 0 && listen(l, 5) == 0 && getsockname(l, (void *)&a, &n) == 0 && write(e->meet, &a, n) == n);
        o.fd = accept4(l, 0, 0, SOCK_CLOEXEC); close(l);
    } else {
        CHECK(read(e->meet, &a, n) == n); o.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); CHECK(connect(o.fd, (void *)&a, n) == 0);
    }
    CHECK(o.fd >= 0); return o;
}
// A raw fork comes while the connection has no ring, and parent and child then use it in turns: it gets none.
static void fork_raw(struct end *e) {
    struct end o = second(e);
    if (*e->role == 's') {
        int turn[2]; CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, turn) == 0);
        rounds(&o, 2, 0); fflush(stdout); pid_t p = fork_by_number(); int other = turn[!p];
        for (int i = 0; i < 200; i++) {
            if (p) rounds(&o, 8, i % 20 ? 0 : 500); else { CHECK(read(other, &o, sizeof o) == sizeof o); rounds(&o, 8, 0); CHECK(write(other, &o, sizeof o) == sizeof o); continue; }
            CHECK(write(other, &o, sizeof o) == sizeof o && read(other, &o, sizeof o) == sizeof o);
        }
        if (!p) _exit(0);
        int st; CHECK(waitpid(p, &st, 0) == p && st == 0);
    } else { rounds(&o, 2 + 16 * 200, 20); }
    close(o.fd); rounds(e, 100, 0); meet(e);
}
// A program that vfork has started on the connection writes, and then its parent, after wait(2). The connection has no ring at the vfork, and gets none.
static void vfork_watched(struct end *e) {
    struct end o = second(e); char b[16];
    if (*e->role == 's') {
        int go[2]; CHECK(pipe2(go, O_CLOEXEC) == 0); rounds(&o, 2, 0); fflush(stdout); pid_t p = vfork();
        if (!p) { dup2(go[0], 0); dup2(o.fd, 1); execl("/bin/sh", "sh", "-c", "read go; echo result", (char *)0); _exit(9); }
        rounds(&o, 60, 500); rounds(&o, 1000, 0); meet(e); CHECK(write(go[1], "go\n", 3) == 3);
        int st; CHECK(waitpid(p, &st, 0) == p && st == 0 && send(o.fd, "trailer\n", 8, 0) == 8); meet(e);
    } else {
        rounds(&o, 60, 500); rounds(&o, 1002, 0); meet(e); meet(e); CHECK(recv(o.fd, b, 15, MSG_WAITALL) == 15); b[15] = 0; printf("%s", b);
    }
    close(o.fd); rounds(e, 100, 0); meet(e);
}
// A child that only holds its inherited sockets, and one that closes them.
static void fork_idle(struct end *e) {
    pid_t p[2];
    for (int i = 0; i < 2; i++) if (!(p[i] = fork())) { if (i) { close(e->fd); for (int j = 5; j < 50; j++) close(j); } pause(); _exit(0); }
    usleep(10000); rounds(e, 3000, 0); meet(e);
    for (int i = 0; i < 2; i++) { kill(p[i], SIGKILL); waitpid(p[i], 0, 0); }
    rounds(e, 300, 0); meet(e);
}
// A child's first call that the library sees creates a connection.
static void fork_born(struct end *e) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}; socklen_t n = sizeof a; int l = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(l, (void *)&a, n) == 0 && listen(l, 5) == 0 && getsockname(l, (void *)&a, &n) == 0); fflush(stdout);
    int c = socket(AF_INET, SOCK_STREAM, 0); pid_t p = fork();
    struct end o = {.meet = e->meet, .role = p ? "server" : "client"};
    if (!p) { CHECK(connect(c, (void *)&a, n) == 0); o.fd = c; warm(&o); exit(0); }
    o.fd = accept(l, 0, 0); warm(&o); int st; CHECK(waitpid(p, &st, 0) == p && st == 0); close(o.fd); close(c); close(l); meet(e);
}
// A signal handler forks in the middle of a fork.
static void on_fork(int s) { pid_t p = _Fork(); if (!p) _exit(0); int e = errno; if (p > 0) waitpid(p, 0, 0); errno = e; alarms++; }
static void fork_storm(struct end *e) {
    rounds(e, 100, 0); meet(e);
    struct sigaction a = {.sa_handler = on_fork, .sa_flags = SA_RESTART}; sigaction(SIGALRM, &a, 0);
    struct itimerval t = {0};
    // Once for each fork, at different moments of it: a timer that repeats may end again before its handler returns, each time.
    for (int i = 0; i < 300 || alarms < 20; i++) { t.it_value.tv_usec = 10 + i % 40 * 20; setitimer(ITIMER_REAL, &t, 0); pid_t p = fork(); if (!p) _exit(0); int st; CHECK(waitpid(p, &st, 0) == p && st == 0); }
    t.it_value.tv_usec = 0; setitimer(ITIMER_REAL, &t, 0); signal(SIGALRM, SIG_DFL); alarm(300); rounds(e, 300, 0); meet(e);
}
// The child is the last holder.
static void fork_left(struct end *e) {
    meet(e); fflush(stdout); pid_t p = fork();
    if (p) { close(e->fd); int st; CHECK(waitpid(p, &st, 0) == p && st == 0); meet(e); return; }
    rounds(e, 500, 0); _exit(0);
}

// Waits until the child of an exec has closed its end of `gone`, and tells the other end that the socket has no ring here.
static void given(struct end *e, int *gone) { char c; close(gone[1]); CHECK(read(gone[0], &c, 1) == 0); close(gone[0]); meet(e); }
static void exec_give(struct end *e) {
    int gone[2]; CHECK(pipe2(gone, O_CLOEXEC) == 0); fflush(stdout); pid_t p = fork();
    if (!p) { dup2(e->fd, 0); dup2(e->fd, 1); execlp("cat", "cat", (char *)0); _exit(9); }
    close(e->fd); given(e, gone); int st; CHECK(waitpid(p, &st, 0) == p && st == 0); meet(e);
}
static void exec_talk(struct end *e) { meet(e); e->got = e->sent; for (int i = 0; i < 100; i++) { put(e, 100 + i); get(e, 100 + i); } shutdown(e->fd, SHUT_WR); char c; CHECK(recv(e->fd, &c, 1, 0) == 0); meet(e); }
// The program after exec uses the inherited number.
static void execl_give(struct end *e) {
    fflush(stdout); fcntl(e->fd, F_SETFD, 0); char command[64]; snprintf(command, 64, "exec cat <&%d >&%d", e->fd, e->fd);
    int gone[2]; CHECK(pipe2(gone, O_CLOEXEC) == 0); pid_t p = fork();
    if (!p) { execl("/bin/sh", "sh", "-c", command, (char *)0); _exit(9); }
    close(e->fd); given(e, gone); int st; CHECK(waitpid(p, &st, 0) == p && st == 0); meet(e);
}
// The library does not see io_uring's calls, so from then on the kernel alone carries the connection.
static void uring_both(struct end *e) {
    rounds(e, 100, 0); unsigned char parameters[120] = {0}; int ring = syscall(SYS_io_uring_setup, 4, parameters); if (ring >= 0) close(ring);
    rounds(e, 300, 0); meet(e);
}
// io_submit(2) writes between bytes of the ring.
#include <linux/aio_abi.h>
static void submit_put(struct end *e) {
    aio_context_t context = 0; unsigned char b[8]; struct io_event done; rounds(e, 100, 0); CHECK(syscall(SYS_io_setup, 1, &context) == 0);
    for (int i = 0; i < 20; i++) {
        put(e, 8); fill(b, e->sent, 8); struct iocb one = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = e->fd, .aio_buf = (uintptr_t)b, .aio_nbytes = 8}, *list = &one;
        CHECK(syscall(SYS_io_submit, context, 1L, &list) == 1 && syscall(SYS_io_getevents, context, 1L, 1L, &done, NULL) == 1 && done.res == 8); e->sent += 8; put(e, 8);
    }
    rounds(e, 100, 0); meet(e);
}
static void submit_get(struct end *e) { rounds(e, 100, 0); get(e, 480); rounds(e, 100, 0); meet(e); }
// If a ring has unread bytes, io_uring_setup fails as with kernel.io_uring_disabled, so the program reads them in another way.
#include <linux/io_uring.h>
static ssize_t receive_by_uring(struct end *e, void *data, unsigned len) {
    struct io_uring_params about = {0}; int ring = syscall(SYS_io_uring_setup, 4, &about); 
    if (ring < 0) {
        int set = epoll_create1(EPOLL_CLOEXEC); struct epoll_event in = {EPOLLIN}; CHECK(epoll_ctl(set, EPOLL_CTL_ADD, e->fd, &in) == 0 && epoll_wait(set, &in, 1, -1) == 1);
        close(set); return recv(e->fd, data, len, 0);
    }
    size_t size = about.cq_off.cqes + about.cq_entries * sizeof(struct io_uring_cqe);
    char *rings = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entry = mmap(0, about.sq_entries * sizeof *entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    CHECK(rings != MAP_FAILED && entry != MAP_FAILED);
    *entry = (struct io_uring_sqe){.opcode = IORING_OP_RECV, .fd = e->fd, .addr = (uintptr_t)data, .len = len};
    *(unsigned *)(rings + about.sq_off.array) = 0; __atomic_store_n((unsigned *)(rings + about.sq_off.tail), 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) >= 0); return ((struct io_uring_cqe *)(rings + about.cq_off.cqes))->res;
}
static void uring_rest(struct end *e) { unsigned char b[64]; rounds(e, 100, 0); meet(e); ssize_t r = receive_by_uring(e, b, 64); printf("%zd bytes\n", r); match(e, b, 5); meet(e); }
static void uring_put(struct end *e) { rounds(e, 100, 0); put(e, 5); meet(e); meet(e); }
// A protocol in the kernel (TLS) would not see the ring's unread bytes, so it is refused as on a host without its module. The kernel refuses this
// one to programs, by another error. The report tells the test that the ring had the bytes.
static void ulp_get(struct end *e) {
    rounds(e, 100, 0); meet(e); CHECK(setsockopt(e->fd, IPPROTO_TCP, TCP_ULP, "mptcp", 6) == -1);
    if (errno == ENOENT) { int f = open(getenv("FASTSOCK_REPORT"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600); CHECK(write(f, "refused\n", 8) == 8 && close(f) == 0); }
    get(e, 5); CHECK(setsockopt(e->fd, IPPROTO_TCP, TCP_ULP, "mptcp", 6) == -1); printf("%s\n", strerror(errno));
    meet(e); rounds(e, 100, 0); meet(e);
}
static void ulp_put(struct end *e) { rounds(e, 100, 0); put(e, 5); meet(e); meet(e); rounds(e, 100, 0); meet(e); }
static void vfork_give(struct end *e) {
    fflush(stdout); int other = open("/dev/null", O_RDONLY); pid_t p = vfork();
    if (!p) { dup2(e->fd, 0); dup2(e->fd, 1); close(e->fd); close(other); execlp("cat", "cat", (char *)0); _exit(9); }
    CHECK(fcntl(other, F_GETFD) >= 0); close(e->fd); meet(e); int st; CHECK(waitpid(p, &st, 0) == p && st == 0); meet(e);
}
// A program without the connection runs at the same time.
#include <spawn.h>
int pidfd_spawnp(int *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *, char *const *) __attribute__((weak));
static void spawn_true(struct end *e) {
    char *words[] = {"true", 0}; int child = -1, error = pidfd_spawnp ? pidfd_spawnp(&child, "true", 0, 0, words, environ) : ENOSYS; siginfo_t how;
    // A C library or a kernel without it.
    CHECK(error == ENOSYS || (error == 0 && waitid(P_PIDFD, child, &how, WEXITED) == 0 && how.si_status == 0 && close(child) == 0));
}
static void exec_other(struct end *e) { for (int i = 0; i < 5; i++) { CHECK(system("true") == 0); spawn_true(e); rounds(e, 300, 0); } FILE *f = popen("echo x", "r"); char b[8]; CHECK(fgets(b, 8, f) && pclose(f) == 0); rounds(e, 300, 0); meet(e); }

static void send_fd(int over, int fd) {
    char c = 'f', room[CMSG_SPACE(sizeof fd)] = {0}; struct iovec v = {&c, 1}; struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m); h->cmsg_level = SOL_SOCKET; h->cmsg_type = SCM_RIGHTS; h->cmsg_len = CMSG_LEN(sizeof fd); memcpy(CMSG_DATA(h), &fd, sizeof fd);
    if (sendmsg(over, &m, 0) != 1) _exit(7);
}
static int receive_fd(int over) {
    char c, room[CMSG_SPACE(sizeof(int))]; int fd; struct iovec v = {&c, 1}; struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(over, &m, 0) != 1) _exit(8); memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd); return fd;
}
static void scm_give(struct end *e) {
    int s[2]; CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0); fflush(stdout);
    pid_t p = fork(); if (!p) { close(e->fd); e->fd = receive_fd(s[1]); rounds(e, 500, 0); _exit(0); }
    send_fd(s[0], e->fd); close(e->fd); meet(e); int st; CHECK(waitpid(p, &st, 0) == p && st == 0); meet(e);
}
static void scm_talk(struct end *e) { meet(e); rounds(e, 500, 0); meet(e); }

static void killed_wait(struct end *e) {
    get(e, 1000); meet(e); usleep(20000); char c; ssize_t r;
    while ((r = recv(e->fd, &c, 1, 0)) > 0) match(e, (unsigned char *)&c, 1);
    printf("%s\n", r == 0 ? "the end" : strerror(errno)); errno = 0;
}
static void killed_die(struct end *e) { put(e, 1500); meet(e); pid_t p = getpid(); usleep(2000); fflush(stdout); syscall(SYS_exit_group, 0); }

static void signal_wait(struct end *e) {
    struct sigaction a = {.sa_handler = on_alarm}; sigaction(SIGALRM, &a, 0); char b[8];
    // Repeated: on a busy machine the first alarm may come before the call.
    struct itimerval again = {{0, 30000}, {0, 30000}}, never = {{0, 0}, {0, 0}}, t = {{0, 0}, {0, 30000}}; setitimer(ITIMER_REAL, &again, 0);
    CHECK(recv(e->fd, b, 8, 0) == -1 && errno == EINTR); setitimer(ITIMER_REAL, &never, 0);
    a.sa_flags = SA_RESTART; sigaction(SIGALRM, &a, 0); alarms = 0; setitimer(ITIMER_REAL, &t, 0);
    meet(e); get(e, 8); while (!alarms) usleep(1000);
    printf("%d alarms\n", alarms); put(e, 8); rounds(e, 300, 0); meet(e);
}
static void signal_send(struct end *e) { meet(e); usleep(80000); put(e, 8); get(e, 8); rounds(e, 300, 0); meet(e); }

static void *cancelled(void *p) { struct end *e = p; char b[8]; recv(e->fd, b, 8, 0); return 0; }
static void *spinning(void *p) { struct end *e = p; for (;;) { char b[8]; recv(e->fd, b, 0, MSG_DONTWAIT); send(e->fd, b, 0, 0); } return 0; }
static void cancel_wait(struct end *e) {
    pthread_t t; void *r;
    for (int i = 0; i < 5; i++) { CHECK(pthread_create(&t, 0, i % 2 ? spinning : cancelled, e) == 0); usleep(5000); pthread_cancel(t); CHECK(pthread_join(t, &r) == 0 && r == PTHREAD_CANCELED); }
    meet(e); rounds(e, 300, 0); meet(e);
}
static void cancel_send(struct end *e) { meet(e); rounds(e, 300, 0); meet(e); }

static void *reader(void *p) { struct end *e = p; get(e, 6000000); return 0; }
static void threads_both(struct end *e) { pthread_t t; CHECK(pthread_create(&t, 0, reader, e) == 0); for (int i = 0; i < 60000; i++) put(e, 100); pthread_join(t, 0); meet(e); }

// The kernel's own answer: a system call that the library does not see.
static int kernel_cork(int fd) {
    int on = -1; socklen_t n = sizeof on; long failed;
#ifdef __x86_64__
    register long value asm("r10") = (long)&on, length asm("r8") = (long)&n;
    asm volatile("syscall" : "=a"(failed) : "a"(SYS_getsockopt), "D"((long)fd), "S"((long)IPPROTO_TCP), "d"((long)TCP_CORK), "r"(value), "r"(length) : "rcx", "r11", "memory");
#else
    failed = getsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, &n);
#endif
    return failed ? -1 : on;
}
// TCP_CORK is set on the kernel's socket as soon as the kernel, another process or another number has a use for it.
static void cork(struct end *e, int on) { CHECK(setsockopt(e->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on) == 0); }
static void cork_client(struct end *e) {
    int on = -1, st; socklen_t n = sizeof on;
    cork(e, 1); CHECK(getsockopt(e->fd, IPPROTO_TCP, TCP_CORK, &on, &n) == 0); printf("asked %d, kernel %d\n", on, kernel_cork(e->fd)); cork(e, 0); printf("ended %d\n", kernel_cork(e->fd));
    rounds(e, 100, 0); cork(e, 1); CHECK(getsockopt(e->fd, IPPROTO_TCP, TCP_CORK, &on, &n) == 0); cork(e, 1); cork(e, 0); printf("twice %d\n", kernel_cork(e->fd));
    for (int i = 0; i < 2; i++) {
        rounds(e, 100, 0); cork(e, 1); fflush(stdout);
        pid_t p = i ? vfork() : fork(); if (!p) _exit(kernel_cork(e->fd));
        CHECK(waitpid(p, &st, 0) == p); printf("child %d\n", WEXITSTATUS(st)); cork(e, 0); printf("ended %d\n", kernel_cork(e->fd));
    }
    unsigned char b[8]; struct iovec v = {b, 8}; struct mmsghdr m = {{.msg_iov = &v, .msg_iovlen = 1}};
    rounds(e, 100, 0); cork(e, 1); fill(b, e->sent, 8); CHECK(sendmmsg(e->fd, &m, 1, 0) == 1); e->sent += 8; printf("sent %d\n", kernel_cork(e->fd)); cork(e, 0); printf("ended %d\n", kernel_cork(e->fd)); get(e, 8);
    rounds(e, 100, 0); cork(e, 1); int other = dup(e->fd); printf("dup %d\n", kernel_cork(other)); cork(e, 0); printf("ended %d\n", kernel_cork(other)); close(other);
    rounds(e, 100, 0); meet(e);
}
static void cork_server(struct end *e) { rounds(e, 601, 0); meet(e); }

// A child that only executes a program carries out none of its parent's deferred calls.
static void *corked_rounds(void *q) { struct end *e = q; while (!is_over) { for (int i = 0; i < 100; i++) { cork(e, 1); put(e, 8); cork(e, 0); } get(e, 800); } return 0; }
static void cork_is_off(struct end *e) { CHECK(kernel_cork(e->fd) == 0); }
static void cork_exec(struct end *e) { exec_beside(e, 500, corked_rounds, cork_is_off); shutdown(e->fd, SHUT_WR); meet(e); }
static void cork_echo(struct end *e) { echo(e); meet(e); }

static void urgent_send(struct end *e) { put(e, 100); CHECK(send(e->fd, "!", 1, MSG_OOB) == 1); put(e, 100); meet(e); rounds(e, 200, 0); meet(e); }
static void urgent_receive(struct end *e) { meet(e); usleep(5000); char c = 0; get(e, 100); ssize_t r = recv(e->fd, &c, 1, MSG_OOB); printf("urgent %zd %c\n", r, c); get(e, 100); rounds(e, 200, 0); meet(e); }

static void stream_both(struct end *e) {
    rounds(e, 300, 0); meet(e); FILE *in = fdopen(e->fd, "r"), *out = fdopen(dup(e->fd), "w"); char b[32];
    for (int i = 0; i < 300; i++) { fprintf(out, "line %d\n", i); fflush(out); CHECK(fgets(b, sizeof b, in) && atoi(b + 5) == i); }
    meet(e); shutdown(e->fd, SHUT_WR); CHECK(fgets(b, sizeof b, in) == 0); fclose(out); fclose(in); meet(e);
}

// dprintf and its like write by a function of the C library's own. Floating-point arguments are in registers of their own.
static int by_list(int fd, const char *format, ...) { va_list l; va_start(l, format); int n = vdprintf(fd, format, l); va_end(l); return n; }
int __dprintf_chk(int fd, int flag, const char *format, ...);
static int checked_list(int fd, const char *format, ...) { int __vdprintf_chk(int, int, const char *, va_list); va_list l; va_start(l, format); int n = __vdprintf_chk(fd, 1, format, l); va_end(l); return n; }
static void print_put(struct end *e) {
    rounds(e, 300, 0);
    put(e, 8); for (int i = 0; i < 50; i++) {
        int n = dprintf(e->fd, "%d %s %.1f %.1f %d %d %d %.1f;", i, "word", 1.5, 2.5, 3, 4, 5, 6.5); CHECK(n > 20);
        CHECK(write(e->fd, "ring;", 5) == 5 && by_list(e->fd, "%d %.1f;", i, 0.5) > 4 && write(e->fd, "ring;", 5) == 5);
        CHECK(__dprintf_chk(e->fd, 1, "%s %.2f;", "checked", 0.25) == 13 && checked_list(e->fd, "%d;", i) > 1);
    }
    meet(e); rounds(e, 100, 0); meet(e);
}
static void print_get(struct end *e) {
    rounds(e, 300, 0); get(e, 8); char want[128], b[128];
    for (int i = 0; i < 50; i++) {
        int n = snprintf(want, sizeof want, "%d word 1.5 2.5 3 4 5 6.5;ring;%d 0.5;ring;checked 0.25;%d;", i, i, i);
        CHECK(recv(e->fd, b, n, MSG_WAITALL) == n); if (memcmp(b, want, n)) FAIL("%d: %.*s", i, n, b);
    }
    meet(e); rounds(e, 100, 0); meet(e);
}
// A connection whose ring has unread bytes becomes stdin, whose functions do not see them: no gap, the connection is reset.
static void stdin_get(struct end *e) {
    rounds(e, 300, 0); meet(e); char b[64]; CHECK(dup2(e->fd, 0) == 0 && write(e->meet, "d", 1) == 1); errno = 0;
    char *line = fgets(b, sizeof b, stdin);
    if (line && strcmp(line, "first\n")) FAIL("a gap: %s", line);
    if (!line && errno != ECONNRESET && errno != ENOTCONN) FAIL("%s", strerror(errno));
}
static void stdin_put(struct end *e) {
    char c; rounds(e, 300, 0); CHECK(write(e->fd, "first\n", 6) == 6); meet(e); CHECK(read(e->meet, &c, 1) == 1);
    send(e->fd, "second\n", 7, MSG_NOSIGNAL);
}

static void number_both(struct end *e) {
    // A number that is reused for another file.
    meet(e); int fd = e->fd; close(fd); int p[2]; CHECK(pipe(p) == 0 && (p[0] == fd || p[1] == fd || 1));
    CHECK(write(p[1], "pipe", 4) == 4); char b[8]; CHECK(read(p[0], b, 8) == 4); meet(e);
}
// A number that the library has not seen closed is a new socket, which keeps its own options.
static void direct_close(int fd) {
#ifdef __x86_64__
    long result; __asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_close), "D"((long)fd) : "rcx", "r11", "memory"); (void)result;
#else
    close(fd);
#endif
}
static void reused_client(struct end *e) {
    rounds(e, 300, 0); meet(e); struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}; socklen_t n = sizeof at;
    int l = socket(AF_INET, SOCK_STREAM, 0), s, fd = e->fd; CHECK(bind(l, (void *)&at, n) == 0 && listen(l, 1) == 0 && getsockname(l, (void *)&at, &n) == 0);
    direct_close(fd); while ((s = socket(AF_INET, SOCK_STREAM, 0)) != fd) CHECK(s >= 0 && s < fd);
    struct linger g = {9, 9}; n = sizeof g; CHECK(connect(s, (void *)&at, sizeof at) == 0 && getsockopt(s, SOL_SOCKET, SO_LINGER, &g, &n) == 0);
    if (g.l_onoff) FAIL("the new connection would be reset at its close"); meet(e);
}
static void reused_server(struct end *e) { rounds(e, 300, 0); put(e, 8); meet(e); meet(e); }
static void socket_option(struct end *e) {
    int two = 2, one = 1; rounds(e, 100, 0); CHECK(setsockopt(e->fd, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two) == 0); rounds(e, 100, 0);
    CHECK(setsockopt(e->fd, SOL_SOCKET, SO_TIMESTAMP, &one, sizeof one) == 0); rounds(e, 100, 0); meet(e);
}
// A handler jumps out of calls at any point.
#include <setjmp.h>
static sigjmp_buf back; static volatile sig_atomic_t may_jump;
static void on_jump(int s) { if (may_jump) { may_jump = 0; siglongjmp(back, 1); } }
static void jump_receive(struct end *e) {
    struct sigaction a = {.sa_handler = on_jump}; sigaction(SIGALRM, &a, 0); unsigned char b[8]; int jumps = 0;
    struct itimerval t = {{0, 0}, {0, 0}};
    // Calls that change a registration.
    int set = epoll_create1(EPOLL_CLOEXEC); struct epoll_event v = {EPOLLIN}; CHECK(epoll_ctl(set, EPOLL_CTL_ADD, e->fd, &v) == 0);
    for (int i = 0; i < 400; i++) {
        t.it_value.tv_usec = 20 + i % 60;
        if (!sigsetjmp(back, 1)) { may_jump = 1; setitimer(ITIMER_REAL, &t, 0); for (int j = 0; j < 2000; j++) { v.events = j % 2 ? EPOLLIN : EPOLLIN | EPOLLOUT; epoll_ctl(set, EPOLL_CTL_MOD, e->fd, &v); } may_jump = 0; } else jumps++;
        t.it_value.tv_usec = 0; setitimer(ITIMER_REAL, &t, 0);
        CHECK(epoll_wait(set, &v, 1, 0) >= 0); v.events = EPOLLIN; CHECK(epoll_ctl(set, EPOLL_CTL_MOD, e->fd, &v) == 0);
        put(e, 8); CHECK(epoll_wait(set, &v, 1, 60000) == 1 && v.events == EPOLLIN); get(e, 8);
    }
    close(set);
    // Only calls with MSG_PEEK are interrupted: a jump out of a read loses bytes on the kernel, too.
    for (int i = 0; i < 400; i++) {
        t.it_value.tv_usec = 20 + i % 60; t.it_interval.tv_usec = 0; 
        if (!sigsetjmp(back, 1)) { may_jump = 1; setitimer(ITIMER_REAL, &t, 0); for (int j = 0; j < 2000; j++) recv(e->fd, b, 8, MSG_PEEK | MSG_DONTWAIT); may_jump = 0; } else jumps++;
        t.it_value.tv_usec = 0; setitimer(ITIMER_REAL, &t, 0);
        put(e, 8); get(e, 8);
    }
    rounds(e, 300, 0); alarm(300); meet(e); printf("jumped %s\n", jumps ? "out" : "never");
}
static void jump_send(struct end *e) { for (int i = 0; i < 800; i++) { get(e, 8); put(e, 8); } rounds(e, 300, 0); meet(e); }

// A process that has confined itself makes only the program's system calls, also for bytes that its ring had before.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
static void confine(struct end *e, int by_prctl) {
    static struct sock_filter allowed[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#ifdef SYS_poll
        ALLOW(SYS_poll), ALLOW(SYS_epoll_wait), ALLOW(SYS_fork),
#else
        ALLOW(SYS_ppoll), ALLOW(SYS_epoll_pwait),
#endif
        // System calls of the C library: fork(3), and a clock without a vDSO.
        ALLOW(SYS_clone), ALLOW(SYS_set_robust_list), ALLOW(SYS_rt_sigprocmask), ALLOW(SYS_wait4), ALLOW(SYS_clock_gettime),
        ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_close), ALLOW(SYS_exit_group), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof allowed / sizeof *allowed, allowed};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (by_prctl) CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    else CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}
static void confined_rounds(struct end *e, int n) {
    unsigned char b[8];
    for (int i = 0; i < n; i++) { fill(b, e->sent, 8); CHECK(write(e->fd, b, 8) == 8); e->sent += 8; CHECK(read(e->fd, b, 8) == 8); match(e, b, 8); }
}
static void confined_by(struct end *e, int by_prctl) {
    struct epoll_event in = {EPOLLIN}, got; int set = epoll_create1(EPOLL_CLOEXEC); CHECK(epoll_ctl(set, EPOLL_CTL_ADD, e->fd, &in) == 0);
    rounds(e, 100, 0); meet(e); confine(e, by_prctl); struct pollfd p = {e->fd, POLLIN}; unsigned char b[8];
    CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLIN); CHECK(epoll_wait(set, &got, 1, -1) == 1 && got.events == EPOLLIN);
    CHECK(write(e->fd, b, 0) == 0); CHECK(read(e->fd, b, 3) == 3); match(e, b, 3);
    // A child of fork(2) has its parent's filter.
    pid_t child = fork(); if (!child) { confined_rounds(e, 0); CHECK(read(e->fd, b, 5) == 5); match(e, b, 5); confined_rounds(e, 1); _exit(0); }
    int st; CHECK(waitpid(child, &st, 0) == child && st == 0); e->sent += 8; e->got += 13;
    CHECK(poll(&p, 1, 0) == 0 && epoll_wait(set, &got, 1, 0) == 0); confined_rounds(e, 100); meet(e); close(e->fd); close(set);
}
static void confined_prctl(struct end *e) { confined_by(e, 1); }
static void confined_syscall(struct end *e) { confined_by(e, 0); }
static void confined_talk(struct end *e) { rounds(e, 100, 0); put(e, 8); meet(e); for (int i = 0; i < 101; i++) { get(e, 8); put(e, 8); } meet(e); }

// Calls that fail change nothing: the ring carries afterwards as before (the test counts pins).
static void failing_probes(struct end *e) {
    unsigned char parameters[120] = {0}; struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW); struct sock_fprog program = {1, &all};
    rounds(e, 100, 0);
    CHECK(syscall(SYS_io_uring_setup, 0, parameters) == -1);
    struct { unsigned version; int pid; } head = {0x20080522, 0}; struct { unsigned effective, permitted, inheritable; } none[2] = {{0}};
    CHECK(syscall(SYS_capset, &head, none) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == -1 && errno == EACCES);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == -1 && errno == EACCES);
    CHECK(prctl(PR_SET_SECCOMP, 77, &program) == -1 && errno == EINVAL);
    rounds(e, 300, 0); meet(e);
}

// Calls that fail do not touch a connection whose ring has unread bytes (the test counts pins).
static void failing_get(struct end *e) {
    rounds(e, 100, 0); meet(e); char *none[] = {"none", 0}; int other = dup(e->meet), tube[2]; CHECK(other >= 0 && pipe(tube) == 0 && fcntl(e->fd, F_SETFD, 0) == 0);
    CHECK(execve("/nonexistent", none, none) == -1 && errno == ENOENT); CHECK(execvp("no-such-program", none) == -1 && errno == ENOENT);
    CHECK(execl("/etc/passwd", "passwd", (char *)0) == -1 && errno == EACCES); CHECK(execlp("no-such-program", "x", (char *)0) == -1 && errno == ENOENT);
    CHECK(execveat(AT_FDCWD, "/nonexistent", none, none, 0) == -1 && errno == ENOENT); CHECK(fexecve(other, none, none) == -1 && errno == EACCES);
    CHECK(fdopen(e->fd, "bad") == 0 && errno == EINVAL);
    CHECK(dup3(other, e->fd, 99) == -1 && errno == EINVAL); CHECK(close_range(3, ~0u, 99) == -1 && errno == EINVAL);
    CHECK(splice(e->fd, 0, e->meet, 0, 8, 0) == -1 && errno == EINVAL);
    get(e, 8); rounds(e, 100, 0); meet(e); close(other);
}
static void failing_put(struct end *e) { rounds(e, 100, 0); put(e, 8); meet(e); rounds(e, 100, 0); meet(e); }
// splice into a full pipe, and into one without a reader, while the ring has unread bytes.
static void splice_get(struct end *e) {
    rounds(e, 100, 0); meet(e); int tube[2]; char b[4096] = {0}; CHECK(pipe(tube) == 0 && fcntl(tube[1], F_SETFL, O_NONBLOCK) == 0);
    while (write(tube[1], b, sizeof b) > 0); CHECK(errno == EAGAIN && fcntl(tube[1], F_SETFL, 0) == 0);
    CHECK(splice(e->fd, 0, tube[1], 0, 8, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN);
    CHECK(read(tube[0], b, sizeof b) == sizeof b && splice(e->fd, 0, tube[1], 0, 8, SPLICE_F_NONBLOCK) == 8); e->got += 8;
    rounds(e, 100, 0); meet(e);
}

// At the limit of its address space, a program has no new rings and sets, and goes on.
static void space_many(struct end *e) {
    struct rlimit r; char line[64]; long pages; enum { SETS = 700 };
    CHECK(getrlimit(RLIMIT_NOFILE, &r) == 0); r.rlim_cur = r.rlim_max; CHECK(setrlimit(RLIMIT_NOFILE, &r) == 0);
    // The library's table for these numbers is made before.
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(1), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    for (int n = 255; n <= 1023; n += 256) {
        int s = socket(AF_INET, SOCK_STREAM, 0); CHECK(dup2(s, n) == n); close(s); connect(n, (void *)&a, sizeof a); close(n);
    }
    int f = open("/proc/self/statm", O_RDONLY); CHECK(read(f, line, sizeof line) > 0 && sscanf(line, "%ld", &pages) == 1); close(f);
    CHECK(getrlimit(RLIMIT_AS, &r) == 0); r.rlim_cur = pages * 4096; CHECK(setrlimit(RLIMIT_AS, &r) == 0);
    int sets[SETS]; for (int i = 0; i < SETS; i++) CHECK((sets[i] = epoll_create1(0)) >= 0);
    for (int i = 0; i < SETS; i += 99) {
        struct epoll_event v = {.events = EPOLLIN}, got; CHECK(epoll_ctl(sets[i], EPOLL_CTL_ADD, e->fd, &v) == 0);
        rounds(e, 10, 0); CHECK(epoll_wait(sets[i], &got, 1, 0) >= 0);
        CHECK(epoll_ctl(sets[i], EPOLL_CTL_DEL, e->fd, 0) == 0);
    }
    rounds(e, 100, 0); meet(e);
}
static void space_few(struct end *e) { for (int i = 0; i < 8; i++) rounds(e, 10, 0); rounds(e, 100, 0); meet(e); }

struct scenario scenarios[] = {
    {"half_close", half_close_receive, half_close_send}, {"close", close_receive, close_send}, {"unread", unread_receive, unread_send}, {"pipe", pipe_receive, pipe_send},
    {"dup", dup_both, dup_both}, {"fork_used", fork_used, fork_used}, {"fork_raw", fork_raw, fork_raw}, {"vfork_watched", vfork_watched, vfork_watched}, {"fork_idle", fork_idle, fork_idle}, {"fork_left", fork_left, fork_left}, {"fork_storm", fork_storm, fork_storm}, {"fork_born", fork_born, fork_born}, {"exec", exec_give, exec_talk},
    {"vfork", vfork_give, exec_talk}, {"execl", execl_give, exec_talk}, {"uring", uring_both, uring_both}, {"exec_other", exec_other, exec_other}, {"scm", scm_give, scm_talk}, {"killed", killed_wait, killed_die}, {"killed_unread", killed_unread_wait, killed_unread_die}, {"signal", signal_wait, signal_send},
    {"cancel", cancel_wait, cancel_send}, {"threads", threads_both, threads_both}, {"urgent", urgent_receive, urgent_send}, {"cork", cork_server, cork_client}, {"cork_exec", cork_echo, cork_exec}, {"stream", stream_both, stream_both},
    {"number", number_both, number_both}, {"reused", reused_server, reused_client}, {"print", print_get, print_put}, {"print_back", print_put, print_get}, {"standard", stdin_get, stdin_put}, {"option", socket_option, socket_option}, {"jump", jump_receive, jump_send},
    {"submit", submit_get, submit_put}, {"uring_rest", uring_rest, uring_put}, {"ulp_rest", ulp_get, ulp_put}, {"probes", failing_probes, failing_probes}, {"failing", failing_get, failing_put}, {"splice", splice_get, failing_put}, {"confined_prctl", confined_talk, confined_prctl}, {"confined_syscall", confined_talk, confined_syscall}, {"space", space_many, space_few}, {0},
};
int main(int argc, char **argv) { return run_main(argc, argv); }
