//! Static tracepoints (USDT) of the provider `fastsock`, for bpftrace, perf, SystemTap and gdb.
//! Each is one `nop` in the code, and a note in the program's file (`readelf -n`) with its location
//! and the locations of its arguments.
//!
//! Arguments are values that are available at the probe, so that only moves into registers precede
//! the `nop`. No probe is on the path of an ordinary packet; `cargo xtask icount` counts at most 0.6 % more
//! instructions for a connection that is opened, used once and closed. Names are those of the
//! kernel's tracepoints where a corresponding one exists (`tcp:tcp_retransmit_skb`,
//! `tcp:tcp_send_reset`, `tcp:tcp_receive_reset`, `skb:kfree_skb`). docs/OPERATING.md has the
//! table, with a line for bpftrace.
//!
//! An event has several locations if it occurs in several ways, or if the compiler has duplicated
//! its code: a tracer attaches to all locations of a name.
//!
//! There are no probes on other systems than Linux.
#![no_std]

use probe::probe;

/// The endpoints of a connection as probe arguments: both ports in host order, and the peer's
/// address as the 4 or 16 bytes of the header.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a> {
    /// Our port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
    /// The peer's address: 4 or 16 bytes.
    pub remote: &'a [u8],
}

/// A connection is established, after a SYN of the peer (`passive`) or of ours.
///
/// `established(local port, remote port, remote address, its length, passive)`
#[inline(always)]
pub fn established(ends: Ends<'_>, passive: bool) {
    let Ends { local_port, remote_port, remote } = ends;
    probe!(fastsock, established, local_port, remote_port, remote.as_ptr(), remote.len(), passive);
}

/// An established connection has ended, or is in TIME-WAIT. `failed`: its application gets an
/// error.
///
/// `closed(local port, remote port, remote address, its length, failed)`
#[inline(always)]
pub fn closed(ends: Ends<'_>, failed: bool) {
    let Ends { local_port, remote_port, remote } = ends;
    probe!(fastsock, closed, local_port, remote_port, remote.as_ptr(), remote.len(), failed);
}

/// A segment is retransmitted: its sequence number, and its length in bytes.
///
/// `retransmit(local port, remote port, remote address, its length, sequence number, length)`
#[inline(always)]
pub fn retransmit(ends: Ends<'_>, seq: u32, len: u32) {
    let Ends { local_port, remote_port, remote } = ends;
    probe!(fastsock, retransmit, local_port, remote_port, remote.as_ptr(), remote.len(), seq, len);
}

/// RST is sent, for a connection or for a segment without connection.
///
/// `send_reset(local port, remote port, remote address, its length)`
#[inline(always)]
pub fn send_reset(ends: Ends<'_>) {
    let Ends { local_port, remote_port, remote } = ends;
    probe!(fastsock, send_reset, local_port, remote_port, remote.as_ptr(), remote.len());
}

/// The peer has reset a connection.
///
/// `receive_reset(local port, remote port, remote address, its length)`
#[inline(always)]
pub fn receive_reset(ends: Ends<'_>) {
    let Ends { local_port, remote_port, remote } = ends;
    probe!(fastsock, receive_reset, local_port, remote_port, remote.as_ptr(), remote.len());
}

/// A connection that is not accepted yet moves to another core.
///
/// `handover(local port, remote port, remote address, its length, new core)`
#[inline(always)]
pub fn handover(ends: Ends<'_>, to: u16) {
    let Ends { local_port, remote_port, remote } = ends;
    probe!(fastsock, handover, local_port, remote_port, remote.as_ptr(), remote.len(), to);
}

/// A packet, or a part of it, is discarded: the reason's name, as in metrics.
///
/// `drop(name, its length)`
#[inline(always)]
pub fn drop(reason: &'static str) {
    probe!(fastsock, drop, reason.as_ptr(), reason.len());
}
