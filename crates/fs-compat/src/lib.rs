//! Sockets shaped like those that programs use already.
//!
//! | module | shaped like | runs |
//! |---|---|---|
//! | [`net`](mod@net) (feature `async`, on by default) | `tokio::net` | on a core of an `fs_rt::Runtime`, on its own stack |
//! | [`blocking`] | `std::net` | on any thread; through the daemon, else on the kernel |
//! | [`socket2`] | crate `socket2` | on any thread; through the daemon, else on the kernel |

pub mod blocking;
#[cfg(feature = "async")]
mod borrowed_unsafe;
mod call;
#[cfg(feature = "async")]
mod error;
#[cfg(feature = "async")]
pub mod net;
pub mod socket2;

#[cfg(feature = "async")]
pub use borrowed_unsafe::{BorrowedBytes, SendBuffer};
#[cfg(feature = "async")]
pub use error::to_io_error;
#[cfg(feature = "async")]
pub use fs_core::config::CongestionControl;
#[cfg(feature = "async")]
pub use fs_core::socket::info::TcpInfo;
#[cfg(feature = "async")]
pub use fs_core::{Keepalive, TcpOptions, UdpMeta};
#[cfg(feature = "async")]
pub use net::{
    OwnedReadHalf, OwnedWriteHalf, ReadHalf, TcpListener, TcpSocket, TcpStream, ToSocketAddrs, UdpSocket, WriteHalf,
};
