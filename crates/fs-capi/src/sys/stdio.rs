//! Streams of stdio on accelerated sockets.
//!
//! The C library's streams read and write with functions of its own that no symbol replaces. `fdopen` of a socket of
//! ours therefore makes a stream of callbacks (fopencookie(3)), and while a socket of ours stands at the number of a
//! standard stream, from the start (inetd, sshd) or by dup2 (a shell's redirection), `stdin`, `stdout` or `stderr` is one.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

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
    fs_socket::descriptor::table::socket(fd)?;
    // SAFETY: by contract.
    Some(unsafe { stream(fd, mode) })
}

/// # Safety
/// As fdopen(3).
unsafe fn stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions { read: read_cookie, write: write_cookie, seek: Some(seek_cookie), close: close_cookie };
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
    fs_socket::descriptor::table::socket(fd)?;
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

/// As lseek(2) of a socket. Stdio takes that errno for a stream that has no place to go back to, and goes on: fflush(3) with input
/// that was not read yet, or a write after it, is no error then.
///
/// # Safety
/// Called by stdio.
unsafe extern "C-unwind" fn seek_cookie(_cookie: *mut c_void, _offset: *mut off64_t, _from: c_int) -> c_int {
    set_errno(libc::ESPIPE);
    -1
}

/// # Safety
/// Called by stdio.
unsafe extern "C-unwind" fn close_cookie(cookie: *mut c_void) -> c_int {
    // SAFETY: a descriptor number.
    unsafe { close(cookie.addr() as c_int) }
}

/// What the variables of stdio hold while the descriptor of a standard stream is a socket of ours, and what they held
/// before. Made before main: dup2(2) is called in forked children, which must not allocate.
struct Standard {
    ours: AtomicPtr<FILE>,
    before: AtomicPtr<FILE>,
}

static STANDARD: [Standard; 3] =
    [const { Standard { ours: AtomicPtr::new(ptr::null_mut()), before: AtomicPtr::new(ptr::null_mut()) } }; 3];

/// Before main: makes the streams, and puts them in place where a standard stream is a socket of ours already (inetd).
pub(super) fn prepare_standard_streams() {
    for (fd, mode) in [(0, c"r"), (1, c"w"), (2, c"w")] {
        // SAFETY: the mode is a C string; a stream just made is nobody else's.
        unsafe {
            let file = stream(fd, mode.as_ptr());
            if fd == 2 && !file.is_null() {
                libc::setvbuf(file, ptr::null_mut(), libc::_IONBF, 0);
            }
            STANDARD[fd as usize].ours.store(file, Relaxed);
        }
        placed(fd);
    }
}

/// A descriptor has come to stand for something else (dup2): the standard stream on it follows. The C library's own
/// reads and writes the placeholder; it comes back with what is no socket of ours.
pub(super) fn placed(fd: c_int) {
    let Some(Standard { ours, before }) = usize::try_from(fd).ok().and_then(|fd| STANDARD.get(fd)) else { return };
    let ours = ours.load(Relaxed);
    if ours.is_null() {
        return;
    }
    let is_ours = fs_socket::descriptor::table::socket(fd).is_some();
    // SAFETY: the C library documents its variables as assignable (glibc manual, "Standard Streams"); as with dup2
    // itself, a thread that prints meanwhile prints to either.
    unsafe {
        let variable = match fd {
            0 => &raw mut stdin,
            1 => &raw mut stdout,
            _ => &raw mut stderr,
        };
        let now = *variable;
        if is_ours && now != ours {
            before.store(now, Relaxed);
            *variable = ours;
        } else if !is_ours && now == ours {
            *variable = before.load(Relaxed);
        }
    }
}
