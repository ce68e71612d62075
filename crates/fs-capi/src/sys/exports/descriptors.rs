//! Descriptors: closed, copied, asked.

use libc::{FILE, c_char, c_int, c_uint, c_void};

use crate::sys::answer::{done, int};
use crate::sys::{cancel, real, stdio};

fall_through! {
    /// close(2).
    fn close(fd: c_int) -> c_int = {
        cancel::point();
        done(fs_socket::close(fd))
    };
    /// close_range(2).
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int =
        done(fs_socket::close_range(first, last, flags as u32));
    /// fcntl(2): the third argument, when there is one, is a word.
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int = int(fs_socket::fcntl(fd, command, argument));
    /// ioctl(2).
    fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int =
        int(fs_socket::ioctl(fd, request as u64, argument as *mut u8));
    /// fdopen(3).
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = stdio::open(fd, mode);
}

fall_through! {
    /// vdprintf(3): a va_list is passed as a pointer on both architectures.
    fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int = stdio::print(fd, format, list);
    /// vdprintf of _FORTIFY_SOURCE.
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int =
        stdio::print(fd, format, list);
}

define! {
    /// dup(2).
    fn dup(fd: c_int) -> c_int = placed(int(fs_socket::dup(fd)).unwrap_or_else(|| real::dup(fd)));
    /// dup2(2).
    fn dup2(old: c_int, new: c_int) -> c_int =
        placed(int(fs_socket::dup2(old, new)).unwrap_or_else(|| real::dup2(old, new)));
    /// dup3(2).
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int =
        placed(int(fs_socket::dup3(old, new, flags)).unwrap_or_else(|| real::dup3(old, new, flags)));
    /// The C library's other name.
    fn __close(fd: c_int) -> c_int = close(fd);
    /// The C library's other name.
    fn __dup2(old: c_int, new: c_int) -> c_int = dup2(old, new);
    /// As fcntl64: locks have 64-bit offsets either way.
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int = fcntl64(fd, command, argument);
    /// The C library's other name.
    fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int = fcntl64(fd, command, argument);
    /// closefrom(3).
    fn closefrom(first: c_int) -> () = {
        close_range(first.max(0) as c_uint, c_uint::MAX, 0);
    };
    /// pthread_cancel(3).
    fn pthread_cancel(thread: libc::pthread_t) -> c_int = {
        cancel::requested();
        let answer = real::pthread_cancel(thread);
        if answer == 0 {
            cancel::note(thread);
        }
        answer
    };
}

/// A new descriptor, which may be a standard stream's.
#[inline]
fn placed(new: c_int) -> c_int {
    if (0..=2).contains(&new) {
        stdio::placed(new);
    }
    new
}
