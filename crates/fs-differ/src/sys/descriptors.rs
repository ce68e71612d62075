//! Calls that make descriptors, and ask and set what every descriptor has.

use super::calls::{LAST, answer, made, numbers, put};
use super::{bytes, options};
use crate::values::NAGLE;

/// socket(2), with TCP_NODELAY unless the program requests Nagle's algorithm.
pub fn socket(into: i32, family: i32, flags: i32) -> String {
    let answer = numbers!(socket(family, libc::SOCK_STREAM | (flags & !NAGLE), 0));
    if answer.is_ok() && flags & NAGLE == 0 {
        options::set_number(answer.value as i32, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    }
    made(answer, into)
}

/// socketpair(2) of Unix sockets, and pipe2(2).
pub fn two(socket: bool, first: i32, second: i32, flags: i32) -> String {
    let mut both = [-1; 2];
    let flags = flags & !NAGLE;
    let answer = if socket {
        // SAFETY: room for two descriptors.
        answer(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | flags, 0, both.as_mut_ptr()) })
    } else {
        // SAFETY: room for two descriptors.
        answer(unsafe { libc::pipe2(both.as_mut_ptr(), flags) })
    };
    if !answer.is_ok() {
        return answer.text();
    }
    put(first, both[0]);
    put(second, both[1]);
    format!("{} {}", both[0], both[1])
}

/// Makes a file in memory with this many bytes.
pub fn file(into: i32, bytes: i32, step: usize) -> String {
    // SAFETY: a zero-terminated string.
    let answer = answer(unsafe { libc::memfd_create(c"differ".as_ptr(), libc::MFD_CLOEXEC) });
    if answer.is_ok() {
        let content = bytes::pattern(step, bytes.max(0) as usize);
        // SAFETY: the buffer and its length.
        unsafe { libc::pwrite(answer.value as i32, content.as_ptr().cast(), content.len(), 0) };
    }
    made(answer, into)
}

/// Returns the type of the file.
pub fn stat(descriptor: i32) -> String {
    // SAFETY: zeros are a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: room for a stat.
    let answer = answer(unsafe { libc::fstat(descriptor, &raw mut stat) });
    if answer.is_ok() { format!("{:o}", stat.st_mode & libc::S_IFMT) } else { answer.text() }
}

/// close_range(2) over the slots' numbers, in order.
pub fn close_range(one: i32, other: i32) -> String {
    if one < 3 || other < 3 || one >= LAST || other >= LAST {
        return "skipped".into();
    }
    numbers!(close_range(one.min(other) as u32, one.max(other) as u32, 0)).text()
}

/// Sets a file status flag by the program's name for it.
pub fn set_nonblocking(descriptor: i32, nonblocking: bool) -> String {
    let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
    numbers!(fcntl(descriptor, libc::F_SETFL, flags)).text()
}

/// FIONBIO.
pub fn fionbio(descriptor: i32, on: i32) -> String {
    let mut on = on;
    // SAFETY: a pointer to a number.
    answer(unsafe { libc::ioctl(descriptor, libc::FIONBIO, &raw mut on) }).text()
}

/// FIONREAD, SIOCOUTQ, SIOCATMARK, SIOCOUTQNSD.
pub fn ask(descriptor: i32, what: i32) -> String {
    let request = match what {
        0 => libc::FIONREAD,
        1 => libc::TIOCOUTQ,
        2 => 0x8905,
        _ => 0x894b,
    };
    let mut number: i32 = -7;
    // SAFETY: room for the number.
    let answer = answer(unsafe { libc::ioctl(descriptor, request, &raw mut number) });
    if answer.is_ok() { format!("0 {number}") } else { answer.text() }
}
