//! Bytes that loom watches: who reads or writes them while another may write is found out.
#![allow(unsafe_code)]

use loom::cell::UnsafeCell;

pub(super) struct Bytes(UnsafeCell<()>);

// SAFETY: there is nothing in it to race for; loom alone keeps account of who is inside.
unsafe impl Sync for Bytes {}
// SAFETY: as above.
unsafe impl Send for Bytes {}

impl Bytes {
    pub(super) fn new() -> Self {
        Bytes(UnsafeCell::new(()))
    }

    pub(super) fn read(&self) {
        self.0.with(|_| ());
    }

    pub(super) fn write(&self) {
        self.0.with_mut(|_| ());
    }
}
