//! Client side of TCP Fast Open (RFC 7413): cookies from servers, and data in our SYN.

use crate::time::{Duration, Instant};
use crate::wire::options::Cookie;
use alloc::collections::BTreeMap;
use core::net::IpAddr;

/// Maximum number of remembered servers, of about 80 bytes each. Linux keeps metrics of 4 to 16
/// thousand destinations.
const PEERS_MAX: usize = 1024;
/// Losses of a SYN with data after which data waits for the handshake, as on a path that drops such
/// SYNs.
const LOSSES_MAX: u8 = 2;
/// Duration of that wait, doubled by each further loss (Linux: 60 s).
const CAUTION: Duration = Duration::from_secs(60);

/// Knowledge about a server.
#[derive(Clone, Copy, Debug)]
struct Peer {
    cookie: Cookie,
    /// The segment size that the server announced with the cookie.
    mss: u16,
    /// Consecutive SYNs with data that were not answered.
    losses: u8,
    last_loss: Instant,
    used: Instant,
}

/// Cookies by server.
#[derive(Debug, Default)]
pub(crate) struct Peers(BTreeMap<IpAddr, Peer>);

impl Peers {
    /// Returns a server's cookie ([`Cookie::REQUEST`] if it has issued none) and the segment size
    /// that it announced. Returns `None` if the server is unknown, or its SYNs are being lost.
    pub(crate) fn get(&mut self, server: IpAddr, now: Instant) -> Option<(Cookie, u16)> {
        let peer = self.0.get_mut(&server)?;
        peer.used = now;
        (!peer.is_suspect(now)).then_some((peer.cookie, peer.mss))
    }

    /// Returns true if a SYN to this server can carry data now.
    pub(crate) fn has_cookie(&self, server: IpAddr, now: Instant) -> bool {
        self.0.get(&server).is_some_and(|peer| !peer.cookie.is_request() && !peer.is_suspect(now))
    }

    /// Returns true if SYNs with this option were lost: not even a cookie request should be sent
    /// now.
    pub(crate) fn is_suspect(&self, server: IpAddr, now: Instant) -> bool {
        self.0.get(&server).is_some_and(|peer| peer.is_suspect(now))
    }

    /// Records a server's SYN-ACK. A cookie in it proves that SYNs with the option get through.
    pub(crate) fn put(&mut self, server: IpAddr, cookie: Option<Cookie>, mss: u16, now: Instant) {
        let old = self.0.get(&server).copied();
        let losses = old.map_or(0, |p| if cookie.is_some() { 0 } else { p.losses });
        let last_loss = old.map_or(now, |p| p.last_loss);
        let cookie = cookie.or(old.map(|p| p.cookie)).unwrap_or(Cookie::REQUEST);
        self.insert(server, Peer { cookie, mss, losses, last_loss, used: now });
    }

    /// Records that a SYN with data or a request was answered.
    pub(crate) fn answered(&mut self, server: IpAddr) {
        if let Some(peer) = self.0.get_mut(&server) {
            peer.losses = 0;
        }
    }

    /// Records that a SYN with data or a request was not answered in time.
    pub(crate) fn lost(&mut self, server: IpAddr, now: Instant) {
        let old = self.0.get(&server).copied();
        let fresh = Peer { cookie: Cookie::REQUEST, mss: 536, losses: 0, last_loss: now, used: now };
        let mut peer = old.unwrap_or(fresh);
        (peer.losses, peer.last_loss) = (peer.losses.saturating_add(1), now);
        self.insert(server, peer);
    }

    fn insert(&mut self, server: IpAddr, peer: Peer) {
        if self.0.len() >= PEERS_MAX
            && !self.0.contains_key(&server)
            && let Some(oldest) = self.0.iter().min_by_key(|(_, peer)| peer.used).map(|(server, _)| *server)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(server, peer);
    }
}

impl Peer {
    fn is_suspect(&self, now: Instant) -> bool {
        self.losses >= LOSSES_MAX && now < self.last_loss + CAUTION * (1 << (self.losses - LOSSES_MAX).min(10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_cookies_and_backs_off_after_losses() {
        let server: IpAddr = [10, 0, 0, 1].into();
        let cookie = Cookie::new(&[1; 8]).unwrap();
        let mut peers = Peers::default();
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        assert_eq!(peers.get(server, at(0)), None);
        peers.put(server, Some(cookie), 1460, at(0));
        assert_eq!(peers.get(server, at(1)), Some((cookie, 1460)));
        peers.lost(server, at(1));
        assert!(peers.get(server, at(2)).is_some(), "once may happen");
        peers.lost(server, at(2));
        assert_eq!(peers.get(server, at(61)), None);
        assert!(peers.get(server, at(62)).is_some());
        peers.lost(server, at(62));
        assert!(peers.is_suspect(server, at(62 + 119)) && !peers.is_suspect(server, at(62 + 120)));
        peers.answered(server);
        peers.lost(server, at(200));
        assert!(peers.get(server, at(200)).is_some());
    }

    #[test]
    fn cache_evicts_unused_entries() {
        let mut peers = Peers::default();
        let cookie = Cookie::new(&[1; 8]).unwrap();
        let server = |i: u32| IpAddr::from(i.to_be_bytes());
        for i in 0..PEERS_MAX as u32 {
            peers.put(server(i), Some(cookie), 1460, Instant::from_millis(i as u64));
        }
        peers.get(server(0), Instant::from_millis(5000));
        peers.put(server(9999), Some(cookie), 1460, Instant::from_millis(6000));
        assert_eq!(peers.0.len(), PEERS_MAX);
        assert!(peers.get(server(0), Instant::from_millis(7000)).is_some());
        assert!(peers.get(server(1), Instant::from_millis(7000)).is_none());
    }
}
