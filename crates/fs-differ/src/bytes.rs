//! Generates steps that send and receive.

use crate::generate::{Maker, SlotContent};
use crate::program::{Call, Step};

/// Bytes that the kernel buffers on a new connection for any TCP_MAXSEG and any flags of send. Too
/// high: reports a difference that docs/LIMITS.md already lists.
pub(crate) const SMALL_SEGMENTS_HOLD: i32 = 14_000;

/// Returns true if a recv leaves the bytes that it reads: read(2) and readv(2) have no flags.
fn peeks(form: i32, flags: i32) -> bool {
    form >= 2 && flags & libc::MSG_PEEK != 0
}

impl Maker {
    pub(crate) fn send(&mut self) {
        let slot = self.connection();
        let length = self.random.weighted(&[
            (5, 1),
            (5, 5),
            (3, 40),
            (3, 41),
            (4, 100),
            (2, 0),
            (3, 1000),
            (2, 4096),
            (1, 16384),
            (1, 20000),
        ]);
        // The overhead of small segments in a buffer is specific to the kernel (docs/LIMITS.md).
        let most = if self.has_set("maxseg") { SMALL_SEGMENTS_HOLD } else { 60_000 };
        if self.unread + length > most {
            return;
        }
        self.unread += length;
        let form = self.random.weighted(&[(6, 2), (4, 0), (2, 1), (1, 3), (2, 4), (1, 5), (1, 6)]);
        // The number of messages that are present when the first of them has woken a reader depends
        // on the scheduler.
        let form = if form == 5 && self.blocking { 4 } else { form };
        let mut flags = if self.blocking { 0 } else { libc::MSG_DONTWAIT };
        if self.random.percent(5) && !(self.unread > length && self.has_urgent()) {
            flags |= libc::MSG_OOB;
        }
        if self.random.percent(3) {
            flags |= self.random.one(&[
                libc::MSG_EOR,
                libc::MSG_NOSIGNAL,
                libc::MSG_PEEK,
                libc::MSG_WAITALL,
                libc::MSG_DONTROUTE,
            ]);
        }
        self.push(Call::Send, &[slot as i32, form, length, flags]);
    }

    /// Returns whether urgent data was sent. The kernel drops an urgent byte that is the next one
    /// to be read when another one arrives; bytes before it in a ring are none of the kernel's
    /// (docs/PRELOAD.md, what is open).
    fn has_urgent(&self) -> bool {
        self.steps.iter().any(|step| step.call == Call::Send && step.args[3] & libc::MSG_OOB != 0)
    }

    pub(crate) fn receive(&mut self) {
        let slot = self.connection();
        let length =
            self.random.weighted(&[(2, 1), (2, 3), (3, 40), (6, 100), (5, 5000), (8, 100_000), (1, 0), (2, 10)]);
        let form = self.random.weighted(&[(6, 2), (4, 0), (2, 1), (1, 3), (3, 4), (1, 5)]);
        let mut flags = if self.blocking { 0 } else { libc::MSG_DONTWAIT };
        for (percent, flag) in [
            (12, libc::MSG_PEEK),
            (6, libc::MSG_WAITALL),
            (5, libc::MSG_OOB),
            (4, libc::MSG_TRUNC),
            (1, libc::MSG_ERRQUEUE),
            (1, libc::MSG_CMSG_CLOEXEC),
            (1, libc::MSG_WAITFORONE),
        ] {
            if self.random.percent(percent) {
                flags |= flag;
            }
        }
        let sleeps = self.blocking && form != 0;
        let length = if length == 0 && sleeps && self.shuts { 1 } else { length };
        self.asks_for_nothing |= length == 0 && sleeps;
        // How much of a large transfer has reached the receive buffer depends on window and time.
        let length = if self.unread > 60_000 { length.min(5000) } else { length };
        if flags & libc::MSG_PEEK == 0 && length > 5000 {
            self.unread = (self.unread - length).max(0);
        }
        let mut form = form;
        if self.blocking && self.has_sleeper_beside(slot, peeks(form, flags)) {
            flags |= libc::MSG_DONTWAIT;
            form = form.max(2);
        }
        self.push(Call::Recv, &[slot as i32, form, length, flags]);
    }

    /// Returns true if a recv of very much data may sleep: how much is there when it wakes is the scheduler's.
    pub(crate) fn has_large_reader(&self) -> bool {
        let is_large = |step: &Step| step.call == Call::Recv && step.args[2] > 5000;
        self.steps.iter().any(is_large)
    }

    /// A connection with unread ring bytes is reset when another image or process gets it (docs/PRELOAD.md).
    pub(crate) fn drain_before_hand_over(&mut self, slot: usize) {
        if self.held[slot] == SlotContent::Connection && !self.blocking {
            self.push(Call::Drain, &[slot as i32]);
        }
    }

    /// Returns true if another actor may sleep in a recv of this connection while this or the other
    /// recv peeks: their order depends on the scheduler.
    fn has_sleeper_beside(&self, slot: usize, peeks_here: bool) -> bool {
        let same = self.other_slots(slot);
        self.steps.iter().any(|step| {
            let sleeps = step.call == Call::Recv && (step.args[1] < 2 || step.args[3] & libc::MSG_DONTWAIT == 0);
            sleeps
                && step.actor != self.actor
                && same.contains(&step.args[0])
                && (peeks_here || peeks(step.args[1], step.args[3]))
        })
    }

    /// Returns the slots that may contain the same socket: it was duplicated, or sent.
    fn other_slots(&self, slot: usize) -> Vec<i32> {
        let is_sent = |of: i32| self.steps.iter().any(|step| step.call == Call::Give && step.args[1] == of);
        let mut same = vec![slot as i32];
        let mut next = 0;
        while let Some(&of) = same.get(next) {
            next += 1;
            for step in &self.steps {
                let other = match step.call {
                    Call::Dup | Call::Dup2 | Call::Dup3 | Call::DupFd if step.args[0] == of => step.args[1],
                    Call::Dup | Call::Dup2 | Call::Dup3 | Call::DupFd if step.args[1] == of => step.args[0],
                    Call::Take if is_sent(of) => step.args[1],
                    Call::Give if self.steps.iter().any(|took| took.call == Call::Take && took.args[1] == of) => {
                        step.args[1]
                    }
                    _ => continue,
                };
                if !same.contains(&other) {
                    same.push(other);
                }
            }
        }
        same
    }

    /// Returns true if the outcome of a large transfer does not depend on the window: unsent bytes,
    /// bytes in a full buffer, overhead of small segments, and bytes that reached a reader which
    /// was shut down.
    pub(crate) fn may_send_very_much(&self) -> bool {
        let ends_reading = |step: &Step| step.call == Call::Shutdown && step.args[1] != libc::SHUT_WR;
        let has_set = ["notsent_lowat", "rcvlowat", "maxseg"].iter().any(|name| self.has_set(name));
        !has_set && !self.steps.iter().any(ends_reading)
    }
}
