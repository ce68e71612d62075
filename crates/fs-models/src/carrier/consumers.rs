//! Steps of the threads that receive and poll.

use super::*;

impl Rules {
    /// The steps that both consumer threads share: reading the words under the lock.
    pub(super) fn reads(&self, now: &State, me: usize, steps: &mut Steps) -> bool {
        let reader = now.readers[me];
        match reader.at {
            Step::ReadWord => step(steps, now, "consumer: reads W", true, |s| {
                s.readers[me].seen = s.w;
                s.readers[me].at = Step::ReadCount;
            }),
            Step::ReadCount => step(steps, now, "consumer: reads K", true, |s| {
                s.readers[me].count = s.count;
                s.readers[me].at = if self.no_second_reading { Step::Check } else { Step::ReadAgain };
            }),
            Step::ReadAgain => step(steps, now, "consumer: reads W again", true, |s| {
                let same = s.w.same_but_for_flights(reader.seen);
                s.readers[me].at = if same { Step::Check } else { Step::ReadWord };
            }),
            Step::Clear => step(steps, now, "consumer: clears M or asks", true, |s| {
                if s.w == reader.seen && (s.w.tail == s.head || self.clear_with_bytes) {
                    if s.w.flights == 0 || self.clear_in_flight {
                        s.w.kernel = false;
                        s.w.requested = false;
                    } else {
                        s.w.requested = true;
                    }
                }
                s.receive_lock = 0;
                s.readers[me].at = Step::Idle;
            }),
            _ => return false,
        }
        true
    }

    pub(super) fn receives(&self, now: &State, steps: &mut Steps) {
        let me = RECEIVES;
        let idle = |s: &mut State| {
            s.receive_lock = 0;
            s.readers[me].at = Step::Idle;
        };
        match now.readers[me].at {
            Step::Idle if now.receive_lock == 0 => step(steps, now, "receiver: locks", true, |s| {
                s.receive_lock = 1;
                s.readers[me].at = Step::ReadWord;
            }),
            Step::Check => {
                let mut after = *now;
                match after.check(self, me) {
                    Outcome::Took => {
                        idle(&mut after);
                        steps.push(("receiver: takes", after, true));
                    }
                    Outcome::End => {
                        after.end(self);
                        after.receive_lock = 0;
                        after.readers[me].at = Step::Ended;
                        steps.push(("receiver: end", after, true));
                    }
                    Outcome::Behind => {
                        idle(&mut after);
                        steps.push(("receiver: waits for kernel bytes", after, false));
                    }
                    Outcome::NothingByKernel => {
                        step(steps, now, "receiver: sleeps", true, |s| {
                            s.sleepers += 1;
                            s.receive_lock = 0;
                            s.readers[me].at = Step::Asleep;
                        });
                        if now.sleepers == 0 || self.clear_over_sleeper {
                            step(steps, now, "receiver: wants the ring", false, |s| s.readers[me].at = Step::Clear);
                        }
                    }
                    Outcome::NothingByRing => {
                        step(steps, now, "receiver: looks again", false, idle);
                        step(steps, now, "receiver: is about to sleep", true, |s| s.readers[me].at = Step::SetKernel);
                    }
                }
            }
            Step::SetKernel => step(steps, now, "receiver: sets M", true, |s| {
                if s.w.tail == s.head {
                    s.set_kernel();
                }
                s.readers[me].at = Step::ReadWord;
            }),
            Step::Asleep => {
                if now.delivered > 0 {
                    step(steps, now, "receiver: wakes with a byte", true, |s| {
                        s.recv();
                        s.readers[me].at = Step::Woken;
                    });
                } else if now.is_end() {
                    step(steps, now, "receiver: wakes at the end", true, |s| {
                        s.end(self);
                        s.sleepers -= 1;
                        s.readers[me].at = Step::Ended;
                    });
                }
                if self.deaths {
                    step(steps, now, "receiver: jumps out", false, |s| s.readers[me].at = Step::Ended);
                }
            }
            Step::Woken if now.receive_lock == 0 => step(steps, now, "receiver: R += 1", true, |s| {
                s.received += 1;
                s.sleepers -= 1;
                s.readers[me].at = Step::Idle;
            }),
            _ => {
                self.reads(now, me, steps);
            }
        }
    }

    pub(super) fn polls(&self, now: &State, steps: &mut Steps) {
        let me = POLLS;
        let locks = !self.sleep_without_lock;
        let reader = now.readers[me];
        match reader.at {
            // E2, C8: the sleeper is counted before the word is read.
            Step::Idle if now.receive_lock == 0 || !locks => step(steps, now, "poller: is about to sleep", true, |s| {
                s.receive_lock = if locks { 2 } else { s.receive_lock };
                s.sleepers += 1;
                s.readers[me].seen = s.w;
                s.readers[me].at = Step::SetKernel;
            }),
            Step::SetKernel => {
                let asleep = |s: &mut State| {
                    if locks {
                        s.receive_lock = 0;
                    }
                    s.readers[me].at = Step::Asleep;
                };
                if reader.seen.tail != now.head {
                    // Without the lock it may expect that kernel bytes will wake it.
                    if !locks && reader.seen.kernel && now.received < now.boundary {
                        step(steps, now, "poller: sleeps for kernel bytes", true, asleep);
                        return;
                    }
                    step(steps, now, "poller: bytes in the ring", true, |s| {
                        s.sleepers -= 1;
                        if locks {
                            s.receive_lock = 0;
                        }
                        s.readers[me].at = Step::Decide;
                    });
                } else if !reader.seen.kernel || (reader.seen.requested && !self.keep_request) {
                    step(steps, now, "poller: sets M", true, |s| {
                        if s.w == reader.seen {
                            s.set_kernel();
                        }
                        s.readers[me].seen = s.w;
                    });
                } else {
                    step(steps, now, "poller: sleeps", true, asleep);
                }
            }
            Step::Asleep if now.delivered > 0 || now.is_end() => {
                step(steps, now, "poller: wakes", true, |s| s.readers[me].at = Step::Woken)
            }
            Step::Woken => step(steps, now, "poller: is counted no more", true, |s| {
                s.sleepers -= 1;
                s.readers[me].at = Step::Decide;
            }),
            Step::Decide => {
                if now.readers[RECEIVES].at != Step::Ended {
                    step(steps, now, "poller: does not read", false, |s| s.readers[me].at = Step::Idle);
                }
                if now.receive_lock == 0 {
                    step(steps, now, "poller: reads", true, |s| {
                        s.receive_lock = 2;
                        s.readers[me].at = Step::ReadWord;
                    });
                }
            }
            Step::Check => {
                let mut after = *now;
                let found = after.check(self, me);
                if matches!(found, Outcome::Took | Outcome::NothingByKernel)
                    && after.sleepers == 0
                    && reader.seen.kernel
                    && !reader.seen.requested
                {
                    step(steps, &after, "poller: wants the ring", false, |s| s.readers[me].at = Step::Clear);
                }
                after.receive_lock = 0;
                after.readers[me].at = Step::Idle;
                if let Outcome::End = found {
                    after.end(self);
                    after.readers[me].at = Step::Ended;
                }
                steps.push(("poller: has read", after, true));
            }
            _ => {
                self.reads(now, me, steps);
            }
        }
    }
}
