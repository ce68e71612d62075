//! Linux's sysctls as settings of the engine.

use fs_core::{CongestionControl, Duration, TcpConfig};
use fs_core::{Ecn, FastOpen};

/// Sysctls that belong to the socket calls here, or that several settings derive from.
#[derive(Clone, Debug, Default)]
pub(super) struct Sysctls {
    pub(super) tcp: TcpConfig,
    pub(super) fast_open: i64,
    pub(super) always_cookies: bool,
    pub(super) not_sent_low: Option<u32>,
    pub(super) wmem_max: Option<i32>,
    pub(super) rmem_max: Option<i32>,
    pub(super) keepalive_time: Option<i32>,
    pub(super) keepalive_interval: Option<i32>,
    pub(super) keepalive_probes: Option<i32>,
}

/// Behaviour that is fixed in the engine: the values for which Linux behaves the same. `*`: any
/// value, since no visible behaviour depends on it.
const FIXED: &[(&str, &str)] = &[
    ("net.ipv4.tcp_dsack", "1"),
    ("net.ipv4.tcp_fack", "0"),
    ("net.ipv4.tcp_frto", "1 2"),
    ("net.ipv4.tcp_reordering", "3"),
    ("net.ipv4.tcp_max_reordering", "300"),
    ("net.ipv4.tcp_syn_linear_timeouts", "0"),
    ("net.ipv4.tcp_tso_win_divisor", "*"),
    ("net.ipv4.tcp_min_tso_segs", "*"),
    ("net.ipv4.tcp_tso_rtt_log", "*"),
    ("net.ipv4.tcp_limit_output_bytes", "*"),
    ("net.ipv4.tcp_autocorking", "0"),
    ("net.ipv4.tcp_ecn_option", "*"),
    ("net.ipv4.tcp_ecn_fallback", "1"),
    ("net.ipv4.tcp_pacing_ss_ratio", "200"),
    ("net.ipv4.tcp_pacing_ca_ratio", "120"),
    ("net.ipv4.tcp_no_metrics_save", "*"),
    ("net.ipv4.tcp_moderate_rcvbuf", "1"),
    ("net.ipv4.tcp_adv_win_scale", "1"),
    ("net.ipv4.tcp_app_win", "31"),
    ("net.ipv4.tcp_shrink_window", "0"),
    ("net.ipv4.tcp_max_syn_backlog", "*"),
    ("net.ipv4.tcp_max_orphans", "*"),
    ("net.ipv4.tcp_max_tw_buckets", "*"),
    ("net.ipv4.tcp_retries1", "3"),
    ("net.ipv4.tcp_orphan_retries", "0"),
    ("net.ipv4.tcp_rfc1337", "0"),
    ("net.ipv4.tcp_abort_on_overflow", "0"),
    ("net.ipv4.tcp_stdurg", "0"),
    ("net.ipv4.tcp_tw_reuse", "0 1 2"),
    ("net.ipv4.tcp_thin_linear_timeouts", "0"),
    ("net.ipv4.tcp_reflect_tos", "0"),
    ("net.ipv4.tcp_plb_enabled", "0"),
    ("net.ipv4.tcp_comp_sack_nr", "0"),
    ("net.ipv4.tcp_comp_sack_delay_ns", "*"),
    ("net.ipv4.tcp_comp_sack_slack_ns", "*"),
    ("net.ipv4.tcp_fastopen_blackhole_timeout_sec", "0"),
    ("net.ipv4.tcp_fastopen_key", "*"),
    ("net.ipv4.ip_no_pmtu_disc", "0"),
    ("net.ipv4.ip_local_port_range", "*"),
    ("net.ipv4.ping_group_range", "*"),
    ("net.core.default_qdisc", "*"),
    ("net.core.somaxconn", "*"),
];

impl Sysctls {
    /// Sets a sysctl. Returns `Err` if it is unknown, or if the engine does not support its value.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let name = name.replace('/', ".");
        let words: Vec<&str> = value.split_whitespace().collect();
        let wrong = || format!("sysctl {name}: bad value '{value}'");
        let numbers: Result<Vec<i64>, String> = words.iter().map(|word| integer(word).ok_or_else(wrong)).collect();
        let number = || numbers.clone()?.first().copied().ok_or_else(wrong);
        let on = || number().map(|n| n != 0);
        let byte = || u8::try_from(number()?).map_err(|_| wrong());
        let time = |n: i64| u64::try_from(n).map(Duration::from_secs).map_err(|_| wrong());
        let tcp = &mut self.tcp;
        match name.strip_prefix("net.ipv4.").unwrap_or(&name) {
            "tcp_timestamps" => tcp.timestamps = on()?,
            "tcp_sack" => tcp.sack = on()?,
            "tcp_window_scaling" => tcp.window_scaling = on()?,
            "tcp_syn_retries" => tcp.syn_retries = byte()?,
            "tcp_synack_retries" => tcp.syn_ack_retries = byte()?,
            "tcp_retries2" => tcp.retries = byte()?,
            "tcp_fin_timeout" => tcp.fin_wait_2 = time(number()?)?,
            "tcp_slow_start_after_idle" => tcp.idle_restart = on()?,
            "tcp_recovery" => tcp.rack = number()? & 1 != 0,
            "tcp_early_retrans" => tcp.tail_loss_probe = matches!(number()?, 3 | 4),
            // 0 and 1 differ only when the SYN cache is full, which no script causes.
            "tcp_syncookies" => self.always_cookies = number()? == 2,
            "tcp_mtu_probing" => tcp.mtu_probing = on()?,
            "tcp_base_mss" | "tcp_mtu_probe_floor" => tcp.mss_floor = u16::try_from(number()?).map_err(|_| wrong())?,
            "tcp_invalid_ratelimit" => {
                tcp.invalid_ack_interval = Duration::from_millis(u64::try_from(number()?).map_err(|_| wrong())?);
            }
            "tcp_challenge_ack_limit" => tcp.challenge_acks = u32::try_from(number()?).unwrap_or(u32::MAX),
            "tcp_rto_min_us" => tcp.rto_min = Duration::from_micros(u64::try_from(number()?).map_err(|_| wrong())?),
            "tcp_rto_max_ms" => tcp.rto_max = Duration::from_millis(u64::try_from(number()?).map_err(|_| wrong())?),
            "tcp_congestion_control" => {
                let algorithm = CongestionControl::from_name(value.trim());
                let none = || format!("sysctl {name}: the engine has no '{}'", value.trim());
                tcp.congestion_control = algorithm.ok_or_else(none)?;
            }
            "tcp_ecn" => {
                tcp.ecn = match number()? {
                    0 => Ecn::Off,
                    1 => Ecn::Active,
                    2 => Ecn::Passive,
                    _ => return Err(format!("sysctl {name}: the engine has no accurate ECN")),
                }
            }
            "tcp_fastopen" => {
                let bits = number()?;
                self.fast_open = bits;
                tcp.fast_open = FastOpen {
                    client: bits & 1 != 0,
                    server: bits & 2 != 0,
                    client_without_cookie: bits & 4 != 0,
                    server_without_cookie: bits & 0x200 != 0,
                };
            }
            "tcp_notsent_lowat" => {
                let bytes = u32::try_from(number()?).map_err(|_| wrong())?;
                self.not_sent_low = (bytes != u32::MAX).then_some(bytes);
            }
            "tcp_rmem" => {
                let [_, default, max] = numbers?[..] else { return Err(wrong()) };
                // Half of a buffer is window (tcp_adv_win_scale = 1), and a SYN can offer at most
                // 64 KiB.
                tcp.receive_buffer_initial = u32::try_from(default / 2).map_err(|_| wrong())?.min(65_535);
                tcp.receive_buffer_max = u32::try_from(max).map_err(|_| wrong())?;
            }
            "tcp_wmem" => {
                let [_, _, max] = numbers?[..] else { return Err(wrong()) };
                tcp.send_buffer = u32::try_from(max).map_err(|_| wrong())?;
            }
            "net.core.wmem_max" => self.wmem_max = i32::try_from(number()?).ok(),
            "net.core.rmem_max" => self.rmem_max = i32::try_from(number()?).ok(),
            "tcp_keepalive_time" => self.keepalive_time = i32::try_from(number()?).ok(),
            "tcp_keepalive_intvl" => self.keepalive_interval = i32::try_from(number()?).ok(),
            "tcp_keepalive_probes" => self.keepalive_probes = i32::try_from(number()?).ok(),
            _ => {
                let fixed = FIXED.iter().find(|(n, _)| *n == name);
                let (_, allowed) = fixed.ok_or_else(|| format!("unknown sysctl {name}"))?;
                let same =
                    |word: &&str| integer(word).is_some_and(|n| allowed.split(' ').any(|a| integer(a) == Some(n)));
                if *allowed != "*" && !words.iter().all(same) {
                    return Err(format!(
                        "sysctl {name}: the engine does what Linux does with {allowed}, not '{value}'"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Parses a number, decimal or hexadecimal.
fn integer(word: &str) -> Option<i64> {
    match word.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}
