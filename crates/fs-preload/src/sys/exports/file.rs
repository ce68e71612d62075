//! Files and sockets: sendfile(2), splice(2), asynchronous I/O, streams.

use core::ffi::{c_char, c_void};
use core::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use libc::{FILE, aiocb, c_int, c_uint, off_t, pollfd, sigevent, size_t, ssize_t};
use rustix::io::Errno;

use super::send::by_kernel;
use super::{data_call, stream_bytes};
use crate::descriptor;
use crate::slot::Direction;
use crate::socket::Socket;
use crate::sys::errno::{answer, answer_sent, checked};
use crate::sys::kernel::Fd;
use crate::sys::{memory, real};

/// The largest part of a file that is sent by the ring.
const BY_RING: usize = 16 << 10;
/// Flags of splice(2).
const SPLICE_FLAGS: c_uint = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
/// Bytes of a file or of a ring's rest that are copied at once, on the stack of a thread that may
/// be small. A pipe takes as many at once (`PIPE_BUF`), or none.
const PIECE: usize = 4096;

define! {
    /// sendfile(2). Without an offset, and to a pipe, it is splice(2) of any file (`do_sendfile()`
    /// of fs/read_write.c, since Linux 5.12).
    fn sendfile(out: c_int, input: c_int, offset: *mut off_t, n: size_t) -> ssize_t = {
        if offset.is_null() && descriptor::is_known(input) && is_pipe(out) {
            return splice(input, core::ptr::null_mut(), out, core::ptr::null_mut(), n, 0);
        }
        data_call(out, Direction::Send, || real::sendfile(out, input, offset, n), stream_bytes,
            |socket| Some(send_file(socket, input, offset, n, || real::sendfile(out, input, offset, n))))
    };
    /// Like sendfile: file offsets have 64 bits either way.
    fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, n: size_t) -> ssize_t = sendfile(out, input, offset, n);
    /// splice(2) to a socket is as sendfile; from a socket, the kernel carries for good.
    fn splice(input: c_int, in_offset: *mut i64, out: c_int, out_offset: *mut i64, n: size_t, flags: c_uint) -> ssize_t =
        data_call(input, Direction::Receive, || splice_out(input, in_offset, out, out_offset, n, flags), stream_bytes, |socket| {
            // The kernel returns the error, and moves nothing: an offset, unknown flags, no pipe.
            if !in_offset.is_null() || !out_offset.is_null() || flags & !SPLICE_FLAGS != 0 || !is_pipe(out) {
                return None;
            }
            socket.pin();
            if !socket.pair().has_ring_bytes() {
                return None;
            }
            Some(splice_rest(socket, out, n, flags))
        });
    /// aio_read(3) reads in a thread of the C library.
    fn aio_read(block: *mut aiocb) -> c_int = {
        leave_block(block);
        real::aio_read(block)
    };
    /// Like aio_read: file offsets have 64 bits either way.
    fn aio_read64(block: *mut aiocb) -> c_int = aio_read(block);
    /// aio_write(3): a thread of the C library writes.
    fn aio_write(block: *mut aiocb) -> c_int = {
        leave_block(block);
        real::aio_write(block)
    };
    /// Like aio_write.
    fn aio_write64(block: *mut aiocb) -> c_int = aio_write(block);
    /// lio_listio(3): as aio_read and aio_write.
    fn lio_listio(mode: c_int, list: *const *mut aiocb, n: c_int, event: *mut sigevent) -> c_int = {
        for i in 0..usize::try_from(n).unwrap_or(0) {
            let block = list.wrapping_add(i);
            if memory::is_readable(block, size_of::<*mut aiocb>()) {
                leave_block(*block);
            }
        }
        real::lio_listio(mode, list, n, event)
    };
    /// Like lio_listio.
    fn lio_listio64(mode: c_int, list: *const *mut aiocb, n: c_int, event: *mut sigevent) -> c_int =
        lio_listio(mode, list, n, event);
    /// io_uring_queue_init(3) of liburing, whose system calls no symbol replaces.
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int = {
        allowed_io_uring(ring, real::io_uring_queue_init(entries, ring, flags))
    };
    /// Like io_uring_queue_init.
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int = {
        allowed_io_uring(ring, real::io_uring_queue_init_params(entries, ring, parameters))
    };
    /// Like io_uring_queue_init.
    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, size: size_t) -> c_int = {
        allowed_io_uring(ring, real::io_uring_queue_init_mem(entries, ring, parameters, memory, size))
    };
    /// io_uring_setup(2) of liburing, which returns a negative error number.
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int = {
        let ring = real::io_uring_setup(entries, parameters);
        if ring < 0 || descriptor::may_use_io_uring() { ring } else { refuse_io_uring(ring.into(), parameters.cast()) }
    };
    /// fdopen(3): the stream reads and writes by functions that no symbol replaces.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = {
        // Others are EINVAL (fdopen(3)).
        if memory::is_readable(mode, 1) && matches!((*mode).cast_unsigned(), b'r' | b'w' | b'a') {
            descriptor::leave_to_other(fd);
        }
        real::fdopen(fd, mode)
    };
    /// vdprintf(3) writes by a function that no symbol replaces. A va_list argument is an address on both platforms.
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int = {
        descriptor::leave_to_kernel(fd);
        real::vdprintf(fd, format, arguments)
    };
    /// vdprintf with _FORTIFY_SOURCE.
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int = {
        descriptor::leave_to_kernel(fd);
        real::__vdprintf_chk(fd, flag, format, arguments)
    };
    /// backtrace_symbols_fd(3) writes as vdprintf does.
    fn backtrace_symbols_fd(buffer: *const *mut c_void, n: c_int, fd: c_int) -> () = {
        descriptor::leave_to_kernel(fd);
        real::backtrace_symbols_fd(buffer, n, fd)
    };
}

/// Ends a new io_uring if a ring has unread bytes, which it would miss. Nobody has used it yet.
///
/// # Safety
/// `ring` is liburing's, and `result` is that of its creation.
unsafe fn allowed_io_uring(ring: *mut c_void, result: c_int) -> c_int {
    if result < 0 || descriptor::may_use_io_uring() {
        return result;
    }
    // SAFETY: it was created.
    unsafe { real::io_uring_queue_exit(ring) };
    -libc::EPERM
}

/// Reads and sends a small part of a file through the ring, if the ring carries. Otherwise the
/// kernel makes the call.
///
/// # Safety
/// Like sendfile(2); `call` is the application's.
unsafe fn send_file(
    socket: &Socket,
    input: c_int,
    offset: *mut off_t,
    n: usize,
    call: impl Fn() -> ssize_t,
) -> ssize_t {
    if let Some(result) = socket.pair().send_if_kernel_carries(false, || checked(call())) {
        return answer(result);
    }
    // SAFETY: by contract.
    if let Some(sent) = unsafe { send_file_by_ring(socket, input, offset, n) } {
        return answer_sent(sent, false);
    }
    by_kernel(socket, false, call)
}

/// Reads and sends. Returns `None` if nothing was sent, and the kernel's call is right or returns
/// the error.
///
/// # Safety
/// Like sendfile(2).
unsafe fn send_file_by_ring(
    socket: &Socket,
    input: c_int,
    offset: *mut off_t,
    n: usize,
) -> Option<Result<usize, Errno>> {
    // Without an offset, the file's own position moves, which other processes may share.
    if input < 0 || !memory::is_writable(offset, size_of::<off_t>()) {
        return None;
    }
    // SAFETY: writable. The application keeps its file open during the call.
    let (at, file) = unsafe { (u64::try_from(offset.read_unaligned()).ok()?, BorrowedFd::borrow_raw(input)) };
    let about = rustix::fs::fstat(file).ok()?;
    // Reading another kind of file may consume bytes. Files of /proc have no size, and some of them
    // cannot be sent.
    let is_regular = rustix::fs::FileType::from_raw_mode(about.st_mode).is_file();
    let n = n.min(usize::try_from(u64::try_from(about.st_size).ok()?.checked_sub(at)?).ok()?);
    if !is_regular || n > BY_RING {
        return None;
    }
    let (mut piece, mut sent) = ([const { MaybeUninit::uninit() }; PIECE], 0);
    while sent < n {
        let part = &mut piece[..(n - sent).min(PIECE)];
        let Ok((bytes, _)) = rustix::io::pread(file, part, at + sent as u64) else { break };
        if bytes.is_empty() {
            break;
        }
        match socket.send(bytes, false) {
            Ok(more) => sent += more,
            Err(error) if sent == 0 => return Some(Err(error)),
            Err(error) => {
                socket.keep_error(error);
                break;
            }
        }
    }
    if sent == 0 {
        return None;
    }
    // SAFETY: writable.
    unsafe { offset.write_unaligned((at + sent as u64) as off_t) };
    Some(Ok(sent))
}

/// # Safety
/// Like splice(2).
unsafe fn splice_out(
    input: c_int,
    in_offset: *mut i64,
    out: c_int,
    out_offset: *mut i64,
    n: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: by contract.
    let call = || unsafe { real::splice(input, in_offset, out, out_offset, n, flags) };
    data_call(out, Direction::Send, call, stream_bytes, |socket| {
        Some(by_kernel(socket, flags & libc::SPLICE_F_MORE != 0, call))
    })
}

/// Moves the rest of a pinned ring through a buffer. Bytes that do not fit into the pipe stay in
/// the ring.
fn splice_rest(socket: &Socket, out: c_int, n: usize, flags: c_uint) -> ssize_t {
    let mut room = pollfd { fd: out, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry.
    if flags & libc::SPLICE_F_NONBLOCK != 0 && unsafe { real::poll(&raw mut room, 1, 0) } == 0 {
        return answer(Err(Errno::AGAIN));
    }
    let mut buffer = [0; PIECE];
    let into = &mut buffer[..n.min(PIECE)];
    let got = match socket.receive(into, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(got) => got,
        Err(error) => return answer(Err(error)),
    };
    // SAFETY: so many bytes were received.
    let wrote = unsafe { real::write(out, into.as_ptr().cast(), got) };
    if wrote > 0 {
        let _taken = socket.receive(&mut into[..wrote as usize], libc::MSG_DONTWAIT);
    }
    wrote
}

fn is_pipe(fd: c_int) -> bool {
    // With a negative number the kernel's call returns the error.
    fd >= 0
        && rustix::fs::fstat(Fd::new(fd).borrow())
            .is_ok_and(|about| rustix::fs::FileType::from_raw_mode(about.st_mode).is_fifo())
}

/// # Safety
/// Like aio_read(3).
unsafe fn leave_block(block: *const aiocb) {
    if memory::is_readable(block, size_of::<aiocb>()) {
        // SAFETY: readable.
        descriptor::leave_to_other(unsafe { (*block).aio_fildes });
    }
}

/// Closes a new io_uring, and returns the negative error number of a host where io_uring is
/// forbidden (kernel.io_uring_disabled).
///
/// # Safety
/// `parameters` are those of a successful io_uring_setup(2).
pub(super) unsafe fn refuse_io_uring(ring: libc::c_long, parameters: *const u32) -> c_int {
    /// `IORING_SETUP_REGISTERED_FD_ONLY`: the result is an index of the thread's, which ends with
    /// the thread, and no descriptor.
    const REGISTERED_FD_ONLY: u32 = 1 << 15;
    // SAFETY: the kernel has read and written them. The flags are the third word (struct io_uring_params).
    if unsafe { parameters.add(2).read_unaligned() } & REGISTERED_FD_ONLY == 0 {
        // SAFETY: nobody else knows the descriptor.
        unsafe { real::close(ring as c_int) };
    }
    -libc::EPERM
}
