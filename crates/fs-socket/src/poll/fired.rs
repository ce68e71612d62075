//! Whether a one-shot registration in the kernel's set has fired: nobody tells us when the application's wait is the kernel's alone.

use rustix::{
    fd::OwnedFd,
    fs::{Mode, OFlags},
    io::Errno,
};

use super::{EpollEvent, interest::ONESHOT};
use crate::{
    descriptor::{numbers, table},
    types::Fd,
};

/// All that is left of what was asked for when a one-shot has fired (EP_PRIVATE_BITS, fs/eventpoll.c): EPOLLWAKEUP, EPOLLONESHOT,
/// EPOLLET, EPOLLEXCLUSIVE.
const PRIVATE: u32 = 0xf << 28;
/// EPOLLERR, EPOLLHUP: asked for with everything else, and with nothing.
const ALWAYS: u32 = 0x8 | 0x10;

/// Whether this registration of the kernel's set `set` is a one-shot that has fired. False where /proc does not say.
pub(super) fn has_fired(set: Fd, fd: Fd, event: EpollEvent) -> bool {
    fired(set, fd, event) == Some(true)
}

/// The same; `None` where /proc does not say.
pub(super) fn fired(set: Fd, fd: Fd, event: EpollEvent) -> Option<bool> {
    if event.events & ONESHOT == 0 || event.events & !PRIVATE == 0 {
        return Some(false);
    }
    if fs_shm::wait::is_confined() {
        return None;
    }
    let mut fired = false;
    let read = each_line(set, |line| match events_of(line, fd, event.data) {
        // Another file may have been registered under the same number, which it has no more.
        Some(events) if events & ONESHOT != 0 => {
            fired = events & !(PRIVATE | ALWAYS) == 0;
            false
        }
        _ => true,
    });
    read.is_ok().then_some(fired)
}

/// Shows the lines of an epoll set's fdinfo, as they are at one moment, until one is answered false.
///
/// # Errors
/// It cannot be opened or read.
pub(super) fn each_line(set: Fd, mut goes_on: impl FnMut(&[u8]) -> bool) -> Result<(), Errno> {
    // No child has this number, which nobody there would know.
    let _changing = table::Changing::begin();
    let file = match open(set) {
        Err(Errno::MFILE) => {
            let _room = numbers::Room::open();
            open(set)
        }
        answer => answer,
    }?;
    // By lines, in a room of their own: a signal handler may be here.
    let (mut room, mut full) = ([0; 1024], 0);
    loop {
        let got = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut room[full..]))?;
        full += got;
        let mut from = 0;
        while let Some(length) = room[from..full].iter().position(|&byte| byte == b'\n') {
            if !goes_on(&room[from..from + length]) {
                return Ok(());
            }
            from += length + 1;
        }
        if got == 0 || from == 0 && full == room.len() {
            return Ok(());
        }
        room.copy_within(from..full, 0);
        full -= from;
    }
}

fn open(set: Fd) -> Result<OwnedFd, Errno> {
    let mut digits = [0; 10];
    let mut rest = u32::try_from(set).map_err(|_| Errno::BADF)?;
    let mut at = digits.len();
    while at == digits.len() || rest != 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    const FOLDER: &[u8] = b"/proc/thread-self/fdinfo/";
    let mut path = [0; FOLDER.len() + 11];
    path[..FOLDER.len()].copy_from_slice(FOLDER);
    path[FOLDER.len()..][..digits.len() - at].copy_from_slice(&digits[at..]);
    let path = core::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno::INVAL)?;
    // A FIFO of somebody's under this name, where the root is a folder of his, must not hold this thread up.
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::io::retry_on_intr(|| rustix::fs::open(path, how, Mode::empty()))?;
    if rustix::fs::fstatfs(&file)?.f_type != rustix::fs::PROC_SUPER_MAGIC { Err(Errno::NOENT) } else { Ok(file) }
}

/// What a line of an epoll set's fdinfo (proc_pid_fdinfo(5)) says that the kernel asks of this descriptor: `tfd: FD events: HEX data: HEX`.
fn events_of(line: &[u8], fd: Fd, data: u64) -> Option<u32> {
    let mut words = core::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let mut value = |name: &str| if words.next() == Some(name) { words.next() } else { None };
    let number: Fd = value("tfd:")?.parse().ok()?;
    let events = u32::from_str_radix(value("events:")?, 16).ok()?;
    let registered = u64::from_str_radix(value("data:")?, 16).ok()?;
    (number == fd && registered == data).then_some(events)
}

#[cfg(test)]
mod tests {
    use rustix::{
        event::epoll::{self, CreateFlags, EventData, EventFlags},
        event::{EventfdFlags, Timespec, eventfd},
        fd::AsRawFd,
    };

    use super::*;

    #[test]
    fn lines_of_fdinfo_are_read() {
        let line = b"tfd:       12 events: 40000005 data:         abcdef01  pos:0 ino:9 sdev:8";
        assert_eq!(events_of(line, 12, 0xabcd_ef01), Some(0x4000_0005));
        assert_eq!(events_of(line, 12, 1), None);
        assert_eq!(events_of(line, 13, 0xabcd_ef01), None);
        assert_eq!(events_of(b"flags:\t02000002", 12, 0), None);
        assert_eq!(events_of(b"", 12, 0), None);
    }

    #[test]
    fn a_one_shot_that_has_fired_is_told_from_those_that_have_not() -> rustix::io::Result<()> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        // More than one reading of the file brings.
        let others: Vec<OwnedFd> = (0..40).map(|_| eventfd(0, EventfdFlags::CLOEXEC)).collect::<Result<_, _>>()?;
        let last = eventfd(1, EventfdFlags::CLOEXEC)?;
        for (data, other) in others.iter().enumerate() {
            let event = EventData::new_u64(data as u64);
            epoll::add(&set, other, event, EventFlags::IN | EventFlags::ONESHOT)?;
        }
        epoll::add(&set, &last, EventData::new_u64(77), EventFlags::IN | EventFlags::ONESHOT)?;
        let fired = |data| {
            let fd = if data == 77 { &last } else { &others[data as usize] };
            has_fired(set.as_raw_fd(), fd.as_raw_fd(), EpollEvent { events: 1 | ONESHOT, data })
        };
        assert!(!fired(0) && !fired(39) && !fired(77));
        let mut events = Vec::with_capacity(4);
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&Timespec::default()))?;
        assert_eq!(events.len(), 1);
        assert!(!fired(0) && !fired(39) && fired(77));
        epoll::modify(&set, &last, EventData::new_u64(77), EventFlags::IN | EventFlags::ONESHOT)?;
        assert!(!fired(77));
        Ok(())
    }
}
