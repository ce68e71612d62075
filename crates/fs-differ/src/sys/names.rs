//! Addresses: bind, connect, accept and names.

use super::calls::{Answer, answer, made};
use std::sync::atomic::{AtomicI32, Ordering};

/// The first of the program's ports.
static BASE: AtomicI32 = AtomicI32::new(0);

/// Sets the program's ports: this one and the next three.
pub fn set_base(port: u16) {
    BASE.store(i32::from(port), Ordering::Relaxed);
}

/// Returns the first of the program's ports.
pub fn base() -> u16 {
    BASE.load(Ordering::Relaxed) as u16
}

/// Storage for an address.
pub struct AddressBuffer {
    storage: libc::sockaddr_storage,
    length: u32,
}

impl AddressBuffer {
    /// Makes zeroed storage.
    pub fn new() -> AddressBuffer {
        // SAFETY: zeros are a valid sockaddr_storage.
        AddressBuffer { storage: unsafe { std::mem::zeroed() }, length: size_of::<libc::sockaddr_storage>() as u32 }
    }

    /// Returns pointers for calls.
    pub fn pointers(&mut self) -> (*mut libc::sockaddr, *mut u32) {
        ((&raw mut self.storage).cast(), &raw mut self.length)
    }

    /// Returns pointers for messages.
    pub fn name(&mut self) -> (*mut libc::c_void, u32) {
        ((&raw mut self.storage).cast(), self.length)
    }

    /// Formats the address, with the program's own ports by name.
    pub fn text(&self) -> String {
        let storage = (&raw const self.storage).cast::<u8>();
        // SAFETY: within the storage, whose bytes are all initialised.
        let bytes = unsafe { std::slice::from_raw_parts(storage, size_of::<libc::sockaddr_storage>()) };
        let port = i32::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        let own = port - BASE.load(Ordering::Relaxed);
        let port = if port == 0 {
            "0".into()
        } else if (0..4).contains(&own) {
            format!("p{own}")
        } else {
            format!(":{port}")
        };
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                let host: [u8; 4] = [bytes[4], bytes[5], bytes[6], bytes[7]];
                format!("{}/{port}/{}", std::net::Ipv4Addr::from(host), self.length)
            }
            libc::AF_INET6 => {
                let mut host = [0; 16];
                host.copy_from_slice(&bytes[8..24]);
                format!("{}/{port}/{}", std::net::Ipv6Addr::from(host), self.length)
            }
            family => format!("family{family}/{}", self.length),
        }
    }
}

impl Default for AddressBuffer {
    fn default() -> AddressBuffer {
        AddressBuffer::new()
    }
}

/// Returns an address of the program.
pub fn address(host: i32, port: i32) -> AddressBuffer {
    let mut room = AddressBuffer::new();
    let base = BASE.load(Ordering::Relaxed);
    let port = if port < 0 { 0 } else { (base + port) as u16 };
    let four = |ip: u32| libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: ip.to_be() },
        sin_zero: [0; 8],
    };
    let six = |ip: std::net::Ipv6Addr| libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as u16,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
        sin6_scope_id: 0,
    };
    let place = &raw mut room.storage;
    let length = match host {
        3..=5 => {
            let ip = match host {
                3 => std::net::Ipv6Addr::UNSPECIFIED,
                4 => std::net::Ipv6Addr::LOCALHOST,
                _ => std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped(),
            };
            // SAFETY: a sockaddr_in6 fits into a sockaddr_storage and needs no more alignment.
            unsafe { place.cast::<libc::sockaddr_in6>().write(six(ip)) };
            size_of::<libc::sockaddr_in6>()
        }
        _ => {
            let ip = match host {
                0 | 6 => 0,
                2 => 0x7f00_0002,
                _ => 0x7f00_0001,
            };
            let mut four = four(ip);
            if host == 6 {
                four.sin_family = libc::AF_UNSPEC as u16;
            }
            // SAFETY: a sockaddr_in fits into a sockaddr_storage and needs no more alignment.
            unsafe { place.cast::<libc::sockaddr_in>().write(four) };
            if host == 7 { 7 } else { size_of::<libc::sockaddr_in>() }
        }
    };
    room.length = length as u32;
    room
}

/// bind(2).
pub fn bind(descriptor: i32, host: i32, port: i32) -> String {
    let mut room = address(host, port);
    let (name, length) = room.name();
    // SAFETY: an address and its length.
    answer(unsafe { libc::bind(descriptor, name.cast(), length) }).text()
}

/// connect(2).
pub fn connect(descriptor: i32, host: i32, port: i32) -> String {
    let mut room = address(host, port);
    let (name, length) = room.name();
    // SAFETY: an address and its length.
    answer(unsafe { libc::connect(descriptor, name.cast(), length) }).text()
}

/// accept(2), accept4(2), or accept(2) without an address.
pub fn accept(descriptor: i32, into: i32, form: i32, flags: i32) -> String {
    let mut room = AddressBuffer::new();
    let (name, length) = room.pointers();
    let answer = match form {
        // SAFETY: room for an address, and its length.
        0 => answer(unsafe { libc::accept(descriptor, name, length) }),
        // SAFETY: the same.
        1 => answer(unsafe { libc::accept4(descriptor, name, length, flags & !crate::values::NAGLE) }),
        // SAFETY: no address is requested.
        _ => answer(unsafe { libc::accept(descriptor, std::ptr::null_mut(), std::ptr::null_mut()) }),
    };
    let text = made(answer, into);
    if answer.is_ok() && form != 2 { format!("{text} {}", room.text()) } else { text }
}

fn named(answer: Answer, room: &AddressBuffer) -> String {
    if answer.is_ok() { room.text() } else { answer.text() }
}

/// getsockname(2).
pub fn name(descriptor: i32) -> String {
    let mut room = AddressBuffer::new();
    let (name, length) = room.pointers();
    // SAFETY: room for an address, and its length.
    let answer = answer(unsafe { libc::getsockname(descriptor, name, length) });
    named(answer, &room)
}

/// getpeername(2).
pub fn peer(descriptor: i32) -> String {
    let mut room = AddressBuffer::new();
    let (name, length) = room.pointers();
    // SAFETY: room for an address, and its length.
    let answer = answer(unsafe { libc::getpeername(descriptor, name, length) });
    named(answer, &room)
}
