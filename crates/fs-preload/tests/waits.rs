//! poll, select and epoll over promoted sockets have the same results as on the kernel.

mod common;

macro_rules! cases {
    ($($name:ident,)*) => {
        $(#[test]
        fn $name() {
            common::same("waits", stringify!($name));
        })*
    };
}

cases! {
    poll, ppoll, select, pselect, poll_end, poll_all, epoll_level, epoll_changes, epoll_edge, epoll_once, epoll_nested, epoll_others, epoll_threads, epoll_fork, epoll_exec, epoll_dup,
}
