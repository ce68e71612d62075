//! The kernel's layout of `struct tcp_info`.

/// Sizes of the fields, under their names in code blocks. Bit fields come first and are decoded
/// separately.
const FIELDS: &[(&str, usize)] = &[
    ("tcpi_state", 1),
    ("tcpi_ca_state", 1),
    ("tcpi_retransmits", 1),
    ("tcpi_probes", 1),
    ("tcpi_backoff", 1),
    ("tcpi_options", 1),
    ("tcpi_wscales", 1),
    ("tcpi_flags", 1),
    ("tcpi_rto", 4),
    ("tcpi_ato", 4),
    ("tcpi_snd_mss", 4),
    ("tcpi_rcv_mss", 4),
    ("tcpi_unacked", 4),
    ("tcpi_sacked", 4),
    ("tcpi_lost", 4),
    ("tcpi_retrans", 4),
    ("tcpi_fackets", 4),
    ("tcpi_last_data_sent", 4),
    ("tcpi_last_ack_sent", 4),
    ("tcpi_last_data_recv", 4),
    ("tcpi_last_ack_recv", 4),
    ("tcpi_pmtu", 4),
    ("tcpi_rcv_ssthresh", 4),
    ("tcpi_rtt", 4),
    ("tcpi_rttvar", 4),
    ("tcpi_snd_ssthresh", 4),
    ("tcpi_snd_cwnd", 4),
    ("tcpi_advmss", 4),
    ("tcpi_reordering", 4),
    ("tcpi_rcv_rtt", 4),
    ("tcpi_rcv_space", 4),
    ("tcpi_total_retrans", 4),
    ("tcpi_pacing_rate", 8),
    ("tcpi_max_pacing_rate", 8),
    ("tcpi_bytes_acked", 8),
    ("tcpi_bytes_received", 8),
    ("tcpi_segs_out", 4),
    ("tcpi_segs_in", 4),
    ("tcpi_notsent_bytes", 4),
    ("tcpi_min_rtt", 4),
    ("tcpi_data_segs_in", 4),
    ("tcpi_data_segs_out", 4),
    ("tcpi_delivery_rate", 8),
    ("tcpi_busy_time", 8),
    ("tcpi_rwnd_limited", 8),
    ("tcpi_sndbuf_limited", 8),
    ("tcpi_delivered", 4),
    ("tcpi_delivered_ce", 4),
    ("tcpi_bytes_sent", 8),
    ("tcpi_bytes_retrans", 8),
    ("tcpi_dsack_dups", 4),
    ("tcpi_reord_seen", 4),
    ("tcpi_rcv_ooopack", 4),
    ("tcpi_snd_wnd", 4),
    ("tcpi_rcv_wnd", 4),
    ("tcpi_rehash", 4),
    ("tcpi_total_rto", 2),
    ("tcpi_total_rto_recoveries", 2),
    ("tcpi_total_rto_time", 4),
];

/// Returns the fields that the kernel has filled in.
pub(super) fn named(bytes: &[u8]) -> Vec<(&'static str, i64)> {
    let mut at = 0;
    let mut fields = Vec::new();
    for (name, size) in FIELDS {
        let Some(field) = bytes.get(at..at + size) else { break };
        at += size;
        let value = field.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte)) as i64;
        match *name {
            "tcpi_wscales" => fields.extend([("tcpi_snd_wscale", value & 15), ("tcpi_rcv_wscale", value >> 4)]),
            "tcpi_flags" => fields.push(("tcpi_delivery_rate_app_limited", value & 1)),
            _ => fields.push((name, value)),
        }
    }
    fields
}
