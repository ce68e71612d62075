//! Certificates, keys and authorities, as files have them.

use super::names::parsed;
use anyhow::{Context, ensure};
use fs_stacks::tls::from_files;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::CertifiedKey;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use x509_parser::prelude::ASN1Time;

/// Reads a certificate chain and its key. Warns if they are of no use, or not secret.
pub(super) fn identity(certificate: &Path, key: &Path, provider: &CryptoProvider) -> anyhow::Result<CertifiedKey> {
    if std::fs::metadata(key).is_ok_and(|metadata| metadata.mode() & 0o004 != 0) {
        tracing::warn!("key {}: every user of this host can read it: chmod o-r", key.display());
    }
    let (chain, key) = from_files(certificate, key)?;
    let identity = CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            anyhow::anyhow!("the key is not the certificate's: name the key that the certificate was made with")
        }
        error => anyhow::anyhow!("{error}"),
    })?;
    if let Some(parsed) = identity.end_entity_cert().ok().and_then(parsed) {
        let (validity, now) = (parsed.validity(), ASN1Time::now());
        let name = certificate.display();
        if now > validity.not_after {
            tracing::warn!("certificate {name}: it has expired ({}): the other side refuses it", validity.not_after);
        } else if now < validity.not_before {
            tracing::warn!("certificate {name}: the other side refuses it until {}", validity.not_before);
        }
    }
    Ok(identity)
}

/// Reads certificates of authorities.
pub(super) fn roots(file: &Path) -> anyhow::Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    for certificate in certificates.map_err(|error| anyhow::anyhow!("{error}: a PEM file is wanted"))? {
        roots.add(certificate).context("not the certificate of an authority")?;
    }
    ensure!(!roots.is_empty(), "no certificate in it");
    Ok(Arc::new(roots))
}
