//! System calls as they are, on raw bytes: the C library's functions of these names are our own under preload.

use rustix::io::Errno;

use crate::types::{Address, Fd};

/// Numbers that differ by architecture.
#[cfg(target_arch = "x86_64")]
mod nr {
    pub(super) const CLOSE: usize = 3;
    pub(super) const IOCTL: usize = 16;
    pub(super) const DUP: usize = 32;
    pub(super) const SOCKET: usize = 41;
    pub(super) const CONNECT: usize = 42;
    pub(super) const SHUTDOWN: usize = 48;
    pub(super) const BIND: usize = 49;
    pub(super) const LISTEN: usize = 50;
    pub(super) const GETSOCKNAME: usize = 51;
    pub(super) const GETPEERNAME: usize = 52;
    pub(super) const SETSOCKOPT: usize = 54;
    pub(super) const GETSOCKOPT: usize = 55;
    pub(super) const FCNTL: usize = 72;
    pub(super) const ACCEPT4: usize = 288;
    pub(super) const DUP3: usize = 292;
    pub(super) const PREAD64: usize = 17;
    pub(super) const READ: usize = 0;
    pub(super) const WRITE: usize = 1;
    pub(super) const LSEEK: usize = 8;
    pub(super) const SENDTO: usize = 44;
    pub(super) const RECVFROM: usize = 45;
}
#[cfg(target_arch = "aarch64")]
mod nr {
    pub(super) const CLOSE: usize = 57;
    pub(super) const IOCTL: usize = 29;
    pub(super) const DUP: usize = 23;
    pub(super) const SOCKET: usize = 198;
    pub(super) const CONNECT: usize = 203;
    pub(super) const SHUTDOWN: usize = 210;
    pub(super) const BIND: usize = 200;
    pub(super) const LISTEN: usize = 201;
    pub(super) const GETSOCKNAME: usize = 204;
    pub(super) const GETPEERNAME: usize = 205;
    pub(super) const SETSOCKOPT: usize = 208;
    pub(super) const GETSOCKOPT: usize = 209;
    pub(super) const FCNTL: usize = 25;
    pub(super) const ACCEPT4: usize = 242;
    pub(super) const DUP3: usize = 24;
    pub(super) const PREAD64: usize = 67;
    pub(super) const READ: usize = 63;
    pub(super) const WRITE: usize = 64;
    pub(super) const LSEEK: usize = 62;
    pub(super) const SENDTO: usize = 206;
    pub(super) const RECVFROM: usize = 207;
}
const CLOSE_RANGE: usize = 436;

/// One system call.
///
/// # Safety
/// The arguments must be what system call `number` asks for.
pub unsafe fn call(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> Result<usize, Errno> {
    let answer: isize;
    // SAFETY: the registers are the architecture's system call convention; what memory the kernel touches is the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack, preserves_flags)
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack, preserves_flags)
        );
    }
    if answer < 0 { Err(Errno::from_raw_os_error(-answer as i32)) } else { Ok(answer as usize) }
}

/// `close(2)`.
pub fn close(fd: Fd) -> Result<(), Errno> {
    // SAFETY: a number; whose descriptor it is is the table's business.
    unsafe { call(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) }.map(drop)
}

/// `close_range(2)`.
pub fn close_range(first: u32, last: u32, flags: u32) -> Result<(), Errno> {
    // SAFETY: numbers.
    unsafe { call(CLOSE_RANGE, [first as usize, last as usize, flags as usize, 0, 0, 0]) }.map(drop)
}

/// `dup(2)`.
pub fn dup(fd: Fd) -> Result<Fd, Errno> {
    // SAFETY: a number.
    unsafe { call(nr::DUP, [fd as usize, 0, 0, 0, 0, 0]) }.map(|fd| fd as Fd)
}

/// `dup3(2)`.
pub fn dup3(old: Fd, new: Fd, flags: i32) -> Result<Fd, Errno> {
    // SAFETY: numbers.
    unsafe { call(nr::DUP3, [old as usize, new as usize, flags as usize, 0, 0, 0]) }.map(|fd| fd as Fd)
}

/// `fcntl(2)` with a number as its argument.
pub fn fcntl(fd: Fd, command: i32, argument: usize) -> Result<i32, Errno> {
    // SAFETY: the commands used in this crate take a number or nothing.
    unsafe { call(nr::FCNTL, [fd as usize, command as usize, argument, 0, 0, 0]) }.map(|value| value as i32)
}

/// `ioctl(2)`.
///
/// # Safety
/// `argument` must be what `request` asks for.
pub unsafe fn ioctl(fd: Fd, request: u64, argument: *mut u8) -> Result<i32, Errno> {
    // SAFETY: the caller's promise.
    unsafe { call(nr::IOCTL, [fd as usize, request as usize, argument as usize, 0, 0, 0]) }.map(|value| value as i32)
}

/// `socket(2)`.
pub fn socket(family: i32, kind: i32, protocol: i32) -> Result<Fd, Errno> {
    // SAFETY: numbers.
    unsafe { call(nr::SOCKET, [family as usize, kind as usize, protocol as usize, 0, 0, 0]) }.map(|fd| fd as Fd)
}

/// `bind(2)`.
pub fn bind(fd: Fd, address: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel reads the slice.
    unsafe { call(nr::BIND, [fd as usize, address.as_ptr() as usize, address.len(), 0, 0, 0]) }.map(drop)
}

/// `connect(2)`.
pub fn connect(fd: Fd, address: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel reads the slice.
    unsafe { call(nr::CONNECT, [fd as usize, address.as_ptr() as usize, address.len(), 0, 0, 0]) }.map(drop)
}

/// `listen(2)`.
pub fn listen(fd: Fd, backlog: i32) -> Result<(), Errno> {
    // SAFETY: numbers.
    unsafe { call(nr::LISTEN, [fd as usize, backlog as usize, 0, 0, 0, 0]) }.map(drop)
}

/// `shutdown(2)`.
pub fn shutdown(fd: Fd, how: i32) -> Result<(), Errno> {
    // SAFETY: numbers.
    unsafe { call(nr::SHUTDOWN, [fd as usize, how as usize, 0, 0, 0, 0]) }.map(drop)
}

/// `accept4(2)`.
pub fn accept4(fd: Fd, flags: i32) -> Result<(Fd, Address), Errno> {
    let mut new = 0;
    let address = named(|bytes, len| {
        // SAFETY: `bytes` has room for `len`, which the kernel reads and writes.
        new = unsafe { call(nr::ACCEPT4, [fd as usize, bytes, len, flags as usize, 0, 0]) }?;
        Ok(())
    })?;
    Ok((new as Fd, address))
}

/// `getsockname(2)`.
pub fn getsockname(fd: Fd) -> Result<Address, Errno> {
    // SAFETY: `bytes` has room for `len`, which the kernel reads and writes.
    named(|bytes, len| unsafe { call(nr::GETSOCKNAME, [fd as usize, bytes, len, 0, 0, 0]) }.map(drop))
}

/// `getpeername(2)`.
pub fn getpeername(fd: Fd) -> Result<Address, Errno> {
    // SAFETY: `bytes` has room for `len`, which the kernel reads and writes.
    named(|bytes, len| unsafe { call(nr::GETPEERNAME, [fd as usize, bytes, len, 0, 0, 0]) }.map(drop))
}

/// Runs a call that fills in an address: it gets the room's address and the address of its length (`socklen_t`).
fn named(ask: impl FnOnce(usize, usize) -> Result<(), Errno>) -> Result<Address, Errno> {
    let mut bytes = [0_u8; 128];
    let mut len = 128_u32;
    ask(bytes.as_mut_ptr() as usize, &raw mut len as usize)?;
    Ok(Address::new(&bytes[..(len as usize).min(128)]))
}

/// `setsockopt(2)`.
pub fn setsockopt(fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let arguments = [fd as usize, level as usize, name as usize, value.as_ptr() as usize, value.len(), 0];
    // SAFETY: the kernel reads the slice.
    unsafe { call(nr::SETSOCKOPT, arguments) }.map(drop)
}

/// `getsockopt(2)`: the length the kernel answers.
pub fn getsockopt(fd: Fd, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno> {
    let mut len = value.len() as u32;
    let arguments = [fd as usize, level as usize, name as usize, value.as_mut_ptr() as usize, &raw mut len as usize, 0];
    // SAFETY: the kernel writes at most `len` bytes into the slice, and then the length.
    unsafe { call(nr::GETSOCKOPT, arguments) }?;
    Ok(len as usize)
}

/// An option that is an `int`.
pub fn int_option(fd: Fd, level: i32, name: i32) -> Result<i32, Errno> {
    let mut value = [0; 4];
    getsockopt(fd, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

/// `read(2)`.
pub fn read(fd: Fd, bytes: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes into the slice.
    unsafe { call(nr::READ, [fd as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// `pread64(2)`.
pub fn pread(fd: Fd, bytes: &mut [u8], offset: i64) -> Result<usize, Errno> {
    // SAFETY: the kernel writes into the slice.
    unsafe { call(nr::PREAD64, [fd as usize, bytes.as_mut_ptr() as usize, bytes.len(), offset as usize, 0, 0]) }
}

/// `write(2)`.
pub fn write(fd: Fd, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel reads the slice.
    unsafe { call(nr::WRITE, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// `lseek(2)`.
pub fn lseek(fd: Fd, offset: i64, whence: i32) -> Result<i64, Errno> {
    // SAFETY: numbers.
    unsafe { call(nr::LSEEK, [fd as usize, offset as usize, whence as usize, 0, 0, 0]) }.map(|at| at as i64)
}

/// `sendto(2)` without an address.
pub fn sendto(fd: Fd, bytes: &[u8], flags: u32) -> Result<usize, Errno> {
    // SAFETY: the kernel reads the slice.
    unsafe { call(nr::SENDTO, [fd as usize, bytes.as_ptr() as usize, bytes.len(), flags as usize, 0, 0]) }
}

/// `recvfrom(2)` without an address.
pub fn recvfrom(fd: Fd, room: &mut [u8], flags: u32) -> Result<usize, Errno> {
    // SAFETY: the kernel writes into the slice.
    unsafe { call(nr::RECVFROM, [fd as usize, room.as_mut_ptr() as usize, room.len(), flags as usize, 0, 0]) }
}
