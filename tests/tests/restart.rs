//! The daemon is stopped or killed under redis and nginx, and started again. Both serve all the
//! time, with any carrier, and soon through shared memory again. Connected clients get an error.

use anyhow::{Context, Result, ensure};
use fs_tests::unmodified::daemon::{Daemon, Reach};
use fs_tests::unmodified::stage::finish;
use fs_tests::{Lab, Ns};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// Limit for a request, and for the report of a daemon's end after its drain of a second, on a busy
/// machine.
const SOON: Duration = Duration::from_secs(20);

fn redis_cli(daemon: &Daemon, lab: &Lab) -> std::process::Command {
    let mut command = daemon.command(lab, "timeout");
    command.args(["-k", "1", &SOON.as_secs().to_string(), "redis-cli", "-p", "7451"]);
    command
}

/// One new client of each.
fn both_serve(daemon: &Daemon, lab: &Lab, when: &str) -> Result<()> {
    let said = finish(redis_cli(daemon, lab).arg("ping"), "redis-cli").with_context(|| format!("{when}: redis"))?;
    ensure!(said.trim() == "PONG", "{when}: redis says {said}");
    let mut curl = daemon.command(lab, "curl");
    let said = finish(curl.args(["-sS", "-m", &SOON.as_secs().to_string(), "http://127.0.0.1:7452/"]), "curl");
    let said = said.with_context(|| format!("{when}: nginx"))?;
    ensure!(said == "hello", "{when}: nginx says {said}");
    Ok(())
}

#[test]
fn redis_and_nginx_serve_while_the_daemon_is_stopped_killed_and_restarted() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let start = || Daemon::start_with(lab, Ns::Backend, Reach::OnlyLocal, &["--drain", "1"]);
        let mut daemon = start()?;
        let dir = lab.dir().display().to_string();
        let config = format!("{dir}/restart.conf");
        std::fs::write(
            &config,
            format!(
                "user root;\nworker_processes 2;\ndaemon off;\npid {dir}/nginx.pid;\nerror_log {dir}/nginx.log;\n\
                 events {{ worker_connections 512; }}\nhttp {{ access_log off; client_body_temp_path {dir}/t0;\n\
                 proxy_temp_path {dir}/t1; fastcgi_temp_path {dir}/t2; uwsgi_temp_path {dir}/t3; scgi_temp_path {dir}/t4;\n\
                 server {{ listen 127.0.0.1:7452; location / {{ return 200 hello; }} }} }}\n"
            ),
        )?;
        let mut nginx = daemon.command(lab, "/usr/sbin/nginx");
        nginx.args(["-e", &format!("{dir}/nginx.log"), "-c", &config]);
        let mut nginx = lab.spawn("restart-nginx", &mut nginx)?;
        let mut redis = daemon.command(lab, "redis-server");
        redis.args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port", "7451"]);
        let mut redis = lab.spawn("restart-redis", &mut redis)?;
        redis.wait_for("answers", PATIENCE, || both_serve(&daemon, lab, "at first").is_ok())?;
        for (round, signal) in ["TERM", "KILL", "TERM"].into_iter().enumerate() {
            let before = daemon.counters(lab)?;
            let mut waits = redis_cli(&daemon, lab);
            let mut waits = lab.spawn(&format!("restart-{round}"), waits.args(["subscribe", "nothing"]))?;
            let log = waits.log_path().to_owned();
            let subscribed = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("subscribe"));
            waits.wait_for("subscription", PATIENCE, subscribed)?;
            let ours = daemon.counters(lab)?.since(&before, "local_connections");
            ensure!(ours > 0, "round {round}: the subscriber is the kernel's");
            daemon.proc.signal(signal)?;
            both_serve(&daemon, lab, &format!("after {signal}"))?;
            let begun = Instant::now();
            waits.wait_end(PATIENCE).with_context(|| format!("{signal}: the subscriber hangs"))?;
            // After a drain of a second, or at once.
            ensure!(begun.elapsed() < SOON, "{signal}: told after {:?}", begun.elapsed());
            ensure!(waits.log().contains("Error"), "{signal}: the subscriber says only: {}", waits.log());
            daemon.proc.wait_end(PATIENCE)?;
            both_serve(&daemon, lab, &format!("{signal}, without a daemon"))?;
            daemon = start()?;
            let begun = Instant::now();
            loop {
                let before = daemon.counters(lab)?;
                both_serve(&daemon, lab, &format!("{signal}, with the next daemon"))?;
                if daemon.counters(lab)?.since(&before, "local_connections") >= 2 {
                    break;
                }
                ensure!(begun.elapsed() < PATIENCE, "{signal}: the next daemon is not found");
                std::thread::sleep(Duration::from_millis(100));
            }
            ensure!(redis.ended()?.is_none() && nginx.ended()?.is_none(), "{signal}: a server ended");
        }
        daemon.stop()
    })
}

/// Two processes with one epoll set that contains their listener. Each serves one client when it
/// finds a file.
const SHARE: &str = "import os, select, socket, sys, time
folder, port, events = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
listener = socket.create_server(('127.0.0.1', port))
listener.setblocking(False)
both = select.epoll()
both.register(listener, events)
print('listens', flush=True)
name = 'child' if os.fork() == 0 else 'parent'
while True:
    while not os.path.exists(f'{folder}/{name}.{port}'):
        time.sleep(0.005)
    if open(f'{folder}/{name}.{port}').read() == 'end':
        os._exit(0)
    os.unlink(f'{folder}/{name}.{port}')
    if not both.poll(20):
        sys.exit(f'{name} hears of nothing')
    connection, _ = listener.accept()
    connection.sendall(name.encode())
    connection.close()
";

const CLIENT: &str = "import socket, sys
connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 30)
print(connection.recv(100).decode())
";

/// The first one that finds the next daemon announces the listener. The other one still has it in
/// the set, also after it has found the daemon.
#[test]
fn shared_epoll_set_has_its_listener_in_both_processes_with_the_next_daemon() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let start = || Daemon::start_with(lab, Ns::Backend, Reach::OnlyLocal, &["--drain", "1"]);
        let mut daemon = start()?;
        let dir = lab.dir().display().to_string();
        // EPOLLIN, and with EPOLLET.
        let sets = [("7461", "1"), ("7462", "2147483649")];
        let mut servers = Vec::new();
        for (port, events) in sets {
            let mut server = daemon.command(lab, "/usr/bin/python3");
            servers.push(lab.spawn(&format!("share-{port}"), server.args(["-c", SHARE, &dir, port, events]))?);
        }
        let told = |who: &str, port: &str, what: &str| -> Result<()> {
            std::fs::write(format!("{dir}/told"), what)?;
            Ok(std::fs::rename(format!("{dir}/told"), format!("{dir}/{who}.{port}"))?)
        };
        let serves_somehow = |daemon: &Daemon, port: &str, who: &str| -> Result<()> {
            told(who, port, "serve")?;
            let said = finish(daemon.command(lab, "/usr/bin/python3").args(["-c", CLIENT, port]), "client")?;
            ensure!(said.trim() == who, "port {port}: {who} is to serve, and {said} did");
            Ok(())
        };
        let serves = |daemon: &Daemon, port: &str, who: &str| -> Result<bool> {
            let before = daemon.counters(lab)?;
            serves_somehow(daemon, port, who)?;
            Ok(daemon.counters(lab)?.since(&before, "local_connections") > 0)
        };
        let by_memory = |daemon: &Daemon, port: &str, who: &str| -> Result<()> {
            let begun = Instant::now();
            while !serves(daemon, port, who)? {
                ensure!(begun.elapsed() < PATIENCE, "port {port}: {who} does not find the daemon");
            }
            Ok(())
        };
        for server in &mut servers {
            let log = server.log_path().to_owned();
            server
                .wait_for("listener", PATIENCE, || std::fs::read_to_string(&log).is_ok_and(|text| !text.is_empty()))?;
        }
        for (round, signal) in ["KILL", "TERM", "KILL"].into_iter().enumerate() {
            let [first, second] = if round % 2 == 0 { ["parent", "child"] } else { ["child", "parent"] };
            for (port, _) in sets {
                by_memory(&daemon, port, first).with_context(|| format!("round {round}"))?;
                ensure!(serves(&daemon, port, second)?, "round {round}, port {port}: {second} is the kernel's");
                ensure!(serves(&daemon, port, first)?, "round {round}, port {port}: {first} is the kernel's");
            }
            daemon.proc.signal(signal)?;
            daemon.proc.wait_end(PATIENCE)?;
            daemon = start()?;
        }
        // One finds that the daemon has gone, and ends before the next one is there.
        for (port, _) in sets {
            by_memory(&daemon, port, "child")?;
            ensure!(serves(&daemon, port, "parent")?, "port {port}: the parent is the kernel's");
        }
        daemon.proc.signal("KILL")?;
        daemon.proc.wait_end(PATIENCE)?;
        for (port, _) in sets {
            serves_somehow(&daemon, port, "child")?;
            serves_somehow(&daemon, port, "parent")?;
            told("child", port, "end")?;
        }
        daemon = start()?;
        for (port, _) in sets {
            by_memory(&daemon, port, "parent").context("alone")?;
            ensure!(serves(&daemon, port, "parent")?, "port {port}: the parent alone is the kernel's");
        }
        daemon.stop()
    })
}

/// The child closes the listener that is in two of its sets, one nested in the other, and prints
/// its events.
const WATCH: &str = "import os, select, socket, sys, time
folder, port = sys.argv[1], int(sys.argv[2])
listener = socket.create_server(('127.0.0.1', port))
if os.fork():
    print('parent', flush=True)
    while True:
        while not os.path.exists(f'{folder}/told.{port}'):
            time.sleep(0.005)
        connection, _ = listener.accept()
        os.unlink(f'{folder}/told.{port}')
        connection.sendall(b'told')
        connection.close()
inner, outer = select.epoll(), select.epoll()
inner.register(listener, select.EPOLLIN | select.EPOLLET)
outer.register(inner, select.EPOLLIN)
listener.close()
while True:
    if not outer.poll(30) or not inner.poll(0):
        sys.exit('hears of nothing')
    open(f'{folder}/told.{port}', 'w').close()
    while os.path.exists(f'{folder}/told.{port}'):
        time.sleep(0.005)
";

/// A listener that a process has closed and still watches is the kernel's after the daemon has
/// ended: it gets events of the kernel's connections, and the next daemon starts without it.
#[test]
fn watcher_of_a_closed_listener_continues_after_the_daemons_end() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let start = || Daemon::start_with(lab, Ns::Backend, Reach::OnlyLocal, &["--drain", "1"]);
        let daemon = start()?;
        let dir = lab.dir().display().to_string();
        let port = "7463";
        let mut server = daemon.command(lab, "/usr/bin/python3");
        let mut server = lab.spawn("watch", server.args(["-c", WATCH, &dir, port]))?;
        let log = server.log_path().to_owned();
        server.wait_for("listener", PATIENCE, || std::fs::read_to_string(&log).is_ok_and(|text| !text.is_empty()))?;
        let tells = |daemon: &Daemon| -> Result<()> {
            let said = finish(daemon.command(lab, "/usr/bin/python3").args(["-c", CLIENT, port]), "client")?;
            ensure!(said.trim() == "told", "{said}");
            Ok(())
        };
        for _ in 0..3 {
            let before = daemon.counters(lab)?;
            tells(&daemon)?;
            ensure!(daemon.counters(lab)?.since(&before, "local_connections") > 0, "the kernel's");
        }
        let mut daemon = daemon;
        for signal in ["KILL", "TERM"] {
            daemon.proc.signal(signal)?;
            daemon.proc.wait_end(PATIENCE)?;
            (0..3).try_for_each(|_| tells(&daemon)).with_context(|| format!("after {signal}"))?;
            daemon = start()?;
        }
        daemon.stop()
    })
}
