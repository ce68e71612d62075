#include "semantics.h"
#include <stdarg.h>

void say(const char *format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    if (n > (int)sizeof line - 2) n = sizeof line - 2;
    line[n++] = '\n';
    if (write(1, line, n) != n) _exit(99);
}

void die(const char *format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    say("DIED %s", line);
    _exit(98);
}

const char *name_of(int error) {
    const char *name = error ? strerrorname_np(error) : "0";
    return name ? name : "?";
}

void report(const char *what, long result, int error) {
    if (result == -1)
        say("%s = -1 %s", what, name_of(error));
    else
        say("%s = %ld", what, result);
}

void report_open(const char *what, long result, int error) {
    if (result < 0)
        say("%s = -1 %s", what, name_of(error));
    else
        say("%s = descriptor", what);
}

int tcp(int family, int flags) { return (int)MUST(socket(family, SOCK_STREAM | flags, 0)); }

int listener(int family, int backlog, struct sockaddr_storage *at, socklen_t *len) {
    int fd = tcp(family, 0);
    memset(at, 0, sizeof *at);
    at->ss_family = family;
    if (family == AF_INET) {
        ((struct sockaddr_in *)at)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        *len = sizeof(struct sockaddr_in);
    } else {
        ((struct sockaddr_in6 *)at)->sin6_addr = in6addr_loopback;
        *len = sizeof(struct sockaddr_in6);
    }
    MUST(bind(fd, (struct sockaddr *)at, *len));
    MUST(listen(fd, backlog));
    MUST(getsockname(fd, (struct sockaddr *)at, len));
    return fd;
}

int dial(const struct sockaddr_storage *at, socklen_t len) {
    int fd = tcp(at->ss_family, 0);
    MUST(connect(fd, (const struct sockaddr *)at, len));
    return fd;
}

/* With SEMANTICS_WARM, a new connection carries some bytes in both directions before the case uses it. The ring
 * carries a byte whose reader is awake. */
enum { WARM_ROUNDS = 20 };

static void *echo(void *fd) {
    for (int i = 0; i < WARM_ROUNDS; i++) {
        char byte;
        MUST(read(*(int *)fd, &byte, 1));
        MUST(write(*(int *)fd, &byte, 1));
    }
    return NULL;
}

static void warm(int client, int server) {
    if (!getenv("SEMANTICS_WARM")) return;
    pthread_t thread;
    if (pthread_create(&thread, NULL, echo, &server)) die("no thread");
    for (int i = 0; i < WARM_ROUNDS; i++) {
        char byte = 'w';
        MUST(write(client, &byte, 1));
        MUST(read(client, &byte, 1));
    }
    pthread_join(thread, NULL);
}

void pair_of(int family, int *client, int *server) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(family, 16, &at, &len);
    *client = dial(&at, len);
    *server = (int)MUST(accept(l, NULL, NULL));
    MUST(close(l));
    warm(*client, *server);
}

void pair(int *client, int *server) { pair_of(AF_INET, client, server); }

void pair_closed_by_exec(int *client, int *server) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len);
    MUST(fcntl(l, F_SETFD, FD_CLOEXEC));
    *client = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    MUST(connect(*client, (struct sockaddr *)&at, len));
    *server = (int)MUST(accept4(l, NULL, NULL, SOCK_CLOEXEC));
    MUST(close(l));
    warm(*client, *server);
}

void put(int fd, const void *data, size_t len) {
    for (const char *p = data; len;) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            await(fd, POLLOUT);
            continue;
        }
        if (n <= 0) die("send of %zu: %zd %s", len, n, name_of(errno));
        p += n;
        len -= n;
    }
}

void get(int fd, void *data, size_t len) {
    for (char *p = data; len;) {
        ssize_t n = recv(fd, p, len, 0);
        if (n < 0 && errno == EAGAIN) {
            await(fd, POLLIN);
            continue;
        }
        if (n <= 0) die("recv of %zu: %zd %s", len, n, name_of(errno));
        p += n;
        len -= n;
    }
}

short await(int fd, short wanted) {
    for (;;) {
        struct pollfd one = {fd, wanted, 0};
        int n = poll(&one, 1, -1);
        if (n > 0) return one.revents;
        if (n < 0 && errno != EINTR) die("poll: %s", name_of(errno));
    }
}

void await_bytes(int fd, int bytes) {
    for (;;) {
        int n = 0;
        MUST(ioctl(fd, FIONREAD, &n));
        if (n >= bytes) return;
        usleep(200);
    }
}

pid_t thread_id(void) { return (pid_t)syscall(SYS_gettid); }

/* A task counts as asleep if LOOKS reads of its state in a row find it asleep, over at least ASLEEP_MS. On a busy
 * machine 30 ms may pass between two reads. */
enum { LOOKS = 10, ASLEEP_MS = 30 };

/* Returns the state of a thread or process from /proc: 'S' is asleep. Returns 0 if it has ended or is a zombie. */
static char state_of(pid_t tid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", tid);
    int fd = open(path, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    char *after = strrchr(text, ')');
    if (!after || after[2] == 'Z' || after[2] == 'X') return 0;
    return after[2];
}

bool falls_asleep(pid_t tid) {
    int64_t since = now_ms();
    for (int asleep = 0; asleep < LOOKS || now_ms() - since < ASLEEP_MS;) {
        char state = state_of(tid);
        if (!state) return false;
        asleep = state == 'S' ? asleep + 1 : 0;
        if (!asleep) since = now_ms();
        usleep(1000);
    }
    return true;
}

void await_asleep(pid_t tid) {
    /* The task has ended. Either it never slept, or this process read its state too late and the case must run
     * again. A case that ends here in every run has failed. */
    if (!falls_asleep(tid)) again();
}

void await_settled(pid_t tid) { falls_asleep(tid); }

void reap(pid_t child) {
    int status = 0;
    if (waitpid(child, &status, 0) != child) die("waitpid: %s", name_of(errno));
    if (WIFSIGNALED(status))
        say("child ended by SIG%s", sigabbrev_np(WTERMSIG(status)));
    else
        say("child ended with %d", WEXITSTATUS(status));
}

size_t fill(int fd) {
    static char block[65536];
    size_t sent = 0;
    MUST(fcntl(fd, F_SETFL, MUST(fcntl(fd, F_GETFL)) | O_NONBLOCK));
    for (int refused = 0; refused < 20;) {
        ssize_t n = send(fd, block, sizeof block, MSG_NOSIGNAL);
        if (n > 0) {
            sent += n;
            refused = 0;
        } else if (errno == EAGAIN) {
            refused++; /* the peer's window may open again; on a busy machine this takes some time */
            usleep(5000);
        } else {
            die("fill: %s", name_of(errno));
        }
    }
    return sent;
}

size_t drain(int fd) {
    static char block[65536];
    size_t got = 0;
    for (;;) {
        ssize_t n = recv(fd, block, sizeof block, 0);
        if (n == 0) return got;
        if (n < 0 && errno == EAGAIN)
            await(fd, POLLIN);
        else if (n < 0)
            die("drain after %zu: %s", got, name_of(errno));
        else
            got += n;
    }
}

const char *events(unsigned mask) {
    static __thread char text[4][128];
    static __thread unsigned turn;
    char *out = text[turn++ % 4];
    static const struct {
        unsigned bit;
        const char *name;
    } names[] = {{POLLIN, "IN"},       {POLLPRI, "PRI"},       {POLLOUT, "OUT"},       {POLLERR, "ERR"},
                 {POLLHUP, "HUP"},     {POLLNVAL, "NVAL"},     {POLLRDHUP, "RDHUP"},   {POLLRDNORM, "RDNORM"},
                 {POLLWRNORM, "WRNORM"}, {POLLRDBAND, "RDBAND"}, {POLLWRBAND, "WRBAND"}};
    out[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (mask & names[i].bit) {
            if (out[0]) strcat(out, "|");
            strcat(out, names[i].name);
        }
    return out[0] ? out : "0";
}

int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* The machine was too slow for the case to be valid. The test runs it again. */
void again(void) { _exit(75); }

/* An event came so late that the library may have lost a wake-up. The test runs the case again, but only a few
 * times. */
void late(void) { _exit(74); }

void set_int(int fd, int level, int option, int value) { MUST(setsockopt(fd, level, option, &value, sizeof value)); }
