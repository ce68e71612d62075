//! Reads the state of sockets that the kernel carries, which the daemon does not know.
//!
//! `/proc/PID/fd/N` names the socket's inode, `/proc/PID/net/tcp` and `tcp6` list all of the
//! process's network namespace (proc_net_tcp, Documentation/networking/proc_net_tcp.rst of the
//! kernel). Sockets that this user may not inspect stay unknown.

use fs_shm::control::SocketRow;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A socket's state in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    state: u8,
    recv_queue: u32,
    send_queue: u32,
    local: SocketAddr,
    peer: Option<SocketAddr>,
}

/// The tables of each namespace, by the namespace's name.
#[derive(Default)]
pub(super) struct Tables(HashMap<String, HashMap<u64, Known>>);

impl Tables {
    /// Fills in what the kernel knows. Returns the socket's inode.
    pub(super) fn complete(&mut self, row: &mut SocketRow) -> Option<u64> {
        let inode = inode(row.pid, row.fd)?;
        let netns = std::fs::read_link(format!("/proc/{}/ns/net", row.pid)).ok()?.to_string_lossy().into_owned();
        let pid = row.pid;
        let table = self.0.entry(netns).or_insert_with(|| read(pid));
        if let Some(known) = table.get(&inode) {
            let Known { state, recv_queue, send_queue, local, peer } = *known;
            *row = SocketRow { state, recv_queue, send_queue, local, peer, ..*row };
        }
        Some(inode)
    }
}

/// Of `socket:[12345]`.
fn inode(pid: u32, fd: u32) -> Option<u64> {
    let name = std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    name.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn read(pid: u32) -> HashMap<u64, Known> {
    let text = |name| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let (v4, v6) = (text("tcp"), text("tcp6"));
    v4.lines().chain(v6.lines()).filter_map(line).collect()
}

/// Parses `sl local_address rem_address st tx_queue:rx_queue tr:when retrnsmt uid timeout inode …`,
/// all but the last in hex.
fn line(line: &str) -> Option<(u64, Known)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, peer, state, queues, _, _, _, _, inode, ..] = fields[..] else { return None };
    let (send, recv) = queues.split_once(':')?;
    let state = u8::from_str_radix(state, 16).ok()?;
    let (mut send_queue, recv_queue) = (u32::from_str_radix(send, 16).ok()?, u32::from_str_radix(recv, 16).ok()?);
    if state == LISTEN {
        // This table does not have the backlog.
        send_queue = 0;
    }
    let peer = address(peer)?;
    let known =
        Known { state, recv_queue, send_queue, local: address(local)?, peer: (state != LISTEN).then_some(peer) };
    Some((inode.parse().ok()?, known))
}

/// TCP_LISTEN of include/net/tcp_states.h.
const LISTEN: u8 = 10;

/// Parses an address: its words in this machine's byte order, in hex, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut octets = [0; 16];
            for (at, part) in octets.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_shm::control::{Kind, Text};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn kernel_sockets_are_found() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                println!("skipped: {at}: no IPv6");
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut tables = Tables::default();
            let mut look = |fd: i32| {
                let mut row = SocketRow {
                    state: 7,
                    kind: Kind::Kernel,
                    core: None,
                    reason: None,
                    recv_queue: 0,
                    send_queue: 0,
                    local: "0.0.0.0:0".parse().unwrap(),
                    peer: None,
                    pid: std::process::id(),
                    fd: fd as u32,
                    name: Text::default(),
                };
                assert!(tables.complete(&mut row).is_some());
                row
            };
            let row = look(client.as_raw_fd());
            assert_eq!((row.state, row.local), (1, client.local_addr().unwrap()));
            assert_eq!(row.peer, Some(listener.local_addr().unwrap()));
            let row = look(listener.as_raw_fd());
            // The connection waits to be accepted.
            assert_eq!((row.state, row.local, row.peer, row.recv_queue), (10, listener.local_addr().unwrap(), None, 1));
        }
    }

    #[test]
    fn other_descriptors_stay_unknown() {
        assert_eq!(inode(std::process::id(), 1_000_000), None);
        assert_eq!(address("0100007F"), None);
        assert_eq!(address("0100:0016"), None);
        assert_eq!(line("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"), None);
    }
}
