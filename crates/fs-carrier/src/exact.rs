//! C6: the number of bytes that the kernel has returned to readers, by its own count.

use crate::kernel::Kernel;

/// TCP_CLOSE (include/net/tcp_states.h): both ends have come, or a reset.
const TCP_CLOSE: u8 = 7;
/// TCP_TIME_WAIT, TCP_CLOSE, TCP_CLOSE_WAIT, TCP_LAST_ACK, TCP_CLOSING: the peer's FIN has arrived.
const AFTER_FIN: [u8; 5] = [6, TCP_CLOSE, 8, 9, 11];

/// The kernel's count of one socket's received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that arrived.
    pub arrived: u64,
    /// Bytes of `arrived` that were read.
    pub taken: u64,
}

/// Maximum number of readings while bytes arrive. A reading takes 1 µs, and a 64 KiB segment of
/// loopback arrives at most every 10 µs. More: a receive takes longer. Fewer: a receive returns
/// EAGAIN although bytes are there.
const READINGS: u32 = 16;

/// Asks the kernel how many bytes have arrived and were read.
///
/// Returns `None` if the numbers keep changing, and for a socket without TCP_INFO.
pub fn received(kernel: &impl Kernel) -> Option<Received> {
    (0..READINGS).find_map(|_| received_now(kernel))
}

/// One reading. The kernel reads the state before it takes the socket's lock,
/// so it is asked twice. A FIN counts as a byte, a reset does not.
fn received_now(kernel: &impl Kernel) -> Option<Received> {
    let unread = kernel.unread().ok()?;
    let info = kernel.tcp_info().ok()?;
    if kernel.unread().ok()? != unread {
        return None;
    }
    let was_reset = info.state == TCP_CLOSE && kernel.events().error;
    if kernel.tcp_info().ok()?.state != info.state {
        return None;
    }
    let fin = u64::from(AFTER_FIN.contains(&info.state) && !was_reset);
    let arrived = info.bytes_received.saturating_sub(fin);
    Some(Received { arrived, taken: arrived.saturating_sub(unread) })
}

/// The bytes that a connection has carried so far, by the kernel's count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes that send(2) has taken.
    pub sent: u64,
    /// Bytes that recv(2) has returned.
    pub taken: u64,
}

/// Asks the kernel how many bytes a connection has carried. A holder compares its own count: a
/// difference means that another process reads or writes. Returns `None` as [`received`] does.
pub fn carried(kernel: &impl Kernel) -> Option<Carried> {
    let taken = received(kernel)?.taken;
    let info = kernel.tcp_info().ok()?;
    Some(Carried { sent: info.bytes_sent.saturating_add(info.bytes_not_sent), taken })
}
