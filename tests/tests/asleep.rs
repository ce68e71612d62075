//! Waiting calls cost nothing while nothing happens, and the daemon's death still ends them.

use anyhow::{Context, Result, ensure};
use fs_tests::unmodified::daemon::{Daemon, Reach};
use fs_tests::unmodified::stage::lo_down;
use fs_tests::{Lab, Ns};
use std::time::Duration;

/// Processes and threads that wait in each way, without any event. Prints how often each of them
/// slept in the quietest of five seconds, and then what ended its wait.
const SLEEPERS: &str = "
import os, select, socket, struct, sys, threading, time
at = ('127.0.0.1', 7421)
listener = socket.create_server(at, backlog=64)
# Nobody accepts here.
full = socket.create_server(('127.0.0.1', 7422), backlog=1)
out, into = os.pipe()

def pair():
    a = socket.create_connection(at)
    return a, listener.accept()[0]

def epoll(a):
    epoll = select.epoll()
    epoll.register(a, select.EPOLLIN)
    epoll.poll()
    return a.recv(1)

def poll(a, *others):
    poll = select.poll()
    for one in (a, *others):
        poll.register(one, select.POLLIN)
    poll.poll()
    return a.recv(1)

def chosen(a):
    select.select([a], [], [])
    return a.recv(1)

def threads(ends):
    def wait(a):
        try:
            a.recv(1)
        except OSError:
            pass
    all = [threading.Thread(target=wait, args=(a,)) for a, _ in ends]
    for one in all:
        one.start()
    for one in all:
        one.join()
    return b'threads'

def accepts():
    listener.accept()
    return b'a connection'

def timed(a):
    # A timeout of the socket's own (Python's is another thing).
    a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 60, 0))
    return a.recv(1)

def filled(a):
    # Some bytes have gone, the others find no room.
    a.sendall(bytes(16 << 20))
    return b'all'

def acceptors():
    # This process's alone.
    alone = socket.create_server(('127.0.0.1', 7423), backlog=64)
    def accept():
        alone.accept()
    all = [threading.Thread(target=accept) for _ in range(3)]
    for one in all:
        one.start()
    for one in all:
        one.join()
    return b'connections'

# Other threads take the listener away from those who sleep in accept: shutdown ends their calls; close does not, each takes
# one more connection, and the last ends the listener. In a process of its own: C libraries take one that had
# threads for one that has.
def taken_away():
    for way in ('shutdown', 'close'):
        taken = socket.create_server(('127.0.0.1', 0))
        went = []
        def wait():
            try:
                taken.accept()
            except OSError as error:
                went.append(error.strerror)
        all = [threading.Thread(target=wait) for _ in range(3)]
        for one in all:
            one.start()
        # Until all of them sleep.
        asleep = 0
        while asleep < 30:
            time.sleep(0.01)
            states = [open(f'/proc/self/task/{one.native_id}/stat').read().rpartition(')')[2].split()[0] for one in all]
            asleep = asleep + 1 if states == ['S'] * 3 else 0
        since = time.monotonic()
        to = taken.getsockname()
        if way == 'close':
            taken.close()
            for _ in all:
                socket.create_connection(to, timeout=20).close()
        else:
            taken.shutdown(socket.SHUT_RDWR)
        for one in all:
            one.join()
        if way == 'close':
            # The kernel's, over a loopback that is down.
            try:
                socket.create_connection(to, timeout=0.5).close()
                went.append('it listens on')
            except OSError:
                pass
        print('taken', way, time.monotonic() - since < 20, *went, flush=True)

child = os.fork()
if not child:
    taken_away()
    os._exit(0)
os.waitpid(child, 0)

a, b, c, d, e, f, g, h, i = (pair() for _ in range(9))
many = [pair() for _ in range(8)]
ways = {
    'recv': lambda: a[0].recv(1),
    'accepted': lambda: b[1].recv(1),
    'epoll': lambda: epoll(c[0]),
    'poll': lambda: poll(d[0]),
    'polls': lambda: poll(e[0], f[0], out),
    'select': lambda: chosen(g[0]),
    'threads': lambda: threads(many),
    'timed': lambda: timed(h[0]),
    'filled': lambda: filled(i[0]),
    'acceptors': acceptors,
    'accept': accepts,
    'accept2': accepts,
}
began = time.monotonic()
def fork(name, way):
    pid = os.fork()
    if pid:
        return pid
    try:
        said = way()
    except OSError as error:
        said = error.strerror
    with open(sys.argv[1] + name, 'w') as file:
        print(said, file=file)
    os._exit(0)
pids = {name: fork(name, way) for name, way in ways.items()}

def slept(pid):
    count = 0
    for task in os.listdir(f'/proc/{pid}/task'):
        with open(f'/proc/{pid}/task/{task}/status') as status:
            count += sum(int(line.split()[1]) for line in status if line.startswith('voluntary'))
    return count

# Two seconds: who has not slept for one yet sleeps in slices. Where the machine has other work to do they may begin later.
time.sleep(3)
quietest = dict.fromkeys(pids, 1000)
for _ in range(4):
    before = {name: slept(pid) for name, pid in pids.items()}
    time.sleep(5)
    for name, pid in pids.items():
        quietest[name] = min(quietest[name], slept(pid) - before[name])
    if max(quietest.values()) <= 1:
        break
for name, count in quietest.items():
    print('slept', name, count, flush=True)
print('kill', flush=True)
left, end = dict(pids), time.monotonic() + 50
while left and time.monotonic() < end:
    for name, pid in list(left.items()):
        if os.waitpid(pid, os.WNOHANG)[0]:
            print('ended', name, open(sys.argv[1] + name).read().strip(), flush=True)
            del left[name]
    # The new daemon's clients: who accepted before does again.
    if set(left) <= {'accept', 'accept2', 'acceptors'}:
        for to in (at, ('127.0.0.1', 7423)):
            try:
                socket.create_connection(to, timeout=1).close()
            except OSError:
                pass
    time.sleep(0.05)
print('left', *left, flush=True)
for pid in left.values():
    os.kill(pid, 9)
";

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "measures how often processes sleep: make proof"]
fn waiters_sleep_until_an_event_or_the_daemons_death() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Backend, Reach::OnlyLocal)?;
        lo_down(lab, Ns::Backend)?;
        let results = format!("{}/ended-", lab.dir().display());
        let mut python = daemon.command(lab, "/usr/bin/python3");
        let mut sleepers = lab.spawn("sleepers", python.args(["-c", SLEEPERS, &results]))?;
        let log = sleepers.log_path().to_owned();
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        sleepers.wait_for("sleep", PATIENCE, || said().contains("kill"))?;
        daemon.proc.kill()?;
        let mut daemon = Daemon::start(lab, Ns::Backend, Reach::OnlyLocal)?;
        sleepers.wait_end(PATIENCE).context("the sleepers")?;
        let said = said();
        println!("{said}");
        let all = said.lines().filter_map(|line| line.strip_prefix("slept "));
        ensure!(all.clone().count() == 12, "{said}");
        for line in all {
            let (name, count) = line.split_once(' ').context("no number")?;
            ensure!(count.parse::<u64>()? <= 1, "{name} woke {count} times in 5 s");
        }
        let errno = "Invalid argument";
        ensure!(said.contains(&format!("taken shutdown True {errno} {errno} {errno}\n")), "{said}");
        ensure!(said.contains("taken close True\n"), "{said}");
        for name in ["recv", "accepted", "epoll", "poll", "polls", "select", "timed", "filled"] {
            ensure!(said.contains(&format!("ended {name} Connection reset by peer")), "{name}: {said}");
        }
        ensure!(said.lines().any(|line| line == "left"), "they hang: {said}");
        daemon.stop()
    })
}
