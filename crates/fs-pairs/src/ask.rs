//! Requests of a program that displays the service's answers.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, sockopt};

use crate::message::Request;

/// Maximum time until a service answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection to a service.
#[derive(Debug)]
pub(crate) struct Asker(OwnedFd);

impl Asker {
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Asker(socket))
    }

    /// Returns the bytes of the answer, 0 at the end of the connection.
    pub(crate) fn ask(&self, request: &Request, answer: &mut [u8]) -> io::Result<usize> {
        rustix::net::send(&self.0, &request.encode(), SendFlags::NOSIGNAL)?;
        Ok(rustix::net::recv(&self.0, answer, RecvFlags::empty())?.0)
    }
}
