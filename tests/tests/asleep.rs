//! Waiting costs nothing while nothing happens: processes and threads whose connections have a ring
//! sleep in the kernel until there are bytes, or an end.

use anyhow::{Context, Result, ensure};
use fs_tests::unmodified::Daemon;
use fs_tests::{Lab, Ns};
use std::time::Duration;

/// Processes that wait in each way on connections with a ring, without any event. Prints how often
/// each of them slept in the quietest of five seconds, and then what ended its wait.
const SLEEPERS: &str = "
import os, select, signal, socket, struct, sys, threading, time
at = ('127.0.0.1', 7421)
listener = socket.create_server(at, backlog=64)

def pair():
    a = socket.create_connection(at)
    b = listener.accept()[0]
    def echo():
        for _ in range(100): b.sendall(b.recv(1))
    other = threading.Thread(target=echo)
    other.start()
    for _ in range(100):
        a.sendall(b'a')
        a.recv(1)
    other.join()
    assert '/memfd:fastsock-pair' in open('/proc/self/maps').read()
    return a, b

def recv(a): pass

def epoll(a):
    epoll = select.epoll()
    epoll.register(a, select.EPOLLIN)
    epoll.poll()

def edge(a):
    epoll = select.epoll()
    epoll.register(a, select.EPOLLIN | select.EPOLLET)
    epoll.poll()

def poll(a):
    poll = select.poll()
    poll.register(a, select.POLLIN)
    poll.poll()

def chosen(a):
    select.select([a], [], [])

def timed(a):
    # A timeout of the socket's own (Python's is another thing).
    a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 60, 0))

def slept(pid):
    with open(f'/proc/{pid}/status') as status:
        return sum(int(line.split()[1]) for line in status if line.startswith('voluntary'))

children = []
for way in recv, epoll, edge, poll, chosen, timed:
    report, into = os.pipe()
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        a, b = pair()
        if os.fork() == 0:
            # The other end is this process's alone.
            a.close()
            os.write(into, b'%d' % os.getpid())
            os.read(told, 1)
            b.sendall(b'!')
            os._exit(0)
        b.close()
        way(a)
        print(way.__name__, 'woken by', a.recv(1).decode(), flush=True)
        os._exit(0)
    os.read(report, 100)
    children.append((way.__name__, pid, tell))
print('waiting', flush=True)
time.sleep(1)
quietest = {}
for _ in range(5):
    before = {pid: slept(pid) for _, pid, _ in children}
    time.sleep(1)
    for name, pid, _ in children:
        quietest[name] = min(quietest.get(name, 1000), slept(pid) - before[pid])
for name, count in quietest.items():
    print(name, 'slept', count)
for _, pid, tell in children:
    os.write(tell, b'!')
    os.waitpid(pid, 0)
print('all', flush=True)
";

#[test]
#[ignore = "measures how often processes sleep: make proof"]
fn waiting_calls_sleep_until_there_is_something() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Backend)?.eager();
        let mut command = daemon.command(lab, "/usr/bin/python3");
        let mut sleepers = lab.spawn("sleepers", command.args(["-c", SLEEPERS]))?;
        let status = sleepers.wait_end(Duration::from_secs(60))?;
        let said = sleepers.log();
        println!("{}", said.trim());
        ensure!(status.success() && said.ends_with("all\n"), "{said}");
        for way in ["recv", "epoll", "edge", "poll", "chosen", "timed"] {
            let count = said.lines().find_map(|line| line.strip_prefix(way)?.strip_prefix(" slept "));
            let count: u32 = count.context("no count")?.parse()?;
            ensure!(count <= 2, "{way}: slept {count} times in its quietest second");
            ensure!(said.contains(&format!("{way} woken by !")), "{way}: {said}");
        }
        daemon.stop()
    })
}
