//! Two requests over rtnetlink (`RTM_GETLINK`): the XDP program of a device (`IFLA_XDP`), and its
//! queueing discipline (`IFLA_QDISC`).

use libc::{IFLA_QDISC, IFLA_XDP};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const NLMSG_HEADER: usize = 16;
const IFINFOMSG: usize = 16;
const IFLA_XDP_PROG_ID: u16 = 4;

/// Returns the number of the program on the device with this index, or `None`.
pub(crate) fn attached_program(index: u32) -> io::Result<Option<u32>> {
    parse(&ask(index)?)
}

/// Returns the name of the queueing discipline of the device with this index; `noqueue` if there is
/// none.
pub(crate) fn queueing_discipline(index: u32) -> io::Result<String> {
    let answer = ask(index)?;
    let name = attribute(attributes(&answer)?, IFLA_QDISC).unwrap_or_default();
    Ok(name.iter().take_while(|&&byte| byte != 0).map(|&byte| char::from(byte)).collect())
}

/// Returns the kernel's reply about the device.
fn ask(index: u32) -> io::Result<Vec<u8>> {
    // SAFETY: a plain system call without pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let request = request(index);
    // SAFETY: sends from a live buffer of that length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = vec![0u8; 32 * 1024];
    // SAFETY: receives into a live buffer of that length.
    let got = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    answer.truncate(got as usize);
    Ok(answer)
}

fn request(index: u32) -> Vec<u8> {
    let mut message = Vec::with_capacity(NLMSG_HEADER + IFINFOMSG);
    message.extend_from_slice(&((NLMSG_HEADER + IFINFOMSG) as u32).to_ne_bytes());
    message.extend_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    message.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(&index.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message
}

fn attributes(answer: &[u8]) -> io::Result<&[u8]> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = u16::from_ne_bytes(word(answer, 4).ok_or_else(bad)?);
    if i32::from(kind) == libc::NLMSG_ERROR {
        let code = i32::from_ne_bytes(word(answer, NLMSG_HEADER).ok_or_else(bad)?);
        return Err(io::Error::from_raw_os_error(-code));
    }
    answer.get(NLMSG_HEADER + IFINFOMSG..).ok_or_else(bad)
}

fn parse(answer: &[u8]) -> io::Result<Option<u32>> {
    let Some(xdp) = attribute(attributes(answer)?, IFLA_XDP) else { return Ok(None) };
    Ok(attribute(xdp, IFLA_XDP_PROG_ID).and_then(|id| word(id, 0)).map(u32::from_ne_bytes))
}

/// Returns the payload of the attribute `wanted` (ignoring type flags).
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while attributes.len() >= 4 {
        let length = u16::from_ne_bytes(word(attributes, 0)?) as usize;
        let kind = u16::from_ne_bytes(word(attributes, 2)?) & 0x3fff;
        if length < 4 || length > attributes.len() {
            return None;
        }
        if kind == wanted {
            return Some(&attributes[4..length]);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute_bytes(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ((payload.len() + 4) as u16).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn program_is_found_among_other_attributes() {
        let mut answer = vec![0; NLMSG_HEADER + IFINFOMSG];
        answer.extend(attribute_bytes(3, b"veth0\0"));
        let mut xdp = attribute_bytes(2, &[1]);
        xdp.extend(attribute_bytes(IFLA_XDP_PROG_ID, &77u32.to_ne_bytes()));
        answer.extend(attribute_bytes(IFLA_XDP | 0x8000, &xdp));
        assert_eq!(parse(&answer).unwrap(), Some(77));
        assert_eq!(parse(&answer[..44]).unwrap(), None);
        assert!(parse(&[0; 3]).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn loopback_has_no_program() {
        assert_eq!(attached_program(1).unwrap(), None);
        assert!(attached_program(0x7fff_fff0).is_err());
        assert_eq!(queueing_discipline(1).unwrap(), "noqueue");
    }
}
