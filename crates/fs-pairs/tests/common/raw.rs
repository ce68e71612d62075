//! A process that writes its own messages.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use fs_pairs::message::{Answer, LEN};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};

use super::Running;

/// SCM_MAX_FD of include/net/scm.h.
pub(crate) const MAX_DESCRIPTORS: usize = 253;

/// A client that writes its own messages.
pub(crate) struct Raw(pub(crate) OwnedFd);

impl Raw {
    pub(crate) fn connect(service: &Running) -> Self {
        Self::connect_to(&service.path)
    }

    pub(crate) fn connect_to(path: &Path) -> Self {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(60))).expect("set");
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("connect");
        Raw(socket)
    }

    pub(crate) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(|_| ())
    }

    /// Returns true if the service ends the connection.
    pub(crate) fn is_cut_off(&self) -> bool {
        let mut bytes = [0; LEN];
        loop {
            match rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::empty()) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return true,
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Returns the next answer. Closes the file that comes with it.
    pub(crate) fn answer(&self) -> Answer {
        let mut bytes = [0; LEN];
        let (len, _) = rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::empty()).expect("an answer");
        Answer::decode(&bytes[..len]).expect("an answer")
    }
}
