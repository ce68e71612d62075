//! Programs that lock their memory, or have low limits: their connections get a ring if possible, the
//! kernel carries the rest, and every byte is right.

use anyhow::{Result, ensure};
use fs_tests::unmodified::Daemon;
use fs_tests::unmodified::stage::finish;
use fs_tests::{Lab, Ns};

/// A process that talks to itself, in circumstances that its argument names. Prints how many
/// connections it had, and by how many MiB it grew.
const PROGRAM: &str = "
import ctypes, encodings.idna, os, resource, socket, sys
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
fn program_with_low_limits_keeps_its_connections() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Backend)?.eager();
        // A ring needs no locked memory of a process that locks nothing; where it does, mmap(2) fails, and the
        // kernel carries.
        for (what, is_promoted) in [
            ("plain", true),
            ("locked", true),
            ("locked-user", false),
            ("addresses", true),
            ("data", true),
            ("files", true),
            // A ring's file needs a descriptor for a moment, and there may be none.
            ("descriptors", false),
        ] {
            let before = daemon.reported("promoted");
            let said = finish(daemon.command(lab, "/usr/bin/python3").args(["-c", PROGRAM, what]), what)?;
            let promoted = daemon.reported("promoted") - before;
            println!("{what}: {} ({promoted} sockets got a ring)", said.trim());
            let numbers: Vec<u64> = said.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
            let [count, again, grown] = numbers[..] else { anyhow::bail!("{what}: {said}") };
            ensure!(count == again && (what == "descriptors" || count == 30), "{what}: {said}");
            ensure!(!is_promoted || promoted > 0, "{what}: no socket got a ring");
            ensure!(grown < 128, "{what}: {grown} MiB more");
        }
        daemon.stop()
    })
}
