//! Options of TCP, and [`TcpKeepalive`].

use super::options::int_options;
use super::socket::Socket;
use crate::call;
use std::io;
use std::time::Duration;

/// The keepalive times of a connection; see [`Socket::set_tcp_keepalive`].
///
/// Values that are not set stay as they are.
///
/// ```
/// use fs_compat::socket2::{Domain, Socket, TcpKeepalive, Type};
/// use std::time::Duration;
///
/// let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
/// socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(60)))?;
/// assert_eq!(socket.tcp_keepalive_time()?, Duration::from_secs(60));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct TcpKeepalive {
    time: Option<Duration>,
    interval: Option<Duration>,
    retries: Option<u32>,
}

#[allow(clippy::new_without_default)]
impl TcpKeepalive {
    /// Creates a value with nothing set.
    pub const fn new() -> TcpKeepalive {
        TcpKeepalive { time: None, interval: None, retries: None }
    }

    /// TCP_KEEPIDLE: idle time before the first probe, in whole seconds.
    pub const fn with_time(self, time: Duration) -> Self {
        Self { time: Some(time), ..self }
    }

    /// TCP_KEEPINTVL: time between two probes, in whole seconds.
    pub const fn with_interval(self, interval: Duration) -> Self {
        Self { interval: Some(interval), ..self }
    }

    /// TCP_KEEPCNT: unanswered probes before the connection fails.
    pub const fn with_retries(self, retries: u32) -> Self {
        Self { retries: Some(retries), ..self }
    }
}

int_options! {
    /// TCP_NODELAY.
    tcp_nodelay, set_tcp_nodelay: bool = IPPROTO_TCP, TCP_NODELAY;
    /// TCP_MAXSEG in bytes.
    tcp_mss, set_tcp_mss: u32 = IPPROTO_TCP, TCP_MAXSEG;
    /// TCP_CORK: only full segments are sent, others at most 200 ms late.
    tcp_cork, set_tcp_cork: bool = IPPROTO_TCP, TCP_CORK;
    /// TCP_QUICKACK: send ACKs at once, until the kernel changes it.
    tcp_quickack, set_tcp_quickack: bool = IPPROTO_TCP, TCP_QUICKACK;
    /// TCP_THIN_LINEAR_TIMEOUTS.
    tcp_thin_linear_timeouts, set_tcp_thin_linear_timeouts: bool = IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS;
    /// TCP_NOTSENT_LOWAT in bytes.
    tcp_notsent_lowat, set_tcp_notsent_lowat: u32 = IPPROTO_TCP, TCP_NOTSENT_LOWAT;
}

impl Socket {
    /// Sets SO_KEEPALIVE, with the times of `params`.
    pub fn set_tcp_keepalive(&self, params: &TcpKeepalive) -> io::Result<()> {
        let TcpKeepalive { time, interval, retries } = *params;
        self.set_keepalive(true)?;
        let seconds = |time: Duration| i32::try_from(time.as_secs()).unwrap_or(i32::MAX);
        if let Some(time) = time {
            self.set_tcp(libc::TCP_KEEPIDLE, seconds(time))?;
        }
        if let Some(interval) = interval {
            self.set_tcp(libc::TCP_KEEPINTVL, seconds(interval))?;
        }
        if let Some(retries) = retries {
            self.set_tcp(libc::TCP_KEEPCNT, i32::try_from(retries).unwrap_or(i32::MAX))?;
        }
        Ok(())
    }

    /// TCP_KEEPIDLE.
    pub fn tcp_keepalive_time(&self) -> io::Result<Duration> {
        Ok(Duration::from_secs(self.tcp(libc::TCP_KEEPIDLE)? as u64))
    }

    /// TCP_KEEPINTVL.
    pub fn tcp_keepalive_interval(&self) -> io::Result<Duration> {
        Ok(Duration::from_secs(self.tcp(libc::TCP_KEEPINTVL)? as u64))
    }

    /// TCP_KEEPCNT.
    pub fn tcp_keepalive_retries(&self) -> io::Result<u32> {
        Ok(self.tcp(libc::TCP_KEEPCNT)? as u32)
    }

    /// TCP_USER_TIMEOUT: how long data may stay unacknowledged before the connection fails; `None`:
    /// the default.
    pub fn tcp_user_timeout(&self) -> io::Result<Option<Duration>> {
        let millis = self.tcp(libc::TCP_USER_TIMEOUT)? as u32;
        Ok((millis != 0).then(|| Duration::from_millis(millis.into())))
    }

    /// TCP_USER_TIMEOUT in ms.
    pub fn set_tcp_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let millis = timeout.map_or(0, |time| u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
        self.set_tcp(libc::TCP_USER_TIMEOUT, millis as i32)
    }

    /// TCP_CONGESTION: the name of the congestion control, padded with zero bytes as the kernel
    /// returns it.
    pub fn tcp_congestion(&self) -> io::Result<Vec<u8>> {
        let mut value = [0; 16];
        let len = call::option(self.fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut value)?;
        Ok(value[..len.min(value.len())].to_vec())
    }

    /// TCP_CONGESTION.
    pub fn set_tcp_congestion(&self, tcp_ca_name: &[u8]) -> io::Result<()> {
        call::set_option(self.fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, tcp_ca_name)
    }

    fn tcp(&self, name: i32) -> io::Result<i32> {
        call::int_option(self.fd(), libc::IPPROTO_TCP, name)
    }

    fn set_tcp(&self, name: i32, value: i32) -> io::Result<()> {
        call::set_int_option(self.fd(), libc::IPPROTO_TCP, name, value)
    }
}
