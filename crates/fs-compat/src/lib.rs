//! Sockets shaped like tokio's, on the stack of the core that the calling task runs on.
//!
//! [`TcpListener`], [`TcpStream`], [`TcpSocket`] and [`UdpSocket`] have the methods of their `tokio::net`
//! namesakes, implement `AsyncRead` and `AsyncWrite`, and answer with the errors (kind and OS code) that the
//! Linux kernel would give. What differs:
//!
//! - They belong to their core: none of them is `Send`. Tasks are spawned with `tokio::task::spawn_local`.
//! - On a thread that is not a core of a `fs_rt::Runtime` they answer an error.
//! - Several cores may listen at one address; each accepts the connections that its queue receives.
//! - [`TcpStream::recv_borrowed`] and [`TcpStream::send_buffer`] move data without a copy.
//!
//! ```no_run
//! use fs_compat::TcpListener;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! let rt = fs_rt::Runtime::builder().device("veth0").cores([0, 1]).build()?;
//! rt.run(|_core| async move {
//!     let listener = TcpListener::bind("0.0.0.0:7").await?;
//!     loop {
//!         let (mut stream, _peer) = listener.accept().await?;
//!         tokio::task::spawn_local(async move {
//!             let (mut reader, mut writer) = stream.split();
//!             tokio::io::copy(&mut reader, &mut writer).await
//!         });
//!     }
//!     # #[allow(unreachable_code)]
//!     Ok::<(), std::io::Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod borrowed_unsafe;
mod error;
pub mod net;

pub use borrowed_unsafe::{BorrowedBytes, SendBuffer};
pub use error::to_io_error;
pub use fs_core::config::CongestionControl;
pub use fs_core::socket::info::TcpInfo;
pub use fs_core::{Keepalive, TcpOptions, UdpMeta};
pub use net::{
    OwnedReadHalf, OwnedWriteHalf, ReadHalf, TcpListener, TcpSocket, TcpStream, ToSocketAddrs, UdpSocket, WriteHalf,
};
