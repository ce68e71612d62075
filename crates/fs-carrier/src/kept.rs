//! An error of the connection that was given to a call which had moved bytes already.

use crate::kernel::Errno;
use crate::sync::{AtomicU32, Ordering};

/// The error, or none. The next call that would reach the kernel returns it, as the kernel's own
/// calls do with `sk_err`.
#[derive(Debug)]
pub(crate) struct KeptError(AtomicU32);

impl KeptError {
    pub(crate) fn new() -> Self {
        KeptError(AtomicU32::new(0))
    }

    /// Stores an error that ends the connection: of a reset or a time-out, or what ICMP reported
    /// before a time-out (icmp_err_convert, icmpv6_err_convert). All others are of a single call,
    /// such as ENOMEM and EBADF; EPIPE comes again with the next call.
    pub(crate) fn keep(&self, error: Errno) {
        let of_a_reset = matches!(error, Errno::CONNRESET | Errno::CONNABORTED | Errno::CONNREFUSED | Errno::TIMEDOUT);
        let of_icmp = matches!(
            error,
            Errno::HOSTUNREACH
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::NETDOWN
                | Errno::NONET
                | Errno::NOPROTOOPT
                | Errno::PROTO
                | Errno::ACCESS
        );
        if of_a_reset || of_icmp {
            self.0.store(error.raw_os_error().cast_unsigned(), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn is_kept(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    #[inline]
    pub(crate) fn take(&self) -> Option<Errno> {
        if !self.is_kept() {
            return None;
        }
        let error = self.0.swap(0, Ordering::Relaxed);
        (error != 0).then(|| Errno::from_raw_os_error(error.cast_signed()))
    }
}
