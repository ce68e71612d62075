/* Signals during calls that block, with and without SA_RESTART, and calls with a time-out. */
#include "semantics.h"
#include <setjmp.h>
#include <stdatomic.h>

static char text[64];
static volatile int handled;
static int subject, how, other;
static pid_t sleeper;
static struct sockaddr_storage where;
static socklen_t where_len;

static void handler(int signal) {
    (void)signal;
    handled++;
}

static void install(int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(SIGUSR1, &action, NULL);
}

enum { RECV, READ, RECVMSG, ACCEPT, SEND, POLL, SELECT, EPOLL, RECV_LIMIT, PPOLL_MASK, RECVALL, HOWS };
static const char *const names[] = {"recv", "read", "recvmsg", "accept", "send", "poll",
                                    "select", "epoll_wait", "recv with a limit", "ppoll with a mask", "recv all of 4"};

static long call(void) {
    char byte[8];
    struct iovec part = {byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct epoll_event got;
    fd_set set;
    sigset_t none;
    sigemptyset(&none);
    switch (how) {
    case RECV:
    case RECV_LIMIT: return recv(subject, byte, 1, 0);
    case RECVALL: return recv(subject, byte, 4, MSG_WAITALL);
    case READ: return read(subject, byte, 1);
    case RECVMSG: return recvmsg(subject, &message, 0);
    case ACCEPT: return accept(subject, NULL, NULL) >= 0 ? 0 : -1;
    case SEND: return send(subject, "x", 1, 0);
    case POLL: return poll(&(struct pollfd){subject, POLLIN, 0}, 1, -1);
    case SELECT: FD_ZERO(&set); FD_SET(subject, &set); return select(subject + 1, &set, NULL, NULL, NULL);
    case EPOLL: return epoll_wait(other, &got, 1, -1);
    case PPOLL_MASK: return ppoll(&(struct pollfd){subject, POLLIN, 0}, 1, NULL, &none);
    }
    return 0;
}

static void *waits(void *data) {
    (void)data;
    if (how == PPOLL_MASK) {
        sigset_t block;
        sigemptyset(&block);
        sigaddset(&block, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &block, NULL);
    }
    sleeper = thread_id();
    errno = 0;
    long n = call();
    int error = errno;
    say("%s: %ld %s", names[how], n, n < 0 ? name_of(error) : "");
    return NULL;
}

static void interrupt(int flags) {
    install(flags);
    for (how = 0; how < HOWS; how++) {
        int a, b;
        pthread_t thread;
        pair(&a, &b);
        subject = b;
        size_t sent = 0;
        if (how == ACCEPT) subject = listener(AF_INET, 5, &where, &where_len);
        if (how == SEND) {
            sent = fill(b);
            MUST(fcntl(b, F_SETFL, 0));
        }
        if (how == EPOLL) {
            other = (int)MUST(epoll_create1(0));
            struct epoll_event want = {.events = EPOLLIN};
            MUST(epoll_ctl(other, EPOLL_CTL_ADD, b, &want));
        }
        if (how == RECV_LIMIT) {
            struct timeval limit = {30, 0};
            MUST(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
        }
        if (how == RECVALL) {
            put(a, "12", 2);
            await_bytes(b, 2);
        }
        handled = 0;
        sleeper = 0;
        MUST(pthread_create(&thread, NULL, waits, NULL));
        while (!*(volatile pid_t *)&sleeper) usleep(100);
        await_asleep(sleeper);
        pthread_kill(thread, SIGUSR1);
        while (!handled) usleep(100);
        await_settled(sleeper);
        /* Ends a call that was restarted. */
        if (how == ACCEPT) close(dial(&where, where_len));
        else if (how == SEND) {
            char *block = malloc(sent);
            get(a, block, sent);
        } else put(a, "5678", 4);
        pthread_join(thread, NULL);
        close(a), close(b);
    }
}

static void interrupted(void) { interrupt(0); }
static void restarted(void) { interrupt(SA_RESTART); }

static void time_limits(void) {
    int a, b;
    pair(&a, &b);
    struct timeval limit = {0, 60000};
    socklen_t len;
    MUST(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    int64_t start = now_ms();
    CALL(recv(a, text, 1, 0));
    say("waited %d", now_ms() - start >= 60);
    start = now_ms();
    CALL(read(a, text, 1));
    say("waited %d", now_ms() - start >= 60);
    put(b, "ab", 2);
    CALL(recv(a, text, 4, MSG_WAITALL));
    MUST(setsockopt(b, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    fill(b);
    MUST(fcntl(b, F_SETFL, 0));
    start = now_ms();
    CALL(send(b, text, 1, 0));
    say("waited %d", now_ms() - start >= 60);
    int l = listener(AF_INET, 5, &where, &len);
    MUST(setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    start = now_ms();
    CALL(accept(l, NULL, NULL));
    say("waited %d", now_ms() - start >= 60);
    limit.tv_usec = 0;
    MUST(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    limit.tv_usec = 1500;
    MUST(setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    len = sizeof limit;
    MUST(getsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, &len));
    say("RCVTIMEO %ld.%06ld", (long)limit.tv_sec, (long)limit.tv_usec);
    limit.tv_usec = 1000000;
    CALL(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    limit.tv_usec = 0;
    limit.tv_sec = -1;
    CALL(setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
}

/* A handler makes calls on the socket on which its thread sleeps. */
static int in_handler;
static void sends_from_handler(int signal) {
    (void)signal;
    int error = errno;
    char byte;
    handled += (int)send(in_handler, "h", 1, MSG_NOSIGNAL);
    handled += recv(in_handler, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
    errno = error;
}

static void calls_in_handler(void) {
    int a, b;
    pair(&a, &b);
    struct sigaction action = {.sa_handler = sends_from_handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    handled = 0;
    in_handler = b;
    pthread_t thread;
    subject = b;
    how = RECV;
    sleeper = 0;
    MUST(pthread_create(&thread, NULL, waits, NULL));
    while (!*(volatile pid_t *)&sleeper) usleep(100);
    await_asleep(sleeper);
    pthread_kill(thread, SIGUSR1);
    get(a, text, 1);
    say("%c", text[0]);
    while (handled < 2) usleep(100);
    put(a, "x", 1);
    pthread_join(thread, NULL);
    say("handler's calls %d", handled);
}

/* A timer interrupts recv all the time. No byte is lost. */
static void storm(void) {
    int a, b;
    pair(&a, &b);
    pid_t child = fork();
    if (!child) {
        static char block[50000];
        for (int i = 0; i < 400; i++) put(a, block, sizeof block);
        _exit(0);
    }
    close(a);
    struct sigaction action = {.sa_handler = handler, .sa_flags = 0};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &every, NULL);
    size_t got = 0;
    static char block[70000];
    for (;;) {
        ssize_t n = recv(b, block, sizeof block, MSG_WAITALL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) die("recv %s", name_of(errno));
        if (n == 0) break;
        got += n;
    }
    every.it_value.tv_usec = 0;
    setitimer(ITIMER_REAL, &every, NULL);
    say("got %zu", got);
    reap(child);
}

static void asynchronous(void) {
    int a, b;
    pair(&a, &b);
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGIO, &action, NULL);
    handled = 0;
    CALL(fcntl(b, F_SETOWN, getpid()));
    CALL(fcntl(b, F_GETOWN) == getpid());
    CALL(fcntl(b, F_SETFL, O_ASYNC));
    say("ASYNC %d", !!(fcntl(b, F_GETFL) & O_ASYNC));
    put(a, "x", 1);
    for (int i = 0; i < 30000 && !handled; i++) usleep(1000);
    say("SIGIO came %d", handled > 0);
}

static void other_handler(int signal) { (void)signal; }

/* Returns whether a process has a pending signal. */
static bool signal_pends(pid_t pid) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    int fd = (int)MUST(open(path, O_RDONLY));
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *pending = strstr(text, "\nShdPnd:\t");
    return pending && strtoull(pending + 9, NULL, 16);
}

/* The flags of the handler that ran decide whether a call is restarted, not those of other handlers. */
static void by_handler(void) {
    struct sigaction restarts = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct sigaction ends = {.sa_handler = handler, .sa_flags = 0};
    for (int order = 0; order < 2; order++) {
        MUST(sigaction(SIGUSR1, order ? &ends : &restarts, NULL));
        MUST(sigaction(SIGUSR2, order ? &restarts : &ends, NULL));
        for (int accepts = 0; accepts < 2; accepts++) {
            int a, b, gate[2];
            pair(&a, &b);
            MUST(pipe(gate));
            int l = listener(AF_INET, 5, &where, &where_len);
            pid_t child = fork();
            if (!child) {
                long n = accepts ? accept(l, NULL, NULL) : recv(b, text, 1, 0);
                say("%s: %s", accepts ? "accept" : "recv", n < 0 ? name_of(errno) : "went on");
                _exit(0);
            }
            await_asleep(child);
            /* A byte that arrives before the handler runs would end the call. */
            MUST(kill(child, SIGUSR1));
            do usleep(1000);
            while (signal_pends(child));
            await_settled(child);
            if (accepts && !order) close(dial(&where, where_len));
            else put(a, "x", 1);
            reap(child);
            close(a), close(b), close(l);
        }
    }
}

/* sigaction and signal return the handlers as they were installed. */
static void as_given(void) {
    struct sigaction was, first = {.sa_handler = handler, .sa_flags = SA_RESTART | SA_NODEFER};
    MUST(sigaction(SIGUSR1, &first, NULL));
    MUST(sigaction(SIGUSR1, NULL, &was));
    say("handler %d RESTART %d NODEFER %d", was.sa_handler == handler, !!(was.sa_flags & SA_RESTART),
        !!(was.sa_flags & SA_NODEFER));
    say("signal answers the one before: %d", signal(SIGUSR1, other_handler) == handler);
    MUST(sigaction(SIGUSR1, NULL, &was));
    say("handler %d RESTART %d", was.sa_handler == other_handler, !!(was.sa_flags & SA_RESTART));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    MUST(siginterrupt(SIGUSR1, 1));
#pragma GCC diagnostic pop
    MUST(sigaction(SIGUSR1, &first, &was));
    say("handler %d RESTART %d", was.sa_handler == other_handler, !!(was.sa_flags & SA_RESTART));
    MUST(sigaction(SIGUSR1, &was, &was));
    say("handler %d", was.sa_handler == handler);
    say("signal: %d", signal(SIGUSR1, SIG_IGN) == other_handler);
    raise(SIGUSR1);
    say("ignored: %d", signal(SIGUSR1, SIG_DFL) == SIG_IGN);
    say("default: %d", signal(SIGUSR1, handler) == SIG_DFL);
    struct sigaction once = {.sa_handler = handler, .sa_flags = SA_RESETHAND};
    MUST(sigaction(SIGUSR1, &once, NULL));
    handled = 0;
    raise(SIGUSR1);
    MUST(sigaction(SIGUSR1, NULL, &was));
    say("ran %d, default %d", handled, was.sa_handler == SIG_DFL);
    CALL(sigaction(SIGKILL, &first, NULL));
    CALL(sigaction(65, &first, NULL));
    say("%d", signal(SIGKILL, handler) == SIG_ERR);
}

static sigjmp_buf back;
static void jumps(int signal) { siglongjmp(back, signal); }

/* A handler jumps out of calls that sleep. The sockets go on working. */
static void jumped(void) {
    int a, b, c;
    struct sigaction action = {.sa_handler = jumps, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL));
    int l = listener(AF_INET, 5, &where, &where_len);
    pair(&a, &b);
    for (volatile int round = 0; round < 40; round++) {
        for (volatile int which = 0; which < 5; which++) {
            int set = (int)MUST(epoll_create1(0));
            struct epoll_event want = {.events = EPOLLIN};
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, a, &want));
            struct pollfd both[2] = {{a, POLLIN, 0}, {l, POLLIN, 0}};
            struct itimerval soon = {{0, 0}, {0, 2000}};
            if (sigsetjmp(back, 1) == 0) {
                MUST(setitimer(ITIMER_REAL, &soon, NULL));
                if (which == 0) recv(a, text, 1, 0);
                else if (which == 1) accept(l, NULL, NULL);
                else if (which == 2) poll(both, 2, -1);
                else if (which == 3) poll(both, 1, -1);
                else epoll_wait(set, &want, 1, -1);
                say("call %d came back", which);
            }
            MUST(close(set));
        }
    }
    put(b, "whole", 5);
    get(a, text, 5);
    say("%.5s", text);
    c = dial(&where, where_len);
    int d = (int)MUST(accept(l, NULL, NULL));
    MUST(close(d));
    CALL(recv(c, text, 1, 0));
    pid_t child = fork();
    if (!child) _exit(0);
    reap(child);
    MUST(close(a));
    CALL(recv(b, text, 1, 0));
    MUST(close(l));
    CALL(connect(tcp(AF_INET, 0), (struct sockaddr *)&where, where_len));
}

/* A handler jumps out of calls at any point, while bytes move. */
static void jumped_anywhere(void) {
    int a, b;
    pair(&a, &b);
    pid_t child = fork();
    if (!child) {
        MUST(close(b));
        static char block[3000];
        for (;;)
            if (send(a, block, sizeof block, MSG_NOSIGNAL) < 0) _exit(0);
    }
    MUST(close(a));
    struct sigaction action = {.sa_handler = jumps, .sa_flags = 0};
    MUST(sigaction(SIGALRM, &action, NULL));
    for (volatile int round = 0; round < 300; round++) {
        struct itimerval soon = {{0, 0}, {0, 50 + round}};
        if (sigsetjmp(back, 1) == 0) {
            MUST(setitimer(ITIMER_REAL, &soon, NULL));
            for (;;) {
                int copy = dup(b);
                if (recv(b, text, sizeof text, 0) <= 0) die("recv: %s", name_of(errno));
                close(copy);
            }
        }
    }
    CALL(recv(b, text, sizeof text, MSG_WAITALL) == sizeof text);
    /* Closes the copies whose close was jumped over. */
    closefrom(3);
    reap(child);
}

/* A handler jumps out of a listener's first accept, a client's first connect, and fork. No descriptor stays open, the
 * next accept returns the connection, and its end gets an event when the client closes. */
static void jumped_early(void) {
    struct sigaction action = {.sa_handler = jumps, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL));
    struct itimerval never = {0};
    int left = 0, stalled = 0;
    for (int fd = 0; fd < 900; fd++) left -= fcntl(fd, F_GETFD) >= 0;
    for (volatile int round = 0; round < 60; round++) {
        volatile int l = listener(AF_INET, 5, &where, &where_len), c = tcp(AF_INET, 0);
        for (volatile int call = 0; call < 3; call++)
            for (volatile int moment = 0; moment < 30; moment++) {
                struct itimerval soon = {{0, 0}, {0, 10 + moment * 8}};
                if (sigsetjmp(back, 1)) continue;
                MUST(setitimer(ITIMER_REAL, &soon, NULL));
                if (call == 0) {
                    accept(l, NULL, NULL);
                } else if (call == 1) {
                    connect(c, (struct sockaddr *)&where, where_len);
                    pause();
                } else {
                    if (!fork()) _exit(0);
                    pause();
                }
            }
        MUST(setitimer(ITIMER_REAL, &never, NULL));
        /* If the timer interrupted every connect. */
        connect(c, (struct sockaddr *)&where, where_len);
        while (waitpid(-1, NULL, 0) > 0) continue;
        struct pollfd ready = {l, POLLIN, 0};
        stalled += poll(&ready, 1, 30000) != 1;
        int d = (int)MUST(accept(l, NULL, NULL));
        close(c);
        ready = (struct pollfd){d, POLLIN, 0};
        stalled += poll(&ready, 1, 30000) != 1;
        close(d);
        close(l);
    }
    for (int fd = 0; fd < 900; fd++) left += fcntl(fd, F_GETFD) >= 0;
    say("left %d, stalled %d", left, stalled);
}

/* accept(2) goes on after SIGSTOP and SIGCONT, although a handler without SA_RESTART is installed, which does not
 * run. */
static void stopped(void) {
    install(0);
    int l = listener(AF_INET, 8, &where, &where_len);
    pid_t child = fork();
    if (!child) {
        OPEN(accept(l, NULL, NULL));
        _exit(0);
    }
    await_asleep(child);
    int status;
    for (int i = 0; i < 3; i++) {
        MUST(kill(child, SIGSTOP));
        MUST(waitpid(child, &status, WUNTRACED));
        MUST(kill(child, SIGCONT));
        await_asleep(child);
    }
    int c = dial(&where, where_len);
    reap(child);
    MUST(close(c));
}

static sigjmp_buf out_of_accept;
static pid_t forked_in_handler;

static void forks(int signal) {
    (void)signal;
    forked_in_handler = fork();
    if (!forked_in_handler) siglongjmp(out_of_accept, 1);
}

/* A handler in the middle of accept forks, and the child jumps out of the handler. The parent's accept goes on. When
 * both have closed the listener, its port is closed. */
static void accept_forks_in_handler(void) {
    int l = listener(AF_INET, 5, &where, &where_len), gate[2];
    MUST(pipe(gate));
    struct sigaction action = {.sa_handler = forks, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL));
    struct itimerval once = {{0, 0}, {0, 100000}};
    if (!sigsetjmp(out_of_accept, 1)) {
        MUST(setitimer(ITIMER_REAL, &once, NULL));
        OPEN(accept(l, NULL, NULL));
        MUST(close(l));
        MUST(write(gate[1], "x", 1));
        reap(forked_in_handler);
        return;
    }
    char byte;
    MUST(close(l));
    int c = dial(&where, where_len);
    MUST(read(gate[0], &byte, 1));
    int late = tcp(AF_INET, 0);
    CALL(connect(late, (struct sockaddr *)&where, where_len));
    close(c);
    _exit(0);
}

static atomic_bool over;
static atomic_long longest_ms;

static void forks_and_waits(int signal) {
    (void)signal;
    int before = errno, status;
    int64_t began = now_ms();
    pid_t child = fork();
    if (!child) _exit(0);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    int64_t took = now_ms() - began;
    if (took > longest_ms) longest_ms = took;
    errno = before;
}

static void *opens_and_connects(void *connects) {
    while (!over) {
        int s = tcp(AF_INET, SOCK_CLOEXEC);
        /* A reset avoids TIME_WAIT, which would hold the port for a minute. */
        struct linger none = {1, 0};
        if (connects) setsockopt(s, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        if (connects && connect(s, (struct sockaddr *)&where, where_len) < 0) die("connect: %s", name_of(errno));
        close(s);
    }
    return NULL;
}

static void *takes(void *listener) {
    for (;;) {
        int s = accept4((int)(intptr_t)listener, NULL, NULL, SOCK_CLOEXEC);
        if (s < 0) die("accept: %s", name_of(errno));
        close(s);
    }
}

/* Handlers fork in the middle of calls of several threads. No fork waits for another thread. */
static void forks_in_handlers(void) {
    int l = listener(AF_INET, 64, &where, &where_len);
    pthread_t taker, threads[4];
    MUST(pthread_create(&taker, NULL, takes, (void *)(intptr_t)l));
    for (intptr_t i = 0; i < 4; i++) MUST(pthread_create(&threads[i], NULL, opens_and_connects, (void *)(i & 1)));
    struct sigaction action = {.sa_handler = forks_and_waits, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL));
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {0};
    MUST(setitimer(ITIMER_REAL, &often, NULL));
    for (int64_t end = now_ms() + 1500; now_ms() < end;) usleep(10000);
    MUST(setitimer(ITIMER_REAL, &never, NULL));
    over = true;
    for (int i = 0; i < 4; i++) MUST(pthread_join(threads[i], NULL));
    /* A fork that waits for another thread takes a second, but so may a fork on a busy machine. */
    if (longest_ms >= 1000) late();
    say("each within a second");
}

static int copied;

static void copies(int signal) {
    (void)signal;
    int before = errno, copy = dup(copied);
    if (copy < 0 || close(copy) < 0) die("dup, close: %s", name_of(errno));
    errno = before;
}

static void *allocates(void *unused) {
    (void)unused;
    while (!over) {
        /* volatile keeps the compiler from removing the call. */
        void *volatile some = malloc(3000);
        free(some);
    }
    return NULL;
}

/* A handler duplicates and closes a descriptor in the middle of malloc, while another thread's fork waits for
 * malloc's lock. */
static void fork_beside_malloc(void) {
    pthread_t threads[2];
    copied = tcp(AF_INET, 0);
    over = false;
    struct sigaction action = {.sa_handler = copies, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL));
    for (int i = 0; i < 2; i++) MUST(pthread_create(&threads[i], NULL, allocates, NULL));
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    MUST(pthread_sigmask(SIG_BLOCK, &alarm, NULL));
    struct itimerval often = {{0, 100}, {0, 100}}, never = {0};
    MUST(setitimer(ITIMER_REAL, &often, NULL));
    /* A fork during which the two wait for each other takes a second. */
    int64_t end = now_ms() + 3000;
    for (int i = 0; i < 2000 && now_ms() < end; i++) {
        pid_t child = (pid_t)MUST(fork());
        if (!child) _exit(0);
        int status;
        MUST(waitpid(child, &status, 0));
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL));
    over = true;
    for (int i = 0; i < 2; i++) MUST(pthread_join(threads[i], NULL));
    say("over");
}

static volatile sig_atomic_t came;

static void comes(int signal) {
    (void)signal;
    came = 1;
}

/* A child that gets a signal right after its fork runs the handler. */
static void to_a_new_child(void) {
    struct sigaction action = {.sa_handler = comes};
    MUST(sigaction(SIGUSR1, &action, NULL));
    int a, b, lost = 0;
    pair(&a, &b);
    for (int i = 0; i < 300; i++) {
        pid_t child = (pid_t)MUST(fork());
        if (!child) {
            for (int64_t end = now_ms() + 30000; !came && now_ms() < end;) usleep(100);
            _exit(!came);
        }
        MUST(kill(child, SIGUSR1));
        int status;
        MUST(waitpid(child, &status, 0));
        lost += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    say("lost %d\n", lost);
}

const struct test signal_cases[] = {{"signal_interrupts", interrupted}, {"signal_restarts", restarted},
                                    {"signal_time_limits", time_limits}, {"signal_calls_in_handler", calls_in_handler},
                                    {"signal_storm", storm},             {"signal_sigio", asynchronous},
                                    {"signal_by_handler", by_handler},   {"signal_as_given", as_given},
                                    {"signal_jumped", jumped},     {"signal_jumped_anywhere", jumped_anywhere},
                                    {"signal_jumped_early", jumped_early},
                                    {"signal_stopped", stopped},
                                    {"signal_accept_forks", accept_forks_in_handler},
                                    {"signal_forks_in_handlers", forks_in_handlers},
                                    {"signal_to_a_new_child", to_a_new_child},
                                    {"signal_fork_beside_malloc", fork_beside_malloc},
                                    {NULL, NULL}};
