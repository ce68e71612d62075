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
    Ok(info)
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
