//! Objects that promoted numbers refer to, and references to them.
//!
//! An object is freed when no slot and no call refers to it. Its memory is used for objects only,
//! ever, so a thread that has read a pointer too early may still look at the count.
//!
//! A reference has no destructor: a thread that is cancelled, or jumps out of a call, leaves the
//! object behind. That costs a mapping.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::confined;
use crate::set::polled::Polled;
use crate::socket::Socket;
use crate::sys::{heap, threads};

/// The object that a promoted number refers to.
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

    /// Releases the reference.
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
        // The object stays, because its mapping cannot be unmapped.
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

/// A slot's reference to an object. All zeros is no reference.
#[derive(Debug)]
pub(crate) struct Reference(AtomicPtr<Object>);

impl Reference {
    /// Returns a new reference to the slot's object, or `None` without one.
    #[inline]
    pub(crate) fn hold(&self) -> Option<Held> {
        loop {
            let pointer = self.0.load(Ordering::Acquire);
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
            if ptr::eq(self.0.load(Ordering::Acquire), pointer) {
                return Some(held);
            }
            held.release();
        }
    }

    /// Returns whether the slot refers to this object.
    pub(crate) fn is(&self, held: Held) -> bool {
        ptr::eq(self.0.load(Ordering::Acquire), held.0)
    }

    /// Stores a new object in the slot. The caller then sets the slot's kind.
    pub(crate) fn put(&self, body: Body) -> bool {
        let Some(object) = allocate(body) else { return false };
        self.replace(object);
        true
    }

    /// Makes this slot refer to the object of another number.
    pub(crate) fn share(&self, held: Held) {
        held.0.numbers.fetch_add(1, Ordering::Relaxed);
        held.0.refs.fetch_add(1, Ordering::AcqRel);
        self.replace(held.0);
    }

    fn replace(&self, object: &'static Object) {
        let before = self.0.swap(ptr::from_ref(object).cast_mut(), Ordering::AcqRel);
        // SAFETY: null, or an object that the slot's reference kept.
        if let Some(object) = unsafe { before.as_ref() } {
            object.numbers.fetch_sub(1, Ordering::Relaxed);
            Held(object).release();
        }
    }

    /// Takes the object from the slot, with the slot's reference.
    pub(crate) fn take(&self) -> Option<Held> {
        let pointer = self.0.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: null, or an object that the slot's reference keeps.
        let object = unsafe { pointer.as_ref() }?;
        object.numbers.fetch_sub(1, Ordering::Relaxed);
        Some(Held(object))
    }
}
