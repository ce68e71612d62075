//! The backlog: effects on connections from the wire when a listener changes its backlog or its
//! process.

use anyhow::{Context, Result, ensure};
use fs_tests::process::Proc;
use fs_tests::unmodified::daemon::program;
use fs_tests::unmodified::stage::finish;
use fs_tests::unmodified::{Placement, Stage};
use fs_tests::{Lab, Ns};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const PORT: &str = "7345";

/// Listens with a large backlog, reduces it to one while two connections wait, and accepts after
/// the third has had time to arrive. With `pass` the listener moves to another process by
/// SCM_RIGHTS, which sets an option, keeps the backlog, and accepts when a file exists.
const SERVER: &str = "import os, select, socket, subprocess, sys, time
host, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if how == 'passed':
    _, (fd,), _, _ = socket.recv_fds(socket.socket(fileno=0), 1, 1)
    listener = socket.socket(fileno=fd)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
else:
    listener = socket.create_server((host, port), backlog=64)
if how == 'pass':
    here, there = socket.socketpair()
    child = subprocess.Popen([sys.executable, '-c', open('/proc/self/cmdline').read().split('\\0')[2], host, str(port), 'passed', sys.argv[4]], stdin=there)
    socket.send_fds(here, [b'l'], [listener.fileno()])
    listener.close()
    sys.exit(child.wait())
print('listens', flush=True)
if how == 'shrink':
    select.select([listener], [], [])
    time.sleep(0.5)
    listener.listen(1)
    print('shrunk', flush=True)
if how == 'passed':
    while not os.path.exists(sys.argv[4]):
        time.sleep(0.02)
else:
    time.sleep(1)
began = time.monotonic()
for _ in range(20 if how == 'passed' else 3):
    connection, _ = listener.accept()
    connection.sendall(connection.recv(1))
    connection.close()
print('served', int((time.monotonic() - began) * 1000), flush=True)
";

/// That many clients at once, each of which needs its byte back.
const CLIENTS: &str = "import socket, sys, threading
failed = []
def client():
    try:
        connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
        connection.sendall(b'?')
        if connection.recv(1) != b'?':
            failed.append('closed')
    except OSError as error:
        failed.append(repr(error))
threads = [threading.Thread(target=client) for _ in range(int(sys.argv[3]))]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(failed or 'served')
";

/// The file that the server waits for.
fn go(stage: &Stage) -> PathBuf {
    stage.lab.dir().join("go")
}

fn server(stage: &Stage, how: &str) -> Result<Proc> {
    let mut command = stage.server("/usr/bin/python3");
    let mut server = stage.lab.spawn("server", command.args(["-c", SERVER, stage.host, PORT, how]).arg(go(stage)))?;
    said(&mut server, "listens")?;
    Ok(server)
}

fn said(server: &mut Proc, word: &str) -> Result<()> {
    let log = server.log_path().to_owned();
    server.wait_for(word, PATIENCE, || std::fs::read_to_string(&log).is_ok_and(|log| log.contains(word)))
}

fn clients(stage: &Stage, name: &str, count: &str) -> Result<Proc> {
    stage.lab.spawn(name, stage.client("/usr/bin/python3").args(["-c", CLIENTS, stage.host, PORT, count]))
}

fn served(mut clients: Proc) -> Result<()> {
    let status = clients.wait_end(PATIENCE)?;
    let said = clients.log();
    ensure!(status.success() && said.trim() == "served", "{status}: {said}");
    Ok(())
}

#[test]
fn shorter_backlog_drops_no_connection() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        for placement in [Placement::Kernel, Placement::Server] {
            let stage = Stage::set(lab, placement)?;
            let before = stage.counters()?;
            let mut server = server(&stage, "shrink")?;
            let first = clients(&stage, "first", "2")?;
            said(&mut server, "shrunk")?;
            let late = clients(&stage, "late", "1")?;
            served(first).with_context(|| format!("{placement:?}: who came before"))?;
            served(late).with_context(|| format!("{placement:?}: who came after"))?;
            ensure!(server.wait_end(PATIENCE)?.success(), "{}", server.log());
            stage.proven(&before, 3)?;
            stage.end()?;
        }
        Ok(())
    })
}

/// Twenty waiting connections are twenty in the queue: with a backlog of one they would arrive one
/// by one, each when the core checks again.
#[test]
fn passed_listener_keeps_its_backlog() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut stage = Stage::set(lab, Placement::Server)?;
        let mut server = server(&stage, "pass")?;
        let clients = clients(&stage, "clients", "20")?;
        let control = stage.daemon().context("a daemon")?.control().to_owned();
        let at = format!("{}:{PORT}", stage.host);
        let began = Instant::now();
        loop {
            let mut ss = lab.command(Ns::Host, program());
            let list = finish(ss.arg("ss").env("FASTSOCK_CONTROL", &control), "fastsock ss")?;
            let rows = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            // State, Recv-Q, Send-Q, Local Address:Port.
            if rows.into_iter().any(|row| row.get(..4) == Some(&["LISTEN", "20", "64", &at])) {
                break;
            }
            ensure!(began.elapsed() < PATIENCE, "20 that wait, and room for 64: {list}");
            std::thread::sleep(Duration::from_millis(50));
        }
        std::fs::write(go(&stage), "")?;
        served(clients)?;
        ensure!(server.wait_end(PATIENCE)?.success(), "{}", server.log());
        stage.end()
    })
}
