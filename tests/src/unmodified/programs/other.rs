//! iperf3, openssl, ssh.

use super::{Group, Row, Server};
use crate::unmodified::Stage;
use crate::unmodified::stage::finish;
use anyhow::{Context, Result, ensure};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

pub(super) fn groups() -> Vec<Group> {
    vec![
        Group {
            name: "iperf3",
            server: |stage, port| {
                let mut command = stage.server("iperf3");
                command.args(["-s", "-B", stage.host, "-p", &port.to_string()]);
                Ok(Server(vec![stage.serve("iperf3", &mut command, port)?]))
            },
            rows: vec![Row { name: "iperf3", by_ring: true, client: iperf3 }],
        },
        Group {
            name: "openssl",
            server: openssl_server,
            rows: vec![Row { name: "openssl s_server and s_client", by_ring: true, client: openssl_client }],
        },
        Group { name: "sshd", server: sshd, rows: vec![Row { name: "sshd and ssh", by_ring: false, client: ssh }] },
    ]
}

fn iperf3(stage: &Stage, port: u16) -> Result<()> {
    let port = port.to_string();
    for more in [&["-P", "1"][..], &["-R"], &["-P", "4"]] {
        let args = [&["-c", stage.host, "-p", &port, "-t", "1", "-J"], more].concat();
        let start = Instant::now();
        let said = loop {
            let text = stage.run("iperf3", &args)?;
            let said: serde_json::Value = serde_json::from_str(&text).with_context(|| format!("iperf3: {text}"))?;
            // The server closes its listener after each test and opens it again. A client in
            // between is reset or refused, on the kernel too.
            let refusals = ["control message: Connection reset", "the server is busy"];
            let between = said["error"].as_str().is_some_and(|error| refusals.iter().any(|text| error.contains(text)));
            if !between || start.elapsed() > Duration::from_secs(60) {
                break said;
            }
        };
        let bytes = said["end"]["sum_received"]["bytes"].as_u64().unwrap_or(0);
        ensure!(bytes >= MIB, "iperf3 {more:?} moved {bytes} bytes: {}", said["error"]);
    }
    Ok(())
}

fn openssl_server(stage: &Stage, port: u16) -> Result<Server> {
    let dir = stage.folder("openssl")?;
    let (key, certificate) = (dir.join("key.pem"), dir.join("certificate.pem"));
    let mut make = Command::new("openssl");
    make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    make.args(["-subj", "/CN=lab", "-days", "2", "-keyout"]).arg(&key).arg("-out").arg(&certificate);
    finish(&mut make, "openssl req")?;
    let mut command = stage.server("openssl");
    command.args(["s_server", "-quiet", "-WWW", "-accept", &format!("{}:{port}", stage.host), "-key"]).arg(&key);
    command.arg("-cert").arg(&certificate).current_dir(stage.files());
    Ok(Server(vec![stage.serve("openssl", &mut command, port)?]))
}

fn openssl_client(stage: &Stage, port: u16) -> Result<()> {
    let request = stage.lab.dir().join("request");
    std::fs::write(&request, "GET /10k HTTP/1.0\r\n\r\n")?;
    let body = stage.bodies.iter().find(|body| body.name == "10k").context("the body")?;
    let expected = std::fs::read(&body.path)?;
    for version in ["-tls1_2", "-tls1_3"] {
        let mut command = stage.client("openssl");
        command.args(["s_client", "-quiet", version, "-connect", &format!("{}:{port}", stage.host)]);
        let output = command.stdin(std::fs::File::open(&request)?).output()?;
        ensure!(
            output.stdout.ends_with(&expected),
            "s_client {version} got {} bytes: {}",
            output.stdout.len(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

fn sshd(stage: &Stage, port: u16) -> Result<Server> {
    let dir = stage.folder("ssh")?;
    for key in ["host", "user"] {
        let mut make = Command::new("ssh-keygen");
        finish(make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(key)), "ssh-keygen")?;
    }
    let d = dir.display();
    std::fs::write(
        dir.join("sshd_config"),
        format!(
            "Port {port}\nListenAddress {}\nHostKey {d}/host\nPidFile none\nAuthorizedKeysFile {d}/user.pub\n\
             StrictModes no\nPermitRootLogin yes\nUsePAM no\nSubsystem sftp internal-sftp\nLogLevel VERBOSE\n",
            stage.host
        ),
    )?;
    // The folder to which sshd's unprivileged process is confined.
    std::fs::create_dir_all("/run/sshd")?;
    let mut command = stage.server("/usr/sbin/sshd");
    command.arg("-D").arg("-e").arg("-f").arg(dir.join("sshd_config"));
    Ok(Server(vec![stage.serve("sshd", &mut command, port)?]))
}

fn ssh(stage: &Stage, port: u16) -> Result<()> {
    let dir = stage.lab.dir().join("ssh");
    let key = dir.join("user").display().to_string();
    let options = [
        "-F",
        "none",
        "-o",
        "BatchMode=yes",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-o",
        "LogLevel=ERROR",
        "-i",
        &key,
    ];
    let at = format!("root@{}", stage.host);
    let port = port.to_string();
    let run = [&options[..], &["-p", &port, &at]].concat();
    let text = stage.run("ssh", &[&run[..], &["echo hello; exit 0"]].concat())?;
    ensure!(text == "hello\n", "ssh: {text:?}");
    let body = stage.bodies.iter().find(|body| body.name == "10m").context("the body")?;
    // Ten MiB there, digested there, and ten back.
    let mut there = stage.client("ssh");
    there.args(&run).arg("sha256sum").stdin(std::fs::File::open(&body.path)?).stdout(Stdio::piped());
    let text = finish(&mut there, "ssh sha256sum")?;
    ensure!(text.starts_with(&body.sha256), "ssh: another digest: {text}");
    let back = dir.join("back");
    let mut sftp = stage.client("scp");
    sftp.args(options).args(["-P", &port]).arg(format!("{at}:{}", stage.files().join("10m").display())).arg(&back);
    finish(&mut sftp, "scp")?;
    ensure!(std::fs::read(&back)? == std::fs::read(&body.path)?, "scp brought another file");
    Ok(())
}
