//! The life of descriptors of promoted sockets: the same as on the kernel.

mod common;

/// The process that dies leaves no counters.
#[test]
fn killed() {
    common::same_with("life", "killed", 1);
}

#[test]
fn fork_born() {
    common::same_with("life", "fork_born", 6);
}

#[test]
fn killed_unread() {
    common::same_with("life", "killed_unread", 1);
}

macro_rules! cases {
    ($($name:ident,)*) => {
        $(#[test]
        fn $name() {
            common::same("life", stringify!($name));
        })*
    };
}

cases! {
    half_close, close, unread, pipe, dup, fork_used, fork_idle, fork_left, fork_storm, exec, vfork, exec_other, scm, signal, cancel, threads,
    urgent, stream, number, option, jump,
    execl, uring, confined_prctl, confined_syscall,
}
