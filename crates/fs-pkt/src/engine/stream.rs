//! System calls on the engine, with the results and errors of Linux.

mod transfer;

use super::fds::{Epoll, Fd, Kept, Socket, State};
use super::{Engine, Operation};
use crate::run::call::{Control, Destination, Out, Outcome, SysCall};
use fs_core::{Connect, Error, Listen, Shutdown, TcpId, TcpOptions, TcpState};
use std::net::SocketAddr;

/// Result of an attempt: `None` if the call has to wait.
type Attempt = Result<Option<Outcome>, String>;

fn done(outcome: Outcome) -> Attempt {
    Ok(Some(outcome))
}

fn fails(errno: i32) -> Attempt {
    Ok(Some(Outcome::err(errno)))
}

impl Engine {
    /// Attempts a call. A blocking one may have to be tried again.
    pub(super) fn attempt(&mut self, operation: &mut Operation) -> Attempt {
        let over = operation.until.is_some_and(|until| self.now >= until);
        match operation.call.clone() {
            SysCall::Socket { domain, kind, protocol } => Ok(Some(self.socket(domain, kind, protocol))),
            SysCall::Bind { fd, at } => self.bind(fd, at),
            SysCall::Listen { fd, backlog } => self.listen(fd, backlog),
            SysCall::Accept { fd } => self.accept(fd),
            SysCall::Connect { fd, to } => self.connect(fd, to, operation),
            SysCall::Receive { fd, lens, null, flags, control, .. } => {
                let outcome = self.receive(fd, lens.iter().sum(), null, flags, operation)?;
                Ok(outcome.map(|outcome| if control > 0 { self.with_inq(fd, outcome) } else { outcome }))
            }
            SysCall::Send { fd, lens, null, flags, to, .. } => {
                self.send(fd, lens.iter().sum(), null, flags, to, operation)
            }
            SysCall::Close { fd } => self.close(fd),
            SysCall::Shutdown { fd, how } => self.shutdown(fd, how),
            SysCall::Fcntl { fd, command, arg } => self.fcntl(fd, command, arg),
            SysCall::Ioctl { fd, request, .. } => self.ioctl(fd, request),
            SysCall::GetOption { fd, level, name, len } => self.get_option(fd, level, name, len),
            SysCall::SetOption { fd, level, name, value, len } => self.set_option(fd, level, name, &value, len),
            SysCall::Poll { fds, .. } => Ok(self.poll(&fds, over)),
            SysCall::EpollCreate { size } if size <= 0 => fails(libc::EINVAL),
            SysCall::EpollCreate { .. } => {
                let fd = self.fds.add(Fd::Epoll(Epoll::default()));
                done(Outcome::ok(fd.into()))
            }
            SysCall::EpollControl { epoll, operation, fd, events, data } => match self.fds.epoll_mut(epoll) {
                Some(epoll) => done(epoll.control(operation, fd, events, data)),
                None => fails(libc::EINVAL),
            },
            SysCall::EpollWait { epoll, max, .. } => Ok(self.epoll_wait(epoll, max.max(0) as usize, over)),
            SysCall::CapSet => done(Outcome::ok(0)),
            SysCall::Pipe | SysCall::Open { .. } | SysCall::Sendfile { .. } | SysCall::Splice { .. } => {
                Err("files and pipes are not supported on the engine".into())
            }
        }
    }

    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Outcome {
        let base = kind & 0xf;
        let tcp = base == libc::SOCK_STREAM && matches!(protocol, 0 | libc::IPPROTO_TCP);
        let udp = base == libc::SOCK_DGRAM && matches!(protocol, 0 | libc::IPPROTO_UDP);
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return Outcome::err(libc::EAFNOSUPPORT);
        }
        if !tcp && !udp {
            return Outcome::err(libc::EPROTONOSUPPORT);
        }
        let kept = Kept { v6_only: 0, ..Kept::default() };
        let options = TcpOptions { not_sent_low: self.sysctls.not_sent_low, ..TcpOptions::default() };
        let socket = Socket {
            domain,
            kind,
            protocol: if protocol == 0 && tcp { libc::IPPROTO_TCP } else { protocol },
            nonblock: kind & libc::SOCK_NONBLOCK != 0,
            bound: None,
            options,
            kept,
            state: State::New,
            connecting: false,
            deferred: None,
            connected: false,
            error: None,
            shut_read: false,
            shut_write: false,
        };
        Outcome::ok(self.fds.add(Fd::Socket(Box::new(socket))).into())
    }

    fn bind(&mut self, fd: i32, at: SocketAddr) -> Attempt {
        let Some(socket) = self.fds.socket_mut(fd) else { return fails(libc::EBADF) };
        if socket.bound.is_some() || socket.state != State::New {
            return fails(libc::EINVAL);
        }
        if socket.kind & 0xf == libc::SOCK_DGRAM {
            return match self.stack.udp_bind(at) {
                Ok(id) => {
                    if let Some(socket) = self.fds.socket_mut(fd) {
                        socket.bound = Some(at);
                        socket.state = State::Udp(id);
                    }
                    done(Outcome::ok(0))
                }
                Err(e) => fails(e.errno()),
            };
        }
        let kept = socket.kept;
        if self.fds.conflicts(fd, at, &kept) {
            return fails(libc::EADDRINUSE);
        }
        if let Some(socket) = self.fds.socket_mut(fd) {
            socket.bound = Some(at);
        }
        done(Outcome::ok(0))
    }

    fn listen(&mut self, fd: i32, backlog: i32) -> Attempt {
        let Some(socket) = self.fds.socket(fd) else { return fails(libc::EBADF) };
        if socket.kind & 0xf != libc::SOCK_STREAM {
            return fails(libc::EOPNOTSUPP);
        }
        if let State::Listening(_) = socket.state {
            return done(Outcome::ok(0));
        }
        let Some(at) = socket.bound.filter(|_| socket.state == State::New) else { return fails(libc::EINVAL) };
        let listen = Listen {
            at,
            // Linux counts one more than requested.
            backlog: (backlog.max(0) as u32).saturating_add(1),
            v6_only: socket.kept.v6_only != 0,
            fast_open: self.fast_open_queue(socket, backlog),
            options: socket.options,
        };
        match self.stack.tcp_listen(listen) {
            Ok(id) => {
                if let Some(socket) = self.fds.socket_mut(fd) {
                    socket.state = State::Listening(id);
                }
                done(Outcome::ok(0))
            }
            Err(Error::AddrInUse) if socket.kept.reuse_port != 0 => {
                Err("listeners that share a port (SO_REUSEPORT) are on cores of their own; the engine has one here"
                    .into())
            }
            Err(e) => fails(e.errno()),
        }
    }

    /// Linux lets every listener take Fast Open when bit 0x400 of tcp_fastopen is set.
    fn fast_open_queue(&self, socket: &Socket, backlog: i32) -> u32 {
        match socket.kept.fast_open {
            0 if self.sysctls.fast_open & 0x402 == 0x402 => backlog.max(0) as u32,
            queue => queue.max(0) as u32,
        }
    }

    fn accept(&mut self, fd: i32) -> Attempt {
        let Some(socket) = self.fds.socket(fd) else { return fails(libc::EBADF) };
        let State::Listening(id) = socket.state else { return fails(libc::EINVAL) };
        let parent = socket.clone();
        match self.stack.tcp_accept(id) {
            Ok((id, peer)) => {
                let mut socket = parent;
                socket.state = State::Stream(id);
                socket.nonblock = false;
                socket.connected = true;
                let fd = self.fds.add(Fd::Socket(Box::new(socket)));
                done(Outcome::with(fd.into(), Out::Peer(peer)))
            }
            Err(Error::WouldBlock) if !parent.nonblock => Ok(None),
            Err(e) => fails(e.errno()),
        }
    }

    fn connect(&mut self, fd: i32, to: Option<SocketAddr>, operation: &mut Operation) -> Attempt {
        let Some(socket) = self.fds.socket(fd) else { return fails(libc::EBADF) };
        let socket = socket.clone();
        let Some(to) = to else { return self.disconnect(fd) };
        match socket.state {
            State::Listening(_) => fails(libc::EISCONN),
            State::Udp(id) => match self.stack.udp_connect(id, to) {
                Ok(()) => done(Outcome::ok(0)),
                Err(e) => fails(e.errno()),
            },
            State::New if socket.kind & 0xf == libc::SOCK_DGRAM => {
                let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let bound = any.parse().map_err(|_| "bad address")?;
                match self.stack.udp_bind(bound).and_then(|id| self.stack.udp_connect(id, to).map(|()| id)) {
                    Ok(id) => {
                        self.set_state(fd, State::Udp(id));
                        done(Outcome::ok(0))
                    }
                    Err(e) => fails(e.errno()),
                }
            }
            State::New if socket.deferred.is_some() => fails(libc::EISCONN),
            State::New => {
                let connect = Connect { remote: to, local: socket.bound, options: socket.options };
                let fast = socket.kept.fast_open_connect != 0;
                if fast && self.stack.fast_open_ready(to.ip()) {
                    if let Some(socket) = self.fds.socket_mut(fd) {
                        socket.deferred = Some(to);
                    }
                    return done(Outcome::ok(0));
                }
                let begun = match fast {
                    true => self.stack.tcp_connect_with(connect, &[]).map(|(id, _)| id),
                    false => self.stack.tcp_connect(connect),
                };
                match begun {
                    Ok(id) => {
                        self.set_state(fd, State::Stream(id));
                        if let Some(socket) = self.fds.socket_mut(fd) {
                            socket.connecting = true;
                        }
                        operation.moved = 1;
                        if socket.nonblock { fails(libc::EINPROGRESS) } else { Ok(None) }
                    }
                    Err(e) => fails(e.errno()),
                }
            }
            State::Stream(id) => self.connect_ended(fd, id, &socket, operation.moved == 1),
        }
    }

    /// connect() on a socket whose connect has begun, by this call or by an earlier one.
    fn connect_ended(&mut self, fd: i32, id: TcpId, socket: &Socket, ours: bool) -> Attempt {
        let waits = |outcome: i32| if socket.nonblock { fails(outcome) } else { Ok(None) };
        if !socket.connecting {
            return fails(libc::EISCONN);
        }
        match self.stack.tcp_state(id) {
            Ok(TcpState::SynSent | TcpState::SynReceived) if ours => Ok(None),
            Ok(TcpState::SynSent | TcpState::SynReceived) => waits(libc::EALREADY),
            Ok(TcpState::Closed) => {
                let error = self.stack.tcp_take_error(id).ok().flatten().map(Error::errno).or(socket.error);
                self.stack.tcp_close(id);
                if let Some(socket) = self.fds.socket_mut(fd) {
                    (socket.state, socket.connecting, socket.error) = (State::New, false, None);
                }
                fails(error.unwrap_or(libc::ECONNABORTED))
            }
            _ => {
                if let Some(socket) = self.fds.socket_mut(fd) {
                    (socket.connecting, socket.connected) = (false, true);
                }
                done(Outcome::ok(0))
            }
        }
    }

    /// connect() to AF_UNSPEC: aborts the connection and resets the socket.
    fn disconnect(&mut self, fd: i32) -> Attempt {
        let Some(socket) = self.fds.socket_mut(fd) else { return fails(libc::EBADF) };
        let state = std::mem::replace(&mut socket.state, State::New);
        (socket.connecting, socket.connected, socket.deferred, socket.error) = (false, false, None, None);
        match state {
            State::Stream(id) => self.stack.tcp_abort(id),
            State::Listening(id) => self.stack.tcp_close_listener(id),
            State::Udp(id) => self.stack.udp_close(id),
            State::New => {}
        }
        done(Outcome::ok(0))
    }

    fn set_state(&mut self, fd: i32, state: State) {
        if let Some(socket) = self.fds.socket_mut(fd) {
            socket.state = state;
        }
    }

    fn close(&mut self, fd: i32) -> Attempt {
        match self.fds.take(fd) {
            None => return fails(libc::EBADF),
            Some(Fd::Epoll(_)) => {}
            Some(Fd::Socket(socket)) => match socket.state {
                State::New => {}
                State::Listening(id) => self.stack.tcp_close_listener(id),
                State::Stream(id) => self.stack.tcp_close(id),
                State::Udp(id) => self.stack.udp_close(id),
            },
        }
        done(Outcome::ok(0))
    }

    fn shutdown(&mut self, fd: i32, how: i32) -> Attempt {
        let Some(socket) = self.fds.socket(fd) else { return fails(libc::EBADF) };
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return fails(libc::EINVAL),
        };
        let State::Stream(id) = socket.state else { return fails(libc::ENOTCONN) };
        match self.stack.tcp_shutdown(id, how) {
            Ok(()) => {
                if let Some(socket) = self.fds.socket_mut(fd) {
                    socket.shut_read |= how != Shutdown::Write;
                    socket.shut_write |= how != Shutdown::Read;
                }
                done(Outcome::ok(0))
            }
            Err(e) => fails(e.errno()),
        }
    }

    fn fcntl(&mut self, fd: i32, command: i32, arg: Option<i32>) -> Attempt {
        let Some(socket) = self.fds.socket_mut(fd) else { return fails(libc::EBADF) };
        match (command, arg) {
            (libc::F_GETFL, _) => {
                let nonblock = if socket.nonblock { libc::O_NONBLOCK } else { 0 };
                done(Outcome::ok((libc::O_RDWR | nonblock).into()))
            }
            (libc::F_SETFL, Some(flags)) => {
                socket.nonblock = flags & libc::O_NONBLOCK != 0;
                done(Outcome::ok(0))
            }
            (libc::F_GETFD, _) => done(Outcome::ok(0)),
            (libc::F_SETFD, Some(_)) => done(Outcome::ok(0)),
            _ => fails(libc::EINVAL),
        }
    }

    fn ioctl(&mut self, fd: i32, request: i32) -> Attempt {
        let Some(socket) = self.fds.socket(fd) else { return fails(libc::EBADF) };
        let State::Stream(id) = socket.state else {
            return match socket.state {
                // Linux: "not for listeners".
                State::Listening(_) => fails(libc::EINVAL),
                _ => done(Outcome::with(0, Out::Int(0))),
            };
        };
        let (read, queued) = match self.stack.tcp_queued(id) {
            Ok(queued) => queued,
            Err(e) => return fails(e.errno()),
        };
        let not_sent = || self.stack.tcp_info(id).map_or(0, |i| i.notsent_bytes);
        const SIOCINQ: i32 = libc::FIONREAD as i32;
        const SIOCOUTQ: i32 = libc::TIOCOUTQ as i32;
        let value = match request {
            SIOCINQ => read,
            SIOCOUTQ => queued,
            0x894b => not_sent(),
            0x8905 => self.stack.tcp_at_mark(id).unwrap_or(false).into(),
            _ => return Err(format!("ioctl {request:#x} is not supported on the engine")),
        };
        done(Outcome::with(0, Out::Int(value as i32)))
    }
}
