/* How many bytes a connection takes while its peer does not read, and wake-ups when there is space again. */
#include "semantics.h"

/* Sends until a poll of 50 ms finds no space. The kernel takes the last bytes after the first have reached the
 * peer. */
static size_t fill_with(int fd, size_t piece) {
    static char block[1 << 16];
    size_t sent = 0;
    struct pollfd writable = {fd, POLLOUT, 0};
    do {
        for (ssize_t n; (n = send(fd, block, piece, MSG_DONTWAIT)) > 0;) sent += n;
    } while (poll(&writable, 1, 50) == 1);
    return sent;
}

static size_t take(int fd, size_t most) {
    static char block[1 << 16];
    size_t got = 0;
    for (ssize_t n; got < most && (n = recv(fd, block, sizeof block, MSG_DONTWAIT)) > 0;) got += n;
    return got;
}

static void idle_reader(void) {
    const size_t pieces[] = {100, 4096, 65536};
    for (int back = 0; back < 2; back++) {
        for (int i = 0; i < 3; i++) {
            int a, b;
            pair(&a, &b);
            if (back) { int other = a; a = b; b = other; }
            size_t sent = fill_with(a, pieces[i]);
            say("%s, pieces of %zu: more than 2 MB %d, less than 16 MB %d", back ? "back" : "there", pieces[i], sent > 2 << 20,
                sent < 16 << 20);
            MUST(shutdown(a, SHUT_WR));
            say("all of it arrives %d", drain(b) == sent);
            close(a);
            close(b);
        }
    }
}

/* Fills and drains the connection many times, so that state left by a full buffer would show in the next round. */
static void filled_again(void) {
    int a, b;
    pair(&a, &b);
    bool whole = true, roomy = true;
    for (int round = 0; round < 20; round++) {
        size_t sent = fill_with(a, 30000);
        roomy &= sent > 2 << 20;
        struct pollfd readable = {b, POLLIN, 0};
        for (size_t got = 0; got < sent && poll(&readable, 1, 5000) == 1;) {
            got += take(b, sent - got);
            whole &= got <= sent;
            if (got == sent) break;
        }
        whole &= take(b, 1) == 0;
        put(a, "x", 1);
        char byte = 0;
        get(b, &byte, 1);
        whole &= byte == 'x';
    }
    say("whole %d, room for 2 MB each time %d", whole, roomy);
}

/* A blocking send of 1.5 MB returns before the peer reads. */
static void blocking_send_first(void) {
    int a, b;
    pair(&a, &b);
    const size_t size = 1500000;
    char *block = malloc(size), *got = malloc(size);
    for (size_t i = 0; i < size; i++) block[i] = i * 2654435761u >> 13;
    CALL(send(a, block, size, 0) == (ssize_t)size);
    put(b, block, size);
    get(b, got, size);
    say("there %d", !memcmp(block, got, size));
    get(a, got, size);
    say("back %d", !memcmp(block, got, size));
}

static void small_buffers(void) {
    int a, b;
    pair(&a, &b);
    set_int(a, SOL_SOCKET, SO_SNDBUF, 8192);
    set_int(b, SOL_SOCKET, SO_RCVBUF, 4096);
    static char block[1 << 20];
    ssize_t sent = send(a, block, sizeof block, MSG_DONTWAIT);
    say("cut %d", sent > 0 && sent < 200000);
    pair(&a, &b);
    set_int(a, SOL_SOCKET, SO_SNDBUF, 100000);
    size_t filled = fill_with(a, 10000);
    say("between %d", filled > 150000 && filled < 500000);
}

static pid_t sender;
static int from;

static void *send_one(void *unused) {
    (void)unused;
    __atomic_store_n(&sender, thread_id(), __ATOMIC_SEQ_CST);
    CALL(send(from, "y", 1, 0));
    return NULL;
}

static void raised(void) {
    int b;
    pair(&from, &b);
    set_int(from, SOL_SOCKET, SO_SNDBUF, 20000);
    /* On a busy machine the kernel takes more bytes a moment later. */
    do {
        fill_with(from, 1);
        fill_with(from, 65536);
        usleep(100000);
    } while (send(from, "x", 1, MSG_DONTWAIT) == 1);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, send_one, NULL));
    while (!__atomic_load_n(&sender, __ATOMIC_SEQ_CST)) sched_yield();
    await_asleep(sender);
    say("the buffer becomes larger");
    set_int(from, SOL_SOCKET, SO_SNDBUF, 200000);
    pthread_join(thread, NULL);
    static char block[1000];
    CALL(send(from, block, sizeof block, MSG_DONTWAIT));
}

const struct test buffer_cases[] = {{"buffers_idle_reader", idle_reader},
                                    {"buffers_filled_again", filled_again},
                                    {"buffers_blocking_send_first", blocking_send_first},
                                    {"buffers_small", small_buffers},
                                    {"buffers_raised", raised},
                                    {NULL, NULL}};
