//! Path MTUs reported by routers (RFC 1191 section 6.3, RFC 8201 section 5.2), by destination.

use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;

/// Maximum number of destinations, of about 48 bytes each. A forger can at most fill the table with
/// nonsense. An evicted entry is learned again by the next packet that is too large.
const ENTRIES_MAX: usize = 1024;
/// Lifetime of an entry, after which a larger size is tried again: RFC 1191 6.3 suggests 10
/// minutes, as Linux (`mtu_expires`).
const LIFETIME: Duration = Duration::from_secs(600);
/// Smallest MTU that is believed for IPv4: Linux's `ip_rt_min_pmtu`. Too low: after a forged
/// message every byte takes a packet.
const FLOOR_V4: u32 = 552;
/// IPv6's minimum MTU. A message with a lower value is ignored (RFC 8201 section 4).
const MIN_V6: u32 = 1280;

/// Path MTUs by destination.
#[derive(Debug, Default)]
pub(crate) struct PathMtus {
    known: BTreeMap<IpAddr, (u16, Instant)>,
    /// Each destination once, with the expiry that its entry had when it was queued. The front is
    /// the least recently reported destination, unless its entry was refreshed later.
    order: VecDeque<(Instant, IpAddr)>,
}

/// Returns the MTU to use for a router's value, or `None` if the value is ignored.
pub(crate) fn believed(v6: bool, mtu: u32) -> Option<u16> {
    let mtu = if v6 {
        if mtu < MIN_V6 {
            return None;
        }
        mtu
    } else {
        // RFC 1191 section 4: an old router reports 0.
        mtu.max(FLOOR_V4)
    };
    Some(mtu.min(u16::MAX as u32) as u16)
}

impl PathMtus {
    /// Returns the size of the largest packet for a destination, given the MTU `link` of its first
    /// hop.
    #[inline]
    pub(crate) fn get(&self, to: IpAddr, link: u16, now: Instant) -> u16 {
        if self.known.is_empty() {
            return link;
        }
        match self.known.get(&to) {
            Some(&(mtu, until)) if now < until => link.min(mtu),
            _ => link,
        }
    }

    /// Records a router's report that packets to `to` must not exceed `mtu`. Returns true if that
    /// is less than the known value. A larger value is ignored: a host never raises its path MTU
    /// because of a router's message (RFC 1191 section 3, RFC 8201 section 4).
    pub(crate) fn learn(&mut self, to: IpAddr, mtu: u16, now: Instant) -> bool {
        let until = now + LIFETIME;
        if let Some(entry) = self.known.get_mut(&to) {
            let (known, ends) = *entry;
            if ends > now && known < mtu {
                return false;
            }
            *entry = (mtu, until);
            return ends <= now || known > mtu;
        }
        while self.known.len() >= ENTRIES_MAX
            && let Some((at, oldest)) = self.order.pop_front()
        {
            match self.known.get(&oldest) {
                // Refreshed since: queue it again with its later expiry. Happens once for each
                // report.
                Some(&(_, ends)) if ends > at => self.order.push_back((ends, oldest)),
                _ => _ = self.known.remove(&oldest),
            }
        }
        self.order.push_back((until, to));
        self.known.insert(to, (mtu, until));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learns_bounds_and_forgets() {
        let mut mtus = PathMtus::default();
        let to = |i: u32| IpAddr::from(i.to_be_bytes());
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        assert_eq!(mtus.get(to(1), 1500, at(0)), 1500);
        assert!(mtus.learn(to(1), 1400, at(0)));
        assert!(!mtus.learn(to(1), 1400, at(0)), "nothing new");
        assert!(mtus.learn(to(1), 1300, at(0)) && !mtus.learn(to(1), 1400, at(0)), "never larger");
        assert_eq!((mtus.get(to(1), 1500, at(599)), mtus.get(to(1), 1280, at(1))), (1300, 1280));
        assert_eq!(mtus.get(to(1), 1500, at(600)), 1500);
        for i in 2..3000 {
            mtus.learn(to(i), 1400, at(1 + u64::from(i > 2999)));
        }
        assert_eq!((mtus.known.len(), mtus.order.len()), (ENTRIES_MAX, ENTRIES_MAX));
        assert_eq!(mtus.get(to(1), 1500, at(1)), 1500, "the oldest has made room");
        // A refreshed entry stays; the next oldest is evicted.
        assert!(!mtus.learn(to(1976), 1400, at(2)));
        for i in 3000..3010 {
            mtus.learn(to(i), 1400, at(3));
        }
        assert_eq!((mtus.get(to(1976), 1500, at(4)), mtus.get(to(1977), 1500, at(4))), (1400, 1500));
        assert_eq!((mtus.known.len(), mtus.order.len()), (ENTRIES_MAX, ENTRIES_MAX));
        assert!(mtus.learn(to(2999), 1450, at(700)), "what has ended says nothing of the next");
        assert_eq!((believed(true, 1279), believed(true, 1280)), (None, Some(1280)));
        assert_eq!(
            (believed(false, 0), believed(false, 68), believed(false, 70_000)),
            (Some(552), Some(552), Some(65535))
        );
    }
}
