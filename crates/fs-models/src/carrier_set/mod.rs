//! An epoll set with two promoted connections (`fs-carrier`, rules E1 to E6): a sender each, a thread that waits in the set and reads, and a
//! thread that reads the first connection on its own, changes its registration, and adds the second one to the set.
//!
//! [`carrier`](crate::carrier) has one direction in finer steps. Here a look under the receive lock is one step.

mod rules;
mod socket;

use crate::Model;
pub use rules::Rules;
use socket::{Sender, Socket};

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
    /// EPOLLIN was taken away once.
    was_changed: bool,
    /// A change of the registration since the kernel was told: what it reports in that call may be older.
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
                s.sockets[i].flight = true;
                s.sockets[i].sender = Sender::Send;
            }),
            Sender::Idle => {
                if !full {
                    step(steps, now, "sender: writes the ring", true, |s| {
                        s.sockets[i].ring = socket.sent;
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
            // What is late precedes what is sent now.
            Sender::Send if socket.late.is_some() => {}
            Sender::Send => {
                for is_late in [false, true] {
                    let name = if is_late { "sender: send(2), and the byte is late" } else { "sender: send(2)" };
                    step(steps, now, name, !is_late, |s| {
                        let socket = &mut s.sockets[i];
                        if is_late {
                            socket.late = Some(socket.sent);
                        } else {
                            socket.arrive(socket.sent);
                        }
                        socket.arrived += 1;
                        socket.sender = Sender::Count;
                    });
                }
            }
            Sender::Count => step(steps, now, "sender: K += 1, I - 1", true, |s| {
                let socket = &mut s.sockets[i];
                socket.count += 1;
                socket.sent += 1;
                socket.flight = false;
                socket.kernel = !socket.requested;
                socket.requested = false;
                socket.sender = Sender::Idle;
            }),
        }
    }

    fn waits(&self, now: &State, steps: &mut Steps) {
        match now.waiter {
            Waiter::Scan if now.gate => {}
            Waiter::Scan => self.scans(now, steps),
            Waiter::Tell if now.gate => {}
            Waiter::Tell => {
                step(steps, now, "waiter: tells the kernel", true, |s| {
                    if !self.ask_untold {
                        s.tell();
                    }
                    s.is_changing = false;
                    s.waiter = Waiter::Ask;
                });
                // By what it was told before, the kernel has nothing, and it knows of all that is wanted.
                let is_nothing =
                    |socket: &Socket| !self.kernel_has_event(socket) && (socket.is_told || !socket.is_wanted);
                if now.sockets.iter().all(is_nothing) && !self.c4_before_count {
                    step(steps, now, "waiter: the kernel has nothing", false, |s| {
                        s.is_changing = false;
                        s.waiter = Waiter::Count;
                    });
                }
            }
            Waiter::Ask if now.gate => {}
            Waiter::Ask => {
                let mut found = false;
                for i in 0..2 {
                    if self.kernel_has_event(&now.sockets[i]) {
                        found = true;
                        self.reports(now, i, steps, |s| {
                            s.check_is_wanted(i);
                            s.sockets[i].edge = false;
                            s.sockets[i].asks |= s.sockets[i].is_hot;
                        });
                    }
                }
                if !found && self.c4_before_count {
                    step(steps, now, "waiter: sets M", true, |s| s.waiter = Waiter::Cold(0));
                } else if !found {
                    step(steps, now, "waiter: is about to sleep", true, |s| s.waiter = Waiter::Count);
                }
            }
            Waiter::Count if now.gate => {}
            Waiter::Count => step(steps, now, "waiter: is counted", true, |s| {
                s.sleepers += 1;
                if !self.sleep_untold {
                    s.tell();
                }
                s.gate = !self.c4_before_count;
                s.waiter = if self.c4_before_count { Waiter::Asleep } else { Waiter::Cold(0) };
            }),
            Waiter::Cold(i) => self.cools(now, i, steps),
            Waiter::Behind(i) => step(steps, now, "waiter: sets M behind known bytes", true, |s| {
                let socket = &mut s.sockets[usize::from(i)];
                socket.kernel = true;
                socket.lock = 0;
                self.next_cold(s, i);
            }),
            Waiter::Asleep => {
                if now.is_interrupted {
                    step(steps, now, "waiter: is interrupted", true, |s| s.waiter = Waiter::Woken(None));
                }
                for i in 0..2 {
                    if self.kernel_has_event(&now.sockets[i]) {
                        step(steps, now, "waiter: wakes", true, |s| {
                            s.sockets[i].edge = false;
                            s.waiter = Waiter::Woken(Some(i as u8));
                        });
                    }
                }
            }
            Waiter::Woken(_) if now.gate => {}
            Waiter::Woken(of) => step(steps, now, "waiter: is counted no more", true, |s| {
                s.sleepers -= 1;
                s.is_interrupted &= of.is_some();
                s.waiter = of.map_or(Waiter::Scan, Waiter::Read);
            }),
            Waiter::Read(i) if now.sockets[usize::from(i)].lock == 0 => step(steps, now, "waiter: locks", true, |s| {
                s.sockets[usize::from(i)].lock = 1;
                s.waiter = Waiter::Reading(i);
            }),
            Waiter::Read(_) => {}
            Waiter::Reading(i) => step(steps, now, "waiter: reads", true, |s| {
                let (mut took, mut more) = s.take(i);
                let socket = &mut s.sockets[usize::from(i)];
                let asks = std::mem::take(&mut socket.asks) && !self.no_c9;
                if !took && asks && socket.tail == socket.head {
                    socket.kernel = true;
                    socket.requested = false;
                    (took, more) = s.take(i);
                    more |= took;
                }
                // The second connection has one reader: each report of it is true.
                if !took && i == 1 {
                    s.wrong = s.wrong.or(Some("reported, and nothing to read"));
                }
                while self.edge && took && (more || !self.short_count) {
                    (took, more) = s.take(i);
                }
                s.waiter = Waiter::Clear(i);
            }),
            Waiter::Clear(i) => {
                step(steps, now, "waiter: has read", true, |s| {
                    s.sockets[usize::from(i)].lock = 0;
                    s.waiter = Waiter::Scan;
                });
                if !now.gate && now.sleepers == 0 {
                    step(steps, now, "waiter: clears M", false, |s| {
                        s.sockets[usize::from(i)].clear(self);
                        s.sockets[usize::from(i)].lock = 0;
                        s.waiter = Waiter::Scan;
                    });
                }
            }
        }
    }

    /// The application gets an event. Edge-triggered, it may leave it alone if another one is to come.
    fn reports(&self, now: &State, i: usize, steps: &mut Steps, change: impl Fn(&mut State)) {
        step(steps, now, "waiter: has an event", true, |s| {
            change(s);
            s.waiter = Waiter::Read(i as u8);
        });
        if self.edge && now.sockets[i].arrived < self.bytes[i] {
            step(steps, now, "waiter: ignores an event", false, |s| {
                change(s);
                s.waiter = Waiter::Scan;
            });
        }
    }

    /// EPOLL_CTL_MOD of the first connection: put off, with the gate, or the kernel's call.
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

    /// E5: the change is taken in, with the gate.
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

    /// E1, under the gate.
    fn scans(&self, now: &State, steps: &mut Steps) {
        let mut found = false;
        for i in 0..2 {
            let socket = now.sockets[i];
            if self.has_edge(&socket) {
                found = true;
                self.reports(now, i, steps, |s| s.sockets[i].reported = socket.tail);
            }
        }
        if !found {
            step(steps, now, "waiter: finds nothing hot", true, |s| {
                for socket in &mut s.sockets {
                    if socket.kernel && !socket.requested && socket.tail == socket.head {
                        socket.is_hot = false;
                    }
                }
                s.waiter = Waiter::Tell;
            });
        }
    }

    fn next_cold(&self, s: &mut State, i: u8) {
        let is_last = i == 1 || self.c4_for_first;
        s.waiter = match (is_last, self.c4_before_count) {
            (false, _) => Waiter::Cold(i + 1),
            (true, true) => Waiter::Count,
            (true, false) => {
                s.gate = false;
                Waiter::Asleep
            }
        };
    }

    /// E2: C4, with the receive lock held.
    fn cools(&self, now: &State, i: u8, steps: &mut Steps) {
        let at = usize::from(i);
        let socket = now.sockets[at];
        if !socket.is_hot || !socket.is_member || self.no_c4 {
            step(steps, now, "waiter: skips what is not hot", true, |s| self.next_cold(s, i));
        } else if socket.lock != 0 {
        } else if socket.tail == socket.head {
            step(steps, now, "waiter: sets M", true, |s| {
                s.sockets[at].kernel = true;
                s.sockets[at].requested = false;
                s.sockets[at].is_hot = false;
                self.next_cold(s, i);
            });
        } else if self.has_edge(&socket) || !self.is_known(&socket) {
            // If there are bytes to report, or bytes behind kernel bytes that have not arrived, the
            // thread sleeps for 1 ms at most.
            step(steps, now, "waiter: must not sleep", true, |s| {
                if !self.c4_before_count {
                    s.sleepers -= 1;
                    s.gate = false;
                }
                s.waiter = Waiter::Scan;
            });
        } else if socket.kernel || self.ring_over_reported {
            step(steps, now, "waiter: sleeps over known bytes", true, |s| self.next_cold(s, i));
        } else {
            step(steps, now, "waiter: writes B", true, |s| {
                if !self.no_boundary {
                    s.sockets[at].boundary = socket.count;
                }
                s.sockets[at].lock = 1;
                s.waiter = Waiter::Behind(i);
            });
        }
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
                    // Before, it has used the connection.
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
            // As in `Adding`: the receive lock is taken for it.
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
        let all_read = (0..2).all(|i| now.sockets[i].got == self.bytes[i]);
        match (now.wrong, all_sent, all_read) {
            (Some(_), ..) | (None, true, true) => Ok(()),
            (None, false, _) => Err("a sender waits for ever"),
            (None, true, false) => Err("bytes are not read"),
        }
    }
}
