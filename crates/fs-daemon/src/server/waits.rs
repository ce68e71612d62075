//! Where connections of a listener wait that have ended and gone (TIME_WAIT): all that is known of them is what their arenas say, so
//! who is connected to a listener can have its port kept at addresses that it makes up, a minute each.

use super::ports::ADDRESSES;
use crate::listeners::unmapped;
use fs_shm::channel::{self, now};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// TCP_TIMEWAIT_LEN of the kernel, and what net.ipv4.tcp_fin_timeout begins with.
pub(super) const TIME_WAIT: Duration = Duration::from_secs(60);

/// Of several arenas: [`channel::Waits`].
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    at: Vec<(SocketAddr, u64)>,
    elsewhere: u64,
}

impl Waits {
    /// Those of one more arena.
    pub(super) fn add(&mut self, more: channel::Waits) {
        self.add_elsewhere(more.elsewhere);
        for (addr, at) in more.at {
            self.add_one(addr, at);
        }
    }

    /// Those of the same place.
    pub(super) fn merge(&mut self, more: Waits) {
        self.add(channel::Waits { at: more.at, elsewhere: more.elsewhere });
    }

    fn add_elsewhere(&mut self, at: u64) {
        if lasts(at) {
            self.elsewhere = self.elsewhere.max(at);
        }
    }

    fn add_one(&mut self, addr: SocketAddr, at: u64) {
        // Also one that is ahead, which would be the last one for ever.
        if !lasts(at) {
            return;
        }
        if self.at.len() == 2 * ADDRESSES {
            self.at.retain(|&(_, at)| lasts(at));
        }
        let ip = unmapped(addr.ip());
        if let Some((_, last)) = self.at.iter_mut().find(|(known, _)| unmapped(known.ip()) == ip) {
            *last = at.max(*last);
        } else if self.at.len() < 2 * ADDRESSES {
            self.at.push((addr, at));
        } else {
            // What arenas say is their processes' word: no more of it is kept than this.
            self.add_elsewhere(at);
        }
    }

    /// Whether one waits of which the address is not known.
    pub(super) fn is_elsewhere(&self) -> bool {
        lasts(self.elsewhere)
    }

    /// The addresses at which one waits, as far as they are known.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.at.iter().filter(|&&(_, at)| lasts(at)).map(|&(addr, _)| addr)
    }

    /// Whether one waits at such an address, or may.
    pub(super) fn is_one_at(&self, is_it: impl Fn(IpAddr) -> bool) -> bool {
        self.is_elsewhere() || self.addresses().any(|addr| is_it(unmapped(addr.ip())))
    }
}

/// Whether one that ended at this time waits still.
fn lasts(ended: u64) -> bool {
    ended != 0 && now().checked_sub(ended).is_some_and(|waited| Duration::from_nanos(waited) < TIME_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(at: &[(&str, u64)], elsewhere: u64) -> channel::Waits {
        channel::Waits { at: at.iter().map(|&(addr, at)| (addr.parse().unwrap(), at)).collect(), elsewhere }
    }

    #[test]
    fn only_what_waits_still_keeps_its_own_address() {
        let mut all = Waits::default();
        let long_ago = now().saturating_sub(61_000_000_000).max(1);
        all.add(waits(&[("[::1]:80", now()), ("127.0.0.1:80", long_ago)], 0));
        assert_eq!(all.addresses().collect::<Vec<_>>(), ["[::1]:80".parse().unwrap()]);
        assert!(all.is_one_at(|ip| ip.is_ipv6()));
        assert!(!all.is_one_at(|ip| ip.is_ipv4()));
        all.add(waits(&[("[::ffff:127.0.0.1]:80", now())], 0));
        assert!(all.is_one_at(|ip| ip.is_ipv4()), "a mapped address is the IPv4 one");
    }

    #[test]
    fn one_of_unknown_address_may_wait_anywhere() {
        let mut all = Waits::default();
        all.add(waits(&[("127.0.0.1:80", now())], now()));
        assert!(all.is_elsewhere() && all.is_one_at(|_| false));
    }

    #[test]
    fn arenas_cannot_make_it_grow() {
        let mut all = Waits::default();
        for host in 0..=255 {
            all.add(waits(&[(&format!("127.0.0.{host}:80"), now())], 0));
        }
        assert_eq!(all.at.len(), 2 * ADDRESSES);
        assert!(all.is_elsewhere());
    }

    #[test]
    fn what_waits_no_more_makes_room() {
        let mut all = Waits::default();
        let long_ago = now().saturating_sub(61_000_000_000).max(1);
        all.at = (0..2 * ADDRESSES).map(|host| (format!("127.0.1.{host}:80").parse().unwrap(), long_ago)).collect();
        all.add(waits(&[("127.0.0.1:80", now())], 0));
        assert!(!all.is_elsewhere());
        assert_eq!(all.addresses().collect::<Vec<_>>(), ["127.0.0.1:80".parse().unwrap()]);
    }

    /// Else it would be the last that has ended there for ever, and none would keep the port.
    #[test]
    fn a_time_that_is_ahead_is_nobodys() {
        let mut all = Waits::default();
        all.add(waits(&[("127.0.0.1:80", u64::MAX)], u64::MAX));
        all.add(waits(&[("127.0.0.1:80", now())], 0));
        assert!(all.is_one_at(|ip| ip.is_ipv4()) && !all.is_elsewhere());
        all.add(waits(&[], now()));
        assert!(all.is_elsewhere());
    }
}
