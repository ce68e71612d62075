//! Connections with bytes in flight when a program is ended, or an interface is changed. The result
//! is compared with the kernel's.

use anyhow::{Context, Result, ensure};
use fs_tests::unmodified::slow::Slow;
use fs_tests::unmodified::{Placement, Stage};
use fs_tests::{Lab, Ns};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Writes as much as the socket takes, prints how much that was, and stays.
const WRITES: &str = "import socket, sys, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
for connection in iter(lambda: listener.accept()[0], None):
    if sys.argv[3] == 'read':
        connection.recv(10)
    else:
        connection.recv(10, socket.MSG_PEEK)
    connection.setblocking(False)
    accepted = 0
    try:
        while True:
            accepted += connection.send(b'x' * 50000)
    except BlockingIOError:
        print('accepted', accepted, flush=True)
    time.sleep(60)
";

/// Begins to read after the server was ended.
const READS: &str = "import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
connection.sendall(b'go')
time.sleep(2)
count = 0
try:
    while piece := connection.recv(65536):
        count += len(piece)
    print('end', count)
except ConnectionResetError:
    print('reset', count)
";

/// Ends a server that has filled its socket. Returns how much that was, and the client's report of
/// the end.
fn ended(stage: &Stage, signal: &str, how: &str) -> Result<(u64, String, u64)> {
    let port = "7340";
    let mut server = stage.server("/usr/bin/python3");
    let mut server = stage.lab.spawn("writes", server.args(["-c", WRITES, stage.host, port, how]))?;
    let mut client = stage.client("bash");
    // Until the server listens.
    let script = "until \"$@\" 2>/dev/null; do sleep 0.05; done";
    let client = client.args(["-c", script, "bash", "/usr/bin/python3", "-c", READS, stage.host, port]);
    let mut client = stage.lab.spawn("reads", client)?;
    let log = server.log_path().to_owned();
    server.wait_for("accepted", PATIENCE, || std::fs::read_to_string(&log).is_ok_and(|log| log.ends_with('\n')))?;
    server.signal(signal)?;
    server.wait_end(PATIENCE)?;
    ensure!(client.wait_end(PATIENCE)?.success(), "{}", client.log());
    let number = |text: &str, name| text.trim().strip_prefix(name)?.trim().parse().ok();
    let accepted = number(&server.log(), "accepted").context("what the server says")?;
    let said = client.log();
    let (end, count) = said.trim().split_once(' ').context("what the client says")?;
    Ok((accepted, end.to_owned(), count.parse()?))
}

#[test]
#[ignore = "long: make proof"]
fn accepted_bytes_arrive_when_the_program_is_ended() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        for placement in [Placement::Kernel, Placement::OneHost, Placement::Server] {
            let stage = Stage::set(lab, placement)?;
            let before = stage.counters()?;
            for signal in ["TERM", "KILL"] {
                let (accepted, end, count) = ended(&stage, signal, "read")?;
                println!("{placement:?}, SIG{signal}: {accepted} accepted, {end} after {count}");
                ensure!(end == "end" && count == accepted && accepted > 50_000);
                // If there are unread bytes, the peer must be told that they are lost.
                let (accepted, end, count) = ended(&stage, signal, "unread")?;
                println!("{placement:?}, SIG{signal}, unread: {accepted} accepted, {end} after {count}");
                ensure!(end == "reset" && count <= accepted);
            }
            stage.proven(&before, 100_000)?;
            stage.end()?;
        }
        Ok(())
    })
}

/// Responds early, and closes with unread bytes: the response, followed by a reset.
const REFUSES: &str = "import os, socket, sys, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print('listens', flush=True)
for turn in range(8):
    connection = listener.accept()[0]
    while not os.path.exists(f'{sys.argv[3]}-{turn}-sent'):
        time.sleep(0.01)
    connection.recv(1, socket.MSG_PEEK)
    connection.sendall(b'413')
    connection.close()
    open(f'{sys.argv[3]}-{turn}-closed', 'w').close()
";

/// Sends more than the server takes, and reads after the reset has arrived.
const UPLOADS: &str = "import os, socket, sys, time
for turn in range(8):
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
    connection.setblocking(False)
    try:
        while True:
            connection.send(b'x' * 50000)
    except BlockingIOError:
        pass
    open(f'{sys.argv[3]}-{turn}-sent', 'w').close()
    while not os.path.exists(f'{sys.argv[3]}-{turn}-closed'):
        time.sleep(0.01)
    time.sleep(0.3)
    connection.setblocking(True)
    answer = connection.recv(100)
    assert answer == b'413', answer
    try:
        print(connection.recv(100))
    except ConnectionResetError:
        print('reset')
";

#[test]
fn response_before_a_reset_reaches_a_sending_client() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        for placement in [Placement::KernelWire, Placement::OneHost, Placement::Client] {
            let stage = Stage::set(lab, placement)?;
            let before = stage.counters()?;
            let mut server = stage.server("/usr/bin/python3");
            let turns = stage.folder("turns")?.join("turn");
            server.args(["-c", REFUSES, stage.host, "7342"]).arg(&turns);
            let mut server = stage.lab.spawn("refuses", &mut server)?;
            let log = server.log_path().to_owned();
            server.wait_for("start", PATIENCE, || {
                std::fs::read_to_string(&log).is_ok_and(|log| log.contains("listens"))
            })?;
            let mut client = stage.client("/usr/bin/python3");
            let mut client =
                stage.lab.spawn("uploads", client.args(["-c", UPLOADS, stage.host, "7342"]).arg(&turns))?;
            let status = client.wait_end(PATIENCE)?;
            println!("{placement:?}: {}", client.log().replace('\n', " "));
            ensure!(status.success(), "{placement:?}: {}", client.log());
            ensure!(client.log().lines().all(|line| line == "reset"), "{placement:?}: {}", client.log());
            server.wait_end(PATIENCE)?;
            stage.proven(&before, 100_000)?;
            stage.end()?;
        }
        Ok(())
    })
}

const PORT: u16 = 7341;

#[test]
#[ignore = "long: make proof"]
fn connections_survive_changes_of_the_interface() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        for placement in [Placement::KernelWire, Placement::Server] {
            let stage = Stage::set(lab, placement)?;
            let before = stage.counters()?;
            let device = if placement == Placement::Server { "front0" } else { "back0" };
            let host = stage.host;
            let mut server = stage.server("/usr/bin/python3");
            server.args(["-m", "http.server", "--bind", host, &PORT.to_string(), "--directory"]).arg(stage.files());
            let _server = stage.serve("server", &mut server, PORT)?;
            let own = format!("{host}/24");
            let net = format!("{}.0/24", host.rsplit_once('.').context("an address")?.0);
            let changes: [(&str, &[&str], &[&str]); 4] = [
                ("address", &["addr", "del", &own, "dev", device], &["addr", "add", &own, "dev", device]),
                ("MTU", &["link", "set", device, "mtu", "1300"], &["link", "set", device, "mtu", "1500"]),
                ("link", &["link", "set", device, "down"], &["link", "set", device, "up"]),
                ("route", &["route", "del", &net, "dev", device], &["route", "add", &net, "dev", device, "src", host]),
            ];
            for (what, away, back) in changes {
                let client = Slow::start(&stage, "takes", stage.client("/usr/bin/python3"), PORT)?;
                lab.run(Ns::Host, "ip", away)?;
                std::thread::sleep(Duration::from_secs(1));
                // The kernel has removed the address's route with it, and adds it again with it.
                lab.run(Ns::Host, "ip", back)?;
                client.whole().with_context(|| format!("{placement:?}, {what}"))?;
            }
            stage.proven(&before, 40 << 20)?;
            stage.end()?;
        }
        Ok(())
    })
}
