//! [`SockAddr`] and its storage.
#![allow(unsafe_code)]

use super::names::Domain;
use std::hash::{Hash, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fmt, io};

/// The type of an address's length.
#[allow(non_camel_case_types)]
pub type socklen_t = libc::socklen_t;
/// The type of an address's family.
#[allow(non_camel_case_types)]
pub type sa_family_t = libc::sa_family_t;

/// Storage for an address of any family (`sockaddr_storage`).
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct SockAddrStorage {
    bytes: [u8; size_of::<libc::sockaddr_storage>()],
}

const _: () = assert!(size_of::<SockAddrStorage>() == size_of::<libc::sockaddr_storage>());
const _: () = assert!(align_of::<SockAddrStorage>() == align_of::<libc::sockaddr_storage>());

impl SockAddrStorage {
    /// Returns storage that is all zero.
    pub const fn zeroed() -> Self {
        Self { bytes: [0; size_of::<libc::sockaddr_storage>()] }
    }

    /// Returns its size in bytes.
    pub const fn size_of(&self) -> socklen_t {
        size_of::<Self>() as socklen_t
    }

    /// Returns the same memory as one of the `sockaddr_*` types.
    ///
    /// # Safety
    ///
    /// `T` is one of the system's `sockaddr_*` types.
    pub unsafe fn view_as<T>(&mut self) -> &mut T {
        assert!(size_of::<T>() <= size_of::<Self>() && align_of::<T>() <= align_of::<Self>());
        // SAFETY: large and aligned enough, as just asserted; every bit pattern is a value of the
        // `sockaddr_*` types.
        unsafe { &mut *(&raw mut *self).cast() }
    }

    fn put<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        self.bytes[at..at + N].copy_from_slice(&value);
    }

    fn at<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes[at..at + N].try_into().expect("N bytes")
    }
}

impl fmt::Debug for SockAddrStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = sa_family_t::from_ne_bytes(self.at(0));
        f.debug_struct("sockaddr_storage").field("ss_family", &family).finish_non_exhaustive()
    }
}

/// A socket address of any family.
///
/// ```
/// use fs_compat::socket2::SockAddr;
/// use std::net::SocketAddr;
///
/// let std: SocketAddr = "127.0.0.1:80".parse().unwrap();
/// let addr = SockAddr::from(std);
/// assert!(addr.is_ipv4());
/// assert_eq!(addr.as_socket(), Some(std));
/// ```
#[derive(Clone)]
pub struct SockAddr {
    storage: SockAddrStorage,
    len: socklen_t,
}

/// Offsets in `sockaddr_in`, `sockaddr_in6`, `sockaddr_un` and `sockaddr_vm`.
const PORT: usize = 2;
const V4_ADDR: usize = 4;
const V6_FLOW: usize = 4;
const V6_ADDR: usize = 8;
const V6_SCOPE: usize = 24;
const PATH: usize = 2;
const VM_PORT: usize = 4;
const VM_CID: usize = 8;

#[allow(clippy::len_without_is_empty)]
impl SockAddr {
    /// Creates an address from its storage and length.
    ///
    /// # Safety
    ///
    /// The storage must hold an address of that length, with its family.
    pub const unsafe fn new(storage: SockAddrStorage, len: socklen_t) -> SockAddr {
        SockAddr::from_parts(storage, len)
    }

    /// Wraps an address that the kernel returned. Of a longer address, the storage has the
    /// beginning.
    pub(crate) const fn from_parts(storage: SockAddrStorage, len: socklen_t) -> SockAddr {
        let room = storage.size_of();
        SockAddr { storage, len: if len > room { room } else { len } }
    }

    /// Copies the bytes of an address. Bytes beyond `sockaddr_storage` are dropped.
    pub(crate) fn from_bytes(bytes: &[u8]) -> SockAddr {
        let mut storage = SockAddrStorage::zeroed();
        let len = bytes.len().min(storage.bytes.len());
        storage.bytes[..len].copy_from_slice(&bytes[..len]);
        SockAddr { storage, len: len as socklen_t }
    }

    /// Creates an address that `init` writes, for example by a system call.
    ///
    /// # Safety
    ///
    /// `init` must write a whole address of its family, and its length.
    pub unsafe fn try_init<F, T>(init: F) -> io::Result<(T, SockAddr)>
    where
        F: FnOnce(*mut SockAddrStorage, *mut socklen_t) -> io::Result<T>,
    {
        let mut storage = SockAddrStorage::zeroed();
        let mut len = storage.size_of();
        let value = init(&raw mut storage, &raw mut len)?;
        Ok((value, SockAddr::from_parts(storage, len)))
    }

    /// Creates a Unix address: a path, an abstract name (first byte zero), or for an empty path the
    /// unnamed address.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a path that is too long for `sockaddr_un`.
    pub fn unix<P: AsRef<Path>>(path: P) -> io::Result<SockAddr> {
        let path = path.as_ref().as_os_str().as_bytes();
        let room = size_of::<libc::sockaddr_un>() - PATH;
        let is_abstract = path.first() == Some(&0);
        // A pathname is followed by a zero byte.
        let terminator = usize::from(!is_abstract && !path.is_empty());
        if path.len() + terminator > room {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "path must be shorter than SUN_LEN"));
        }
        let mut storage = Self::of_family(libc::AF_UNIX);
        storage.bytes[PATH..PATH + path.len()].copy_from_slice(path);
        Ok(SockAddr { storage, len: (PATH + path.len() + terminator) as socklen_t })
    }

    /// Creates an AF_VSOCK address.
    pub fn vsock(cid: u32, port: u32) -> SockAddr {
        let mut storage = Self::of_family(libc::AF_VSOCK);
        storage.put(VM_PORT, port.to_ne_bytes());
        storage.put(VM_CID, cid.to_ne_bytes());
        SockAddr { storage, len: size_of::<libc::sockaddr_vm>() as socklen_t }
    }

    fn of_family(family: i32) -> SockAddrStorage {
        let mut storage = SockAddrStorage::zeroed();
        storage.put(0, (family as sa_family_t).to_ne_bytes());
        storage
    }

    /// Sets the length.
    ///
    /// # Safety
    ///
    /// The storage must hold an address of that length.
    pub unsafe fn set_length(&mut self, length: socklen_t) {
        self.len = length.min(self.storage.size_of());
    }

    /// Returns the family: AF_INET, AF_INET6, …
    pub const fn family(&self) -> sa_family_t {
        sa_family_t::from_ne_bytes([self.storage.bytes[0], self.storage.bytes[1]])
    }

    /// Returns the family as a domain.
    pub const fn domain(&self) -> Domain {
        Domain::new(self.family() as i32)
    }

    /// Returns the length of the address in bytes.
    pub const fn len(&self) -> socklen_t {
        self.len
    }

    /// Returns a pointer to the address, for a system call.
    pub const fn as_ptr(&self) -> *const SockAddrStorage {
        &raw const self.storage
    }

    /// Returns the storage.
    pub const fn as_storage(self) -> SockAddrStorage {
        self.storage
    }

    /// Returns true for AF_INET.
    pub const fn is_ipv4(&self) -> bool {
        self.family() as i32 == libc::AF_INET
    }

    /// Returns true for AF_INET6.
    pub const fn is_ipv6(&self) -> bool {
        self.family() as i32 == libc::AF_INET6
    }

    /// Returns true for AF_UNIX.
    pub fn is_unix(&self) -> bool {
        i32::from(self.family()) == libc::AF_UNIX
    }

    /// Returns the address as std's type, if it is IPv4 or IPv6.
    pub fn as_socket(&self) -> Option<SocketAddr> {
        let port = u16::from_be_bytes(self.storage.at(PORT));
        match i32::from(self.family()) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(self.storage.at::<4>(V4_ADDR));
                Some(SocketAddrV4::new(ip, port).into())
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(self.storage.at::<16>(V6_ADDR));
                let flow = u32::from_ne_bytes(self.storage.at(V6_FLOW));
                let scope = u32::from_ne_bytes(self.storage.at(V6_SCOPE));
                Some(SocketAddrV6::new(ip, port, flow, scope).into())
            }
            _ => None,
        }
    }

    /// Returns the address if it is IPv4.
    pub fn as_socket_ipv4(&self) -> Option<SocketAddrV4> {
        match self.as_socket() {
            Some(SocketAddr::V4(addr)) => Some(addr),
            _ => None,
        }
    }

    /// Returns the address if it is IPv6.
    pub fn as_socket_ipv6(&self) -> Option<SocketAddrV6> {
        match self.as_socket() {
            Some(SocketAddr::V6(addr)) => Some(addr),
            _ => None,
        }
    }

    /// Returns CID and port if it is AF_VSOCK.
    pub fn as_vsock_address(&self) -> Option<(u32, u32)> {
        (i32::from(self.family()) == libc::AF_VSOCK).then(|| {
            let port = u32::from_ne_bytes(self.storage.at(VM_PORT));
            (u32::from_ne_bytes(self.storage.at(VM_CID)), port)
        })
    }

    /// Returns true for a Unix address without a name.
    pub fn is_unnamed(&self) -> bool {
        self.is_unix() && self.len as usize == PATH
    }

    /// Returns the path as std's Unix address, if it has one.
    pub fn as_unix(&self) -> Option<std::os::unix::net::SocketAddr> {
        std::os::unix::net::SocketAddr::from_pathname(self.as_pathname()?).ok()
    }

    /// Returns the path, if it is a Unix address with a path.
    pub fn as_pathname(&self) -> Option<&Path> {
        let name = self.unix_name()?;
        // The kernel counts the zero byte after the path, except in the longest one.
        let path = name.split(|&byte| byte == 0).next()?;
        (!path.is_empty()).then(|| Path::new(std::ffi::OsStr::from_bytes(path)))
    }

    /// Returns the abstract name without its leading zero byte, if it is a Unix address with one.
    pub fn as_abstract_namespace(&self) -> Option<&[u8]> {
        match self.unix_name()? {
            [0, name @ ..] => Some(name),
            _ => None,
        }
    }

    fn unix_name(&self) -> Option<&[u8]> {
        if !self.is_unix() { None } else { self.storage.bytes.get(PATH..self.len as usize) }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.storage.bytes[..self.len as usize]
    }
}

impl From<SocketAddr> for SockAddr {
    fn from(addr: SocketAddr) -> SockAddr {
        match addr {
            SocketAddr::V4(addr) => addr.into(),
            SocketAddr::V6(addr) => addr.into(),
        }
    }
}

impl From<SocketAddrV4> for SockAddr {
    fn from(addr: SocketAddrV4) -> SockAddr {
        let mut storage = Self::of_family(libc::AF_INET);
        storage.put(PORT, addr.port().to_be_bytes());
        storage.put(V4_ADDR, addr.ip().octets());
        SockAddr { storage, len: size_of::<libc::sockaddr_in>() as socklen_t }
    }
}

impl From<SocketAddrV6> for SockAddr {
    fn from(addr: SocketAddrV6) -> SockAddr {
        let mut storage = Self::of_family(libc::AF_INET6);
        storage.put(PORT, addr.port().to_be_bytes());
        storage.put(V6_FLOW, addr.flowinfo().to_ne_bytes());
        storage.put(V6_ADDR, addr.ip().octets());
        storage.put(V6_SCOPE, addr.scope_id().to_ne_bytes());
        SockAddr { storage, len: size_of::<libc::sockaddr_in6>() as socklen_t }
    }
}

impl fmt::Debug for SockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SockAddr").field("ss_family", &self.family()).field("len", &self.len).finish()
    }
}

impl PartialEq for SockAddr {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for SockAddr {}

impl Hash for SockAddr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}
