//! Proxies in front of an nginx.

use super::{CLIENT_KILLED, DEATH, web};
use crate::compat::{Act, Fault, Place, Program, Server, until, watch};
use anyhow::Result;

pub(super) fn programs() -> Vec<Program> {
    vec![
        Program {
            name: "haproxy, master and worker, at its maxconn",
            needs: &["haproxy", "nginx"],
            ask: "http-files",
            clients: &["--kept", "50"],
            start: |place| haproxy(place, 10),
            faults: vec![
                Fault { name: "reload", permits: &["stale"], act: Act::Do(reload) },
                CLIENT_KILLED,
                Fault { name: "backend reloads", permits: &["stale"], act: Act::Do(backend_reload) },
            ],
        },
        Program {
            name: "haproxy, its backend killed",
            needs: &["haproxy", "nginx"],
            ask: "http-files",
            clients: &[],
            start: |place| haproxy(place, 500),
            faults: vec![
                Fault {
                    name: "backend worker killed",
                    permits: &["stale", "closed", "reset", "answer 502", "answer 503", "answer 504"],
                    act: Act::Do(backend_killed),
                },
                CLIENT_KILLED,
                Fault {
                    name: "killed and started again",
                    permits: DEATH,
                    act: Act::Restart(|place, server| {
                        *server = haproxy(place, 500)?;
                        Ok(())
                    }),
                },
            ],
        },
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
    let master = backend(server)?;
    let before = watch::children(master);
    let victim = *before.first().ok_or_else(|| anyhow::anyhow!("no worker"))?;
    crate::compat::signal(victim, "KILL")?;
    until("a new worker", || watch::children(master).iter().any(|child| !before.contains(child)))
}
