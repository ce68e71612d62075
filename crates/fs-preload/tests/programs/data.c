// Calls that move bytes on one descriptor.
#include "cases.h"

static void nothing(struct end *e) { (void)e; }
// A round of ends that yield takes a time slice of each other running program, 5 to 10 ms on a busy machine.
static void pingpong(struct end *e) { rounds(e, few(4000), 0); meet(e); }

static void bulk_send(struct end *e) { put(e, 40 << 20); get(e, 1); for (int i = 0; i < 200; i++) { put(e, 1 + i * 997); get(e, 3); } meet(e); }
static void bulk_receive(struct end *e) { get(e, 40 << 20); put(e, 1); for (int i = 0; i < 200; i++) { get(e, 1 + i * 997); put(e, 3); } meet(e); }

static void stream_send(struct end *e) { for (int i = 0; i < 300; i++) { put(e, 100); usleep(500); } put(e, 40 << 20); meet(e); }
static void stream_receive(struct end *e) { for (int i = 0; i < 300; i++) get(e, 100); get(e, 40 << 20); meet(e); }

static void vector_send(struct end *e) {
    static unsigned char b[100000];
    for (int i = 0; i < 300; i++) {
        size_t total = 0; struct iovec v[7];
        fill(b, e->sent, sizeof b);
        for (int j = 0; j < 7; j++) { size_t n = (i * 31 + j * j * 101) % (j == 3 ? 9000 : 500); v[j] = (struct iovec){b + total, n}; total += n; }
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 7};
        ssize_t w = i % 2 ? writev(e->fd, v, 7) : sendmsg(e->fd, &m, 0);
        if (w != (ssize_t)total) FAIL("writev: %zd of %zu", w, total);
        e->sent += w; get(e, 1);
    }
    meet(e);
}
static void vector_receive(struct end *e) {
    static unsigned char b[100000];
    // Pieces of more than 2 GiB in all: the kernel cuts them.
    size_t huge = 3 << 29; unsigned char *rest = mmap(0, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); CHECK(rest != MAP_FAILED);
    for (int i = 0; i < 300; i++) {
        size_t total = 0;
        for (int j = 0; j < 7; j++) total += (i * 31 + j * j * 101) % (j == 3 ? 9000 : 500);
        for (size_t done = 0; done < total;) {
            struct iovec v[3] = {{b, 10}, {b + 10, 0}, {b + 10, total - done > 10 ? total - done - 10 : 0}};
            if (total - done < 10) v[0].iov_len = total - done;
            struct msghdr m = {.msg_iov = v, .msg_iovlen = 3, .msg_namelen = 9, .msg_flags = -1};
            ssize_t r = i % 2 ? readv(e->fd, v, 3) : recvmsg(e->fd, &m, 0);
            if (r <= 0) FAIL("readv: %zd", r);
            if (!(i % 2)) CHECK(m.msg_flags == 0);
            match(e, b, r); done += r;
            if (i % 5 || done == total) continue;
            struct iovec w[3] = {{b, 1}, {rest, huge}, {rest, huge}}; m.msg_iov = w;
            r = i % 2 ? readv(e->fd, w, 3) : recvmsg(e->fd, &m, 0);
            if (r <= 0) FAIL("readv: %zd", r);
            match(e, b, 1); match(e, rest, r - 1); done += r;
        }
        put(e, 1);
    }
    meet(e);
}

static void flags_send(struct end *e) {
    for (int i = 0; i < 200; i++) { put(e, 20); get(e, 1); put(e, 7); usleep(i % 3 * 100); put(e, 13); get(e, 1); put(e, 50); get(e, 1); }
    for (int i = 0; i < 6; i++) { rounds(e, 50, 0); meet(e); usleep(2000); put(e, 8); }
    meet(e);
}
static void flags_receive(struct end *e) {
    unsigned char b[64], c[64]; struct sockaddr_in from; socklen_t n;
    for (int i = 0; i < 200; i++) {
        ssize_t p = recv(e->fd, b, 20, MSG_PEEK);
        if (p <= 0 || p > 20) FAIL("peek: %zd", p);
        n = sizeof from;
        ssize_t r = recvfrom(e->fd, c, 20, MSG_WAITALL, (void *)&from, &n);
        if (r != 20 || n != 0 || memcmp(b, c, p)) FAIL("waitall: %zd, %u", r, n);
        match(e, c, 20); put(e, 1);
        r = recv(e->fd, c, 20, MSG_WAITALL);
        if (r != 20) FAIL("waitall over two messages: %zd", r);
        match(e, c, 20); put(e, 1);
        for (size_t done = 0; done < 50;) { r = recv(e->fd, 0, 50 - done, MSG_TRUNC); if (r <= 0) FAIL("trunc: %zd", r); e->got += r; done += r; }
        CHECK(recv(e->fd, c, 20, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        put(e, 1);
    }
    // A receive of no bytes waits until there are some, and returns 0 after its time-out too; read and readv do not wait.
    struct timeval t = {30, 0}; struct timespec start, now; CHECK(setsockopt(e->fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
    struct iovec v = {b, 0}; struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    for (int i = 0; i < 6; i++) {
        rounds(e, 50, 0); meet(e);
        CHECK(read(e->fd, b, 0) == 0 && readv(e->fd, &v, 1) == 0);
        clock_gettime(CLOCK_MONOTONIC, &start);
        CHECK((i % 2 ? recv(e->fd, b, 0, 0) : recvmsg(e->fd, &m, 0)) == 0);
        clock_gettime(CLOCK_MONOTONIC, &now); CHECK(now.tv_sec - start.tv_sec < 20);
        CHECK(recv(e->fd, b, 8, MSG_PEEK | MSG_DONTWAIT) > 0 && recvmsg(e->fd, &m, 0) == 0);
        get(e, 8);
    }
    meet(e);
}

static void queue_send(struct end *e) { for (int i = 0; i < 20; i++) { put(e, 1000); meet(e); meet(e); } int n = -1; for (int i = 0; i < 1000; i++) { CHECK(ioctl(e->fd, SIOCOUTQ, &n) == 0); if (!n) break; usleep(1000); } printf("unsent %d\n", n);
    // Bytes in the peer's ring do not count as unsent, like bytes in the peer's kernel.
    rounds(e, 100, 0); put(e, 100); for (int i = 0; i < 1000; i++) { CHECK(ioctl(e->fd, SIOCOUTQ, &n) == 0); if (!n) break; usleep(1000); } printf("unsent %d\n", n); meet(e); }
static void queue_receive(struct end *e) {
    for (int i = 0; i < 20; i++) { meet(e); int n = -1; do CHECK(ioctl(e->fd, FIONREAD, &n) == 0); while (n < 1000 && usleep(200) == 0); if (n != 1000) FAIL("FIONREAD %d", n); get(e, 1000); CHECK(ioctl(e->fd, FIONREAD, &n) == 0 && n == 0); meet(e); }
    rounds(e, 100, 0); meet(e); get(e, 100);
}

static void modes_send(struct end *e) { for (int i = 0; i < 50; i++) { meet(e); put(e, 8); get(e, 8); } meet(e); }
static void modes_receive(struct end *e) {
    unsigned char b[8]; int on = 1, off = 0;
    for (int i = 0; i < 50; i++) {
        if (i % 2) { CHECK(fcntl(e->fd, F_SETFL, O_NONBLOCK) == 0); } else { CHECK(ioctl(e->fd, FIONBIO, &on) == 0); }
        CHECK(recv(e->fd, b, 8, 0) == -1 && errno == EAGAIN);
        CHECK(read(e->fd, b, 8) == -1 && errno == EAGAIN);
        CHECK(ioctl(e->fd, FIONBIO, &off) == 0);
        meet(e); get(e, 8); put(e, 8);
    }
    struct timeval t = {0, 50000}; CHECK(setsockopt(e->fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
    struct timespec a, z; clock_gettime(CLOCK_MONOTONIC, &a);
    CHECK(recv(e->fd, b, 8, 0) == -1 && errno == EAGAIN);
    clock_gettime(CLOCK_MONOTONIC, &z);
    printf("waited %s\n", (z.tv_sec - a.tv_sec) * 1000 + (z.tv_nsec - a.tv_nsec) / 1000000 >= 49 ? "long enough" : "too short");
    meet(e);
}

static void *bad;
#define FAULT(x) do { errno = 0; long r = (long)(x); if (r != -1 || errno != EFAULT) FAIL("%s: %ld %s", #x, r, strerror(errno)); } while (0)
static void fault_send(struct end *e) {
    bad = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct iovec v = {bad, 8}; struct msghdr m = {.msg_iov = bad, .msg_iovlen = 1}, inner = {.msg_iov = &v, .msg_iovlen = 1};
    FAULT(send(e->fd, bad, 8, 0)); FAULT(write(e->fd, bad, 8)); FAULT(writev(e->fd, bad, 1)); FAULT(writev(e->fd, &v, 1));
    FAULT(sendmsg(e->fd, bad, 0)); FAULT(sendmsg(e->fd, &m, 0)); FAULT(sendmsg(e->fd, &inner, 0)); FAULT(send(e->fd, (void *)8, 8, 0));
    rounds(e, 500, 0); put(e, 8); meet(e); get(e, 8); meet(e);
}
static void fault_receive(struct end *e) {
    bad = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct iovec v = {bad, 8}; struct msghdr m = {.msg_iov = bad, .msg_iovlen = 1}, inner = {.msg_iov = &v, .msg_iovlen = 1};
    rounds(e, 500, 0); meet(e); usleep(1000);
    FAULT(recv(e->fd, bad, 8, 0)); FAULT(read(e->fd, bad, 8)); FAULT(readv(e->fd, bad, 1)); FAULT(readv(e->fd, &v, 1));
    FAULT(recvmsg(e->fd, bad, 0)); FAULT(recvmsg(e->fd, &m, 0)); FAULT(recvmsg(e->fd, &inner, 0));
    FAULT(poll(bad, 1, 0)); FAULT(select(e->fd + 1, bad, 0, 0, 0));
    // A buffer whose end is not writable, and not needed.
    unsigned char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); mprotect(page + 4096, 4096, PROT_NONE);
    CHECK(recv(e->fd, page + 4000, 4096, 0) == 8); match(e, page + 4000, 8); put(e, 8); meet(e);
}

static void file_send(struct end *e) {
    char name[] = "/tmp/fastsock-preload-XXXXXX"; int f = mkstemp(name); unlink(name); CHECK(f >= 0);
    static unsigned char b[200000]; fill(b, e->sent + 8, sizeof b); CHECK(write(f, b, sizeof b) == sizeof b);
    for (int i = 0; i < 30; i++) {
        put(e, 8); off_t at = 0; fill(b, e->sent, sizeof b); CHECK(pwrite(f, b, sizeof b, 0) == sizeof b);
        while (at < (off_t)sizeof b) { ssize_t n = sendfile(e->fd, f, &at, sizeof b - at); if (n <= 0) FAIL("sendfile %zd", n); e->sent += n; }
        put(e, 5); get(e, 1); rounds(e, 20, 0);
    }
    // Small parts, up to and beyond the file's end, and errors.
    for (int i = 0; i < 300; i++) {
        put(e, 8); off_t at = 3; fill(b, e->sent, 612); CHECK(pwrite(f, b, 612, 3) == 612);
        CHECK(sendfile(e->fd, f, &at, 612) == 612 && at == 615); e->sent += 612;
        at = sizeof b - 9; fill(b, e->sent, 9); CHECK(pwrite(f, b, 9, at) == 9);
        CHECK(sendfile(e->fd, f, &at, 612) == 9 && at == sizeof b && sendfile(e->fd, f, &at, 612) == 0); e->sent += 9;
        fill(b, e->sent, 11); CHECK(pwrite(f, b, 11, 1000) == 11 && lseek(f, 1000, SEEK_SET) == 1000);
        CHECK(sendfile(e->fd, f, 0, 11) == 11 && lseek(f, 0, SEEK_CUR) == 1011); e->sent += 11;
        at = -1; CHECK(sendfile(e->fd, f, &at, 9) == -1 && errno == EINVAL && sendfile(e->fd, f, (off_t *)8, 9) == -1 && errno == EFAULT);
        at = 0; CHECK(sendfile(e->fd, -1, &at, 9) == -1 && errno == EBADF && at == 0); get(e, 1);
    }
    int p[2]; CHECK(pipe(p) == 0);
    for (int i = 0; i < 30; i++) {
        fill(b, e->sent, 3000); CHECK(write(p[1], b, 3000) == 3000);
        for (int n = 3000; n;) { ssize_t k = splice(p[0], 0, e->fd, 0, n, 0); if (k <= 0) FAIL("splice %zd", k); n -= k; e->sent += k; }
        get(e, 1); rounds(e, 20, 0);
    }
    put(e, 500); put(e, 500); meet(e); meet(e); put(e, 300); meet(e);
    // O_APPEND, and a file without a size.
    off_t at = 0; int flags = fcntl(e->fd, F_GETFL), status = open("/proc/self/status", O_RDONLY);
    CHECK(sendfile(e->fd, status, &at, 9) == -1 && errno == EINVAL);
    CHECK(fcntl(e->fd, F_SETFL, flags | O_APPEND) == 0 && sendfile(e->fd, f, &at, 9) == -1 && errno == EINVAL && at == 0);
}
static void file_receive(struct end *e) {
    for (int i = 0; i < 30; i++) { get(e, 200013); put(e, 1); rounds(e, 20, 0); }
    for (int i = 0; i < 300; i++) { get(e, 640); put(e, 1); }
    for (int i = 0; i < 30; i++) { get(e, 3000); put(e, 1); rounds(e, 20, 0); }
    int p[2]; unsigned char b[1000]; CHECK(pipe(p) == 0); meet(e);
    for (int n = 0; n < 1300;) { if (n == 1000) meet(e); ssize_t k = splice(e->fd, 0, p[1], 0, n < 1000 ? 1000 - n : 300, 0); if (k <= 0) FAIL("splice %zd", k); CHECK(read(p[0], b, k) == k); match(e, b, k); n += k; }
    meet(e);
}

// sendfile from the socket to a pipe is splice.
static void tube_send(struct end *e) { rounds(e, 100, 0); put(e, 1000); meet(e); meet(e); put(e, 300); meet(e); meet(e); }
static void tube_receive(struct end *e) {
    int p[2]; unsigned char b[1000]; off_t at = 0; rounds(e, 100, 0); CHECK(pipe(p) == 0); meet(e);
    CHECK(fcntl(e->fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(sendfile(p[1], e->fd, &at, 9) == -1 && errno == ESPIPE && at == 0);
    for (int n = 0; n < 1300;) {
        if (n == 1000) { CHECK(sendfile(p[1], e->fd, 0, 9) == -1 && errno == EAGAIN); meet(e); meet(e); }
        ssize_t k = sendfile(p[1], e->fd, 0, n < 1000 ? 1000 - n : 300); if (k <= 0) FAIL("sendfile %zd %s", k, strerror(errno));
        CHECK(read(p[0], b, k) == k); match(e, b, k); n += k;
    }
    meet(e);
}

// What the kernel would hold back (TCP_CORK, MSG_MORE, SPLICE_F_MORE): the same stream by each carrier, and nothing of it stays behind.
static void cork(struct end *e, int on) { CHECK(setsockopt(e->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on) == 0); }
static void put_more(struct end *e, size_t n, int how, int file, int *tube) {
    unsigned char b[3000]; loff_t at = 0; ssize_t w; struct iovec v[2] = {{b, n / 3}, {b + n / 3, n - n / 3}};
    fill(b, e->sent, n);
    if (how == 0) w = send(e->fd, b, n, MSG_MORE);
    else if (how == 1) w = sendmsg(e->fd, &(struct msghdr){.msg_iov = v, .msg_iovlen = 2}, MSG_MORE);
    else if (how == 2) w = writev(e->fd, v, 2);
    else if (how == 3) { CHECK(write(tube[1], b, n) == (ssize_t)n); w = splice(tube[0], 0, e->fd, 0, n, SPLICE_F_MORE); }
    else { CHECK(pwrite(file, b, n, 0) == (ssize_t)n); w = sendfile(e->fd, file, &at, n); }
    if (w != (ssize_t)n) FAIL("way %d: %zd of %zu, errno %s", how, w, n, strerror(errno));
    e->sent += w;
}
static void cork_send(struct end *e) {
    int tube[2], file = memfd_create("file", MFD_CLOEXEC); CHECK(file >= 0 && pipe2(tube, O_CLOEXEC) == 0);
    for (int i = 0; i < 1500; i++) {
        int corked = i % 3 != 0;
        get(e, 1); if (corked) cork(e, 1);
        for (int j = 0; j < i % 4; j++) put_more(e, 1 + (i * 37 + j * 211) % 2900, (i / 4 + j) % (corked ? 5 : 2), file, tube);
        if (corked && i % 2) { int on = i % 5 > 2; CHECK(setsockopt(e->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0); }
        put(e, 9); if (corked) cork(e, 0);
    }
    meet(e);
}
static void cork_receive(struct end *e) {
    for (int i = 0; i < 1500; i++) {
        size_t n = 9; for (int j = 0; j < i % 4; j++) n += 1 + (i * 37 + j * 211) % 2900;
        if (i % 50 == 0) usleep(300);
        put(e, 1); get(e, n);
    }
    meet(e);
}

static void raw_calls(struct end *e) {
    unsigned char b[8];
    for (int i = 0; i < 2000; i++) {
        if (*e->role == 'c') { fill(b, e->sent, 8); CHECK(syscall(SYS_write, e->fd, b, 8) == 8); e->sent += 8; }
        CHECK(syscall(SYS_recvfrom, e->fd, b, 8, MSG_WAITALL, 0, 0) == 8); match(e, b, 8);
        if (*e->role == 's') { fill(b, e->sent, 8); CHECK(syscall(SYS_sendto, e->fd, b, 8, 0, 0, 0) == 8); e->sent += 8; }
    }
    meet(e);
}

static void many_send(struct end *e) {
    unsigned char b[2][10]; struct iovec v[2] = {{b[0], 10}, {b[1], 10}}; struct mmsghdr m[2] = {{{.msg_iov = v, .msg_iovlen = 1}}, {{.msg_iov = v + 1, .msg_iovlen = 1}}};
    for (int i = 0; i < 100; i++) { fill(b[0], e->sent, 10); fill(b[1], e->sent + 10, 10); CHECK(sendmmsg(e->fd, m, 2, 0) == 2 && m[1].msg_len == 10); e->sent += 20; get(e, 1); }
    rounds(e, 100, 0); put(e, 9); meet(e); meet(e);
}
static void many_receive(struct end *e) {
    for (int i = 0; i < 100; i++) { get(e, 20); put(e, 1); }
    rounds(e, 100, 0); meet(e); unsigned char b[8]; struct iovec v[2] = {{b, 3}, {b + 3, 5}};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = v + 1, .msg_iovlen = 1}}};
    CHECK(recvmmsg(e->fd, m, 2, 0, 0) == 2 && m[0].msg_len == 3 && m[1].msg_len == 5); match(e, b, 8); get(e, 1); meet(e);
}

// MSG_WAITALL: after a signal recv returns the bytes that are there, also if the ring carried the first. The same with MSG_PEEK.
static void on_alarm(int s) { (void)s; }
static void all_send(struct end *e) {
    for (int i = 0; i < 3; i++) { rounds(e, 100, 0); put(e, 2); meet(e); meet(e); }
    rounds(e, 100, 0); put(e, 2); meet(e); usleep(20000); put(e, 3); usleep(20000); put(e, 3); meet(e);
    rounds(e, 100, 0); put(e, 2); usleep(20000); put(e, 6); meet(e);
}
static void all_receive(struct end *e) {
    struct sigaction a = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}; sigaction(SIGALRM, &a, 0); unsigned char b[64];
    struct itimerval again = {{0, 30000}, {0, 30000}}, never = {{0, 0}, {0, 0}};
    for (int i = 0; i < 3; i++) {
        rounds(e, 100, 0); meet(e); setitimer(ITIMER_REAL, &again, 0); struct iovec v[2] = {{b, 1}, {b + 1, 3}};
        ssize_t r = i == 2 ? recvmsg(e->fd, &(struct msghdr){.msg_iov = v, .msg_iovlen = 2}, MSG_WAITALL) : recv(e->fd, b, 4, MSG_WAITALL);
        setitimer(ITIMER_REAL, &never, 0); if (r != 2) FAIL("%zd bytes", r); match(e, b, 2); meet(e);
    }
    alarm(300); signal(SIGALRM, SIG_DFL);
    rounds(e, 100, 0); meet(e); ssize_t r = recv(e->fd, b, 8, MSG_WAITALL | MSG_PEEK); if (r != 8) FAIL("peek: %zd", r);
    CHECK(recv(e->fd, b + 8, 50, MSG_WAITALL | MSG_DONTWAIT) == 8 && !memcmp(b, b + 8, 8)); match(e, b, 8); meet(e);
    rounds(e, 100, 0); struct iovec v[2] = {{b, 3}, {b + 3, 5}}; struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    CHECK(recvmsg(e->fd, &m, MSG_WAITALL) == 8); match(e, b, 8); meet(e);
}
// MSG_WAITALL: the limit is that of the call, not of each byte.
static void limit_send(struct end *e) {
    rounds(e, 300, 0); put(e, 1); meet(e); struct pollfd p = {e->meet, POLLIN};
    for (int i = 0; i < 400 && poll(&p, 1, 100) == 0; i++) put(e, 1);
    meet(e);
}
static void limit_receive(struct end *e) {
    struct timeval limit = {0, 300000}; static unsigned char b[400]; rounds(e, 300, 0); meet(e);
    CHECK(setsockopt(e->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0); ssize_t r = recv(e->fd, b, 400, MSG_WAITALL);
    if (r < 1 || r == 400) FAIL("all or none: %zd", r);
    match(e, b, r); meet(e);
}
// With a negative SO_RCVTIMEO recv does not block.
static void timeout_send(struct end *e) { for (int i = 0; i < 20; i++) { rounds(e, 100, 0); put(e, 2); meet(e); meet(e); } }
static void timeout_receive(struct end *e) {
    struct timeval negative = {-1, 0}, none = {0, 0}; unsigned char b[8];
    for (int i = 0; i < 20; i++) {
        rounds(e, 100, 0); meet(e); CHECK(setsockopt(e->fd, SOL_SOCKET, SO_RCVTIMEO, &negative, sizeof negative) == 0);
        CHECK(recv(e->fd, b, 8, MSG_WAITALL) == 2); match(e, b, 2); CHECK(recv(e->fd, b, 8, 0) == -1 && errno == EAGAIN);
        CHECK(setsockopt(e->fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none) == 0); meet(e);
    }
}

// recv stops at the mark of urgent data that follows the ring's bytes.
static void mark_send(struct end *e) {
    rounds(e, 100, 0); put(e, 2); unsigned char c = pattern(e->sent); CHECK(send(e->fd, &c, 1, MSG_OOB) == 1); e->sent++; put(e, 2); meet(e); meet(e);
}
static void mark_receive(struct end *e) {
    int on = 1, at = 7; unsigned char b[60]; CHECK(setsockopt(e->fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) == 0);
    rounds(e, 100, 0); meet(e); struct pollfd p = {e->fd, POLLPRI}; CHECK(poll(&p, 1, 60000) == 1);
    CHECK(ioctl(e->fd, SIOCATMARK, &at) == 0 && at == 0); CHECK(recv(e->fd, b, 60, MSG_PEEK) == 2);
    ssize_t r = recv(e->fd, b, 60, 0); if (r != 2) FAIL("before the mark: %zd", r); match(e, b, 2);
    CHECK(sockatmark(e->fd) == 1); CHECK(recv(e->fd, b, 60, MSG_WAITALL | MSG_DONTWAIT) == 3); match(e, b, 3); meet(e);
}

static void names_send(struct end *e) { rounds(e, 100, 0); put(e, 8); meet(e); meet(e); }
static void names_receive(struct end *e) {
    unsigned char b[8]; struct sockaddr_in from; socklen_t n = -5; rounds(e, 100, 0); meet(e);
    struct iovec v = {b, 8}; struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_name = &from, .msg_namelen = -1};
    CHECK(recvmsg(e->fd, &m, 0) == -1 && errno == EINVAL);
    // The bytes are consumed: the kernel rejects the length after it has copied them.
    CHECK(recvfrom(e->fd, b, 3, 0, (void *)&from, &n) == -1 && errno == EINVAL); e->got += 3; get(e, 5); meet(e);
}

// The socket inherits an option from its listener. Each message has the option's control data.
static void option_client(struct end *e) {
    struct sockaddr_in a; CHECK(read(e->meet, &a, sizeof a) == sizeof a); int old = e->fd; rounds(e, 100, 0);
    e->fd = socket(AF_INET, SOCK_STREAM, 0); CHECK(connect(e->fd, (void *)&a, sizeof a) == 0); e->sent = e->got = 0;
    for (int i = 0; i < 200; i++) { put(e, 8); get(e, 1); } close(e->fd); e->fd = old; meet(e);
}
static void option_server(struct end *e) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}; socklen_t n = sizeof a; int on = 1, old = e->fd;
    int l = socket(AF_INET, SOCK_STREAM, 0); CHECK(bind(l, (void *)&a, n) == 0 && listen(l, 1) == 0 && getsockname(l, (void *)&a, &n) == 0);
    CHECK(setsockopt(l, IPPROTO_TCP, TCP_INQ, &on, sizeof on) == 0); CHECK(write(e->meet, &a, sizeof a) == sizeof a); rounds(e, 100, 0);
    e->fd = accept(l, 0, 0); CHECK(e->fd >= 0); e->sent = e->got = 0;
    for (int i = 0; i < 200; i++) {
        char b[8], room[64]; struct iovec v = {b, 8}; struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
        ssize_t r = recvmsg(e->fd, &m, MSG_WAITALL); struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        if (r != 8 || !h || h->cmsg_level != IPPROTO_TCP || h->cmsg_type != TCP_CM_INQ) FAIL("message %d: %zd without control data", i, r);
        match(e, (unsigned char *)b, 8); put(e, 1);
    }
    close(e->fd); close(l); e->fd = old; meet(e);
}

// A receive without a copy (TCP_ZEROCOPY_RECEIVE) of less than a page says how many bytes recv(2) would return.
// <linux/tcp.h> does not go with <netinet/tcp.h>.
struct unmapped {
    uint64_t address; uint32_t length, recv_skip_hint, inq; int32_t err; uint64_t copybuf_address; int32_t copybuf_len; uint32_t flags;
    uint64_t msg_control, msg_controllen; uint32_t msg_flags, reserved;
};
static void unmapped_receive(struct end *e) {
    rounds(e, 100, 0); meet(e); void *at = mmap(0, 1 << 16, PROT_READ, MAP_SHARED, e->fd, 0); CHECK(at != MAP_FAILED);
    struct pollfd p = {e->fd, POLLIN}; CHECK(poll(&p, 1, -1) == 1);
    for (int i = 0; i < 2; i++) {
        struct unmapped how = {.address = (uintptr_t)at, .length = 1 << 16, .err = 7, .msg_controllen = 3ull << 32}; socklen_t n = i ? 16 : sizeof how;
        how.msg_flags = i ? 7 : 2; // 2: TCP_CMSG_TS.
        CHECK(getsockopt(e->fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &how, &n) == 0);
        printf("%u mapped, %u to be received, %d unread, error %d, ", how.length, how.recv_skip_hint, how.inq, how.err);
        printf("%d copied, control %llx, flags %x\n", how.copybuf_len, (long long)how.msg_controllen, how.msg_flags);
    }
    get(e, 100); meet(e); rounds(e, 100, 0); meet(e);
}
static void unmapped_send(struct end *e) { rounds(e, 100, 0); put(e, 100); meet(e); meet(e); rounds(e, 100, 0); meet(e); }

struct scenario scenarios[] = {
    {"pingpong", pingpong, pingpong}, {"bulk", bulk_receive, bulk_send}, {"vector", vector_receive, vector_send}, {"flags", flags_receive, flags_send},
    {"queue", queue_receive, queue_send}, {"modes", modes_receive, modes_send}, {"fault", fault_receive, fault_send}, {"file", file_receive, file_send},
    {"raw", raw_calls, raw_calls}, {"cork", cork_receive, cork_send}, {"many", many_receive, many_send}, {"nothing", nothing, nothing},
    {"all", all_receive, all_send}, {"timeout", timeout_receive, timeout_send}, {"limit", limit_receive, limit_send}, {"mark", mark_receive, mark_send}, {"names", names_receive, names_send}, {"option", option_server, option_client}, {"tube", tube_receive, tube_send},
    {"unmapped", unmapped_receive, unmapped_send},
    {"download", stream_send, stream_receive, 1}, {"upload", stream_receive, stream_send, 1}, {0},
};
int main(int argc, char **argv) { return run_main(argc, argv); }
