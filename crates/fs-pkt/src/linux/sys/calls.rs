//! Performs a script's system calls.

use crate::run::call::{Control, Destination, Out, Outcome, SysCall, Transfer};
use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

fn outcome(result: i64) -> Outcome {
    if result >= 0 {
        return Outcome::ok(result);
    }
    Outcome::err(io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn outcome_with(result: i64, out: Out) -> Outcome {
    let mut outcome = outcome(result);
    if result >= 0 {
        outcome.out = out;
    }
    outcome
}

/// A socket address in the kernel's format.
struct Address {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl Address {
    fn empty() -> Self {
        // SAFETY: all zeros is a valid sockaddr_storage (AF_UNSPEC).
        let storage = unsafe { zeroed() };
        Self { storage, len: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    fn of(at: SocketAddr) -> Self {
        let mut address = Self::empty();
        let start = (&raw mut address.storage).cast::<u8>();
        match at {
            SocketAddr::V4(at) => {
                let sin = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: at.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*at.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: a sockaddr_storage is as large and as aligned as any address.
                unsafe { start.cast::<libc::sockaddr_in>().write(sin) };
                address.len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(at) => {
                let sin6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: at.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: at.ip().octets() },
                    sin6_scope_id: 0,
                };
                // SAFETY: as above.
                unsafe { start.cast::<libc::sockaddr_in6>().write(sin6) };
                address.len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        address
    }

    fn get(&self) -> Option<SocketAddr> {
        let start = &raw const self.storage;
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family selects the type.
                let sin = unsafe { start.cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr));
                Some(SocketAddr::new(ip.into(), u16::from_be(sin.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let sin6 = unsafe { start.cast::<libc::sockaddr_in6>().read() };
                Some(SocketAddr::new(Ipv6Addr::from(sin6.sin6_addr.s6_addr).into(), u16::from_be(sin6.sin6_port)))
            }
            _ => None,
        }
    }

    fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    fn pointer_mut(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }
}

/// Makes a call, which may block.
pub(crate) fn perform(call: &SysCall) -> Outcome {
    match *call {
        SysCall::Socket { domain, kind, protocol } => {
            // SAFETY: no memory.
            outcome(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) }.into())
        }
        SysCall::Bind { fd, at } => {
            let at = Address::of(at);
            // SAFETY: the address outlives the call.
            outcome(unsafe { libc::bind(fd, at.pointer(), at.len) }.into())
        }
        // SAFETY: no memory.
        SysCall::Listen { fd, backlog } => outcome(unsafe { libc::listen(fd, backlog) }.into()),
        SysCall::Accept { fd } => {
            let mut peer = Address::empty();
            let mut len = peer.len;
            // SAFETY: address and length outlive the call and are consistent.
            let result = unsafe { libc::accept4(fd, peer.pointer_mut(), &mut len, libc::SOCK_CLOEXEC) };
            outcome_with(result.into(), peer.get().map_or(Out::Nothing, Out::Peer))
        }
        SysCall::Connect { fd, to } => {
            let to = to.map_or_else(Address::empty, Address::of);
            // SAFETY: as bind.
            outcome(unsafe { libc::connect(fd, to.pointer(), to.len) }.into())
        }
        SysCall::Receive { fd, by, ref lens, null, flags, control } => receive(fd, by, lens, null, flags, control),
        SysCall::Send { fd, by, ref lens, null, flags, to } => send(fd, by, lens, null, flags, to),
        // SAFETY: no memory; the descriptor is the script's.
        SysCall::Close { fd } => outcome(unsafe { libc::close(fd) }.into()),
        // SAFETY: no memory.
        SysCall::Shutdown { fd, how } => outcome(unsafe { libc::shutdown(fd, how) }.into()),
        SysCall::Fcntl { fd, command, arg } => {
            // SAFETY: the commands that scripts use take numbers.
            outcome(unsafe { libc::fcntl(fd, command, arg.unwrap_or(0)) }.into())
        }
        SysCall::Ioctl { fd, request, .. } => {
            let mut value: i64 = 0;
            // SAFETY: the requests that scripts use write an int.
            let result = unsafe { libc::ioctl(fd, request as libc::c_ulong, &raw mut value) };
            outcome_with(result.into(), Out::Int(value as i32))
        }
        SysCall::GetOption { fd, level, name, len } => {
            let mut value = vec![0u8; len.max(1)];
            let mut out = len as libc::socklen_t;
            // SAFETY: the buffer has at least the given length.
            let result = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut out) };
            value.truncate(out as usize);
            outcome_with(result.into(), Out::Bytes(value))
        }
        SysCall::SetOption { fd, level, name, ref value, len } => {
            let mut value = value.clone();
            // A script may give a length beyond its value.
            value.resize(value.len().max(len), 0);
            // SAFETY: the buffer has at least the given length.
            outcome(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len as libc::socklen_t) }.into())
        }
        SysCall::Poll { ref fds, timeout } => {
            let mut fds: Vec<libc::pollfd> =
                fds.iter().map(|(fd, events)| libc::pollfd { fd: *fd, events: *events, revents: 0 }).collect();
            // SAFETY: the array outlives the call and has the given length.
            let result = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
            outcome_with(result.into(), Out::Revents(fds.iter().map(|f| f.revents).collect()))
        }
        // SAFETY: no memory.
        SysCall::EpollCreate { size } => outcome(unsafe { libc::epoll_create(size) }.into()),
        SysCall::EpollControl { epoll, operation, fd, events, data } => {
            let mut event = libc::epoll_event { events, u64: data };
            // SAFETY: the event outlives the call.
            outcome(unsafe { libc::epoll_ctl(epoll, operation, fd, &mut event) }.into())
        }
        SysCall::EpollWait { epoll, max, timeout } => {
            let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max.clamp(1, 1024) as usize];
            // SAFETY: the array has at least the given length.
            let result = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), max.min(1024), timeout) };
            let found = events.iter().take(result.max(0) as usize).map(|e| (e.events, e.u64)).collect();
            outcome_with(result.into(), Out::Events(found))
        }
        SysCall::Pipe => {
            let mut ends = [0i32; 2];
            // SAFETY: two ints.
            let result = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
            outcome_with(result.into(), Out::Pair(ends[0], ends[1]))
        }
        SysCall::Open { ref path, flags } => {
            let Ok(path) = CString::new(path.as_str()) else { return Outcome::err(libc::EINVAL) };
            // SAFETY: the path is zero-terminated and outlives the call.
            outcome(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) }.into())
        }
        SysCall::Sendfile { to, from, offset, count } => {
            let mut offset = offset;
            // SAFETY: the offset outlives the call.
            outcome(unsafe { libc::sendfile(to, from, &mut offset, count) } as i64)
        }
        SysCall::Splice { from, to, len, flags } => {
            let none = std::ptr::null_mut();
            // SAFETY: no offsets, no memory.
            outcome(unsafe { libc::splice(from, none, to, none, len, flags) } as i64)
        }
        SysCall::CapSet => Outcome::ok(0),
    }
}

/// Returns iovecs of the buffers, or null pointers of the same lengths.
fn vectors(buffers: &mut [Vec<u8>], null: bool) -> Vec<libc::iovec> {
    let base = |buffer: &mut Vec<u8>| if null { std::ptr::null_mut() } else { buffer.as_mut_ptr().cast() };
    buffers.iter_mut().map(|buffer| libc::iovec { iov_base: base(buffer), iov_len: buffer.len() }).collect()
}

fn receive(fd: i32, by: Transfer, lens: &[usize], null: bool, flags: i32, control: usize) -> Outcome {
    let mut buffers: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
    let mut vectors = vectors(&mut buffers, null);
    let first = vectors.first().map_or((std::ptr::null_mut(), 0), |v| (v.iov_base, v.iov_len));
    match by {
        // SAFETY: in all five calls, the buffers outlive the call and have the given lengths, or
        // are null, which the kernel rejects.
        Transfer::Plain => outcome(unsafe { libc::read(fd, first.0, first.1) } as i64),
        // SAFETY: see above.
        Transfer::Vector => outcome(unsafe { libc::readv(fd, vectors.as_ptr(), vectors.len() as i32) } as i64),
        // SAFETY: see above.
        Transfer::Flags => outcome(unsafe { libc::recv(fd, first.0, first.1, flags) } as i64),
        Transfer::Address => {
            let mut from = Address::empty();
            let mut len = from.len;
            // SAFETY: see above; the address outlives the call.
            outcome(unsafe { libc::recvfrom(fd, first.0, first.1, flags, from.pointer_mut(), &mut len) } as i64)
        }
        Transfer::Message => {
            let mut ancillary = vec![0u64; control.div_ceil(8)];
            // SAFETY: all zeros is a valid msghdr.
            let mut header: libc::msghdr = unsafe { zeroed() };
            header.msg_iov = vectors.as_mut_ptr();
            header.msg_iovlen = vectors.len();
            header.msg_control = ancillary.as_mut_ptr().cast();
            header.msg_controllen = ancillary.len() * 8;
            // SAFETY: see above; header and control buffer outlive the call.
            let result = unsafe { libc::recvmsg(fd, &mut header, flags) } as i64;
            let control = if result >= 0 { controls(&header) } else { Vec::new() };
            outcome_with(result, Out::Message { flags: header.msg_flags, control })
        }
    }
}

/// Returns the control messages that the kernel wrote.
fn controls(header: &libc::msghdr) -> Vec<Control> {
    let mut found = Vec::new();
    // SAFETY: the macros walk the control buffer within the length that the kernel set.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            let message = at.read_unaligned();
            let len = (message.cmsg_len).saturating_sub(libc::CMSG_LEN(0) as usize);
            let data = std::slice::from_raw_parts(libc::CMSG_DATA(at), len).to_vec();
            found.push(Control { level: message.cmsg_level, kind: message.cmsg_type, data });
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    found
}

fn send(fd: i32, by: Transfer, lens: &[usize], null: bool, flags: i32, to: Destination) -> Outcome {
    let mut buffers: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
    let mut vectors = vectors(&mut buffers, null);
    let first = vectors.first().map_or((std::ptr::null_mut(), 0), |v| (v.iov_base, v.iov_len));
    let to = match to {
        Destination::Connected => None,
        Destination::To(to) => Some(Address::of(to)),
        Destination::Unspecified => Some(Address::empty()),
    };
    let (name, len) = to.as_ref().map_or((std::ptr::null(), 0), |to| (to.pointer(), to.len));
    let done = match by {
        // Rust's runtime ignores SIGPIPE. SAFETY: in all of these calls, the buffers outlive the
        // call and have the given lengths, or are null, which the kernel rejects.
        Transfer::Plain => outcome(unsafe { libc::write(fd, first.0, first.1) } as i64),
        // SAFETY: see above.
        Transfer::Flags => outcome(unsafe { libc::send(fd, first.0, first.1, flags) } as i64),
        // SAFETY: see above.
        Transfer::Vector => outcome(unsafe { libc::writev(fd, vectors.as_ptr(), vectors.len() as i32) } as i64),
        // SAFETY: see above; the address outlives the call.
        Transfer::Address => outcome(unsafe { libc::sendto(fd, first.0, first.1, flags, name, len) } as i64),
        Transfer::Message => {
            // SAFETY: all zeros is a valid msghdr.
            let mut header: libc::msghdr = unsafe { zeroed() };
            header.msg_name = name.cast_mut().cast();
            header.msg_namelen = len;
            header.msg_iov = vectors.as_mut_ptr();
            header.msg_iovlen = vectors.len();
            // SAFETY: see above; the header outlives the call.
            outcome(unsafe { libc::sendmsg(fd, &header, flags) } as i64)
        }
    };
    if flags & libc::MSG_ZEROCOPY != 0 {
        // The kernel reads the buffers after the call: they are never freed.
        std::mem::forget(buffers);
    }
    done
}
