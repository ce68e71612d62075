//! One turn of a core: send what tasks produced → time → messages → receive → timers → events →
//! wake tasks. The tasks run between two turns.

use super::state::CoreShared;
use crate::sys::from_now;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

impl CoreShared {
    /// Runs one turn and returns how much was done; zero is an idle turn.
    pub(crate) fn turn(self: &Rc<Self>) -> usize {
        let mut woken = Vec::new();
        let work = {
            let mut io = self.io.borrow_mut();
            let io = &mut *io;
            let mut stack = self.stack.borrow_mut();
            let stack = &mut *stack;
            io.counters.turns += 1;
            stack.set_now(self.clock.now());
            io.turns.begins(stack.now());
            let mut work = match io.transmit(stack) {
                Ok(sent) => sent,
                Err(down) => {
                    io.lose(down, &self.shared);
                    0
                }
            };
            io.post(stack, &self.shared);
            work += io.collect(stack);
            let now = stack.now();
            if io.poller.is_poll_due(now, stack.stats()) {
                let packets = io.receive(stack);
                if packets > 0 {
                    io.poller.found_packets(now);
                }
                work += packets;
            }
            stack.tick();
            stack.drain_events(&mut io.events);
            if !io.events.is_empty() {
                work += io.dispatch(&mut self.wakers.borrow_mut(), &self.shared);
                std::mem::swap(&mut woken, &mut io.woken);
            }
            io.turns.worked = work > 0;
            work
        };
        if !woken.is_empty() {
            woken.drain(..).for_each(Waker::wake);
            self.io.borrow_mut().woken = woken;
        }
        if self.shared.inboxes[self.index].is_pending() {
            self.read_inbox();
            return work + 1;
        }
        work
    }

    /// Runs turns without tokio until the closed connections of all cores have sent their queued
    /// data, or the time is over.
    pub(crate) fn drain(self: &Rc<Self>, most: Duration) {
        let until = from_now(most);
        loop {
            let worked = self.turn() > 0;
            if !worked && self.stack.borrow().tcp_connections() == 0 && !self.io.borrow().is_backed_up() {
                self.shared.set_drained(self.index);
            }
            if !worked && self.shared.all_drained() || Instant::now() >= until {
                return;
            }
            if !worked {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}
