/* Every call that moves bytes, on one connection. */
#include "semantics.h"

static void every_way(void) {
    int a, b;
    pair(&a, &b);
    char text[64] = {0};
    CALL(write(a, "one", 3));
    get(b, text, 3);
    CALL(send(a, "two", 3, 0));
    get(b, text + 3, 3);
    CALL(sendto(a, "three", 5, 0, NULL, 0));
    get(b, text + 6, 5);
    struct iovec parts[3] = {{"fo", 2}, {NULL, 0}, {"ur", 2}};
    CALL(writev(a, parts, 3));
    get(b, text + 11, 4);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    CALL(sendmsg(a, &message, 0));
    get(b, text + 15, 4);
    struct mmsghdr many[2] = {{.msg_hdr = message}, {.msg_hdr = message}};
    CALL(sendmmsg(a, many, 2, 0));
    say("lengths %u %u", many[0].msg_len, many[1].msg_len);
    get(b, text + 19, 8);
    say("%s", text);
    put(b, "abcdefghijklmnopqrstuvwxyz", 26);
    await_bytes(a, 26);
    memset(text, 0, sizeof text);
    CALL(read(a, text, 3));
    CALL(recv(a, text + 3, 3, 0));
    struct sockaddr_storage from;
    socklen_t len = sizeof from;
    CALL(recvfrom(a, text + 6, 3, 0, (struct sockaddr *)&from, &len));
    say("recvfrom's address has length %u", len);
    struct iovec into[2] = {{text + 9, 2}, {text + 11, 3}};
    CALL(readv(a, into, 2));
    into[0].iov_base = text + 14;
    into[1].iov_base = text + 16;
    struct msghdr in = {.msg_iov = into, .msg_iovlen = 2, .msg_name = &from, .msg_namelen = sizeof from};
    CALL(recvmsg(a, &in, 0));
    say("namelen %u flags %d controllen %zu", in.msg_namelen, in.msg_flags, (size_t)in.msg_controllen);
    struct iovec x = {text + 19, 2}, y = {text + 21, 2};
    struct mmsghdr two[2] = {{.msg_hdr = {.msg_iov = &x, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &y, .msg_iovlen = 1}}};
    CALL(recvmmsg(a, two, 2, 0, NULL));
    CALL(recv(a, text + 23, 100, 0));
    say("%s", text);
    CALL(recv(a, text, 1, MSG_DONTWAIT));
    CALL(send(a, text, 0, 0));
    CALL(write(a, text, 0));
    CALL(read(a, text, 0));
}

static void short_reads_join(void) {
    int a, b;
    pair(&a, &b);
    put(a, "ab", 2);
    put(a, "cd", 2);
    put(a, "ef", 2);
    await_bytes(b, 6);
    char text[16] = {0};
    CALL(recv(b, text, 16, 0));
    say("%s", text);
}

/* A stream in pieces of odd sizes. Every byte is checked. */
struct stream {
    int fd;
    size_t total;
    unsigned seed;
    bool ok;
};

static unsigned char at(size_t i) { return (unsigned char)(i * 2654435761u >> 13 ^ i >> 7); }

static void *producer(void *data) {
    struct stream *s = data;
    static __thread unsigned char block[100000];
    size_t sent = 0;
    unsigned seed = s->seed;
    while (sent < s->total) {
        seed = seed * 1103515245 + 12345;
        size_t len = 1 + (seed >> 8) % sizeof block;
        if (len > s->total - sent) len = s->total - sent;
        for (size_t i = 0; i < len; i++) block[i] = at(sent + i);
        put(s->fd, block, len);
        sent += len;
    }
    MUST(shutdown(s->fd, SHUT_WR));
    return NULL;
}

static void *consumer(void *data) {
    struct stream *s = data;
    static __thread unsigned char block[70000];
    size_t got = 0;
    unsigned seed = s->seed * 7;
    s->ok = true;
    for (;;) {
        seed = seed * 1103515245 + 12345;
        ssize_t n = recv(s->fd, block, 1 + (seed >> 8) % sizeof block, 0);
        if (n < 0) die("recv: %s", name_of(errno));
        if (n == 0) break;
        for (ssize_t i = 0; i < n; i++)
            if (block[i] != at(got + i)) s->ok = false;
        got += n;
    }
    if (got != s->total) s->ok = false;
    return NULL;
}

static void both_ways_at_once(void) {
    int a, b;
    pair(&a, &b);
    struct stream out[4] = {{a, 32 << 20, 1, 0}, {b, 32 << 20, 1, 0}, {b, 32 << 20, 9, 0}, {a, 32 << 20, 9, 0}};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) MUST(pthread_create(&threads[i], NULL, i % 2 ? consumer : producer, &out[i]));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    say("there %d back %d", out[1].ok, out[3].ok);
}

static void nonblocking(void) {
    int a, b;
    char text[16];
    pair(&a, &b);
    MUST(fcntl(a, F_SETFL, O_NONBLOCK));
    CALL(recv(a, text, 1, 0));
    CALL(read(a, text, 1));
    size_t sent = fill(a);
    say("some bytes went: %d", sent > 1000);
    CALL(send(a, text, 1, 0));
    CALL(write(a, text, 1));
    say("poll %s", events(poll(&(struct pollfd){a, POLLOUT, 0}, 1, 0)));
    MUST(shutdown(a, SHUT_WR));
    size_t got = drain(b);
    say("all arrived: %d", got == sent);
    say("then end of stream: %zd", recv(b, text, 1, 0));
    /* When there is space again, an event reports it. */
    int c, d;
    pair(&c, &d);
    sent = fill(c);
    int e = (int)MUST(epoll_create1(0));
    struct epoll_event want = {.events = EPOLLOUT | EPOLLET}, said;
    MUST(epoll_ctl(e, EPOLL_CTL_ADD, c, &want));
    CALL(epoll_wait(e, &said, 1, 0));
    char *block = malloc(sent);
    get(d, block, sent);
    CALL(epoll_wait(e, &said, 1, -1));
    say("%s", events(said.events));
    CALL(send(c, text, 16, 0));
}

static void blocking_send_waits(void) {
    int a, b;
    pair(&a, &b);
    struct stream out = {a, 8 << 20, 3, 0}, in = {b, 8 << 20, 3, 0};
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, producer, &out));
    usleep(20000); /* the sender most likely waits by now; the result does not depend on it */
    consumer(&in);
    pthread_join(thread, NULL);
    say("arrived %d", in.ok);
    /* A blocking send of more than all buffers hold returns the whole size. */
    pair(&a, &b);
    size_t size = 16 << 20;
    char *block = calloc(1, size);
    pid_t child = fork();
    if (!child) {
        close(a);
        _exit(drain(b) == size ? 0 : 1);
    }
    close(b);
    CALL(send(a, block, size, 0) == (ssize_t)size);
    close(a);
    reap(child);
}

static int temporary(const void *data, size_t len) {
    int fd = (int)MUST(open("/tmp", O_TMPFILE | O_RDWR, 0600));
    if (len) MUST(write(fd, data, len));
    return fd;
}

static void sendfile_calls(void) {
    int a, b;
    char text[32] = {0};
    pair(&a, &b);
    int file = temporary("0123456789", 10);
    off_t from = 3;
    CALL(sendfile(a, file, &from, 4));
    say("offset %ld", (long)from);
    get(b, text, 4);
    say("%.4s", text);
    CALL(lseek(file, 2, SEEK_SET));
    CALL(sendfile(a, file, NULL, 100));
    CALL(lseek(file, 0, SEEK_CUR));
    get(b, text, 8);
    say("%.8s", text);
    CALL(sendfile(a, file, NULL, 100));
    from = 20;
    CALL(sendfile(a, file, &from, 10));
    from = -1;
    CALL(sendfile(a, file, &from, 10));
    CALL(sendfile(a, b, NULL, 10));
    CALL(sendfile(a, file, NULL, 0));
    int wo = (int)MUST(open("/dev/null", O_WRONLY));
    CALL(sendfile(a, wo, NULL, 5));
    size_t size = 4 << 20;
    char *block = malloc(size);
    for (size_t i = 0; i < size; i++) block[i] = (char)at(i);
    int big = temporary(block, size);
    struct stream in = {b, size, 5, 0};
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, consumer, &in));
    from = 0;
    while (from < (off_t)size) MUST(sendfile(a, big, &from, size - from));
    MUST(shutdown(a, SHUT_WR));
    pthread_join(thread, NULL);
    say("big file arrived %d", in.ok);
}

static void splice_calls(void) {
    int a, b, c, d, ends[2];
    char text[32] = {0};
    pair(&a, &b);
    pair(&c, &d);
    MUST(pipe(ends));
    MUST(write(ends[1], "pipe", 4));
    CALL(splice(ends[0], NULL, a, NULL, 100, 0));
    get(b, text, 4);
    say("%.4s", text);
    MUST(fcntl(b, F_SETFL, O_NONBLOCK));
    CALL(splice(b, NULL, ends[1], NULL, 100, SPLICE_F_NONBLOCK));
    MUST(fcntl(b, F_SETFL, 0));
    put(a, "relay", 5);
    await_bytes(b, 5);
    CALL(splice(b, NULL, ends[1], NULL, 3, 0));
    CALL(splice(b, NULL, ends[1], NULL, 100, SPLICE_F_MOVE | SPLICE_F_MORE));
    CALL(splice(ends[0], NULL, c, NULL, 100, 0));
    get(d, text, 5);
    say("%.5s", text);
    off_t offset = 0;
    CALL(splice(b, &offset, ends[1], NULL, 1, 0));
    CALL(splice(a, NULL, c, NULL, 1, 0));
    MUST(shutdown(a, SHUT_WR));
    await(b, POLLIN);
    CALL(splice(b, NULL, ends[1], NULL, 100, 0));
    CALL(tee(b, ends[1], 1, 0));
    struct iovec part = {"vm", 2};
    CALL(vmsplice(c, &part, 1, 0));
}

static void stdio_on_socket(void) {
    int a, b;
    pair(&a, &b);
    FILE *in = fdopen(dup(a), "r"), *out = fdopen(a, "w"), *peer = fdopen(b, "r"), *back = fdopen(dup(b), "w");
    if (!in || !out || !peer || !back) die("fdopen");
    char line[64];
    fprintf(out, "first line\nsecond %d\n", 2);
    fflush(out);
    say("fgets %s", fgets(line, sizeof line, peer) ? strtok(line, "\n") : "nothing");
    int number = 0;
    CALL(fscanf(peer, "second %d", &number));
    say("%d", number);
    fputs("answer\n", back);
    fflush(back);
    say("fgets %s", fgets(line, sizeof line, in) ? strtok(line, "\n") : "nothing");
    CALL(fclose(out));
    CALL(fclose(in));
    CALL(fgetc(peer));
    CALL(fgetc(peer));
    CALL(feof(peer));
    CALL(fclose(peer));
    CALL(fputs("more", back) >= 0);
    CALL(fclose(back));
    int c, d;
    pair(&c, &d);
    char *text = NULL;
    size_t room = 0;
    FILE *lines = fdopen(d, "r");
    put(c, "a line\n", 7);
    CALL(getline(&text, &room, lines));
    FILE *both = fdopen(c, "r+");
    put(d, "a\nb\n", 4);
    await_bytes(c, 4);
    say("fgets %s", fgets(line, sizeof line, both) ? strtok(line, "\n") : "nothing");
    CALL(fflush(both));
    say("fgets %s", fgets(line, sizeof line, both) ? strtok(line, "\n") : "nothing");
    CALL(fseek(both, 0, SEEK_CUR));
    CALL(ftell(both));
}

static void dprintf_on_socket(void) {
    int a, b;
    char line[16];
    pair(&a, &b);
    CALL(dprintf(a, "%s %d", "dprintf", 5));
    get(b, line, 9);
    say("%.9s", line);
}

static void fionread(void) {
    int a, b, n = -1;
    pair(&a, &b);
    CALL(ioctl(b, FIONREAD, &n));
    say("%d", n);
    put(a, "12345", 5);
    await_bytes(b, 5);
    CALL(ioctl(b, FIONREAD, &n));
    say("%d", n);
    char text[8];
    get(b, text, 2);
    MUST(ioctl(b, FIONREAD, &n));
    say("%d", n);
    MUST(ioctl(b, TIOCINQ, &n));
    say("TIOCINQ %d", n);
    for (n = 1; n;) MUST(ioctl(a, TIOCOUTQ, &n));
    say("TIOCOUTQ becomes 0");
    MUST(shutdown(a, SHUT_WR));
    await(b, POLLRDHUP);
    MUST(ioctl(b, FIONREAD, &n));
    say("%d", n);
    get(b, text, 3);
    MUST(ioctl(b, FIONREAD, &n));
    say("after end of stream %d", n);
    n = 1;
    CALL(ioctl(b, FIONBIO, &n));
    say("NONBLOCK %d", !!(fcntl(b, F_GETFL) & O_NONBLOCK));
    n = 0;
    CALL(ioctl(b, FIONBIO, &n));
    say("NONBLOCK %d", !!(fcntl(b, F_GETFL) & O_NONBLOCK));
}

static void rcvlowat(void) {
    int a, b;
    pair(&a, &b);
    set_int(b, SOL_SOCKET, SO_RCVLOWAT, 4);
    put(a, "123", 3);
    await_bytes(b, 3);
    struct pollfd one = {b, POLLIN, 0};
    CALL(poll(&one, 1, 0));
    put(a, "45", 2);
    await_bytes(b, 5);
    CALL(poll(&one, 1, -1));
    char text[8];
    CALL(recv(b, text, 2, 0));
    CALL(recv(b, text, 2, MSG_DONTWAIT));
    CALL(poll(&one, 1, 0));
}

const struct test io_cases[] = {{"io_every_way", every_way},
                                {"io_short_reads_join", short_reads_join},
                                {"io_both_ways_at_once", both_ways_at_once},
                                {"io_nonblocking", nonblocking},
                                {"io_blocking_send_waits", blocking_send_waits},
                                {"io_sendfile", sendfile_calls},
                                {"io_splice", splice_calls},
                                {"io_stdio", stdio_on_socket},
                                {"io_dprintf", dprintf_on_socket},
                                {"io_fionread", fionread},
                                {"io_rcvlowat", rcvlowat},
                                {NULL, NULL}};
