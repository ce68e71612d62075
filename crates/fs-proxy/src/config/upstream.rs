//! `[[upstream]]`: servers, and how requests are distributed over them.

use super::edits::EditsConfig;
use super::lookup::{self, Service};
use super::value::{duration, optional_duration, path};
use crate::tls;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use toml::Spanned;

/// Maximum weight. Only the proportion of weights matters, so larger numbers add nothing.
const WEIGHT_MAX: u32 = 1000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpstreamConfig {
    pub(crate) name: Spanned<String>,
    #[serde(rename = "servers")]
    pub(super) written: Spanned<Vec<WrittenServer>>,
    /// The servers, after names have been looked up.
    #[serde(skip)]
    pub(crate) servers: Vec<ServerConfig>,
    #[serde(default)]
    pub(crate) balance: Balance,
    /// The part of a request that `balance = "hash"` uses.
    pub(crate) hash: Option<Spanned<HashKey>>,
    /// The time in which a server that is healthy again gets its full weight.
    #[serde(default, deserialize_with = "optional_duration")]
    pub(crate) slow_start: Option<Duration>,
    /// Interval at which names of servers are looked up again.
    #[serde(default, deserialize_with = "optional_duration")]
    lookup_interval: Option<Duration>,
    /// Time after which names are looked up again (their shortest time to live).
    #[serde(skip)]
    valid_for: Option<Duration>,
    /// The PROXY protocol's version that servers get before the first byte of a connection.
    pub(crate) send_proxy: Option<Spanned<ProxyVersion>>,
    /// Changes of requests before they go to a server of this upstream.
    #[serde(default)]
    pub(crate) request_headers: EditsConfig,
    pub(crate) health_check: Option<HealthCheck>,
    /// What waits while all servers are busy.
    #[serde(default)]
    pub(crate) queue: QueueConfig,
    /// Retries in per cent of the requests.
    #[serde(default = "twenty", deserialize_with = "per_cent")]
    pub(crate) retry_budget: u32,
    #[serde(default)]
    pub(crate) keepalive: Keepalive,
    /// Servers get HTTP/2: over TLS by ALPN, else at once.
    #[serde(default)]
    pub(crate) http2: bool,
    pub(super) tls: Option<Spanned<ServerTlsConfig>>,
    /// The configuration of `tls`, after its files have been read.
    #[serde(skip)]
    pub(crate) connector: Option<tls::Connector>,
}

/// TLS of the connections to servers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerTlsConfig {
    /// The name in the servers' certificates. Default: each server's own name or address.
    pub(super) name: Option<String>,
    /// PEM file of authorities. Default: those of the system.
    ca: Option<PathBuf>,
    /// The proxy's own certificate chain, for servers that ask for one.
    certificate: Option<PathBuf>,
    /// The certificate's key.
    key: Option<PathBuf>,
}

impl ServerTlsConfig {
    /// # Errors
    /// If only one of `certificate` and `key` is given.
    pub(super) fn files(&self) -> Result<tls::ServerFiles<'_>, String> {
        let identity: Option<(&Path, &Path)> = match (&self.certificate, &self.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return Err("tls needs both `certificate` and `key`, or neither".into()),
        };
        Ok(tls::ServerFiles { ca: self.ca.as_deref(), identity })
    }
}

/// Interval of look-ups of names whose time to live is unknown.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(10);
/// Limits of a time to live. Lower: a name server is asked all the time. Higher: a wrong record is used
/// for that long.
const TIME_TO_LIVE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerConfig {
    pub(crate) addr: SocketAddr,
    /// Its name, without the port, if it is given by name.
    pub(crate) name: Option<Arc<str>>,
    /// The server's share. 0: no new requests or connections.
    pub(crate) weight: u32,
    /// True for a server that is used only if no other is usable.
    pub(crate) backup: bool,
    /// Most requests (L7) or connections (L4) at the same time.
    pub(crate) max_connections: Option<NonZeroU32>,
}

/// A server as written: only an address, or a table.
#[derive(Debug)]
pub(super) struct WrittenServer(ServerTable);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerTable {
    address: Address,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    backup: bool,
    max_connections: Option<NonZeroU32>,
}

fn one() -> u32 {
    1
}

impl<'de> Deserialize<'de> for WrittenServer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrTable;
        impl<'de> Visitor<'de> for TextOrTable {
            type Value = ServerTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address such as \"10.0.0.2:80\", or a table with it")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ServerTable, E> {
                let address = Address::parse(text).map_err(E::custom)?;
                Ok(ServerTable { address, weight: 1, backup: false, max_connections: None })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ServerTable, A::Error> {
                ServerTable::deserialize(MapAccessDeserializer::new(map))
            }
        }
        let table = deserializer.deserialize_any(TextOrTable)?;
        if table.weight > WEIGHT_MAX {
            return Err(serde::de::Error::custom(format!("the weight {} is above {WEIGHT_MAX}", table.weight)));
        }
        Ok(Self(table))
    }
}

/// The address of a server.
#[derive(Debug)]
enum Address {
    Known(SocketAddr),
    /// A name and a port.
    Named(Arc<str>, u16),
    /// A service, whose servers the DNS knows (SRV).
    Service(String),
}

impl Address {
    fn parse(text: &str) -> Result<Self, String> {
        if let Ok(addr) = text.parse() {
            return Ok(Self::Known(addr));
        }
        let is_name = |name: &str| {
            let is_label = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            name.bytes().all(is_label) && name.bytes().any(|byte| byte.is_ascii_alphabetic())
        };
        let named =
            text.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok().filter(|&port| port > 0)?)));
        match named {
            Some((name, port)) if is_name(name) => Ok(Self::Named(name.into(), port)),
            None if text.starts_with('_') && text.contains("._") && is_name(text) => Ok(Self::Service(text.to_owned())),
            _ => Err(format!(
                "`{text}` is not an address or a name with a port, such as \"10.0.0.2:80\", \"[fd00::2]:80\" or \
                 \"web.example:80\", nor a service such as \"_http._tcp.example\""
            )),
        }
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl UpstreamConfig {
    /// Looks up the names of servers. Each address of a name is a server.
    ///
    /// # Errors
    /// If a name has no address, or no answer about addresses like those of `known` servers. Then it has no
    /// servers, and is looked up again soon.
    pub(super) fn look_up(&mut self, known: &[ServerConfig]) -> Result<(), String> {
        let mut servers = Vec::new();
        let mut lookups = Lookups { known, valid_for: None };
        for WrittenServer(ServerTable { address, weight, backup, max_connections }) in self.written.get_ref() {
            let (weight, backup, max_connections) = (*weight, *backup, *max_connections);
            let server = |addr, name| ServerConfig { addr, name, weight, backup, max_connections };
            let found: Vec<ServerConfig> = match address {
                Address::Known(addr) => {
                    // Duplicates are added too, and a later check reports them.
                    servers.push(server(*addr, None));
                    continue;
                }
                Address::Named(name, port) => {
                    let addresses = lookups.addresses(name, *port)?;
                    addresses.into_iter().map(|addr| server(addr, Some(name.clone()))).collect()
                }
                Address::Service(name) => lookups.servers(name, &server)?,
            };
            for found in found {
                if !servers.iter().any(|known: &ServerConfig| known.addr == found.addr) {
                    servers.push(found);
                }
            }
        }
        (self.servers, self.valid_for) = (servers, lookups.valid_for);
        Ok(())
    }

    /// Returns the time until names are looked up again.
    pub(super) fn lookup_interval(&self) -> Duration {
        let (least, most) = TIME_TO_LIVE;
        let valid = self.valid_for.map_or(LOOKUP_INTERVAL, |valid_for| valid_for.clamp(least, most));
        self.lookup_interval.unwrap_or(valid)
    }

    /// Returns true if `lookup_interval` is given, and no server by name.
    pub(super) fn has_unused_lookup_interval(&self) -> bool {
        self.lookup_interval.is_some() && !self.has_names()
    }

    /// Returns true if a server has `max_connections`.
    pub(super) fn has_max_connections(&self) -> bool {
        self.written.get_ref().iter().any(|server| server.0.max_connections.is_some())
    }

    /// Returns true if a server is given by name.
    pub(super) fn has_names(&self) -> bool {
        self.written.get_ref().iter().any(|server| !matches!(server.0.address, Address::Known(_)))
    }
}

/// Lookups of an upstream's names.
struct Lookups<'a> {
    /// The servers that were found before.
    known: &'a [ServerConfig],
    /// The shortest time to live.
    valid_for: Option<Duration>,
}

impl Lookups<'_> {
    /// Remembers a time to live.
    fn keep<T>(&mut self, found: lookup::Found<T>) -> Vec<T> {
        self.valid_for = self.valid_for.into_iter().chain(found.valid_for).min();
        found.what
    }

    /// Returns a name's addresses, in their order: name servers answer in any.
    fn addresses(&mut self, name: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let found = lookup::addresses(name).map_err(|error| format!("`{name}` has no address: {error}"))?;
        if let Some(error) = &found.failed {
            let is_found = |addr: SocketAddr| found.what.iter().any(|ip| ip.is_ipv4() == addr.is_ipv4());
            let is_same = |known: &str| known.trim_end_matches('.') == name.trim_end_matches('.');
            let mut known = self.known.iter().filter(|server| server.name.as_deref().is_some_and(is_same));
            if known.any(|server| !is_found(server.addr)) {
                return Err(format!("`{name}` has not all its addresses: {error}"));
            }
        }
        let mut found: Vec<SocketAddr> = self.keep(found).into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Returns a service's servers. Those of the first priority are used, and others are backup
    /// servers. Their weights are the records', unless the configuration has 0.
    fn servers(
        &mut self,
        name: &str,
        server: &impl Fn(SocketAddr, Option<Arc<str>>) -> ServerConfig,
    ) -> Result<Vec<ServerConfig>, String> {
        let found = lookup::services(name).map_err(|error| format!("`{name}` has no server: {error}"))?;
        let mut services = self.keep(found);
        services.sort_unstable_by(|one, other| {
            (one.priority, &one.host, one.port).cmp(&(other.priority, &other.host, other.port))
        });
        let first = services.first().map(|service| service.priority);
        let mut servers = Vec::new();
        // RFC 2782: weights are relative to those of the same priority.
        for services in services.chunk_by(|one, other| one.priority == other.priority) {
            let heaviest = services.iter().map(|service| u32::from(service.weight)).max().unwrap_or(0).max(WEIGHT_MAX);
            for Service { host, port, weight, priority } in services {
                let name: Arc<str> = host.trim_end_matches('.').into();
                for addr in self.addresses(host, *port)? {
                    let mut server = server(addr, Some(name.clone()));
                    if server.weight > 0 {
                        server.weight = (u32::from(*weight) * WEIGHT_MAX / heaviest).max(1);
                    }
                    server.backup |= Some(*priority) != first;
                    servers.push(server);
                }
            }
        }
        Ok(servers)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Balance {
    #[default]
    RoundRobin,
    LeastConnections,
    Hash,
}

/// The part of a request or connection that decides for its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HashKey {
    /// The client's address.
    Address,
    /// The path, without the query.
    Path,
    Header(String),
    Cookie(String),
}

impl<'de> Deserialize<'de> for HashKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.split_once(':') {
            None if text == "address" => Ok(Self::Address),
            None if text == "path" => Ok(Self::Path),
            Some(("header", name)) if !name.is_empty() => Ok(Self::Header(name.to_owned())),
            Some(("cookie", name)) if !name.is_empty() => Ok(Self::Cookie(name.to_owned())),
            _ => Err(serde::de::Error::custom(format!(
                "`{text}` is not \"address\", \"path\", \"header:NAME\" or \"cookie:NAME\""
            ))),
        }
    }
}

/// The version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProxyVersion {
    V1,
    V2,
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
    pub(crate) rise: NonZeroU32,
    /// Bad checks in a row after which a server is no longer used.
    pub(crate) fall: NonZeroU32,
}

impl Default for HealthCheck {
    fn default() -> Self {
        let number = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        Self {
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            path: None,
            rise: number(2),
            fall: number(3),
        }
    }
}

/// The queue for servers with `max_connections`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QueueConfig {
    /// Most requests that wait on a core. Too low: a burst is refused. Too high: requests wait that
    /// will be refused.
    pub(crate) requests: usize,
    /// How long each may wait.
    #[serde(deserialize_with = "duration")]
    pub(crate) timeout: Duration,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { requests: 1000, timeout: Duration::from_secs(3) }
    }
}

fn twenty() -> u32 {
    20
}

fn per_cent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = u32::deserialize(deserializer)?;
    match number {
        0..=100 => Ok(number),
        _ => Err(serde::de::Error::custom(format!("{number} is above 100 per cent"))),
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
