//! Options and state of a connection.

use crate::error::Error;
use crate::frame::{FramePool, IfaceId};
use crate::socket::event::{Ready, TcpId};
use crate::socket::options::{TcpOptions, TcpState};
use crate::stack::Stack;
use crate::tcb::flags::Flags;
use crate::tcb::{Slot, Tcb};
use crate::time::Instant;
use core::net::SocketAddr;

impl<P: FramePool> Stack<P> {
    /// Returns the current options.
    pub fn tcp_options(&self, id: TcpId) -> Result<TcpOptions, Error> {
        let index = self.slot_of(id)?;
        Ok(match self.slots.slot(index) {
            Slot::Open(tcb) => tcb.options(),
            Slot::SynSent(s) => s.options,
            Slot::Dead(_) | Slot::Free { .. } => TcpOptions::default(),
        })
    }

    /// Sets all options. Enabling `nodelay` sends data that Nagle's algorithm, TCP_CORK or MSG_MORE
    /// delays.
    pub fn tcp_set_options(&mut self, id: TcpId, options: TcpOptions) -> Result<(), Error> {
        let index = self.slot_of(id)?;
        if options.ttl == Some(0) {
            return Err(Error::InvalidInput);
        }
        let now = self.now;
        match self.slots.slot_mut(index) {
            Slot::Open(tcb) => {
                let was_writable = tcb.writable();
                tcb.apply(&options, now);
                // With a larger buffer or another unsent limit, no ACK may follow that would report
                // writability.
                let room = !was_writable && tcb.writable() && tcb.state.can_send();
                if room {
                    tcb.has_room_again(now);
                }
                self.schedule(index, if room { Ready::WRITE } else { Ready::default() });
            }
            Slot::SynSent(s) => s.options = options,
            Slot::Dead(_) | Slot::Free { .. } => {}
        }
        Ok(())
    }

    /// Sets TCP_NODELAY on a connection that has it already: as on Linux, data that TCP_CORK or
    /// MSG_MORE delays leaves now.
    pub fn tcp_push(&mut self, id: TcpId) -> Result<(), Error> {
        let index = self.slot_of(id)?;
        if let Slot::Open(tcb) = self.slots.slot_mut(index)
            && tcb.flags.has(Flags::NODELAY)
        {
            tcb.push();
            self.schedule(index, Ready::default());
        }
        Ok(())
    }

    /// Returns the state in RFC 9293's terms.
    pub fn tcp_state(&self, id: TcpId) -> Result<TcpState, Error> {
        let index = self.slot_of(id)?;
        Ok(match self.slots.slot(index) {
            Slot::Open(tcb) if tcb.flags.has(Flags::SYN_RECEIVED) => TcpState::SynReceived,
            Slot::Open(tcb) => tcb.state.into(),
            Slot::SynSent(s) if s.crossed.is_some() => TcpState::SynReceived,
            Slot::SynSent(_) => TcpState::SynSent,
            Slot::Dead(_) | Slot::Free { .. } => TcpState::Closed,
        })
    }

    /// Returns what the connection is ready for.
    #[inline]
    pub fn tcp_ready(&self, id: TcpId) -> Result<Ready, Error> {
        let index = self.slot_of(id)?;
        Ok(match self.slots.slot(index) {
            Slot::Open(tcb) => {
                let mut ready = Ready::default();
                if tcb.readable() {
                    ready |= Ready::READ;
                }
                if tcb.urgent_offset().is_some() {
                    ready |= Ready::PRIORITY;
                }
                if !tcb.state.can_send() || tcb.writable() {
                    ready |= Ready::WRITE;
                }
                ready
            }
            Slot::SynSent(_) => Ready::default(),
            Slot::Dead(_) => Ready::READ | Ready::WRITE | Ready::CLOSED,
            Slot::Free { .. } => return Err(Error::BadSocket),
        })
    }

    /// Takes the error that ended the connection, or that ICMP reported: SO_ERROR.
    pub fn tcp_take_error(&mut self, id: TcpId) -> Result<Option<Error>, Error> {
        let index = self.slot_of(id)?;
        Ok(match self.slots.slot_mut(index) {
            Slot::Open(tcb) => tcb.ext.as_mut().and_then(|e| e.soft_error.take()),
            Slot::SynSent(_) => None,
            Slot::Dead(dead) => dead.error.take(),
            Slot::Free { .. } => None,
        })
    }

    /// Returns our address and port.
    pub fn tcp_local(&self, id: TcpId) -> Result<SocketAddr, Error> {
        self.tcp_flow(id).map(|(key, device)| self.net.scoped(key.local(), device))
    }

    /// Returns the local addresses of the connections that the application has closed and that still
    /// send. Without TIME-WAIT. Reads all slots.
    pub fn tcp_orphan_locals(&self) -> impl Iterator<Item = SocketAddr> {
        let slots = &self.slots;
        (0..slots.len() as u32).filter_map(|index| match slots.slot(index) {
            Slot::Open(tcb) if tcb.flags.has(Flags::ORPHAN) => Some(tcb.key().local()),
            Slot::SynSent(s) if s.orphan => Some(s.key.local()),
            Slot::Open(_) | Slot::SynSent(_) | Slot::Dead(_) | Slot::Free { .. } => None,
        })
    }

    /// Returns the peer's address and port.
    pub fn tcp_remote(&self, id: TcpId) -> Result<SocketAddr, Error> {
        self.tcp_flow(id).map(|(key, device)| self.net.scoped(key.remote(), device))
    }

    fn tcp_flow(&self, id: TcpId) -> Result<(crate::flow::FlowKey, Option<IfaceId>), Error> {
        let index = self.slot_of(id)?;
        match self.slots.slot(index) {
            Slot::Open(tcb) => Ok((tcb.key(), tcb.device())),
            Slot::SynSent(s) => Ok((s.key, s.options.device)),
            Slot::Dead(dead) => Ok((dead.key, dead.device)),
            Slot::Free { .. } => Err(Error::BadSocket),
        }
    }

    /// Returns the number of bytes that can be read, and of bytes queued for sending and not yet
    /// acknowledged (FIONREAD, SIOCOUTQ).
    pub fn tcp_queued(&self, id: TcpId) -> Result<(u32, u32), Error> {
        let index = self.slot_of(id)?;
        Ok(match self.slots.slot(index) {
            Slot::Open(tcb) => (tcb.rx.bytes, tcb.tx.bytes),
            Slot::Dead(dead) => (dead.rx.bytes, 0),
            Slot::SynSent(_) | Slot::Free { .. } => (0, 0),
        })
    }

    /// Returns the number of connections: slots in use, without handshakes and TIME-WAIT.
    pub fn tcp_connections(&self) -> usize {
        self.slots.live
    }

    /// Returns the number of TIME-WAIT records.
    pub fn tcp_time_waits(&self) -> usize {
        self.time_waits.len()
    }

    /// Returns the number of handshakes in the SYN cache.
    pub fn tcp_handshakes(&self) -> usize {
        self.handshakes.len()
    }
}

impl Tcb {
    /// Returns the device that the connection is bound to. It ignores packets that arrive by
    /// another.
    pub(crate) fn device(&self) -> Option<IfaceId> {
        self.ext.as_ref().and_then(|ext| ext.device)
    }

    fn options(&self) -> TcpOptions {
        let ext = self.ext.as_ref();
        TcpOptions {
            nodelay: self.flags.has(Flags::NODELAY),
            keepalive: ext.and_then(|e| e.keepalive),
            linger: ext.map(|e| e.linger).unwrap_or_default(),
            ttl: ext.and_then(|e| e.ttl),
            tos: self.tos(),
            congestion_control: Some(self.algorithm()),
            pacing_max: ext.and_then(|e| e.pacing.max),
            device: self.device(),
            receive_buffer: Some(self.rcv_buf()),
            send_buffer: Some(self.snd_buf()),
            max_segment: ext.map(|e| e.recv.max_segment).filter(|&m| m != 0),
            window_clamp: ext.map(|e| e.recv.clamp).filter(|&c| c != 0),
            oob_inline: ext.is_some_and(|e| e.recv.oob_inline),
            receive_low: ext.map_or(0, |e| e.recv.low),
            cork: ext.is_some_and(|e| e.sender.cork),
            user_timeout: ext.and_then(|e| e.sender.user_timeout),
            not_sent_low: ext.map(|e| e.sender.not_sent_low).filter(|&low| low != 0),
            ..TcpOptions::default()
        }
    }

    /// Applies the options of the receiving half.
    fn apply_receive(&mut self, options: &TcpOptions) {
        let TcpOptions { max_segment, window_clamp, oob_inline, receive_low, .. } = *options;
        let rare = max_segment.is_some() || window_clamp.is_some() || oob_inline || receive_low > 1;
        if !rare && self.ext.is_none() {
            return;
        }
        let recv = &mut self.ext_mut().recv;
        recv.max_segment = max_segment.unwrap_or(0);
        // Linux: at least half the smallest buffer.
        recv.clamp = window_clamp.map_or(0, |bytes| bytes.max(1152));
        (recv.oob_inline, recv.low) = (oob_inline, receive_low);
        if let Some(most) = max_segment {
            self.mss = self.mss.min(most.max(crate::net::MSS_MIN));
        }
    }

    /// Applies options. The extension is allocated only if one needs it.
    pub(crate) fn apply(&mut self, options: &TcpOptions, now: Instant) {
        let TcpOptions { nodelay, keepalive, linger, ttl, tos, pacing_max, congestion_control, receive_buffer, .. } =
            *options;
        let push = nodelay && !self.flags.has(Flags::NODELAY);
        self.flags.put(Flags::NODELAY, nodelay);
        self.apply_receive(options);
        let rare = keepalive.is_some() || linger != Default::default() || ttl.is_some() || tos > 3;
        if rare || self.ext.is_some() {
            let ext = self.ext_mut();
            if ext.keepalive != keepalive {
                ext.last_received = now;
                ext.keepalive_probes = 0;
            }
            (ext.keepalive, ext.linger, ext.ttl, ext.tos) = (keepalive, linger, ttl, crate::tcb::ecn::tos(tos));
        }
        if let Some(algorithm) = congestion_control {
            self.use_algorithm(algorithm, now);
        }
        if pacing_max.is_some() || self.ext.as_ref().is_some_and(|e| e.pacing.max.is_some()) {
            self.ext_mut().pacing.set_max(pacing_max);
        }
        if let Some(bytes) = receive_buffer
            && bytes != self.rcv_buf()
        {
            // The right edge never shrinks; a smaller buffer takes effect as data is read. The
            // handshake's window scale bounds the offered window.
            self.set_rcv_buf(bytes);
            self.ext_mut().recv.buffer_fixed = true;
        }
        self.apply_sending(options);
        if push {
            self.push();
        }
    }

    /// Releases all queued data from delays that the application has requested. TCP_CORK still
    /// applies to later writes.
    fn push(&mut self) {
        self.flags.clear(Flags::HOLD);
    }
}
