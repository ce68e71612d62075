//! TLS of listeners: their certificates and keys, session tickets, and clients' certificates.
//! `to_servers` has TLS of upstreams.

mod files;
mod names;
mod ocsp;
mod to_servers;

use anyhow::Context;
use files::{identity, roots};
pub(crate) use fs_stacks::tls::accept;
use fs_stacks::tls::{NoServerSessionStorage, ServerConfig, TlsAcceptor};
use names::ByName;
use rustls::crypto::ring;
use rustls::server::{ProducesTickets, WebPkiClientVerifier};
use std::path::Path;
use std::sync::{Arc, OnceLock};
pub(crate) use to_servers::{Connector, ServerFiles, ToServer, connector};

/// The configuration of a listener's `tls`, after its files have been read.
pub(crate) type Config = Arc<ServerConfig>;
/// Performs handshakes. Shares reference counts between cores: a few atomics next to 100 µs of
/// cryptography.
pub(crate) type Acceptor = TlsAcceptor;

/// The files of a listener's `tls`.
pub(crate) struct Files<'a> {
    /// Certificate chains, their keys and, if there are any, their OCSP responses. The first serves
    /// clients whose name no other has.
    pub(crate) identities: Vec<(&'a Path, &'a Path, Option<&'a Path>)>,
    /// Certificates of authorities, of which clients need a certificate.
    pub(crate) client_ca: Option<&'a Path>,
}

/// Tickets of all listeners without client certificates. All cores and configurations share the
/// keys, so a client can resume its session on any core, and after a reload.
static TICKETS: OnceLock<Arc<dyn ProducesTickets>> = OnceLock::new();

/// Reads certificate chains and keys, for a listener whose clients may choose one of `protocols`
/// (ALPN).
///
/// # Errors
/// The error names the file and its problem.
pub(crate) fn read(files: &Files<'_>, protocols: &[&str]) -> anyhow::Result<Config> {
    // Explicit, so that another crate cannot change the default provider.
    let provider = Arc::new(ring::default_provider());
    let mut by_name = ByName::default();
    for (certificate, key, ocsp) in &files.identities {
        let identity = identity(certificate, key, &provider);
        let mut identity =
            identity.with_context(|| format!("certificate {}, key {}", certificate.display(), key.display()))?;
        if let Some(file) = ocsp {
            let response = ocsp::read(file, &identity).with_context(|| format!("ocsp {}", file.display()))?;
            identity.ocsp = Some(response);
        }
        by_name.add(identity);
    }
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match files.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let roots = roots(file).with_context(|| format!("client_ca {}", file.display()))?;
            builder.with_client_cert_verifier(WebPkiClientVerifier::builder_with_provider(roots, provider).build()?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(by_name));
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    // Tickets need no memory here. A session cache would be shared by all cores, behind a lock.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = match files.client_ca {
        None => match TICKETS.get() {
            Some(tickets) => tickets.clone(),
            None => {
                let new = ring::Ticketer::new()?;
                TICKETS.get_or_init(|| new).clone()
            }
        },
        // A ticket stands for the client's certificate, and another configuration may not trust it.
        Some(_) => ring::Ticketer::new()?,
    };
    Ok(Arc::new(config))
}
