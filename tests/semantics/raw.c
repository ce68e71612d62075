/* Calls under other names: syscall(2), fortified and 64-bit functions. Also calls before main and after it. */
#include "semantics.h"

#include <linux/io_uring.h>
#include <sys/mman.h>

extern ssize_t __recv_chk(int, void *, size_t, size_t, int);
extern ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
extern ssize_t __read_chk(int, void *, size_t, size_t);
extern int __poll_chk(struct pollfd *, nfds_t, int, size_t);
extern int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
extern ssize_t sendfile64(int, int, off64_t *, size_t);
extern int fcntl64(int, int, ...);

static char text[64];

static void through_syscall(void) {
    int fd = (int)CALL(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0) > 0) ? (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0) : -1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    CALL(syscall(SYS_bind, fd, &at, sizeof at));
    CALL(syscall(SYS_listen, fd, 5));
    CALL(syscall(SYS_getsockname, fd, &at, &len));
    int c = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    CALL(syscall(SYS_connect, c, &at, sizeof at));
    int s = OPEN(syscall(SYS_accept4, fd, NULL, NULL, 0));
    CALL(syscall(SYS_sendto, c, "raw", 3, 0, NULL, 0));
    CALL(syscall(SYS_read, s, text, 3));
    CALL(syscall(SYS_write, s, "back", 4));
    CALL(syscall(SYS_recvfrom, c, text, 4, 0, NULL, NULL));
    struct pollfd one = {c, POLLIN, 0};
    CALL(syscall(SYS_poll, &one, 1, 0));
    int e = OPEN(syscall(SYS_epoll_create1, 0));
    struct epoll_event event = {.events = EPOLLOUT}, got;
    CALL(syscall(SYS_epoll_ctl, e, EPOLL_CTL_ADD, c, &event));
    CALL(syscall(SYS_epoll_wait, e, &got, 1, -1));
    int d = OPEN(syscall(SYS_dup, c));
    CALL(syscall(SYS_close, c));
    CALL(send(d, "dup", 3, 0));
    CALL(syscall(SYS_read, s, text, 3));
    CALL(syscall(SYS_shutdown, d, SHUT_WR));
    CALL(syscall(SYS_read, s, text, 3));
    CALL(syscall(SYS_close, -1));
    CALL(syscall(SYS_getpid) == getpid());
    CALL(syscall(99999));
}

/* Calls that wait and positional calls, with syscall(2). */
static void through_syscall_waits(void) {
    int a, b;
    pair(&a, &b);
    put(a, "abc", 3);
    await_bytes(b, 3);
    struct pollfd one = {b, POLLIN, 0};
    struct timespec none = {0, 0}, long_time = {1000, 0};
    sigset_t mask;
    sigemptyset(&mask);
    CALL(syscall(SYS_ppoll, &one, 1, &long_time, &mask, 8));
    say("%d s left", long_time.tv_sec >= 900 && long_time.tv_sec <= 1000);
    CALL(syscall(SYS_ppoll, &one, 1, &none, &mask, 16));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(b, &set);
    CALL(syscall(SYS_pselect6, b + 1, &set, NULL, NULL, &long_time, NULL));
    void *with_mask[2] = {&mask, (void *)8}, *bad[2] = {&mask, (void *)16};
    CALL(syscall(SYS_pselect6, b + 1, &set, NULL, NULL, &none, with_mask));
    CALL(syscall(SYS_pselect6, b + 1, &set, NULL, NULL, &none, bad));
    struct timeval zero = {0, 0};
    CALL(syscall(SYS_select, b + 1, &set, NULL, NULL, &zero));
    int e = OPEN(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7}, got = {0};
    MUST(epoll_ctl(e, EPOLL_CTL_ADD, b, &event));
    CALL(syscall(SYS_epoll_pwait, e, &got, 1, -1, &mask, 8));
    CALL(syscall(SYS_epoll_pwait2, e, &got, 1, &none, NULL, 0));
    CALL(syscall(SYS_epoll_pwait, e, &got, 1, 0, &mask, 16));
    struct iovec part = {text, 1};
    CALL(syscall(SYS_preadv2, b, &part, 1, -1, -1, 0));
    CALL(syscall(SYS_preadv2, b, &part, 1, 0, 0, 0));
    CALL(syscall(SYS_pwritev2, a, &part, 1, -1, -1, 0));
    await_bytes(b, 3);
    CALL(recv(b, text, 10, 0));
    say("%.3s", text);
}

static void other_names(void) {
    int a, b;
    pair(&a, &b);
    put(a, "abcdefgh", 8);
    await_bytes(b, 8);
    CALL(__recv_chk(b, text, 2, sizeof text, 0));
    CALL(__recvfrom_chk(b, text, 2, sizeof text, 0, NULL, NULL));
    CALL(__read_chk(b, text, 2, sizeof text));
    struct pollfd one = {b, POLLIN, 0};
    CALL(__poll_chk(&one, 1, 0, sizeof one));
    struct timespec none = {0, 0};
    CALL(__ppoll_chk(&one, 1, &none, NULL, sizeof one));
    CALL(fcntl64(b, F_SETFL, O_NONBLOCK));
    CALL(recv(b, text, 10, 0));
    CALL(recv(b, text, 10, 0));
    int file = (int)MUST(open("/proc/self/exe", O_RDONLY));
    CALL(sendfile64(a, file, NULL, 4));
    await_bytes(b, 4);
    CALL(recv(b, text, 10, 0));
    say("%.3s", text + 1);
    CALL(preadv(a, &(struct iovec){text, 1}, 1, 0));
    CALL(pwritev2(a, &(struct iovec){text, 1}, 1, -1, 0));
    await_bytes(b, 1);
    CALL(preadv2(b, &(struct iovec){text, 1}, 1, -1, 0));
    CALL(pread64(a, text, 1, 0));
}

/* Connections before main and after it. */
static int early[2] = {-1, -1};
__attribute__((constructor)) static void before_main(void) {
    const char *wanted = getenv("FS_EARLY");
    if (wanted) pair(&early[0], &early[1]);
}

static void at_exit(void) {
    int a, b;
    pair(&a, &b);
    put(a, "after", 5);
    get(b, text, 5);
    say("%.5s main", text);
}

/* Receives through io_uring. Returns -1 if the kernel has none. */
static int receive_by_ring(int fd, void *data, unsigned len) {
    struct io_uring_params about = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &about);
    if (ring < 0) return -1;
    size_t size = about.cq_off.cqes + about.cq_entries * sizeof(struct io_uring_cqe);
    char *rings = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entry = mmap(NULL, about.sq_entries * sizeof *entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                                      ring, IORING_OFF_SQES);
    if (rings == MAP_FAILED || (void *)entry == MAP_FAILED) die("mmap of a ring: %s", name_of(errno));
    *entry = (struct io_uring_sqe){.opcode = IORING_OP_RECV, .fd = fd, .addr = (uintptr_t)data, .len = len};
    *(unsigned *)(rings + about.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(rings + about.sq_off.tail), 1, __ATOMIC_RELEASE);
    MUST(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
    return ((struct io_uring_cqe *)(rings + about.cq_off.cqes))->res;
}

/* Receives through io_uring or else epoll, as some event loops do. */
static void ring_or_epoll(void) {
    int a, b;
    pair(&a, &b);
    put(a, "there", 5);
    int n = receive_by_ring(b, text, sizeof text);
    if (n == -1) {
        int e = (int)MUST(epoll_create1(0));
        struct epoll_event want = {.events = EPOLLIN};
        MUST(epoll_ctl(e, EPOLL_CTL_ADD, b, &want));
        MUST(epoll_wait(e, &want, 1, -1));
        n = (int)MUST(recv(b, text, sizeof text, 0));
    }
    say("%d bytes", n);
}

static void around_main(void) {
    if (!getenv("FS_EARLY")) {
        setenv("FS_EARLY", "1", 1);
        execl(self_path, "semantics", "around_main", (char *)NULL);
        die("exec");
    }
    put(early[0], "before", 6);
    get(early[1], text, 6);
    say("%.6s main", text);
    atexit(at_exit);
}

const struct test raw_cases[] = {{"raw_syscall", through_syscall},
                                 {"raw_syscall_waits", through_syscall_waits},
                                 {"raw_other_names", other_names},
                                 {"raw_ring_or_epoll", ring_or_epoll},
                                 {"around_main", around_main},
                                 {NULL, NULL}};
