//! Devices, filters and files, which only Linux has.

use super::socket::Socket;
use crate::call;
use std::num::{NonZeroU32, NonZeroUsize};
use std::os::fd::AsRawFd;
use std::{fmt, io};

/// One instruction of a classic BPF program, for [`Socket::attach_filter`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct SockFilter {
    filter: libc::sock_filter,
}

impl SockFilter {
    /// See `struct sock_filter`.
    pub const fn new(code: u16, jt: u8, jf: u8, k: u32) -> SockFilter {
        SockFilter { filter: libc::sock_filter { code, jt, jf, k } }
    }
}

impl fmt::Debug for SockFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SockFilter").finish_non_exhaustive()
    }
}

impl Socket {
    /// SO_BINDTODEVICE: the device's name, if the socket is bound to one.
    pub fn device(&self) -> io::Result<Option<Vec<u8>>> {
        let mut value = [0; libc::IFNAMSIZ];
        let len = call::option(self.fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &mut value)?.min(value.len());
        let name = value[..len].split(|&byte| byte == 0).next().unwrap_or_default();
        Ok((!name.is_empty()).then(|| name.to_vec()))
    }

    /// SO_BINDTODEVICE; `None`: any device.
    pub fn bind_device(&self, interface: Option<&[u8]>) -> io::Result<()> {
        call::set_option(self.fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, interface.unwrap_or_default())
    }

    /// SO_BINDTOIFINDEX: the device's index, if the socket is bound to one.
    pub fn device_index_v4(&self) -> io::Result<Option<NonZeroU32>> {
        let index = call::int_option(self.fd(), libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX)?;
        Ok(NonZeroU32::new(index as u32))
    }

    /// As [`Socket::device_index_v4`]: on Linux it is one option.
    pub fn device_index_v6(&self) -> io::Result<Option<NonZeroU32>> {
        self.device_index_v4()
    }

    /// SO_BINDTOIFINDEX; `None`: any device.
    pub fn bind_device_by_index_v4(&self, interface: Option<NonZeroU32>) -> io::Result<()> {
        let index = interface.map_or(0, NonZeroU32::get) as i32;
        call::set_int_option(self.fd(), libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index)
    }

    /// As [`Socket::bind_device_by_index_v4`].
    pub fn bind_device_by_index_v6(&self, interface: Option<NonZeroU32>) -> io::Result<()> {
        self.bind_device_by_index_v4(interface)
    }

    /// SO_ATTACH_FILTER.
    pub fn attach_filter(&self, filters: &[SockFilter]) -> io::Result<()> {
        let filters: Vec<_> = filters.iter().map(|one| one.filter).collect();
        call::attach_filter(self.fd(), &filters)
    }

    /// SO_DETACH_FILTER.
    pub fn detach_filter(&self) -> io::Result<()> {
        call::set_int_option(self.fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)
    }

    /// sendfile(2): sends at most `length` bytes of `file`, starting at `offset`.
    pub fn sendfile<F: AsRawFd>(&self, file: &F, offset: usize, length: Option<NonZeroUsize>) -> io::Result<usize> {
        call::sendfile(self.fd(), file.as_raw_fd(), offset, length.map(NonZeroUsize::get))
    }
}
