//! Atomics that let the other end act between any two accesses of a call, in one thread, and that
//! record memory orders.

use core::cell::{Cell, RefCell};
use core::sync::atomic::{self, Ordering};

/// An access that was recorded: the address, and whether its memory order is the strongest one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) address: usize,
    pub(super) is_ordered: bool,
}

thread_local! {
    /// Accesses up to the planned action; 0: none is planned.
    static LEFT: Cell<u32> = const { Cell::new(0) };
    static PLANNED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    static RECORD: RefCell<Option<Vec<Access>>> = const { RefCell::new(None) };
}

/// Runs `call`, and `action` before its access number `n`, from 1 on. Returns false if the call has
/// fewer accesses: then nothing has acted.
pub(super) fn act_before(n: u32, action: impl FnOnce() + 'static, call: impl FnOnce()) -> bool {
    PLANNED.set(Some(Box::new(action)));
    LEFT.set(n);
    call();
    LEFT.set(0);
    PLANNED.take().is_none()
}

/// Returns the accesses of `calls`.
pub(super) fn record(calls: impl FnOnce()) -> Vec<Access> {
    RECORD.set(Some(Vec::new()));
    calls();
    RECORD.take().unwrap()
}

fn before_access<T>(place: &T, is_ordered: bool) {
    let left = LEFT.get();
    if left > 0 {
        LEFT.set(left - 1);
        if left == 1 {
            let action = PLANNED.take().unwrap();
            action();
        }
    }
    RECORD.with_borrow_mut(|record| {
        if let Some(record) = record {
            record.push(Access { address: core::ptr::from_ref(place).addr(), is_ordered });
        }
    });
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug)]
        #[repr(transparent)]
        pub(crate) struct $name(atomic::$name);

        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                before_access(self, order == Ordering::Acquire);
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                before_access(self, order == Ordering::Release);
                self.0.store(value, order);
            }

            pub(crate) fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                before_access(self, success == Ordering::AcqRel);
                self.0.compare_exchange(old, new, success, failure)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

impl AtomicU32 {
    pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
        before_access(self, order == Ordering::AcqRel);
        self.0.swap(value, order)
    }
}

impl AtomicU64 {
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        before_access(self, order == Ordering::AcqRel);
        self.0.fetch_add(value, order)
    }
}
