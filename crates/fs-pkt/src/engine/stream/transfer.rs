//! Calls that send and receive.

use super::*;

impl Engine {
    pub(super) fn receive(
        &mut self,
        fd: i32,
        len: usize,
        null: bool,
        flags: i32,
        operation: &mut Operation,
    ) -> Attempt {
        let Some(socket) = self.fds.socket_mut(fd) else { return fails(libc::EBADF) };
        let nonblock = socket.nonblock || flags & libc::MSG_DONTWAIT != 0;
        let known = libc::MSG_DONTWAIT
            | libc::MSG_PEEK
            | libc::MSG_WAITALL
            | libc::MSG_TRUNC
            | libc::MSG_NOSIGNAL
            | libc::MSG_OOB;
        if flags & !known != 0 {
            return Err(format!("receive flags {flags:#x} are not supported on the engine"));
        }
        let (state, active) = (socket.state, socket.connecting);
        let mut buffer = vec![0; len];
        let message = |n: usize| {
            let out = Out::Message { flags: 0, control: Vec::new() };
            done(Outcome::with(n as i64, out))
        };
        let id = match state {
            State::New if socket.deferred.is_some() => {
                return if nonblock { fails(libc::EAGAIN) } else { Ok(None) };
            }
            State::New | State::Listening(_) => {
                let pending = socket.error.take();
                return fails(pending.unwrap_or(libc::ENOTCONN));
            }
            State::Udp(id) => {
                return match self.stack.udp_recv(id, &mut buffer, flags & libc::MSG_PEEK != 0) {
                    Ok(meta) => message(meta.len.min(len)),
                    Err(Error::WouldBlock) if !nonblock => Ok(None),
                    Err(e) => fails(e.errno()),
                };
            }
            State::Stream(id) => id,
        };
        if flags & libc::MSG_OOB != 0 {
            return match self.stack.tcp_recv_urgent(id) {
                Ok(_) => done(Outcome::with(1, Out::Message { flags: libc::MSG_OOB, control: Vec::new() })),
                // Linux never blocks for it.
                Err(e) => fails(e.errno()),
            };
        }
        // With Fast Open, a passive socket can be read before its handshake is complete.
        if active && matches!(self.stack.tcp_state(id), Ok(TcpState::SynSent | TcpState::SynReceived)) {
            return if nonblock { fails(libc::EAGAIN) } else { Ok(None) };
        }
        if null && len > 0 && self.stack.tcp_queued(id).is_ok_and(|(read, _)| read > 0) {
            return fails(libc::EFAULT);
        }
        let whole = flags & libc::MSG_WAITALL != 0;
        let moved = operation.moved;
        let result = match flags & libc::MSG_PEEK {
            0 => self.stack.tcp_recv(id, &mut buffer[moved..]),
            _ => self.stack.tcp_peek(id, &mut buffer),
        };
        match result {
            Ok(n) if whole && n > 0 && moved + n < len && !nonblock => {
                operation.moved += n;
                Ok(None)
            }
            Ok(0) if moved == 0 && len > 0 => match self.fds.socket_mut(fd).and_then(|s| s.error.take()) {
                Some(error) => fails(error),
                None => message(0),
            },
            Ok(n) => message(moved + n),
            Err(Error::WouldBlock) if !nonblock => Ok(None),
            Err(_) if moved > 0 => message(moved),
            Err(e) => fails(e.errno()),
        }
    }

    pub(super) fn send(
        &mut self,
        fd: i32,
        len: usize,
        null: bool,
        flags: i32,
        to: Destination,
        operation: &mut Operation,
    ) -> Attempt {
        let Some(socket) = self.fds.socket_mut(fd) else { return fails(libc::EBADF) };
        const HOW: i32 = libc::MSG_OOB | libc::MSG_MORE | libc::MSG_EOR;
        let known = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | HOW | libc::MSG_FASTOPEN;
        if flags & !known != 0 || (flags & HOW).count_ones() > 1 {
            return Err(format!("send flags {flags:#x} are not supported on the engine"));
        }
        if let Some(error) = socket.error.take() {
            return fails(error);
        }
        let nonblock = socket.nonblock || flags & libc::MSG_DONTWAIT != 0;
        let id = match socket.state {
            State::New if socket.kind & 0xf == libc::SOCK_DGRAM => return self.send_first_datagram(fd, len, to),
            State::New if flags & libc::MSG_FASTOPEN != 0 || socket.deferred.is_some() => {
                let to = socket.deferred.map_or(to, Destination::To);
                return self.send_with_syn(fd, len, null, to, nonblock, operation);
            }
            State::New | State::Listening(_) => return fails(libc::EPIPE),
            State::Udp(id) => {
                let to = if let Destination::To(to) = to { Some(to) } else { None };
                return match self.stack.udp_send(id, &vec![0; len], to) {
                    Ok(n) => done(Outcome::ok(n as i64)),
                    Err(e) => fails(e.errno()),
                };
            }
            State::Stream(id) => id,
        };
        if null && len > 0 {
            return fails(libc::EFAULT);
        }
        let asked = flags & libc::MSG_FASTOPEN != 0 && operation.until.is_none();
        if (asked || operation.until.is_some())
            && let Some(error) = self.fast_connect_ended(fd, id, asked)
        {
            return fails(error);
        }
        let moved = operation.moved;
        let bytes = vec![0; len - moved];
        let sent = match flags & HOW {
            0 => self.stack.tcp_send(id, &bytes),
            libc::MSG_MORE => self.stack.tcp_send_more(id, &bytes),
            libc::MSG_EOR => self.stack.tcp_send_record(id, &bytes),
            _ => self.stack.tcp_send_urgent(id, &bytes),
        };
        match sent {
            Ok(n) if moved + n < len && !nonblock => {
                operation.moved += n;
                Ok(None)
            }
            Ok(n) => done(Outcome::ok((moved + n) as i64)),
            Err(Error::WouldBlock) if !nonblock => Ok(None),
            Err(_) if moved > 0 => done(Outcome::ok(moved as i64)),
            Err(e) => fails(e.errno()),
        }
    }

    /// sendto(MSG_FASTOPEN): connects, with as much data in the SYN as possible.
    pub(super) fn send_with_syn(
        &mut self,
        fd: i32,
        len: usize,
        null: bool,
        to: Destination,
        nonblock: bool,
        operation: &mut Operation,
    ) -> Attempt {
        if self.sysctls.fast_open & 1 == 0 || to == Destination::Unspecified {
            return fails(libc::EOPNOTSUPP);
        }
        let Destination::To(to) = to else { return fails(libc::EINVAL) };
        if null && len > 0 && self.stack.fast_open_ready(to.ip()) {
            return fails(libc::EFAULT);
        }
        let Some(socket) = self.fds.socket(fd) else { return fails(libc::EBADF) };
        let connect = Connect { remote: to, local: socket.bound, options: socket.options };
        match self.stack.tcp_connect_with(connect, &vec![0; len]) {
            Ok((id, taken)) => {
                self.set_state(fd, State::Stream(id));
                if let Some(socket) = self.fds.socket_mut(fd) {
                    (socket.connecting, socket.deferred) = (true, None);
                }
                operation.moved = taken;
                // Marks the call as the one that has connected.
                operation.until = Some(i64::MAX);
                match (nonblock, taken) {
                    (true, 0) => fails(libc::EINPROGRESS),
                    (true, _) => done(Outcome::ok(taken as i64)),
                    (false, _) => Ok(None),
                }
            }
            Err(e) => fails(e.errno()),
        }
    }

    /// A send that connects, or one with MSG_FASTOPEN after it: Linux reports the connect's result
    /// as connect() does, once, and then sends.
    pub(super) fn fast_connect_ended(&mut self, fd: i32, id: TcpId, asked: bool) -> Option<i32> {
        let socket = self.fds.socket_mut(fd).filter(|s| s.connecting || asked)?;
        match self.stack.tcp_state(id) {
            Ok(TcpState::SynSent | TcpState::SynReceived) => asked.then_some(libc::EALREADY),
            Ok(TcpState::Closed) if socket.connecting => {
                socket.connecting = false;
                let error = self.stack.tcp_take_error(id).ok().flatten();
                Some(error.map_or(libc::ECONNABORTED, Error::errno))
            }
            _ if !socket.connecting => Some(libc::EISCONN),
            _ => {
                (socket.connecting, socket.connected) = (false, true);
                None
            }
        }
    }

    /// TCP_INQ: recvmsg() reports the number of unread bytes. After the peer's FIN it is at least
    /// one, for the end of the stream.
    pub(super) fn with_inq(&self, fd: i32, outcome: Outcome) -> Outcome {
        let Some(socket) = self.fds.socket(fd).filter(|s| s.kept.inq != 0) else { return outcome };
        let (State::Stream(id), Out::Message { flags, .. }) = (socket.state, &outcome.out) else { return outcome };
        let left = self.stack.tcp_queued(id).map_or(0, |(read, _)| read as i32);
        let open = matches!(
            self.stack.tcp_state(id),
            Ok(TcpState::SynReceived | TcpState::Established | TcpState::FinWait1 | TcpState::FinWait2)
        );
        let data = left.max(i32::from(!open)).to_ne_bytes().to_vec();
        let control = vec![Control { level: libc::SOL_TCP, kind: libc::TCP_CM_INQ, data }];
        Outcome { out: Out::Message { flags: *flags, control }, ..outcome }
    }

    pub(super) fn send_first_datagram(&mut self, fd: i32, len: usize, to: Destination) -> Attempt {
        let Destination::To(to) = to else { return fails(libc::EDESTADDRREQ) };
        let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
        match self.stack.udp_bind(any) {
            Ok(id) => {
                self.set_state(fd, State::Udp(id));
                match self.stack.udp_send(id, &vec![0; len], Some(to)) {
                    Ok(n) => done(Outcome::ok(n as i64)),
                    Err(e) => fails(e.errno()),
                }
            }
            Err(e) => fails(e.errno()),
        }
    }
}
