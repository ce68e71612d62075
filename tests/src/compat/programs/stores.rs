//! redis, memcached, PostgreSQL, MariaDB.

use super::{CLIENT_KILLED, DEATH, fault, restart};
use crate::compat::{Act, Place, Program, Server, signal, until, watch};
use crate::unmodified::programs::postgres_programs;
use crate::unmodified::stage::finish;
use anyhow::Result;
use std::path::Path;
use std::process::Command;

pub(super) fn programs() -> Vec<Program> {
    let again = |start| fault("killed and started again", DEATH, Act::Restart(start));
    vec![
        Program::new(
            "redis-server",
            &["redis-server", "redis-cli"],
            "redis",
            redis,
            vec![fault("saves in the background", &[], Act::Do(redis_saves)), CLIENT_KILLED, again(restart!(redis))],
        ),
        Program::new(
            "memcached, 4 threads",
            &["memcached"],
            "memcached",
            |place| memcached(place, 1024),
            vec![CLIENT_KILLED, again(restart!(|place| memcached(place, 1024)))],
        ),
        Program::new(
            "memcached, at its limits of connections and descriptors",
            &["memcached"],
            "memcached",
            |place| memcached(place, 40),
            // Without a free descriptor the server responds like this or closes accepted
            // connections. Then values were not stored and are not found.
            vec![fault(
                "limit",
                &[
                    "answer ERROR Too many open connections",
                    "answer END",
                    "answer NOT_FOUND",
                    "reset",
                    "closed",
                    "stale",
                ],
                CLIENT_KILLED.act,
            )],
        )
        .asked(&["--kept", "50", "--short", "24", "--long", "24"])
        .carried("too few descriptors"),
        Program::new(
            "PostgreSQL",
            &["/usr/lib/postgresql", "setpriv"],
            "postgres",
            |place| {
                postgres_data(place)?;
                postgres(place)
            },
            vec![
                fault("reload", &[], Act::Do(|_, server| server.signal("HUP"))),
                CLIENT_KILLED,
                fault(
                    "backend killed",
                    // The postmaster ends all backends, and refuses until it has recovered.
                    &["reset", "closed", "stale", "refused", "answer 57P02", "answer 57P03"],
                    Act::Do(postgres_backend_killed),
                ),
            ],
        )
        .carried("a process per connection"),
        Program::new(
            "MariaDB",
            &["mariadbd", "mariadb-install-db"],
            "mysql",
            |place| {
                mariadb_data(place)?;
                mariadb(place)
            },
            vec![CLIENT_KILLED, again(restart!(mariadb))],
        )
        .carried("uses io_uring"),
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

/// The folder of the databases, created as the user of Debian's package: PostgreSQL does not run as
/// root.
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
    // A backend whose client has left may exit before the signal arrives. Then another one is
    // chosen.
    until("a killed backend", || {
        watch::children(postmaster).into_iter().find(serves).is_some_and(|pid| signal(pid, "KILL").is_ok())
    })
}

fn mariadb_data(place: &Place) -> Result<()> {
    let data = place.path("data");
    let mut install = Command::new("mariadb-install-db");
    install.args(["--no-defaults", "--user=root", "--skip-test-db", &format!("--datadir={data}")]);
    finish(&mut install, "mariadb-install-db").map(drop)
}

/// A thread for each connection, with a cache of threads. Every client is trusted.
fn mariadb(place: &Place) -> Result<Server> {
    let mut command = place.stage.server("mariadbd");
    command.args([
        "--no-defaults",
        "--user=root",
        "--skip-grant-tables",
        "--skip-name-resolve",
        "--max-connections=200",
    ]);
    command.args([format!("--datadir={}", place.path("data")), format!("--socket={}", place.path("socket"))]);
    command.args([format!("--bind-address={}", place.stage.host), format!("--port={}", place.port)]);
    Ok(place.serve("mariadb", &mut command, place.port)?.into())
}
