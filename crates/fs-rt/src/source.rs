//! What gives a core work besides its links: memory that other processes write, for one.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use tokio::io::unix::AsyncFd;

/// Looked at in each turn of its core, and asked to ring before the core sleeps. A core that has work from a source is
/// awake for its links too, and the other way round: one look, one spin and one sleep for all of them.
pub trait Source {
    /// Takes what is there, wakes or spawns the tasks that it is for, and answers how much it was. Called in every turn:
    /// no system call, no blocking.
    fn look(&self) -> usize;

    /// The core is about to sleep on the source's bell, which must become readable (a new edge) with the next piece of
    /// work. `false`: there is some already.
    fn prepare_sleep(&self) -> bool;

    /// The core does not sleep, or no longer: nobody need ring.
    fn awake(&self);
}

/// A source and its bell.
type Added = (Rc<dyn Source>, AsyncFd<OwnedFd>);

/// Sources that the reactor has not yet taken over.
#[derive(Default)]
pub(crate) struct NewSources {
    any: Cell<bool>,
    list: RefCell<Vec<Added>>,
}

impl NewSources {
    pub(crate) fn add(&self, source: Rc<dyn Source>, bell: AsyncFd<OwnedFd>) {
        self.list.borrow_mut().push((source, bell));
        self.any.set(true);
    }

    #[inline]
    pub(crate) fn take(&self) -> Vec<Added> {
        if self.any.replace(false) { self.list.take() } else { Vec::new() }
    }
}
