//! Certificates by name, session tickets, clients' certificates, and routes by name. Over loopback,
//! on kernel sockets.

mod common;
#[path = "common/identity.rs"]
mod identity;

use common::*;
use fs_stacks::testing::{Program, Signal, eventually};
use identity::Identity;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

type Own = Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>;

/// Returns a client that trusts these certificates, and has a certificate of its own.
fn client(trusted: &[&Identity], own: Own) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for identity in trusted {
        roots.add(identity.der.clone()).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match own {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        None => builder.with_no_client_auth(),
    })
}

/// A connection's response, its server's certificate, and how the handshake went.
struct Seen {
    body: String,
    certificate: CertificateDer<'static>,
    kind: HandshakeKind,
}

/// Sends a GET on a new connection to `name`.
fn get(addr: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> std::io::Result<Seen> {
    let connection = ClientConnection::new(config.clone(), ServerName::try_from(name.to_owned()).unwrap()).unwrap();
    let stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(fs_stacks::testing::PATIENCE))?;
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let certificate = stream.conn.peer_certificates().unwrap()[0].clone().into_owned();
    Ok(Seen { body: body_of(&answer).to_owned(), certificate, kind: stream.conn.handshake_kind().unwrap() })
}

fn start(text: &str) -> Proxy {
    let config = write_config(text);
    let cores = if std::thread::available_parallelism().unwrap().get() > 1 { "0,1" } else { "0" };
    let program = Program::start(EXE, &["--config", config.to_str().unwrap(), "--cores", cores]);
    Proxy { program, config }
}

fn listener(mode: &str, more: &str) -> String {
    format!("[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"{mode}\"\n{more}\n")
}

fn upstream(name: &str, server: SocketAddr) -> String {
    format!("[[upstream]]\nname = \"{name}\"\nservers = [\"{server}\"]\n")
}

fn pair(identity: &Identity) -> String {
    format!("certificate = {:?}, key = {:?}", identity.certificate, identity.key)
}

#[test]
fn certificate_is_chosen_by_name() {
    let first = Identity::named(&["first.example", "last.example"]);
    let second = Identity::named(&["second.example", "*.wild.example", "first.example"]);
    let third = Identity::named(&["exact.wild.example"]);
    let tls = format!(
        "upstream = \"u\"\ntls = {{ {}, additional = [{{ {} }}, {{ {} }}] }}",
        pair(&first),
        pair(&second),
        pair(&third)
    );
    let proxy = start(&(listener("http", &tls) + &upstream("u", http_backend(|_| ok("yes")))));
    let config = client(&[&first, &second, &third], None);
    for (name, expected) in [
        ("first.example", &first),
        ("second.example", &second),
        ("SECOND.example", &second),
        ("a.wild.example", &second),
        ("exact.wild.example", &third),
        ("last.example", &first),
    ] {
        let seen = get(proxy.addr(), &config, name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(seen.body == "yes" && seen.certificate == expected.der, "{name}");
    }
    // The first certificate serves other names, and this client refuses it.
    for name in ["other.example", "b.a.wild.example"] {
        assert!(get(proxy.addr(), &config, name).is_err(), "{name}");
    }
}

/// Also on another core, and after a reload.
#[test]
fn sessions_are_resumed_on_every_core() {
    let identity = Identity::new();
    let text = listener("http", &format!("upstream = \"u\"\ntls = {{ {} }}", pair(&identity)))
        + &upstream("u", http_backend(|_| ok("yes")));
    let proxy = start(&text);
    for versions in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let mut roots = RootCertStore::empty();
        roots.add(identity.der.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[versions])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let config = Arc::new(config);
        assert_eq!(get(proxy.addr(), &config, "localhost").unwrap().kind, HandshakeKind::Full);
        for number in 0..20 {
            if number == 10 {
                let before = proxy.program.log().matches("is in use;").count();
                proxy.program.signal(Signal::HangUp);
                eventually("a reload", || proxy.program.log().matches("is in use;").count() > before);
            }
            let seen = get(proxy.addr(), &config, "localhost").unwrap();
            assert_eq!((seen.kind, &*seen.body), (HandshakeKind::Resumed, "yes"), "{versions:?} {number}");
        }
    }
}

#[test]
fn only_clients_with_a_certificate_are_served() {
    let identity = Identity::new();
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(params, authority_key);
    let file = temp_path("ca.pem");
    std::fs::write(&file, authority.pem()).unwrap();
    let tls = format!("upstream = \"u\"\ntls = {{ {}, client_ca = {file:?} }}", pair(&identity));
    let proxy = start(&(listener("http", &tls) + &upstream("u", http_backend(|_| ok("yes")))));
    let own = |issued: bool| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["client".to_owned()]).unwrap();
        let made = if issued { params.signed_by(&key, &issuer) } else { params.self_signed(&key) }.unwrap();
        Some((vec![made.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap()))
    };
    let ask = |own| get(proxy.addr(), &client(&[&identity], own), "localhost");
    assert_eq!(ask(own(true)).unwrap().body, "yes");
    assert!(ask(None).is_err() && ask(own(false)).is_err());
    std::fs::remove_file(file).unwrap();
}

/// A reload to a listener that demands more of its clients: open connections have not shown it.
#[test]
fn demands_of_a_reload_are_not_for_open_connections() {
    let identity = Identity::new();
    let servers = [http_backend(|_| ok("old")), http_backend(|_| ok("new"))];
    let authority = Identity::new();
    let config = |tls: &str, server| listener("http", &format!("upstream = \"u\"\n{tls}")) + &upstream("u", server);
    let (plain, tls) = (String::new(), format!("tls = {{ {} }}", pair(&identity)));
    let strict = |file: &Path| format!("tls = {{ {}, client_ca = {file:?} }}", pair(&identity));
    // A listener with TLS and no certificates of clients has seen all that one without TLS demands.
    for (before, after, expected) in [
        (&plain, &tls, "old"),
        (&plain, &plain, "new"),
        (&tls, &strict(&authority.certificate), "old"),
        (&tls, &tls, "new"),
    ] {
        let proxy = start(&config(before, servers[0]));
        let mut stream: Box<dyn Stream> = match before.is_empty() {
            true => Box::new(proxy.connect()),
            false => Box::new(identity.connect(&proxy)),
        };
        let ask = |stream: &mut dyn Stream, end: &str| {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(end.as_bytes()) {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap_or_else(|error| panic!("{after}: {error}: {answer:?}"));
                answer.extend_from_slice(&byte);
                assert!(answer.len() < 1000, "{after}: {}", String::from_utf8_lossy(&answer));
            }
        };
        ask(&mut *stream, "\r\n\r\nold");
        std::fs::write(&proxy.config, config(after, servers[1])).unwrap();
        proxy.program.signal(Signal::HangUp);
        proxy.program.says("is in use;");
        ask(&mut *stream, &format!("\r\n\r\n{expected}"));
    }
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

#[test]
fn expired_certificate_is_a_warning() {
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 2, 3);
    let signing_key = rcgen::KeyPair::generate().unwrap();
    let cert = params.self_signed(&signing_key).unwrap();
    let identity = Identity::of(&rcgen::CertifiedKey { cert, signing_key });
    let text = listener("http", &format!("upstream = \"u\"\ntls = {{ {} }}", pair(&identity)));
    let proxy = start(&(text + &upstream("u", nobody())));
    for text in ["it has expired (Feb  3", identity.certificate.to_str().unwrap()] {
        proxy.program.says(text);
    }
}

/// The proxy does not end TLS: the servers do, each with its own certificate.
#[test]
fn tls_connections_are_routed_by_name() {
    let identities =
        [Identity::named(&["a.example"]), Identity::named(&["x.b.example"]), Identity::named(&["c.example"])];
    let servers: Vec<Proxy> = ["a", "b", "c"]
        .into_iter()
        .zip(&identities)
        .map(|(name, identity)| {
            let tls = format!("upstream = \"u\"\ntls = {{ {} }}", pair(identity));
            start(&(listener("http", &tls) + &upstream("u", http_backend(move |_| ok(name)))))
        })
        .collect();
    let routes = "[[listener.route]]\nhosts = [\"a.example\"]\nupstream = \"a\"\n\
                  [[listener.route]]\nhosts = [\"*.b.example\"]\nupstream = \"b\"\n";
    let upstreams: String =
        ["a", "b", "c"].iter().zip(&servers).map(|(name, proxy)| upstream(name, proxy.addr())).collect();
    let trusted: Vec<&Identity> = identities.iter().collect();
    let config = client(&trusted, None);
    let with_default = start(&(listener("tcp", &format!("upstream = \"c\"\n{routes}")) + &upstreams));
    let without = start(&(listener("tcp", routes) + &upstreams));
    for (name, body) in [("a.example", "a"), ("x.b.example", "b"), ("c.example", "c")] {
        let seen = get(with_default.addr(), &config, name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(seen.body, body);
        let seen = get(without.addr(), &config, name);
        assert_eq!(seen.is_ok(), name != "c.example", "{name}");
    }
    // The proxy may end TLS itself, too.
    let tls = format!("upstream = \"c\"\ntls = {{ {} }}\n{routes}", pair(&identities[0]));
    let once = |name: &'static str| {
        backend(move |stream| {
            let mut writer = stream.try_clone()?;
            read_request(&mut BufReader::new(stream))?;
            writer.write_all(&ok(name))
        })
    };
    let plain = ["a", "b", "c"].map(|name| upstream(name, once(name))).concat();
    let ended = start(&(listener("tcp", &tls) + &plain));
    assert_eq!(get(ended.addr(), &config, "a.example").unwrap().body, "a");
}

fn openssl(args: &[&str]) -> String {
    let output = std::process::Command::new("openssl").args(args).stdin(std::process::Stdio::null()).output();
    let output = output.expect("openssl (`lab/install test`)");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Writes what `status` (V: good, R: revoked) makes an authority say of its own certificate.
fn ocsp_response(identity: &Identity, status: &str) -> std::path::PathBuf {
    let certificate = identity.certificate.to_str().unwrap();
    let serial = openssl(&["x509", "-in", certificate, "-noout", "-serial"]);
    let serial = serial.trim().strip_prefix("serial=").unwrap();
    let (index, response) = (temp_path("index.txt"), temp_path("ocsp.der"));
    let revoked = if status == "R" { "200101000000Z" } else { "" };
    std::fs::write(&index, format!("{status}\t491231235959Z\t{revoked}\t{serial}\tunknown\t/CN=x\n")).unwrap();
    let (index, key) = (index.to_str().unwrap(), identity.key.to_str().unwrap());
    let mut args = vec!["ocsp", "-index", index, "-CA", certificate, "-issuer", certificate, "-cert", certificate];
    args.extend(["-rsigner", certificate, "-rkey", key, "-ndays", "7", "-respout", response.to_str().unwrap()]);
    openssl(&args);
    std::fs::remove_file(index).unwrap();
    response
}

#[test]
fn ocsp_response_is_stapled() {
    let (identity, other) = (Identity::new(), Identity::new());
    let (good, revoked, others) =
        (ocsp_response(&identity, "V"), ocsp_response(&identity, "R"), ocsp_response(&other, "V"));
    let config = |file: &std::path::Path| {
        listener("http", &format!("upstream = \"u\"\ntls = {{ {}, ocsp = {file:?} }}", pair(&identity)))
            + &upstream("u", http_backend(|_| ok("yes")))
    };
    let proxy = start(&config(&good));
    let said = openssl(&["s_client", "-connect", &proxy.addr().to_string(), "-status"]);
    assert!(said.contains("OCSP Response Status: successful") && said.contains("Cert Status: good"), "{said}");
    drop(proxy);
    for (file, why) in [
        (&revoked, "the certificate is revoked"),
        (&others, "a response for another certificate"),
        (&identity.certificate, "not what `openssl ocsp -respout` writes"),
    ] {
        let file = write_config(&config(file));
        let output = std::process::Command::new(EXE).args(["--check", "--config", file.to_str().unwrap()]).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{said}");
        std::fs::remove_file(file).unwrap();
    }
    for file in [good, revoked, others] {
        std::fs::remove_file(file).unwrap();
    }
}
