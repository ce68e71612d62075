//! syscall(2): a system call by number is the function of the same name.

use core::ffi::{c_long, c_void};
use core::ptr::{null, with_exposed_provenance as from, with_exposed_provenance_mut as from_mut};

use libc::{c_int, sigset_t, timespec};
use rustix::io::Errno;

use super::{child, confine, control, epoll, file, message, number, poll, receive, send};
use crate::descriptor;
use crate::sys::errno::answer;
use crate::sys::start::around_fork;
use crate::sys::{memory, real};

define! {
    /// syscall(2).
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long = {
        let fd = a as c_int;
        let [b_int, c_int_, d_int] = [b as c_int, c as c_int, d as c_int];
        match number {
            libc::SYS_read => receive::read(fd, from_mut(b), c) as c_long,
            libc::SYS_readv => receive::readv(fd, from(b), c_int_) as c_long,
            libc::SYS_recvfrom => receive::recvfrom(fd, from_mut(b), c, d_int, from_mut(e), from_mut(f)) as c_long,
            libc::SYS_recvmsg => message::recvmsg(fd, from_mut(b), c_int_) as c_long,
            libc::SYS_recvmmsg => message::recvmmsg(fd, from_mut(b), c as u32, d_int, from_mut(e)).into(),
            libc::SYS_write => send::write(fd, from(b), c) as c_long,
            libc::SYS_writev => send::writev(fd, from(b), c_int_) as c_long,
            libc::SYS_sendto => send::sendto(fd, from(b), c, d_int, from(e), f as u32) as c_long,
            libc::SYS_sendmsg => message::sendmsg(fd, from(b), c_int_) as c_long,
            libc::SYS_sendmmsg => message::sendmmsg(fd, from_mut(b), c as u32, d_int).into(),
            libc::SYS_sendfile => file::sendfile(fd, b_int, from_mut(c), d) as c_long,
            libc::SYS_splice => file::splice(fd, from_mut(b), c_int_, from_mut(d), e, f as u32) as c_long,
            libc::SYS_close => number::close(fd).into(),
            libc::SYS_close_range => number::close_range(a as u32, b as u32, c_int_).into(),
            libc::SYS_dup => number::dup(fd).into(),
            libc::SYS_dup3 => number::dup3(fd, b_int, c_int_).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => number::dup2(fd, b_int).into(),
            libc::SYS_accept => number::accept(fd, from_mut(b), from_mut(c)).into(),
            libc::SYS_accept4 => number::accept4(fd, from_mut(b), from_mut(c), d_int).into(),
            libc::SYS_connect => number::connect(fd, from(b), c as u32).into(),
            libc::SYS_shutdown => control::shutdown(fd, b_int).into(),
            libc::SYS_fcntl => control::fcntl(fd, b_int, c).into(),
            libc::SYS_ioctl => control::ioctl(fd, b, c).into(),
            libc::SYS_getsockopt => control::getsockopt(fd, b_int, c_int_, from_mut::<c_void>(d), from_mut(e)).into(),
            libc::SYS_setsockopt => control::setsockopt(fd, b_int, c_int_, from::<c_void>(d), e as u32).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => poll::poll(from_mut(a), b as u64, c_int_).into(),
            libc::SYS_epoll_create1 => epoll::epoll_create1(fd).into(),
            libc::SYS_epoll_ctl => epoll::epoll_ctl(fd, b_int, c_int_, from_mut(d)).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => epoll::epoll_wait(fd, from_mut(b), c_int_, d_int).into(),
            libc::SYS_epoll_pwait if is_mask(e, f) => {
                epoll::epoll_pwait(fd, from_mut(b), c_int_, d_int, from(e)).into()
            }
            libc::SYS_epoll_pwait2 if is_mask(e, f) => {
                epoll::epoll_pwait2(fd, from_mut(b), c_int_, from(d), from(e)).into()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => poll::select(fd, from_mut(b), from_mut(c), from_mut(d), from_mut(e)).into(),
            libc::SYS_ppoll if is_mask(d, e) => {
                with_time_left(from_mut(c), |time| poll::ppoll(from_mut(a), b as u64, time, from(d)))
            }
            libc::SYS_pselect6 => match mask_of_pselect(from(f)) {
                Some(mask) => with_time_left(from_mut(e), |time| {
                    poll::pselect(fd, from_mut(b), from_mut(c), from_mut(d), time, mask)
                }),
                None => real::syscall(number, a, b, c, d, e, f),
            },
            libc::SYS_preadv2 => {
                receive::preadv2(fd, from(b), c_int_, d as i64, f as c_int) as c_long
            }
            libc::SYS_pwritev2 => {
                send::pwritev2(fd, from(b), c_int_, d as i64, f as c_int) as c_long
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => child::_Fork().into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_vfork => child::vfork().into(),
            // With CLONE_VM it makes a thread, which the C library does by a system call of its own.
            libc::SYS_clone if a as c_int & libc::CLONE_VM == 0 => {
                around_fork(|| real::syscall(number, a, b, c, d, e, f) as c_int).into()
            }
            libc::SYS_clone3 if flags_of_clone3(from(a)) & libc::CLONE_VM as u64 == 0 => {
                around_fork(|| real::syscall(number, a, b, c, d, e, f) as c_int).into()
            }
            libc::SYS_prctl => confine::prctl(fd, b as u64, c as u64, d as u64, e as u64).into(),
            libc::SYS_seccomp => {
                confine::before_seccomp(a, b, from(c));
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_io_uring_setup => {
                let ring = real::syscall(number, a, b, c, d, e, f);
                if ring < 0 || descriptor::may_use_io_uring() {
                    ring
                } else {
                    answer(Err(Errno::from_raw_os_error(-file::refuse_io_uring(ring, from(b))))) as c_long
                }
            }
            libc::SYS_io_submit => {
                leave_submitted(b, from(c));
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_execve => child::execve(from(a), from(b), from(c)).into(),
            libc::SYS_execveat => child::execveat(fd, from(b), from(c), from(d), e as c_int).into(),
            _ => real::syscall(number, a, b, c, d, e, f),
        }
    };
}

/// io_submit(2) reads and writes sockets as aio_read(3) does, and polls epoll sets
/// (`IOCB_CMD_POLL`). Programs that read files by it keep their rings.
///
/// # Safety
/// Like io_submit(2).
unsafe fn leave_submitted(n: usize, list: *const *const u8) {
    /// `aio_fildes` of struct iocb (<linux/aio_abi.h>).
    const DESCRIPTOR: usize = 20;
    for i in 0..n {
        let place = list.wrapping_add(i);
        // The kernel ends at the first one that it cannot read.
        if !memory::is_readable(place, size_of::<*const u8>()) {
            return;
        }
        // SAFETY: it can be read.
        let number = unsafe { place.read_unaligned() }.wrapping_add(DESCRIPTOR).cast::<c_int>();
        if !memory::is_readable(number, size_of::<c_int>()) {
            return;
        }
        // SAFETY: it can be read.
        let number = unsafe { number.read_unaligned() };
        if !descriptor::leave_set_to_kernel(number) {
            descriptor::leave_to_other(number);
        }
    }
}

/// The kernel's signal set. The C library's is longer, and its functions pass this part on.
const MASK_LEN: usize = size_of::<u64>();

/// Returns true if the kernel accepts a signal mask of this length. Otherwise it returns the error.
fn is_mask(mask: usize, len: usize) -> bool {
    mask == 0 || len == MASK_LEN
}

/// Reads pselect6(2)'s last argument: a mask and its length. `None`: the kernel refuses it.
///
/// # Safety
/// `pair` is null, points to a mask's address and length, or to memory that cannot be read.
unsafe fn mask_of_pselect(pair: *const [usize; 2]) -> Option<*const sigset_t> {
    if pair.is_null() {
        return Some(null());
    }
    if !memory::is_readable(pair, size_of::<[usize; 2]>()) {
        return None;
    }
    // SAFETY: it can be read, as the caller promises for the whole call.
    let [mask, len] = unsafe { pair.read_unaligned() };
    is_mask(mask, len).then(|| from(mask))
}

/// Calls a function that waits, and writes the time that is left back, as these system calls do and
/// the C library's functions do not.
///
/// # Safety
/// `time` is null, points to a time, or to memory that cannot be read.
unsafe fn with_time_left(time: *mut timespec, wait: impl FnOnce(*const timespec) -> c_int) -> c_long {
    // SAFETY: as the caller promises.
    let Ok(Some(ns)) = (unsafe { poll::nanoseconds(time) }) else { return wait(time).into() };
    let start = fs_carrier::sys::now_ns();
    let result = wait(time);
    if memory::is_writable(time, size_of::<timespec>()) {
        let left = ns.saturating_sub(fs_carrier::sys::now_ns() - start);
        let left = timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
        // SAFETY: it can be written, and the caller gave it for this.
        unsafe { time.write_unaligned(left) };
    }
    result.into()
}

/// Returns the flags of clone3(2)'s arguments; if they cannot be read, those of a thread: the kernel knows the error.
///
/// # Safety
/// `arguments` points to them, or to memory that cannot be read.
unsafe fn flags_of_clone3(arguments: *const u64) -> u64 {
    if !memory::is_readable(arguments, size_of::<u64>()) {
        return libc::CLONE_VM as u64;
    }
    // SAFETY: it can be read.
    unsafe { arguments.read_unaligned() }
}
