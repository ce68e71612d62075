/* Ten thousand descriptors, reused numbers, and RLIMIT_NOFILE. */
#include "semantics.h"

#define MANY 5000 /* connections, of two descriptors each */

static void ten_thousand(void) {
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max < 3 * MANY ? limit.rlim_max : 3 * MANY;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    if (limit.rlim_cur < 2 * MANY + 50) die("only %lu descriptors", (unsigned long)limit.rlim_cur);
    static int a[MANY], b[MANY];
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 128, &at, &len), e = (int)MUST(epoll_create1(0));
    for (int i = 0; i < MANY; i++) {
        a[i] = dial(&at, len);
        b[i] = (int)MUST(accept(l, NULL, NULL));
        struct epoll_event want = {.events = EPOLLIN, .data.u64 = i};
        MUST(epoll_ctl(e, EPOLL_CTL_ADD, b[i], &want));
    }
    say("open %d", 2 * MANY);
    for (int i = 0; i < MANY; i++) put(a[i], &i, sizeof i);
    static bool seen[MANY];
    static struct epoll_event got[512];
    int count = 0;
    while (count < MANY) {
        int n = (int)MUST(epoll_wait(e, got, 512, -1));
        for (int k = 0; k < n; k++) {
            int i = (int)got[k].data.u64, value = -1;
            get(b[i], &value, sizeof value);
            if (value != i || seen[i]) die("%d brought %d", i, value);
            seen[i] = true;
            count++;
        }
    }
    say("each was ready and had its own number");
    CALL(epoll_wait(e, got, 512, 0));
    struct pollfd *all = calloc(MANY, sizeof *all);
    for (int i = 0; i < MANY; i++) all[i] = (struct pollfd){b[i], POLLIN | POLLOUT, 0};
    CALL(poll(all, MANY, 0));
    for (int i = 0; i < MANY; i += 2) MUST(close(a[i]));
    count = 0;
    for (int i = 0; i < MANY; i++) seen[i] = false;
    while (count < MANY / 2) {
        int n = (int)MUST(epoll_wait(e, got, 512, -1));
        for (int k = 0; k < n; k++) {
            int i = (int)got[k].data.u64;
            if (i % 2 || seen[i]) die("%d was closed", i);
            seen[i] = true;
            MUST(close(b[i]));
            count++;
        }
    }
    say("each closed one was told once");
    for (int i = 1; i < MANY; i += 2) {
        put(b[i], &i, sizeof i);
        int value;
        get(a[i], &value, sizeof value);
        if (value != i) die("%d brought %d", i, value);
        MUST(close(a[i]));
        MUST(close(b[i]));
    }
    say("and the others worked on");
}

static void numbers_used_again(void) {
    int a, b, c, d;
    char text[8];
    pair(&a, &b);
    int number = a;
    MUST(close(a));
    int ends[2];
    MUST(pipe(ends));
    say("the lowest number is given: %d", ends[0] == number);
    CALL(send(ends[0], "x", 1, 0));
    MUST(write(ends[1], "pipe", 4));
    CALL(read(number, text, 8));
    CALL(recv(b, text, 1, 0));
    MUST(close(ends[0]));
    int u[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    MUST(write(u[1], "unix", 4));
    CALL(read(u[0], text, 8));
    MUST(dup2(u[0], b));
    MUST(write(u[1], "over", 4));
    CALL(recv(b, text, 8, 0));
    pair(&c, &d);
    MUST(dup2(c, u[0]));
    put(d, "tcp", 3);
    CALL(read(u[0], text, 8));
    MUST(close(c));
    put(d, "still", 5);
    get(u[0], text, 5);
    say("%.5s", text);
    MUST(close(u[0]));
    CALL(recv(d, text, 1, 0));
    CALL(close_range(d, d, 0));
    CALL(recv(d, text, 1, 0));
    int high = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    say("numbers stay low %d", high < 40);
    pair(&a, &b);
    CALL(close_range(a, ~0u, CLOSE_RANGE_CLOEXEC));
    say("%ld %ld", MUST(fcntl(a, F_GETFD)), MUST(fcntl(b, F_GETFD)));
    closefrom(b < a ? b : a);
    CALL(send(a, "x", 1, MSG_NOSIGNAL));
}

static void limit_of_descriptors(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), c = dial(&at, len);
    struct rlimit limit = {c + 3, c + 3};
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    int one = OPEN(socket(AF_INET, SOCK_STREAM, 0)), two = OPEN(socket(AF_INET, SOCK_STREAM, 0));
    OPEN(socket(AF_INET, SOCK_STREAM, 0));
    OPEN(accept(l, NULL, NULL));
    OPEN(dup(c));
    OPEN(epoll_create1(0));
    OPEN(dup2(c, c + 3));
    MUST(close(one));
    int s = OPEN(accept(l, NULL, NULL));
    put(s, "x", 1);
    char text[2];
    get(c, text, 1);
    say("%c", text[0]);
    close(two);
}

static int add_in(int set, int fd) {
    struct epoll_event want = {.events = EPOLLIN};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &want);
}

/* Returns how many descriptors the process can still open. */
static int free_numbers(void) {
    int all[64], n = 0;
    while (n < 64 && (all[n] = dup(0)) >= 0) n++;
    for (int i = 0; i < n; i++) MUST(close(all[i]));
    return n;
}

/* A server with a low hard limit serves many client processes that sleep in epoll_wait. The library keeps none of the
 * server's numbers. */
static void numbers_after_clients(void) {
    enum { CLIENTS = 70 };
    char text[1];
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, 64}));
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len), before = 0;
    for (int i = 0; i < CLIENTS; i++) {
        pid_t client = (pid_t)MUST(fork());
        if (!client) {
            int c = dial(&at, len), e = (int)MUST(epoll_create1(0));
            struct epoll_event want = {.events = EPOLLIN};
            MUST(epoll_ctl(e, EPOLL_CTL_ADD, c, &want));
            put(c, "?", 1);
            if (MUST(epoll_wait(e, &want, 1, 10000)) == 1) get(c, text, 1);
            _exit(*text != '!');
        }
        int s = (int)MUST(accept(l, NULL, NULL));
        get(s, text, 1);
        /* The client nearly always sleeps by now. */
        usleep(5000);
        put(s, "!", 1);
        int status;
        MUST(waitpid(client, &status, 0));
        if (status) die("client %d: %d", i, status);
        MUST(close(s));
        if (i == 0) before = free_numbers();
    }
    int left = before - free_numbers();
    if (left <= 8) say("it has its numbers");
    else say("of %d numbers %d have gone", before, left);
}

/* A server that refuses the connection with its highest number, as memcached does, reaches that number. */
static void highest_number(void) {
    enum { LIMIT = 40, OWN = 12, SETS = 5, CLIENTS = 60 };
    struct sockaddr_storage at;
    socklen_t len;
    int connected[2], done[2], taken[LIMIT], n = 0, s, highest = 0;
    char text[1];
    MUST(pipe(connected));
    MUST(pipe(done));
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){LIMIT, LIMIT}));
    int l = listener(AF_INET, CLIENTS, &at, &len), sets[SETS];
    MUST(fcntl(l, F_SETFL, O_NONBLOCK));
    MUST(add_in(MUST(epoll_create1(0)), l));
    while (MUST(open("/dev/null", O_RDONLY)) < OWN);
    for (int k = 0; k < 2; k++)
        if (!fork()) {
            /* Two client processes, each below the limit. */
            close(done[1]);
            for (int i = 0; i < CLIENTS / 4; i++) dial(&at, len);
            MUST(write(connected[1], "x", 1));
            MUST(read(done[0], text, 1));
            _exit(0);
        }
    for (int k = 0; k < 2; k++) MUST(read(connected[0], text, 1));
    for (int i = 0; i < SETS; i++) {
        /* Several sets, each with a connection. */
        MUST(await(l, POLLIN));
        MUST(add_in(sets[i] = MUST(epoll_create1(0)), s = MUST(accept(l, NULL, NULL))));
        MUST(epoll_wait(sets[i], &(struct epoll_event){0}, 1, 1));
        taken[n++] = s;
    }
    while ((s = accept(l, NULL, NULL)) >= 0) {
        if (s > highest) highest = s;
        if (n == LIMIT) die("more than its limit");
        taken[n++] = s;
    }
    say("%s, the highest was %s", name_of(errno), highest == LIMIT - 1 ? "the last" : "another");
    for (int i = SETS; i < n; i++) MUST(close(taken[i]));
}

const struct test many_cases[] = {{"many_ten_thousand", ten_thousand},
                                  {"many_numbers_used_again", numbers_used_again},
                                  {"many_limit", limit_of_descriptors},
                                  {"many_after_clients", numbers_after_clients},
                                  {"many_highest_number", highest_number},
                                  {NULL, NULL}};
