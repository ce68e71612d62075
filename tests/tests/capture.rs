//! `fastsock capture`: the data of programs, through memory and over the wire, as read by tshark.

use anyhow::{Context, Result, ensure};
use fs_tests::Lab;
use fs_tests::apps::READY_LIMIT;
use fs_tests::lab::{FRONT, Ns};
use fs_tests::process::Proc;
use fs_tests::unmodified::daemon::{Daemon, Reach, program};
use fs_tests::unmodified::stage::finish;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Replies to lines of a connection with their number and text, and reports when it is ready.
const SERVER: &str = "import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])))
print('ready', flush=True)
while True:
    c, a = s.accept()
    with c, c.makefile('rwb') as f:
        for number, line in enumerate(f):
            f.write(b'%d:%s' % (number, line))
            f.flush()";

/// Sends lines, with lengths from one byte to more than an initial ring holds, and prints what was
/// sent and received.
const CLIENT: &str = "import socket, sys, hashlib
c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
sent, got = b'', b''
with c, c.makefile('rwb') as f:
    for number in range(40):
        line = (b'%d-' % number) * (1 + number * number) + b'\\n'
        sent += line
        f.write(line)
        f.flush()
        got += f.readline()
print(len(sent), hashlib.sha256(sent).hexdigest(), len(got), hashlib.sha256(got).hexdigest())";

/// Echoes, with parallel connections.
const ECHO: &str = "import socket, sys, threading
s = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=64)
print('ready', flush=True)
def serve(c):
    with c:
        while (got := c.recv(65536)):
            c.sendall(got)
while True:
    c, a = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()";

/// Parallel connections, with a MiB per direction in pieces of all lengths. Prints a line for each:
/// our port, and CLIENT's output.
const MANY: &str = "import socket, sys, hashlib, threading, random
one = threading.Lock()
def run(seed):
    r = random.Random(seed)
    sent = r.randbytes(1 << 20)
    c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
    def write():
        at = 0
        while at < len(sent):
            n = r.randrange(1, 40000)
            c.sendall(sent[at:at + n])
            at += n
        c.shutdown(socket.SHUT_WR)
    writer = threading.Thread(target=write)
    writer.start()
    got = b''
    while (more := c.recv(65536)):
        got += more
    writer.join()
    d = hashlib.sha256
    with one: print(c.getsockname()[1], len(sent), d(sent).hexdigest(), len(got), d(got).hexdigest(), flush=True)
all = [threading.Thread(target=run, args=(n,)) for n in range(4)]
[t.start() for t in all]
[t.join() for t in all]";

/// The hosts' addresses, ports, and the SHA-256 of each side's bytes, in CLIENT's format.
const STREAM: &str = "import sys, hashlib
sides = {0: b'', 1: b''}
nodes = []
for line in sys.stdin:
    if line.startswith('Node '):
        nodes.append(line.split()[2])
    elif len(nodes) == 2 and line.strip() and not line.startswith('='):
        side = int(line.startswith('\\t'))
        sides[side] += bytes.fromhex(line.strip())
print(*(x for side in (0, 1) for x in (len(sides[side]), hashlib.sha256(sides[side]).hexdigest())))";

fn wait_for(proc: &mut Proc, text: &str) -> Result<()> {
    let log = proc.log_path().to_owned();
    proc.wait_for(text, READY_LIMIT, || std::fs::read_to_string(&log).is_ok_and(|said| said.contains(text)))
}

fn serve(lab: &Lab, daemon: &Daemon, name: &str, host: &str, port: u16) -> Result<Proc> {
    let mut command = daemon.command(lab, "/usr/bin/python3");
    let mut server = lab.spawn(name, command.args(["-c", SERVER, host, &port.to_string()]))?;
    wait_for(&mut server, "ready")?;
    Ok(server)
}

fn client(lab: &Lab, mut command: Command, host: &str, port: u16) -> Result<String> {
    let said = finish(command.args(["-c", CLIENT, host, &port.to_string()]), "client")?;
    println!("{}: {host}:{port}: {}", lab.dir().display(), said.trim());
    Ok(said.trim().to_owned())
}

/// A capture that writes to `file`, and has begun.
fn capture(lab: &Lab, daemon: &Daemon, name: &str, file: &Path, more: &[&str]) -> Result<Proc> {
    let mut command = lab.command(daemon.ns(), program());
    command.env("FASTSOCK_CONTROL", daemon.control()).arg("capture").arg("-w").arg(file).args(more);
    let mut capture = lab.spawn(name, &mut command)?;
    wait_for(&mut capture, "capturing")?;
    Ok(capture)
}

fn tshark(args: &[&str]) -> Result<String> {
    let output = Command::new("tshark").args(args).stderr(Stdio::piped()).output().context("tshark")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "tshark {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

/// Returns what both sides of the connection to `port` have sent, by `tshark -z follow`, in
/// CLIENT's format.
fn followed(file: &Path, port: u16) -> Result<String> {
    let file = file.to_str().context("a path")?;
    let filter = format!("tcp.dstport == {port}");
    let streams = tshark(&["-r", file, "-Y", &filter, "-T", "fields", "-e", "tcp.stream"])?;
    let stream = streams.lines().next().with_context(|| format!("nothing to port {port} in {file}"))?.to_owned();
    let text = tshark(&["-r", file, "-q", "-z", &format!("follow,tcp,raw,{stream}")])?;
    let mut python = Command::new("/usr/bin/python3");
    let mut python = python.args(["-c", STREAM]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    std::io::Write::write_all(&mut python.stdin.take().context("a pipe")?, text.as_bytes())?;
    let output = python.wait_with_output()?;
    ensure!(output.status.success(), "not as tshark writes it: {text:.400}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Waits until a capture contains such a connection. A capture polls a few times per second.
fn until_followed(file: &Path, port: u16, is_it: impl Fn(&str) -> bool) -> Result<()> {
    let until = Instant::now() + READY_LIMIT;
    loop {
        // A file that ends in the middle of a block is read once there is more.
        let seen = followed(file, port).map_err(|error| format!("{error:#}"));
        if seen.as_deref().is_ok_and(&is_it) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "the capture has {seen:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Flags of tshark in a correct connection. On the wire, a host that does not get the CPU for a
/// while retransmits.
const SOUND: [&str; 2] = ["tcp.analysis.window_full", "tcp.analysis.zero_window"];
const SOUND_ON_THE_WIRE: [&str; 3] =
    ["tcp.analysis.retransmission", "tcp.analysis.duplicate_ack", "tcp.analysis.out_of_order"];

/// Checks for gaps, acknowledgments of unseen data and malformed packets; through memory also for
/// retransmissions.
fn is_flawless(file: &Path, on_the_wire: bool) -> Result<()> {
    let file = file.to_str().context("a path")?;
    let sound = SOUND.iter().chain(SOUND_ON_THE_WIRE.iter().filter(|_| on_the_wire));
    let filter = sound.fold("tcp.analysis.flags".to_owned(), |filter, flag| format!("{filter} && !{flag}"));
    let flaws = tshark(&["-r", file, "-Y", &filter])?;
    ensure!(flaws.is_empty(), "{flaws}");
    let malformed = tshark(&["-r", file, "-Y", "_ws.malformed"])?;
    ensure!(malformed.is_empty(), "{malformed}");
    Ok(())
}

#[test]
fn connection_through_memory_is_read_by_tshark() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::OnlyLocal)?;
        let mut server = serve(lab, &daemon, "server", "127.0.0.1", 7611)?;
        // One existing arena, and one that is added.
        let python = || daemon.command(lab, "/usr/bin/python3");
        let before = daemon.counters(lab)?;
        client(lab, python(), "127.0.0.1", 7611)?;
        let file = lab.dir().join("memory.pcapng");
        let mut capturing = capture(lab, &daemon, "capture", &file, &[])?;
        let sent = client(lab, python(), "127.0.0.1", 7611)?;
        let bytes = daemon.counters(lab)?.since(&before, "local_bytes");
        ensure!(bytes > 100_000, "{bytes} bytes went through memory: the kernel carried the rest");
        let status = capturing.terminate(READY_LIMIT)?;
        let said = capturing.log();
        println!("{said}");
        ensure!(status.success() && said.contains("shared memory: 1 connections"), "{status}: {said}");
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file)?.permissions());
        ensure!(mode & 0o077 == 0, "others may read what was sent: {mode:o}");
        let seen = followed(&file, 7611)?;
        ensure!(seen == sent, "sent {sent}, captured {seen}");
        is_flawless(&file, false)?;
        let list = tshark(&["-r", file.to_str().context("a path")?, "-c", "5"])?;
        println!("{list}");
        server.kill()?;
        daemon.stop()
    })
}

#[test]
fn capture_works_as_a_pipe_and_as_a_wireshark_interface() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::OnlyLocal)?;
        let mut server = serve(lab, &daemon, "server", "127.0.0.1", 7612)?;
        let python = || daemon.command(lab, "/usr/bin/python3");
        // Into a pipe, read at the same time. The reader's end ends it.
        let mut pipe = lab.command(Ns::Host, "bash");
        pipe.env("FASTSOCK_CONTROL", daemon.control());
        let script = "set -o pipefail; \"$0\" capture -w - | tshark -l -r - -Y 'tcp.flags.fin == 1' -c 400 -T fields -e tcp.srcport";
        let mut pipe = lab.spawn("pipe", pipe.args(["-c", script]).arg(program()))?;
        wait_for(&mut pipe, "capturing")?;
        client(lab, python(), "127.0.0.1", 7612)?;
        wait_for(&mut pipe, "7612")?;
        // As an interface.
        let folders = tshark(&["-G", "folders"])?;
        let place = folders.lines().find_map(|line| line.strip_prefix("Extcap path:")).context("no extcap")?.trim().to_owned();
        let folder = lab.dir().join("extcap");
        std::fs::create_dir_all(&folder)?;
        let script = format!("#!/bin/sh\nexec {} capture \"$@\"\n", program().display());
        let ours = folder.join("fastsock");
        std::fs::write(&ours, script)?;
        std::fs::set_permissions(&ours, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        // Root's tshark only searches there. Only this command sees the mount (ip-netns(8)).
        let with = |args: &[&str]| {
            let mut command = lab.command(Ns::Host, "sh");
            command.args(["-c", "mount --bind \"$0\" \"$1\" && shift && exec tshark \"$@\""]).arg(&folder).arg(&place);
            command.env("FASTSOCK_CONTROL", daemon.control()).args(args);
            command
        };
        let interfaces = with(&["-D"]).output()?;
        let interfaces = String::from_utf8_lossy(&interfaces.stdout).into_owned();
        ensure!(interfaces.contains("fastsock (fastsock: accelerated connections)"), "{interfaces}");
        let file = lab.dir().join("extcap.pcapng");
        let mut command = with(&["-i", "fastsock", "-w", file.to_str().context("a path")?]);
        let mut capturing = lab.spawn("tshark", &mut command)?;
        wait_for(&mut capturing, "Capturing on")?;
        // Its program begins a moment after that line: once connections to another server are seen.
        let mut probed = serve(lab, &daemon, "probed", "127.0.0.1", 7615)?;
        let until = Instant::now() + READY_LIMIT;
        while followed(&file, 7615).is_err() {
            ensure!(Instant::now() < until, "nothing is captured: {}", capturing.log());
            client(lab, python(), "127.0.0.1", 7615)?;
            std::thread::sleep(Duration::from_millis(300));
        }
        probed.kill()?;
        let sent = client(lab, python(), "127.0.0.1", 7612)?;
        until_followed(&file, 7612, |seen| seen == sent)?;
        capturing.signal("INT")?;
        capturing.wait_end(READY_LIMIT)?;
        let seen = followed(&file, 7612)?;
        ensure!(seen == sent, "sent {sent}, captured {seen}: {}", capturing.log());
        pipe.kill()?;
        server.kill()?;
        daemon.stop()
    })
}

#[test]
fn connection_over_the_wire_is_read_by_tshark() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::Wire)?;
        let mut server = serve(lab, &daemon, "server", FRONT, 7613)?;
        let file = lab.dir().join("wire.pcapng");
        let mut capturing = capture(lab, &daemon, "capture", &file, &[])?;
        // The peer is the kernel of another host.
        let sent = client(lab, lab.command(Ns::Client, "/usr/bin/python3"), FRONT, 7613)?;
        // And one through memory, in the same file.
        let near = client(lab, daemon.command(lab, "/usr/bin/python3"), FRONT, 7613)?;
        let counters = daemon.counters(lab)?;
        ensure!(counters.value("wire_bytes") > 100_000 && counters.value("local_bytes") > 100_000, "{counters:?}");
        until_followed(&file, 7613, |seen| seen == sent || seen == near)?;
        capturing.terminate(READY_LIMIT)?;
        println!("{}", capturing.log());
        let seen = followed(&file, 7613)?;
        ensure!(seen == sent || seen == near, "sent {sent}, captured {seen}");
        let path = file.to_str().context("a path")?;
        let interfaces =
            tshark(&["-r", path, "-Y", "tcp.dstport == 7613", "-T", "fields", "-e", "frame.interface_name"])?;
        for wanted in [fs_tests::servers::devices(Ns::Host).0, "fastsock-memory"] {
            ensure!(interfaces.lines().any(|name| name == wanted), "nothing of {wanted}");
        }
        // Each by itself.
        for (only, wanted) in [("wire", &sent), ("memory", &near)] {
            let file = lab.dir().join(format!("{only}.pcapng"));
            let mut capturing = capture(lab, &daemon, only, &file, &["--only", only])?;
            let again = client(lab, lab.command(Ns::Client, "/usr/bin/python3"), FRONT, 7613)?;
            client(lab, daemon.command(lab, "/usr/bin/python3"), FRONT, 7613)?;
            until_followed(&file, 7613, |seen| *seen == **wanted)?;
            capturing.terminate(READY_LIMIT)?;
            ensure!(again == **wanted && followed(&file, 7613)? == **wanted, "only {only}");
            is_flawless(&file, only == "wire")?;
        }
        server.kill()?;
        daemon.stop()
    })
}

/// Returns the bytes through memory that a capture reports as seen and missed. `None`: it is of the
/// wire, or has not seen all connections.
fn memory_bytes(said: &str) -> Option<(u64, u64)> {
    let (_, rest) = said.split_once("shared memory: 4 connections, ")?;
    let (seen, rest) = rest.split_once(" bytes")?;
    let missed = match rest.split_once("(missed: ") {
        Some((_, rest)) if !rest.contains(" more bytes, 0 connections, all connections of 0 pairs") => return None,
        Some((_, rest)) => rest.split_once(' ')?.0.parse().ok()?,
        None => 0,
    };
    Some((seen.parse().ok()?, missed))
}

/// Four connections at once, with a MiB per direction. On a busy machine a capture may miss some
/// data. Then it reports that, and everything it does not report as missed is there byte for byte.
#[test]
fn missed_data_under_load_is_counted() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::Wire)?;
        let mut command = daemon.command(lab, "/usr/bin/python3");
        let mut server = lab.spawn("echo", command.args(["-c", ECHO, FRONT, "7614"]))?;
        wait_for(&mut server, "ready")?;
        for (only, mut client) in
            [("memory", daemon.command(lab, "/usr/bin/python3")), ("wire", lab.command(Ns::Client, "/usr/bin/python3"))]
        {
            let file = lab.dir().join(format!("load-{only}.pcapng"));
            let mut capturing = capture(lab, &daemon, &format!("load-{only}"), &file, &["--only", only])?;
            let before = daemon.counters(lab)?;
            let sent = finish(client.args(["-c", MANY, FRONT, "7614"]), "client")?;
            let kind = if only == "memory" { "local_bytes" } else { "wire_bytes" };
            let bytes = daemon.counters(lab)?.since(&before, kind);
            ensure!(bytes >= 8 << 20, "{only}: {bytes} bytes: the kernel carried the rest");
            // Sent data is in the capture's queue, or in the rings, when it is told to end: it
            // polls once more.
            capturing.terminate(Duration::from_secs(60))?;
            let said = capturing.log();
            println!("{only}: {said}");
            let is_whole = !said.contains("missed");
            ensure!(sent.lines().count() == 4, "{sent}");
            // Of connections that it has seen, every byte is there or counted.
            if let Some((seen, missed)) = memory_bytes(&said) {
                ensure!(seen + missed == 8 << 20, "{seen} and {missed} bytes: {said}");
            }
            for line in sent.lines() {
                let (port, sent) = line.split_once(' ').context("a line of the client's")?;
                let seen = followed(&file, port.parse()?).map_err(|error| format!("{error:#}"));
                ensure!(
                    !is_whole || seen.as_deref() == Ok(sent),
                    "{only}, port {port}: sent {sent}, captured {seen:?}, and it said {said}"
                );
            }
        }
        // How long the server let them wait, and the core's turns. The cores publish ten times per
        // second.
        let (accepts, turns) = ("accept_wait_count{core=\"0\"}", "turn_time_p99_ns{core=\"0\"}");
        let until = Instant::now() + READY_LIMIT;
        loop {
            let counters = daemon.counters(lab)?;
            if counters.value(accepts) >= 4 && counters.value(turns) > 0 {
                break;
            }
            ensure!(Instant::now() < until, "{counters:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut top = lab.command(Ns::Host, program());
        let top = finish(top.env("FASTSOCK_CONTROL", daemon.control()).args(["top", "--once", "-i", "0.1"]), "top")?;
        ensure!(top.contains("\naccept wait ") && top.contains("\nturn time "), "{top}");
        server.kill()?;
        daemon.stop()
    })
}
