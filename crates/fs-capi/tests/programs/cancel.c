// A cancelled thread unwinds through the library: its clean-up handler runs, and the process goes on.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

static int pair[2];
static void cleaned(void *name) { printf("%s: cleaned\n", (char *)name); fflush(stdout); }
static void blocked_in(const char *name) {
    char byte;
    struct pollfd entry = {pair[0], POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    struct msghdr message = {0};
    int set;
    fd_set bits;
    switch (name[0]) {
    case 'r': read(pair[0], &byte, 1); break;
    case 'v': recv(pair[0], &byte, 1, 0); break;
    case 'm': recvmsg(pair[0], &message, 0); break;
    case 'p': poll(&entry, 1, -1); break;
    case 's': FD_ZERO(&bits); FD_SET(pair[0], &bits); select(pair[0] + 1, &bits, NULL, NULL, NULL); break;
    case 'e': set = epoll_create1(0); epoll_ctl(set, EPOLL_CTL_ADD, pair[0], &event); epoll_wait(set, &event, 1, -1); break;
    }
}
static void *thread(void *name) {
    pthread_cleanup_push(cleaned, name);
    blocked_in(name);
    printf("%s: came back\n", (char *)name);
    pthread_cleanup_pop(0);
    return NULL;
}
int main(void) {
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    const char *names[] = {"read", "v: recv", "message", "poll", "select", "epoll"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        pthread_t id;
        void *answer;
        pthread_create(&id, NULL, thread, (void *)names[i]);
        usleep(20000);
        pthread_cancel(id);
        pthread_join(id, &answer);
        if (answer != PTHREAD_CANCELED) printf("%s: not cancelled\n", names[i]);
    }
    puts("all joined");
    return 0;
}
