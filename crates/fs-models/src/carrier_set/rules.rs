//! Which of the rules E1 to E6 a model keeps.

/// A model's size, and the rules that it breaks (true: broken).
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Bytes of each sender, at most three.
    pub bytes: [u8; 2],
    /// Edge-triggered registrations.
    pub edge: bool,
    /// The second connection is added while the waiter runs.
    pub adds: bool,
    /// EPOLLIN of the first connection is taken away and given back, level-triggered, while the waiter runs.
    pub changes: bool,
    /// C5: M is cleared though a thread sleeps in the set.
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
    /// E5: no thread is told of an added connection's bytes.
    pub add_without_interrupt: bool,
    /// Edge-triggered: the ring stays the carrier while a thread sleeps over reported bytes.
    pub ring_over_reported: bool,
    /// Edge-triggered: the boundary is not written before such a sleep.
    pub no_boundary: bool,
    /// P6: sends that the kernel may hold back.
    pub may_hold: bool,
    /// C5: M is requested with kernel bytes unread whose sender has yet to count them.
    pub request_over_bytes: bool,
    /// C9: a receive that finds nothing does not ask the kernel, though it has reported the socket.
    pub no_c9: bool,
    /// Edge-triggered: a receive returns the bytes of one carrier, and the reader takes the short count for an empty socket.
    pub short_count: bool,
    /// E6: a change is put off though a thread sleeps in the set.
    pub defer_over_sleeper: bool,
    /// E6: the kernel is not told before a sleep.
    pub sleep_untold: bool,
    /// E6: the kernel is not told before it is asked for events.
    pub ask_untold: bool,
    /// E1: ring bytes are reported though kernel bytes precede them that have not arrived.
    pub report_behind: bool,
}
