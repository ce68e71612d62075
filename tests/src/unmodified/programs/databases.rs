//! redis, memcached, PostgreSQL.

use super::{Group, Row, Server};
use crate::unmodified::Stage;
use crate::unmodified::stage::finish;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(super) fn groups() -> Vec<Group> {
    vec![
        Group {
            name: "redis",
            server: redis,
            rows: vec![
                Row { name: "redis-server and redis-benchmark", by_ring: true, client: redis_benchmark },
                Row { name: "redis-cli", by_ring: false, client: redis_cli },
            ],
        },
        Group {
            name: "memcached",
            server: memcached,
            rows: vec![Row { name: "memcached (4 threads)", by_ring: true, client: memcached_client }],
        },
        Group {
            name: "postgres",
            server: postgres,
            rows: vec![Row { name: "PostgreSQL, psql and pgbench", by_ring: false, client: pgbench }],
        },
    ]
}

fn redis(stage: &Stage, port: u16) -> Result<Server> {
    let name = format!("redis-{port}");
    let dir = stage.folder(&name)?;
    let mut command = stage.server("redis-server");
    command.args(["--save", "", "--appendonly", "no", "--protected-mode", "no", "--bind", stage.host]);
    command.args(["--port", &port.to_string(), "--dir"]).arg(&dir);
    Ok(Server(vec![stage.serve(&name, &mut command, port)?]))
}

fn redis_benchmark(stage: &Stage, port: u16) -> Result<()> {
    let port = port.to_string();
    let args =
        ["-h", stage.host, "-p", &port, "-n", "5000", "-c", "50", "-t", "ping_inline,set,get,lrange_100", "--csv"];
    let text = stage.run("redis-benchmark", &args)?;
    let rates = text.lines().filter(|line| line.starts_with('"')).count();
    ensure!(rates >= 5, "redis-benchmark printed:\n{text}");
    Ok(())
}

fn redis_cli(stage: &Stage, port: u16) -> Result<()> {
    let port = port.to_string();
    let cli = |args: &[&str]| stage.run("redis-cli", &[&["-h", stage.host, "-p", &port], args].concat());
    let long = "x".repeat(5000);
    ensure!(cli(&["set", "key", &long])?.trim() == "OK", "SET");
    ensure!(cli(&["get", "key"])?.trim() == long, "GET brings another value");
    ensure!(cli(&["eval", "return #redis.call('get', KEYS[1])", "1", "key"])?.trim() == "5000", "EVAL");
    ensure!(cli(&["bgsave"])?.contains("Background saving started"), "BGSAVE");
    ensure!(cli(&["ping"])?.trim() == "PONG", "PING");
    Ok(())
}

fn memcached(stage: &Stage, port: u16) -> Result<Server> {
    let mut command = stage.server("memcached");
    command.args(["-u", "root", "-t", "4", "-U", "0", "-l", stage.host, "-p", &port.to_string()]);
    Ok(Server(vec![stage.serve("memcached", &mut command, port)?]))
}

fn memcached_client(stage: &Stage, port: u16) -> Result<()> {
    let script = stage.script("memcached_client.py").display().to_string();
    let text = stage.run("/usr/bin/python3", &[&script, stage.host, &port.to_string()])?;
    ensure!(text.trim() == "ok", "{text}");
    Ok(())
}

/// The folder of the installed PostgreSQL's programs.
pub fn postgres_programs() -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").context("no PostgreSQL in /usr/lib/postgresql")?;
    let mut all: Vec<PathBuf> = versions.map(|entry| Ok(entry?.path().join("bin"))).collect::<Result<_>>()?;
    all.retain(|path| path.join("initdb").exists());
    all.sort();
    all.pop().context("no initdb below /usr/lib/postgresql")
}

/// PostgreSQL does not run as root: its programs run as the user of Debian's package.
fn as_postgres(program: &Path) -> Vec<String> {
    let all = ["--reuid", "postgres", "--regid", "postgres", "--clear-groups"];
    all.iter().map(|text| (*text).to_owned()).chain([program.display().to_string()]).collect()
}

fn postgres(stage: &Stage, port: u16) -> Result<Server> {
    let programs = postgres_programs()?;
    let dir = stage.folder("postgres")?;
    let data = dir.join("data");
    std::fs::create_dir_all(&data)?;
    finish(Command::new("chown").arg("-R").arg("postgres").arg(&dir), "chown")?;
    let mut initdb = Command::new("setpriv");
    initdb.args(as_postgres(&programs.join("initdb"))).args(["-A", "trust", "-U", "postgres", "--no-sync", "-D"]);
    finish(initdb.arg(&data).current_dir(&dir), "initdb")?;
    let hosts = std::fs::OpenOptions::new().append(true).open(data.join("pg_hba.conf"))?;
    std::io::Write::write_all(&mut &hosts, b"host all all 0.0.0.0/0 trust\n")?;
    let mut command = stage.server("setpriv");
    command.args(as_postgres(&programs.join("postgres"))).arg("-D").arg(&data).current_dir(&dir);
    command.args(["-c", &format!("listen_addresses={}", stage.host), "-c", &format!("port={port}")]);
    command.args(["-c", &format!("unix_socket_directories={}", dir.display()), "-c", "fsync=off"]);
    let mut server = stage.serve("postgres", &mut command, port)?;
    // The server accepts connections some time before it serves them.
    let log = server.log_path().to_owned();
    let is_ready = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("is ready to accept connections"));
    server.wait_for("readiness", Duration::from_secs(60), is_ready)?;
    Ok(Server(vec![server]))
}

fn pgbench(stage: &Stage, port: u16) -> Result<()> {
    let programs = postgres_programs()?;
    let port = port.to_string();
    let to = ["-h", stage.host, "-p", &port, "-U", "postgres"];
    let (psql, pgbench) = (programs.join("psql").display().to_string(), programs.join("pgbench").display().to_string());
    let text = stage.run(&psql, &[&to[..], &["-Atc", "select sum(i) from generate_series(1, 100000) i"]].concat())?;
    ensure!(text.trim() == "5000050000", "psql: {text}");
    stage.run(&pgbench, &[&to[..], &["-i", "-q", "-s", "1", "postgres"]].concat())?;
    // One connection for all of a client's transactions, and one (with its own process) for each.
    for more in [&["-t", "20"][..], &["-t", "10", "-C"]] {
        let text = stage.run(&pgbench, &[&to[..], &["-n", "-c", "4", "-j", "2"], more, &["postgres"]].concat())?;
        ensure!(text.contains("number of failed transactions: 0 "), "pgbench:\n{text}");
    }
    Ok(())
}
