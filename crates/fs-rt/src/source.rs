//! What gives a core work besides its links: memory that other processes write, for one.

use crate::core::CoreRef;
use crate::sys::watch_readable;
use std::cell::{Cell, RefCell};
use std::io;
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
    #[inline]
    pub(crate) fn take(&self) -> Vec<Added> {
        if self.any.replace(false) { self.list.take() } else { Vec::new() }
    }
}

impl CoreRef {
    /// Adds a source for as long as the core runs. `bell` is what [`Source::prepare_sleep`] speaks of; it is never read,
    /// so an eventfd's count only grows.
    ///
    /// # Errors
    /// epoll(7) refuses the descriptor, or the caller is no task of this core.
    pub fn add_source(&self, source: Rc<dyn Source>, bell: OwnedFd) -> io::Result<()> {
        self.0.new_sources.list.borrow_mut().push((source, watch_readable(bell)?));
        self.0.new_sources.any.set(true);
        self.kick();
        Ok(())
    }
}
