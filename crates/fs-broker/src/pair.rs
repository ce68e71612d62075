//! A program's pair of devices. The program's end lies in a namespace without a name, which the
//! program's AF_XDP sockets keep alive. When the last of them is closed for any reason, the kernel
//! removes the namespace and both ends.

use crate::error::Error;
use crate::programs::End;
use crate::sys::enter_new_namespace;
use fs_pairs::closing::Foreign;
use fs_rt::netlink::Netlink;
use fs_xdp::{NetDevice, QueueConfig, UmemConfig, make_queues, make_segment_socket};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp,
};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// `XDP_FLAGS_SKB_MODE`: bpf_redirect_peer leads past a driver's XDP program.
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
/// The largest MTU of veth. share_out checks the shared device's own MTU, which may change.
const MTU: u32 = 65_535;
/// The program's end, in its namespace.
const END: &str = "fastsock";
/// Prefix of the names of the hosts' ends.
const PREFIX: &str = "fsk";

/// A program's request.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) queues: u32,
    pub(crate) memory: Foreign,
    pub(crate) config: UmemConfig,
    pub(crate) rings: QueueConfig,
    /// A packet socket for super-segments.
    pub(crate) segments: bool,
}

/// The program's sockets.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// One AF_XDP socket per queue.
    pub(crate) queues: Vec<OwnedFd>,
    /// The packet socket for super-segments.
    pub(crate) segments: Option<OwnedFd>,
}

/// Returns the name of the host's end of a slot of a device.
pub(crate) fn name(device: u32, slot: u16) -> String {
    format!("{PREFIX}{device}.{slot}")
}

/// Returns true for the name of a host's end.
pub(crate) fn is_pair(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|rest| rest.contains('.') && rest.bytes().all(|b| b == b'.' || b.is_ascii_digit()))
}

/// Makes a pair. Returns the index of the host's end, which is up, and the program's sockets.
pub(crate) fn make(name: &str, wanted: &Wanted) -> Result<(u32, Sockets), Error> {
    let host = Requests::open()?;
    // A pair of an earlier program whose namespace ends just now.
    let _none = host.delete(name);
    let sockets = std::thread::scope(|scope| {
        let within =
            std::thread::Builder::new().name("fs-pair".into()).spawn_scoped(scope, || within(&host, name, wanted));
        let within = within.map_err(|error| Error::system("start a thread", error))?;
        within.join().unwrap_or_else(|_| Err(Error::system("make a pair", io::Error::other("a thread panicked"))))
    });
    let made = sockets.and_then(|sockets| {
        let device = NetDevice::find(name)?;
        quiet(name);
        host.up(device.index)?;
        Ok((device.index, sockets))
    });
    if made.is_err() {
        let _none = host.delete(name);
    }
    made
}

/// Makes the pair on a thread of its own, which stays in the new namespace of the program's end.
fn within(host: &Requests, name: &str, wanted: &Wanted) -> Result<Sockets, Error> {
    enter_new_namespace().map_err(|error| Error::system("make a network namespace", error))?;
    let namespace =
        File::open("/proc/thread-self/ns/net").map_err(|error| Error::system("open the namespace", error))?;
    quiet("default");
    host.make_veth(name, wanted.queues, &namespace)?;
    let end = NetDevice::find(END)?;
    if !wanted.segments {
        end.turn_tx_checksum_off().map_err(|error| Error::system("turn checksum offload off", error))?;
    }
    let mut program = End::load()?;
    let own = Requests::open()?;
    own.attach_xdp(end.index, program.fd()?)?;
    own.up(end.index)?;
    let queues = make_queues(&end, wanted.queues, wanted.memory.as_fd(), wanted.config, wanted.rings)?;
    for (queue, socket) in (0..).zip(&queues) {
        program.set(queue, socket)?;
    }
    let segments = wanted.segments.then(|| make_segment_socket(&end)).transpose();
    let segments = segments.unwrap_or_else(|error| {
        tracing::warn!(%error, "a program sends segments one by one (does the unit's RestrictAddressFamilies lack AF_PACKET?)");
        None
    });
    Ok(Sockets { queues, segments })
}

/// Turns IPv6 off, so that the kernel sends nothing of its own.
fn quiet(device: &str) {
    let path = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
    // A kernel without IPv6 has no such file.
    if let Err(error) = std::fs::write(path, "1") {
        tracing::debug!(device, %error, "IPv6 stays on");
    }
}

/// Removes every pair of the calling thread's namespace for whose host's end `fits` returns true.
pub(crate) fn remove(fits: impl Fn(&str) -> bool) -> Result<usize, Error> {
    let netlink = Netlink::open([]).map_err(|error| Error::system("open rtnetlink", error))?;
    let links = netlink.dump(Message::GetLink(LinkMessage::default()));
    let requests = Requests::open()?;
    let mut removed = 0;
    for message in links.map_err(|error| Error::system("list devices", error))? {
        let Message::NewLink(link) = message else { continue };
        for attribute in link.attributes {
            if let LinkAttribute::IfName(name) = attribute
                && is_pair(&name)
                && fits(&name)
            {
                requests.delete(&name)?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

/// An rtnetlink socket of the namespace in which it was opened.
struct Requests(Socket);

impl Requests {
    fn open() -> Result<Self, Error> {
        Socket::new(NETLINK_ROUTE).map(Self).map_err(|error| Error::system("open rtnetlink", error))
    }

    fn ask(&self, message: Message, flags: u16) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let (answer, _) = self.0.recv_from_full()?;
        match NetlinkMessage::<Message>::deserialize(&answer).map_err(io::Error::other)?.payload {
            NetlinkPayload::Error(error) if error.code.is_none() => Ok(()),
            NetlinkPayload::Error(error) => Err(error.to_io()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn make_veth(&self, name: &str, queues: u32, namespace: &File) -> Result<(), Error> {
        let half = |name: &str| {
            let mut half = LinkMessage::default();
            half.attributes = vec![
                LinkAttribute::IfName(name.to_owned()),
                LinkAttribute::Mtu(MTU),
                LinkAttribute::NumTxQueues(queues),
                LinkAttribute::NumRxQueues(queues),
            ];
            half
        };
        let (mut host, mut end) = (half(name), half(END));
        end.attributes.push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        host.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(end))),
        ]));
        self.ask(Message::NewLink(host), NLM_F_CREATE | NLM_F_EXCL)
            .map_err(|error| Error::system("make a pair of devices (veth)", error))
    }

    fn change(&self, index: u32, what: &'static str, change: impl FnOnce(&mut LinkMessage)) -> Result<(), Error> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        change(&mut link);
        self.ask(Message::SetLink(link), 0).map_err(|error| Error::system(what, error))
    }

    fn up(&self, index: u32) -> Result<(), Error> {
        self.change(index, "set a device of the pair up", |link| {
            (link.header.flags, link.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
        })
    }

    /// The XDP program stays attached as long as the device exists.
    fn attach_xdp(&self, index: u32, program: i32) -> Result<(), Error> {
        self.change(index, "attach the XDP program of the pair", |link| {
            let parts = vec![LinkXdp::Fd(program), LinkXdp::Flags(XDP_FLAGS_SKB_MODE)];
            link.attributes.push(LinkAttribute::Xdp(parts));
        })
    }

    fn delete(&self, name: &str) -> Result<(), Error> {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.ask(Message::DelLink(link), 0) {
            Err(error) if error.raw_os_error() != Some(libc::ENODEV) => Err(Error::system("remove a pair", error)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_are_recognized() {
        assert!(name(1_234_567, 255).len() < libc::IFNAMSIZ && is_pair(&name(2, 1)));
        assert!(!is_pair("fskeleton") && !is_pair("fsk0") && !is_pair("eth0.5"));
    }
}
