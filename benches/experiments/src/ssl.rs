//! mTCP's SSL proxy: TLS termination in front of a server, on fastsock and on the kernel's sockets.

use crate::handshakes::{BODY, Handshakes};
use crate::outcome::{Figure, Item, Series, Table, number, times};
use crate::{Run, cpu, server};
use anyhow::{Context, Result, ensure};
use fs_tests::apps::{Program, target_dir};
use fs_tests::lab::{BACKEND, FRONT, Lab, Ns};
use fs_tests::proxy::ProxyOptions;
use fs_tests::unmodified::programs::Server;
use fs_tests::{Nginx, Proc, Stack, body};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PORT: u16 = 8443;

/// A proxy of the table: the program, and its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Haproxy,
    Nginx,
    Ours(Stack),
}

/// The first one, and its peers.
const PROXIES: [(&str, Which); 4] = [
    ("fs-proxy on fastsock", Which::Ours(Stack::Fastsock)),
    ("fs-proxy on the kernel's sockets", Which::Ours(Stack::Kernel)),
    ("HAProxy", Which::Haproxy),
    ("nginx", Which::Nginx),
];

/// Handshakes, and handshakes per CPU second of the proxy.
type Rates = (Handshakes, f64);

pub(crate) fn proxies(run: &mut Run) -> Result<()> {
    let connections = run.few(run.choose(&[64usize][..], &[16, 128, 1024][..])).to_vec();
    let seconds = run.choose(1.0, 3.0);
    let mut found: Vec<Option<Vec<Rates>>> = Vec::new();
    for (name, which) in PROXIES {
        // Our proxy suffices for a smoke run.
        let wanted = !run.smoke || matches!(which, Which::Ours(_));
        let rates = wanted.then(|| run.attempt(&format!("TLS, {name}"), measure(which, &connections, seconds)));
        found.push(rates.flatten());
    }
    let series = PROXIES.iter().zip(&found).map(|((name, _), rates)| {
        let value = |at: usize| Some(rates.as_ref()?[at].0.per_second);
        Series { name: (*name).into(), values: (0..connections.len()).map(value).collect() }
    });
    let mut figure = Figure {
        name: "mtcp-ssl".into(),
        title: "SSL proxy: a handshake and a request on each connection".into(),
        paper: "Paper, abstract: mTCP improves applications by 33 % and more, which is SSLShader, on eight cores."
            .into(),
        means: String::new(),
        over: "connections at once".into(),
        categories: connections.iter().map(ToString::to_string).collect(),
        unit: "handshakes/s".into(),
        log: false,
        series: series.collect(),
    };
    let said: Vec<String> =
        PROXIES[1..].iter().map(|(peer, _)| format!("{} {peer}'s", times(figure.ratios(PROXIES[0].0, peer)))).collect();
    figure.means = format!(
        "fs-proxy on fastsock makes {} handshakes. It is this project's (rustls) and has the stack in its own process; the others have OpenSSL. Full handshakes of TLS 1.3 (X25519, AES-128-GCM, a certificate of ECDSA with P-256), no session is resumed, and \
         connections to the server are kept; the client is one thread of rustls on the kernel's sockets, beside the server's nginx on CPU 1.",
        said.join(", ")
    );
    let at = connections.len() / 2;
    let mut rows = Vec::new();
    for ((name, _), rates) in PROXIES.iter().zip(&found) {
        if let Some((handshakes, of_cpu)) = rates.as_ref().map(|rates| &rates[at]) {
            rows.push(vec![
                (*name).to_owned(),
                number(*of_cpu),
                number(handshakes.per_second),
                number(100.0 * handshakes.per_second / of_cpu),
                number(handshakes.p50_us),
                number(handshakes.p99_us),
            ]);
        }
    }
    let of_cpu = |at_proxy: usize| Some(found[at_proxy].as_ref()?[at].1);
    let ratio = of_cpu(0).zip(of_cpu(1)).map(|(ours, peer)| (ours / peer, ours / peer));
    run.items.push(Item::Figure(figure));
    run.items.push(Item::Table(Table {
        title: format!("SSL proxy: CPU time and latency, {} connections at once", connections[at]),
        paper: "SSLShader's work is that of its cryptography, in the paper on a graphics card; what a stack can give is the rest.".into(),
        means: format!(
            "A CPU second of fs-proxy on fastsock makes {} the handshakes of fs-proxy's on the kernel's sockets; latency is from the connect to the end of the answer. Where the proxy's CPU is not full, the client's bounds it.",
            times(ratio)
        ),
        head: ["proxy", "handshakes per CPU second", "handshakes/s", "CPU of the proxy, %", "p50, µs", "p99, µs"].map(String::from).to_vec(),
        rows,
    }));
    Ok(())
}

/// A self-signed certificate of ECDSA with P-256, and its key.
struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    /// Certificate and key in one file, for HAProxy.
    both: PathBuf,
}

fn identity(dir: &Path) -> Result<Identity> {
    let made = rcgen::generate_simple_self_signed([FRONT.to_owned()]).context("making a certificate")?;
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let file = |name: &str, text: &str| -> Result<PathBuf> {
        let path = dir.join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    };
    Ok(Identity {
        both: file("both.pem", &format!("{certificate}{key}"))?,
        certificate: file("certificate.pem", &certificate)?,
        key: file("key.pem", &key)?,
    })
}

fn configuration(which: Which, dir: &Path, identity: &Identity) -> Result<PathBuf> {
    let d = dir.display();
    let Identity { certificate, key, both } = identity;
    let [certificate, key, both] = [certificate, key, both].map(|path| path.display());
    let (name, text) = match which {
        Which::Haproxy => (
            "ssl-haproxy.cfg",
            format!(
                "global\n  nbthread 1\n  maxconn 4000\n  tune.ssl.cachesize 0\ndefaults\n  mode http\n  http-reuse always\n  timeout connect 10s\n  timeout client 30s\n  timeout server 30s\n\
                 listen front\n  bind {FRONT}:{PORT} ssl crt {both} ssl-min-ver TLSv1.3 no-tls-tickets\n  server back {BACKEND}:80\n"
            ),
        ),
        Which::Nginx => (
            "ssl-nginx.conf",
            format!(
                "user root;\nworker_processes 1;\ndaemon off;\npid {d}/ssl.pid;\nerror_log {d}/ssl.log;\nevents {{ worker_connections 4096; }}\n\
                 http {{\n  access_log off;\n  client_body_temp_path {d}/ssl1;\n  proxy_temp_path {d}/ssl2;\n  fastcgi_temp_path {d}/ssl3;\n  uwsgi_temp_path {d}/ssl4;\n  scgi_temp_path {d}/ssl5;\n\
                 upstream back {{ server {BACKEND}:80; keepalive 128; keepalive_requests 10000000; }}\n\
                 server {{ listen {FRONT}:{PORT} ssl; ssl_certificate {certificate}; ssl_certificate_key {key}; ssl_protocols TLSv1.3; ssl_session_cache off; ssl_session_tickets off;\n\
                 location / {{ proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }}\n}}\n"
            ),
        ),
        Which::Ours(_) => (
            "ssl-fs-proxy.toml",
            format!(
                "[timeouts]\nconnect = \"10s\"\n[[listener]]\naddress = \"{FRONT}:{PORT}\"\nmode = \"http\"\nupstream = \"back\"\n\
                 tls = {{ certificate = \"{certificate}\", key = \"{key}\" }}\n[[upstream]]\nname = \"back\"\nservers = [\"{BACKEND}:80\"]\n"
            ),
        ),
    };
    let path = dir.join(name);
    std::fs::write(&path, text)?;
    Ok(path)
}

/// Starts a proxy on CPU 0.
fn start(lab: &Lab, which: Which, identity: &Identity) -> Result<Proc> {
    let config = configuration(which, lab.dir(), identity)?;
    let on_cpu = |program: &str| {
        let mut command = lab.command(Ns::Host, "taskset");
        command.args(["-c", "0", program]);
        command
    };
    match which {
        Which::Ours(stack) => {
            let options = ProxyOptions { cores: vec![0], ..ProxyOptions::new(stack) };
            let mut command = Program::Proxy.command(lab, Ns::Host)?;
            command.arg("--config").arg(&config).args(options.arguments());
            server::reached(lab, "fs-proxy", &mut command, PORT)
        }
        Which::Haproxy => server::reached(lab, "haproxy", on_cpu("haproxy").args(["-db", "-f"]).arg(&config), PORT),
        Which::Nginx => {
            let mut command = on_cpu("nginx");
            command.arg("-e").arg(lab.dir().join("ssl.log")).arg("-c").arg(&config);
            server::reached(lab, "nginx", &mut command, PORT)
        }
    }
}

fn measure(which: Which, connections: &[usize], seconds: f64) -> Result<Vec<Rates>> {
    let lab = Lab::require(&["--queues", "1"])?;
    let mut found = Vec::new();
    lab.check(|lab| {
        let small = body::body(body::SMALL)?;
        ensure!(small.len == BODY as u64, "the client expects {BODY} bytes");
        let nginx = Nginx::start(lab, Ns::Backend, "nginx", &[format!("{BACKEND}:80")], &[&small])?;
        nginx.proc.pin("1")?;
        let identity = identity(lab.dir())?;
        let proc = start(lab, which, &identity)?;
        let pids = cpu::family(proc.pid());
        for &connections in connections {
            let before = cpu::seconds(&pids)?;
            let handshakes = client(lab, &identity, connections, seconds)?;
            let used = cpu::seconds(&pids)? - before;
            let of_cpu = handshakes.answered as f64 / used.max(0.01);
            found.push((handshakes, of_cpu));
        }
        Server::from(proc).end()
    })?;
    Ok(found)
}

/// Runs `fs-experiments handshakes` on the client's host, on CPU 1.
fn client(lab: &Lab, identity: &Identity, connections: usize, seconds: f64) -> Result<Handshakes> {
    let mut command = lab.command(Ns::Client, "taskset");
    command.args(["-c", "1"]).arg(target_dir().join("release/fs-experiments")).arg("handshakes");
    command.arg(format!("{FRONT}:{PORT}")).arg(&identity.certificate);
    command.args([connections.to_string(), seconds.to_string()]);
    let mut proc = lab.spawn("handshakes", &mut command)?;
    let status = proc.wait_end(Duration::from_secs_f64(seconds + 60.0))?;
    let log = proc.log();
    ensure!(status.success(), "the client ended with {status}:\n{log}");
    let line = log.lines().rev().find(|line| line.starts_with('{')).context("the client printed nothing")?;
    Ok(serde_json::from_str(line)?)
}
