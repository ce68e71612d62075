//! Options, flags and counters of the kernel's TCP sockets, in the engine's types.

use super::kernel_unsafe::{option, recv, send, set_option};
use fs_core::{CaState, Keepalive, Linger, TcpInfo, TcpOptions, TcpState};
use fs_rt::CoreRef;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

const TCP: i32 = libc::IPPROTO_TCP;
const SOCKET: i32 = libc::SOL_SOCKET;

/// Returns the value of an option that is a C `int`.
pub(super) fn int_option(fd: RawFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = [0; 4];
    option(fd, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

/// Sets an option that is a C `int`.
pub(super) fn set_int_option(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_option(fd, level, name, &value.to_ne_bytes())
}

/// From linux/in.h. A bind to an address without a port leaves the port to connect(2), which may
/// share it between destinations.
pub(super) fn bind_without_port(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_int_option(fd.as_raw_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Changes a socket's options from `old` to `new`. Returns the first error; the options before it
/// are set.
pub(super) fn apply(core: &CoreRef, fd: BorrowedFd<'_>, old: &TcpOptions, new: &TcpOptions) -> io::Result<()> {
    if old == new {
        return Ok(());
    }
    let fd = fd.as_raw_fd();
    let set = |level, name, value: u32| set_int_option(fd, level, name, value as i32);
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1);
    if old.nodelay != new.nodelay {
        set(TCP, libc::TCP_NODELAY, new.nodelay.into())?;
    }
    if old.keepalive != new.keepalive {
        if let Some(Keepalive { idle, interval, count }) = new.keepalive {
            set(TCP, libc::TCP_KEEPIDLE, seconds(idle))?;
            set(TCP, libc::TCP_KEEPINTVL, seconds(interval))?;
            set(TCP, libc::TCP_KEEPCNT, count.into())?;
        }
        set(SOCKET, libc::SO_KEEPALIVE, new.keepalive.is_some().into())?;
    }
    if old.linger != new.linger {
        // With any other time, close(2) would block the core.
        let reset = new.linger == Linger::Timeout(Duration::ZERO);
        let linger = [i32::from(reset).to_ne_bytes(), [0; 4]].concat();
        set_option(fd, SOCKET, libc::SO_LINGER, &linger)?;
    }
    let is_v6 = || int_option(fd, SOCKET, libc::SO_DOMAIN).map(|domain| domain == libc::AF_INET6);
    if old.ttl != new.ttl {
        let ttl = new.ttl.map_or(-1, i32::from);
        set_int_option(fd, libc::IPPROTO_IP, libc::IP_TTL, ttl)?;
        if is_v6()? {
            set_int_option(fd, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, ttl)?;
        }
    }
    if old.tos != new.tos {
        set(libc::IPPROTO_IP, libc::IP_TOS, new.tos.into())?;
        if is_v6()? {
            set(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, new.tos.into())?;
        }
    }
    if let Some(congestion) = new.congestion_control.filter(|_| old.congestion_control != new.congestion_control) {
        set_option(fd, TCP, libc::TCP_CONGESTION, congestion.name().as_bytes())?;
    }
    if let Some(bytes) = new.receive_buffer.filter(|_| old.receive_buffer != new.receive_buffer) {
        set(SOCKET, libc::SO_RCVBUF, bytes)?;
    }
    if let Some(bytes) = new.send_buffer.filter(|_| old.send_buffer != new.send_buffer) {
        set(SOCKET, libc::SO_SNDBUF, bytes)?;
    }
    if old.cork != new.cork {
        set(TCP, libc::TCP_CORK, new.cork.into())?;
    }
    if old.defer_accept != new.defer_accept {
        set(TCP, libc::TCP_DEFER_ACCEPT, new.defer_accept.map_or(0, seconds))?;
    }
    if old.user_timeout != new.user_timeout {
        let millis =
            new.user_timeout.map_or(0, |time| u32::try_from(time.as_millis()).unwrap_or(i32::MAX as u32).max(1));
        set(TCP, libc::TCP_USER_TIMEOUT, millis)?;
    }
    if let Some(retries) = new.syn_retries.filter(|_| old.syn_retries != new.syn_retries) {
        set(TCP, libc::TCP_SYNCNT, retries.into())?;
    }
    if old.not_sent_low != new.not_sent_low {
        set(TCP, libc::TCP_NOTSENT_LOWAT, new.not_sent_low.unwrap_or(0))?;
    }
    if old.max_segment != new.max_segment {
        set(TCP, libc::TCP_MAXSEG, new.max_segment.unwrap_or(0).into())?;
    }
    if let Some(clamp) = new.window_clamp.filter(|_| old.window_clamp != new.window_clamp) {
        set(TCP, libc::TCP_WINDOW_CLAMP, clamp)?;
    }
    if old.oob_inline != new.oob_inline {
        set(SOCKET, libc::SO_OOBINLINE, new.oob_inline.into())?;
    }
    if old.receive_low != new.receive_low {
        set(SOCKET, libc::SO_RCVLOWAT, new.receive_low.max(1))?;
    }
    if old.pacing_max != new.pacing_max {
        set_option(fd, SOCKET, libc::SO_MAX_PACING_RATE, &new.pacing_max.unwrap_or(u64::MAX).to_ne_bytes())?;
    }
    if old.device != new.device {
        let handle = core.handle();
        let name = new.device.and_then(|device| handle.device_name(device)).unwrap_or_default();
        set_option(fd, SOCKET, libc::SO_BINDTODEVICE, name.as_bytes())?;
    }
    Ok(())
}

/// Sets TCP_FASTOPEN of a listener.
pub(super) fn set_fast_open(fd: RawFd, pending: u32) -> io::Result<()> {
    set_int_option(fd, TCP, libc::TCP_FASTOPEN, pending as i32)
}

pub(super) fn send_flags(fd: RawFd, buf: &[u8], flags: i32) -> io::Result<usize> {
    send(fd, buf, flags | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
}

pub(super) fn receive_flags(fd: RawFd, buf: &mut [u8], flags: i32) -> io::Result<usize> {
    recv(fd, buf, flags | libc::MSG_DONTWAIT)
}

/// From asm-generic/sockios.h.
const SIOCATMARK: libc::c_ulong = 0x8905;

pub(super) fn at_mark(fd: BorrowedFd<'_>) -> io::Result<bool> {
    super::kernel_unsafe::int(fd, SIOCATMARK).map(|mark| mark != 0)
}

/// Returns FIONREAD and SIOCOUTQ.
pub(super) fn queued(fd: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let read = super::kernel_unsafe::int(fd, libc::FIONREAD)?;
    let unacked = super::kernel_unsafe::int(fd, libc::TIOCOUTQ)?;
    Ok((read as u32, unacked as u32))
}

/// Returns true if poll(2) reports POLLHUP: both directions have ended, or the connection was reset.
pub(super) fn hangs_up(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
    poll(&mut asked, Some(&Timespec::default())).is_ok() && asked[0].revents().contains(PollFlags::HUP)
}

/// Bytes of `struct tcp_info` to read, as of Linux 6.12. An older kernel leaves the last ones 0.
const INFO: usize = 256;

/// Reads consecutive fields of `struct tcp_info`.
struct Fields {
    bytes: [u8; INFO],
    at: usize,
}

impl Fields {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let field = self.bytes.get(self.at..self.at + N).and_then(|field| field.try_into().ok()).unwrap_or([0; N]);
        self.at += N;
        field
    }

    fn u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }
}

pub(super) fn info(fd: RawFd) -> io::Result<TcpInfo> {
    let mut bytes = [0; INFO];
    option(fd, TCP, libc::TCP_INFO, &mut bytes)?;
    Ok(of_bytes(bytes))
}

/// Reads a `struct tcp_info`.
fn of_bytes(bytes: [u8; INFO]) -> TcpInfo {
    let mut fields = Fields { bytes, at: 0 };
    let mut info = TcpInfo::default();
    info.state = state(fields.u8());
    info.ca_state = match fields.u8() {
        1 => CaState::Disorder,
        2 => CaState::Cwr,
        3 => CaState::Recovery,
        4 => CaState::Loss,
        _ => CaState::Open,
    };
    [info.retransmits, info.probes, info.backoff] = fields.take();
    let options = fields.u8();
    let bit = |n: u8| options & 1 << n != 0;
    (info.timestamps, info.sack, info.window_scaling) = (bit(0), bit(1), bit(2));
    (info.ecn, info.ecn_seen, info.syn_data) = (bit(3), bit(4), bit(5));
    let scales = fields.u8();
    (info.snd_wscale, info.rcv_wscale) = (scales & 15, scales >> 4);
    info.delivery_rate_app_limited = fields.u8() & 1 != 0;
    let first = [&mut info.rto_us, &mut info.ato_us, &mut info.snd_mss, &mut info.rcv_mss];
    first.into_iter().for_each(|field| *field = fields.u32());
    let segments = [&mut info.unacked, &mut info.sacked, &mut info.lost, &mut info.retrans];
    segments.into_iter().for_each(|field| *field = fields.u32());
    let _fackets = fields.u32();
    info.last_data_sent_ms = fields.u32();
    let _last_ack_sent = fields.u32();
    let then = [
        &mut info.last_data_recv_ms,
        &mut info.last_ack_recv_ms,
        &mut info.pmtu,
        &mut info.rcv_ssthresh,
        &mut info.rtt_us,
        &mut info.rttvar_us,
        &mut info.snd_ssthresh,
        &mut info.snd_cwnd,
        &mut info.advmss,
        &mut info.reordering,
        &mut info.rcv_rtt_us,
        &mut info.rcv_space,
        &mut info.total_retrans,
    ];
    then.into_iter().for_each(|field| *field = fields.u32());
    let rates = [&mut info.pacing_rate, &mut info.max_pacing_rate, &mut info.bytes_acked, &mut info.bytes_received];
    rates.into_iter().for_each(|field| *field = fields.u64());
    let counts = [
        &mut info.segs_out,
        &mut info.segs_in,
        &mut info.notsent_bytes,
        &mut info.min_rtt_us,
        &mut info.data_segs_in,
        &mut info.data_segs_out,
    ];
    counts.into_iter().for_each(|field| *field = fields.u32());
    let times =
        [&mut info.delivery_rate, &mut info.busy_time_us, &mut info.rwnd_limited_us, &mut info.sndbuf_limited_us];
    times.into_iter().for_each(|field| *field = fields.u64());
    (info.delivered, info.delivered_ce) = (fields.u32(), fields.u32());
    (info.bytes_sent, info.bytes_retrans) = (fields.u64(), fields.u64());
    let last =
        [&mut info.dsack_dups, &mut info.reord_seen, &mut info.rcv_ooopack, &mut info.snd_wnd, &mut info.rcv_wnd];
    last.into_iter().for_each(|field| *field = fields.u32());
    info
}

/// Converts a state number of `include/net/tcp_states.h`.
fn state(number: u8) -> Option<TcpState> {
    Some(match number {
        1 => TcpState::Established,
        2 => TcpState::SynSent,
        3 | 12 => TcpState::SynReceived,
        4 => TcpState::FinWait1,
        5 => TcpState::FinWait2,
        6 => TcpState::TimeWait,
        7 => TcpState::Closed,
        8 => TcpState::CloseWait,
        9 => TcpState::LastAck,
        10 => TcpState::Listen,
        11 => TcpState::Closing,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_core::CongestionControl;
    use fs_rt::{LinkChoice, Runtime};
    use std::mem::offset_of;
    use std::os::fd::AsFd;

    const IP: i32 = libc::IPPROTO_IP;
    const IPV6: i32 = libc::IPPROTO_IPV6;

    /// A change of one option, what the kernel says of the socket then, and whether the kernel's
    /// default comes back with ours.
    type Row = (fn(&mut TcpOptions), Vec<(i32, i32, i64)>, bool);

    fn rows() -> Vec<Row> {
        vec![
            (|all| all.nodelay = true, vec![(TCP, libc::TCP_NODELAY, 1)], true),
            (
                |all| {
                    let seconds = Duration::from_secs;
                    all.keepalive = Some(Keepalive { idle: seconds(71), interval: seconds(13), count: 5 });
                },
                vec![
                    (TCP, libc::TCP_KEEPIDLE, 71),
                    (TCP, libc::TCP_KEEPINTVL, 13),
                    (TCP, libc::TCP_KEEPCNT, 5),
                    (SOCKET, libc::SO_KEEPALIVE, 1),
                ],
                false,
            ),
            // The low half of `struct linger` is whether close(2) waits, the other one how long.
            (|all| all.linger = Linger::Timeout(Duration::ZERO), vec![(SOCKET, libc::SO_LINGER, 1)], true),
            (|all| all.linger = Linger::Timeout(Duration::from_secs(3)), vec![(SOCKET, libc::SO_LINGER, 0)], true),
            (|all| all.ttl = Some(77), vec![(IP, libc::IP_TTL, 77), (IPV6, libc::IPV6_UNICAST_HOPS, 77)], true),
            (|all| all.tos = 0x2c, vec![(IP, libc::IP_TOS, 0x2c), (IPV6, libc::IPV6_TCLASS, 0x2c)], true),
            (|all| all.receive_buffer = Some(30_000), vec![(SOCKET, libc::SO_RCVBUF, 60_000)], false),
            (|all| all.send_buffer = Some(40_000), vec![(SOCKET, libc::SO_SNDBUF, 80_000)], false),
            (|all| all.cork = true, vec![(TCP, libc::TCP_CORK, 1)], true),
            // Rounded up to 1, 3, 7, 15, … seconds.
            (|all| all.defer_accept = Some(Duration::from_secs(5)), vec![(TCP, libc::TCP_DEFER_ACCEPT, 7)], true),
            (
                |all| all.user_timeout = Some(Duration::from_millis(1234)),
                vec![(TCP, libc::TCP_USER_TIMEOUT, 1234)],
                true,
            ),
            (|all| all.syn_retries = Some(3), vec![(TCP, libc::TCP_SYNCNT, 3)], false),
            (|all| all.not_sent_low = Some(5000), vec![(TCP, libc::TCP_NOTSENT_LOWAT, 5000)], true),
            (|all| all.max_segment = Some(700), vec![(TCP, libc::TCP_MAXSEG, 700)], true),
            (|all| all.window_clamp = Some(9000), vec![(TCP, libc::TCP_WINDOW_CLAMP, 9000)], false),
            (|all| all.oob_inline = true, vec![(SOCKET, libc::SO_OOBINLINE, 1)], true),
            (|all| all.receive_low = 9, vec![(SOCKET, libc::SO_RCVLOWAT, 9)], true),
            (|all| all.pacing_max = Some(123_456), vec![(SOCKET, libc::SO_MAX_PACING_RATE, 123_456)], true),
        ]
    }

    /// Returns an option as the kernel has it, with as many bytes as it writes.
    fn asked(fd: &impl AsRawFd, level: i32, name: i32) -> i64 {
        let mut value = [0; 8];
        option(fd.as_raw_fd(), level, name, &mut value).unwrap();
        i64::from_ne_bytes(value)
    }

    fn congestion(fd: &impl AsRawFd) -> String {
        let mut name = [0; 16];
        option(fd.as_raw_fd(), TCP, libc::TCP_CONGESTION, &mut name).unwrap();
        String::from_utf8(name.into_iter().take_while(|&byte| byte != 0).collect()).unwrap()
    }

    /// Each alone, because an option must not be set together with another one only.
    #[test]
    fn kernel_has_each_option_that_is_set() {
        let runtime = Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).build().unwrap();
        let check = |_| async {
            let core = CoreRef::require().unwrap();
            for (family, is_v6) in
                [(rustix::net::AddressFamily::INET, false), (rustix::net::AddressFamily::INET6, true)]
            {
                let socket = || rustix::net::socket(family, rustix::net::SocketType::STREAM, None);
                let Ok(fresh) = socket() else { continue };
                for (i, (change, expected, comes_back)) in rows().into_iter().enumerate() {
                    let (socket, old) = (socket().unwrap(), TcpOptions::default());
                    let mut new = old;
                    change(&mut new);
                    assert_ne!(new, old);
                    apply(&core, socket.as_fd(), &old, &new).unwrap();
                    // An IPv4 socket has no options of IPv6.
                    let of_family = expected.iter().filter(|(level, ..)| is_v6 || *level != IPV6);
                    for &(level, name, value) in of_family.clone() {
                        assert_eq!(asked(&socket, level, name), value, "row {i}: option {name} of level {level}");
                    }
                    let _unchanged_where_the_kernel_has_no_default = apply(&core, socket.as_fd(), &new, &old);
                    for &(level, name, _) in of_family.filter(|_| comes_back) {
                        let default = asked(&fresh, level, name);
                        assert_eq!(asked(&socket, level, name), default, "row {i}: default of option {name}");
                    }
                }
                let (socket, old) = (socket().unwrap(), TcpOptions::default());
                let keeps = TcpOptions { keepalive: Some(Keepalive::default()), ..old };
                let reno = TcpOptions { congestion_control: Some(CongestionControl::NewReno), ..keeps };
                apply(&core, socket.as_fd(), &old, &reno).unwrap();
                assert_eq!(congestion(&socket), "reno");
                apply(&core, socket.as_fd(), &reno, &old).unwrap();
                assert_eq!(asked(&socket, SOCKET, libc::SO_KEEPALIVE), 0);
            }
        };
        runtime.run(check).unwrap();
    }

    /// Each word of the structure is its own offset.
    #[test]
    fn fields_of_tcp_info_are_the_kernels() {
        let mut bytes = [0; INFO];
        for (i, word) in bytes.chunks_mut(4).enumerate() {
            word.copy_from_slice(&(4 * i as u32).to_ne_bytes());
        }
        let info = of_bytes(bytes);
        macro_rules! at {
            ($value:expr, $field:ident) => {
                let (value, at) = (u64::from($value), offset_of!(libc::tcp_info, $field) as u64);
                // Of 8 bytes the other half is the next word.
                let of_two = u64::from_ne_bytes(
                    [(at as u32).to_ne_bytes(), (at as u32 + 4).to_ne_bytes()].concat().try_into().unwrap(),
                );
                assert!(value == at || value == of_two, "{}: {value:x}", stringify!($field));
            };
        }
        at!(info.rto_us, tcpi_rto);
        at!(info.ato_us, tcpi_ato);
        at!(info.snd_mss, tcpi_snd_mss);
        at!(info.rcv_mss, tcpi_rcv_mss);
        at!(info.unacked, tcpi_unacked);
        at!(info.sacked, tcpi_sacked);
        at!(info.lost, tcpi_lost);
        at!(info.retrans, tcpi_retrans);
        at!(info.last_data_sent_ms, tcpi_last_data_sent);
        at!(info.last_data_recv_ms, tcpi_last_data_recv);
        at!(info.last_ack_recv_ms, tcpi_last_ack_recv);
        at!(info.pmtu, tcpi_pmtu);
        at!(info.rcv_ssthresh, tcpi_rcv_ssthresh);
        at!(info.rtt_us, tcpi_rtt);
        at!(info.rttvar_us, tcpi_rttvar);
        at!(info.snd_ssthresh, tcpi_snd_ssthresh);
        at!(info.snd_cwnd, tcpi_snd_cwnd);
        at!(info.advmss, tcpi_advmss);
        at!(info.reordering, tcpi_reordering);
        at!(info.rcv_rtt_us, tcpi_rcv_rtt);
        at!(info.rcv_space, tcpi_rcv_space);
        at!(info.total_retrans, tcpi_total_retrans);
        at!(info.pacing_rate, tcpi_pacing_rate);
        at!(info.max_pacing_rate, tcpi_max_pacing_rate);
        at!(info.bytes_acked, tcpi_bytes_acked);
        at!(info.bytes_received, tcpi_bytes_received);
        at!(info.segs_out, tcpi_segs_out);
        at!(info.segs_in, tcpi_segs_in);
        at!(info.notsent_bytes, tcpi_notsent_bytes);
        at!(info.min_rtt_us, tcpi_min_rtt);
        at!(info.data_segs_in, tcpi_data_segs_in);
        at!(info.data_segs_out, tcpi_data_segs_out);
        at!(info.delivery_rate, tcpi_delivery_rate);
        at!(info.busy_time_us, tcpi_busy_time);
        at!(info.rwnd_limited_us, tcpi_rwnd_limited);
        at!(info.sndbuf_limited_us, tcpi_sndbuf_limited);
        at!(info.delivered, tcpi_delivered);
        at!(info.delivered_ce, tcpi_delivered_ce);
        at!(info.bytes_sent, tcpi_bytes_sent);
        at!(info.bytes_retrans, tcpi_bytes_retrans);
        at!(info.dsack_dups, tcpi_dsack_dups);
        at!(info.reord_seen, tcpi_reord_seen);
        at!(info.rcv_ooopack, tcpi_rcv_ooopack);
        at!(info.snd_wnd, tcpi_snd_wnd);
        at!(info.rcv_wnd, tcpi_rcv_wnd);
        // state, ca_state, retransmits, probes, backoff, options, scales, flags.
        let mut bytes = [0; INFO];
        bytes[..8].copy_from_slice(&[8, 4, 21, 22, 23, 0b01_0010, 0x73, 1]);
        let info = of_bytes(bytes);
        assert_eq!((info.state, info.ca_state), (Some(TcpState::CloseWait), CaState::Loss));
        assert_eq!((info.retransmits, info.probes, info.backoff), (21, 22, 23));
        let options =
            |info: TcpInfo| [info.timestamps, info.sack, info.window_scaling, info.ecn, info.ecn_seen, info.syn_data];
        assert_eq!(options(info), [false, true, false, false, true, false]);
        bytes[5] = 0b10_1101;
        assert_eq!(options(of_bytes(bytes)), [true, false, true, true, false, true]);
        assert_eq!((info.snd_wscale, info.rcv_wscale, info.delivery_rate_app_limited), (3, 7, true));
    }
}
