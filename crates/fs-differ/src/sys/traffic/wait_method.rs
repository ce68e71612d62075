//! The ways in which a step waits, receives and sends.

use super::super::calls::LAST;
use super::super::{process, storm};
use super::outcome::{Done, Wrong, again, errno, good};
use std::ptr::{null, null_mut};

pub(super) const IN: i32 = libc::POLLIN as i32;
pub(super) const OUT: i32 = libc::POLLOUT as i32;

/// The way in which a step waits (`values::WAY`).
#[derive(Clone, Copy)]
pub(super) struct WaitMethod {
    way: i32,
    /// An epoll set, for one descriptor at a time.
    pub(super) set: i32,
}

impl WaitMethod {
    pub(super) fn new(way: i32) -> Done<WaitMethod> {
        if !matches!(way, 4 | 8) {
            return Ok(WaitMethod { way, set: -1 });
        }
        // SAFETY: numbers.
        let set = good("epoll_create", unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(WaitMethod { way, set })
    }

    pub(super) fn end(self) {
        if self.set >= 0 {
            process::close(self.set);
        }
    }

    pub(super) fn control(self, operation: i32, descriptor: i32, events: i32) -> Done<()> {
        if self.set >= 0 {
            let mut event = libc::epoll_event { events: events as u32, u64: descriptor as u64 };
            // SAFETY: a valid event.
            good("epoll_ctl", unsafe { libc::epoll_ctl(self.set, operation, descriptor, &raw mut event) })?;
        }
        Ok(())
    }

    /// Prepares a connection's first wait.
    pub(super) fn begin(self, descriptor: i32, events: i32) -> Done<()> {
        if self.way == 5 {
            let time = libc::timeval { tv_sec: 0, tv_usec: 2000 };
            for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                let (place, size) = ((&raw const time).cast(), size_of::<libc::timeval>() as u32);
                // SAFETY: a time and its size.
                good("timeout", unsafe { libc::setsockopt(descriptor, libc::SOL_SOCKET, option, place, size) })?;
            }
        }
        self.control(libc::EPOLL_CTL_ADD, descriptor, events)
    }

    pub(super) fn turn(self, descriptor: i32, events: i32) -> Done<()> {
        self.control(libc::EPOLL_CTL_MOD, descriptor, events)
    }

    pub(super) fn forget(self, descriptor: i32) -> Done<()> {
        self.control(libc::EPOLL_CTL_DEL, descriptor, 0)
    }

    /// Waits until the descriptor is ready, unless the call itself blocks.
    pub(super) fn wait(self, descriptor: i32, events: i32) -> Done<()> {
        let mut entry = libc::pollfd { fd: descriptor, events: events as i16, revents: 0 };
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        match self.way {
            1 => {
                // SAFETY: one entry.
                again("poll", || unsafe { libc::poll(&raw mut entry, 1, -1) }.into())?;
            }
            2 => {
                // SAFETY: one entry, neither time nor mask.
                again("ppoll", || unsafe { libc::ppoll(&raw mut entry, 1, null(), null()) }.into())?;
            }
            6..=8 => self.wait_once(descriptor, events, || false)?,
            3 if (0..LAST).contains(&descriptor) => {
                again("select", || {
                    // SAFETY: zeros are empty sets, a number below FD_SETSIZE; no time.
                    unsafe {
                        let (mut read, mut write): (libc::fd_set, libc::fd_set) = std::mem::zeroed();
                        libc::FD_SET(descriptor, if events == IN { &raw mut read } else { &raw mut write });
                        libc::select(descriptor + 1, &raw mut read, &raw mut write, null_mut(), null_mut()).into()
                    }
                })?;
            }
            4 => {
                // SAFETY: room for an event.
                again("epoll_wait", || unsafe { libc::epoll_wait(self.set, &raw mut event, 1, -1) }.into())?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Like [`WaitMethod::wait`], by the calls whose mask permits signals, possibly only there;
    /// ends also if `is_over`.
    pub(super) fn wait_once(self, descriptor: i32, events: i32, is_over: impl Fn() -> bool) -> Done<()> {
        let none = storm::waker::no_signals();
        let mask = &raw const none;
        loop {
            if is_over() {
                return Ok(());
            }
            let mut entry = libc::pollfd { fd: descriptor, events: events as i16, revents: 0 };
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: an entry, sets that are empty at first and a number below FD_SETSIZE, or room
            // for an event; a mask and no time.
            let got = unsafe {
                match self.way {
                    7 if (0..LAST).contains(&descriptor) => {
                        let (mut read, mut write): (libc::fd_set, libc::fd_set) = std::mem::zeroed();
                        libc::FD_SET(descriptor, if events == IN { &raw mut read } else { &raw mut write });
                        libc::pselect(descriptor + 1, &raw mut read, &raw mut write, null_mut(), null(), mask)
                    }
                    8 => libc::epoll_pwait(self.set, &raw mut event, 1, -1, mask),
                    _ => libc::ppoll(&raw mut entry, 1, null(), mask),
                }
            };
            match got {
                0.. => return Ok(()),
                _ if errno() == libc::EINTR => {}
                _ => return Err(Wrong("waits", errno())),
            }
        }
    }

    fn flags(self) -> i32 {
        if matches!(self.way, 1..=4 | 6..=8) { libc::MSG_DONTWAIT } else { 0 }
    }

    /// Returns true if a call with this kind of wait is repeated.
    fn may_come_early(self, wrong: &Wrong) -> bool {
        self.way != 0 && wrong.1 == libc::EAGAIN
    }

    pub(super) fn receive(self, from: i32, buffer: &mut [u8], form: usize) -> Done<usize> {
        loop {
            self.wait(from, IN)?;
            let (data, size, flags) = (buffer.as_mut_ptr().cast(), buffer.len(), self.flags());
            let mut part = libc::iovec { iov_base: data, iov_len: size };
            // SAFETY: the buffer and its length, or a part and a message with it.
            let got = again("recv", || unsafe {
                match form % 4 {
                    0 if flags == 0 => libc::read(from, data, size) as i64,
                    1 if flags == 0 => libc::readv(from, &raw const part, 1) as i64,
                    2 => {
                        let mut message: libc::msghdr = std::mem::zeroed();
                        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
                        libc::recvmsg(from, &raw mut message, flags) as i64
                    }
                    _ => libc::recv(from, data, size, flags) as i64,
                }
            });
            match got {
                Ok(got) => return Ok(got as usize),
                Err(wrong) if self.may_come_early(&wrong) => {}
                Err(wrong) => return Err(wrong),
            }
        }
    }

    pub(super) fn send(self, to: i32, bytes: &[u8], form: usize) -> Done<()> {
        let mut done = 0;
        while done < bytes.len() {
            self.wait(to, OUT)?;
            let rest = &bytes[done..];
            let (data, size, flags) = (rest.as_ptr().cast(), rest.len(), self.flags() | libc::MSG_NOSIGNAL);
            let mut part = libc::iovec { iov_base: data as *mut libc::c_void, iov_len: size };
            // SAFETY: the buffer and its length, or a part and a message with it; the call only
            // reads them.
            let sent = again("send", || unsafe {
                match form % 4 {
                    0 if self.flags() == 0 => libc::write(to, data, size) as i64,
                    1 if self.flags() == 0 => libc::writev(to, &raw const part, 1) as i64,
                    2 => {
                        let mut message: libc::msghdr = std::mem::zeroed();
                        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
                        libc::sendmsg(to, &raw const message, flags) as i64
                    }
                    _ => libc::send(to, data, size, flags) as i64,
                }
            });
            match sent {
                Ok(sent) => done += sent as usize,
                Err(wrong) if self.may_come_early(&wrong) => {}
                Err(wrong) => return Err(wrong),
            }
        }
        Ok(())
    }
}
