//! Path MTUs that routers have told us of (RFC 1191 section 6.3, RFC 8201 section 5.2), by destination.

use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use core::net::IpAddr;

/// Destinations remembered. An entry takes about 48 bytes; a forger fills it with nonsense at most, and what falls out
/// is learned again by the next packet that is too large.
const ENTRIES_MAX: usize = 1024;
/// After this a larger size is tried again: RFC 1191 6.3 suggests 10 minutes, as Linux (`mtu_expires`).
const LIFETIME: Duration = Duration::from_secs(600);
/// Smallest MTU believed for IPv4: Linux's `ip_rt_min_pmtu`. Lower: a forged message makes every byte a packet.
const FLOOR_V4: u32 = 552;
/// IPv6's minimum MTU: a message with less is void (RFC 8201 section 4).
const MIN_V6: u32 = 1280;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct PathMtus(BTreeMap<IpAddr, (u16, Instant)>);

/// What a router's word is worth: the MTU to go by, `None` for none.
pub(crate) fn believed(v6: bool, mtu: u32) -> Option<u16> {
    let mtu = if v6 {
        if mtu < MIN_V6 {
            return None;
        }
        mtu
    } else {
        // RFC 1191 section 4: an old router says 0.
        mtu.max(FLOOR_V4)
    };
    Some(mtu.min(u16::MAX as u32) as u16)
}

impl PathMtus {
    /// The largest packet for a destination, given what its first link takes.
    #[inline]
    pub(crate) fn get(&self, to: IpAddr, link: u16, now: Instant) -> u16 {
        if self.0.is_empty() {
            return link;
        }
        match self.0.get(&to) {
            Some(&(mtu, until)) if now < until => link.min(mtu),
            _ => link,
        }
    }

    /// A router says that packets to `to` must be no larger than `mtu`. Answers whether that is new.
    pub(crate) fn learn(&mut self, to: IpAddr, mtu: u16, now: Instant) -> bool {
        if self.0.len() >= ENTRIES_MAX && !self.0.contains_key(&to) {
            self.0.retain(|_, (_, until)| *until > now);
            if self.0.len() >= ENTRIES_MAX
                && let Some(oldest) = self.0.iter().min_by_key(|(_, (_, until))| *until).map(|(to, _)| *to)
            {
                self.0.remove(&oldest);
            }
        }
        let before = self.0.insert(to, (mtu, now + LIFETIME));
        before.is_none_or(|(known, until)| known != mtu || until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learned_bounded_and_forgotten() {
        let mut mtus = PathMtus::default();
        let to = |i: u32| IpAddr::from(i.to_be_bytes());
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        assert_eq!(mtus.get(to(1), 1500, at(0)), 1500);
        assert!(mtus.learn(to(1), 1400, at(0)));
        assert!(!mtus.learn(to(1), 1400, at(0)) && mtus.learn(to(1), 1300, at(0)) && mtus.learn(to(1), 1400, at(0)));
        assert_eq!((mtus.get(to(1), 1500, at(599)), mtus.get(to(1), 1300, at(1))), (1400, 1300));
        assert_eq!(mtus.get(to(1), 1500, at(600)), 1500);
        for i in 2..3000 {
            mtus.learn(to(i), 1400, at(1 + u64::from(i > 2999)));
        }
        assert!(mtus.0.len() <= ENTRIES_MAX);
        assert_eq!((believed(true, 1279), believed(true, 1280)), (None, Some(1280)));
        assert_eq!(
            (believed(false, 0), believed(false, 68), believed(false, 70_000)),
            (Some(552), Some(552), Some(65535))
        );
    }
}
