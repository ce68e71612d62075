/* fork, vfork, exec, posix_spawn and clone: which process holds which socket afterwards. */
#include "semantics.h"
#include <sched.h>
#include <spawn.h>

extern char **environ;
static char text[64];

static void fork_shares(void) {
    int a, b;
    pair(&a, &b);
    pid_t child = fork();
    if (!child) {
        put(b, "from the child", 14);
        get(b, text, 5);
        say("child got %.5s", text);
        _exit(0);
    }
    get(a, text, 14);
    say("%.14s", text);
    put(a, "reply", 5);
    reap(child);
    /* The child's exit does not close the connection. */
    put(b, "parent", 6);
    get(a, text, 6);
    say("%.6s", text);
    MUST(close(b));
    CALL(recv(a, text, 1, 0));
}

static void fork_last_close(void) {
    int a, b, gate[2];
    pair(&a, &b);
    MUST(pipe(gate));
    pid_t child = fork();
    if (!child) {
        close(gate[1]);
        char go;
        (void)!read(gate[0], &go, 1);
        say("child ends");
        _exit(0);
    }
    MUST(close(b));
    CALL(recv(a, text, 1, MSG_DONTWAIT));
    MUST(close(gate[1]));
    reap(child);
    CALL(recv(a, text, 1, 0));
}

static void fork_nonblock_shared(void) {
    int a, b;
    pair(&a, &b);
    pid_t child = fork();
    if (!child) {
        MUST(fcntl(b, F_SETFL, O_NONBLOCK));
        MUST(fcntl(b, F_SETFD, FD_CLOEXEC));
        _exit(0);
    }
    reap(child);
    say("NONBLOCK %d CLOEXEC %ld", !!(fcntl(b, F_GETFL) & O_NONBLOCK), MUST(fcntl(b, F_GETFD)));
    CALL(recv(b, text, 1, 0));
    int copy = (int)MUST(dup(b));
    MUST(fcntl(copy, F_SETFL, 0));
    say("NONBLOCK %d", !!(fcntl(b, F_GETFL) & O_NONBLOCK));
    close(a);
}

static void fork_accepts(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 64, &at, &len);
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (!children[i]) {
            for (;;) {
                int s = (int)MUST(accept(l, NULL, NULL));
                get(s, text, 1);
                put(s, text, 1);
                close(s);
                if (text[0] == 'q') _exit(0);
            }
        }
    }
    for (int i = 0; i < 200; i++) {
        int c = dial(&at, len);
        put(c, "x", 1);
        get(c, text, 1);
        close(c);
    }
    for (int i = 0; i < 4; i++) {
        int c = dial(&at, len);
        put(c, "q", 1);
        get(c, text, 1);
        close(c);
    }
    for (int i = 0; i < 4; i++) reap(children[i]);
    /* The parent may still accept. */
    int c = dial(&at, len);
    OPEN(accept(l, NULL, NULL));
    close(c);
}

/* A server that forks for each connection and closes its own copy. */
static void fork_per_connection(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 64, &at, &len);
    pid_t server = fork();
    if (!server) {
        for (int i = 0; i < 20; i++) {
            int s = (int)MUST(accept(l, NULL, NULL));
            if (!fork()) {
                close(l);
                size_t n = drain(s);
                put(s, &n, sizeof n);
                _exit(0);
            }
            close(s);
        }
        while (wait(NULL) > 0) continue;
        _exit(0);
    }
    close(l);
    size_t sum = 0;
    for (int i = 0; i < 20; i++) {
        static char block[5000];
        size_t n = 0;
        int c = dial(&at, len);
        put(c, block, 100 * i);
        MUST(shutdown(c, SHUT_WR));
        get(c, &n, sizeof n);
        CALL(recv(c, text, 1, 0));
        sum += n;
        close(c);
    }
    say("sum %zu", sum);
    reap(server);
}

static void fork_from_thread_program(void) {
    /* Forks in the middle of a transfer. The transfer and the children's connections work. */
    int a, b;
    pair(&a, &b);
    pid_t sender = fork();
    if (!sender) {
        static char block[10000];
        for (int i = 0; i < 500; i++) put(a, block, sizeof block);
        _exit(0);
    }
    close(a);
    size_t got = 0;
    static char block[10000];
    for (int i = 0; i < 30; i++) {
        get(b, block, sizeof block);
        got += sizeof block;
        pid_t child = fork();
        if (!child) {
            int c, d;
            pair(&c, &d);
            put(c, "ok", 2);
            get(d, block, 2);
            _exit(0);
        }
        int status;
        MUST(waitpid(child, &status, 0));
        if (status) die("child %d", status);
    }
    got += drain(b);
    say("got %zu", got);
    reap(sender);
}

static void double_fork(void) {
    int a, b;
    pair(&a, &b);
    pid_t child = fork();
    if (!child) {
        if (!fork()) {
            setsid();
            get(b, text, 2);
            put(b, "daemon", 6);
            _exit(0);
        }
        _exit(0);
    }
    close(b);
    reap(child);
    put(a, "go", 2);
    get(a, text, 6);
    say("%.6s", text);
    CALL(recv(a, text, 1, 0));
}

static void vfork_exec(void) {
    int a, b;
    pair(&a, &b);
    char number[16];
    snprintf(number, sizeof number, "%d", b);
    pid_t child = vfork();
    if (!child) {
        execl(self_path, "semantics", "--role", "echo", number, (char *)NULL);
        _exit(127);
    }
    put(a, "through vfork", 13);
    MUST(shutdown(a, SHUT_WR));
    get(a, text, 13);
    say("%.13s", text);
    reap(child);
    close(b);
    CALL(recv(a, text, 1, 0));
}

static void exec_keeps(void) {
    int a, b;
    pair(&a, &b);
    char number[16];
    snprintf(number, sizeof number, "%d", b);
    put(b, "before", 6);
    pid_t child = fork();
    if (!child) {
        close(a);
        execl(self_path, "semantics", "--role", "echo", number, (char *)NULL);
        _exit(127);
    }
    close(b);
    get(a, text, 6);
    say("%.6s", text);
    put(a, "through exec", 12);
    MUST(shutdown(a, SHUT_WR));
    get(a, text, 12);
    say("%.12s", text);
    CALL(recv(a, text, 1, 0));
    reap(child);
}

static void exec_closes_cloexec(void) {
    int a, b;
    pair(&a, &b);
    MUST(fcntl(b, F_SETFD, FD_CLOEXEC));
    char number[16];
    snprintf(number, sizeof number, "%d", b);
    pid_t child = fork();
    if (!child) {
        execl(self_path, "semantics", "--role", "closed", number, (char *)NULL);
        _exit(127);
    }
    close(b);
    CALL(recv(a, text, 1, 0));
    reap(child);
}

/* As inetd does: the connection is the standard input and output of another program. */
static void exec_as_stdio(void) {
    int a, b;
    pair(&a, &b);
    pid_t child = fork();
    if (!child) {
        close(a);
        dup2(b, 0);
        dup2(b, 1);
        close(b);
        execlp("cat", "cat", (char *)NULL);
        _exit(127);
    }
    close(b);
    put(a, "cat says this", 13);
    MUST(shutdown(a, SHUT_WR));
    get(a, text, 13);
    say("%.13s", text);
    CALL(recv(a, text, 1, 0));
    reap(child);
    pair(&a, &b);
    child = fork();
    if (!child) {
        close(a);
        dup2(b, 0);
        dup2(b, 1);
        close(b);
        execlp("sh", "sh", "-c", "read line; echo \"<$line>\"; exec cat", (char *)NULL);
        _exit(127);
    }
    close(b);
    put(a, "a line\nrest", 11);
    MUST(shutdown(a, SHUT_WR));
    get(a, text, 13);
    say("%.8s|%.4s", text, text + 9);
    CALL(recv(a, text, 1, 0));
    reap(child);
}

static void spawn(void) {
    int a, b;
    pair(&a, &b);
    MUST(fcntl(a, F_SETFD, FD_CLOEXEC));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, b, 0);
    posix_spawn_file_actions_adddup2(&actions, b, 1);
    posix_spawn_file_actions_addclose(&actions, b);
    char *arguments[] = {"cat", NULL};
    pid_t child;
    CALL(posix_spawnp(&child, "cat", &actions, NULL, arguments, environ));
    close(b);
    put(a, "spawned", 7);
    MUST(shutdown(a, SHUT_WR));
    get(a, text, 7);
    say("%.7s", text);
    CALL(recv(a, text, 1, 0));
    reap(child);
    CALL(posix_spawn(&child, "/does/not/exist", NULL, NULL, arguments, environ));
    CALL(system("exit 3") >> 8);
    FILE *out = popen("echo popen", "r");
    say("%s", fgets(text, sizeof text, out) ? strtok(text, "\n") : "nothing");
    CALL(pclose(out));
    pair(&a, &b);
    CALL(execl("/does/not/exist", "x", (char *)NULL));
    put(a, "still", 5);
    get(b, text, 5);
    say("%.5s", text);
}

/* A file action of posix_spawn duplicates a close-on-exec socket to a high number. */
static void spawn_cloexec(void) {
    int a, b;
    pair(&a, &b);
    MUST(fcntl(a, F_SETFD, FD_CLOEXEC));
    MUST(fcntl(b, F_SETFD, FD_CLOEXEC));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, b, 200);
    char *arguments[] = {"semantics", "--role", "echo", "200", NULL};
    pid_t child;
    CALL(posix_spawn(&child, self_path, &actions, NULL, arguments, environ));
    close(b);
    put(a, "spawned", 7);
    MUST(shutdown(a, SHUT_WR));
    get(a, text, 7);
    say("%.7s", text);
    CALL(recv(a, text, 1, 0));
    reap(child);
}

static int spawned_all;

/* Spawns a program. Retries, because posix_spawn may fail for a moment on a loaded machine. */
static pid_t started(const char *path, const posix_spawn_file_actions_t *actions, char **arguments) {
    pid_t child;
    for (int i = 0; posix_spawnp(&child, path, actions, NULL, arguments, environ); i++) {
        if (i == 100) die("spawn");
        usleep(1000);
    }
    return child;
}

/* Spawns many children that inherit nothing and live for 10 s. */
static void *spawn_sleepers(void *unused) {
    char *arguments[] = {"sleep", "10", NULL};
    for (int i = 0; i < 100 && !__atomic_load_n(&spawned_all, __ATOMIC_RELAXED); i++) {
        started("sleep", NULL, arguments);
        usleep(1000);
    }
    return unused;
}

/* Children that another thread spawns at the same time do not keep a connection of a killed child open. */
static void spawn_by_threads(void) {
    pthread_t other;
    MUST(pthread_create(&other, NULL, spawn_sleepers, NULL));
    int64_t longest = 0;
    for (int i = 0; i < 40; i++) {
        int a, b;
        pair_closed_by_exec(&a, &b);
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, b, 0);
        char *arguments[] = {"semantics", "--role", "killed", NULL};
        pid_t child = started(self_path, &actions, arguments);
        MUST(close(b));
        MUST(waitpid(child, NULL, 0));
        int64_t since = now_ms();
        if (recv(a, text, 1, 0)) die("no end");
        since = now_ms() - since;
        if (since > longest) longest = since;
        MUST(close(a));
    }
    __atomic_store_n(&spawned_all, 1, __ATOMIC_RELAXED);
    pthread_join(other, NULL);
    say("all ended in time: %d", longest < 8000);
}

static void exec_of_the_listener(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 16, &at, &len);
    char number[16];
    snprintf(number, sizeof number, "%d", l);
    int early = dial(&at, len);
    put(early, "early", 5);
    pid_t child = fork();
    if (!child) {
        close(early);
        execl(self_path, "semantics", "--role", "serve", number, "2", (char *)NULL);
        _exit(127);
    }
    close(l);
    get(early, text, 5);
    say("%.5s", text);
    int later = dial(&at, len);
    put(later, "later", 5);
    get(later, text, 5);
    say("%.5s", text);
    reap(child);
    CALL(recv(later, text, 1, 0));
}

/* Returns an environment without the library. */
static char **plain_environment(void) {
    static char *kept[1000];
    size_t n = 0;
    for (char **one = environ; *one && n < 998; one++)
        if (strncmp(*one, "LD_PRELOAD=", 11)) kept[n++] = *one;
    /* The library adds LD_PRELOAD to an environment without it. */
    kept[n] = "LD_PRELOAD=";
    return kept;
}

/* A program without the library accepts on an inherited listener. */
static void exec_plain_listener(void) {
    struct sockaddr_storage at;
    socklen_t len;
    int started[2], l = listener(AF_INET, 16, &at, &len);
    char number[16];
    snprintf(number, sizeof number, "%d", l);
    close(dial(&at, len));
    close((int)MUST(accept(l, NULL, NULL)));
    MUST(pipe2(started, O_CLOEXEC));
    pid_t child = fork();
    if (!child) {
        execle(self_path, "semantics", "--role", "quietly", number, "2", (char *)NULL, plain_environment());
        _exit(127);
    }
    close(l);
    close(started[1]);
    CALL(read(started[0], text, 1));
    usleep(200000);
    for (int i = 0; i < 2; i++) {
        int c = dial(&at, len);
        put(c, "later", 5);
        get(c, text, 5);
        say("%.5s", text);
        CALL(recv(c, text, 1, 0));
        close(c);
    }
    reap(child);
    /* Waits until the listener is closed. */
    int late = tcp(AF_INET, 0);
    for (int i = 0; i < 1000 && !connect(late, (struct sockaddr *)&at, len); i++) {
        close(late);
        usleep(10000);
        late = tcp(AF_INET, 0);
    }
    close(late);
    CALL(connect(tcp(AF_INET, 0), (struct sockaddr *)&at, len));
}

/* A program without the library: exec closes the close-on-exec socket, and the program's exit closes the other one. */
static void exec_plain_closes(bool by_spawn) {
    int a, b, c, d;
    pair(&a, &b);
    pair(&c, &d);
    MUST(fcntl(a, F_SETFD, FD_CLOEXEC));
    MUST(fcntl(b, F_SETFD, FD_CLOEXEC));
    MUST(fcntl(c, F_SETFD, FD_CLOEXEC));
    /* If the end of the stream came at the program's exit only, the case would end by the limit of its time. */
    char *arguments[] = {"sleep", "1000", NULL};
    pid_t child;
    if (by_spawn) {
        CALL(posix_spawnp(&child, "sleep", NULL, NULL, arguments, plain_environment()));
    } else if (!(child = fork())) {
        execvpe("sleep", arguments, plain_environment());
        _exit(127);
    }
    close(b);
    close(d);
    CALL(recv(a, text, 1, 0));
    CALL(recv(c, text, 1, MSG_DONTWAIT));
    MUST(kill(child, SIGKILL));
    CALL(recv(c, text, 1, 0));
    reap(child);
}
static void exec_plain(void) { exec_plain_closes(false); }
static void spawn_plain(void) { exec_plain_closes(true); }

/* A process without free descriptor numbers forks and spawns. The child's sockets work. */
static void without_numbers(void) {
    int a, b;
    pair(&a, &b);
    char number[16];
    snprintf(number, sizeof number, "%d", b);
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = 64;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    int last = -1;
    for (int fd; (fd = open("/dev/null", O_RDONLY)) >= 0;) last = fd;
    pid_t child = fork();
    if (!child) {
        put(b, "forked", 6);
        _exit(0);
    }
    reap(child);
    get(a, text, 6);
    say("%.6s", text);
    CALL(open("/dev/null", O_RDONLY));
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    say("limit %d", (int)limit.rlim_cur);
    char *arguments[] = {"semantics", "--role", "echo", number, NULL};
    /* The program loader needs some free numbers. */
    for (int fd = last; fd > last - 12; fd--) MUST(fcntl(fd, F_SETFD, FD_CLOEXEC));
    CALL(posix_spawn(&child, self_path, NULL, NULL, arguments, environ));
    put(a, "spawned", 7);
    MUST(shutdown(a, SHUT_WR));
    get(a, text, 7);
    say("%.7s", text);
    reap(child);
}

static int cloned(void *copy) {
    int c, d;
    MUST(close(*(int *)copy));
    pair(&c, &d);
    put(c, "own", 3);
    get(d, text, 3);
    say("child's %.3s", text);
    return 0;
}

static int cloned_to_exec(void *number) {
    execl(self_path, "semantics", "--role", "echo", (char *)number, (char *)NULL);
    return 127;
}

/* A child of clone(2) with its own stack closes its copy of a connection, makes one, and executes a program. */
static void clone_with_a_stack(void) {
    static char stack[1 << 18] __attribute__((aligned(16)));
    int a, b;
    pair(&a, &b);
    reap((pid_t)MUST(clone(cloned, stack + sizeof stack, SIGCHLD, &b)));
    reap((pid_t)MUST(clone(cloned, stack + sizeof stack, CLONE_VFORK | SIGCHLD, &b)));
    put(b, "parent", 6);
    get(a, text, 6);
    say("%.6s", text);
    char number[16];
    snprintf(number, sizeof number, "%d", b);
    pid_t child = (pid_t)MUST(clone(cloned_to_exec, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, number));
    MUST(close(b));
    put(a, "echo", 4);
    MUST(shutdown(a, SHUT_WR));
    get(a, text, 4);
    say("%.4s", text);
    CALL(recv(a, text, 1, 0));
    reap(child);
    CALL(clone(NULL, stack + sizeof stack, SIGCHLD, NULL));
    CALL(clone(cloned, NULL, SIGCHLD, NULL));
}

/* The same with syscall(2): the child goes on with a copy of its parent's stack. */
static void clone_by_number(void) {
    int a, b;
    pair(&a, &b);
    uint64_t arguments[8] = {[4] = SIGCHLD};
    for (int i = 0; i < 2; i++) {
        pid_t child = (pid_t)(i ? syscall(SYS_clone3, arguments, sizeof arguments) : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
        if (!child) {
            MUST(close(b));
            _exit(0);
        }
        reap(child);
    }
    put(b, "parent", 6);
    get(a, text, 6);
    say("%.6s", text);
}

/* RLIMIT_AS limits the program. Connections work below the limit, and getrlimit and children get the same limit. */
static void limit_of_addresses(void) {
    int a, b, c, d;
    pair(&a, &b);
    struct rlimit limit = {300 << 20, 400 << 20}, told;
    MUST(setrlimit(RLIMIT_AS, &limit));
    MUST(getrlimit(RLIMIT_AS, &told));
    say("%ld %ld", (long)told.rlim_cur >> 20, (long)told.rlim_max >> 20);
    say("400 MiB: %d, 100 MiB: %d", malloc(400 << 20) != NULL, malloc(100 << 20) != NULL);
    pair(&c, &d);
    put(c, "another", 7);
    get(d, text, 7);
    say("%.7s", text);
    pid_t child = fork();
    if (!child) {
        put(b, "child", 5);
        _exit(0);
    }
    reap(child);
    get(a, text, 5);
    say("%.5s", text);
    child = fork();
    if (!child) {
        execl(self_path, "semantics", "--role", "limit", (char *)NULL);
        _exit(127);
    }
    reap(child);
    limit.rlim_cur = 500 << 20;
    CALL(setrlimit(RLIMIT_AS, &limit));
    limit = (struct rlimit){200 << 20, 300 << 20};
    CALL(prlimit(0, RLIMIT_AS, &limit, &told));
    say("%ld %ld", (long)told.rlim_cur >> 20, (long)told.rlim_max >> 20);
    MUST(getrlimit(RLIMIT_AS, &told));
    say("%ld %ld", (long)told.rlim_cur >> 20, (long)told.rlim_max >> 20);
}

static pthread_mutex_t ours = PTHREAD_MUTEX_INITIALIZER;
static volatile int preparing;
static int closed_before = -1, closed_in_child = -1;

static void before_the_fork(void) {
    if (closed_before >= 0) MUST(close(closed_before));
    preparing = 1;
    pthread_mutex_lock(&ours);
}

static void after_the_fork(void) {
    pthread_mutex_unlock(&ours);
}

static void in_the_child(void) {
    after_the_fork();
    if (closed_in_child >= 0) MUST(close(closed_in_child));
}

static void *closes_in_the_middle(void *data) {
    pthread_mutex_lock(&ours);
    *(volatile int *)data = 1;
    while (!preparing) usleep(1000);
    /* By now the forking thread waits for the lock. */
    usleep(50000);
    MUST(close(MUST(socket(AF_INET, SOCK_STREAM, 0))));
    pthread_mutex_unlock(&ours);
    return NULL;
}

/* pthread_atfork: the prepare handler waits for a thread that closes a socket. */
static void atfork_waits(void) {
    int a, b, has = 0;
    pthread_t thread;
    alarm(40);
    pair(&a, &b);
    MUST(pthread_atfork(before_the_fork, after_the_fork, in_the_child));
    MUST(pthread_create(&thread, NULL, closes_in_the_middle, &has));
    while (!*(volatile int *)&has) usleep(1000);
    pid_t child = fork();
    if (!child) {
        put(b, "child", 5);
        _exit(0);
    }
    pthread_join(thread, NULL);
    reap(child);
    get(a, text, 5);
    say("%.5s", text);
    put(b, "parent", 6);
    get(a, text, 6);
    say("%.6s", text);
}

/* pthread_atfork: the child does not have a socket that the prepare handler closes. */
static void atfork_closes_before(void) {
    int a, b, c, d, gate[2];
    alarm(40);
    pair(&a, &b);
    pair(&c, &d);
    MUST(pipe(gate));
    MUST(pthread_atfork(before_the_fork, after_the_fork, in_the_child));
    closed_before = d;
    pid_t child = fork();
    if (!child) {
        close(gate[1]);
        put(b, "child", 5);
        (void)!read(gate[0], text, 1);
        _exit(0);
    }
    CALL(recv(c, text, 1, 0));
    get(a, text, 5);
    say("%.5s", text);
    MUST(close(gate[1]));
    reap(child);
}

/* pthread_atfork: the parent still has a socket that the child handler closes. */
static void atfork_closes_in_child(void) {
    int a, b;
    alarm(40);
    pair(&a, &b);
    MUST(pthread_atfork(before_the_fork, after_the_fork, in_the_child));
    closed_in_child = b;
    pid_t child = fork();
    if (!child) _exit(0);
    reap(child);
    for (int i = 0; i < 4; i++) {
        put(b, "parent", 6);
        get(a, text, 6);
        put(a, "answer", 6);
        get(b, text, 6);
        say("%.6s", text);
        usleep(100000);
    }
    MUST(close(b));
    CALL(recv(a, text, 1, 0));
}

int run_role(int argc, char **argv) {
    int fd = argc > 1 ? atoi(argv[1]) : -1;
    if (!strcmp(argv[0], "echo")) {
        char block[1000];
        for (ssize_t n; (n = recv(fd, block, sizeof block, 0)) > 0;) put(fd, block, n);
        return 0;
    }
    if (!strcmp(argv[0], "limit")) {
        int a, b;
        struct rlimit told;
        pair(&a, &b);
        MUST(getrlimit(RLIMIT_AS, &told));
        say("%ld %ld", (long)told.rlim_cur >> 20, (long)told.rlim_max >> 20);
        return malloc(400 << 20) != NULL;
    }
    if (!strcmp(argv[0], "killed")) raise(SIGKILL);
    if (!strcmp(argv[0], "closed")) return fcntl(fd, F_GETFD) == -1 && errno == EBADF ? 0 : 1;
    if (!strcmp(argv[0], "serve") || !strcmp(argv[0], "quietly")) {
        int accepting = 0;
        socklen_t len = sizeof accepting;
        MUST(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepting, &len));
        if (argv[0][0] == 's') say("listens %d", accepting);
        for (int i = 0; i < atoi(argv[2]); i++) {
            int s = (int)MUST(accept(fd, NULL, NULL));
            get(s, text, 5);
            put(s, text, 5);
            close(s);
        }
        return 0;
    }
    return 2;
}

const struct test process_cases[] = {{"fork_shares", fork_shares},
                                     {"fork_last_close", fork_last_close},
                                     {"fork_nonblock_shared", fork_nonblock_shared},
                                     {"fork_accepts", fork_accepts},
                                     {"fork_per_connection", fork_per_connection},
                                     {"fork_while_bytes_move", fork_from_thread_program},
                                     {"fork_double", double_fork},
                                     {"vfork_exec", vfork_exec},
                                     {"exec_keeps", exec_keeps},
                                     {"exec_closes_cloexec", exec_closes_cloexec},
                                     {"exec_as_stdio", exec_as_stdio},
                                     {"exec_of_the_listener", exec_of_the_listener},
                                     {"exec_plain_listener", exec_plain_listener},
                                     {"exec_plain", exec_plain},
                                     {"posix_spawn_plain", spawn_plain},
                                     {"posix_spawn", spawn},
                                     {"posix_spawn_cloexec", spawn_cloexec},
                                     {"posix_spawn_by_threads", spawn_by_threads},
                                     {"fork_without_numbers", without_numbers},
                                     {"clone_with_a_stack", clone_with_a_stack},
                                     {"clone_by_number", clone_by_number},
                                     {"atfork_waits", atfork_waits},
                                     {"atfork_closes_before", atfork_closes_before},
                                     {"atfork_closes_in_child", atfork_closes_in_child},
                                     {"limit_of_addresses", limit_of_addresses},
                                     {NULL, NULL}};
