//! Who holds a socket, by which numbers it is known, and its end.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use fs_shm::Channel;

use super::{Kind, Socket, mark};
use crate::{
    descriptor::table,
    poll,
    process::{self, arenas::Mapped},
    stream::channel,
    types::Fd,
};

impl Socket {
    /// What [`Socket::inherit`] takes of a socket, as of now; `None`: no memory.
    pub(crate) fn copy(&self) -> Option<&'static Socket> {
        let copy = Self::make(Kind::Internal)?;
        copy.inherit(self);
        copy.mark(self.marks() & mark::OOB_INLINE);
        Some(copy)
    }

    /// A copy is needed no more, but by who holds it.
    pub(crate) fn drop_copy(&'static self) {
        process::begin_change();
        self.release();
    }

    /// What is left here of a connection that this process has closed and another holds: it can be looked at, and holds nothing.
    /// `None`: no memory.
    pub(crate) fn afterimage(&self) -> Option<&'static Socket> {
        Self::image_of(self.life(), self.mapped()?, &self.channel()?)
    }

    /// The same of a connection that this process may never have held.
    pub(crate) fn image_of(life: u32, mapped: &'static Mapped, channel: &Channel<'static>) -> Option<&'static Socket> {
        let image = Self::make(Kind::Internal)?;
        image.set_life(life);
        image.number.store(u32::MAX, Relaxed);
        image.become_channel(mapped, channel);
        Some(image)
    }

    /// It is looked at no more.
    pub(crate) fn drop_afterimage(&'static self) {
        self.become_kind(Kind::Internal);
        self.drop_copy();
    }

    /// The registration of a listener that this process has closed is over: its hold goes.
    pub(crate) fn registration_gone(&'static self) {
        // Below a set's lock, so a fork is not waited for.
        process::begin_change();
        self.release();
        end_change();
    }

    /// A descriptor number of it, perhaps not the only one, perhaps just being closed.
    pub(crate) fn number(&self) -> Fd {
        self.number.load(Relaxed) as Fd
    }

    /// One more descriptor number of this process stands for it.
    pub(crate) fn add_descriptor(&self, fd: Fd) {
        if self.descriptors.fetch_add(1, AcqRel) != 0 {
            self.mark(mark::SEVERAL);
        }
        self.number.store(fd as u32, Relaxed);
    }

    /// The same for one that has some: false, it is closed, or about to be.
    pub(crate) fn add_another_descriptor(&self, fd: Fd) -> bool {
        let is_open = self.descriptors.fetch_update(AcqRel, Relaxed, |now| (now != 0).then(|| now + 1)).is_ok();
        if is_open {
            self.mark(mark::SEVERAL);
            self.number.store(fd as u32, Relaxed);
        }
        is_open
    }

    /// Descriptors in this process.
    pub(crate) fn descriptors(&self) -> u32 {
        self.descriptors.load(Acquire)
    }

    /// A descriptor number has gone: taken out of the table, not closed in the kernel yet.
    pub(crate) fn forget_descriptor(&'static self, fd: Fd) {
        let last = self.descriptors.fetch_sub(1, AcqRel) <= 1;
        if !last && self.number() == fd {
            self.find_number();
        }
        let is_registered = match self.kind() {
            Kind::Fresh | Kind::Kernel | Kind::Channel | Kind::Listener => poll::closed(fd, self, last),
            Kind::Free | Kind::Epoll | Kind::Internal => false,
        };
        if last {
            // Its reference stays until the last call on it has returned.
            process::begin_change();
            if crate::listen::last_number_gone(self, is_registered) {
                // Nothing of this process's is left to be put right.
                self.mark(mark::WATCHED);
                end_change();
            }
            self.release();
        } else if let Some(channel) = self.channel() {
            // Its reference; the last one's goes with the last hold.
            channel::give_back(&channel);
        }
    }

    /// Its number has gone, and it has others.
    #[cold]
    fn find_number(&'static self) {
        let is_its = |fd| table::find(fd).is_some_and(|of| core::ptr::eq(of, self));
        loop {
            let mut found = None;
            table::each(0, u32::MAX, |fd, of| {
                if core::ptr::eq(of, self) {
                    found = Some(fd);
                }
            });
            let Some(fd) = found else { return };
            self.number.store(fd as u32, Relaxed);
            // Who takes it just now has looked at the number of before.
            if is_its(fd) {
                return;
            }
        }
    }

    /// Holds it, unless it is being torn down.
    pub(crate) fn hold(&self) -> bool {
        self.holds.fetch_update(AcqRel, Relaxed, |holds| (holds != 0).then(|| holds + 1)).is_ok()
    }

    /// Lets a hold go; the last one tears it down.
    pub(crate) fn release(&'static self) {
        if self.holds.fetch_sub(1, SeqCst) != 1 {
            return;
        }
        match self.kind() {
            Kind::Channel => channel::let_go(self),
            Kind::Listener => crate::listen::let_go(self),
            Kind::Epoll => poll::epoll_closed(self.epoll_index()),
            Kind::Free | Kind::Fresh | Kind::Kernel | Kind::Internal => {}
        }
        let has_ended = self.marked(mark::WATCHED);
        self.give_back();
        if !has_ended {
            end_change();
        }
    }

    /// In a forked child without an attachment: the daemon did not count its references, so it has none. A listener is announced to the
    /// next daemon as the parent's is: else connections would be led to the parent alone.
    pub(crate) fn orphaned(&'static self) {
        match self.kind() {
            Kind::Listener if self.descriptors() != 0 => crate::listen::orphaned(self),
            Kind::Channel | Kind::Listener => self.become_kind(Kind::Kernel),
            Kind::Free | Kind::Fresh | Kind::Kernel | Kind::Epoll | Kind::Internal => {}
        }
    }

    /// In a forked child: only its descriptors hold it, the other threads' calls are gone.
    pub(crate) fn forked(&'static self) {
        if self.descriptors() != 0 {
            self.holds.store(1, Relaxed);
        } else if self.marked(mark::WATCHED) {
            self.holds.store(0, Relaxed);
        }
    }

    /// After that: a registration holds it.
    pub(crate) fn registered_in_child(&self) {
        self.holds.fetch_add(1, Relaxed);
    }

    /// After those: a listener that the parent had closed, and that nothing of this child's holds.
    pub(crate) fn end_unregistered(&'static self) {
        // Without an attachment it is the kernel's.
        let is_whole = crate::listen::is_watching(self) || self.kind() == Kind::Kernel;
        if self.marked(mark::WATCHED) && is_whole && self.descriptors() == 0 && self.holds.load(Relaxed) == 0 {
            self.holds.store(1, Relaxed);
            self.registration_gone();
        }
    }
}

/// Ends what [`process::begin_change`] began for a socket.
fn end_change() {
    if let Some(attachment) = process::current() {
        attachment.page().end_change();
    }
}
