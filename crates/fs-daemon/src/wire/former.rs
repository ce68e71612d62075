//! Connections that the kernel has on ports which the cores have just taken over: of a daemon that was started, or begun
//! again, beside servers that ran without it. Until the last of them has ended the XDP program asks the kernel whose each packet
//! to such a port is ([`Share::Former`]); here is found out when that is.

use fs_rt::{Handle, Share};
use std::collections::HashSet;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often the kernel's table is looked through, at first and at last. More often: CPU, as there are connections on the
/// host. Less: a port is shared for longer than it has to be, which costs each packet a look into that table.
const FIRST: Duration = Duration::from_millis(100);
const SLOWEST: Duration = Duration::from_secs(10);

/// States of include/net/tcp_states.h that do not count: TIME-WAIT (it is gone in a minute), CLOSE, LISTEN.
const OVER: [u8; 3] = [6, 7, 10];

/// Where a listener of the cores is, and whether it has IPV6_V6ONLY.
pub(super) type At = (SocketAddr, bool);

/// Ports that the cores have taken.
pub(super) struct Former {
    taken: Mutex<Sender<At>>,
    ports: Arc<Mutex<Ports>>,
    handle: Handle,
}

#[derive(Default)]
struct Ports {
    /// All that were taken and may be in use.
    all: HashSet<At>,
    /// So many of them that it is time to see which are not.
    look_at: usize,
    /// Those that may have connections in the kernel.
    shared: HashSet<At>,
    /// The daemon is to end: all are the kernel's again.
    leaving: bool,
}

impl Former {
    /// Starts the thread that looks. It ends with this, after its last look.
    pub(super) fn start(handle: Handle) -> io::Result<Self> {
        let (taken, news) = channel();
        let ports = Arc::new(Mutex::default());
        let (of_thread, to_share) = (ports.clone(), handle.clone());
        let name = std::thread::Builder::new().name("fastsock-ports".into());
        name.spawn(move || watch(&news, &of_thread, &to_share))?;
        Ok(Self { taken: Mutex::new(taken), ports, handle })
    }

    /// A core listens there from now on.
    pub(super) fn taken(&self, at: At) {
        let mut ports = lock(&self.ports);
        ports.all.insert(at);
        ports.shared.insert(at);
        ports.forget_unused(|at| self.handle.holds(at.0, at.1));
        // One that was left, and has connections from before, is taken again.
        self.handle.share_held(at.0, at.1, if ports.leaving { Share::Leaving } else { Share::Former });
        drop(ports);
        // Only when the thread has panicked: then ports stay shared.
        let _gone = lock(&self.taken).send(at);
    }

    /// No core listens there any more: while connections that are open keep the port, new ones are the kernel's, which may listen.
    pub(super) fn left(&self, at: At) {
        let mut ports = lock(&self.ports);
        ports.shared.remove(&at);
        self.handle.share_held(at.0, at.1, Share::Leaving);
    }

    /// New connections are the kernel's from here on.
    pub(super) fn leave(&self) {
        let mut ports = lock(&self.ports);
        ports.leaving = true;
        ports.all.iter().for_each(|at| self.handle.share_held(at.0, at.1, Share::Leaving));
    }
}

/// With fewer ports nobody looks which are still used.
const FEW: usize = 256;

impl Ports {
    /// Listeners come and go at addresses and ports that change, and nobody says when a port's last connection is gone: when
    /// there are twice as many as at the last look, those that no core uses are forgotten.
    fn forget_unused(&mut self, in_use: impl Fn(At) -> bool) {
        if self.all.len() >= self.look_at.max(FEW) {
            self.all.retain(|at| in_use(*at));
            self.look_at = 2 * self.all.len();
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch(news: &Receiver<At>, ports: &Mutex<Ports>, handle: &Handle) {
    let (mut looked, mut pause) = (HashSet::new(), FIRST);
    loop {
        let taken = if looked.is_empty() {
            news.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            news.recv_timeout(pause)
        };
        match taken {
            // What was found out so far may be of before.
            Ok(at) => {
                (pause, looked) = (FIRST, HashSet::from([at]));
                looked.extend(news.try_iter());
            }
            Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(SLOWEST),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let busy = match connected_ports() {
            Ok(busy) => busy,
            Err(error) => {
                tracing::warn!(%error, "cannot read the kernel's connections: their ports stay shared with the kernel");
                continue;
            }
        };
        // Taken since: to be looked at with the next.
        let since: HashSet<At> = news.try_iter().collect();
        let mut ports = lock(ports);
        if ports.leaving {
            return;
        }
        ports.shared.retain(|at| {
            let is_free = !busy.contains(&at.0.port()) && !since.contains(at);
            if is_free {
                handle.share_held(at.0, at.1, Share::Ours);
            }
            !is_free
        });
        looked = ports.shared.clone();
        if !looked.is_empty() {
            tracing::debug!(ports = ?looked, "the kernel still has earlier connections at these ports");
        }
    }
}

/// Local ports of connections that the kernel of this namespace has, but for those over loopback.
fn connected_ports() -> io::Result<HashSet<u16>> {
    let mut found = HashSet::new();
    for (name, loopback) in [("tcp", "7F"), ("tcp6", "00000000000000000000000001000000")] {
        let file = match std::fs::File::open(format!("/proc/thread-self/net/{name}")) {
            Ok(file) => file,
            // No IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file).lines() {
            found.extend(port_of(&line?, loopback));
        }
    }
    Ok(found)
}

/// `sl local_address rem_address st …`, in hex; the address in words of this machine's order.
fn port_of(line: &str, loopback: &str) -> Option<u16> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, state) = (fields.next()?, fields.nth(1)?);
    let (ip, port) = local.split_once(':')?;
    let is_loopback = if ip.len() == 8 { ip.ends_with(loopback) } else { ip == loopback };
    let state = u8::from_str_radix(state, 16).ok()?;
    (!is_loopback && !OVER.contains(&state)).then(|| u16::from_str_radix(port, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn lines_of_the_kernel() {
        let line = |local, state| {
            format!("   3: {local} 0202020A:D431 {state} 00000000:00000000 00:00000000 00000000 0 0 1 1")
        };
        assert_eq!(port_of(&line("0101020A:0050", "01"), "7F"), Some(80));
        assert_eq!(port_of(&line("0101020A:0050", "03"), "7F"), Some(80), "SYN-RECEIVED");
        assert_eq!(port_of(&line("0100007F:0050", "01"), "7F"), None, "loopback");
        assert_eq!(port_of(&line("0101020A:0050", "0A"), "7F"), None, "LISTEN");
        assert_eq!(port_of(&line("0101020A:0050", "06"), "7F"), None, "TIME-WAIT");
        assert_eq!(port_of("  sl  local_address rem_address   st tx_queue", "7F"), None);
    }

    #[test]
    fn what_nobody_uses_is_forgotten() {
        let mut ports = Ports::default();
        let at = |i: u16| (SocketAddr::from(([127, 0, 0, 1], i)), false);
        let is_kept = |at: At| at.0.port().is_multiple_of(100);
        for i in 1..=u16::MAX {
            ports.all.insert(at(i));
            ports.forget_unused(is_kept);
            assert!(ports.all.len() <= 2 * (usize::from(i) / 100) + FEW, "{i}");
        }
        assert!((1..=u16::MAX).map(at).filter(|at| is_kept(*at)).all(|at| ports.all.contains(&at)));
    }

    #[test]
    fn loopback_does_not_count() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let _client = TcpStream::connect(at).unwrap();
        let _server = listener.accept().unwrap();
        assert!(!connected_ports().unwrap().contains(&at.port()));
    }
}
