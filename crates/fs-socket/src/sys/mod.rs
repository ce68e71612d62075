//! System calls and memory that safe Rust cannot express. `unsafe` lives here and in files named `*_unsafe.rs` only.
#![allow(unsafe_code)]

pub mod array;
pub mod call;
pub mod family;
pub mod iovec;
pub mod pointer;
pub mod signals;
pub mod thread;

use rustix::fd::FromRawFd;

/// A number that is an owned descriptor: whoever calls this gives it up.
pub(crate) fn owned(fd: crate::types::Fd) -> fs_shm::control::Fd {
    // SAFETY: the caller holds an open descriptor that nobody else closes.
    unsafe { fs_shm::control::Fd::from_raw_fd(fd) }
}

/// A number lent out for a call.
pub(crate) fn borrowed<'a>(fd: crate::types::Fd) -> Option<rustix::fd::BorrowedFd<'a>> {
    // SAFETY: not -1; that it is open is the table's business, and if it is not the kernel answers EBADF.
    (fd >= 0).then(|| unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) })
}

/// Takes a variable out of the environment. Called before `main` only, while there is one thread.
pub(crate) fn remove_variable(name: &str) {
    // SAFETY: no other thread reads the environment: there is none yet.
    unsafe { std::env::remove_var(name) }
}

/// Sets a variable of the environment (tests).
pub fn set_variable(name: &str, value: &str) {
    // SAFETY: std's own readers take its lock; no C code of the tests reads the environment.
    unsafe { std::env::set_var(name, value) }
}
