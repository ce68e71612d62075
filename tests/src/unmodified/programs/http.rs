//! HTTP servers, and curl, wrk and ab.

use super::{Group, Row, Server};
use crate::body::{self, Body};
use crate::clients::answered;
use crate::unmodified::Stage;
use crate::unmodified::stage::finish;
use anyhow::{Context, Result, ensure};
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;

pub(super) fn groups() -> Vec<Group> {
    let small = |name, server| Group { name, server, rows: vec![Row { name, by_ring: false, client: curl_and_ab }] };
    let kept = |name, server| Group { name, server, rows: vec![Row { name, by_ring: true, client: curl_wrk_and_ab }] };
    vec![
        Group {
            name: "nginx",
            server: |stage, port| nginx(stage, port, ""),
            rows: vec![
                Row { name: "nginx (master, 2 workers)", by_ring: true, client: curl },
                Row { name: "curl", by_ring: true, client: curl },
                Row { name: "wrk", by_ring: true, client: wrk },
                Row { name: "ab", by_ring: true, client: ab },
            ],
        },
        Group {
            name: "nginx reuseport",
            server: |stage, port| nginx(stage, port, "reuseport; tcp_nopush on"),
            rows: vec![Row { name: "nginx (2 workers, reuseport, tcp_nopush)", by_ring: true, client: curl_and_wrk }],
        },
        Group {
            name: "haproxy",
            server: haproxy,
            rows: vec![Row { name: "haproxy (2 threads)", by_ring: true, client: curl_and_wrk }],
        },
        small("python3 -m http.server", |stage, port| {
            let port_text = port.to_string();
            let args = ["-m", "http.server", "--bind", stage.host, "--directory", ".", &port_text];
            directory(stage, port, "http.server", "/usr/bin/python3", &args)
        }),
        kept("python3, a thread for each connection", |stage, port| python(stage, port, "threaded")),
        Group {
            name: "python3, a process for each connection",
            server: |stage, port| python(stage, port, "forking"),
            rows: vec![Row { name: "python3, a process for each connection", by_ring: false, client: curl_wrk_and_ab }],
        },
        kept("python3 asyncio", |stage, port| python(stage, port, "asyncio")),
        Group {
            name: "node",
            server: |stage, port| {
                let script = stage.script("server.js").display().to_string();
                directory(stage, port, "node", "node", &[&script, stage.host, &port.to_string()])
            },
            rows: vec![Row { name: "node http (server and client)", by_ring: true, client: node }],
        },
        Group {
            name: "java",
            server: java_server,
            rows: vec![Row { name: "java HttpServer and URL", by_ring: true, client: java }],
        },
    ]
}

/// nginx: a master and two workers. `listen`: parameters of its address, and further lines.
pub fn nginx(stage: &Stage, port: u16, listen: &str) -> Result<Server> {
    let dir = stage.folder(&format!("nginx-{port}"))?;
    let config = dir.join("nginx.conf");
    let (d, files, host) = (dir.display(), stage.files().display(), stage.host);
    std::fs::write(
        &config,
        format!(
            "user root;\nworker_processes 2;\ndaemon off;\npid {d}/pid;\nerror_log {d}/error.log;\n\
             events {{ worker_connections 1024; }}\nhttp {{\n  access_log off;\n  sendfile on;\n\
             client_body_temp_path {d}/body;\n  proxy_temp_path {d}/t1;\n  fastcgi_temp_path {d}/t2;\n\
             uwsgi_temp_path {d}/t3;\n  scgi_temp_path {d}/t4;\n\
             server {{ listen {host}:{port} {listen}; root {files}; }}\n}}\n"
        ),
    )?;
    let mut command = stage.server("nginx");
    command.arg("-e").arg(dir.join("error.log")).arg("-c").arg(&config);
    Ok(Server(vec![stage.serve(&format!("nginx-{port}"), &mut command, port)?]))
}

/// haproxy in front of an nginx, both on the server's side.
fn haproxy(stage: &Stage, port: u16) -> Result<Server> {
    let Server(mut all) = nginx(stage, port + 1, "")?;
    let dir = stage.folder(&format!("haproxy-{port}"))?;
    let config = dir.join("haproxy.cfg");
    let host = stage.host;
    std::fs::write(
        &config,
        format!(
            "global\n  nbthread 2\n  maxconn 500\ndefaults\n  mode http\n  timeout connect 10s\n  timeout client 30s\n  \
             timeout server 30s\nlisten front\n  bind {host}:{port}\n  server back {host}:{}\n",
            port + 1
        ),
    )?;
    let mut command = stage.server("haproxy");
    command.arg("-db").arg("-f").arg(&config);
    all.push(stage.serve(&format!("haproxy-{port}"), &mut command, port)?);
    Ok(Server(all))
}

/// A server that offers the directory it runs in.
fn directory(stage: &Stage, port: u16, name: &str, program: &str, args: &[&str]) -> Result<Server> {
    let mut command = stage.server(program);
    command.args(args).current_dir(stage.files());
    Ok(Server(vec![stage.serve(&format!("{}-{port}", name.replace(' ', "-")), &mut command, port)?]))
}

fn python(stage: &Stage, port: u16, kind: &str) -> Result<Server> {
    let script = stage.script("http_servers.py").display().to_string();
    directory(stage, port, kind, "/usr/bin/python3", &[&script, kind, stage.host, &port.to_string()])
}

/// The folder of the compiled programs of `tests/unmodified`.
pub fn java_classes(stage: &Stage) -> Result<String> {
    let classes = stage.lab.dir().join("classes");
    if !classes.exists() {
        let mut compile = Command::new("javac");
        compile.arg("-d").arg(&classes).arg(stage.script("Server.java")).arg(stage.script("Client.java"));
        compile.arg(stage.script("LoadClient.java"));
        finish(&mut compile, "javac")?;
    }
    Ok(classes.display().to_string())
}

fn java_server(stage: &Stage, port: u16) -> Result<Server> {
    let classes = java_classes(stage)?;
    directory(stage, port, "java", "java", &["-cp", &classes, "Server", stage.host, &port.to_string()])
}

fn url(stage: &Stage, port: u16, path: &str) -> String {
    format!("http://{}:{port}/{path}", stage.host)
}

/// GETs a body and compares every byte.
fn get(stage: &Stage, port: u16, body: &Body) -> Result<()> {
    let url = url(stage, port, body.name);
    let mut child = stage
        .client("curl")
        .args(["--silent", "--show-error", "--fail", &url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (sha256, len) = body::sha256(child.stdout.take().context("curl's output")?)?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "curl {url}: {} after {len} bytes: {}", output.status, said.trim());
    ensure!(len == body.len && sha256 == body.sha256, "curl {url}: {len} bytes that are not those of the file");
    Ok(())
}

fn curl(stage: &Stage, port: u16) -> Result<()> {
    stage.bodies.iter().try_for_each(|body| get(stage, port, body))?;
    // Several files over one connection.
    let urls = ["64", "10k", "64", "1m"].repeat(5).into_iter().map(|name| url(stage, port, name)).collect::<Vec<_>>();
    let mut curl = stage.client("curl");
    curl.args(["-sS", "--fail", "-w", "%{stderr}%{http_code} %{num_connects}\n"]).args(&urls);
    let output = curl.output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(said == "200 1\n".to_owned() + &"200 0\n".repeat(urls.len() - 1), "curl kept no connection: {said:?}");
    let file = |name: &str| std::fs::read(stage.files().join(name));
    let wanted = [file("64")?, file("10k")?, file("64")?, file("1m")?].concat().repeat(5);
    ensure!(output.stdout == wanted, "curl got {} bytes, wanted {}", output.stdout.len(), wanted.len());
    Ok(())
}

fn wrk(stage: &Stage, port: u16) -> Result<()> {
    let script = crate::apps::workspace().join("lab/wrk.lua").display().to_string();
    let arguments = ["-t2", "-c32", "-d1", "--timeout", "60", "-s", &script, &url(stage, port, "64")];
    answered(1, || {
        let text = stage.run("wrk", &arguments)?;
        let line = text.lines().rev().find(|line| line.starts_with('{')).context("wrk printed no result")?;
        Ok(serde_json::from_str(line)?)
    })?;
    Ok(())
}

fn ab_runs(stage: &Stage, port: u16, requests: u32, kept: bool) -> Result<()> {
    let (url, number) = (url(stage, port, "64"), requests.to_string());
    let mut args = vec!["-q", "-n", &number, "-c", "8", "-s", "20"];
    if kept {
        args.push("-k");
    }
    args.push(&url);
    let text = stage.run("ab", &args)?;
    let says = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().last()?.parse::<u32>().ok()
    };
    ensure!(says("Complete requests:") == Some(requests) && says("Failed requests:") == Some(0), "ab:\n{text}");
    ensure!(!text.contains("Non-2xx"), "ab:\n{text}");
    Ok(())
}

fn ab(stage: &Stage, port: u16) -> Result<()> {
    ab_runs(stage, port, 1000, false)?;
    ab_runs(stage, port, 2000, true)
}

fn curl_and_wrk(stage: &Stage, port: u16) -> Result<()> {
    curl(stage, port)?;
    wrk(stage, port)
}

fn curl_and_ab(stage: &Stage, port: u16) -> Result<()> {
    stage.bodies.iter().filter(|body| body.len <= MIB).try_for_each(|body| get(stage, port, body))?;
    ab_runs(stage, port, 200, false)
}

fn curl_wrk_and_ab(stage: &Stage, port: u16) -> Result<()> {
    curl(stage, port)?;
    wrk(stage, port)?;
    ab_runs(stage, port, 200, false)
}

/// The program fetches a file of 64 KiB about twenty times and prints the number of bytes.
fn twenty(stage: &Stage, port: u16, program: &str, args: &[&str]) -> Result<()> {
    let url = url(stage, port, "10k");
    let text = stage.run(program, &[args, &[&url]].concat())?;
    ensure!(text.trim() == (20 * 10 * 1024).to_string(), "{program} got {text:?}");
    get(stage, port, stage.bodies.iter().find(|body| body.len == MIB).context("the body")?)?;
    get(stage, port, stage.bodies.iter().find(|body| body.len == MIB).context("the body")?)?;
    ab_runs(stage, port, 200, false)
}

fn node(stage: &Stage, port: u16) -> Result<()> {
    twenty(stage, port, "node", &[&stage.script("client.js").display().to_string()])
}

fn java(stage: &Stage, port: u16) -> Result<()> {
    twenty(stage, port, "java", &["-cp", &java_classes(stage)?, "Client"])
}
