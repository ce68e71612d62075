//! A client of TLS handshakes: `fs-experiments handshakes`. It uses one thread on the kernel's
//! sockets. Each connection is a full handshake of TLS 1.3, one request and its answer.

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, HandshakeKind, SignatureScheme};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Bytes in the body of each answer.
pub(crate) const BODY: usize = 64;

/// The result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Handshakes {
    /// Connections that were answered within the time.
    pub(crate) answered: u64,
    pub(crate) per_second: f64,
    /// Median from the connect to the end of the answer.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Accepts one certificate. Does not verify the server's signature: that would use the client's CPU
/// time, not the proxy's.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    schemes: Vec<SignatureScheme>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *end_entity == self.certificate {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::General("another certificate".into()))
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2".into()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}

/// Returns a configuration with the same arithmetic for every proxy: X25519, AES-128-GCM, ECDSA
/// with P-256.
fn config(certificate: &Path) -> Result<ClientConfig> {
    let certificate = CertificateDer::from_pem_file(certificate).with_context(|| certificate.display().to_string())?;
    let provider = Arc::new(CryptoProvider {
        cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    });
    let verifier = Pinned { certificate, schemes: vec![SignatureScheme::ECDSA_NISTP256_SHA256] };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Connects repeatedly, with `connections` at once, for `seconds`. A connection that fails is an
/// error.
pub(crate) fn run(to: SocketAddr, certificate: &Path, connections: usize, seconds: f64) -> Result<Handshakes> {
    let connector = TlsConnector::from(Arc::new(config(certificate)?));
    let name = ServerName::from(to.ip());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let times = Rc::new(RefCell::new(Histogram::<u64>::new_with_max(100_000_000_000, 3)?));
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(seconds);
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut tasks = Vec::with_capacity(connections);
        for _ in 0..connections {
            let (connector, name, times) = (connector.clone(), name.clone(), times.clone());
            tasks.push(tokio::task::spawn_local(async move {
                while Instant::now() < end {
                    let begun = Instant::now();
                    one(to, &connector, name.clone()).await?;
                    if Instant::now() < end {
                        times.borrow_mut().saturating_record(begun.elapsed().as_nanos() as u64);
                    }
                }
                anyhow::Ok(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        anyhow::Ok(())
    })?;
    let times = times.borrow();
    let at = |percentile| times.value_at_percentile(percentile) as f64 / 1e3;
    Ok(Handshakes {
        answered: times.len(),
        per_second: times.len() as f64 / seconds,
        p50_us: at(50.0),
        p99_us: at(99.0),
    })
}

async fn one(to: SocketAddr, connector: &TlsConnector, name: ServerName<'static>) -> Result<()> {
    let stream = TcpStream::connect(to).await.context("connect")?;
    stream.set_nodelay(true)?;
    let mut stream = connector.connect(name, stream).await.context("handshake")?;
    ensure!(stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Full), "a handshake that was not a full one");
    stream.write_all(b"GET /64 HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").await.context("request")?;
    let mut answer = Vec::with_capacity(1024);
    stream.read_to_end(&mut answer).await.context("answer")?;
    let head =
        answer.windows(4).position(|four| four == b"\r\n\r\n").context("an answer without an end of its headers")?;
    let body = answer.len() - head - 4;
    ensure!(answer.starts_with(b"HTTP/1.1 200") && body == BODY, "answered {:?}", String::from_utf8_lossy(&answer));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use std::io::{Read, Write};

    /// Answers each connection with a body of `bytes` bytes.
    fn server(bytes: usize) -> (SocketAddr, std::path::PathBuf) {
        let made = rcgen::generate_simple_self_signed(["lab".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let certificate = std::env::temp_dir().join(format!("fs-handshakes-{}-{bytes}.pem", std::process::id()));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let (listener, config) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(config));
        let to = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut session = rustls::ServerConnection::new(config.clone()).unwrap();
                let mut stream = rustls::Stream::new(&mut session, &mut stream);
                let mut request = [0; 4096];
                let Ok(1..) = stream.read(&mut request) else { continue };
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(&[head.as_bytes(), &vec![b'x'; bytes]].concat());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        (to, certificate)
    }

    #[test]
    fn each_connection_is_full_handshake_and_complete_answer() {
        let (to, certificate) = server(BODY);
        let made = run(to, &certificate, 4, 0.3).unwrap();
        assert!(made.answered > 0 && made.per_second > 0.0 && made.p50_us > 10.0, "{made:?}");
        // A wrong answer and a wrong server are errors, not figures.
        let (wrong, own) = server(BODY + 1);
        assert!(format!("{:#}", run(wrong, &own, 1, 0.3).unwrap_err()).contains("answered"));
        assert!(format!("{:#}", run(wrong, &certificate, 1, 0.3).unwrap_err()).contains("another certificate"));
        for file in [certificate, own] {
            std::fs::remove_file(file).unwrap();
        }
    }
}
