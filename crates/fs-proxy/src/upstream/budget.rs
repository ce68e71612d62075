//! The budget of retries: a share of the requests. If every server fails, retries would multiply the
//! load on servers that are already too slow.

use std::cell::Cell;

/// Retries that are possible at once after a quiet time. Too low: a lost server is noticed by clients
/// of a small site. Too high: a burst of retries meets servers that have just failed.
const SAVED_RETRIES: u32 = 10;
/// The cost of a retry. A request earns the configured per cent.
const RETRY: u32 = 100;

pub(super) struct RetryBudget {
    per_cent: u32,
    credit: Cell<u32>,
}

impl RetryBudget {
    pub(super) fn new(per_cent: u32) -> Self {
        Self { per_cent, credit: Cell::new(if per_cent == 0 { 0 } else { SAVED_RETRIES * RETRY }) }
    }

    /// A request arrived.
    #[inline]
    pub(super) fn request(&self) {
        self.credit.set((self.credit.get() + self.per_cent).min(SAVED_RETRIES * RETRY));
    }

    /// Returns true if a request may be sent again.
    pub(super) fn retry(&self) -> bool {
        let rest = self.credit.get().checked_sub(RETRY);
        rest.inspect(|rest| self.credit.set(*rest)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_the_requests_may_be_sent_again() {
        let budget = RetryBudget::new(20);
        assert_eq!((0..100).filter(|_| budget.retry()).count(), SAVED_RETRIES as usize);
        let retries = (0..100).filter(|_| {
            budget.request();
            budget.retry()
        });
        assert_eq!(retries.count(), 20);
        let none = RetryBudget::new(0);
        none.request();
        assert!(!none.retry());
    }
}
