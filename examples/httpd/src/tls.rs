//! TLS by rustls, on whichever stack carries it.

use anyhow::Context;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// Builds the acceptor from PEM files, or from a new self-signed certificate.
pub(crate) fn acceptor(cert: Option<&Path>, key: Option<&Path>) -> anyhow::Result<TlsAcceptor> {
    let (chain, key) = match (cert, key) {
        (Some(cert), Some(key)) => from_files(cert, key)?,
        _ => self_signed()?,
    };
    let mut config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn from_files(cert: &Path, key: &Path) -> anyhow::Result<Identity> {
    let name = |path: &Path| path.display().to_string();
    let chain = CertificateDer::pem_file_iter(cert).with_context(|| name(cert))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().with_context(|| name(cert))?;
    anyhow::ensure!(!chain.is_empty(), "{}: no certificate in it", cert.display());
    let key = PrivateKeyDer::from_pem_file(key).with_context(|| name(key))?;
    Ok((chain, key))
}

fn self_signed() -> anyhow::Result<Identity> {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).context("making a certificate")?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    Ok((vec![made.cert.der().clone()], key))
}
