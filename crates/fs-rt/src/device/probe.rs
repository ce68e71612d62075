//! Checks whether a device still works with a program and sockets on it. A driver resets its queues
//! for them, and not every queue works again afterwards. Such a device is deaf for the kernel too,
//! and the host is off the network.

#[cfg(test)]
mod tests;

use crate::netlink::{Known, Netlink};
use fs_xdp::{NetDevice, UmemPool, XdpLink};
use std::io;
use std::time::{Duration, Instant};

/// Limit for a card's link negotiation: cards for 10 Gb/s and more take up to 5 s.
const LINK_WAIT: Duration = Duration::from_secs(10);
/// Limit for a driver to take its first chunks. Most take them within the call that binds.
const CHUNKS_WAIT: Duration = Duration::from_secs(1);
/// Neighbours to ask per family. Their replies arrive through as many queues, if the card
/// distributes them. More: questions to a whole network at once.
const ASKED_MOST: usize = 8;
/// Limit for a neighbour's reply before the program is attached. A slower neighbour counts as
/// silent.
const ANSWER_BEFORE: Duration = Duration::from_millis(300);
/// Limit afterwards: the kernel asks three times, once per second (`ucast_solicit`,
/// `retrans_time`).
const ANSWER_AFTER: Duration = Duration::from_secs(4);
/// How often such a neighbour is asked afterwards, because its host may be busy. If the card took
/// its link down, a switch may forward nothing to the port for 30 s (IEEE 802.1D, twice the forward
/// delay), and the neighbour is asked until after that time.
const ANSWER_TRIES: usize = 2;
const ANSWER_TRIES_OF_A_NEW_LINK: usize = 10;
/// Errors count if they increase at this many checks, a second apart. Errors of a link that has
/// just come up are ignored.
const ERROR_LOOKS: usize = 3;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);
const LOOK_AT_LINK: Duration = Duration::from_millis(50);

/// The reason why a binding is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    LinkDown,
    NoChunks { queue: usize },
    ReceiveErrors { more: u64 },
    Deaf,
}

impl Reason {
    /// Returns its name in counters.
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

/// The interface to a device and its bound queues.
pub(crate) trait Probed {
    /// Returns true if it is up and has a carrier.
    fn has_link(&mut self) -> io::Result<bool>;
    /// Returns how often its carrier has changed.
    fn carrier_changes(&mut self) -> io::Result<u32>;
    /// Returns how many packets the card has received with errors.
    fn receive_errors(&mut self) -> io::Result<u64>;
    /// Makes the kernel ask known neighbours, and counts the replies in time. The first call
    /// selects the neighbours that reply; later calls ask these.
    fn ask_neighbours(&mut self, within: Duration) -> io::Result<Answers>;
    /// Returns the first zero-copy queue whose driver still wants a wake-up after one. It may have
    /// no chunks. But it may also only have fewer than its ring could hold (ice), or always want a
    /// wake-up when idle (ena), so this alone proves nothing.
    fn queue_without_chunks(&mut self) -> Option<usize>;
    /// Returns true if a queue is in zero-copy mode.
    fn without_copies(&mut self) -> bool;
    /// Time passes.
    fn wait(&mut self, time: Duration);
}

/// Replies of neighbours. A neighbour that the kernel has forgotten is in neither count.
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

    /// Returns true if at least one neighbour replied.
    pub(crate) fn are_some_given(self) -> bool {
        self.given > 0
    }
}

/// The state before the program was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    link: bool,
    /// Number of neighbours that replied.
    answers: usize,
    carrier_changes: u32,
}

impl Before {
    pub(crate) fn of(device: &mut impl Probed) -> io::Result<Before> {
        let link = device.has_link()?;
        let answers = if link { device.ask_neighbours(ANSWER_BEFORE)?.given } else { 0 };
        Ok(Before { link, answers, carrier_changes: device.carrier_changes()? })
    }

    /// Returns true if at least one neighbour replied.
    pub(crate) fn has_answers(self) -> bool {
        self.answers > 0
    }
}

/// Checks the binding. Properties that cannot be seen count as good.
pub(crate) fn check(before: Before, device: &mut impl Probed) -> io::Result<Result<(), Reason>> {
    if !before.link {
        // While its card is down, a driver may take no chunks.
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
        // The carrier may also go down now. One reply proves the link, and each queue then
        // receives.
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
            // Some neighbours reply through a working queue, and others through a queue without
            // chunks.
            (_, Some(queue)) => return Ok(Err(Reason::NoChunks { queue })),
            (Answers { given: 0, .. }, None) => return Ok(Err(Reason::Deaf)),
            // A neighbour may have disappeared at this moment, which is not the device's fault.
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
    // With copies the driver owns the card's buffers, and errors come from the wire.
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

/// A device of this host, and its state before the program was attached.
pub(crate) struct Host {
    netlink: Netlink,
    name: String,
    index: u32,
    /// The neighbours to ask, after the first round.
    neighbours: Option<Vec<Known>>,
    before: Before,
}

impl Host {
    /// Records the device's state. Returns `None` and logs it if the kernel does not report it.
    pub(crate) fn of(device: &NetDevice) -> Option<Host> {
        let read = || {
            let mut host = Host::new(device)?;
            let before = Before::of(&mut host.alone())?;
            host.before = before;
            Ok(host)
        };
        read().inspect_err(|error| cannot(&device.name, error)).ok()
    }

    /// Before any look.
    pub(crate) fn new(device: &NetDevice) -> io::Result<Host> {
        let before = Before { link: false, answers: 0, carrier_changes: 0 };
        let (name, index, netlink) = (device.name.clone(), device.index, Netlink::open([])?);
        Ok(Host { netlink, name, index, neighbours: None, before })
    }

    /// Returns the interface for checks without queues.
    pub(crate) fn alone(&mut self) -> impl Probed {
        Bound { host: self, queues: &mut [] }
    }

    /// Returns what does not work with these queues.
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

/// The device with its queues.
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
            // Link addresses may have changed since, or another program may have set them.
            Some(known) => still_asked(known, &all),
        };
        for known in &asked {
            netlink.probe_neighbour(*index, known)?;
        }
        let mut answered = Vec::new();
        let start = Instant::now();
        let mut is_over = false;
        while !asked.is_empty() && !is_over {
            std::thread::sleep(LOOK);
            // Before the look: this thread may have been stopped, and the answers are there.
            is_over = start.elapsed() >= within;
            // A neighbour that is not listed: the kernel has given up and dropped its link address.
            // The next round tries again.
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

/// Chooses which of the kernel's neighbours to ask: first those that replied recently.
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

/// Returns the neighbours that replied before, as the kernel knows them now: those that may be
/// asked, and those it has forgotten, which are asked too.
fn still_asked(known: &[Known], all: &[Known]) -> Vec<Known> {
    let now = |known: &Known| match all.iter().find(|now| now.addr == known.addr) {
        Some(now) => now.may_be_asked.then(|| now.clone()),
        None => Some(known.clone()),
    };
    known.iter().filter_map(now).collect()
}

/// Closes queues whose binding is given up.
pub(crate) fn close(queues: Vec<(usize, XdpLink)>, pools: &mut [UmemPool]) {
    for (core, link) in queues {
        fs_xdp::Link::close(Box::new(link), &mut pools[core]);
    }
}
