//! The proxy under test: its configuration, its start and its end.

use crate::apps::{LinkChoice, Program, READY_LIMIT, Stack, StackOptions};
use crate::lab::{BACKEND, BACKEND6, FRONT, FRONT6, Lab, Ns};
use crate::process::Proc;
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::path::PathBuf;

/// The proxy's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Copies bytes (L4).
    Tcp,
    /// Understands HTTP/1.1 (L7).
    Http,
}

/// Port of the HTTP proxy, in front of nginx.
pub const HTTP_PORT: u16 = 8080;
/// Port of the TCP proxy, in front of the same nginx.
pub const TCP_PORT: u16 = 8081;
/// Port of the TCP proxy in front of redis.
pub const REDIS_PORT: u16 = 6379;
/// Port of an HTTP proxy whose backend does not exist.
pub const DEAD_PORT: u16 = 8090;
/// Port of an HTTP proxy whose backend has an address that no host has.
pub const SILENT_PORT: u16 = 8091;
/// Port of the metrics.
pub const METRICS_PORT: u16 = 9100;

/// How a proxy is started.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    /// The stack that it uses.
    pub stack: Stack,
    /// See [`LinkChoice`].
    pub link: LinkChoice,
    /// CPUs, one core of the proxy on each.
    pub cores: Vec<usize>,
    /// Devices, [`DEVICES`] unless a test wants others.
    pub devices: Vec<String>,
    /// Serve metrics on [`METRICS_PORT`], which is a kernel socket. Not possible if the stack has
    /// all addresses.
    pub metrics: bool,
    /// The listener at [`HTTP_PORT`] speaks TLS with this.
    pub certificate: Option<Certificate>,
}

/// A certificate for tests, signed by itself, and its key: PEM files.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub chain: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Certificate {
    /// Makes one (ECDSA, P-256) in the lab's folder.
    pub fn new(lab: &Lab) -> Result<Self> {
        let made = Self { chain: lab.dir().join("certificate.pem"), key: lab.dir().join("key.pem") };
        let mut command = lab.command(Ns::Host, "openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
        command.args(["-subj", "/CN=lab", "-days", "2", "-keyout"]).arg(&made.key).arg("-out").arg(&made.chain);
        let output = command.output().context("cannot run openssl")?;
        ensure!(output.status.success(), "openssl req: {}", String::from_utf8_lossy(&output.stderr));
        Ok(made)
    }
}

impl ProxyOptions {
    /// Two cores, AF_XDP.
    pub fn new(stack: Stack) -> Self {
        Self {
            stack,
            link: LinkChoice::Xdp,
            cores: vec![0, 1],
            devices: DEVICES.map(str::to_owned).to_vec(),
            metrics: true,
            certificate: None,
        }
    }

    /// The options that choose and shape the stack.
    pub fn arguments(&self) -> Vec<String> {
        let stack = StackOptions { link: self.link, cores: self.cores.clone(), ..StackOptions::new(self.stack) };
        let address = |device: &String| ADDRESSES.iter().find(|(name, _)| name == device).map_or("", |(_, addr)| addr);
        stack.arguments(&self.devices.iter().map(|device| (device.as_str(), address(device))).collect::<Vec<_>>())
    }
}

/// One series of the proxy's metrics.
#[derive(Clone, Debug)]
pub struct Metric {
    /// The metric's name.
    pub name: String,
    /// `key="value",…`
    pub labels: String,
    /// The value.
    pub value: f64,
}

/// A running proxy in the host's namespace.
pub struct Proxy {
    /// The process.
    pub proc: Proc,
    /// Its configuration file.
    pub config: String,
    /// How it was started.
    pub command_line: String,
}

/// The host's devices with its addresses.
const ADDRESSES: [(&str, &str); 2] = [("front0", "10.77.1.1/24,fd77:1::1/64"), ("back0", "10.77.2.1/24,fd77:2::1/64")];

/// Devices that the proxy serves and connects on.
pub const DEVICES: [&str; 2] = ["front0", "back0"];

impl Proxy {
    /// Writes the configuration, preceded by `head`.
    pub fn write_config(lab: &Lab, options: &ProxyOptions, head: &str) -> Result<PathBuf> {
        let path = lab.dir().join("proxy.toml");
        std::fs::write(&path, head.to_owned() + &config(options))?;
        Ok(path)
    }

    /// Starts a proxy in front of the backends at [`BACKEND`] and [`BACKEND6`] and waits until it
    /// responds.
    pub fn start(lab: &Lab, options: &ProxyOptions) -> Result<Proxy> {
        let path = Self::write_config(lab, options, "")?;
        own_addresses(lab, options)?;
        let args = options.arguments();
        let mut command = Program::Proxy.command(lab, Ns::Host)?;
        command.arg("--config").arg(&path).args(&args);
        let command_line = format!("fs-proxy --config proxy.toml {}", args.join(" "));
        let mut proc = lab.spawn("proxy", &mut command)?;
        for port in [HTTP_PORT, TCP_PORT] {
            for host in [FRONT, FRONT6] {
                proc.wait_for("answer", READY_LIMIT, || lab.reaches(Ns::Client, host, port))?;
            }
        }
        Ok(Proxy { proc, config: std::fs::read_to_string(path)?, command_line })
    }

    /// Returns its address for clients.
    pub fn url(&self, mode: Mode) -> String {
        format!("http://{FRONT}:{}", port(mode))
    }

    /// The same over IPv6.
    pub fn url6(&self, mode: Mode) -> String {
        format!("http://[{FRONT6}]:{}", port(mode))
    }

    /// Its metrics: for every series of every metric, labels and value.
    pub fn metrics(&self, lab: &Lab) -> Result<Vec<Metric>> {
        // On a kernel socket of the host, so this also tests a neighbour on the same interface.
        let url = format!("http://{FRONT}:{METRICS_PORT}/metrics");
        let text = lab.run(Ns::Client, "curl", &["-sS", "--max-time", "5", &url])?;
        let mut found = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').with_context(|| format!("metrics: {line}"))?;
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let value = value.parse().with_context(|| format!("metrics: {line}"))?;
            found.push(Metric { name: name.into(), labels: labels.trim_end_matches('}').into(), value });
        }
        Ok(found)
    }

    /// Sends SIGTERM; an error unless it ends soon, with status 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.proc.terminate(READY_LIMIT)?;
        ensure!(status.success(), "the proxy ended with {status} after SIGTERM:\n{}", self.proc.log());
        Ok(())
    }
}

fn port(mode: Mode) -> u16 {
    match mode {
        Mode::Http => HTTP_PORT,
        Mode::Tcp => TCP_PORT,
    }
}

/// Listeners and upstreams. The backend's IPv6 address serves IPv6 clients.
fn config(options: &ProxyOptions) -> String {
    let mut text = String::new();
    if options.metrics && options.link == LinkChoice::Xdp {
        let _ = writeln!(text, "metrics = \"{FRONT}:{METRICS_PORT}\"\n");
    }
    let _ = writeln!(text, "[timeouts]\nconnect = \"10s\"\ndrain = \"5s\"");
    let backends =
        [("web", BACKEND, 80), ("redis", BACKEND, 6379), ("refusing", BACKEND, 9), ("silent", "10.77.2.99", 80)];
    let listeners = [
        (HTTP_PORT, "http", "web"),
        (TCP_PORT, "tcp", "web"),
        (REDIS_PORT, "tcp", "redis"),
        (DEAD_PORT, "http", "refusing"),
        (SILENT_PORT, "http", "silent"),
    ];
    for (name, host, port) in backends {
        let _ = writeln!(text, "\n[[upstream]]\nname = \"{name}\"\nservers = [\"{host}:{port}\"]");
    }
    for (name, port) in [("web", 80), ("redis", 6379)] {
        let _ = writeln!(text, "\n[[upstream]]\nname = \"{name}6\"\nservers = [\"[{BACKEND6}]:{port}\"]");
    }
    for (port, mode, upstream) in listeners {
        let _ = writeln!(
            text,
            "\n[[listener]]\naddress = \"{FRONT}:{port}\"\nmode = \"{mode}\"\nupstream = \"{upstream}\""
        );
        if let (HTTP_PORT, Some(Certificate { chain, key })) = (port, &options.certificate) {
            let _ = writeln!(text, "tls = {{ certificate = {chain:?}, key = {key:?} }}");
        }
        if upstream == "web" || upstream == "redis" {
            let _ = writeln!(
                text,
                "\n[[listener]]\naddress = \"[{FRONT6}]:{port}\"\nmode = \"{mode}\"\nupstream = \"{upstream}6\""
            );
        }
    }
    text
}

/// In standalone addressing the host's kernel must not have the addresses: it would reply with RST.
/// Otherwise it must.
fn own_addresses(lab: &Lab, options: &ProxyOptions) -> Result<()> {
    let standalone = options.stack == Stack::Fastsock && options.link == LinkChoice::Packet;
    for (device, addresses) in ADDRESSES {
        for address in addresses.split(',') {
            let family = if address.contains('.') { "-4" } else { "-6" };
            lab.run(Ns::Host, "ip", &[family, "addr", "flush", "dev", device, "scope", "global"])?;
            if !standalone {
                lab.run(Ns::Host, "ip", &[family, "addr", "add", address, "dev", device])?;
            }
        }
    }
    Ok(())
}
