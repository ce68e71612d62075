/* The semantics program: the same source run on the kernel's sockets and under `fastsock run`; what it prints must be equal.
 *
 * A case is a function that prints one line for each observation. What it prints is the same in every run: no port, no
 * descriptor number, no address, no time, no count that depends on who runs first. Nothing waits for "long enough":
 * a case waits until something is so, and a case that waits for ever is killed by the test that runs it.
 */
#ifndef SEMANTICS_H
#define SEMANTICS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct test {
    const char *name;
    void (*run)(void);
};

extern const struct test error_cases[], io_cases[], message_cases[], close_cases[], epoll_cases[], epoll_thread_cases[],
    epoll_before_cases[], epoll_shared_cases[], epoll_closed_cases[],
    poll_cases[], process_cases[], pass_cases[], thread_cases[], signal_cases[], option_cases[], address_cases[],
    many_cases[], port_cases[], raw_cases[], accept_cases[], connect_cases[], confine_cases[],
    gap_cases[], buffer_cases[],
    backlog_cases[], cork_cases[], holder_cases[], edge_cases[], race_cases[], kept_cases[];

/* What the program was called with, for cases that start themselves again. */
extern char *self_path;
/* Roles for the image after exec: see process.c. */
int run_role(int argc, char **argv);

/* Prints one line, at once and not through stdio (which a fork would copy). */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints why the case cannot go on and ends the program. */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* The name of an errno. */
const char *name_of(int error);
void report(const char *what, long result, int error);
void report_open(const char *what, long result, int error);

/* Makes a call and prints it with its result. */
#define CALL(expression) \
    ({ \
        errno = 0; \
        long result_ = (long)(expression); \
        int error_ = errno; \
        report(#expression, result_, error_); \
        errno = error_; \
        result_; \
    })
/* The same for a call that makes a descriptor, whose number is not printed. */
#define OPEN(expression) \
    ({ \
        errno = 0; \
        int result_ = (int)(expression); \
        int error_ = errno; \
        report_open(#expression, result_, error_); \
        errno = error_; \
        result_; \
    })
/* A call that must work, else the case ends there. */
#define MUST(expression) \
    ({ \
        long result_ = (long)(expression); \
        if (result_ < 0) die("%s: %s", #expression, name_of(errno)); \
        result_; \
    })

/* A TCP socket of this family and of these flags. */
int tcp(int family, int flags);
/* A listener on the loopback address of this family, any port; its address in `at`. */
int listener(int family, int backlog, struct sockaddr_storage *at, socklen_t *len);
/* Connects to it. */
int dial(const struct sockaddr_storage *at, socklen_t len);
/* Two ends of a TCP connection over 127.0.0.1. */
void pair(int *client, int *server);
/* Close-on-exec from their birth: no exec of another thread keeps them. */
void pair_closed_by_exec(int *client, int *server);
void pair_of(int family, int *client, int *server);
/* Sends all / receives exactly that many, or ends the case. */
void put(int fd, const void *data, size_t len);
void get(int fd, void *data, size_t len);
/* Waits until poll says these events (at least one of them); returns all of the wanted that are so. */
short await(int fd, short events);
/* Waits until FIONREAD says at least this. */
void await_bytes(int fd, int bytes);
/* Waits until that thread of ours, or process, sleeps. */
void await_asleep(pid_t tid);
/* Waits until that thread of ours, or process, sleeps (true) or has ended (false). */
bool falls_asleep(pid_t tid);
/* The same, whatever it does. */
void await_settled(pid_t tid);
pid_t thread_id(void);
/* Waits for a child and prints how it ended. */
void reap(pid_t child);
/* Sends until the connection takes no more (the descriptor is made non-blocking and left so); how many bytes went. */
size_t fill(int fd);
/* Receives all until end of stream; how many bytes. */
size_t drain(int fd);
/* Names of poll or epoll events. */
const char *events(unsigned mask);
/* Milliseconds of the monotonic clock. */
int64_t now_ms(void);
void again(void);
void late(void);
void set_int(int fd, int level, int option, int value);
#endif
