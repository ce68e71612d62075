//! Bytes in flight when a program ends, is killed, or closes with unread bytes: the peer sees what
//! it sees on the kernel, where the same runs first.

use anyhow::{Context, Result, ensure};
use fs_tests::unmodified::{Placement, Stage};
use fs_tests::{Lab, Ns};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(150);

/// Begins with an exchange of small messages, so that a ring carries. Then it writes as much as the
/// socket takes, prints how much that was, and stays.
const WRITES: &str = "import socket, sys, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
connection = listener.accept()[0]
for _ in range(100):
    connection.sendall(connection.recv(1))
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
const READS: &str = "import os, socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=50)
for _ in range(100):
    connection.sendall(b'a')
    assert connection.recv(1) == b'a'
connection.sendall(b'go')
while not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
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
    let (port, gone) = ("7340", stage.folder("gone")?.join("gone"));
    let mut server = stage.server("/usr/bin/python3");
    let mut server = stage.lab.spawn("writes", server.args(["-c", WRITES, stage.host, port, how]))?;
    let mut client = stage.client("bash");
    // Waits until the server listens.
    let script = "until \"$@\" 2>/dev/null; do sleep 0.05; done";
    let client = client.args(["-c", script, "bash", "/usr/bin/python3", "-c", READS, stage.host, port]).arg(&gone);
    let mut client = stage.lab.spawn("reads", client)?;
    let log = server.log_path().to_owned();
    server.wait_for("accepted", PATIENCE, || std::fs::read_to_string(&log).is_ok_and(|log| log.ends_with('\n')))?;
    server.signal(signal)?;
    server.wait_end(PATIENCE)?;
    std::fs::write(&gone, "")?;
    ensure!(client.wait_end(PATIENCE)?.success(), "{}", client.log());
    let number = |text: &str, name| text.trim().strip_prefix(name)?.trim().parse().ok();
    let accepted = number(&server.log(), "accepted").context("what the server says")?;
    let said = client.log();
    let (end, count) = said.trim().split_once(' ').context("what the client says")?;
    Ok((accepted, end.to_owned(), count.parse()?))
}

#[test]
fn accepted_bytes_arrive_when_the_program_is_ended() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        for placement in [Placement::Kernel, Placement::OneHost] {
            let stage = Stage::set(lab, placement)?.yielding();
            let before = stage.reported();
            for signal in ["TERM", "KILL"] {
                let (accepted, end, count) = ended(&stage, signal, "read")?;
                println!("{placement:?}, SIG{signal}: {accepted} accepted, {end} after {count}");
                ensure!(end == "end" && count == accepted && accepted > 50_000);
                // If there are unread bytes, the peer must learn that they are lost.
                let (accepted, end, count) = ended(&stage, signal, "unread")?;
                println!("{placement:?}, SIG{signal}, unread: {accepted} accepted, {end} after {count}");
                ensure!(end == "reset" && count <= accepted);
            }
            if placement == Placement::OneHost {
                stage.proven(before)?;
            }
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
    for _ in range(50):
        connection.sendall(connection.recv(1))
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
    for _ in range(50):
        connection.sendall(b'a')
        assert connection.recv(1) == b'a'
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
        for placement in [Placement::Kernel, Placement::OneHost] {
            let stage = Stage::set(lab, placement)?.yielding();
            let before = stage.reported();
            let turns = stage.folder("turns")?.join("turn");
            let mut server = stage.server("/usr/bin/python3");
            let mut server =
                stage.lab.spawn("refuses", server.args(["-c", REFUSES, stage.host, "7342"]).arg(&turns))?;
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
            if placement == Placement::OneHost {
                stage.proven(before)?;
            }
            stage.end()?;
        }
        Ok(())
    })
}

/// A server with twenty connections forks a thousand children that write to them. Some are killed,
/// and in the middle the server itself. Before that a server is killed whose child has closed the
/// connection and lives on. Prints what the clients see.
const FORKS: &str = "
import os, socket, sys, time
at = ('127.0.0.1', 7441)
listener = socket.create_server(at, backlog=64)

def warm(server, ends):
    for one in ends:
        for _ in range(50):
            one.sendall(one.recv(1)) if server else (one.sendall(b'a'), one.recv(1))

ready, closed = os.pipe()
server = os.fork()
if server == 0:
    accepted = listener.accept()[0]
    warm(True, [accepted])
    if os.fork() == 0:
        accepted.close()
        os.write(closed, str(os.getpid()).encode())
        time.sleep(100)
        os._exit(0)
    time.sleep(100)
    os._exit(0)
one = socket.create_connection(at, 60)
warm(False, [one])
child = int(os.read(ready, 100))
os.kill(server, 9)
os.waitpid(server, 0)
try:
    print('child', one.recv(1) or 'end')
except OSError as error:
    print('child', error.strerror or error)
os.kill(child, 9)

server = os.fork()
if server == 0:
    all = [listener.accept()[0] for _ in range(20)]
    warm(True, all)
    for i in range(1000):
        pid = os.fork()
        if pid == 0:
            all[i % 20].sendall(b'%04d' % i)
            os._exit(0)
        if i % 7 == 0:
            os.kill(pid, 9)
        if i == 600:
            os.kill(os.getpid(), 9)
numbers, broken, foreign = [], 0, 0
ends = [socket.create_connection(at, 60) for _ in range(20)]
warm(False, ends)
for number, one in enumerate(ends):
    said = b''
    try:
        while part := one.recv(4096):
            said += part
    except OSError as error:
        print('error', error.strerror or error)
    broken += len(said) % 4
    mine = [int(said[at:at + 4]) for at in range(0, len(said) - 3, 4)]
    foreign += sum(i % 20 != number for i in mine)
    numbers += mine
os.waitpid(server, 0)
# A child that was killed may have been too early.
lost = {i for i in range(601) if i % 7} - set(numbers)
print('broken', broken, 'foreign', foreign, 'doubled', len(numbers) - len(set(numbers)), 'lost', len(lost))
";

#[test]
fn killed_process_releases_its_connections_although_its_children_live() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let stage = Stage::set(lab, Placement::OneHost)?.yielding();
        let before = stage.reported();
        let said = stage.run("/usr/bin/python3", &["-c", FORKS])?;
        println!("{}", said.trim());
        let has = |line: &str| said.lines().any(|said| said == line);
        ensure!(has("child end") || has("child Connection reset by peer"), "the client of a killed process: {said}");
        ensure!(!said.contains("error") && has("broken 0 foreign 0 doubled 0 lost 0"), "{said}");
        stage.promoted(before)?;
        stage.end()
    })
}

/// Servers that accept, and servers that wait in epoll first, with 1,500 client processes one after
/// another. Prints their private memory with page tables, their descriptors and mappings after 300
/// clients and after all.
const CLIENTS: &str = "
import os, select, socket
def held():
    lines = dict(line.split(':', 1) for line in open('/proc/self/status'))
    kib = sum(int(lines[name].split()[0]) for name in ('RssAnon', 'RssShmem', 'VmPTE'))
    return kib, len(os.listdir('/proc/self/fd')), sum(1 for _ in open('/proc/self/maps'))

for waits in 'accept', 'epoll':
    listener = socket.create_server(('127.0.0.1', 0), backlog=64)
    at = listener.getsockname()
    server = os.fork()
    if server == 0:
        first = 0
        if waits == 'epoll':
            set = select.epoll()
            set.register(listener, select.EPOLLIN)
        for i in range(1516):
            if waits == 'epoll':
                set.poll()
            one = listener.accept()[0]
            if waits == 'epoll':
                set.register(one, select.EPOLLIN)
            for _ in range(8):
                if waits == 'epoll':
                    while not any(fd == one.fileno() for fd, _ in set.poll()): pass
                one.sendall(one.recv(1))
            one.close()
            if i == 299:
                first = held()
        print(waits, *first, *held(), flush=True)
        os._exit(0)
    listener.close()
    for i in range(1516):
        client = os.fork()
        if client == 0:
            one = socket.create_connection(at)
            for _ in range(8):
                one.send(b'x')
                one.recv(1)
            os._exit(0)
        os.waitpid(client, 0)
    os.waitpid(server, 0)
";

#[test]
#[ignore = "long: make proof"]
fn server_does_not_grow_with_its_client_processes() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = fs_tests::unmodified::Daemon::start(lab, Ns::Backend)?.eager();
        let mut command = daemon.command(lab, "timeout");
        let said =
            fs_tests::unmodified::stage::finish(command.args(["300", "/usr/bin/python3", "-c", CLIENTS]), "clients")?;
        println!("{}", said.trim());
        for waits in ["accept ", "epoll "] {
            let held = said.lines().find_map(|line| line.strip_prefix(waits)).context("no figures")?;
            let held = held.split(' ').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
            let [kib, fds, maps, kib_after, fds_after, maps_after] = held[..] else { anyhow::bail!("{said}") };
            // A page for each would be 4.8 MB.
            ensure!(kib_after < kib + 1024, "KiB after 300 and 1,516 client processes: {said}");
            ensure!(fds_after <= fds + 2 && maps_after <= maps + 32, "descriptors and mappings: {said}");
        }
        daemon.stop()
    })
}
