//! The list of promoted pairs and of recently refused offers.
//!
//! A client asks with [`crate::message::Request::List`] and gets a record: a header of
//! [`crate::message::LEN`] bytes with the number of rows and the position of the next record. A
//! record without rows is the last one. A user sees the rows of its own processes, root and the
//! service's own user see all.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use fs_carrier::traffic::Traffic;

use crate::ask::Asker;
use crate::message::{self, LEN, Reason, Request};
use crate::sys::netns_cookie;

/// Rows of one record.
pub(crate) const ROWS: usize = 16;
/// Bytes of a row.
const ROW: usize = 152;
/// The longest record.
const RECORD: usize = LEN + ROWS * ROW;
/// Bytes of a process's name (TASK_COMM_LEN of include/linux/sched.h).
pub(crate) const NAME: usize = 16;

/// Returns the cookie of this thread's network namespace, as [`Row::netns`] has it.
///
/// # Errors
/// Those of socket(2) and of SO_NETNS_COOKIE.
pub fn own_netns() -> io::Result<u64> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None)?;
    Ok(netns_cookie(socket.as_fd())?)
}

/// A process at an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The process's number. 0: the service's pid namespace does not show the process.
    pub pid: u32,
    /// The process's user.
    pub uid: u32,
    pub(crate) name: [u8; NAME],
}

impl Process {
    /// Makes a process. Truncates its name to 16 bytes, as the kernel does.
    #[must_use]
    pub fn new(pid: u32, uid: u32, text: &[u8]) -> Self {
        let mut name = [0; NAME];
        let len = text.len().min(NAME);
        name[..len].copy_from_slice(&text[..len]);
        Process { pid, uid, name }
    }

    /// Returns the name that the process had when it connected. The process chooses it itself.
    #[must_use]
    pub fn name(&self) -> String {
        let len = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        String::from_utf8_lossy(&self.name[..len]).into_owned()
    }
}

/// A pair, or an offer that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// `None`: the socket was promoted. Otherwise the reason why it was not.
    pub refused: Option<Reason>,
    /// Time since then.
    pub age: Duration,
    /// The cookie of the network namespace (SO_NETNS_COOKIE).
    pub netns: u64,
    /// The address of the end that was offered first.
    pub local: SocketAddr,
    /// The address of the other end.
    pub peer: SocketAddr,
    /// The processes at both ends. A refused offer has only the first one.
    pub ends: [Process; 2],
    /// Bytes from the first end to the other, and back.
    pub traffic: [Traffic; 2],
}

impl Row {
    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        let flag = |i: usize| u8::from(self.traffic[i].is_pinned);
        into.extend([self.refused.map_or(0, |reason| reason as u8), flag(0), flag(1), 0, 0, 0, 0, 0]);
        into.extend((self.age.as_millis() as u64).to_ne_bytes());
        into.extend(self.netns.to_ne_bytes());
        for at in [self.local, self.peer] {
            let ip = match at.ip() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            into.extend(ip.octets());
            into.extend(u64::from(at.port()).to_ne_bytes());
        }
        for end in &self.ends {
            into.extend(end.pid.to_ne_bytes());
            into.extend(end.uid.to_ne_bytes());
            into.extend(end.name);
        }
        for traffic in &self.traffic {
            into.extend(traffic.ring.to_ne_bytes());
            into.extend(traffic.kernel.to_ne_bytes());
        }
    }

    pub(crate) fn read(bytes: &[u8; ROW]) -> Option<Self> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        let half = |at: usize| {
            let mut half = [0; 4];
            half.copy_from_slice(&bytes[at..at + 4]);
            u32::from_ne_bytes(half)
        };
        let address = |at: usize| {
            let mut ip = [0; 16];
            ip.copy_from_slice(&bytes[at..at + 16]);
            let ip = std::net::Ipv6Addr::from(ip);
            let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
            Some(SocketAddr::new(ip, u16::try_from(word(at + 16)).ok()?))
        };
        let process = |at: usize| {
            let mut name = [0; NAME];
            name.copy_from_slice(&bytes[at + 8..at + 8 + NAME]);
            Process { pid: half(at), uid: half(at + 4), name }
        };
        let traffic = |i: usize| {
            let at = 120 + 16 * i;
            Traffic { ring: word(at), kernel: word(at + 8), is_pinned: bytes[1 + i] != 0 }
        };
        Some(Row {
            refused: if bytes[0] == 0 { None } else { Some(Reason::of(bytes[0])?) },
            age: Duration::from_millis(word(8)),
            netns: word(16),
            local: address(24)?,
            peer: address(48)?,
            ends: [process(72), process(96)],
            traffic: [traffic(0), traffic(1)],
        })
    }
}

/// Makes a record.
pub(crate) fn record(rows: &[Row], next: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LEN + rows.len() * ROW);
    bytes.extend(message::rows_header(rows.len(), next));
    for row in rows {
        row.write(&mut bytes);
    }
    bytes
}

/// Decodes a record into rows and the number to continue with. Returns `None` if it is malformed.
fn read_record(bytes: &[u8]) -> Option<(Vec<Row>, u64)> {
    let (count, next) = message::read_rows_header(bytes.get(..LEN)?)?;
    let (rows, rest) = bytes[LEN..].as_chunks::<ROW>();
    if rows.len() != count || !rest.is_empty() {
        return None;
    }
    Some((rows.iter().map(Row::read).collect::<Option<_>>()?, next))
}

/// Requests all rows that the caller may see from the service at `path`.
///
/// # Errors
/// No service runs there, it does not reply within five seconds, or its reply is malformed.
pub fn list(path: &Path) -> io::Result<Vec<Row>> {
    let asker = Asker::connect(path)?;
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let mut buffer = [0; RECORD];
        let len = asker.ask(&Request::List { after }, &mut buffer)?;
        let (rows, next) = read_record(&buffer[..len]).ok_or(io::ErrorKind::InvalidData)?;
        if rows.is_empty() || next <= after {
            return Ok(all);
        }
        all.extend(rows);
        after = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows() -> impl Strategy<Value = Row> {
        let traffic =
            any::<(u64, u64, bool)>().prop_map(|(ring, kernel, is_pinned)| Traffic { ring, kernel, is_pinned });
        let process = any::<(u32, u32, [u8; NAME])>().prop_map(|(pid, uid, name)| Process { pid, uid, name });
        let reason = 0..=Reason::ALL.len();
        let head = (reason, any::<u64>(), any::<u64>(), any::<SocketAddr>(), any::<SocketAddr>());
        (head, [process.clone(), process], [traffic.clone(), traffic]).prop_map(|(head, ends, traffic)| {
            let (reason, age, netns, local, peer) = head;
            let plain = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
            let refused = Reason::ALL.get(reason).copied();
            let age = Duration::from_millis(age);
            Row { refused, age, netns, local: plain(local), peer: plain(peer), ends, traffic }
        })
    }

    proptest! {
        #[test]
        fn records_come_back(rows in proptest::collection::vec(rows(), 0..=ROWS), next in any::<u64>()) {
            let bytes = record(&rows, next);
            prop_assert!(bytes.len() <= RECORD);
            prop_assert_eq!(read_record(&bytes), Some((rows, next)));
            prop_assert_eq!(read_record(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..RECORD)) {
            let _any = read_record(&bytes);
        }
    }
}
