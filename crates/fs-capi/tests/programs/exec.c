// Every way into another program: each line of output is checked by the test.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *alone[] = {"ALONE=1", NULL};
static char *echo_of(const char *word) { static char *argv[3]; argv[0] = "echo"; argv[1] = (char *)word; argv[2] = NULL; return (char *)argv; }
#define ARGV(word) ((char **)echo_of(word))

static void waited(pid_t pid) {
    int status;
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) printf("a child failed: %x\n", status);
}
#define CHILD(how, call) do { fflush(stdout); pid_t pid = how(); if (pid == 0) { call; _exit(1); } waited(pid); } while (0)

int main(void) {
    CHILD(fork, execl("/bin/echo", "echo", "l", "2", "3", "4", "5", "6", "7", "8", "9", (char *)NULL));
    CHILD(vfork, execlp("echo", "echo", "lp", (char *)NULL));
    CHILD(fork, execle("/usr/bin/env", "env", "-u", "a", "-u", "b", "-u", "c", (char *)NULL, alone));
    CHILD(fork, execv("/bin/echo", ARGV("v")));
    CHILD(fork, execvp("echo", ARGV("vp")));
    CHILD(fork, execvpe("echo", ARGV("vpe"), alone));
    CHILD(_Fork, execve("/bin/echo", ARGV("ve"), alone));
    CHILD(fork, fexecve(open("/bin/echo", O_RDONLY | O_CLOEXEC), ARGV("fexecve"), alone));
    CHILD(fork, syscall(SYS_execve, "/bin/echo", ARGV("syscall"), alone));
    fflush(stdout);
    pid_t pid;
    posix_spawn(&pid, "/bin/echo", NULL, NULL, ARGV("spawn"), environ);
    waited(pid);
    posix_spawnp(&pid, "echo", NULL, NULL, ARGV("spawnp"), environ);
    waited(pid);
    system("echo system");
    char line[64] = "";
    FILE *pipe_of = popen("echo popen", "r");
    fgets(line, sizeof line, pipe_of);
    pclose(pipe_of);
    fputs(line, stdout);
    int ends[2];
    pipe(ends);
    fflush(stdout);
    if ((pid = fork()) == 0) {
        if (daemon(0, 1) != 0) _exit(1);
        char directory[64];
        dprintf(ends[1], "daemon in %s leads its session: %d\n", getcwd(directory, sizeof directory), getsid(0) == getpid());
        _exit(0);
    }
    waited(pid);
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], line, sizeof line)) > 0;) fwrite(line, 1, n, stdout);
    fflush(stdout);
    dprintf(1, "%d %s %.2f %c %ld %d %.1f %d %d %.3f %.1f %.1f %.1f %.1f %.1f %.1f %s\n", 1, "two", 3.0, '4', 5L, 6, 7.0, 8, 9, 10.0,
        11.0, 12.0, 13.0, 14.0, 15.0, 16.0, "end");
    int controller;
    if ((pid = forkpty(&controller, NULL, NULL, NULL)) == 0) { puts(isatty(1) ? "a terminal" : "no terminal"); exit(0); }
    read(controller, line, sizeof line);
    printf("forkpty: %.*s\n", (int)strcspn(line, "\r\n"), line);
    waited(pid);
    printf("a program that is not there: %d %m\n", execl("/nonexistent", "x", (char *)NULL));
    return 0;
}
