//! One side of a connection in several processes: its holder forks, sends it over a Unix socket
//! (SCM_RIGHTS) and closes it; the child and the receiver use and close it. Each step is one store
//! to shared memory, one system call, or one action of the daemon for one request or event. Each
//! process may die before each step, and each call that can fail does.

use crate::Model;

const HOLDER: usize = 0;
const CHILD: usize = 1;
const RECEIVER: usize = 2;

/// Rules of the protocol; `true`: kept.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The child's entries and references are made before it runs, not by the child afterwards.
    pub before_it_runs: bool,
    /// A message has its own reference, which passes to the process that claims it.
    pub share_refers: bool,
    /// The reference of a message is dropped when the message's socket no longer exists.
    pub watch: bool,
    /// After every death the daemon checks the arena and drops references without an owner.
    pub recount: bool,
    /// A check drops nothing while a living process is in the middle of a change.
    pub wait_for_changes: bool,
}

impl Rules {
    /// All of them.
    pub const ALL: Rules =
        Rules { before_it_runs: true, share_refers: true, watch: true, recount: true, wait_for_changes: true };
}

/// Where a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// Not there yet: not forked, or nothing received.
    Before,
    Holds,
    /// The daemon has made the child's attachment; fork(2) comes.
    Forking,
    /// The daemon was told what is sent; sendmsg(2) comes.
    Sending,
    /// sendmsg(2) has failed, which the daemon is told next.
    NotSent,
    /// recvmsg(2) has returned; the claim comes.
    Received,
    /// The daemon has answered; the entry in the page comes.
    Claimed,
    /// Runs, and has yet to ask for what its parent holds (only where `before_it_runs` is left
    /// out).
    Late,
    /// The entry is cleared; the reference comes.
    Letting,
    /// The reference is given back; close(2) comes.
    Closing,
    Gone,
    Dead,
}

/// The side of the connection, the processes, the daemon's book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    at: [At; 3],
    references: u8,
    closed: bool,
    pages: [bool; 3],
    // What the kernel has: descriptors of the socket that stands for it, and a message with one.
    descriptors: [bool; 3],
    message: bool,
    // The daemon's book.
    attached: [bool; 3],
    shares: u8,
    look: bool,
    // Each is done once.
    forked: bool,
    sent: bool,
}

impl State {
    fn exists(&self) -> bool {
        self.message || self.descriptors.contains(&true)
    }

    fn give_back(&mut self, n: u8) {
        self.references = self.references.saturating_sub(n);
        self.closed |= self.references == 0;
    }

    fn changes(&self, i: usize) -> bool {
        matches!(self.at[i], At::Claimed | At::Letting | At::Closing)
    }
}

impl Model for Rules {
    type State = State;

    fn start(&self) -> State {
        State {
            at: [At::Holds, At::Before, At::Before],
            references: 1,
            closed: false,
            pages: [true, false, false],
            descriptors: [true, false, false],
            message: false,
            attached: [true, false, true],
            shares: 0,
            look: false,
            forked: false,
            sent: false,
        }
    }

    fn steps(&self, now: &State) -> Vec<(&'static str, State, bool)> {
        let mut steps = Vec::new();
        self.holder(now, &mut steps);
        self.receiver(now, &mut steps);
        for i in [HOLDER, CHILD, RECEIVER] {
            self.any(now, i, &mut steps);
        }
        self.daemon(now, &mut steps);
        steps.retain(|(_, next, _)| next != now);
        steps
    }

    fn always(&self, now: &State) -> Result<(), &'static str> {
        if now.closed && (0..3).any(|i| now.at[i] == At::Holds) {
            return Err("closed under a process that has it");
        }
        if now.closed && now.message {
            return Err("closed on its way");
        }
        Ok(())
    }

    fn at_rest(&self, now: &State) -> Result<(), &'static str> {
        let held = (0..3).any(|i| !matches!(now.at[i], At::Before | At::Gone | At::Dead));
        if !held && !now.message && !now.closed {
            return Err("the peer waits for an end that does not come");
        }
        Ok(())
    }
}

type Steps = Vec<(&'static str, State, bool)>;

fn step(steps: &mut Steps, now: &State, name: &'static str, happens: bool, change: impl FnOnce(&mut State)) {
    let mut next = *now;
    change(&mut next);
    steps.push((name, next, happens));
}

impl Rules {
    fn holder(&self, now: &State, steps: &mut Steps) {
        let me = HOLDER;
        match now.at[me] {
            At::Holds if !now.forked => step(steps, now, "holder: asks for a child's attachment", false, |s| {
                s.forked = true;
                s.at[me] = At::Forking;
                s.attached[CHILD] = true;
                if self.before_it_runs {
                    s.references += 1;
                    s.pages[CHILD] = true;
                }
            }),
            At::Forking => {
                step(steps, now, "holder: forks", true, |s| {
                    s.descriptors[CHILD] = true;
                    s.at[CHILD] = if self.before_it_runs { At::Holds } else { At::Late };
                    s.at[me] = At::Holds;
                });
                step(steps, now, "holder: fork fails", false, |s| {
                    s.at[CHILD] = At::Dead;
                    s.at[me] = At::Holds;
                });
            }
            _ => {}
        }
        match now.at[me] {
            At::Holds if !now.sent => step(steps, now, "holder: says what it sends", false, |s| {
                s.sent = true;
                s.at[me] = At::Sending;
                s.shares += 1;
                s.references += u8::from(self.share_refers);
            }),
            At::Sending => {
                step(steps, now, "holder: sends", true, |s| (s.message, s.at[me]) = (true, At::Holds));
                step(steps, now, "holder: sendmsg fails", false, |s| s.at[me] = At::NotSent);
            }
            At::NotSent => step(steps, now, "holder: takes it back", true, |s| {
                s.at[me] = At::Holds;
                // Another may have claimed by it: whoever finds the socket.
                if s.shares > 0 {
                    s.shares -= 1;
                    if self.share_refers {
                        s.give_back(1);
                    }
                }
            }),
            _ => {}
        }
    }

    fn receiver(&self, now: &State, steps: &mut Steps) {
        let me = RECEIVER;
        match now.at[me] {
            At::Before if now.message => {
                step(steps, now, "receiver: receives", false, |s| {
                    (s.message, s.descriptors[me], s.at[me]) = (false, true, At::Received);
                });
                step(steps, now, "the message is thrown away", false, |s| s.message = false);
            }
            At::Received => step(steps, now, "receiver: claims", true, |s| {
                if s.shares > 0 {
                    s.shares -= 1;
                    if !self.share_refers && !s.closed {
                        s.references += 1;
                    }
                } else if s.pages.contains(&true) {
                    s.references += 1;
                }
                s.at[me] = At::Claimed;
            }),
            At::Claimed => step(steps, now, "receiver: writes it down", true, |s| {
                (s.pages[me], s.at[me]) = (true, At::Holds);
            }),
            _ => {}
        }
    }

    /// What each of them may do.
    fn any(&self, now: &State, i: usize, steps: &mut Steps) {
        match now.at[i] {
            At::Late => step(steps, now, "child: asks for what its parent holds", true, |s| {
                s.at[i] = At::Holds;
                if s.pages[HOLDER] {
                    s.references += 1;
                    s.pages[i] = true;
                }
            }),
            At::Holds => {
                step(steps, now, "clears its entry", false, |s| (s.pages[i], s.at[i]) = (false, At::Letting));
            }
            At::Letting => step(steps, now, "gives its reference back", true, |s| {
                s.give_back(1);
                s.at[i] = At::Closing;
            }),
            At::Closing => {
                step(steps, now, "closes the descriptor", true, |s| (s.descriptors[i], s.at[i]) = (false, At::Gone));
            }
            _ => {}
        }
        if !matches!(now.at[i], At::Before | At::Gone | At::Dead) {
            step(steps, now, "dies", false, |s| {
                (s.at[i], s.descriptors[i]) = (At::Dead, false);
                // Its end of the child's connection to the daemon goes with it.
                if i == HOLDER && now.at[i] == At::Forking {
                    s.at[CHILD] = At::Dead;
                }
            });
        }
    }

    fn daemon(&self, now: &State, steps: &mut Steps) {
        for i in [HOLDER, CHILD, RECEIVER] {
            if now.at[i] == At::Dead && now.attached[i] {
                step(steps, now, "daemon: a process is gone", true, |s| {
                    s.attached[i] = false;
                    s.look = self.recount;
                    if std::mem::take(&mut s.pages[i]) {
                        s.give_back(1);
                    }
                });
            }
        }
        if self.watch && now.shares > 0 && !now.exists() {
            step(steps, now, "daemon: the message's socket is gone", true, |s| {
                let n = std::mem::take(&mut s.shares);
                if self.share_refers {
                    s.give_back(n);
                }
            });
        }
        let change = (0..3).any(|i| now.changes(i));
        if now.look && !(self.wait_for_changes && change) {
            step(steps, now, "daemon: counts the references", true, |s| {
                s.look = false;
                let stand = s.pages.iter().map(|&entry| u8::from(entry)).sum::<u8>() + s.shares;
                if s.references > stand {
                    s.give_back(s.references - stand);
                }
            });
        }
    }
}
