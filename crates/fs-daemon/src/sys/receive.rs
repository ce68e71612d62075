//! Taking a record, its descriptors, and who sent it, off a Unix socket.
//!
//! Not rustix's `recvmsg`: its credentials cannot say that our pid namespace does not show the sender (pid 0).

use super::Credentials;
use fs_shm::control::FDS_MAX;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A record.
#[derive(Debug)]
pub(crate) struct Record {
    /// Bytes; 0 is the end of the connection.
    pub(crate) len: usize,
    /// It was cut: longer than the buffer, or with more descriptors than a message may have.
    pub(crate) cut: bool,
    pub(crate) fds: Vec<OwnedFd>,
    pub(crate) sender: Option<Credentials>,
}

/// Room for the descriptors and the credentials, aligned as `cmsghdr`.
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; 256]);

const _: () = assert!(256 >= 16 + FDS_MAX * 4 + 8 + 16 + size_of::<libc::ucred>() + 8);

/// Takes a record; never waits (`WouldBlock`).
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Record> {
    let mut control = Control([MaybeUninit::uninit(); 256]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: `message` points to `part` and `control`, which live and are as long as it says.
    let len =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    let cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    let mut record = Record { len: len as usize, cut, fds: Vec::new(), sender: None };
    // SAFETY: the kernel filled `control` and `msg_controllen`.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give headers that lie in `control` whole.
        let (level, kind, bytes) = unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len as usize) };
        // SAFETY: the header's data begins there.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: no memory is touched.
        let head = unsafe { libc::CMSG_LEN(0) } as usize;
        let room = bytes.saturating_sub(head);
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for i in 0..room / size_of::<i32>() {
                    // SAFETY: the i-th descriptor lies in the header's data.
                    let fd = unsafe { data.cast::<i32>().add(i).read_unaligned() };
                    // SAFETY: the kernel has just made it for us.
                    record.fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if room >= size_of::<libc::ucred>() => {
                // SAFETY: the structure lies in the header's data.
                let raw = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                record.sender = Some(raw.into());
            }
            _ => {}
        }
        // SAFETY: `header` lies in `message`'s control data.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok(record)
}
