//! Steps of the thread that waits.

use super::*;

impl Rules {
    pub(super) fn waits(&self, now: &State, steps: &mut Steps) {
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
                // Of the deferred changes, the kernel is told of wanted bytes only. It has nothing to report for these
                // and for registrations that were withdrawn.
                let told = |socket: Socket| Socket {
                    is_told: socket.is_told || (socket.is_untold && socket.is_wanted),
                    ..socket
                };
                let is_nothing = |socket: &Socket| {
                    let is_current = socket.is_told || socket.is_untold || !socket.is_wanted;
                    is_current && !self.kernel_has_event(&told(*socket))
                };
                if now.sockets.iter().all(is_nothing) && !self.c4_before_count {
                    step(steps, now, "waiter: the kernel has nothing", false, |s| {
                        s.sockets = s.sockets.map(told);
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
                // Only this thread reads the second connection, so every event for it must be true.
                if !took && i == 1 {
                    s.wrong = s.wrong.or(Some("reported, and nothing to read"));
                }
                while self.edge && took && (more || !self.short_count) {
                    (took, more) = s.take(i);
                    let socket = &mut s.sockets[usize::from(i)];
                    if !took && socket.queued > 0 && socket.tail == socket.head && !self.rest_unasked {
                        socket.kernel = true;
                        socket.requested = false;
                        (took, more) = s.take(i);
                    }
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

    /// E1, under the gate.
    pub(super) fn scans(&self, now: &State, steps: &mut Steps) {
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

    pub(super) fn next_cold(&self, s: &mut State, i: u8) {
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
    pub(super) fn cools(&self, now: &State, i: u8, steps: &mut Steps) {
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
}
