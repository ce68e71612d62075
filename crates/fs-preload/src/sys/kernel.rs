//! The kernel behind a promoted socket: the application's own descriptor.
//!
//! Calls that may sleep are the C library's, so that cancellation, time-outs and restarts are
//! native. Calls that do not sleep are made directly: they are made with a lock held, where a
//! thread must not be cancelled.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, Ordering};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};

use fs_carrier::kernel::{Errno, Event, Events, Kernel, KernelSet, Machine, RecvMode, Registration, TcpInfo};
use fs_carrier::sys::Socket as Real;
use libc::{epoll_event, sigset_t, timespec};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{getpeername, getsockname};

use super::errno::checked;
use super::guarded::without_signals;
use super::real;
use super::threads::wait_for;
use crate::confined;

/// SIOCATMARK of <linux/sockios.h>.
pub(crate) const SIOCATMARK: usize = 0x8905;

/// Options that change what a receive returns, with the value that they have on an ordinary socket.
/// Accepted sockets inherit them.
const UNUSUAL: &[(c_int, c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 0),
    // SO_TIMESTAMP_NEW and the two after it (<asm-generic/socket.h>).
    (libc::SOL_SOCKET, 63, 0),
    (libc::SOL_SOCKET, 64, 0),
    (libc::SOL_SOCKET, 65, 0),
    // TCP_INQ (<linux/tcp.h>).
    (libc::IPPROTO_TCP, 36, 0),
];

/// A descriptor number of the application.
#[derive(Debug)]
pub(crate) struct Fd {
    number: AtomicI32,
    /// What the kernel knows of TCP_CORK: [`MAY_BE_SET`], [`NOT_SET`], [`UNTOLD`] or [`TELLING`].
    cork: AtomicU8,
}

/// TCP_CORK may be set in the kernel.
const MAY_BE_SET: u8 = 0;
/// TCP_CORK is not set.
const NOT_SET: u8 = 1;
/// The application has set TCP_CORK, and the kernel was not told.
const UNTOLD: u8 = 2;
/// A thread, with signals blocked, tells the kernel. It alone ends this state.
const TELLING: u8 = 3;

impl Fd {
    pub(crate) fn new(number: c_int) -> Self {
        Fd { number: AtomicI32::new(number), cork: AtomicU8::new(MAY_BE_SET) }
    }

    #[inline]
    fn number(&self) -> c_int {
        self.number.load(Ordering::Relaxed)
    }

    /// Changes the number of the socket, whose old number may be closed.
    pub(crate) fn renumber(&self, number: c_int) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Notes TCP_CORK for [`Fd::tell_cork`]. Returns false if it may be set in the kernel: then the
    /// kernel has to be told when it ends.
    pub(crate) fn defer_cork(&self) -> bool {
        match self.cork.compare_exchange(NOT_SET, UNTOLD, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(known) => known == UNTOLD,
        }
    }

    /// The application is about to set TCP_CORK in the kernel.
    pub(crate) fn corks(&self) {
        self.change_cork(|_| MAY_BE_SET);
    }

    /// Forgets, in a new child, what its parent has deferred. A thread of the parent may have been telling the kernel.
    pub(crate) fn begin_child(&self) {
        self.cork.store(MAY_BE_SET, Ordering::SeqCst);
    }

    /// Handles the end of TCP_CORK. Returns whether the kernel knows nothing of it.
    pub(crate) fn forget_cork(&self) -> bool {
        self.change_cork(|_| NOT_SET) == UNTOLD
    }

    /// Changes the state, and returns the former one. Waits for a thread that tells the kernel.
    fn change_cork(&self, change: impl Fn(u8) -> u8) -> u8 {
        let mut before = TELLING;
        wait_for(|| {
            before = self.cork.load(Ordering::SeqCst);
            let is_changed =
                || self.cork.compare_exchange(before, change(before), Ordering::SeqCst, Ordering::SeqCst).is_ok();
            before != TELLING && is_changed()
        });
        before
    }

    /// Tells the kernel of TCP_CORK, if it does not know of it.
    #[inline]
    pub(crate) fn tell_cork(&self) {
        if self.cork.load(Ordering::SeqCst) >= UNTOLD {
            self.tell_cork_now();
        }
    }

    #[cold]
    fn tell_cork_now(&self) {
        without_signals(|| {
            if self.change_cork(|known| if known == UNTOLD { TELLING } else { known }) == UNTOLD {
                // Fails if the connection has ended.
                let _set = rustix::net::sockopt::set_tcp_cork(self.borrow(), true);
                self.cork.store(MAY_BE_SET, Ordering::SeqCst);
            }
        });
    }

    /// Converts the number to rustix's type.
    pub(crate) fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: a number that the application has closed behind the library's back is EBADF, or
        // its mistake. It is not -1, which is never in the table.
        unsafe { BorrowedFd::borrow_raw(self.number()) }
    }

    /// Returns whether both ends of the connection are surely on this host: their addresses are equal, or loopback.
    pub(crate) fn is_within_host(&self) -> bool {
        let own = getsockname(self.borrow()).ok().and_then(|at| SocketAddr::try_from(at).ok());
        let peer = getpeername(self.borrow()).ok().flatten().and_then(|at| SocketAddr::try_from(at).ok());
        own.zip(peer).is_some_and(|(own, peer)| are_of_one_host(own.ip(), peer.ip()))
    }

    /// Returns whether receives return more, or at other times, than a ring would: control data,
    /// SO_RCVLOWAT, SO_PEEK_OFF.
    pub(crate) fn has_unusual_options(&self) -> bool {
        UNUSUAL.iter().any(|&(level, name, usual)| {
            let (mut value, mut len): (c_int, libc::socklen_t) = (usual, 4);
            // SAFETY: the kernel writes at most `len` bytes to `value`. An option that it does not
            // know leaves the value as it is.
            let _known = unsafe { real::getsockopt(self.number(), level, name, (&raw mut value).cast(), &raw mut len) };
            value != usual
        })
    }

    /// Resets a TCP connection: connect(2) to an address of no family.
    pub(crate) fn disconnect(&self) {
        // Refused: it is no connection any more.
        let _reset = rustix::net::connect_unspec(self.borrow());
    }

    fn real(&self) -> Real<BorrowedFd<'_>> {
        Real(self.borrow())
    }

    /// Waits until the socket is readable, by the C library's call: it is a cancellation point.
    /// Returns false after `ms` milliseconds.
    fn poll_readable(&self, ms: c_int) -> Result<bool, Errno> {
        let mut list = [libc::pollfd { fd: self.number(), events: libc::POLLIN, revents: 0 }];
        // SAFETY: a list of one.
        checked(unsafe { real::poll(list.as_mut_ptr(), 1, ms) } as isize).map(|n| n > 0)
    }
}

impl Kernel for Fd {
    #[inline]
    fn before_send(&self) {
        self.tell_cork();
    }

    fn send(&self, bytes: &[u8], dont_wait: bool) -> Result<usize, Errno> {
        let flags = libc::MSG_NOSIGNAL | if dont_wait { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: readable memory of that length.
        checked(unsafe { real::send(self.number(), bytes.as_ptr().cast(), bytes.len(), flags) })
    }

    fn recv(&self, into: &mut [u8], mode: RecvMode) -> Result<usize, Errno> {
        if mode.dont_wait && !mode.peek && confined::is_confined() {
            // A part of a pinned ring's rest that the kernel has: it is there, or about to be.
            // SAFETY: writable memory of that length.
            return checked(unsafe { real::read(self.number(), into.as_mut_ptr().cast(), into.len()) });
        }
        if mode.dont_wait {
            return self.real().recv(into, mode);
        }
        let flags = if mode.peek { libc::MSG_PEEK } else { 0 } | if mode.all { libc::MSG_WAITALL } else { 0 };
        // SAFETY: writable memory of that length.
        checked(unsafe { real::recv(self.number(), into.as_mut_ptr().cast(), into.len(), flags) })
    }

    fn descriptor(&self) -> i32 {
        self.number()
    }

    fn unread(&self) -> Result<u64, Errno> {
        self.may_ask().then(|| self.real().unread()).ok_or(Errno::PERM)?
    }

    fn tcp_info(&self) -> Result<TcpInfo, Errno> {
        self.may_ask().then(|| self.real().tcp_info()).ok_or(Errno::PERM)?
    }

    fn events(&self) -> Events {
        if self.may_ask() { self.real().events() } else { Events::default() }
    }

    fn wait_readable(&self, ms: u32) -> Result<(), Errno> {
        if !self.may_ask() {
            return Ok(());
        }
        self.poll_readable(c_int::try_from(ms).unwrap_or(c_int::MAX)).map(|_| ())
    }

    fn receive_limit_ns(&self) -> Result<Option<u64>, Errno> {
        if self.may_ask() { self.real().receive_limit_ns() } else { Ok(None) }
    }

    #[inline]
    fn may_ask(&self) -> bool {
        !confined::is_confined()
    }

    fn wait_for_more(&self, start_ns: u64) -> Result<(), Errno> {
        if !self.may_ask() {
            return Err(Errno::AGAIN);
        }
        let spent = fs_carrier::sys::now_ns().saturating_sub(start_ns);
        let left = |limit: u64| limit.saturating_sub(spent).div_ceil(1_000_000);
        let ms = self.receive_limit_ns()?.map_or(-1, |limit| c_int::try_from(left(limit)).unwrap_or(c_int::MAX));
        if self.poll_readable(ms)? { Ok(()) } else { Err(Errno::AGAIN) }
    }

    fn is_at_mark(&self) -> bool {
        if !self.may_ask() {
            return false;
        }
        let mut mark: c_int = 0;
        // SAFETY: the kernel writes a number.
        let result = unsafe { real::ioctl(self.number(), SIOCATMARK, (&raw mut mark).expose_provenance()) };
        result == 0 && mark != 0
    }
}

macro_rules! machine {
    ($($type:ty),*) => {
        $(impl Machine for $type {
            #[inline]
            fn now_ns(&self) -> u64 {
                fs_carrier::sys::now_ns()
            }

            #[inline]
            fn coarse_ns(&self) -> u64 {
                fs_carrier::sys::coarse_ns()
            }

            #[inline]
            fn pause(&self) {
                core::hint::spin_loop();
            }

            fn yield_now(&self) {
                super::threads::yield_now();
            }

            fn nap(&self) {
                super::threads::nap();
            }

            #[inline]
            fn thread(&self) -> u32 {
                Real(()).thread()
            }

            fn is_gone(&self, thread: u32) -> bool {
                !confined::is_confined() && Real(()).is_gone(thread)
            }
        })*
    };
}

machine! { Fd, SetCall, ThisThread }

/// The calling thread, for calls without a descriptor.
pub(crate) struct ThisThread;

/// One call of epoll_wait(2) or a similar function, or of epoll_ctl(2).
#[derive(Clone, Copy)]
pub(crate) struct SetCall {
    pub(crate) number: c_int,
    /// The caller's signal mask, or null.
    pub(crate) mask: *const sigset_t,
}

/// The descriptor that is always readable, and what the kernel reports for it (E5).
static INTERRUPTION: AtomicI32 = AtomicI32::new(-1);
/// The signal number that marks the file of [`INTERRUPTION`] (F_SETSIG, which has no effect without
/// O_ASYNC): the program may close all numbers above some, and have a file of its own there
/// afterwards.
const MARK: usize = 63;
/// <asm-generic/fcntl.h>.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
/// The address of this variable is the event's data: no other data of the application is this address.
static INTERRUPTION_DATA: AtomicU32 = AtomicU32::new(0);

impl SetCall {
    /// For calls that do not ask the kernel.
    pub(crate) const NONE: SetCall = SetCall { number: -1, mask: ptr::null() };

    pub(crate) fn new(number: c_int) -> Self {
        SetCall { number, mask: ptr::null() }
    }

    fn data() -> u64 {
        (&raw const INTERRUPTION_DATA).addr() as u64
    }

    /// Returns the number of the descriptor that is always readable. If it is not open, the error
    /// is the number that it had, or -1.
    fn interruption() -> Result<c_int, c_int> {
        let number = INTERRUPTION.load(Ordering::Relaxed);
        // SAFETY: it reads a field of an open file.
        let is_open = number >= 0 && unsafe { real::fcntl(number, F_GETSIG, 0) } == MARK as c_int;
        if is_open { Ok(number) } else { Err(number) }
    }

    /// Makes that descriptor, unless another thread is faster. `before`: the number that
    /// [`SetCall::interruption`] found not open.
    fn make_interruption(before: c_int) -> Result<c_int, Errno> {
        let new = eventfd(1, EventfdFlags::CLOEXEC)?;
        // A high number, because programs expect the lowest numbers for their own files. Another
        // one than before: a slower thread would take the new descriptor for the one that it found
        // not open, and replace it in turn.
        let above = |number: c_int| rustix::io::fcntl_dupfd_cloexec(&new, number + 1);
        // RLIMIT_NOFILE may be lower.
        let new = above(before.max(899)).or_else(|_| above(before)).unwrap_or(new);
        // SAFETY: it changes a field of the new file.
        checked(unsafe { real::fcntl(new.as_raw_fd(), F_SETSIG, MARK) } as isize)?;
        match INTERRUPTION.compare_exchange(before, new.as_raw_fd(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(new.into_raw_fd()),
            Err(other) => Ok(other),
        }
    }

    /// Takes a socket out of the kernel's set.
    pub(crate) fn remove(self, fd: c_int) {
        // ENOENT: it is not in the set any more.
        let _removed = self.control(libc::EPOLL_CTL_DEL, fd);
    }

    fn control(self, operation: c_int, fd: c_int) -> Result<(), Errno> {
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: Self::data() };
        // SAFETY: an event that the kernel reads.
        checked(unsafe { real::epoll_ctl(self.number, operation, fd, &raw mut event) } as isize).map(|_| ())
    }
}

impl KernelSet for SetCall {
    fn wait(&self, into: &mut [Event], timeout_ns: Option<u64>) -> Result<usize, Errno> {
        let n = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        let events = into.as_mut_ptr().cast::<epoll_event>();
        let ms = match timeout_ns {
            None => -1,
            Some(0) => 0,
            Some(ns) if confined::is_confined() => c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX),
            Some(ns) => {
                let time = timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
                // SAFETY: `Event` is laid out as `epoll_event`; there are `n` of them; the mask is the caller's.
                let got = unsafe { real::epoll_pwait2(self.number, events, n, &raw const time, self.mask) };
                match checked(got as isize) {
                    // Before Linux 5.11, or a filter that is as old. The call itself has no EPERM.
                    Err(Errno::NOSYS | Errno::PERM) => c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX),
                    result => return result,
                }
            }
        };
        // The application's own call: a process that has confined itself may have no other.
        // SAFETY: as above.
        checked(unsafe {
            if self.mask.is_null() {
                real::epoll_wait(self.number, events, n, ms)
            } else {
                real::epoll_pwait(self.number, events, n, ms, self.mask)
            }
        } as isize)
    }

    fn interrupt(&self) -> Result<(), Errno> {
        let number = Self::interruption().or_else(Self::make_interruption)?;
        match self.control(libc::EPOLL_CTL_ADD, number) {
            Err(Errno::EXIST) => Ok(()),
            result => result,
        }
    }

    fn end_interrupt(&self) {
        if let Ok(number) = Self::interruption() {
            self.remove(number);
        }
    }

    fn disarm(&self, descriptor: i32, data: u64) {
        let mut event = epoll_event { events: libc::EPOLLONESHOT as u32, u64: data };
        // SAFETY: an event that the kernel reads. Refused: the application has taken the socket out.
        let _disarmed = unsafe { real::epoll_ctl(self.number, libc::EPOLL_CTL_MOD, descriptor, &raw mut event) };
    }

    fn register(&self, registration: Registration) {
        let Registration { fd, event } = registration;
        let operation = if event.is_some() { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_DEL };
        let event = event.unwrap_or_default();
        let mut event = epoll_event { events: event.events, u64: event.data };
        // SAFETY: an event that the kernel reads. An error: the descriptor is closed, and the kernel has forgotten it.
        let _told = unsafe { real::epoll_ctl(self.number, operation, fd, &raw mut event) };
    }

    fn has_nothing(&self) -> bool {
        // SAFETY: the application's number; one that it has closed is EBADF, or its mistake.
        !confined::is_confined() && fs_carrier::sys::is_set_empty(unsafe { BorrowedFd::borrow_raw(self.number) })
    }

    fn is_interrupt(&self, data: u64) -> bool {
        data == Self::data()
    }
}

fn are_of_one_host(own: IpAddr, peer: IpAddr) -> bool {
    let (own, peer) = (own.to_canonical(), peer.to_canonical());
    own == peer || own.is_loopback() && peer.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    /// The tests close the process's one descriptor.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn equal_or_loopback_addresses_are_of_one_host() {
        let of_one_host = |own: &str, peer: &str| are_of_one_host(own.parse().unwrap(), peer.parse().unwrap());
        assert!(of_one_host("127.0.0.1", "127.0.0.2") && of_one_host("::1", "::1"));
        assert!(of_one_host("::ffff:127.0.0.1", "::ffff:127.0.0.2") && of_one_host("192.0.2.1", "192.0.2.1"));
        assert!(!of_one_host("127.0.0.1", "192.0.2.1") && !of_one_host("192.0.2.1", "192.0.2.2"));
        assert!(!of_one_host("::ffff:192.0.2.1", "::ffff:127.0.0.1") && !of_one_host("2001:db8::1", "2001:db8::2"));
    }

    #[test]
    fn interruption_leaves_a_file_of_the_program_with_its_number() {
        let _alone = ALONE.lock();
        let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let call = SetCall::new(set.as_raw_fd());
        call.interrupt().unwrap();
        call.end_interrupt();
        let number = INTERRUPTION.load(Ordering::Relaxed);
        // SAFETY: as closefrom(3) of a program, whose own file then gets the number.
        unsafe { rustix::io::close(number) };
        let own = rustix::io::fcntl_dupfd_cloexec(eventfd(0, EventfdFlags::CLOEXEC).unwrap(), number).unwrap();
        assert_eq!(own.as_raw_fd(), number);
        let (data, flags) = (rustix::event::epoll::EventData::new_u64(7), rustix::event::epoll::EventFlags::IN);
        rustix::event::epoll::add(&set, &own, data, flags).unwrap();
        call.interrupt().unwrap();
        let mut event = [Event { events: 0, data: 0 }; 2];
        assert!(call.wait(&mut event, Some(0)) == Ok(1) && call.is_interrupt(event[0].data));
        call.end_interrupt();
        rustix::io::write(&own, &1_u64.to_ne_bytes()).unwrap();
        assert!(call.wait(&mut event, Some(0)) == Ok(1) && { event[0].data } == 7);
    }

    #[test]
    fn threads_share_a_descriptor_after_the_program_has_closed_theirs() {
        let _alone = ALONE.lock();
        let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let call = SetCall::new(set.as_raw_fd());
        call.interrupt().unwrap();
        // SAFETY: as closefrom(3) of a program that knows nothing of this number.
        unsafe { rustix::io::close(INTERRUPTION.load(Ordering::Relaxed)) };
        // Both threads find it closed.
        let [fast, slow] = [(); 2].map(|()| SetCall::interruption().unwrap_err());
        let number = SetCall::make_interruption(fast).unwrap();
        assert_eq!(SetCall::make_interruption(slow), Ok(number));
    }

    #[test]
    fn threads_share_a_descriptor_where_high_numbers_are_not_allowed() {
        let _alone = ALONE.lock();
        let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let call = SetCall::new(set.as_raw_fd());
        // SAFETY: as closefrom(3) of a program that knows nothing of this number.
        let close = || unsafe { rustix::io::close(INTERRUPTION.load(Ordering::Relaxed)) };
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(900), maximum: limit.maximum }).unwrap();
        call.interrupt().unwrap();
        close();
        // Now with the lowest number.
        call.interrupt().unwrap();
        close();
        let [fast, slow] = [(); 2].map(|()| SetCall::interruption().unwrap_err());
        let numbers = [fast, slow].map(|before| SetCall::make_interruption(before).unwrap());
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(numbers[0], numbers[1]);
    }

    #[test]
    fn interruption_works_after_the_program_has_closed_its_descriptor() {
        let _alone = ALONE.lock();
        let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let call = SetCall::new(set.as_raw_fd());
        call.interrupt().unwrap();
        // SAFETY: as close_range(2) of a program that knows nothing of this number.
        unsafe { rustix::io::close(INTERRUPTION.load(Ordering::Relaxed)) };
        call.interrupt().unwrap();
        let mut event = [Event { events: 0, data: 0 }];
        assert!(call.wait(&mut event, Some(0)) == Ok(1) && call.is_interrupt(event[0].data));
        call.end_interrupt();
        assert_eq!(call.wait(&mut event, Some(0)), Ok(0));
    }
}
