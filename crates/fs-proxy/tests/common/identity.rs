//! A certificate, a proxy that uses it, and clients that trust it.
#![allow(dead_code)]

use crate::common::*;
use fs_stacks::testing::PATIENCE;
use rcgen::{CertifiedKey, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion, version};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A certificate and its key, in files.
pub(crate) struct Identity {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Identity {
    pub(crate) fn new() -> Self {
        Self::of(&rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap())
    }

    /// Writes a certificate for these names.
    pub(crate) fn named(names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Self::of(&rcgen::generate_simple_self_signed(names).unwrap())
    }

    /// Writes a certificate.
    pub(crate) fn of(made: &CertifiedKey<KeyPair>) -> Self {
        let mut identity =
            Self { der: Vec::new().into(), certificate: temp_path("certificate.pem"), key: temp_path("key.pem") };
        identity.write(made);
        identity
    }

    /// Replaces it by another one in the same files.
    pub(crate) fn renew(&mut self) {
        self.write(&rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap());
    }

    fn write(&mut self, made: &CertifiedKey<KeyPair>) {
        std::fs::write(&self.certificate, made.cert.pem()).unwrap();
        std::fs::write(&self.key, made.signing_key.serialize_pem()).unwrap();
        self.der = made.cert.der().clone();
    }

    pub(crate) fn listener(&self, mode: &str, server: SocketAddr, top: &str) -> String {
        let ip = proxy_ip();
        format!(
            "metrics = \"{ip}:0\"\n{top}\n[[listener]]\naddress = \"{ip}:0\"\nmode = \"{mode}\"\n\
             upstream = \"u\"\ntls = {{ certificate = {:?}, key = {:?} }}\n\
             [[upstream]]\nname = \"u\"\nservers = [\"{server}\"]\n",
            self.certificate, self.key
        )
    }

    pub(crate) fn start(&self, mode: &str, server: SocketAddr, top: &str) -> Proxy {
        let config = write_config(&self.listener(mode, server, top));
        Proxy { program: start_program(&config), config }
    }

    pub(crate) fn connect_with(&self, proxy: &Proxy, versions: &[&'static SupportedProtocolVersion]) -> Tls {
        StreamOwned::new(self.client(versions), proxy.connect())
    }

    /// Returns a TLS client that trusts only this certificate.
    pub(crate) fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        ClientConnection::new(Arc::new(config), name).unwrap()
    }

    pub(crate) fn connect(&self, proxy: &Proxy) -> Tls {
        self.connect_with(proxy, &[&version::TLS13])
    }

    /// Sends a GET on a new connection.
    pub(crate) fn get(&self, proxy: &Proxy) -> std::io::Result<String> {
        let mut stream = self.connect(proxy);
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        // An end without close_notify would be an error.
        stream.read_to_string(&mut answer)?;
        Ok(body_of(&answer).to_owned())
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        // Temporary files, so a failure is ignored.
        let _ = std::fs::remove_file(&self.certificate);
        let _ = std::fs::remove_file(&self.key);
    }
}

/// Returns a number of the proxy's metrics.
pub(crate) fn metric(proxy: &Proxy, name: &str) -> u64 {
    let mut stream = TcpStream::connect(proxy.program.metrics.unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}
