//! What the control thread counts.

use fs_shm::Totals;
use fs_shm::control::KernelReason;
use std::collections::BTreeMap;

/// See `fastsock stat`.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: u64,
    pub(crate) malformed: u64,
    pub(crate) attached: u64,
    pub(crate) routes_local: u64,
    pub(crate) routes_wire: u64,
    pub(crate) refused: u64,
    /// Answers "the kernel's", by reason.
    pub(crate) kernel: BTreeMap<KernelReason, u64>,
    /// Of arenas that are gone.
    pub(crate) local: Totals,
    /// Of arenas that are gone.
    pub(crate) wire: Totals,
}

impl Counters {
    pub(crate) fn arena_ended(&mut self, wire: bool, totals: Totals) {
        let sum = if wire { &mut self.wire } else { &mut self.local };
        add(sum, totals);
    }

    pub(crate) fn kernel(&mut self, reason: KernelReason) {
        *self.kernel.entry(reason).or_default() += 1;
    }
}

/// The numbers come from memory that processes write: they may be nonsense, but adding them never fails.
pub(crate) fn add(sum: &mut Totals, more: Totals) {
    sum.connections = sum.connections.wrapping_add(more.connections);
    sum.bytes = sum.bytes.wrapping_add(more.bytes);
}
