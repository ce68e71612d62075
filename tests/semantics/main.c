/* semantics --list         the cases, one a line
 * semantics CASE           runs one
 * semantics --role ROLE …  what cases that exec start */
#include "semantics.h"

char *self_path;

static const struct test *const all[] = {
    error_cases,   connect_cases, accept_cases, io_cases,     message_cases, close_cases,  epoll_cases,
    epoll_thread_cases, epoll_before_cases, epoll_shared_cases, epoll_closed_cases, poll_cases, process_cases, pass_cases, thread_cases,
    signal_cases, option_cases,
    address_cases, many_cases,    port_cases, raw_cases,  confine_cases, gap_cases, buffer_cases,
    backlog_cases, cork_cases,    holder_cases, edge_cases,
    race_cases,   kept_cases,
};

int main(int argc, char **argv) {
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    self_path = n > 0 ? path : argv[0];
    if (argc >= 3 && !strcmp(argv[1], "--role")) return run_role(argc - 2, argv + 2);
    if (argc != 2) return 2;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (const struct test *test = all[i]; test->name; test++) {
            if (!strcmp(argv[1], "--list")) {
                puts(test->name);
            } else if (!strcmp(argv[1], test->name)) {
                test->run();
                return 0;
            }
        }
    if (!strcmp(argv[1], "--list")) return 0;
    fprintf(stderr, "no case %s\n", argv[1]);
    return 2;
}
