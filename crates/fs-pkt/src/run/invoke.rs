//! System-call events: converts the script's arguments to a target's call, and compares results.

use super::Runner;
use super::call::{Destination, Out, Outcome, SysCall, Transfer};
use super::conn::{Conn, Stage};
use super::target::Target;
use super::values::{address, bracketed, buffers, bytes, int, length, number};
use crate::script::ast::{Call, Expr};
use crate::symbols;
use std::net::SocketAddr;

/// Returns true for calls that make a descriptor.
fn makes_descriptor(call: &SysCall) -> bool {
    matches!(call, SysCall::Socket { .. } | SysCall::Accept { .. } | SysCall::EpollCreate { .. } | SysCall::Open { .. })
}

impl<T: Target> Runner<'_, T> {
    /// Evaluates a call's arguments.
    pub(super) fn prepare(&mut self, call: &Call) -> Result<SysCall, String> {
        let args = &call.args;
        let count = |wanted: usize| {
            if args.len() == wanted {
                Ok(())
            } else {
                Err(format!("{} expected {wanted} args but got {}", call.name, args.len()))
            }
        };
        let two_or_three = || if matches!(args.len(), 2 | 3) { Ok(()) } else { count(3) };
        let made = match call.name.as_str() {
            "socket" => {
                count(3)?;
                let domain = match args[0] {
                    Expr::Ellipsis => self.domain(),
                    ref other => int(other)?,
                };
                SysCall::Socket { domain, kind: int(&args[1])?, protocol: int(&args[2])? }
            }
            "bind" => {
                count(3)?;
                let at = address(&args[1])?.unwrap_or(self.config.bind_address());
                SysCall::Bind { fd: self.fd(&args[0])?, at }
            }
            "listen" => {
                count(2)?;
                SysCall::Listen { fd: self.fd(&args[0])?, backlog: int(&args[1])? }
            }
            "accept" => {
                count(3)?;
                SysCall::Accept { fd: self.fd(&args[0])? }
            }
            "connect" => {
                count(3)?;
                let fd = self.fd(&args[0])?;
                let to = match &args[1] {
                    Expr::Word(name) if name == "AF_UNSPEC" => None,
                    other => Some(address(other)?.unwrap_or(self.config.connect_address())),
                };
                self.connects(int(&args[0])?, to);
                SysCall::Connect { fd, to }
            }
            "read" | "write" => {
                count(3)?;
                self.plain(call, Transfer::Plain, &args[1], &args[2], None, Destination::Connected)?
            }
            "readv" | "writev" => {
                count(3)?;
                let lens = buffers(&args[1])?;
                if length(&args[2])? != lens.len() {
                    return Err(format!("iov_count {} does not match {}-element iovec array", args[2], lens.len()));
                }
                self.transfer(call, Transfer::Vector, lens, false, 0, Destination::Connected, 0)?
            }
            "recv" | "send" => {
                count(4)?;
                self.plain(call, Transfer::Flags, &args[1], &args[2], Some(&args[3]), Destination::Connected)?
            }
            "recvfrom" => {
                count(6)?;
                self.plain(call, Transfer::Address, &args[1], &args[2], Some(&args[3]), Destination::Connected)?
            }
            "sendto" => {
                count(6)?;
                let to = match &args[4] {
                    Expr::Word(name) if name == "AF_UNSPEC" => Destination::Unspecified,
                    other => Destination::To(address(other)?.unwrap_or(self.config.connect_address())),
                };
                self.connects(int(&args[0])?, if let Destination::To(to) = to { Some(to) } else { None });
                self.plain(call, Transfer::Address, &args[1], &args[2], Some(&args[3]), to)?
            }
            "recvmsg" | "sendmsg" => {
                count(3)?;
                self.message(call)?
            }
            "close" => {
                count(1)?;
                SysCall::Close { fd: self.fd(&args[0])? }
            }
            "shutdown" => {
                count(2)?;
                SysCall::Shutdown { fd: self.fd(&args[0])?, how: int(&args[1])? }
            }
            "fcntl" => {
                two_or_three()?;
                let arg = args.get(2).map(int).transpose()?;
                SysCall::Fcntl { fd: self.fd(&args[0])?, command: int(&args[1])?, arg }
            }
            "ioctl" => {
                two_or_three()?;
                SysCall::Ioctl { fd: self.fd(&args[0])?, request: int(&args[1])?, arg: args.len() == 3 }
            }
            "getsockopt" => {
                count(5)?;
                let len = usize::try_from(bracketed(&args[4])?).map_err(|e| e.to_string())?;
                SysCall::GetOption { fd: self.fd(&args[0])?, level: int(&args[1])?, name: int(&args[2])?, len }
            }
            "setsockopt" => {
                count(5)?;
                let value = option_value(&args[3])?;
                let len = length(&args[4])?;
                SysCall::SetOption { fd: self.fd(&args[0])?, level: int(&args[1])?, name: int(&args[2])?, value, len }
            }
            "poll" => {
                count(3)?;
                let Expr::List(items) = &args[0] else { return Err("expected an array of struct pollfd".into()) };
                if length(&args[1])? != items.len() {
                    return Err(format!("nfds {} does not match {}-element pollfd array", args[1], items.len()));
                }
                let fds: Result<Vec<_>, String> = items.iter().map(|item| self.pollfd(item)).collect();
                SysCall::Poll { fds: fds?, timeout: int(&args[2])? }
            }
            "epoll_create" => {
                count(1)?;
                SysCall::EpollCreate { size: int(&args[0])? }
            }
            "epoll_ctl" => {
                count(4)?;
                let (events, data) = self.epoll_event(&args[3])?;
                let fd = self.fd(&args[2])?;
                SysCall::EpollControl { epoll: self.fd(&args[0])?, operation: int(&args[1])?, fd, events, data }
            }
            "epoll_wait" => {
                count(4)?;
                SysCall::EpollWait { epoll: self.fd(&args[0])?, max: int(&args[2])?, timeout: int(&args[3])? }
            }
            "pipe" => {
                count(1)?;
                SysCall::Pipe
            }
            "open" => {
                count(2)?;
                let Expr::Str(path) = &args[0] else { return Err(format!("bad path: {}", args[0])) };
                SysCall::Open { path: path.clone(), flags: int(&args[1])? }
            }
            "sendfile" => {
                count(4)?;
                let (to, from) = (self.fd(&args[0])?, self.fd(&args[1])?);
                SysCall::Sendfile { to, from, offset: bracketed(&args[2])?.into(), count: length(&args[3])? }
            }
            "splice" => {
                count(6)?;
                let (from, to) = (self.fd(&args[0])?, self.fd(&args[2])?);
                SysCall::Splice { from, to, len: length(&args[4])?, flags: int(&args[5])? as u32 }
            }
            "cap_set" => SysCall::CapSet,
            other => return Err(format!("Unknown system call: '{other}'")),
        };
        Ok(made)
    }

    fn domain(&self) -> i32 {
        if self.config.bind_address().is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
    }

    /// Returns the target's descriptor for the script's.
    fn fd(&self, expr: &Expr) -> Result<i32, String> {
        let fd = int(expr)?;
        self.fds.get(&fd).copied().ok_or_else(|| format!("unable to find fd with script fd {fd}"))
    }

    fn conn_of(&mut self, fd: i32) -> Option<usize> {
        self.conns.iter().rposition(|c| c.fd == Some(fd))
    }

    /// Records the destination of connect() or of a send with an address: packets to it belong to
    /// the socket.
    fn connects(&mut self, fd: i32, to: Option<SocketAddr>) {
        let Some(index) = self.conn_of(fd) else { return };
        let conn = &mut self.conns[index];
        match to {
            None => conn.stage = Stage::New,
            Some(to) if conn.stage == Stage::New => {
                conn.stage = Stage::Connecting;
                conn.local = None;
                conn.remote = Some(SocketAddr::new(to.ip().to_canonical(), to.port()));
                self.current = Some(index);
            }
            Some(_) => {}
        }
    }

    fn plain(
        &self,
        call: &Call,
        by: Transfer,
        buffer: &Expr,
        len: &Expr,
        flags: Option<&Expr>,
        to: Destination,
    ) -> Result<SysCall, String> {
        let null = match buffer {
            Expr::Ellipsis => false,
            Expr::Int(0) | Expr::Hex(0) => true,
            Expr::Word(name) if name == "NULL" => true,
            other => return Err(format!("Expected ... or NULL for buffer, found {other}")),
        };
        let flags = flags.map_or(Ok(0), int)?;
        self.transfer(call, by, vec![length(len)?], null, flags, to, 0)
    }

    #[allow(clippy::too_many_arguments, reason = "the call's arguments")]
    fn transfer(
        &self,
        call: &Call,
        by: Transfer,
        lens: Vec<usize>,
        null: bool,
        flags: i32,
        to: Destination,
        control: usize,
    ) -> Result<SysCall, String> {
        let fd = self.fd(&call.args[0])?;
        Ok(match call.name.as_str() {
            "read" | "readv" | "recv" | "recvfrom" | "recvmsg" => {
                SysCall::Receive { fd, by, lens, null, flags, control }
            }
            _ => SysCall::Send { fd, by, lens, null, flags, to },
        })
    }

    /// `{msg_name(...)=..., msg_iov(1)=[{...,1000}], msg_flags=0, msg_control=[…]}`
    fn message(&mut self, call: &Call) -> Result<SysCall, String> {
        let header = &call.args[1];
        let iov = header.field("msg_iov").ok_or_else(|| format!("bad struct msghdr: {header}"))?;
        let lens = buffers(&iov.value)?;
        let stated = iov.count.as_ref().map_or(Ok(lens.len()), length)?;
        if stated != lens.len() {
            return Err(format!("msg_iovlen {stated} does not match {}-element iovec array", lens.len()));
        }
        let flags = int(&call.args[2])?;
        let receives = call.name == "recvmsg";
        if !receives && header.field("msg_flags").is_some_and(|f| number(&f.value) != Ok(0)) {
            return Err("sendmsg ignores msg_flags field in msghdr".into());
        }
        let control = match header.field("msg_control").map(|f| &f.value) {
            None => 0,
            Some(Expr::List(items)) if items.is_empty() => 0,
            Some(_) if receives => 256,
            Some(_) => return Err("msg_control of sendmsg is not supported".into()),
        };
        let mut to = Destination::Connected;
        if !receives && header.field("msg_name").is_some() {
            let address = self.config.connect_address();
            to = Destination::To(address);
            self.connects(int(&call.args[0])?, Some(address));
        }
        self.transfer(call, Transfer::Message, lens, false, flags, to, control)
    }

    fn pollfd(&self, item: &Expr) -> Result<(i32, i16), String> {
        let field = |name: &str| item.field(name).map(|f| &f.value).ok_or_else(|| format!("bad struct pollfd: {item}"));
        Ok((self.fd(field("fd")?)?, int(field("events")?)? as i16))
    }

    /// `{events=EPOLLIN, fd=4}`: returns the events, and the data in the kernel's format.
    fn epoll_event(&self, item: &Expr) -> Result<(u32, u64), String> {
        let bad = || format!("bad struct epoll_event: {item}");
        let events = int(&item.field("events").ok_or_else(bad)?.value)? as u32;
        if let Some(fd) = item.field("fd") {
            return Ok((events, self.fd(&fd.value)? as u64));
        }
        let data = ["ptr", "u32", "u64"].iter().find_map(|name| item.field(name)).ok_or_else(bad)?;
        Ok((events, number(&data.value)? as u64))
    }

    /// Compares a call's outcome with the script, and records the descriptors that it made or
    /// closed.
    pub(super) fn conclude(&mut self, call: &Call, made: &SysCall, outcome: &Outcome) -> Result<(), String> {
        self.check_result(call, made, outcome)?;
        match made {
            SysCall::Socket { kind, protocol, .. } if outcome.result >= 0 => {
                let fd = self.add_fd(&call.result, outcome)?;
                let mut conn = Conn::new(Stage::New);
                conn.fd = Some(fd);
                conn.icmp = matches!(*protocol, libc::IPPROTO_ICMP | libc::IPPROTO_ICMPV6);
                conn.udp = kind & 0xf == libc::SOCK_DGRAM && !conn.icmp;
                self.conns.push(conn);
                self.current = Some(self.conns.len() - 1);
                Ok(())
            }
            SysCall::Accept { .. } if outcome.result >= 0 => {
                // Here, and in packetdrill, an earlier connection may have had the number.
                let fd = int(&call.result)?;
                self.fds.insert(fd, outcome.result as i32);
                let Out::Peer(peer) = outcome.out else { return Err("accept returned no peer".into()) };
                let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                let found = self.conns.iter_mut().rev().find(|c| c.remote == Some(peer) && c.fd.is_none());
                found.ok_or("unable to find socket matching accept() call")?.fd = Some(fd);
                Ok(())
            }
            SysCall::EpollCreate { .. } | SysCall::Open { .. } if outcome.result >= 0 => {
                self.add_fd(&call.result, outcome).map(|_| ())
            }
            SysCall::Pipe => match (&call.args[0], &outcome.out) {
                (Expr::List(items), Out::Pair(a, b)) if items.len() == 2 => {
                    self.fds.insert(int(&items[0])?, *a);
                    self.fds.insert(int(&items[1])?, *b);
                    Ok(())
                }
                _ => Err(format!("bad array of two descriptors: {}", call.args[0])),
            },
            SysCall::Listen { .. } if outcome.result == 0 => {
                let index = self.conn_of(int(&call.args[0])?);
                let index = index.ok_or("unable to find the listening socket")?;
                self.conns[index].stage = Stage::Listening;
                Ok(())
            }
            SysCall::Close { .. } if outcome.result == 0 => {
                self.fds.remove(&int(&call.args[0])?);
                Ok(())
            }
            SysCall::Ioctl { arg: true, .. } => match outcome.out {
                Out::Int(actual) => match bracketed(&call.args[2])? {
                    expected if expected == actual => Ok(()),
                    expected => Err(format!("Bad ioctl optval: expected: {expected} actual: {actual}")),
                },
                _ => Ok(()),
            },
            SysCall::GetOption { .. } if outcome.result == 0 => self.check_option(call, outcome),
            SysCall::Poll { .. } if outcome.result >= 0 => check_poll(&call.args[0], outcome),
            SysCall::EpollWait { .. } if outcome.result > 0 => self.check_epoll(&call.args[1], outcome),
            SysCall::Receive { by: Transfer::Message, .. } if outcome.result >= 0 => {
                let tolerance = self.config.tolerance_us;
                let target = &mut *self.target;
                super::control::check_message(&call.args[1], outcome, &mut |expected, (seconds, nanos)| {
                    let actual = target.wall_time(seconds, nanos).ok_or("the target keeps no wall clock")?;
                    if (actual - expected).abs() <= tolerance {
                        return Ok(());
                    }
                    Err(format!("Bad timestamp in scm_timestamping: expected: {expected} us actual: {actual} us"))
                })
            }
            _ => Ok(()),
        }
    }

    fn add_fd(&mut self, result: &Expr, outcome: &Outcome) -> Result<i32, String> {
        let fd = int(result)?;
        if self.fds.insert(fd, outcome.result as i32).is_some() {
            return Err(format!("duplicate fd {fd} in script"));
        }
        Ok(fd)
    }

    fn check_result(&self, call: &Call, made: &SysCall, outcome: &Outcome) -> Result<(), String> {
        if call.result == Expr::Ellipsis {
            return Ok(());
        }
        let expected = i64::from(int(&call.result)?);
        let actual = outcome.result;
        let errno = || format!("with errno {} ({})", outcome.errno, symbols::errno_name(outcome.errno));
        if makes_descriptor(made) && expected >= 0 {
            if actual < 0 {
                return Err(format!("Expected non-negative result but got {actual} {}", errno()));
            }
        } else if actual != expected {
            return Err(format!("Expected result {expected} but got {actual} {}", errno()));
        }
        if let Some(name) = &call.errno {
            let wanted = symbols::value(name).ok_or_else(|| format!("unknown symbol: '{name}'"))? as i32;
            if outcome.errno != wanted {
                return Err(format!(
                    "Expected errno {wanted} ({}) but got {} ({})",
                    symbols::errno_name(wanted),
                    outcome.errno,
                    symbols::errno_name(outcome.errno)
                ));
            }
        }
        Ok(())
    }

    fn check_option(&self, call: &Call, outcome: &Outcome) -> Result<(), String> {
        let Out::Bytes(actual) = &outcome.out else { return Err("getsockopt gave no value".into()) };
        let len = length_of_bracketed(&call.args[4])?;
        if actual.len() != len {
            return Err(format!("Bad getsockopt optlen: expected: {len} actual: {}", actual.len()));
        }
        match &call.args[3] {
            Expr::Ellipsis => Ok(()),
            Expr::Str(text) => {
                let expected = bytes(text)?;
                // A name's value is padded with zeros.
                let shown = |b: &[u8]| b.escape_ascii().to_string();
                if actual[..] == expected[..]
                    || actual.starts_with(&expected) && actual[expected.len()..].iter().all(|b| *b == 0)
                {
                    return Ok(());
                }
                Err(format!("Bad getsockopt optval: expected: '{}' actual: '{}'", shown(&expected), shown(actual)))
            }
            value => {
                let expected = option_value(value)?;
                let same = actual.len() <= expected.len() && expected[..actual.len()] == actual[..];
                let number = |b: &[u8]| b.iter().rev().fold(0i64, |n, b| n << 8 | i64::from(*b)) as i32;
                match value {
                    _ if same => Ok(()),
                    Expr::List(_) => Err(format!(
                        "Bad getsockopt optval: expected: {} actual: {}",
                        number(&expected),
                        number(actual)
                    )),
                    _ => Err(format!("Bad getsockopt optval: expected: {value} actual: {actual:?}")),
                }
            }
        }
    }

    fn check_epoll(&self, expected: &Expr, outcome: &Outcome) -> Result<(), String> {
        let (events, data) = self.epoll_event(expected)?;
        let Out::Events(list) = &outcome.out else { return Err("epoll_wait returned no events".into()) };
        let Some((actual_events, actual_data)) = list.first() else { return Ok(()) };
        if events != *actual_events {
            return Err(format!(
                "epoll_event->events does not match script: expected: {events:#x} actual: {actual_events:#x}"
            ));
        }
        if data != *actual_data {
            return Err(format!("epoll_event->data does not match script: expected: {data} actual: {actual_data}"));
        }
        Ok(())
    }
}

fn length_of_bracketed(expr: &Expr) -> Result<usize, String> {
    usize::try_from(bracketed(expr)?).map_err(|e| e.to_string())
}

/// Returns the bytes of setsockopt's value.
fn option_value(expr: &Expr) -> Result<Vec<u8>, String> {
    match expr {
        Expr::Str(text) => bytes(text),
        Expr::List(_) => Ok(bracketed(expr)?.to_ne_bytes().to_vec()),
        Expr::Struct(_) if expr.field("onoff").is_some() => {
            let part =
                |name: &str| expr.field(name).map_or(Err(format!("bad struct linger: {expr}")), |f| int(&f.value));
            Ok([part("onoff")?.to_ne_bytes(), part("linger")?.to_ne_bytes()].concat())
        }
        _ => Err(format!("unsupported socket option value: {expr}")),
    }
}

fn check_poll(expected: &Expr, outcome: &Outcome) -> Result<(), String> {
    let (Expr::List(items), Out::Revents(revents)) = (expected, &outcome.out) else {
        return Err("poll returned no revents".into());
    };
    for (i, (item, actual)) in items.iter().zip(revents).enumerate() {
        let wanted = item.field("revents").map_or(Ok(0), |f| int(&f.value))? as i16;
        if wanted != *actual {
            return Err(format!("Expected revents of {wanted:#x} but got {actual:#x} for pollfd {i}"));
        }
    }
    Ok(())
}
