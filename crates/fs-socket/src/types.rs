//! The words of the calls.

use std::marker::PhantomData;

use rustix::io::Errno;

/// A descriptor number, as the application passes it (any value).
pub type Fd = i32;

/// The answer of a call: `None`: not ours, make the kernel's call; `Some`: done, the error is the kernel's errno.
pub type Ours<T> = Option<Result<T, Errno>>;

/// Flags of `send` and `recv` (`MSG_*`, <sys/socket.h>) that are acted on.
pub mod flags {
    /// Out-of-band data.
    pub const OOB: u32 = 0x1;
    /// Leave what is read in the queue.
    pub const PEEK: u32 = 0x2;
    /// `recv`: the bytes are dropped instead of copied (tcp(7)); set in `msg_flags` when a datagram was cut.
    pub const TRUNC: u32 = 0x20;
    /// This call does not block.
    pub const DONTWAIT: u32 = 0x40;
    /// Wait until everything asked for is there.
    pub const WAITALL: u32 = 0x100;
    /// Read the error queue.
    pub const ERRQUEUE: u32 = 0x2000;
    /// EPIPE comes without SIGPIPE (the caller of this crate raises the signal).
    pub const NOSIGNAL: u32 = 0x4000;
    /// More follows.
    pub const MORE: u32 = 0x8000;
    /// Not the kernel's: the call was `read` or `readv`, where nothing asked for is answered 0 at once.
    pub const FILE: u32 = 1 << 31;
    /// Descriptors that arrive are close-on-exec.
    pub const CMSG_CLOEXEC: u32 = 0x4000_0000;
}

/// A piece of memory to send, laid out as C's `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IoVec<'a> {
    base: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

/// A piece of memory to receive into, laid out as C's `struct iovec`.
#[derive(Debug)]
#[repr(C)]
pub struct IoVecMut<'a> {
    base: *mut u8,
    len: usize,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> IoVec<'a> {
    /// Of a slice.
    pub const fn new(bytes: &'a [u8]) -> Self {
        IoVec { base: bytes.as_ptr(), len: bytes.len(), life: PhantomData }
    }

    /// Where it begins; null is answered EFAULT when the length is not 0.
    pub const fn base(&self) -> *const u8 {
        self.base
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Nothing to send.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<'a> IoVecMut<'a> {
    /// Of a slice.
    pub const fn new(bytes: &'a mut [u8]) -> Self {
        IoVecMut { base: bytes.as_mut_ptr(), len: bytes.len(), life: PhantomData }
    }

    /// Where it begins; null is answered EFAULT when the length is not 0.
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// No room.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// What a `recv` brought. A stream gives no source address and no ancillary data: the caller of `recvmsg` answers
/// `msg_namelen` and `msg_controllen` 0, as the kernel does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes; 0 at the end of the stream.
    pub bytes: usize,
    /// `msg_flags`.
    pub flags: u32,
}

/// A socket address in the kernel's form (`struct sockaddr_*`); at most `sockaddr_storage`'s 128 bytes.
#[derive(Clone, Copy)]
pub struct Address {
    bytes: [u8; 128],
    len: usize,
}

impl Address {
    /// Of raw bytes; what is beyond 128 is dropped.
    pub fn new(raw: &[u8]) -> Self {
        let mut bytes = [0; 128];
        let len = raw.len().min(128);
        bytes[..len].copy_from_slice(&raw[..len]);
        Address { bytes, len }
    }

    /// The address as the kernel would copy it out (the caller cuts it to the room there is and answers the full length).
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Address").field(&self.as_bytes()).finish()
    }
}
