//! Checks of the whole world: lost events, TIME-WAIT, leaks, and failure reports.

use super::*;

/// Maximum number of connections of a stack that is walked through; more would take too long.
const CHECKED_MAX: usize = 64;

impl World {
    pub(super) fn finish(mut self) -> Result<Report, Failure> {
        let mut report = Report {
            digest: self.digest,
            packets: self.packets,
            took: self.now.since(Instant::ZERO),
            connections: self.done,
            idle_turns: self.idle_turns,
            held_back: self.held_back,
            syn_data: self.police.as_ref().map_or(0, |p| p.syn_data),
            transitions: core::mem::take(&mut self.transitions),
            ..Report::default()
        };
        for (number, host) in self.hosts.iter_mut().enumerate() {
            for (core, shard) in host.shards.iter_mut().enumerate() {
                report.stats.add(shard.stack.stats());
                report.rx_dropped += shard.rx_dropped;
                let Shard { stack, rx, mailbox, conns, .. } = shard;
                let (c, t, f) = (stack.tcp_connections(), stack.tcp_time_waits(), stack.pool().in_use());
                let apps = conns.iter().flatten().count();
                let waiting = rx.len() + mailbox.len();
                if (c, t, f, apps, waiting) != (0, 0, 0, 0, 0) {
                    let what = format!(
                        "at the end host {number} core {core} has {c} connections, {t} TIME-WAITs, {f} frames, {apps} applications, {waiting} packets"
                    );
                    return Err(Failure { at: self.now, what });
                }
            }
        }
        for link in &self.links {
            report.links.add(&link.stats);
        }
        Ok(report)
    }

    /// Checks that TIME-WAIT is where the first FIN came from, and nowhere else. Exact only until
    /// the first record expires.
    pub(super) fn check_time_waits(&self) -> Result<(), Failure> {
        use crate::plan::FirstFin;
        for (number, host) in self.hosts.iter().enumerate() {
            if host.clock.local(self.now).since(Instant::ZERO) >= host.config.tcp.time_wait {
                continue;
            }
            let (mut least, mut most) = (0, 0);
            for &plan in self.by_tuple.values() {
                let plan = &self.plans[plan];
                let (is_client, is_server) = (plan.client == number, plan.server == number);
                match plan.kind.first_fin() {
                    FirstFin::Client => (least, most) = (least + usize::from(is_client), most + usize::from(is_client)),
                    FirstFin::Server => (least, most) = (least + usize::from(is_server), most + usize::from(is_server)),
                    FirstFin::Any | FirstFin::Reset => most += usize::from(is_client || is_server),
                }
            }
            // An exact RST ends a TIME-WAIT: a peer that has forgotten the connection sends it in
            // reply to an ACK caused by an old duplicate.
            let resets = self.hosts.iter().flat_map(|h| &h.shards).map(|s| s.stack.stats().resets_sent as usize).sum();
            let least = usize::saturating_sub(least, resets);
            // A newer connection between the same ports can live on another core, and leaves the
            // older one's record where it is.
            let most = most * host.shards.len();
            let have = host.left().1;
            if !(least..=most).contains(&have) {
                return self.fail(format!("host {number} has {have} TIME-WAITs, expected {least} to {most}"));
            }
        }
        Ok(())
    }

    /// Checks the readiness of all of a shard's applications.
    pub(super) fn sweep(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        let shard = &mut self.hosts[host].shards[core];
        let Shard { stack, conns, listeners, .. } = shard;
        if stack.tcp_connections() <= CHECKED_MAX {
            // Frames are counted at the end: device and queues hold handles to the same chunks.
            stack.check(None);
        }
        for conn in conns.iter().flatten() {
            if let Err(what) = conn.check_events(stack) {
                let what = format!("{what}\n{}", conn.describe(stack));
                return self.fail(what);
            }
        }
        for listener in listeners {
            if !listener.ready && stack.tcp_accept(listener.id).is_ok() {
                return self.fail("lost event: a connection waits to be accepted");
            }
        }
        Ok(())
    }

    /// Describes what is not done, for a failure's report.
    pub(super) fn describe(&self) -> String {
        const LINES_MAX: usize = 20;
        let mut lines = Vec::new();
        for (number, host) in self.hosts.iter().enumerate() {
            for (core, shard) in host.shards.iter().enumerate() {
                lines.push(format!(
                    "host {number} core {core}: {} connections, {} TIME-WAITs, {} frames out, next deadline {:?}, tx pending {}, device holds {}",
                    shard.stack.tcp_connections(),
                    shard.stack.tcp_time_waits(),
                    shard.stack.pool().in_use(),
                    shard.stack.next_deadline(),
                    shard.stack.tx_pending(IFACE),
                    shard.tx_outstanding,
                ));
                for conn in shard.conns.iter().flatten() {
                    let lost = conn.check_events(&shard.stack).err().map(|e| format!(" !! {e}")).unwrap_or_default();
                    lines.push(format!("  {}{lost}", conn.describe(&shard.stack)));
                }
            }
        }
        for (plan, status) in self.plans.iter().zip(&self.status) {
            if status.begun && !status.done(plan.kind) {
                lines.push(format!(
                    "plan {} {:?} from host {} to {}: {status:?}",
                    plan.id, plan.kind, plan.client, plan.to
                ));
            }
        }
        let more = lines.len().saturating_sub(LINES_MAX);
        lines.truncate(LINES_MAX);
        if more > 0 {
            lines.push(format!("… and {more} lines more"));
        }
        lines.join("\n")
    }
}
