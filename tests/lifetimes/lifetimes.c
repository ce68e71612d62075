/* Connections of random life times between processes that come, go and are killed, on both sides.
 *
 *   lifetimes CONNECTIONS SEED [KILLS [STOPS]]
 *
  * A third of the connections start with some short requests, so that they get a ring under the library. They are then
  * closed, cut or killed while the ring is in use.
 *
 * Five workers hold two listeners: three serve the first in three ways (epoll, epoll with EPOLLEXCLUSIVE, poll), two the
  * second one by a thread that sleeps in accept(2). Eight client processes at a time open connections, send requests in parts
  * and read the answers. They end at any point, by close, exit or SIGKILL. About KILLS times (default: one for each thousand
  * connections) a worker is killed and replaced. STOPS times (default: one for each four thousand) all workers are stopped for
  * 150 ms. Every process counts each of its steps in shared memory before the next one. At the end the counters of both sides
  * are compared:
 *
 *   opened - accepted  <= kills                       no connection is lost between connect and accept
 *   asked - completed  <= held by workers when killed no request is lost
 *   cut                <= held by workers when killed no answer is lost
 *   hung, wrong, refused == 0
 *
 * "Held when killed" has one more for each kill: the connection that accept(2) was about to return.
  * Prints the counters and exits with status 0 if they agree. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LISTENERS = 2, WORKERS = 5, SLEEPERS_FROM = 3, CLIENTS = 8, OPEN_MAX_ = 6, PAYLOAD_MAX = 40000, FDS = 4096, HUNG_AFTER_S = 30 };

/* What the server does with a request. */
enum { ANSWER, ANSWER_AND_CLOSE, TAKE, KINDS };

struct header {
    uint8_t kind, unused[3];
    uint32_t len;
    uint64_t id;
};

struct worker {
    atomic_ullong accepted, finished;
};

static struct books {
    atomic_ullong started, opened, asked, answered, left, cut, hung, wrong, refused, completed, incomplete;
    struct worker worker[WORKERS];
} *books;

static uint64_t random_state;
static uint32_t rnd(uint32_t below) {
    /* xorshift64* */
    random_state ^= random_state >> 12, random_state ^= random_state << 25, random_state ^= random_state >> 27;
    return (uint32_t)((random_state * 0x2545F4914F6CDD1DULL) >> 33) % below;
}

static uint8_t byte_at(uint64_t id, uint32_t at) { return (uint8_t)(id * 7 + at * 3 + (at >> 8)); }

static void complain(const char *what, uint64_t id, int error) {
    fprintf(stderr, "pid %d: %s, connection %llx: %s\n", getpid(), what, (unsigned long long)id, strerror(error));
}

/* ---- the server ---- */

struct served {
    int used;
    struct header header;
    uint32_t header_len, got, sent;
    int failed;
};
static struct served *served[FDS];
static struct worker *me;
static int set = -1;

static void finish(int fd) {
    served[fd]->used = 0;
    close(fd);
    atomic_fetch_add(&me->finished, 1);
}

static void begin(int fd) {
    atomic_fetch_add(&me->accepted, 1);
    if (fd >= FDS) {
        fprintf(stderr, "a worker has no room for descriptor %d\n", fd);
        _exit(3);
    }
    if (!served[fd]) served[fd] = malloc(sizeof *served[fd]);
    memset(served[fd], 0, sizeof *served[fd]);
    served[fd]->used = 1;
    fcntl(fd, F_SETFL, O_NONBLOCK);
}

/* Serves a connection until a call would block. Returns the events to wait for, or 0 if the connection has ended. */
static int serve(int fd) {
    struct served *s = served[fd];
    static char buffer[65536];
    for (;;) {
        if (s->header_len < sizeof s->header) {
            ssize_t n = recv(fd, (char *)&s->header + s->header_len, sizeof s->header - s->header_len, 0);
            if (n < 0 && errno == EAGAIN) return EPOLLIN;
            if (n <= 0) break;
            s->header_len += n;
            if (s->header_len == sizeof s->header && (s->header.len > PAYLOAD_MAX || s->header.kind >= KINDS)) {
                atomic_fetch_add(&books->wrong, 1);
                complain("a header that nobody sent", s->header.id, 0);
                break;
            }
        } else if (s->got < s->header.len) {
            ssize_t n = recv(fd, buffer, s->header.len - s->got, 0);
            if (n < 0 && errno == EAGAIN) return EPOLLIN;
            if (n <= 0) break;
            for (ssize_t i = 0; i < n; i++)
                if ((uint8_t)buffer[i] != byte_at(s->header.id, s->got + i) && !s->failed) {
                    s->failed = 1, atomic_fetch_add(&books->wrong, 1);
                    complain("a request's byte is wrong", s->header.id, 0);
                }
            s->got += n;
        } else {
            if (s->sent == 0 && s->header.unused[0] == 0) {
                s->header.unused[0] = 1;
                atomic_fetch_add(&books->completed, 1);
            }
            if (s->header.kind != TAKE && s->sent < s->header.len) {
                uint32_t left = s->header.len - s->sent;
                for (uint32_t i = 0; i < left; i++) buffer[i] = (char)byte_at(s->header.id, s->sent + i);
                ssize_t n = send(fd, buffer, left, MSG_NOSIGNAL);
                if (n < 0 && errno == EAGAIN) return EPOLLOUT;
                if (n < 0) break;
                s->sent += n;
                continue;
            }
            if (s->header.kind == ANSWER_AND_CLOSE) break;
            /* The next request, or the end. */
            s->header_len = s->got = s->sent = 0, s->header.unused[0] = 0;
        }
    }
    if (s->header_len && !s->header.unused[0]) atomic_fetch_add(&books->incomplete, 1);
    finish(fd);
    return 0;
}

static void take_all(int listener) {
    for (int i = 0; i < 4; i++) {
        int fd = accept(listener, 0, 0);
        if (fd < 0) {
            if (errno != EAGAIN && errno != ECONNABORTED) complain("accept", 0, errno), _exit(3);
            return;
        }
        begin(fd);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) complain("EPOLL_CTL_ADD", 0, errno), _exit(3);
    }
}

static int handed[2], shared_listener;
static void *acceptor(void *unused) {
    (void)unused;
    for (;;) {
        int fd = accept(shared_listener, 0, 0);
        if (fd < 0 && errno == ECONNABORTED) continue;
        if (fd < 0) complain("accept", 0, errno), _exit(3);
        /* Counted here, because a worker that is killed from now on holds the connection. */
        begin(fd);
        if (write(handed[1], &fd, sizeof fd) != sizeof fd) _exit(3);
    }
}

static void epoll_worker(int listener, uint32_t how) {
    set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = how, .data.fd = listener}, events[16];
    if (listener < 0) {
        event.events = EPOLLIN, event.data.fd = -1;
        epoll_ctl(set, EPOLL_CTL_ADD, handed[0], &event);
    } else if (epoll_ctl(set, EPOLL_CTL_ADD, listener, &event)) {
        complain("EPOLL_CTL_ADD of the listener", 0, errno), _exit(3);
    }
    for (;;) {
        int n = epoll_wait(set, events, 16, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener && fd >= 0) {
                take_all(listener);
            } else if (fd == -1) {
                int new;
                if (read(handed[0], &new, sizeof new) != sizeof new) _exit(3);
                struct epoll_event its = {.events = EPOLLIN, .data.fd = new};
                if (epoll_ctl(set, EPOLL_CTL_ADD, new, &its)) complain("EPOLL_CTL_ADD", 0, errno), _exit(3);
            } else if (served[fd] && served[fd]->used) {
                int next = serve(fd);
                struct epoll_event its = {.events = next, .data.fd = fd};
                if (next && epoll_ctl(set, EPOLL_CTL_MOD, fd, &its)) complain("EPOLL_CTL_MOD", 0, errno), _exit(3);
            }
        }
    }
}

static void poll_worker(int listener) {
    static int wants[FDS];
    static struct pollfd fds[FDS];
    for (;;) {
        int n = 0;
        fds[n++] = (struct pollfd){listener, POLLIN, 0};
        for (int fd = 0; fd < FDS; fd++)
            if (served[fd] && served[fd]->used) {
                if (!wants[fd]) wants[fd] = EPOLLIN;
                fds[n++] = (struct pollfd){fd, wants[fd] == EPOLLIN ? POLLIN : POLLOUT, 0};
            } else {
                wants[fd] = 0;
            }
        if (poll(fds, n, -1) < 0) complain("poll", 0, errno), _exit(3);
        for (int i = 1; i < n; i++)
            if (fds[i].revents) wants[fds[i].fd] = serve(fds[i].fd);
        if (fds[0].revents) take_all(listener);
    }
}

static pid_t start_worker(int which, const int *listeners) {
    pid_t pid = fork();
    if (pid) return pid;
    me = &books->worker[which];
    int listener = listeners[which >= SLEEPERS_FROM];
    if (which >= SLEEPERS_FROM) {
        pthread_t thread;
        shared_listener = listener;
        if (pipe(handed) || pthread_create(&thread, 0, acceptor, 0)) _exit(3);
        epoll_worker(-1, 0);
    }
    if (which == 2) poll_worker(listener);
    epoll_worker(listener, which ? EPOLLIN | EPOLLEXCLUSIVE : EPOLLIN);
    _exit(3);
}

/* ---- the clients ---- */

struct made {
    int fd;
    struct header header;
    uint32_t sent;
};

/* Returns 1 if all bytes were sent or read. */
static int move(struct made *c, int sending, void *data, size_t len) {
    char *at = data;
    while (len) {
        ssize_t n = sending ? send(c->fd, at, len, MSG_NOSIGNAL) : recv(c->fd, at, len, 0);
        if (n > 0) {
            at += n, len -= n;
        } else if (n < 0 && errno == EAGAIN) {
            atomic_fetch_add(&books->hung, 1);
            complain(sending ? "a send that hangs" : "an answer that does not come", c->header.id, errno);
            return 0;
        } else if (n == 0 || errno == ECONNRESET || errno == EPIPE) {
            atomic_fetch_add(&books->cut, 1);
            return 0;
        } else {
            atomic_fetch_add(&books->wrong, 1);
            complain(sending ? "send" : "recv", c->header.id, errno);
            return 0;
        }
    }
    return 1;
}

static int send_up_to(struct made *c, uint32_t end) {
    static char buffer[PAYLOAD_MAX];
    if (c->sent == end) return 1;
    if (c->sent == 0) {
        /* The header and some of the payload, in one piece or in two. */
        if (!move(c, 1, &c->header, sizeof c->header)) return 0;
    }
    for (uint32_t i = c->sent; i < end; i++) buffer[i] = (char)byte_at(c->header.id, i);
    if (!move(c, 1, buffer + c->sent, end - c->sent)) return 0;
    c->sent = end;
    if (end == c->header.len) atomic_fetch_add(&books->asked, 1);
    return 1;
}

static int read_answer(struct made *c) {
    static char buffer[PAYLOAD_MAX];
    if (!move(c, 0, buffer, c->header.len)) return 0;
    for (uint32_t i = 0; i < c->header.len; i++)
        if ((uint8_t)buffer[i] != byte_at(c->header.id, i)) {
            atomic_fetch_add(&books->wrong, 1);
            complain("an answer's byte is wrong", c->header.id, 0);
            return 0;
        }
    if (c->header.kind == ANSWER_AND_CLOSE) {
        ssize_t n = recv(c->fd, buffer, 1, 0);
        if (n != 0) {
            atomic_fetch_add(n < 0 && errno == ECONNRESET ? &books->cut : n < 0 && errno == EAGAIN ? &books->hung : &books->wrong, 1);
            complain("no end after the answer", c->header.id, n < 0 ? errno : 0);
            return 0;
        }
    }
    atomic_fetch_add(&books->answered, 1);
    return 1;
}

static int open_one(struct made *c, in_port_t port) {
    static const uint32_t most[] = {40, 40, 40, 200, 1500, 9000, PAYLOAD_MAX};
    memset(c, 0, sizeof *c);
    c->header.kind = rnd(KINDS), c->header.len = 1 + rnd(most[rnd(sizeof most / sizeof *most)]);
    c->header.id = (uint64_t)getpid() << 32 | rnd(1u << 30);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(0x7f000001 + rnd(100))};
    struct timeval limit = {HUNG_AFTER_S, 0};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    int quick = rnd(50) != 0;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &quick, sizeof quick);
    atomic_fetch_add(&books->started, 1);
    if (connect(c->fd, (void *)&at, sizeof at)) {
        atomic_fetch_add(errno == EAGAIN || errno == EINPROGRESS || errno == ETIMEDOUT ? &books->hung : &books->refused, 1);
        complain("connect", c->header.id, errno);
        close(c->fd);
        return 0;
    }
    atomic_fetch_add(&books->opened, 1);
    return 1;
}

/* Makes short requests, with time for the match service to answer. */
static int warm(struct made *c) {
    struct header wanted = c->header;
    int is_good = 1;
    for (int i = 0; i < 12 && is_good; i++) {
        c->header = (struct header){.kind = ANSWER, .len = 1 + rnd(40), .id = wanted.id ^ 1ULL << 31 ^ (uint64_t)i << 40};
        c->sent = 0;
        is_good = send_up_to(c, c->header.len) && read_answer(c);
        if (i > 4) usleep(200);
    }
    c->header = wanted, c->sent = 0;
    return is_good;
}

static void client(uint64_t seed, uint32_t quota, const in_port_t *ports) {
    struct made all[OPEN_MAX_];
    uint32_t open = 0, waits = seed % 4 != 0; /* Every fourth client does not wait for answers: it has exited before a slow server reads. */
    random_state = seed * 0x9E3779B97F4A7C15ULL | 1;
    for (int i = 0; i < 8; i++) rnd(2);
    alarm(HUNG_AFTER_S * 4);
    while (quota || open) {
        if (rnd(150) == 0) break; /* Exits with open connections. */
        if (rnd(30) == 0) usleep(rnd(1500));
        if (quota && open < OPEN_MAX_ && (open == 0 || rnd(2))) {
            quota--;
            if (open_one(&all[open], ports[rnd(LISTENERS)])) {
                if (rnd(3) || warm(&all[open]))
                    open++;
                else
                    close(all[open].fd);
            }
            continue;
        }
        if (!open) continue;
        uint32_t at = rnd(open), how = rnd(8);
        struct made *c = &all[at];
        int ends = 0;
        if (how == 0 && c->sent < c->header.len) {
            /* A part of the request. The rest is sent later or never. */
            uint32_t end = c->sent + rnd(c->header.len - c->sent + 1);
            ends = !send_up_to(c, end);
        } else if (how == 1) {
            ends = 1; /* Closed in the middle of a request. */
        } else {
            ends = !send_up_to(c, c->header.len);
            if (!ends && how != 2 && c->header.kind != TAKE && waits) {
                if (how == 3) shutdown(c->fd, SHUT_WR);
                ends = !read_answer(c) || c->header.kind == ANSWER_AND_CLOSE || rnd(2);
                c->sent = 0, c->header.id++; /* The next request of this connection. */
                ends |= how == 3;
            } else {
                ends = 1; /* Closes after the request, perhaps with an unread answer. */
                atomic_fetch_add(&books->left, 1);
            }
        }
        if (ends) {
            close(c->fd);
            all[at] = all[--open];
        }
    }
    if (rnd(2)) kill(getpid(), SIGKILL);
    /* At _exit(2) the library would not write its counters. */
    exit(0);
}

/* ---- the books ---- */

static uint64_t held_when_killed, kills;

static void bury(int which) {
    struct worker *w = &books->worker[which];
    held_when_killed += atomic_load(&w->accepted) - atomic_load(&w->finished) + 1;
}

static uint64_t sum(int finished) {
    uint64_t all = 0;
    for (int i = 0; i < WORKERS; i++)
        all += finished ? atomic_load(&books->worker[i].finished) : atomic_load(&books->worker[i].accepted);
    return all;
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    uint64_t connections = argc > 1 ? strtoull(argv[1], 0, 0) : 10000, seed = argc > 2 ? strtoull(argv[2], 0, 0) : 1;
    uint64_t kills_wanted = argc > 3 ? strtoull(argv[3], 0, 0) : connections / 1000, base = 0;
    uint64_t stops_wanted = argc > 4 ? strtoull(argv[4], 0, 0) : connections / 4000, stops = 0;
    uint64_t next_stop = stops_wanted ? connections / stops_wanted / 2 : 0;
    setvbuf(stderr, 0, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    books = mmap(0, sizeof *books, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int listeners[LISTENERS];
    in_port_t ports[LISTENERS];
    for (int i = 0; i < LISTENERS; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET};
        socklen_t len = sizeof at;
        int fd = listeners[i] = socket(AF_INET, SOCK_STREAM | (i ? 0 : SOCK_NONBLOCK), 0);
        if (bind(fd, (void *)&at, len) || listen(fd, 512) || getsockname(fd, (void *)&at, &len)) return perror("listener"), 2;
        ports[i] = at.sin_port;
    }
    pid_t worker[WORKERS];
    for (int i = 0; i < WORKERS; i++) worker[i] = start_worker(i, listeners);
    random_state = seed * 0x9E3779B97F4A7C15ULL | 1;
    double began = now();
    uint64_t next_kill = kills_wanted ? connections / kills_wanted : ~0ULL, clients = 0, bad_ends = 0;
    int running = 0;
    for (;;) {
        while (running < CLIENTS && atomic_load(&books->opened) < connections) {
            uint32_t quota = 1 + rnd(60);
            uint64_t its_seed = seed << 32 | ++clients;
            pid_t pid = fork();
            if (!pid) client(its_seed, quota, ports);
            /* EAGAIN: retries later. */
            if (pid < 0) {
                perror("fork");
                usleep(100000);
                continue;
            }
            running++;
        }
        if (!running) break;
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        int which = 0;
        while (which < WORKERS && worker[which] != pid) which++;
        if (which < WORKERS) {
            fprintf(stderr, "worker %d ended by itself, status %x\n", which, status);
            for (int i = 0; i < WORKERS; i++)
                if (i != which) kill(worker[i], SIGKILL);
            return 2;
        }
        running--;
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
            atomic_fetch_add(&books->hung, 1), complain("a client that does not end", (uint64_t)pid << 32, 0);
        else if (!(WIFEXITED(status) && !WEXITSTATUS(status)) && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
            bad_ends++, fprintf(stderr, "client %d ended with status %x\n", pid, status);
        if (kills < kills_wanted && atomic_load(&books->started) > next_kill) {
            int victim = rnd(WORKERS);
            kill(worker[victim], SIGKILL);
            waitpid(worker[victim], &status, 0);
            kills++, next_kill += connections / kills_wanted;
            bury(victim);
            base += atomic_load(&books->worker[victim].accepted);
            memset(&books->worker[victim], 0, sizeof books->worker[victim]);
            worker[victim] = start_worker(victim, listeners);
        }
        if (stops < stops_wanted && atomic_load(&books->started) > next_stop) {
            /* No worker runs for a while: clients connect, send and exit before the server accepts. */
            for (int i = 0; i < WORKERS; i++) kill(worker[i], SIGSTOP);
            usleep(150000);
            for (int i = 0; i < WORKERS; i++) kill(worker[i], SIGCONT);
            stops++, next_stop += connections / stops_wanted;
        }
    }
    double took = now() - began;
    /* Waits for connections and ends that the workers have not seen yet. */
    uint64_t opened = atomic_load(&books->opened), asked = atomic_load(&books->asked), accepted, open;
    for (int i = 0; i < 2000; i++) {
        accepted = base + sum(0), open = sum(0) - sum(1);
        if (accepted == opened && open == 0) break;
        if (i > 400 && opened - accepted <= kills && open == 0) break;
        usleep(10000);
    }
    uint64_t completed = atomic_load(&books->completed), cut = atomic_load(&books->cut);
    for (int i = 0; i < WORKERS; i++) kill(worker[i], SIGKILL), waitpid(worker[i], 0, 0);
    printf("opened %llu accepted %llu, clients %llu, workers killed %llu holding at most %llu\n",
           (unsigned long long)opened, (unsigned long long)accepted, (unsigned long long)clients, (unsigned long long)kills,
           (unsigned long long)held_when_killed);
    printf("asked %llu completed %llu answered %llu left %llu cut %llu incomplete %llu\n", (unsigned long long)asked,
           (unsigned long long)completed, (unsigned long long)atomic_load(&books->answered),
           (unsigned long long)atomic_load(&books->left), (unsigned long long)cut,
           (unsigned long long)atomic_load(&books->incomplete));
    uint64_t hung = atomic_load(&books->hung), wrong = atomic_load(&books->wrong), refused = atomic_load(&books->refused);
    printf("hung %llu wrong %llu refused %llu, still open at workers %llu\n", (unsigned long long)hung, (unsigned long long)wrong,
           (unsigned long long)refused, (unsigned long long)open);
    fprintf(stderr, "%.1f s, %.0f connections/s\n", took, opened / took);
    int lost = (int64_t)(opened - accepted) > (int64_t)kills || accepted > opened + kills;
    int unserved = (int64_t)(asked - completed) > (int64_t)held_when_killed;
    int broken = cut > held_when_killed;
    if (lost) puts("WRONG: connections are lost between connect and accept");
    if (unserved) puts("WRONG: requests are lost");
    if (broken) puts("WRONG: answers are lost");
    if (open) puts("WRONG: workers hold connections whose clients have gone");
    if (lost || unserved || broken || open || hung || wrong || refused || bad_ends) return 1;
    puts("right");
    return 0;
}
