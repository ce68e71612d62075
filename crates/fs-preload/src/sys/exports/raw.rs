//! syscall(2): system calls by number are the functions of the same name.

use core::ffi::{c_long, c_void};
use core::ptr::{with_exposed_provenance as from, with_exposed_provenance_mut as from_mut};

use libc::c_int;
use rustix::io::Errno;

use super::{child, confine, control, epoll, file, message, number, poll, receive, send};
use crate::sys::errno::answer;
use crate::sys::real;
use crate::sys::start::around_fork;

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
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork | libc::SYS_vfork => child::vfork().into(),
            // A new thread is not made this way by programs that use the C library.
            libc::SYS_clone if a as c_int & libc::CLONE_VM == 0 => {
                around_fork(|| real::syscall(number, a, b, c, d, e, f) as c_int).into()
            }
            libc::SYS_prctl => confine::prctl(fd, b as u64, c as u64, d as u64, e as u64).into(),
            libc::SYS_seccomp => {
                confine::before_seccomp(a, b, c);
                real::syscall(number, a, b, c, d, e, f)
            }
            // The same error as where io_uring is forbidden (kernel.io_uring_disabled).
            libc::SYS_io_uring_setup if !crate::descriptor::may_use_io_uring() => answer(Err(Errno::PERM)) as c_long,
            libc::SYS_execve => child::execve(from(a), from(b), from(c)).into(),
            libc::SYS_execveat => child::execveat(fd, from(b), from(c), from(d), e as c_int).into(),
            _ => real::syscall(number, a, b, c, d, e, f),
        }
    };
}
