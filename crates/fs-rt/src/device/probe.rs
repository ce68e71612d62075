//! Whether a device still works once a program and sockets are on it. A driver resets its queues for them, and not every one
//! comes back from that: such a device is deaf for the kernel too, and the host is off the network.

use crate::netlink::{Known, Netlink};
use fs_xdp::{NetDevice, UmemPool, XdpLink};
use std::io;
use std::time::{Duration, Instant};

/// How long a card may negotiate its link anew: those for 10 Gb/s and more take up to 5 s.
const LINK_WAIT: Duration = Duration::from_secs(10);
/// How long a driver may take for its first chunks. Those that do it in the call that binds need none of it.
const CHUNKS_WAIT: Duration = Duration::from_secs(1);
/// Neighbours that are asked of each family: their answers come by as many queues, as far as the card spreads what they send. More:
/// questions to a whole network at once.
const ASKED_MOST: usize = 8;
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
            Reason::LinkDown => write!(f, "its link did not come up again within {} s", LINK_WAIT.as_secs()),
            Reason::NoChunks { queue } => write!(f, "the driver takes no receive chunks on queue {queue}"),
            Reason::ReceiveErrors { more } => write!(f, "{more} more packets were received with errors"),
            Reason::Deaf => write!(f, "no neighbour answers any more, and some answered the kernel before"),
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
    /// Has the kernel ask neighbours that it knows there, and counts who has answered in time. The first time those are chosen who are
    /// asked from then on: the ones that answer.
    fn ask_neighbours(&mut self, within: Duration) -> io::Result<Answers>;
    /// Of the queues without copies: the first one whose driver wants to be woken although it was. It may have no chunks; or it has
    /// less than its ring could hold (ice), or wants to be woken whenever it is idle (ena), so that alone this says nothing.
    fn queue_without_chunks(&mut self) -> Option<usize>;
    /// A queue is without copies.
    fn without_copies(&mut self) -> bool;
    /// Time passes.
    fn wait(&mut self, time: Duration);
}

/// Of neighbours that were asked. One that the kernel does not know any more is in neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    given: usize,
    missing: usize,
}

impl Answers {
    #[cfg(test)]
    pub(crate) fn of(given: usize, missing: usize) -> Self {
        Self { given, missing }
    }

    /// Not all of those who were asked are silent.
    pub(crate) fn are_some_given(self) -> bool {
        self.given > 0
    }
}

/// What was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    link: bool,
    /// Neighbours that answered.
    answers: usize,
    carrier_changes: u32,
}

impl Before {
    pub(crate) fn look(device: &mut impl Probed) -> io::Result<Before> {
        let link = device.has_link()?;
        let answers = if link { device.ask_neighbours(ANSWER_BEFORE)?.given } else { 0 };
        Ok(Before { link, answers, carrier_changes: device.carrier_changes()? })
    }

    /// Some neighbour has answered.
    pub(crate) fn has_answers(self) -> bool {
        self.answers > 0
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
    if before.answers > 0 {
        let (mut answers, mut tries) = (Answers { given: 0, missing: before.answers }, 0);
        // The carrier may go only now, too. Where one answers, the link leads to all, and each queue receives.
        while answers.missing > 0
            && (answers.given == 0 || without_chunks.is_some())
            && tries < tries_of(answers.given == 0 && device.carrier_changes()? != before.carrier_changes)
        {
            if !comes_up(device)? {
                return Ok(Err(Reason::LinkDown));
            }
            answers = device.ask_neighbours(ANSWER_AFTER)?;
            tries += 1;
        }
        match (answers, without_chunks) {
            (Answers { missing: 0, .. }, _) => {}
            // Some answer by a queue that receives, and others by one that does not.
            (_, Some(queue)) => return Ok(Err(Reason::NoChunks { queue })),
            (Answers { given: 0, .. }, None) => return Ok(Err(Reason::Deaf)),
            // Whoever has gone in this moment is not the device's fault.
            (Answers { given, missing }, None) => {
                tracing::warn!(
                    given,
                    missing,
                    "some neighbours that answered the kernel before do not answer any \
                                                more"
                );
            }
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
    /// Who is asked, once it is known who answers.
    neighbours: Option<Vec<Known>>,
    before: Before,
}

impl Host {
    /// Looks at it. `None`, which the log says, where the kernel tells nothing.
    pub(crate) fn look(device: &NetDevice) -> Option<Host> {
        let look = || {
            let mut host = Host::new(device)?;
            let before = Before::look(&mut host.alone())?;
            host.before = before;
            Ok(host)
        };
        look().inspect_err(|error| cannot(&device.name, error)).ok()
    }

    /// Before any look.
    pub(crate) fn new(device: &NetDevice) -> io::Result<Host> {
        let before = Before { link: false, answers: 0, carrier_changes: 0 };
        let (name, index, netlink) = (device.name.clone(), device.index, Netlink::open([])?);
        Ok(Host { netlink, name, index, neighbours: None, before })
    }

    /// To ask about it, without queues.
    pub(crate) fn alone(&mut self) -> impl Probed {
        Bound { host: self, queues: &mut [] }
    }

    /// What does not work with these queues on it.
    pub(crate) fn what_is_wrong(&mut self, queues: &mut [(usize, XdpLink)]) -> Option<Reason> {
        let before = self.before;
        match check(before, &mut Bound { host: self, queues }) {
            Ok(held) => {
                tracing::debug!(device = self.name, ?before, ?held, "checked the device after binding");
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
    tracing::warn!(device, %error, "cannot check whether the device works with the XDP program");
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

    fn ask_neighbours(&mut self, within: Duration) -> io::Result<Answers> {
        let Host { netlink, index, neighbours, .. } = &mut *self.host;
        let all = netlink.neighbours_of(*index)?;
        let mut asked = match neighbours {
            None => chosen(all),
            // Link addresses may be others since, or somebody else's word.
            Some(known) => still_asked(known, &all),
        };
        for known in &asked {
            netlink.probe_neighbour(*index, known)?;
        }
        let mut answered = Vec::new();
        let start = Instant::now();
        while !asked.is_empty() && start.elapsed() < within {
            std::thread::sleep(LOOK);
            // One that is not in it: the kernel has given it up, and its link address with it; another try comes at its time.
            let all = netlink.neighbours_of(*index)?;
            let has_answered = |known: &mut Known| all.iter().any(|now| now.addr == known.addr && now.has_answered);
            answered.extend(asked.extract_if(.., has_answered));
        }
        let answers = Answers { given: answered.len(), missing: asked.len() };
        neighbours.get_or_insert(answered);
        Ok(answers)
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

/// Whom to ask of the neighbours that the kernel knows: first those that have just answered.
fn chosen(all: Vec<Known>) -> Vec<Known> {
    let mut all: Vec<Known> = all.into_iter().filter(|known| known.may_be_asked).collect();
    all.sort_by_key(|known| !known.has_answered);
    let mut left = [ASKED_MOST; 2];
    all.retain(|known| {
        let left = &mut left[usize::from(known.addr.is_ipv6())];
        let takes = *left > 0;
        *left -= usize::from(takes);
        takes
    });
    all
}

/// Of those who answered before, as the kernel knows them now: who may be asked, and who has been forgotten and is asked all the same.
fn still_asked(known: &[Known], all: &[Known]) -> Vec<Known> {
    let now = |known: &Known| match all.iter().find(|now| now.addr == known.addr) {
        Some(now) => now.may_be_asked.then(|| now.clone()),
        None => Some(known.clone()),
    };
    known.iter().filter_map(now).collect()
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
        /// How many neighbours answer, and how many do not, each time that they are asked.
        answers: Vec<(usize, usize)>,
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

        fn ask_neighbours(&mut self, within: Duration) -> io::Result<Answers> {
            self.asked += 1;
            let (given, missing) = self.answers.get(self.asked - 1).copied().unwrap_or((3, 0));
            if missing > 0 {
                self.wait(within);
            }
            Ok(Answers { given, missing })
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

    const BEFORE: Before = Before { link: true, answers: 3, carrier_changes: 0 };
    /// None of the neighbours answers.
    const SILENT: (usize, usize) = (0, 3);
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
        assert_eq!(held(Fake { answers: vec![SILENT, (3, 0)], ..Fake::default() }), Ok(()));
        assert_eq!(held(Fake { answers: vec![SILENT, (0, 0)], ..Fake::default() }), Ok(()));
        // One of several may go at this moment. On a link that was away it is not waited for as if nothing were led by it.
        let mut one_goes = Fake { answers: vec![(2, 1); 10], has_new_link: true, ..Fake::default() };
        assert_eq!(check(BEFORE, &mut one_goes).unwrap(), Ok(()));
        assert_eq!(one_goes.asked, 1);
        assert_eq!(held(Fake { errors: vec![7, 7], ..Fake::default() }), Ok(()), "errors of before");
        assert_eq!(held(Fake { errors: vec![7, 9, 9], ..Fake::default() }), Ok(()), "errors of a new link");
        // A switch that waits before it leads anything by a port whose link is new.
        let answers = [vec![SILENT; 8], vec![(3, 0)]].concat();
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
        let silent = vec![SILENT; 2];
        let dead = Fake { chunks_after: chunks_after.clone(), answers: silent.clone(), ..Fake::default() };
        assert_eq!(held(dead), Err(Reason::NoChunks { queue: 2 }));
        // The others' come by queues that have some.
        let half = Fake { chunks_after, answers: vec![(2, 1); 2], ..Fake::default() };
        assert_eq!(held(half), Err(Reason::NoChunks { queue: 2 }));
        assert_eq!(held(Fake { answers: silent, ..Fake::default() }), Err(Reason::Deaf));
        let silent = vec![SILENT; 10];
        assert_eq!(held(Fake { answers: silent, has_new_link: true, ..Fake::default() }), Err(Reason::Deaf));
        let errors = vec![7, 9, 12, 13];
        assert_eq!(held(Fake { errors, ..Fake::default() }), Err(Reason::ReceiveErrors { more: 6 }));
    }

    #[test]
    fn what_was_not_there_before_is_not_missed() {
        let down = Before::look(&mut Fake { link_after: NEVER, ..Fake::default() }).unwrap();
        assert_eq!(down, Before { link: false, answers: 0, carrier_changes: 0 });
        assert_eq!(check(down, &mut Fake { link_after: NEVER, ..Fake::default() }).unwrap(), Ok(()));
        for answer in [SILENT, (0, 0)] {
            let silent = Fake { answers: vec![answer; 3], ..Fake::default() };
            let before = Before::look(&mut silent.clone()).unwrap();
            assert_eq!(before, Before { link: true, answers: 0, carrier_changes: 0 });
            assert_eq!(check(before, &mut silent.clone()).unwrap(), Ok(()));
        }
        assert_eq!(Before::look(&mut Fake::default()).unwrap(), BEFORE);
    }

    fn known(addr: &str, may_be_asked: bool, has_answered: bool) -> Known {
        Known::at(addr.parse().unwrap(), may_be_asked, has_answered)
    }

    #[test]
    fn several_of_each_family_are_asked_first_those_that_have_just_answered() {
        let far = (0..20).map(|n| known(&format!("10.0.0.{n}"), true, n == 19));
        let all: Vec<Known> = far.chain([known("fe80::1", true, false), known("10.0.1.1", false, true)]).collect();
        let asked = chosen(all.clone());
        let expected =
            ["10.0.0.19", "10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
        let (v4, v6): (Vec<_>, Vec<_>) =
            asked.iter().map(|known| known.addr.to_string()).partition(|at| !at.contains(':'));
        assert_eq!((v4, v6), (expected.map(String::from).to_vec(), vec!["fe80::1".to_owned()]));
        // One that another program has taken over is not asked again, one that was forgotten is.
        let taken = known("10.0.0.0", false, true);
        let again = still_asked(&asked[..3], &[all[19].clone(), taken]);
        assert_eq!(again.iter().map(|known| known.addr.to_string()).collect::<Vec<_>>(), ["10.0.0.19", "10.0.0.1"]);
    }
}
