/* epoll with threads: wake-ups, EPOLLEXCLUSIVE, changes by another thread, several workers on one set. */
#include "semantics.h"

#include <sched.h>

static int set, shared;
static pid_t sleeper;

static void *waits(void *data) {
    struct epoll_event got[4];
    sleeper = thread_id();
    int n = epoll_wait(set, got, 4, -1);
    say("woken with %d: %s", n, n > 0 ? events(got[0].events) : name_of(errno));
    return data;
}

static void start(pthread_t *thread) {
    sleeper = 0;
    MUST(pthread_create(thread, NULL, waits, NULL));
    while (!*(volatile pid_t *)&sleeper) usleep(100);
    await_asleep(sleeper);
}

static void woken(void) {
    int a, b;
    char text[16];
    pthread_t thread;
    set = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    struct epoll_event want = {.events = EPOLLIN};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, b, &want));
    say("by bytes");
    start(&thread);
    put(a, "x", 1);
    pthread_join(thread, NULL);
    get(b, text, 1);
    say("by an addition");
    start(&thread);
    int c, d;
    pair(&c, &d);
    put(c, "x", 1);
    await_bytes(d, 1);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, d, &want));
    pthread_join(thread, NULL);
    get(d, text, 1);
    say("by a change");
    start(&thread);
    want.events = EPOLLOUT;
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, d, &want));
    pthread_join(thread, NULL);
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, d, &want));
    say("by a pipe");
    start(&thread);
    int ends[2];
    MUST(pipe(ends));
    want.events = EPOLLIN;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &want));
    MUST(write(ends[1], "x", 1));
    pthread_join(thread, NULL);
    MUST(read(ends[0], text, 1));
    say("by another process");
    start(&thread);
    pid_t child = fork();
    if (!child) {
        put(a, "y", 1);
        _exit(0);
    }
    pthread_join(thread, NULL);
    reap(child);
    get(b, text, 1);
    say("by the end of the peer");
    start(&thread);
    MUST(close(a));
    pthread_join(thread, NULL);
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 5, &at, &len);
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, b, &want));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, l, &want));
    say("by a connection");
    start(&thread);
    int e = dial(&at, len);
    pthread_join(thread, NULL);
    close(e);
}

static void woken_by_room(void) {
    int a, b;
    pthread_t thread;
    set = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    size_t sent = fill(a);
    struct epoll_event want = {.events = EPOLLOUT};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, a, &want));
    start(&thread);
    char *block = malloc(sent);
    get(b, block, sent);
    pthread_join(thread, NULL);
}

/* Four workers share a set of one-shot registrations. Every byte is read once. */
static int peers[32], ends_[32], done;

static void *worker(void *data) {
    for (;;) {
        struct epoll_event got[3];
        int n = epoll_wait(shared, got, 3, -1);
        for (int i = 0; i < n; i++) {
            int which = (int)got[i].data.u64;
            if (which == 99) return data;
            char block[256];
            ssize_t r;
            while ((r = recv(ends_[which], block, sizeof block, MSG_DONTWAIT)) > 0)
                if (__atomic_add_fetch(&done, (int)r, __ATOMIC_SEQ_CST) == 32 * 2000) MUST(eventfd_write(*(int *)data, 1));
            struct epoll_event again = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = got[i].data.u64};
            MUST(epoll_ctl(shared, EPOLL_CTL_MOD, ends_[which], &again));
        }
    }
}

static void workers(void) {
    shared = (int)MUST(epoll_create1(0));
    int finished = (int)MUST(eventfd(0, 0));
    pthread_t threads[4];
    for (int i = 0; i < 32; i++) {
        pair(&peers[i], &ends_[i]);
        struct epoll_event want = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = i};
        MUST(epoll_ctl(shared, EPOLL_CTL_ADD, ends_[i], &want));
    }
    struct epoll_event want = {.events = EPOLLIN, .data.u64 = 99};
    for (int i = 0; i < 4; i++) MUST(pthread_create(&threads[i], NULL, worker, &finished));
    for (int round = 0; round < 200; round++)
        for (int i = 0; i < 32; i++) put(peers[i], "0123456789", 10);
    uint64_t one;
    struct pollfd end = {finished, POLLIN, 0};
    MUST(poll(&end, 1, -1));
    MUST(epoll_ctl(shared, EPOLL_CTL_ADD, finished, &want));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    MUST(read(finished, &one, 8));
    say("bytes read %d, end said %d times", done, (int)one);
}

/* Three sets have one listener with EPOLLEXCLUSIVE. Every connection is accepted, once. */
static int exclusive_listener, accepted;

static void *accepts(void *data) {
    int e = (int)MUST(epoll_create1(0));
    struct epoll_event want = {.events = EPOLLIN | EPOLLEXCLUSIVE}, got;
    MUST(epoll_ctl(e, EPOLL_CTL_ADD, exclusive_listener, &want));
    want.events = EPOLLIN;
    want.data.u64 = 1;
    MUST(epoll_ctl(e, EPOLL_CTL_ADD, *(int *)data, &want));
    for (;;) {
        if (epoll_wait(e, &got, 1, -1) < 1) die("epoll_wait %s", name_of(errno));
        if (got.data.u64 == 1) return NULL;
        int s = accept(exclusive_listener, NULL, NULL);
        if (s < 0) continue;
        __atomic_add_fetch(&accepted, 1, __ATOMIC_SEQ_CST);
        char one = 'x';
        put(s, &one, 1);
        close(s);
    }
}

static void exclusive(void) {
    struct sockaddr_storage at;
    socklen_t len;
    exclusive_listener = listener(AF_INET, 64, &at, &len);
    MUST(fcntl(exclusive_listener, F_SETFL, O_NONBLOCK));
    int stop = (int)MUST(eventfd(0, 0));
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) MUST(pthread_create(&threads[i], NULL, accepts, &stop));
    for (int i = 0; i < 300; i++) {
        char one;
        int c = dial(&at, len);
        get(c, &one, 1);
        MUST(close(c));
    }
    MUST(eventfd_write(stop, 1));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    say("accepted %d", accepted);
}

/* Ping-pong through a level-triggered and an edge-triggered set: no wake-up is lost in 20,000 turns. It ends after
 * ten seconds, because a turn takes several time slices on a busy CPU. */
static void *echoes(void *data) {
    int fd = *(int *)data, e = (int)MUST(epoll_create1(0));
    struct epoll_event want = {.events = EPOLLIN | EPOLLET}, got;
    MUST(fcntl(fd, F_SETFL, O_NONBLOCK));
    MUST(epoll_ctl(e, EPOLL_CTL_ADD, fd, &want));
    for (;;) {
        MUST(epoll_wait(e, &got, 1, -1));
        char block[64];
        ssize_t n;
        while ((n = recv(fd, block, sizeof block, 0)) > 0) put(fd, block, n);
        if (n == 0) return NULL;
    }
}

static void no_wakeup_lost(void) {
    int a, b;
    pair(&a, &b);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, echoes, &b));
    int e = (int)MUST(epoll_create1(0));
    struct epoll_event want = {.events = EPOLLIN}, got;
    MUST(epoll_ctl(e, EPOLL_CTL_ADD, a, &want));
    int64_t until = now_ms() + 10000;
    for (unsigned turn = 0; turn < 20000 && now_ms() < until; turn++) {
        unsigned back = 0;
        put(a, &turn, sizeof turn);
        MUST(epoll_wait(e, &got, 1, -1));
        get(a, &back, sizeof back);
        if (back != turn) die("turn %u brought %u", turn, back);
    }
    MUST(shutdown(a, SHUT_WR));
    pthread_join(thread, NULL);
    say("each turn has come back");
}

/* Forks a process that connects, if `when_asleep` once this one sleeps. */
static pid_t connects(const struct sockaddr_storage *at, socklen_t len, bool when_asleep, int hold) {
    pid_t parent = getpid(), child = fork();
    if (child) return child;
    if (when_asleep) await_asleep(parent);
    int c = dial(at, len);
    char end;
    if (read(hold, &end, 1) < 0) die("hold");
    close(c);
    _exit(0);
}

/* A set with an EPOLLEXCLUSIVE listener reports a connection to epoll_wait without a time-out, to poll, and to an
 * outer set. */
static void exclusive_from_outside(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), e = (int)MUST(epoll_create1(0)), outer = (int)MUST(epoll_create1(0)), ends[2];
    MUST(fcntl(l, F_SETFL, O_NONBLOCK));
    MUST(pipe(ends));
    struct epoll_event want = {.events = EPOLLIN | EPOLLEXCLUSIVE}, got;
    MUST(epoll_ctl(e, EPOLL_CTL_ADD, l, &want));
    want.events = EPOLLIN;
    MUST(epoll_ctl(outer, EPOLL_CTL_ADD, e, &want));
    pid_t child[3];
    child[0] = connects(&at, len, true, ends[0]);
    struct pollfd one = {e, POLLIN, 0};
    CALL(poll(&one, 1, -1));
    CALL(epoll_wait(e, &got, 1, -1));
    MUST(accept(l, NULL, NULL));
    CALL(epoll_wait(e, &got, 1, 0));
    child[1] = connects(&at, len, true, ends[0]);
    CALL(epoll_wait(outer, &got, 1, -1));
    CALL(epoll_wait(e, &got, 1, -1));
    MUST(accept(l, NULL, NULL));
    CALL(epoll_wait(e, &got, 1, 0));
    child[2] = connects(&at, len, false, ends[0]);
    while (MUST(epoll_wait(e, &got, 1, 0)) == 0) usleep(1000);
    MUST(accept(l, NULL, NULL));
    CALL(epoll_wait(e, &got, 1, 0));
    MUST(write(ends[1], "xxx", 3));
    for (int i = 0; i < 3; i++) reap(child[i]);
}

static void *nothing(void *data) {
    return data;
}

/* A set that was made in a process with threads reports only the application's events, there and in a child. */
static void inherited_from_threads(void) {
    int a, b;
    struct epoll_event want = {.events = EPOLLIN, .data.u64 = 7}, got[4];
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, nothing, NULL));
    pthread_join(thread, NULL);
    set = (int)MUST(epoll_create1(0));
    pair(&a, &b);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, b, &want));
    pid_t child = fork();
    if (!child) {
        CALL(epoll_wait(set, got, 4, 0));
        CALL(epoll_wait(set, got, 4, 10));
        put(a, "x", 1);
        await_bytes(b, 1);
        CALL(epoll_wait(set, got, 4, -1));
        say("data %d", (int)got[0].data.u64);
        char text[4];
        get(b, text, 1);
        _exit(0);
    }
    reap(child);
    CALL(epoll_wait(set, got, 4, 10));
    put(a, "x", 1);
    CALL(epoll_wait(set, got, 4, -1));
    say("data %d", (int)got[0].data.u64);
}

/* A set is closed while a thread waits in it, and a new set gets its number. The thread gets no event of the new
 * set. */
static void *waits_its_time(void *data) {
    struct epoll_event got[4];
    sleeper = thread_id();
    return (void *)(intptr_t)epoll_wait(set, got, 4, *(int *)data);
}

static void closed_while_waited(void) {
    int a, b, c, d, time = 2000;
    struct epoll_event want = {.events = EPOLLIN, .data.u64 = 1}, got[4];
    pthread_t thread;
    pair(&a, &b);
    pair(&c, &d);
    /* On a busy machine it may look for longer than its time before it sleeps. */
    for (;; time *= 2) {
        set = (int)MUST(epoll_create1(0));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, b, &want));
        sleeper = 0;
        MUST(pthread_create(&thread, NULL, waits_its_time, &time));
        while (!*(volatile pid_t *)&sleeper) usleep(100);
        if (falls_asleep(sleeper)) break;
        if (time > 30000) again();
        MUST(pthread_join(thread, NULL));
        MUST(close(set));
    }
    MUST(close(set));
    set = (int)MUST(epoll_create1(0));
    want = (struct epoll_event){.events = EPOLLIN | EPOLLET, .data.u64 = 2};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, d, &want));
    put(c, "x", 1);
    await_bytes(d, 1);
    void *woken;
    pthread_join(thread, &woken);
    say("woken with %d", (int)(intptr_t)woken);
    CALL(epoll_wait(set, got, 4, 0));
    say("data %d", (int)got[0].data.u64);
    CALL(epoll_wait(set, got, 4, 0));
}

/* Threads sleep in a set before it has its first socket. Each gets one of as many events. */
enum { MANY = 80 };
static int began;
static pthread_barrier_t together;

static void *takes_one(void *data) {
    struct epoll_event got;
    __atomic_add_fetch(&began, 1, __ATOMIC_SEQ_CST);
    MUST(epoll_wait(set, &got, 1, -1));
    pthread_barrier_wait(&together);
    return data;
}

/* A connection wakes a set with an EPOLLEXCLUSIVE listener. Before the waiter runs, another thread closes the set or
 * removes the listener. The kernel does not report that connection to another set, but the next connection. */
static int busy_set;
static volatile bool busy;

static void on_cpu(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    MUST(sched_setaffinity(0, sizeof one, &one));
}

static void cpus(int *first, int *last) {
    cpu_set_t all;
    MUST(sched_getaffinity(0, sizeof all, &all));
    *first = *last = -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        if (*first < 0) *first = cpu;
        *last = cpu;
    }
}

static void *tells_in_time(void *told) {
    struct epoll_event got;
    sleeper = thread_id();
    *(int *)told += epoll_wait(set, &got, 1, 30000) == 1;
    return NULL;
}

static void *keeps_cpu(void *cpu) {
    on_cpu(*(int *)cpu);
    while (busy) continue;
    return NULL;
}

static void *waits_behind(void *cpu) {
    struct sched_param none = {0};
    struct epoll_event got;
    on_cpu(*(int *)cpu);
    MUST(sched_setscheduler(0, SCHED_IDLE, &none));
    sleeper = thread_id();
    epoll_wait(busy_set, &got, 1, -1);
    return NULL;
}

static void exclusive_gone(bool closed) {
    int first, last, told = 0;
    cpus(&first, &last);
    for (int round = 0; round < 5; round++) {
        struct sockaddr_storage at;
        socklen_t len;
        int to[2], from[2];
        on_cpu(last);
        MUST(pipe(to));
        MUST(pipe(from));
        /* The client is forked before the listener exists, so it shares nothing with the server. */
        pid_t client = (pid_t)MUST(fork());
        if (!client) {
            close(to[1]);
            struct sockaddr_storage there;
            while (read(to[0], &there, sizeof there) == sizeof there) {
                dial(&there, sizeof(struct sockaddr_in));
                MUST(write(from[1], "x", 1));
            }
            _exit(0);
        }
        close(to[0]);
        int l = listener(AF_INET, 16, &at, &len);
        struct epoll_event want = {.events = EPOLLIN | EPOLLEXCLUSIVE};
        pthread_t behind, other, hog;
        busy_set = (int)MUST(epoll_create1(0));
        set = (int)MUST(epoll_create1(0));
        MUST(epoll_ctl(busy_set, EPOLL_CTL_ADD, l, &want));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, l, &want));
        sleeper = 0;
        MUST(pthread_create(&behind, NULL, waits_behind, &first));
        while (!*(volatile pid_t *)&sleeper) usleep(100);
        await_asleep(sleeper);
        sleeper = 0;
        MUST(pthread_create(&other, NULL, tells_in_time, &told));
        while (!*(volatile pid_t *)&sleeper) usleep(100);
        await_asleep(sleeper);
        busy = true;
        MUST(pthread_create(&hog, NULL, keeps_cpu, &first));
        usleep(20000);
        char done;
        MUST(write(to[1], &at, sizeof at));
        MUST(read(from[0], &done, 1));
        if (closed) {
            MUST(close(busy_set));
        } else {
            MUST(epoll_ctl(busy_set, EPOLL_CTL_DEL, l, NULL));
        }
        busy = false;
        pthread_join(hog, NULL);
        MUST(write(to[1], &at, sizeof at));
        MUST(read(from[0], &done, 1));
        pthread_join(other, NULL);
        MUST(pthread_detach(behind));
        MUST(close(set));
        MUST(close(l));
        MUST(close(to[1]));
        reap(client);
    }
    say("told %d times", told);
}

static void exclusive_closed(void) { exclusive_gone(true); }
static void exclusive_taken_out(void) { exclusive_gone(false); }

static void many_sleep_before(void) {
    pthread_t threads[MANY];
    int a[MANY], b[MANY], ends[2];
    struct epoll_event want = {.events = EPOLLIN | EPOLLONESHOT};
    set = (int)MUST(epoll_create1(0));
    MUST(pipe(ends));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &want));
    pthread_barrier_init(&together, NULL, MANY);
    for (int i = 0; i < MANY; i++) pair(&a[i], &b[i]);
    for (int i = 0; i < MANY; i++) MUST(pthread_create(&threads[i], NULL, takes_one, NULL));
    while (__atomic_load_n(&began, __ATOMIC_SEQ_CST) < MANY) usleep(1000);
    usleep(20000);
    for (int i = 0; i < MANY; i++) {
        put(a[i], "x", 1);
        /* A report is known by its data. Some of these bytes are in rings, those after a second by the kernel. */
        want.data.fd = b[i];
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, b[i], &want));
    }
    for (int i = 0; i < MANY; i++) pthread_join(threads[i], NULL);
    say("each has had one");
}

const struct test epoll_thread_cases[] = {{"epoll_woken", woken},
                                          {"epoll_woken_by_room", woken_by_room},
                                          {"epoll_workers", workers},
                                          {"epoll_exclusive", exclusive},
                                          {"epoll_exclusive_from_outside", exclusive_from_outside},
                                          {"epoll_exclusive_closed", exclusive_closed},
                                          {"epoll_exclusive_taken_out", exclusive_taken_out},
                                          {"epoll_inherited_from_threads", inherited_from_threads},
                                          {"epoll_no_wakeup_lost", no_wakeup_lost},
                                          {"epoll_closed_while_waited", closed_while_waited},
                                          {"epoll_many_sleep_before", many_sleep_before},
                                          {NULL, NULL}};
