//! Calls on a listener.

use crate::error::Error;

use crate::frame::FramePool;
use crate::outbox::CoreMessage;
use crate::socket::event::{ListenerId, TcpId};
use crate::socket::listener::PendingAccept;
use crate::socket::options::{Listen, TcpOptions};
use crate::stack::Stack;
use crate::tcb::Slot;
use crate::tcb::flags::Flags;
use core::net::SocketAddr;

impl<P: FramePool> Stack<P> {
    /// Listens on this core, and announces the listener to the other cores. Their global listen
    /// tables then forward SYNs here if they have no listener of their own.
    ///
    /// # Errors
    /// `AddrInUse` if this core already listens there.
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

    /// Stops listening. Connections in the accept queue move to other cores that listen there. If
    /// there is none they are reset, as the kernel does.
    pub fn tcp_close_listener(&mut self, listener: ListenerId) {
        self.announce(listener, false);
        let Some((_, queue)) = self.listeners.remove(listener) else { return };
        for PendingAccept { slot, .. } in queue {
            self.pass_on(slot, false);
        }
    }

    /// Sets the options of future connections, as setsockopt(2) does on a listening socket.
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

    /// Sets the maximum number of established connections that wait for [`Stack::tcp_accept`], at
    /// least 1. Connections that already wait stay. As listen(2) on a listening socket.
    pub fn tcp_set_listener_backlog(&mut self, listener: ListenerId, backlog: u32) -> Result<(), Error> {
        self.listeners.listener_mut(listener).ok_or(Error::BadSocket)?.backlog = backlog.max(1);
        Ok(())
    }

    /// Sets TCP_FASTOPEN of a listener: the maximum number of connections opened by data in a SYN
    /// whose handshake is not complete.
    pub fn tcp_set_listener_fast_open(&mut self, listener: ListenerId, most: u32) -> Result<(), Error> {
        self.listeners.listener_mut(listener).ok_or(Error::BadSocket)?.fast_open = most;
        Ok(())
    }

    fn announce(&mut self, listener: ListenerId, up: bool) {
        let Some(at) = self.listeners.listener(listener).map(|l| l.at) else { return };
        let core = self.config.core;
        self.tell_others(|| CoreMessage::Listen { core, at, up });
    }

    /// Returns the next established connection, or WouldBlock if none waits.
    pub fn tcp_accept(&mut self, listener: ListenerId) -> Result<(TcpId, SocketAddr), Error> {
        let entry = self.listeners.listener_mut(listener).ok_or(Error::BadSocket)?;
        let PendingAccept { slot: index, since } = entry.queue.pop_front().ok_or(Error::WouldBlock)?;
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

    /// Returns the listener's address.
    pub fn tcp_listener_addr(&self, listener: ListenerId) -> Result<SocketAddr, Error> {
        let listener = self.listeners.listener(listener).ok_or(Error::BadSocket)?;
        Ok(self.net.scoped(listener.at, listener.options.device))
    }

    /// Returns the number of connections in the accept queue.
    pub fn tcp_backlog(&self, listener: ListenerId) -> Result<usize, Error> {
        self.listeners.listener(listener).map(|l| l.queue.len()).ok_or(Error::BadSocket)
    }
}
