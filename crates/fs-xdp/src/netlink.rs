//! Questions to rtnetlink (`RTM_GETLINK`): the XDP program of a device and where it runs (`IFLA_XDP`),
//! its queueing discipline (`IFLA_QDISC`), and the device that it sends by (`IFLA_LINK`).

use crate::config::XdpMode;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkXdp, XdpAttached};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use std::io;

/// Returns the number of the program on the device with this index, or `None`.
pub(crate) fn attached_program(index: u32) -> io::Result<Option<u32>> {
    let id = |part| if let LinkXdp::ProgId(id) = part { Some(id) } else { None };
    Ok(xdp(index)?.find_map(id))
}

/// Returns where the device with this index runs its XDP program, or `None` if it has none.
pub(crate) fn attached_mode(index: u32) -> io::Result<Option<XdpMode>> {
    let mode = |part| match part {
        LinkXdp::Attached(XdpAttached::SocketBuffer) => Some(XdpMode::Generic),
        // A driver's program runs first if there are several.
        LinkXdp::Attached(XdpAttached::Driver | XdpAttached::Hardware | XdpAttached::Multiple) => Some(XdpMode::Native),
        _ => None,
    };
    Ok(xdp(index)?.find_map(mode))
}

/// Returns what the kernel knows of the device's XDP program.
fn xdp(index: u32) -> io::Result<impl Iterator<Item = LinkXdp>> {
    let xdp = |attribute| if let LinkAttribute::Xdp(parts) = attribute { Some(parts) } else { None };
    Ok(attributes(index)?.into_iter().filter_map(xdp).flatten())
}

/// Returns the name of the queueing discipline of the device with this index; `noqueue` if there is
/// none.
pub(crate) fn queueing_discipline(index: u32) -> io::Result<String> {
    let name = |attribute| if let LinkAttribute::Qdisc(name) = attribute { Some(name) } else { None };
    Ok(attributes(index)?.into_iter().find_map(name).unwrap_or_default())
}

/// Returns the index of the device by which the one with this index sends (the parent of a VLAN), or
/// `None` without one, or if it is in another network namespace.
pub(crate) fn device_below(index: u32) -> io::Result<Option<u32>> {
    let attributes = attributes(index)?;
    if attributes.iter().any(|attribute| matches!(attribute, LinkAttribute::LinkNetNsId(_))) {
        return Ok(None);
    }
    let below = |attribute| if let LinkAttribute::Link(below) = attribute { Some(below) } else { None };
    Ok(attributes.into_iter().find_map(below).filter(|below| *below != 0 && *below != index))
}

/// Returns what the kernel knows of the device.
fn attributes(index: u32) -> io::Result<Vec<LinkAttribute>> {
    let (mut header, mut device) = (NetlinkHeader::default(), LinkMessage::default());
    (header.flags, device.header.index) = (NLM_F_REQUEST, index);
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(RouteNetlinkMessage::GetLink(device)));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let socket = Socket::new(NETLINK_ROUTE)?;
    socket.send(&bytes, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    match NetlinkMessage::deserialize(&answer).map_err(io::Error::other)?.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(device)) => Ok(device.attributes),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn loopback_has_no_program() {
        assert_eq!((attached_program(1).unwrap(), attached_mode(1).unwrap()), (None, None));
        assert!(attached_program(0x7fff_fff0).is_err());
        assert_eq!(queueing_discipline(1).unwrap(), "noqueue");
        assert_eq!(device_below(1).unwrap(), None);
    }
}
