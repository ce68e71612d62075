//! The words that shared memory is made of.
//!
//! In a release build they are the standard library's atomics. With debug assertions each store to one of them is counted,
//! and the process can be made to kill itself after the n-th ([`kill_after`]): so a test takes a process away between any
//! two stores, which is where a real one is when it is killed, and looks at what the others make of it.

#[cfg(not(debug_assertions))]
pub use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

#[cfg(debug_assertions)]
pub use counted::{AtomicU8, AtomicU32, AtomicU64};
#[cfg(debug_assertions)]
pub use counted::{kill_after, stores_left};

/// Something that other processes see beside shared memory: a message to or from the daemon.
#[inline]
pub(crate) fn event() {
    #[cfg(debug_assertions)]
    counted::stored();
}

#[cfg(debug_assertions)]
#[allow(missing_docs, reason = "as those of the standard library")]
mod counted {
    use std::ops::Deref;
    use std::sync::atomic::Ordering::{self, SeqCst};
    use std::sync::atomic::{self, AtomicU32 as Count};

    /// Stores that are left until the process is killed; 0: nothing is counted.
    static LEFT: Count = Count::new(0);

    /// Kills this process (SIGKILL) right after its `stores`-th store to shared memory from here on; 0: never. A forked
    /// child goes on counting where its parent was.
    pub fn kill_after(stores: u32) {
        LEFT.store(stores, SeqCst);
    }

    /// What is left of the number given to [`kill_after`].
    pub fn stores_left() -> u32 {
        LEFT.load(SeqCst)
    }

    #[inline]
    pub(crate) fn stored() {
        if LEFT.load(SeqCst) != 0 {
            count();
        }
    }

    #[cold]
    fn count() {
        if LEFT.fetch_sub(1, SeqCst) == 1 {
            // It cannot fail; nothing runs after it.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }

    macro_rules! counted {
        ($name:ident, $number:ty) => {
            #[repr(transparent)]
            #[derive(Debug, Default)]
            pub struct $name(atomic::$name);

            impl Deref for $name {
                type Target = atomic::$name;

                #[inline]
                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }

            #[allow(dead_code, reason = "not every width uses every one")]
            impl $name {
                #[inline]
                pub const fn new(value: $number) -> Self {
                    Self(atomic::$name::new(value))
                }

                #[inline]
                pub fn store(&self, value: $number, order: Ordering) {
                    self.0.store(value, order);
                    stored();
                }

                #[inline]
                pub fn swap(&self, value: $number, order: Ordering) -> $number {
                    let before = self.0.swap(value, order);
                    stored();
                    before
                }

                #[inline]
                pub fn compare_exchange(
                    &self,
                    from: $number,
                    to: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    self.0.compare_exchange(from, to, success, failure).inspect(|_| stored())
                }

                #[inline]
                pub fn compare_exchange_weak(
                    &self,
                    from: $number,
                    to: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    self.0.compare_exchange_weak(from, to, success, failure).inspect(|_| stored())
                }

                #[inline]
                pub fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    change: impl FnMut($number) -> Option<$number>,
                ) -> Result<$number, $number> {
                    self.0.fetch_update(set, fetch, change).inspect(|_| stored())
                }

                counted!(@fetch $number, fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
            }
        };
        (@fetch $number:ty, $($fetch:ident)*) => {$(
            #[inline]
            pub fn $fetch(&self, value: $number, order: Ordering) -> $number {
                let before = self.0.$fetch(value, order);
                stored();
                before
            }
        )*};
    }

    counted!(AtomicU8, u8);
    counted!(AtomicU32, u32);
    counted!(AtomicU64, u64);
}
