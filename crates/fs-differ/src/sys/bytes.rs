//! Sending and receiving by all calls.

use super::calls::{answer, numbers};
use super::foreign::{self, Form};
use super::names::{AddressBuffer, address};
use crate::values::{MSG, bits};

/// Maximum number of bytes of one call.
const LENGTH_MAX: usize = 4 << 20;

/// Returns a step's bytes, which depend on the step, so that received bytes show their origin.
pub fn pattern(step: usize, length: usize) -> Vec<u8> {
    (0..length.min(LENGTH_MAX)).map(|i| ((step * 37 + 11) ^ (i * 7 + (i >> 8))) as u8).collect()
}

fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn content(bytes: &[u8]) -> String {
    if bytes.is_empty() { "0".into() } else { format!("{} #{:08x}", bytes.len(), hash(bytes)) }
}

fn parts(buffer: &mut [u8]) -> [libc::iovec; 3] {
    let (first, rest) = buffer.split_at_mut(buffer.len() / 3);
    let piece = |bytes: &mut [u8]| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // The part in the middle is empty.
    [piece(first), libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }, piece(rest)]
}

fn message(parts: &mut [libc::iovec], name: Option<&mut AddressBuffer>, control: &mut [u8]) -> libc::msghdr {
    // SAFETY: zeros are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    if let Some(name) = name {
        (message.msg_name, message.msg_namelen) = name.name();
    }
    if !control.is_empty() {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = control.len();
    }
    message
}

/// Sends `length` bytes by one call.
pub fn send(descriptor: i32, form: i32, length: i32, flags: i32, step: usize) -> String {
    let mut bytes = pattern(step, length.max(0) as usize);
    let size = bytes.len();
    let data = bytes.as_mut_ptr().cast::<libc::c_void>();
    match form {
        // SAFETY: the buffer and its length.
        0 => answer(unsafe { libc::write(descriptor, data, size) } as i64).text(),
        1 => {
            let parts = parts(&mut bytes);
            // SAFETY: parts of the buffer, and their number.
            answer(unsafe { libc::writev(descriptor, parts.as_ptr(), 3) } as i64).text()
        }
        // SAFETY: the buffer and its length.
        2 => answer(unsafe { libc::send(descriptor, data, size, flags) } as i64).text(),
        3 => {
            // SAFETY: the buffer and its length; no address.
            answer(unsafe { libc::sendto(descriptor, data, size, flags, std::ptr::null(), 0) } as i64).text()
        }
        4 => {
            let mut parts = parts(&mut bytes);
            let message = message(&mut parts, None, &mut []);
            // SAFETY: a message whose parts lie in the buffer.
            answer(unsafe { libc::sendmsg(descriptor, &raw const message, flags) } as i64).text()
        }
        5 => {
            let (one, other) = bytes.split_at_mut(size / 2);
            let (mut one, mut other) = (parts(one), parts(other));
            let whole = |message| libc::mmsghdr { msg_hdr: message, msg_len: 0 };
            let mut both = [whole(message(&mut one, None, &mut [])), whole(message(&mut other, None, &mut []))];
            // SAFETY: two messages whose parts lie in the buffer.
            let answer = answer(unsafe { libc::sendmmsg(descriptor, both.as_mut_ptr(), 2, flags) });
            format!("{} {} {}", answer.text(), both[0].msg_len, both[1].msg_len)
        }
        7 => foreign::send(Form::ByNumber, descriptor, &mut bytes, flags).text(),
        8 => foreign::send(Form::Aio, descriptor, &mut bytes, flags).text(),
        9 => foreign::send(Form::Uring, descriptor, &mut bytes, flags).text(),
        10 => foreign::send(Form::Direct, descriptor, &mut bytes, flags).text(),
        _ => {
            let mut room = address(1, 0);
            let (name, long) = room.name();
            // SAFETY: the buffer and its length, an address and its length.
            answer(unsafe { libc::sendto(descriptor, data, size, flags, name.cast(), long) } as i64).text()
        }
    }
}

/// Receives up to `length` bytes by one call.
pub fn receive(descriptor: i32, form: i32, length: i32, flags: i32) -> String {
    let mut bytes = vec![0u8; (length.max(0) as usize).min(LENGTH_MAX)];
    let size = bytes.len();
    let data = bytes.as_mut_ptr().cast::<libc::c_void>();
    let show = |bytes: &[u8], got: super::calls::Answer| {
        if got.is_ok() && flags & libc::MSG_TRUNC != 0 {
            got.text()
        } else if got.is_ok() {
            content(&bytes[..(got.value as usize).min(bytes.len())])
        } else {
            got.text()
        }
    };
    match form {
        0 => {
            // SAFETY: the buffer and its length.
            let got = answer(unsafe { libc::read(descriptor, data, size) } as i64);
            if got.is_ok() { content(&bytes[..(got.value as usize).min(size)]) } else { got.text() }
        }
        1 => {
            let parts = parts(&mut bytes);
            // SAFETY: parts of the buffer, and their number.
            let got = answer(unsafe { libc::readv(descriptor, parts.as_ptr(), 3) } as i64);
            if got.is_ok() { content(&bytes[..(got.value as usize).min(size)]) } else { got.text() }
        }
        2 => {
            // SAFETY: the buffer and its length.
            let got = answer(unsafe { libc::recv(descriptor, data, size, flags) } as i64);
            show(&bytes, got)
        }
        3 => {
            let mut room = AddressBuffer::new();
            let (name, long) = room.pointers();
            // SAFETY: the buffer and its length, room for an address and its length.
            let got = answer(unsafe { libc::recvfrom(descriptor, data, size, flags, name, long) } as i64);
            let text = show(&bytes, got);
            if got.is_ok() { format!("{text} from {}", room.text()) } else { text }
        }
        4 => {
            let mut control = [0u8; 256];
            let mut room = AddressBuffer::new();
            let mut parts = parts(&mut bytes);
            let mut message = message(&mut parts, Some(&mut room), &mut control);
            // SAFETY: a message whose parts lie in the buffer.
            let got = answer(unsafe { libc::recvmsg(descriptor, &raw mut message, flags) } as i64);
            let text = show(&bytes, got);
            if !got.is_ok() {
                return text;
            }
            let (flags, name, control) = (message.msg_flags, message.msg_namelen, message.msg_controllen);
            format!("{text} {} name {name} control {control}", bits(MSG, flags))
        }
        6..=9 => {
            let form = [Form::ByNumber, Form::Aio, Form::Uring, Form::Direct][form as usize - 6];
            let got = foreign::receive(form, descriptor, &mut bytes, flags);
            show(&bytes, got)
        }
        _ => {
            let (one, other) = bytes.split_at_mut(size / 2);
            let (mut one, mut other) = (parts(one), parts(other));
            let whole = |message| libc::mmsghdr { msg_hdr: message, msg_len: 0 };
            let mut both = [whole(message(&mut one, None, &mut [])), whole(message(&mut other, None, &mut []))];
            // SAFETY: two messages whose parts lie in the buffer; no timeout.
            let got = answer(unsafe { libc::recvmmsg(descriptor, both.as_mut_ptr(), 2, flags, std::ptr::null_mut()) });
            let lengths: Vec<u32> = both.iter().take(got.value.max(0) as usize).map(|one| one.msg_len).collect();
            format!("{} {lengths:?} #{:08x}", got.text(), hash(&bytes))
        }
    }
}

/// recvmsg(2) of one byte, with a name of this length.
pub fn receive_name(descriptor: i32, length: i32) -> String {
    let mut byte = [0u8];
    let mut room = AddressBuffer::new();
    let mut parts = [libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 }];
    let mut message = message(&mut parts, Some(&mut room), &mut []);
    message.msg_namelen = length as u32;
    // SAFETY: a message whose part lies in the buffer; the kernel bounds the name by a
    // sockaddr_storage, for which there is room.
    let got = answer(unsafe { libc::recvmsg(descriptor, &raw mut message, libc::MSG_DONTWAIT) } as i64);
    if got.is_ok() { format!("{} name {}", got.text(), message.msg_namelen) } else { got.text() }
}

/// Sends this many bytes, waiting a little if there is no space: as much as a peer that does not
/// read can buffer.
pub fn fill(descriptor: i32, length: i32, step: usize) -> String {
    let bytes = pattern(step, length.max(0) as usize);
    let mut sent = 0;
    let mut refused = 0;
    while sent < bytes.len() {
        // Pieces that both sides accept completely or not at all.
        let rest = &bytes[sent..(sent + 16384).min(bytes.len())];
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the buffer and its length.
        let got = answer(unsafe { libc::send(descriptor, rest.as_ptr().cast(), rest.len(), flags) } as i64);
        if got.is_ok() {
            sent += got.value as usize;
            refused = 0;
        } else if got.errno != libc::EAGAIN {
            return got.text();
        } else if refused == 20 {
            return format!("stuck after {sent}");
        } else {
            refused += 1;
            super::process::pause(1);
        }
    }
    "all".into()
}

/// Receives until no bytes are left.
pub fn drain(descriptor: i32) -> String {
    let mut bytes = vec![0u8; 65536];
    let mut all = Vec::new();
    loop {
        // SAFETY: the buffer and its length.
        let got = answer(
            unsafe { libc::recv(descriptor, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) } as i64
        );
        match got.value {
            1.. => all.extend_from_slice(&bytes[..(got.value as usize).min(bytes.len())]),
            _ => return format!("{} then {}", content(&all), got.text()),
        }
        if all.len() > 64 << 20 {
            return "endless".into();
        }
    }
}

/// sendfile(2), from the file's own position. Of an odd length, that position is passed as an offset.
pub fn send_file(to: i32, from: i32, length: i32) -> String {
    // SAFETY: numbers.
    let mut at = unsafe { libc::lseek(from, 0, libc::SEEK_CUR) };
    let offset = if length % 2 == 0 || at < 0 { std::ptr::null_mut() } else { &raw mut at };
    // SAFETY: numbers; an offset or none.
    let sent = answer(unsafe { libc::sendfile(to, from, offset, length.max(0) as usize) } as i64).text();
    if !offset.is_null() {
        // SAFETY: numbers.
        unsafe { libc::lseek(from, at, libc::SEEK_SET) };
    }
    sent
}

/// splice(2), without blocking.
pub fn splice(from: i32, to: i32, length: i32) -> String {
    let none = std::ptr::null_mut();
    let length = length.max(0) as usize;
    // SAFETY: numbers; no offsets.
    answer(unsafe { libc::splice(from, none, to, none, length, libc::SPLICE_F_NONBLOCK) } as i64).text()
}

/// Sends a descriptor over a Unix socket.
pub fn give(over: i32, descriptor: i32) -> String {
    let mut byte = [7u8];
    let mut parts = [libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 }];
    let mut control = [0u64; 8];
    let room = control.as_mut_ptr().cast::<u8>();
    let mut message = message(&mut parts, None, &mut []);
    message.msg_control = room.cast();
    // SAFETY: arithmetic only.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    // SAFETY: the control buffer is aligned and has room for one header with one descriptor.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(descriptor);
    }
    // SAFETY: a valid message.
    answer(unsafe { libc::sendmsg(over, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) } as i64).text()
}

/// Receives a descriptor.
pub fn take(over: i32, into: i32) -> String {
    let mut byte = [0u8];
    let mut parts = [libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 }];
    let mut control = [0u64; 8];
    let mut message = message(&mut parts, None, &mut []);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: a valid message.
    let got = answer(unsafe { libc::recvmsg(over, &raw mut message, libc::MSG_DONTWAIT) } as i64);
    if !got.is_ok() {
        return got.text();
    }
    // SAFETY: the kernel has filled in the headers; only an existing first one is read.
    let descriptor = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return format!("{} without", got.text());
        }
        libc::CMSG_DATA(header).cast::<i32>().read_unaligned()
    };
    super::calls::put(into, descriptor);
    format!("{} fd {descriptor} {}", got.text(), bits(MSG, message.msg_flags))
}

/// shutdown(2).
pub fn shutdown(descriptor: i32, how: i32) -> String {
    numbers!(shutdown(descriptor, how)).text()
}
