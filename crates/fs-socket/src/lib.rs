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
//! | [`mod@socket`] | one socket: what it is, what is ready, what to watch |
//! | [`descriptor`] | numbers: the table (number → socket, wait-free to read), close, dup, fcntl, ioctl, sendfile, SCM_RIGHTS, numbers from and to code that makes real calls |
//! | [`stream`] | a connection: connect, its channel, send and recv, ancillary data |
//! | [`mod@listen`] | a listener: bind, listen, accept, its inbox, who is woken |
//! | [`poll`] | epoll, poll, select: sets, interest, ready queue, sleepers |
//! | [`options`] | setsockopt and getsockopt, names of sockets |
//! | [`process`] | a process: attached to the daemon, arenas that it maps, fork, exec, seccomp, what a signal handler finds held |
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

mod address;
pub mod descriptor;
pub mod listen;
pub mod options;
pub mod poll;
mod ports;
pub mod process;
mod slice;
pub mod socket;
pub mod stream;
pub mod sys;
mod types;

pub use descriptor::adopt::{adopt, confirm, hand_over};
pub use descriptor::file::{Spliced, sendfile, splice};
pub use descriptor::ioctl_unsafe::ioctl;
pub use descriptor::kept::{renew as make_sockets_anew, spoil_number, stop as use_no_socket_again};
pub use descriptor::numbers::exchange_limit;
pub use descriptor::pass::{claim, share, unshare};
pub use descriptor::{close, close_range, dup, dup2, dup3, fcntl};
pub use fs_shm::addresses;
pub use fs_shm::holder::{is_single_threaded, tell_threads};
pub use listen::{accept4, bind, listen};
pub use options::{getpeername, getsockname, getsockopt, setsockopt};
pub use process::confine;
pub use process::exec::{after_exec_failed, before_exec, before_spawn, start};
pub use process::fork::{Forking, after_fork_child, after_fork_parent, before_fork};
pub use process::held::jumped;
pub use process::probe::restrict;
pub use rustix::io::Errno;
pub use stream::ancillary::{Ancillary, ancillary};
pub use stream::connect::{connect, shutdown, socket};
pub use stream::{recv, send};
pub use sys::signals::{defer, handler_begins, handler_ends, runs_handlers};
pub use types::{Address, Fd, IoVec, IoVecMut, Ours, Received, flags};
