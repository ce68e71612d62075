//! Static tracepoints (USDT) of the provider `fastsock`, for bpftrace, perf, SystemTap and gdb: each is one `nop` in the code, and
//! a note in the program's file (`readelf -n`) that says where it is and where its arguments are.
//!
//! What is an argument is at hand where the probe is, so that only moves into registers come before the `nop`; none is on the way of an
//! ordinary packet, and `cargo xtask icount` counts at most 0.6 % more instructions for a connection that is made, used once and closed. Names
//! are those of the kernel's tracepoints where it has one of the kind (`tcp:tcp_retransmit_skb`, `tcp:tcp_send_reset`,
//! `tcp:tcp_receive_reset`, `skb:kfree_skb`). docs/OPERATING.md has the table, with a line for bpftrace.
//!
//! An event is at several places in the code where it happens in several ways or where a compiler has copied it: a tracer that is
//! asked for the name looks at all of them.
//!
//! Elsewhere than on Linux there are none.
#![no_std]

use probe::probe;

/// The two ends of a connection, as its probes tell them: both ports in host order, and the peer's address as the 4 or 16 bytes of
/// the header.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a> {
    /// Our port.
    pub local_port: u16,
    /// The peer's.
    pub remote_port: u16,
    /// The peer's address: 4 bytes, or 16.
    pub remote: &'a [u8],
}

/// A connection is established: as an answer to a SYN of the peer (`passive`) or of ours.
///
/// `established(local port, remote port, remote address, bytes of it, passive)`
#[inline(always)]
pub fn established(ends: Ends<'_>, passive: bool) {
    let Ends { local_port, remote_port, remote } = ends;
    probe!(fastsock, established, local_port, remote_port, remote.as_ptr(), remote.len(), passive);
}

/// A connection that was established is over, or in TIME-WAIT. `failed`: there is an error for its application.
///
/// `closed(local port, remote port, remote address, bytes of it, failed)`
#[inline(always)]
pub fn closed(ends: Ends<'_>, failed: bool) {
    let Ends { local_port, remote_port, remote } = ends;
    probe!(fastsock, closed, local_port, remote_port, remote.as_ptr(), remote.len(), failed);
}

/// A segment is sent again: its sequence number, and its bytes.
///
/// `retransmit(local port, remote port, remote address, bytes of it, sequence number, length)`
#[inline(always)]
pub fn retransmit(ends: Ends<'_>, seq: u32, len: u32) {
    let Ends { local_port, remote_port, remote } = ends;
    probe!(fastsock, retransmit, local_port, remote_port, remote.as_ptr(), remote.len(), seq, len);
}

/// RST is sent, for a connection or for a segment of none.
///
/// `send_reset(local port, remote port, remote address, bytes of it)`
#[inline(always)]
pub fn send_reset(ends: Ends<'_>) {
    let Ends { local_port, remote_port, remote } = ends;
    probe!(fastsock, send_reset, local_port, remote_port, remote.as_ptr(), remote.len());
}

/// The peer has reset a connection.
///
/// `receive_reset(local port, remote port, remote address, bytes of it)`
#[inline(always)]
pub fn receive_reset(ends: Ends<'_>) {
    let Ends { local_port, remote_port, remote } = ends;
    probe!(fastsock, receive_reset, local_port, remote_port, remote.as_ptr(), remote.len());
}

/// A connection that nobody has accepted goes to another core.
///
/// `handover(local port, remote port, remote address, bytes of it, to which core)`
#[inline(always)]
pub fn handover(ends: Ends<'_>, to: u16) {
    let Ends { local_port, remote_port, remote } = ends;
    probe!(fastsock, handover, local_port, remote_port, remote.as_ptr(), remote.len(), to);
}

/// A packet, or a part of it, is thrown away: the reason's name, as `fastsock stat` has it.
///
/// `drop(name, bytes of it)`
#[inline(always)]
pub fn drop(reason: &'static str) {
    probe!(fastsock, drop, reason.as_ptr(), reason.len());
}
