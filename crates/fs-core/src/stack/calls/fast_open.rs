//! Client side of TCP Fast Open (RFC 7413): contents of our SYN.

use crate::config::FastOpen;
use crate::frame::FramePool;
use crate::stack::Stack;
use crate::tcb::send::buffer::{Cut, TxQueue};
use crate::tcb::syn_sent::FastSyn;
use crate::wire::options::Cookie;
use core::net::IpAddr;

impl<P: FramePool> Stack<P> {
    /// Returns the Fast Open part of the SYN to a server: up to one segment of `data` with a
    /// cookie, or a cookie request. Returns `None` if the SYN does without the option.
    pub(crate) fn fast_syn(
        &mut self,
        server: IpAddr,
        path: crate::net::neigh::PathId,
        iss: crate::seq::SeqNum,
        data: Option<&[u8]>,
        max_segment: Option<u16>,
    ) -> Option<FastSyn> {
        let (now, data) = (self.now, data?);
        if !self.config.tcp.fast_open.client || self.fast_open_peers.is_suspect(server, now) {
            return None;
        }
        let mut queue = TxQueue::new();
        let known = self.fast_open_peers.get(server, now);
        let cookie = known.map(|(cookie, _)| cookie).filter(|c| !c.is_request());
        if cookie.is_none() && !self.config.tcp.fast_open.client_without_cookie {
            return Some(FastSyn { carried: true, cookie: Some(Cookie::REQUEST), data: queue, sent: 0 });
        }
        let mss = known.map_or(u16::MAX, |(_, mss)| mss).min(max_segment.unwrap_or(u16::MAX));
        let Self { net, pool, store, .. } = self;
        // Reserves 40 bytes of options: a SYN has more of them than a later segment.
        let most = net.mss_to(path, server, now).min(mss).saturating_sub(40) as usize;
        let n = data.len().min(most).min(pool.payload_room());
        if n > 0 && !store.is_full() {
            let summed = !net.path(path).tx_checksum();
            queue.write(
                store,
                pool,
                iss + 1,
                &data[..n],
                Cut { mss: n as u32, summed, push_at_end: true, push_every: u32::MAX },
            );
        }
        let sent = queue.bytes;
        Some(FastSyn { carried: true, cookie, data: queue, sent })
    }

    /// Returns true if [`Stack::tcp_connect_with`] would send data to this server with its SYN.
    /// TCP_FASTOPEN_CONNECT then delays the SYN until the first write; otherwise it connects at
    /// once.
    pub fn fast_open_ready(&self, server: IpAddr) -> bool {
        let FastOpen { client, client_without_cookie, .. } = self.config.tcp.fast_open;
        let server = server.to_canonical();
        let without = || client_without_cookie && !self.fast_open_peers.is_suspect(server, self.now);
        client && (self.fast_open_peers.has_cookie(server, self.now) || without())
    }
}
