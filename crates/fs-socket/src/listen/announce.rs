//! Telling the daemon of a listener, and the attachment page what its numbers stand for.
//!
//! Other threads may close its numbers, shut it down or fork meanwhile. So the socket is held, and its listener's entry as well; the daemon is
//! shown a number of our own; what was written is looked at again afterwards, and who takes something back does so in the
//! other order. A fork has all of it or nothing.

use core::{
    ptr,
    sync::atomic::{
        Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
        fence,
    },
};

use fs_shm::{
    control::{Error, Fd as OwnedFd, KernelReason, Listening, Object},
    pages::ListenerPage,
};
use rustix::{
    fd::{AsFd, BorrowedFd},
    io::Errno,
};

use super::{Listener, live, lost, of};
use crate::{
    descriptor::{
        numbers,
        table::{self, Changing},
    },
    poll,
    process::{self, Attachment},
    socket::{Kind, Socket, mark},
    sys::{self, signals},
    types::Fd,
};

/// Tells the daemon of a listener. Where it cannot serve it, the kernel alone listens.
///
/// # Errors
/// A rule of the daemon denies it.
pub(super) fn announce(attachment: &Attachment, fd: Fd, socket: &'static Socket) -> Result<(), Errno> {
    // A handler that jumps would leave the guard.
    let _section = signals::Section::begin();
    let Some(_held) = table::hold(socket) else { return Ok(()) };
    let Some(guard) = ListenerGuard::hold(socket) else { return Ok(()) };
    let _changing = Changing::begin();
    if socket.marked(mark::KERNEL_ONLY) && super::object(socket).is_none() {
        enter_pages(attachment, socket, Object::Kernel(KernelReason::Option));
        return Ok(());
    }
    let Some(number) = Number::of(fd, socket) else { return Ok(()) };
    let Some(placeholder) = sys::borrowed(number.number) else { return Ok(()) };
    let listener = guard.listener;
    let object = match listen(attachment, placeholder) {
        Ok(Listening::Yes(id, page)) => take(attachment, socket, listener, id, &page),
        Ok(Listening::Kernel(reason)) => Object::Kernel(reason),
        Ok(Listening::Refused(errno)) => return Err(errno),
        Err(error) => {
            attachment.failed(&error);
            return Ok(());
        }
    };
    drop(number);
    enter_pages(attachment, socket, object);
    if !guard.is_of(socket) || socket.descriptors() == 0 {
        // Shut down or closed meanwhile.
        listener.withdraw();
        clear_pages(attachment, socket, object);
    } else if socket.marked(mark::KERNEL_ONLY) {
        super::leave_to_kernel(socket);
    } else if attachment.is_dead() {
        lost(socket);
    }
    poll::changed(socket);
    Ok(())
}

/// A request that is answered late is carried out all the same, and connections would be led to where nobody looks: asked again,
/// the daemon says what it has.
fn listen(attachment: &Attachment, placeholder: BorrowedFd<'_>) -> Result<Listening, Error> {
    const TRIES: u32 = 3;
    let mut answer = numbers::make(|| attachment.client().listen(placeholder));
    for _ in 1..TRIES {
        if !matches!(answer, Err(Error::TimedOut)) {
            break;
        }
        answer = numbers::make(|| attachment.client().listen(placeholder));
    }
    answer
}

/// The daemon has it: with its page, or not at all.
fn take(attachment: &Attachment, socket: &Socket, listener: &Listener, id: u32, page: &OwnedFd) -> Object {
    if listener.id.load(Relaxed) != id || listener.life.load(Relaxed) != attachment.life() {
        let Ok(page) = ListenerPage::map(page.as_fd()) else {
            // No memory to look for connections in: none may come.
            if let Err(error) = attachment.client().unlisten(id) {
                attachment.failed(&error);
            }
            return Object::Kernel(KernelReason::Limit);
        };
        listener.take_page(id, attachment.life(), page);
    }
    socket.set_life(attachment.life());
    Object::Listener(id)
}

/// For one that listens already: where a rule denies it, it goes on doing so on the kernel.
pub(super) fn announce_anyway(attachment: &Attachment, fd: Fd, socket: &'static Socket) {
    if announce(attachment, fd, socket).is_err() {
        enter_pages(attachment, socket, Object::Kernel(KernelReason::Port));
    }
}

/// A new attachment: every listener is announced to it.
pub(crate) fn announce_again(attachment: &Attachment) {
    Socket::each(|socket| {
        // So that it is the same one to the end.
        let Some(_held) = table::hold(socket) else { return };
        if socket.kind() == Kind::Listener && socket.life() != attachment.life() {
            announce_anyway(attachment, socket.number(), socket);
        }
    });
}

/// Options of a listener have changed: the daemon reads them from its placeholder.
pub(crate) fn changed(fd: Fd, socket: &'static Socket) {
    if super::object(socket).is_some()
        && !super::is_shut(socket)
        && let Some(attachment) = process::current().filter(|now| now.life() == socket.life())
    {
        announce_anyway(attachment, fd, socket);
    }
}

/// One more number of a listener. The caller holds [`Changing`], and has entered it in the table.
pub(crate) fn enter_number(attachment: &Attachment, socket: &Socket, fd: Fd) {
    // Who announces it now looks at the table after this, or we see the announcement.
    fence(SeqCst);
    if let Some(object) = super::object(socket) {
        // The page is as large as the table.
        let _ = process::enter_page(attachment, fd, object);
    }
}

/// Writes the attachment page's entries of all numbers of the socket.
pub(super) fn enter_pages(attachment: &Attachment, socket: &'static Socket, object: Object) {
    let _changing = Changing::begin();
    fence(SeqCst);
    each_number(socket, |fd| enter_page(attachment, socket, fd, object));
}

/// Takes them out again.
pub(super) fn clear_pages(attachment: &Attachment, socket: &'static Socket, object: Object) {
    let _changing = Changing::begin();
    each_number(socket, |fd| {
        // Not it: another's.
        let _ = attachment.page().replace(fd, Some(object), None);
    });
}

fn each_number(socket: &'static Socket, mut visit: impl FnMut(Fd)) {
    let number = socket.number();
    if socket.descriptors() == 1 && stands_for(number, socket) {
        return visit(number);
    }
    table::each(0, u32::MAX, |fd, of| {
        if ptr::eq(of, socket) {
            visit(fd);
        }
    });
}

/// Who closes a number takes it out of the table first and clears its entry then; so the table is looked at after the entry
/// is written, which is done only if it is still what it was before another look.
fn enter_page(attachment: &Attachment, socket: &'static Socket, fd: Fd, object: Object) {
    let page = attachment.page();
    // Each round that fails is one in which the number was closed or given out.
    for _ in 0..1000 {
        let before = page.object(fd);
        if !stands_for(fd, socket) {
            return;
        }
        match page.replace(fd, before, Some(object)) {
            // A number without an entry (beyond the page) is let go by the daemon when the process ends.
            None => return,
            Some(false) => {}
            Some(true) => break,
        }
    }
    if !stands_for(fd, socket) {
        // Not it: another's already.
        let _ = page.replace(fd, Some(object), None);
    }
}

fn stands_for(fd: Fd, socket: &Socket) -> bool {
    table::find(fd).is_some_and(|now| ptr::eq(now, socket))
}

/// A number of a socket's that nobody else closes.
struct Number {
    number: Fd,
    _own: Option<OwnedFd>,
}

impl Number {
    /// `None`: there is none any more.
    fn of(fd: Fd, socket: &'static Socket) -> Option<Self> {
        loop {
            let fd = live(fd, socket)?;
            let Ok(own) = numbers::duplicate(fd) else {
                // No number free: it has to be that one.
                return Some(Number { number: fd, _own: None });
            };
            let own = Number { number: own, _own: Some(sys::owned(own)) };
            // A number goes from the table before it goes from the kernel.
            if stands_for(fd, socket) {
                return Some(own);
            }
        }
    }
}

/// Holds a listener's entry, which is not given to another one while this stands.
pub(super) struct ListenerGuard {
    listener: &'static Listener,
}

impl ListenerGuard {
    fn hold(socket: &Socket) -> Option<Self> {
        let listener = of(socket)?;
        listener.used.fetch_update(AcqRel, Relaxed, |used| (used != 0).then(|| used + 1)).ok()?;
        let guard = ListenerGuard { listener };
        // Or it was let go just now, and is another's: dropped.
        guard.is_of(socket).then_some(guard)
    }

    fn is_of(&self, socket: &Socket) -> bool {
        fence(SeqCst);
        of(socket).is_some_and(|listener| ptr::eq(listener, self.listener))
    }
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        self.listener.let_go();
    }
}

impl Listener {
    /// One hold of the entry less; with the last one it is free.
    pub(super) fn let_go(&self) {
        if self.used.fetch_sub(1, AcqRel) == 1 {
            self.forget_options();
        }
    }

    /// Whether a thread holds the entry besides the socket: one that tells the daemon of it.
    pub(super) fn is_announced_now(&self) -> bool {
        self.used.load(Acquire) > 1
    }

    /// Whether it is anybody's.
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Acquire) != 0
    }
}
