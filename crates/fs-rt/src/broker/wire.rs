//! Sends and receives records with descriptors.

use super::message::{LEN, MAX_DESCRIPTORS};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// `SCM_MAX_FD` of include/net/scm.h: the most descriptors of a message.
const KERNELS_MAX: usize = 253;

/// Sends a record.
///
/// # Errors
/// The errors of sendmsg(2).
pub fn send(socket: BorrowedFd<'_>, record: &[u8; LEN], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(record)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(drop).map_err(Into::into),
        }
    }
}

/// Receives a record. `None`: the other side has closed. `own` takes each descriptor, also those of
/// a record that is refused.
///
/// # Errors
/// The errors of recvmsg(2), `InvalidData` for another length or too many descriptors, and EMFILE if
/// descriptors were lost.
pub fn receive<F>(socket: BorrowedFd<'_>, own: impl FnMut(OwnedFd) -> F) -> io::Result<Option<([u8; LEN], Vec<F>)>> {
    // Descriptors without room would be closed by the kernel before the call returns, which may block.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNELS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut record = [0; LEN];
    let received = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut record)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let descriptors: Vec<F> = fds.flatten().map(own).collect();
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE.into());
    }
    if received.bytes != LEN || received.flags.contains(ReturnFlags::TRUNC) || descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Some((record, descriptors)))
}

/// Returns true if the other side has closed.
pub(super) fn is_closed(socket: BorrowedFd<'_>) -> bool {
    is_any(socket, PollFlags::HUP | PollFlags::ERR)
}

/// Returns true if a record has arrived.
pub(super) fn is_readable(socket: BorrowedFd<'_>) -> bool {
    is_any(socket, PollFlags::IN)
}

fn is_any(socket: BorrowedFd<'_>, events: PollFlags) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, events)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(events)
}

/// Borrows each.
pub fn borrow(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(AsFd::as_fd).collect()
}
