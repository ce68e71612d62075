//! An epoll set with two promoted connections (`fs-carrier`, rules E1 to E6): a sender each, a
//! thread that waits in the set and reads, and a thread that reads the first connection on its own,
//! changes its registration, and adds the second one to the set.
//!
//! [`carrier`](crate::carrier) has one direction in finer steps. Here a check under the receive
//! lock is one step.

mod rules;
mod socket;
mod waiter;

use crate::Model;
pub use rules::Rules;
use socket::{Second, Sender, Socket};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Waiter {
    Scan,
    Tell,
    Ask,
    Count,
    Cold(u8),
    Behind(u8),
    Asleep,
    Woken(Option<u8>),
    Read(u8),
    Reading(u8),
    Clear(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Other {
    Idle,
    Reading,
    Clear,
    Adding,
    Changed,
    /// The kernel has the change, and the library does not.
    Telling(bool),
}

/// The words, the kernel, the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    sockets: [Socket; 2],
    gate: bool,
    sleepers: u8,
    is_interrupted: bool,
    /// EPOLLIN was removed once.
    was_changed: bool,
    /// The registration has changed since the last epoll_ctl(2). The kernel may report the older
    /// one in that call.
    is_changing: bool,
    waiter: Waiter,
    other: Other,
    wrong: Option<&'static str>,
}

type Steps = Vec<(&'static str, State, bool)>;

fn step(steps: &mut Steps, now: &State, name: &'static str, happens: bool, change: impl FnOnce(&mut State)) {
    let mut next = *now;
    change(&mut next);
    if next != *now {
        steps.push((name, next, happens));
    }
}

impl State {
    /// E6: the kernel gets what the application has registered.
    fn tell(&mut self) {
        for socket in &mut self.sockets {
            if std::mem::take(&mut socket.is_untold) {
                socket.is_told = socket.is_wanted;
            }
        }
    }

    /// The kernel reports a connection.
    fn check_is_wanted(&mut self, i: usize) {
        let is_new = self.is_changing || self.other == Other::Telling(true);
        if !self.sockets[i].is_wanted && !is_new {
            self.wrong = self.wrong.or(Some("reported, and not registered"));
        }
    }

    fn take(&mut self, i: u8) -> (bool, bool) {
        self.sockets[usize::from(i)].take(&mut self.wrong)
    }
}

impl Rules {
    fn has_edge(&self, socket: &Socket) -> bool {
        socket.is_member
            && socket.is_wanted
            && socket.is_hot
            && socket.tail != socket.head
            && (socket.is_ring_next() || (self.edge && socket.is_ring_reachable()) || self.report_behind)
            && (!self.edge || socket.reported != socket.tail)
    }

    /// Returns true if the connection's ring bytes are no event: they were reported, or are not wanted.
    fn is_known(&self, socket: &Socket) -> bool {
        !socket.is_wanted || (self.edge && socket.reported == socket.tail)
    }

    fn kernel_has_event(&self, socket: &Socket) -> bool {
        socket.is_member && socket.is_told && socket.queued > 0 && (socket.edge || !self.edge)
    }

    fn sends(&self, now: &State, i: usize, steps: &mut Steps) {
        let socket = now.sockets[i];
        if let Some(byte) = socket.late {
            step(steps, now, "kernel: a late byte arrives", true, |s| {
                s.sockets[i].late = None;
                s.sockets[i].arrive(byte);
            });
        }
        let full = socket.tail != socket.head;
        match socket.sender {
            Sender::Idle if socket.sent == self.bytes[i] => {}
            Sender::Idle if socket.kernel => step(steps, now, "sender: counts its send", true, |s| {
                s.sockets[i].flights += 1;
                s.sockets[i].sender = Sender::Send;
            }),
            Sender::Idle => {
                if !full {
                    step(steps, now, "sender: writes the ring", true, |s| {
                        s.sockets[i].sender = Sender::Publish;
                    });
                }
                step(steps, now, "sender: writes B", full, |s| {
                    s.sockets[i].boundary = socket.count;
                    s.sockets[i].sender = Sender::SetKernel;
                });
            }
            Sender::Publish => step(steps, now, "sender: publishes", true, |s| {
                let socket = &mut s.sockets[i];
                if !socket.kernel {
                    socket.ring = socket.arrived;
                    socket.tail += 1;
                    socket.sent += 1;
                    socket.arrived += 1;
                }
                socket.sender = Sender::Idle;
            }),
            Sender::SetKernel => step(steps, now, "sender: sets M", true, |s| {
                s.sockets[i].kernel = true;
                s.sockets[i].sender = Sender::Idle;
            }),
            // A late byte precedes new ones.
            Sender::Send if socket.late.is_some() => {}
            Sender::Send => {
                for is_late in [false, true] {
                    let name = if is_late { "sender: send(2), and the byte is late" } else { "sender: send(2)" };
                    step(steps, now, name, !is_late, |s| {
                        s.sockets[i].send(is_late);
                        s.sockets[i].sender = Sender::Count;
                    });
                }
            }
            Sender::Count => {
                // P6.
                for takes_back in [false, true].into_iter().take(1 + usize::from(self.may_hold)) {
                    let name = if takes_back { "sender: K += 1, Q = 0, I - 1" } else { "sender: K += 1, I - 1" };
                    step(steps, now, name, !takes_back, |s| {
                        s.sockets[i].count(takes_back);
                        s.sockets[i].sent += 1;
                        s.sockets[i].sender = Sender::Idle;
                    });
                }
            }
        }
    }

    /// The second thread that sends on the first connection.
    fn sends_second(&self, now: &State, steps: &mut Steps) {
        let socket = now.sockets[0];
        let next = |s: &mut State, second| s.sockets[0].second = second;
        match socket.second {
            Second::Idle if self.second && socket.kernel => step(steps, now, "second: counts its send", false, |s| {
                s.sockets[0].flights += 1;
                next(s, Second::Send);
            }),
            Second::Send if socket.late.is_none() => step(steps, now, "second: send(2)", true, |s| {
                s.sockets[0].send(false);
                next(s, Second::Count);
            }),
            Second::Count => step(steps, now, "second: K += 1, I - 1", true, |s| {
                s.sockets[0].count(false);
                next(s, Second::Done);
            }),
            Second::Idle | Second::Send | Second::Done => {}
        }
    }

    /// The application gets an event. With EPOLLET it may ignore the event if another one will
    /// come.
    fn reports(&self, now: &State, i: usize, steps: &mut Steps, change: impl Fn(&mut State)) {
        step(steps, now, "waiter: has an event", true, |s| {
            change(s);
            s.waiter = Waiter::Read(i as u8);
        });
        if self.edge && now.sockets[i].arrived_of_first() < self.bytes[i] {
            step(steps, now, "waiter: ignores an event", false, |s| {
                change(s);
                s.waiter = Waiter::Scan;
            });
        }
    }

    /// EPOLL_CTL_MOD of the first connection: deferred under the gate, or made with the kernel's
    /// call.
    fn changes(&self, s: &mut State, is_wanted: bool) {
        s.is_changing = true;
        let socket = &mut s.sockets[0];
        if s.sleepers == 0 || self.defer_over_sleeper {
            socket.is_wanted = is_wanted;
            socket.is_untold = true;
            s.other = if is_wanted { Other::Idle } else { Other::Changed };
        } else {
            socket.is_told = is_wanted;
            socket.is_untold = false;
            s.other = Other::Telling(is_wanted);
        }
    }

    /// E5: the change is applied under the gate.
    fn takes_change(s: &mut State, is_wanted: bool) {
        s.is_changing = true;
        let socket = &mut s.sockets[0];
        let unread = socket.tail != socket.head;
        socket.is_wanted = is_wanted;
        socket.is_hot = !socket.kernel || socket.requested || unread;
        socket.reported = socket.head;
        if s.sleepers > 0 {
            if unread && !socket.kernel {
                socket.boundary = socket.count;
            }
            socket.kernel = true;
            socket.requested = false;
            s.is_interrupted |= unread && is_wanted;
        }
        s.other = if is_wanted { Other::Idle } else { Other::Changed };
    }

    /// The thread that reads the first connection, and adds the second.
    fn others(&self, now: &State, steps: &mut Steps) {
        let first = now.sockets[0];
        match now.other {
            Other::Idle => {
                if first.lock == 0 {
                    step(steps, now, "other: locks", false, |s| {
                        s.sockets[0].lock = 2;
                        s.other = Other::Reading;
                    });
                }
                if self.changes && !now.was_changed && !now.gate {
                    step(steps, now, "other: takes EPOLLIN away", false, |s| {
                        s.was_changed = true;
                        self.changes(s, false);
                    });
                }
                if !now.sockets[1].is_member {
                    step(steps, now, "other: epoll_ctl(2)", true, |s| {
                        s.sockets[1].edge = s.sockets[1].queued > 0;
                        // C9: the waiter may have the kernel's event before it has processed it.
                        s.sockets[1].asks = true;
                        s.sockets[1].is_member = true;
                        s.other = Other::Adding;
                    });
                    // Before that, the thread has used the connection.
                    if now.sockets[1].may_clear(self) {
                        step(steps, now, "other: clears M of the second", false, |s| s.sockets[1].clear(self));
                    }
                }
            }
            Other::Reading => {
                let may = (!now.gate || self.clear_without_gate) && (now.sleepers == 0 || self.clear_over_sleeper);
                if may {
                    step(steps, now, "other: reads, and wants the ring", false, |s| {
                        s.take(0);
                        s.other = Other::Clear;
                        s.gate |= !self.clear_without_gate;
                    });
                }
                step(steps, now, "other: reads", true, |s| {
                    s.take(0);
                    s.sockets[0].lock = 0;
                    s.other = Other::Idle;
                });
            }
            Other::Clear => step(steps, now, "other: clears M", true, |s| {
                s.sockets[0].clear(self);
                s.sockets[0].lock = 0;
                s.other = Other::Idle;
                s.gate &= self.clear_without_gate;
            }),
            Other::Changed if now.gate => {}
            Other::Changed => step(steps, now, "other: gives EPOLLIN back", true, |s| {
                self.changes(s, true);
            }),
            // As in `Adding`, the receive lock is required.
            Other::Telling(_) if now.gate || now.sockets[0].lock != 0 => {}
            Other::Telling(is_wanted) => {
                step(steps, now, "other: takes the change in", true, |s| Rules::takes_change(s, is_wanted));
            }
            Other::Adding if now.gate || now.sockets[1].lock != 0 => {}
            Other::Adding => step(steps, now, "other: takes it in", true, |s| {
                let socket = &mut s.sockets[1];
                let unread = socket.tail != socket.head;
                socket.is_hot = !socket.kernel || socket.requested || unread;
                socket.reported = socket.head;
                s.other = Other::Idle;
                if s.sleepers > 0 && !self.add_without_c4 {
                    if unread && !socket.kernel {
                        socket.boundary = socket.count;
                    }
                    socket.kernel = true;
                    socket.requested = false;
                    s.is_interrupted |= unread && !self.add_without_interrupt;
                }
            }),
        }
    }
}

impl Model for Rules {
    type State = State;

    fn start(&self) -> State {
        State {
            sockets: [Socket::new(true), Socket::new(!self.adds)],
            gate: false,
            sleepers: 0,
            is_interrupted: false,
            was_changed: false,
            is_changing: false,
            waiter: Waiter::Scan,
            other: Other::Idle,
            wrong: None,
        }
    }

    fn steps(&self, now: &State) -> Vec<(&'static str, State, bool)> {
        let mut steps = Vec::new();
        if now.wrong.is_none() {
            for i in 0..2 {
                self.sends(now, i, &mut steps);
            }
            self.sends_second(now, &mut steps);
            self.waits(now, &mut steps);
            self.others(now, &mut steps);
        }
        steps
    }

    fn always(&self, now: &State) -> Result<(), &'static str> {
        if let Some(wrong) = now.wrong {
            return Err(wrong);
        }
        // An added connection is checked before epoll_ctl(2) returns.
        let is_settled = |i: usize| i == 0 || now.other != Other::Adding;
        let members = (0..2).filter(|&i| now.sockets[i].is_member && is_settled(i));
        for socket in members.map(|i| &now.sockets[i]) {
            if now.waiter == Waiter::Asleep && (!socket.kernel || socket.requested) {
                return Err("asleep in the kernel, and bytes may come by the ring");
            }
        }
        Ok(())
    }

    fn at_rest(&self, now: &State) -> Result<(), &'static str> {
        let all_sent = (0..2).all(|i| now.sockets[i].sent == self.bytes[i] && now.sockets[i].sender == Sender::Idle);
        let all_read = now.sockets.iter().all(|socket| socket.got == socket.arrived);
        match (now.wrong, all_sent, all_read) {
            (Some(_), ..) | (None, true, true) => Ok(()),
            (None, false, _) => Err("a sender waits for ever"),
            (None, true, false) => Err("bytes are not read"),
        }
    }
}
