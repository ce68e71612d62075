//! Descriptor number → socket.

use std::ops::Deref;

use crate::{socket::Socket, types::Fd};

/// A socket held: it is not torn down (no FIN is sent) while this stands, as a kernel call holds its file.
#[derive(Debug)]
pub struct SocketRef {
    socket: &'static Socket,
}

impl Deref for SocketRef {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        self.socket
    }
}

/// The socket behind a number; `None`: not ours. Wait-free.
pub fn socket(_fd: Fd) -> Option<SocketRef> {
    None
}

/// The epoll instance behind a number (its index as given to [`set_epoll`]).
pub fn epoll(_fd: Fd) -> Option<u32> {
    None
}

/// `fd` (made by the kernel a moment ago) is an epoll instance of [`crate::poll`]. Its duplicates and closing are followed:
/// [`crate::poll::epoll_closed`] is called when the last number in this process is gone.
pub fn set_epoll(_fd: Fd, _index: u32) {}
