//! Sockets with the methods of `tokio::net`, `std::net` and the crate `socket2`.
//!
//! | module | shaped like | runs |
//! |---|---|---|
//! | [`net`](mod@net) (feature `async`, on by default) | `tokio::net` | on a core of an `fs_rt::Runtime`, on the core's TCP engine |
//! | [`send`] (the same feature) | `tokio::net` | on any thread; a task on a core does the I/O. For axum, tonic, quinn and `tokio::spawn` |
//! | [`blocking`] | `std::net` | on any thread, through the daemon or else the kernel |
//! | [`socket2`] | crate `socket2` | on any thread, through the daemon or else the kernel |
//!
//! The daemon's control socket is `FASTSOCK_CONTROL`, or else the one in `$XDG_RUNTIME_DIR` or
//! `/run`, unless [`use_daemon`] names another. If the daemon starts later, the next connect,
//! listen or accept finds it after at most a second.

pub mod blocking;
#[cfg(feature = "async")]
mod borrowed_unsafe;
mod call;
#[cfg(feature = "async")]
mod error;
#[cfg(feature = "async")]
pub mod net;
#[cfg(feature = "async")]
mod on_core_unsafe;
#[cfg(feature = "async")]
pub mod send;
pub mod socket2;

#[cfg(feature = "async")]
pub use borrowed_unsafe::{BorrowedBytes, SendBuffer};
#[cfg(feature = "async")]
pub use error::to_io_error;
#[cfg(feature = "async")]
pub use fs_core::CongestionControl;
#[cfg(feature = "async")]
pub use fs_core::TcpInfo;
#[cfg(feature = "async")]
pub use fs_core::{Keepalive, TcpOptions, UdpMeta};
#[cfg(feature = "async")]
pub use net::{
    OwnedReadHalf, OwnedWriteHalf, ReadHalf, TcpListener, TcpSocket, TcpStream, ToSocketAddrs, UdpSocket, WriteHalf,
};

/// Sets the daemon's control socket for [`blocking`] and [`socket2`] in this process, instead of
/// `FASTSOCK_CONTROL` and the default paths. The daemon may run in this process
/// (`fs_daemon::Daemon`). Then no other process is needed, and connections within the process only
/// use memory.
///
/// Returns false if another socket was set before. Sockets that connected or listened earlier stay
/// with the kernel.
pub fn use_daemon(control: impl AsRef<std::path::Path>) -> bool {
    use std::os::unix::ffi::OsStrExt;
    fs_socket::process::set_path(control.as_ref().as_os_str().as_bytes())
}
