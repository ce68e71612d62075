//! One connection, and its receive calls.

use super::rules::Rules;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sender {
    Idle,
    Publish,
    SetKernel,
    Send,
    Count,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Second {
    Idle,
    Send,
    Count,
    Done,
}

/// A connection; its ring holds one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Socket {
    pub(super) tail: u8,
    pub(super) head: u8,
    pub(super) kernel: bool,
    pub(super) requested: bool,
    pub(super) flights: u8,
    pub(super) count: u8,
    pub(super) boundary: u8,
    pub(super) received: u8,
    pub(super) ring: u8,
    pub(super) queue: [u8; 3],
    pub(super) queued: u8,
    /// Number of bytes that were sent by either carrier. Each is an arrival for EPOLLET.
    pub(super) arrived: u8,
    /// A byte that send(2) has accepted and that has not arrived yet.
    pub(super) late: Option<u8>,
    /// The kernel has an edge to report.
    pub(super) edge: bool,
    /// The kernel has reported an event while the connection was hot.
    pub(super) asks: bool,
    pub(super) sender: Sender,
    pub(super) sent: u8,
    /// The thread that sends one byte by the kernel.
    pub(super) second: Second,
    pub(super) lock: u8,
    pub(super) is_member: bool,
    /// The application has registered EPOLLIN.
    pub(super) is_wanted: bool,
    /// The kernel's set has EPOLLIN.
    pub(super) is_told: bool,
    /// A change was deferred.
    pub(super) is_untold: bool,
    pub(super) is_hot: bool,
    pub(super) reported: u8,
    pub(super) got: u8,
}

impl Socket {
    pub(super) fn new(is_member: bool) -> Self {
        Socket {
            tail: 0,
            head: 0,
            kernel: true,
            requested: false,
            flights: 0,
            count: 0,
            boundary: 0,
            received: 0,
            ring: 0,
            queue: [0; 3],
            queued: 0,
            arrived: 0,
            late: None,
            edge: false,
            asks: false,
            sender: Sender::Idle,
            sent: 0,
            second: Second::Idle,
            lock: 0,
            is_member,
            is_wanted: true,
            is_told: true,
            is_untold: false,
            is_hot: false,
            reported: 0,
            got: 0,
        }
    }

    /// C1: no kernel bytes precede the ring's.
    pub(super) fn is_ring_next(&self) -> bool {
        self.received >= if self.kernel { self.boundary } else { self.count }
    }

    /// All kernel bytes that precede the ring's have arrived.
    pub(super) fn is_ring_reachable(&self) -> bool {
        self.received + self.queued >= if self.kernel { self.boundary } else { self.count }
    }

    /// A byte arrives in the kernel's queue.
    pub(super) fn arrive(&mut self, byte: u8) {
        self.queue[usize::from(self.queued)] = byte;
        self.queued += 1;
        self.edge = true;
    }

    /// send(2) takes the next byte.
    pub(super) fn send(&mut self, is_late: bool) {
        if is_late {
            self.late = Some(self.arrived);
        } else {
            self.arrive(self.arrived);
        }
        self.arrived += 1;
    }

    /// P2: a send in flight has returned. P6: it takes a request back.
    pub(super) fn count(&mut self, takes_back: bool) {
        self.count += 1;
        self.flights -= 1;
        self.requested &= !takes_back;
        if self.requested && self.flights == 0 {
            self.requested = false;
            self.kernel = false;
        }
    }

    /// Returns the first sender's bytes that are sent.
    pub(super) fn arrived_of_first(&self) -> u8 {
        self.arrived - u8::from(matches!(self.second, Second::Count | Second::Done))
    }

    /// C1 to C3: takes a byte. Returns whether it did, and whether the other carrier may have more.
    pub(super) fn take(&mut self, wrong: &mut Option<&'static str>) -> (bool, bool) {
        let has_ring = self.tail != self.head;
        if has_ring && self.is_ring_next() {
            if self.ring != self.got {
                *wrong = Some("lost, repeated or out of order");
            }
            self.got += 1;
            self.head += 1;
            return (true, self.kernel);
        }
        let is_kernel_only = self.kernel && !self.requested;
        if self.queued == 0 || !(has_ring || is_kernel_only || self.count > self.received) {
            return (false, false);
        }
        if self.queue[0] != self.got {
            *wrong = Some("lost, repeated or out of order");
        }
        self.got += 1;
        self.received += 1;
        self.queue = [self.queue[1], self.queue[2], 0];
        self.queued -= 1;
        (true, has_ring)
    }

    /// Returns true if this socket allows C5.
    pub(super) fn may_clear(&self, rules: &Rules) -> bool {
        let is_drained = self.flights == 0 || self.queued == 0 || rules.request_over_bytes;
        self.kernel && !self.requested && self.tail == self.head && self.received >= self.count && is_drained
    }

    pub(super) fn clear(&mut self, rules: &Rules) {
        if self.may_clear(rules) {
            self.kernel = self.flights > 0;
            self.requested = self.flights > 0;
            self.is_hot = self.is_member;
            self.reported = self.tail;
        }
    }
}
