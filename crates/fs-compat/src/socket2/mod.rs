//! Kernel sockets with the methods of the crate `socket2` (0.6, all features, Linux).
//!
//! [`Socket`] makes the system calls' arguments safe and does not change their meaning: it retries
//! nothing, and sets no option except close-on-exec. Under `fastsock run`, a TCP connection to
//! another such process gets a ring in shared memory.
//!
//! A program switches with `use fs_compat::socket2` instead of the crate. A whole dependency tree
//! switches with a crate named `socket2` that contains `pub use fs_compat::socket2::*`.
//!
//! Items that `socket2` has only for other systems are missing.
//!
//! ```
//! use fs_compat::socket2::{Domain, Socket, Type};
//! use std::io::{Read, Write};
//! use std::net::SocketAddr;
//!
//! let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
//! let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
//! listener.bind(&any.into())?;
//! listener.listen(128)?;
//!
//! let mut client = Socket::new(Domain::IPV4, Type::STREAM, None)?;
//! client.set_tcp_nodelay(true)?;
//! client.connect(&listener.local_addr()?)?;
//! let (mut server, _peer) = listener.accept()?;
//! client.write_all(b"hello")?;
//! let mut hello = [0; 5];
//! server.read_exact(&mut hello)?;
//! assert_eq!(&hello, b"hello");
//! # Ok::<(), std::io::Error>(())
//! ```

mod fd_unsafe;
mod ip;
mod linux;
mod message;
mod names;
mod options;
pub(crate) mod slice_unsafe;
pub(crate) mod sock_addr_unsafe;
mod sock_ref;
mod socket;
mod tcp;

pub use ip::InterfaceIndexOrAddress;
pub use linux::SockFilter;
pub use message::{MsgHdr, MsgHdrMut, RecvFlags};
pub use names::{Domain, Protocol, Type};
pub use slice_unsafe::MaybeUninitSlice;
pub use sock_addr_unsafe::{SockAddr, SockAddrStorage, sa_family_t, socklen_t};
pub use sock_ref::SockRef;
pub use socket::Socket;
pub use tcp::TcpKeepalive;

#[cfg(test)]
mod tests;
