//! Permitted transitions of the state machine: RFC 9293's figure 5, as visible from an
//! application's handle.

use super::*;
use fs_core::TcpState::{self, *};

/// Transitions by one segment, one call or one timer. TIME-WAIT is CLOSED here: the handle of a
/// connection in TIME-WAIT is that of a closed connection. A reset or a timeout leads from any
/// state to CLOSED.
const LEGAL: &[(TcpState, &[TcpState])] = &[
    (SynSent, &[SynReceived, Established, Closed]),
    // CLOSE-WAIT: the segment that acknowledges our SYN carries a FIN.
    (SynReceived, &[Established, FinWait1, CloseWait, Closed]),
    (Established, &[FinWait1, CloseWait, Closed]),
    (FinWait1, &[FinWait2, Closing, Closed]),
    (FinWait2, &[Closed]),
    (CloseWait, &[LastAck, Closed]),
    (Closing, &[Closed]),
    (LastAck, &[Closed]),
    (Closed, &[]),
];

/// Returns true if one event can lead from one state to the other.
pub(super) fn is_legal(from: TcpState, to: TcpState) -> bool {
    LEGAL.iter().any(|(state, next)| *state == from && next.contains(&to))
}

impl World {
    /// Checks after each event that every application's connection has made at most one transition,
    /// and a legal one.
    pub(super) fn observe(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        if !self.config.one_by_one {
            return Ok(());
        }
        let Shard { stack, conns, .. } = &mut self.hosts[host].shards[core];
        for conn in conns.iter_mut().flatten() {
            let Ok(state) = stack.tcp_state(conn.id) else { continue };
            let Some(before) = conn.state.replace(state).filter(|&before| before != state) else { continue };
            if !is_legal(before, state) {
                let what = format!("from {before:?} to {state:?}: {}", conn.describe(stack));
                return Err(Failure { at: self.now, what });
            }
            self.transitions.insert((format!("{before:?}"), format!("{state:?}")));
        }
        Ok(())
    }
}
