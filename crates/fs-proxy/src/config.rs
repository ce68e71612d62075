//! The configuration file: TOML, every key checked, every error with its line.
//!
//! ```toml
//! metrics = "127.0.0.1:9900"     # Prometheus, on a kernel socket; none by default
//! access_log = "access.log"      # or "-" for standard output; none by default
//!
//! lean = true                    # false: hyper serves all HTTP; slower, for comparison and as a way back
//!
//! [timeouts]
//! connect = "3s"                 # to a server
//! response = "60s"               # from a request to the head of its answer
//! idle = "60s"                   # nothing moves on a connection
//! drain = "10s"                  # for what is open after SIGTERM, SIGINT or SIGQUIT
//!
//! [limits]
//! body_rate = 240                # bytes a second of a request's body, at least, over `idle`
//!
//! [[listener]]
//! address = "0.0.0.0:8080"
//! mode = "http"                  # or "tcp"
//! upstream = "web"
//! trusted_proxies = ["10.0.0.0/8"]     # peers whose X-Forwarded-Proto is passed on; none by default
//! name = "front"                 # in logs and metrics; the address by default
//! # tls = { certificate = "front.pem", key = "front.key" }    # clients speak TLS; the servers do not
//!
//! [[upstream]]
//! name = "web"
//! servers = ["10.77.2.2:80", "10.77.2.3:80"]
//! balance = "round_robin"        # or "least_connections"; each core balances what it serves
//! health_check = { interval = "2s", timeout = "1s", path = "/health", rise = 2, fall = 3 }   # without path: connect
//! keepalive = { connections = 64, idle = "30s" }      # per core and server
//! ```

use crate::tls;
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) access_log: Option<PathBuf>,
    #[serde(default = "yes")]
    pub(crate) lean: bool,
    #[serde(default)]
    pub(crate) timeouts: Timeouts,
    #[serde(default)]
    pub(crate) limits: Limits,
    #[serde(rename = "listener", default)]
    pub(crate) listeners: Vec<ListenerConfig>,
    #[serde(rename = "upstream", default)]
    pub(crate) upstreams: Vec<UpstreamConfig>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Timeouts {
    #[serde(deserialize_with = "duration")]
    pub(crate) connect: Duration,
    #[serde(deserialize_with = "duration")]
    pub(crate) response: Duration,
    #[serde(deserialize_with = "duration")]
    pub(crate) idle: Duration,
    #[serde(deserialize_with = "duration")]
    pub(crate) drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            // Three SYNs (at 0, 1 and 3 s) would take longer. A server on our network replies
            // within milliseconds.
            connect: Duration::from_secs(3),
            response: Duration::from_secs(60),
            idle: Duration::from_secs(60),
            drain: Duration::from_secs(10),
        }
    }
}

fn yes() -> bool {
    true
}

/// Limits on clients.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// Minimum rate of a request's body in bytes per second, averaged over `idle`. Too low: a
    /// client that sends a byte now and then keeps a server's connection. Too high: clients on slow
    /// lines cannot send. Kestrel has 240 too, Apache 500.
    pub(crate) body_rate: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_rate: 240 }
    }
}

/// Addresses with a common prefix, such as `10.0.0.0/8`; one address is `/32` or `/128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    bits: u128,
    prefix: u32,
    is_v4: bool,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let (bits, is_v4) = bits(address.parse().ok()?);
        let width = if is_v4 { 32 } else { 128 };
        let prefix = prefix.map_or(Some(width), |prefix| prefix.parse().ok()).filter(|prefix| *prefix <= width)?;
        Some(Self { bits, prefix, is_v4 })
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let (bits, is_v4) = bits(address);
        let width = if is_v4 { 32 } else { 128 };
        is_v4 == self.is_v4 && (bits ^ self.bits).checked_shr(width - self.prefix).unwrap_or(0) == 0
    }
}

fn bits(address: IpAddr) -> (u128, bool) {
    match address.to_canonical() {
        IpAddr::V4(address) => (u128::from(u32::from(address)), true),
        IpAddr::V6(address) => (u128::from(address), false),
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not a network such as \"10.0.0.0/8\"")))
    }
}

/// A listener's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    Tcp,
    Http,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenerConfig {
    pub(crate) address: Spanned<SocketAddr>,
    pub(crate) mode: Mode,
    pub(crate) upstream: Spanned<String>,
    name: Option<String>,
    /// Proxies in front, whose headers about their clients are trusted.
    #[serde(default)]
    pub(crate) trusted_proxies: Vec<Network>,
    tls: Option<Spanned<TlsConfig>>,
    /// The configuration of `tls`, after its files have been read.
    #[serde(skip)]
    pub(crate) handshake: Option<tls::Config>,
}

/// PEM files: a chain whose first certificate is the listener's, and that one's key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsConfig {
    certificate: PathBuf,
    key: PathBuf,
}

impl ListenerConfig {
    pub(crate) fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.address.get_ref().to_string())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpstreamConfig {
    pub(crate) name: Spanned<String>,
    #[serde(deserialize_with = "servers")]
    pub(crate) servers: Spanned<Vec<SocketAddr>>,
    #[serde(default)]
    pub(crate) balance: Balance,
    pub(crate) health_check: Option<HealthCheck>,
    #[serde(default)]
    pub(crate) keepalive: Keepalive,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Balance {
    #[default]
    RoundRobin,
    LeastConnections,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HealthCheck {
    #[serde(deserialize_with = "duration")]
    pub(crate) interval: Duration,
    #[serde(deserialize_with = "duration")]
    pub(crate) timeout: Duration,
    /// The path of a GET request. 2xx and 3xx are good. Without it, a successful connect is enough.
    #[serde(deserialize_with = "path")]
    pub(crate) path: Option<String>,
    /// Good checks in a row after which a server is used again.
    pub(crate) rise: std::num::NonZeroU32,
    /// Bad checks in a row after which a server is no longer used.
    pub(crate) fall: std::num::NonZeroU32,
}

impl Default for HealthCheck {
    fn default() -> Self {
        let number = |n| std::num::NonZeroU32::new(n).unwrap_or(std::num::NonZeroU32::MIN);
        Self {
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            path: None,
            rise: number(2),
            fall: number(3),
        }
    }
}

/// Connections to a server that are kept for the next request.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Keepalive {
    /// Most connections to keep per core and server; 0 keeps none.
    pub(crate) connections: usize,
    /// Keep them for at most this time. If it is below the servers' limit (nginx 75 s, Apache 5 s),
    /// fewer requests meet a closing connection.
    #[serde(deserialize_with = "duration")]
    pub(crate) idle: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { connections: 256, idle: Duration::from_secs(30) }
    }
}

/// The error says what is expected, because other proxies accept names.
fn servers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Spanned<Vec<SocketAddr>>, D::Error> {
    let texts = Spanned::<Vec<String>>::deserialize(deserializer)?;
    let parse = |text: &String| {
        text.parse().map_err(|_| {
            serde::de::Error::custom(format!(
                "`{text}` is not an address with a port such as \"10.0.0.2:80\" or \"[fd00::2]:80\" (names are not \
                 looked up: write the addresses that the name has)"
            ))
        })
    };
    let servers = texts.get_ref().iter().map(parse).collect::<Result<_, _>>()?;
    Ok(Spanned::new(texts.span(), servers))
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text)
        .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not a time such as \"500ms\", \"3s\" or \"2m\"")))
}

fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let milliseconds = match &text[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.checked_mul(milliseconds)?)).filter(|time| !time.is_zero())
}

fn path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(Some(text))
    } else {
        Err(serde::de::Error::custom(format!("`{text}` is not a path such as \"/health\"")))
    }
}

/// An error of a configuration, and its line.
#[derive(Debug)]
pub(crate) struct ConfigError {
    file: PathBuf,
    line: Option<usize>,
    message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads and checks a file.
    pub(crate) fn load(file: &Path) -> Result<Self, ConfigError> {
        let error = |line, message| ConfigError { file: file.to_owned(), line, message };
        let text = std::fs::read_to_string(file).map_err(|cause| error(None, cause.to_string()))?;
        let line = |at: usize| Some(text.get(..at)?.matches('\n').count() + 1);
        let mut config: Config = toml::from_str(&text).map_err(|cause| {
            let number = cause.span().and_then(|span| line(span.start));
            // The parser's message does not always name the value.
            let shown = number.and_then(|number| text.lines().nth(number - 1)).map(str::trim).unwrap_or_default();
            error(number, format!("{} in `{shown}`", cause.message()))
        })?;
        config.check().and_then(|()| config.read_keys()).map_err(|(at, message)| error(at.and_then(line), message))?;
        for (at, message) in config.doubts() {
            tracing::warn!("{}", error(at.and_then(line), message));
        }
        Ok(config)
    }

    /// Reads the files that the listeners' `tls` name.
    fn read_keys(&mut self) -> Result<(), (Option<usize>, String)> {
        for listener in &mut self.listeners {
            let Some(named) = &listener.tls else { continue };
            let TlsConfig { certificate, key } = named.get_ref();
            let protocols: &[&str] = if listener.mode == Mode::Http { &["http/1.1"] } else { &[] };
            let read = tls::read(certificate, key, protocols);
            let read = read.map_err(|error| (Some(named.span().start), format!("tls: {error:#}")))?;
            listener.handshake = Some(read);
        }
        Ok(())
    }

    /// Returns the index of a listener's upstream. `check` has ensured that it exists.
    pub(crate) fn upstream_of(&self, listener: &ListenerConfig) -> Option<usize> {
        self.upstreams.iter().position(|upstream| upstream.name.get_ref() == listener.upstream.get_ref())
    }
}

mod check;
#[cfg(test)]
mod tests;
