//! Active connections whose replies the NIC itself brings to their core: with its RSS key and table known, the
//! engine chooses source ports so that the hash names the core's queue.

use crate::runtime::PortFilter;
use fs_core::Interface;
use fs_xdp::{NetDevice, Rss};
use std::net::IpAddr;
use std::sync::Arc;

/// The devices whose RSS is known, with the addresses that their flows have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steering {
    known: Arc<[(Vec<IpAddr>, Rss)]>,
}

impl Steering {
    /// Asks the devices. One that does not tell (veth has no RSS) is left to the forwarding between cores.
    pub(crate) fn read(devices: &[NetDevice], interfaces: &[Interface]) -> Self {
        let mut known = Vec::new();
        for (device, interface) in devices.iter().zip(interfaces) {
            match Rss::read(&device.name) {
                Ok(rss) => known.push((interface.addrs.iter().map(|cidr| cidr.addr).collect(), rss)),
                Err(error) => tracing::debug!(device = device.name, %error, "no RSS to choose ports by"),
            }
        }
        Self { known: known.into() }
    }

    /// Which flows' replies reach `core` of `cores`. Queue q is served by core q mod cores.
    pub(crate) fn filter(&self, core: usize, cores: usize) -> Option<PortFilter> {
        if cores == 1 || self.known.is_empty() {
            return None;
        }
        let known = self.known.clone();
        Some(Box::new(move |flow| {
            let local = flow.local_ip();
            let rss = known.iter().find(|(addrs, _)| addrs.contains(&local)).map(|(_, rss)| rss);
            // Not known: every port is as good.
            rss.and_then(|rss| rss.queue_of(flow)).is_none_or(|queue| queue as usize % cores == core)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_core::FlowKey;
    use fs_xdp::steering::HashFunction;

    #[test]
    fn every_flow_of_a_known_device_belongs_to_one_core() {
        let key: Vec<u8> = (0..52u8).map(|n| n.wrapping_mul(37) ^ 0xa5).collect();
        let rss = Rss { function: HashFunction::Toeplitz, key, table: (0..128).map(|n| n % 4).collect() };
        let steering = Steering { known: vec![(vec!["10.0.0.1".parse().unwrap()], rss)].into() };
        let filters: Vec<_> = (0..2).map(|core| steering.filter(core, 2).unwrap()).collect();
        let mut shares = [0; 2];
        for port in 20_000..21_000 {
            let local = std::net::SocketAddr::new("10.0.0.1".parse().unwrap(), port);
            let flow = FlowKey::new(local, "10.0.0.9:80".parse().unwrap()).unwrap();
            let owners: Vec<usize> = (0..2).filter(|&core| filters[core](&flow)).collect();
            assert_eq!(owners.len(), 1);
            shares[owners[0]] += 1;
        }
        assert!(shares.iter().all(|&share| share > 300), "{shares:?}");
        let elsewhere = FlowKey::new("10.9.9.9:1".parse().unwrap(), "10.0.0.9:80".parse().unwrap()).unwrap();
        assert!(filters[0](&elsewhere) && filters[1](&elsewhere));
        assert!(steering.filter(0, 1).is_none());
    }
}
