//! Counters of a connection, for reports. They are not exact if several threads count at once.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$text:meta])* $name:ident,)*) => {
        /// Events of one end.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$text])* pub(crate) $name: Counter,)*
        }

        /// The values of [`Counters`] at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$text])* pub $name: u64,)*
        }

        impl Counters {
            /// Returns the values.
            #[must_use]
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }

        impl core::ops::AddAssign for Counts {
            fn add_assign(&mut self, other: Counts) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Pieces published in the ring.
    ring_sends,
    /// Calls of send(2) and of its like.
    kernel_sends,
    /// Times that the ring was full, so that the kernel became the carrier.
    full,
    /// Times that the consumer made the ring the carrier, or asked for it (C5).
    to_ring,
    /// Times that the consumer made the kernel the carrier (C4).
    to_kernel,
    /// Waits in the kernel.
    sleeps,
    /// Times that the kernel's count showed bytes that another reader had taken (C6).
    corrected,
    /// Times that kernel bytes were waited for that precede the ring's (C7).
    behind,
    /// Times that the direction was pinned by this end.
    pins,
}

/// One number.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}
