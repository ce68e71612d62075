// A server and a client of ONC RPC on Debian's libtirpc: the call returns its bytes. Both run unmodified or with
// libfastsock.so.
//
//   rpc-peer serve ADDRESS PORT | serve PATH           prints "ready" once it listens
//   rpc-peer call ADDRESS PORT BYTES MS | call PATH - BYTES MS     prints calls per second, and ns of a call: median, 99th percentile
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rpc/rpc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#define PROGRAM 0x20000077
#define VERSION 1
#define ECHO 1
#define BYTES_MAX (1 << 20)

struct bytes {
    char *at;
    u_int len;
};

static bool_t xdr_message(XDR *xdrs, struct bytes *message) {
    return xdr_bytes(xdrs, &message->at, &message->len, BYTES_MAX);
}

static void die(const char *what) {
    perror(what);
    exit(2);
}

// A path begins with a slash.
static socklen_t address(const char *host, const char *port, struct sockaddr_storage *to) {
    memset(to, 0, sizeof *to);
    if (host[0] == '/') {
        struct sockaddr_un *unix_address = (struct sockaddr_un *)to;
        unix_address->sun_family = AF_UNIX;
        if (strlen(host) >= sizeof unix_address->sun_path) {
            fprintf(stderr, "rpc-peer: too long a path: %s\n", host);
            exit(2);
        }
        strcpy(unix_address->sun_path, host);
        return sizeof *unix_address;
    }
    struct sockaddr_in *ip = (struct sockaddr_in *)to;
    ip->sin_family = AF_INET;
    ip->sin_port = htons((uint16_t)atoi(port));
    if (inet_pton(AF_INET, host, &ip->sin_addr) != 1) {
        fprintf(stderr, "rpc-peer: no IPv4 address: %s\n", host);
        exit(2);
    }
    return sizeof *ip;
}

static void dispatch(struct svc_req *request, SVCXPRT *transport) {
    struct bytes message = {NULL, 0};
    if (request->rq_proc == NULLPROC) {
        svc_sendreply(transport, (xdrproc_t)xdr_void, NULL);
    } else if (request->rq_proc != ECHO) {
        svcerr_noproc(transport);
    } else if (!svc_getargs(transport, (xdrproc_t)xdr_message, (caddr_t)&message)) {
        svcerr_decode(transport);
    } else {
        svc_sendreply(transport, (xdrproc_t)xdr_message, (caddr_t)&message);
        svc_freeargs(transport, (xdrproc_t)xdr_message, (caddr_t)&message);
    }
}

static int serve(const char *host, const char *port) {
    struct sockaddr_storage at;
    socklen_t len = address(host, port, &at);
    int fd = socket(at.ss_family, SOCK_STREAM, 0);
    int one = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 || bind(fd, (struct sockaddr *)&at, len) < 0 ||
        listen(fd, 128) < 0) {
        die("listen");
    }
    SVCXPRT *transport = svc_vc_create(fd, 0, 0);
    if (!transport || !svc_reg(transport, PROGRAM, VERSION, dispatch, NULL)) {
        fprintf(stderr, "rpc-peer: libtirpc does not serve\n");
        return 2;
    }
    puts("ready");
    fflush(stdout);
    svc_run();
    return 2;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int compare(const void *one, const void *other) {
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

static int call(const char *host, const char *port, u_int len, uint64_t ms) {
    struct sockaddr_storage to;
    socklen_t address_len = address(host, port, &to);
    struct netbuf netbuf = {.maxlen = sizeof to, .len = address_len, .buf = &to};
    int fd = socket(to.ss_family, SOCK_STREAM, 0);
    if (fd < 0) {
        die("socket");
    }
    CLIENT *client = clnt_vc_create(fd, &netbuf, PROGRAM, VERSION, 0, 0);
    if (!client) {
        clnt_pcreateerror("rpc-peer: connect");
        return 2;
    }
    size_t room = 1 << 16, calls = 0;
    uint32_t *took = malloc(room * sizeof *took);
    struct bytes request = {malloc(len), len};
    if (!took || !request.at) {
        die("malloc");
    }
    memset(request.at, 7, len);
    struct timeval limit = {.tv_sec = 10};
    uint64_t start = now_ns(), before = start;
    while (before - start < ms * 1000000u) {
        struct bytes reply = {NULL, 0};
        enum clnt_stat status =
            clnt_call(client, ECHO, (xdrproc_t)xdr_message, (caddr_t)&request, (xdrproc_t)xdr_message, (caddr_t)&reply, limit);
        if (status != RPC_SUCCESS || reply.len != len) {
            clnt_perror(client, "rpc-peer: call");
            return 2;
        }
        clnt_freeres(client, (xdrproc_t)xdr_message, (caddr_t)&reply);
        uint64_t after = now_ns();
        if (calls == room) {
            room *= 2;
            took = realloc(took, room * sizeof *took);
            if (!took) {
                die("realloc");
            }
        }
        took[calls++] = (uint32_t)(after - before);
        before = after;
    }
    qsort(took, calls, sizeof *took, compare);
    printf("%.0f %u %u\n", (double)calls * 1e9 / (double)(before - start), took[calls / 2], took[calls * 99 / 100]);
    clnt_destroy(client);
    return 0;
}

int main(int count, char **words) {
    if (count == 3 && !strcmp(words[1], "serve")) {
        return serve(words[2], "0");
    }
    if (count == 4 && !strcmp(words[1], "serve")) {
        return serve(words[2], words[3]);
    }
    if (count == 6 && !strcmp(words[1], "call") && atoi(words[4]) > 0) {
        return call(words[2], words[3], (u_int)atoi(words[4]), strtoull(words[5], NULL, 10));
    }
    fprintf(stderr, "usage: rpc-peer serve ADDRESS PORT | serve PATH | call ADDRESS PORT BYTES MS | call PATH - BYTES MS\n");
    return 2;
}
