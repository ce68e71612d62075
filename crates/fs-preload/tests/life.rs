//! Descriptors of promoted sockets behave as on the kernel in fork, exec, SCM_RIGHTS, dup and
//! close.

mod common;

/// A killed process writes no counters.
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
    urgent, cork, stream, number, option, jump,
    execl, uring, uring_rest, confined_prctl, confined_syscall,
}
