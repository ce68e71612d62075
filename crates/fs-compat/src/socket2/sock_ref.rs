//! [`SockRef`], a borrowed socket of another type.

use super::fd_unsafe;
use super::socket::Socket;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsFd;

/// A reference to a socket of another type, with the methods of [`Socket`].
///
/// ```
/// use fs_compat::{blocking::TcpListener, socket2::SockRef};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// assert!(SockRef::from(&listener).is_listener()?);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct SockRef<'s> {
    socket: ManuallyDrop<Socket>,
    owner: PhantomData<&'s Socket>,
}

impl Deref for SockRef<'_> {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl<'s, S: AsFd> From<&'s S> for SockRef<'s> {
    /// Calls on a descriptor that is not a socket fail with ENOTSOCK.
    fn from(socket: &'s S) -> Self {
        Self { socket: fd_unsafe::borrow(socket.as_fd()), owner: PhantomData }
    }
}

impl fmt::Debug for SockRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SockRef")
            .field("raw", &self.socket.fd())
            .field("local_addr", &self.socket.local_addr().ok())
            .field("peer_addr", &self.socket.peer_addr().ok())
            .finish()
    }
}
