//! A value behind a [`Lock`], in memory of one process: what std's mutex is, but it tells a signal
//! handler that its own thread holds the lock, and a thread that jumped out of a call can free it.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use crate::kernel::Machine;
use crate::lock::{Guard, HeldByCaller, Lock};

/// A value, and the lock that guards it.
#[derive(Debug)]
pub struct Gate<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through `Open` only, which one thread has at a time.
unsafe impl<T: Send> Sync for Gate<T> {}

/// The value, as long as the gate is held.
#[derive(Debug)]
pub struct Open<'a, T> {
    gate: &'a Gate<T>,
    _guard: Guard<'a>,
}

impl<T> Gate<T> {
    /// Makes a free gate.
    pub fn new(value: T) -> Self {
        Gate { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Takes the gate, and waits for it.
    ///
    /// # Errors
    /// The errors of [`Lock::lock`].
    #[inline]
    pub fn lock(&self, machine: &impl Machine) -> Result<Open<'_, T>, HeldByCaller> {
        Ok(Open { _guard: self.lock.lock(machine)?, gate: self })
    }

    /// Takes the gate if it is free.
    #[inline]
    pub fn try_lock(&self, machine: &impl Machine) -> Option<Open<'_, T>> {
        Some(Open { _guard: self.lock.try_lock(machine)?, gate: self })
    }

    /// Like [`Lock::break_lock`].
    pub fn break_lock(&self) {
        self.lock.break_lock();
    }

    /// Like [`Lock::break_own`].
    pub fn break_own(&self, machine: &impl Machine) {
        self.lock.break_own(machine);
    }
}

impl<T> Deref for Open<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> DerefMut for Open<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and `self` is borrowed for as long as the reference lives.
        unsafe { &mut *self.gate.value.get() }
    }
}
