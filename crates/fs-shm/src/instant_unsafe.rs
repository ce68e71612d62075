//! A clock that says which of two events came first, and nothing else, whichever processes of a machine they were in.
//!
//! It is read for each message that is news to an epoll set. CLOCK_MONOTONIC, whose look at the processor's counter waits for
//! all instructions before it, and which is a number of nanoseconds, costs three times as much.
#![allow(unsafe_code)]

/// Now, in steps of the processor's time stamp counter, where that goes on at one rate on all CPUs and in all their sleeps; else in
/// nanoseconds of CLOCK_MONOTONIC. Every process of a machine takes the same one. Never 0.
#[inline]
pub fn now() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if has_counter() {
        // SAFETY: every x86-64 processor has the instruction.
        return unsafe { core::arch::x86_64::_rdtsc() };
    }
    monotonic()
}

fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// 0: not asked yet.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn has_counter() -> bool {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    static KNOWN: AtomicU32 = AtomicU32::new(0);
    match KNOWN.load(Relaxed) {
        0 => {
            let has = is_invariant();
            KNOWN.store(if has { 2 } else { 1 }, Relaxed);
            has
        }
        known => known == 2,
    }
}

/// "Invariant TSC": bit 8 of EDX of CPUID leaf 8000_0007 (AMD's and Intel's manuals).
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[cold]
fn is_invariant() -> bool {
    use core::arch::x86_64::__cpuid;
    const POWER: u32 = 0x8000_0007;
    __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & 1 << 8 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_later_has_a_later_time() {
        let (send, receive) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || receive.iter().map(|before: u64| (before, now())).collect::<Vec<_>>());
        for _ in 0..200 {
            send.send(now()).unwrap();
            std::thread::yield_now();
        }
        drop(send);
        let times = other.join().unwrap();
        assert!(times.iter().all(|&(before, after)| before < after), "{times:?}");
        assert!(times.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
