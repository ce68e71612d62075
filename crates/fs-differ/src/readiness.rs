//! Generates steps that poll descriptors: poll(2) and epoll(7).

use crate::generate::{Maker, SlotContent};
use crate::program::{Call, Step};

impl Maker {
    pub(crate) fn epoll_set(&mut self) -> usize {
        let slot = self.free();
        let cloexec = if self.random.percent(15) { libc::SOCK_CLOEXEC } else { 0 };
        self.push(Call::Epoll, &[slot as i32, cloexec]);
        self.held[slot] = SlotContent::Set;
        for _ in 0..=self.random.below(4) {
            self.control(slot);
        }
        slot
    }

    pub(crate) fn set(&mut self) -> usize {
        match self.which(|held| held == SlotContent::Set) {
            Some(slot) => slot,
            None => self.epoll_set(),
        }
    }

    pub(crate) fn control(&mut self, set: usize) {
        let operation = self.random.weighted(&[(5, 1), (3, 3), (2, 2)]);
        let mut events = self.random.weighted(&[(6, 1), (3, 4), (5, 5), (1, 0), (2, 0x2001), (1, 0x2005), (1, 2)]);
        // After a fork each process gets an edge and a one-shot (docs/LIMITS.md).
        let may = self.is_alone(set);
        if self.random.percent(25) && (!self.shuts || events & 1 != 0) && may {
            events |= libc::EPOLLET;
            if events & 5 == 5 {
                events &= !4;
            }
            self.edges_of_room |= events & 1 == 0;
        }
        if self.random.percent(12) && may {
            events |= libc::EPOLLONESHOT;
        }
        self.edges |= events & (libc::EPOLLET | libc::EPOLLONESHOT) != 0;
        if self.random.percent(5) {
            events |= libc::EPOLLEXCLUSIVE;
        }
        let what = self.any();
        if !self.is_known(set) {
            return;
        }
        if self.held[what] == SlotContent::Set && events & libc::EPOLLET != 0 {
            // An edge of the set is reported for every event of a connection in it.
            if self.shuts {
                events &= !libc::EPOLLET;
            } else {
                self.edges_of_room = true;
            }
        }
        self.push(Call::Ctl, &[set as i32, operation, what as i32, events]);
    }

    pub(crate) fn wait(&mut self) {
        let set = self.set();
        let most = self.random.weighted(&[(8, 16), (1, 0)]);
        let form = self.random.weighted(&[(8, 0), (1, 1), (1, 2)]);
        let time = if self.blocking && self.random.percent(50) { -1 } else { 0 };
        self.push(Call::Wait, &[set as i32, most, time, form]);
    }

    pub(crate) fn poll(&mut self) {
        let (one, other) = (self.any(), self.any());
        let events =
            self.random.weighted(&[(4, 1), (2, 4), (4, 5), (2, 7), (1, 0), (1, 0x2001), (1, 0x3ff), (1, 0x40)]);
        let events = events & !(8 | 16 | 32 | 0x80 | 0x200);
        let form = self.random.weighted(&[(5, 0), (2, 1), (2, 2), (1, 3)]);
        let time = if self.blocking && self.random.percent(30) { -1 } else { 0 };
        self.push(Call::Poll, &[one as i32, other as i32, events, time, form]);
    }

    /// Returns true if a change of this set applies to all processes that have it: it had an entry
    /// when its process forked (docs/LIMITS.md).
    fn is_known(&self, set: usize) -> bool {
        let made = self.steps.iter().rposition(|step| step.call == Call::Epoll && step.args[0] == set as i32);
        let later = &self.steps[made.unwrap_or(0)..];
        let forked = later.iter().position(|step| step.call == Call::Fork).unwrap_or(later.len());
        let is_socket = |slot: i32| {
            self.steps.iter().any(|step| match step.call {
                Call::Connect | Call::Listen => step.args[0] == slot,
                Call::Accept => step.args[1] == slot,
                _ => false,
            })
        };
        let adds = |step: &Step| step.call == Call::Ctl && step.args[..2] == [set as i32, 1] && is_socket(step.args[2]);
        forked == later.len() || later[..forked].iter().any(adds)
    }

    /// Returns true if no other process has this set: no fork has happened since it was made.
    fn is_alone(&self, set: usize) -> bool {
        let last = |wanted: &dyn Fn(&Step) -> bool| self.steps.iter().rposition(wanted);
        last(&|step| step.call == Call::Epoll && step.args[0] == set as i32) >= last(&|step| step.call == Call::Fork)
    }
}
