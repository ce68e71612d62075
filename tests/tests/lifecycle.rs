//! Events in a server's life, under load: a client sees no error that it would not see on the
//! kernel, where the same is run for comparison.

use anyhow::{Context, Result, ensure};
use fs_tests::Lab;
use fs_tests::unmodified::load::{Load, Met};
use fs_tests::unmodified::stage::finish;
use fs_tests::unmodified::{Placement, Stage};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(150);

fn on(placement: Placement, body: impl FnOnce(&Stage) -> Result<()>) -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let stage = Stage::set(lab, placement)?.yielding();
        let before = stage.reported();
        body(&stage)?;
        stage.promoted(before)?;
        stage.end()
    })
}

fn until(what: &str, mut so: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !so() {
        ensure!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A number that a program wrote into a file.
fn pid_in(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn signal(pid: u32, name: &str) -> Result<()> {
    finish(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]), "kill").map(drop)
}

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// nginx as a daemon with two workers, so that it can be upgraded; its folder.
fn nginx(stage: &Stage, port: u16) -> Result<PathBuf> {
    let dir = stage.folder("nginx")?;
    let (d, files, host) = (dir.display(), stage.files().display(), stage.host);
    std::fs::write(
        dir.join("nginx.conf"),
        format!(
            "user root;\nworker_processes 2;\npid {d}/pid;\nerror_log {d}/error.log;\n\
             events {{ worker_connections 1024; }}\nhttp {{\n  access_log off;\n  client_body_temp_path {d}/body;\n\
             proxy_temp_path {d}/t1;\n  fastcgi_temp_path {d}/t2;\n  uwsgi_temp_path {d}/t3;\n  scgi_temp_path {d}/t4;\n\
             server {{ listen {host}:{port}; root {files}; }}\n}}\n"
        ),
    )?;
    let mut command = nginx_command(stage, &dir);
    finish(&mut command, "nginx")?;
    until("nginx has written its pid", || pid_in(&dir.join("pid")).is_some())?;
    Ok(dir)
}

fn nginx_command(stage: &Stage, dir: &Path) -> Command {
    let mut command = stage.server("/usr/sbin/nginx");
    command.arg("-e").arg(dir.join("error.log")).arg("-c").arg(dir.join("nginx.conf"));
    command
}

fn quit(dir: &Path) -> Result<()> {
    let pid = pid_in(&dir.join("pid")).context("nginx's pid")?;
    signal(pid, "QUIT")?;
    until("nginx ends", || !Path::new(&format!("/proc/{pid}/stat")).exists())
}

fn clean(met: &Met) -> Result<()> {
    println!("{} requests, errors: {:?}", met.requests, met.errors);
    ensure!(met.errors.is_empty(), "the client met errors: {met:?}");
    Ok(())
}

fn five_reloads(stage: &Stage) -> Result<()> {
    reloads(stage, 5)
}

fn a_hundred_reloads(stage: &Stage) -> Result<()> {
    reloads(stage, 100)
}

fn reloads(stage: &Stage, count: u32) -> Result<()> {
    let dir = nginx(stage, 7301)?;
    let mut load = Load::start(stage, 7301, "/10k")?;
    let master = pid_in(&dir.join("pid")).context("nginx's pid")?;
    for _ in 0..count {
        let before = children(master);
        finish(nginx_command(stage, &dir).args(["-s", "reload"]), "nginx -s reload")?;
        // Two: one may be of the reload before.
        until("new workers", || children(master).iter().filter(|child| !before.contains(child)).count() >= 2)?;
        load.goes_on(5)?;
    }
    load.goes_on(100)?;
    clean(&load.end()?)?;
    // Only two workers are left: the old ones were able to close all their connections.
    until("old workers end", || children(master).len() == 2)?;
    quit(&dir)
}

fn an_upgrade(stage: &Stage) -> Result<()> {
    let dir = nginx(stage, 7302)?;
    let mut load = Load::start(stage, 7302, "/10k")?;
    let old = pid_in(&dir.join("pid")).context("nginx's pid")?;
    signal(old, "USR2")?;
    until("the new master", || pid_in(&dir.join("pid")).is_some_and(|pid| pid != old && children(pid).len() == 2))?;
    load.goes_on(100)?;
    signal(old, "WINCH")?;
    until("the old workers end", || children(old).iter().all(|child| Some(*child) == pid_in(&dir.join("pid"))))?;
    load.goes_on(100)?;
    signal(old, "QUIT")?;
    until("the old master ends", || !Path::new(&format!("/proc/{old}/stat")).exists())?;
    load.goes_on(200)?;
    clean(&load.end()?)?;
    quit(&dir)
}

fn a_killed_worker(stage: &Stage) -> Result<()> {
    let dir = nginx(stage, 7303)?;
    let mut load = Load::start(stage, 7303, "/10k")?;
    let master = pid_in(&dir.join("pid")).context("nginx's pid")?;
    until("two workers", || children(master).len() == 2)?;
    // One of them may have no connection.
    for (killed, victim) in (1..).zip(children(master)) {
        signal(victim, "KILL")?;
        until("a new worker", || children(master).iter().filter(|child| **child != victim).count() == 2)?;
        load.goes_on(50)?;
        let met = load.met();
        println!("{} requests, errors: {:?}", met.requests, met.errors);
        // Four threads: each can have had one connection at the worker.
        ensure!(met.wrong() <= 4 * killed, "more errors than connections at the worker: {met:?}");
    }
    let met = load.met();
    load.goes_on(300)?;
    let after = load.end()?;
    ensure!(after.wrong() == met.wrong(), "errors long after the worker was killed: {met:?}, then {after:?}");
    quit(&dir)
}

fn background_saving(stage: &Stage) -> Result<()> {
    let dir = stage.folder("redis")?;
    let port = "7304";
    let mut command = stage.server("redis-server");
    command.args(["--save", "", "--appendonly", "no", "--protected-mode", "no", "--bind", stage.host]);
    command.args(["--port", port, "--dir"]).arg(&dir);
    let mut redis = stage.serve("redis", &mut command, 7304)?;
    let cli = |args: &[&str]| stage.run("redis-cli", &[&["-h", stage.host, "-p", port], args].concat());
    let mut load = stage.endless_client("redis-benchmark");
    load.args([
        "-h", stage.host, "-p", port, "-t", "set,get", "-c", "20", "-n", "60000", "-r", "5000", "-d", "200", "--csv",
    ]);
    let mut load = stage.lab.spawn("benchmark", &mut load)?;
    for round in 0..5 {
        until("the last save ends", || {
            cli(&["info", "persistence"]).is_ok_and(|text| text.contains("rdb_bgsave_in_progress:0"))
        })?;
        cli(&["set", "round", &round.to_string()])?;
        let said = cli(&["bgsave"])?;
        ensure!(said.contains("started"), "BGSAVE: {said}");
    }
    let status = load.wait_end(Duration::from_secs(240))?;
    ensure!(status.success() && !load.log().contains("rror"), "redis-benchmark: {status}\n{}", load.log());
    until("the last save ends", || {
        cli(&["info", "persistence"]).is_ok_and(|text| text.contains("rdb_bgsave_in_progress:0"))
    })?;
    let text = cli(&["info", "persistence"])?;
    ensure!(text.contains("rdb_last_bgsave_status:ok"), "{text}");
    ensure!(cli(&["get", "round"])?.trim() == "4", "a value is lost");
    redis.terminate(PATIENCE)?;
    Ok(())
}

/// `haproxy -x SOCKET -sf PID`: the new process gets the listening sockets from the old one, five
/// times.
fn haproxy_hands_over(stage: &Stage) -> Result<()> {
    let origin = nginx(stage, 7306)?;
    let dir = stage.folder("haproxy")?;
    let host = stage.host;
    let config = dir.join("haproxy.cfg");
    let admin = dir.join("admin.sock");
    std::fs::write(
        &config,
        format!(
            "global\n  nbthread 2\n  stats socket {} mode 600 level admin expose-fd listeners\ndefaults\n  mode http\n  \
             timeout connect 10s\n  timeout client 30s\n  timeout server 30s\nlisten front\n  bind {host}:7305\n  \
             server back {host}:7306\n",
            admin.display()
        ),
    )?;
    let start = |number: u32, more: &[&str]| {
        let mut command = stage.server("haproxy");
        command.arg("-db").arg("-f").arg(&config).args(more);
        stage.lab.spawn(&format!("haproxy-{number}"), &mut command)
    };
    let mut now = start(0, &[])?;
    stage.reached(&mut now, 7305)?;
    let mut load = Load::start(stage, 7305, "/10k")?;
    for number in 1..=5 {
        let admin = admin.display().to_string();
        let next = start(number, &["-x", &admin, "-sf", &now.pid().to_string()])?;
        now.wait_end(PATIENCE).context("the old haproxy")?;
        now = next;
        load.goes_on(100)?;
    }
    clean(&load.end()?)?;
    ensure!(now.ended()?.is_none(), "the last haproxy ended:\n{}", now.log());
    now.signal("TERM")?;
    now.wait_end(PATIENCE)?;
    quit(&origin)
}

macro_rules! placed {
    ($place:ident, $placement:expr, $($name:ident),*) => {
        mod $place {
            use super::*;
            $(#[test] fn $name() -> Result<()> { on($placement, super::$name) })*
        }
    };
}
placed!(one_host, Placement::OneHost, five_reloads, an_upgrade, a_killed_worker, background_saving, haproxy_hands_over);

macro_rules! long {
    ($place:ident, $placement:expr, $($name:ident),*) => {
        mod $place {
            use super::*;
            $(#[test] #[ignore = "long: make proof"] fn $name() -> Result<()> { on($placement, super::$name) })*
        }
    };
}
long!(long_on_one_host, Placement::OneHost, a_hundred_reloads);
// Runs on kernel sockets show that the scenarios themselves are right.
long!(kernel, Placement::Kernel, a_hundred_reloads, an_upgrade, a_killed_worker, background_saving, haproxy_hands_over);
