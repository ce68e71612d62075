//! poll(2), select(2) and similar calls.

use fs_carrier::kernel::Errno;
use fs_carrier::poll::Ask;
use libc::{
    POLLERR, POLLHUP, POLLIN, POLLRDHUP, POLLRDNORM, c_int, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval,
};

use super::jump::inside;
use crate::confined;
use crate::sys::errno::{answer, checked, errno, set_errno};
use crate::sys::{memory, real};
use crate::wait::{self, Arrays, List};

/// The events by which poll(2) reports an unread byte.
const READABLE: i16 = POLLIN | POLLRDNORM;
/// The bits of a word of an `fd_set`.
const BITS: usize = 64;

define! {
    /// poll(2).
    fn poll(fds: *mut pollfd, n: nfds_t, timeout_ms: c_int) -> c_int = {
        let time = u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000);
        polled(fds, n, time, core::ptr::null(), true).unwrap_or_else(|| real::poll(fds, n, timeout_ms))
    };
    /// The C library's other name.
    fn __poll(fds: *mut pollfd, n: nfds_t, timeout_ms: c_int) -> c_int = poll(fds, n, timeout_ms);
    /// ppoll(2).
    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int =
        match nanoseconds(timeout) {
            Ok(time) => polled(fds, n, time, mask, false),
            Err(()) => None,
        }
        .unwrap_or_else(|| real::ppoll(fds, n, timeout, mask));
    /// poll with its array's size (_FORTIFY_SOURCE): too long a list ends the process, in the C library's words.
    fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout_ms: c_int, room: usize) -> c_int = {
        if room / size_of::<pollfd>() < n as usize { real::__poll_chk(fds, n, timeout_ms, room) } else { poll(fds, n, timeout_ms) }
    };
    /// Like __poll_chk.
    fn __ppoll_chk(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: usize) -> c_int = {
        if room / size_of::<pollfd>() < n as usize {
            real::__ppoll_chk(fds, n, timeout, mask, room)
        } else {
            ppoll(fds, n, timeout, mask)
        }
    };
    /// select(2). The time that is left is written back, as the kernel does.
    fn select(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int = {
        let Ok(time) = microseconds(timeout) else { return real::select(n, read, write, except, timeout) };
        let start = fs_carrier::sys::now_ns();
        match selected(n, [read, write, except], time, core::ptr::null()) {
            None => real::select(n, read, write, except, timeout),
            Some(result) => {
                if let (Some(ns), true) = (time, memory::is_writable(timeout, size_of::<timeval>())) {
                    let left = ns.saturating_sub(fs_carrier::sys::now_ns() - start) / 1000;
                    *timeout = timeval { tv_sec: (left / 1_000_000) as i64, tv_usec: (left % 1_000_000) as i64 };
                }
                result
            }
        }
    };
    /// pselect(2).
    fn pselect(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int =
        match nanoseconds(timeout) {
            Ok(time) => selected(n, [read, write, except], time, mask),
            Err(()) => None,
        }
        .unwrap_or_else(|| real::pselect(n, read, write, except, timeout, mask));
}

/// Returns a time in nanoseconds, or `None` for no limit. Fails if the kernel would reject the
/// call.
///
/// # Safety
/// `time` points to a time, or to memory that cannot be read.
pub(super) unsafe fn nanoseconds(time: *const timespec) -> Result<Option<u64>, ()> {
    if time.is_null() {
        return Ok(None);
    }
    if !memory::is_readable(time, size_of::<timespec>()) {
        return Err(());
    }
    // SAFETY: readable.
    let time = unsafe { time.read_unaligned() };
    in_nanoseconds(time.tv_sec, time.tv_nsec, 1_000_000_000)
}

/// The same for select(2), whose microseconds may be more than a second.
///
/// # Safety
/// Like [`nanoseconds`].
unsafe fn microseconds(time: *const timeval) -> Result<Option<u64>, ()> {
    if time.is_null() {
        return Ok(None);
    }
    if !memory::is_readable(time, size_of::<timeval>()) {
        return Err(());
    }
    // SAFETY: readable.
    let time = unsafe { time.read_unaligned() };
    in_nanoseconds(time.tv_sec, time.tv_usec.saturating_mul(1000), i64::MAX)
}

fn in_nanoseconds(seconds: i64, rest: i64, below: i64) -> Result<Option<u64>, ()> {
    let seconds = u64::try_from(seconds).map_err(|_| ())?;
    let rest = u64::try_from(rest).ok().filter(|_| rest < below).ok_or(())?;
    Ok(Some(seconds.saturating_mul(1_000_000_000).saturating_add(rest)))
}

fn timespec(ns: Option<u64>) -> Option<timespec> {
    ns.map(|ns| timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 })
}

fn pointer<T>(value: Option<&T>) -> *const T {
    value.map_or(core::ptr::null(), core::ptr::from_ref)
}

/// Returns the timeout and the signal mask of the kernel's call.
fn of_call(how: Ask, mask: *const sigset_t) -> (Option<u64>, *const sigset_t) {
    match how {
        Ask::Call(timeout_ns) => (timeout_ns, mask),
        Ask::AlsoReady => (Some(0), core::ptr::null()),
    }
}

/// The list of poll(2).
struct Polls<'a> {
    fds: &'a mut [pollfd],
    mask: *const sigset_t,
    /// The call is poll(2).
    is_poll: bool,
}

impl Arrays for Polls<'_> {
    fn ask(&mut self, how: Ask) -> Result<usize, Errno> {
        let (timeout_ns, mask) = of_call(how, self.mask);
        let (fds, n) = (self.fds.as_mut_ptr(), self.fds.len() as nfds_t);
        // The application's own call, because a confined process may make no other.
        if self.is_poll && (confined::is_confined() || timeout_ns.is_none_or(|ns| ns == 0)) {
            let ms = timeout_ns.map_or(-1, |ns| c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX));
            // SAFETY: the caller's list.
            return checked(unsafe { real::poll(fds, n, ms) } as isize);
        }
        let time = timespec(timeout_ns);
        // SAFETY: the caller's list and mask.
        checked(unsafe { real::ppoll(fds, n, pointer(time.as_ref()), mask) } as isize)
    }

    fn clear(&mut self) {
        for fd in &mut *self.fds {
            fd.revents = 0;
        }
    }

    fn is_readable(&self, place: usize) -> bool {
        self.fds[place].revents & (READABLE | POLLHUP | POLLERR | POLLRDHUP) != 0
    }

    fn wants_more(&self, place: usize) -> bool {
        self.fds[place].events & !READABLE != 0
    }

    fn set_readable(&mut self, place: usize) -> usize {
        let fd = &mut self.fds[place];
        let is_first = fd.revents == 0;
        fd.revents |= fd.events & READABLE;
        usize::from(is_first)
    }
}

/// # Safety
/// Like ppoll(2).
unsafe fn polled(
    fds: *mut pollfd,
    n: nfds_t,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
    is_poll: bool,
) -> Option<c_int> {
    let n = usize::try_from(n).ok()?;
    let bytes = n.checked_mul(size_of::<pollfd>())?;
    if n == 0 || !fds.is_aligned() || !memory::is_readable(fds, bytes) || !memory::is_writable(fds, bytes) {
        return None;
    }
    // SAFETY: readable and writable, and nobody else's during the call.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, n) };
    let mut list = List::default();
    for (place, fd) in fds.iter().enumerate() {
        list.add(place, fd.fd, fd.events & READABLE != 0);
    }
    inside(|| wait::wait(list, &mut Polls { fds, mask, is_poll }, timeout_ns)).map(|result| answer(result) as c_int)
}

/// The sets of select(2).
struct Sets {
    n: usize,
    asked: [Option<Vec<u64>>; 3],
    places: [*mut fd_set; 3],
    mask: *const sigset_t,
}

impl Sets {
    /// Returns the word of the caller's set of readable descriptors.
    fn word(&self, fd: usize) -> *mut u64 {
        self.places[0].cast::<u64>().wrapping_add(fd / BITS)
    }

    fn write(&self, words: impl Fn(&[u64], usize) -> u64) {
        for (asked, place) in self.asked.iter().zip(self.places) {
            let Some(asked) = asked else { continue };
            for i in 0..asked.len() {
                // SAFETY: the caller's set has so many words, as it had when it was read.
                unsafe { place.cast::<u64>().add(i).write(words(asked, i)) };
            }
        }
    }
}

impl Arrays for Sets {
    fn ask(&mut self, how: Ask) -> Result<usize, Errno> {
        let (timeout_ns, mask) = of_call(how, self.mask);
        let time = timespec(timeout_ns);
        self.write(|asked, i| asked[i]);
        let [read, write, except] = self.places;
        // SAFETY: the caller's sets and mask.
        let n = unsafe { real::pselect(self.n as c_int, read, write, except, pointer(time.as_ref()), mask) };
        checked(n as isize)
    }

    fn clear(&mut self) {
        self.write(|_, _| 0);
    }

    fn is_readable(&self, place: usize) -> bool {
        // SAFETY: `place` is below `n`, and the set of readable descriptors was given.
        unsafe { self.word(place).read() & (1 << (place % BITS)) != 0 }
    }

    fn wants_more(&self, place: usize) -> bool {
        let others = self.asked[1..].iter().flatten();
        others.into_iter().any(|words| words[place / BITS] >> (place % BITS) & 1 != 0)
    }

    fn set_readable(&mut self, place: usize) -> usize {
        if self.is_readable(place) {
            return 0;
        }
        // SAFETY: as above.
        unsafe { *self.word(place) |= 1 << (place % BITS) };
        1
    }
}

/// Returns for how many descriptors the process has room: where select(2) stops (`core_sys_select`, fs/select.c).
#[cold]
fn descriptors() -> usize {
    let mut text = [0; 1024];
    let before = errno();
    // SAFETY: a constant name, and a buffer with its length.
    let (read, is_full) = unsafe {
        let fd = libc::open(c"/proc/self/status".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let is_full = fd < 0 && errno() == libc::EMFILE;
        let read = real::read(fd, text.as_mut_ptr().cast(), text.len());
        real::close(fd);
        (read, is_full)
    };
    set_errno(before);
    let text = text.get(..usize::try_from(read).unwrap_or(0)).unwrap_or(&[]);
    let found = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"FDSize:"));
    let number = found.and_then(|rest| core::str::from_utf8(rest).ok()).and_then(|rest| rest.trim().parse().ok());
    number.unwrap_or_else(|| {
        // All numbers are in use. Without /proc, the length of the longest usual set.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.filter(|_| is_full);
        limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(libc::FD_SETSIZE)
    })
}

/// # Safety
/// Like pselect(2).
unsafe fn selected(
    n: c_int,
    places: [*mut fd_set; 3],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let n = usize::try_from(n).ok().filter(|n| *n > 0)?;
    if n > libc::FD_SETSIZE && confined::is_confined() {
        return None;
    }
    // A number above all descriptors does not give the sets' length, and the kernel stops before
    // it.
    let n = if n > libc::FD_SETSIZE { n.min(descriptors()) } else { n };
    let words = n.div_ceil(BITS);
    let mut list = List::default();
    let mut asked = [None, None, None];
    for (asked, place) in asked.iter_mut().zip(places) {
        if place.is_null() {
            continue;
        }
        let place = place.cast::<u64>();
        if !place.is_aligned() || !memory::is_readable(place, words * 8) || !memory::is_writable(place, words * 8) {
            return None;
        }
        // SAFETY: readable.
        *asked = Some(unsafe { core::slice::from_raw_parts(place, words) });
    }
    for (i, set) in asked.iter().enumerate() {
        for fd in set.iter().flat_map(|words| bits(words)).take_while(|fd| *fd < n) {
            list.add(fd, fd as c_int, i == 0);
        }
    }
    // Copied only if the library handles one of the descriptors: the kernel alone handles most
    // lists.
    let asked = if list.is_empty() { [None, None, None] } else { asked.map(|set| set.map(<[u64]>::to_vec)) };
    let mut sets = core::mem::ManuallyDrop::new(Sets { n, asked, places, mask });
    let result = inside(|| wait::wait(list, &mut *sets, timeout_ns)).map(|result| answer(result) as c_int);
    drop(core::mem::ManuallyDrop::into_inner(sets));
    result
}

fn bits(words: &[u64]) -> impl Iterator<Item = usize> {
    words
        .iter()
        .enumerate()
        .flat_map(|(i, word)| (0..BITS).filter(move |bit| word >> bit & 1 != 0).map(move |bit| i * BITS + bit))
}
