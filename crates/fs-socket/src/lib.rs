//! What a process knows of its accelerated sockets: BSD socket calls on descriptor numbers over shared-memory channels.
//!
//! Every call answers [`Ours`]: `None` means the descriptor is none of ours (or stays the kernel's) and the caller makes
//! the real call; `Some` is the answer, the error being the kernel's own errno. Looking a descriptor up is one load.
//!
//! Used by libfastsock.so (C symbols) and by `fs-compat`'s blocking types. Nothing here calls a function of the C library
//! that does I/O: under preload those names are our own. System calls are made directly ([`sys`], `rustix`).
//!
//! | module | holds |
//! |---|---|
//! | [`table`] | descriptor number → socket, wait-free to read |
//! | [`socket`] | one socket: what it is, what is ready, what to watch |
//! | [`connect`], [`listen`], [`stream`], [`options`], [`descriptor`], [`file`] | the calls |
//! | [`fork`], [`exec`], [`pass`] | sockets that live in several processes |
//! | [`mod@adopt`] | numbers from and to code that makes real calls |
//! | [`poll`] | epoll, poll, select |
#![deny(unsafe_code)]

mod address;
pub mod adopt;
mod arenas;
pub mod channel;
pub mod connect;
pub mod descriptor;
pub mod exec;
pub mod file;
pub mod fork;
mod ioctl_unsafe;
pub mod listen;
pub mod options;
pub mod pass;
pub mod poll;
pub mod process;
mod route;
pub mod socket;
pub mod stream;
pub mod sys;
pub mod table;
mod types;

pub use adopt::{adopt, confirm, hand_over};
pub use connect::{connect, shutdown, socket};
pub use descriptor::{close, close_range, dup, dup2, dup3, fcntl};
pub use exec::{after_exec_failed, before_exec, before_spawn, start};
pub use file::{sendfile, splice};
pub use fork::{after_fork_child, after_fork_parent, before_fork};
pub use ioctl_unsafe::ioctl;
pub use listen::{accept4, bind, listen};
pub use options::{getpeername, getsockname, getsockopt, setsockopt};
pub use pass::{claim, share};
pub use rustix::io::Errno;
pub use stream::{recv, send};
pub use types::{Address, Fd, IoVec, IoVecMut, Ours, Received, flags};
