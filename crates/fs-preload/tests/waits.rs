//! poll, select and epoll over promoted sockets have the same results as on the kernel.

mod common;

/// A set that was closed counts no more.
#[test]
fn epoll_remade() {
    assert_eq!(common::same("waits", "epoll_remade").pins, 0);
}

macro_rules! cases {
    ($($name:ident,)*) => {
        $(#[test]
        fn $name() {
            common::same("waits", stringify!($name));
        })*
    };
}

cases! {
    poll, ppoll, select, pselect, poll_end, poll_all, epoll_level, epoll_changes, epoll_edge, epoll_once, epoll_nested, epoll_others, epoll_threads, epoll_fork, epoll_closed, epoll_submit, epoll_exec, epoll_dup, young,
}
