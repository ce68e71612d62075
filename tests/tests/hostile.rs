//! Hostile processes of another user, against the match service and their own peers: the service
//! goes on to give rings to others, and a server goes on to serve its other clients.
//!
//! What a client can do to the service message by message is in `fs-pairs/tests/hostile.rs`, and to
//! its peer's ring in fs-carrier (`scribbling_peer_loses_its_own_bytes_only`).

use anyhow::{Result, ensure};
use fs_tests::apps::workspace;
use fs_tests::process::Proc;
use fs_tests::unmodified::Daemon;
use fs_tests::unmodified::stage::finish;
use fs_tests::{Lab, Ns};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(150);

/// A process with a connection to itself. Ends when that has a ring.
const HONEST: &str = "import socket, sys, time
until = time.monotonic() + 140
while time.monotonic() < until:
    l = socket.create_server(('127.0.0.1', 0))
    a = socket.create_connection(l.getsockname()); b, _ = l.accept()
    for i in range(200):
        a.sendall(b'x'); assert b.recv(9) == b'x'; b.sendall(b'y'); assert a.recv(9) == b'y'
    maps = open('/proc/self/maps').read()
    if '/memfd:fastsock-pair' in maps: sys.exit()
sys.exit('no ring')";

fn serves(lab: &Lab, daemon: &mut Daemon, when: &str) -> Result<()> {
    let begun = Instant::now();
    finish(daemon.command(lab, "timeout").args(["145", "/usr/bin/python3", "-c", HONEST]), when)?;
    println!("{when}: a ring after {:?}", begun.elapsed());
    ensure!(daemon.proc.ended()?.is_none(), "{when}: the daemon has ended: {}", daemon.proc.log());
    Ok(())
}

/// Returns a command of the user nobody, without the library.
fn nobody(lab: &Lab, program: &str) -> Command {
    let mut command = lab.command(Ns::Host, "setpriv");
    command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups", program]);
    command
}

/// Starts a script that prints a line once it attacks.
fn attacks(lab: &Lab, name: &str, mut command: Command, line: &str) -> Result<Proc> {
    let mut proc = lab.spawn(name, &mut command)?;
    let log = proc.log_path().to_owned();
    proc.wait_for(line, PATIENCE, || std::fs::read_to_string(&log).is_ok_and(|log| log.contains(line)))?;
    Ok(proc)
}

/// A close(2) of these blocks: SO_LINGER with bytes that the peer does not take. The service has
/// the last descriptor of each, since the process closes its own without a word.
const LINGER: &str = "import socket, struct, sys, time
l = socket.create_server(('127.0.0.1', 0))
kept = []
for number in range(1, 17):
    a = socket.create_connection(l.getsockname()); b, _ = l.accept()
    a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 1000))
    a.setblocking(False)
    try:
        while True: a.send(b'x' * 65536)
    except BlockingIOError: pass
    service = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    service.connect(sys.argv[1])
    socket.send_fds(service, [struct.pack('<4sBBHQQQ', b'fsK1', 1, 0, 0, number, 0, 0)], [a.fileno()])
    kept.append((b, service))
    # A close(2) here would be the one that waits, without the service's duplicate.
    a.close()
print('offered', flush=True)
time.sleep(1000)";

/// Returns true if a thread of a process is in close(2) of a socket that lingers.
fn is_in_close(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let call = format!("{} ", libc::SYS_close);
    threads
        .into_iter()
        .any(|thread| std::fs::read_to_string(thread.path().join("syscall")).is_ok_and(|now| now.starts_with(&call)))
}

#[test]
fn socket_whose_close_waits_blocks_nobody() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.yielding();
        serves(lab, &mut daemon, "before")?;
        let mut command = nobody(lab, "/usr/bin/python3");
        command.args(["-c", LINGER]).arg(daemon.control());
        let mut hostile = attacks(lab, "hostile", command, "offered")?;
        // An offer waits for its other end at most 250 ms. Then the service closes its duplicate.
        let pid = daemon.proc.pid();
        hostile.wait_for("a close(2) that blocks", PATIENCE, || is_in_close(pid))?;
        serves(lab, &mut daemon, "with sockets that linger")?;
        hostile.kill()?;
        daemon.stop()
    })
}

/// A FUSE file that does not respond when it is closed.
#[test]
fn file_whose_close_waits_blocks_nobody() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: no /dev/fuse");
        return Ok(());
    }
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.yielding();
        // Mounts need root here; a user has fusermount(1) for them.
        let mut command = lab.command(Ns::Host, "/usr/bin/python3");
        command.arg(workspace().join("tests/hostile/fuse.py")).arg(daemon.control()).arg(lab.dir().join("fuse"));
        let mut hostile = attacks(lab, "hostile", command, "held")?;
        let served = serves(lab, &mut daemon, "with files that are not closed");
        // After the end of the file system no thread is blocked any more.
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", hostile.pid()))?;
        for pid in children.split_whitespace() {
            finish(Command::new("kill").args(["-KILL", pid]), "kill")?;
        }
        hostile.kill()?;
        served?;
        daemon.stop()
    })
}

/// Connections without a word, offers that nobody matches, and rubbish: half messages, and descriptors
/// of all kinds. A connection with rubbish soon ends, so each has one of the three. From 8 processes:
/// each has sent a message before the first line, and none has ended.
const FLOOD: &str = "import os, random, resource, socket, struct, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))
parent = os.getpid()
begun, begins = os.pipe()
for _ in range(8):
    if os.fork() == 0: break
else:
    os.close(begins)
    many = 0
    while many < 8:
        piece = os.read(begun, 40)
        assert piece, f'{many} processes flood, the others have ended'
        many += len(piece)
    print('floods', flush=True)
    print('ended:', os.wait(), flush=True)
r = random.Random(os.getpid())
l = socket.create_server(('127.0.0.1', 0))
files = [os.open('/dev/null', os.O_RDONLY), os.pipe()[0], l.fileno(), socket.socketpair()[0].detach()]
kept = []
while os.getppid() == parent:
    try:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(1); s.connect(sys.argv[1])
        kept.append(s)
        way = r.choice(('silent', 'offers', 'rubbish'))
        for number in range(1, 1 if way == 'silent' else r.randrange(2, 12)):
            kind, length = (1, 32) if way == 'offers' else (r.randrange(0, 10), r.choice((32, 32, 32, 31, 1)))
            what = struct.pack('<4sBBHQQQ', b'fsK1', kind, 0, 0, number, 0, 0)[:length]
            if way == 'offers' or r.random() < 0.7:
                c = socket.create_connection(l.getsockname()); l.accept()[0].detach()
                socket.send_fds(s, [what], [c.detach()])
            else:
                socket.send_fds(s, [what], r.choices(files, k=r.randrange(1, 4)))
            if begins: os.write(begins, b'.'); os.close(begins); begins = 0
    except OSError: pass
    if len(kept) > 100 or r.random() < 0.02:
        # No object may have one of the numbers that are closed: its end would close the next socket.
        s = None; kept = []
        os.closerange(30, 1000)";

#[test]
fn flood_of_another_user_takes_no_rings_away() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.yielding();
        serves(lab, &mut daemon, "before")?;
        let before = daemon.proc.resident()?;
        let mut command = nobody(lab, "/usr/bin/python3");
        command.args(["-c", FLOOD]).arg(daemon.control());
        let mut hostile = attacks(lab, "hostile", command, "floods")?;
        // Connections without a word, and offers that wait: each is a descriptor of the daemon.
        let held = || std::fs::read_dir(format!("/proc/{}/fd", daemon.proc.pid())).map_or(0, Iterator::count);
        let begun = Instant::now();
        hostile.wait_for("connections and offers of the flood", PATIENCE, || held() > 100)?;
        println!("{} descriptors after {:?}", held(), begun.elapsed());
        for turn in 0..3 {
            serves(lab, &mut daemon, &format!("under the flood, {turn}"))?;
        }
        let grown = daemon.proc.resident()?.saturating_sub(before);
        println!("the daemon has grown by {grown} bytes");
        ensure!(
            hostile.ended()?.is_none() && !hostile.log().contains("ended:"),
            "it floods no more:\n{}",
            hostile.log()
        );
        ensure!(grown < 64 << 20, "the daemon has grown by {grown} bytes");
        hostile.kill()?;
        serves(lab, &mut daemon, "after")?;
        daemon.stop()
    })
}

/// A client of a server that writes anything into the memory that it shares with it, while the
/// connection is used.
const SCRIBBLES: &str = "import os, random, re, signal, socket, sys, time
until = time.monotonic() + 140
places = []
while not places:
    assert time.monotonic() < until, 'no ring'
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 50)
    for _ in range(200):
        s.sendall(b'PING\\r\\n'); s.recv(100)
    places = [tuple(int(x, 16) for x in re.match('([0-9a-f]+)-([0-9a-f]+) rw', line).groups())
              for line in open('/proc/self/maps') if '/memfd:fastsock-pair' in line]
memory = open('/proc/self/mem', 'r+b', buffering=0)
r = random.Random(int(sys.argv[2]))
s.setblocking(False)
try:
    for turn in range(1000):
        begin, end = r.choice(places)
        if r.random() < 0.7: end = begin + 4096
        memory.seek(r.randrange(begin, end - 8) & ~7)
        memory.write(r.choice((bytes(8), b'\\xff' * 8, r.randbytes(8), b'PING\\r\\nPI')))
        if turn == 0:
            print('begins', flush=True)
            # What follows may make it hang.
            signal.alarm(10)
        try:
            s.send(b'PING\\r\\n')
            if r.random() < 0.5: s.recv(100)
        except BlockingIOError: pass
        print('turn', flush=True)
except OSError as error: print(error)";

#[test]
fn scribbling_clients_lose_their_own_connections_only() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host)?.yielding();
        let mut server = daemon.command(lab, "redis-server");
        server.args(["--save", "", "--appendonly", "no", "--port", "7471", "--bind", "127.0.0.1"]);
        let mut redis = lab.spawn("redis", &mut server)?;
        redis.wait_for("answer", PATIENCE, || lab.reaches(Ns::Host, "127.0.0.1", 7471))?;
        let mut turns = 0;
        for seed in ["1", "2", "3", "4", "5", "6", "7", "8"] {
            let mut command = lab.command(Ns::Host, "setpriv");
            command
                .args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "env"])
                .args(daemon.environment());
            // The hostile process may crash itself.
            let output = command
                .args(["timeout", "-k", "1", "150", "/usr/bin/python3", "-c", SCRIBBLES, "7471", seed])
                .output()?;
            let errors = String::from_utf8_lossy(&output.stderr);
            ensure!(output.stdout.starts_with(b"begins\n"), "it wrote nothing: {}\n{errors}", output.status);
            let text = String::from_utf8_lossy(&output.stdout);
            turns += text.lines().filter(|line| *line == "turn").count();
            ensure!(redis.ended()?.is_none(), "the server has ended: {}", redis.log());
            let mut bench = daemon.command(lab, "timeout");
            bench.args(["150", "redis-benchmark", "-q", "-p", "7471", "-n", "2000", "-c", "5", "-t", "get,set"]);
            finish(&mut bench, "another client")?;
        }
        // Eight if each ends with its first one.
        ensure!(turns > 80, "only {turns} writes");
        ensure!(daemon.reported("ring_sends") > 0, "the others had no ring");
        redis.kill()?;
        daemon.stop()
    })
}
