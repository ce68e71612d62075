//! Generates programs of epoll: many sockets in several sets, one set in another.

use crate::generate::{Maker, SlotContent};
use crate::program::{Call, Mode};

const LISTENER: usize = 0;
const SETS: [usize; 3] = [1, 2, 3];
/// The first slot of connections: clients have the even slots, accepted sockets the odd ones.
const ENDS: usize = 4;
/// TCP_INQ, in `OPTION`.
const INQ: i32 = 23;

impl Maker {
    /// Generates programs of one process with only connections, their listener and sets in its
    /// sets: the order of other kernel descriptors among these is unspecified (docs/LIMITS.md).
    pub(crate) fn sets(&mut self) -> Mode {
        let (host, family) = if self.random.percent(20) { (4, libc::AF_INET6) } else { (1, libc::AF_INET) };
        self.push(Call::Socket, &[LISTENER as i32, family, libc::SOCK_NONBLOCK]);
        self.push(Call::Bind, &[LISTENER as i32, host, 0]);
        self.push(Call::Listen, &[LISTENER as i32, 64]);
        self.held[LISTENER] = SlotContent::Listener(0);
        // The end that has shut down is also woken by the acknowledgment, which the delayed-ACK
        // timer sends.
        let shuts = self.random.percent(60);
        let sets = 1 + self.random.below(SETS.len());
        // The set is made before the connections, or after.
        let early = self.random.percent(40);
        if early {
            self.make_sets(sets);
        }
        let pairs = 2 + self.random.below(5);
        let has_rings = self.random.percent(70);
        // Without a place for it, an event of the kernel's joins its ring's in a later call, as a
        // second edge (docs/PRELOAD.md, E4).
        let has_edges = self.random.percent(60);
        for pair in 0..pairs {
            self.join(ENDS + 2 * pair, family, host, has_rings);
            self.push(Call::Accept, &[LISTENER as i32, (ENDS + 2 * pair + 1) as i32, 1, libc::SOCK_NONBLOCK]);
            if has_rings && self.random.percent(80) {
                self.warm();
            }
        }
        if !early {
            self.make_sets(sets);
        }
        let ends = 2 * pairs;
        for _ in 0..self.random.one(&[3, 6, 10]) {
            self.change(sets, ends, 1, shuts, has_rings, has_edges);
        }
        let length = self.steps.len() + self.random.one(&[10, 20, 40]);
        while self.steps.len() < length {
            let end = (ENDS + self.random.below(ends)) as i32;
            match self.random.below(100) {
                0..28 => {
                    let length = self.random.one(&[1, 5, 100]);
                    self.push(Call::Send, &[end, 2, length, libc::MSG_DONTWAIT]);
                }
                28..38 => {
                    let length = self.random.one(&[1, 100, 100]);
                    self.push(Call::Recv, &[end, 2, length, libc::MSG_DONTWAIT]);
                }
                38..66 => {
                    let set = SETS[self.random.below(sets)] as i32;
                    let most = self.random.weighted(&[(4, 16), (3, 1), (3, 2), (2, 3)]);
                    let most = if has_rings || has_edges { 16 } else { most };
                    self.push(Call::Wait, &[set, most, 0, 0]);
                }
                66..88 => {
                    let operation = self.random.weighted(&[(5, 1), (5, 3), (3, 2)]);
                    self.change(sets, ends, operation, shuts, has_rings, has_edges);
                }
                88..91 if shuts => {
                    let how = self.random.weighted(&[(1, 0), (4, 1), (2, 2)]);
                    self.push(Call::Shutdown, &[end, how]);
                }
                88..93 => self.push(Call::Close, &[end]),
                93..96 => {
                    // With a waiting connection the listener is ready.
                    let slot = ENDS + self.random.below(ends / 2) * 2;
                    self.push(Call::Close, &[slot as i32]);
                    self.join(slot, family, host, has_rings);
                }
                96..98 => {
                    let slot = ENDS + self.random.below(ends / 2) * 2 + 1;
                    self.push(Call::Close, &[slot as i32]);
                    self.push(Call::Accept, &[LISTENER as i32, slot as i32, 1, libc::SOCK_NONBLOCK]);
                }
                _ => {
                    let (one, other) = (SETS[self.random.below(sets)], SETS[self.random.below(sets)]);
                    self.push(Call::Poll, &[one as i32, other as i32, 5, 0, 0]);
                }
            }
        }
        for set in SETS.iter().take(sets) {
            self.push(Call::Wait, &[*set as i32, 16, 0, 0]);
        }
        Mode::Alone
    }

    fn make_sets(&mut self, sets: usize) {
        for set in SETS.iter().take(sets) {
            self.push(Call::Epoll, &[*set as i32, 0]);
            self.held[*set] = SlotContent::Set;
        }
    }

    /// Connects to the listener, which completes at once.
    fn join(&mut self, slot: usize, family: i32, host: i32, may_have_ring: bool) {
        self.push(Call::Socket, &[slot as i32, family, 0]);
        self.push(Call::Connect, &[slot as i32, host, 0]);
        self.push(Call::SetFl, &[slot as i32, libc::SOCK_NONBLOCK]);
        if !may_have_ring {
            // A connection with this option is never promoted, and recv(2) does not show it.
            self.push(Call::SetOption, &[slot as i32, INQ, 1]);
        }
        self.held[slot] = SlotContent::Connection;
    }

    /// Generates an epoll_ctl(2) on one of the sets.
    fn change(&mut self, sets: usize, ends: usize, operation: i32, shuts: bool, has_rings: bool, has_edges: bool) {
        let set = SETS[self.random.below(sets)];
        let what = match self.random.below(100) {
            0..8 => LISTENER,
            // A nested set stays readable until a thread waits in it, if a ring had bytes.
            8..20 if !has_rings => SETS[self.random.below(sets)],
            _ => ENDS + self.random.below(ends),
        };
        let mut events = self.random.weighted(&[(8, 1), (3, 5), (2, 4), (2, 0x2001), (1, 0x2005), (1, 0)]);
        for (percent, flag) in [(if has_edges { 55 } else { 0 }, libc::EPOLLET), (15, libc::EPOLLONESHOT)] {
            // For a set in a set, an edge is reported for every event of its connections.
            // Rings acknowledge nothing, so with them it comes later for EPOLLIN, too.
            let is_of_acks = shuts && flag == libc::EPOLLET && (events & 1 == 0 || SETS.contains(&what) || has_rings);
            // Bytes that came and were read are an edge of room on the kernel.
            let is_of_both = has_rings && flag == libc::EPOLLET && events & 4 != 0;
            if self.random.percent(percent) && !is_of_acks && !is_of_both {
                events |= flag;
            }
        }
        if operation == 1 && self.random.percent(6) {
            events |= libc::EPOLLEXCLUSIVE;
        }
        self.push(Call::Ctl, &[set as i32, operation, what as i32, events]);
    }
}
