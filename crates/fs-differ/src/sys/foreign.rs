//! Calls that no exported function of a preloaded library stands for, or not under their own name.

use super::calls::Answer;
use io_uring::{IoUring, opcode, squeue, types};

/// The way in which a call reaches the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// syscall(2).
    ByNumber,
    /// POSIX AIO: a thread of the C library.
    Aio,
    /// io_uring.
    Uring,
    /// The processor's instruction.
    Direct,
}

/// Calls `sendto(descriptor, data, length, flags)`, or with AIO, which has no flags, write(2).
pub fn send(form: Form, descriptor: i32, bytes: &mut [u8], flags: i32) -> Answer {
    let length = bytes.len() as u32;
    match form {
        Form::ByNumber => by_number(libc::SYS_sendto, descriptor, bytes, flags),
        Form::Direct => direct(libc::SYS_sendto, descriptor, bytes, flags),
        Form::Aio => aio(descriptor, bytes, true),
        Form::Uring => uring(opcode::Send::new(types::Fd(descriptor), bytes.as_ptr(), length).flags(flags).build()),
    }
}

/// Calls `recvfrom(descriptor, data, length, flags)`, or with AIO read(2).
pub fn receive(form: Form, descriptor: i32, bytes: &mut [u8], flags: i32) -> Answer {
    let length = bytes.len() as u32;
    match form {
        Form::ByNumber => by_number(libc::SYS_recvfrom, descriptor, bytes, flags),
        Form::Direct => direct(libc::SYS_recvfrom, descriptor, bytes, flags),
        Form::Aio => aio(descriptor, bytes, false),
        Form::Uring => uring(opcode::Recv::new(types::Fd(descriptor), bytes.as_mut_ptr(), length).flags(flags).build()),
    }
}

fn by_number(number: libc::c_long, descriptor: i32, bytes: &mut [u8], flags: i32) -> Answer {
    // SAFETY: the buffer and its length; no address.
    super::calls::answer(unsafe {
        libc::syscall(number, descriptor, bytes.as_mut_ptr(), bytes.len(), flags, std::ptr::null_mut::<u8>(), 0usize)
    })
}

fn of_result(result: i64) -> Answer {
    if result < 0 { Answer { value: -1, errno: -result as i32 } } else { Answer { value: result, errno: 0 } }
}

#[cfg(target_arch = "x86_64")]
fn direct(number: libc::c_long, descriptor: i32, bytes: &mut [u8], flags: i32) -> Answer {
    let result: i64;
    // SAFETY: sendto(2) or recvfrom(2) with the buffer and its length; no address.
    unsafe {
        std::arch::asm!(
            "syscall", inlateout("rax") number => result, in("rdi") i64::from(descriptor), in("rsi") bytes.as_mut_ptr(),
            in("rdx") bytes.len(), in("r10") i64::from(flags), in("r8") 0, in("r9") 0, lateout("rcx") _, lateout("r11") _
        );
    }
    of_result(result)
}

#[cfg(not(target_arch = "x86_64"))]
fn direct(number: libc::c_long, descriptor: i32, bytes: &mut [u8], flags: i32) -> Answer {
    by_number(number, descriptor, bytes, flags)
}

fn aio(descriptor: i32, bytes: &mut [u8], sends: bool) -> Answer {
    // SAFETY: zeros are a valid block.
    let mut block: libc::aiocb = unsafe { std::mem::zeroed() };
    block.aio_fildes = descriptor;
    block.aio_buf = bytes.as_mut_ptr().cast();
    block.aio_nbytes = bytes.len();
    block.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
    // SAFETY: the block and its buffer stay where they are until the request is done, which is awaited.
    unsafe {
        let begun = if sends { libc::aio_write(&raw mut block) } else { libc::aio_read(&raw mut block) };
        if begun != 0 {
            return super::calls::answer(begun);
        }
        let list = [&raw const block];
        while libc::aio_error(&raw const block) == libc::EINPROGRESS {
            libc::aio_suspend(list.as_ptr(), 1, std::ptr::null());
        }
        let errno = libc::aio_error(&raw const block);
        Answer { value: libc::aio_return(&raw mut block) as i64, errno }
    }
}

fn uring(entry: squeue::Entry) -> Answer {
    let failed = |error: std::io::Error| Answer { value: -1, errno: error.raw_os_error().unwrap_or(0) };
    let mut ring = match IoUring::new(2) {
        Ok(ring) => ring,
        Err(error) => return failed(error),
    };
    // SAFETY: the caller's buffer stays where it is until the request is done, which is awaited.
    if unsafe { ring.submission().push(&entry) }.is_err() {
        return Answer { value: -1, errno: libc::EAGAIN };
    }
    if let Err(error) = ring.submit_and_wait(1) {
        return failed(error);
    }
    of_result(ring.completion().next().map_or(-i64::from(libc::EIO), |done| i64::from(done.result())))
}
