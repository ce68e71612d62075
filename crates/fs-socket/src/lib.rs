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
//! | [`mod@socket`] | one socket: what it is, what is ready, what to watch |
//! | [`mod@connect`], [`mod@listen`], [`stream`], [`options`], [`descriptor`], `file` | the calls |
//! | [`fork`], [`exec`], [`pass`] | sockets that live in several processes |
//! | [`mod@adopt`] | numbers from and to code that makes real calls |
//! | [`poll`] | epoll, poll, select |
//!
//! # Signal handlers, threads, fork
//!
//! 1. No call on a connection allocates or waits for a lock that its own thread may hold. The channel's locks name their
//!    holder: a handler that sends or receives on the very socket that its thread is inside of gets EINTR.
//! 2. Tables are read without locks. Changing them is held off by a fork only, and never for the thread that forks.
//! 3. A request to the daemon within a handler that interrupted one of its own thread is refused: the call is the kernel's.
//! 4. A forked child makes no request and takes no lock before it runs on: its attachment was made before the fork.
//! 5. A wait that handlers interrupted is restarted if all that ran had SA_RESTART: whoever installs handlers for the application
//!    tells when they begin and end ([`handler_begins`]). Of others it is not known: then all of those that are installed must have it.
//! 6. What a call holds that a handler jumps out of is let go ([`jumped`]).
#![deny(unsafe_code)]

mod address;
pub mod adopt;
mod ancillary;
mod arenas;
mod buffers;
pub mod channel;
pub mod connect;
pub mod descriptor;
pub mod exec;
pub mod file;
pub mod fork;
mod held;
mod ioctl_unsafe;
pub mod listen;
mod memory;
mod numbers;
pub mod options;
pub mod pass;
pub mod poll;
mod ports;
mod probe;
pub mod process;
mod route;
pub mod socket;
mod source;
pub mod stream;
pub mod sys;
pub mod table;
mod tcp_options;
mod types;

pub use adopt::{adopt, confirm, hand_over};
pub use ancillary::{Ancillary, ancillary};
pub use connect::{connect, shutdown, socket};
pub use descriptor::{close, close_range, dup, dup2, dup3, fcntl};
pub use exec::{after_exec_failed, before_exec, before_spawn, start};
pub use file::{Spliced, sendfile, splice};
pub use fork::{after_fork_child, after_fork_parent, before_fork};
pub use fs_shm::addresses;
pub use fs_shm::holder::{is_single_threaded, tell_threads};
pub use held::jumped;
pub use ioctl_unsafe::ioctl;
pub use listen::{accept4, bind, listen};
pub use options::{getpeername, getsockname, getsockopt, setsockopt};
pub use pass::{claim, share, unshare};
pub use probe::restrict;
pub use process::confine;
pub use rustix::io::Errno;
pub use stream::{recv, send};
pub use sys::signals::{defer, handler_begins, handler_ends, runs_handlers};
pub use types::{Address, Fd, IoVec, IoVecMut, Ours, Received, flags};
