/* Sockets of a process that has confined itself with seccomp, as sshd's network child does: any other system call
 * kills it. Its sockets go on working, and its sends wake peers that begin to sleep in another call. */
#include "semantics.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

static char text[64];

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* Allows descriptor numbers below `last`. */
static void confine_below(rlim_t last) {
    struct rlimit limit = {last, last};
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    static struct sock_filter allowed[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_read),
        ALLOW(SYS_write),
        ALLOW(SYS_close),
        ALLOW(SYS_futex),
        ALLOW(SYS_poll),
        ALLOW(SYS_ppoll),
        ALLOW(SYS_brk),
        ALLOW(SYS_mmap),
        ALLOW(SYS_munmap),
        ALLOW(SYS_getpid),
        ALLOW(SYS_clock_gettime),
        ALLOW(SYS_clock_nanosleep),
        ALLOW(SYS_nanosleep),
        ALLOW(SYS_rt_sigprocmask),
        ALLOW(SYS_rt_sigreturn),
        ALLOW(SYS_shutdown),
        ALLOW(SYS_clone),
        ALLOW(SYS_set_robust_list),
        ALLOW(SYS_gettid),
        ALLOW(SYS_wait4),
        ALLOW(SYS_exit),
        ALLOW(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof allowed / sizeof *allowed, allowed};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void confine(void) { confine_below(1); }

/* Answers each byte after 5 ms, when the peer sleeps. Ends after the byte 'q'. */
static void answer(int fd) {
    confine();
    char byte = 0;
    do {
        if (read(fd, &byte, 1) != 1) die("read: %s", name_of(errno));
        usleep(5000);
        if (write(fd, &byte, 1) != 1) die("write: %s", name_of(errno));
    } while (byte != 'q');
}

static void wakes(void) {
    int a, b, other, end;
    pair(&a, &b);
    pair(&other, &end);
    pid_t child = fork();
    if (!child) {
        answer(b);
        _exit(0);
    }
    MUST(close(b));
    /* In epoll_wait on a new set each time. */
    for (int i = 0; i < 5; i++) {
        int set = (int)MUST(epoll_create1(0));
        struct epoll_event event = {.events = EPOLLIN}, got;
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, a, &event));
        put(a, "e", 1);
        CALL(epoll_wait(set, &got, 1, -1));
        get(a, text, 1);
        MUST(close(set));
    }
    /* In poll with another socket. */
    for (int i = 0; i < 5; i++) {
        struct pollfd both[2] = {{a, POLLIN, 0}, {other, POLLIN, 0}};
        put(a, "p", 1);
        CALL(poll(both, 2, -1));
        get(a, text, 1);
    }
    /* In recv. */
    put(a, "q", 1);
    CALL(recv(a, text, 1, 0));
    CALL(recv(a, text, 1, 0));
    reap(child);
}

static void asks_to_write(void) {
    int a, b;
    pair(&a, &b);
    pid_t child = fork();
    if (!child) {
        MUST(close(a));
        confine();
        static char block[4096];
        ssize_t n, all = 0;
        while ((n = read(b, block, sizeof block)) > 0) all += n;
        say("child got %zd", all);
        /* The peer has closed first. */
        CALL(close(b));
        _exit(0);
    }
    MUST(close(b));
    size_t sent = 0;
    MUST(fcntl(a, F_SETFL, O_NONBLOCK));
    int set = (int)MUST(epoll_create1(0));
    static char block[65536];
    while (sent < 16 << 20) {
        struct epoll_event event = {.events = EPOLLOUT | EPOLLET}, got;
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, a, &event));
        MUST(epoll_wait(set, &got, 1, -1));
        MUST(epoll_ctl(set, EPOLL_CTL_DEL, a, NULL));
        size_t left = (16 << 20) - sent;
        ssize_t n = send(a, block, left < sizeof block ? left : sizeof block, MSG_NOSIGNAL);
        if (n > 0) sent += n;
    }
    /* Not printed: the scheduler decides whether this line or the child's comes first. */
    MUST(close(a));
    reap(child);
}

static void heard(int signal) { (void)signal; }

static void restarts(void) {
    int a, b;
    pair(&a, &b);
    struct sigaction action = {.sa_handler = heard, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGUSR1, &action, NULL));
    pid_t child = fork();
    if (!child) {
        confine();
        say("child read %zd", read(b, text, 1));
        _exit(0);
    }
    await_asleep(child);
    MUST(kill(child, SIGUSR1));
    await_asleep(child);
    put(a, "x", 1);
    reap(child);
}

/* A confined process forks: its children send and exit. The last child outlives its parent. */
static void forks(void) {
    int a, b, c, d;
    pair(&a, &b);
    pair(&c, &d);
    pid_t server = fork();
    if (!server) {
        MUST(close(a));
        MUST(close(c));
        confine_below(1024);
        for (int i = 0; i < 3; i++) {
            pid_t child = fork();
            if (child < 0) die("fork: %s", name_of(errno));
            if (!child) {
                if (write(b, "child", 5) != 5) die("write: %s", name_of(errno));
                if (i == 2) {
                    close(d);
                    if (read(b, text, 4) != 4) die("read: %s", name_of(errno));
                    if (write(b, text, 4) != 4) die("write: %s", name_of(errno));
                }
                _exit(0);
            }
            if (i == 2) _exit(0);
            int status;
            waitpid(child, &status, 0);
            if (status) die("child: %d", status);
        }
    }
    MUST(close(b));
    MUST(close(d));
    for (int i = 0; i < 3; i++) {
        get(a, text, 5);
        say("%.5s", text);
    }
    reap(server);
    /* The parent has exited, and the last child holds only one of the two connections. */
    CALL(recv(c, text, 1, 0));
    put(a, "last", 4);
    CALL(recv(a, text, 4, MSG_WAITALL));
    CALL(recv(a, text, 1, 0));
}

/* Another process changes an epoll set after this one has confined itself. */
static void has_a_set_that_others_change(void) {
    int a, b, to[2], from[2];
    char byte = 0;
    pair(&a, &b);
    MUST(pipe(to));
    MUST(pipe(from));
    int set = (int)MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, b, &event));
    pid_t child = fork();
    if (!child) {
        struct pollfd one = {.fd = set, .events = POLLIN};
        say("before: %d", poll(&one, 1, 0));
        confine();
        MUST(write(from[1], "r", 1));
        MUST(read(to[0], &byte, 1));
        say("after: %d", poll(&one, 1, 0));
        _exit(0);
    }
    MUST(read(from[0], &byte, 1));
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, b, &event));
    put(a, "x", 1);
    await_bytes(b, 1);
    MUST(write(to[1], "g", 1));
    reap(child);
}

const struct test confine_cases[] = {{"confined_wakes", wakes},
                                     {"confined_asks_to_write", asks_to_write},
                                     {"confined_restarts", restarts},
                                     {"confined_forks", forks},
                                     {"confined_has_a_set_that_others_change", has_a_set_that_others_change},
                                     {NULL, NULL}};
