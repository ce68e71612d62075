//! Options of SOL_SOCKET, and the macro that declares the other options.

use super::names::{Domain, Protocol, Type};
use super::socket::Socket;
use crate::call;
use std::io;
use std::time::Duration;

/// Declares the getter and the setter of an option that is a C int, as `bool` or `u32`/`usize`.
macro_rules! int_options {
    ($($(#[$doc:meta])* $get:ident, $set:ident: $kind:ident = $level:ident, $name:ident;)*) => {
        impl $crate::socket2::socket::Socket {
            $($(#[$doc])*
            pub fn $get(&self) -> std::io::Result<$kind> {
                let value = $crate::call::int_option(self.fd(), libc::$level, libc::$name)?;
                Ok($crate::socket2::options::FromInt::from_int(value))
            }

            $(#[$doc])*
            pub fn $set(&self, value: $kind) -> std::io::Result<()> {
                let value = $crate::socket2::options::FromInt::to_int(value);
                $crate::call::set_int_option(self.fd(), libc::$level, libc::$name, value)
            })*
        }
    };
}
pub(super) use int_options;

/// Converts an option's int to and from a Rust value.
pub(super) trait FromInt {
    fn from_int(value: i32) -> Self;
    fn to_int(self) -> i32;
}

impl FromInt for bool {
    fn from_int(value: i32) -> bool {
        value != 0
    }

    fn to_int(self) -> i32 {
        i32::from(self)
    }
}

/// Keeps the bits: options that are unsigned in the kernel use all of them.
impl FromInt for u32 {
    fn from_int(value: i32) -> u32 {
        value as u32
    }

    fn to_int(self) -> i32 {
        self as i32
    }
}

/// Sizes and CPU numbers. A value above the largest int becomes the largest int.
impl FromInt for usize {
    fn from_int(value: i32) -> usize {
        value as usize
    }

    fn to_int(self) -> i32 {
        i32::try_from(self).unwrap_or(i32::MAX)
    }
}

int_options! {
    /// SO_BROADCAST.
    broadcast, set_broadcast: bool = SOL_SOCKET, SO_BROADCAST;
    /// SO_KEEPALIVE.
    keepalive, set_keepalive: bool = SOL_SOCKET, SO_KEEPALIVE;
    /// SO_OOBINLINE: urgent data stays in the stream.
    out_of_band_inline, set_out_of_band_inline: bool = SOL_SOCKET, SO_OOBINLINE;
    /// SO_PASSCRED.
    passcred, set_passcred: bool = SOL_SOCKET, SO_PASSCRED;
    /// SO_PRIORITY.
    priority, set_priority: u32 = SOL_SOCKET, SO_PRIORITY;
    /// SO_RCVBUF in bytes; Linux doubles what is set.
    recv_buffer_size, set_recv_buffer_size: usize = SOL_SOCKET, SO_RCVBUF;
    /// SO_SNDBUF in bytes; Linux doubles what is set.
    send_buffer_size, set_send_buffer_size: usize = SOL_SOCKET, SO_SNDBUF;
    /// SO_REUSEADDR.
    reuse_address, set_reuse_address: bool = SOL_SOCKET, SO_REUSEADDR;
    /// SO_REUSEPORT.
    reuse_port, set_reuse_port: bool = SOL_SOCKET, SO_REUSEPORT;
    /// SO_MARK.
    mark, set_mark: u32 = SOL_SOCKET, SO_MARK;
    /// SO_INCOMING_CPU.
    cpu_affinity, set_cpu_affinity: usize = SOL_SOCKET, SO_INCOMING_CPU;
    /// SO_BUSY_POLL in µs.
    busy_poll, set_busy_poll: u32 = SOL_SOCKET, SO_BUSY_POLL;
}

impl Socket {
    /// SO_ERROR: takes the pending error.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let errno = call::int_option(self.fd(), libc::SOL_SOCKET, libc::SO_ERROR)?;
        Ok((errno != 0).then(|| io::Error::from_raw_os_error(errno)))
    }

    /// SO_TYPE.
    pub fn r#type(&self) -> io::Result<Type> {
        Ok(call::int_option(self.fd(), libc::SOL_SOCKET, libc::SO_TYPE)?.into())
    }

    /// SO_DOMAIN.
    pub fn domain(&self) -> io::Result<Domain> {
        Ok(call::int_option(self.fd(), libc::SOL_SOCKET, libc::SO_DOMAIN)?.into())
    }

    /// SO_PROTOCOL; `None` is 0.
    pub fn protocol(&self) -> io::Result<Option<Protocol>> {
        let protocol = call::int_option(self.fd(), libc::SOL_SOCKET, libc::SO_PROTOCOL)?;
        Ok((protocol != 0).then(|| protocol.into()))
    }

    /// SO_ACCEPTCONN: true if it listens.
    pub fn is_listener(&self) -> io::Result<bool> {
        Ok(call::int_option(self.fd(), libc::SOL_SOCKET, libc::SO_ACCEPTCONN)? != 0)
    }

    /// SO_COOKIE: the socket's number, unique in the kernel.
    pub fn cookie(&self) -> io::Result<u64> {
        let mut value = [0; 8];
        call::option(self.fd(), libc::SOL_SOCKET, libc::SO_COOKIE, &mut value)?;
        Ok(u64::from_ne_bytes(value))
    }

    /// SO_LINGER; seconds.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        let mut value = [0; 8];
        call::option(self.fd(), libc::SOL_SOCKET, libc::SO_LINGER, &mut value)?;
        let [on, seconds] = ints(value);
        Ok((on != 0).then(|| Duration::from_secs(seconds as u64)))
    }

    /// SO_LINGER; fractions of seconds are cut off.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        let seconds = linger.map_or(0, |time| i32::try_from(time.as_secs()).unwrap_or(i32::MAX));
        let mut value = [0; 8];
        value[..4].copy_from_slice(&i32::from(linger.is_some()).to_ne_bytes());
        value[4..].copy_from_slice(&seconds.to_ne_bytes());
        call::set_option(self.fd(), libc::SOL_SOCKET, libc::SO_LINGER, &value)
    }

    /// SO_RCVTIMEO; `None`: for ever.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        self.timeout(libc::SO_RCVTIMEO)
    }

    /// SO_RCVTIMEO in whole µs; `None` and zero: for ever.
    pub fn set_read_timeout(&self, duration: Option<Duration>) -> io::Result<()> {
        self.set_timeout(libc::SO_RCVTIMEO, duration)
    }

    /// SO_SNDTIMEO; `None`: for ever.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        self.timeout(libc::SO_SNDTIMEO)
    }

    /// SO_SNDTIMEO in whole µs; `None` and zero: for ever.
    pub fn set_write_timeout(&self, duration: Option<Duration>) -> io::Result<()> {
        self.set_timeout(libc::SO_SNDTIMEO, duration)
    }

    fn timeout(&self, name: i32) -> io::Result<Option<Duration>> {
        let mut value = [0; 16];
        call::option(self.fd(), libc::SOL_SOCKET, name, &mut value)?;
        let (seconds, micros) = value.split_at(8);
        let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
        let time = Duration::from_secs(number(seconds)) + Duration::from_micros(number(micros));
        Ok((!time.is_zero()).then_some(time))
    }

    fn set_timeout(&self, name: i32, duration: Option<Duration>) -> io::Result<()> {
        let time = duration.unwrap_or(Duration::ZERO);
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let mut value = [0; 16];
        value[..8].copy_from_slice(&seconds.to_ne_bytes());
        value[8..].copy_from_slice(&i64::from(time.subsec_micros()).to_ne_bytes());
        call::set_option(self.fd(), libc::SOL_SOCKET, name, &value)
    }
}

/// `struct timeval` and `struct linger`, as read and written above.
const _: () = assert!(size_of::<libc::timeval>() == 16 && size_of::<libc::linger>() == 8);

fn ints(bytes: [u8; 8]) -> [i32; 2] {
    let (first, second) = bytes.split_at(4);
    [first, second].map(|half| i32::from_ne_bytes(half.try_into().expect("4 bytes")))
}
