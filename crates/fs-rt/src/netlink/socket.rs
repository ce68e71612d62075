//! An rtnetlink socket: dumps, requests, change notifications, and neighbour resolution.

use netlink_packet_core::{
    Emitable, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator, ParseableParametrized,
};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkHeader, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// `RTNLGRP_*` of `linux/rtnetlink.h`: links, and addresses, routes and rules of both families.
pub const GROUPS: [u32; 7] = [1, 5, 7, 8, 9, 11, 19];
/// `RTNLGRP_NEIGH`.
pub(crate) const NEIGHBOURS: u32 = 3;

/// Number of times that an interrupted dump is repeated. The last one is used as it is: a
/// notification of the change will cause another dump.
const DUMPS_MOST: usize = 8;

/// One socket for requests and one for notifications. Both belong to the network namespace of the
/// calling thread at the time of opening.
pub struct Netlink {
    questions: Socket,
    notices: Socket,
    /// Sequence number of the last request. A late reply to an abandoned request is not taken for
    /// the reply to the next one.
    asked: AtomicU32,
}

/// The kernel's notifications.
#[derive(Debug)]
pub enum Notices {
    /// In order.
    Messages(Vec<RouteNetlinkMessage>),
    /// Some were lost, so everything must be read again. All that were queued by then are read.
    Lost,
}

impl Netlink {
    /// Subscribes first, so that changes during a dump are noticed.
    pub fn open(groups: impl IntoIterator<Item = u32>) -> io::Result<Self> {
        let mut notices = Socket::new(NETLINK_ROUTE)?;
        notices.bind_auto()?;
        for group in groups {
            notices.add_membership(group)?;
        }
        notices.set_non_blocking(true)?;
        let mut questions = Socket::new(NETLINK_ROUTE)?;
        questions.bind_auto()?;
        questions.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { questions, notices, asked: AtomicU32::new(0) })
    }

    /// Returns the sockets for requests and for notifications, which work in another process and
    /// namespace too. The kernel checks the rights of the process that asks. It checks those of the
    /// opener only if the sender names no address (`NETLINK_SKB_DST`).
    pub fn into_sockets(self) -> [OwnedFd; 2] {
        [self.questions, self.notices].map(crate::sys::own_netlink)
    }

    /// The reverse of [`Netlink::into_sockets`].
    pub fn of([questions, notices]: [OwnedFd; 2]) -> Self {
        let [questions, notices] = [questions, notices].map(crate::sys::netlink_of);
        Self { questions, notices, asked: AtomicU32::new(0) }
    }

    /// Returns a consistent dump of everything that `question` asks for.
    pub fn dump(&self, question: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        uninterrupted(|| self.ask(question.clone(), NLM_F_REQUEST | NLM_F_DUMP))
    }

    /// Returns the kernel's reply to one request. Its errors are those of the corresponding system
    /// call.
    pub fn question(&self, question: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        Ok(self.ask(question, NLM_F_REQUEST | NLM_F_ACK)?.messages)
    }

    fn ask(&self, question: RouteNetlinkMessage, flags: u16) -> io::Result<Reply> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let number = self.asked.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        header.sequence_number = number;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.questions.send(&bytes, 0)?;
        let mut reply = Reply::default();
        loop {
            let datagram = match self.questions.recv_from_full() {
                Ok((datagram, _)) => datagram,
                // A signal handler of the application ran. The reply still arrives.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if parse(&datagram, Some(number), &mut reply)? {
                return Ok(reply);
            }
        }
    }

    /// Asks the kernel to resolve `addr`. A notification has the result. NTF_USE does what a packet
    /// of the kernel would do: it starts probes, or refreshes a stale entry.
    pub(crate) fn use_neighbour(&self, device: u32, addr: IpAddr) -> io::Result<()> {
        let mut message = neighbour(device, addr);
        message.header.flags = NeighbourFlags::Use;
        let flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_ACK;
        self.ask(RouteNetlinkMessage::NewNeighbour(message), flags).map(drop)
    }

    /// Makes the kernel probe a neighbour now, at its known link address.
    pub(crate) fn probe_neighbour(&self, device: u32, known: &Known) -> io::Result<()> {
        let mut message = neighbour(device, known.addr);
        message.header.state = NeighbourState::Probe;
        // Without this flag, a router would no longer be marked as one.
        message.header.flags = known.flags & NeighbourFlags::Router;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(known.mac.clone()));
        // The kernel forgets neighbours of a link that was down, so create the entry.
        let flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK;
        self.ask(RouteNetlinkMessage::NewNeighbour(message), flags).map(drop)
    }

    /// Returns the neighbours on a device whose link addresses the kernel knows.
    pub(crate) fn neighbours_of(&self, device: u32) -> io::Result<Vec<Known>> {
        let all = self.dump(RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()))?;
        Ok(all.iter().filter_map(|message| Known::of(message, device)).collect())
    }

    /// Returns the state of a device, or `None` if it does not exist.
    pub(crate) fn link(&self, device: u32) -> io::Result<Option<LinkState>> {
        let all = self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        Ok(all.iter().find_map(|message| match message {
            RouteNetlinkMessage::NewLink(link) if link.header.index == device => Some(LinkState {
                has_carrier: link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
                carrier_changes: link.attributes.iter().fold(0, |changes, attribute| match attribute {
                    LinkAttribute::CarrierChanges(changes) => *changes,
                    _ => changes,
                }),
                receive_errors: link.attributes.iter().fold(0, |errors, attribute| match attribute {
                    LinkAttribute::Stats64(stats) => stats.rx_errors,
                    _ => errors,
                }),
            }),
            _ => None,
        }))
    }

    /// Returns the changes since the last call.
    pub fn notices(&self) -> io::Result<Notices> {
        read_all(|| self.notices.recv_from_full().map(|(datagram, _)| datagram))
    }
}

/// Reads notifications until none is queued.
///
/// After an overrun too: until then the kernel drops further ones and reports no second overrun
/// (`netlink_overrun`), and what is queued is older than a table that is read now.
fn read_all(mut receive: impl FnMut() -> io::Result<Vec<u8>>) -> io::Result<Notices> {
    let (mut notices, mut are_lost) = (Reply::default(), false);
    loop {
        match receive() {
            Ok(datagram) => {
                parse(&datagram, None, &mut notices)?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Such as a changed route, of which nothing else tells.
                are_lost |= notices.refused;
                return Ok(if are_lost { Notices::Lost } else { Notices::Messages(notices.messages) });
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => are_lost = true,
            Err(error) => return Err(error),
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }
}

impl std::fmt::Debug for Netlink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Netlink({})", self.questions.as_raw_fd())
    }
}

/// A neighbour that the kernel knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) addr: IpAddr,
    mac: Vec<u8>,
    flags: NeighbourFlags,
    /// The kernel found it by asking, and may ask again.
    pub(crate) may_be_asked: bool,
    /// True if the neighbour replied recently.
    pub(crate) has_answered: bool,
}

impl Known {
    /// An entry with only these properties.
    #[cfg(test)]
    pub(crate) fn at(addr: IpAddr, may_be_asked: bool, has_answered: bool) -> Known {
        Known { addr, mac: Vec::new(), flags: NeighbourFlags::empty(), may_be_asked, has_answered }
    }

    fn of(message: &RouteNetlinkMessage, device: u32) -> Option<Known> {
        let RouteNetlinkMessage::NewNeighbour(message) = message else { return None };
        let (mut addr, mut mac) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => addr = Some(IpAddr::V4(*v4)),
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => addr = Some(IpAddr::V6(*v6)),
                NeighbourAttribute::LinkLayerAddress(bytes) => mac = Some(bytes.clone()),
                _ => {}
            }
        }
        let (state, flags) = (message.header.state, message.header.flags);
        let has_answered = state == NeighbourState::Reachable;
        // An entry with other flags was added by a program.
        let is_kernels = (flags - NeighbourFlags::Router).is_empty();
        Some(Known {
            addr: addr.filter(|addr| !addr.is_multicast() && message.header.ifindex == device)?,
            mac: mac?,
            flags,
            may_be_asked: is_kernels
                && matches!(
                    state,
                    NeighbourState::Reachable | NeighbourState::Stale | NeighbourState::Delay | NeighbourState::Probe
                ),
            has_answered,
        })
    }
}

/// The state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkState {
    /// True if the device is up and has a carrier.
    pub(crate) has_carrier: bool,
    /// Packets received with errors.
    pub(crate) receive_errors: u64,
    /// Number of times that its carrier has changed.
    pub(crate) carrier_changes: u32,
}

/// Builds a message about `addr` on a device.
fn neighbour(device: u32, addr: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = device;
    let destination = match addr {
        IpAddr::V4(v4) => {
            message.header.family = AddressFamily::Inet;
            NeighbourAddress::Inet(v4)
        }
        IpAddr::V6(v6) => {
            message.header.family = AddressFamily::Inet6;
            NeighbourAddress::Inet6(v6)
        }
    };
    message.attributes.push(NeighbourAttribute::Destination(destination));
    message
}

/// The kernel's reply.
#[derive(Debug, Default)]
struct Reply {
    messages: Vec<RouteNetlinkMessage>,
    /// A table changed while it was read (`NLM_F_DUMP_INTR`): entries may be missing or duplicated.
    interrupted: bool,
    /// The parser did not understand a message about something else than a neighbour.
    refused: bool,
}

/// Repeats `ask` until its reply is not interrupted, or returns the last of many attempts.
fn uninterrupted(mut ask: impl FnMut() -> io::Result<Reply>) -> io::Result<Vec<RouteNetlinkMessage>> {
    for _ in 1..DUMPS_MOST {
        let reply = ask()?;
        if !reply.interrupted {
            return Ok(reply.messages);
        }
    }
    let reply = ask()?;
    if reply.interrupted {
        tracing::debug!(tries = DUMPS_MOST, "a kernel table changes faster than it can be read");
    }
    Ok(reply.messages)
}

/// Parses a datagram's messages. Returns `true` if one of them ends a reply. Skips messages that
/// the parser does not understand (of a newer kernel), and replies to other requests than
/// `answer_to`.
fn parse(mut datagram: &[u8], answer_to: Option<u32>, into: &mut Reply) -> io::Result<bool> {
    while let Some(length) = datagram.first_chunk::<4>() {
        let length = u32::from_ne_bytes(*length) as usize;
        let Some(bytes) = datagram.get(..length).filter(|bytes| !bytes.is_empty()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a netlink message with a wrong length"));
        };
        match NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) {
            Ok(message) if answer_to.is_some_and(|number| number != message.header.sequence_number) => {}
            Ok(message) => {
                into.interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                match message.payload {
                    // The rest is missing.
                    NetlinkPayload::Done(end) if end.code < 0 => {
                        return Err(io::Error::from_raw_os_error(end.code.saturating_neg()));
                    }
                    NetlinkPayload::Done(_) => return Ok(true),
                    NetlinkPayload::Error(error) => {
                        return if error.code.is_none() { Ok(true) } else { Err(error.to_io()) };
                    }
                    NetlinkPayload::InnerMessage(message) => into.messages.push(message),
                    _ => {}
                }
            }
            Err(error) => match link_of(bytes, answer_to) {
                Some(link) => into.messages.push(link),
                None => {
                    let kind = NetlinkBuffer::new_checked(bytes).map_or(0, |message| message.message_type());
                    into.refused |= ![libc::RTM_NEWNEIGH, libc::RTM_DELNEIGH].contains(&kind);
                    tracing::debug!(%error, "ignored an unknown netlink message");
                }
            },
        }
        // Messages are aligned to four bytes.
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Returns what the parser understands of a message about a link. It refuses all of it for one strange
/// attribute, and the device would count as deleted.
fn link_of(bytes: &[u8], answer_to: Option<u32>) -> Option<RouteNetlinkMessage> {
    let message = NetlinkBuffer::new_checked(bytes).ok()?;
    let make = match message.message_type() {
        libc::RTM_NEWLINK => RouteNetlinkMessage::NewLink,
        libc::RTM_DELLINK => RouteNetlinkMessage::DelLink,
        _ => return None,
    };
    let mut link = LinkMessage::default();
    link.header = LinkHeader::parse(message.payload()).ok()?;
    let (attributes, family) = (message.payload().get(link.header.buffer_len()..)?, link.header.interface_family);
    let attributes = NlasIterator::new(attributes).map_while(Result::ok);
    link.attributes = attributes.filter_map(|one| LinkAttribute::parse_with_param(&one, family).ok()).collect();
    answer_to.is_none_or(|number| number == message.sequence_number()).then(|| make(link))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::DoneMessage;

    /// The end of a dump, as the kernel sends it.
    fn done(number: u32, flags: u16) -> Vec<u8> {
        bytes(number, flags, NetlinkPayload::Done(DoneMessage::default()))
    }

    fn bytes(number: u32, flags: u16, payload: NetlinkPayload<RouteNetlinkMessage>) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        (header.sequence_number, header.flags) = (number, flags);
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn queue_is_read_to_its_end_after_an_overrun() {
        let mut queue = std::collections::VecDeque::from([Err(libc::ENOBUFS), Ok(done(0, 0)), Err(libc::EAGAIN)]);
        let mut notices = || {
            let receive = || queue.pop_front().unwrap_or(Err(libc::EAGAIN)).map_err(io::Error::from_raw_os_error);
            let notices = read_all(receive).unwrap();
            (matches!(notices, Notices::Lost), queue.len())
        };
        assert_eq!(notices(), (true, 0));
        assert_eq!(notices(), (false, 0));
    }

    /// Cached routes are invalid after it, whatever it contains.
    #[test]
    fn refused_notification_counts_as_lost() {
        let notices = |kind: u16| {
            // A header, `struct rtmsg`, and an RTA_OIF with one byte instead of four.
            let mut message = [0; 36];
            (message[0], message[16]) = (36, libc::AF_INET as u8);
            message[4..6].copy_from_slice(&kind.to_ne_bytes());
            message[28..32].copy_from_slice(&[5_u16, libc::RTA_OIF].map(u16::to_ne_bytes).concat());
            let mut queue = [message.to_vec()].into_iter();
            read_all(|| queue.next().ok_or(io::ErrorKind::WouldBlock.into())).unwrap()
        };
        assert!(matches!(notices(libc::RTM_NEWROUTE), Notices::Lost));
        let notices = notices(libc::RTM_NEWNEIGH);
        assert!(matches!(&notices, Notices::Messages(messages) if messages.len() <= 1), "{notices:?}");
    }

    #[test]
    fn interrupted_dump_is_repeated() {
        let mut flags = [NLM_F_DUMP_INTR, NLM_F_DUMP_INTR, 0].into_iter();
        let mut asked = 0;
        let mut ask = |flags: u16| {
            asked += 1;
            let mut reply = Reply::default();
            assert!(!parse(&done(4, flags), Some(3), &mut reply)?, "the reply to another question");
            assert!(!reply.interrupted);
            assert!(parse(&done(3, flags), Some(3), &mut reply)?);
            Ok(reply)
        };
        assert!(uninterrupted(|| ask(flags.next().unwrap())).is_ok());
        assert_eq!(asked, 3);
        // The number of attempts is limited.
        let mut asked = 0;
        let always = || {
            asked += 1;
            Ok(Reply { interrupted: true, ..Reply::default() })
        };
        assert!(uninterrupted(always).is_ok());
        assert_eq!(asked, DUMPS_MOST);
    }

    /// The kernel could not go on, as without room for one entry (`netlink_dump_done`).
    #[test]
    fn dump_that_ends_with_an_error_fails() {
        let mut end = DoneMessage::default();
        end.code = -libc::EMSGSIZE;
        let ended = parse(&bytes(3, 0, NetlinkPayload::Done(end)), Some(3), &mut Reply::default());
        assert_eq!(ended.unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
        assert!(parse(&done(3, 0), Some(3), &mut Reply::default()).unwrap());
    }

    /// The alias of a device (`ip link set alias`) may have any bytes.
    #[test]
    fn link_with_a_strange_attribute_exists() {
        let mut link = LinkMessage::default();
        link.header.index = 7;
        let alias = |alias: &str| LinkAttribute::IfAlias(alias.into());
        link.attributes = vec![LinkAttribute::Mtu(1400), alias("caf_"), LinkAttribute::Carrier(1)];
        for make in [RouteNetlinkMessage::NewLink, RouteNetlinkMessage::DelLink] {
            let mut datagram = bytes(3, 0, make(link.clone()).into());
            let at = datagram.windows(4).position(|four| four == b"caf_").unwrap();
            datagram[at + 3] = 0xe9;
            let mut reply = Reply::default();
            assert!(!parse(&datagram, Some(3), &mut reply).unwrap());
            let understood = vec![LinkAttribute::Mtu(1400), LinkAttribute::Carrier(1)];
            let mut expected = LinkMessage::default();
            (expected.header, expected.attributes) = (link.header.clone(), understood);
            assert_eq!(reply.messages, [make(expected)]);
            reply.messages.clear();
            assert!(!parse(&datagram, Some(4), &mut reply).unwrap());
            assert_eq!(reply.messages, [], "the reply to another question");
        }
    }
}
