//! Local ports in use: reserved in the kernel, entered in the devices' XDP tables, and counted over
//! the cores, which may all listen at the same address.

pub(crate) mod cooling;
mod ephemeral;
mod exchange;
mod sink;

use crate::sys::reserve::Reservation;
pub(crate) use ephemeral::{Ephemeral, reserve_ephemeral};
use fs_core::Protocol;
use fs_xdp::Share;
pub(crate) use sink::PortSink;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The host's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// Addresses of the runtime's devices.
    pub(crate) ours: Vec<IpAddr>,
    /// Addresses of the host's other devices.
    pub(crate) elsewhere: Vec<IpAddr>,
}

/// A leased address. `[::]` with and without IPV6_V6ONLY are two places, because they receive
/// different packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeasedAddress {
    pub(crate) protocol: Protocol,
    pub(crate) at: SocketAddr,
    v6_only: bool,
}

impl LeasedAddress {
    pub(crate) fn new(protocol: Protocol, mut at: SocketAddr, v6_only: bool) -> Self {
        if let SocketAddr::V6(at) = &mut at {
            at.set_flowinfo(0);
            if !at.ip().is_unicast_link_local() {
                at.set_scope_id(0);
            }
        }
        Self { protocol, at, v6_only: v6_only && at.is_ipv6() && at.ip().is_unspecified() }
    }

    /// Returns the addresses whose packets its owner gets. `[::]` includes IPv4, unless it is IPv6
    /// only.
    fn ends(self) -> impl Iterator<Item = SocketAddr> {
        let both = self.at.is_ipv6() && self.at.ip().is_unspecified() && !self.v6_only;
        let ipv4 = both.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), self.at.port()));
        [Some(self.at), ipv4].into_iter().flatten()
    }
}

struct Used {
    users: u32,
    /// Number of users for which the kernel's socket listens.
    listeners: u32,
    carried: bool,
    /// End of the cool-down. It stays until then without users.
    until: Option<Instant>,
    /// Another process holds it in the kernel, and may have connections there.
    held: bool,
    /// Another process has the reserving socket too, and may go on listening with it.
    is_shared_socket: bool,
    /// The receiver of its packets, as far as this place decides.
    share: Share,
    /// `None` if the address is not the kernel's (standalone addressing), another process holds it,
    /// or it was given up during its cool-down.
    reservation: Option<Reservation>,
}

type AllUsed = HashMap<LeasedAddress, Used>;

/// Returns the receiver of the packets for an address that several places may have; `None`: no
/// place has it. New connections are ours if one place claims them. The kernel keeps its own
/// connections if it may have any.
fn share_of(used: &AllUsed, protocol: Protocol, end: SocketAddr) -> Option<Share> {
    let dual = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), end.port());
    let ends = [(end, false), (end, true), (dual, false)];
    let places = ends.into_iter().map(|(at, v6_only)| LeasedAddress { protocol, at, v6_only });
    let places = places.filter(|place| place.ends().any(|other| other == end));
    let shares = places.filter_map(|place| Some(used.get(&place)?.share));
    shares.reduce(|one, other| if one == other { one } else { Share::Former })
}

pub(crate) struct Ports {
    in_kernel: bool,
    /// By device; `None` while it is gone.
    sinks: RwLock<Vec<Option<Box<dyn PortSink>>>>,
    used: Mutex<AllUsed>,
    /// Ephemeral ports, held until the runtime ends so that the kernel does not assign them.
    ephemeral: Ephemeral,
    /// Time for which a port stays ours after its last connection's socket is closed: FIN-WAIT and
    /// TIME-WAIT.
    cool_down: Duration,
    /// Ports without users, and the end of their cool-down.
    cooling: Mutex<Vec<(Instant, LeasedAddress)>>,
}

/// First port of the search in standalone addressing: below Linux's ephemeral range.
const PRIVATE_FIRST: u16 = 10_000;
const PRIVATE_LAST: u16 = 19_999;

/// Replaces the port and keeps the scope.
fn with_port(mut at: SocketAddr, port: u16) -> SocketAddr {
    at.set_port(port);
    at
}

impl Ports {
    pub(crate) fn new(
        in_kernel: bool,
        sinks: Vec<Option<Box<dyn PortSink>>>,
        ephemeral: Ephemeral,
        cool_down: Duration,
    ) -> Self {
        Self {
            in_kernel,
            sinks: RwLock::new(sinks),
            used: Mutex::new(HashMap::new()),
            ephemeral,
            cool_down,
            cooling: Mutex::new(Vec::new()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, AllUsed> {
        // Every change of the map is a single insert or remove, so a poisoned value is consistent.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `tell` with every device's program, in order.
    fn each_sink(&self, mut tell: impl FnMut(&dyn PortSink)) {
        let sinks = self.sinks.read().unwrap_or_else(PoisonError::into_inner);
        sinks.iter().flatten().for_each(|sink| tell(&**sink));
    }

    fn set_sink(&self, device: usize, sink: Option<Box<dyn PortSink>>) {
        if let Some(place) = self.sinks.write().unwrap_or_else(PoisonError::into_inner).get_mut(device) {
            *place = sink;
        }
    }

    /// Sets the device's link address.
    pub(crate) fn set_mac(&self, device: usize, mac: [u8; 6]) {
        let sinks = self.sinks.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(sink)) = sinks.get(device) {
            sink.set_mac(mac);
        }
    }

    /// Drops the table of a device that is gone.
    pub(crate) fn let_go(&self, device: usize) {
        self.set_sink(device, None);
    }

    /// Fills the table of a device that has come back. `known` are addresses that the host has or
    /// had. `is_late`: until now, the device's connections were the kernel's.
    pub(crate) fn take_again(
        &self,
        device: usize,
        sink: Box<dyn PortSink>,
        (known, is_late): (&[IpAddr], bool),
        Addresses { ours, elsewhere }: &Addresses,
    ) -> io::Result<()> {
        // Held until the end, so that additions in between are not missed.
        let mut used = self.lock();
        for entry in used.values_mut().filter(|entry| is_late && entry.share == Share::Ours) {
            entry.share = Share::Former;
        }
        for (place, entry) in used.iter() {
            for end in place.ends() {
                let share = share_of(&used, place.protocol, end).unwrap_or(entry.share);
                sink.add(place.protocol, end, share, entry.reservation.as_ref().map(AsFd::as_fd))?;
            }
        }
        sink.set_ephemeral(&self.ephemeral.ports)?;
        // In between, former addresses of the host are marked as absent.
        sink.set_addresses(known, &[])?;
        sink.set_addresses(ours, elsewhere)?;
        self.set_sink(device, Some(sink));
        Ok(())
    }

    /// Reserves `at`, or counts one more user of it. Port 0 chooses a port. Returns the address
    /// with its port.
    pub(crate) fn acquire(&self, protocol: Protocol, at: SocketAddr, v6_only: bool) -> io::Result<LeasedAddress> {
        self.take(LeasedAddress::new(protocol, at, v6_only), None, || {
            let sinks = self.sinks.read().unwrap_or_else(PoisonError::into_inner);
            let reservation = match sinks.iter().flatten().next() {
                Some(sink) => sink.reserve(protocol, at, v6_only),
                None => Reservation::new(protocol, at, v6_only),
            };
            reservation.map(Some)
        })
    }

    /// Returns true if kernel sockets must prove addresses ([`PortSink::needs_proof`]).
    pub(crate) fn needs_proof(&self) -> bool {
        let sinks = self.sinks.read().unwrap_or_else(PoisonError::into_inner);
        sinks.iter().flatten().any(|sink| sink.needs_proof())
    }

    /// Called regularly.
    pub(crate) fn tend(&self) {
        self.each_sink(|sink| sink.tend());
    }

    /// Like [`Ports::acquire`], for a port that another process holds in the kernel for us.
    pub(crate) fn acquire_held(&self, protocol: Protocol, at: SocketAddr, v6_only: bool) -> io::Result<LeasedAddress> {
        if at.port() == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.take(LeasedAddress::new(protocol, at, v6_only), None, || Ok(None))
    }

    /// Like [`Ports::acquire`], with a non-blocking kernel socket that is bound to `at` without
    /// IPV6_V6ONLY.
    ///
    /// # Errors
    /// `AddrInUse` if another socket reserves the address.
    pub(crate) fn acquire_by(&self, protocol: Protocol, at: SocketAddr, socket: OwnedFd) -> io::Result<LeasedAddress> {
        self.require_kernel()?;
        self.take_by(LeasedAddress::new(protocol, at, false), socket)
    }

    fn require_kernel(&self) -> io::Result<()> {
        if self.in_kernel {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::Unsupported, "standalone addressing has no kernel socket to do this with"))
    }

    fn take_by(&self, place: LeasedAddress, socket: OwnedFd) -> io::Result<LeasedAddress> {
        let given = Reservation::by(socket);
        let id = given.id()?;
        self.take(place, Some(id), || Ok(Some(given)))
    }

    /// `given`: only a place that this socket reserves can be shared.
    fn take(
        &self,
        place: LeasedAddress,
        given: Option<(u64, u64)>,
        reserve: impl FnOnce() -> io::Result<Option<Reservation>>,
    ) -> io::Result<LeasedAddress> {
        if !self.in_kernel {
            // No control thread calls it regularly.
            self.free_cooled(Instant::now());
        }
        let mut used = self.lock();
        let known = used.get_mut(&place).filter(|known| {
            let is_given_up = self.in_kernel && !known.held && known.reservation.is_none();
            place.at.port() != 0 && !is_given_up
        });
        if let Some(known) = known {
            if given.is_some() {
                let reserved = known.reservation.as_ref().map(Reservation::id).transpose()?;
                if given != reserved {
                    return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
                }
            }
            known.users += 1;
            if known.users == 1 && known.held {
                known.share = Share::Former;
                self.tell(&used, place);
            }
            return Ok(place);
        }
        self.give_up_others(&mut used, place);
        let (at, protocol) = (place.at, place.protocol);
        let (at, reservation) = if self.in_kernel {
            let reservation = reserve()?;
            let port = reservation.as_ref().map_or(Ok(at.port()), Reservation::port)?;
            (with_port(at, port), reservation)
        } else if at.port() == 0 {
            let free = (PRIVATE_FIRST..=PRIVATE_LAST)
                .map(|port| with_port(at, port))
                .find(|at| !used.keys().any(|known| known.protocol == protocol && known.at.port() == at.port()))
                .ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRINUSE))?;
            (free, None)
        } else {
            (at, None)
        };
        let held = self.in_kernel && reservation.is_none();
        // Connections of a closed listener go on in the kernel.
        let is_former = held || reservation.as_ref().is_some_and(|reservation| reservation.is_shared);
        let share = if is_former { Share::Former } else { Share::Ours };
        let place = LeasedAddress { at, ..place };
        if let Some(known) = used.get_mut(&place) {
            // Its reservation was given up, while its connections, or their last packets, are still
            // ours. Connections are users too.
            known.users += 1;
            (known.held, known.share, known.reservation) = (held, share, reservation);
            known.is_shared_socket = false;
        } else {
            self.enter(place, share, reservation.as_ref().map(AsFd::as_fd))?;
            let is_shared_socket = false;
            used.insert(
                place,
                Used {
                    users: 1,
                    listeners: 0,
                    carried: false,
                    until: None,
                    held,
                    is_shared_socket,
                    share,
                    reservation,
                },
            );
        }
        self.tell(&used, place);
        Ok(place)
    }

    /// Prepares a reservation of `[::]` with another IPV6_V6ONLY than before. A place of ours that
    /// is only cooling down there gives up its reservation. We still get its connections' last
    /// packets, and another process that has its address in the kernel gets its own.
    fn give_up_others(&self, used: &mut AllUsed, place: LeasedAddress) {
        let other = LeasedAddress { v6_only: !place.v6_only, ..place };
        let Some(entry) = used.get_mut(&other) else { return };
        if entry.users > 0 || entry.reservation.is_none() {
            return;
        }
        (entry.reservation, entry.share) = (None, Share::Leaving);
        self.tell(used, other);
    }

    /// Enters a place in each device's table. The table counts how many places have an address.
    fn enter(&self, place: LeasedAddress, share: Share, reservation: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let sinks = self.sinks.read().unwrap_or_else(PoisonError::into_inner);
        let all = || place.ends().flat_map(|end| sinks.iter().flatten().map(move |sink| (end, sink)));
        for (done, (end, sink)) in all().enumerate() {
            if let Err(error) = sink.add(place.protocol, end, share, reservation) {
                all().take(done).for_each(|(end, sink)| sink.remove(place.protocol, end));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Updates in each device's table the receiver of the packets for a place's addresses.
    fn tell(&self, used: &AllUsed, place: LeasedAddress) {
        for end in place.ends() {
            if let Some(share) = share_of(used, place.protocol, end) {
                self.each_sink(|sink| sink.share(place.protocol, end, share));
            }
        }
    }

    /// Removes a user. The last one frees the port. If connections have used it (`carried`), the
    /// port is freed after the cool-down: their last packets would otherwise reach the kernel,
    /// which replies with RST.
    pub(crate) fn release(&self, place: LeasedAddress, carried: bool) {
        let mut used = self.lock();
        let Some(entry) = used.get_mut(&place) else {
            debug_assert!(false, "{place:?} was not taken");
            return;
        };
        entry.users -= 1;
        entry.carried |= carried;
        if entry.users > 0 {
            return;
        }
        if entry.carried {
            let until = crate::sys::from_now(self.cool_down);
            entry.until = Some(until);
            self.cooling().push((until, place));
            // The next owner in the kernel need not wait.
            if entry.held {
                entry.share = Share::Leaving;
                self.tell(&used, place);
            }
        } else {
            self.free(&mut used, place);
        }
    }

    /// Sets the receiver of the packets of a place that another process holds in the kernel. Does
    /// nothing for other places, or without users.
    pub(crate) fn share(&self, place: LeasedAddress, share: Share) {
        let mut used = self.lock();
        if let Some(entry) = used.get_mut(&place).filter(|entry| entry.held && entry.users > 0) {
            entry.share = share;
            self.tell(&used, place);
        }
    }

    /// Returns another descriptor of the kernel socket that reserves a place, or `None` if we have
    /// none.
    pub(crate) fn kernel_socket(&self, place: LeasedAddress) -> io::Result<Option<OwnedFd>> {
        let used = self.lock();
        let reservation = used.get(&place).and_then(|entry| entry.reservation.as_ref());
        reservation.map(|reservation| reservation.as_fd().try_clone_to_owned()).transpose()
    }

    /// Listens on the kernel socket that reserves a place, and returns another descriptor of it, or
    /// `None` if we have none.
    pub(crate) fn listen(&self, place: LeasedAddress, backlog: u32) -> io::Result<Option<OwnedFd>> {
        let mut used = self.lock();
        let Some(entry) = used.get_mut(&place) else { return Ok(None) };
        let Some(reservation) = &entry.reservation else { return Ok(None) };
        let socket = reservation.as_fd().try_clone_to_owned()?;
        reservation.listen(backlog)?;
        entry.listeners += 1;
        Ok(Some(socket))
    }

    /// Sets the backlog of the kernel's listening socket.
    pub(crate) fn set_backlog(&self, place: LeasedAddress, backlog: u32) -> io::Result<()> {
        let used = self.lock();
        let entry = used.get(&place).filter(|entry| entry.listeners > 0);
        entry.and_then(|entry| entry.reservation.as_ref()).map_or(Ok(()), |reservation| reservation.listen(backlog))
    }

    /// Ends one [`Ports::listen`]. After the last one the socket only reserves the port. If another
    /// process has it too, it goes on listening there.
    pub(crate) fn stop_listening(&self, place: LeasedAddress) {
        let mut used = self.lock();
        let Some(entry) = used.get_mut(&place) else { return };
        entry.listeners = entry.listeners.saturating_sub(1);
        if entry.listeners > 0 {
            return;
        }
        if entry.is_shared_socket {
            self.leave_to_kernel(&mut used, place);
        } else if let Some(reservation) = &entry.reservation
            && let Err(error) = reservation.stop_listening()
        {
            tracing::error!(at = %place.at, %error, "the kernel's socket still listens");
        }
    }

    /// Takes the kernel socket that reserves a place, for its only user. Last packets of our former
    /// connections there are still ours, except on a shared device: there this socket proves the lease.
    pub(crate) fn take_socket(&self, place: LeasedAddress) -> Option<OwnedFd> {
        let mut used = self.lock();
        let entry = used.get_mut(&place).filter(|entry| entry.users == 1 && entry.listeners == 0)?;
        let reservation = entry.reservation.take()?;
        entry.share = Share::Leaving;
        // Its release ends the lease.
        entry.carried &= !self.needs_proof();
        self.tell(&used, place);
        Some(reservation.into_fd())
    }

    /// Returns true if a socket uses the port.
    pub(crate) fn is_used(&self, place: LeasedAddress) -> bool {
        self.lock().get(&place).is_some_and(|entry| entry.users > 0)
    }

    fn cooling(&self) -> MutexGuard<'_, Vec<(Instant, LeasedAddress)>> {
        self.cooling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self, used: &mut AllUsed, place: LeasedAddress) {
        // First the program, then the kernel: a packet in between finds the reservation, and not
        // another program's socket.
        let freed = used.remove(&place);
        self.each_sink(|sink| place.ends().for_each(|end| sink.remove(place.protocol, end)));
        // Another place may have one of its addresses.
        self.tell(used, place);
        drop(freed);
    }

    /// Frees all ports at the end of the runtime. A handle may keep this value for longer.
    pub(crate) fn end(&self) {
        let mut used = self.lock();
        let all: Vec<_> = used.keys().copied().collect();
        all.into_iter().for_each(|place| self.free(&mut used, place));
        self.cooling().clear();
        self.ephemeral.end();
    }

    /// The links are about to be closed. From now on the kernel may answer our peers.
    pub(crate) fn unguard(&self) {
        self.each_sink(|sink| sink.unguard());
    }

    /// Tells each device's program all addresses: a packet for an address may arrive through
    /// another device (RFC 1122 3.3.4.2, the weak model).
    pub(crate) fn set_addresses(&self, Addresses { ours, elsewhere }: &Addresses) {
        self.each_sink(|sink| {
            if let Err(error) = sink.set_addresses(ours, elsewhere) {
                tracing::error!(%error, ?ours, "cannot tell the XDP program the host's addresses");
            }
        });
    }
}

#[cfg(test)]
mod tests;
