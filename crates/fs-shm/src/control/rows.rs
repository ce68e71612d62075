//! Rows of the replies to an administrator.

use super::message::KernelReason;
use super::wire::{Malformed, Reader, Text, Writer};
use core::net::SocketAddr;

/// What carries a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// TCP on the accelerated device.
    Wire = 1,
    /// Another process of this host, by shared memory.
    Local = 2,
    /// The kernel.
    Kernel = 3,
}

/// One socket in a list. Its size is fixed by what it holds: at most 128 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketRow {
    /// TCP's state, as `include/net/tcp_states.h` numbers it (1 ESTABLISHED … 10 LISTEN).
    pub state: u8,
    /// What carries it.
    pub kind: Kind,
    /// The core, for the wire.
    pub core: Option<u16>,
    /// Why it is the kernel's.
    pub reason: Option<KernelReason>,
    /// Bytes to read (of a listener: connections to accept).
    pub recv_queue: u32,
    /// Bytes that the peer has not taken (of a listener: the backlog).
    pub send_queue: u32,
    /// Own address; port 0 and the unspecified address when it is not known.
    pub local: SocketAddr,
    /// The peer's.
    pub peer: Option<SocketAddr>,
    /// The process.
    pub pid: u32,
    /// Its descriptor.
    pub fd: u32,
    /// Its name.
    pub name: Text<32>,
}

/// The end of a counter's name that says that it is a bucket of a histogram of nanoseconds. Its label is the core's number, a
/// comma, and the least value that is too large for the bucket, or `sum`: of all values together.
pub const BUCKETS: &str = "_buckets";

/// One counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRow {
    /// Its name, as Prometheus wants it, without the `fastsock_` in front.
    pub name: Text<48>,
    /// A label's value, or nothing: the reason, the core.
    pub label: Text<32>,
    /// It can go down.
    pub gauge: bool,
    /// The value.
    pub value: u64,
}

/// Rows of admin replies.
pub trait Row: Sized {
    /// Writes it; answers its length.
    fn encode(&self, buffer: &mut [u8]) -> Result<usize, Malformed>;
    /// Reads one and answers what is behind it.
    fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed>;
}

impl Row for SocketRow {
    fn encode(&self, buffer: &mut [u8]) -> Result<usize, Malformed> {
        let mut w = Writer::new(buffer);
        w.u8(self.state);
        w.u8(self.kind as u8);
        w.bool(self.core.is_some());
        w.u16(self.core.unwrap_or(0));
        w.u8(self.reason.map_or(0, |reason| reason as u8));
        w.u32(self.recv_queue);
        w.u32(self.send_queue);
        w.addr(self.local);
        w.some_addr(self.peer);
        w.u32(self.pid);
        w.u32(self.fd);
        w.text(&self.name);
        w.finish()
    }

    fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut r = Reader::new(bytes);
        let state = r.u8()?;
        let kind = match r.u8()? {
            1 => Kind::Wire,
            2 => Kind::Local,
            3 => Kind::Kernel,
            _ => return Err(Malformed("unknown kind of socket")),
        };
        let (has_core, core) = (r.bool()?, r.u16()?);
        let reason = match r.u8()? {
            0 => None,
            code => Some(KernelReason::from_code(code).ok_or(Malformed("unknown reason"))?),
        };
        let row = Self {
            state,
            kind,
            core: has_core.then_some(core),
            reason,
            recv_queue: r.u32()?,
            send_queue: r.u32()?,
            local: r.addr()?,
            peer: r.some_addr()?,
            pid: r.u32()?,
            fd: r.u32()?,
            name: r.text()?,
        };
        Ok((row, r.rest()))
    }
}

impl Row for CounterRow {
    fn encode(&self, buffer: &mut [u8]) -> Result<usize, Malformed> {
        let mut w = Writer::new(buffer);
        w.text(&self.name);
        w.text(&self.label);
        w.bool(self.gauge);
        w.u64(self.value);
        w.finish()
    }

    fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut r = Reader::new(bytes);
        let row = Self { name: r.text()?, label: r.text()?, gauge: r.bool()?, value: r.u64()? };
        Ok((row, r.rest()))
    }
}
