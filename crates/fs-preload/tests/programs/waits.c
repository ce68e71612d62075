// poll, select and epoll.
#include "cases.h"
// In milliseconds: a wait that must not end by its time-out, also on a busy machine.
enum { LONG = 60000 };

static int wait_poll(struct end *e) { struct pollfd p[2] = {{e->fd, POLLIN}, {e->meet, 0}}; int n = poll(p, 2, 100000); CHECK(n == 1 && p[0].revents & POLLIN); return p[0].revents; }
static int wait_ppoll(struct end *e) { struct pollfd p = {e->fd, POLLIN | POLLOUT}; struct timespec t = {100, 0}; sigset_t s; sigemptyset(&s); do CHECK(ppoll(&p, 1, &t, &s) == 1); while (!(p.revents & POLLIN)); CHECK(p.revents & POLLOUT); return 0; }
static int selects;
static int wait_select(struct end *e) { fd_set r; FD_ZERO(&r); FD_SET(e->fd, &r); FD_SET(e->meet, &r); struct timeval t = {100, 0};
    // Some programs pass the limit of descriptors.
    int n = select(++selects % 2 ? e->fd + e->meet : 1 << 20, &r, 0, 0, &t); CHECK(n >= 1 && FD_ISSET(e->fd, &r) && t.tv_sec >= 1 && t.tv_sec < 100); return 0; }
static int wait_pselect(struct end *e) { fd_set r, w; FD_ZERO(&r); FD_ZERO(&w); FD_SET(e->fd, &r); FD_SET(e->fd, &w); struct timespec t = {LONG / 1000, 0}; int n; do { FD_SET(e->fd, &r); FD_SET(e->fd, &w); n = pselect(e->fd + 1, &r, &w, 0, &t, 0); CHECK(n >= 1 && FD_ISSET(e->fd, &w)); } while (!FD_ISSET(e->fd, &r)); CHECK(n == 2); return 0; }

static void take_all(struct end *e, size_t n) {
    unsigned char b[4096]; size_t done = 0;
    for (;;) { ssize_t r = recv(e->fd, b, sizeof b, MSG_DONTWAIT); if (r < 0) { CHECK(errno == EAGAIN); break; } CHECK(r > 0); match(e, b, r); done += r; if (done >= n) break; }
}
static void loop(struct end *e, int (*wait)(struct end *), int n) {
    unsigned char b[8];
    for (int i = 0; i < few(n); i++) {
        if (*e->role == 'c') put(e, 8);
        uint64_t goal = e->got + 8;
        while (e->got < goal) { wait(e); ssize_t r = recv(e->fd, b, goal - e->got, MSG_DONTWAIT); if (r < 0) { CHECK(errno == EAGAIN); continue; } CHECK(r > 0); match(e, b, r); }
        if (*e->role == 's') put(e, 8);
        if (i % 500 == 0) usleep(300);
    }
}
static void poll_both(struct end *e) { loop(e, wait_poll, 5000); meet(e); }
static void ppoll_both(struct end *e) { loop(e, wait_ppoll, 3000); meet(e); }
static void select_both(struct end *e) { loop(e, wait_select, 3000); meet(e); }
static void pselect_both(struct end *e) { loop(e, wait_pselect, 3000); meet(e); }

// The end of the stream, a time-out, and a time-out of 0.
static void poll_end(struct end *e) {
    struct pollfd p = {e->fd, POLLIN | POLLRDHUP}; char c;
    rounds(e, 100, 0); meet(e);
    CHECK(poll(&p, 1, 0) == 0); CHECK(poll(&p, 1, 30) == 0 && p.revents == 0); meet(e);
    if (*e->role == 'c') { put(e, 8); shutdown(e->fd, SHUT_WR); meet(e); return; }
    meet(e); usleep(5000); CHECK(poll(&p, 1, LONG) == 1 && p.revents & POLLIN); get(e, 8);
    CHECK(poll(&p, 1, LONG) == 1); printf("events %x\n", p.revents); CHECK(recv(e->fd, &c, 1, 0) == 0);
}

// Each call reports everything that is ready, also right after the last call.
static void poll_all(struct end *e) {
    int p[2]; CHECK(pipe(p) == 0 && write(p[1], "x", 1) == 1);
    struct pollfd l[3] = {{e->fd, POLLIN}, {p[0], POLLIN}, {-1, POLLIN}};
    for (int i = 0; i < 2000; i++) {
        if (*e->role == 'c') put(e, 8);
        do CHECK(poll(l, 3, LONG) >= 1 && l[1].revents == POLLIN); while (!l[0].revents);
        CHECK(poll(l, 3, 0) == 2 && l[0].revents == POLLIN && l[1].revents == POLLIN);
        get(e, 8);
        if (*e->role == 's') put(e, 8);
    }
    meet(e);
}

static int set;
static void watch(struct end *e, unsigned events) { struct epoll_event v = {EPOLLIN | events, {.u64 = 0x123456789abcdef0}}; set = epoll_create1(EPOLL_CLOEXEC); CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, e->fd, &v) == 0); }
static int wait_epoll(struct end *e) { struct epoll_event v[4]; int n = epoll_wait(set, v, 4, LONG); CHECK(n == 1 && v[0].data.u64 == 0x123456789abcdef0); CHECK(v[0].events & EPOLLIN); return v[0].events; }
static void epoll_level(struct end *e) { watch(e, 0); loop(e, wait_epoll, 5000); struct epoll_event v = {EPOLLIN, {.u64 = 7}}; CHECK(epoll_ctl(set, EPOLL_CTL_MOD, e->fd, &v) == 0); put(e, 8); CHECK(epoll_wait(set, &v, 1, LONG) == 1 && v.data.u64 == 7); get(e, 8);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, e->fd, 0) == 0); put(e, 8); meet(e); CHECK(epoll_wait(set, &v, 1, 20) == 0); get(e, 8); rounds(e, 200, 0); meet(e); }
// A program that registers for each message, and errors of epoll_ctl(2).
static void change(struct end *e, int operation, unsigned events, uint64_t data, int error) {
    struct epoll_event v = {events, {.u64 = data}};
    int result = epoll_ctl(set, operation, e->fd, &v);
    CHECK(error ? result == -1 && errno == error : result == 0);
}
static void epoll_changes(struct end *e) {
    struct epoll_event v[4]; watch(e, 0);
    for (uint64_t i = 0; i < 3000; i++) {
        if (*e->role == 'c') {
            change(e, EPOLL_CTL_DEL, 0, 0, 0); change(e, EPOLL_CTL_ADD, EPOLLOUT, i, 0);
            CHECK(epoll_wait(set, v, 4, LONG) == 1 && v[0].events == EPOLLOUT && v[0].data.u64 == i);
            put(e, 8); change(e, EPOLL_CTL_MOD, EPOLLIN, 0x123456789abcdef0, 0);
        }
        if (i % 50 == 0) {
            change(e, EPOLL_CTL_ADD, EPOLLIN, 1, EEXIST); change(e, 77, EPOLLIN, 1, EINVAL);
            CHECK(epoll_ctl(set, EPOLL_CTL_MOD, e->fd, (void *)8) == -1 && errno == EFAULT);
            change(e, EPOLL_CTL_DEL, 0, 0, 0); change(e, EPOLL_CTL_DEL, 0, 0, ENOENT); change(e, EPOLL_CTL_MOD, EPOLLIN, 2, ENOENT);
            change(e, EPOLL_CTL_ADD, EPOLLIN, 3, 0); change(e, EPOLL_CTL_DEL, 0, 0, 0);
            if (i % 100 == 0) CHECK(epoll_wait(set, v, 4, 1) == 0);
            change(e, EPOLL_CTL_ADD, EPOLLIN, 0x123456789abcdef0, 0);
        }
        wait_epoll(e); get(e, 8);
        if (*e->role == 's') put(e, 8);
    }
    // Deferred epoll_ctl(2) calls apply in a child, and after a close with a second holder.
    change(e, EPOLL_CTL_MOD, EPOLLOUT, 5, 0);
    pid_t child = fork(); CHECK(child >= 0);
    if (child == 0) _exit(epoll_wait(set, v, 4, 1000) == 1 && v[0].data.u64 == 5 && v[0].events == EPOLLOUT ? 0 : 1);
    int status; CHECK(waitpid(child, &status, 0) == child && status == 0);
    change(e, EPOLL_CTL_DEL, 0, 0, 0); CHECK(epoll_wait(set, v, 4, 0) == 0);
    rounds(e, 100, 0); meet(e);
}
static void epoll_edge(struct end *e) {
    watch(e, EPOLLET | EPOLLRDHUP); fcntl(e->fd, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < few(5000); i++) {
        size_t n = 1 + i * 7 % 5000;
        if (*e->role == 'c') put(e, n);
        uint64_t goal = e->got + n;
        while (e->got < goal) { wait_epoll(e); take_all(e, 1 << 30); }
        if (*e->role == 's') put(e, n);
    }
    fcntl(e->fd, F_SETFL, 0); meet(e);
}
static void epoll_once(struct end *e) {
    watch(e, EPOLLONESHOT); struct epoll_event v; 
    for (int i = 0; i < 1000; i++) {
        if (*e->role == 'c') put(e, 8);
        wait_epoll(e); if (i % 100 == 0) CHECK(epoll_wait(set, &v, 1, 1) == 0); get(e, 8);
        v.events = EPOLLIN | EPOLLONESHOT; v.data.u64 = 0x123456789abcdef0; CHECK(epoll_ctl(set, EPOLL_CTL_MOD, e->fd, &v) == 0);
        if (*e->role == 's') put(e, 8);
    }
    meet(e);
}
// The set is older than the promotion and has other descriptors. It is in another set, or polled.
static void epoll_nested(struct end *e) {
    watch(e, 0); loop(e, wait_epoll, 500); int outer = epoll_create(1); struct epoll_event v = {EPOLLIN, {.u64 = 5}}; CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, set, &v) == 0);
    for (int i = 0; i < 500; i++) { if (*e->role == 'c') put(e, 8); CHECK(epoll_wait(outer, &v, 1, LONG) == 1 && v.data.u64 == 5); wait_epoll(e); get(e, 8); if (*e->role == 's') put(e, 8); }
    struct pollfd p = {set, POLLIN};
    for (int i = 0; i < 500; i++) { if (*e->role == 'c') put(e, 8); CHECK(poll(&p, 1, LONG) == 1); wait_epoll(e); get(e, 8); if (*e->role == 's') put(e, 8); }
    meet(e);
}
static void epoll_others(struct end *e) {
    watch(e, 0); int p[2]; CHECK(pipe(p) == 0); struct epoll_event v[4] = {{EPOLLIN, {.u64 = 9}}}; CHECK(epoll_ctl(set, EPOLL_CTL_ADD, p[0], v) == 0);
    int pipes = 0, bytes = 0; char b[8];
    for (int i = 0; i < 3000; i++) {
        if (*e->role == 'c') put(e, 8);
        if (i % 3 == 0) CHECK(write(p[1], "x", 1) == 1);
        uint64_t goal = e->got + 8;
        while (e->got < goal) {
            int n = epoll_wait(set, v, 4, LONG); CHECK(n >= 1);
            for (int j = 0; j < n; j++) if (v[j].data.u64 == 9) { ssize_t r = read(p[0], b, 8); CHECK(r > 0); pipes += r; } else { get(e, 8); bytes++; }
        }
        if (*e->role == 's') put(e, 8);
    }
    while (pipes < 1000) { CHECK(epoll_wait(set, v, 4, LONG) >= 1); ssize_t r = read(p[0], b, 8); CHECK(r > 0); pipes += r; }
    meet(e);
}
// Two threads sleep in one set.
static volatile int over; static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *worker(void *q) {
    struct end *e = q; struct epoll_event v; unsigned char b[8];
    while (!over) { if (epoll_wait(set, &v, 1, 50) != 1) continue; pthread_mutex_lock(&lock); ssize_t r = recv(e->fd, b, 8, MSG_DONTWAIT); if (r > 0) { match(e, b, r); if (*e->role == 's') put(e, r); } pthread_mutex_unlock(&lock); }
    return 0;
}
static void epoll_threads(struct end *e) {
    watch(e, 0); if (*e->role == 'c') { for (int i = 0; i < 4000; i++) { put(e, 8); wait_epoll(e); get(e, 8); } meet(e); return; }
    pthread_t t[2]; for (int i = 0; i < 2; i++) pthread_create(t + i, 0, worker, e);
    meet(e); over = 1; for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
// An event loop that ends, and another one over the same connection.
static void epoll_remade(struct end *e) { for (int i = 0; i < 6; i++) { watch(e, i % 2 ? EPOLLET : 0); loop(e, wait_epoll, 300); if (i == 4) change(e, EPOLL_CTL_DEL, 0, 0, 0); CHECK(close(set) == 0); } meet(e); }
// A thread that sleeps in a set which another thread closes still gets the set's events.
static volatile pid_t sleeper_id;
static void *sleeper(void *q) { struct end *e = q; struct epoll_event v; sleeper_id = gettid(); CHECK(epoll_wait(set, &v, 1, 20000) == 1 && v.events == EPOLLIN && v.data.u64 == 0x123456789abcdef0); return 0; }
static int is_asleep(pid_t id) { char path[64], state = 0; snprintf(path, 64, "/proc/self/task/%d/stat", id); FILE *f = fopen(path, "r"); if (f) { fscanf(f, "%*d (%*[^)]) %c", &state); fclose(f); } return state == 'S'; }
static void epoll_closed(struct end *e) {
    if (*e->role == 'c') { meet(e); put(e, 8); meet(e); return; }
    watch(e, 0); pthread_t t; pthread_create(&t, 0, sleeper, e); while (!sleeper_id || !is_asleep(sleeper_id)) usleep(1000);
    CHECK(close(set) == 0); watch(e, 0); char c; CHECK(recv(e->fd, &c, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    meet(e); pthread_join(t, 0); get(e, 8); meet(e);
}
// io_submit(2) polls a set.
#include <linux/aio_abi.h>
static void epoll_submit(struct end *e) {
    if (*e->role == 'c') { meet(e); put(e, 8); meet(e); return; }
    watch(e, 0); aio_context_t context = 0; CHECK(syscall(SYS_io_setup, 1, &context) == 0); struct io_event done; struct timespec time = {10, 0};
    struct iocb one = {.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = set, .aio_buf = POLLIN}, *list = &one; CHECK(syscall(SYS_io_submit, context, 1L, &list) == 1);
    char c; CHECK(recv(e->fd, &c, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    meet(e); CHECK(syscall(SYS_io_getevents, context, 1L, 1L, &done, &time) == 1 && done.res & POLLIN); wait_epoll(e); get(e, 8); meet(e);
}
// A child that only executes a program makes none of the deferred epoll_ctl(2) calls of its parent's threads.
static void *changing(void *q) {
    struct end *e = q; struct epoll_event v; watch(e, 0);
    for (uint64_t i = 0; !is_over; i++) {
        for (int j = 0; j < 300; j++) { change(e, EPOLL_CTL_DEL, 0, 0, 0); change(e, EPOLL_CTL_ADD, EPOLLIN, i, 0); }
        // A SIGCHLD that the forking thread blocks ends a wait of this one.
        put(e, 8); int n; do n = epoll_wait(set, &v, 1, LONG); while (n < 0 && errno == EINTR); CHECK(n == 1 && v.data.u64 == i); get(e, 8);
    }
    // The kernel's set reports the connection, too.
    change(e, EPOLL_CTL_MOD, EPOLLIN, 7, 0); CHECK(epoll_wait(set, &v, 1, 1) == 0);
    put(e, 8); CHECK(epoll_wait(set, &v, 1, LONG) == 1 && v.data.u64 == 7); get(e, 8); change(e, EPOLL_CTL_DEL, 0, 0, 0); close(set);
    return 0;
}
static void nothing(struct end *e) {}
static void epoll_exec(struct end *e) { exec_beside(e, 500, changing, nothing); shutdown(e->fd, SHUT_WR); meet(e); }
static void epoll_echo(struct end *e) { echo(e); meet(e); }
// A child uses an inherited set.
static void epoll_fork(struct end *e) {
    watch(e, 0); loop(e, wait_epoll, 1000); put(e, 8); meet(e); fflush(stdout); pid_t p = fork();
    if (p) { close(e->fd); int st; CHECK(waitpid(p, &st, 0) == p && st == 0); meet(e); return; }
    wait_epoll(e); get(e, 8); loop(e, wait_epoll, 500); _exit(0);
}
static void epoll_dup(struct end *e) {
    watch(e, 0); loop(e, wait_epoll, 500); int other = dup(set); close(set); set = other; loop(e, wait_epoll, 500);
    struct epoll_event v = {EPOLLIN, {.u64 = 0x123456789abcdef0}}; other = epoll_create1(0); CHECK(epoll_ctl(other, EPOLL_CTL_ADD, e->fd, &v) == 0); set = other; loop(e, wait_epoll, 500); meet(e);
}

// Short waits of new connections, after which a wait begins with a spin. Calls that must not wait, or not for ever, still end.
static uint64_t now_us(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000ull + t.tv_nsec / 1000; }
static void handler(int s) {}
static void ask(struct sockaddr_in *a, struct end *e, int n) {
    for (char c = 'x'; n--;) { int f = socket(AF_INET, SOCK_STREAM, 0); CHECK(connect(f, (void *)a, sizeof *a) == 0 && send(f, &c, 1, 0) == 1 && recv(f, &c, 1, 0) == 1 && close(f) == 0); }
}
static void answer_all(int l, struct end *e, int n) {
    for (char c; n--;) { int f = accept(l, 0, 0); CHECK(f >= 0 && recv(f, &c, 1, 0) == 1 && send(f, &c, 1, 0) == 1 && recv(f, &c, 1, 0) == 0 && close(f) == 0); }
}
static void limit(int fd, int us) { struct timeval t = {0, us}; setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t); }
enum { ASKED = 200 };
static void young_server(struct end *e) {
    int l = socket(AF_INET, SOCK_STREAM, 0); struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}; socklen_t n = sizeof a;
    CHECK(bind(l, (void *)&a, n) == 0 && listen(l, 5) == 0 && getsockname(l, (void *)&a, &n) == 0 && write(e->meet, &a, n) == n);
    answer_all(l, e, ASKED); CHECK(accept(-1, 0, 0) == -1 && errno == EBADF); meet(e);
    fcntl(l, F_SETFL, O_NONBLOCK); CHECK(accept(l, 0, 0) == -1 && errno == EAGAIN); fcntl(l, F_SETFL, 0);
    meet(e); answer_all(l, e, ASKED); meet(e);
    uint64_t start = now_us(); limit(l, 20000); CHECK(accept4(l, 0, 0, 0) == -1 && errno == EAGAIN && now_us() - start >= 20000); limit(l, 0);
    meet(e); answer_all(l, e, ASKED); meet(e);
    // Repeated, since a handler may run before the call sleeps.
    struct itimerval every = {{0, 5000}, {0, 5000}}, off = {0}; struct sigaction h = {.sa_handler = handler};
    sigaction(SIGALRM, &h, 0); setitimer(ITIMER_REAL, &every, 0); CHECK(accept(l, 0, 0) == -1 && errno == EINTR); setitimer(ITIMER_REAL, &off, 0);
    meet(e); int f = accept(l, 0, 0); CHECK(f >= 0); meet(e); shutdown(f, SHUT_WR); meet(e);
    shutdown(l, SHUT_RDWR); CHECK(accept(l, 0, 0) == -1 && errno == EINVAL);
    int p[2]; CHECK(pipe(p) == 0 && accept(p[0], 0, 0) == -1 && errno == ENOTSOCK);
}
static void young_client(struct end *e) {
    struct sockaddr_in a; char c; CHECK(read(e->meet, &a, sizeof a) == sizeof a);
    for (int i = 0; i < 3; i++) { ask(&a, e, ASKED); meet(e); meet(e); }
    ask(&a, e, 0); int f = socket(AF_INET, SOCK_STREAM, 0); CHECK(connect(f, (void *)&a, sizeof a) == 0);
    CHECK(recv(f, &c, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    fcntl(f, F_SETFL, O_NONBLOCK); CHECK(read(f, &c, 1) == -1 && errno == EAGAIN); fcntl(f, F_SETFL, 0);
    uint64_t start = now_us(); limit(f, 20000); CHECK(recv(f, &c, 1, 0) == -1 && errno == EAGAIN && now_us() - start >= 20000); limit(f, 0);
    meet(e); CHECK(recv(f, &c, 1, 0) == 0); meet(e);
}

struct scenario scenarios[] = {
    {"poll", poll_both, poll_both}, {"ppoll", ppoll_both, ppoll_both}, {"select", select_both, select_both}, {"pselect", pselect_both, pselect_both}, {"poll_end", poll_end, poll_end}, {"poll_all", poll_all, poll_all},
    {"epoll_level", epoll_level, epoll_level}, {"epoll_changes", epoll_changes, epoll_changes}, {"epoll_edge", epoll_edge, epoll_edge}, {"epoll_once", epoll_once, epoll_once}, {"epoll_nested", epoll_nested, epoll_nested},
    {"epoll_others", epoll_others, epoll_others}, {"epoll_threads", epoll_threads, epoll_threads}, {"epoll_fork", epoll_fork, epoll_fork}, {"epoll_submit", epoll_submit, epoll_submit}, {"epoll_closed", epoll_closed, epoll_closed}, {"epoll_remade", epoll_remade, epoll_remade}, {"epoll_exec", epoll_echo, epoll_exec}, {"epoll_dup", epoll_dup, epoll_dup}, {"young", young_server, young_client}, {0},
};
int main(int argc, char **argv) { return run_main(argc, argv); }
