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
/// How often such a neighbour is asked afterwards; its own host may be busy. Where the card has taken its link down for a moment a
/// switch may lead nothing by that port for 30 s (IEEE 802.1D, twice the forward delay), and it is asked until after that.
const ANSWER_TRIES: usize = 2;
const ANSWER_TRIES_OF_A_NEW_LINK: usize = 10;
/// Errors count if they are more at each of so many looks, a second apart: those of a link that was just made pass.
const ERROR_LOOKS: usize = 3;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);
const LOOK_AT_LINK: Duration = Duration::from_millis(50);

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
    /// How often its carrier has come or gone.
    fn carrier_changes(&mut self) -> io::Result<u32>;
    /// Packets that the card has received with errors.
    fn receive_errors(&mut self) -> io::Result<u64>;
    /// Has the kernel ask one of the neighbours that it knows there, always the same one: whether that has answered in time. `None`:
    /// it knows none.
    fn neighbour_answers(&mut self, within: Duration) -> io::Result<Option<bool>>;
    /// Of the queues without copies: the first one whose driver wants to be woken although it was. It may have no chunks; or it has
    /// less than its ring could hold (ice), or wants to be woken whenever it is idle (ena), so that alone this says nothing.
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
    carrier_changes: u32,
}

impl Before {
    pub(crate) fn look(device: &mut impl Probed) -> io::Result<Before> {
        let link = device.has_link()?;
        let answers = link && device.neighbour_answers(ANSWER_BEFORE)? == Some(true);
        Ok(Before { link, answers, carrier_changes: device.carrier_changes()? })
    }
}

/// Whether the binding holds; `Ok` with what could not be seen counted as good.
pub(crate) fn check(before: Before, device: &mut impl Probed) -> io::Result<Result<(), Reason>> {
    if !before.link {
        // A driver may take nothing while its card is down.
        return Ok(Ok(()));
    }
    if !comes_up(device)? {
        return Ok(Err(Reason::LinkDown));
    }
    let mut errors = device.receive_errors()?;
    let mut waited = Duration::ZERO;
    let without_chunks = loop {
        let queue = device.queue_without_chunks();
        if queue.is_none() || waited >= CHUNKS_WAIT {
            break queue;
        }
        device.wait(LOOK);
        waited += LOOK;
    };
    if before.answers {
        let (mut answers, mut tries) = (false, 0);
        // The carrier may go only now, too.
        while !answers && tries < tries_of(device.carrier_changes()? != before.carrier_changes) {
            if !comes_up(device)? {
                return Ok(Err(Reason::LinkDown));
            }
            // One that is not known any more says nothing.
            answers = device.neighbour_answers(ANSWER_AFTER)? != Some(false);
            tries += 1;
        }
        if !answers {
            return Ok(Err(without_chunks.map_or(Reason::Deaf, |queue| Reason::NoChunks { queue })));
        }
    }
    // With copies the card's buffers are the driver's own, and errors the wire's.
    if !device.without_copies() {
        return Ok(Ok(()));
    }
    let first = errors;
    for look in 0..ERROR_LOOKS {
        let now = device.receive_errors()?;
        if now <= errors {
            return Ok(Ok(()));
        }
        errors = now;
        if look + 1 < ERROR_LOOKS {
            device.wait(Duration::from_secs(1));
        }
    }
    Ok(Err(Reason::ReceiveErrors { more: errors - first }))
}

fn tries_of(is_new_link: bool) -> usize {
    if is_new_link { ANSWER_TRIES_OF_A_NEW_LINK } else { ANSWER_TRIES }
}

/// Waits for the link.
fn comes_up(device: &mut impl Probed) -> io::Result<bool> {
    let mut waited = Duration::ZERO;
    while !device.has_link()? {
        if waited >= LINK_WAIT {
            return Ok(false);
        }
        device.wait(LOOK_AT_LINK);
        waited += LOOK_AT_LINK;
    }
    Ok(true)
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
            let before = Before { link: false, answers: false, carrier_changes: 0 };
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

    fn carrier_changes(&mut self) -> io::Result<u32> {
        Ok(self.host.netlink.link(self.host.index)?.map_or(0, |link| link.carrier_changes))
    }

    fn receive_errors(&mut self) -> io::Result<u64> {
        Ok(self.host.netlink.link(self.host.index)?.map_or(0, |link| link.receive_errors))
    }

    fn neighbour_answers(&mut self, within: Duration) -> io::Result<Option<bool>> {
        let Host { netlink, index, neighbour, .. } = &mut *self.host;
        let all = netlink.neighbours_of(*index)?;
        match neighbour {
            None => {
                let mut asked: Vec<Known> = all.into_iter().filter(|known| known.may_be_asked).collect();
                asked.sort_by_key(|known| !known.has_answered);
                *neighbour = asked.into_iter().next();
            }
            // Its link address may be another one since, or somebody else's word.
            Some(known) => match all.into_iter().find(|now| now.addr == known.addr) {
                Some(now) if !now.may_be_asked => return Ok(None),
                Some(now) => *known = now,
                None => {}
            },
        }
        let Some(known) = neighbour else { return Ok(None) };
        netlink.probe_neighbour(*index, known)?;
        let start = Instant::now();
        while start.elapsed() < within {
            std::thread::sleep(LOOK);
            // None: the kernel has given it up, and its link address with it; another try comes at its time.
            let all = netlink.neighbours_of(*index)?;
            if all.iter().any(|now| now.addr == known.addr && now.has_answered) {
                return Ok(Some(true));
            }
        }
        Ok(Some(false))
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
        /// Its carrier was away for a moment.
        has_new_link: bool,
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

        fn carrier_changes(&mut self) -> io::Result<u32> {
            Ok(if self.has_new_link { 2 } else { 0 })
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

    const BEFORE: Before = Before { link: true, answers: true, carrier_changes: 0 };
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
        assert_eq!(held(Fake { errors: vec![7, 9, 9], ..Fake::default() }), Ok(()), "errors of a new link");
        // A switch that waits before it leads anything by a port whose link is new.
        let answers = [vec![Some(false); 8], vec![Some(true)]].concat();
        assert_eq!(held(Fake { answers, has_new_link: true, ..Fake::default() }), Ok(()));
        // Drivers that want to be woken all the time: the neighbour hears and answers.
        assert_eq!(held(Fake { chunks_after: vec![Duration::ZERO, NEVER], ..Fake::default() }), Ok(()));
        assert_eq!(held(Fake { errors: vec![7, 8], copies: true, ..Fake::default() }), Ok(()), "the wire's");
    }

    #[test]
    fn one_that_does_not_is_not() {
        assert_eq!(held(Fake { link_after: NEVER, ..Fake::default() }), Err(Reason::LinkDown));
        // A queue without chunks, by which the answer would come.
        let mut chunks_after = vec![Duration::ZERO; 4];
        chunks_after[2] = NEVER;
        let silent = vec![Some(false); 2];
        let dead = Fake { chunks_after, answers: silent.clone(), ..Fake::default() };
        assert_eq!(held(dead), Err(Reason::NoChunks { queue: 2 }));
        assert_eq!(held(Fake { answers: silent, ..Fake::default() }), Err(Reason::Deaf));
        let silent = vec![Some(false); 10];
        assert_eq!(held(Fake { answers: silent, has_new_link: true, ..Fake::default() }), Err(Reason::Deaf));
        let errors = vec![7, 9, 12, 13];
        assert_eq!(held(Fake { errors, ..Fake::default() }), Err(Reason::ReceiveErrors { more: 6 }));
    }

    #[test]
    fn what_was_not_there_before_is_not_missed() {
        let down = Before::look(&mut Fake { link_after: NEVER, ..Fake::default() }).unwrap();
        assert_eq!(down, Before { link: false, answers: false, carrier_changes: 0 });
        assert_eq!(check(down, &mut Fake { link_after: NEVER, ..Fake::default() }).unwrap(), Ok(()));
        for answer in [Some(false), None] {
            let silent = Fake { answers: vec![answer; 3], ..Fake::default() };
            let before = Before::look(&mut silent.clone()).unwrap();
            assert_eq!(before, Before { link: true, answers: false, carrier_changes: 0 });
            assert_eq!(check(before, &mut silent.clone()).unwrap(), Ok(()));
        }
        assert_eq!(Before::look(&mut Fake::default()).unwrap(), BEFORE);
    }
}
