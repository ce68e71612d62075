//! One direction of a promoted connection (`fs-carrier`): one or two producers with two carriers, a
//! thread that receives, a thread that sleeps in poll on the same socket and reads now and then, a
//! death of either end and a jump out of a sleep at any step.
//!
//! Each step is one access to shared memory or one system call. `docs/PRELOAD.md` has the rules and
//! their names.

mod consumers;

use crate::Model;

/// The number of bytes that the ring and the kernel's queue hold.
const ROOM: u8 = 2;

/// A model's size, and the rules that it breaks (true: broken). Each broken rule was in the first
/// draft or is a plausible simplification.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Bytes of each producer.
    pub bytes: u8,
    /// Producers: 1 or 2.
    pub producers: u8,
    /// Ends may be killed.
    pub deaths: bool,
    /// B: the boundary is always K.
    pub no_boundary: bool,
    /// C1, C3: W is not read again after K.
    pub no_second_reading: bool,
    /// C5: M is cleared with sends in flight.
    pub clear_in_flight: bool,
    /// C3: the kernel is read without a bound while the ring carries.
    pub unbounded_read: bool,
    /// C5: M is cleared although a thread sleeps.
    pub clear_over_sleeper: bool,
    /// C5: M is cleared with bytes in the ring.
    pub clear_with_bytes: bool,
    /// C8, E2: the thread that sleeps in poll does not take the receive lock.
    pub sleep_without_lock: bool,
    /// C4: the thread that sleeps in poll keeps a request for the ring.
    pub keep_request: bool,
    /// P6: sends that the kernel may hold back.
    pub may_hold: bool,
    /// P2: sends in flight are not counted.
    pub no_flights: bool,
}

/// The step that a producer is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Idle,
    Announce,
    Locked,
    Publish,
    SetKernel,
    Send,
    Count,
    Finish,
}

/// The step that a consumer thread is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Idle,
    ReadWord,
    ReadCount,
    ReadAgain,
    Check,
    Clear,
    SetKernel,
    Asleep,
    Woken,
    Decide,
    Ended,
}

/// One reading of `W`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct W {
    tail: u8,
    kernel: bool,
    requested: bool,
    flights: u8,
}

impl W {
    fn same_but_for_flights(self, other: W) -> bool {
        W { flights: 0, ..self } == W { flights: 0, ..other }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Producer {
    at: At,
    sent: u8,
    seen: W,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Reader {
    at: Step,
    seen: W,
    count: u8,
}

/// The words, the kernel, the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    w: W,
    count: u8,
    boundary: u8,
    received: u8,
    head: u8,
    ring: [u8; 2],
    queue: [u8; 2],
    queued: u8,
    delivered: u8,
    fin: bool,
    send_lock: u8,
    receive_lock: u8,
    sleepers: u8,
    producers: [Producer; 2],
    readers: [Reader; 2],
    got: [u8; 2],
    producer_dead: bool,
    consumer_dead: bool,
    wrong: Option<&'static str>,
}

/// The thread that receives, and the one that sleeps in poll.
const RECEIVES: usize = 0;
const POLLS: usize = 1;

/// The result of a check of both carriers.
enum Outcome {
    Took,
    End,
    NothingByKernel,
    NothingByRing,
    Behind,
}

impl State {
    fn take(&mut self, byte: u8) {
        let producer = usize::from(byte >> 4);
        if self.got[producer] != byte & 15 {
            self.wrong = Some("lost, repeated or out of order");
        }
        self.got[producer] = (byte & 15) + 1;
    }

    fn take_ring(&mut self) {
        self.take(self.ring[usize::from(self.head % ROOM)]);
        self.head += 1;
    }

    fn recv(&mut self) -> bool {
        if self.delivered == 0 {
            return false;
        }
        self.take(self.queue[0]);
        self.queue = [self.queue[1], 0];
        self.queued -= 1;
        self.delivered -= 1;
        true
    }

    fn is_end(&self) -> bool {
        self.fin && self.queued == 0
    }

    /// The receiver accepts the kernel's end of stream.
    fn end(&mut self, rules: &Rules) {
        if self.head != self.w.tail {
            self.wrong = Some("end believed with bytes in the ring");
        }
        if !self.producer_dead && (0..usize::from(rules.producers)).any(|p| self.got[p] != self.producers[p].sent) {
            self.wrong = Some("end before all bytes");
        }
    }

    /// C1 to C3 under the receive lock.
    fn check(&mut self, rules: &Rules, reader: usize) -> Outcome {
        let Reader { seen, count, .. } = self.readers[reader];
        if seen.tail != self.head {
            let limit = if rules.no_boundary || !seen.kernel { count } else { self.boundary };
            if self.received >= limit {
                self.take_ring();
                return Outcome::Took;
            }
            return if self.recv() {
                self.received += 1;
                Outcome::Took
            } else {
                Outcome::Behind
            };
        }
        if seen.kernel && !seen.requested {
            if self.recv() {
                self.received += 1;
                return Outcome::Took;
            }
            return if self.is_end() { Outcome::End } else { Outcome::NothingByKernel };
        }
        if (rules.unbounded_read || count > self.received) && self.recv() {
            self.received += 1;
            return Outcome::Took;
        }
        Outcome::NothingByRing
    }

    fn set_kernel(&mut self) {
        self.w.kernel = true;
        self.w.requested = false;
    }
}

type Steps = Vec<(&'static str, State, bool)>;

fn step(steps: &mut Steps, now: &State, name: &'static str, happens: bool, change: impl FnOnce(&mut State)) {
    let mut next = *now;
    change(&mut next);
    if next != *now {
        steps.push((name, next, happens));
    }
}

impl Rules {
    fn producer(&self, now: &State, i: usize, steps: &mut Steps) {
        let producer = now.producers[i];
        let byte = (i as u8) << 4 | producer.sent;
        let done = |s: &State| {
            (0..usize::from(self.producers)).all(|p| s.producers[p].sent == self.bytes && s.producers[p].at == At::Idle)
        };
        match producer.at {
            At::Idle if producer.sent == self.bytes => {
                if done(now) && i == 0 {
                    // The kernel carries the shutdown, because P3 has been applied.
                    step(steps, now, "producer: ends", true, |s| s.fin = true);
                }
            }
            At::Idle if now.w.kernel => step(steps, now, "producer: reads W", true, |s| {
                s.producers[i].seen = s.w;
                s.producers[i].at = At::Announce;
            }),
            At::Idle if now.send_lock == 0 => step(steps, now, "producer: locks", true, |s| {
                s.send_lock = i as u8 + 1;
                s.producers[i].at = At::Locked;
            }),
            At::Idle => {}
            At::Announce => step(steps, now, "producer: counts its send", true, |s| {
                let same = s.w == producer.seen;
                if same && !self.no_flights {
                    s.w.flights += 1;
                }
                s.producers[i].at = if same { At::Send } else { At::Idle };
            }),
            At::Locked => {
                if now.w.kernel {
                    step(steps, now, "producer: unlocks", true, |s| {
                        s.send_lock = 0;
                        s.producers[i].at = At::Idle;
                    });
                    return;
                }
                if now.w.tail - now.head < ROOM {
                    step(steps, now, "producer: writes the ring", true, |s| {
                        s.ring[usize::from(s.w.tail % ROOM)] = byte;
                        s.producers[i].seen = s.w;
                        s.producers[i].at = At::Publish;
                    });
                }
                step(steps, now, "producer: writes B", now.w.tail - now.head == ROOM, |s| {
                    s.boundary = s.count;
                    s.producers[i].seen = s.w;
                    s.producers[i].at = At::SetKernel;
                });
            }
            At::Publish => step(steps, now, "producer: publishes", true, |s| {
                if s.w == producer.seen {
                    s.w.tail += 1;
                    s.producers[i].sent += 1;
                }
                s.send_lock = 0;
                s.producers[i].at = At::Idle;
            }),
            At::SetKernel => step(steps, now, "producer: sets M", true, |s| {
                if s.w == producer.seen {
                    s.set_kernel();
                }
                s.send_lock = 0;
                s.producers[i].at = At::Idle;
            }),
            At::Send if now.consumer_dead => step(steps, now, "producer: EPIPE", true, |s| {
                s.producers[i].sent = self.bytes;
                s.producers[i].at = At::Finish;
            }),
            At::Send if now.queued < ROOM => step(steps, now, "producer: send(2)", true, |s| {
                s.queue[usize::from(s.queued)] = byte;
                s.queued += 1;
                s.producers[i].at = At::Count;
            }),
            At::Send => {}
            At::Count => step(steps, now, "producer: K += 1", true, |s| {
                s.count += 1;
                s.producers[i].sent += 1;
                s.producers[i].at = At::Finish;
            }),
            At::Finish => {
                if self.may_hold {
                    step(steps, now, "producer: takes the request back", false, |s| s.w.requested = false);
                }
                step(steps, now, "producer: send ends", true, |s| {
                    if !self.no_flights {
                        s.w.flights -= 1;
                    }
                    if s.w.requested && s.w.flights == 0 {
                        s.w.requested = false;
                        s.w.kernel = false;
                    }
                    s.producers[i].at = At::Idle;
                });
            }
        }
    }
}

impl Model for Rules {
    type State = State;

    fn start(&self) -> State {
        let producer = Producer { at: At::Idle, sent: 0, seen: W::default() };
        let reader = Reader { at: Step::Idle, seen: W::default(), count: 0 };
        State {
            w: W { kernel: true, ..W::default() },
            count: 0,
            boundary: 0,
            received: 0,
            head: 0,
            ring: [0; 2],
            queue: [0; 2],
            queued: 0,
            delivered: 0,
            fin: false,
            send_lock: 0,
            receive_lock: 0,
            sleepers: 0,
            producers: [producer; 2],
            readers: [reader; 2],
            got: [0; 2],
            producer_dead: false,
            consumer_dead: false,
            wrong: None,
        }
    }

    fn steps(&self, now: &State) -> Vec<(&'static str, State, bool)> {
        let mut steps = Vec::new();
        if now.wrong.is_some() {
            return steps;
        }
        if !now.producer_dead {
            for i in 0..usize::from(self.producers) {
                self.producer(now, i, &mut steps);
            }
        }
        if !now.consumer_dead {
            self.receives(now, &mut steps);
            self.polls(now, &mut steps);
        }
        if now.delivered < now.queued {
            step(&mut steps, now, "kernel: delivers", true, |s| s.delivered += 1);
        }
        if self.deaths && !now.producer_dead && !now.fin {
            step(&mut steps, now, "producer: is killed", false, |s| {
                s.producer_dead = true;
                s.fin = true;
            });
        }
        if self.deaths && !now.consumer_dead {
            step(&mut steps, now, "consumer: is killed", false, |s| s.consumer_dead = true);
        }
        steps
    }

    fn always(&self, now: &State) -> Result<(), &'static str> {
        if let Some(wrong) = now.wrong {
            return Err(wrong);
        }
        let asleep = now.readers.iter().any(|reader| reader.at == Step::Asleep);
        if !now.consumer_dead && asleep && (!now.w.kernel || now.w.requested || now.w.tail != now.head) {
            return Err("asleep in the kernel, and bytes may come or are in the ring");
        }
        if !now.w.kernel && now.w.flights > 0 {
            return Err("the ring carries with a send in flight");
        }
        Ok(())
    }

    fn at_rest(&self, now: &State) -> Result<(), &'static str> {
        if now.wrong.is_some() {
            return Ok(());
        }
        if !now.producer_dead && !now.fin {
            return Err("the producer waits for ever");
        }
        if !now.consumer_dead && now.readers[POLLS].at != Step::Ended {
            return Err("the consumer waits for ever");
        }
        Ok(())
    }
}
