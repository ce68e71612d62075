//! Descriptors in a program's process. They are closed with the system call itself, because the C
//! library's close(2) may be the preloaded library's. The program may close them without our
//! knowledge.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, IoSliceMut};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};

/// A descriptor that is closed without the C library.
#[derive(Debug)]
pub(crate) struct Quiet(ManuallyDrop<OwnedFd>);

impl Quiet {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Quiet(ManuallyDrop::new(fd))
    }

    pub(crate) fn owned(&self) -> &OwnedFd {
        &self.0
    }

    pub(crate) fn into_owned(self) -> OwnedFd {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so the descriptor has one owner.
        unsafe { OwnedFd::from_raw_fd(this.0.as_raw_fd()) }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours, and this is its last use.
        unsafe { rustix::io::close(self.0.as_raw_fd()) }
    }
}

/// A descriptor's number and its file's identity. The program may have closed it and opened another
/// file with the same number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weak {
    number: RawFd,
    device: u64,
    inode: u64,
}

impl Weak {
    /// Stores a descriptor by its number.
    pub(crate) fn new(fd: Quiet) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(fd.owned())?;
        let fd = ManuallyDrop::new(fd);
        Ok(Weak { number: fd.0.as_raw_fd(), device: stat.st_dev, inode: stat.st_ino })
    }

    pub(crate) fn of_parts(number: RawFd, device: u64, inode: u64) -> Self {
        Weak { number, device, inode }
    }

    pub(crate) fn parts(self) -> (RawFd, u64, u64) {
        (self.number, self.device, self.inode)
    }

    /// Returns the descriptor if it still is the same file.
    pub(crate) fn get(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: only used for the next call. A number that the program closes at this moment
        // fails, or is another file's, which a stat does not change.
        let fd = unsafe { BorrowedFd::borrow_raw(self.number) };
        let stat = rustix::fs::fstat(fd).ok()?;
        (stat.st_dev == self.device && stat.st_ino == self.inode).then_some(fd)
    }

    /// Closes the descriptor if it still is the same file.
    pub(crate) fn close(self) {
        if self.get().is_some() {
            // SAFETY: it is the file that `new` was given, and not used any more.
            unsafe { rustix::io::close(self.number) }
        }
    }
}

/// `SCM_MAX_FD` of include/net/scm.h: the most that a process can put into one message.
const MAX_DESCRIPTORS: usize = 253;

/// A received record and its descriptor.
#[derive(Debug)]
pub(crate) struct Received<F> {
    /// 0 is the end of the connection.
    pub(crate) len: usize,
    /// The record was longer than the buffer, or carried several descriptors.
    pub(crate) is_long: bool,
    /// The process had no free number for a descriptor of the record.
    pub(crate) is_lost: bool,
    pub(crate) fd: Option<F>,
}

/// Receives a record without blocking. `own` takes each received descriptor.
pub(crate) fn receive<F>(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    own: impl Fn(Quiet) -> F,
) -> Result<Received<F>, Errno> {
    // Descriptors without room would be closed by the kernel before the call returns, which may block.
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut is_long = message.flags.contains(ReturnFlags::TRUNC);
    let mut fd = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            for received in fds.map(|fd| own(Quiet::new(fd))) {
                is_long |= fd.is_some();
                fd.get_or_insert(received);
            }
        }
    }
    Ok(Received { len: message.bytes, is_long, is_lost: message.flags.contains(ReturnFlags::CTRUNC), fd })
}

/// Returns true if the messages in a socket that is shut down contain descriptors, so that its
/// close(2) may block. Removes the messages before them.
pub(crate) fn contains_descriptors(socket: BorrowedFd<'_>) -> bool {
    let receive = |flags| {
        let flags = flags | RecvFlags::DONTWAIT;
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut RecvAncillaryBuffer::default(), flags)
    };
    // CTRUNC: there is no room for what comes with the message. A message that is only peeked at keeps
    // its descriptors.
    let comes_with_something =
        || receive(RecvFlags::PEEK).map(|message| (message.bytes, message.flags.contains(ReturnFlags::CTRUNC)));
    loop {
        match comes_with_something() {
            Ok((0, false)) => {
                // An empty message, or no message. Every message comes with its sender's credentials.
                let is_message = set_socket_passcred(socket, true).and_then(|()| comes_with_something());
                if set_socket_passcred(socket, false).is_err() {
                    return true;
                }
                match is_message {
                    Ok((_, true)) => {}
                    Ok((_, false)) => return false,
                    Err(_) => return true,
                }
            }
            Ok((_, false)) => {}
            Ok((_, true)) | Err(_) => return true,
        }
        if receive(RecvFlags::empty()).is_err() {
            return true;
        }
    }
}

impl AsFd for Quiet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    };

    #[test]
    fn descriptors_are_found_behind_other_messages() {
        // Lengths of messages, and whether a descriptor comes with the last one.
        let cases: [(&[usize], bool); 8] = [
            (&[], false),
            (&[0], false),
            (&[9], false),
            (&[0, 9, 0, 0, 9], false),
            (&[0], true),
            (&[9], true),
            (&[0, 9, 0], true),
            (&[9, 0, 9], true),
        ];
        for (lengths, has_descriptor) in cases {
            let (own, other) =
                rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                    .unwrap();
            for (i, len) in lengths.iter().enumerate() {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let fds = [other.as_fd()];
                if has_descriptor && i == lengths.len() - 1 {
                    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
                }
                rustix::net::sendmsg(&other, &[IoSlice::new(&[1; 9][..*len])], &mut control, SendFlags::empty())
                    .unwrap();
            }
            if lengths.len() < 3 {
                drop(other);
            }
            rustix::net::shutdown(&own, Shutdown::Both).unwrap();
            assert_eq!(contains_descriptors(own.as_fd()), has_descriptor, "{lengths:?}");
        }
    }
}
