/* A listener that a process has closed and others hold stays in the process's epoll sets, while other threads fork
 * or close a set. */
#include "semantics.h"

enum { ROUNDS = 100 };

static int near, sets[2];
static pthread_barrier_t all;

static void *closes_it(void *data) {
    pthread_barrier_wait(&all);
    MUST(close(near));
    return data;
}

static void *closes_a_set(void *data) {
    pthread_barrier_wait(&all);
    MUST(close(sets[0]));
    return data;
}

static void watch_it(int *in) {
    struct epoll_event event = {.events = EPOLLIN};
    *in = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(*in, EPOLL_CTL_ADD, near, &event));
}

/* Writes to `ready` and waits in a set. Returns 0 if an event came. */
static int waits(int in, int ready) {
    struct epoll_event got;
    MUST(write(ready, "w", 1));
    return epoll_wait(in, &got, 1, 20000) == 1 ? 0 : 1;
}

static bool ends_well(pid_t child) {
    int status;
    MUST(waitpid(child, &status, 0));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* In a child that inherited the listener: a thread closes it while this one forks. */
static int forks_meanwhile(int ready) {
    pthread_t closer;
    watch_it(&sets[0]);
    MUST(pthread_create(&closer, NULL, closes_it, NULL));
    pthread_barrier_wait(&all);
    pid_t child = (pid_t)MUST(fork());
    if (!child) _exit(waits(sets[0], ready));
    pthread_join(closer, NULL);
    int told = waits(sets[0], ready);
    return ends_well(child) ? told : 1;
}

/* A thread closes the listener while another one closes one of its two sets. */
static int closes_a_set_meanwhile(int ready) {
    pthread_t closers[2];
    watch_it(&sets[0]);
    watch_it(&sets[1]);
    MUST(pthread_create(&closers[0], NULL, closes_it, NULL));
    MUST(pthread_create(&closers[1], NULL, closes_a_set, NULL));
    pthread_barrier_wait(&all);
    for (int i = 0; i < 2; i++) pthread_join(closers[i], NULL);
    return waits(sets[1], ready);
}

/* Runs each round in a child. A connection must wake `waiters` processes. */
static void each_is_told(int (*work)(int), unsigned threads, int waiters) {
    struct sockaddr_storage at;
    socklen_t len;
    near = listener(AF_INET, 5, &at, &len);
    int told = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int ready[2];
        MUST(pipe(ready));
        MUST(pthread_barrier_init(&all, NULL, threads));
        pid_t child = (pid_t)MUST(fork());
        if (!child) _exit(work(ready[1]));
        close(ready[1]);
        char ignored;
        for (int i = 0; i < waiters; i++)
            if (MUST(read(ready[0], &ignored, 1)) != 1) die("a waiter has ended");
        int client = dial(&at, len);
        told += ends_well(child);
        close((int)MUST(accept(near, NULL, NULL)));
        close(client);
        close(ready[0]);
        pthread_barrier_destroy(&all);
    }
    say("told: %d of %d", told, ROUNDS);
    /* The last close ends the listener. */
    close(near);
    int client = tcp(at.ss_family, 0);
    CALL(connect(client, (struct sockaddr *)&at, len));
    close(client);
}

static void while_another_forks(void) { each_is_told(forks_meanwhile, 2, 2); }
static void while_another_closes_a_set(void) { each_is_told(closes_a_set_meanwhile, 3, 1); }

const struct test epoll_closed_cases[] = {
    {"epoll_closed_while_another_forks", while_another_forks},
    {"epoll_closed_while_another_closes_a_set", while_another_closes_a_set},
    {NULL, NULL},
};
