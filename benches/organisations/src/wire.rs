//! The peers: packets of clients on a core's device queue, and the handling of the answers.

use fs_memory::client::{Clients, GATEWAY_MAC, Role, SERVER_MAC, flag};
use std::collections::VecDeque;

use crate::lock::Counters;

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Bytes of a request and of a response.
pub const MESSAGE: usize = 64;

/// The load of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Load {
    /// The stack sends as fast as it can; the peer acknowledges.
    Bulk,
    /// A request of [`MESSAGE`] bytes and a response of equal length, repeated.
    Requests,
}

/// Packets in a reused buffer.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    packets: Vec<(u32, u32, u32)>,
}

impl Batch {
    /// Returns the packets: the flow and the bytes of each.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.packets.iter().map(|&(flow, start, end)| (flow, &self.bytes[start as usize..end as usize]))
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Removes all packets.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
    }

    /// Adds a packet.
    pub fn push(&mut self, flow: u32, bytes: &[u8]) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        self.packets.push((flow, start, self.bytes.len() as u32));
    }

    /// Sorts the packets by a key of their flows.
    pub fn sort_by_key(&mut self, mut key: impl FnMut(u32) -> usize) {
        self.packets.sort_by_key(|&(flow, ..)| key(flow));
    }

    /// Returns the runs of packets with equal keys, after [`Batch::sort_by_key`].
    pub fn runs(&self, mut key: impl FnMut(u32) -> usize) -> impl Iterator<Item = (usize, Run<'_>)> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let of = key(self.packets.get(from)?.0);
            let more = self.packets[from..].iter().take_while(|&&(flow, ..)| key(flow) == of).count();
            let run = Run { batch: self, from, to: from + more };
            from += more;
            Some((of, run))
        })
    }

    /// Returns each packet as a separate run.
    pub fn singly(&self) -> impl Iterator<Item = Run<'_>> {
        (0..self.packets.len()).map(|from| Run { batch: self, from, to: from + 1 })
    }

    /// Returns all packets as one run.
    pub fn all(&self) -> Run<'_> {
        Run { batch: self, from: 0, to: self.packets.len() }
    }
}

/// Packets of a batch that go to one instance of the engine.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    batch: &'a Batch,
    from: usize,
    to: usize,
}

impl<'a> Run<'a> {
    /// Returns the packets.
    pub fn iter(self) -> impl Iterator<Item = (u32, &'a [u8])> {
        let Run { batch, from, to } = self;
        batch.packets[from..to].iter().map(|&(flow, start, end)| (flow, &batch.bytes[start as usize..end as usize]))
    }
}

/// Headers of a packet that the engine has sent and whose frame is free again.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// IP and TCP headers.
    pub head: [u8; 80],
    /// The flow, which selects the device queue of the other direction.
    pub flow: u32,
}

/// A core's device queue with its clients.
pub struct Wire {
    clients: Clients,
    load: Load,
    /// Flows with a packet to send.
    due: VecDeque<u32>,
    /// For each flow: whether it is in `due`.
    queued: Vec<bool>,
    scratch: Vec<u8>,
}

impl Wire {
    /// Creates a queue that has state for all `flows`, but sends only for those that were opened.
    pub fn new(flows: usize, load: Load) -> Wire {
        let clients = Clients::new(flows, true, false, Role::Clients);
        Wire { clients, load, due: VecDeque::new(), queued: vec![false; flows], scratch: vec![0; 256] }
    }

    /// Sets the clock of the clients' timestamps.
    pub fn set_now(&mut self, ms: u32) {
        self.clients.now_ms = ms.max(1);
    }

    /// Builds a packet of a flow with these flags.
    fn build(&mut self, flow: u32, flags: u8, payload: usize, batch: &mut Batch) {
        self.scratch[..6].copy_from_slice(&SERVER_MAC);
        self.scratch[6..12].copy_from_slice(&GATEWAY_MAC);
        self.scratch[12..14].copy_from_slice(&[8, 0]);
        let len = self.clients.build(flow as usize, flags, payload, &mut self.scratch[ETHERNET..]);
        batch.push(flow, &self.scratch[..ETHERNET + len]);
    }

    /// Builds the SYN of a flow.
    pub fn open(&mut self, flow: u32, batch: &mut Batch) {
        self.build(flow, flag::SYN, 0, batch);
    }

    /// Builds the last packet of the handshake. Requests are due from then on.
    pub fn opened(&mut self, flow: u32, batch: &mut Batch) {
        self.build(flow, flag::ACK, 0, batch);
        if self.load == Load::Requests {
            self.queue(flow);
        }
    }

    fn queue(&mut self, flow: u32) {
        if !std::mem::replace(&mut self.queued[flow as usize], true) {
            self.due.push_back(flow);
        }
    }

    /// Builds up to `most` due packets.
    pub fn batch(&mut self, most: usize, batch: &mut Batch) {
        batch.clear();
        while batch.len() < most
            && let Some(flow) = self.due.pop_front()
        {
            self.queued[flow as usize] = false;
            match self.load {
                Load::Bulk => self.build(flow, flag::ACK, 0, batch),
                Load::Requests => self.build(flow, flag::PSH | flag::ACK, MESSAGE, batch),
            }
        }
    }

    /// Handles packets from the engine.
    pub fn came(&mut self, sent: &[Sent], counters: &mut Counters) {
        for Sent { head, flow } in sent {
            let flow = *flow;
            counters.packets_out += 1;
            let before = self.clients.flows[flow as usize].rcv_nxt;
            let answer = self.clients.answer(head, |_| true);
            debug_assert_eq!(answer.flow, flow as usize);
            if answer.payload == 0 {
                continue;
            }
            if self.clients.flows[flow as usize].rcv_nxt == before {
                counters.retransmits += 1;
                continue;
            }
            counters.bytes += answer.payload as u64;
            counters.responses += 1;
            self.queue(flow);
        }
    }
}
