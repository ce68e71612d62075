//! Sockets shaped like tokio's, for tasks on a core: the core's own TCP, or the kernel's where no device leads.
//!
//! [`TcpListener`], [`TcpStream`], [`TcpSocket`] and [`UdpSocket`] have the methods of their
//! `tokio::net` namesakes, implement `AsyncRead` and `AsyncWrite`, and return the errors (kind and
//! OS code) that the Linux kernel would return. Differences:
//!
//! - They belong to their core and are not `Send`. Spawn tasks with `fastsock::spawn_local`. The
//!   types of [`net`](mod@crate::net) are `Send`, for frameworks that need it.
//! - In a child of fork(2), calls on its copies fail with `EBADF`, and the parent's connections
//!   continue. A child that executes another program is fine.
//! - The kernel carries connections that do not use a device of the runtime (this host's own
//!   addresses, 127.0.0.1, other devices), behind the same type. [`TcpStream::carrier`] returns
//!   which one carries it. In standalone addressing such a connect is refused, and the error says
//!   why.
//! - A connected UDP socket is not told that its peer refused a datagram (`ECONNREFUSED`) where the
//!   kernel carries.
//! - [`TcpSocket::bind`] with port 0 reserves no port: `connect` or `listen` chooses it.
//! - A wildcard IPv6 socket names an IPv4 peer by its IPv4 address, and not as `::ffff:1.2.3.4`.
//! - On a thread that is not a core of a `fs_rt::Runtime`, they return an error.
//! - Several cores may listen at one address; each accepts the connections that its queue receives.
//! - [`TcpStream::recv_borrowed`] and [`TcpStream::send_buffer`] move data without a copy.
//!
//! ```no_run
//! use fastsock::local::TcpListener;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! let rt = fastsock::Runtime::builder().device("veth0").cores([0, 1]).build()?;
//! rt.run(|_core| async move {
//!     let listener = TcpListener::bind("0.0.0.0:7").await?;
//!     loop {
//!         let (mut stream, _peer) = listener.accept().await?;
//!         fastsock::spawn_local(async move {
//!             let (mut reader, mut writer) = stream.split();
//!             tokio::io::copy(&mut reader, &mut writer).await
//!         });
//!     }
//!     # #[allow(unreachable_code)]
//!     Ok::<(), std::io::Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(crate) mod attempts;
mod core_stream;
mod kernel_listener;
mod kernel_options;
mod kernel_stream;
mod kernel_unsafe;
mod split;
mod tcp_listener;
mod tcp_options;
mod tcp_socket;
pub(crate) mod tcp_stream;
mod udp_groups;
pub(crate) mod udp_kernel;
pub(crate) mod udp_socket;
mod waiting;

pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use tcp_listener::TcpListener;
pub use tcp_socket::TcpSocket;
pub use tcp_stream::TcpStream;
pub use tokio::net::ToSocketAddrs;
pub use udp_socket::UdpSocket;
