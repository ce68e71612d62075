//! TLS by rustls on a server's side, on whichever stack carries it.

use crate::Stream;
use anyhow::{Context, ensure};
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

pub use rustls::ServerConfig;
pub use rustls::server::NoServerSessionStorage;
pub use tokio_rustls::TlsAcceptor;

/// A certificate chain and the key of its first certificate.
pub type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Reads an identity from PEM files. Whether the two belong together is for [`server_config`] to say.
///
/// # Errors
/// Names the file, what is wrong with it and what is wanted.
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

/// A FIFO would be waited for, and with it all that a reload has to do: only regular files are read.
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

/// How a server with this identity makes handshakes; `protocols` are what ALPN may agree on, none for no ALPN.
///
/// # Errors
/// When the key is none that ring can use, or another certificate's.
pub fn server_config((chain, key): Identity, protocols: &[&str]) -> anyhow::Result<ServerConfig> {
    // Named, so that another crate's choice of a provider cannot become ours.
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

/// Makes a client's handshake. The caller bounds its time.
///
/// # Errors
/// When the client does not speak TLS, or nothing that we have in common; it has then been sent an alert. When the
/// connection ends.
pub async fn accept(acceptor: &TlsAcceptor, stream: Stream) -> io::Result<Stream> {
    // In a box: it is ten times a stream, and most of a connection's time it is over.
    Box::pin(acceptor.accept(stream)).await.map(|stream| Stream::Tls(Box::new(stream)))
}
