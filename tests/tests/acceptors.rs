//! Servers of many processes that wait for the same listener: each connection wakes one of them,
//! and none polls.

use anyhow::{Context, Result, ensure};
use fs_tests::unmodified::daemon::{Daemon, Reach};
use fs_tests::unmodified::stage::{finish, lo_down};
use fs_tests::{Lab, Ns};
use std::process::Command;

/// A hundred processes that wait in one of three ways, by argument: first without clients, then
/// with one client now and then, then with 200 client processes at once. Prints how often they
/// slept in each part: the best of several runs, because on a busy machine the woken process may
/// run late, and then another one is woken too.
const PREFORK: &str = "
import os, select, signal, socket, sys, time
at = ('127.0.0.1', 7411)
listener = socket.create_server(at, backlog=1024)

def wait():
    if sys.argv[1] == 'poll':
        listener.setblocking(False)
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        return poll.poll
    if sys.argv[1] == 'epoll':
        listener.setblocking(False)
        epoll = select.epoll()
        epoll.register(listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        return epoll.poll
    return lambda: None

def accept():
    ready = wait()
    while True:
        ready()
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            continue
        connection.setblocking(True)
        connection.recv(1)
        connection.sendall(b'!')
        connection.close()

def ask():
    with socket.create_connection(at, timeout=60) as connection:
        connection.sendall(b'?')
        return connection.recv(2) == b'!'

def fork(body):
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if body() else 1)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(2)
    return pid

def slept():
    count = 0
    for pid in acceptors:
        with open(f'/proc/{pid}/status') as status:
            count += sum(int(line.split()[1]) for line in status if line.startswith('voluntary'))
    return count

acceptors = [fork(accept) for _ in range(100)]
# The client is a process of its own, that has been here before.
def client():
    for _ in range(100):
        time.sleep(0.002)
        assert ask()
    return True
os.waitpid(fork(client), 0)
time.sleep(1)
most = int(sys.argv[2])
idle = 1_000_000
for _ in range(6):
    before = slept()
    time.sleep(3)
    now = slept() - before
    print('seconds', now)
    idle = min(idle, now)
    if idle <= 10:
        break
print('idle', idle)
for _ in range(6):
    before = slept()
    assert os.waitpid(fork(client), 0)[1] == 0
    woken = slept() - before
    print('round', woken)
    if 100 <= woken <= most:
        break
print('woken', woken)
began = time.monotonic()
clients = [fork(lambda: all(ask() for _ in range(10))) for _ in range(200)]
failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in clients)
print('failed', failed)
print('milliseconds', int((time.monotonic() - began) * 1000))
for pid in acceptors:
    os.kill(pid, signal.SIGKILL)
";

/// Returns the number that the program printed under a name.
fn value(said: &str, name: &str) -> Result<u64> {
    let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.with_context(|| format!("no {name} in: {said}"))?.parse().context(name.to_owned())
}

fn run(mut command: Command, how: &str, most: u64) -> Result<String> {
    finish(command.args(["-c", PREFORK, how, &most.to_string()]), how)
}

#[test]
#[ignore = "measures how often processes sleep: make proof"]
fn hundred_sleeping_acceptors_are_woken_one_by_one() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Backend, Reach::OnlyLocal)?;
        lo_down(lab, Ns::Backend)?;
        for how in ["accept", "poll", "epoll"] {
            // One for the connection, one for its byte if the client was a moment late with it, and
            // a few for the new client. The kernel's poll wakes all hundred, as ours does. (If each
            // were told of the new client: above 300.)
            let most = match how {
                "accept" => 250,
                "poll" => 20_000,
                _ => 250,
            };
            let kernel = run(lab.command(Ns::Host, "/usr/bin/python3"), how, most)?;
            let ours = run(daemon.command(lab, "/usr/bin/python3"), how, most)?;
            println!("{how}: kernel {}; ours {}", kernel.trim().replace('\n', ", "), ours.trim().replace('\n', ", "));
            ensure!(value(&ours, "failed")? == 0, "{how}: {ours}");
            // None of them in three seconds, and a few for stragglers.
            ensure!(value(&ours, "idle")? <= 10, "{how}: they poll: {ours}");
            let ours = value(&ours, "woken")?;
            ensure!((100..=most).contains(&ours), "{how}: {ours} sleeps for 100 connections, at most {most}");
        }
        daemon.stop()
    })
}

/// Two processes watch a listener with EPOLLEXCLUSIVE. A client process connects while the last of
/// them is busy, and the other one accepts. Prints how often the last one slept in the second of
/// its next wait.
const AWAY: &str = "
import os, select, socket, sys, time
listener = socket.create_server(('127.0.0.1', 7414))
listener.setblocking(False)
def watch():
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)
    return epoll
def slept():
    with open('/proc/self/status') as status:
        return sum(int(line.split()[1]) for line in status if line.startswith('voluntary'))
(ready, tell), (served, told) = os.pipe(), os.pipe()
other = os.fork()
if other == 0:
    epoll = watch()
    os.write(tell, b'!')
    epoll.poll(60)
    connection, _ = listener.accept()
    assert connection.recv(1)
    connection.sendall(b'!')
    os.write(told, b'!')
    connection.recv(1)
    os._exit(0)
os.read(ready, 1)
time.sleep(0.1)
epoll = watch()
client = os.fork()
if client == 0:
    epoll.close()
    listener.close()
    connection = socket.create_connection(('127.0.0.1', 7414), timeout=60)
    connection.sendall(b'?')
    assert connection.recv(1)
    time.sleep(2)
    os._exit(0)
os.read(served, 1)
before = slept()
assert not epoll.poll(1)
print('slept', slept() - before)
assert os.waitpid(client, 0)[1] == os.waitpid(other, 0)[1] == 0
";

/// An epoll set whose client another set has accepted sleeps: it does not poll for connections that
/// others took.
#[test]
fn waiter_sleeps_after_another_one_took_its_client() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Backend, Reach::OnlyLocal)?;
        lo_down(lab, Ns::Backend)?;
        let said = finish(daemon.command(lab, "/usr/bin/python3").args(["-c", AWAY]), "two sets")?;
        let slept = value(&said, "slept")?;
        // One for the second itself, and some for a machine with other work to do.
        ensure!(slept <= 10, "{slept} sleeps in a second");
        let ours = daemon.counters(lab)?.value("local_connections");
        ensure!(ours == 1, "{ours} connections were ours");
        daemon.stop()
    })
}

/// A master of root's that accepts nothing, a worker of another user, and a client process with a
/// kept connection. The master sets an option as Apache does for each graceful restart. Prints the
/// carrier of a second client's connections.
const MASTER: &str = "
import os, socket, sys
listener = socket.create_server(('127.0.0.1', 7412), backlog=1024)

def ask():
    connection = socket.create_connection(('127.0.0.1', 7412), timeout=60)
    connection.sendall(b'?')
    assert connection.recv(2) == b'!'
    return connection

worker = os.fork()
if worker == 0:
    os.setuid(33)
    while True:
        connection, _ = listener.accept()
        if connection.recv(1):
            connection.sendall(b'!')
            kept = connection
(answered, tell), (told, end) = os.pipe(), os.pipe()
client = os.fork()
if client == 0:
    listener.close()
    kept = ask()
    os.write(tell, b'!')
    os.read(told, 1)
    os._exit(0)
os.close(tell)
assert os.read(answered, 1)
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
os.write(end, b'!')
os.waitpid(client, 0)
again = os.fork()
if again == 0:
    listener.close()
    for _ in range(20):
        ask().close()
    os._exit(0)
failed = os.waitstatus_to_exitcode(os.waitpid(again, 0)[1]) != 0
os.kill(worker, 9)
sys.exit(failed)
";

/// Its worker's connections stay accelerated: setting an option does not show the connections that
/// others accept.
#[test]
fn master_of_another_user_may_set_options() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Backend, Reach::OnlyLocal)?;
        finish(daemon.command(lab, "/usr/bin/python3").args(["-c", MASTER]), "the master")?;
        let counters = daemon.counters(lab)?;
        let ours = counters.value("local_connections");
        ensure!(ours == 21, "{ours} connections were ours, not 21: {counters:?}");
        daemon.stop()
    })
}

/// A server that sleeps in epoll_wait and has no free descriptor, not even for the library. A new
/// client process connects, and three seconds later another thread closes some descriptors. Prints
/// how long the accept took.
const AT_ITS_LIMIT: &str = "
import os, resource, select, socket, sys, threading, time
listener = socket.create_server(('127.0.0.1', 7413))
listener.setblocking(False)
go, start = os.pipe()
if os.fork() == 0:
    os.close(start)
    listener.close()
    os.set_inheritable(go, True)
    ask = 'import os, socket; os.read(%d, 1); c = socket.create_connection((\"127.0.0.1\", 7413)); c.sendall(b\"?\"); c.recv(1)' % go
    os.execv(sys.executable, [sys.executable, '-c', ask])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
events = select.epoll()
events.register(listener, select.EPOLLIN)
taken = []
try:
    while True: taken.append(os.open('/dev/null', os.O_RDONLY))
except OSError: pass
def free():
    time.sleep(3)
    for number in taken[:20]: os.close(number)
threading.Thread(target=free).start()
os.write(start, b'!')
began = time.monotonic()
while True:
    events.poll(60)
    try:
        connection, _ = listener.accept()
        break
    except OSError:
        # EMFILE until then; who waits is told of again.
        assert time.monotonic() - began < 50, 'deaf'
        time.sleep(0.2)
assert time.monotonic() - began < 50, 'deaf'
connection.recv(1)
connection.sendall(b'!')
os.wait()
";

/// The server asks again for the arena of a client that came while it had no free descriptor: no
/// doorbell rings for connections waiting in it.
#[test]
fn server_at_its_limit_gets_the_waiting_client_later() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Backend, Reach::OnlyLocal)?;
        finish(daemon.command(lab, "/usr/bin/python3").args(["-c", AT_ITS_LIMIT]), "the server")?;
        daemon.stop()
    })
}
