//! Sockets with the methods of `tokio::net` that are `Send` and `Sync`, for axum, tonic,
//! hyper-util, quinn and `tokio::spawn`.
//!
//! A connection of [`local`](crate::local) never leaves its core, so its data path has no locks, and
//! it is not `Send`. Here a task on the core serves the connection, and your handle reaches it through
//! a queue of 64 KiB per direction. docs/SEND.md has the costs, and how each framework takes these sockets.
//!
//! A socket uses this runtime:
//!
//! - the one that the call names: [`TcpStream::connect_on`], [`TcpListener::bind_on`],
//!   [`UdpSocket::bind_on`];
//! - otherwise, on a core, the runtime of the core;
//! - otherwise, in `fastsock::block_on`, `fastsock::run` and `#[fastsock::main]`, on each thread of its
//!   tokio runtime, the one that it runs;
//! - otherwise the one that [`Background::start`] or [`use_runtime`] got last.
//!
//! ```no_run
//! use fastsock::net::{Background, TcpListener};
//! use tokio::io::AsyncWriteExt;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let _stack = Background::start(fastsock::Runtime::builder().device("eth0").cores([0]).build()?)?;
//!     let listener = TcpListener::bind("0.0.0.0:7777").await?;
//!     loop {
//!         let (mut stream, _peer) = listener.accept().await?;
//!         tokio::spawn(async move { stream.write_all(b"hello").await });
//!     }
//! }
//! ```

mod background;
mod bytes_unsafe;
mod cores;
mod doorbell;
#[cfg(any(feature = "axum", feature = "hyper-util", feature = "quinn", feature = "tonic"))]
mod frameworks;
mod shared;
mod split;
mod task;
mod tcp_listener;
mod tcp_stream;
mod udp_groups;
mod udp_socket;
mod udp_task;

#[doc(hidden)]
pub use background::__use_on_this_thread;
pub use background::{Background, use_runtime};
#[cfg(feature = "axum")]
pub use frameworks::PeerAddr;
#[cfg(feature = "tonic")]
pub use frameworks::TcpIncoming;
#[cfg(feature = "hyper-util")]
pub use frameworks::{Connecting, Connector};
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use tcp_listener::TcpListener;
pub use tcp_stream::TcpStream;
pub use udp_socket::UdpSocket;
