//! Options of the command line and of a script's first lines. Names are packetdrill's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Socket family and IP version of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// `AF_INET` over IPv4.
    V4,
    /// `AF_INET6` over IPv4, with mapped addresses.
    Mapped,
    /// `AF_INET6` over IPv6.
    V6,
}

/// Settings of a script's run.
#[derive(Clone, Debug)]
pub struct Config {
    /// `--ip_version`.
    pub ip_version: IpVersion,
    /// `--tolerance_usecs`: permitted deviation of an event's time, in microseconds.
    pub tolerance_us: i64,
    /// `--tolerance_percent`: permitted deviation in percent of the time since the previous event.
    pub tolerance_percent: f64,
    /// `--mtu` of the interface.
    pub mtu: u16,
    /// `--bind_port`.
    pub bind_port: u16,
    /// `--connect_port`.
    pub connect_port: u16,
    /// `--local_ip`.
    pub local_ip: Option<IpAddr>,
    /// `--gateway_ip`.
    pub gateway_ip: Option<IpAddr>,
    /// `--remote_ip`.
    pub remote_ip: Option<IpAddr>,
    /// `--netmask_ip`, as a prefix length.
    pub prefix: u8,
    /// `--tcp_ts_tick_usecs`: tick of our timestamps in microseconds; 0: their values are not
    /// compared.
    pub ts_tick_us: i64,
    /// `--tcp_ts_ecr_scaled`: an echoed timestamp that we never sent is computed from the first
    /// one.
    pub ts_ecr_scaled: bool,
    /// `--init_scripts`: run before the script.
    pub init_scripts: Vec<String>,
    /// `--strict_segments`: segments are not merged to match a longer expected packet.
    pub strict_segments: bool,
    /// `--non_fatal=packet`: a wrong packet is a warning.
    pub non_fatal_packet: bool,
    /// `--non_fatal=syscall`.
    pub non_fatal_call: bool,
    /// Prints packets and calls.
    pub verbose: bool,
    /// The Fast Open cookie that scripts use for the host's: the symbol TFO_COOKIE.
    pub cookie: Option<Vec<u8>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ip_version: IpVersion::V4,
            tolerance_us: 4000,
            tolerance_percent: 12.5,
            mtu: 1500,
            bind_port: 8080,
            connect_port: 8080,
            local_ip: None,
            gateway_ip: None,
            remote_ip: None,
            prefix: 16,
            ts_tick_us: 0,
            ts_ecr_scaled: false,
            init_scripts: Vec::new(),
            strict_segments: false,
            non_fatal_packet: false,
            non_fatal_call: false,
            verbose: false,
            cookie: None,
        }
    }
}

impl Config {
    /// Sets an option by its name. `Err` contains the reason.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        let text = || value.ok_or_else(|| format!("--{name} needs a value"));
        let number = || {
            let text = text()?;
            let parsed: Result<i64, _> = text.parse();
            parsed.map_err(|e| format!("--{name}={text}: {e}"))
        };
        let address = || {
            let text = text()?;
            let parsed: Result<IpAddr, _> = text.parse();
            parsed.map_err(|e| format!("--{name}={text}: {e}"))
        };
        let small = || number().and_then(|n| u16::try_from(n).map_err(|e| format!("--{name}={n}: {e}")));
        match name {
            "ip_version" => {
                self.ip_version = match text()? {
                    "ipv4" => IpVersion::V4,
                    "ipv4-mapped-ipv6" => IpVersion::Mapped,
                    "ipv6" => IpVersion::V6,
                    other => return Err(format!("--ip_version={other}: not ipv4, ipv4-mapped-ipv6 or ipv6")),
                }
            }
            "tolerance_usecs" => self.tolerance_us = number()?,
            "tolerance_percent" => {
                let percent: Result<f64, _> = text()?.parse();
                self.tolerance_percent = percent.map_err(|e| format!("--{name}: {e}"))?;
            }
            "mtu" => self.mtu = small()?,
            "bind_port" => self.bind_port = small()?,
            "connect_port" => self.connect_port = small()?,
            "local_ip" => self.local_ip = Some(address()?),
            "gateway_ip" => self.gateway_ip = Some(address()?),
            "remote_ip" => self.remote_ip = Some(address()?),
            "netmask_ip" => match address()? {
                IpAddr::V4(mask) => self.prefix = u32::from(mask).leading_ones() as u8,
                IpAddr::V6(mask) => self.prefix = u128::from(mask).leading_ones() as u8,
            },
            "tcp_ts_tick_usecs" => self.ts_tick_us = number()?,
            "tcp_ts_ecr_scaled" => self.ts_ecr_scaled = true,
            "init_scripts" => self.init_scripts.extend(text()?.split(',').map(str::to_string)),
            "strict_segments" => self.strict_segments = true,
            "non_fatal" => {
                for kind in text()?.split(',') {
                    match kind {
                        "packet" => self.non_fatal_packet = true,
                        "syscall" => self.non_fatal_call = true,
                        other => return Err(format!("--non_fatal={other}: neither packet nor syscall")),
                    }
                }
            }
            // Handled by the parser.
            "define" => {}
            "verbose" | "debug" => self.verbose = true,
            // Always the case here: a sent buffer is never freed before the script's end.
            "send_omit_free" => {}
            // The interpreter is built in.
            "code_format" if text()? == "python" => {}
            "code_command" if text()?.contains("python") => {}
            "code_sockopt" if text()? == "TCP_INFO" => {}
            "code_format" | "code_command" => {
                return Err(format!(
                    "--{name}={}: code blocks are Python, and run by the built-in interpreter",
                    text()?
                ));
            }
            "code_sockopt" => return Err(format!("--{name}={}: code blocks are given TCP_INFO only", text()?)),
            "mss" => {
                return Err(
                    "--mss: injected packets are not marked for segmentation (GSO): inject them segment by segment"
                        .into(),
                );
            }
            "speed" => return Err("--speed: the links of both targets have none: leave it out".into()),
            "is_anyip" => return Err("--is_anyip: use an address of the interface (--local_ip)".into()),
            other => return Err(format!("unknown option --{other}")),
        }
        Ok(())
    }

    /// Returns the interface's address.
    pub fn local(&self) -> IpAddr {
        self.local_ip.unwrap_or(match self.ip_version {
            IpVersion::V6 => Ipv6Addr::new(0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1).into(),
            _ => Ipv4Addr::new(192, 168, 0, 1).into(),
        })
    }

    /// Returns the next hop to the remote network.
    pub fn gateway(&self) -> IpAddr {
        self.gateway_ip.unwrap_or(match self.ip_version {
            IpVersion::V6 => Ipv6Addr::new(0xfd3d, 0x0a0b, 0x17d6, 0x8888, 0, 0, 0, 1).into(),
            _ => Ipv4Addr::new(192, 168, 0, 1).into(),
        })
    }

    /// Returns the peer's address.
    pub fn remote(&self) -> IpAddr {
        self.remote_ip.unwrap_or(match self.ip_version {
            IpVersion::V6 => Ipv6Addr::new(0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1).into(),
            _ => Ipv4Addr::new(192, 0, 2, 1).into(),
        })
    }

    /// Returns the length of the interface's network prefix.
    pub fn prefix_len(&self) -> u8 {
        if self.ip_version == IpVersion::V6 { 64 } else { self.prefix }
    }

    /// Returns the symbols that the public suites' runners define on their command lines.
    pub fn suite_symbols(version: IpVersion) -> Vec<(&'static str, &'static str)> {
        let (level, kind) = match version {
            IpVersion::V4 => ("SOL_IP", "IP_RECVERR"),
            _ => ("SOL_IPV6", "IPV6_RECVERR"),
        };
        let (cookie, code) = match version {
            IpVersion::V6 => ("c1d1e9742a47a9bc", "address_unreachable"),
            _ => ("3021b9d889017eeb", "host_unreachable"),
        };
        vec![("TFO_COOKIE", cookie), ("CODE", code), ("CMSG_LEVEL_IP", level), ("CMSG_TYPE_RECVERR", kind)]
    }

    fn socket_address(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match (ip, self.ip_version) {
            (IpAddr::V4(a), IpVersion::Mapped) => SocketAddr::new(a.to_ipv6_mapped().into(), port),
            _ => SocketAddr::new(ip, port),
        }
    }

    /// Returns the address that `bind(3, ..., ...)` binds to.
    pub fn bind_address(&self) -> SocketAddr {
        self.socket_address(self.local(), self.bind_port)
    }

    /// Returns the address that `connect(3, ..., ...)` connects to.
    pub fn connect_address(&self) -> SocketAddr {
        self.socket_address(self.remote(), self.connect_port)
    }
}
