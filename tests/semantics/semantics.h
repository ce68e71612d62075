/* The semantics program runs on the kernel's sockets and under `fastsock run`. Both outputs must be equal.
*
 * A case is a function that prints one line for each observation. Its output is the same in every run: no port, no
 * descriptor number, no address, no time, and no count that depends on the scheduler. No case sleeps for "long
 * enough": a case waits for a condition. The test that runs a case kills it if it waits forever.
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

/* The path of this program, for cases that exec it. */
extern char *self_path;
/* Runs a role, which is what the program does after a case's exec: see process.c. */
int run_role(int argc, char **argv);

/* Prints one line with write(2). A buffer of stdio would be copied by fork. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints why the case cannot go on, and ends the program. */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Returns the name of an errno. */
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
/* CALL for a call that returns a descriptor, whose number is not printed. */
#define OPEN(expression) \
    ({ \
        errno = 0; \
        int result_ = (int)(expression); \
        int error_ = errno; \
        report_open(#expression, result_, error_); \
        errno = error_; \
        result_; \
    })
/* Makes a call, and ends the program if the call fails. */
#define MUST(expression) \
    ({ \
        long result_ = (long)(expression); \
        if (result_ < 0) die("%s: %s", #expression, name_of(errno)); \
        result_; \
    })

/* Returns a TCP socket. `flags` are those of socket(2). */
int tcp(int family, int flags);
/* Returns a listener on the family's loopback address and any port. Stores its address in `at`. */
int listener(int family, int backlog, struct sockaddr_storage *at, socklen_t *len);
/* Returns a socket that is connected to `at`. */
int dial(const struct sockaddr_storage *at, socklen_t len);
/* Makes both ends of a TCP connection over 127.0.0.1. */
void pair(int *client, int *server);
/* pair() with ends that are close-on-exec from their creation: no child of another thread has them after its exec. */
void pair_closed_by_exec(int *client, int *server);
void pair_of(int family, int *client, int *server);
/* Send or receive exactly `len` bytes, or end the program. */
void put(int fd, const void *data, size_t len);
void get(int fd, void *data, size_t len);
/* Waits until poll(2) reports one of the events. Returns all that it reported. */
short await(int fd, short events);
/* Waits until FIONREAD reports at least `bytes`. */
void await_bytes(int fd, int bytes);
/* Waits until a thread of ours or a process sleeps. Calls again() if it has ended. */
void await_asleep(pid_t tid);
/* Waits until a thread of ours or a process sleeps or has ended. Returns true if it sleeps. */
bool falls_asleep(pid_t tid);
/* Waits until a thread of ours or a process sleeps or has ended. */
void await_settled(pid_t tid);
pid_t thread_id(void);
/* Waits for a child and prints how it ended. */
void reap(pid_t child);
/* Sends until the connection takes no more. Returns the number of bytes. The descriptor stays non-blocking. */
size_t fill(int fd);
/* Receives until the end of the stream. Returns the number of bytes. */
size_t drain(int fd);
/* Returns the names of poll or epoll events. */
const char *events(unsigned mask);
/* Returns the monotonic clock in milliseconds. */
int64_t now_ms(void);
void again(void);
void late(void);
void set_int(int fd, int level, int option, int value);
#endif
