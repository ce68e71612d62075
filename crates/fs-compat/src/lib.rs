//! Sockets with the methods of `tokio::net`, `std::net` and the crate `socket2`.
//!
//! | module | shaped like | runs |
//! |---|---|---|
//! | [`net`](mod@net) (feature `async`, on by default) | `tokio::net` | on a core of an `fs_rt::Runtime`, on the core's TCP engine |
//! | [`send`] (the same feature) | `tokio::net` | on any thread; a task on a core does the I/O. For axum, tonic, quinn and `tokio::spawn` |
//! | [`blocking`] | `std::net` | on any thread, on the kernel |
//! | [`socket2`] | crate `socket2` | on any thread, on the kernel |

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
