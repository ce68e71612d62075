//! Whether a device still works once a program and sockets are on it. A driver resets its queues for them, and not every one
//! comes back from that: such a device is deaf for the kernel too, and the host is off the network.

use crate::control::netlink::{Known, Netlink};
use fs_xdp::{NetDevice, UmemPool, XdpLink};
use std::io;
use std::time::{Duration, Instant};

/// How long a card may negotiate its link anew: those for 10 Gb/s and more take up to 5 s.
const LINK_WAIT: Duration = Duration::from_secs(10);
/// How long a driver may take for its first chunks. Those that do it in the call that binds need none of it.
const CHUNKS_WAIT: Duration = Duration::from_secs(1);
/// How long a neighbour may take that answers before anything is on the device; one that is slower says nothing.
const ANSWER_BEFORE: Duration = Duration::from_millis(300);
/// How long it may take afterwards: the kernel asks three times, once a second (`ucast_solicit`, `retrans_time`).
const ANSWER_AFTER: Duration = Duration::from_secs(4);
/// How often such a neighbour is asked afterwards; its own host may be busy.
const ANSWER_TRIES: usize = 2;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// Why a binding does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    LinkDown,
    NoChunks { queue: usize },
    ReceiveErrors { more: u64 },
    Deaf,
}

impl Reason {
    /// As counters have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Reason::LinkDown => "link_down",
            Reason::NoChunks { .. } => "no_chunks",
            Reason::ReceiveErrors { .. } => "receive_errors",
            Reason::Deaf => "deaf",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::LinkDown => write!(f, "its link has not come up again within {} s", LINK_WAIT.as_secs()),
            Reason::NoChunks { queue } => write!(f, "the driver takes no chunks to receive into on queue {queue}"),
            Reason::ReceiveErrors { more } => write!(f, "{more} packets were received with errors since"),
            Reason::Deaf => write!(f, "a neighbour that answered the kernel before does not any more"),
        }
    }
}

/// What is asked about a device, and the queues that were bound.
pub(crate) trait Probed {
    /// It is up, and has a carrier.
    fn has_link(&mut self) -> io::Result<bool>;
    /// Packets that the card has received with errors.
    fn receive_errors(&mut self) -> io::Result<u64>;
    /// Has the kernel ask one of the neighbours that it knows there, always the same one: whether that has answered in time. `None`:
    /// it knows none.
    fn neighbour_answers(&mut self, within: Duration) -> io::Result<Option<bool>>;
    /// Of the queues without copies: the first one for which the driver has taken no chunks.
    fn queue_without_chunks(&mut self) -> Option<usize>;
    /// A queue is without copies.
    fn without_copies(&mut self) -> bool;
    /// Time passes.
    fn wait(&mut self, time: Duration);
}

/// What was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    link: bool,
    answers: bool,
}

impl Before {
    pub(crate) fn look(device: &mut impl Probed) -> io::Result<Before> {
        let link = device.has_link()?;
        let answers = link && device.neighbour_answers(ANSWER_BEFORE)? == Some(true);
        Ok(Before { link, answers })
    }
}

/// Whether the binding holds; `Ok` with what could not be seen counted as good.
pub(crate) fn check(before: Before, device: &mut impl Probed) -> io::Result<Result<(), Reason>> {
    if !before.link {
        // A driver may take nothing while its card is down.
        return Ok(Ok(()));
    }
    let mut waited = Duration::ZERO;
    while !device.has_link()? {
        if waited >= LINK_WAIT {
            return Ok(Err(Reason::LinkDown));
        }
        device.wait(LOOK);
        waited += LOOK;
    }
    let errors = device.receive_errors()?;
    let mut waited = Duration::ZERO;
    while let Some(queue) = device.queue_without_chunks() {
        if waited >= CHUNKS_WAIT {
            return Ok(Err(Reason::NoChunks { queue }));
        }
        device.wait(LOOK);
        waited += LOOK;
    }
    let mut answers = !before.answers;
    for _ in 0..ANSWER_TRIES {
        // One that is not known any more says nothing.
        answers = answers || device.neighbour_answers(ANSWER_AFTER)? != Some(false);
    }
    if !answers {
        return Ok(Err(Reason::Deaf));
    }
    let more = device.receive_errors()?.saturating_sub(errors);
    // With copies the card's buffers are the driver's own, and errors the wire's.
    Ok(if more > 0 && device.without_copies() { Err(Reason::ReceiveErrors { more }) } else { Ok(()) })
}

/// A device of this host, and how it was before anything of ours was on it.
pub(crate) struct Host {
    netlink: Netlink,
    name: String,
    index: u32,
    /// Who is asked.
    neighbour: Option<Known>,
    before: Before,
}

impl Host {
    /// Looks at it. `None`, which the log says, where the kernel tells nothing.
    pub(crate) fn look(device: &NetDevice) -> Option<Host> {
        let look = || {
            let before = Before { link: false, answers: false };
            let (name, index, netlink) = (device.name.clone(), device.index, Netlink::open([])?);
            let mut host = Host { netlink, name, index, neighbour: None, before };
            host.before = Before::look(&mut Bound { host: &mut host, queues: &mut [] })?;
            Ok(host)
        };
        look().inspect_err(|error| cannot(&device.name, error)).ok()
    }

    /// What does not work with these queues on it.
    pub(crate) fn what_is_wrong(&mut self, queues: &mut [(usize, XdpLink)]) -> Option<Reason> {
        let before = self.before;
        match check(before, &mut Bound { host: self, queues }) {
            Ok(held) => {
                tracing::debug!(device = self.name, ?before, ?held, "looked whether the device still works");
                held.err()
            }
            Err(error) => {
                cannot(&self.name, &error);
                None
            }
        }
    }
}

fn cannot(device: &str, error: &io::Error) {
    tracing::warn!(device, %error, "cannot see whether the device works with our program on it");
}

/// With queues on it.
struct Bound<'a> {
    host: &'a mut Host,
    queues: &'a mut [(usize, XdpLink)],
}

impl Probed for Bound<'_> {
    fn has_link(&mut self) -> io::Result<bool> {
        Ok(self.host.netlink.link(self.host.index)?.is_some_and(|link| link.has_carrier))
    }

    fn receive_errors(&mut self) -> io::Result<u64> {
        Ok(self.host.netlink.link(self.host.index)?.map_or(0, |link| link.receive_errors))
    }

    fn neighbour_answers(&mut self, within: Duration) -> io::Result<Option<bool>> {
        let Host { netlink, index, neighbour, .. } = &mut *self.host;
        if neighbour.is_none() {
            *neighbour = netlink.neighbours_of(*index)?.into_iter().find(|known| known.may_be_asked);
        }
        let Some(known) = neighbour else { return Ok(None) };
        netlink.probe_neighbour(*index, known)?;
        let start = Instant::now();
        loop {
            let all = netlink.neighbours_of(*index)?;
            // The kernel has given it up, and its link address with it.
            let Some(now) = all.iter().find(|now| now.addr == known.addr) else { return Ok(Some(false)) };
            if now.has_answered || start.elapsed() >= within {
                return Ok(Some(now.has_answered));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn queue_without_chunks(&mut self) -> Option<usize> {
        self.queues.iter_mut().position(|(_, queue)| !queue.has_chunks())
    }

    fn without_copies(&mut self) -> bool {
        self.queues.iter().any(|(_, queue)| queue.is_zero_copy())
    }

    fn wait(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Closes queues whose binding does not hold.
pub(crate) fn close(queues: Vec<(usize, XdpLink)>, pools: &mut [UmemPool]) {
    for (core, link) in queues {
        fs_xdp::Link::close(Box::new(link), &mut pools[core]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that does what it is told to.
    #[derive(Clone, Default)]
    struct Fake {
        /// When it has its link again.
        link_after: Duration,
        /// Its queues take their chunks after so long.
        chunks_after: Vec<Duration>,
        /// What a neighbour does, each time that it is asked.
        answers: Vec<Option<bool>>,
        /// Errors at each look.
        errors: Vec<u64>,
        copies: bool,
        waited: Duration,
        asked: usize,
        looks: usize,
    }

    impl Probed for Fake {
        fn has_link(&mut self) -> io::Result<bool> {
            Ok(self.waited >= self.link_after)
        }

        fn receive_errors(&mut self) -> io::Result<u64> {
            self.looks += 1;
            Ok(self.errors.get(self.looks - 1).copied().unwrap_or(0))
        }

        fn neighbour_answers(&mut self, within: Duration) -> io::Result<Option<bool>> {
            self.asked += 1;
            let answer = self.answers.get(self.asked - 1).copied().unwrap_or(Some(true));
            if answer == Some(false) {
                self.wait(within);
            }
            Ok(answer)
        }

        fn queue_without_chunks(&mut self) -> Option<usize> {
            self.chunks_after.iter().position(|after| self.waited < *after)
        }

        fn without_copies(&mut self) -> bool {
            !self.copies
        }

        fn wait(&mut self, time: Duration) {
            self.waited += time;
        }
    }

    const BEFORE: Before = Before { link: true, answers: true };
    const NEVER: Duration = Duration::MAX;

    fn held(mut device: Fake) -> Result<(), Reason> {
        check(BEFORE, &mut device).unwrap()
    }

    #[test]
    fn a_device_that_comes_back_is_kept() {
        let slow = Duration::from_secs(6);
        let chunks = vec![Duration::ZERO, slow + Duration::from_millis(500)];
        let device = Fake { link_after: slow, chunks_after: chunks, ..Fake::default() };
        assert_eq!(held(device), Ok(()));
        // A neighbour may miss one question, and be forgotten.
        assert_eq!(held(Fake { answers: vec![Some(false), Some(true)], ..Fake::default() }), Ok(()));
        assert_eq!(held(Fake { answers: vec![Some(false), None], ..Fake::default() }), Ok(()));
        assert_eq!(held(Fake { errors: vec![7, 7], ..Fake::default() }), Ok(()), "errors of before");
        assert_eq!(held(Fake { errors: vec![7, 8], copies: true, ..Fake::default() }), Ok(()), "the wire's");
    }

    #[test]
    fn one_that_does_not_is_not() {
        assert_eq!(held(Fake { link_after: NEVER, ..Fake::default() }), Err(Reason::LinkDown));
        // One dead queue of four: the others' packets say nothing of it.
        let mut chunks_after = vec![Duration::ZERO; 4];
        chunks_after[2] = NEVER;
        assert_eq!(held(Fake { chunks_after, ..Fake::default() }), Err(Reason::NoChunks { queue: 2 }));
        assert_eq!(held(Fake { answers: vec![Some(false); 2], ..Fake::default() }), Err(Reason::Deaf));
        assert_eq!(held(Fake { errors: vec![7, 9], ..Fake::default() }), Err(Reason::ReceiveErrors { more: 2 }));
    }

    #[test]
    fn what_was_not_there_before_is_not_missed() {
        let down = Before::look(&mut Fake { link_after: NEVER, ..Fake::default() }).unwrap();
        assert_eq!(down, Before { link: false, answers: false });
        assert_eq!(check(down, &mut Fake { link_after: NEVER, ..Fake::default() }).unwrap(), Ok(()));
        for answer in [Some(false), None] {
            let silent = Fake { answers: vec![answer; 3], ..Fake::default() };
            let before = Before::look(&mut silent.clone()).unwrap();
            assert_eq!(before, Before { link: true, answers: false });
            assert_eq!(check(before, &mut silent.clone()).unwrap(), Ok(()));
        }
        assert_eq!(Before::look(&mut Fake::default()).unwrap(), BEFORE);
    }
}
