//! Initial sequence numbers (RFC 6528).

use crate::flow::{FlowKey, Protocol};
use crate::rx::table::FlowHasher;
use crate::seq::SeqNum;
use crate::time::Instant;

/// Distance of the new ISN from the old connection's SND.NXT, as on Linux (`tcp_timewait_state_process`:
/// `tw_snd_nxt + 65535 + 2`).
const BEYOND: u32 = 65_537;

/// Chooses initial sequence numbers.
#[derive(Debug)]
pub(crate) struct InitialSequence {
    /// F of RFC 6528.
    hasher: FlowHasher,
    /// Lower bound of the next ISN, if its connection follows one in TIME-WAIT.
    floor: Option<SeqNum>,
}

impl InitialSequence {
    pub(crate) fn new(hasher: FlowHasher) -> Self {
        Self { hasher, floor: None }
    }

    /// Returns ISN = M + F(connection), where M is a clock of 4 µs, or the floor that `follow` has
    /// set.
    pub(crate) fn choose(&mut self, key: &FlowKey, now: Instant) -> SeqNum {
        if let Some(floor) = self.floor.take() {
            return floor;
        }
        let f = self.hasher.hash(Protocol::Tcp, key) as u32;
        SeqNum(f.wrapping_add((now.as_micros() / 4) as u32))
    }

    /// Makes the next connection, which reuses the ports of one that has sent up to `snd_nxt`,
    /// begin beyond all that the old connection can have sent (RFC 9293 MAY-2; as Linux). A fast
    /// transfer's sequence numbers overtake the clock.
    pub(crate) fn follow(&mut self, snd_nxt: SeqNum) {
        self.floor = Some(snd_nxt + BEYOND);
    }

    /// Undoes [`InitialSequence::follow`].
    pub(crate) fn follow_none(&mut self) {
        self.floor = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    #[test]
    fn clock_by_flow_and_floor_after_reuse() {
        let mut isn = InitialSequence::new(FlowHasher::new(&Secret([9; 32])));
        let key = |port| FlowKey::V4 { local: 1, remote: 2, local_port: 80, remote_port: port };
        let first = isn.choose(&key(1), Instant::ZERO);
        assert_eq!(isn.choose(&key(1), Instant::from_micros(400)), first + 100);
        assert_ne!(isn.choose(&key(2), Instant::ZERO), first);
        isn.follow(SeqNum(u32::MAX));
        assert_eq!(isn.choose(&key(1), Instant::ZERO), SeqNum(65_536));
        assert_eq!(isn.choose(&key(1), Instant::ZERO), first, "once");
        isn.follow(SeqNum(7));
        isn.follow_none();
        assert_eq!(isn.choose(&key(1), Instant::ZERO), first);
    }
}
