//! HAProxy and nginx in the proxy's place, with one thread on its CPU, in front of the same servers.

use anyhow::Result;
use fs_tests::apps::READY_LIMIT;
use fs_tests::lab::{BACKEND, FRONT};
use fs_tests::proxy::{Certificate, HTTP_PORT, Mode, TCP_PORT};
use fs_tests::{Lab, Ns, Proc};
use std::fmt::Write as _;

/// HAProxy's own size of buffers.
pub(crate) const USUAL_BUFFER: usize = 16 << 10;

/// A port of HAProxy, and the backend's port behind it.
#[derive(Clone, Copy)]
pub(crate) struct Listen {
    pub(crate) mode: Mode,
    pub(crate) port: u16,
    pub(crate) server: u16,
}

/// The ports of our proxy, both in front of the web server.
pub(crate) const OUR_PORTS: [Listen; 2] =
    [Listen { mode: Mode::Http, port: HTTP_PORT, server: 80 }, Listen { mode: Mode::Tcp, port: TCP_PORT, server: 80 }];

/// Starts HAProxy. With a certificate, its HTTP ports speak TLS and offer HTTP/2.
pub(crate) fn haproxy(lab: &Lab, buffer: usize, ports: &[Listen], tls: Option<&Certificate>) -> Result<Proc> {
    let config = lab.dir().join("haproxy.cfg");
    let mut text = format!(
        "global\n  nbthread 1\n  tune.bufsize {buffer}\n  maxconn 9000\ndefaults\n  timeout connect 10s\n  timeout \
         client 60s\n  timeout server 60s\n"
    );
    let mut bind = String::new();
    if let Some(Certificate { chain, key }) = tls {
        let both = lab.dir().join("both.pem");
        std::fs::write(&both, std::fs::read_to_string(chain)? + &std::fs::read_to_string(key)?)?;
        bind = format!(" ssl crt {} alpn h2,http/1.1", both.display());
    }
    for Listen { mode, port, server } in ports {
        let (mode, bind, more) = match mode {
            Mode::Http => ("http", &bind[..], "  http-reuse always\n"),
            Mode::Tcp => ("tcp", "", ""),
        };
        let _ = write!(
            text,
            "listen {port}\n  mode {mode}\n  bind {FRONT}:{port}{bind}\n{more}  server back {BACKEND}:{server}\n"
        );
    }
    std::fs::write(&config, text)?;
    let mut command = lab.command(Ns::Host, "taskset");
    command.args(["-c", "0", "haproxy", "-db", "-f"]).arg(&config);
    let mut proc = lab.spawn("haproxy", &mut command)?;
    for Listen { port, .. } in ports {
        proc.wait_for("answer", READY_LIMIT, || lab.reaches(Ns::Client, FRONT, *port))?;
    }
    Ok(proc)
}

/// Starts nginx at the HTTP port of our proxy, in one process, whose CPU time is then all of it. With a
/// certificate, the port speaks TLS and offers HTTP/2.
pub(crate) fn nginx(lab: &Lab, tls: Option<&Certificate>) -> Result<Proc> {
    let config = lab.dir().join("front.conf");
    let folder = lab.dir().join("front");
    std::fs::create_dir_all(&folder)?;
    let folder = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {folder}/{kind};\n"))
        .concat();
    let (bind, certificate) = tls.map_or_else(Default::default, |Certificate { chain, key }| {
        let (chain, key) = (chain.display(), key.display());
        // nginx before 1.23.4 speaks TLS 1.2 at most by itself.
        let files = format!("    ssl_certificate {chain};\n    ssl_certificate_key {key};\n");
        (" ssl http2", format!("    ssl_protocols TLSv1.2 TLSv1.3;\n{files}"))
    });
    let text = format!(
        "daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{ \
         worker_connections 4096; }}\nhttp {{\n  access_log off;\n  keepalive_requests 1000000000;\n{temporary}  upstream \
         back {{\n    server {BACKEND}:80;\n    keepalive 256;\n    keepalive_requests 1000000000;\n  }}\n  server {{\n    \
         listen {FRONT}:{HTTP_PORT}{bind};\n{certificate}    location / {{\n      proxy_pass http://back;\n      proxy_http_version 1.1;\n      \
         proxy_set_header Connection \"\";\n    }}\n  }}\n}}\n"
    );
    std::fs::write(&config, text)?;
    let mut command = lab.command(Ns::Host, "taskset");
    command.args(["-c", "0", "nginx", "-c"]).arg(&config);
    let mut proc = lab.spawn("nginx-front", &mut command)?;
    proc.wait_for("answer", READY_LIMIT, || lab.reaches(Ns::Client, FRONT, HTTP_PORT))?;
    Ok(proc)
}
