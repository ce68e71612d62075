//! Counters of one core. Plain integers: only the owner writes; readers get a copy.

use crate::drop_reason::{DROP_REASONS, DropReason};
use crate::histogram::Histogram;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one core's stack since its start.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Discarded packets by reason, indexed by `DropReason as usize`.
            pub drops: [u64; DROP_REASONS],
            /// Time from `tcp_connect` until the connection was established.
            pub connect_time: Histogram,
            /// Time from the end of the handshake until `tcp_accept` returned the connection. For a
            /// connection that moved to another listener, from that moment.
            pub accept_wait: Histogram,
        }

        impl Default for Stats {
            fn default() -> Self {
                Self { $($name: 0,)* drops: [0; DROP_REASONS], connect_time: Histogram::default(), accept_wait: Histogram::default() }
            }
        }

        impl Stats {
            /// Returns every plain counter with its name, for metrics.
            pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
            /// Adds another core's counters.
            pub fn add(&mut self, other: &Stats) {
                $(self.$name += other.$name;)*
                for (mine, theirs) in self.drops.iter_mut().zip(other.drops.iter()) {
                    *mine += theirs;
                }
                self.connect_time.add(&other.connect_time);
                self.accept_wait.add(&other.accept_wait);
            }
        }
    };
}

counters! {
    /// Packets received from links.
    rx_packets,
    /// Bytes received from links, headers included.
    rx_bytes,
    /// Packets handed to links.
    tx_packets,
    /// Bytes handed to links, headers included.
    tx_bytes,
    /// Packets whose connection is owned by the core that received them.
    packets_local,
    /// Packets that were forwarded to the core that owns their flow (RFD).
    packets_forwarded,
    /// Packets without an owner here that were sent to the next core in search of one. A packet
    /// without any owner visits all cores and counts on each.
    packets_asked,
    /// Packets received from another core, which has forwarded them, searched their owner, or found
    /// our listener.
    packets_from_cores,
    /// Connections moved to another core before they were accepted.
    handovers,
    /// SYNs answered through the global listen table because this core has no listener.
    listen_global,
    /// Passive connections established.
    accepted,
    /// Active connections established.
    connected,
    /// Active connections that failed.
    connect_failed,
    /// Connections ended by a RST from the peer.
    resets_received,
    /// RSTs sent.
    resets_sent,
    /// Connections that timed out.
    timeouts,
    /// Segments retransmitted.
    retransmits,
    /// Fast recoveries entered.
    fast_recoveries,
    /// Windows reduced because the peer echoed a congestion mark (RFC 3168).
    ecn_reductions,
    /// Retransmission time-outs.
    rto_fired,
    /// Zero-window probes sent.
    window_probes,
    /// Keepalive probes sent.
    keepalive_probes,
    /// Segments that arrived out of order and were kept.
    out_of_order,
    /// Duplicate ACKs received.
    dup_acks,
    /// Pure ACKs sent.
    acks_sent,
    /// Delayed ACKs that were carried by another segment.
    acks_piggybacked,
    /// Challenge ACKs sent (RFC 5961).
    challenge_acks,
    /// Rejected segments that got no reply because of the connection's rate limit.
    invalid_unanswered,
    /// SYN cookies sent.
    syn_cookies_sent,
    /// Handshakes completed by cookie.
    syn_cookies_ok,
    /// UDP datagrams received into sockets.
    udp_received,
    /// UDP datagrams sent.
    udp_sent,
    /// ICMP errors delivered to their socket.
    icmp_errors,
    /// Small received payloads copied out of their frames to free the pool.
    rx_compacted,
}

impl Stats {
    /// Counts a discarded packet.
    #[inline]
    pub fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
        fs_probe::drop(reason.name());
    }

    /// Returns how many packets were discarded for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }
}
