/* The results of connect. */
#include "semantics.h"

static char byte[16];

static int error_of(int fd) {
    int error = -1;
    socklen_t len = sizeof error;
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
    return error;
}

static void connect_nonblocking(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len);
    int fd = tcp(AF_INET, SOCK_NONBLOCK);
    CALL(connect(fd, (struct sockaddr *)&at, len));
    say("poll %s", events(await(fd, POLLOUT)));
    say("SO_ERROR %s", name_of(error_of(fd)));
    CALL(connect(fd, (struct sockaddr *)&at, len));
    CALL(connect(fd, (struct sockaddr *)&at, len));
    int s = OPEN(accept(l, NULL, NULL));
    put(fd, "hello", 5);
    get(s, byte, 5);
    say("%.5s", byte);
    CALL(recv(fd, byte, 1, 0));
}

static void connect_refused(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len);
    MUST(close(l));
    int fd = tcp(AF_INET, 0);
    CALL(connect(fd, (struct sockaddr *)&at, len));
    say("SO_ERROR %s", name_of(error_of(fd)));
    CALL(send(fd, byte, 1, MSG_NOSIGNAL));
    CALL(recv(fd, byte, 1, 0));
    CALL(connect(fd, (struct sockaddr *)&at, len));
    int n = tcp(AF_INET, SOCK_NONBLOCK);
    CALL(connect(n, (struct sockaddr *)&at, len));
    say("poll %s", events(await(n, POLLIN | POLLOUT | POLLRDHUP)));
    say("SO_ERROR %s", name_of(error_of(n)));
    say("SO_ERROR again %s", name_of(error_of(n)));
    int m = tcp(AF_INET, SOCK_NONBLOCK);
    CALL(connect(m, (struct sockaddr *)&at, len));
    await(m, POLLOUT);
    CALL(recv(m, byte, 1, 0));
    CALL(recv(m, byte, 1, 0));
    CALL(send(m, byte, 1, MSG_NOSIGNAL));
}

/* A socket whose connect was refused can connect again. */
static void connect_again_after_refused(void) {
    struct sockaddr_storage gone, at;
    socklen_t len;
    int l = listener(AF_INET, 16, &gone, &len);
    MUST(close(l));
    int fd = tcp(AF_INET, 0);
    CALL(connect(fd, (struct sockaddr *)&gone, len));
    l = listener(AF_INET, 16, &at, &len);
    CALL(connect(fd, (struct sockaddr *)&at, len));
    int s = OPEN(accept(l, NULL, NULL));
    put(s, "again", 5);
    get(fd, byte, 5);
    say("%.5s", byte);
}

static void connect_to_any(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len);
    ((struct sockaddr_in *)&at)->sin_addr.s_addr = htonl(INADDR_ANY);
    int fd = tcp(AF_INET, 0);
    CALL(connect(fd, (struct sockaddr *)&at, len));
    int s = OPEN(accept(l, NULL, NULL));
    struct sockaddr_in peer;
    len = sizeof peer;
    MUST(getpeername(fd, (struct sockaddr *)&peer, &len));
    say("peer %s", inet_ntoa(peer.sin_addr));
    MUST(close(s));
}

static void connect_without_listener_in_range(void) {
    /* Multicast and broadcast addresses. */
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = inet_addr("224.0.0.1")};
    int fd = tcp(AF_INET, 0);
    CALL(connect(fd, (struct sockaddr *)&to, sizeof to));
    to.sin_addr.s_addr = inet_addr("255.255.255.255");
    CALL(connect(fd, (struct sockaddr *)&to, sizeof to));
}

static void connect_to_unspec(void) {
    int a, b;
    pair(&a, &b);
    struct sockaddr_in none = {.sin_family = AF_UNSPEC};
    CALL(connect(a, (struct sockaddr *)&none, sizeof none));
    CALL(send(a, byte, 1, MSG_NOSIGNAL));
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    CALL(getpeername(a, (struct sockaddr *)&at, &len));
    await(b, POLLIN);
    CALL(recv(b, byte, 1, 0));
    CALL(recv(b, byte, 1, 0));
}

static void connect_bound(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len);
    int fd = tcp(AF_INET, 0);
    struct sockaddr_in mine = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("127.0.0.2")}, seen;
    CALL(bind(fd, (struct sockaddr *)&mine, sizeof mine));
    len = sizeof mine;
    MUST(getsockname(fd, (struct sockaddr *)&mine, &len));
    say("bound to %s, port %s", inet_ntoa(mine.sin_addr), mine.sin_port ? "given" : "none");
    CALL(connect(fd, (struct sockaddr *)&at, sizeof(struct sockaddr_in)));
    len = sizeof seen;
    int s = OPEN(accept(l, (struct sockaddr *)&seen, &len));
    say("accepted from %s, the same port: %d", inet_ntoa(seen.sin_addr), seen.sin_port == mine.sin_port);
    len = sizeof seen;
    MUST(getsockname(fd, (struct sockaddr *)&seen, &len));
    say("name %s, the same port: %d", inet_ntoa(seen.sin_addr), seen.sin_port == mine.sin_port);
    MUST(close(s));
}

static void connect_v4_mapped(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len);
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = ((struct sockaddr_in *)&at)->sin_port}, name;
    inet_pton(AF_INET6, "::ffff:127.0.0.1", &to.sin6_addr);
    int fd = tcp(AF_INET6, 0);
    CALL(connect(fd, (struct sockaddr *)&to, sizeof to));
    int s = OPEN(accept(l, NULL, NULL));
    char text[64];
    len = sizeof name;
    MUST(getpeername(fd, (struct sockaddr *)&name, &len));
    say("peer %s", inet_ntop(AF_INET6, &name.sin6_addr, text, sizeof text));
    len = sizeof name;
    MUST(getsockname(fd, (struct sockaddr *)&name, &len));
    say("name %s", inet_ntop(AF_INET6, &name.sin6_addr, text, sizeof text));
    put(s, "mapped", 6);
    get(fd, byte, 6);
    say("%.6s", byte);
    int only = tcp(AF_INET6, 0);
    set_int(only, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    CALL(connect(only, (struct sockaddr *)&to, sizeof to));
}

static void listener_closed(void) {
    /* Closing a listener resets the connections in its queue. */
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len);
    int fd = dial(&at, len);
    put(fd, "x", 1);
    MUST(close(l));
    say("poll %s", events(await(fd, POLLIN)));
    CALL(recv(fd, byte, 1, 0));
    CALL(recv(fd, byte, 1, 0));
    CALL(send(fd, byte, 1, MSG_NOSIGNAL));
}

static void names(void) {
    /* A socket's names before and after connect. */
    struct sockaddr_storage at, name;
    socklen_t len, n = sizeof name;
    int l = listener(AF_INET, 16, &at, &len);
    int fd = tcp(AF_INET, 0);
    MUST(getsockname(fd, (struct sockaddr *)&name, &n));
    struct sockaddr_in *in = (struct sockaddr_in *)&name;
    say("before: family %d, %s, port %s", in->sin_family, inet_ntoa(in->sin_addr), in->sin_port ? "given" : "none");
    MUST(connect(fd, (struct sockaddr *)&at, len));
    n = sizeof name;
    MUST(getsockname(fd, (struct sockaddr *)&name, &n));
    say("after: family %d, %s, port %s, length %u", in->sin_family, inet_ntoa(in->sin_addr),
        in->sin_port ? "given" : "none", n);
    n = 8;
    memset(&name, 0, sizeof name);
    CALL(getpeername(fd, (struct sockaddr *)&name, &n));
    say("length %u, the port of the listener: %d, the address cut off: %d", n,
        in->sin_port == ((struct sockaddr_in *)&at)->sin_port, ((char *)in)[8] == 0);
    n = -1;
    CALL(getpeername(fd, (struct sockaddr *)&name, &n));
    MUST(close(l));
}

const struct test connect_cases[] = {
    {"connect_nonblocking", connect_nonblocking},
    {"connect_refused", connect_refused},
    {"connect_again_after_refused", connect_again_after_refused},
    {"connect_to_any", connect_to_any},
    {"connect_without_listener_in_range", connect_without_listener_in_range},
    {"connect_to_unspec", connect_to_unspec},
    {"connect_bound", connect_bound},
    {"connect_v4_mapped", connect_v4_mapped},
    {"connect_then_listener_closed", listener_closed},
    {"connect_names", names},
    {NULL, NULL}};
