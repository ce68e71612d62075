//! poll and epoll: events of sockets, and their reporting.

use super::Engine;
use super::fds::{Socket, State};
use crate::run::call::{Out, Outcome};
use fs_core::{Ready, TcpState};

/// Always reported, even if not requested.
const UNASKED: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

impl Engine {
    /// Returns the events of a socket, as tcp_poll does.
    pub(super) fn readiness(&mut self, fd: i32) -> u32 {
        let Some(socket) = self.fds.socket(fd) else { return libc::POLLNVAL as u32 };
        let (state, socket) = (socket.state, socket.clone());
        let read = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
        let write = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
        let mut events = match state {
            State::New if socket.deferred.is_some() => write,
            State::New if socket.kind & 0xf == libc::SOCK_STREAM => write | libc::EPOLLHUP as u32,
            State::New => write,
            State::Listening(id) => {
                if self.stack.tcp_backlog(id).is_ok_and(|n| n > 0) {
                    read
                } else {
                    0
                }
            }
            State::Udp(id) => {
                let ready = self.stack.udp_ready(id).unwrap_or_default();
                let input = if ready.contains(Ready::READ) { read } else { 0 };
                input | write
            }
            State::Stream(id) => self.stream_events(&socket, id, read, write),
        };
        if self.fds.socket(fd).is_some_and(|s| s.error.is_some()) || self.take_error(fd) {
            events |= libc::EPOLLERR as u32;
        }
        events
    }

    fn readable(&self, fd: i32) -> u32 {
        match self.fds.socket(fd).map(|s| s.state) {
            Some(State::Stream(id)) => self.stack.tcp_queued(id).map_or(0, |(bytes, _)| bytes),
            _ => 0,
        }
    }

    /// Moves an error that ended a connection from the engine to its socket. Returns true if there
    /// is one.
    fn take_error(&mut self, fd: i32) -> bool {
        let Some(State::Stream(id)) = self.fds.socket(fd).map(|s| s.state) else { return false };
        if self.stack.tcp_state(id) != Ok(TcpState::Closed) {
            return false;
        }
        let Ok(Some(error)) = self.stack.tcp_take_error(id) else { return false };
        if let Some(socket) = self.fds.socket_mut(fd) {
            socket.error = Some(error.errno());
        }
        true
    }

    fn stream_events(&self, socket: &Socket, id: fs_core::TcpId, read: u32, write: u32) -> u32 {
        let state = self.stack.tcp_state(id).unwrap_or(TcpState::Closed);
        let ready = self.stack.tcp_ready(id).unwrap_or(Ready::CLOSED);
        let finished = matches!(
            state,
            TcpState::CloseWait | TcpState::LastAck | TcpState::Closing | TcpState::TimeWait | TcpState::Closed
        );
        let mut events = 0;
        if state == TcpState::Closed || finished && socket.shut_write {
            events |= libc::EPOLLHUP as u32;
        }
        if finished || socket.shut_read {
            events |= read | libc::EPOLLRDHUP as u32;
        }
        if state == TcpState::SynSent {
            return events;
        }
        if ready.contains(Ready::READ) {
            events |= read;
        }
        if ready.contains(Ready::PRIORITY) {
            events |= libc::EPOLLPRI as u32;
        }
        if ready.contains(Ready::WRITE) || socket.shut_write {
            events |= write;
        }
        events
    }

    /// poll(2). Returns `None` while no event is available and time is left.
    pub(super) fn poll(&mut self, fds: &[(i32, i16)], over: bool) -> Option<Outcome> {
        let asked = |events: i16| events as u32 & 0xffff | UNASKED | libc::POLLNVAL as u32;
        let revents: Vec<i16> = fds.iter().map(|(fd, events)| (self.readiness(*fd) & asked(*events)) as i16).collect();
        let count = revents.iter().filter(|r| **r != 0).count();
        if count == 0 && !over {
            return None;
        }
        Some(Outcome::with(count as i64, Out::Revents(revents)))
    }

    /// epoll_wait(2), likewise.
    pub(super) fn epoll_wait(&mut self, epoll: i32, max: usize, over: bool) -> Option<Outcome> {
        let Some(watching) = self.fds.epoll_mut(epoll) else { return Some(Outcome::err(libc::EINVAL)) };
        let mut watches = std::mem::take(&mut watching.watches);
        let mut events = Vec::new();
        for watch in &mut watches {
            let edge = watch.events & libc::EPOLLET as u32 != 0;
            // The engine reports data once; for an edge, every arrival counts.
            let waiting = self.readable(watch.fd);
            watch.fresh |= waiting > watch.seen;
            watch.seen = watch.seen.min(waiting);
            if events.len() == max || watch.spent || edge && !watch.fresh {
                continue;
            }
            let found = self.readiness(watch.fd) & (watch.events & 0xffff | UNASKED);
            if found != 0 {
                events.push((found, watch.data));
                watch.fresh = false;
                watch.seen = waiting;
                watch.spent = watch.events & libc::EPOLLONESHOT as u32 != 0;
            }
        }
        if let Some(watching) = self.fds.epoll_mut(epoll) {
            watching.watches = watches;
        }
        if events.is_empty() && !over {
            return None;
        }
        Some(Outcome::with(events.len() as i64, Out::Events(events)))
    }
}
