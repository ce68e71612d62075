//! Socket options.

use super::calls::answer;
use crate::values::OPTIONS;

/// Sets an option that is a number.
pub fn set_number(descriptor: i32, level: i32, name: i32, value: i32) -> String {
    // SAFETY: a number and its size.
    answer(unsafe { libc::setsockopt(descriptor, level, name, (&raw const value).cast(), 4) }).text()
}

/// Makes a socket with packet timestamps (SO_TIMESTAMP), for as long as it exists. The kernel
/// stamps all packets of the machine some time after the first such socket: without this one, a
/// program's own socket would find stamping on or off (net_enable_timestamp(), by a work queue).
pub fn times() -> std::io::Result<std::net::UdpSocket> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    set_number(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1);
    Ok(socket)
}

/// Sets an option. SO_LINGER is on for `value` seconds, or off for negative values.
pub fn set(descriptor: i32, option: i32, value: i32) -> String {
    let Some((level, name)) = OPTIONS.get(option as usize).copied() else { return "?".into() };
    if (level, name) != (libc::SOL_SOCKET, libc::SO_LINGER) {
        return set_number(descriptor, level, name, value);
    }
    let linger = libc::linger { l_onoff: i32::from(value >= 0), l_linger: value.max(0) };
    let size = size_of::<libc::linger>() as u32;
    // SAFETY: a linger and its size.
    answer(unsafe { libc::setsockopt(descriptor, level, name, (&raw const linger).cast(), size) }).text()
}

/// Returns the first 8 bytes of an option.
pub fn get(descriptor: i32, option: i32) -> String {
    let Some((level, name)) = OPTIONS.get(option as usize).copied() else { return "?".into() };
    let mut value = [0i32; 2];
    let mut size = 8u32;
    // SAFETY: room for 8 bytes.
    let answer = answer(unsafe { libc::getsockopt(descriptor, level, name, value.as_mut_ptr().cast(), &raw mut size) });
    match (answer.is_ok(), size) {
        (false, _) => answer.text(),
        (true, 8) => format!("{} {}", value[0], value[1]),
        (true, 4) => format!("{}", value[0]),
        (true, size) => format!("{} of {size}", value[0]),
    }
}

/// SO_RCVTIMEO or SO_SNDTIMEO.
pub fn set_timeout(descriptor: i32, which: i32, milliseconds: i32) -> String {
    let time = libc::timeval {
        tv_sec: i64::from(milliseconds.div_euclid(1000)),
        tv_usec: i64::from(milliseconds.rem_euclid(1000)) * 1000,
    };
    let size = size_of::<libc::timeval>() as u32;
    // SAFETY: a timeval and its size.
    answer(unsafe { libc::setsockopt(descriptor, libc::SOL_SOCKET, which, (&raw const time).cast(), size) }).text()
}
