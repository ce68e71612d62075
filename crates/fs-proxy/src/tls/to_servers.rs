//! TLS of upstreams: the servers' certificates are verified, and the proxy may have one too.

use super::files::{identity, roots};
use anyhow::{Context, ensure};
use fs_stacks::Stream;
use fs_stacks::tls::{TlsConnector, connect};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// The files of an upstream's `tls`.
pub(crate) struct ServerFiles<'a> {
    /// Certificates of authorities. `None`: the system's.
    pub(crate) ca: Option<&'a Path>,
    /// The proxy's own certificate chain and key.
    pub(crate) identity: Option<(&'a Path, &'a Path)>,
}

/// The configuration of an upstream's `tls`, after its files have been read.
#[derive(Clone)]
pub(crate) struct Connector {
    connector: TlsConnector,
    /// The name that all servers must have.
    name: Option<ServerName<'static>>,
    protocol: Option<&'static str>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Reads the files of an upstream whose servers must choose `protocol` (ALPN), if there is one.
///
/// # Errors
/// The error names the file and its problem.
pub(crate) fn connector(
    files: &ServerFiles<'_>,
    name: Option<&str>,
    protocol: Option<&'static str>,
) -> anyhow::Result<Connector> {
    let provider = Arc::new(ring::default_provider());
    let roots = match files.ca {
        Some(file) => roots(file).with_context(|| format!("ca {}", file.display()))?,
        None => system_roots()?,
    };
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(roots);
    let mut config = match files.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let identity = identity(certificate, key, &provider);
            let identity =
                identity.with_context(|| format!("certificate {}, key {}", certificate.display(), key.display()))?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity)))
        }
    };
    config.alpn_protocols = protocol.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = name.map(|name| ServerName::try_from(name.to_owned()).with_context(|| format!("name `{name}`")));
    Ok(Connector { connector: TlsConnector::from(Arc::new(config)), name: name.transpose()?, protocol })
}

fn system_roots() -> anyhow::Result<Arc<RootCertStore>> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
    ensure!(!roots.is_empty(), "the system has no certificates of authorities{why}: install them, or name a `ca`");
    Ok(Arc::new(roots))
}

impl Connector {
    /// Returns the TLS of connections to one server, which the configuration may have named.
    ///
    /// # Errors
    /// If a certificate cannot have its name.
    pub(crate) fn to(&self, server: Option<&str>, addr: SocketAddr) -> anyhow::Result<ToServer> {
        let own = || match server {
            Some(name) => ServerName::try_from(name.to_owned()).with_context(|| format!("server name `{name}`")),
            None => Ok(ServerName::IpAddress(addr.ip().into())),
        };
        let name = self.name.clone().map_or_else(own, Ok)?;
        Ok(ToServer { connector: self.connector.clone(), name, protocol: self.protocol })
    }
}

/// TLS of connections to one server.
pub(crate) struct ToServer {
    connector: TlsConnector,
    name: ServerName<'static>,
    protocol: Option<&'static str>,
}

impl ToServer {
    /// Performs the handshake on a new connection. The caller limits its time.
    ///
    /// # Errors
    /// If the server is not trusted, or does not choose the protocol.
    pub(crate) async fn connect(&self, stream: Stream) -> io::Result<Stream> {
        let stream = connect(&self.connector, self.name.clone(), stream).await;
        let stream = stream.map_err(|error| io::Error::new(error.kind(), format!("TLS handshake: {error}")))?;
        match self.protocol {
            Some(wanted) if stream.protocol() != Some(wanted.as_bytes()) => {
                Err(io::Error::other("TLS handshake: the server does not offer HTTP/2 (ALPN)"))
            }
            _ => Ok(stream),
        }
    }
}
