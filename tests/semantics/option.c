/* Options are read back as they were set. Also TCP_INFO and SO_PEERCRED. */
#include "semantics.h"
#include <linux/sockios.h>

struct option {
    const char *name;
    int level, option, value;
};
static const struct option options[] = {
    {"SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR, 1},
    {"SO_REUSEPORT", SOL_SOCKET, SO_REUSEPORT, 1},
    {"SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE, 1},
    {"SO_BROADCAST", SOL_SOCKET, SO_BROADCAST, 1},
    {"SO_OOBINLINE", SOL_SOCKET, SO_OOBINLINE, 1},
    {"SO_DONTROUTE", SOL_SOCKET, SO_DONTROUTE, 1},
    {"SO_SNDBUF", SOL_SOCKET, SO_SNDBUF, 30000},
    {"SO_RCVBUF", SOL_SOCKET, SO_RCVBUF, 50000},
    {"SO_SNDBUF small", SOL_SOCKET, SO_SNDBUF, 1},
    {"SO_RCVBUF small", SOL_SOCKET, SO_RCVBUF, 1},
    {"SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT, 5},
    {"SO_SNDLOWAT", SOL_SOCKET, SO_SNDLOWAT, 5},
    {"SO_PRIORITY", SOL_SOCKET, SO_PRIORITY, 4},
    {"SO_TYPE", SOL_SOCKET, SO_TYPE, 1},
    {"SO_PROTOCOL", SOL_SOCKET, SO_PROTOCOL, 1},
    {"SO_DOMAIN", SOL_SOCKET, SO_DOMAIN, 1},
    {"SO_ACCEPTCONN", SOL_SOCKET, SO_ACCEPTCONN, 1},
    {"SO_ERROR", SOL_SOCKET, SO_ERROR, 1},
    {"SO_TIMESTAMP", SOL_SOCKET, SO_TIMESTAMP, 1},
    {"SO_BUSY_POLL", SOL_SOCKET, SO_BUSY_POLL, 0},
    {"SO_ZEROCOPY", SOL_SOCKET, SO_ZEROCOPY, 1},
    {"SO_MARK", SOL_SOCKET, SO_MARK, 0},
    {"TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY, 1},
    {"TCP_CORK", IPPROTO_TCP, TCP_CORK, 1},
    {"TCP_QUICKACK", IPPROTO_TCP, TCP_QUICKACK, 1},
    {"TCP_KEEPIDLE", IPPROTO_TCP, TCP_KEEPIDLE, 33},
    {"TCP_KEEPINTVL", IPPROTO_TCP, TCP_KEEPINTVL, 44},
    {"TCP_KEEPCNT", IPPROTO_TCP, TCP_KEEPCNT, 5},
    {"TCP_KEEPCNT bad", IPPROTO_TCP, TCP_KEEPCNT, 5000},
    {"TCP_SYNCNT", IPPROTO_TCP, TCP_SYNCNT, 3},
    {"TCP_LINGER2", IPPROTO_TCP, TCP_LINGER2, 7},
    {"TCP_DEFER_ACCEPT", IPPROTO_TCP, TCP_DEFER_ACCEPT, 0},
    {"TCP_USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT, 9000},
    {"TCP_NOTSENT_LOWAT", IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16384},
    {"TCP_FASTOPEN_CONNECT", IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 0},
    {"TCP_WINDOW_CLAMP", IPPROTO_TCP, TCP_WINDOW_CLAMP, 60000},
    {"IP_TOS", IPPROTO_IP, IP_TOS, 0x10},
    {"IP_TTL", IPPROTO_IP, IP_TTL, 77},
    {"IP_TTL bad", IPPROTO_IP, IP_TTL, 300},
    {"IP_RECVERR", IPPROTO_IP, IP_RECVERR, 1},
    {"IP_FREEBIND", IPPROTO_IP, IP_FREEBIND, 1},
    {"IP_BIND_ADDRESS_NO_PORT", IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1},
    {"IPV6_V6ONLY", IPPROTO_IPV6, IPV6_V6ONLY, 1},
    {"IPV6_UNICAST_HOPS", IPPROTO_IPV6, IPV6_UNICAST_HOPS, 55},
    {"IPV6_TCLASS", IPPROTO_IPV6, IPV6_TCLASS, 0x20},
};

static void every_option(int fd, bool skip_default) {
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        /* See gap_zerocopy. */
        if (skip_default && options[i].level == SOL_SOCKET && options[i].option == SO_ZEROCOPY) continue;
        int value = -1;
        socklen_t len = sizeof value;
        int n = getsockopt(fd, options[i].level, options[i].option, &value, &len);
        int error = errno;
        char before[64];
        if (n < 0) snprintf(before, sizeof before, "%s", name_of(error));
        /* Until they are set, buffer sizes and windows of a connection depend on its traffic. */
        else if (skip_default && (options[i].option == SO_SNDBUF || options[i].option == SO_RCVBUF || (options[i].level == IPPROTO_TCP && (options[i].option == TCP_WINDOW_CLAMP || options[i].option == TCP_QUICKACK)))) strcpy(before, "?");
        else snprintf(before, sizeof before, "%d length %u", value, len);
        value = options[i].value;
        n = setsockopt(fd, options[i].level, options[i].option, &value, sizeof value);
        error = errno;
        value = -1;
        len = sizeof value;
        int m = getsockopt(fd, options[i].level, options[i].option, &value, &len);
        if (skip_default && options[i].level == IPPROTO_TCP && options[i].option == TCP_QUICKACK) value = 1;
        say("%s: %s; set %d: %s; then %d %s", options[i].name, before, options[i].value, n ? name_of(error) : "ok",
            m < 0 ? -1 : value, m < 0 ? name_of(errno) : "");
    }
}

static void options_unconnected(void) {
    say("IPv4");
    every_option(tcp(AF_INET, 0), false);
    say("IPv6");
    every_option(tcp(AF_INET6, 0), false);
}

static void options_connected(void) {
    int a, b;
    pair(&a, &b);
    say("client");
    every_option(a, true);
    say("server");
    every_option(b, true);
    char text[8];
    set_int(a, IPPROTO_TCP, TCP_CORK, 0);
    put(a, "still", 5);
    get(b, text, 5);
    say("%.5s", text);
}

static void options_of_structures(void) {
    int a, b;
    pair(&a, &b);
    struct linger linger = {1, 5};
    socklen_t len = sizeof linger;
    CALL(setsockopt(a, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    linger.l_linger = 0;
    CALL(getsockopt(a, SOL_SOCKET, SO_LINGER, &linger, &len));
    say("%d %d", linger.l_onoff, linger.l_linger);
    struct tcp_info info;
    memset(&info, 0xff, sizeof info);
    len = sizeof info;
    CALL(getsockopt(a, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("state %d, lengths %d, a segment size %d", info.tcpi_state, len >= 100, info.tcpi_snd_mss > 0);
    len = 4;
    CALL(getsockopt(a, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("length %u", len);
    MUST(shutdown(a, SHUT_WR));
    await(b, POLLRDHUP);
    len = sizeof info;
    MUST(getsockopt(b, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("half closed: %d", info.tcpi_state);
    struct sockaddr_storage at;
    int l = listener(AF_INET, 5, &at, &len);
    len = sizeof info;
    MUST(getsockopt(l, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("listener: %d", info.tcpi_state);
    int fresh = tcp(AF_INET, 0);
    len = sizeof info;
    MUST(getsockopt(fresh, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("fresh: %d", info.tcpi_state);
    int value = 0;
    len = sizeof value;
    CALL(getsockopt(fresh, IPPROTO_TCP, TCP_MAXSEG, &value, &len));
    say("TCP_MAXSEG %d", value);
    char name[16] = {0};
    len = sizeof name;
    CALL(getsockopt(a, IPPROTO_TCP, TCP_CONGESTION, name, &len) == 0 && name[0]);
    CALL(setsockopt(a, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    CALL(setsockopt(a, IPPROTO_TCP, TCP_CONGESTION, "nosuch", 6));
    len = sizeof name;
    MUST(getsockopt(a, IPPROTO_TCP, TCP_CONGESTION, name, &len));
    say("%s", name);
    struct ucred who;
    len = sizeof who;
    CALL(getsockopt(a, SOL_SOCKET, SO_PEERCRED, &who, &len));
    unsigned long cookie[2] = {0};
    len = 8;
    CALL(getsockopt(a, SOL_SOCKET, SO_COOKIE, &cookie[0], &len));
    len = 8;
    CALL(getsockopt(b, SOL_SOCKET, SO_COOKIE, &cookie[1], &len));
    say("cookies differ %d", cookie[0] != cookie[1]);
    len = 1;
    char byte = 7;
    CALL(getsockopt(a, IPPROTO_TCP, TCP_NODELAY, &byte, &len));
    say("length %u value %d", len, byte);
}

static void descriptor_flags(void) {
    int a, b;
    pair(&a, &b);
    struct stat status;
    CALL(fstat(a, &status));
    say("socket %d", S_ISSOCK(status.st_mode));
    say("GETFL %#lx", MUST(fcntl(a, F_GETFL)));
    CALL(fcntl(a, F_SETFL, O_NONBLOCK | O_APPEND | O_ASYNC));
    say("GETFL %#lx", MUST(fcntl(a, F_GETFL)));
    CALL(fcntl(a, F_SETFL, 0));
    CALL(fcntl(a, F_SETFD, FD_CLOEXEC));
    say("GETFD %ld", MUST(fcntl(a, F_GETFD)));
    int c = OPEN(fcntl(a, F_DUPFD_CLOEXEC, 100));
    say("at least 100 %d, GETFD %ld", c >= 100, MUST(fcntl(c, F_GETFD)));
    int d = OPEN(dup(a));
    say("GETFD %ld", MUST(fcntl(d, F_GETFD)));
    int e = OPEN(dup3(a, 200, O_CLOEXEC));
    say("is 200 %d, GETFD %ld", e == 200, MUST(fcntl(e, F_GETFD)));
    CALL(fcntl(a, F_GETLK, &(struct flock){.l_type = F_WRLCK}) < 0);
    char path[64], target[64] = {0};
    snprintf(path, sizeof path, "/proc/self/fd/%d", a);
    MUST(readlink(path, target, sizeof target - 1));
    say("%.7s", target);
    CALL(isatty(a));
    int value = 1;
    CALL(ioctl(a, FIOCLEX));
    CALL(ioctl(a, FIONCLEX));
    say("GETFD %ld", MUST(fcntl(a, F_GETFD)));
    CALL(ioctl(a, FIOASYNC, &value));
    say("GETFL %#lx", MUST(fcntl(a, F_GETFL)));
    char text[8];
    put(c, "1", 1), put(d, "2", 1), put(e, "3", 1);
    get(b, text, 3);
    say("%.3s", text);
    close(a), close(c), close(d);
    CALL(recv(b, text, 1, MSG_DONTWAIT));
    close(e);
    CALL(recv(b, text, 1, 0));
}

/* A time-out of negative seconds: the call does not block, and 0 is read back. */
static void negative_times(void) {
    struct timeval ever = {-1, 0};
    socklen_t len = sizeof ever;
    int a, b;
    pair(&a, &b);
    CALL(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &ever, sizeof ever));
    CALL(setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &ever, sizeof ever));
    CALL(getsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &ever, &len));
    say("%ld %ld", (long)ever.tv_sec, (long)ever.tv_usec);
    char byte[2];
    CALL(read(a, byte, 1));
    CALL(recv(a, byte, 2, MSG_WAITALL));
    put(b, "x", 1);
    await(a, POLLIN);
    CALL(recv(a, byte, 2, MSG_WAITALL));
    fill(a);
    MUST(fcntl(a, F_SETFL, 0));
    CALL(write(a, byte, 1));
    struct sockaddr_storage at;
    int l = listener(AF_INET, 5, &at, &len);
    ever.tv_sec = -5;
    MUST(setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &ever, sizeof ever));
    CALL(accept(l, NULL, NULL));
    dial(&at, len);
    await(l, POLLIN);
    int s = OPEN(accept(l, NULL, NULL));
    CALL(read(s, byte, 1));
    ever.tv_usec = -1;
    CALL(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &ever, sizeof ever));
}

/* Options whose result depends on the connection. */
static void of_a_connection(void) {
    int a, b;
    pair(&a, &b);
    const int clamps[] = {0, 1, 100, 1000, 4096, 100000, 0};
    for (size_t i = 0; i < sizeof clamps / sizeof *clamps; i++) {
        int value = clamps[i], now = -1;
        socklen_t len = sizeof now;
        CALL(setsockopt(a, IPPROTO_TCP, TCP_WINDOW_CLAMP, &value, sizeof value));
        MUST(getsockopt(a, IPPROTO_TCP, TCP_WINDOW_CLAMP, &now, &len));
        say("%d: %d", value, i ? now : now > 0);
    }
    int inet = AF_INET, value = -1;
    socklen_t len = sizeof value;
    CALL(setsockopt(a, IPPROTO_IPV6, IPV6_ADDRFORM, &inet, sizeof inet));
    int six = tcp(AF_INET6, 0);
    CALL(setsockopt(six, IPPROTO_IPV6, IPV6_ADDRFORM, &inet, sizeof inet));
    pair_of(AF_INET6, &a, &b);
    CALL(setsockopt(a, IPPROTO_IPV6, IPV6_ADDRFORM, &inet, sizeof inet));
    CALL(getsockopt(a, IPPROTO_IPV6, IPV6_ADDRFORM, &value, &len));
    say("%d", value);
    struct sockaddr_storage at;
    int l = listener(AF_INET, 5, &at, &len);
    struct sockaddr_in6 mapped = {.sin6_family = AF_INET6, .sin6_port = ((struct sockaddr_in *)&at)->sin_port};
    memcpy(&mapped.sin6_addr, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\1", 16);
    MUST(connect(six, (struct sockaddr *)&mapped, sizeof mapped));
    int bad = AF_INET6;
    CALL(setsockopt(six, IPPROTO_IPV6, IPV6_ADDRFORM, &bad, sizeof bad));
    CALL(setsockopt(six, IPPROTO_IPV6, IPV6_ADDRFORM, &inet, sizeof inet));
    len = sizeof at;
    MUST(getpeername(six, (struct sockaddr *)&at, &len));
    say("family %d length %u", at.ss_family, len);
    len = sizeof value;
    MUST(getsockopt(six, SOL_SOCKET, SO_DOMAIN, &value, &len));
    say("domain %d", value);
    CALL(getsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &value, &len));
    CALL(setsockopt(six, IPPROTO_IPV6, IPV6_UNICAST_HOPS, &bad, sizeof bad));
    int s = MUST(accept(l, NULL, NULL));
    put(six, "x", 1);
    get(s, &value, 1);
}

const struct test option_cases[] = {{"options_unconnected", options_unconnected},
                                    {"options_connected", options_connected},
                                    {"options_of_structures", options_of_structures},
                                    {"descriptor_flags", descriptor_flags},
                                    {"options_negative_times", negative_times},
                                    {"options_of_a_connection", of_a_connection},
                                    {NULL, NULL}};
