//! A self-signed certificate of each program with servers. Clients trust those in their directory.

use anyhow::{Context, Result};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::sync::Arc;

/// Start and end of its file's name, in the directory of servers and clients. Between them is the
/// process id.
const FILE: [&str; 2] = ["frameworks-", ".der"];

/// The server name in it.
pub(crate) const NAME: &str = "lab";

pub(crate) fn name() -> ServerName<'static> {
    ServerName::try_from(NAME).expect("a name")
}

/// Generates a certificate with its key.
pub(crate) fn identity() -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).context("making a certificate")?;
    let file = format!("{}{}{}", FILE[0], std::process::id(), FILE[1]);
    std::fs::write(&file, made.cert.der()).context(file)?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    Ok((vec![made.cert.der().clone()], key))
}

/// Returns the clients' trust anchors.
pub(crate) fn roots() -> Result<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    for entry in std::fs::read_dir(".")? {
        let name = entry?.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(FILE[0]) && name.ends_with(FILE[1])) {
            roots.add(std::fs::read(name)?.into())?;
        }
    }
    anyhow::ensure!(!roots.is_empty(), "no certificate of a server here");
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
