// Two processes with a TCP connection, and a Unix socket to synchronize. Each case prints its observations, which are the same on the kernel alone.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <linux/sockios.h>

struct end { int fd, meet; uint64_t sent, got; const char *role; };
// `cold`: bytes go in one direction only, from the start.
struct scenario { const char *name; void (*server)(struct end *); void (*client)(struct end *); int cold; };
extern struct scenario scenarios[];

#define FAIL(...) do { fprintf(stderr, "%s: ", e->role); fprintf(stderr, __VA_ARGS__); fprintf(stderr, " (line %d)\n", __LINE__); _exit(1); } while (0)
#define CHECK(x) do { if (!(x)) FAIL("%s: errno %s", #x, strerror(errno)); } while (0)

// Returns the byte at a position of a stream.
static unsigned char pattern(uint64_t at) { return (unsigned char)((at * 2654435761u) >> 13) ^ (unsigned char)at; }
static void fill(unsigned char *b, uint64_t at, size_t n) { for (size_t i = 0; i < n; i++) b[i] = pattern(at + i); }
static void match(struct end *e, const unsigned char *b, size_t n) {
    for (size_t i = 0; i < n; i++) if (b[i] != pattern(e->got + i)) FAIL("wrong byte at %llu", (unsigned long long)(e->got + i));
    e->got += n;
}
static void put(struct end *e, size_t n) {
    static __thread unsigned char b[1 << 17];
    while (n) { size_t k = n < sizeof b ? n : sizeof b; fill(b, e->sent, k); ssize_t w = send(e->fd, b, k, 0); if (w <= 0) FAIL("send: %zd %s", w, strerror(errno)); e->sent += w; n -= w; }
}
static void get(struct end *e, size_t n) {
    static __thread unsigned char b[1 << 17];
    while (n) { size_t k = n < sizeof b ? n : sizeof b; ssize_t r = recv(e->fd, b, k, 0); if (r <= 0) FAIL("recv: %zd %s, %zu missing", r, strerror(errno), n); match(e, b, r); n -= r; }
}
// Waits until both ends have called it.
static void meet(struct end *e) { char c = 'm'; CHECK(write(e->meet, &c, 1) == 1); CHECK(read(e->meet, &c, 1) == 1 && c == 'm'); }
static void rounds(struct end *e, int n, int pause_us) {
    for (int i = 0; i < n; i++) {
        if (*e->role == 'c') { put(e, 8); get(e, 8); if (pause_us) usleep(pause_us); } else { get(e, 8); put(e, 8); }
    }
}
// Sends back what comes, eight bytes at a time, until the other end has shut down its stream.
static void echo(struct end *e) {
    unsigned char b[8]; ssize_t n;
    while ((n = recv(e->fd, b, 8, MSG_WAITALL)) == 8) { match(e, b, 8); put(e, 8); }
    CHECK(n == 0);
}
// Calls `check` after each of `n` children that execute a program (whose arguments are too long) while another thread does `work` until
// `is_over`.
static volatile int is_over;
static void exec_beside(struct end *e, int n, void *(*work)(void *), void (*check)(struct end *)) {
    static char long_one[1 << 18]; memset(long_one, 'x', sizeof long_one - 1);
    for (int i = 0; i < n; i++) {
        pthread_t t; int st; is_over = 0; CHECK(pthread_create(&t, 0, work, e) == 0); usleep(100 + i % 7 * 20);
        pid_t p = fork(); if (!p) { execl("/bin/true", "true", long_one, (char *)0); _exit(errno != E2BIG); }
        CHECK(waitpid(p, &st, 0) == p && st == 0); is_over = 1; CHECK(pthread_join(t, 0) == 0); check(e);
    }
}
// Returns how often a case repeats a step; with FEW, under strace, a tenth of it.
static int few(int n) { return getenv("FEW") ? n / 10 : n; }
// Exchanges bytes until the connection is promoted, if it ever is.
static void warm(struct end *e) { rounds(e, 60, 500); rounds(e, 300, 0); }

static int run_main(int argc, char **argv) {
    struct end end = {0}, *e = &end;
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, 0, _IOLBF, 0);
    if (argc < 2) return 2;
    struct scenario *s = scenarios;
    while (s->name && strcmp(s->name, argv[1])) s++;
    if (!s->name) return 2;
    alarm(300);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;
    int one = 1;
    if (argc == 4) {
        e->role = "client"; e->meet = atoi(argv[3]); a.sin_port = htons(atoi(argv[2]));
        fcntl(e->meet, F_SETFD, FD_CLOEXEC);
        e->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(connect(e->fd, (void *)&a, n) == 0);
        setsockopt(e->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (!s->cold) warm(e);
        s->client(e);
        return 0;
    }
    e->role = "server";
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), m[2];
    CHECK(bind(l, (void *)&a, n) == 0 && listen(l, 5) == 0 && getsockname(l, (void *)&a, &n) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, m) == 0);
    fcntl(m[0], F_SETFD, FD_CLOEXEC);
    char port[16], meet_fd[16]; snprintf(port, 16, "%d", ntohs(a.sin_port)); snprintf(meet_fd, 16, "%d", m[1]);
    pid_t child = fork();
    if (!child) { execl("/proc/self/exe", argv[0], argv[1], port, meet_fd, (char *)0); _exit(3); }
    close(m[1]); e->meet = m[0];
    e->fd = accept4(l, 0, 0, SOCK_CLOEXEC);
    CHECK(e->fd >= 0);
    setsockopt(e->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!s->cold) warm(e);
    s->server(e);
    int status; CHECK(waitpid(child, &status, 0) == child);
    if (status) FAIL("the client ended with status %x", status);
    printf("right\n");
    return 0;
}
