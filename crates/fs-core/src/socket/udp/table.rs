//! UDP sockets by handle and by port.

use super::Socket;
use crate::error::Error;
use crate::socket::event::UdpId;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Sockets in slots. A slot's generation is incremented when its socket is closed.
#[derive(Debug)]
pub(super) struct Sockets {
    slots: Vec<(u32, Option<Box<Socket>>)>,
    free: Vec<u32>,
    max: usize,
}

impl Sockets {
    pub(super) fn new(max: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), max }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds a socket. Returns `None` if the maximum number of sockets is open.
    pub(super) fn insert(&mut self, socket: Socket) -> Option<UdpId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.max => {
                self.slots.push((0, None));
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let (generation, slot) = &mut self.slots[index as usize];
        *slot = Some(Box::new(socket));
        Some(UdpId { index, generation: *generation })
    }

    pub(super) fn remove(&mut self, id: UdpId) -> Option<Socket> {
        let (generation, slot) = self.slots.get_mut(id.index as usize)?;
        if *generation != id.generation {
            return None;
        }
        let socket = slot.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(id.index);
        Some(*socket)
    }

    pub(super) fn find(&self, id: UdpId) -> Result<&Socket, Error> {
        match self.slots.get(id.index as usize) {
            Some((generation, Some(socket))) if *generation == id.generation => Ok(socket),
            _ => Err(Error::BadSocket),
        }
    }

    pub(super) fn find_mut(&mut self, id: UdpId) -> Result<&mut Socket, Error> {
        match self.slots.get_mut(id.index as usize) {
            Some((generation, Some(socket))) if *generation == id.generation => Ok(socket),
            _ => Err(Error::BadSocket),
        }
    }

    /// Returns the socket in a slot, for any generation.
    pub(super) fn at(&self, index: u32) -> Option<&Socket> {
        self.slots.get(index as usize)?.1.as_deref()
    }

    pub(super) fn id(&self, index: u32) -> Option<UdpId> {
        let (generation, _) = self.slots.get(index as usize)?;
        Some(UdpId { index, generation: *generation })
    }
}

/// Number of ports per page.
const PAGE: usize = 256;

/// Slots of the sockets at each port. Ports are indexed directly: two loads, for any input of an
/// attacker. Pages are allocated on first use, so an idle table is 2 KiB.
#[derive(Debug)]
pub(super) struct PortTable {
    pages: Vec<Option<Box<[Vec<u32>; PAGE]>>>,
}

impl Default for PortTable {
    fn default() -> Self {
        Self { pages: (0..(1 << 16) / PAGE).map(|_| None).collect() }
    }
}

impl PortTable {
    #[inline]
    pub(super) fn at(&self, port: u16) -> &[u32] {
        match self.pages.get(usize::from(port) / PAGE) {
            Some(Some(page)) => &page[usize::from(port) % PAGE],
            _ => &[],
        }
    }

    pub(super) fn insert(&mut self, port: u16, index: u32) {
        let page = &mut self.pages[usize::from(port) / PAGE];
        let page = page.get_or_insert_with(|| Box::new([const { Vec::new() }; PAGE]));
        page[usize::from(port) % PAGE].push(index);
    }

    pub(super) fn remove(&mut self, port: u16, index: u32) {
        if let Some(page) = &mut self.pages[usize::from(port) / PAGE] {
            page[usize::from(port) % PAGE].retain(|other| *other != index);
        }
    }
}
