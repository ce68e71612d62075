//! What the tests of this crate share: a daemon, sockets by either way, processes.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod mini;
pub(crate) mod process_unsafe;
pub(crate) mod servers;

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;

use fs_socket::{Address, Errno, IoVec, IoVecMut, sys::call};

pub(crate) const AF_INET: i32 = 2;
pub(crate) const SOCK_STREAM: i32 = 1;
pub(crate) const SOCK_NONBLOCK: i32 = 0o4000;

/// A daemon for this test process, once; every socket call of the crate finds it.
pub(crate) fn daemon() -> &'static mini::Mini {
    static ONCE: std::sync::OnceLock<mini::Mini> = std::sync::OnceLock::new();
    ONCE.get_or_init(|| {
        let path: PathBuf = std::env::temp_dir().join(format!("fs-socket-test-{}", std::process::id()));
        let _stale = std::fs::remove_file(&path);
        let daemon = mini::Mini::start(&path);
        // Before any test reads it, under the Once.
        fs_socket::sys::set_variable("FASTSOCK_CONTROL", path.to_str().unwrap());
        daemon
    })
}

/// Held for writing while one test forks: what another has made and not connected yet would be shared, and the kernel's to connect.
pub(crate) static FORKS: std::sync::RwLock<()> = std::sync::RwLock::new(());

/// The same call either through fs-socket (and the kernel where it says so) or on the kernel alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Ours,
    Kernel,
}

impl Way {
    fn or<T>(
        self,
        ours: impl FnOnce() -> fs_socket::Ours<T>,
        kernel: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match self {
            Way::Ours => ours().unwrap_or_else(kernel),
            Way::Kernel => kernel(),
        }
    }

    pub(crate) fn socket(self, flags: i32) -> RawFd {
        let kind = SOCK_STREAM | flags;
        self.or(|| fs_socket::socket(AF_INET, kind, 0), || call::socket(AF_INET, kind, 0)).unwrap()
    }

    pub(crate) fn bind(self, fd: RawFd, to: SocketAddr) -> Result<(), Errno> {
        let raw = raw(to);
        self.or(|| fs_socket::bind(fd, &raw), || call::bind(fd, &raw))
    }

    pub(crate) fn listen(self, fd: RawFd) -> Result<(), Errno> {
        self.or(|| fs_socket::listen(fd, 128), || call::listen(fd, 128))
    }

    pub(crate) fn connect(self, fd: RawFd, to: SocketAddr) -> Result<(), Errno> {
        let raw = raw(to);
        self.or(|| fs_socket::connect(fd, &raw), || call::connect(fd, &raw))
    }

    pub(crate) fn accept(self, fd: RawFd, flags: i32) -> Result<(RawFd, Address), Errno> {
        self.or(|| fs_socket::accept4(fd, flags), || call::accept4(fd, flags))
    }

    pub(crate) fn send(self, fd: RawFd, bytes: &[u8], flags: u32) -> Result<usize, Errno> {
        // MSG_NOSIGNAL: the test process is to live.
        let flags = flags | fs_socket::flags::NOSIGNAL;
        self.or(|| fs_socket::send(fd, &[IoVec::new(bytes)], flags, None, &[]), || call::sendto(fd, bytes, flags))
    }

    pub(crate) fn recv(self, fd: RawFd, room: &mut [u8], flags: u32) -> Result<usize, Errno> {
        match self {
            Way::Kernel => call::recvfrom(fd, room, flags),
            Way::Ours => match fs_socket::recv(fd, &mut [IoVecMut::new(room)], flags) {
                Some(answer) => answer.map(|received| received.bytes),
                None => call::recvfrom(fd, room, flags),
            },
        }
    }

    pub(crate) fn shutdown(self, fd: RawFd, how: i32) -> Result<(), Errno> {
        self.or(|| fs_socket::shutdown(fd, how), || call::shutdown(fd, how))
    }

    pub(crate) fn close(self, fd: RawFd) -> Result<(), Errno> {
        self.or(|| fs_socket::close(fd), || call::close(fd))
    }

    pub(crate) fn setsockopt(self, fd: RawFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.or(|| fs_socket::setsockopt(fd, level, name, value), || call::setsockopt(fd, level, name, value))
    }

    pub(crate) fn getsockopt(self, fd: RawFd, level: i32, name: i32) -> Result<i32, Errno> {
        let mut value = [0; 4];
        let len = match self {
            Way::Kernel => call::getsockopt(fd, level, name, &mut value),
            Way::Ours => match fs_socket::getsockopt(fd, level, name, &mut value) {
                Some(answer) => answer,
                None => call::getsockopt(fd, level, name, &mut value),
            },
        }?;
        assert_eq!(len, 4);
        Ok(i32::from_ne_bytes(value))
    }

    pub(crate) fn name(self, fd: RawFd) -> SocketAddr {
        std(self.or(|| fs_socket::getsockname(fd), || call::getsockname(fd)).unwrap())
    }

    pub(crate) fn peer(self, fd: RawFd) -> Result<SocketAddr, Errno> {
        self.or(|| fs_socket::getpeername(fd), || call::getpeername(fd)).map(std)
    }

    pub(crate) fn fcntl(self, fd: RawFd, command: i32, argument: usize) -> Result<i32, Errno> {
        self.or(|| fs_socket::fcntl(fd, command, argument), || call::fcntl(fd, command, argument))
    }

    pub(crate) fn dup(self, fd: RawFd) -> RawFd {
        self.or(|| fs_socket::dup(fd), || call::dup(fd)).unwrap()
    }

    /// A listener on a free port of 127.0.0.1.
    pub(crate) fn listener(self, flags: i32) -> (RawFd, SocketAddr) {
        let fd = self.socket(flags);
        self.bind(fd, "127.0.0.1:0".parse().unwrap()).unwrap();
        self.listen(fd).unwrap();
        (fd, self.name(fd))
    }

    /// Both ends of a connection, and that it is what it should be: client, server.
    pub(crate) fn pair(self) -> (RawFd, RawFd) {
        let (listener, at) = self.listener(0);
        let still = FORKS.read().unwrap();
        let client = self.socket(0);
        self.connect(client, at).unwrap();
        drop(still);
        let (server, _) = self.accept(listener, 0).unwrap();
        self.close(listener).unwrap();
        let through_us = fs_socket::descriptor::table::socket(client)
            .is_some_and(|socket| socket.watch() == fs_socket::socket::Watch::Channel);
        assert_eq!(through_us, self == Way::Ours);
        (client, server)
    }
}

pub(crate) fn raw(to: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(to) = to else { panic!("{to}") };
    let mut raw = vec![0; 16];
    raw[..2].copy_from_slice(&2_u16.to_ne_bytes());
    raw[2..4].copy_from_slice(&to.port().to_be_bytes());
    raw[4..8].copy_from_slice(&to.ip().octets());
    raw
}

pub(crate) fn std(raw: Address) -> SocketAddr {
    let raw = raw.as_bytes();
    assert_eq!(raw[..2], 2_u16.to_ne_bytes());
    let ip: [u8; 4] = raw[4..8].try_into().unwrap();
    SocketAddr::from((ip, u16::from_be_bytes([raw[2], raw[3]])))
}

/// Runs `test` on the kernel and through us; both answers.
pub(crate) fn both<T>(test: impl Fn(Way) -> T) -> (T, T) {
    daemon();
    (test(Way::Kernel), test(Way::Ours))
}

/// The same on the kernel and through us.
#[track_caller]
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(test: impl Fn(Way) -> T) -> T {
    let (kernel, ours) = both(test);
    assert_eq!(ours, kernel, "ours, then the kernel's");
    ours
}
