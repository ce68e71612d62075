//! The life of one connection: an opener, two acceptors of one listener in two processes, the
//! daemon. Each step is one store to shared memory, one read, or one action of the daemon for one
//! event. Each process may die before each step.
//!
//! Tests check that the model finds an error for each rule ([`Rules`]) that is left out.

use crate::Model;

/// Rules of the protocol; `true`: kept.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// An arena with connections in it is forgotten only when nobody may accept from it.
    pub belongs_to_listener: bool,
    /// An acceptor marks the connection as accepted before it moves the inbox's head. An acceptor
    /// that finds a marked entry at the head moves the head.
    pub mark_first: bool,
    /// After every death the daemon checks the arena, and closes and frees what no process can
    /// reach any more: slots of a dead opener, and connections that are in no inbox and were not
    /// accepted.
    pub repair: bool,
    /// A dead process counts as awake, and every process that it might have been about to wake gets
    /// a doorbell.
    pub death_rings: bool,
    /// The opener checks after its push whether the arena was closed.
    pub look_after_push: bool,
}

impl Rules {
    /// All of them.
    pub const ALL: Rules =
        Rules { belongs_to_listener: true, mark_first: true, repair: true, death_rings: true, look_after_push: true };
}

/// Where the opener is in its connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Opener {
    Look,
    Take,
    Fill,
    Push,
    Claim,
    Ring(u8),
    LookAgain,
    TakeBack,
    Enter,
    Holds,
    Closing,
    Done,
    Dead,
}

/// Where an acceptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Acceptor {
    Look,
    Armed,
    Asleep,
    First,
    Second,
    Enter,
    Holds,
    Closing,
    Gone,
    Dead,
}

/// The arena, the processes, the daemon's book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    opener: Opener,
    acceptors: [Acceptor; 2],
    // The arena.
    taken: bool,
    open: bool,
    accepted: bool,
    closed_a: bool,
    closed_b: bool,
    pushed: bool,
    passed: bool,
    closed: bool,
    sleeping: [bool; 2],
    frees: u8,
    // Attachment pages.
    page_a: bool,
    page_b: [bool; 2],
    // What acceptors have mapped, and rings that they have not seen.
    knows: [bool; 2],
    rung: [bool; 2],
    /// connect(2) has returned 0.
    told: bool,
    // The daemon's book.
    in_book: bool,
    opener_gone: bool,
    holders: [bool; 2],
    detached: [bool; 2],
}

impl State {
    fn waits(&self) -> bool {
        self.pushed && !self.passed
    }

    fn is_held(&self) -> bool {
        self.holders != [false; 2]
    }

    fn free(&mut self) {
        self.open = false;
        self.taken = false;
        self.frees += 1;
    }

    fn close_a(&mut self) {
        if self.open && !self.closed_a {
            self.closed_a = true;
            if self.closed_b {
                self.free();
            }
        }
    }

    fn close_b(&mut self) {
        if self.open && !self.closed_b {
            self.closed_b = true;
            if self.closed_a {
                self.free();
            }
        }
    }

    /// The listener's last holder has gone.
    fn refuse_waiting(&mut self) {
        if self.waits() {
            self.passed = true;
            if !self.accepted {
                self.accepted = true;
                self.close_b();
            }
        }
    }
}

impl Model for Rules {
    type State = State;

    fn start(&self) -> State {
        State {
            opener: Opener::Look,
            acceptors: [Acceptor::Look; 2],
            taken: false,
            open: false,
            accepted: false,
            closed_a: false,
            closed_b: false,
            pushed: false,
            passed: false,
            closed: false,
            sleeping: [false; 2],
            frees: 0,
            page_a: false,
            page_b: [false; 2],
            knows: [false; 2],
            rung: [false; 2],
            told: false,
            in_book: true,
            opener_gone: false,
            holders: [true; 2],
            detached: [false; 2],
        }
    }

    fn steps(&self, now: &State) -> Vec<(&'static str, State, bool)> {
        let mut steps = Vec::new();
        self.opener(now, &mut steps);
        for i in 0..2 {
            self.acceptor(now, i, &mut steps);
        }
        self.daemon(now, &mut steps);
        steps.retain(|(_, next, _)| next != now);
        steps
    }

    fn always(&self, now: &State) -> Result<(), &'static str> {
        if now.frees > 1 { Err("freed twice") } else { Ok(()) }
    }

    fn at_rest(&self, now: &State) -> Result<(), &'static str> {
        let accepts = |i: usize| now.acceptors[i] == Acceptor::Asleep;
        if now.waits() && !now.accepted && (accepts(0) || accepts(1)) && now.told {
            return Err("a connection waits, and an acceptor sleeps");
        }
        let holds_b = (0..2).any(|i| now.acceptors[i] == Acceptor::Holds);
        if now.opener == Opener::Holds && now.open && !now.closed_b && !holds_b {
            return Err("the opener waits for an end that does not come");
        }
        if holds_b && now.opener != Opener::Holds && now.open && !now.closed_a {
            return Err("the acceptor waits for an end that does not come");
        }
        if now.opener != Opener::Holds && !holds_b && now.in_book && now.taken {
            return Err("a slot that nobody has is never free again");
        }
        Ok(())
    }
}

type Steps = Vec<(&'static str, State, bool)>;

impl Rules {
    fn opener(&self, now: &State, steps: &mut Steps) {
        let mut step = |name, happens, change: &dyn Fn(&mut State)| {
            let mut next = *now;
            change(&mut next);
            steps.push((name, next, happens));
        };
        match now.opener {
            Opener::Look => {
                step("opener: looks whether it is closed", true, &|s| {
                    s.opener = if s.closed { Opener::Done } else { Opener::Take };
                });
            }
            Opener::Take => step("opener: takes a slot", true, &|s| (s.taken, s.opener) = (true, Opener::Fill)),
            Opener::Fill => step("opener: stores the state", true, &|s| (s.open, s.opener) = (true, Opener::Push)),
            Opener::Push => step("opener: pushes", true, &|s| (s.pushed, s.opener) = (true, Opener::Claim)),
            Opener::Claim => {
                for i in (0..2).filter(|&i| now.sleeping[i]) {
                    step("opener: takes a sleeper's flag", true, &|s| {
                        s.sleeping[i] = false;
                        s.opener = Opener::Ring(i as u8);
                    });
                }
                if now.sleeping == [false; 2] {
                    step("opener: nobody sleeps", true, &|s| s.opener = Opener::LookAgain);
                }
            }
            Opener::Ring(i) => step("opener: rings", true, &|s| {
                s.rung[usize::from(i)] = true;
                s.opener = Opener::LookAgain;
            }),
            Opener::LookAgain => step("opener: looks whether it was closed", true, &|s| {
                let back = self.look_after_push && s.closed && s.open && !s.accepted;
                if back {
                    s.accepted = true;
                }
                s.opener = if back { Opener::TakeBack } else { Opener::Enter };
            }),
            Opener::TakeBack => step("opener: takes it back", true, &|s| {
                s.free();
                s.opener = Opener::Done;
            }),
            Opener::Enter => step("opener: writes it down", true, &|s| {
                (s.page_a, s.told, s.opener) = (true, true, Opener::Holds);
            }),
            Opener::Holds => step("opener: closes", false, &|s| (s.page_a, s.opener) = (false, Opener::Closing)),
            Opener::Closing => step("opener: sets the end", true, &|s| {
                s.close_a();
                s.opener = Opener::Done;
            }),
            Opener::Done | Opener::Dead => {}
        }
        if now.opener != Opener::Dead {
            step("opener dies", now.opener == Opener::Done, &|s| s.opener = Opener::Dead);
        }
    }

    fn acceptor(&self, now: &State, i: usize, steps: &mut Steps) {
        let mut step = |name, happens, change: &dyn Fn(&mut State)| {
            let mut next = *now;
            change(&mut next);
            steps.push((name, next, happens));
        };
        // An acceptor that finds a marked entry at the head moves the head.
        let look = |s: &mut State, nothing: Acceptor| {
            s.knows[i] |= s.in_book;
            if self.mark_first && s.waits() && s.accepted {
                s.passed = true;
            }
            s.acceptors[i] = if s.knows[i] && s.waits() { Acceptor::First } else { nothing };
            if nothing == Acceptor::Armed && s.acceptors[i] == nothing {
                s.sleeping[i] = true;
            }
        };
        match now.acceptors[i] {
            Acceptor::Look => {
                step("acceptor: looks, and sets its flag", true, &|s| look(s, Acceptor::Armed));
                step("acceptor: closes the listener", false, &|s| s.acceptors[i] = Acceptor::Gone);
            }
            Acceptor::Armed => step("acceptor: looks once more", true, &|s| look(s, Acceptor::Asleep)),
            Acceptor::Asleep if now.rung[i] => {
                step("acceptor: wakes", true, &|s| {
                    (s.rung[i], s.sleeping[i], s.acceptors[i]) = (false, false, Acceptor::Look);
                });
            }
            Acceptor::First if self.mark_first => step("acceptor: marks", true, &|s| {
                let is_first = s.open && !s.accepted;
                s.accepted |= is_first;
                // Taken by another, or over: it is passed all the same.
                s.passed |= !is_first;
                s.acceptors[i] = if is_first { Acceptor::Second } else { Acceptor::Look };
            }),
            Acceptor::First => step("acceptor: pops", true, &|s| {
                s.acceptors[i] = if s.waits() { Acceptor::Second } else { Acceptor::Look };
                s.passed = true;
            }),
            Acceptor::Second if self.mark_first => step("acceptor: moves the head", true, &|s| {
                (s.passed, s.acceptors[i]) = (true, Acceptor::Enter);
            }),
            Acceptor::Second => step("acceptor: marks", true, &|s| {
                let is_first = s.open && !s.accepted;
                s.accepted |= is_first;
                s.acceptors[i] = if is_first { Acceptor::Enter } else { Acceptor::Look };
            }),
            Acceptor::Enter => step("acceptor: writes it down", true, &|s| {
                (s.page_b[i], s.acceptors[i]) = (true, Acceptor::Holds);
            }),
            Acceptor::Holds => step("acceptor: closes", false, &|s| {
                (s.page_b[i], s.acceptors[i]) = (false, Acceptor::Closing);
            }),
            Acceptor::Closing => step("acceptor: sets the end", true, &|s| {
                s.close_b();
                s.acceptors[i] = Acceptor::Look;
            }),
            Acceptor::Asleep | Acceptor::Gone | Acceptor::Dead => {}
        }
        if now.acceptors[i] != Acceptor::Dead {
            step("acceptor dies", false, &|s| s.acceptors[i] = Acceptor::Dead);
        }
    }

    fn daemon(&self, now: &State, steps: &mut Steps) {
        if now.opener == Opener::Dead && !now.opener_gone {
            let mut next = *now;
            next.opener_gone = true;
            next.closed = true;
            if next.page_a {
                next.page_a = false;
                next.close_a();
            }
            if self.death_rings {
                next.rung = [true; 2];
            }
            steps.push(("daemon: the opener is gone", next, true));
        }
        for i in 0..2 {
            if matches!(now.acceptors[i], Acceptor::Dead | Acceptor::Gone) && now.holders[i] {
                let mut next = *now;
                next.holders[i] = false;
                if next.is_held() {
                    if self.death_rings {
                        next.sleeping[i] = false;
                        next.rung[1 - i] = true;
                    }
                } else {
                    next.closed = true;
                    next.refuse_waiting();
                }
                steps.push(("daemon: one holder less", next, true));
            }
            if now.acceptors[i] == Acceptor::Dead && !now.detached[i] {
                let mut next = *now;
                next.detached[i] = true;
                if next.page_b[i] {
                    next.page_b[i] = false;
                    next.close_b();
                }
                steps.push(("daemon: an acceptor is gone", next, true));
            }
        }
        let is_dying = now.opener_gone || !now.is_held();
        if now.in_book && (is_dying || self.repair && now.detached != [false; 2]) {
            steps.push(("daemon: looks at the arena", self.look_at(now, is_dying), true));
        }
    }

    /// The result of a check of the arena. It waits for processes that are in the middle of a
    /// change.
    fn look_at(&self, now: &State, is_dying: bool) -> State {
        let mut next = *now;
        let opener_changes = !matches!(now.opener, Opener::Holds | Opener::Done | Opener::Dead);
        let acceptor_changes = |i: usize| {
            matches!(now.acceptors[i], Acceptor::First | Acceptor::Second | Acceptor::Enter | Acceptor::Closing)
        };
        if !now.is_held() {
            next.refuse_waiting();
        }
        let nobody_looks = (0..2).all(|i| now.detached[i] || !now.knows[i]) && now.opener_gone;
        if is_dying && (!next.taken || nobody_looks && !(self.belongs_to_listener && now.is_held())) {
            next.in_book = false;
            return next;
        }
        if opener_changes || acceptor_changes(0) || acceptor_changes(1) {
            return next;
        }
        if !next.page_a && (now.opener == Opener::Dead || now.opener == Opener::Done) {
            next.close_a();
        }
        let held_b = next.page_b != [false; 2];
        let lost = self.repair && !next.waits();
        if !held_b && (next.accepted || lost) {
            next.close_b();
        }
        if self.repair && next.opener_gone && next.taken && !next.open {
            next.taken = false;
        }
        next
    }
}
