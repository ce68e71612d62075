//! The kernel is the reference: fastsock refuses what the kernel would refuse, with programs and
//! rules of the host. Attacks by malicious programs are in `cargo xtask redteam`.

use anyhow::{Result, ensure};
use fs_tests::Lab;
use fs_tests::apps::READY_LIMIT;
use fs_tests::lab::{FRONT, Ns};
use fs_tests::process::Proc;
use fs_tests::unmodified::daemon::{Daemon, Reach};
use fs_tests::unmodified::stage::finish;
use std::process::Command;
use std::time::{Duration, Instant};

/// A server that responds to each of its clients while they send.
const SERVER: &str = "import socket, sys, threading
s = socket.create_server((sys.argv[1], int(sys.argv[2])))
print('ready', flush=True)
def serve(c):
    while data := c.recv(100):
        c.sendall(data)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()";

/// The start of clients: `ask(c)` returns whether the server responds.
const HEAD: &str = "import ctypes, os, socket, sys, time
at = (sys.argv[1], int(sys.argv[2]))
libc = ctypes.CDLL(None, use_errno=True)
def connect():
    return socket.create_connection(at, 10)
def ask(c):
    c.sendall(b'x' * 100)
    assert c.recv(100, socket.MSG_WAITALL) == b'x' * 100
def refused(error):
    try:
        c = connect()
    except error as e:
        return
    ask(c)
    sys.exit('it was connected')
# The same where the daemon has to hear of something first: a second later at most, if it need not wait for its turn.
def refused_soon(error):
    until = time.monotonic() + 50
    while time.monotonic() < until:
        try:
            c = connect()
        except error as e:
            return
        try:
            ask(c)
        except ConnectionError:
            # It was made before the rule was heard of, and ended by it.
            pass
        c.close()
        time.sleep(0.05)
    sys.exit('it was connected')
first = connect()
ask(first)
";

/// Landlock's rules for TCP ports (Linux 6.7): no connect is permitted. (`landlock_create_ruleset`,
/// `landlock_restrict_self`.)
const LANDLOCK: &str = "
class Attr(ctypes.Structure):
    _fields_ = [('fs', ctypes.c_uint64), ('net', ctypes.c_uint64)]
ruleset = libc.syscall(444, ctypes.byref(Attr(0, 2)), 16, 0)
if ruleset < 0:
    print('no landlock')
    sys.exit()
libc.prctl(38, 1, 0, 0, 0)
assert libc.syscall(446, ruleset, 0) == 0
refused(PermissionError)
if len(sys.argv) == 3:
    # What it executes has them too.
    os.execv(sys.executable, [sys.executable, '-c', CODE, *sys.argv[1:], 'again'])
";

/// The same after exec: nothing was connected there before.
const AFTER: &str = "import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
except PermissionError:
    sys.exit()
sys.exit('it was connected')";

/// Its own namespace, in which no server has that address.
const UNSHARE: &str = "
assert libc.unshare(0x40000000) == 0
refused(OSError)";

fn server(lab: &Lab, daemon: &Daemon, at: &str, port: u16) -> Result<Proc> {
    let mut command = daemon.command(lab, "/usr/bin/python3");
    let mut server = lab.spawn("server", command.args(["-c", SERVER, at, &port.to_string()]))?;
    let log = server.log_path().to_owned();
    server
        .wait_for("answer", READY_LIMIT, || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready")))?;
    Ok(server)
}

fn client(lab: &Lab, daemon: &Daemon, script: &str, at: &str, port: u16) -> Command {
    let mut command = daemon.command(lab, "timeout");
    command.args(["200", "/usr/bin/python3", "-c", script, at, &port.to_string()]);
    command
}

/// Runs `script` behind [`HEAD`]; its first connection is by memory.
fn accelerated(lab: &Lab, daemon: &Daemon, script: &str, at: &str, port: u16) -> Result<String> {
    let before = daemon.counters(lab)?;
    let said = finish(&mut client(lab, daemon, &format!("{HEAD}{script}"), at, port), "client")?;
    let bytes = daemon.counters(lab)?.since(&before, "local_bytes");
    ensure!(bytes >= 200, "{bytes} bytes went through memory: the kernel carried them, and nothing is shown");
    Ok(said)
}

/// Waits until a new connection uses memory: the daemon notices changes when it gets the CPU.
fn until_accelerated(lab: &Lab, daemon: &Daemon, at: &str, port: u16) -> Result<()> {
    let until = Instant::now() + READY_LIMIT;
    while accelerated(lab, daemon, "", at, port).is_err() {
        ensure!(Instant::now() < until, "no connection is by memory");
    }
    Ok(())
}

#[test]
fn landlocked_process_cannot_connect() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::OnlyLocal)?;
        let mut server = server(lab, &daemon, "127.0.0.1", 7610)?;
        let code = LANDLOCK.replace("CODE", &format!("{AFTER:?}"));
        let said = accelerated(lab, &daemon, &code, "127.0.0.1", 7610)?;
        if said.contains("no landlock") {
            println!("skipped: this kernel has no Landlock for TCP");
        }
        server.kill()?;
        daemon.stop()
    })
}

#[test]
fn process_that_leaves_a_namespace_loses_its_servers() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::OnlyLocal)?;
        let mut server = server(lab, &daemon, FRONT, 7611)?;
        accelerated(lab, &daemon, UNSHARE, FRONT, 7611)?;
        server.kill()?;
        daemon.stop()
    })
}

#[test]
fn firewall_rules_are_obeyed() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::OnlyLocal)?;
        let mut server = server(lab, &daemon, "127.0.0.1", 7612)?;
        accelerated(lab, &daemon, "", "127.0.0.1", 7612)?;
        for chain in ["output", "input", "prerouting"] {
            let verdict = if chain == "prerouting" { "drop" } else { "reject with tcp reset" };
            let rules = format!(
                "add table inet t; add chain inet t c {{ type filter hook {chain} priority 0; }}; \
                 add rule inet t c tcp dport 7612 {verdict}"
            );
            // The rule is added while a process has the route cached.
            let load = format!(
                "import subprocess\nsubprocess.run(['nft', {rules:?}], check=True)\n\
                 socket.setdefaulttimeout(5)\ndef connect(): return socket.create_connection(at, 5)\nrefused_soon(OSError)"
            );
            accelerated(lab, &daemon, &load, "127.0.0.1", 7612)?;
            let lost = client(lab, &daemon, HEAD, "127.0.0.1", 7612).output()?;
            ensure!(!lost.status.success(), "a rule of {chain} let a new process through");
            lab.run(Ns::Host, "nft", &["flush", "ruleset"])?;
            // Nothing is lost by rules that were there.
            until_accelerated(lab, &daemon, "127.0.0.1", 7612)?;
        }
        server.kill()?;
        daemon.stop()
    })
}

/// Loads a rule while two connections are open, and sends requests on the one that it drops until
/// that ends. The other continues.
const STOPPED: &str = "
import subprocess, time
other = socket.create_connection((at[0], at[1] + 1), 10)
ask(other)
chain = 'add table inet t; add chain inet t c { type filter hook output priority 0; }; add rule inet t c '
subprocess.run(['nft', chain + f'tcp dport {at[1]} drop'], check=True)
begun = time.monotonic()
try:
    while time.monotonic() < begun + 30:
        ask(first)
        time.sleep(0.01)
    sys.exit('it goes on')
except (ConnectionResetError, BrokenPipeError) as e:
    took = time.monotonic() - begun
ask(other)
subprocess.run(['nft', 'flush ruleset; ' + chain.replace('; }', '; policy drop; }').removesuffix('add rule inet t c ')], check=True)
again = time.monotonic()
try:
    while time.monotonic() < again + 30:
        ask(other)
        time.sleep(0.01)
    sys.exit('the other one goes on')
except (ConnectionResetError, BrokenPipeError) as e:
    took = took, time.monotonic() - again
# A second, where nobody waits for a turn: one of the two.
assert max(took) < 20 and min(took) < 5, took
print('stopped after', took)";

/// The same, with a configuration that keeps open connections.
const KEPT: &str = "
import subprocess, time
chain = 'add table inet t; add chain inet t c { type filter hook output priority 0; policy drop; }'
subprocess.run(['nft', chain], check=True)
for turn in range(50):
    ask(first)
    time.sleep(0.02)";

#[test]
fn open_connections_that_a_rule_could_stop_end() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::OnlyLocal)?;
        let mut servers = [server(lab, &daemon, "127.0.0.1", 7614)?, server(lab, &daemon, "127.0.0.1", 7615)?];
        println!("{}", accelerated(lab, &daemon, STOPPED, "127.0.0.1", 7614)?.trim());
        lab.run(Ns::Host, "nft", &["flush", "ruleset"])?;
        for server in &mut servers {
            server.kill()?;
        }
        daemon.stop()?;
        let config = lab.dir().join("keep.toml");
        std::fs::write(&config, "firewall_open_flows = \"keep\"\n")?;
        let config = config.to_string_lossy().into_owned();
        let mut daemon = Daemon::start_with(lab, Ns::Host, Reach::OnlyLocal, &["--config", &config])?;
        let mut server = server(lab, &daemon, "127.0.0.1", 7616)?;
        accelerated(lab, &daemon, KEPT, "127.0.0.1", 7616)?;
        lab.run(Ns::Host, "nft", &["flush", "ruleset"])?;
        server.kill()?;
        daemon.stop()
    })
}

/// Sends a request, keeps its connection until its input ends, and sends another one.
const HOLDER: &str = "import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
def ask():
    c.sendall(b'x' * 100)
    assert c.recv(100, socket.MSG_WAITALL) == b'x' * 100
ask()
print('ready', flush=True)
import time, os
while not os.path.exists(sys.argv[3]):
    time.sleep(0.05)
ask()
print('again', flush=True)";

/// On the wire: with rules the kernel serves new connections, also while earlier connections keep
/// the port on the cores.
#[test]
fn kernel_serves_the_wire_while_there_are_rules() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::Wire)?;
        let mut server = server(lab, &daemon, FRONT, 7613)?;
        let go = lab.dir().join("go-on");
        let arguments = ["200", "/usr/bin/python3", "-c", HOLDER, FRONT, "7613"];
        let before = daemon.counters(lab)?;
        let mut held = lab.spawn("holder", lab.command(Ns::Client, "timeout").args(arguments).arg(&go))?;
        let log = held.log_path().to_owned();
        let said = |what: &str| std::fs::read_to_string(&log).is_ok_and(|text| text.contains(what));
        held.wait_for("connect", READY_LIMIT, || said("ready"))?;
        let by_cores = |before| anyhow::Ok(daemon.counters(lab)?.since(before, "core_connections{core=\"0\"}"));
        // Cores publish their counters a few times per second.
        held.wait_for("served by a core", READY_LIMIT, || by_cores(&before).is_ok_and(|served| served == 1))?;
        // It lets everything of this test pass.
        let rules = "add table inet t; add chain inet t c { type filter hook input priority 0; }; \
                     add rule inet t c tcp dport 1 drop";
        lab.run(Ns::Host, "nft", &[rules])?;
        let ask = || {
            finish(
                lab.command(Ns::Client, "timeout").args(["100", "/usr/bin/python3", "-c", HEAD, FRONT, "7613"]),
                "a client",
            )
        };
        // Packets of a new client on the cores, after they have published their counters. The
        // daemon notices rules after at most a second, if it gets the CPU.
        let packets = || -> Result<u64> {
            let now = daemon.counters(lab)?;
            ask()?;
            std::thread::sleep(Duration::from_millis(700));
            Ok(daemon.counters(lab)?.since(&now, "stack_rx_packets{core=\"0\"}"))
        };
        let soon = |what: &str, is: &dyn Fn(u64) -> bool| -> Result<()> {
            let until = Instant::now() + READY_LIMIT;
            loop {
                let had = packets()?;
                if is(had) {
                    return Ok(());
                }
                ensure!(Instant::now() < until, "the cores had {had} packets: {what}");
            }
        };
        soon("the rule was gone around", &|had| had < 5)?;
        std::fs::write(&go, "")?;
        let status = held.wait_end(READY_LIMIT)?;
        ensure!(status.success() && said("again"), "the open connection ended with {status}:\n{}", held.log());
        lab.run(Ns::Host, "nft", &["flush", "ruleset"])?;
        soon("without rules the port stays the kernel's", &|had| had >= 5)?;
        server.kill()?;
        daemon.stop()
    })
}
