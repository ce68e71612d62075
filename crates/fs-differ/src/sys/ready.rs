//! poll, select and epoll.

use super::calls::{LAST, answer, made, numbers};
use crate::values::{EVENTS, NAGLE, bits};

/// Results of poll(2) in addition to `POLL`'s names.
const ANSWERS: &[(&str, i32)] = &[
    ("in", 1),
    ("pri", 2),
    ("out", 4),
    ("err", 8),
    ("hup", 16),
    ("nval", 32),
    ("rdnorm", 64),
    ("rdband", 128),
    ("wrnorm", 256),
    ("wrband", 512),
    ("rdhup", 0x2000),
];

/// poll(2), ppoll(2), select(2) or pselect(2) of two descriptors.
pub fn poll(one: i32, other: i32, events: i32, milliseconds: i32, form: i32) -> String {
    let time = libc::timespec {
        tv_sec: i64::from(milliseconds.max(0) / 1000),
        tv_nsec: i64::from(milliseconds.max(0) % 1000) * 1_000_000,
    };
    let time = if milliseconds < 0 { std::ptr::null() } else { &raw const time };
    if form < 2 {
        let entry = |fd| libc::pollfd { fd, events: events as i16, revents: 0 };
        let mut entries = [entry(one), entry(other)];
        let got = if form == 0 {
            // SAFETY: two entries.
            answer(unsafe { libc::poll(entries.as_mut_ptr(), 2, milliseconds) })
        } else {
            // SAFETY: two entries, a valid time or none, no signal mask.
            answer(unsafe { libc::ppoll(entries.as_mut_ptr(), 2, time, std::ptr::null()) })
        };
        let show = |entry: &libc::pollfd| bits(ANSWERS, i32::from(entry.revents));
        return format!("{} {} {}", got.text(), show(&entries[0]), show(&entries[1]));
    }
    let valid = |fd: i32| (0..LAST).contains(&fd);
    if !valid(one) || !valid(other) {
        return "skipped".into();
    }
    // SAFETY: zeros are three empty sets.
    let mut sets: [libc::fd_set; 3] = unsafe { std::mem::zeroed() };
    for (set, wanted) in sets.iter_mut().zip([libc::POLLIN, libc::POLLOUT, libc::POLLPRI]) {
        for fd in [one, other] {
            if events & i32::from(wanted) != 0 {
                // SAFETY: a number below FD_SETSIZE.
                unsafe { libc::FD_SET(fd, set) };
            }
        }
    }
    let [read, write, except] = &mut sets;
    let most = one.max(other) + 1;
    let got = if form == 2 {
        let mut short = libc::timeval {
            tv_sec: i64::from(milliseconds.max(0) / 1000),
            tv_usec: i64::from(milliseconds.max(0) % 1000) * 1000,
        };
        let short = if milliseconds < 0 { std::ptr::null_mut() } else { &raw mut short };
        // SAFETY: three sets, a time or none.
        answer(unsafe { libc::select(most, read, write, except, short) })
    } else {
        // SAFETY: three sets, a time or none, no mask.
        answer(unsafe { libc::pselect(most, read, write, except, time, std::ptr::null()) })
    };
    if !got.is_ok() {
        return got.text();
    }
    let mut text = got.text();
    for (name, set) in ["r", "w", "x"].iter().zip(&sets) {
        for fd in [one, other] {
            // SAFETY: a number below FD_SETSIZE.
            if unsafe { libc::FD_ISSET(fd, set) } {
                text.push_str(&format!(" {name}{fd}"));
            }
        }
    }
    text
}

/// The kernel's events are joined with those of rings after 50 µs (docs/PRELOAD.md, E4).
fn join_kernel() {
    std::thread::sleep(std::time::Duration::from_micros(60));
}

/// epoll_create1(2).
pub fn create(into: i32, flags: i32) -> String {
    made(numbers!(epoll_create1(flags & libc::EPOLL_CLOEXEC & !NAGLE)), into)
}

/// epoll_ctl(2), with the slot as data.
pub fn control(set: i32, operation: i32, descriptor: i32, events: i32, slot: i32) -> String {
    let mut event = libc::epoll_event { events: events as u32, u64: slot as u64 };
    // SAFETY: a valid event.
    answer(unsafe { libc::epoll_ctl(set, operation, descriptor, &raw mut event) }).text()
}

/// epoll_wait(2) and its variants; returns the events in their order.
pub fn wait(set: i32, most: i32, milliseconds: i32, form: i32) -> String {
    if milliseconds != 0 {
        join_kernel();
    }
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
    let most = most.min(events.len() as i32);
    let place = events.as_mut_ptr();
    let got = match form {
        // SAFETY: room for `most` events.
        0 => answer(unsafe { libc::epoll_wait(set, place, most, milliseconds) }),
        // SAFETY: the same; no mask.
        1 => answer(unsafe { libc::epoll_pwait(set, place, most, milliseconds, std::ptr::null()) }),
        _ => {
            let time = libc::timespec {
                tv_sec: i64::from(milliseconds.max(0) / 1000),
                tv_nsec: i64::from(milliseconds.max(0) % 1000) * 1_000_000,
            };
            let time = if milliseconds < 0 { std::ptr::null() } else { &raw const time };
            // SAFETY: room for `most` events, a time or none; no mask.
            answer(unsafe { epoll_pwait2(set, place, most, time, std::ptr::null()) })
        }
    };
    let mut text = got.text();
    for event in events.iter().take(got.value.max(0) as usize) {
        let (mask, slot) = (event.events as i32, event.u64);
        let mut named = bits(EVENTS, mask & !(libc::EPOLLERR | libc::EPOLLHUP));
        for (name, bit) in [("err", libc::EPOLLERR), ("hup", libc::EPOLLHUP)] {
            if mask & bit != 0 {
                named.push('|');
                named.push_str(name);
            }
        }
        text.push_str(&format!(" s{slot}={named}"));
    }
    text
}

unsafe extern "C" {
    fn epoll_pwait2(
        set: i32,
        events: *mut libc::epoll_event,
        most: i32,
        time: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> i32;
}
