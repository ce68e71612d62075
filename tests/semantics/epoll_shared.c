/* An epoll set that several processes share: a change by one of them applies to all. */
#include "semantics.h"

#include <dirent.h>

static int set;

static int change(int operation, int fd, unsigned want) {
    struct epoll_event event = {.events = want, .data.fd = fd};
    return epoll_ctl(set, operation, fd, &event);
}

static int add(int fd, unsigned want) { return change(EPOLL_CTL_ADD, fd, want); }

/* Prints the number of events within `timeout`, and the first one. */
static void wait_for(const char *who, int timeout) {
    struct epoll_event got[4];
    int n = epoll_wait(set, got, 4, timeout);
    say("%s: %d %s", who, n, n > 0 ? events(got[0].events) : "");
}

/* A process that carries out commands of one byte each and acknowledges them. */
struct other {
    pid_t pid;
    int to, from;
};

static struct other begin(void (*serve)(char)) {
    int to[2], from[2];
    MUST(pipe(to));
    MUST(pipe(from));
    struct other other = {.pid = fork(), .to = to[1], .from = from[0]};
    if (!other.pid) {
        close(to[1]);
        for (char what; read(to[0], &what, 1) == 1;) {
            serve(what);
            MUST(write(from[1], &what, 1));
        }
        _exit(0);
    }
    close(to[0]);
    close(from[1]);
    return other;
}

static void tell(struct other *other, char what) {
    char done;
    MUST(write(other->to, &what, 1));
    if (read(other->from, &done, 1) != 1) die("it has ended");
}

/* Kills the process. Closing the pipe would not end it, because later children have copies. */
static void end(struct other *other) {
    MUST(kill(other->pid, SIGKILL));
    reap(other->pid);
    close(other->to);
    close(other->from);
}

static int near, far, third;

static void changes(char what) {
    if (what == 'a') CALL(add(third, EPOLLOUT));
    if (what == 'd') CALL(change(EPOLL_CTL_DEL, near, 0));
    if (what == 'm') CALL(change(EPOLL_CTL_MOD, near, EPOLLIN | EPOLLOUT));
    if (what == 'i') CALL(change(EPOLL_CTL_MOD, near, EPOLLIN | EPOLLONESHOT));
    if (what == 'w') wait_for("child", 0);
    if (what == 'W') wait_for("child", 10000);
}

/* A child makes each kind of change, and the parent observes it. */
static void is_for_all(void) {
    int fourth;
    pair(&far, &near);
    pair(&third, &fourth);
    set = (int)MUST(epoll_create1(0));
    MUST(add(near, EPOLLIN));
    struct other other = begin(changes);
    tell(&other, 'm');
    wait_for("parent", 0);
    tell(&other, 'd');
    wait_for("parent", 0);
    CALL(change(EPOLL_CTL_MOD, near, EPOLLOUT));
    CALL(change(EPOLL_CTL_DEL, near, 0));
    tell(&other, 'a');
    wait_for("parent", 0);
    CALL(add(third, EPOLLIN));
    CALL(change(EPOLL_CTL_DEL, third, 0));
    tell(&other, 'w');
    CALL(add(near, EPOLLOUT));
    tell(&other, 'w');
    tell(&other, 'd');
    wait_for("parent", 0);
    CALL(add(near, EPOLLOUT));
    wait_for("parent", 0);
    end(&other);
}

/* The same with a listener. */
static void with_a_listener(void) {
    struct sockaddr_storage at;
    socklen_t len;
    near = listener(AF_INET, 5, &at, &len);
    set = (int)MUST(epoll_create1(0));
    MUST(add(near, EPOLLIN));
    struct other other = begin(changes);
    CALL(change(EPOLL_CTL_DEL, near, 0));
    int one = dial(&at, len);
    tell(&other, 'w');
    tell(&other, 'd');
    CALL(add(near, EPOLLIN));
    tell(&other, 'W');
    CALL(add(near, EPOLLIN));
    tell(&other, 'd');
    wait_for("parent", 0);
    close(one);
    end(&other);
}

/* One process gets the event of a one-shot registration, and another arms it again with the same events. */
static void armed_again_elsewhere(void) {
    pair(&far, &near);
    set = (int)MUST(epoll_create1(0));
    MUST(add(near, EPOLLIN | EPOLLONESHOT));
    struct other other = begin(changes);
    put(far, "x", 1);
    wait_for("parent", 10000);
    wait_for("parent", 0);
    for (int i = 0; i < 3; i++) {
        tell(&other, 'i');
        wait_for("parent", 10000);
        wait_for("parent", 0);
    }
    end(&other);
}

static void sleeps_by(int way) {
    struct pollfd one = {.fd = set, .events = POLLIN};
    fd_set many;
    FD_ZERO(&many);
    FD_SET(set, &many);
    if (way == 0) wait_for("child", -1);
    if (way == 1) {
        int n = poll(&one, 1, -1);
        say("poll: %d %x", n, (unsigned)one.revents);
    }
    if (way == 2) say("select: %d", select(set + 1, &many, NULL, NULL, NULL));
    if (way == 3) {
        int outer = (int)MUST(epoll_create1(0));
        struct epoll_event event = {.events = EPOLLIN};
        MUST(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event));
        say("outer: %d", epoll_wait(outer, &event, 1, -1));
    }
}

/* A child's first call on a set that has become empty sleeps. The parent then adds a ready member. */
static void sleeps_on_an_empty_one(void) {
    for (int way = 0; way < 4; way++) {
        int a, b;
        pair(&a, &b);
        set = (int)MUST(epoll_create1(0));
        MUST(add(b, EPOLLIN));
        MUST(change(EPOLL_CTL_DEL, b, 0));
        pid_t child = fork();
        if (!child) {
            sleeps_by(way);
            _exit(0);
        }
        await_asleep(child);
        MUST(add(a, EPOLLOUT));
        reap(child);
        close(set);
    }
}

/* The same with a member, whose events the parent changes. */
static void sleeps_until_it_is_changed(void) {
    for (int way = 0; way < 4; way++) {
        int a, b;
        pair(&a, &b);
        set = (int)MUST(epoll_create1(0));
        MUST(add(b, EPOLLIN));
        pid_t child = fork();
        if (!child) {
            sleeps_by(way);
            _exit(0);
        }
        await_asleep(child);
        MUST(change(EPOLL_CTL_MOD, b, EPOLLIN | EPOLLOUT));
        reap(child);
        close(set);
    }
}

static volatile pid_t sleeper;

static void *sleeps(void *data) {
    sleeper = thread_id();
    wait_for("sleeper", -1);
    return data;
}

/* A thread has slept in the set since before the fork. */
static void sleeper_from_before(void) {
    int a, b;
    pthread_t thread;
    pair(&a, &b);
    set = (int)MUST(epoll_create1(0));
    MUST(add(b, EPOLLIN));
    MUST(pthread_create(&thread, NULL, sleeps, NULL));
    while (!sleeper) usleep(100);
    await_asleep(sleeper);
    pid_t child = fork();
    if (!child) {
        MUST(add(a, EPOLLOUT));
        /* The child, which has added the member, lives until the thread has got its event. */
        pause();
    }
    pthread_join(thread, NULL);
    MUST(kill(child, SIGKILL));
    reap(child);
}

/* A process is killed while it sleeps in the set. The others go on. */
static void killed_while_it_sleeps(void) {
    pair(&far, &near);
    third = far;
    set = (int)MUST(epoll_create1(0));
    MUST(add(near, EPOLLIN));
    pid_t child = fork();
    if (!child) {
        wait_for("child", -1);
        _exit(0);
    }
    await_asleep(child);
    MUST(kill(child, SIGKILL));
    reap(child);
    struct other other = begin(changes);
    tell(&other, 'a');
    wait_for("parent", 0);
    MUST(change(EPOLL_CTL_DEL, third, 0));
    tell(&other, 'w');
    put(far, "x", 1);
    tell(&other, 'W');
    end(&other);
    wait_for("parent", 0);
}

/* Two processes add and remove members at the same time, and one is stopped several times. At the end each
 * process sees what the other has added. */
static void both_change_it(void) {
    enum { PAIRS = 4, ROUNDS = 300 };
    int ours[PAIRS], theirs[PAIRS];
    set = (int)MUST(epoll_create1(0));
    for (int i = 0; i < PAIRS; i++) pair(&ours[i], &theirs[i]);
    MUST(add(theirs[0], EPOLLIN));
    pid_t child = fork();
    int mine = child ? 0 : PAIRS / 2;
    for (int round = 0; round < ROUNDS; round++) {
        if (child && round % 50 == 10) MUST(kill(child, SIGSTOP));
        for (int i = mine; i < mine + PAIRS / 2; i++) {
            if (round) MUST(change(EPOLL_CTL_DEL, ours[i], 0));
            MUST(add(ours[i], EPOLLOUT));
        }
        if (child && round % 50 == 40) MUST(kill(child, SIGCONT));
    }
    if (!child) _exit(0);
    MUST(kill(child, SIGCONT));
    reap(child);
    wait_for("parent", 0);
    child = fork();
    if (!child) {
        wait_for("another", 0);
        _exit(0);
    }
    reap(child);
}

/* A number that refers to another file in one process gets a registration of its own. */
static void number_of_another_file(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int ends[2];
    near = listener(AF_INET, 5, &at, &len);
    int copy = (int)MUST(dup(near));
    set = (int)MUST(epoll_create1(0));
    MUST(add(near, EPOLLIN | EPOLLONESHOT));
    pid_t child = fork();
    if (!child) {
        MUST(pipe(ends));
        MUST(dup2(ends[0], near));
        MUST(add(near, EPOLLIN));
        dial(&at, len);
        wait_for("child", 10000);
        wait_for("child", 0);
        MUST(write(ends[1], "x", 1));
        wait_for("child", 10000);
        _exit(0);
    }
    reap(child);
    close(copy);
}

/* Changes a registration without effect, many times. */
static void change_often(int fd, int times) {
    for (int i = 0; i < times; i++) MUST(change(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT));
}

static void looks(char what) {
    if (what == 'o') change_often(third, 1);
    if (what == 'l') {
        struct epoll_event event;
        MUST(epoll_wait(set, &event, 1, 0));
    }
    if (what == 'W') wait_for("child", 10000);
    if (what == 'w') wait_for("child", 0);
}

/* Two one-shot registrations: arming one again, many times and by any process, does not report the other again. */
static void many_changes_tell_nothing_twice(void) {
    int fourth;
    pair(&far, &near);
    pair(&third, &fourth);
    set = (int)MUST(epoll_create1(0));
    MUST(add(near, EPOLLIN | EPOLLONESHOT));
    MUST(add(third, EPOLLIN | EPOLLONESHOT));
    struct other other = begin(looks);
    MUST(change(EPOLL_CTL_MOD, near, EPOLLIN | EPOLLONESHOT));
    put(far, "x", 1);
    wait_for("parent", 10000);
    for (int round = 0; round < 3; round++) {
        change_often(third, 3000);
        tell(&other, 'o');
        wait_for("parent", 0);
    }
    end(&other);
}

/* A one-shot registration is armed again with the same events, after many changes of another registration. */
static void armed_again_after_many_changes(void) {
    int fourth, others[] = {1023, 8191, 1024, 8192};
    pair(&far, &near);
    pair(&third, &fourth);
    set = (int)MUST(epoll_create1(0));
    MUST(add(near, EPOLLIN | EPOLLONESHOT));
    MUST(add(third, EPOLLIN | EPOLLONESHOT));
    struct other other = begin(looks);
    MUST(change(EPOLL_CTL_MOD, near, EPOLLIN | EPOLLONESHOT));
    put(far, "x", 1);
    tell(&other, 'W');
    for (int i = 0; i < 4; i++) {
        for (int left = others[i]; left > 0; left -= 500) {
            change_often(third, left < 500 ? left : 500);
            tell(&other, 'l');
        }
        tell(&other, 'w');
        MUST(change(EPOLL_CTL_MOD, near, EPOLLIN | EPOLLONESHOT));
        tell(&other, 'W');
    }
    end(&other);
}

/* One process removes a registration and another closes its socket, in both orders. */
static void taken_out_and_closed(void) {
    for (int closed_first = 0; closed_first < 2; closed_first++) {
        pair(&far, &near);
        set = (int)MUST(epoll_create1(0));
        MUST(add(near, EPOLLIN));
        struct other other = begin(changes);
        wait_for("parent", 0);
        if (closed_first) close(near);
        tell(&other, 'd');
        if (!closed_first) close(near);
        put(far, "x", 1);
        wait_for("parent", 0);
        end(&other);
        close(far);
        close(set);
    }
}

/* A registration is removed and added again with other data between two waits. */
static void added_again_with_other_data(void) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5};
    pair(&far, &near);
    set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, near, &event));
    struct other other = begin(changes);
    put(far, "x", 1);
    tell(&other, 'd');
    event.data.u64 = 6;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, near, &event));
    say("%d %d", epoll_wait(set, &event, 1, 10000), (int)event.data.u64);
    end(&other);
}

/* The /proc of a child in a chroot is a directory with a FIFO for each number. Its set goes on working. */
static void has_a_proc_of_somebodys(void) {
    char path[300], folder[] = "/tmp/fs-proc-XXXXXX";
    int here, there;
    pair(&far, &near);
    if (!mkdtemp(folder)) die("mkdtemp");
    set = (int)MUST(epoll_create1(0));
    MUST(add(near, EPOLLIN));
    const char *const below[] = {"/proc", "/proc/thread-self", "/proc/thread-self/fdinfo"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", folder, below[i]);
        MUST(mkdir(path, 0700));
    }
    int ready[2], go[2];
    char byte;
    MUST(pipe(ready));
    MUST(pipe(go));
    pid_t child = fork();
    if (!child) {
        DIR *numbers = opendir("/proc/self/fd");
        if (!numbers) die("/proc");
        for (struct dirent *entry; (entry = readdir(numbers));) {
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s%s/%s", folder, below[2], entry->d_name);
            MUST(mkfifo(path, 0600));
        }
        closedir(numbers);
        if (chroot(folder)) die("chroot");
        MUST(write(ready[1], "x", 1));
        MUST(read(go[0], &byte, 1));
        wait_for("child", 0);
        pair(&here, &there);
        MUST(add(there, EPOLLIN));
        put(here, "x", 1);
        wait_for("child", 10000);
        _exit(0);
    }
    MUST(read(ready[0], &byte, 1));
    MUST(change(EPOLL_CTL_MOD, near, EPOLLIN));
    MUST(write(go[1], "x", 1));
    reap(child);
    snprintf(path, sizeof path, "%s%s", folder, below[2]);
    DIR *numbers = opendir(path);
    if (!numbers) die("folder");
    for (struct dirent *entry; (entry = readdir(numbers));) unlinkat(dirfd(numbers), entry->d_name, 0);
    closedir(numbers);
    for (int i = 2; i >= 0; i--) {
        snprintf(path, sizeof path, "%s%s", folder, below[i]);
        MUST(rmdir(path));
    }
    MUST(rmdir(folder));
}

#if defined __x86_64__
/* A system call that no library can intercept. */
static long bare(long number, long a, long b, long c, void *d) {
    long result;
    register void *fourth __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
}
#else
#define bare(number, a, b, c, d) syscall(number, a, b, c, d)
#endif

static bool is_empty(int number) {
    char path[64], line[200];
    bool empty = true;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", number);
    FILE *file = fopen(path, "r");
    if (!file) die("/proc");
    while (fgets(line, sizeof line, file)) empty &= !strstr(line, "tfd:");
    fclose(file);
    return empty;
}

/* Adds every descriptor to each empty epoll set that the program has not made, if there is any. */
static void meddle(int first, int second, bool much) {
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) die("/proc");
    int found[64], count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) && count < 64;) {
        char path[300], is[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        int number = atoi(entry->d_name);
        if (readlink(path, is, sizeof is - 1) < 0 || !strstr(is, "[eventpoll]")) continue;
        if (number != first && number != second && is_empty(number)) found[count++] = number;
    }
    closedir(folder);
    for (int i = 0; i < count; i++) {
        for (int fd = 0; fd < 1024; fd++) {
            struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | 0x8000000, .data.u64 = 77};
            if (bare(SYS_epoll_ctl, found[i], EPOLL_CTL_ADD, fd, &event) == -EEXIST)
                bare(SYS_epoll_ctl, found[i], fd % 2 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, fd, &event);
        }
    }
    /* Up to 9,600 registrations more, whose numbers are closed. */
    for (int k = 0; much && k < 24; k++) {
        int file = (int)MUST(eventfd(0, 0));
        for (int to = 400; to < 800; to++) {
            if (fcntl(to, F_GETFD) >= 0 || bare(SYS_dup3, file, to, O_CLOEXEC, NULL) < 0) continue;
            for (int i = 0; i < count; i++) {
                struct epoll_event event = {.events = EPOLLIN};
                bare(SYS_epoll_ctl, found[i], EPOLL_CTL_ADD, to, &event);
            }
            bare(SYS_close, to, 0, 0, NULL);
        }
    }
}

/* A child changes the library's own descriptors. Its parent's sets go on working. */
static void meddles(bool much) {
    int one, two, ends[2];
    pair(&far, &near);
    MUST(pipe(ends));
    one = (int)MUST(epoll_create1(0));
    two = (int)MUST(epoll_create1(0));
    for (int i = 0; i < 2; i++) {
        set = i ? two : one;
        MUST(add(near, EPOLLIN));
        MUST(add(ends[i], i ? 0 : EPOLLIN));
    }
    pid_t child = fork();
    if (!child) {
        meddle(one, two, much);
        set = one;
        MUST(change(EPOLL_CTL_MOD, near, EPOLLIN));
        set = two;
        MUST(change(EPOLL_CTL_MOD, near, EPOLLIN));
        _exit(0);
    }
    reap(child);
    struct epoll_event got[4];
    for (int i = 0; i < 2; i++) epoll_wait(i ? two : one, got, 4, 0);
    /* Members that the parent adds itself are reported. */
    for (int i = 0; i < 2; i++) {
        int here, there;
        pair(&here, &there);
        set = i ? two : one;
        MUST(add(there, EPOLLIN));
        put(here, "x", 1);
        bool found = false;
        while (!found) {
            int n = (int)MUST(epoll_wait(set, got, 4, 10000));
            if (!n) die("nothing");
            for (int k = 0; k < n; k++) found |= got[k].data.fd == there;
        }
        say("found");
    }
    close(one);
    close(two);
}

static void who_meddles_stops_nobody(void) {
    meddles(false);
    meddles(true);
}

const struct test epoll_shared_cases[] = {
    {"epoll_shared_is_for_all", is_for_all},
    {"epoll_shared_with_a_listener", with_a_listener},
    {"epoll_shared_armed_again_elsewhere", armed_again_elsewhere},
    {"epoll_shared_sleeps_on_an_empty_one", sleeps_on_an_empty_one},
    {"epoll_shared_sleeps_until_it_is_changed", sleeps_until_it_is_changed},
    {"epoll_shared_sleeper_from_before", sleeper_from_before},
    {"epoll_shared_killed_while_it_sleeps", killed_while_it_sleeps},
    {"epoll_shared_both_change_it", both_change_it},
    {"epoll_shared_number_of_another_file", number_of_another_file},
    {"epoll_shared_many_changes_tell_nothing_twice", many_changes_tell_nothing_twice},
    {"epoll_shared_armed_again_after_many_changes", armed_again_after_many_changes},
    {"epoll_shared_taken_out_and_closed", taken_out_and_closed},
    {"epoll_shared_added_again_with_other_data", added_again_with_other_data},
    {"epoll_shared_has_a_proc_of_somebodys", has_a_proc_of_somebodys},
    {"epoll_shared_who_meddles_stops_nobody", who_meddles_stops_nobody},
    {NULL, NULL},
};
