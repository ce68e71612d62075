//! A self-signed certificate of the servers, and the only one that the clients trust.

use anyhow::{Context, Result};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::sync::Arc;

/// Its file, in the directory of servers and clients.
const FILE: &str = "frameworks.der";

/// The server name in it.
pub(crate) const NAME: &str = "lab";

pub(crate) fn name() -> ServerName<'static> {
    ServerName::try_from(NAME).expect("a name")
}

/// Generates a certificate with its key.
pub(crate) fn identity() -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).context("making a certificate")?;
    std::fs::write(FILE, made.cert.der()).context(FILE)?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    Ok((vec![made.cert.der().clone()], key))
}

/// Returns the clients' trust anchors.
pub(crate) fn roots() -> Result<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(std::fs::read(FILE).context(FILE)?.into())?;
    Ok(roots)
}

pub(crate) fn acceptor() -> Result<(tokio_rustls::TlsAcceptor, quinn::ServerConfig)> {
    let (chain, key) = identity()?;
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(chain.clone(), key.clone_key())?;
    Ok((Arc::new(config).into(), quinn::ServerConfig::with_single_cert(chain, key)?))
}

pub(crate) fn connector() -> Result<tokio_rustls::TlsConnector> {
    let config = rustls::ClientConfig::builder().with_root_certificates(roots()?).with_no_client_auth();
    Ok(Arc::new(config).into())
}
