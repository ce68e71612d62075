//! The server's certificate: from files, or made for this run.

use anyhow::Context;
use fs_stacks::tls::{Identity, TlsAcceptor, from_files, server_config};
use rustls::pki_types::PrivateKeyDer;
use std::path::Path;
use std::sync::Arc;

/// Builds the acceptor from PEM files, or from a new self-signed certificate.
pub(crate) fn acceptor(cert: Option<&Path>, key: Option<&Path>) -> anyhow::Result<TlsAcceptor> {
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => from_files(cert, key)?,
        _ => self_signed()?,
    };
    Ok(TlsAcceptor::from(Arc::new(server_config(identity, &["http/1.1"])?)))
}

fn self_signed() -> anyhow::Result<Identity> {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).context("making a certificate")?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    Ok((vec![made.cert.der().clone()], key))
}
