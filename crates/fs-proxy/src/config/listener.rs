//! `[[listener]]`: an address, its protocol, and where its requests go.

use super::edits::EditsConfig;
use super::value::{Network, paths};
use crate::tls;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// A listener's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    Tcp,
    Http,
}

/// Which connections of a listener leave user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Splice {
    Off,
    /// Splices long-lived connections, if possible.
    Auto,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenerConfig {
    pub(crate) address: Spanned<SocketAddr>,
    pub(crate) mode: Mode,
    /// The upstream of what no route matches. Without it: 404, or a reset.
    pub(crate) upstream: Option<Spanned<String>>,
    pub(super) name: Option<String>,
    /// The first that matches decides.
    #[serde(rename = "route", default)]
    pub(crate) routes: Vec<RouteConfig>,
    /// Proxies in front, whose headers about their clients are trusted.
    #[serde(default)]
    pub(crate) trusted_proxies: Vec<Network>,
    /// Every connection begins with the PROXY protocol, version 1 or 2.
    #[serde(default)]
    pub(crate) accept_proxy: bool,
    /// Changes of requests before they go to a server.
    #[serde(default)]
    pub(crate) request_headers: EditsConfig,
    /// Changes of servers' responses.
    #[serde(default)]
    pub(crate) response_headers: EditsConfig,
    pub(super) tls: Option<Spanned<TlsConfig>>,
    /// Which connections leave user space.
    pub(super) splice: Option<Spanned<Splice>>,
    /// The configuration of `tls`, after its files have been read.
    #[serde(skip)]
    pub(crate) handshake: Option<tls::Config>,
    /// The content of the file `client_ca`, to compare it with another configuration's.
    #[serde(skip)]
    pub(super) authorities: Option<Vec<u8>>,
}

/// PEM files: a chain whose first certificate is the listener's, and that one's key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsConfig {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    /// The authority's word that the certificate is not revoked (OCSP).
    pub(super) ocsp: Option<PathBuf>,
    /// Further certificates, chosen by the name that a client asks for.
    #[serde(default)]
    pub(super) additional: Vec<PairConfig>,
    /// Offer HTTP/2.
    pub(super) http2: Option<bool>,
    /// Certificates of authorities. Clients need a certificate of one of these.
    pub(super) client_ca: Option<PathBuf>,
}

/// A certificate chain and its key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PairConfig {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) ocsp: Option<PathBuf>,
}

impl TlsConfig {
    pub(super) fn files(&self) -> tls::Files<'_> {
        let mut identities: Vec<(&Path, &Path, Option<&Path>)> =
            vec![(&self.certificate, &self.key, self.ocsp.as_deref())];
        identities.extend(self.additional.iter().map(|pair| (&*pair.certificate, &*pair.key, pair.ocsp.as_deref())));
        tls::Files { identities, client_ca: self.client_ca.as_deref() }
    }
}

impl ListenerConfig {
    pub(crate) fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.address.get_ref().to_string())
    }

    /// Returns true if a connection that `earlier` accepted has shown what this listener demands of
    /// new ones: TLS, and a certificate of these authorities.
    pub(crate) fn may_serve_clients_of(&self, earlier: &Self, is_tls: bool) -> bool {
        (self.tls.is_none() || is_tls) && (self.authorities.is_none() || self.authorities == earlier.authorities)
    }

    /// Returns true if connections leave user space where that is possible.
    pub(crate) fn splices(&self) -> bool {
        self.splice.as_ref().is_some_and(|splice| *splice.get_ref() == Splice::Auto)
    }

    /// Returns the names of all upstreams that its requests may go to.
    pub(crate) fn upstream_names(&self) -> impl Iterator<Item = &Spanned<String>> {
        self.upstream.iter().chain(self.routes.iter().filter_map(|route| route.upstream.as_ref()))
    }
}

/// A rule for some requests. An empty list matches all.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteConfig {
    /// Names of `Host`, or of a TLS client's server name, without a port: `a.example`, or
    /// `*.a.example` for all names below it.
    #[serde(default)]
    pub(crate) hosts: Vec<HostPattern>,
    /// Starts of the path. Each matches whole segments: `/a` does not match `/ab`.
    #[serde(default, deserialize_with = "paths")]
    pub(crate) paths: Vec<String>,
    #[serde(default)]
    pub(crate) methods: Vec<String>,
    /// Fields and their whole value, or `*` for any value.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) upstream: Option<Spanned<String>>,
    /// The `Location` of a redirect. `{host}` and `{target}` are the request's.
    pub(crate) redirect: Option<Spanned<String>>,
    /// The redirect's status.
    pub(crate) status: Option<Spanned<u16>>,
}

/// A host name, or all names below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostPattern {
    Exact(String),
    /// The domain with its leading dot.
    Below(String),
}

impl HostPattern {
    /// Matches a name without a port, in any case.
    pub(crate) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => exact.eq_ignore_ascii_case(name),
            Self::Below(end) => {
                name.len() > end.len() && name.as_bytes()[name.len() - end.len()..].eq_ignore_ascii_case(end.as_bytes())
            }
        }
    }
}

impl<'de> Deserialize<'de> for HostPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (below, name) = text.strip_prefix('*').map_or((false, &*text), |end| (true, end));
        let is_byte =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'[' | b']' | b':');
        let is_plain = !name.is_empty() && name.bytes().all(is_byte) && (!name.contains(':') || name.ends_with(']'));
        match (below, is_plain) {
            (false, true) => Ok(Self::Exact(name.to_owned())),
            (true, true) if name.starts_with('.') && name.len() > 1 => Ok(Self::Below(name.to_owned())),
            _ => Err(serde::de::Error::custom(format!(
                "`{text}` is not a host such as \"a.example\" or \"*.a.example\", without a port"
            ))),
        }
    }
}
