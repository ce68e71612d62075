//! Options that choose and configure the stack. Every program flattens them into its own.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use fs_core::CongestionControl;
use std::net::IpAddr;
use std::str::FromStr;

/// The stack that carries a program's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StackKind {
    /// fastsock's own TCP, over `--device`.
    Fastsock,
    /// Kernel sockets.
    Kernel,
}

impl StackKind {
    /// The value of `--stack`.
    pub fn name(self) -> &'static str {
        match self {
            StackKind::Fastsock => "fastsock",
            StackKind::Kernel => "kernel",
        }
    }
}

/// The source of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LinkKind {
    /// AF_XDP; native mode where the driver has it, generic otherwise, and for one core on veth.
    #[default]
    Xdp,
    /// AF_XDP in the driver, or an error.
    XdpNative,
    /// AF_XDP in generic mode, on any device.
    XdpGeneric,
    /// AF_PACKET: slower, but works without root in a user namespace. The host's kernel receives
    /// the packets too, so the stack needs its own address (`--standalone-addr`).
    Packet,
    /// TAP or TUN.
    Tap,
}

/// A congestion control by Linux's name; `--help` lists them.
fn congestion() -> impl TypedValueParser<Value = CongestionControl> {
    let names = CongestionControl::ALL.iter().map(|control| control.name());
    PossibleValuesParser::new(names)
        .try_map(|name| CongestionControl::from_name(&name).ok_or("there is none of that name"))
}

/// Options common to all programs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Stack")]
pub struct StackArgs {
    /// Sockets of fastsock or of the kernel.
    #[arg(long, value_enum, default_value = "kernel")]
    pub stack: StackKind,
    /// CPUs to run on, one pinned thread each: `0`, `0,1` or `0-3`.
    #[arg(long, default_value = "0")]
    pub cores: CpuList,
    /// Congestion control of all connections; each stack has its own default.
    #[arg(long, value_parser = congestion(), value_name = "NAME")]
    pub congestion: Option<CongestionControl>,
    /// Device that the stack takes packets from; repeatable.
    #[arg(long = "device", value_name = "NAME")]
    pub devices: Vec<String>,
    /// Link over which frames reach the stack.
    #[arg(long, value_enum, default_value = "xdp")]
    pub link: LinkKind,
    /// Spin for packets instead of sleeping when there are none: lowest latency, a whole CPU per
    /// core.
    #[arg(long)]
    pub busy_poll: bool,
    /// Our own addresses on a device that the kernel does not use with them: `10.77.1.1/24` or
    /// `10.77.1.1/24,fd77:1::1/64`. The n-th of these belongs to the n-th `--device`.
    #[arg(long = "standalone-addr", value_name = "CIDR,…")]
    pub standalone: Vec<CidrList>,
    /// Default gateways in standalone addressing, one per family; the n-th of these belongs to the
    /// n-th `--device`.
    #[arg(long = "gateway", value_name = "ADDR,…", requires = "standalone")]
    pub gateways: Vec<AddrList>,
    /// Packet frames to preallocate, per core.
    #[arg(long, value_name = "N")]
    pub frames: Option<u32>,
    /// Connections that may be open at once, per core.
    #[arg(long, value_name = "N")]
    pub max_connections: Option<u32>,
    /// Local ports to reserve for outgoing connections: as many connections per source address and
    /// server.
    #[arg(long, value_name = "N")]
    pub ephemeral_ports: Option<usize>,
    /// Start without the devices, which another process has, and take them when they are free.
    #[arg(skip)]
    pub late_devices: bool,
    /// Accept packets whose checksum the kernel at the other end of a virtual link left unfinished.
    #[arg(long)]
    pub partial_checksums: bool,
}

impl StackArgs {
    /// Connections that may be open at once on one core of fastsock.
    pub fn max_connections(&self) -> u32 {
        self.max_connections.unwrap_or(fs_core::Limits::default().connections)
    }

    /// Checks what clap cannot check.
    ///
    /// # Errors
    /// If options contradict each other.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.stack {
            StackKind::Kernel => self.warn_unused(),
            StackKind::Fastsock => {
                anyhow::ensure!(!self.devices.is_empty(), "--stack fastsock needs at least one --device NAME");
                anyhow::ensure!(
                    self.standalone.len() <= self.devices.len(),
                    "{} --standalone-addr for {} --device",
                    self.standalone.len(),
                    self.devices.len()
                );
                anyhow::ensure!(
                    self.gateways.len() <= self.standalone.len(),
                    "{} --gateway for {} --standalone-addr",
                    self.gateways.len(),
                    self.standalone.len()
                );
            }
        }
        Ok(())
    }

    /// The same command line serves both stacks, so an unused option is no error. It gets a
    /// warning.
    fn warn_unused(&self) {
        let Self { stack: _, cores: _, congestion: _, devices, link, busy_poll, standalone, gateways, frames, .. } =
            self;
        let given = [
            ("--device", !devices.is_empty()),
            ("--link", *link != LinkKind::default()),
            ("--busy-poll", *busy_poll),
            ("--standalone-addr", !standalone.is_empty()),
            ("--gateway", !gateways.is_empty()),
            ("--frames", frames.is_some()),
            ("--max-connections", self.max_connections.is_some()),
            ("--ephemeral-ports", self.ephemeral_ports.is_some()),
            ("--partial-checksums", self.partial_checksums),
        ];
        for (option, _) in given.iter().filter(|(_, given)| *given) {
            tracing::warn!("{option} has no effect with --stack kernel");
        }
    }
}

/// CPU numbers: `0`, `0,2`, `0-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| part.trim().parse::<usize>().map_err(|_| format!("`{part}` is not a CPU number"));
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last || last >= 1024 {
                return Err(format!("`{part}` is not a range of CPUs (0 to 1023)"));
            }
            for cpu in first..=last {
                if cpus.contains(&cpu) {
                    return Err(format!("CPU {cpu} is named twice"));
                }
                cpus.push(cpu);
            }
        }
        Ok(Self(cpus))
    }
}

/// Addresses with prefix lengths, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CidrList(pub Vec<(IpAddr, u8)>);

impl FromStr for CidrList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |part: &str| {
            let bad = || format!("`{part}` is not an address with a prefix length, such as 10.77.1.1/24");
            let (addr, prefix) = part.trim().split_once('/').ok_or_else(bad)?;
            let addr: IpAddr = addr.parse().map_err(|_| bad())?;
            let prefix: u8 = prefix.parse().map_err(|_| bad())?;
            let longest = if addr.is_ipv4() { 32 } else { 128 };
            if prefix > longest { Err(bad()) } else { Ok((addr, prefix)) }
        };
        text.split(',').map(one).collect::<Result<Vec<_>, _>>().map(Self)
    }
}

/// Addresses, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddrList(pub Vec<IpAddr>);

impl FromStr for AddrList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |part: &str| part.trim().parse().map_err(|_| format!("`{part}` is not an address"));
        text.split(',').map(one).collect::<Result<Vec<_>, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!("0".parse(), Ok(CpuList(vec![0])));
        assert_eq!("0,2-4".parse(), Ok(CpuList(vec![0, 2, 3, 4])));
        for bad in ["", "x", "3-1", "0,0", "0-9999", "-1"] {
            assert!(bad.parse::<CpuList>().is_err(), "{bad}");
        }
    }

    #[test]
    fn cidr_lists() {
        let both: CidrList = "10.77.1.1/24,fd77:1::1/64".parse().unwrap();
        assert_eq!(both.0, [("10.77.1.1".parse().unwrap(), 24), ("fd77:1::1".parse().unwrap(), 64)]);
        for bad in ["10.77.1.1", "10.77.1.1/33", "10.77.1/24", "::1/129", ""] {
            assert!(bad.parse::<CidrList>().is_err(), "{bad}");
        }
    }
}
