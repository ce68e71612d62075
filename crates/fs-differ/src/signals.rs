//! Generates programs in which a timer's signals arrive at any instant, while processes and threads
//! make calls as fast as possible. Handlers make calls themselves, and children receive signals
//! right after their start. Each step has one result on the kernel, in any order.

use crate::generate::Maker;
use crate::program::{ACTORS, Call, Mode};
use crate::values::{CHURN, CHURN_FORK, CHURN_SPAWN};

/// Slots of the listener, of the socket that handlers send to, and of its other end.
const LISTENER: i32 = 0;
const HAND: i32 = 2;
const FAR: i32 = 3;
/// Slots of a connection without data: an end that stays open, and the first actor's other end.
/// Threads share their slots.
const OPEN: i32 = 1;
const QUIET: i32 = 5;

impl Maker {
    /// Generates servers, clients, and actors with calls that never block, each process with a
    /// timer or without.
    pub(crate) fn signals(&mut self) -> Mode {
        self.blocking = true;
        self.several = true;
        let six = self.random.percent(20);
        let (host, family) = if six { (4, libc::AF_INET6) } else { (1, libc::AF_INET) };
        self.push(Call::Socket, &[LISTENER, family, 0]);
        self.push(Call::Bind, &[LISTENER, host, 0]);
        self.push(Call::Listen, &[LISTENER, 128]);

        if self.random.percent(30) {
            // Inherited by all; each child's end is a further signal.
            let (does, how) = (self.random.below(5) as i32, self.random.below(2) as i32);
            self.push(Call::ReactChild, &[does, LISTENER, how]);
        }

        // Forks first: threads of a process begin after its forks.
        let actors = 2 + self.random.below(ACTORS - 1);
        let processes = 1 + self.random.below(actors);
        let mut process = vec![0];
        for actor in 1..actors {
            let forks = actor < processes;
            let parent = if forks { 0 } else { self.random.below(processes) };
            process.push(if forks { actor } else { parent });
            self.actor = parent as u8;
            self.push(if forks { Call::Fork } else { Call::Thread }, &[actor as i32]);
        }

        // One or two actors serve. All others connect, except for an occasional one that only
        // churns.
        let servers = if actors > 2 && self.random.percent(40) { 2 } else { 1 };
        let first = self.random.below(actors);
        let is_server = |actor: usize| (actor + actors - first) % actors < servers;
        let mut dials = vec![0; actors];
        for (actor, dial) in dials.iter_mut().enumerate() {
            if !is_server(actor) && !self.random.percent(15) {
                *dial = self.random.one(&[5, 12, 30]);
            }
        }
        let all: i32 = dials.iter().sum();
        let mut serves = vec![0; actors];
        for (place, server) in (0..actors).filter(|actor| is_server(*actor)).enumerate() {
            serves[server] = if servers == 1 || place == 1 { all - serves.iter().sum::<i32>() } else { all / 2 };
        }

        // One timer per process, started by any of its threads.
        let mut timers = vec![false; actors];
        for one in 0..processes {
            let threads: Vec<usize> = (0..actors).filter(|actor| process[*actor] == one).collect();
            timers[self.random.one(&threads)] = self.random.percent(85);
        }
        for actor in 0..actors {
            self.actor = actor as u8;
            let is_alone = process.iter().filter(|other| **other == process[actor]).count() == 1;
            let does = timers[actor].then(|| self.timer());
            self.work(is_alone);
            if serves[actor] > 0 {
                // A child inherits the descriptors of its process's other threads, and an actor
                // that connects there would wait for the child's end.
                let (way, by_child) = (self.random.below(9) as i32, is_alone && self.random.percent(30));
                self.push(Call::Serve, &[LISTENER, serves[actor], way, i32::from(by_child)]);
            }
            if dials[actor] > 0 {
                let (way, answer) = (self.random.below(9) as i32, self.random.below(2) as i32);
                let length = self.random.weighted(&[(4, 0), (8, 100), (4, 5000), (2, 60_000), (1, 600_000)]);
                let length = if length > 60_000 && dials[actor] > 5 { 60_000 } else { length };
                self.push(Call::Dial, &[host, 0, dials[actor], length, way, answer]);
            }
            if self.random.percent(30) {
                self.work(is_alone);
            }
            if self.random.percent(25) {
                let (rounds, way) = (self.random.one(&[10, 60]), 6 + self.random.below(3) as i32);
                let quiet = QUIET + actor as i32;
                self.push(Call::Hand, &[OPEN, quiet]);
                self.push(Call::Doze, &[quiet, rounds, way]);
            }
            if let Some(does) = does {
                self.push(Call::StopTimer, &[]);
                if matches!(does, 5 | 6 | 9) {
                    self.push(Call::Tally, &[FAR]);
                }
            }
        }
        Mode::Signals
    }

    /// Generates a timer, and its handler's action.
    fn timer(&mut self) -> i32 {
        let does = self.random.weighted(&[
            (1, 0),
            (2, 1),
            (2, 2),
            (2, 3),
            (1, 4),
            (1, 5),
            (2, 6),
            (4, 7),
            (1, 8),
            (1, 9),
            (1, 10),
        ]);
        let how = self.random.below(4) as i32;
        let with = if matches!(does, 5 | 6 | 9) { HAND } else { LISTENER };
        match does {
            5 => self.push(Call::Pipe, &[FAR, HAND, 0]),
            6 | 9 => self.push(Call::Hand, &[HAND, FAR]),
            _ => {}
        }
        self.push(Call::React, &[does, with, how]);
        let clock = self.random.below(3) as i32;
        let (period, times) = match does {
            7..=10 => (self.random.one(&[700, 1300, 2900]), self.random.one(&[10, 30, 60])),
            // The bytes are not read before the end.
            6 => (self.random.one(&[110, 230, 570]), self.random.one(&[20, 100])),
            _ => (self.random.one(&[110, 230, 570, 1900]), self.random.one(&[50, 200, 500])),
        };
        self.push(Call::Timer, &[clock, period, times]);
        does
    }

    /// Generates calls that never block.
    fn work(&mut self, is_alone: bool) {
        if self.random.percent(80) {
            let mut what = 0;
            for _ in 0..1 + self.random.below(4) {
                what |= self.random.one(CHURN).1;
            }
            if self.random.percent(25) {
                what |= CHURN_FORK;
            }
            let most = match what {
                what if what & CHURN_SPAWN != 0 => &[1, 4][..],
                what if what & CHURN_FORK != 0 => &[5, 10, 20],
                _ => &[10, 30, 80],
            };
            let rounds = self.random.one(most);
            self.push(Call::Churn, &[LISTENER, rounds, what]);
        }
        if self.random.percent(if is_alone { 40 } else { 20 }) {
            let (children, rt) = (self.random.one(&[3, 8, 20]), self.random.below(2) as i32);
            let signals = if rt == 1 { self.random.one(&[1, 3, 6]) } else { 1 };
            self.push(Call::Brood, &[children, signals, rt]);
        }
    }
}
