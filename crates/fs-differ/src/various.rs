//! Generates steps other than bytes and readiness: options, descriptors, files and pipes, names.

use crate::bytes::SMALL_SEGMENTS_HOLD;
use crate::generate::{Maker, SlotContent};
use crate::program::{Call, SLOTS};
use crate::values::OPTION;

impl Maker {
    pub(crate) fn option(&mut self) {
        let slot = self.any();
        let option = self.random.below(OPTION.len()) as i32;
        // TCP_QUICKACK, SO_INCOMING_CPU and buffer sizes vary over time; corked bytes arrive later.
        if matches!(OPTION[option as usize].0, "quickack" | "incoming_cpu") {
            return;
        }
        // Bytes that arrived before it was set have a timestamp only if another socket of the
        // machine requests timestamps.
        let no_bytes = matches!(self.held[slot], SlotContent::Fresh | SlotContent::Bound(_) | SlotContent::Listener(_));
        if OPTION[option as usize].0 == "timestamp" && !no_bytes {
            return;
        }
        if self.random.percent(45) {
            self.push(Call::GetOption, &[slot as i32, option]);
            return;
        }
        // For connections that another process accepts they do not apply (docs/LIMITS.md).
        let is_listener = matches!(self.held[slot], SlotContent::Listener(_) | SlotContent::Short);
        if is_listener && self.steps.iter().any(|step| step.call == Call::Fork) {
            return;
        }
        let value = match OPTION[option as usize].0 {
            "cork" | "peek_off" | "sndbuf" | "rcvbuf" | "window_clamp" => return self.receive(),
            "nodelay" => 1,
            "linger" => self.random.one(&[0, 0, -1, 3]),
            // Beyond the receive buffer: how much arrives before it is full depends on the window,
            // so not with many unread bytes.
            // Unread bytes of a ring are reported, however few (docs/PRELOAD.md, what is open).
            "rcvlowat" if self.unread == 0 => self.random.one(&[1, 1, 5, 100, 100_000, -1]),
            "rcvlowat" => 1,
            "inq" if self.unread > 0 => 0,
            "maxseg" if self.unread > SMALL_SEGMENTS_HOLD => return,
            "defer_accept" if self.random.percent(80) => 0,
            "maxseg" => self.random.one(&[500, 1000, 0, 50, 100_000]),
            "mark" | "priority" => self.random.one(&[0, 1, 6]),
            _ => self.random.weighted(&[
                (5, 1),
                (4, 0),
                (2, 2),
                (2, 5),
                (1, -1),
                (1, 30),
                (1, 100),
                (1, 300),
                (1, 70_000),
            ]),
        };
        self.push(Call::SetOption, &[slot as i32, option, value]);
    }

    pub(crate) fn descriptor(&mut self) {
        let slot = self.any();
        let into = self.free();
        let held = self.held[slot];
        match self.random.below(14) {
            0 | 1 => {
                self.push(Call::Dup, &[slot as i32, into as i32]);
                (self.held[into], self.six[into]) = (held, self.six[slot]);
            }
            2 => {
                let cloexec = self.random.below(2) as i32;
                self.push(Call::DupFd, &[slot as i32, into as i32, cloexec]);
                (self.held[into], self.six[into]) = (held, self.six[slot]);
            }
            3 => {
                let target = self.any();
                self.push(Call::Dup2, &[slot as i32, target as i32]);
                (self.held[target], self.six[target]) = (held, self.six[slot]);
            }
            4 => {
                let (target, cloexec) = (self.any(), self.random.below(2) as i32);
                self.push(Call::Dup3, &[slot as i32, target as i32, cloexec]);
                (self.held[target], self.six[target]) = (held, self.six[slot]);
            }
            5 => self.push(Call::GetFl, &[slot as i32]),
            6 => self.push(Call::GetFd, &[slot as i32]),
            7 => {
                let cloexec = self.random.below(2) as i32;
                self.push(Call::SetFd, &[slot as i32, cloexec]);
            }
            8 => self.push(Call::Stat, &[slot as i32]),
            9 => self.push(Call::Seek, &[slot as i32]),
            10 => self.push(Call::FioNbio, &[slot as i32, 1]),
            11 => {
                self.push(Call::File, &[into as i32, 3000]);
                self.held[into] = SlotContent::File;
            }
            12 => {
                let other =
                    (0..SLOTS).find(|slot| *slot != into && self.held[*slot] == SlotContent::Nothing).unwrap_or(0);
                self.push(Call::Pipe, &[into as i32, other as i32, libc::SOCK_NONBLOCK]);
                (self.held[into], self.held[other]) = (SlotContent::Reader, SlotContent::Writer);
            }
            _ if self.random.percent(20) => {
                let other = self.any();
                self.push(Call::CloseRange, &[slot as i32, other as i32]);
            }
            _ => {
                let other =
                    (0..SLOTS).find(|slot| *slot != into && self.held[*slot] == SlotContent::Nothing).unwrap_or(0);
                self.push(Call::Pair, &[into as i32, other as i32, libc::SOCK_NONBLOCK]);
                (self.held[into], self.held[other]) = (SlotContent::Unix, SlotContent::Unix);
            }
        }
    }

    pub(crate) fn across(&mut self) {
        match self.random.below(4) {
            0 => {
                if let Some(file) = self.which(|held| held == SlotContent::File) {
                    let to = self.connection();
                    let length = 500 + self.random.below(2) as i32;
                    self.push(Call::SendFile, &[to as i32, file as i32, length]);
                }
            }
            1 => {
                if let Some(writer) = self.which(|held| held == SlotContent::Writer) {
                    let from = self.connection();
                    self.push(Call::Splice, &[from as i32, writer as i32, 1000]);
                }
            }
            2 => {
                if let Some(reader) = self.which(|held| held == SlotContent::Reader) {
                    let to = self.connection();
                    self.push(Call::Splice, &[reader as i32, to as i32, 1000]);
                }
            }
            _ => {
                if let Some(unix) = self.which(|held| held == SlotContent::Unix) {
                    if self.random.percent(50) {
                        self.give(unix);
                    } else {
                        let into = self.free();
                        self.push(Call::Take, &[unix as i32, into as i32]);
                        self.held[into] = SlotContent::Connection;
                    }
                }
            }
        }
    }

    /// Generates a message with a descriptor. A socket is received at once: the daemon learns later
    /// of one that is discarded with its message, and never of a listener (docs/LIMITS.md).
    pub(crate) fn give(&mut self, unix: usize) {
        let what = self.any();
        let is_ours =
            matches!(self.held[what], SlotContent::Listener(_) | SlotContent::Short | SlotContent::Connection);
        let other = (0..SLOTS).find(|slot| *slot != unix && self.held[*slot] == SlotContent::Unix);
        match other {
            None if is_ours => {}
            Some(other) if is_ours => {
                let into = self.free();
                self.drain_before_hand_over(what);
                self.push(Call::Give, &[unix as i32, what as i32]);
                self.push(Call::Take, &[other as i32, into as i32]);
                self.held[into] = self.held[what];
            }
            _ => {
                self.drain_before_hand_over(what);
                self.push(Call::Give, &[unix as i32, what as i32]);
            }
        }
    }

    pub(crate) fn names(&mut self) {
        let slot = self.any();
        match self.random.below(6) {
            0 | 1 => self.push(Call::Name, &[slot as i32]),
            2 | 3 => self.push(Call::Peer, &[slot as i32]),
            4 => {
                let (host, port) = (self.host(self.six[slot], true), self.random.one(&[0, 1, 2, -1]));
                self.push(Call::Bind, &[slot as i32, host, port]);
                if self.held[slot] == SlotContent::Fresh {
                    self.held[slot] = SlotContent::Bound(port);
                }
            }
            _ => {
                if self.held[slot] == SlotContent::Short {
                    return;
                }
                let backlog = self.random.one(&[32, 32, 64, 128]);
                self.push(Call::Listen, &[slot as i32, backlog]);
                if let SlotContent::Bound(port) = self.held[slot] {
                    self.held[slot] = SlotContent::Listener(port);
                }
            }
        }
    }
}
