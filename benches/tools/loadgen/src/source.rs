//! Ranges of source addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// More addresses than any test needs. A typing error must not fill the memory.
const ADDRESSES_MAX: u128 = 65_536;

/// Source addresses, used in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sources(Vec<IpAddr>);

impl Sources {
    pub(crate) fn nth(&self, n: usize) -> IpAddr {
        self.0[n % self.0.len()]
    }

    pub(crate) fn is_v4(&self) -> bool {
        self.0[0].is_ipv4()
    }
}

impl FromStr for Sources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let addr = |part: &str| part.trim().parse::<IpAddr>().map_err(|_| format!("`{part}` is not an address"));
        let mut all = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (addr(first)?, addr(last)?),
                None => (addr(part)?, addr(part)?),
            };
            let (v4, low, high) = match (first, last) {
                (IpAddr::V4(a), IpAddr::V4(b)) => (true, u128::from(u32::from(a)), u128::from(u32::from(b))),
                (IpAddr::V6(a), IpAddr::V6(b)) => (false, u128::from(a), u128::from(b)),
                _ => return Err(format!("`{part}` mixes IPv4 and IPv6")),
            };
            if low > high || high - low >= ADDRESSES_MAX {
                return Err(format!("`{part}` is not a range of at most {ADDRESSES_MAX} addresses"));
            }
            all.extend((low..=high).map(|number| match v4 {
                true => IpAddr::V4(Ipv4Addr::from(number as u32)),
                false => IpAddr::V6(Ipv6Addr::from(number)),
            }));
        }
        if all.iter().any(|addr| addr.is_ipv4() != all[0].is_ipv4()) {
            return Err("IPv4 and IPv6 are mixed".into());
        }
        Ok(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let sources: Sources = "10.0.0.254-10.0.1.1,10.9.9.9".parse().unwrap();
        let names: Vec<String> = (0..6).map(|n| sources.nth(n).to_string()).collect();
        assert_eq!(names, ["10.0.0.254", "10.0.0.255", "10.0.1.0", "10.0.1.1", "10.9.9.9", "10.0.0.254"]);
        assert!("fd00::1-fd00::3".parse::<Sources>().is_ok());
        for bad in ["", "x", "10.0.0.2-10.0.0.1", "10.0.0.1-fd00::1", "10.0.0.1,fd00::1", "0.0.0.0-255.255.255.255"] {
            assert!(bad.parse::<Sources>().is_err(), "{bad}");
        }
    }
}
