//! The section `[wire]` of the daemon's configuration file.

use fs_rt::XdpMode;
use serde::Deserialize;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// The section's TOML form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    device: String,
    queues: Option<usize>,
    cores: Option<Vec<usize>>,
    #[serde(default)]
    xdp: Xdp,
    partial_checksums: Option<bool>,
    #[serde(default, rename = "port")]
    ports: Vec<PortFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PortFile {
    port: u16,
    addresses: Option<Vec<IpAddr>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Xdp {
    #[default]
    Auto,
    Copy,
    Generic,
}

/// The configuration of a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The device whose connections are relayed.
    pub device: String,
    /// Number of queues, each with its own core. `None`: all, but at most one for each CPU.
    pub queues: Option<usize>,
    /// CPUs to pin the cores to. `None`: not pinned.
    pub cores: Option<Vec<usize>>,
    /// The XDP mode of the device.
    pub xdp: XdpMode,
    /// See [`fs_rt::Builder::accept_partial_checksum`].
    pub partial_checksums: Option<bool>,
    /// The programs' ports. Never empty.
    pub ports: Vec<Port>,
}

/// A port that the relay serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The port's number, not 0.
    pub port: u16,
    /// Addresses of the device. Empty: all that it has now or later.
    pub addresses: Vec<IpAddr>,
}

impl ConfigFile {
    /// Checks everything that does not depend on the host. The error is one line that says how to
    /// correct it.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn check(self) -> Result<Config, String> {
        let Self { device, queues, cores, xdp, partial_checksums, ports } = self;
        if device.is_empty() {
            return Err("device = \"\": name the device, as `ip link` does".into());
        }
        if queues == Some(0) {
            return Err("queues = 0: use 1 or more, or remove the key".into());
        }
        if let Some(cores) = &cores {
            if cores.is_empty() {
                return Err("cores = []: name at least one CPU, or remove the key".into());
            }
            if queues.is_some_and(|queues| queues != cores.len()) {
                return Err(format!(
                    "there are {} cores and another number of queues: each core has one queue",
                    cores.len()
                ));
            }
        }
        if ports.is_empty() {
            return Err("no port is served: add a section [[wire.port]] with port = NUMBER".into());
        }
        let mut seen = HashSet::new();
        let ports = ports.into_iter().map(|port| port.check(&mut seen)).collect::<Result<_, _>>()?;
        let xdp = match xdp {
            Xdp::Auto => XdpMode::Auto,
            Xdp::Copy => XdpMode::Copy,
            Xdp::Generic => XdpMode::Generic,
        };
        Ok(Config { device, queues, cores, xdp, partial_checksums, ports })
    }
}

impl PortFile {
    fn check(self, seen: &mut HashSet<(u16, Option<IpAddr>)>) -> Result<Port, String> {
        let Self { port, addresses } = self;
        if port == 0 {
            return Err("port = 0: name the port at which the program listens".into());
        }
        let mut is_new = |address| seen.insert((port, address));
        let addresses = match addresses {
            None if !is_new(None) => return Err(format!("port {port} is named twice")),
            None => Vec::new(),
            Some(addresses) if addresses.is_empty() => {
                return Err(format!("port {port}: addresses = []: name one, or remove the key for all of the device"));
            }
            Some(addresses) => addresses,
        };
        for &address in &addresses {
            if address.is_unspecified() || address.is_loopback() || address.is_multicast() {
                return Err(format!("port {port}: {address} is not an address of a device"));
            }
            if !is_new(Some(address)) {
                return Err(format!("port {port} at {address} is named twice"));
            }
        }
        Ok(Port { port, addresses })
    }
}

impl Config {
    /// Returns the addresses to listen at. The wildcard of IPv6 stands for both families.
    pub(crate) fn listens(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.ports.iter().flat_map(|port| {
            let any = port.addresses.is_empty().then(|| std::net::Ipv6Addr::UNSPECIFIED.into());
            any.into_iter().chain(port.addresses.iter().copied()).map(|address| SocketAddr::new(address, port.port))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let file: ConfigFile = toml::from_str(text).map_err(|error| error.to_string())?;
        file.check()
    }

    #[test]
    fn ports_and_addresses_are_read() {
        let config = read(
            "device = 'eth0'\nqueues = 2\n[[port]]\nport = 80\n[[port]]\nport = 443\naddresses = ['10.0.0.1', '2001:db8::1']",
        )
        .unwrap();
        let at: Vec<String> = config.listens().map(|at| at.to_string()).collect();
        assert_eq!(at, ["[::]:80", "10.0.0.1:443", "[2001:db8::1]:443"]);
        assert_eq!((config.queues, config.xdp), (Some(2), XdpMode::Auto));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, says) in [
            ("device = 'eth0'", "no port"),
            ("device = ''\n[[port]]\nport = 80", "name the device"),
            ("device = 'e'\nqueues = 0\n[[port]]\nport = 80", "queues = 0"),
            ("device = 'e'\ncores = []\n[[port]]\nport = 80", "cores = []"),
            ("device = 'e'\ncores = [0, 1]\nqueues = 1\n[[port]]\nport = 80", "each core"),
            ("device = 'e'\n[[port]]\nport = 0", "port = 0"),
            ("device = 'e'\n[[port]]\nport = 65536", "65536"),
            ("device = 'e'\n[[port]]\nport = 80\n[[port]]\nport = 80", "twice"),
            ("device = 'e'\n[[port]]\nport = 80\naddresses = []", "addresses = []"),
            ("device = 'e'\n[[port]]\nport = 80\naddresses = ['127.0.0.1']", "not an address of a device"),
            ("device = 'e'\n[[port]]\nport = 80\naddress = '10.0.0.1'", "unknown field"),
            ("device = 'e'\nxdp = 'fast'\n[[port]]\nport = 80", "unknown variant"),
            ("[[port]]\nport = 80", "device"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
