/* Other threads and signal handlers close sockets, change limits or cancel in the middle of a call. */
#include "semantics.h"

static int victim, swapped, strayed;
static int server, nothing;
static struct sockaddr_storage where;
static socklen_t where_len;
static volatile sig_atomic_t new_ends[2] = {-1, -1};

/* Replaces the socket by /dev/null and makes another connection, which may reuse the socket's memory. */
static void swap(int signal) {
    (void)signal;
    int error = errno;
    if (new_ends[0] < 0) {
        MUST(dup2(nothing, victim));
        int c = dial(&where, where_len);
        int s = (int)MUST(accept(server, NULL, NULL));
        put(s, "theirs", 6);
        new_ends[0] = c;
        new_ends[1] = s;
    }
    errno = error;
}

/* A call whose socket is closed in the middle moves no bytes of a connection that is made after that. */
static void number_closed_in_a_call(void) {
    server = listener(AF_INET, 16, &where, &where_len);
    nothing = (int)MUST(open("/dev/null", O_RDWR));
    int peer;
    char text[16];
    struct itimerval often = {.it_interval.tv_usec = 700, .it_value.tv_usec = 700}, never = {0};
    MUST(sigaction(SIGALRM, &(struct sigaction){.sa_handler = swap, .sa_flags = SA_RESTART}, NULL));
    int64_t until = now_ms() + 3000;
    while (swapped < 1500 && (now_ms() < until || swapped <= 20)) {
        pair(&victim, &peer);
        new_ends[0] = -1;
        bool receives = swapped % 2;
        MUST(setitimer(ITIMER_REAL, &often, NULL));
        for (;;) {
            ssize_t n = receives ? recv(victim, text, 6, MSG_DONTWAIT) : send(victim, "ours", 4, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (receives && n > 0 && new_ends[0] >= 0) strayed++;
            if (new_ends[0] >= 0) break;
            if (!receives && n == 4) get(peer, text, 4);
            if (new_ends[0] >= 0) break;
        }
        MUST(setitimer(ITIMER_REAL, &never, NULL));
        if (recv(new_ends[1], text, sizeof text, MSG_DONTWAIT) > 0) strayed++;
        close(new_ends[0]);
        close(new_ends[1]);
        close(victim);
        close(peer);
        swapped++;
    }
    say("%d strayed", strayed);
}

/* A thread opens and closes connections while another reads and sets its RLIMIT_NOFILE. */
static volatile bool ended;

static void *churns(void *data) {
    while (!ended) {
        int a, b;
        pair(&a, &b);
        put(a, "x", 1);
        close(a);
        close(b);
    }
    return data;
}

static void limits_while_connecting(void) {
    struct rlimit usual = {256, 4096}, now;
    pthread_t thread;
    MUST(setrlimit(RLIMIT_NOFILE, &usual));
    MUST(pthread_create(&thread, NULL, churns, NULL));
    int other = 0, undone = 0;
    int64_t until = now_ms() + 700;
    for (int i = 0; now_ms() < until; i++) {
        MUST(getrlimit(RLIMIT_NOFILE, &now));
        other += now.rlim_cur != 256 || now.rlim_max != 4096;
        MUST(prlimit(getpid(), RLIMIT_NOFILE, NULL, &now));
        other += now.rlim_cur != 256;
        MUST(syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &now));
        other += now.rlim_cur != 256;
        other += sysconf(_SC_OPEN_MAX) != 256;
        other += getdtablesize() != 256;
    }
    until = now_ms() + 700;
    for (int i = 0; now_ms() < until; i++) {
        usual.rlim_cur = i % 2 ? 256 : 4096;
        MUST(setrlimit(RLIMIT_NOFILE, &usual));
        for (int look = 0; look < 20; look++) {
            MUST(getrlimit(RLIMIT_NOFILE, &now));
            undone += now.rlim_cur != usual.rlim_cur;
        }
    }
    ended = true;
    pthread_join(thread, NULL);
    say("%d others, %d undone", other, undone);
}

/* MSG_PEEK with MSG_WAITALL sleeps until enough bytes are there or it is cancelled. It does not spin. */
static int peeked;
static pid_t sleeper;

static void *peeks(void *data) {
    char text[8];
    sleeper = thread_id();
    CALL(recv(peeked, text, sizeof text, MSG_PEEK | MSG_WAITALL));
    return data;
}

static long switches(pid_t tid) {
    char path[64], text[4096] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    int fd = (int)MUST(open(path, O_RDONLY));
    MUST(read(fd, text, sizeof text - 1));
    close(fd);
    char *at = strstr(text, "\nvoluntary_ctxt_switches:");
    return at ? atol(at + 25) : -1;
}

static void peek_for_all(void) {
    int a, b;
    void *end;
    char text[8];
    pthread_t thread;
    pair(&a, &b);
    peeked = b;
    put(a, "123", 3);
    await_bytes(b, 3);
    MUST(pthread_create(&thread, NULL, peeks, NULL));
    while (!*(volatile pid_t *)&sleeper) usleep(100);
    await_asleep(sleeper);
    long before = switches(sleeper);
    usleep(300000);
    say("woken %s", switches(sleeper) - before < 100 ? "seldom" : "often");
    put(a, "45678", 5);
    pthread_join(thread, NULL);
    get(b, text, 8);
    put(a, "123", 3);
    await_bytes(b, 3);
    sleeper = 0;
    MUST(pthread_create(&thread, NULL, peeks, NULL));
    while (!*(volatile pid_t *)&sleeper) usleep(100);
    await_asleep(sleeper);
    MUST(pthread_cancel(thread));
    pthread_join(thread, &end);
    say("cancelled %d", end == PTHREAD_CANCELED);
    get(b, text, 3);
    say("%.3s", text);
    sleeper = 0;
    put(a, "123", 3);
    await_bytes(b, 3);
    MUST(pthread_create(&thread, NULL, peeks, NULL));
    while (!*(volatile pid_t *)&sleeper) usleep(100);
    usleep(300000);
    MUST(close(a));
    pthread_join(thread, NULL);
}

const struct test race_cases[] = {{"race_number_closed_in_a_call", number_closed_in_a_call},
                                  {"race_limits_while_connecting", limits_while_connecting},
                                  {"race_peek_for_all", peek_for_all},
                                  {NULL, NULL}};
