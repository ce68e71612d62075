//! The configuration file: TOML, every key checked, every error with its line.
//!
//! docs/PROXY.md lists every key.

mod check;
mod edits;
mod listener;
#[cfg(feature = "dns")]
mod lookup;
#[cfg(not(feature = "dns"))]
#[path = "config/no_lookup.rs"]
mod lookup;
#[cfg(test)]
mod tests;
mod upstream;
mod value;

use crate::tls;
pub(crate) use edits::EditsConfig;
use fs_stacks::StackKind;
pub(crate) use listener::{HostPattern, ListenerConfig, Mode, RouteConfig};
use serde::Deserialize;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;
pub(crate) use upstream::{
    Balance, HashKey, HealthCheck, Keepalive, ProxyVersion, QueueConfig, ServerConfig, UpstreamConfig,
};
pub(crate) use value::Network;
use value::duration;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) metrics: Option<SocketAddr>,
    /// The path of the admin socket.
    pub(crate) admin: Option<PathBuf>,
    pub(crate) access_log: Option<PathBuf>,
    #[serde(default)]
    pub(crate) access_log_format: LogFormat,
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
    /// The file's text.
    #[serde(skip)]
    text: String,
}

/// The format of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    #[default]
    Plain,
    /// Apache's and nginx'. TCP connections are plain.
    Combined,
    Json,
}

impl LogFormat {
    /// Returns true if lines have fields of requests.
    pub(crate) fn has_fields(self) -> bool {
        self != Self::Plain
    }
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
    /// Most connections of a client's address.
    pub(crate) client_connections: Option<NonZeroU32>,
    /// Requests of a client's address in a second.
    pub(crate) client_requests: Option<NonZeroU32>,
    /// Requests that an address may send at once. Default: those of a second.
    pub(crate) client_burst: Option<Spanned<NonZeroU32>>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_rate: 240, client_connections: None, client_requests: None, client_burst: None }
    }
}

/// An error of a configuration, and its line.
#[derive(Debug)]
pub(crate) struct ConfigError {
    file: PathBuf,
    line: Option<usize>,
    message: String,
    /// The text is wrong. Other errors, such as those of names and certificates, may end by themselves.
    pub(crate) is_of_text: bool,
}

impl ConfigError {
    /// `at` is an offset in the text.
    fn new(file: &Path, text: &str, at: Option<usize>, message: String) -> Self {
        let line = at.and_then(|at| Some(text.get(..at)?.matches('\n').count() + 1));
        Self { file: file.to_owned(), line, message, is_of_text: false }
    }

    fn of_text(self) -> Self {
        Self { is_of_text: true, ..self }
    }
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
    ///
    /// Looks up names of servers, which can block.
    pub(crate) fn load(file: &Path) -> Result<Self, ConfigError> {
        let error = |cause: std::io::Error| ConfigError::new(file, "", None, cause.to_string());
        Self::parse(file, std::fs::read_to_string(file).map_err(error)?)
    }

    /// Checks a file's text.
    fn parse(file: &Path, text: String) -> Result<Self, ConfigError> {
        let mut config = Self::read(file, &text)?;
        let error = |(at, message)| ConfigError::new(file, &text, at, message);
        config.check().map_err(|wrong| error(wrong).of_text())?;
        config.look_up().map_err(error)?;
        config.finish(file, text)
    }

    /// Reads a file's text.
    fn read(file: &Path, text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|cause| {
            let error = ConfigError::new(file, text, cause.span().map(|span| span.start), String::new());
            // The parser's message does not always name the value.
            let shown = error.line.and_then(|number| text.lines().nth(number - 1)).map(str::trim).unwrap_or_default();
            ConfigError { message: format!("{} in `{shown}`", cause.message()), ..error.of_text() }
        })
    }

    /// Checks the servers' addresses, and reads the files that it names.
    fn finish(mut self, file: &Path, text: String) -> Result<Self, ConfigError> {
        let error = |(at, message)| ConfigError::new(file, &text, at, message);
        // What names mean may change.
        let has_names = self.upstreams.iter().any(UpstreamConfig::has_names);
        self.check_addresses().map_err(|wrong| if has_names { error(wrong) } else { error(wrong).of_text() })?;
        self.read_keys().map_err(error)?;
        for doubt in self.doubts() {
            tracing::warn!("{}", error(doubt));
        }
        self.text = text;
        Ok(self)
    }

    /// Looks up the names of servers.
    pub(crate) fn look_up(&mut self) -> Result<(), Finding> {
        for upstream in &mut self.upstreams {
            let at = upstream.written.span().start;
            upstream.look_up(&[]).map_err(|message| (Some(at), message))?;
        }
        Ok(())
    }

    /// Looks up the names of servers again. An upstream whose names have no address any more keeps its
    /// servers.
    pub(crate) fn looked_up_again(&self, file: &Path) -> LookedUp {
        let mut failed = Vec::new();
        let mut next = match Self::read(file, &self.text) {
            Ok(next) => next,
            Err(error) => return LookedUp { config: Err(error), failed, interval: self.lookup_interval() },
        };
        for (upstream, known) in next.upstreams.iter_mut().zip(&self.upstreams) {
            if let Err(message) = upstream.look_up(&known.servers) {
                let at = upstream.written.span().start;
                failed.push(ConfigError::new(file, &self.text, Some(at), message));
                upstream.servers.clone_from(&known.servers);
            }
        }
        let interval = next.lookup_interval();
        let same = |(one, other): (&UpstreamConfig, &UpstreamConfig)| one.servers == other.servers;
        let config = match self.upstreams.iter().zip(&next.upstreams).all(same) {
            true => Ok(None),
            false => next.finish(file, self.text.clone()).map(Some),
        };
        LookedUp { config, failed, interval }
    }

    /// Returns when names are looked up again, if there are any.
    pub(crate) fn lookup_interval(&self) -> Option<Duration> {
        self.upstreams.iter().filter(|upstream| upstream.has_names()).map(UpstreamConfig::lookup_interval).min()
    }

    /// Reads the files that `tls` of listeners and upstreams name.
    fn read_keys(&mut self) -> Result<(), Finding> {
        for listener in &mut self.listeners {
            let Some(named) = &listener.tls else { continue };
            let (http2, at) = (named.get_ref().http2, Some(named.span().start));
            let protocols: &[&str] = match listener.mode {
                Mode::Tcp => &[],
                Mode::Http if cfg!(feature = "http2") && http2 != Some(false) => &["h2", "http/1.1"],
                Mode::Http => &["http/1.1"],
            };
            let read = tls::read(&named.get_ref().files(), protocols);
            let read = read.map_err(|error| (Some(named.span().start), format!("tls: {error:#}")))?;
            let authorities = named.get_ref().client_ca.as_ref().map(std::fs::read).transpose();
            listener.authorities = authorities.map_err(|error| (at, format!("tls: client_ca: {error}")))?;
            listener.handshake = Some(read);
        }
        for upstream in &mut self.upstreams {
            let Some(named) = &upstream.tls else { continue };
            let at = Some(named.span().start);
            let protocol = upstream.http2.then_some("h2");
            let files = named.get_ref().files().map_err(|message| (at, message))?;
            let connector = tls::connector(&files, named.get_ref().name.as_deref(), protocol).and_then(|connector| {
                for server in &upstream.servers {
                    connector.to(server.name.as_deref(), server.addr)?;
                }
                Ok(connector)
            });
            upstream.connector = Some(connector.map_err(|error| (at, format!("tls: {error:#}")))?);
        }
        Ok(())
    }

    /// Checks what depends on the options of the command line.
    pub(crate) fn check_stack(&self, file: &Path, stack: StackKind) -> Result<(), ConfigError> {
        let splice = self.listeners.iter().filter(|listener| listener.splices()).find_map(|it| it.splice.as_ref());
        match splice {
            Some(splice) if stack != StackKind::Kernel => {
                let message = "`splice` needs --stack kernel: remove it, or use that stack".into();
                Err(ConfigError::new(file, &self.text, Some(splice.span().start), message).of_text())
            }
            _ => Ok(()),
        }
    }

    /// Returns the index of an upstream. `check` has ensured that those of listeners exist.
    pub(crate) fn upstream_named(&self, name: &str) -> Option<usize> {
        self.upstreams.iter().position(|upstream| upstream.name.get_ref() == name)
    }

    /// Returns the indices of the upstreams that a listener's requests may go to.
    pub(crate) fn upstreams_of(&self, listener: &ListenerConfig) -> impl Iterator<Item = usize> {
        listener.upstream_names().filter_map(|name| self.upstream_named(name.get_ref()))
    }
}

/// What another look-up of names has found.
pub(crate) struct LookedUp {
    /// The configuration with the servers' new addresses, if there are any.
    pub(crate) config: Result<Option<Config>, ConfigError>,
    /// Look-ups that failed. Their upstreams keep their servers.
    pub(crate) failed: Vec<ConfigError>,
    /// The time until the next one.
    pub(crate) interval: Option<Duration>,
}

/// An offset in the file, and the error there.
type Finding = (Option<usize>, String);
