//! Blocking sockets with the methods of `std::net`: [`TcpStream`], [`TcpListener`], [`UdpSocket`].
//!
//! They are kernel sockets with the methods of their `std::net` namesakes, return the same errors and
//! can be used from any thread. They need no runtime. Under `fastsock run`, a connection to another
//! such process gets a ring in shared memory, as std's would. Methods that are unstable in std
//! (linger) need no feature.
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
