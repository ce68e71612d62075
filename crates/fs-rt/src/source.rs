//! Work for a core from outside its links, such as memory that other processes write.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use tokio::io::unix::AsyncFd;

/// A source of work. Its core polls it in each turn, and asks it to ring the doorbell before the
/// core sleeps. All sources and links of a core share one poll, one spin and one sleep: work from
/// one keeps the core awake for all.
pub trait Source {
    /// Takes available work, wakes or spawns its tasks, and returns how much it was. Called in
    /// every turn: must not make system calls or block.
    fn poll(&self) -> usize;

    /// The core is about to sleep on the source's doorbell, which must become readable (a new edge)
    /// with the next work. Returns `false` if there is work already.
    fn prepare_sleep(&self) -> bool;

    /// The core does not sleep, or no longer, so the doorbell is not needed.
    fn awake(&self);
}

/// A source and its doorbell.
type Added = (Rc<dyn Source>, AsyncFd<OwnedFd>);

/// Sources that the reactor has not taken over yet.
#[derive(Default)]
pub(crate) struct NewSources {
    any: Cell<bool>,
    list: RefCell<Vec<Added>>,
}

impl NewSources {
    pub(crate) fn add(&self, source: Rc<dyn Source>, doorbell: AsyncFd<OwnedFd>) {
        self.list.borrow_mut().push((source, doorbell));
        self.any.set(true);
    }

    #[inline]
    pub(crate) fn take(&self) -> Vec<Added> {
        if self.any.replace(false) { self.list.take() } else { Vec::new() }
    }
}
