//! A socket whose lock a thread of the test holds.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::thread::JoinHandle;

/// UFFDIO_API and UFFDIO_REGISTER of linux/userfaultfd.h.
const API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
const REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
/// UFFD_API.
const VERSION: u64 = 0xaa;
/// UFFDIO_REGISTER_MODE_MISSING.
const MISSING: u64 = 1;
/// Size of `struct uffd_msg`.
const MESSAGE: usize = 32;
const PAGE: usize = 4096;

/// A thread in send(2), which waits for a page of its buffer with the socket's lock held. It
/// continues when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    faults: Option<File>,
    thread: Option<JoinHandle<()>>,
}

impl Held {
    /// Needs CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd.
    pub(crate) fn new(socket: &TcpStream) -> Self {
        // SAFETY: a new descriptor, which has no other owner.
        let faults = unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
            assert!(fd >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd as RawFd)
        };
        // SAFETY: a new mapping. It is never unmapped, because the thread may read it.
        let page = unsafe {
            let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), PAGE, rights, flags, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let page = page.expose_provenance();
        let mut api = [VERSION, 0, 0];
        let mut register = [page as u64, PAGE as u64, MISSING, 0];
        // SAFETY: the structures have the size that the kernel reads and writes.
        unsafe {
            assert_eq!(libc::ioctl(faults.as_raw_fd(), API, api.as_mut_ptr()), 0);
            assert_eq!(libc::ioctl(faults.as_raw_fd(), REGISTER, register.as_mut_ptr()), 0);
        }
        let socket = socket.try_clone().expect("a duplicate");
        let thread = std::thread::spawn(move || {
            let page = std::ptr::with_exposed_provenance(page);
            // SAFETY: the mapping has these bytes, and stays.
            let sent = unsafe { libc::send(socket.as_raw_fd(), page, PAGE, libc::MSG_NOSIGNAL) };
            assert_eq!(sent, PAGE as isize);
        });
        let mut faults = File::from(faults);
        faults.read_exact(&mut [0; MESSAGE]).expect("a page fault");
        Held { faults: Some(faults), thread: Some(thread) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The page is filled with zeros.
        drop(self.faults.take());
        self.thread.take().expect("a thread").join().expect("no panic");
    }
}
