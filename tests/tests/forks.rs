//! Processes that die while their children live: their resources are released, even if children
//! still have copies.

use anyhow::{Context, Result, ensure};
use fs_tests::unmodified::daemon::{Daemon, Reach};
use fs_tests::unmodified::stage::{finish, lo_down};
use fs_tests::{Lab, Ns};

/// A server is killed whose child has closed the connection and lives on. Then a server with twenty
/// connections forks a thousand children that write to them. Some are killed, and in the middle the
/// server itself. Prints what a client sees.
const FORKS: &str = "
import os, socket, time
at = ('127.0.0.1', 7441)
listener = socket.create_server(at, backlog=64)

def client():
    one = socket.create_connection(at)
    one.settimeout(60)
    return one

ready, closed = os.pipe()
server = os.fork()
if server == 0:
    accepted = listener.accept()[0]
    if os.fork() == 0:
        accepted.close()
        os.write(closed, str(os.getpid()).encode())
        time.sleep(100)
        os._exit(0)
    time.sleep(100)
    os._exit(0)
one = client()
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
    for i in range(1000):
        pid = os.fork()
        if pid == 0:
            all[i % 20].sendall(b'%04d' % i)
            os._exit(0)
        if i % 7 == 0:
            os.kill(pid, 9)
        if i == 600:
            os.kill(os.getpid(), 9)
whole, broken = 0, 0
for one in [client() for _ in range(20)]:
    said = b''
    try:
        while part := one.recv(4096):
            said += part
    except OSError as error:
        print('error', error.strerror or error)
    whole += len(said) // 4
    broken += len(said) % 4
os.waitpid(server, 0)
print('whole', whole)
print('broken', broken)
";

#[test]
fn killed_process_releases_its_resources_although_its_children_live() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Backend, Reach::OnlyLocal)?;
        lo_down(lab, Ns::Backend)?;
        let said = finish(daemon.command(lab, "/usr/bin/python3").args(["-c", FORKS]), "forks")?;
        println!("{}", said.trim());
        let has = |line: &str| said.lines().any(|said| said == line);
        ensure!(has("child end") || has("child Connection reset by peer"), "the client of a killed process: {said}");
        ensure!(!said.contains("error") && has("broken 0"), "{said}");
        let whole = said.lines().find_map(|line| line.strip_prefix("whole ")).context("no count")?;
        // 601 children, of which the killed ones may have been too early.
        ensure!((500..=601).contains(&whole.parse::<u32>()?), "{said}");
        daemon.stop()
    })
}

/// Servers that accept, and servers that wait in epoll first, with 1,500 client processes one after
/// another. Prints their private memory, with page tables, after 300 clients and after all.
const CLIENTS: &str = "
import os, select, socket
def held():
    lines = dict(line.split(':', 1) for line in open('/proc/self/status'))
    return sum(int(lines[name].split()[0]) for name in ('RssAnon', 'VmPTE'))

for waits in 'accept', 'epoll':
    listener = socket.create_server(('127.0.0.1', 0), backlog=64)
    at = listener.getsockname()
    server = os.fork()
    if server == 0:
        held_first = 0
        if waits == 'epoll':
            set = select.epoll()
            set.register(listener, select.EPOLLIN)
        for i in range(1516):
            if waits == 'epoll':
                set.poll()
            one = listener.accept()[0]
            one.recv(1)
            one.close()
            if i == 299:
                held_first = held()
        print(waits, held_first, held(), flush=True)
        os._exit(0)
    listener.close()
    for i in range(1516):
        client = os.fork()
        if client == 0:
            one = socket.create_connection(at)
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
        let mut daemon = Daemon::start(lab, Ns::Backend, Reach::OnlyLocal)?;
        lo_down(lab, Ns::Backend)?;
        let said = finish(daemon.command(lab, "/usr/bin/python3").args(["-c", CLIENTS]), "clients")?;
        println!("{}", said.trim());
        for waits in ["accept ", "epoll "] {
            let held = said.lines().find_map(|line| line.strip_prefix(waits)).context("no figures")?;
            let held = held.split(' ').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
            // A page for each would be 4.8 MB. 1,216 is a multiple of the arenas between two
            // sweeps: as many are mapped each time.
            ensure!(held.len() == 2 && held[1] < held[0] + 1024, "KiB after 300 and 1,516 client processes: {said}");
        }
        daemon.stop()
    })
}
