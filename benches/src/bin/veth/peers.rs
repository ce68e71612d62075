//! HAProxy and nginx in the proxy's place, with one thread on its CPU, in front of the same server.

use anyhow::Result;
use fs_tests::apps::READY_LIMIT;
use fs_tests::lab::{BACKEND, FRONT};
use fs_tests::proxy::{HTTP_PORT, TCP_PORT};
use fs_tests::{Lab, Ns, Proc};

/// HAProxy's own size of buffers.
pub(crate) const USUAL_BUFFER: usize = 16 << 10;

/// Starts HAProxy at both ports of our proxy.
pub(crate) fn haproxy(lab: &Lab, buffer: usize) -> Result<Proc> {
    let config = lab.dir().join("haproxy.cfg");
    let listen = |mode: &str, port: u16, more: &str| {
        format!("listen {mode}\n  mode {mode}\n  bind {FRONT}:{port}\n{more}  server back {BACKEND}:80\n")
    };
    let text = format!(
        "global\n  nbthread 1\n  tune.bufsize {buffer}\ndefaults\n  timeout connect 10s\n  timeout client 60s\n  timeout \
         server 60s\n{}{}",
        listen("http", HTTP_PORT, "  http-reuse always\n"),
        listen("tcp", TCP_PORT, "")
    );
    std::fs::write(&config, text)?;
    let mut command = lab.command(Ns::Host, "taskset");
    command.args(["-c", "0", "haproxy", "-db", "-f"]).arg(&config);
    let mut proc = lab.spawn("haproxy", &mut command)?;
    proc.wait_for("answer", READY_LIMIT, || lab.reaches(Ns::Client, FRONT, HTTP_PORT))?;
    Ok(proc)
}

/// Starts nginx at the HTTP port of our proxy, in one process, whose CPU time is then all of it.
pub(crate) fn nginx(lab: &Lab) -> Result<Proc> {
    let config = lab.dir().join("front.conf");
    let folder = lab.dir().join("front");
    std::fs::create_dir_all(&folder)?;
    let folder = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {folder}/{kind};\n"))
        .concat();
    let text = format!(
        "daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{ \
         worker_connections 4096; }}\nhttp {{\n  access_log off;\n  keepalive_requests 1000000000;\n{temporary}  upstream \
         back {{\n    server {BACKEND}:80;\n    keepalive 256;\n    keepalive_requests 1000000000;\n  }}\n  server {{\n    \
         listen {FRONT}:{HTTP_PORT};\n    location / {{\n      proxy_pass http://back;\n      proxy_http_version 1.1;\n      \
         proxy_set_header Connection \"\";\n    }}\n  }}\n}}\n"
    );
    std::fs::write(&config, text)?;
    let mut command = lab.command(Ns::Host, "taskset");
    command.args(["-c", "0", "nginx", "-c"]).arg(&config);
    let mut proc = lab.spawn("nginx-front", &mut command)?;
    proc.wait_for("answer", READY_LIMIT, || lab.reaches(Ns::Client, FRONT, HTTP_PORT))?;
    Ok(proc)
}
