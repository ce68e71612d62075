//! Signals held back for the length of a critical section that cannot be re-entered.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use rustix::io::Errno;

use super::call::call;

#[cfg(target_arch = "x86_64")]
const RT_SIGPROCMASK: usize = 14;
#[cfg(target_arch = "aarch64")]
const RT_SIGPROCMASK: usize = 135;
const SIG_SETMASK: usize = 2;

#[cfg(target_arch = "x86_64")]
const RT_SIGACTION: usize = 13;
#[cfg(target_arch = "aarch64")]
const RT_SIGACTION: usize = 134;
const SA_RESTART: u64 = 0x1000_0000;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Default)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// After a handler interrupted a wait: whether the call is to be restarted, as the kernel does for SA_RESTART. Which
/// signal it was cannot be known; it is restarted if every handler that is installed asks for it (32 and 33 are the C library's).
///
/// In a confined process, as it was when that began: rt_sigaction(2) may be forbidden.
pub fn restarted() -> bool {
    match REMEMBERED.load(Relaxed) {
        0 => restart_now(),
        known => known == 1,
    }
}

/// 0: not confined; 1: all handlers restart; 2: not all.
static REMEMBERED: AtomicU8 = AtomicU8::new(0);

/// This process is about to confine itself.
pub fn remember() {
    REMEMBERED.store(if restart_now() { 1 } else { 2 }, Relaxed);
}

fn restart_now() -> bool {
    (1..=64_usize).filter(|signal| !matches!(signal, 32 | 33)).all(|signal| {
        let mut action = Action::default();
        let arguments = [signal, 0, &raw mut action as usize, 8, 0, 0];
        // SAFETY: the kernel writes one `struct sigaction`, with masks of eight bytes.
        let known = unsafe { call(RT_SIGACTION, arguments) };
        // 0: SIG_DFL, 1: SIG_IGN.
        known.is_err() || action.handler <= 1 || action.flags & SA_RESTART != 0
    })
}

/// All signals are blocked in this thread while it stands.
#[derive(Debug)]
pub struct Blocked {
    before: u64,
}

impl Blocked {
    /// Blocks all that can be blocked.
    pub fn new() -> Self {
        Blocked { before: set(u64::MAX).unwrap_or(0) }
    }
}

impl Default for Blocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // It has no way to fail with a mask of the right size.
        let _ = set(self.before);
    }
}

fn set(mask: u64) -> Result<u64, Errno> {
    let mut before = 0_u64;
    let arguments = [SIG_SETMASK, &raw const mask as usize, &raw mut before as usize, 8, 0, 0];
    // SAFETY: both masks are the kernel's eight bytes and live through the call.
    unsafe { call(RT_SIGPROCMASK, arguments) }?;
    Ok(before)
}
