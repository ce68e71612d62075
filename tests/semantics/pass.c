/* Descriptors that are sent over a Unix socket (SCM_RIGHTS). */
#include "semantics.h"

static char text[64];

static long try_to_give(int through, const int *fds, int n) {
    char control[CMSG_SPACE(sizeof(int) * 8)] = {0};
    struct iovec part = {"f", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(sizeof(int) * n)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * n);
    memcpy(CMSG_DATA(header), fds, sizeof(int) * n);
    return sendmsg(through, &message, 0);
}

static void give(int through, const int *fds, int n) { MUST(try_to_give(through, fds, n)); }

static void take(int through, int *fds, int n, int flags) {
    char control[CMSG_SPACE(sizeof(int) * 8)], byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    MUST(recvmsg(through, &message, flags));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int) * n)) die("no descriptors");
    memcpy(fds, CMSG_DATA(header), sizeof(int) * n);
}

static void pass_connection(void) {
    int a, b, u[2];
    pair(&a, &b);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    pid_t child = fork();
    if (!child) {
        close(a), close(b), close(u[0]);
        int fd;
        take(u[1], &fd, 1, 0);
        get(fd, text, 5);
        say("receiver got %.5s", text);
        put(fd, "thanks", 6);
        _exit(0);
    }
    close(u[1]);
    put(a, "given", 5);
    give(u[0], &b, 1);
    MUST(close(b));
    get(a, text, 6);
    say("%.6s", text);
    CALL(recv(a, text, 1, 0));
    reap(child);
}

static void pass_listener(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int u[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    pid_t child = fork();
    if (!child) {
        close(u[0]);
        int fd;
        take(u[1], &fd, 1, MSG_CMSG_CLOEXEC);
        say("CLOEXEC %d", fcntl(fd, F_GETFD));
        for (int i = 0; i < 3; i++) {
            int s = (int)MUST(accept(fd, NULL, NULL));
            get(s, text, 4);
            put(s, text, 4);
            close(s);
        }
        _exit(0);
    }
    int l = listener(AF_INET, 16, &at, &len);
    int early = dial(&at, len);
    put(early, "earl", 4);
    give(u[0], &l, 1);
    MUST(close(l));
    get(early, text, 4);
    for (int i = 0; i < 2; i++) {
        int c = dial(&at, len);
        put(c, "late", 4);
        get(c, text, 4);
        say("%.4s", text);
        close(c);
    }
    reap(child);
}

/* A process receives copies of its own listener. Queued connections stay until the last copy is closed. */
static void pass_to_itself(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int u[2], copy[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    int l = listener(AF_INET, 16, &at, &len);
    for (int i = 0; i < 2; i++) {
        give(u[0], &l, 1);
        take(u[1], &copy[i], 1, 0);
    }
    int early = dial(&at, len);
    put(early, "wait", 4);
    MUST(close(copy[0]));
    MUST(close(l));
    int late = dial(&at, len);
    put(late, "late", 4);
    for (int i = 0; i < 2; i++) {
        int s = (int)MUST(accept(copy[1], NULL, NULL));
        get(s, text, 4);
        say("%.4s", text);
    }
    MUST(close(copy[1]));
    int c = tcp(AF_INET, 0);
    CALL(connect(c, (struct sockaddr *)&at, len));
}

static void pass_many(void) {
    int u[2], mine[4], theirs[4], ends[2];
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, u));
    MUST(pipe(ends));
    pair(&mine[0], &theirs[0]);
    pair(&mine[1], &theirs[1]);
    theirs[2] = ends[1];
    give(u[0], theirs, 3);
    int got[3];
    take(u[1], got, 3, 0);
    close(theirs[0]), close(theirs[1]), close(theirs[2]);
    put(got[0], "0", 1), put(got[1], "1", 1);
    MUST(write(got[2], "2", 1));
    get(mine[0], text, 1), get(mine[1], text + 1, 1);
    MUST(read(ends[0], text + 2, 1));
    say("%.3s", text);
    close(got[0]);
    CALL(recv(mine[0], text, 1, 0));
}

/* A descriptor that is never received is closed with the Unix socket. */
static void pass_lost(void) {
    int a, b, u[2];
    pair(&a, &b);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    give(u[0], &b, 1);
    MUST(close(b));
    CALL(recv(a, text, 1, MSG_DONTWAIT));
    put(a, "x", 1);
    MUST(close(u[0]));
    MUST(close(u[1]));
    struct pollfd end = {a, POLLIN, 0};
    CALL(poll(&end, 1, 20000));
    say("%s", events(end.revents));
}

/* A descriptor is received with MSG_PEEK, closed, and then received: the message still has it. */
static void pass_peeked(void) {
    int a, b, u[2], go[2];
    pair(&a, &b);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    MUST(pipe(go));
    pid_t child = fork();
    if (!child) {
        close(a), close(b), close(u[0]);
        MUST(read(go[0], text, 1));
        int fd;
        for (int i = 0; i < 2; i++) {
            take(u[1], &fd, 1, MSG_PEEK);
            get(fd, text, 1);
            say("peeked %.1s", text);
            MUST(close(fd));
        }
        take(u[1], &fd, 1, 0);
        get(fd, text, 3);
        say("receiver got %.3s", text);
        put(fd, "thanks", 6);
        _exit(0);
    }
    close(u[1]);
    put(a, "given", 5);
    give(u[0], &b, 1);
    MUST(close(b));
    MUST(write(go[1], "x", 1));
    get(a, text, 6);
    say("%.6s", text);
    CALL(recv(a, text, 1, 0));
    reap(child);
}

/* Two messages in one call, each with a connection. */
static void pass_by_mmsg(void) {
    int ends[2][2], u[2];
    pair(&ends[0][0], &ends[0][1]);
    pair(&ends[1][0], &ends[1][1]);
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, u));
    _Alignas(struct cmsghdr) char control[2][CMSG_SPACE(sizeof(int))] = {0};
    char byte[2];
    struct iovec parts[2] = {{&byte[0], 1}, {&byte[1], 1}};
    struct mmsghdr messages[2] = {0};
    for (int i = 0; i < 2; i++)
        messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &parts[i], .msg_iovlen = 1, .msg_control = control[i], .msg_controllen = sizeof control[i]};
    pid_t child = fork();
    if (!child) {
        for (int i = 0; i < 2; i++) close(ends[i][0]), close(ends[i][1]);
        CALL(recvmmsg(u[1], messages, 2, MSG_WAITALL, NULL));
        for (int i = 0; i < 2; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&messages[i].msg_hdr)), sizeof fd);
            get(fd, text, 3);
            say("receiver got %.3s", text);
            put(fd, "ok", 2);
        }
        _exit(0);
    }
    for (int i = 0; i < 2; i++) {
        put(ends[i][0], i ? "two" : "one", 3);
        struct cmsghdr *header = CMSG_FIRSTHDR(&messages[i].msg_hdr);
        *header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(header), &ends[i][1], sizeof(int));
    }
    MUST(sendmmsg(u[0], messages, 2, 0));
    for (int i = 0; i < 2; i++) MUST(close(ends[i][1]));
    for (int i = 0; i < 2; i++) get(ends[i][0], text, 2);
    CALL(recv(ends[1][0], text, 1, 0));
    reap(child);
}

/* A message that cannot be sent takes no descriptor. */
static void pass_failed(void) {
    int a, b, u[2];
    pair(&a, &b);
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, u));
    while (write(u[0], text, sizeof text) > 0) continue;
    CALL(try_to_give(u[0], &b, 1));
    MUST(close(b));
    struct pollfd end = {a, POLLIN, 0};
    CALL(poll(&end, 1, 20000));
    CALL(recv(a, text, 1, 0));
}

/* The sender and the client have exited before the descriptor is received. */
static void pass_late(void) {
    int u[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    pid_t sender = fork();
    if (!sender) {
        struct sockaddr_storage at;
        socklen_t len;
        int l = listener(AF_INET, 16, &at, &len);
        pid_t client = fork();
        if (!client) {
            put(dial(&at, len), "bytes", 5);
            _exit(0);
        }
        int s = (int)MUST(accept(l, NULL, NULL));
        reap(client);
        give(u[0], &s, 1);
        _exit(0);
    }
    reap(sender);
    usleep(300000);
    int fd;
    take(u[1], &fd, 1, 0);
    get(fd, text, 5);
    say("%.5s", text);
    CALL(recv(fd, text, 1, 0));
}

/* Spins, because a sleep takes longer. */
static void pass_time(int microseconds) {
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000000 + (now.tv_nsec - begun.tv_nsec) / 1000 < microseconds);
}

/* A bound socket is sent to another process, and both processes call listen. When one has closed it, the other
 * accepts all connections. */
static void pass_bound(void) {
    for (int round = 0; round < 63; round++) {
        int order = round < 3 ? round : 3;
        int u[2], s = tcp(AF_INET, 0), clients[5];
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof at;
        char go;
        MUST(bind(s, (struct sockaddr *)&at, sizeof at));
        MUST(getsockname(s, (struct sockaddr *)&at, &len));
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
        pid_t child = fork();
        if (!child) {
            int fd, n = 0;
            close(s), close(u[0]);
            if (order == 2) get(u[1], &go, 1);
            take(u[1], &fd, 1, 0);
            if (order == 0) MUST(listen(fd, 16));
            if (order == 1) get(u[1], &go, 1);
            if (order != 0) MUST(listen(fd, 8));
            put(u[1], "l", 1);
            get(u[1], &go, 1);
            for (; n < 5; n++) close((int)MUST(accept(fd, NULL, NULL)));
            say("order %d: accepted %d", order, n);
            _exit(0);
        }
        close(u[1]);
        /* When this process listens. 0: after the other process; 1: after it has sent the socket; 2: before that; 3: at the
         * same time as the other process. */
        if (order == 2) MUST(listen(s, 16));
        if (order == 2) put(u[0], "g", 1);
        give(u[0], &s, 1);
        if (order == 3) pass_time((round - 3) * 5);
        if (order & 1) MUST(listen(s, 16));
        if (order == 1) put(u[0], "g", 1);
        get(u[0], &go, 1);
        if (order == 0) MUST(listen(s, 16));
        for (int i = 0; i < 5; i++) clients[i] = dial((struct sockaddr_storage *)&at, len);
        MUST(close(s));
        put(u[0], "g", 1);
        reap(child);
        for (int i = 0; i < 5; i++) CALL(recv(clients[i], text, 1, 0));
        for (int i = 0; i < 5; i++) close(clients[i]);
        close(u[0]);
    }
}

const struct test pass_cases[] = {{"pass_connection", pass_connection},
                                  {"pass_listener", pass_listener},
                                  {"pass_to_itself", pass_to_itself},
                                  {"pass_many", pass_many},
                                  {"pass_lost", pass_lost},
                                  {"pass_failed", pass_failed},
                                  {"pass_late", pass_late},
                                  {"pass_bound", pass_bound},
                                  {"pass_by_mmsg", pass_by_mmsg},
                                  {"pass_peeked", pass_peeked},
                                  {NULL, NULL}};
