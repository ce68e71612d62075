//! Outgoing connections whose replies the NIC delivers to their core: with its RSS key and table
//! known, the engine chooses source ports whose hash selects the core's queue.

use fs_core::{CoreId, Interface, Steering};
use fs_xdp::{NetDevice, Rss, RssFlows};
use std::net::IpAddr;
use std::sync::Arc;

/// The devices whose RSS is known, with the addresses of their flows.
///
/// The table of the start is kept, because it assigns flows to cores. If the assignment changed
/// while connections exist, two cores could use one port for the same destination. If the device's
/// table changes, packets are forwarded between cores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    devices: Arc<[(Vec<IpAddr>, RssFlows)]>,
}

impl Known {
    /// Reads the RSS settings of the devices. For a device without them (veth has no RSS), packets
    /// are forwarded between cores.
    pub(crate) fn read(devices: &[NetDevice], interfaces: &[Interface]) -> Self {
        let mut known = Vec::new();
        for (device, interface) in devices.iter().zip(interfaces) {
            let addrs = || interface.addrs.iter().map(|cidr| cidr.addr).collect();
            match Rss::read(&device.name).map(|rss| rss.flows()) {
                Ok(Some(flows)) => known.push((addrs(), flows)),
                Ok(None) => tracing::debug!(device = device.name, "this RSS hash cannot be used to choose ports"),
                Err(error) => {
                    tracing::debug!(device = device.name, %error, "cannot read the RSS hash to choose ports by")
                }
            }
        }
        Self { devices: known.into() }
    }

    /// Returns the assignment of flows to `cores` cores. Core q mod cores serves queue q.
    pub(crate) fn steering(&self, cores: usize) -> Option<Steering> {
        if cores == 1 || self.devices.is_empty() {
            return None;
        }
        let devices = self.devices.clone();
        Some(Box::new(move |flow| {
            let local = flow.local_ip();
            let (_, flows) = devices.iter().find(|(addrs, _)| addrs.contains(&local))?;
            Some(CoreId((flows.queue_of(flow)? as usize % cores) as u16))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_core::FlowKey;
    use fs_xdp::HashFunction;

    #[test]
    fn every_flow_of_a_known_device_has_one_core() {
        let key: Vec<u8> = (0..52u8).map(|n| n.wrapping_mul(37) ^ 0xa5).collect();
        let rss = Rss { function: HashFunction::Toeplitz, key, table: (0..128).map(|n| n % 4).collect() };
        let known = Known { devices: vec![(vec!["10.0.0.1".parse().unwrap()], rss.flows().unwrap())].into() };
        let steering = known.steering(2).unwrap();
        let mut shares = [0; 2];
        for port in 20_000..21_000 {
            let local = std::net::SocketAddr::new("10.0.0.1".parse().unwrap(), port);
            let flow = FlowKey::new(local, "10.0.0.9:80".parse().unwrap()).unwrap();
            let core = steering(&flow).unwrap();
            assert_eq!(u32::from(core.0), rss.queue_of(&flow).unwrap() % 2);
            shares[usize::from(core.0)] += 1;
        }
        assert!(shares.iter().all(|&share| share > 300), "{shares:?}");
        let elsewhere = FlowKey::new("10.9.9.9:1".parse().unwrap(), "10.0.0.9:80".parse().unwrap()).unwrap();
        assert_eq!(steering(&elsewhere), None);
        assert!(known.steering(1).is_none());
    }
}
