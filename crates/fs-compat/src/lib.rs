//! Sockets with the methods of `tokio::net`, `std::net` and the crate `socket2`.
//!
//! | module | shaped like | runs |
//! |---|---|---|
//! | [`local`] | `tokio::net` | on a core of an `fs_rt::Runtime`: the core's own TCP, or the kernel's where no device leads |
//! | [`net`](mod@net) | `tokio::net` | on any thread; a task on a core does the I/O. For axum, tonic, quinn and `tokio::spawn` |
//! | [`blocking`] | `std::net`'s own types | on any thread, on the kernel |
//! | [`socket2`] | the crate `socket2` itself | on any thread, on the kernel |

mod borrowed_unsafe;
mod error;
pub mod local;
pub mod net;
mod on_core_unsafe;

pub use borrowed_unsafe::{BorrowedBytes, SendBuffer};
pub use error::to_io_error;
pub use fs_core::{CaState, CongestionControl, IfaceId, Keepalive, Linger, TcpInfo, TcpOptions, TcpState, UdpMeta};
pub use local::{
    OwnedReadHalf, OwnedWriteHalf, ReadHalf, TcpListener, TcpSocket, TcpStream, ToSocketAddrs, UdpSocket, WriteHalf,
};
/// The crate `socket2`: kernel sockets with every option that Linux has.
///
/// Under `fastsock run`, a TCP connection to another program of the host gets a ring in shared
/// memory.
pub use socket2;

/// Blocking kernel sockets: the types of `std::net`.
///
/// They need no runtime. Under `fastsock run`, a TCP connection to another program of the host gets
/// a ring in shared memory. Options without a method are set through [`socket2::SockRef`]:
///
/// ```
/// use fastsock::{blocking::TcpListener, socket2::SockRef};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// SockRef::from(&listener).set_tcp_nodelay(true)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub mod blocking {
    pub use std::net::{Incoming, TcpListener, TcpStream, UdpSocket};
}
