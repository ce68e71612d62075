//! Calls on a listener.

use crate::error::Error;

use crate::frame::FramePool;
use crate::outbox::CoreMessage;
use crate::socket::event::{ListenerId, TcpId};
use crate::socket::listener::Waiting;
use crate::socket::options::{Listen, TcpOptions};
use crate::stack::Stack;
use crate::tcb::Slot;
use crate::tcb::flags::Flags;
use core::net::SocketAddr;

impl<P: FramePool> Stack<P> {
    /// Listens on this core, and tells the other cores, whose global listen tables send SYNs here when they
    /// have no listener of their own. AddrInUse: this core already listens there.
    pub fn tcp_listen(&mut self, listen: Listen) -> Result<ListenerId, Error> {
        if listen.at.port() == 0 {
            return Err(Error::InvalidInput);
        }
        let (ip, device) = (listen.at.ip().to_canonical(), self.net.bound_by(listen.at, listen.options.device)?);
        if !ip.is_unspecified() && !self.config.nonlocal_bind && !self.net.may_be_at(ip, device) {
            return Err(Error::AddrNotAvailable);
        }
        let listen = Listen { options: TcpOptions { device, ..listen.options }, ..listen };
        if listen.options.device.is_some() {
            self.net.note_bound();
        }
        let id = self.listeners.insert(&listen).ok_or(Error::AddrInUse)?;
        self.announce(id, true);
        Ok(id)
    }

    /// Stops listening. Connections that wait to be accepted go to other cores that listen there; if there
    /// is none they are reset, as the kernel does.
    pub fn tcp_close_listener(&mut self, listener: ListenerId) {
        self.announce(listener, false);
        let Some((_, queue)) = self.listeners.remove(listener) else { return };
        for Waiting { slot, .. } in queue {
            self.pass_on(slot);
        }
    }

    /// Options of the connections that come from now on, as setsockopt(2) on a listening socket sets them.
    pub fn tcp_set_listener_options(&mut self, listener: ListenerId, options: TcpOptions) -> Result<(), Error> {
        if options.ttl == Some(0) {
            return Err(Error::InvalidInput);
        }
        if options.device.is_some() {
            self.net.note_bound();
        }
        self.listeners.listener_mut(listener).ok_or(Error::BadSocket)?.set_options(options);
        Ok(())
    }

    /// How many established connections may wait for [`Stack::tcp_accept`], at least 1; those that wait stay. As listen(2) on a
    /// socket that listens.
    pub fn tcp_set_listener_backlog(&mut self, listener: ListenerId, backlog: u32) -> Result<(), Error> {
        self.listeners.listener_mut(listener).ok_or(Error::BadSocket)?.backlog = backlog.max(1);
        Ok(())
    }

    /// TCP_FASTOPEN on a listening socket: how many connections data in a SYN may have opened before their handshake's
    /// end.
    pub fn tcp_set_listener_fast_open(&mut self, listener: ListenerId, most: u32) -> Result<(), Error> {
        self.listeners.listener_mut(listener).ok_or(Error::BadSocket)?.fast_open = most;
        Ok(())
    }

    fn announce(&mut self, listener: ListenerId, up: bool) {
        let Some(at) = self.listeners.listener(listener).map(|l| l.at) else { return };
        let core = self.config.core;
        self.tell_others(|| CoreMessage::Listen { core, at, up });
    }

    /// The next established connection; WouldBlock when none waits.
    pub fn tcp_accept(&mut self, listener: ListenerId) -> Result<(TcpId, SocketAddr), Error> {
        let entry = self.listeners.listener_mut(listener).ok_or(Error::BadSocket)?;
        let Waiting { slot: index, since } = entry.queue.pop_front().ok_or(Error::WouldBlock)?;
        self.stats.accept_wait.record(self.now.since(since));
        let generation = self.slots.generation(index);
        let (key, device) = match self.slots.slot_mut(index) {
            Slot::Open(tcb) => {
                tcb.flags.clear(Flags::UNACCEPTED);
                (tcb.key(), tcb.device())
            }
            Slot::Dead(dead) => (dead.key, dead.device),
            Slot::SynSent(s) => (s.key, s.options.device),
            Slot::Free { .. } => return Err(Error::ConnectionAborted),
        };
        Ok((TcpId { index, generation }, self.net.scoped(key.remote(), device)))
    }

    /// Where the listener listens.
    pub fn tcp_listener_addr(&self, listener: ListenerId) -> Result<SocketAddr, Error> {
        let listener = self.listeners.listener(listener).ok_or(Error::BadSocket)?;
        Ok(self.net.scoped(listener.at, listener.options.device))
    }

    /// Connections that wait to be accepted.
    pub fn tcp_backlog(&self, listener: ListenerId) -> Result<usize, Error> {
        self.listeners.listener(listener).map(|l| l.queue.len()).ok_or(Error::BadSocket)
    }
}
