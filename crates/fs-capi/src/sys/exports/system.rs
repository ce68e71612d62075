//! syscall(2) with the numbers of calls that this library serves.
//!
//! The raw calls differ from the C library's functions where signal masks are given: with the mask's size, and
//! pselect6's last argument is a pointer to both.

use core::ptr::with_exposed_provenance as at;
use core::ptr::with_exposed_provenance_mut as at_mut;

use libc::{c_int, c_long, c_uint};

use super::descriptors::{close, close_range, dup, dup3, fcntl, ioctl};
use super::limits::{getrlimit64, prlimit64, setrlimit64};
use super::messages::{recvmmsg, recvmsg, sendmmsg, sendmsg};
use super::names::{
    accept, accept4, bind, connect, getpeername, getsockname, getsockopt, listen, setsockopt, shutdown, socket,
};
use super::processes::{execve, execveat, forked, forking_flags};
use super::receive::{preadv64v2, read, readv, recvfrom};
use super::send::{pwritev64v2, sendfile, sendto, splice, write, writev};
use super::set::{epoll_ctl, epoll_pwait, epoll_pwait2};
use super::wait::{ppoll, pselect};
use crate::sys::errno::set_errno;
use crate::sys::real;

define! {
    /// syscall(2).
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long = {
        match served(number, [a, b, c, d, e, f]) {
            Some(answer) => answer,
            None => real::syscall(number, a, b, c, d, e, f),
        }
    };
}

define! {
    /// prctl(2): looked at for one thing only, a filter of system calls that is about to be set.
    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int = {
        if option == libc::PR_SET_SECCOMP {
            fs_socket::confine();
        }
        real::prctl(option, a, b, c, d)
    };
}

define! {
    /// mlockall(2): what the process has touched, and will touch. An arena is 20 GiB of addresses and a few pages; without
    /// MCL_ONFAULT the kernel would make all of it memory, at this call or when the next one is mapped.
    fn mlockall(flags: c_int) -> c_int = {
        // 0 and what the kernel does not know remain its errors.
        real::mlockall(if flags == 0 { 0 } else { flags | libc::MCL_ONFAULT })
    };
}

/// The calls that are ours.
///
/// # Safety
/// The arguments are what the call of that number asks.
unsafe fn served(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = arguments;
    // Descriptors, flags and lengths are 32-bit arguments: the kernel looks at the low half of a register too.
    let fd = a as c_int;
    // SAFETY: by contract; pointers come as words, as syscall(2) takes them.
    let answer: c_int = unsafe {
        match number {
            libc::SYS_read => return Some(read(fd, at_mut(b), c) as c_long),
            libc::SYS_write => return Some(write(fd, at(b), c) as c_long),
            libc::SYS_readv => return Some(readv(fd, at(b), c as c_int) as c_long),
            libc::SYS_writev => return Some(writev(fd, at(b), c as c_int) as c_long),
            libc::SYS_preadv2 => return Some(preadv64v2(fd, at(b), c as c_int, d as i64, f as c_int) as c_long),
            libc::SYS_pwritev2 => return Some(pwritev64v2(fd, at(b), c as c_int, d as i64, f as c_int) as c_long),
            libc::SYS_recvfrom => return Some(recvfrom(fd, at_mut(b), c, d as c_int, at_mut(e), at_mut(f)) as c_long),
            libc::SYS_sendto => return Some(sendto(fd, at(b), c, d as c_int, at(e), f as u32) as c_long),
            libc::SYS_recvmsg => return Some(recvmsg(fd, at_mut(b), c as c_int) as c_long),
            libc::SYS_sendmsg => return Some(sendmsg(fd, at(b), c as c_int) as c_long),
            libc::SYS_sendfile => return Some(sendfile(fd, b as c_int, at_mut(c), d) as c_long),
            libc::SYS_splice => {
                return Some(splice(fd, at_mut(b), c as c_int, at_mut(d), e, f as c_uint) as c_long);
            }
            libc::SYS_recvmmsg => recvmmsg(fd, at_mut(b), c as c_uint, d as c_int, at_mut(e)),
            libc::SYS_sendmmsg => sendmmsg(fd, at_mut(b), c as c_uint, d as c_int),
            libc::SYS_mlockall => mlockall(fd),
            libc::SYS_socket => socket(fd, b as c_int, c as c_int),
            libc::SYS_bind => bind(fd, at(b), c as u32),
            libc::SYS_listen => listen(fd, b as c_int),
            libc::SYS_accept => accept(fd, at_mut(b), at_mut(c)),
            libc::SYS_accept4 => accept4(fd, at_mut(b), at_mut(c), d as c_int),
            libc::SYS_connect => connect(fd, at(b), c as u32),
            libc::SYS_shutdown => shutdown(fd, b as c_int),
            libc::SYS_getsockname => getsockname(fd, at_mut(b), at_mut(c)),
            libc::SYS_getpeername => getpeername(fd, at_mut(b), at_mut(c)),
            libc::SYS_getsockopt => getsockopt(fd, b as c_int, c as c_int, at_mut(d), at_mut(e)),
            libc::SYS_setsockopt => setsockopt(fd, b as c_int, c as c_int, at(d), e as u32),
            libc::SYS_close => close(fd),
            libc::SYS_close_range => close_range(a as c_uint, b as c_uint, c as c_int),
            libc::SYS_dup => dup(fd),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => super::descriptors::dup2(fd, b as c_int),
            libc::SYS_dup3 => dup3(fd, b as c_int, c as c_int),
            libc::SYS_fcntl => fcntl(fd, b as c_int, c),
            libc::SYS_ioctl => ioctl(fd, b, c),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => super::wait::poll(at_mut(a), b as u64, c as c_int),
            libc::SYS_ppoll => ppoll(at_mut(a), b as u64, at(c), at(d)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => super::wait::select(fd, at_mut(b), at_mut(c), at_mut(d), at_mut(e)),
            libc::SYS_pselect6 => {
                let mask = if f == 0 { 0 } else { *at::<usize>(f) };
                pselect(fd, at_mut(b), at_mut(c), at_mut(d), at(e), at(mask))
            }
            libc::SYS_epoll_ctl => epoll_ctl(fd, b as c_int, c as c_int, at_mut(d)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => super::set::epoll_wait(fd, at_mut(b), c as c_int, d as c_int),
            libc::SYS_epoll_pwait => epoll_pwait(fd, at_mut(b), c as c_int, d as c_int, at(e)),
            libc::SYS_epoll_pwait2 => epoll_pwait2(fd, at_mut(b), c as c_int, at(d), at(e)),
            libc::SYS_prlimit64 => prlimit64(a as i32, b as c_uint, at(c), at_mut(d)),
            libc::SYS_getrlimit => getrlimit64(a as c_uint, at_mut(b)),
            libc::SYS_setrlimit => setrlimit64(a as c_uint, at(b)),
            libc::SYS_execve => execve(at(a), at(b), at(c)),
            libc::SYS_execveat => execveat(fd, at(b), at(c), at(d), e as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => forked(|| real::syscall(number, a, b, c, d, e, f) as c_int),
            // A clone that is a fork: own memory, and the caller's stack. (With another one it would have nowhere to return to.)
            libc::SYS_clone if b == 0 => {
                let flags = forking_flags(a as c_int)?;
                forked(|| real::syscall(number, flags as u32 as usize, b, c, d, e, f) as c_int)
            }
            libc::SYS_clone3 => return clone3(a, b),
            // A ring does not know our sockets: what it is asked of one would fail or never come. As on a kernel without rings,
            // the program takes epoll. One that is made without a daemon keeps this process away from the next one.
            libc::SYS_io_uring_setup => {
                let mut ring = -1;
                let make = || {
                    ring = real::syscall(number, a, b, c, d, e, f);
                    ring >= 0
                };
                if fs_socket::process::make_ring(make).is_none() {
                    set_errno(libc::ENOSYS);
                }
                return Some(ring);
            }
            libc::SYS_fstat
            | libc::SYS_statx
            | libc::SYS_newfstatat
            | libc::SYS_fchown
            | libc::SYS_fchownat
            | libc::SYS_fchmod
            | libc::SYS_fchmodat
            | libc::SYS_fchmodat2
            | libc::SYS_utimensat
            | libc::SYS_fsetxattr
            | libc::SYS_fremovexattr
            | libc::SYS_flock => {
                fs_socket::spoil_number(fd);
                return None;
            }
            libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setgroups
            | libc::SYS_setfsuid
            | libc::SYS_setfsgid
            | libc::SYS_setns
            | libc::SYS_unshare => {
                fs_socket::use_no_socket_again();
                return None;
            }
            libc::SYS_landlock_restrict_self => {
                fs_socket::restrict();
                return None;
            }
            libc::SYS_seccomp => {
                fs_socket::confine();
                return None;
            }
            libc::SYS_prctl if fd == libc::PR_SET_SECCOMP => {
                fs_socket::confine();
                return None;
            }
            _ => return None,
        }
    };
    Some(c_long::from(answer))
}

/// clone3(2): a fork, if it is one, on the caller's stack.
///
/// # Safety
/// As clone3(2).
unsafe fn clone3(arguments: usize, size: usize) -> Option<c_long> {
    /// Of `struct clone_args`, in words: the first version has eight of them.
    const FLAGS: usize = 0;
    const STACK: usize = 5;
    const FIRST_VERSION: usize = 64;
    let mut copy = [0_u64; 64];
    // What the kernel refuses, and what it may know one day.
    if arguments == 0 || size < FIRST_VERSION || size > size_of_val(&copy) {
        return None;
    }
    // SAFETY: by contract `size` bytes are there; the copy has room for them.
    unsafe { core::ptr::copy_nonoverlapping(at::<u8>(arguments), copy.as_mut_ptr().cast(), size) };
    // With a stack of its own it would have nowhere to return to.
    if copy[STACK] != 0 {
        return None;
    }
    let low = forking_flags(copy[FLAGS] as c_int)?;
    copy[FLAGS] = copy[FLAGS] >> 32 << 32 | u64::from(low as u32);
    // SAFETY: by contract, with the copy in place of what it is of.
    Some(unsafe {
        forked(|| real::syscall(libc::SYS_clone3, copy.as_ptr() as usize, size, 0, 0, 0, 0) as c_int).into()
    })
}
