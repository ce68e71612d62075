/* Connections of close-on-exec sockets, one after the other: no state of one shows on the next. Each case makes many
 * attempts, because state could be left only for a tick of the kernel's clock. */
#include "semantics.h"
#include <grp.h>
#include <sched.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/fsuid.h>

enum { TIMES = 60 };

static int listening;
static struct sockaddr_storage at;
static socklen_t at_len;

static void begin(void) {
    listening = listener(AF_INET, 16, &at, &at_len);
    MUST(fcntl(listening, F_SETFD, FD_CLOEXEC));
}

static void open_both(int *client, int *server) {
    *client = tcp(AF_INET, SOCK_CLOEXEC);
    MUST(connect(*client, (struct sockaddr *)&at, at_len));
    *server = (int)MUST(accept4(listening, NULL, NULL, SOCK_CLOEXEC));
}

static void close_both(int client, int server) {
    close(client);
    close(server);
}

/* Makes connections that change no state. */
static void warm(void) {
    for (int i = 0; i < 3; i++) {
        int client, server;
        open_both(&client, &server);
        put(client, "x", 1);
        char byte;
        get(server, &byte, 1);
        close_both(client, server);
    }
}

/* Runs each attempt in a process of its own. Returns the number of differences. */
static int tries(int (*try)(int times, int what), int times, int what) {
    int found = 0;
    for (int i = 0; i < times; i++)
        for (int j = 0; j < what; j++) {
            pid_t child = (pid_t)MUST(fork());
            if (child == 0) {
                begin();
                int strange = try(i, j);
                _exit(strange > 100 ? 100 : strange);
            }
            int status;
            MUST(waitpid(child, &status, 0));
            found += WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
        }
    return found;
}

static int option_of(int fd, int level, int name) {
    int value = 0;
    socklen_t len = sizeof value;
    return getsockopt(fd, level, name, &value, &len) ? -errno : value;
}

static const struct { int level, name, value; } OPTIONS[] = {
    {SOL_SOCKET, SO_KEEPALIVE, 1}, {SOL_SOCKET, SO_RCVBUF, 5000}, {SOL_SOCKET, SO_SNDBUF, 9000}, {SOL_SOCKET, SO_REUSEADDR, 1},
    {SOL_SOCKET, SO_PRIORITY, 3}, {SOL_SOCKET, SO_RCVLOWAT, 7}, {SOL_SOCKET, SO_OOBINLINE, 1}, {SOL_SOCKET, SO_MARK, 9},
    {SOL_SOCKET, SO_TIMESTAMP, 1}, {IPPROTO_TCP, TCP_NODELAY, 1}, {IPPROTO_TCP, TCP_CORK, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 77},
    {IPPROTO_TCP, TCP_SYNCNT, 3}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 900}, {IPPROTO_IP, IP_TOS, 16}, {IPPROTO_IP, IP_TTL, 9},
};
enum { COUNT = sizeof OPTIONS / sizeof *OPTIONS };

/* Returns the number of differences between the sockets of new connections and a new socket. */
static int strange(int fresh[COUNT]) {
    int found = 0;
    for (int i = 0; i < 3; i++) {
        int fds[2];
        open_both(&fds[0], &fds[1]);
        for (int side = 0; side < 2; side++) {
            for (int at_option = 0; at_option < COUNT; at_option++)
                found += option_of(fds[side], OPTIONS[at_option].level, OPTIONS[at_option].name) != fresh[at_option];
            struct linger linger = {0};
            socklen_t len = sizeof linger;
            MUST(getsockopt(fds[side], SOL_SOCKET, SO_LINGER, &linger, &len));
            found += linger.l_onoff != 0 || linger.l_linger != 0;
            found += fcntl(fds[side], F_GETFL) != O_RDWR || fcntl(fds[side], F_GETFD) != FD_CLOEXEC;
            found += fcntl(fds[side], F_GETOWN) != 0 || fcntl(fds[side], F_GETSIG) != 0;
            struct stat file;
            MUST(fstat(fds[side], &file));
            found += (file.st_mode & 07777) != 0777 || file.st_uid != geteuid();
        }
        close_both(fds[0], fds[1]);
    }
    return found;
}

static void fresh_values(int values[COUNT]) {
    int client, server;
    open_both(&client, &server);
    for (int i = 0; i < COUNT; i++) values[i] = option_of(client, OPTIONS[i].level, OPTIONS[i].name);
    close_both(client, server);
}

static int set_one(int times, int i) {
    (void)times;
    int fresh[COUNT], found = 0;
    fresh_values(fresh);
    for (int side = 0; side < 3; side++) {
        warm();
        int fds[2], early = side == 2 ? tcp(AF_INET, SOCK_CLOEXEC) : -1;
        int value = OPTIONS[i].value;
        if (early >= 0) {
            setsockopt(early, OPTIONS[i].level, OPTIONS[i].name, &value, sizeof value);
            close(early);
        } else {
            open_both(&fds[0], &fds[1]);
            setsockopt(fds[side], OPTIONS[i].level, OPTIONS[i].name, &value, sizeof value);
            close_both(fds[0], fds[1]);
        }
        found += strange(fresh);
    }
    return found;
}

static void options(void) { say("strange: %d", tries(set_one, 3, COUNT)); }

static int flag_one(int times, int what) {
    int fresh[COUNT], on = 1, client, server;
    fresh_values(fresh);
    warm();
    open_both(&client, &server);
    int fd = times % 2 ? client : server;
    switch (what) {
    case 0: MUST(fcntl(fd, F_SETFL, O_NONBLOCK)); break;
    case 1: MUST(ioctl(fd, FIONBIO, &on)); break;
    case 2: MUST(fcntl(fd, F_SETOWN, getpid())); break;
    case 3: MUST(fcntl(fd, F_SETSIG, SIGURG)); break;
    case 4: MUST(fchmod(fd, 0600)); break;
    case 5: MUST(fcntl(fd, F_SETFD, 0)); break;
    case 6: setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 5}, sizeof(struct linger)); break;
    case 7: MUST(flock(fd, LOCK_EX)); break;
    }
    close_both(client, server);
    return strange(fresh);
}

static void flags(void) { say("strange: %d", tries(flag_one, 6, 8)); }

static uint64_t cookie_of(int fd) {
    uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    MUST(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len));
    return cookie;
}

static uint64_t inode_of(int fd) {
    struct stat file;
    MUST(fstat(fd, &file));
    return file.st_ino;
}

static uint64_t inode_by_path(int fd) {
    struct stat file;
    MUST(fstatat(fd, "", &file, AT_EMPTY_PATH));
    return file.st_ino;
}

static uint64_t inode_by_statx(int fd) {
    struct statx file;
    MUST(statx(fd, "", AT_EMPTY_PATH, STATX_INO, &file));
    return file.stx_ino;
}

static int look(int times, int what) {
    (void)times;
    static uint64_t (*const which[])(int) = {cookie_of, inode_of, inode_by_path, inode_by_statx};
    uint64_t before[2] = {0, 0};
    int found = 0;
    warm();
    for (int i = 0; i < 6; i++) {
        int fds[2];
        open_both(&fds[0], &fds[1]);
        for (int side = 0; side < 2; side++) {
            uint64_t now = which[what](fds[side]);
            found += now == before[0] || now == before[1];
            before[side] = now;
        }
        close_both(fds[0], fds[1]);
    }
    return found;
}

/* Every socket has a cookie and an inode of its own. */
static void identity(void) { say("the same: %d", tries(look, 8, 4)); }

/* A copy of a closed socket does not refer to the next connection. */
static int share(int times, int what) {
    int found = 0, pass[2], client, server, other = -1;
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pass));
    warm();
    open_both(&client, &server);
    int fd = times % 2 ? client : server;
    if (what == 0) other = (int)MUST(dup(fd));
    if (what == 1) other = (int)MUST(fcntl(fd, F_DUPFD_CLOEXEC, 100));
    if (what == 2) {
        char byte = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &fd, sizeof fd);
        MUST(sendmsg(pass[0], &message, 0));
    }
    close(fd);
    if (what == 2) {
        char byte, room[CMSG_SPACE(sizeof(int))] = {0};
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
        MUST(recvmsg(pass[1], &message, MSG_CMSG_CLOEXEC));
        memcpy(&other, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof other);
    }
    int next[2];
    open_both(&next[0], &next[1]);
    MUST(fcntl(other, F_SETFL, O_NONBLOCK));
    found += (fcntl(next[0], F_GETFL) | fcntl(next[1], F_GETFL)) & O_NONBLOCK ? 1 : 0;
    put(other, "y", 1);
    char byte = 0;
    get(fd == client ? server : client, &byte, 1);
    return found + (byte != 'y');
}

static void shared(void) { say("strange: %d", tries(share, TIMES / 3, 3)); }

/* A child has the sockets that existed at the fork, and no later ones. */
static void forks(void) {
    begin();
    int found = 0;
    for (int times = 0; times < TIMES / 3; times++) {
        warm();
        int client, server, go[2];
        open_both(&client, &server);
        MUST(setsockopt(client, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)));
        MUST(pipe(go));
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            char byte;
            struct linger linger = {0};
            socklen_t len = sizeof linger;
            MUST(getsockopt(client, SOL_SOCKET, SO_LINGER, &linger, &len));
            MUST(fcntl(client, F_SETFL, O_NONBLOCK));
            MUST(read(go[0], &byte, 1));
            /* Connections of the child. */
            close_both(client, server);
            warm();
            int count = 0;
            /* The library's own descriptors have numbers from 960 on. */
            for (int fd = 900; fd < 960; fd++) count += fcntl(fd, F_GETFD) >= 0 && close(fd) == 0;
            _exit(linger.l_onoff != 1 || count != 0);
        }
        close_both(client, server);
        int next[2];
        open_both(&next[0], &next[1]);
        MUST(write(go[1], "x", 1));
        int status;
        MUST(waitpid(child, &status, 0));
        found += status != 0;
        found += (fcntl(next[0], F_GETFL) | fcntl(next[1], F_GETFL)) & O_NONBLOCK ? 1 : 0;
        close_both(next[0], next[1]);
        close_both(go[0], go[1]);
    }
    say("strange: %d", found);
}

static int enter_set(int times, int before) {
    (void)times;
    int found = 0, set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    for (int i = 0; i < 3; i++) {
        warm();
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLHUP}, got;
        int early = tcp(AF_INET, SOCK_CLOEXEC), server;
        if (before) MUST(epoll_ctl(set, EPOLL_CTL_ADD, early, &event));
        MUST(connect(early, (struct sockaddr *)&at, at_len));
        server = (int)MUST(accept4(listening, NULL, NULL, SOCK_CLOEXEC));
        if (!before) MUST(epoll_ctl(set, EPOLL_CTL_ADD, early, &event));
        close_both(early, server);
        int next[2];
        open_both(&next[0], &next[1]);
        found += epoll_wait(set, &got, 1, 0) != 0;
        found += epoll_ctl(set, EPOLL_CTL_ADD, next[0], &event) != 0;
        found += epoll_wait(set, &got, 1, 0) != 1;
        close_both(next[0], next[1]);
    }
    return found;
}

static void registered(void) { say("strange: %d", tries(enter_set, TIMES / 4, 2)); }

/* bind, shutdown and connect(AF_UNSPEC) of one socket do not affect the next. */
static int use(int times, int what) {
    (void)times, (void)what;
    int found = 0;
    for (int i = 0; i < 2; i++) {
        warm();
        struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof name;
        int bound = tcp(AF_INET, SOCK_CLOEXEC);
        MUST(bind(bound, (struct sockaddr *)&name, len));
        MUST(getsockname(bound, (struct sockaddr *)&name, &len));
        close(bound);
        int shut = tcp(AF_INET, SOCK_CLOEXEC);
        found += shutdown(shut, SHUT_RDWR) != -1;
        close(shut);
        int again = tcp(AF_INET, SOCK_CLOEXEC);
        found += bind(again, (struct sockaddr *)&name, len) != 0;
        close(again);
        warm();
        int fd = tcp(AF_INET, SOCK_CLOEXEC);
        struct sockaddr_in none = {0};
        len = sizeof none;
        MUST(getsockname(fd, (struct sockaddr *)&none, &len));
        found += none.sin_port != 0;
        close(fd);
        warm();
        int client, server;
        open_both(&client, &server);
        struct sockaddr unspecified = {.sa_family = AF_UNSPEC};
        MUST(connect(client, &unspecified, sizeof unspecified));
        close_both(client, server);
        warm();
    }
    return found;
}

static void used(void) { say("strange: %d", tries(use, TIMES / 3, 1)); }

/* Sockets get the lowest free numbers, and all numbers below the limit can be used. */
static void numbers(void) {
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = 64;
    begin();
    warm();
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    int found = 0;
    for (int times = 0; times < TIMES; times++) {
        int free = (int)MUST(dup(listening));
        close(free);
        warm();
        int client, server;
        open_both(&client, &server);
        found += client != free || server != free + 1;
        close_both(client, server);
    }
    say("not the lowest: %d", found);
    warm();
    int count = 0, last = -1, fd;
    while ((fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0 && count++ < 100) last = fd;
    say("%s, all numbers: %d", name_of(errno), last == 63);
    MUST(close(listening + 5));
    MUST(close(listening + 6));
    warm();
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    say("the one: %d", fd == listening + 5);
    /* Closes every number that may be open. */
    for (int i = listening + 1; i < 2048; i++) close(i);
    warm();
    MUST(close_range(listening + 1, ~0U, 0));
    warm();
    say("goes on");
}

static long which_is(int fd) {
    char path[64], name[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t len = MUST(readlink(path, name, sizeof name - 1));
    name[len] = 0;
    return atol(name + strlen("socket:["));
}

/* Changes the process's user, groups or network namespace. Returns whether that worked. */
static bool change(int what) {
    gid_t groups[] = {65534};
    switch (what) {
    case 0: return setuid(65534) == 0;
    case 1: return setgid(65534) == 0;
    case 2: return seteuid(65534) == 0;
    case 3: return setegid(65534) == 0;
    case 4: return setreuid(-1, 65534) == 0;
    case 5: return setregid(-1, 65534) == 0;
    case 6: return setresuid(-1, 65534, -1) == 0;
    case 7: return setresgid(-1, 65534, -1) == 0;
    case 8: return setgroups(1, groups) == 0;
    case 9: return initgroups("nobody", 65534) == 0;
    case 10: return setfsuid(65534) == 0;
    case 11: return setfsgid(65534) == 0;
    default: return unshare(CLONE_NEWNET) == 0;
    }
}
enum { CHANGES = 13 };

/* After a change of user, groups or namespace a new socket has the new owner and namespace. */
static void others(void) {
    begin();
    int found = 0;
    for (int times = 0; times < TIMES / 6; times++)
        for (int what = 0; what < CHANGES; what++) {
            pid_t child = (pid_t)MUST(fork());
            if (child == 0) {
                uint64_t before = 0, after = 0;
                socklen_t len = sizeof before;
                MUST(getsockopt(listening, SOL_SOCKET, SO_NETNS_COOKIE, &before, &len));
                warm();
                int last[2];
                open_both(&last[0], &last[1]);
                long made[2] = {which_is(last[0]), which_is(last[1])};
                close_both(last[0], last[1]);
                bool can = change(what);
                int fds[2], strange = !can;
                for (int i = 0; i < 2; i++) {
                    fds[i] = tcp(AF_INET, SOCK_CLOEXEC);
                    long now = which_is(fds[i]);
                    strange += now == made[0] || now == made[1];
                }
                struct stat file;
                MUST(fstat(fds[0], &file));
                /* setfsuid(2) and setfsgid(2) do not change the effective ids. */
                if (what < 10) strange += file.st_uid != geteuid() || file.st_gid != getegid();
                MUST(getsockopt(fds[0], SOL_SOCKET, SO_NETNS_COOKIE, &after, &len));
                strange += (what == CHANGES - 1) != (before != after);
                _exit(strange);
            }
            int status;
            MUST(waitpid(child, &status, 0));
            found += status != 0;
        }
    say("strange: %d", found);
}

/* A spawned program gets the socket, and the next connection is another one. */
static void spawned(void) {
    begin();
    int found = 0;
    for (int times = 0; times < TIMES / 6; times++) {
        warm();
        int client, server, next[2];
        open_both(&client, &server);
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, client, 1);
        char *arguments[] = {"echo", "-n", "z", NULL}, *environment[] = {NULL};
        pid_t child;
        if (posix_spawnp(&child, "echo", &actions, NULL, arguments, environment)) die("spawn");
        close(client);
        open_both(&next[0], &next[1]);
        int status;
        MUST(waitpid(child, &status, 0));
        put(next[0], "n", 1);
        char byte = 0;
        get(next[1], &byte, 1);
        found += byte != 'n';
        close_both(next[0], next[1]);
        close(server);
    }
    say("strange: %d", found);
}

/* A child that inherited a socket before its connect keeps that socket, and does not get the next one. */
static int spawn_early(int times, int what) {
    (void)times, (void)what;
    int next[2], go[2], client, server, status;
    MUST(pipe2(go, O_CLOEXEC));
    warm();
    client = tcp(AF_INET, SOCK_CLOEXEC);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, client, 0);
    posix_spawn_file_actions_adddup2(&actions, go[0], 9);
    /* dd sets O_NONBLOCK on its standard input's open file description. */
    char *arguments[] = {"sh", "-c", "read x <&9; exec dd of=/dev/null iflag=nonblock count=0 2>/dev/null", NULL};
    char *environment[] = {NULL};
    pid_t child;
    if (posix_spawnp(&child, "sh", &actions, NULL, arguments, environment)) die("spawn");
    MUST(connect(client, (struct sockaddr *)&at, at_len));
    server = (int)MUST(accept4(listening, NULL, NULL, SOCK_CLOEXEC));
    close(client);
    open_both(&next[0], &next[1]);
    MUST(write(go[1], "x\n", 2));
    MUST(waitpid(child, &status, 0));
    int found = status != 0;
    found += (fcntl(next[0], F_GETFL) | fcntl(next[1], F_GETFL)) & O_NONBLOCK ? 1 : 0;
    close(server);
    return found;
}

static void spawned_early(void) { say("strange: %d", tries(spawn_early, TIMES / 3, 1)); }

/* SO_LINGER with a time of 0 is read back, resets the connection, and does not apply to the next one. */
static void linger(void) {
    begin();
    int found = 0;
    for (int times = 0; times < TIMES; times++) {
        warm();
        int client, server;
        open_both(&client, &server);
        MUST(setsockopt(client, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)));
        if (times % 2) {
            struct linger told = {0};
            socklen_t len = sizeof told;
            MUST(getsockopt(client, SOL_SOCKET, SO_LINGER, &told, &len));
            found += told.l_onoff != 1 || told.l_linger != 0;
        }
        close(client);
        char byte;
        found += read(server, &byte, 1) != -1 || errno != ECONNRESET;
        close(server);
        open_both(&client, &server);
        close(client);
        found += read(server, &byte, 1) != 0;
        close(server);
    }
    say("strange: %d", found);
}

static void *opens(void *result) {
    for (int i = 0; i < 800; i++) {
        int fd = tcp(AF_INET, SOCK_CLOEXEC);
        MUST(connect(fd, (struct sockaddr *)&at, at_len));
        uint32_t word = (uint32_t)(uintptr_t)&word ^ (uint32_t)i, back = 0;
        put(fd, &word, sizeof word);
        get(fd, &back, sizeof back);
        *(int *)result += back != word;
        if (i % 7 == 0) MUST(fcntl(fd, F_SETFL, O_NONBLOCK));
        if (i % 50 == 0) {
            pid_t child = (pid_t)MUST(fork());
            if (child == 0) _exit(0);
            int status;
            MUST(waitpid(child, &status, 0));
        }
        close(fd);
    }
    return NULL;
}

static void *answers(void *unused) {
    (void)unused;
    for (int i = 0; i < 1600; i++) {
        int fd = (int)MUST(accept4(listening, NULL, NULL, SOCK_CLOEXEC));
        uint32_t word;
        get(fd, &word, sizeof word);
        put(fd, &word, sizeof word);
        close(fd);
    }
    return NULL;
}

/* Threads connect while other threads fork. Each connection carries its own bytes. */
static void threads(void) {
    begin();
    pthread_t thread[6];
    int wrong[4] = {0};
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, answers, NULL);
    for (int i = 2; i < 6; i++) pthread_create(&thread[i], NULL, opens, &wrong[i - 2]);
    for (int i = 0; i < 6; i++) pthread_join(thread[i], NULL);
    say("wrong: %d", wrong[0] + wrong[1] + wrong[2] + wrong[3]);
}

const struct test kept_cases[] = {
    {"kept_options", options}, {"kept_flags", flags}, {"kept_identity", identity}, {"kept_shared", shared}, {"kept_forks", forks},
    {"kept_registered", registered}, {"kept_used", used}, {"kept_numbers", numbers}, {"kept_others", others},
    {"kept_spawned", spawned}, {"kept_spawned_early", spawned_early}, {"kept_linger", linger}, {"kept_threads", threads}, {0}};
