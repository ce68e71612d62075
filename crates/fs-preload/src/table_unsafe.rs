//! Slots by descriptor number, the objects behind them, and references to objects.
//!
//! A look-up takes no lock: two loads for a number that is not the library's concern. An object is freed when no slot and no call refers
//! to it. Its memory is used for objects only, ever, so a thread that has read a pointer too early may still look at the count.
//!
//! A reference has no destructor: a thread that is cancelled, or jumps out of a call, leaves the object behind. That costs a mapping.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::child;
use crate::confined;
use crate::set::Polled;
use crate::slot::{Kind, Slot, Visit};
use crate::socket::Socket;
use crate::sys::heap::{self, map_zeros, unmap};
use crate::sys::threads;

/// Slots that are made together: 32 KiB, of which the kernel makes the pages that are used.
const CHUNK: usize = 256;
/// Numbers from `CHUNK * CHUNKS` on are never the library's concern. It is the kernel's default for the highest limit (fs.nr_open).
const CHUNKS: usize = 4096;

static TABLE: [AtomicPtr<Slot>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

/// Returns the slot of a number, if its chunk was made.
#[inline]
pub(crate) fn slot(fd: c_int) -> Option<&'static Slot> {
    let fd = fd as usize;
    let chunk = TABLE.get(fd / CHUNK)?.load(Ordering::Acquire);
    if chunk.is_null() {
        return None;
    }
    // SAFETY: a chunk has CHUNK slots of zeros, which are valid, and is never unmapped.
    Some(unsafe { &*chunk.add(fd % CHUNK) })
}

/// Returns the slot of a number, and makes it if it has to. Nothing: the number is too high, or there is no memory.
pub(crate) fn make_slot(fd: c_int) -> Option<&'static Slot> {
    let place = TABLE.get(fd as usize / CHUNK)?;
    if place.load(Ordering::Acquire).is_null() {
        let bytes = CHUNK * size_of::<Slot>();
        let chunk = map_zeros(bytes)?;
        if place.compare_exchange(ptr::null_mut(), chunk.cast(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // Another thread was first: this mapping is nobody's, and was never touched.
            unmap(chunk, bytes);
        }
    }
    slot(fd)
}

/// Calls `work` for each slot that is not plain.
pub(crate) fn for_each(mut work: impl FnMut(c_int, &'static Slot)) {
    for (i, chunk) in TABLE.iter().enumerate() {
        if chunk.load(Ordering::Acquire).is_null() {
            continue;
        }
        for j in 0..CHUNK {
            let fd = (i * CHUNK + j) as c_int;
            if let Some(slot) = slot(fd).filter(|slot| slot.state().kind() != Kind::Plain) {
                work(fd, slot);
            }
        }
    }
}

/// What a promoted number stands for.
pub(crate) enum Body {
    /// A promoted socket.
    Socket(Socket),
    /// An epoll set.
    Set(Polled),
}

/// A body with its counts.
pub(crate) struct Object {
    /// Slots and calls that refer to the object. 0: it is free.
    refs: AtomicU32,
    /// Slots.
    numbers: AtomicU32,
    next: AtomicPtr<Object>,
    body: UnsafeCell<Option<Body>>,
}

static FREE: AtomicPtr<Object> = AtomicPtr::new(ptr::null_mut());

/// A reference to an object.
#[derive(Clone, Copy)]
#[must_use]
pub(crate) struct Held(&'static Object);

impl Held {
    #[inline]
    pub(crate) fn body(&self) -> &'static Body {
        // SAFETY: the body is written before the object is published, and taken out by the last reference only.
        let body = unsafe { &*self.0.body.get() };
        match body {
            Some(body) => body,
            None => unreachable!("a referenced object has a body"),
        }
    }

    /// Returns the promoted socket, if it is one.
    #[inline]
    pub(crate) fn socket(&self) -> Option<&'static Socket> {
        match self.body() {
            Body::Socket(socket) => Some(socket),
            Body::Set(_) => None,
        }
    }

    /// Returns how many numbers of this process refer to the object.
    pub(crate) fn numbers(&self) -> u32 {
        self.0.numbers.load(Ordering::Relaxed)
    }

    /// The reference ends.
    #[inline]
    pub(crate) fn release(self) {
        let refs = &self.0.refs;
        let left = if threads::is_single() {
            let left = refs.load(Ordering::Relaxed) - 1;
            refs.store(left, Ordering::Relaxed);
            left
        } else {
            refs.fetch_sub(1, Ordering::AcqRel) - 1
        };
        if left == 0 {
            free(self.0);
        }
    }
}

#[cold]
fn free(object: &'static Object) {
    if confined::is_confined() {
        // Left behind: what it maps cannot be unmapped.
        return;
    }
    // SAFETY: no reference is left, and no slot has the pointer: nobody else touches the body.
    let body = unsafe { (*object.body.get()).take() };
    drop(body);
    heap::with_lock(|| {
        object.next.store(FREE.load(Ordering::Relaxed), Ordering::Relaxed);
        FREE.store(ptr::from_ref(object).cast_mut(), Ordering::Relaxed);
    });
}

fn allocate(body: Body) -> Option<&'static Object> {
    let free = heap::with_lock(|| {
        let free = FREE.load(Ordering::Relaxed);
        // SAFETY: what is in the list is an object that nobody refers to.
        if let Some(object) = unsafe { free.as_ref() } {
            FREE.store(object.next.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        free
    });
    // SAFETY: as above.
    let object = match unsafe { free.as_ref() } {
        Some(object) => object,
        None => {
            let empty = Object {
                refs: AtomicU32::new(0),
                numbers: AtomicU32::new(0),
                next: AtomicPtr::new(ptr::null_mut()),
                body: UnsafeCell::new(None),
            };
            Box::leak(Box::new(empty))
        }
    };
    // SAFETY: nobody refers to the object yet.
    unsafe { *object.body.get() = Some(body) };
    object.numbers.store(1, Ordering::Relaxed);
    object.refs.store(1, Ordering::Release);
    Some(object)
}

/// Takes a reference to the slot's object. Nothing: it has none.
#[inline]
pub(crate) fn hold(slot: &Slot) -> Option<Held> {
    loop {
        let pointer = slot.object.load(Ordering::Acquire);
        // SAFETY: null, or memory that is an object's for ever.
        let object = unsafe { pointer.as_ref() }?;
        let refs = object.refs.load(Ordering::Relaxed);
        if refs == 0 {
            continue;
        }
        if threads::is_single() {
            object.refs.store(refs + 1, Ordering::Relaxed);
            return Some(Held(object));
        }
        if object.refs.compare_exchange(refs, refs + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        let held = Held(object);
        if ptr::eq(slot.object.load(Ordering::Acquire), pointer) {
            return Some(held);
        }
        held.release();
    }
}

/// Returns whether a slot refers to this object.
pub(crate) fn is_of(slot: &Slot, held: Held) -> bool {
    ptr::eq(slot.object.load(Ordering::Acquire), held.0)
}

/// Puts a new object behind a slot; the caller then sets the slot's kind.
pub(crate) fn place(slot: &Slot, body: Body) -> bool {
    let Some(object) = allocate(body) else { return false };
    let before = slot.object.swap(ptr::from_ref(object).cast_mut(), Ordering::AcqRel);
    drop_slot_reference(before);
    true
}

/// Another number stands for the same object.
pub(crate) fn share(slot: &Slot, held: Held) {
    held.0.numbers.fetch_add(1, Ordering::Relaxed);
    held.0.refs.fetch_add(1, Ordering::AcqRel);
    let before = slot.object.swap(ptr::from_ref(held.0).cast_mut(), Ordering::AcqRel);
    drop_slot_reference(before);
}

/// Takes the object from a slot, with the slot's reference.
pub(crate) fn take(slot: &Slot) -> Option<Held> {
    let pointer = slot.object.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: null, or an object that the slot's reference keeps.
    let object = unsafe { pointer.as_ref() }?;
    object.numbers.fetch_sub(1, Ordering::Relaxed);
    Some(Held(object))
}

fn drop_slot_reference(pointer: *mut Object) {
    // SAFETY: null, or an object that the slot's reference kept.
    if let Some(object) = unsafe { pointer.as_ref() } {
        object.numbers.fetch_sub(1, Ordering::Relaxed);
        Held(object).release();
    }
}

/// What a look-up has found.
pub(crate) enum Found {
    /// Not the library's concern.
    Plain,
    /// A watched socket. [`Slot::leave`] has to follow the call.
    Watched(&'static Slot, Visit),
    /// A promoted socket or a set. [`Held::release`] has to follow the call.
    Object(Held),
}

/// Looks a number up for a call on it.
#[inline]
pub(crate) fn find(fd: c_int) -> Found {
    match slot(fd) {
        None => Found::Plain,
        Some(slot) if slot.state().kind() == Kind::Plain => Found::Plain,
        Some(slot) => find_known(slot),
    }
}

#[inline]
fn find_known(slot: &'static Slot) -> Found {
    child::notice_fork();
    loop {
        match slot.state().kind() {
            Kind::Plain => return Found::Plain,
            Kind::Socket | Kind::Set => {
                if let Some(held) = hold(slot) {
                    return Found::Object(held);
                }
                if matches!(slot.state().kind(), Kind::Socket | Kind::Set) {
                    std::hint::spin_loop();
                }
            }
            Kind::Watched | Kind::Offered | Kind::Promoting => {
                if let Some(visit) = slot.enter() {
                    return Found::Watched(slot, visit);
                }
            }
        }
    }
}
