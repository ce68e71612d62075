//! ioctl: its argument is a pointer.
#![allow(unsafe_code)]

use libc::{FIONBIO, FIONREAD, SIOCOUTQNSD, TIOCOUTQ};
use rustix::io::Errno;

use crate::{
    descriptor::{self, kept, table},
    options::tcp_options,
    socket::Kind,
    types::{Fd, Ours},
};

const SIOCATMARK: u64 = 0x8905;

/// `ioctl(2)`: `argument` is the third argument as passed.
///
/// # Safety
/// `argument` must be what `request` asks for (as for the real call).
pub unsafe fn ioctl(fd: Fd, request: u64, argument: *mut u8) -> Ours<i32> {
    let socket = table::find(fd)?;
    // The C type is int in some libraries: the upper half is noise.
    let request = request & 0xffff_ffff;
    if !matches!(request, FIONREAD | TIOCOUTQ | SIOCOUTQNSD | SIOCATMARK | FIONBIO) {
        kept::spoil(socket);
    }
    let channel = match (socket.kind(), request) {
        (Kind::Channel, FIONREAD | TIOCOUTQ | SIOCOUTQNSD | FIONBIO | SIOCATMARK) => socket.channel(),
        (Kind::Fresh | Kind::Listener, FIONBIO) => None,
        _ => return None,
    };
    if (argument as usize) < 4096 {
        return Some(Err(Errno::FAULT));
    }
    let argument = argument.cast::<i32>();
    if request == FIONBIO {
        // SAFETY: the caller's promise: FIONBIO takes a pointer to an int.
        let on = unsafe { argument.read_unaligned() } != 0;
        return Some(descriptor::set_nonblocking(fd, socket, on).map(|()| 0));
    }
    let value = match (request, channel?) {
        (FIONREAD, channel) => channel.queued_to_mark() as i32,
        (TIOCOUTQ | SIOCOUTQNSD, channel) => tcp_options::queued_out(&channel, request == SIOCOUTQNSD) as i32,
        (_, channel) => i32::from(channel.at_mark()),
    };
    // SAFETY: the caller's promise: these requests take a pointer to an int.
    unsafe { argument.write_unaligned(value) };
    Some(Ok(0))
}
