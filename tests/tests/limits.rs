//! Programs that lock their memory, or have low limits: they are accelerated if possible, and the
//! kernel carries the rest.

use anyhow::{Result, ensure};
use fs_tests::unmodified::daemon::{Daemon, Reach};
use fs_tests::unmodified::stage::finish;
use fs_tests::{Lab, Ns};

/// A process that talks to itself, in circumstances that its argument names. Prints how many
/// connections it had, and by how many MiB it grew.
const PROGRAM: &str = "
import ctypes, encodings.idna, mmap, os, resource, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
CURRENT, FUTURE = 1, 2
what = sys.argv[1]

def limit(which, most):
    resource.setrlimit(which, (most, most))

def memory():
    with open('/proc/self/status') as status:
        return sum(int(line.split()[1]) for line in status if line.startswith('VmRSS')) // 1024

def lock(flags):
    assert libc.mlockall(flags) == 0, ctypes.get_errno()

before = memory()
if what == 'locked':
    lock(CURRENT | FUTURE)
    # Where everything is made memory at once, what comes would be all that the machine has.
    big = mmap.mmap(-1, 256 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    assert memory() - before < 128, 'memory is not locked on touch'
if what == 'locked-user':
    limit(resource.RLIMIT_MEMLOCK, 8 << 20)
    os.setuid(65534)
    lock(FUTURE)
if what == 'addresses':
    limit(resource.RLIMIT_AS, 2 << 30)
if what == 'data':
    limit(resource.RLIMIT_DATA, 32 << 20)
if what == 'files':
    limit(resource.RLIMIT_FSIZE, 4096)
listener = socket.create_server(('127.0.0.1', 7431), backlog=64)
if what == 'descriptors':
    limit(resource.RLIMIT_NOFILE, 24)

def connections(most):
    all = []
    while len(all) < most:
        waits = False
        try:
            a = socket.socket()
            a.connect(('127.0.0.1', 7431))
            waits = True
            b = listener.accept()[0]
        except OSError as error:
            assert what == 'descriptors', error
            a = b = None
            if waits:
                # It would be taken for the next one.
                all.pop()
                listener.accept()[0].close()
            break
        all.append((a, b))
    for one, other in [pair[::way] for pair in all for way in (1, -1)]:
        one.sendall(b'x' * 60000)
        left = 60000
        while left:
            got = other.recv(left)
            assert got, 'another connection'
            left -= len(got)
    return all

# Some with all that there is; then as many again, when those are gone.
count = len(connections(30))
assert count >= 4
again = len(connections(count))
if what == 'locked':
    lock(CURRENT)
print(count, again, memory() - before)
";

#[test]
fn program_with_low_limits_is_accelerated_or_left_to_the_kernel() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Backend, Reach::OnlyLocal)?;
        // The carriers of connections. (The kernel: an arena exceeds the limit of locked memory.
        // RLIMIT_AS limits the program's mappings, not those for its connections.)
        for (what, ours) in [
            ("plain", true),
            ("locked", true),
            ("locked-user", false),
            ("addresses", true),
            ("data", true),
            ("files", true),
            ("descriptors", true),
        ] {
            let before = daemon.counters(lab)?;
            let said = finish(daemon.command(lab, "/usr/bin/python3").args(["-c", PROGRAM, what]), what)?;
            let moved = daemon.counters(lab)?.since(&before, "local_connections");
            println!("{what}: {} ({moved} ours)", said.trim());
            let numbers: Vec<u64> = said.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
            let [count, again, grown] = numbers[..] else { anyhow::bail!("{what}: {said}") };
            ensure!(count == again && (what == "descriptors" || count == 30), "{what}: {said}");
            ensure!((moved >= count) == ours && (ours || moved == 0), "{what}: {moved} connections are ours");
            ensure!(grown < 128, "{what}: {grown} MiB more");
        }
        daemon.stop()
    })
}

/// A process with a connection to itself forks while the daemon, whose process is an argument, may
/// map little more than it has; then again without this limit. Prints the results of both.
const FORKS: &str = "
import os, resource, socket, sys
daemon = int(sys.argv[1])
listener = socket.create_server(('127.0.0.1', 7432))
a = socket.create_connection(('127.0.0.1', 7432))
b = listener.accept()[0]

def fork():
    try:
        child = os.fork()
    except OSError as error:
        return os.strerror(error.errno)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return 'a child'

with open(f'/proc/{daemon}/status') as status:
    has = [int(line.split()[1]) << 10 for line in status if line.startswith('VmSize')][0]
before = resource.prlimit(daemon, resource.RLIMIT_AS)
# Room for the child's page of descriptors (16 MiB), not for an arena.
resource.prlimit(daemon, resource.RLIMIT_AS, (has + (20 << 20), before[1]))
print(fork())
resource.prlimit(daemon, resource.RLIMIT_AS, before)
print(fork())
# Each has one reference, whatever became of the children: what is closed ends, and not before.
b.sendall(b'still there')
print(a.recv(100).decode())
b.close()
a.settimeout(20)
print(len(a.recv(100)), 'bytes more')
";

#[test]
fn fork_fails_if_the_daemon_cannot_map_a_connection() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Backend, Reach::OnlyLocal)?;
        let id = daemon.proc.pid().to_string();
        let said = finish(daemon.command(lab, "/usr/bin/python3").args(["-c", FORKS, &id]), "forks")?;
        let said: Vec<&str> = said.lines().collect();
        ensure!(
            said == ["Resource temporarily unavailable", "a child", "still there", "0 bytes more"],
            "what forks and the connection became of: {said:?}"
        );
        ensure!(daemon.counters(lab)?.value("local_connections") > 0, "the connection is the kernel's");
        daemon.stop()
    })
}
