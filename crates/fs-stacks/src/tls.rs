//! TLS with rustls, over either stack: the server's side, and the client's.

use crate::Stream;
use anyhow::{Context, ensure};
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

pub use rustls::ServerConfig;
pub use rustls::server::NoServerSessionStorage;
pub use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A certificate chain and the key of its first certificate.
pub type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Reads an identity from PEM files. [`server_config`] checks whether the two belong together.
///
/// # Errors
/// The error names the file, its problem and what is expected.
pub fn from_files(certificate: &Path, key: &Path) -> anyhow::Result<Identity> {
    let chain = open(certificate).and_then(|file| CertificateDer::pem_reader_iter(file).collect::<Result<Vec<_>, _>>());
    let chain = chain.map_err(cause).with_context(|| format!("certificate {}", certificate.display()))?;
    ensure!(
        !chain.is_empty(),
        "certificate {}: no certificate in it: a chain in PEM is wanted, the server's own first",
        certificate.display()
    );
    let key_der = open(key).and_then(PrivateKeyDer::from_pem_reader);
    let key_der = key_der.map_err(cause).with_context(|| format!("key {}", key.display()))?;
    Ok((chain, key_der))
}

/// Only regular files: reading a FIFO could block, and with it the whole reload.
fn open(path: &Path) -> Result<File, pem::Error> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(pem::Error::Io)?;
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(file),
        Ok(_) => Err(pem::Error::Io(io::Error::new(io::ErrorKind::InvalidInput, "no regular file"))),
        Err(error) => Err(pem::Error::Io(error)),
    }
}

fn cause(error: pem::Error) -> anyhow::Error {
    match error {
        pem::Error::Io(error) => anyhow::anyhow!("{error}: name a PEM file that this user can read"),
        pem::Error::NoItemsFound => {
            anyhow::anyhow!("nothing of the kind in it: a PEM file is wanted, a key's without a passphrase")
        }
        error => anyhow::anyhow!("{error}: a PEM file is wanted"),
    }
}

/// Returns the configuration of a server with this identity. `protocols` are offered by ALPN; if it
/// is empty, ALPN is off.
///
/// # Errors
/// If ring does not support the key, or it belongs to another certificate.
pub fn server_config((chain, key): Identity, protocols: &[&str]) -> anyhow::Result<ServerConfig> {
    // Explicit, so that another crate cannot change the default provider.
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key);
    let mut config = config.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            anyhow::anyhow!("the key is not the certificate's: name the key that the certificate was made with")
        }
        error => anyhow::anyhow!("{error}"),
    })?;
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(config)
}

/// Performs the handshake with a client. The caller limits its time.
///
/// # Errors
/// If the client does not speak TLS, or no common version or cipher exists (it has then received an
/// alert). If the connection ends.
pub async fn accept(acceptor: &TlsAcceptor, stream: Stream) -> io::Result<Stream> {
    // In a box: it is ten times as large as a stream, and for most of a connection's time it is not
    // needed.
    Box::pin(acceptor.accept(stream)).await.map(|stream| Stream::Tls(Box::new(stream)))
}

/// Performs the handshake with a server that must have a certificate for `name`. The caller limits
/// its time.
///
/// # Errors
/// If the server does not speak TLS, its certificate is not trusted or has another name, or no
/// common version, cipher or protocol exists. If the connection ends.
pub async fn connect(connector: &TlsConnector, name: ServerName<'static>, stream: Stream) -> io::Result<Stream> {
    Box::pin(connector.connect(name, stream)).await.map(|stream| Stream::TlsClient(Box::new(stream)))
}
