//! OCSP responses (RFC 6960) that clients get with a certificate: "stapling", RFC 6066 section 8.

use anyhow::{Context, anyhow, ensure};
use der::Decode;
use rustls::sign::CertifiedKey;
use std::path::Path;
use std::time::SystemTime;
use x509_ocsp::{BasicOcspResponse, CertStatus, OcspResponse, OcspResponseStatus};
use x509_parser::parse_x509_certificate;

/// Reads the response for the certificate of `identity`. Warns if it has expired. Clients check its
/// signature.
///
/// # Errors
/// It is no such response, is for another certificate, or does not say "good".
pub(super) fn read(file: &Path, identity: &CertifiedKey) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::read(file)?;
    let certificate = identity.end_entity_cert()?;
    let (_, certificate) = parse_x509_certificate(certificate).map_err(|error| anyhow!("the certificate: {error}"))?;
    let expires = check(&bytes, certificate.raw_serial())?;
    if expires.is_some_and(|at| at < SystemTime::now()) {
        tracing::warn!("ocsp {}: it has expired, so clients do not trust it: fetch another one", file.display());
    }
    Ok(bytes)
}

/// Returns when the response for the certificate with this serial number expires.
fn check(bytes: &[u8], serial: &[u8]) -> anyhow::Result<Option<SystemTime>> {
    let wanted = "not what `openssl ocsp -respout` writes (DER)";
    let response = OcspResponse::from_der(bytes).context(wanted)?;
    let status = response.response_status;
    ensure!(status == OcspResponseStatus::Successful, "the authority did not answer ({status:?}): ask it again");
    let body = response.response_bytes.context(wanted)?;
    let basic = BasicOcspResponse::from_der(body.response.as_bytes()).context(wanted)?;
    let of = |bytes: &[u8]| bytes.iter().position(|byte| *byte != 0).map_or(0, |zeros| bytes.len() - zeros);
    let same = |other: &[u8]| other[other.len() - of(other)..] == serial[serial.len() - of(serial)..];
    let mut single = basic.tbs_response_data.responses.iter();
    let single = single.find(|single| same(single.cert_id.serial_number.as_bytes()));
    let single = single.context("a response for another certificate: ask with `openssl ocsp -cert CERTIFICATE`")?;
    ensure!(
        matches!(single.cert_status, CertStatus::Good(_)),
        "the certificate is revoked, or unknown to its authority"
    );
    Ok(single.next_update.map(|at| at.0.to_system_time()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_no_good_response() {
        let error = |bytes: &[u8]| check(bytes, &[1]).unwrap_err().to_string();
        assert!(error(b"").contains("openssl"));
        assert!(error(b"-----BEGIN CERTIFICATE-----").contains("openssl"));
        // SEQUENCE { ENUMERATED 6 }
        assert!(error(&[0x30, 3, 0x0a, 1, 6]).contains("Unauthorized"));
        assert!(error(&[0x30, 3, 0x0a, 1, 0]).contains("openssl"));
    }
}
