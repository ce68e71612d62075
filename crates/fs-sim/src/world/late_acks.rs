//! A host that acknowledges as Linux does while its window shrinks (`__tcp_ack_snd_check`): when its
//! application reads (`tcp_cleanup_rbuf`), or after 40 ms.

use super::*;
use crate::police::plain_ack;

/// Linux `TCP_DELACK_MIN`.
const LATE: Duration = Duration::from_millis(40);
/// Linux `TCP_MAX_QUICKACKS`.
const QUICK: u32 = 16;

impl World {
    /// Takes a packet of a host, and returns true if it is an ACK that is sent later. A later packet has
    /// a later ACK, and replaces it.
    pub(super) fn is_late(&mut self, host: usize, packet: &[u8]) -> bool {
        let Some((flow, window)) = plain_ack(packet, self.config.framing) else { return false };
        let late = self.hosts[host].late.entry(flow).or_default();
        let shrinks = window.zip(late.window).is_some_and(|(new, last)| new < last);
        if !shrinks || late.at_once < QUICK {
            (late.window, late.packet) = (window, None);
            late.at_once += 1;
            return false;
        }
        if late.packet.replace(packet.to_vec()).is_none() {
            late.number += 1;
            let number = late.number;
            self.schedule(LATE, Action::LateAck { host, flow, number });
        }
        true
    }

    /// Sends the ACK that waits, if there is one, and if its number is `number`.
    pub(super) fn end_late(
        &mut self,
        host: usize,
        flow: (SocketAddr, SocketAddr),
        number: Option<u64>,
    ) -> Result<(), Failure> {
        let Some(late) = self.hosts[host].late.get_mut(&flow) else { return Ok(()) };
        if number.is_some_and(|number| number != late.number) {
            return Ok(());
        }
        let Some(packet) = late.packet.take() else { return Ok(()) };
        late.window = plain_ack(&packet, self.config.framing).and_then(|(_, window)| window);
        self.put_now(host, &packet)?;
        Ok(())
    }
}
