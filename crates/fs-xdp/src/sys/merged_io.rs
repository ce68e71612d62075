//! One packet in one system call, out of a header and the frames behind it: `sendmsg` for packet
//! sockets, `writev` for TUN and TAP.

use crate::umem::UmemPool;
use fs_core::{FramePool, TxFrame};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What the system calls need to know about a packet; kept for its memory.
#[derive(Default)]
pub(crate) struct Pieces(Vec<libc::iovec>);

// SAFETY: pointers are only used within the call that has just set them.
unsafe impl Send for Pieces {}

impl Pieces {
    /// Sends `header` and the packets in `frames`, each without its first `skip` bytes, to a packet
    /// socket as one message. The first frame of each packet has at least `skip` bytes.
    ///
    /// # Errors
    /// Those of sendmsg(2). Nothing has been sent then, but for what the kernel had cut out of it
    /// before a queue was full.
    pub(crate) fn send_message(
        &mut self,
        socket: BorrowedFd<'_>,
        header: &[u8],
        pool: &UmemPool,
        frames: &[TxFrame],
        skip: usize,
    ) -> io::Result<()> {
        self.set(header, pool, frames, skip);
        // SAFETY: an `msghdr` is integers and pointers that null suits.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.0.as_mut_ptr();
        message.msg_iovlen = self.0.len();
        // SAFETY: the vectors point to live bytes of `header` and of chunks that `frames` own;
        // sendmsg(2) only reads them.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The same for a descriptor that takes one packet a call.
    ///
    /// # Errors
    /// The errors of writev(2).
    pub(crate) fn write(
        &mut self,
        descriptor: BorrowedFd<'_>,
        header: &[u8],
        pool: &UmemPool,
        frames: &[TxFrame],
        skip: usize,
    ) -> io::Result<()> {
        self.set(header, pool, frames, skip);
        // SAFETY: as above; writev(2) only reads them.
        let wrote = unsafe { libc::writev(descriptor.as_raw_fd(), self.0.as_ptr(), self.0.len() as i32) };
        if wrote < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn set(&mut self, header: &[u8], pool: &UmemPool, frames: &[TxFrame], skip: usize) {
        let vector = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        self.0.clear();
        self.0.push(vector(header));
        let mut begins = true;
        self.0.extend(frames.iter().map(|part| {
            let skip = if std::mem::replace(&mut begins, !part.frame.more()) { skip } else { 0 };
            vector(&pool.bytes(&part.frame)[skip..])
        }));
    }
}

/// Returns true if the kernel still holds packets that were sent by a socket (`SIOCOUTQ`): in a
/// queueing discipline, with the device, or on a virtual device's way to its peer. True where it
/// does not tell.
pub(crate) fn is_in_flight(socket: BorrowedFd<'_>) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (the number of TIOCOUTQ) writes a live integer.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    result < 0 || bytes > 0
}
