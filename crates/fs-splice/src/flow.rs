//! A spliced flow, from its first packet that is sent on to its end.

use crate::address::Ends;
use crate::entry::{Entry, is_from};
use crate::holder::{hold, reset};
use crate::program::Table;
use crate::sys::{Repair, info, repair, unread};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;

/// The state of one of the two connections.
#[derive(Debug)]
pub struct Side {
    ends: Ends,
    /// The end of what the proxy had sent to this peer when the flow was spliced.
    sent: u32,
    /// The entry, as it was last read.
    entry: Entry,
    /// Number of bytes that were moved to this peer, except the proxy's own.
    moved: u64,
    /// This peer's FIN came by the proxy's socket.
    fin_was_read: bool,
}

impl Side {
    pub(crate) fn new(ends: Ends, sent: u32, entry: &Entry) -> Self {
        Self { ends, sent, entry: *entry, moved: 0, fin_was_read: false }
    }

    /// The bytes between the proxy's own and the highest acknowledgment.
    fn beyond(&self) -> u32 {
        let beyond = self.entry.acked.wrapping_sub(self.entry.own_end);
        if beyond.cast_signed() > 0 { beyond } else { 0 }
    }

    /// Returns true if the other peer has acknowledged this one's FIN.
    fn has_ended(&self, other: &Self) -> bool {
        if self.fin_was_read {
            return other.entry.is_drained();
        }
        self.entry.fin_end.is_some_and(|end| is_from(other.entry.acked, end.wrapping_add(self.entry.seq_add)))
    }
}

/// The state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Bytes moved by the program, acknowledged by their receiver: to the client, to the server.
    pub moved: [u64; 2],
    /// The peers have acknowledged everything that the proxy has sent itself.
    pub drained: bool,
    /// Changes with each packet.
    pub packets: u32,
    /// Both peers have closed.
    pub is_closed: bool,
    /// A peer has reset the connection.
    pub is_reset: bool,
    /// A packet says that the connection is over, but it may be forged.
    pub is_doubtful: bool,
    /// A new connection has the client's addresses.
    pub is_replaced: bool,
}

/// A spliced flow. If it is dropped, both peers get a RST.
#[derive(Debug)]
pub struct Flow {
    table: Rc<Table>,
    id: u64,
    /// The client's connection, and the server's.
    sides: [Side; 2],
    holder: Option<OwnedFd>,
    is_over: bool,
}

impl Flow {
    pub(crate) fn new(table: Rc<Table>, id: u64, sides: [Side; 2]) -> Self {
        Self { table, id, sides, holder: None, is_over: false }
    }

    /// Returns the two addresses of the server's connection: the proxy's own, and the server's.
    #[must_use]
    pub fn server(&self) -> (SocketAddr, SocketAddr) {
        let Ends { local, peer } = self.sides[1].ends;
        (local, peer)
    }

    /// Tells it which bytes the proxy relays itself: `read` were read from the client and from the server
    /// since the flow was spliced, others still wait in the sockets, and `ended` streams have ended.
    ///
    /// Must be called before bytes are relayed and afterwards. Acknowledgments of bytes that are not
    /// expected go to the other peer. If the proxy's socket missed them, it could send no more.
    ///
    /// # Errors
    /// If a socket's state cannot be read.
    pub fn expect(
        &mut self,
        client: BorrowedFd<'_>,
        server: BorrowedFd<'_>,
        read: [u64; 2],
        ended: [bool; 2],
    ) -> io::Result<()> {
        // What was read from one peer is sent to the other.
        for (to, from, socket) in [(1, 0, client), (0, 1, server)] {
            let coming = (read[from] as u32).wrapping_add(unread(socket)?).wrapping_add(ended[from].into());
            let side = &mut self.sides[to];
            let end = side.sent.wrapping_add(coming);
            if end != side.entry.own_end {
                self.table.settle(&side.ends.key(), self.id, end)?;
                // These are not the program's any more.
                side.moved = side.moved.saturating_sub(end.wrapping_sub(side.entry.own_end).into());
                side.entry.own_end = end;
            }
            self.sides[from].fin_was_read = ended[from];
        }
        Ok(())
    }

    /// Returns true if a socket has got bytes, or the end of a stream, that were not read.
    ///
    /// # Errors
    /// If a socket's state cannot be read.
    pub fn has_late(&self, client: BorrowedFd<'_>, server: BorrowedFd<'_>) -> io::Result<bool> {
        for (side, socket) in self.sides.iter().zip([client, server]) {
            if unread(socket)? > 0 || (!side.fin_was_read && info(socket)?.is_ended) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the flow's state. Must be called before a peer has got 2 GiB since the last time.
    pub fn read(&mut self) -> State {
        let mut is_replaced = false;
        for side in &mut self.sides {
            match self.table.get(&side.ends.key(), self.id) {
                Some(entry) => {
                    let more = entry.acked.wrapping_sub(side.entry.acked);
                    side.entry = entry;
                    // Up to `own_end` the bytes are the proxy's.
                    side.moved += u64::from(if side.moved == 0 { side.beyond() } else { more });
                }
                None => is_replaced = true,
            }
        }
        let [client, server] = &self.sides;
        let any = |mark: fn(&Entry) -> bool| mark(&client.entry) || mark(&server.entry);
        let ended = [client.has_ended(server), server.has_ended(client)];
        // A FIN counts as a byte.
        let fin = |ended: bool, from: &Side| u64::from(ended && !from.fin_was_read);
        State {
            moved: [
                client.moved.saturating_sub(fin(ended[1], server)),
                server.moved.saturating_sub(fin(ended[0], client)),
            ],
            drained: client.entry.is_drained() && server.entry.is_drained(),
            packets: client.entry.packets.wrapping_add(server.entry.packets),
            is_closed: ended == [true; 2],
            is_reset: any(|entry| entry.rst_exact),
            is_doubtful: any(|entry| entry.rst || entry.syn),
            is_replaced,
        }
    }

    /// Makes the sockets end without a packet, once the peers have acknowledged all that was sent by
    /// them. The caller drops them, and calls [`Flow::hold`].
    ///
    /// # Errors
    /// If the process may not do that any more.
    pub fn silence(&self, client: BorrowedFd<'_>, server: BorrowedFd<'_>) -> io::Result<()> {
        repair(client, Repair::On)?;
        repair(server, Repair::On)
    }

    /// Holds the port of the connection to the server, when the sockets are gone.
    ///
    /// # Errors
    /// If another connection has got it: then the flow must end.
    pub fn hold(&mut self) -> io::Result<()> {
        // First, because the port is free until then.
        self.holder = Some(hold(&self.sides[1].ends)?);
        for (side, is_ours) in self.sides.iter().zip([false, true]) {
            self.table.conntrack.forget(&side.ends, is_ours);
        }
        Ok(())
    }

    /// Ends a flow that is over for both peers.
    pub fn close(mut self) {
        self.remove();
    }

    fn remove(&mut self) {
        self.is_over = true;
        self.sides.iter().for_each(|side| self.table.remove(&side.ends.key(), self.id));
        self.holder = None;
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.read();
        self.remove();
        let [client, server] = &self.sides;
        for (side, other) in [(client, server), (server, client)] {
            let ack = other.entry.acked.wrapping_add(other.entry.ack_add);
            if let Err(error) = reset(&side.ends, side.entry.acked, ack) {
                // A peer that sends something gets a RST from the kernel.
                tracing::debug!("spliced flow: no reset to {}: {error}", side.ends.peer);
            }
        }
    }
}
