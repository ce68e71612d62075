//! Queues that a device gets while the runtime runs (`ethtool -L`). With zero copy, the driver
//! reconfigures each new queue for its socket, so the device is checked again as at the start. A
//! queue with which the device does not work is closed again.

use crate::device::probe::{Answers, Before, Host, Probed, Reason, check};
use crate::shared::Shared;
use fs_core::IfaceId;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Limit for opening the queues. A core that lacks frames keeps trying within it.
const OPEN_WAIT: Duration = Duration::from_secs(10);
/// Limit for neighbours' replies after the queues are closed.
const ANSWER_WAIT: Duration = Duration::from_secs(4);
/// Time for which the cores keep the frames of closed queues. The kernel takes them back from the driver
/// in a work queue (`xp_release_deferred`), more than 200 ms after the close on a busy machine. Shorter:
/// the card writes to frames that are in use for something else. Longer: they are missing.
const RELEASE_WAIT: Duration = Duration::from_secs(2);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// A device, and some of its queues.
trait QueueSet: Probed {
    /// Asks the cores to open the queues.
    fn open(&mut self);
    /// Returns true if all are open, or will not be opened any more.
    fn are_open(&mut self) -> bool;
    /// Asks the cores to close the queues, which keeps their frames, and if called again, to return
    /// these frames.
    fn close(&mut self);
}

/// Opens queues and checks whether the device works with them. Closes them and returns the reason
/// if it does not.
fn open_and_check(device: &mut impl QueueSet) -> io::Result<Option<Reason>> {
    let before = Before::of(device);
    device.open();
    let before = before?;
    let mut waited = Duration::ZERO;
    while !device.are_open() && waited < OPEN_WAIT {
        device.wait(LOOK);
        waited += LOOK;
    }
    // A change of the number of queues may also take the link down, which is no reason.
    let Err(reason @ (Reason::NoChunks { .. } | Reason::ReceiveErrors { .. } | Reason::Deaf)) = check(before, device)?
    else {
        return Ok(None);
    };
    device.close();
    device.wait(RELEASE_WAIT);
    device.close();
    // If all neighbours disappeared at this moment, the queues are not the cause.
    if before.has_answers() && !device.ask_neighbours(ANSWER_WAIT)?.are_some_given() {
        device.open();
        return Ok(None);
    }
    Ok(Some(reason))
}

/// A device of this host.
struct Opening {
    shared: Weak<Shared>,
    iface: IfaceId,
    queues: Range<u32>,
    host: Host,
}

impl QueueSet for Opening {
    fn open(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            self.queues.clone().for_each(|queue| shared.open_queue(self.iface, queue, true));
        }
    }

    fn are_open(&mut self) -> bool {
        let opener = self.shared.upgrade().and_then(|shared| shared.opener(self.iface));
        opener.is_none_or(|opener| opener.are_open(self.queues.clone()))
    }

    fn close(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            self.queues.clone().for_each(|queue| shared.close_queue(self.iface, queue));
        }
    }
}

impl Probed for Opening {
    fn has_link(&mut self) -> io::Result<bool> {
        self.host.alone().has_link()
    }

    fn carrier_changes(&mut self) -> io::Result<u32> {
        self.host.alone().carrier_changes()
    }

    fn receive_errors(&mut self) -> io::Result<u64> {
        self.host.alone().receive_errors()
    }

    fn ask_neighbours(&mut self, within: Duration) -> io::Result<Answers> {
        self.host.alone().ask_neighbours(within)
    }

    fn queue_without_chunks(&mut self) -> Option<usize> {
        // The cores own the sockets.
        None
    }

    fn without_copies(&mut self) -> bool {
        true
    }

    fn wait(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Asks cores to open new queues of devices. Core q mod cores serves queue q, as at the start.
pub(super) fn open_new(shared: &Arc<Shared>) {
    for (iface, opener) in shared.openers.all() {
        let new = opener.new_queues();
        if opener.is_zero_copy() && !new.is_empty() {
            open(Arc::downgrade(shared), iface, new);
        } else {
            new.for_each(|queue| shared.open_queue(iface, queue, true));
        }
        opener.late_queues().into_iter().for_each(|late| shared.open_queue(iface, late.queue, late.is_new));
    }
}

/// Opens new queues of a device on its own thread, because the control thread must answer questions
/// about neighbours in the meantime.
fn open(shared: Weak<Shared>, iface: IfaceId, queues: Range<u32>) {
    let Some(device) =
        shared.upgrade().and_then(|shared| shared.opener(iface)).map(|opener| opener.net_device().clone())
    else {
        return;
    };
    let of_thread = (shared.clone(), queues.clone());
    let run = move || {
        let (shared, queues) = of_thread;
        let opening =
            Host::new(&device).map(|host| Opening { shared: shared.clone(), iface, queues: queues.clone(), host });
        let result = opening
            .map_err(|error| (false, error))
            .and_then(|mut opening| open_and_check(&mut opening).map_err(|error| (true, error)));
        match result {
            Ok(None) => {}
            Ok(Some(reason)) => {
                if let Some(opener) = shared.upgrade().and_then(|shared| shared.opener(iface)) {
                    opener.give_up(&format!("the device does not work with the new queues {queues:?}: {reason}"));
                }
            }
            Err((is_open, error)) => {
                tracing::warn!(
                    device = device.name,
                    %error,
                    "cannot check whether the device works with its new queues"
                );
                if let (false, Some(shared)) = (is_open, shared.upgrade()) {
                    queues.for_each(|queue| shared.open_queue(iface, queue, true));
                }
            }
        }
    };
    let spawned = std::thread::Builder::new().name("fs-late-queue".into()).spawn(run);
    if let (Err(error), Some(shared)) = (spawned, shared.upgrade()) {
        tracing::warn!(%error, "cannot start the thread that checks the device's new queues");
        queues.for_each(|queue| shared.open_queue(iface, queue, true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with a given number of neighbours that reply and do not reply, for each round of
    /// questions.
    #[derive(Default)]
    struct Fake {
        answers: Vec<(usize, usize)>,
        errors: Vec<u64>,
        is_down: bool,
        asked: usize,
        looks: usize,
        done: Vec<&'static str>,
    }

    impl Probed for Fake {
        fn has_link(&mut self) -> io::Result<bool> {
            Ok(!self.is_down || self.done.is_empty())
        }

        fn carrier_changes(&mut self) -> io::Result<u32> {
            Ok(0)
        }

        fn receive_errors(&mut self) -> io::Result<u64> {
            self.looks += 1;
            Ok(self.errors.get(self.looks - 1).copied().unwrap_or(0))
        }

        fn ask_neighbours(&mut self, _: Duration) -> io::Result<Answers> {
            self.asked += 1;
            let (given, missing) = self.answers.get(self.asked - 1).copied().unwrap_or((2, 0));
            Ok(Answers::of(given, missing))
        }

        fn queue_without_chunks(&mut self) -> Option<usize> {
            None
        }

        fn without_copies(&mut self) -> bool {
            true
        }

        fn wait(&mut self, _: Duration) {}
    }

    impl QueueSet for Fake {
        fn open(&mut self) {
            self.done.push("open");
        }

        fn are_open(&mut self) -> bool {
            true
        }

        fn close(&mut self) {
            self.done.push("close");
        }
    }

    fn outcome(mut device: Fake) -> (Option<Reason>, Vec<&'static str>) {
        (open_and_check(&mut device).unwrap(), device.done)
    }

    #[test]
    fn queue_that_makes_its_device_deaf_is_closed() {
        assert_eq!(outcome(Fake::default()), (None, vec!["open"]));
        let silent = (0, 2);
        let answers = vec![(2, 0), silent, silent, (2, 0)];
        assert_eq!(outcome(Fake { answers, ..Fake::default() }), (Some(Reason::Deaf), vec!["open", "close", "close"]));
        let errors = vec![7, 9, 12, 13];
        let reason = Some(Reason::ReceiveErrors { more: 6 });
        assert_eq!(outcome(Fake { errors, ..Fake::default() }), (reason, vec!["open", "close", "close"]));
        // Neighbours that have disappeared do not come back when it closes.
        let answers = vec![(2, 0), silent, silent, silent];
        assert_eq!(outcome(Fake { answers, ..Fake::default() }), (None, vec!["open", "close", "close", "open"]));
        // A link that was taken down is no reason either.
        assert_eq!(outcome(Fake { is_down: true, ..Fake::default() }), (None, vec!["open"]));
        // Without known neighbours, none are asked.
        assert_eq!(outcome(Fake { answers: vec![(0, 0)], ..Fake::default() }), (None, vec!["open"]));
    }
}
