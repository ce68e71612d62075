//! Socket options on the engine.

use super::Engine;
use super::fds::{Socket, State};
use crate::run::call::{Out, Outcome};
use fs_core::{CongestionControl, Duration, Error, Keepalive, Linger, TcpOptions};

type Attempt = Result<Option<Outcome>, String>;

/// Linux's net.core.wmem_max and rmem_max: the maximum of SO_SNDBUF and SO_RCVBUF before they are
/// doubled.
const BUFFER_MAX: i32 = 212_992;
const SEND_MIN: i32 = 4608;
const RECEIVE_MIN: i32 = 2304;

fn int_of(value: &[u8], len: usize) -> Option<i32> {
    match len.min(value.len()) {
        0 => None,
        1..4 => Some(i32::from(value[0])),
        _ => Some(i32::from_ne_bytes([value[0], value[1], value[2], value[3]])),
    }
}

fn unsupported(level: i32, name: i32) -> String {
    format!("socket option {name} of level {level} is not supported on the engine")
}

fn seconds(n: i32) -> Duration {
    Duration::from_secs(n.max(0) as u64)
}

impl Engine {
    fn options_of(&self, socket: &Socket) -> TcpOptions {
        match socket.state {
            State::Stream(id) => self.stack.tcp_options(id).unwrap_or(socket.options),
            _ => socket.options,
        }
    }

    /// Changes the current options, and those of a future connection.
    fn change(&mut self, fd: i32, change: impl FnOnce(&mut TcpOptions)) -> i32 {
        let Some(socket) = self.fds.socket(fd) else { return libc::EBADF };
        let (state, mut options) = (socket.state, self.options_of(socket));
        change(&mut options);
        let done = match state {
            State::Stream(id) => self.stack.tcp_set_options(id, options),
            State::Listening(id) => self.stack.tcp_set_listener_options(id, options),
            State::New | State::Udp(_) => Ok(()),
        };
        if let Err(error) = done {
            return error.errno();
        }
        if let Some(socket) = self.fds.socket_mut(fd) {
            socket.options = options;
        }
        0
    }

    pub(super) fn set_option(&mut self, fd: i32, level: i32, name: i32, value: &[u8], len: usize) -> Attempt {
        if self.fds.socket(fd).is_none() {
            return Ok(Some(Outcome::err(libc::EBADF)));
        }
        if (level, name) == (libc::SOL_TCP, libc::TCP_CONGESTION) {
            return self.set_congestion(fd, &value[..len.min(value.len())]);
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            return self.set_linger(fd, value, len);
        }
        let Some(n) = int_of(value, len) else { return Ok(Some(Outcome::err(libc::EINVAL))) };
        let error = match level {
            libc::SOL_SOCKET => self.set_socket_option(fd, name, n)?,
            libc::SOL_TCP => self.set_tcp_option(fd, name, n)?,
            libc::SOL_IP => self.set_ip_option(fd, level, name, n)?,
            libc::SOL_IPV6 => self.set_ip_option(fd, level, name, n)?,
            _ => return Err(unsupported(level, name)),
        };
        Ok(Some(if error == 0 { Outcome::ok(0) } else { Outcome::err(error) }))
    }

    fn keep(&mut self, fd: i32, keep: impl FnOnce(&mut super::fds::Kept)) -> i32 {
        match self.fds.socket_mut(fd) {
            Some(socket) => {
                keep(&mut socket.kept);
                0
            }
            None => libc::EBADF,
        }
    }

    fn set_socket_option(&mut self, fd: i32, name: i32, n: i32) -> Result<i32, String> {
        Ok(match name {
            libc::SO_REUSEADDR => self.keep(fd, |k| k.reuse_addr = n),
            libc::SO_REUSEPORT => self.keep(fd, |k| k.reuse_port = n),
            libc::SO_PRIORITY | libc::SO_MARK if n == 0 => 0,
            libc::SO_PRIORITY | libc::SO_MARK => {
                return Err(without_effect(name, n, "there is no queue or filter that looks at it"));
            }
            libc::SO_KEEPALIVE => {
                let keepalive = (n != 0).then(|| self.keepalive_of(fd));
                self.change(fd, |o| o.keepalive = keepalive)
            }
            libc::SO_SNDBUF | libc::SO_SNDBUFFORCE => {
                let max =
                    if name == libc::SO_SNDBUF { self.sysctls.wmem_max.unwrap_or(BUFFER_MAX) } else { i32::MAX / 2 };
                let bytes = (n.clamp(0, max) * 2).max(SEND_MIN);
                self.change(fd, |o| o.send_buffer = Some(bytes as u32))
            }
            libc::SO_RCVBUF | libc::SO_RCVBUFFORCE => {
                let max =
                    if name == libc::SO_RCVBUF { self.sysctls.rmem_max.unwrap_or(BUFFER_MAX) } else { i32::MAX / 2 };
                let bytes = (n.clamp(0, max) * 2).max(RECEIVE_MIN);
                // Half of it is the window, as with tcp_adv_win_scale = 1.
                self.change(fd, |o| o.receive_buffer = Some(bytes as u32 / 2))
            }
            libc::SO_RCVLOWAT => self.change(fd, |o| o.receive_low = if n <= 0 { 1 } else { n as u32 }),
            libc::SO_OOBINLINE => self.change(fd, |o| o.oob_inline = n != 0),
            libc::SO_MAX_PACING_RATE => {
                self.change(fd, |o| o.pacing_max = (n as u32 != u32::MAX).then_some(u64::from(n as u32)))
            }
            _ => return Err(unsupported(libc::SOL_SOCKET, name)),
        })
    }

    /// Returns the socket's keepalive parameters, which SO_KEEPALIVE enables together.
    fn keepalive_of(&self, fd: i32) -> Keepalive {
        let mut keepalive = Keepalive::default();
        if let Some(kept) = self.fds.socket(fd).map(|s| s.kept) {
            let (idle, interval, count) = (kept.keep_idle, kept.keep_interval, kept.keep_count);
            keepalive.idle = idle.or(self.sysctls.keepalive_time).map_or(keepalive.idle, seconds);
            keepalive.interval = interval.or(self.sysctls.keepalive_interval).map_or(keepalive.interval, seconds);
            keepalive.count = count.or(self.sysctls.keepalive_probes).map_or(keepalive.count, |n| n as u8);
        }
        keepalive
    }

    /// Sets a keepalive parameter. It applies at once if keepalive is on.
    fn set_keepalive(&mut self, fd: i32, n: i32, max: i32, keep: impl FnOnce(&mut super::fds::Kept)) -> i32 {
        if !(1..=max).contains(&n) {
            return libc::EINVAL;
        }
        self.keep(fd, keep);
        let keepalive = self.keepalive_of(fd);
        self.change(fd, |o| o.keepalive = o.keepalive.map(|_| keepalive))
    }

    fn set_tcp_option(&mut self, fd: i32, name: i32, n: i32) -> Result<i32, String> {
        Ok(match name {
            libc::TCP_NODELAY => {
                let error = self.change(fd, |o| o.nodelay = n != 0);
                // Setting it again pushes again.
                match self.fds.socket(fd).map(|s| s.state) {
                    Some(State::Stream(id)) if error == 0 => self.stack.tcp_push(id).map_or_else(Error::errno, |()| 0),
                    _ => error,
                }
            }
            libc::TCP_CORK => self.change(fd, |o| o.cork = n != 0),
            libc::TCP_MAXSEG if n != 0 && !(88..=32_767).contains(&n) => libc::EINVAL,
            libc::TCP_MAXSEG => self.change(fd, |o| o.max_segment = (n != 0).then_some(n as u16)),
            libc::TCP_KEEPIDLE => self.set_keepalive(fd, n, 32_767, |k| k.keep_idle = Some(n)),
            libc::TCP_KEEPINTVL => self.set_keepalive(fd, n, 32_767, |k| k.keep_interval = Some(n)),
            libc::TCP_KEEPCNT => self.set_keepalive(fd, n, 127, |k| k.keep_count = Some(n)),
            libc::TCP_DEFER_ACCEPT => self.change(fd, |o| o.defer_accept = (n > 0).then(|| seconds(n))),
            libc::TCP_WINDOW_CLAMP => self.change(fd, |o| o.window_clamp = (n > 0).then_some(n as u32)),
            libc::TCP_USER_TIMEOUT if n < 0 => libc::EINVAL,
            libc::TCP_USER_TIMEOUT => {
                self.change(fd, |o| o.user_timeout = (n > 0).then(|| Duration::from_millis(n as u64)))
            }
            libc::TCP_NOTSENT_LOWAT => {
                let inherited = self.sysctls.not_sent_low;
                self.change(fd, |o| o.not_sent_low = if n == 0 { inherited } else { Some(n as u32) })
            }
            libc::TCP_FASTOPEN if n < 0 => libc::EINVAL,
            libc::TCP_FASTOPEN => {
                if let Some(State::Listening(id)) = self.fds.socket(fd).map(|s| s.state)
                    && let Err(error) = self.stack.tcp_set_listener_fast_open(id, n as u32)
                {
                    return Ok(error.errno());
                }
                self.keep(fd, |k| k.fast_open = n)
            }
            libc::TCP_FASTOPEN_CONNECT if !(0..=1).contains(&n) => libc::EINVAL,
            libc::TCP_FASTOPEN_CONNECT if self.sysctls.fast_open & 1 == 0 => libc::EOPNOTSUPP,
            libc::TCP_FASTOPEN_CONNECT
                if self.fds.socket(fd).is_some_and(|s| s.state != State::New || s.deferred.is_some()) =>
            {
                libc::EINVAL
            }
            libc::TCP_FASTOPEN_CONNECT => self.keep(fd, |k| k.fast_open_connect = n),
            libc::TCP_INQ if !(0..=1).contains(&n) => libc::EINVAL,
            libc::TCP_INQ => self.keep(fd, |k| k.inq = n),
            libc::TCP_SYNCNT if !(1..=127).contains(&n) => libc::EINVAL,
            libc::TCP_SYNCNT => self.change(fd, |o| o.syn_retries = Some(n as u8)),
            libc::TCP_QUICKACK => match self.fds.socket(fd).map(|s| s.state) {
                Some(State::Stream(id)) => self.stack.tcp_set_quickack(id, n != 0).map_or_else(Error::errno, |()| 0),
                _ => 0,
            },
            _ => return Err(unsupported(libc::SOL_TCP, name)),
        })
    }

    fn set_ip_option(&mut self, fd: i32, level: i32, name: i32, n: i32) -> Result<i32, String> {
        Ok(match (level, name) {
            (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                // The two ECN bits belong to the stack.
                self.change(fd, |o| o.tos = n as u8 & !3)
            }
            (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS) if n == -1 => {
                self.change(fd, |o| o.ttl = None)
            }
            (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS) if !(1..=255).contains(&n) => {
                libc::EINVAL
            }
            (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS) => {
                self.change(fd, |o| o.ttl = Some(n as u8))
            }
            (libc::SOL_IPV6, libc::IPV6_V6ONLY) => self.keep(fd, |k| k.v6_only = n),
            (libc::SOL_IP, libc::IP_FREEBIND) if n == 0 => 0,
            (libc::SOL_IP, libc::IP_FREEBIND) => {
                return Err(without_effect(name, n, "sockets are bound to the stack's own addresses"));
            }
            // For TCP both are equivalent: DF is set, and the path MTU is followed.
            (libc::SOL_IP, libc::IP_MTU_DISCOVER) | (libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER)
                if matches!(n, libc::IP_PMTUDISC_WANT | libc::IP_PMTUDISC_DO) =>
            {
                self.keep(fd, |k| k.mtu_discover = Some(n))
            }
            (libc::SOL_IP, libc::IP_MTU_DISCOVER) | (libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER) => {
                return Err(without_effect(name, n, "path MTU discovery cannot be turned off"));
            }
            _ => return Err(unsupported(level, name)),
        })
    }

    fn set_linger(&mut self, fd: i32, value: &[u8], len: usize) -> Attempt {
        if len < 8 || value.len() < 8 {
            return Ok(Some(Outcome::err(libc::EINVAL)));
        }
        let part = |at: usize| i32::from_ne_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
        let (on, time) = (part(0), part(4));
        let linger = if on == 0 { Linger::Background } else { Linger::Timeout(seconds(time)) };
        self.keep(fd, |k| k.linger = (on, time));
        let error = self.change(fd, |o| o.linger = linger);
        Ok(Some(if error == 0 { Outcome::ok(0) } else { Outcome::err(error) }))
    }

    fn set_congestion(&mut self, fd: i32, name: &[u8]) -> Attempt {
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        let Some(algorithm) = std::str::from_utf8(name).ok().and_then(CongestionControl::from_name) else {
            return Ok(Some(Outcome::err(libc::ENOENT)));
        };
        let error = self.change(fd, |o| o.congestion_control = Some(algorithm));
        Ok(Some(if error == 0 { Outcome::ok(0) } else { Outcome::err(error) }))
    }

    pub(super) fn get_option(&mut self, fd: i32, level: i32, name: i32, len: usize) -> Attempt {
        let Some(socket) = self.fds.socket(fd) else { return Ok(Some(Outcome::err(libc::EBADF))) };
        let socket = socket.clone();
        let options = self.options_of(&socket);
        let bytes = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let (on, time) = socket.kept.linger;
                [on.to_ne_bytes(), time.to_ne_bytes()].concat()
            }
            (libc::SOL_TCP, libc::TCP_CONGESTION) => {
                let default = self.stack.config().tcp.congestion_control;
                let mut bytes = options.congestion_control.unwrap_or(default).name().as_bytes().to_vec();
                bytes.resize(len.min(16), 0);
                bytes
            }
            _ => {
                let n = match level {
                    libc::SOL_SOCKET => self.get_socket_option(fd, &socket, &options, name)?,
                    libc::SOL_TCP => self.get_tcp_option(&socket, &options, name)?,
                    libc::SOL_IP | libc::SOL_IPV6 => get_ip_option(&socket, &options, level, name)?,
                    _ => return Err(unsupported(level, name)),
                };
                n.to_ne_bytes().to_vec()
            }
        };
        let len = bytes.len().min(len);
        Ok(Some(Outcome::with(0, Out::Bytes(bytes[..len].to_vec()))))
    }

    fn get_socket_option(&mut self, fd: i32, socket: &Socket, options: &TcpOptions, name: i32) -> Result<i32, String> {
        Ok(match name {
            libc::SO_ERROR => self.so_error(fd, socket),
            libc::SO_REUSEADDR => socket.kept.reuse_addr,
            libc::SO_REUSEPORT => socket.kept.reuse_port,
            libc::SO_PRIORITY | libc::SO_MARK => 0,
            libc::SO_TYPE => socket.kind & 0xf,
            libc::SO_DOMAIN => socket.domain,
            libc::SO_PROTOCOL => socket.protocol,
            libc::SO_ACCEPTCONN => matches!(socket.state, State::Listening(_)).into(),
            libc::SO_KEEPALIVE => options.keepalive.is_some().into(),
            libc::SO_SNDBUF => socket.options.send_buffer.map_or(16_384, |n| n as i32),
            libc::SO_RCVBUF => socket.options.receive_buffer.map_or(131_072, |n| n as i32 * 2),
            libc::SO_RCVLOWAT => options.receive_low.max(1) as i32,
            libc::SO_OOBINLINE => options.oob_inline.into(),
            libc::SO_MAX_PACING_RATE => options.pacing_max.map_or(-1, |n| n as i32),
            _ => return Err(unsupported(libc::SOL_SOCKET, name)),
        })
    }

    fn so_error(&mut self, fd: i32, socket: &Socket) -> i32 {
        if let Some(error) = self.fds.socket_mut(fd).and_then(|s| s.error.take()) {
            return error;
        }
        let taken = match socket.state {
            State::Stream(id) => self.stack.tcp_take_error(id),
            State::Udp(id) => self.stack.udp_take_error(id),
            State::New | State::Listening(_) => Ok(None),
        };
        taken.ok().flatten().map_or(0, Error::errno)
    }

    fn get_tcp_option(&mut self, socket: &Socket, options: &TcpOptions, name: i32) -> Result<i32, String> {
        let keepalive = |kept: Option<i32>, sysctl: Option<i32>, otherwise: i32| kept.or(sysctl).unwrap_or(otherwise);
        let kept = socket.kept;
        Ok(match name {
            libc::TCP_NODELAY => options.nodelay.into(),
            libc::TCP_CORK => options.cork.into(),
            libc::TCP_MAXSEG => match socket.state {
                State::Stream(id) => self.stack.tcp_info(id).map_or(536, |i| i.snd_mss as i32),
                _ => options.max_segment.unwrap_or(536).into(),
            },
            libc::TCP_KEEPIDLE => keepalive(kept.keep_idle, self.sysctls.keepalive_time, 7200),
            libc::TCP_KEEPINTVL => keepalive(kept.keep_interval, self.sysctls.keepalive_interval, 75),
            libc::TCP_KEEPCNT => keepalive(kept.keep_count, self.sysctls.keepalive_probes, 9),
            libc::TCP_DEFER_ACCEPT => options.defer_accept.map_or(0, |d| d.as_secs() as i32),
            libc::TCP_WINDOW_CLAMP => options.window_clamp.unwrap_or(0) as i32,
            libc::TCP_USER_TIMEOUT => options.user_timeout.map_or(0, |d| d.as_millis() as i32),
            libc::TCP_NOTSENT_LOWAT => {
                if socket.options.not_sent_low == self.sysctls.not_sent_low {
                    0
                } else {
                    options.not_sent_low.unwrap_or(0) as i32
                }
            }
            libc::TCP_FASTOPEN => kept.fast_open,
            libc::TCP_FASTOPEN_CONNECT => kept.fast_open_connect,
            libc::TCP_INQ => kept.inq,
            libc::TCP_SYNCNT => options.syn_retries.unwrap_or(self.stack.config().tcp.syn_retries).into(),
            libc::TCP_QUICKACK => match socket.state {
                State::Stream(id) => self.stack.tcp_quickack(id).unwrap_or(true).into(),
                _ => 1,
            },
            _ => return Err(unsupported(libc::SOL_TCP, name)),
        })
    }
}

/// Makes the error for a value without effect on the engine. A script that sets it relies on its
/// effect.
fn without_effect(name: i32, value: i32, why: &str) -> String {
    format!("socket option {name} = {value} has no effect on the engine: {why}")
}

fn get_ip_option(socket: &Socket, options: &TcpOptions, level: i32, name: i32) -> Result<i32, String> {
    Ok(match (level, name) {
        (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => options.tos.into(),
        (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS) => options.ttl.unwrap_or(64).into(),
        (libc::SOL_IPV6, libc::IPV6_V6ONLY) => socket.kept.v6_only,
        (libc::SOL_IP, libc::IP_FREEBIND) => 0,
        (libc::SOL_IP, libc::IP_MTU_DISCOVER) | (libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER) => {
            socket.kept.mtu_discover.unwrap_or(libc::IP_PMTUDISC_WANT)
        }
        _ => return Err(unsupported(level, name)),
    })
}
