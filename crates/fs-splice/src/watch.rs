//! A pair of connections that may be spliced.
//!
//! The program first only watches the packets of both. So it is certain that it sees them, with the
//! addresses of the sockets and at the devices of the routes, before a flow depends on it.

use crate::address::Ends;
use crate::entry::{Entry, Key, is_from};
use crate::error::Refusal;
use crate::flow::{Flow, Side};
use crate::program::Table;
use crate::sys::{Info, Queue, Repair, has_urgent, info, outgoing, queue_end, repair, stamp, throttle, unread};
use fs_rt::netlink::Flow as RouteFlow;
use rustix::net::sockopt::{set_socket_linger, set_socket_reuseaddr};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

/// Bytes in the two sockets of a direction at the moment of splicing that are allowed if they fit the
/// receiver's window. They are sent by the proxy's socket while later ones arrive already. Higher: the
/// receiver may lack memory for the later ones, which are lost then. Lower: a flow must wait for a
/// quiet moment more often.
const BACKLOG_MAX: u64 = 512 << 10;
/// More are allowed if the sender's later ones fit too, and the receiver takes them within this time. Longer: the
/// sender gets no acknowledgment of later bytes for so long, and may repeat them, after 200 ms at the
/// earliest. Shorter: busy flows on slow machines stay in user space.
const DRAIN_US: u64 = 50_000;
/// Number of bytes that the sockets of a busy flow may hold until it is spliced. Higher: a fast
/// flow stays above [`BACKLOG_MAX`]. Lower: it is slower until then.
const THROTTLE: u32 = 32 << 10;
/// The client may be this much farther than the server, in addition to the server's own distance.
/// A server with BBR takes the proxy's round trip for that of the path, for 10 s. Higher: it sends
/// 4 packets in each round trip for that time. Lower: noise of the measurement decides.
const FAR_US: u32 = 1000;
/// Length of TCP's timestamps in a segment.
const STAMPS_LENGTH: u32 = 12;
/// A timestamp is read without its lowest bit, and the clock of packets may be ahead by 1 ms.
const STAMP_MARGIN: u32 = 3;

/// Two connections whose packets are watched until this is dropped.
#[derive(Debug)]
pub struct Watched {
    table: Rc<Table>,
    id: u64,
    /// The client's connection, and the server's.
    sides: [Ends; 2],
    /// The devices towards them.
    devices: [u32; 2],
    is_spliced: bool,
}

/// The result of an attempt.
#[derive(Debug)]
pub enum Attempt {
    /// The flow is spliced.
    Spliced(Box<Flow>),
    /// Not possible now: packets of both peers must be seen first.
    Unseen(Watched),
    /// Not possible now: too many bytes are in flight. From now on the sockets accept few bytes.
    Busy(Watched),
    /// Not at all.
    Never(Refusal),
}

impl Watched {
    /// Begins to watch the packets of two connections.
    ///
    /// # Errors
    /// Why they cannot be spliced.
    pub fn new(table: &Rc<Table>, client: BorrowedFd<'_>, server: BorrowedFd<'_>) -> Result<Self, Refusal> {
        let failed = |error| Refusal::System("read a socket's addresses", error);
        let sides = [Ends::of(client).map_err(failed)?, Ends::of(server).map_err(failed)?];
        if sides[0].is_v4() != sides[1].is_v4() {
            return Err(Refusal::Families);
        }
        let [client, server] = both([client, server], info).map_err(|error| Refusal::System("read TCP_INFO", error))?;
        check(&client, &server)?;
        // The distance is checked once: later, packets wait for each other under load.
        if client.min_rtt > server.min_rtt.saturating_mul(2).saturating_add(FAR_US) {
            return Err(Refusal::Far(client.min_rtt, server.min_rtt));
        }
        let devices = [device(table, &sides[0])?, device(table, &sides[1])?];
        let watched = Self { table: table.clone(), id: table.new_id(), sides, devices, is_spliced: false };
        for key in watched.keys() {
            watched.table.add(&key, &Entry { id: watched.id, ..Entry::default() })?;
        }
        Ok(watched)
    }

    fn keys(&self) -> [Key; 2] {
        [self.sides[0].key(), self.sides[1].key()]
    }

    /// Splices the connections if that is possible now. The caller has written all that it has read.
    #[must_use]
    pub fn splice(mut self, client: BorrowedFd<'_>, server: BorrowedFd<'_>) -> Attempt {
        match self.try_splice([client, server]) {
            Ok(Now::Spliced(flow)) => {
                self.is_spliced = true;
                Attempt::Spliced(flow)
            }
            Ok(Now::Unseen) => Attempt::Unseen(self),
            Ok(Now::Busy) => Attempt::Busy(self),
            Err(refusal) => {
                self.give_up(client, server);
                Attempt::Never(refusal)
            }
        }
    }

    /// Leaves the connections as they were.
    pub fn give_up(self, client: BorrowedFd<'_>, server: BorrowedFd<'_>) {
        // An error means that the connection is gone.
        let _gone = both([client, server], |socket| {
            throttle(socket, None)?;
            Ok(set_socket_linger(socket, None)?)
        });
    }

    fn try_splice(&self, sockets: [BorrowedFd<'_>; 2]) -> Result<Now, Refusal> {
        let mut seen = [Entry::default(); 2];
        for (at, key) in self.keys().iter().enumerate() {
            match self.table.get(key, self.id) {
                Some(entry) if entry.packets == 0 => return Ok(Now::Unseen),
                Some(entry) => seen[at] = entry,
                None => return Err(Refusal::Table("removed".into())),
            }
        }
        if seen.iter().any(|entry| entry.encrypted) {
            return Err(Refusal::Encrypted);
        }
        if seen.iter().zip(self.devices).any(|(entry, device)| entry.arrived != device) {
            return Err(Refusal::Unseen);
        }
        let failed = |error| Refusal::System("read a connection's state", error);
        let infos = both(sockets, info).map_err(failed)?;
        let [unread, outgoing] = [both(sockets, unread).map_err(failed)?, both(sockets, outgoing).map_err(failed)?];
        if is_busy(unread, outgoing, &infos) {
            // Set each time, because the kernel raises the window's limit with the buffer.
            both(sockets, |socket| throttle(socket, Some(THROTTLE))).map_err(failed)?;
            return Ok(Now::Busy);
        }
        let positions = both(sockets, Position::of).map_err(failed)?;
        let [Some(of_client), Some(of_server)] = positions else { return Ok(Now::Busy) };
        // Read after the positions, in which a FIN would count.
        let infos = both(sockets, info).map_err(failed)?;
        check(&infos[0], &infos[1])?;
        if infos[0].stamps && (of_client.stamp.is_none() || of_server.stamp.is_none()) {
            return Err(Refusal::Stamps);
        }
        let seq_add = [of_server.sent.wrapping_sub(of_client.read()), of_client.sent.wrapping_sub(of_server.read())];
        let stamp_add = match (seen[0].stamp, seen[1].stamp, of_client.stamp, of_server.stamp) {
            _ if !infos[0].stamps => [0; 2],
            (Some(last_of_client), Some(last_of_server), Some(to_client), Some(to_server)) => [
                to_server.wrapping_add(STAMP_MARGIN).wrapping_sub(last_of_client),
                to_client.wrapping_add(STAMP_MARGIN).wrapping_sub(last_of_server),
            ],
            _ => return Ok(Now::Unseen),
        };
        let positions = [of_client, of_server];
        if is_busy(positions.map(|of| of.unread), positions.map(|of| of.outgoing), &infos) {
            return Ok(Now::Busy);
        }
        let entry = |from: usize, to: usize| {
            let (own_end, acked) = (
                positions[from].sent.wrapping_add(positions[to].unread),
                positions[from].sent.wrapping_sub(positions[from].outgoing),
            );
            // The windows of this peer, and of our socket towards the other one: that may send so much.
            let edge = [
                acked.wrapping_add(infos[from].window_in),
                positions[to].received.wrapping_add(infos[to].window_out).wrapping_add(seq_add[to]),
            ]
            .into_iter()
            .fold(own_end, |last, edge| if is_from(edge, last) { edge } else { last });
            Entry {
                to: self.sides[to].out(),
                seq_add: seq_add[from],
                ack_add: seq_add[to].wrapping_neg(),
                stamp_add: stamp_add[from],
                stamp_sub: stamp_add[to],
                own_end,
                device: self.devices[to],
                arrived: self.devices[from],
                is_spliced: true,
                stamps: infos[0].stamps,
                scale_in: infos[from].scale_in,
                scale_out: infos[to].scale_out,
                id: self.id,
                acked,
                edge,
                drained: acked == own_end,
                ..Entry::default()
            }
        };
        let entries = [entry(0, 1), entry(1, 0)];
        for socket in sockets {
            // If the process is killed, the sockets are freed at once. The peers would not
            // understand a FIN of them, and the kernel would retransmit it for minutes.
            set_socket_linger(socket, Some(Duration::ZERO)).map_err(|error| failed(error.into()))?;
        }
        for (key, entry) in self.keys().iter().zip(&entries) {
            self.table.set(key, entry)?;
        }
        let sides = [0, 1].map(|at| Side::new(self.sides[at], positions[at].sent, &entries[at]));
        Ok(Now::Spliced(Box::new(Flow::new(self.table.clone(), self.id, sides))))
    }
}

/// [`Attempt`] without the connections.
enum Now {
    Spliced(Box<Flow>),
    Unseen,
    Busy,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.is_spliced {
            self.keys().iter().for_each(|key| self.table.remove(key, self.id));
        }
    }
}

/// Returns true if the sockets hold too many bytes of a direction: those that the proxy has not read, and those that
/// its peer has not acknowledged.
fn is_busy(unread: [u32; 2], outgoing: [u32; 2], infos: &[Info; 2]) -> bool {
    [(0, 1), (1, 0)].into_iter().any(|(from, to)| {
        let bytes = u64::from(unread[from]) + u64::from(outgoing[to]);
        let window: u64 = infos[to].window_in.into();
        // All that the sender may have under way, in the window of the receiver.
        let fits = bytes + u64::from(infos[from].window_out) <= window;
        let soon = bytes.saturating_mul(1_000_000) <= infos[to].rate.saturating_mul(DRAIN_US);
        // Until the receiver has acknowledged these bytes, the sender gets no acknowledgment. So that must not depend on
        // a receiver that reads.
        bytes > window || (bytes > BACKLOG_MAX && !(fits && soon))
    })
}

/// Calls a function for both sockets.
pub(crate) fn both<S: Copy, T>(sockets: [S; 2], call: impl Fn(S) -> io::Result<T>) -> io::Result<[T; 2]> {
    let [client, server] = sockets;
    Ok([call(client)?, call(server)?])
}

/// Returns why two connections cannot be spliced.
fn check(client: &Info, server: &Info) -> Result<(), Refusal> {
    if !client.is_established || !server.is_established {
        return Err(Refusal::Closing);
    }
    if client.ecn || server.ecn {
        return Err(Refusal::Ecn);
    }
    if client.stamps != server.stamps {
        return Err(Refusal::Stamps);
    }
    if client.sack != server.sack {
        return Err(Refusal::Sack);
    }
    let options = if client.stamps { STAMPS_LENGTH } else { 0 };
    for (from, to) in [(client, server), (server, client)] {
        if from.advertised_mss > to.mss + options {
            return Err(Refusal::Segments(from.advertised_mss, to.mss + options));
        }
    }
    Ok(())
}

/// Returns the device towards a peer, with the program attached.
fn device(table: &Table, ends: &Ends) -> Result<u32, Refusal> {
    let (from, port) = (Some(ends.local.ip()), ends.local.port());
    let uid = rustix::process::geteuid().as_raw();
    let protocol = libc::IPPROTO_TCP as u8;
    let route = table.routes.route(RouteFlow { protocol, to: ends.peer, from, port, uid, mark: 0, device: 0 });
    let route = route.map_err(|error| Refusal::System("find a route", error))?;
    if route.local || !route.unicast {
        return Err(Refusal::Device);
    }
    table.attach(route.device)?;
    Ok(route.device)
}

/// The positions of a connection in its streams.
#[derive(Clone, Copy)]
struct Position {
    received: u32,
    unread: u32,
    sent: u32,
    outgoing: u32,
    stamp: Option<u32>,
}

impl Position {
    /// Returns `None` if they change too fast, or an urgent byte waits.
    fn of(socket: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        if has_urgent(socket) {
            return Ok(None);
        }
        repair(socket, Repair::On)?;
        let ends = Self::ends(socket);
        repair(socket, Repair::Off)?;
        // The end of the mode has cleared it, and a listener of this port may be opened again.
        set_socket_reuseaddr(socket, true)?;
        let Some((sent, received, unread)) = ends? else { return Ok(None) };
        Ok(Some(Self { received, unread, sent, outgoing: outgoing(socket)?, stamp: stamp(socket)? }))
    }

    /// Returns the ends of the send and the receive queue, and the number of unread bytes.
    fn ends(socket: BorrowedFd<'_>) -> io::Result<Option<(u32, u32, u32)>> {
        // First, because an acknowledgment that comes while this queue is chosen makes the kernel count
        // bytes as sent that it does not send.
        let sent = queue_end(socket, Queue::Send)?;
        for _ in 0..8 {
            let before = unread(socket)?;
            let received = queue_end(socket, Queue::Receive)?;
            if unread(socket)? == before {
                return Ok(Some((sent, received, before)));
            }
        }
        Ok(None)
    }

    /// The sequence number of the next byte to read.
    fn read(&self) -> u32 {
        self.received.wrapping_sub(self.unread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::unsent_limit;
    use crate::tests::bench;
    use rustix::net::sockopt::socket_linger;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    /// A relay that stays in user space would be slow with the limits of an attempt, and end with a reset.
    #[test]
    fn refusal_leaves_the_sockets_as_they_were() {
        let Some(bench) = bench(false) else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        let sockets = [client.as_fd(), server.as_fd()];
        let sides = sockets.map(|socket| Ends::of(socket).unwrap());
        let table = bench.table.clone();
        let watched = Watched { id: table.new_id(), table, sides, devices: [1; 2], is_spliced: false };
        for socket in sockets {
            throttle(socket, Some(THROTTLE)).unwrap();
            set_socket_linger(socket, Some(Duration::ZERO)).unwrap();
            assert_eq!(unsent_limit(socket).unwrap(), THROTTLE);
        }
        // Its entries are not in the table.
        assert!(matches!(watched.splice(sockets[0], sockets[1]), Attempt::Never(Refusal::Table(_))));
        for socket in sockets {
            assert_eq!((unsent_limit(socket).unwrap(), socket_linger(socket).unwrap()), (0, None));
        }
    }
}
