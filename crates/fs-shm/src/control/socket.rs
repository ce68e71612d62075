//! Records and descriptors over a Unix socket: one system call each way, no allocation.

use super::fd_unsafe::Fd;
use super::message::FDS_MAX;
use core::mem::MaybeUninit;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, UCred,
};

/// Room for [`FDS_MAX`] descriptors, and credentials.
const CONTROL: usize = rustix::cmsg_space!(ScmRights(FDS_MAX), ScmCredentials(1));

/// The descriptors that came with a message. Those that nobody takes are closed.
#[derive(Debug, Default)]
pub struct Fds {
    fds: [Option<Fd>; FDS_MAX],
    next: usize,
}

impl Fds {
    /// Takes the next one.
    pub fn take(&mut self) -> Option<Fd> {
        let fd = self.fds.get_mut(self.next)?.take();
        self.next += 1;
        fd
    }

    /// How many came and were not taken.
    pub fn len(&self) -> usize {
        self.fds.iter().flatten().count()
    }

    /// None is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a record was.
#[derive(Debug)]
pub struct Received {
    /// Bytes; 0 is the end of the connection.
    pub len: usize,
    /// Descriptors.
    pub fds: Fds,
    /// Who sent it, where the receiver asked for it (SO_PASSCRED).
    pub sender: Option<UCred>,
}

/// Sends a record and descriptors. Never waits, never raises SIGPIPE.
pub fn send(socket: BorrowedFd<'_>, record: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut room = [MaybeUninit::uninit(); CONTROL];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(record)], &mut control, flags) {
            Ok(n) if n == record.len() => return Ok(()),
            Ok(_) => return Err(Errno::MSGSIZE),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Takes a record. Never waits: `EAGAIN`. `EMSGSIZE` for a record or descriptors that there is no room for.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut room = [MaybeUninit::uninit(); CONTROL];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        match rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let (mut fds, mut sender, mut count) = (Fds::default(), None, 0);
    for part in control.drain() {
        match part {
            RecvAncillaryMessage::ScmRights(received) => {
                for fd in received {
                    let fd = Fd::from(fd);
                    if let Some(place) = fds.fds.get_mut(count) {
                        *place = Some(fd);
                    }
                    count += 1;
                }
            }
            RecvAncillaryMessage::ScmCredentials(cred) => sender = Some(cred),
            _ => {}
        }
    }
    let cut = message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    if cut || count > FDS_MAX {
        return Err(Errno::MSGSIZE);
    }
    Ok(Received { len: message.bytes, fds, sender })
}
