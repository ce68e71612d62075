//! Local ports in use: reserved in the kernel, entered in the devices' XDP tables, and counted over the cores,
//! which may all listen at the same address.

use crate::sys::own_descriptor_table;
use crate::sys::reserve::Reservation;
use fs_core::Protocol;
use fs_xdp::Share;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where a device's program is told what is ours.
pub(crate) trait PortSink: Send + Sync {
    /// Packets for `at` come to us from here on, all or as `share` says.
    fn add(&self, protocol: Protocol, at: SocketAddr, share: Share) -> io::Result<()>;
    /// Who gets the packets for `at` from here on.
    fn share(&self, protocol: Protocol, at: SocketAddr, share: Share);
    /// Packets for `at` go to the kernel again.
    fn remove(&self, protocol: Protocol, at: SocketAddr);
    /// Packets for these TCP ports at one of the host's addresses come to us.
    fn set_active(&self, _ports: &[u16]) -> io::Result<()> {
        Ok(())
    }
    /// The device has this link address now.
    fn set_mac(&self, _mac: [u8; 6]) {}
    /// Packets on a queue without a socket are the kernel's from here on.
    fn unguard(&self);
    /// Our devices have these addresses now, and the host's others have `elsewhere`.
    fn set_addresses(&self, addrs: &[IpAddr], elsewhere: &[IpAddr]) -> io::Result<()>;
}

/// The host's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// Of the runtime's devices.
    pub(crate) ours: Vec<IpAddr>,
    /// Of the host's other devices.
    pub(crate) elsewhere: Vec<IpAddr>,
}

struct Used {
    users: u32,
    carried: bool,
    /// Without users it stays until then.
    until: Option<Instant>,
    /// Somebody else holds it in the kernel, and may have connections there.
    held: bool,
    /// The addresses that its packets go to.
    ends: Ends,
    /// Who gets its packets, as the devices' programs were told.
    share: Share,
    /// `None` where the address is not the kernel's (standalone addressing), or somebody else holds it.
    reservation: Option<Reservation>,
}

/// The addresses whose packets a port's owner gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    own: SocketAddr,
    /// What `[::]` takes beside it, unless it is for IPv6 alone.
    ipv4: Option<SocketAddr>,
}

impl Ends {
    fn of(at: SocketAddr, v6_only: bool) -> Self {
        let both = at.is_ipv6() && at.ip().is_unspecified() && !v6_only;
        let ipv4 = both.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port()));
        Self { own: at, ipv4 }
    }

    fn each(self) -> impl Iterator<Item = SocketAddr> {
        [Some(self.own), self.ipv4].into_iter().flatten()
    }
}

pub(crate) struct Ports {
    in_kernel: bool,
    /// By device; `None` while one is gone.
    sinks: RwLock<Vec<Option<Box<dyn PortSink>>>>,
    used: Mutex<HashMap<(Protocol, SocketAddr), Used>>,
    /// Active ports: held for the kernel's eyes only, until the runtime ends.
    active: Active,
    /// How long a port stays ours after its last connection's socket is gone: FIN-WAIT and TIME-WAIT.
    cool_down: Duration,
    /// Ports without users, and until when they stay.
    cooling: Mutex<Vec<(Instant, (Protocol, SocketAddr))>>,
}

/// Where the search for a port starts in standalone addressing: below Linux's ephemeral range.
const PRIVATE_FIRST: u16 = 10_000;
const PRIVATE_LAST: u16 = 19_999;

/// The same address, with its scope.
fn with_port(mut at: SocketAddr, port: u16) -> SocketAddr {
    at.set_port(port);
    at
}

impl Ports {
    pub(crate) fn new(in_kernel: bool, sinks: Vec<Box<dyn PortSink>>, active: Active, cool_down: Duration) -> Self {
        Self {
            in_kernel,
            sinks: RwLock::new(sinks.into_iter().map(Some).collect()),
            used: Mutex::new(HashMap::new()),
            active,
            cool_down,
            cooling: Mutex::new(Vec::new()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Protocol, SocketAddr), Used>> {
        // Every change of the map is a single insert or remove.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every device's, in their order.
    fn each_sink(&self, mut tell: impl FnMut(&dyn PortSink)) {
        let sinks = self.sinks.read().unwrap_or_else(PoisonError::into_inner);
        sinks.iter().flatten().for_each(|sink| tell(&**sink));
    }

    fn set_sink(&self, device: usize, sink: Option<Box<dyn PortSink>>) {
        if let Some(place) = self.sinks.write().unwrap_or_else(PoisonError::into_inner).get_mut(device) {
            *place = sink;
        }
    }

    /// The device has this link address now.
    pub(crate) fn set_mac(&self, device: usize, mac: [u8; 6]) {
        let sinks = self.sinks.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(sink)) = sinks.get(device) {
            sink.set_mac(mac);
        }
    }

    /// The device is gone, and its program's table with it.
    pub(crate) fn let_go(&self, device: usize) {
        self.set_sink(device, None);
    }

    /// A device that has come back is told what is ours: `known` are addresses that the host has or had.
    pub(crate) fn take_again(
        &self,
        device: usize,
        sink: Box<dyn PortSink>,
        known: &[IpAddr],
        Addresses { ours, elsewhere }: &Addresses,
    ) -> io::Result<()> {
        // Until the end: what is added meanwhile is not left out.
        let used = self.lock();
        for (&(protocol, _), entry) in used.iter() {
            entry.ends.each().try_for_each(|end| sink.add(protocol, end, entry.share))?;
        }
        sink.set_active(&self.active.ports)?;
        // In between those that the host does not have any more are made out to be away.
        sink.set_addresses(known, &[])?;
        sink.set_addresses(ours, elsewhere)?;
        self.set_sink(device, Some(sink));
        Ok(())
    }

    /// Takes `at`, or counts one more user of it. Port 0 chooses one. Answers the address with its port.
    pub(crate) fn acquire(&self, protocol: Protocol, at: SocketAddr, v6_only: bool) -> io::Result<SocketAddr> {
        self.take(protocol, at, v6_only, || Reservation::new(protocol, at, v6_only).map(Some))
    }

    /// As [`Ports::acquire`], for a port that somebody else holds in the kernel for us.
    pub(crate) fn acquire_held(&self, protocol: Protocol, at: SocketAddr, v6_only: bool) -> io::Result<SocketAddr> {
        if at.port() == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.take(protocol, at, v6_only, || Ok(None))
    }

    /// As [`Ports::acquire`], with a socket of the kernel that is bound to `at` without IPV6_V6ONLY, and non-blocking.
    pub(crate) fn acquire_by(&self, protocol: Protocol, at: SocketAddr, socket: OwnedFd) -> io::Result<SocketAddr> {
        if !self.in_kernel {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "in standalone addressing no socket is the kernel's",
            ));
        }
        self.take(protocol, at, false, || Ok(Some(Reservation::by(socket))))
    }

    fn take(
        &self,
        protocol: Protocol,
        at: SocketAddr,
        v6_only: bool,
        reserve: impl FnOnce() -> io::Result<Option<Reservation>>,
    ) -> io::Result<SocketAddr> {
        let mut used = self.lock();
        if at.port() != 0
            && let Some(known) = used.get_mut(&(protocol, at))
        {
            let ends = Ends::of(at, v6_only);
            if let (None, Some(more)) = (known.ends.ipv4, ends.ipv4) {
                self.enter(protocol, more, known.share)?;
                known.ends = ends;
            }
            known.users += 1;
            if known.users == 1 && known.held {
                known.share = Share::Former;
                self.each_sink(|sink| known.ends.each().for_each(|end| sink.share(protocol, end, Share::Former)));
            }
            return Ok(at);
        }
        let (at, reservation) = if self.in_kernel {
            let reservation = reserve()?;
            let port = reservation.as_ref().map_or(Ok(at.port()), Reservation::port)?;
            (with_port(at, port), reservation)
        } else if at.port() == 0 {
            let free = (PRIVATE_FIRST..=PRIVATE_LAST)
                .map(|port| with_port(at, port))
                .find(|at| !used.keys().any(|(p, k)| *p == protocol && k.port() == at.port()))
                .ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRINUSE))?;
            (free, None)
        } else {
            (at, None)
        };
        let held = self.in_kernel && reservation.is_none();
        let share = if held { Share::Former } else { Share::Ours };
        let ends = Ends::of(at, v6_only);
        self.enter(protocol, ends.own, share)?;
        if let Some(ipv4) = ends.ipv4 {
            self.enter(protocol, ipv4, share).inspect_err(|_| self.each_sink(|sink| sink.remove(protocol, at)))?;
        }
        used.insert((protocol, at), Used { users: 1, carried: false, until: None, held, ends, share, reservation });
        Ok(at)
    }

    /// Tells each device's program of an end that is ours, or none.
    fn enter(&self, protocol: Protocol, end: SocketAddr, share: Share) -> io::Result<()> {
        let sinks = self.sinks.read().unwrap_or_else(PoisonError::into_inner);
        for (done, sink) in sinks.iter().flatten().enumerate() {
            if let Err(error) = sink.add(protocol, end, share) {
                sinks.iter().flatten().take(done).for_each(|sink| sink.remove(protocol, end));
                return Err(error);
            }
        }
        Ok(())
    }

    /// One user less. The last one frees the port, after the cool-down if connections have `carried` it: their
    /// last packets would otherwise reach the kernel, which answers with RST.
    pub(crate) fn release(&self, protocol: Protocol, at: SocketAddr, carried: bool) {
        let mut used = self.lock();
        let Some(entry) = used.get_mut(&(protocol, at)) else {
            debug_assert!(false, "{at} was not taken");
            return;
        };
        entry.users -= 1;
        entry.carried |= carried;
        if entry.users > 0 {
            return;
        }
        if entry.carried {
            // Whoever has it in the kernel next is not kept waiting.
            if entry.held {
                entry.share = Share::Leaving;
                self.each_sink(|sink| entry.ends.each().for_each(|end| sink.share(protocol, end, Share::Leaving)));
            }
            let until = Instant::now() + self.cool_down;
            entry.until = Some(until);
            self.cooling().push((until, (protocol, at)));
        } else {
            self.free(&mut used, (protocol, at));
        }
    }

    /// Who gets the packets for a port that somebody else holds in the kernel. Nothing happens to others, nor to one
    /// that nobody uses any more.
    pub(crate) fn share(&self, protocol: Protocol, at: SocketAddr, share: Share) {
        let mut used = self.lock();
        if let Some(entry) = used.get_mut(&(protocol, at)).filter(|entry| entry.held && entry.users > 0) {
            entry.share = share;
            self.each_sink(|sink| entry.ends.each().for_each(|end| sink.share(protocol, end, share)));
        }
    }

    /// Another descriptor of the kernel's socket that reserves `at`; `None` where there is none of ours.
    pub(crate) fn kernel_socket(&self, protocol: Protocol, at: SocketAddr) -> io::Result<Option<OwnedFd>> {
        let used = self.lock();
        let reservation = used.get(&(protocol, at)).and_then(|entry| entry.reservation.as_ref());
        reservation.map(|reservation| reservation.as_fd().try_clone_to_owned()).transpose()
    }

    /// Somebody uses it.
    pub(crate) fn is_used(&self, protocol: Protocol, at: SocketAddr) -> bool {
        self.lock().get(&(protocol, at)).is_some_and(|entry| entry.users > 0)
    }

    fn cooling(&self) -> MutexGuard<'_, Vec<(Instant, (Protocol, SocketAddr))>> {
        self.cooling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self, used: &mut HashMap<(Protocol, SocketAddr), Used>, key: (Protocol, SocketAddr)) {
        // First the program, then the kernel: a packet in between finds the reservation, and no other program's socket.
        if let Some(entry) = used.get(&key) {
            self.each_sink(|sink| entry.ends.each().for_each(|end| sink.remove(key.0, end)));
        }
        used.remove(&key);
    }

    /// Frees what has cooled down. To be called now and then.
    pub(crate) fn free_cooled(&self, now: Instant) {
        let mut used = self.lock();
        let due: Vec<_> = self.cooling().extract_if(.., |(until, _)| *until <= now).collect();
        for (_, key) in due {
            // In use again, or listed twice because it was in between: the last listing counts.
            if used.get(&key).is_some_and(|entry| entry.users == 0 && entry.until.is_none_or(|until| until <= now)) {
                self.free(&mut used, key);
            }
        }
    }

    /// The links are about to be closed: who still sends to us may be told so by the kernel.
    pub(crate) fn unguard(&self) {
        self.each_sink(|sink| sink.unguard());
    }

    /// Tells each device's program the addresses of all: what is for one may come by another (RFC 1122 3.3.4.2, the weak model).
    pub(crate) fn set_addresses(&self, Addresses { ours, elsewhere }: &Addresses) {
        self.each_sink(|sink| {
            if let Err(error) = sink.set_addresses(ours, elsewhere) {
                tracing::error!(%error, ?ours, "cannot tell the XDP program the host's addresses");
            }
        });
    }
}

/// Ports that are reserved until this is dropped.
///
/// A reservation is a descriptor, and thousands of them would leave a program with the default limit of 1,024 none for itself.
/// The limit counts for each table of descriptors, so they are in tables of their own: each that of a thread which holds
/// them and does nothing else.
#[derive(Default)]
pub(crate) struct Active {
    /// In ascending order.
    pub(crate) ports: Vec<u16>,
    threads: Vec<ReservationThread>,
}

/// A thread with a table of descriptors of its own, which holds a batch of reservations.
struct ReservationThread {
    /// Its end is what the thread waits for.
    hold: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ReservationThread {
    fn drop(&mut self) {
        self.hold = None;
        // The ports are free when this returns. The thread does not panic, and would have let go of them too.
        self.thread.take().map(JoinHandle::join);
    }
}

/// What one table of descriptors had room for.
struct Batch {
    ports: Vec<u16>,
    /// Where to go on; `None` at the end of the port space.
    next: Option<u16>,
}

/// Reserves up to `count` ports upwards from `first`, leaving busy ones out.
pub(crate) fn reserve_active(first: u16, count: usize) -> io::Result<Active> {
    let mut active = Active::default();
    let mut next = Some(first);
    while let Some(first) = next.filter(|_| active.ports.len() < count) {
        let (thread, batch) = reserve_on_thread(first, count - active.ports.len())?;
        if batch.ports.is_empty() && batch.next.is_some() {
            // The system, not this process, has no more descriptors: what is held has to do; the caller decides.
            break;
        }
        active.ports.extend(&batch.ports);
        active.threads.push(thread);
        next = batch.next;
    }
    Ok(active)
}

fn reserve_on_thread(first: u16, count: usize) -> io::Result<(ReservationThread, Batch)> {
    let (answer, answered) = channel();
    let (hold, held) = channel::<()>();
    let thread = std::thread::Builder::new().name("fs-ports".into()).stack_size(64 << 10).spawn(move || {
        let (batch, reservations) = match own_descriptor_table().and_then(|()| reserve_batch(first, count)) {
            Ok((batch, reservations)) => (Ok(batch), reservations),
            Err(error) => (Err(error), Vec::new()),
        };
        if answer.send(batch).is_ok() {
            // Nothing is ever sent: it ends when the `ReservationThread` is dropped.
            let _ = held.recv();
        }
        drop(reservations);
    })?;
    let thread = ReservationThread { hold: Some(hold), thread: Some(thread) };
    let batch = answered.recv().map_err(|_| io::Error::other("the thread that reserves ports has ended"))??;
    Ok((thread, batch))
}

/// Addresses of both families are covered: the kernel's dual-stack wildcard conflicts with every bind to the port.
fn reserve_batch(first: u16, count: usize) -> io::Result<(Batch, Vec<Reservation>)> {
    let (mut ports, mut held) = (Vec::new(), Vec::new());
    let mut any: IpAddr = std::net::Ipv6Addr::UNSPECIFIED.into();
    let mut next = Some(first);
    while let Some(port) = next.filter(|_| held.len() < count) {
        match Reservation::new(Protocol::Tcp, SocketAddr::new(any, port), false) {
            Ok(reservation) => {
                ports.push(port);
                held.push(reservation);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            // No IPv6 in this kernel or namespace: IPv4 alone.
            Err(error)
                if any.is_ipv6() && matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) =>
            {
                any = Ipv4Addr::UNSPECIFIED.into();
                continue;
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => break,
            Err(error) => return Err(error),
        }
        next = port.checked_add(1);
    }
    Ok((Batch { ports, next }, held))
}

#[cfg(test)]
mod tests;
