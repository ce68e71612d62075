//! TLS of listeners: their certificates and keys.

use anyhow::Context;
pub(crate) use fs_example_common::tls::accept;
use fs_example_common::tls::{NoServerSessionStorage, ServerConfig, TlsAcceptor, from_files, server_config};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// The configuration of a listener's `tls`, after its files have been read.
pub(crate) type Config = Arc<ServerConfig>;
/// Performs handshakes. Shares reference counts between cores: a few atomics next to 100 µs of
/// cryptography.
pub(crate) type Acceptor = TlsAcceptor;

/// Reads a certificate chain and its key, for a listener whose clients may choose one of `protocols`
/// (ALPN).
///
/// # Errors
/// The error names the file and its problem.
pub(crate) fn read(certificate: &Path, key: &Path, protocols: &[&str]) -> anyhow::Result<Config> {
    if std::fs::metadata(key).is_ok_and(|metadata| metadata.mode() & 0o004 != 0) {
        tracing::warn!("key {}: every user of this host can read it: chmod o-r", key.display());
    }
    let config = server_config(from_files(certificate, key)?, protocols);
    let mut config = config.with_context(|| format!("certificate {}, key {}", certificate.display(), key.display()))?;
    // Every handshake is a full one. Session resumption would save a client a full one, but all
    // cores would share the session cache, behind a lock.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
