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

/// The connection that had a ring keeps it, and the other one gets none.
#[test]
fn vfork_watched() {
    let counted = common::same("life", "vfork_watched");
    assert_eq!((counted.promoted, counted.pins), (2, 0), "{counted:?}");
}

/// Calls that fail pin nothing.
#[test]
fn probes() {
    assert_eq!(common::same("life", "probes").pins, 0);
}

#[test]
fn failing() {
    assert_eq!(common::same("life", "failing").pins, 0);
}

/// A jump out of a call leaves nothing held. A socket whose lock is held by its own thread is pinned.
#[test]
fn jump() {
    assert_eq!(common::same("life", "jump").pins, 0);
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
    half_close, close, unread, pipe, dup, fork_used, fork_raw, fork_idle, fork_left, fork_storm, exec, vfork, exec_other, scm, signal, cancel, threads,
    urgent, cork, cork_exec, stream, number, reused, option, print, print_back, standard, splice,
    execl, uring, uring_rest, submit, confined_prctl, confined_syscall, space,
}

/// The bytes may go by the kernel on a busy machine; then it is tried again.
#[test]
fn ulp_rest() {
    assert!(
        (0..20).any(|_| common::same("life", "ulp_rest").report.contains("refused")),
        "the ring never had the bytes"
    );
}
