//! Blocking sockets with the methods of `std::net`: [`TcpStream`], [`TcpListener`], [`UdpSocket`].
//!
//! They have the methods of their `std::net` namesakes, return the same errors and can be used from
//! any thread. They need no runtime. A TCP connection between two processes that the daemon serves
//! moves its bytes through shared memory, without a system call while both ends are awake. All
//! others are kernel sockets. A program changes only its `use` line.
//!
//! Differences from `std::net`:
//!
//! - An accelerated connection can be converted into an `OwnedFd` (or a type of std) and back. In
//!   between, std's `read` and `write` on it fail (ENOTCONN, EPIPE), because its bytes are in
//!   shared memory. Convert it back before it is dropped: if std closes it, the peer sees the close
//!   only when the number is used again, or the process ends. Listeners, unconnected sockets and
//!   connections over the kernel work with any code. The descriptor of
//!   [`AsRawFd`](std::os::fd::AsRawFd) is for this crate's calls: the kernel's `poll` and `epoll`
//!   do not see an accelerated connection's bytes. For multiplexing, use threads or tokio's shapes.
//! - Methods that are unstable in std (linger) need no feature.
//!
//! ```
//! use fs_compat::blocking::{TcpListener, TcpStream};
//! use std::io::{Read, Write};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let addr = listener.local_addr()?;
//! let client = std::thread::spawn(move || -> std::io::Result<String> {
//!     let mut stream = TcpStream::connect(addr)?;
//!     stream.write_all(b"ping")?;
//!     stream.shutdown(std::net::Shutdown::Write)?;
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer)?;
//!     Ok(answer)
//! });
//! let (mut stream, _peer) = listener.accept()?;
//! std::io::copy(&mut stream.try_clone()?, &mut stream)?;
//! drop(stream);
//! assert_eq!(client.join().unwrap()?, "ping");
//! # Ok::<(), std::io::Error>(())
//! ```

mod addresses;
mod fd_unsafe;
mod options;
mod tcp_listener;
mod tcp_stream;
mod udp_socket;

pub use tcp_listener::{Incoming, IntoIncoming, TcpListener};
pub use tcp_stream::TcpStream;
pub use udp_socket::UdpSocket;

#[cfg(test)]
mod tests;
