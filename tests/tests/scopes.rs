//! Link-local IPv6 addresses under preload: a program that listens at one address, at all
//! addresses, and connects with and without a scope gets the same results as on kernel sockets.

use anyhow::{Result, ensure};
use fs_tests::Lab;
use fs_tests::apps::READY_LIMIT;
use fs_tests::lab::Ns;
use fs_tests::unmodified::daemon::{Daemon, Reach};
use fs_tests::unmodified::stage::finish;
use std::process::Command;

/// Prints results in the same words on the kernel and preloaded: `own` and `peer` for scopes.
const APP: &str = "import socket, sys
device = socket.if_nametoindex('client0')
def said(*words): print(*words, flush=True)
def ends(s):
    for what, (ip, port, flow, scope) in (('own', s.getsockname()), ('peer', s.getpeername())):
        said(what, ip, flow, 'device' if scope == device else scope)
def refused(what, call, *arguments):
    try: said(what, call(*arguments))
    except OSError as e: said(what, e.errno)
def new(): return socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
for scope in (0, 999):
    refused(f'connect {scope}', new().connect, ('fe80::f', 7802, 0, scope))
    refused(f'bind {scope}', new().bind, ('fe80::c', 7801, 0, scope))
everywhere, here = new(), new()
for s in (everywhere, here): s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
everywhere.bind(('::', 7800))
here.bind(('fe80::c', 7801, 0, device))
everywhere.listen(); here.listen()
ip, port, flow, scope = here.getsockname()
said('listens', ip, port, scope == device)
said('ready')
for listener in (everywhere, here):
    s, (ip, port, flow, scope) = listener.accept()
    said('accepted', ip, flow, 'device' if scope == device else scope)
    ends(s)
    data = s.recv(100000, socket.MSG_WAITALL)
    s.sendall(data)
    s.close()
s = new()
s.connect(('fe80::f', 7802, 0, device))
ends(s)
s.sendall(b'x' * 100000)
said(len(s.recv(100000, socket.MSG_WAITALL)))";

const PEER: &str = "import socket
device = socket.if_nametoindex('front0')
listener = socket.create_server(('::', 7802), family=socket.AF_INET6)
for port in (7800, 7801):
    s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    s.bind(('fe80::f', 0, 0, device))
    s.connect(('fe80::c', port, 0, device))
    s.sendall(b'x' * 100000)
    assert len(s.recv(100000, socket.MSG_WAITALL)) == 100000
s, _ = listener.accept()
s.sendall(s.recv(100000, socket.MSG_WAITALL))";

fn python(command: &mut Command, script: &str) {
    command.args(["60", "/usr/bin/python3", "-c", script]);
}

/// Returns the program's output, with `command` before it.
fn answers(lab: &Lab, name: &str, mut command: Command) -> Result<String> {
    python(&mut command, APP);
    let mut app = lab.spawn(name, &mut command)?;
    let log = app.log_path().to_owned();
    app.wait_for("listen", READY_LIMIT, || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready")))?;
    let mut peer = lab.command(Ns::Host, "timeout");
    python(&mut peer, PEER);
    let peer = finish(&mut peer, "the peer");
    app.wait_for("end", READY_LIMIT, || std::fs::read_to_string(&log).is_ok_and(|text| text.ends_with("100000\n")))?;
    peer?;
    Ok(std::fs::read_to_string(&log)?)
}

#[test]
fn link_local_addresses_have_the_kernels_scope() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1", "--offload", "off"])? else { return Ok(()) };
    lab.check(|lab| {
        for (ns, device, own) in [(Ns::Client, "client0", "fe80::c/64"), (Ns::Host, "front0", "fe80::f/64")] {
            lab.run(ns, "ip", &["addr", "add", own, "dev", device, "nodad"])?;
        }
        let on_kernel = answers(lab, "kernel", lab.command(Ns::Client, "timeout"))?;
        let mut daemon = Daemon::start(lab, Ns::Client, Reach::Wire)?;
        let before = daemon.counters(lab)?;
        let preloaded = answers(lab, "preloaded", daemon.command(lab, "timeout"))?;
        ensure!(preloaded == on_kernel, "on the kernel:\n{on_kernel}preloaded:\n{preloaded}");
        ensure!(on_kernel.contains("accepted fe80::f 0 device"), "{on_kernel}");
        let bytes = daemon.counters(lab)?.since(&before, "wire_bytes");
        // Both directions of the connection that the wildcard listener accepted.
        ensure!(bytes >= 200_000, "{bytes} bytes went over the wire");
        daemon.stop()
    })
}
