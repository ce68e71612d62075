//! poll(2) and select(2): the application's own call, and the rings of the promoted sockets in its list.

use std::mem::ManuallyDrop;
use std::os::fd::RawFd;

use fs_carrier::kernel::Errno;
use fs_carrier::poll::{Ask, Poller, Watched};

use crate::descriptor::{self, Found};
use crate::object::{Body, Held};
use crate::process;
use crate::slot::{Slot, Visit};
use crate::sys::kernel::{Fd, ThisThread};

thread_local! {
    static POLLER: Poller = Poller::new(process::pacing());
}

/// The promoted sockets in the list of a call.
///
/// A thread that is cancelled leaves the references behind: the sockets stay the kernel's.
#[derive(Default)]
pub(crate) struct List {
    /// Promoted sockets of which bytes are wanted, each with its place in the caller's list.
    sockets: Short<(usize, Held)>,
    /// Watched sockets, which are not promoted during the wait.
    visits: Short<(&'static Slot, Visit)>,
    /// Sets with bytes in a ring.
    ready_sets: Vec<usize>,
    /// Descriptors in the list; poll(2) passes negative ones over.
    len: usize,
}

impl List {
    /// Adds a descriptor of the list. `wants_bytes`: the caller waits for bytes (POLLIN).
    pub(crate) fn add(&mut self, place: usize, fd: RawFd, wants_bytes: bool) {
        self.len += usize::from(fd >= 0);
        match descriptor::find(fd) {
            Found::Plain => {}
            Found::Watched(slot, visit) => self.visits.push((slot, visit)),
            Found::Object(held) => {
                match held.body() {
                    Body::Socket(socket) if wants_bytes && socket.has_ring(fd) => {
                        self.sockets.push((place, held));
                        return;
                    }
                    Body::Set(polled) => match polled.leave_to_kernel() {
                        true if wants_bytes => self.ready_sets.push(place),
                        true => {}
                        // The set reported bytes that were read since.
                        false => _ = polled.show_rest(fd),
                    },
                    Body::Socket(_) => {}
                }
                held.release();
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sockets.is_empty() && self.visits.is_empty() && self.ready_sets.is_empty()
    }

    /// Makes the entry of a promoted socket for a [`Poller`].
    fn watch(&self, i: usize) -> Watched<'static, Fd> {
        match self.sockets.get(i).and_then(|(_, held)| held.socket()) {
            Some(socket) => Watched::new(socket.pair()),
            None => unreachable!("only promoted sockets are in the list"),
        }
    }

    fn end(self) {
        for (_, held) in self.sockets.iter() {
            held.release();
        }
        for (slot, visit) in self.visits.iter() {
            slot.leave(*visit);
        }
    }
}

/// A list whose first entries cost no allocation.
struct Short<T> {
    first: [Option<T>; 4],
    len: usize,
    more: Vec<T>,
}

impl<T> Default for Short<T> {
    fn default() -> Self {
        Short { first: [const { None }; 4], len: 0, more: Vec::new() }
    }
}

impl<T> Short<T> {
    fn push(&mut self, entry: T) {
        match self.first.get_mut(self.len) {
            Some(place) => *place = Some(entry),
            None => self.more.push(entry),
        }
        self.len += 1;
    }

    fn get(&self, i: usize) -> Option<&T> {
        match self.first.get(i) {
            Some(entry) => entry.as_ref(),
            None => self.more.get(i - self.first.len()),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().flatten().chain(&self.more)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The application's arrays.
pub(crate) trait Arrays {
    /// Calls the kernel, which fills the arrays. Returns the number of descriptors with events.
    ///
    /// # Errors
    /// Those of the call.
    fn ask(&mut self, how: Ask) -> Result<usize, Errno>;

    /// Empties the arrays, as if the kernel had said that nothing has events.
    fn clear(&mut self);

    /// Returns true if the kernel has reported bytes or an end of a stream.
    fn is_readable(&self, place: usize) -> bool;

    /// Returns whether the caller waits for more than bytes at this place, such as room to send.
    fn wants_more(&self, place: usize) -> bool;

    /// The ring has bytes. Returns by how much the number of the call's result grows.
    fn set_readable(&mut self, place: usize) -> usize;
}

/// Waits as the application's call does. Returns `None` if the kernel alone handles the list, and
/// the caller makes the C library's call.
pub(crate) fn wait(list: List, arrays: &mut impl Arrays, timeout_ns: Option<u64>) -> Option<Result<usize, Errno>> {
    if list.is_empty() {
        return None;
    }
    let list = ManuallyDrop::new(list);
    arrays.clear();
    let (timeout_ns, how) =
        if list.ready_sets.is_empty() { (timeout_ns, Ask::Call(timeout_ns)) } else { (Some(0), Ask::AlsoReady) };
    let result = match list.sockets.len() {
        0 => arrays.ask(how).map(|n| set_ready(&list, arrays, n, &[])),
        1 => wait_for::<1>(&list, arrays, timeout_ns),
        2 => wait_for::<2>(&list, arrays, timeout_ns),
        3 => wait_for::<3>(&list, arrays, timeout_ns),
        4 => wait_for::<4>(&list, arrays, timeout_ns),
        _ => {
            let mut watched = ManuallyDrop::new((0..list.sockets.len()).map(|i| list.watch(i)).collect::<Vec<_>>());
            let result = wait_for_all(&list, arrays, timeout_ns, &mut watched);
            drop(ManuallyDrop::into_inner(watched));
            result
        }
    };
    ManuallyDrop::into_inner(list).end();
    Some(result)
}

/// The usual lists are short, and cost no allocation.
fn wait_for<const N: usize>(list: &List, arrays: &mut impl Arrays, timeout_ns: Option<u64>) -> Result<usize, Errno> {
    wait_for_all(list, arrays, timeout_ns, &mut std::array::from_fn::<_, N, _>(|i| list.watch(i)))
}

fn wait_for_all(
    list: &List,
    arrays: &mut impl Arrays,
    timeout_ns: Option<u64>,
    watched: &mut [Watched<'_, Fd>],
) -> Result<usize, Errno> {
    let n = POLLER.with(|poller| {
        poller.wait(&ThisThread, watched, timeout_ns, |how| {
            // Nested sets with events make the call ready too.
            let how = if list.ready_sets.is_empty() { how } else { Ask::AlsoReady };
            let n = arrays.ask(how)?;
            if n > 0 {
                report(list, arrays);
            }
            Ok(n)
        })
    })?;
    // A call reports all that is ready. Where the rings have something, the kernel may not have
    // been asked about the others. Of a connection whose peer has ended its stream, the kernel has
    // more to say than the ring.
    let is_whole = |watched: &&Watched<'_, Fd>| watched.is_ready() && !watched.has_end();
    let are_all_ready = ready(list, watched).filter(|place| !arrays.wants_more(*place)).count() == list.len
        && watched.iter().filter(is_whole).count() == watched.len();
    let n = if n > 0 || are_all_ready { n } else { arrays.ask(Ask::AlsoReady)? };
    Ok(set_ready(list, arrays, n, watched))
}

/// Adds the rings' events to the kernel's.
fn set_ready(list: &List, arrays: &mut impl Arrays, n: usize, watched: &[Watched<'_, Fd>]) -> usize {
    ready(list, watched).chain(list.ready_sets.iter().copied()).fold(n, |n, place| n + arrays.set_readable(place))
}

/// Returns the places whose rings have bytes.
fn ready(list: &List, watched: &[Watched<'_, Fd>]) -> impl Iterator<Item = usize> {
    let sockets = watched.iter().enumerate().filter(|(_, watched)| watched.is_ready());
    sockets.filter_map(|(i, _)| list.sockets.get(i)).map(|(place, _)| *place)
}

/// C9.
fn report(list: &List, arrays: &impl Arrays) {
    for (place, held) in list.sockets.iter() {
        if arrays.is_readable(*place)
            && let Some(socket) = held.socket()
        {
            socket.pair().report_readable();
        }
    }
}
