/* What other threads and signal handlers do in the middle of a call: limits, cancellation, sockets closed and made. */
#include "semantics.h"
#include <dirent.h>

static int victim, swapped, strayed;
static int server, nothing;
static struct sockaddr_storage where;
static socklen_t where_len;
static volatile sig_atomic_t new_ends[2] = {-1, -1};

/* The number stands for a file from here on, and what was behind it may be another connection's. */
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

/* A call whose socket is closed just then, and another connection made, does not move bytes of that one. */
static void number_closed_in_a_call(void) {
    server = listener(AF_INET, 16, &where, &where_len);
    nothing = (int)MUST(open("/dev/null", O_RDWR));
    int peer;
    char text[16];
    struct itimerval often = {.it_interval.tv_usec = 700, .it_value.tv_usec = 700}, never = {0};
    MUST(sigaction(SIGALRM, &(struct sigaction){.sa_handler = swap, .sa_flags = SA_RESTART}, NULL));
    int64_t until = now_ms() + 3000;
    while (swapped < 1500 && now_ms() < until) {
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
    say("%s, %d strayed", swapped > 20 ? "often" : "seldom", strayed);
}

const struct test race_cases[] = {{"race_number_closed_in_a_call", number_closed_in_a_call},
                                  {NULL, NULL, false}};
