//! No transfer waits without a cause: see [`LongestWaits`].

use super::*;
use crate::conn::Wait;
use fs_core::CaState;

/// Fewer unread bytes may wait for the ACK of a small segment (Nagle's algorithm).
const BYTES_MIN: u64 = 3_000;

impl World {
    /// Checks, right after the core has sent what it could, that no transfer has waited for too long.
    pub(super) fn check_waits(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        let Some(LongestWaits { sender, reader }) = self.config.longest_waits else { return Ok(()) };
        self.check_senders(host, core, sender)?;
        reader.map_or(Ok(()), |reader| self.check_readers(reader))
    }

    fn check_senders(&mut self, host: usize, core: usize, longest: Duration) -> Result<(), Failure> {
        let Host { config, shards, .. } = &mut self.hosts[host];
        let Shard { stack, conns, tx_outstanding, .. } = &mut shards[core];
        let sends = *tx_outstanding < config.tx_ring && !stack.tx_pending(IFACE);
        for conn in conns.iter_mut().flatten() {
            let Ok(info) = stack.tcp_info(conn.id) else { continue };
            let waited = update(&mut conn.held_back, self.now, info.bytes_sent, sends && could_send(&info));
            self.held_back += u64::from(conn.held_back.is_some());
            if waited > longest {
                let what = format!("held back for {waited:?}: {info:?}\n{}", conn.describe(stack));
                return Err(Failure { at: self.now, what });
            }
        }
        Ok(())
    }

    /// Checks all readers, since a peer's write begins a wait.
    fn check_readers(&mut self, longest: Duration) -> Result<(), Failure> {
        let shards = || self.hosts.iter().flat_map(|host| &host.shards);
        let written: BTreeMap<(u32, Side), u64> = shards()
            .flat_map(|shard| shard.conns.iter().flatten())
            .map(|conn| ((conn.plan.id, conn.side), conn.moved().0))
            .collect();
        for Shard { stack, conns, .. } in self.hosts.iter_mut().flat_map(|host| &mut host.shards) {
            for conn in conns.iter_mut().flatten() {
                let read = conn.moved().1;
                // A peer that is gone has written all.
                let written = written.get(&(conn.plan.id, conn.side.other())).copied().unwrap_or(u64::MAX);
                let waits = conn.waits_for_bytes() && written >= read + BYTES_MIN && !conn.plan.kind.resets();
                let waited = update(&mut conn.starved, self.now, read, waits);
                if waited > longest {
                    let what = format!("nothing to read for {waited:?}, {written} written\n{}", conn.describe(stack));
                    return Err(Failure { at: self.now, what });
                }
            }
        }
        Ok(())
    }
}

/// Returns true if a whole segment is unsent, fits both windows, and is not paced.
fn could_send(info: &TcpInfo) -> bool {
    let &TcpInfo { ca_state, notsent_bytes, snd_mss, snd_wnd, snd_cwnd, unacked, pacing_rate, .. } = info;
    let fits = (unacked + 1) * snd_mss <= snd_wnd && unacked < snd_cwnd;
    ca_state == CaState::Open && pacing_rate == 0 && notsent_bytes >= snd_mss && fits
}

/// Records whether the end waits, with so many bytes moved. Returns how long it has waited.
fn update(wait: &mut Wait, now: Instant, moved: u64, waits: bool) -> Duration {
    let waited = wait.map_or(Duration::ZERO, |(begun, _)| now.since(begun));
    if !waits || wait.is_none_or(|(_, before)| before != moved) {
        *wait = waits.then_some((now, moved));
    }
    waited
}
