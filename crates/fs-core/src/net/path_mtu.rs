//! Path MTUs that routers have told us of (RFC 1191 section 6.3, RFC 8201 section 5.2), by destination.

use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, VecDeque};
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
pub(crate) struct PathMtus {
    known: BTreeMap<IpAddr, (u16, Instant)>,
    /// Each destination once, with when its entry ended as it came in here: what is at the front has been told of longest
    /// ago, or again meanwhile.
    order: VecDeque<(Instant, IpAddr)>,
}

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
        if self.known.is_empty() {
            return link;
        }
        match self.known.get(&to) {
            Some(&(mtu, until)) if now < until => link.min(mtu),
            _ => link,
        }
    }

    /// A router says that packets to `to` must be no larger than `mtu`. Answers whether that is less than was known. More than
    /// is known is no news: a host never takes a router's word for a larger size (RFC 1191 section 3, RFC 8201 section 4).
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
                // Told of again since: as if it had come in then. Once for each such word.
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
    fn learned_bounded_and_forgotten() {
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
        // What is told of again stays; the next oldest goes.
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
