//! Streams of stdio on accelerated sockets.
//!
//! The C library's streams read and write with functions of its own that no symbol replaces. `fdopen` of a socket of
//! ours therefore makes a stream of callbacks (fopencookie(3)), and a program that is started with a socket of ours as
//! its standard input or output (inetd, sshd) gets such streams as `stdin`, `stdout` and `stderr` before main.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use libc::{FILE, off64_t, size_t, ssize_t};

use super::errno::{errno, set_errno};
use super::exports::{close, read, write};

/// `cookie_io_functions_t` (fopencookie(3)).
#[repr(C)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, list: *mut c_void) -> c_int;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// Where glibc's FILE keeps its descriptor (<bits/types/struct_FILE.h>, 64 bits: part of its ABI).
const FILENO_OFFSET: usize = 112;

/// What stands there in a stream of callbacks (glibc, libio/iofopncook.c).
const NO_FILENO: c_int = -2;

/// fdopen(3) when the descriptor is a socket of ours.
///
/// # Safety
/// As fdopen(3).
pub(super) unsafe fn open(fd: c_int, mode: *const c_char) -> Option<*mut FILE> {
    fs_socket::table::socket(fd)?;
    // SAFETY: by contract.
    Some(unsafe { stream(fd, mode) })
}

/// # Safety
/// As fdopen(3).
unsafe fn stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions { read: read_cookie, write: write_cookie, seek: None, close: close_cookie };
    // The cookie is the number itself.
    let cookie = ptr::without_provenance_mut(fd as usize);
    // SAFETY: the callbacks fit their types; the mode is the caller's.
    unsafe {
        let file = fopencookie(cookie, mode, functions);
        if !file.is_null() {
            // fileno(3) answers the number, as of any stream made by fdopen.
            let number = file.cast::<u8>().add(FILENO_OFFSET).cast::<c_int>();
            if *number == NO_FILENO {
                *number = fd;
            }
        }
        file
    }
}

/// dprintf(3) when the descriptor is a socket of ours.
///
/// # Safety
/// As vdprintf(3).
pub(super) unsafe fn print(fd: c_int, format: *const c_char, list: *mut c_void) -> Option<c_int> {
    fs_socket::table::socket(fd)?;
    let mut text = ptr::null_mut();
    // SAFETY: by contract; the text is freed below.
    unsafe {
        let Ok(length) = usize::try_from(vasprintf(&raw mut text, format, list)) else { return Some(-1) };
        let wrote = write_cookie(ptr::without_provenance_mut(fd as usize), text, length);
        let reason = errno();
        libc::free(text.cast());
        set_errno(reason);
        Some(if wrote as usize == length { length as c_int } else { -1 })
    }
}

/// # Safety
/// Called by stdio with its buffer.
unsafe extern "C-unwind" fn read_cookie(cookie: *mut c_void, data: *mut c_char, n: size_t) -> ssize_t {
    // SAFETY: by contract.
    unsafe { read(cookie.addr() as c_int, data.cast(), n) }
}

/// Writes everything, as stdio expects; what is short of that is an error (fopencookie(3)).
///
/// # Safety
/// Called by stdio with its buffer.
unsafe extern "C-unwind" fn write_cookie(cookie: *mut c_void, data: *const c_char, n: size_t) -> ssize_t {
    let mut done = 0;
    while done < n {
        // SAFETY: by contract.
        let wrote = unsafe { write(cookie.addr() as c_int, data.add(done).cast(), n - done) };
        match usize::try_from(wrote) {
            Ok(wrote) if wrote > 0 => done += wrote,
            _ => break,
        }
    }
    done as ssize_t
}

/// # Safety
/// Called by stdio.
unsafe extern "C-unwind" fn close_cookie(cookie: *mut c_void) -> c_int {
    // SAFETY: a descriptor number.
    unsafe { close(cookie.addr() as c_int) }
}

/// Before main: standard streams that are sockets of ours.
pub(super) fn adopt_standard_streams() {
    let streams = [(0, &raw mut stdin, c"r"), (1, &raw mut stdout, c"w"), (2, &raw mut stderr, c"w")];
    for (fd, variable, mode) in streams {
        if fs_socket::table::socket(fd).is_none() {
            continue;
        }
        // SAFETY: before main no other thread uses the variables; the C library documents them as assignable
        // (glibc manual, "Standard Streams").
        unsafe {
            let file = stream(fd, mode.as_ptr());
            if file.is_null() {
                continue;
            }
            if fd == 2 {
                libc::setvbuf(file, ptr::null_mut(), libc::_IONBF, 0);
            }
            *variable = file;
        }
    }
}
