//! Which carrier a flow's next packet may take, on a device where the two do not share one queue.
//!
//! An AF_XDP socket sends by its own queue and past the queueing discipline; the packet socket
//! sends through it, by a queue that the kernel chooses. So a packet of one can overtake a packet
//! of the other. On a bridge or a VLAN both pass the queueing discipline of the device below, which
//! takes them for two flows. A flow changes carrier only when nothing of it is in flight on the other one.
//! Flows are told apart by a number of few bits: two with the same number only make the rule
//! stricter.

/// Bits of a flow's number. Fewer: flows hold each other on their carriers; more: cache lines.
pub(crate) const FLOW_BITS: u32 = 8;

/// What each flow may have in flight.
///
/// A carrier is empty at times. Each such moment ends an *era* of it, and a flow that has sent
/// nothing in the present era has nothing in flight there: two counters instead of an account of
/// each packet, whose completions come in any order.
pub(crate) struct Carriers {
    flows: Box<[Flow; 1 << FLOW_BITS]>,
    ring: u32,
    socket: u32,
    batch: u32,
}

/// The era in which the flow last sent, by carrier, and the batch in which it last had a run.
#[derive(Clone, Copy)]
struct Flow {
    ring: u32,
    socket: u32,
    run: u32,
}

impl Carriers {
    pub(crate) fn new() -> Carriers {
        // In the first era, no flow has sent.
        Carriers {
            flows: Box::new([Flow { ring: 0, socket: 0, run: 0 }; 1 << FLOW_BITS]),
            ring: 1,
            socket: 1,
            batch: 1,
        }
    }

    /// A batch begins.
    #[inline]
    pub(crate) fn begin_batch(&mut self) {
        self.batch = next(self.batch);
    }

    /// The flow has a run in this batch.
    pub(crate) fn has_run(&mut self, flow: usize) {
        self.flows[flow].run = self.batch;
    }

    /// The flow had a run in this batch or the one before: what lies between its runs, as the short
    /// end of a write, stays with them. By the other carrier it would keep the next run from
    /// following.
    #[inline]
    pub(crate) fn is_bulk(&self, flow: usize) -> bool {
        let run = self.flows[flow].run;
        run != 0 && (run == self.batch || next(run) == self.batch)
    }

    /// The AF_XDP socket has nothing in flight.
    pub(crate) fn ring_is_empty(&mut self) {
        self.ring = next(self.ring);
    }

    /// The packet socket has nothing in flight.
    pub(crate) fn socket_is_empty(&mut self) {
        self.socket = next(self.socket);
    }

    /// A packet of the flow goes to the AF_XDP socket.
    #[inline]
    pub(crate) fn sends_by_ring(&mut self, flow: usize) {
        self.flows[flow].ring = self.ring;
    }

    /// A packet of the flow goes to the packet socket.
    pub(crate) fn sends_by_socket(&mut self, flow: usize) {
        self.flows[flow].socket = self.socket;
    }

    /// The flow may have packets in flight on the AF_XDP socket.
    pub(crate) fn may_be_in_ring(&self, flow: usize) -> bool {
        self.flows[flow].ring == self.ring
    }

    /// The flow may have packets in flight on the packet socket.
    #[inline]
    pub(crate) fn may_be_in_socket(&self, flow: usize) -> bool {
        self.flows[flow].socket == self.socket
    }
}

/// The next era. 0 is no era: a flow that has never sent has it. After 2^32 eras a flow that has
/// not sent since then may be held on its carrier for one.
fn next(era: u32) -> u32 {
    era.wrapping_add(1).max(1)
}
