//! Server-side cookies of TCP Fast Open (RFC 7413).

use crate::config::Secret;
use crate::flow::{FlowKey, Protocol};
use crate::rx::table::FlowHasher;
use crate::time::Instant;
use crate::wire::options::Cookie;

/// Seconds for which one cookie is issued; it is valid for the next period, too. RFC 7413 5.1 asks
/// for periodic key changes. Too high: a stolen cookie is useful for longer. Too low: more clients
/// need an extra round trip.
const PERIOD_S: u64 = 3600;

/// Issues and verifies cookies of clients.
#[derive(Debug)]
pub(crate) struct FastOpenCookies {
    hasher: FlowHasher,
}

/// Result of checking a SYN's cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Valid. `renew`: the cookie is of the last period, so the client needs a new one soon.
    Good { renew: bool },
    /// Not ours, too old, or a cookie request.
    Bad,
}

impl FastOpenCookies {
    pub(crate) fn new(secret: &Secret) -> Self {
        let mut own = *secret;
        own.0.iter_mut().for_each(|b| *b ^= 0xc3);
        Self { hasher: FlowHasher::new(&own) }
    }

    /// Returns the cookie that this client may use next time (RFC 7413 4.1.2). The flow's ports are
    /// ignored.
    pub(crate) fn current(&self, key: &FlowKey, now: Instant) -> Cookie {
        self.cookie(key, period(now))
    }

    pub(crate) fn verify(&self, key: &FlowKey, cookie: &Cookie, now: Instant) -> Verdict {
        let period = period(now);
        let is_of = |period| cookie.as_bytes() == self.cookie(key, period).as_bytes();
        if is_of(period) {
            return Verdict::Good { renew: false };
        }
        if period.checked_sub(1).is_some_and(is_of) { Verdict::Good { renew: true } } else { Verdict::Bad }
    }

    /// Returns the flow label of a connection's packets: a keyed hash (RFC 6437 section 3), 20
    /// bits; 0 for IPv4.
    pub(crate) fn flow_label(&self, key: &FlowKey) -> u32 {
        if key.is_v6() { (self.hasher.hash(Protocol::Udp, key) >> 44) as u32 } else { 0 }
    }

    /// Returns the cookie of a client's address. It is equal on all cores, since any of them may
    /// receive its next SYN.
    fn cookie(&self, key: &FlowKey, period: u64) -> Cookie {
        let (local_port, remote_port) = ((period >> 16) as u16, period as u16);
        let hosts = match *key {
            FlowKey::V4 { local, remote, .. } => FlowKey::V4 { local, remote, local_port, remote_port },
            FlowKey::V6 { local, remote, .. } => FlowKey::V6 { local, remote, local_port, remote_port },
        };
        Cookie::new(&self.hasher.hash(Protocol::Tcp, &hosts).to_be_bytes()).unwrap_or_default()
    }
}

fn period(now: Instant) -> u64 {
    now.as_millis() / 1000 / PERIOD_S
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    #[test]
    fn cookie_is_valid_for_two_periods_and_one_address() {
        let cookies = FastOpenCookies::new(&Secret([3; 32]));
        let key = |remote, remote_port| FlowKey::V4 { local: 1, remote, local_port: 80, remote_port };
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        let cookie = cookies.current(&key(2, 4000), at(3700));
        assert_eq!(cookies.verify(&key(2, 4001), &cookie, at(3700)), Verdict::Good { renew: false }, "any port");
        assert_eq!(cookies.verify(&key(2, 4000), &cookie, at(7200)), Verdict::Good { renew: true });
        assert_eq!(cookies.verify(&key(2, 4000), &cookie, at(10_800)), Verdict::Bad, "two periods later");
        assert_eq!(cookies.verify(&key(3, 4000), &cookie, at(3700)), Verdict::Bad, "another client");
        assert_eq!(cookies.verify(&key(2, 4000), &Cookie::REQUEST, at(0)), Verdict::Bad);
    }
}
