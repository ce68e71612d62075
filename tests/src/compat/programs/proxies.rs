//! Proxies, all in front of an nginx.

use super::{CLIENT_KILLED, DEATH, fault, restart, web};
use crate::compat::{Act, Place, Program, Server, until, watch};
use crate::unmodified::stage::finish;
use anyhow::Result;
use std::process::Command;

pub(super) fn programs() -> Vec<Program> {
    let backend_dies = &["stale", "closed", "reset", "answer 502", "answer 503", "answer 504"];
    vec![
        Program::new(
            "haproxy, master and worker, at its maxconn",
            &["haproxy", "nginx"],
            "http-files",
            |place| haproxy(place, 10),
            vec![
                fault("reload", &["stale"], Act::Do(reload)),
                CLIENT_KILLED,
                fault("backend reloads", &["stale"], Act::Do(backend_reload)),
            ],
        )
        .asked(&["--kept", "50"]),
        Program::new(
            "haproxy, its backend killed",
            &["haproxy", "nginx"],
            "http-files",
            |place| haproxy(place, 500),
            vec![
                fault("backend worker killed", backend_dies, Act::Do(backend_killed)),
                CLIENT_KILLED,
                fault("killed and started again", DEATH, Act::Restart(restart!(|place| haproxy(place, 500)))),
            ],
        ),
        Program::new(
            "Varnish",
            &["varnishd", "varnishadm", "nginx"],
            "http-files",
            varnish,
            vec![
                fault("reload", &[], Act::Do(varnish_reload)),
                CLIENT_KILLED,
                fault("worker killed", DEATH, Act::Do(|_, server| server.kill_worker())),
            ],
        ),
        Program::new(
            "stunnel, client and server",
            &["stunnel4", "openssl", "nginx"],
            "http-files",
            stunnel,
            // stunnel closes its listeners and opens them again. In between the kernel refuses
            // connections.
            vec![fault("reload", &["refused"], Act::Do(stunnel_reload)), CLIENT_KILLED],
        ),
    ]
}

fn haproxy(place: &Place, maxconn: u32) -> Result<Server> {
    let (host, port) = (place.stage.host, place.port);
    let Server(backend) = web::nginx(place, port + 1, "")?;
    let config = place.write(
        "haproxy.cfg",
        &format!(
            "global\n  nbthread 2\n  stats socket {} mode 600 level admin expose-fd listeners\ndefaults\n  mode http\n  \
             timeout connect 10s\n  timeout client 60s\n  timeout server 60s\n  retries 3\n\
             listen front\n  bind {host}:{port}\n  maxconn {maxconn}\n  server back {host}:{}\n",
            place.path("admin.sock"),
            port + 1
        ),
    )?;
    let mut command = place.stage.server("haproxy");
    command.args(["-W", "-db", "-f", &config]);
    let mut all = vec![place.serve("haproxy", &mut command, port)?];
    all.extend(backend);
    Ok(Server(all))
}

fn reload(_: &Place, server: &mut Server) -> Result<()> {
    let master = server.main()?.pid();
    let before = watch::children(master);
    server.signal("USR2")?;
    until("a new worker", || watch::children(master).iter().any(|child| !before.contains(child)))?;
    until("the old worker ends", || watch::children(master).iter().all(|child| !before.contains(child)))
}

fn backend(server: &mut Server) -> Result<u32> {
    anyhow::ensure!(server.0.len() > 1, "no backend");
    Ok(server.0[1].pid())
}

fn backend_reload(_: &Place, server: &mut Server) -> Result<()> {
    let master = backend(server)?;
    let before = watch::children(master);
    crate::compat::signal(master, "HUP")?;
    until("new workers", || watch::children(master).iter().filter(|child| !before.contains(child)).count() >= 2)
}

fn backend_killed(_: &Place, server: &mut Server) -> Result<()> {
    crate::compat::kill_child(backend(server)?)
}

/// Forwards everything and stores nothing, so each request uses two connections.
fn varnish(place: &Place) -> Result<Server> {
    let (host, port) = (place.stage.host, place.port);
    let Server(backend) = web::nginx(place, port + 1, "")?;
    let vcl = place.write(
        "pass.vcl",
        &format!(
            "vcl 4.1;\nbackend nginx {{ .host = \"{host}\"; .port = \"{}\"; }}\nsub vcl_recv {{ return (pass); }}\n",
            port + 1
        ),
    )?;
    let mut command = place.stage.server("varnishd");
    command.args(["-F", "-j", "none", "-a", &format!("{host}:{port}"), "-n", &place.path("varnish"), "-f", &vcl]);
    let mut all = vec![place.serve("varnish", &mut command, port)?];
    all.extend(backend);
    Ok(Server(all))
}

fn varnish_reload(place: &Place, _: &mut Server) -> Result<()> {
    let admin = |args: &[&str]| {
        let mut command = place.stage.server("varnishadm");
        finish(command.args(["-n", &place.path("varnish")]).args(args), "varnishadm").map(drop)
    };
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
    let name = format!("again-{now}");
    admin(&["vcl.load", &name, &place.path("pass.vcl")])?;
    admin(&["vcl.use", &name])
}

/// TLS between two of them.
fn stunnel(place: &Place) -> Result<Server> {
    let (host, port) = (place.stage.host, place.port);
    let Server(backend) = web::nginx(place, port + 1, "")?;
    let (key, certificate) = (place.path("key.pem"), place.path("certificate.pem"));
    let mut make = Command::new("openssl");
    make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    make.args(["-subj", "/CN=lab", "-days", "2", "-keyout", &key, "-out", &certificate]);
    finish(&mut make, "openssl req")?;
    let common = "foreground = yes\npid =\nsyslog = no\ndebug = warning\n";
    let server = place.write(
        "server.conf",
        &format!(
            "{common}cert = {certificate}\nkey = {key}\n[server]\naccept = {host}:{}\nconnect = {host}:{}\n",
            port + 2,
            port + 1
        ),
    )?;
    let client = place.write(
        "client.conf",
        &format!("{common}[client]\nclient = yes\naccept = {host}:{port}\nconnect = {host}:{}\n", port + 2),
    )?;
    let server = place.serve("stunnel-server", place.stage.server("stunnel4").arg(server), port + 2)?;
    let mut all = vec![place.serve("stunnel-client", place.stage.server("stunnel4").arg(client), port)?, server];
    all.extend(backend);
    Ok(Server(all))
}

fn stunnel_reload(_: &Place, server: &mut Server) -> Result<()> {
    server.0.iter().take(2).try_for_each(|stunnel| stunnel.signal("HUP"))
}
