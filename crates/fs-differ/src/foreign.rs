//! Generates programs whose calls reach the kernel in several ways: by functions of the C library,
//! by syscall(2), AIO, io_uring, and the processor's own instruction.

use crate::generate::{Maker, SlotContent};
use crate::program::{Call, Mode, SLOTS};

/// Forms of send and recv in their tables ([`crate::values::SEND`], [`crate::values::RECV`]).
const SYSCALL: [i32; 2] = [7, 6];
const AIO: [i32; 2] = [8, 7];
const URING: [i32; 2] = [9, 8];
const DIRECT: [i32; 2] = [10, 9];

impl Maker {
    /// A connection whose first bytes at both ends go by the instruction may have such calls at any
    /// time: a library that counts notices it, and leaves the connection alone. Others have none,
    /// since bytes that a ring carries cannot be ordered with them (docs/LIMITS.md). AIO and
    /// io_uring come when nothing is unread, which a library may have and they would not find.
    pub(crate) fn foreign(&mut self) -> Mode {
        // A process that has used io_uring has no rings any more, so each program has a process of its own.
        self.listener();
        let mut directs = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            self.connect_pair();
            let is_direct = self.random.percent(30);
            if is_direct {
                directs.extend(self.begin_directly().into_iter().flatten());
            } else if self.random.percent(80) {
                self.warm();
            }
        }
        let length = self.steps.len() + self.random.one(&[8, 16, 30]);
        while self.steps.len() < length {
            let Some(slot) = self.which(|held| held == SlotContent::Connection) else { break };
            match self.random.below(100) {
                0..30 => self.send(),
                30..60 => self.receive(),
                60..75 => self.foreign_call(slot, SYSCALL),
                75..87 if directs.contains(&slot) => self.foreign_call(slot, DIRECT),
                75..78 => {
                    self.push(Call::Drain, &[slot as i32]);
                    self.foreign_call(slot, AIO);
                }
                78..80 => {
                    for slot in 0..SLOTS {
                        self.drain_before_hand_over(slot);
                    }
                    self.foreign_call(slot, URING);
                }
                87..90 => {
                    self.push(Call::Shutdown, &[slot as i32, libc::SHUT_WR]);
                }
                90..92 => self.close(),
                _ => self.poll(),
            }
        }
        Mode::Ordered
    }

    /// Begins the newest connection with a byte each way by the instruction. Returns its ends.
    fn begin_directly(&mut self) -> Option<[usize; 2]> {
        let (client, server) = self.newest_pair()?;
        for (from, to) in [(client, server), (server, client)] {
            self.push(Call::Send, &[from, DIRECT[0], 1, libc::MSG_DONTWAIT]);
            self.push(Call::Recv, &[to, DIRECT[1], 1, libc::MSG_DONTWAIT]);
        }
        Some([client as usize, server as usize])
    }

    fn foreign_call(&mut self, slot: usize, [send, receive]: [i32; 2]) {
        let length = self.random.one(&[1, 5, 40, 100, 1000]);
        if self.random.percent(50) {
            self.unread += length;
            self.push(Call::Send, &[slot as i32, send, length, libc::MSG_DONTWAIT]);
        } else {
            self.push(Call::Recv, &[slot as i32, receive, length, libc::MSG_DONTWAIT]);
        }
    }
}
