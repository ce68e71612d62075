//! Readiness, as tcp_poll() of the kernel computes it.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::state::Phase;
use super::{Channel, OOB_INLINE, RCV_SHUT, RESET_SEEN, SND_SHUT};

/// A set of poll(2) events; the values are those of EPOLLIN and so on.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Readiness(pub u32);

impl Readiness {
    /// Data, end of data, or an error to read.
    pub const IN: Readiness = Readiness(0x001);
    /// Urgent data.
    pub const PRI: Readiness = Readiness(0x002);
    /// Room to write, or an error to find by writing.
    pub const OUT: Readiness = Readiness(0x004);
    /// SO_ERROR is set.
    pub const ERR: Readiness = Readiness(0x008);
    /// Both directions are shut.
    pub const HUP: Readiness = Readiness(0x010);
    /// The peer shut its sending side, or we our receiving side.
    pub const RDHUP: Readiness = Readiness(0x2000);

    /// Whether all of `other` are in it.
    pub const fn contains(self, other: Readiness) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in it.
    pub const fn intersects(self, other: Readiness) -> bool {
        self.0 & other.0 != 0
    }

    const fn when(self, condition: bool) -> Readiness {
        if condition { self } else { Readiness(0) }
    }
}

impl std::ops::BitOr for Readiness {
    type Output = Readiness;
    fn bitor(self, other: Readiness) -> Readiness {
        Readiness(self.0 | other.0)
    }
}

impl std::fmt::Debug for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = [
            (Self::IN, "IN"),
            (Self::PRI, "PRI"),
            (Self::OUT, "OUT"),
            (Self::ERR, "ERR"),
            (Self::HUP, "HUP"),
            (Self::RDHUP, "RDHUP"),
        ];
        f.write_str("Readiness(")?;
        f.debug_set().entries(names.iter().filter(|(bit, _)| self.contains(*bit)).map(|(_, name)| name)).finish()?;
        f.write_str(")")
    }
}

impl Channel<'_> {
    /// What poll(2) would say. If OUT is not in it, the peer will tell when it is (lanes and waiters of this side).
    /// A closed or stale handle is `ERR | HUP`.
    pub fn readiness(&self) -> Readiness {
        let Ok(state) = self.live() else { return Readiness::ERR | Readiness::HUP };
        self.absorb_reset(state);
        if state.phase() == Phase::Connecting {
            return Readiness(0).with_error(self);
        }
        let flags = self.own().flags.load(Acquire);
        let rx = self.rx();
        let reset = flags & RESET_SEEN != 0;
        // FIN first: with it, the tail read afterwards is the last one.
        let fin = rx.rare.fin.load(Acquire) != 0;
        let rx_shut = fin || reset || flags & RCV_SHUT != 0;
        let tx_shut = flags & SND_SHUT != 0;
        let (readable, urgent) = match rx.unread() {
            Ok((head, unread)) => {
                let mark = rx.rare.urgent.load(Relaxed);
                let urgent = mark != 0 && rx.inn.urgent_read.load(Relaxed) != mark && {
                    let into = mark.wrapping_sub(1).wrapping_sub(head);
                    // Or one that was refused: it is known of all the same (tcp_urg() of the kernel).
                    into < unread || reset && into.cast_signed() >= 0
                };
                // The next byte does not count if it is the urgent one, read by MSG_OOB or not (tcp_poll()).
                let skipped = u64::from(mark != 0 && mark.wrapping_sub(1) == head && flags & OOB_INLINE == 0);
                (self.is_enough(unread - skipped.min(unread)) || rx_shut, urgent)
            }
            Err(broken) => {
                self.broken(broken);
                return Readiness::ERR | Readiness::HUP | Readiness::IN | Readiness::OUT | Readiness::RDHUP;
            }
        };
        let writable = tx_shut || self.tx().writable(true).unwrap_or(true);
        (Readiness::IN.when(readable)
            | Readiness::PRI.when(urgent)
            | Readiness::OUT.when(writable)
            | Readiness::RDHUP.when(rx_shut)
            | Readiness::HUP.when(reset || rx_shut && tx_shut))
        .with_error(self)
    }

    /// The state as TCP_INFO and ss name it (`include/net/tcp_states.h`).
    pub fn tcp_state(&self) -> u8 {
        const ESTABLISHED: u8 = 1;
        const SYN_SENT: u8 = 2;
        const FIN_WAIT2: u8 = 5;
        const CLOSE: u8 = 7;
        const CLOSE_WAIT: u8 = 8;
        match self.state().map(|state| state.phase()) {
            Some(Phase::Connecting) => SYN_SENT,
            Some(Phase::Open) if self.is_reset() => CLOSE,
            Some(Phase::Open) => match (self.has_ended(), self.tx().rare.fin.load(Acquire) != 0) {
                (true, true) => CLOSE,
                (true, false) => CLOSE_WAIT,
                (false, true) => FIN_WAIT2,
                (false, false) => ESTABLISHED,
            },
            Some(Phase::Free | Phase::Failed) | None => CLOSE,
        }
    }

    /// FIONREAD / SIOCINQ: bytes that may be read now, as tcp_inq() of the kernel counts them: an urgent byte that is not
    /// in line and not passed yet ends them.
    pub fn queued_to_mark(&self) -> usize {
        let (rx, flags) = (self.rx(), self.own().flags.load(Acquire));
        let Ok((head, unread)) = rx.unread() else { return 0 };
        let mark = rx.rare.urgent.load(Relaxed);
        let before = mark.wrapping_sub(1).wrapping_sub(head);
        let ends = mark != 0 && flags & OOB_INLINE == 0 && before < unread;
        if ends { before as usize } else { unread as usize }
    }

    /// Bytes that have come and were not read.
    pub fn queued_in(&self) -> usize {
        self.rx().unread().map_or(0, |(_, unread)| unread as usize)
    }

    /// A peek has copied so many bytes from the front on: how many unread ones it has seen with that. `None`: it ends there, at the
    /// urgent mark.
    pub fn peeked(&self, bytes: usize) -> Option<usize> {
        let rx = self.rx();
        let Ok((head, unread)) = rx.unread() else { return Some(bytes) };
        let mark = rx.rare.urgent.load(Relaxed);
        let ahead = mark.wrapping_sub(1).wrapping_sub(head);
        if mark == 0 || ahead >= unread {
            return Some(bytes);
        }
        if ahead != 0 {
            return (ahead != bytes as u64).then_some(bytes);
        }
        // It began there, and has passed the urgent byte over.
        let is_inline = self.own().flags.load(Acquire) & OOB_INLINE != 0;
        Some(bytes + usize::from(!is_inline))
    }

    /// SIOCOUTQ: bytes that the peer has not read.
    pub fn queued_out(&self) -> usize {
        let tx = self.tx();
        let queued = tx.out.tail.load(Relaxed).wrapping_sub(tx.inn.head.load(Relaxed));
        queued.min(1 << self.arena().geometry().large_log2()) as usize
    }
}

impl Readiness {
    fn with_error(self, channel: &Channel<'_>) -> Readiness {
        self | Readiness::ERR.when(channel.own().error.load(Acquire) != 0)
    }
}
