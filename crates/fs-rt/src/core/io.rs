//! State that only a core's reactor uses: its links, its mailboxes, and the steps of a turn with
//! them.

use super::gone_link::GoneLink;
use crate::mailbox::Mailboxes;
use crate::poll::{PollPolicy, Poller};
use crate::shared::Shared;
use crate::stats::RuntimeStats;
use crate::wakers::{Interest, Wakers};
use fs_core::{
    CoreMessage, Event, Frame, FramePool, Histogram, IfaceId, Instant, Outbound, Ready, RxFrame, SEND_QUOTA, Stack,
    TxFrame,
};
use fs_xdp::{Link, UmemPool};
use std::task::Waker;

/// The stack type of every core.
pub type CoreStack = Stack<UmemPool>;

/// The links that a core polls.
pub(crate) type CoreLinks = Vec<(Box<dyn Link>, IfaceId)>;

/// Packets taken from a link per turn. The gain of batching with AF_XDP is reached at 32 to 64
/// (forwarding over veth: 0.84 Mpps at 64, 0.82 at 16). Higher: tasks wait longer for the first
/// packet of a batch.
const RX_BATCH: usize = 64;

/// Packets built for an interface per turn: two receive batches, because replies can outnumber
/// received packets (data and ACKs).
const TX_BATCH: usize = 128;

/// Bytes that a connection may send before the next one has its turn, where a link merges what it
/// gets in one go: the payload of the largest merged packet with the longest headers (a VLAN tag,
/// IPv6, TCP with all options). Lower: smaller packets; higher: one segment of each turn does not
/// fit the merged packet and leaves by itself, and the wait of others grows, 20 µs at 25 Gb/s as it
/// is.
const MERGED_QUOTA: u32 = 65_535 - 18 - 40 - 60;

/// Packets built per turn where a link merges: three full merged packets at MTU 1500, 45 segments
/// each. A number that 45 does not divide cuts a run in each turn.
const MERGED_TX_BATCH: usize = 135;

/// Messages taken from one other core per turn.
const MAIL_BATCH: usize = 128;

/// A queue of a device that this core polls.
pub(crate) struct Port {
    pub(crate) link: Box<dyn Link>,
    pub(crate) iface: IfaceId,
    /// Packets that are built and that the link has not taken yet.
    tx: Vec<TxFrame>,
    /// This queue sends for its interface (it is the core's first queue there).
    sends: bool,
    /// Tells if the link merged when the stack's quota was last set.
    merges: Option<bool>,
    /// Its device is gone, and other devices are left, or the queue is closed.
    lost: bool,
    /// The number of a queue that the device got after the start.
    new: Option<u32>,
}

impl Port {
    /// Returns true if there are packets to receive.
    pub(crate) fn has_packets(&mut self) -> bool {
        !self.lost && self.link.has_packets()
    }

    /// Returns true if no descriptor tells of packets.
    pub(crate) fn must_be_polled(&self) -> bool {
        !self.lost && self.link.wake_fd().is_none()
    }
}

/// Durations of turns that do work, from one reading of the clock to the next. A duration includes
/// the tasks that the turn woke, so it is the longest time that a packet arriving in it waits.
/// After such a turn the core does not sleep, so no sleep is included.
#[derive(Debug, Default)]
pub(super) struct TurnTimes {
    pub(super) times: Histogram,
    began: Instant,
    pub(super) worked: bool,
}

impl TurnTimes {
    #[inline]
    pub(super) fn begins(&mut self, now: Instant) {
        if self.worked {
            self.times.record(now.since(self.began));
        }
        self.began = now;
    }
}

/// State that only the reactor uses.
pub(crate) struct CoreIo {
    pub(crate) ports: Vec<Port>,
    pub(crate) mail: Mailboxes,
    pub(crate) counters: RuntimeStats,
    pub(super) turns: TurnTimes,
    rx: Vec<RxFrame>,
    pub(super) events: Vec<Event>,
    outbound: Vec<Outbound>,
    pub(super) woken: Vec<Waker>,
    pub(crate) poller: Poller,
    /// Version of the lost devices that was last applied.
    let_go: usize,
    /// See [`CoreStats::given_up`](crate::CoreStats::given_up).
    pub(crate) given_up: Vec<&'static str>,
}

impl CoreIo {
    pub(crate) fn new(links: CoreLinks, mail: Mailboxes, policy: PollPolicy) -> Self {
        let mut io = Self {
            ports: Vec::with_capacity(links.len()),
            mail,
            counters: RuntimeStats::default(),
            turns: TurnTimes::default(),
            rx: Vec::with_capacity(4 * RX_BATCH),
            events: Vec::with_capacity(256),
            outbound: Vec::with_capacity(RX_BATCH),
            woken: Vec::with_capacity(256),
            poller: Poller::new(policy),
            let_go: 0,
            given_up: Vec::new(),
        };
        links.into_iter().for_each(|(link, iface)| io.add(link, iface, None));
        io
    }

    /// The links are placeholders of devices that the runtime does not have yet.
    pub(crate) fn without_devices(mut self) -> Self {
        self.ports.iter_mut().for_each(|port| port.lost = true);
        self
    }

    /// Also polls `link` from now on. `new`: its queue's number, if the device got it after the
    /// start.
    pub(crate) fn add(&mut self, link: Box<dyn Link>, iface: IfaceId, new: Option<u32>) {
        // The first queue of a device that has come back, or the place of a closed queue.
        if let Some(port) = self.ports.iter_mut().find(|port| port.iface == iface && port.lost) {
            (port.link, port.lost, port.new) = (link, false, new);
            return;
        }
        let sends = self.ports.iter().all(|port| port.iface != iface);
        let tx = Vec::with_capacity(2 * MERGED_TX_BATCH);
        self.ports.push(Port { link, iface, tx, sends, merges: None, lost: false, new });
    }

    /// Returns how many queues it polls.
    pub(crate) fn queues(&self) -> u32 {
        self.ports.iter().filter(|port| !port.lost).count() as u32
    }

    /// Limits each queue to `share` frames to receive into.
    pub(crate) fn limit_lent(&mut self, share: u32) {
        self.ports.iter_mut().for_each(|port| port.link.limit_lent(share));
    }

    /// Closes a new queue with which its device does not work. The core sends through its first
    /// queue. The queue's frames are kept, because its driver may still write to them; a second call
    /// returns them to the pool.
    pub(crate) fn close_queue(&mut self, iface: IfaceId, queue: u32, stack: &mut CoreStack) {
        let is_it = |port: &Port| port.iface == iface && port.new == Some(queue) && !port.sends;
        let Some(at) = self.ports.iter().position(is_it) else { return };
        let mut port = self.ports.remove(at);
        stack.note_link_dropped(port.tx.len() as u64);
        port.tx.drain(..).for_each(|tx| stack.pool_mut().free(tx.frame));
        if port.lost {
            return port.link.close(stack.pool_mut());
        }
        let (caps, stats) = (port.link.caps().clone(), port.link.stats());
        let kept = close_and_keep(port.link, stack.pool_mut());
        self.ports.push(Port { link: Box::new(GoneLink::new(caps, stats, kept)), lost: true, ..port });
    }

    /// Stops using the links of a device that is gone.
    pub(super) fn lose(&mut self, LinkDown { iface, source }: LinkDown, shared: &Shared) {
        if shared.link_down(iface, source, self.let_go) {
            self.ports.iter_mut().filter(|port| port.iface == iface).for_each(|port| port.lost = true);
        }
    }

    /// Closes the queues of a device that is gone. Packets to it are dropped until it is back. Its
    /// receive frames are kept until then, because stalled connections may use up all others.
    pub(crate) fn let_go(&mut self, iface: IfaceId, stack: &mut CoreStack) {
        self.let_go += 1;
        let (gone, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.ports).into_iter().partition(|port| port.iface == iface);
        self.ports = left;
        let mut spare = Vec::new();
        let mut left = None;
        for Port { link, tx, sends, .. } in gone {
            stack.note_link_dropped(tx.len() as u64);
            let pool = stack.pool_mut();
            tx.into_iter().for_each(|tx| pool.free(tx.frame));
            if sends {
                left = Some((link.caps().clone(), link.stats()));
            }
            spare.extend(close_and_keep(link, pool));
        }
        if let Some((caps, stats)) = left {
            let (link, tx) = (Box::new(GoneLink::new(caps, stats, spare)), Vec::with_capacity(2 * MERGED_TX_BATCH));
            self.ports.push(Port { link, iface, tx, sends: true, merges: None, lost: true, new: None });
        } else {
            spare.into_iter().for_each(|frame| stack.pool_mut().free(frame));
        }
    }

    /// Returns the longest packet that every open queue of an interface carries, or `None` without
    /// one.
    pub(super) fn mtu(&self, iface: IfaceId) -> Option<u16> {
        let open = self.ports.iter().filter(|port| port.iface == iface && !port.lost);
        open.map(|port| port.link.caps().mtu).min()
    }

    /// Returns the kept frames to the pool when the device is back, or gets another queue.
    pub(crate) fn give_spare(&mut self, iface: IfaceId, stack: &mut CoreStack) {
        for port in self.ports.iter_mut().filter(|port| port.iface == iface && port.lost) {
            port.link.reap(stack.pool_mut());
        }
    }

    pub(super) fn transmit(&mut self, stack: &mut CoreStack) -> Result<usize, LinkDown> {
        let mut sent = 0;
        for port in self.ports.iter_mut().filter(|p| p.sends) {
            let merges = port.link.merges();
            let batch = if merges { MERGED_TX_BATCH } else { TX_BATCH };
            if port.tx.len() < batch && stack.tx_pending(port.iface) {
                let before = port.tx.len();
                if port.merges != Some(merges) {
                    port.merges = Some(merges);
                    stack.set_send_quota(port.iface, if merges { MERGED_QUOTA } else { SEND_QUOTA });
                }
                sent += stack.tx_batch(port.iface, batch - before, &mut port.tx);
            }
            if port.lost {
                stack.note_link_dropped(port.tx.len() as u64);
                port.tx.drain(..).for_each(|tx| stack.pool_mut().free(tx.frame));
            } else if port.tx.is_empty() {
                // The kernel stops in the ring when a send buffer or the driver's queue is full.
                port.link.reap(stack.pool_mut());
            } else {
                sent += port
                    .link
                    .tx(stack.pool_mut(), &mut port.tx)
                    .map_err(|source| LinkDown { iface: port.iface, source })?;
            }
        }
        Ok(sent)
    }

    /// A link that does not sleep and receives nothing may be dead. Only a send finds out.
    fn ask_links(&mut self, stack: &mut CoreStack) -> Result<(), LinkDown> {
        for port in self.ports.iter_mut().filter(|port| !port.lost) {
            port.link.tx(stack.pool_mut(), &mut port.tx).map_err(|source| LinkDown { iface: port.iface, source })?;
        }
        Ok(())
    }

    pub(super) fn post(&mut self, stack: &mut CoreStack, shared: &Shared) {
        stack.drain_outbound(&mut self.outbound);
        for Outbound { to, message } in self.outbound.drain(..) {
            let Some(outbox) = self.mail.to.get_mut(to.0 as usize).and_then(Option::as_mut) else {
                debug_assert!(false, "a message to core {to:?}, which is not another core");
                discard(stack, message);
                continue;
            };
            self.counters.messages_sent += 1;
            let frames = message.frames();
            stack.pool_mut().pass_on(frames);
            if let Err(packet) = outbox.send(message) {
                stack.pool_mut().take_over(frames);
                self.counters.mailbox_full += 1;
                stack.count_mailbox_full(1);
                discard(stack, packet);
            }
        }
        for (to, outbox) in self.mail.to.iter_mut().enumerate() {
            let Some(outbox) = outbox else { continue };
            if outbox.flush() {
                self.counters.mailbox_high_water = self.counters.mailbox_high_water.max(outbox.high_water as u64);
                self.counters.doorbells += u64::from(shared.inboxes[to].doorbell.notify_if_asleep());
            }
        }
    }

    pub(super) fn collect(&mut self, stack: &mut CoreStack) -> usize {
        let mut taken = 0;
        for from in &mut self.mail.from {
            for _ in 0..MAIL_BATCH {
                let Ok(message) = from.pop() else { break };
                stack.pool_mut().take_over(message.frames());
                stack.deliver(message);
                taken += 1;
            }
        }
        self.counters.messages_received += taken as u64;
        taken
    }

    pub(super) fn receive(&mut self, stack: &mut CoreStack) -> usize {
        let mut packets = 0;
        for port in self.ports.iter_mut().filter(|port| !port.lost) {
            packets += port.link.rx(stack.pool_mut(), port.iface, &mut self.rx, RX_BATCH);
        }
        if !self.rx.is_empty() {
            stack.rx_batch(&mut self.rx);
        }
        packets
    }

    pub(super) fn dispatch(&mut self, wakers: &mut Wakers, shared: &Shared) -> usize {
        let count = self.events.len();
        let woken = &mut self.woken;
        for event in self.events.drain(..) {
            match event {
                Event::Tcp(id, ready) => {
                    self.poller.on_event(id.index);
                    if ready.intersects(Ready::READ | Ready::PRIORITY | Ready::CLOSED) {
                        wakers.take(Interest::TcpRead, id.index, woken);
                    }
                    if ready.intersects(Ready::WRITE | Ready::CLOSED) {
                        wakers.take(Interest::TcpWrite, id.index, woken);
                    }
                }
                Event::Accept(id) => wakers.take(Interest::Accept, id.index, woken),
                Event::Udp(id, ready) => {
                    if ready.intersects(Ready::READ | Ready::CLOSED) {
                        wakers.take(Interest::UdpRead, id.index, woken);
                    }
                    if ready.intersects(Ready::WRITE | Ready::CLOSED) {
                        wakers.take(Interest::UdpWrite, id.index, woken);
                    }
                }
                Event::NeighbourNeeded(iface, addr) => shared.control.neighbour_needed(iface, addr),
            }
        }
        self.counters.wakes += woken.len() as u64;
        count
    }

    /// Arms wake-ups on all links. Returns `false` if there is work after all.
    pub(crate) fn prepare_sleep(&mut self, stack: &mut CoreStack, shared: &Shared) -> bool {
        let quiet = self.mail.from.iter().all(|from| from.is_empty())
            && self.ports.iter().all(|p| p.tx.is_empty())
            && !self.may_send(stack);
        if !quiet {
            return false;
        }
        let asleep = self.ports.iter_mut().all(|p| p.lost || p.link.prepare_sleep(stack.pool_mut()));
        if !asleep && let Err(down) = self.ask_links(stack) {
            self.lose(down, shared);
        }
        // Packets may wait for frames that were returned in between.
        asleep && !self.may_send(stack)
    }

    /// Returns true if packets wait to be sent and can be.
    fn may_send(&self, stack: &CoreStack) -> bool {
        self.ports.iter().any(|p| p.sends && stack.tx_pending(p.iface) && !stack.tx_starved(p.iface))
    }

    /// Returns true if packets wait for frames. No event reports when frames are returned.
    pub(crate) fn is_starved(&self, stack: &CoreStack) -> bool {
        self.ports.iter().any(|p| p.sends && stack.tx_starved(p.iface))
    }

    /// Returns true if the device's ring is full, so that frames wait for the link.
    pub(crate) fn is_backed_up(&self) -> bool {
        self.ports.iter().any(|p| !p.tx.is_empty())
    }

    /// Returns true if messages wait for room in another core's mailbox. Nobody tells when that core
    /// takes some.
    pub(crate) fn has_waiting_mail(&self) -> bool {
        self.mail.to.iter().flatten().any(|to| to.has_waiting())
    }

    /// Returns true if the kernel has not taken all packets of a link's ring.
    pub(crate) fn has_unsent(&mut self) -> bool {
        self.ports.iter_mut().any(|p| !p.lost && p.link.has_unsent())
    }

    /// Returns everything to the pool: unsent frames, messages, and the links' frames.
    pub(crate) fn close(&mut self, stack: &mut CoreStack) {
        for from in &mut self.mail.from {
            while let Ok(message) = from.pop() {
                stack.pool_mut().take_over(message.frames());
                discard(stack, message);
            }
        }
        for port in self.ports.drain(..) {
            for tx in port.tx {
                stack.pool_mut().free(tx.frame);
            }
            port.link.close(stack.pool_mut());
        }
    }
}

/// Closes a link and returns the frames that were with its device.
fn close_and_keep(link: Box<dyn Link>, pool: &mut UmemPool) -> Vec<Frame> {
    let before = pool.available();
    link.close(pool);
    (before..pool.available()).map_while(|_| pool.alloc()).collect()
}

/// A link failed because its device is gone.
#[derive(Debug)]
pub(crate) struct LinkDown {
    pub(crate) iface: IfaceId,
    pub(crate) source: std::io::Error,
}

/// Frees a message's frames.
fn discard(stack: &mut CoreStack, message: CoreMessage) {
    match message {
        CoreMessage::Packet(packet) => {
            for rx in packet.into_frames() {
                stack.pool_mut().free(rx.frame);
            }
        }
        // Only reached when the runtime ends. The connection ends with it.
        CoreMessage::Handover(handover) => {
            handover.into_frames().into_iter().for_each(|frame| stack.pool_mut().free(frame));
        }
        CoreMessage::Listen { .. }
        | CoreMessage::Neighbour { .. }
        | CoreMessage::Datagrams { .. }
        | CoreMessage::PathMtu { .. } => {}
    }
}
