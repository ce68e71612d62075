//! The rules E1 to E6 that a model breaks.

/// A model's size, and the rules that it breaks (true: broken).
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Bytes of each sender, at most three.
    pub bytes: [u8; 2],
    /// Edge-triggered registrations.
    pub edge: bool,
    /// The second connection is added while the waiter runs.
    pub adds: bool,
    /// EPOLLIN of the first connection is removed and added again, level-triggered, while the
    /// waiter runs.
    pub changes: bool,
    /// C5: M is cleared although a thread sleeps in the set.
    pub clear_over_sleeper: bool,
    /// C5: the sleepers are read without the gate.
    pub clear_without_gate: bool,
    /// E2: C4 is left out, so the ring stays the carrier.
    pub no_c4: bool,
    /// E2: C4 for the first connection only.
    pub c4_for_first: bool,
    /// E2: C4 before the sleeper is counted, and without the gate.
    pub c4_before_count: bool,
    /// E5: an added connection keeps its carrier.
    pub add_without_c4: bool,
    /// E5: no thread is woken for an added connection's bytes.
    pub add_without_interrupt: bool,
    /// Edge-triggered: the ring stays the carrier while a thread sleeps over reported bytes.
    pub ring_over_reported: bool,
    /// Edge-triggered: the boundary is not written before such a sleep.
    pub no_boundary: bool,
    /// P6: sends that the kernel may hold back.
    pub may_hold: bool,
    /// C5: M is requested with kernel bytes unread whose sender has yet to count them.
    pub request_over_bytes: bool,
    /// A second thread sends a byte on the first connection while the kernel carries.
    pub second: bool,
    /// C9: a receive that finds no bytes does not call the kernel, although the kernel has reported
    /// the socket.
    pub no_c9: bool,
    /// Edge-triggered: a receive returns the bytes of one carrier, and the reader treats the short
    /// count as an empty socket.
    pub short_count: bool,
    /// C9: a receive that has bytes does not call the kernel for those that their sender has yet to
    /// count.
    pub rest_unasked: bool,
    /// E6: a change is deferred although a thread sleeps in the set.
    pub defer_over_sleeper: bool,
    /// E6: deferred changes are not applied before a sleep.
    pub sleep_untold: bool,
    /// E6: deferred changes are not applied before the kernel's events are read.
    pub ask_untold: bool,
    /// E1: ring bytes are reported although the kernel bytes before them have not arrived.
    pub report_behind: bool,
}
