/* poll and select. */
#include "semantics.h"

static char text[64];

static void poll_states(void) {
    int a, b, ends[2];
    pair(&a, &b);
    MUST(pipe(ends));
    int closed = tcp(AF_INET, 0), fresh = tcp(AF_INET, 0);
    MUST(close(closed));
    struct pollfd many[] = {{a, POLLIN | POLLOUT | POLLPRI | POLLRDHUP | POLLRDNORM | POLLWRNORM, 0},
                            {b, POLLIN, 0},
                            {ends[0], POLLIN, 0},
                            {ends[1], POLLOUT, 0},
                            {closed, POLLIN, 0},
                            {-1, POLLIN, 0x55},
                            {fresh, POLLIN | POLLOUT, 0},
                            {a, 0, 0},
                            {b, POLLOUT, 0}};
    int n = sizeof many / sizeof *many;
    CALL(poll(many, n, 0));
    for (int i = 0; i < n; i++) say("%d %s", i, events(many[i].revents));
    put(a, "x", 1);
    await_bytes(b, 1);
    MUST(write(ends[1], "x", 1));
    CALL(poll(many, n, -1));
    for (int i = 0; i < n; i++) say("%d %s", i, events(many[i].revents));
    MUST(close(a));
    await(b, POLLRDHUP);
    CALL(poll(many + 1, 1, 0));
    say("%s", events(many[1].revents));
    CALL(poll(NULL, 0, 10));
    CALL(poll(many, 2000000, 0));
    struct timespec limit = {0, 0}, bad = {0, 2000000000};
    sigset_t set;
    sigemptyset(&set);
    CALL(ppoll(many + 1, 1, &limit, &set));
    CALL(ppoll(many + 1, 1, &bad, NULL));
}

static void select_states(void) {
    int a, b, ends[2];
    pair(&a, &b);
    MUST(pipe(ends));
    fd_set r, w, x;
    int most = b > ends[1] ? b : ends[1];
    put(a, "x", 1);
    await_bytes(b, 1);
    for (int turn = 0; turn < 3; turn++) {
        FD_ZERO(&r);
        FD_ZERO(&w);
        FD_ZERO(&x);
        FD_SET(a, &r), FD_SET(b, &r), FD_SET(ends[0], &r);
        FD_SET(a, &w), FD_SET(b, &w), FD_SET(ends[1], &w);
        FD_SET(a, &x), FD_SET(b, &x);
        struct timeval none = {0, 0};
        CALL(select(most + 1, &r, &w, &x, &none));
        say("readable %d %d %d writable %d %d %d exceptional %d %d", FD_ISSET(a, &r), FD_ISSET(b, &r),
            FD_ISSET(ends[0], &r), FD_ISSET(a, &w), FD_ISSET(b, &w), FD_ISSET(ends[1], &w), FD_ISSET(a, &x),
            FD_ISSET(b, &x));
        if (turn == 0) {
            get(b, text, 1);
            MUST(send(a, "!", 1, MSG_OOB));
            await(b, POLLPRI);
        } else if (turn == 1) {
            recv(b, text, 1, MSG_OOB);
            MUST(close(ends[1]));
            MUST(pipe(ends));
            MUST(shutdown(a, SHUT_WR));
            await(b, POLLRDHUP);
            most = ends[1] > most ? ends[1] : most;
        }
    }
    FD_ZERO(&r);
    FD_SET(a, &r);
    struct timeval some = {0, 30000};
    int64_t start = now_ms();
    CALL(select(a + 1, &r, NULL, NULL, &some));
    say("waited %d, left %ld.%06ld, set emptied %d", now_ms() - start >= 30, (long)some.tv_sec, (long)some.tv_usec,
        !FD_ISSET(a, &r));
    FD_SET(a, &r);
    struct timespec limit = {0, 1000000};
    CALL(pselect(a + 1, &r, NULL, NULL, &limit, NULL));
    some.tv_sec = -1;
    CALL(select(a + 1, &r, NULL, NULL, &some));
    CALL(select(-1, &r, NULL, NULL, NULL));
    FD_ZERO(&r);
    int closed = tcp(AF_INET, 0);
    close(closed);
    FD_SET(closed, &r);
    CALL(select(closed + 1, &r, NULL, NULL, NULL));
    CALL(select(0, NULL, NULL, NULL, &(struct timeval){0, 1000}));
}

static int waited_for, how;
static pid_t sleeper;

static void *waits(void *data) {
    sleeper = thread_id();
    if (how == 0) {
        struct pollfd two[2] = {{waited_for, POLLIN, 0}, {*(int *)data, POLLIN, 0}};
        int n = poll(two, 2, -1);
        say("poll %d %s %s", n, events(two[0].revents), events(two[1].revents));
    } else {
        fd_set r;
        FD_ZERO(&r);
        FD_SET(waited_for, &r), FD_SET(*(int *)data, &r);
        int n = select((waited_for > *(int *)data ? waited_for : *(int *)data) + 1, &r, NULL, NULL, NULL);
        say("select %d %d %d", n, FD_ISSET(waited_for, &r), FD_ISSET(*(int *)data, &r));
    }
    return NULL;
}

static void poll_woken(void) {
    int a, b, ends[2];
    pair(&a, &b);
    MUST(pipe(ends));
    waited_for = b;
    for (how = 0; how < 2; how++)
        for (int by = 0; by < 2; by++) {
            pthread_t thread;
            sleeper = 0;
            MUST(pthread_create(&thread, NULL, waits, &ends[0]));
            while (!*(volatile pid_t *)&sleeper) usleep(100);
            await_asleep(sleeper);
            if (by) MUST(write(ends[1], "x", 1));
            else put(a, "x", 1);
            pthread_join(thread, NULL);
            if (by) MUST(read(ends[0], text, 1));
            else get(b, text, 1);
        }
}

static void poll_high_numbers(void) {
    int a, b;
    pair(&a, &b);
    int high = (int)MUST(fcntl(a, F_DUPFD, 1000));
    put(b, "x", 1);
    CALL(poll(&(struct pollfd){high, POLLIN, 0}, 1, -1));
    fd_set r;
    FD_ZERO(&r);
    FD_SET(high, &r);
    CALL(select(high + 1, &r, NULL, NULL, NULL));
    say("%d", FD_ISSET(high, &r));
}

/* Descriptors are closed while poll(2) or select(2) sleeps. The call holds their files, and sleeps on. */
static int watched[4], closed;
static volatile pid_t closing_sleeper;

static void *closes_them(void *data) {
    while (!closing_sleeper) usleep(100);
    await_asleep(closing_sleeper);
    for (int i = 1; i < closed; i++) MUST(close(watched[i]));
    usleep(300000);
    put(*(int *)data, "x", 1);
    return data;
}

static void poll_closed_meanwhile(void) {
    /* The first round closes nothing: it has the process's first sleep, at which the library may open descriptors. */
    for (int round = 0; round < 3; round++) {
        int a, c, ends[2], by = round == 2;
        char text[1];
        pthread_t thread;
        fd_set r;
        pair(&a, &watched[0]);
        pair(&c, &watched[1]);
        watched[2] = (int)MUST(epoll_create1(0));
        MUST(pipe(ends));
        watched[3] = ends[0];
        struct pollfd all[4];
        FD_ZERO(&r);
        for (int i = 0; i < 4; i++) {
            all[i] = (struct pollfd){watched[i], POLLIN, 0x4000};
            FD_SET(watched[i], &r);
        }
        closing_sleeper = 0;
        closed = round ? 4 : 0;
        MUST(pthread_create(&thread, NULL, closes_them, &a));
        closing_sleeper = thread_id();
        if (by) CALL(select(ends[0] + 1, &r, NULL, NULL, NULL));
        else CALL(poll(all, 4, -1));
        for (int i = 0; i < 4; i++) say("%d", by ? !!FD_ISSET(watched[i], &r) : all[i].revents);
        pthread_join(thread, NULL);
        get(watched[0], text, 1);
        all[0].events = 0;
        CALL(poll(all, 4, 0));
        say("%d %d %d", all[1].revents, all[2].revents, all[3].revents);
    }
}

const struct test poll_cases[] = {{"poll_states", poll_states},
                                  {"select_states", select_states},
                                  {"poll_woken", poll_woken},
                                  {"poll_high_numbers", poll_high_numbers},
                                  {"poll_closed_meanwhile", poll_closed_meanwhile},
                                  {NULL, NULL}};
