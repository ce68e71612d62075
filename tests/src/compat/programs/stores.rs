//! redis, memcached, PostgreSQL.

use super::{CLIENT_KILLED, DEATH};
use crate::compat::{Act, Fault, Place, Program, Server, signal, until, watch};
use crate::unmodified::programs::postgres_programs;
use crate::unmodified::stage::finish;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// A start of one process, as a restart.
macro_rules! restart {
    ($start:expr) => {
        |place, server| {
            *server = $start(place)?;
            Ok(())
        }
    };
}

pub(super) fn programs() -> Vec<Program> {
    vec![
        Program {
            name: "redis-server",
            needs: &["redis-server", "redis-cli"],
            ask: "redis",
            clients: &[],
            start: redis,
            faults: vec![
                Fault { name: "saves in the background", permits: &[], act: Act::Do(redis_saves) },
                CLIENT_KILLED,
                Fault { name: "killed and started again", permits: DEATH, act: Act::Restart(restart!(redis)) },
            ],
        },
        Program {
            name: "memcached, 4 threads",
            needs: &["memcached"],
            ask: "memcached",
            clients: &[],
            start: |place| memcached(place, 1024),
            faults: vec![
                CLIENT_KILLED,
                Fault {
                    name: "killed and started again",
                    permits: DEATH,
                    act: Act::Restart(restart!(|place| memcached(place, 1024))),
                },
            ],
        },
        Program {
            name: "memcached, at its limits of connections and descriptors",
            needs: &["memcached"],
            ask: "memcached",
            clients: &["--kept", "50", "--short", "24", "--long", "24"],
            start: |place| memcached(place, 40),
            faults: vec![Fault {
                // It answers so, or closes what it has accepted, when it has no descriptor left.
                name: "limit",
                permits: &["answer ERROR Too many open connections", "reset", "closed", "stale"],
                act: CLIENT_KILLED.act,
            }],
        },
        Program {
            name: "PostgreSQL",
            needs: &["/usr/lib/postgresql", "setpriv"],
            ask: "postgres",
            clients: &["--process", "500"],
            start: |place| {
                postgres_data(place)?;
                postgres(place)
            },
            faults: vec![
                Fault { name: "reload", permits: &[], act: Act::Do(|_, server| server.signal("HUP")) },
                CLIENT_KILLED,
                Fault {
                    name: "backend killed",
                    // The postmaster ends all backends, and refuses until it has recovered.
                    permits: &["reset", "closed", "stale", "refused", "answer 57P02", "answer 57P03"],
                    act: Act::Do(postgres_backend_killed),
                },
            ],
        },
    ]
}

fn redis(place: &Place) -> Result<Server> {
    let mut command = place.stage.server("redis-server");
    command.args(["--save", "", "--appendonly", "no", "--protected-mode", "no", "--bind", place.stage.host]);
    command.args(["--port", &place.port.to_string(), "--dir"]).arg(&place.dir);
    Ok(place.serve("redis", &mut command, place.port)?.into())
}

fn redis_saves(place: &Place, _: &mut Server) -> Result<()> {
    let cli = |args: &[&str]| {
        let mut command = place.stage.client("redis-cli");
        finish(command.args(["-h", place.stage.host, "-p", &place.port.to_string()]).args(args), "redis-cli")
    };
    let said = cli(&["bgsave"])?;
    anyhow::ensure!(said.contains("started"), "BGSAVE: {said}");
    until("the save ends", || cli(&["info", "persistence"]).is_ok_and(|text| text.contains("rdb_bgsave_in_progress:0")))
}

/// Its limit of descriptors follows that of its connections.
fn memcached(place: &Place, connections: u32) -> Result<Server> {
    let mut command = place.stage.server("memcached");
    command.args(["-u", "root", "-t", "4", "-U", "0", "-l", place.stage.host, "-p", &place.port.to_string()]);
    command.args(["-c", &connections.to_string()]);
    Ok(place.serve("memcached", &mut command, place.port)?.into())
}

/// The folder of the databases, made as the user that Debian's package made: PostgreSQL does not run as root.
fn postgres_data(place: &Place) -> Result<()> {
    finish(Command::new("chown").arg("postgres").arg(&place.dir), "chown")?;
    let mut initdb = as_postgres(Command::new("setpriv"), &postgres_programs()?.join("initdb"));
    initdb.args(["-A", "trust", "-U", "postgres", "--no-sync", "-D", &place.path("data")]).current_dir(&place.dir);
    finish(&mut initdb, "initdb").map(drop)
}

fn as_postgres(mut setpriv: Command, program: &Path) -> Command {
    setpriv.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]).arg(program);
    setpriv
}

fn postgres(place: &Place) -> Result<Server> {
    let (host, port, dir) = (place.stage.host, place.port, place.dir.display());
    let mut command = as_postgres(place.stage.server("setpriv"), &postgres_programs()?.join("postgres"));
    command.args(["-D", &place.path("data"), "-c", "fsync=off", "-c", "autovacuum=off"]).current_dir(&place.dir);
    for setting in
        [format!("listen_addresses={host}"), format!("port={port}"), format!("unix_socket_directories={dir}")]
    {
        command.args(["-c", &setting]);
    }
    let mut server = place.serve("postgres", &mut command, port)?;
    let log = server.log_path().to_owned();
    let ready = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("is ready to accept connections"));
    server.wait_for("readiness", crate::compat::PATIENCE, ready)?;
    Ok(server.into())
}

/// Kills a process that serves a client.
fn postgres_backend_killed(_: &Place, server: &mut Server) -> Result<()> {
    let postmaster = server.main()?.pid();
    let serves = |pid: &u32| {
        let title = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        title.contains("postgres postgres")
    };
    let mut victim = None;
    until("a backend", || {
        victim = watch::children(postmaster).into_iter().find(serves);
        victim.is_some()
    })?;
    signal(victim.context("a backend")?, "KILL")
}
