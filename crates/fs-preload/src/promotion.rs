//! Offers to the match service, its answers, and the moment of promotion.
//!
//! All of it happens in data calls on the socket that it is about, and never waits. Another
//! thread's call on the same socket, or a thread that sleeps in poll(2) with it, postpones the
//! promotion to a later call.

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use fs_carrier::exact;
use fs_carrier::kernel::Kernel;
use fs_carrier::pair::Pair;
use fs_carrier::region::{End, Region, SideRef, SideTable};
use fs_carrier::set::{EPOLLEXCLUSIVE, EPOLLONESHOT};
use fs_pairs::{Client, Number, Offered, Reason};

use crate::object::Body;
use crate::set::{self, Control};
use crate::slot::{Kind, Registered, Slot, Visit};
use crate::socket::Socket;
use crate::sys::errno::keeping_errno;
use crate::sys::guarded::{Guarded, without_signals};
use crate::sys::heap;
use crate::sys::kernel::Fd;
use crate::table;
use crate::{confined, process, report};

/// Offers of one process that wait for an answer or for their socket's next call. The client allows
/// as many unanswered ones.
const OUTSTANDING: usize = 1024;
/// Sides in one page.
const SIDES: usize = 32;
/// Maximum wait for the service, in a process whose calls wait for it. Longer: with a stopped daemon,
/// each such call takes longer. Shorter: on a busy machine the service gets no processor for that long,
/// and a close that does not wait for it is not the last one.
const SETTLED: std::time::Duration = std::time::Duration::from_secs(30);
/// include/net/tcp_states.h
const TCP_ESTABLISHED: u8 = 1;
/// Attempts to read numbers that change while they are read.
const READINGS: u32 = 3;

static CLIENT: OnceLock<Client> = OnceLock::new();
static STATE: Guarded<Promotions> = Guarded::new(Promotions { offers: Vec::new(), sides: None });

/// An offer that was made.
struct Outstanding {
    number: Number,
    fd: RawFd,
    generation: u64,
    answer: Option<(Region, End)>,
}

struct Promotions {
    /// The offers, at most [`OUTSTANDING`].
    offers: Vec<Option<Outstanding>>,
    /// Sides that are not used yet. A used one is not used again: a child of fork(2) may still have it.
    sides: Option<(std::sync::Arc<SideTable>, usize)>,
}

impl Promotions {
    fn side(&mut self) -> Option<SideRef> {
        if let Some((table, used)) = &mut self.sides
            && let Some(side) = table.side(*used)
        {
            *used += 1;
            return Some(side);
        }
        let table = SideTable::new(SIDES).ok()?;
        let side = table.side(0);
        self.sides = Some((table, 1));
        side
    }

    /// Returns a place for an offer, if there is one.
    fn free_place(&mut self) -> Option<usize> {
        let is_free = |place: &Option<Outstanding>| place.is_none();
        if let Some(i) = self.offers.iter().position(is_free) {
            return Some(i);
        }
        if self.offers.len() == OUTSTANDING {
            self.drop_stale();
            return self.offers.iter().position(is_free);
        }
        self.offers.try_reserve(1).ok()?;
        self.offers.push(None);
        Some(self.offers.len() - 1)
    }

    /// Handles the answers that have arrived.
    fn collect(&mut self, client: &Client) {
        self.collect_until(client, None);
    }

    /// Like [`Promotions::collect`], up to the answer of one offer.
    fn collect_until(&mut self, client: &Client, last: Option<Number>) {
        while client.is_waiting() {
            match client.answer() {
                None if last.is_some() && wait_for(client) => {}
                None => return,
                Some(Offered::Matched { number, region, end }) => {
                    if let Some(offer) = self.offers.iter_mut().flatten().find(|offer| offer.number == number) {
                        offer.answer = Some((region, end));
                    }
                }
                Some(Offered::Refused { number, reason }) => {
                    if last == Some(number) {
                        return;
                    }
                    self.drop_offers(|offer| offer.number == number, kind_after(reason));
                }
                Some(Offered::Lost) => self.drop_offers(|offer| offer.answer.is_none(), Kind::Watched),
            }
        }
    }

    /// Waits until the service has handled all requests so far, and handles its answers. It refuses
    /// invalid connections at once.
    fn settle(&mut self, client: &Client) {
        let Some(own) = client.descriptor().map(Fd::new) else { return };
        let last = client.offer(own.borrow(), exact::Carried::default());
        if last.is_some() {
            self.collect_until(client, last);
        }
    }

    /// Drops offers. Their sockets get the kind `kind`.
    fn drop_offers(&mut self, which: impl Fn(&Outstanding) -> bool, kind: Kind) {
        for place in &mut self.offers {
            if let Some(offer) = place.take_if(|offer| which(offer))
                && let Some(slot) = table::slot(offer.fd)
                && slot.change(offer.generation, &[Kind::Offered], kind)
            {
                slot.offer.store(0, Ordering::Relaxed);
                slot.postpone_offer();
            }
        }
    }

    /// Drops offers whose number refers to another file by now.
    fn drop_stale(&mut self) {
        for place in &mut self.offers {
            place.take_if(|offer| {
                table::slot(offer.fd).is_none_or(|slot| {
                    let state = slot.state();
                    state.generation() != offer.generation || state.kind() != Kind::Offered
                })
            });
        }
    }
}

/// Waits for the service's next answer. Returns false if the service does not run.
fn wait_for(client: &Client) -> bool {
    let Some(own) = client.descriptor().map(Fd::new) else { return false };
    let time = rustix::event::Timespec { tv_sec: SETTLED.as_secs() as i64, tv_nsec: 0 };
    let mut list = [rustix::event::PollFd::from_borrowed_fd(own.borrow(), rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut list, Some(&time)).is_ok_and(|n| n > 0)
}

/// Returns the kind of a slot whose socket was refused. If the reason may pass, the socket is
/// offered again after twice as many calls.
fn kind_after(reason: Reason) -> Kind {
    match reason {
        Reason::NoPeer | Reason::Limit | Reason::Twice | Reason::Ambiguous => Kind::Watched,
        _ => Kind::Plain,
    }
}

/// Sets the client of the match service. Without it no socket is watched.
pub(crate) fn start(client: Client) {
    let _first = CLIENT.set(client);
}

static IS_DISABLED: AtomicBool = AtomicBool::new(false);

/// Stops promotion.
pub(crate) fn disable() {
    IS_DISABLED.store(true, Ordering::Relaxed);
}

/// Returns whether new sockets are watched.
#[inline]
pub(crate) fn is_enabled() -> bool {
    CLIENT.get().is_some() && !IS_DISABLED.load(Ordering::Relaxed)
}

/// Returns whether a new epoll set may later contain a socket with a ring, or with unread bytes of
/// one.
pub(crate) fn concerns_sets() -> bool {
    CLIENT.get().is_some() && (!confined::is_confined() || confined::has_rests())
}

/// Acquires the lock that no other thread may hold during a fork.
pub(crate) fn lock() {
    STATE.lock();
}

/// Releases the lock after the fork.
pub(crate) fn unlock() {
    STATE.break_lock();
}

/// Called in a new child, which does not own its parent's offers.
pub(crate) fn begin_child() {
    STATE.break_lock();
    STATE.with(|state| {
        state.offers = Vec::new();
        // The parent continues to use it.
        core::mem::forget(state.sides.take());
    });
    if let Some(client) = CLIENT.get() {
        client.after_fork();
    }
    report::begin_child();
}

/// Disconnects from the match service for good. Call [`disable`] first.
pub(crate) fn disconnect() {
    if let Some(client) = CLIENT.get() {
        without_signals(|| client.disconnect());
    }
}

/// Drops the offer of a watched socket that is about to be closed, or that the kernel keeps
/// carrying.
pub(crate) fn forget(slot: &Slot) {
    let number = slot.offer.swap(0, Ordering::Relaxed);
    if number != 0
        && let Some(client) = CLIENT.get()
    {
        without_signals(|| client.forget(Number(number)));
        let _busy = STATE.try_with(|state| {
            state.drop_offers(|offer| offer.number == Number(number), Kind::Plain);
            if process::waits_for_service() {
                state.settle(client);
            }
        });
    }
}

/// Records an epoll_ctl(2) of a watched socket that the kernel has carried out.
pub(crate) fn registered(slot: &Slot, control: Control) {
    let id = set::find(control.number, None).and_then(|held| {
        let id = match held.body() {
            Body::Set(polled) if !polled.is_kernel_only() => {
                polled.gets_socket();
                Some(polled.id())
            }
            Body::Set(_) | Body::Socket(_) => None,
        };
        held.release();
        id
    });
    let stays = match (control.operation, id) {
        (libc::EPOLL_CTL_DEL, _) => {
            slot.deregister();
            true
        }
        (_, Some(set)) if control.events & (EPOLLONESHOT | EPOLLEXCLUSIVE) == 0 => {
            slot.register(Registered { set, number: control.number, events: control.events, data: control.data })
        }
        _ => false,
    };
    if !stays {
        forget(slot);
        slot.end();
    }
}

/// Tells the service that the pair of a promoted socket has ended. A confined process has left the
/// service.
pub(crate) fn end_pair(socket: &Socket) {
    if !confined::is_confined()
        && let Some(client) = CLIENT.get()
    {
        without_signals(|| client.forget(socket.offer()));
    }
}

/// Does what is due in a data call on a watched socket. Returns whether the socket is promoted now.
#[inline]
pub(crate) fn advance(fd: RawFd, slot: &'static Slot, visit: Visit) -> bool {
    match slot.state().kind() {
        Kind::Watched if slot.is_offer_due() => {
            offer(fd, slot, visit);
            process::waits_for_service() && complete(fd, slot, visit)
        }
        Kind::Offered => complete(fd, slot, visit),
        _ => false,
    }
}

/// Offers a watched socket to the match service.
#[cold]
pub(crate) fn offer(fd: RawFd, slot: &'static Slot, visit: Visit) {
    let never = || {
        slot.change(visit.generation(), &[Kind::Watched], Kind::Plain);
    };
    let Some(client) = CLIENT.get() else { return never() };
    let kernel = Fd::new(fd);
    if slot.forks() != process::forks() {
        return never();
    }
    // First: with many connections, most of the attempts end here.
    match STATE.try_with(|state| state.free_place().is_some()) {
        Some(true) if slot.is_alone() => {}
        Some(true) | None => return,
        Some(false) => return slot.retry_offer(),
    }
    if kernel.tcp_info().is_err() {
        return never();
    }
    // A download from another host would pay for an offer that nothing answers, and the service's duplicate would
    // delay its FIN.
    if slot.is_one_way() && !kernel.is_within_host() {
        return slot.postpone_offer();
    }
    let Some(carried) = (0..READINGS).find_map(|_| exact::carried(&kernel)) else { return };
    if carried != slot.carried() {
        // Another thread may have begun a call.
        if slot.is_alone() {
            never();
        }
        return;
    }
    let _busy = STATE.try_with(|state| {
        // Answers for sockets that were closed since: no other call may take them.
        state.collect(client);
        state.drop_stale();
        let Some(place) = state.free_place() else { return slot.retry_offer() };
        let Some(number) = client.offer(kernel.borrow(), carried) else {
            // The socket's earlier offers are unanswered, or there is no service.
            return if client.is_waiting() { slot.retry_offer() } else { slot.postpone_offer() };
        };
        slot.offer.store(number.0, Ordering::Relaxed);
        state.offers[place] = Some(Outstanding { number, fd, generation: visit.generation(), answer: None });
        slot.change(visit.generation(), &[Kind::Watched], Kind::Offered);
    });
}

#[cold]
fn complete(fd: RawFd, slot: &'static Slot, visit: Visit) -> bool {
    let Some(client) = CLIENT.get() else { return false };
    let promoted = STATE.try_with(|state| {
        if process::waits_for_service() {
            state.settle(client);
        }
        state.collect(client);
        let mine = |place: &Option<Outstanding>| {
            place.as_ref().is_some_and(|offer| offer.fd == fd && offer.generation == visit.generation())
        };
        let i = state.offers.iter().position(mine)?;
        state.offers[i].as_ref()?.answer.as_ref()?;
        if !slot.begin_promotion(visit.generation()) {
            return None;
        }
        let offer = state.offers[i].take()?;
        let (region, end) = offer.answer?;
        let side = if heap::has_spare() { state.side() } else { None };
        let place = side.and_then(|side| build(fd, slot, region, end, side, offer.number));
        let is_promoted = finish(fd, slot, visit, place);
        if !is_promoted {
            client.forget(offer.number);
        }
        Some(is_promoted)
    });
    promoted.flatten().unwrap_or(false)
}

/// Makes the promoted socket. Nothing: it stays the kernel's.
fn build(fd: RawFd, slot: &Slot, region: Region, end: End, side: SideRef, number: Number) -> Option<Socket> {
    let kernel = Fd::new(fd);
    if slot.forks() != process::forks() {
        return None;
    }
    // This end was shut down since the offer: the peer could not tell that from a death.
    if kernel.tcp_info().ok()?.state != TCP_ESTABLISHED {
        return None;
    }
    let carried = (0..READINGS).find_map(|_| exact::carried(&kernel))?;
    if carried != slot.carried() {
        return None;
    }
    let flags = rustix::fs::fcntl_getfl(kernel.borrow()).ok()?;
    // Options that the socket had at its birth. Those that are set later leave it to the kernel
    // (`sys/exports/control.rs`).
    if flags.bits() & libc::O_ASYNC.cast_unsigned() != 0 || keeping_errno(|| kernel.has_unusual_options()) {
        return None;
    }
    let nodelay = rustix::net::sockopt::tcp_nodelay(kernel.borrow()).ok()?;
    let pair = Pair::promote(kernel, region, end, side, process::pacing()).ok()?;
    let socket = Socket::new(pair, flags.contains(rustix::fs::OFlags::NONBLOCK), nodelay, number);
    socket.set_nodelay(nodelay);
    Some(socket)
}

fn finish(fd: RawFd, slot: &'static Slot, visit: Visit, socket: Option<Socket>) -> bool {
    let generation = visit.generation();
    let Some(socket) = socket.filter(|socket| set::join_registered(fd, slot, socket)) else {
        slot.change(generation, &[Kind::Promoting], Kind::Plain);
        return false;
    };
    let pair = std::sync::Arc::clone(socket.pair());
    if slot.object.put(Body::Socket(socket)) && slot.change(generation, &[Kind::Promoting], Kind::Socket) {
        pair.begin();
        report::count_promotion();
        return true;
    }
    // The number was closed, or another thread has lost patience.
    pair.pin();
    let _ = fd;
    if let Some(held) = slot.object.take() {
        if let Some(socket) = held.socket() {
            socket.pin();
        }
        held.release();
    }
    false
}
