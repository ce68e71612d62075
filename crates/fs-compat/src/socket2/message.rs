//! The arguments and results of sendmsg(2) and recvmsg(2): [`MsgHdr`], [`MsgHdrMut`],
//! [`RecvFlags`].

use super::slice_unsafe::MaybeUninitSlice;
use super::sock_addr_unsafe::SockAddr;
use crate::call;
use std::fmt;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// The flags of a received message (`msg_flags`).
#[derive(Copy, Clone, Eq, PartialEq)]
pub struct RecvFlags(i32);

impl RecvFlags {
    pub(crate) const fn new(flags: i32) -> Self {
        Self(flags)
    }

    const fn has(self, flag: i32) -> bool {
        self.0 & flag != 0
    }

    /// The datagram was longer than the buffers (MSG_TRUNC).
    pub const fn is_truncated(self) -> bool {
        self.has(libc::MSG_TRUNC)
    }

    /// The end of a record (MSG_EOR).
    pub const fn is_end_of_record(self) -> bool {
        self.has(libc::MSG_EOR)
    }

    /// Out-of-band data (MSG_OOB).
    pub const fn is_out_of_band(self) -> bool {
        self.has(libc::MSG_OOB)
    }

    /// MSG_CONFIRM.
    pub const fn is_confirm(self) -> bool {
        self.has(libc::MSG_CONFIRM)
    }

    /// MSG_DONTROUTE.
    pub const fn is_dontroute(self) -> bool {
        self.has(libc::MSG_DONTROUTE)
    }
}

impl fmt::Debug for RecvFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvFlags")
            .field("is_end_of_record", &self.is_end_of_record())
            .field("is_out_of_band", &self.is_out_of_band())
            .field("is_truncated", &self.is_truncated())
            .field("is_confirm", &self.is_confirm())
            .field("is_dontroute", &self.is_dontroute())
            .finish()
    }
}

/// A message to send with [`Socket::sendmsg`](super::Socket::sendmsg).
#[must_use]
pub struct MsgHdr<'addr, 'bufs, 'control> {
    addr: Option<&'addr SockAddr>,
    bufs: &'bufs [IoSlice<'bufs>],
    control: &'control [u8],
}

#[allow(clippy::new_without_default)]
impl<'addr, 'bufs, 'control> MsgHdr<'addr, 'bufs, 'control> {
    /// Creates a message without address, buffers and control data.
    pub fn new() -> Self {
        Self { addr: None, bufs: &[], control: &[] }
    }

    /// Sets the destination.
    pub fn with_addr(self, addr: &'addr SockAddr) -> Self {
        Self { addr: Some(addr), ..self }
    }

    /// Sets the bytes to send.
    pub fn with_buffers(self, bufs: &'bufs [IoSlice<'_>]) -> Self {
        Self { bufs, ..self }
    }

    /// Sets ancillary data, see cmsg(3).
    pub fn with_control(self, control: &'control [u8]) -> Self {
        Self { control, ..self }
    }

    /// `msg_flags`, which sendmsg(2) on Linux does not read.
    pub fn with_flags(self, _flags: i32) -> Self {
        self
    }

    pub(crate) fn send(&self, fd: RawFd, flags: i32) -> io::Result<usize> {
        let Self { addr, bufs, control } = *self;
        call::sendmsg(fd, &call::Outgoing { addr, bufs, control }, flags)
    }
}

impl fmt::Debug for MsgHdr<'_, '_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MsgHdr")
    }
}

/// Buffers for a message to receive with [`Socket::recvmsg`](super::Socket::recvmsg), and its flags
/// afterwards.
#[must_use]
pub struct MsgHdrMut<'addr, 'bufs, 'control> {
    addr: Option<&'addr mut SockAddr>,
    // The slices' own lifetime is erased to `'bufs`: they are written through, never replaced.
    bufs: Bufs<'bufs>,
    control: &'control mut [MaybeUninit<u8>],
    flags: i32,
    control_len: usize,
}

use super::slice_unsafe::Bufs;

#[allow(clippy::new_without_default)]
impl<'addr, 'bufs, 'control> MsgHdrMut<'addr, 'bufs, 'control> {
    /// Creates a message without buffers.
    pub fn new() -> Self {
        Self { addr: None, bufs: Bufs::default(), control: &mut [], flags: 0, control_len: 0 }
    }

    /// Sets the buffer for the sender's address.
    pub fn with_addr(self, addr: &'addr mut SockAddr) -> Self {
        Self { addr: Some(addr), ..self }
    }

    /// Sets the buffers for the bytes.
    pub fn with_buffers(self, bufs: &'bufs mut [MaybeUninitSlice<'_>]) -> Self {
        Self { bufs: Bufs::new(bufs), ..self }
    }

    /// Sets the buffer for ancillary data, see cmsg(3).
    pub fn with_control(self, control: &'control mut [MaybeUninit<u8>]) -> Self {
        Self { control_len: control.len(), control, ..self }
    }

    /// Returns the flags of the received message.
    pub fn flags(&self) -> RecvFlags {
        RecvFlags::new(self.flags)
    }

    /// Returns the number of bytes of ancillary data received.
    pub fn control_len(&self) -> usize {
        self.control_len
    }

    pub(crate) fn receive(&mut self, fd: RawFd, flags: i32) -> io::Result<usize> {
        let Self { addr, bufs, control, flags: got_flags, control_len } = self;
        let mut room = call::Incoming { addr: addr.as_deref_mut(), bufs: bufs.as_mut(), control };
        let received = call::recvmsg(fd, &mut room, flags)?;
        (*got_flags, *control_len) = (received.flags, received.control_len);
        Ok(received.len)
    }
}

impl fmt::Debug for MsgHdrMut<'_, '_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MsgHdrMut")
    }
}
