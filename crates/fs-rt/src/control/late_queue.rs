//! Queues that a device gets while the runtime runs (`ethtool -L`): where its queues are without copies the driver sets each new one up
//! for its socket, and whether the device works with it is looked at as at the start. A queue that it does not work with is closed again.

use crate::device::probe::{Answers, Before, Host, Probed, Reason, check};
use crate::shared::Shared;
use fs_core::IfaceId;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the queues' cores may take to open them: one that is short of frames tries again for as long as it is.
const OPEN_WAIT: Duration = Duration::from_secs(10);
/// How long neighbours may take to answer once the queues are closed.
const ANSWER_WAIT: Duration = Duration::from_secs(4);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// A device, and queues of it.
trait Late: Probed {
    /// Has the queues opened.
    fn open(&mut self);
    /// They are all open, or nobody will open them any more.
    fn are_open(&mut self) -> bool;
    /// Has the queues closed.
    fn close(&mut self);
}

/// Opens queues, and looks whether the device works with them. Why not: they are closed then.
fn open_and_check(device: &mut impl Late) -> io::Result<Option<Reason>> {
    let before = Before::look(device);
    device.open();
    let before = before?;
    let mut waited = Duration::ZERO;
    while !device.are_open() && waited < OPEN_WAIT {
        device.wait(LOOK);
        waited += LOOK;
    }
    // Whoever sets the number of queues may take the link down as well.
    let Err(reason @ (Reason::NoChunks { .. } | Reason::ReceiveErrors { .. } | Reason::Deaf)) = check(before, device)?
    else {
        return Ok(None);
    };
    device.close();
    // All neighbours may have gone at this moment: then it was not the queues.
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

impl Late for Opening {
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
        // The sockets are their cores'.
        None
    }

    fn without_copies(&mut self) -> bool {
        true
    }

    fn wait(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Has cores open the queues that devices have got. Queue q is served by core q mod cores, as at the start.
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

/// Opens queues that a device has got, on a thread of its own: the control thread answers for neighbours meanwhile.
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

    /// A device of whose neighbours so many answer and so many do not, each time that they are asked.
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

    impl Late for Fake {
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
    fn a_queue_that_makes_its_device_deaf_is_closed_again() {
        assert_eq!(outcome(Fake::default()), (None, vec!["open"]));
        let silent = (0, 2);
        let answers = vec![(2, 0), silent, silent, (2, 0)];
        assert_eq!(outcome(Fake { answers, ..Fake::default() }), (Some(Reason::Deaf), vec!["open", "close"]));
        let errors = vec![7, 9, 12, 13];
        let reason = Some(Reason::ReceiveErrors { more: 6 });
        assert_eq!(outcome(Fake { errors, ..Fake::default() }), (reason, vec!["open", "close"]));
        // Neighbours that have gone do not come back for it.
        let answers = vec![(2, 0), silent, silent, silent];
        assert_eq!(outcome(Fake { answers, ..Fake::default() }), (None, vec!["open", "close", "open"]));
        // Nor does anybody's link who takes it down.
        assert_eq!(outcome(Fake { is_down: true, ..Fake::default() }), (None, vec!["open"]));
        // Where nobody is known nothing is asked.
        assert_eq!(outcome(Fake { answers: vec![(0, 0)], ..Fake::default() }), (None, vec!["open"]));
    }
}
