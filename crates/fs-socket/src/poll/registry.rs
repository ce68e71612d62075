//! The epoll sets of this process, by the index that the descriptor table holds.
//!
//! Sets are never freed but used again: a thread that is leaving a set when another closes it still finds one.

use super::{interest::Source, set::Set, sys::lock::Lock};
use crate::{
    descriptor::table,
    socket::Socket,
    sys::{array::Array, pointer::Pointer},
    types::Fd,
};

/// Sets with sockets of ours in them that one process may have.
const COUNT: usize = 1 << 16;

static SETS: Array<Pointer<Set>, COUNT> = Array::new();
static BOOK: Lock<Book> = Lock::new(Book { used: 0, free: Vec::new() });

struct Book {
    used: u32,
    free: Vec<u32>,
}

/// See [`Array::grow_to`].
pub(crate) fn grow(count: usize) {
    SETS.grow_to(count);
}

/// The set of this index.
#[inline]
pub(super) fn find(index: u32) -> Option<&'static Set> {
    SETS.at(index as usize)?.load()
}

/// The index of the set that a socket of the table is, if that has anything of ours to wait for.
pub(super) fn active(socket: &Socket) -> Option<u32> {
    table::index_of(socket).filter(|&index| find(index).is_some_and(Set::is_active))
}

/// If the set is active, the sets that it is registered in wait for it in our way from here on: its kernel set alone does
/// not tell them of what is ours. The caller holds no set: their locks are taken from the outside in.
pub(super) fn follow_active(set: &'static Set) {
    if !set.is_active() {
        return;
    }
    each(|outer| {
        let was_active = outer.is_active();
        let Some(mut inner) = outer.lock_unread() else { return };
        for at in inner.interest.places() {
            let is_it = |socket| active(socket).and_then(find).is_some_and(|found| core::ptr::eq(found, set));
            if inner.interest.get(at).is_some_and(|entry| entry.source == Source::Kernel && is_it(entry.socket)) {
                inner.moved(at);
                if inner.sleepers > 0 {
                    inner.ring();
                }
            }
        }
        drop(inner);
        // Once for each set: it is not active but this once. They are nested five deep at most.
        if !was_active {
            follow_active(outer);
        }
    });
}

/// A set for the application's kernel set, of which `number` is a duplicate. `None`: too many.
pub(super) fn make(number: Fd) -> Option<u32> {
    let mut book = BOOK.lock()?;
    if let Some(index) = book.free.pop()
        && let Some(set) = find(index)
    {
        set.open(number);
        return Some(index);
    }
    let index = book.used;
    let place = SETS.make(index as usize)?;
    place.store(Some(Box::leak(Box::new(Set::new(number)))));
    book.used += 1;
    book.free.reserve(index as usize + 1);
    Some(index)
}

/// The set is used no more.
pub(super) fn give_back(index: u32) {
    // `make` has made room, but for sets that a child has from its parent: the heap is not used here (see `Interest::add`).
    if let Some(mut book) = BOOK.lock().filter(|book| book.free.len() < book.free.capacity()) {
        book.free.push(index);
    }
}

/// Every set there ever was.
pub(super) fn each(mut visit: impl FnMut(&'static Set)) {
    let mut index = 0;
    while let Some(set) = find(index) {
        visit(set);
        index += 1;
    }
}

/// A thread has jumped out of what it was in the middle of.
pub(super) fn jumped() {
    each(Set::break_own_lock);
    BOOK.break_own();
}

/// In a forked child.
pub(super) fn forked() {
    if !BOOK.reset()
        && let Some(mut book) = BOOK.lock()
    {
        // What it lists is not known: those sets are not used again.
        core::mem::forget(core::mem::take(&mut book.free));
        book.used = 0;
        each(|_| book.used += 1);
    }
    each(Set::forked);
}
