//! The encoding of messages: little-endian, a fixed order of fields.
//!
//! A message is one SOCK_SEQPACKET record: kind u16, 0 u16, number u32, then the kind's fields. A reply carries its
//! request's number. Descriptors travel beside it (SCM_RIGHTS), in the order that each kind names.

use super::message::{ArenaGeometry, GROUP_MAX, KernelReason, Reply, Request};
use super::object::{ArenaPart, Object, PeerSide};
use super::wire::{Malformed, Reader, Writer};

/// Bytes before the fields.
const HEADER: usize = 8;
/// Kinds of replies begin here.
const REPLIES: u16 = 0x8000;

fn header(w: &mut Writer<'_>, kind: u16, number: u32) {
    w.u16(kind);
    w.u16(0);
    w.u32(number);
}

fn read_header(bytes: &[u8]) -> Result<(u16, u32, Reader<'_>), Malformed> {
    let mut r = Reader::new(bytes);
    let kind = r.u16()?;
    if r.u16()? != 0 {
        return Err(Malformed("reserved field is not 0"));
    }
    let number = r.u32()?;
    Ok((kind, number, r))
}

/// Whether a record is a reply by its kind, and so nothing that a process asks.
pub fn is_reply(record: &[u8]) -> bool {
    read_header(record).is_ok_and(|(kind, ..)| kind >= REPLIES)
}

impl Request {
    /// Writes the message; answers its length.
    pub fn encode(&self, number: u32, buffer: &mut [u8]) -> Result<usize, Malformed> {
        let mut w = Writer::new(buffer);
        header(&mut w, self.kind(), number);
        match *self {
            Request::Hello { version, ref name } | Request::Resume { version, ref name } => {
                w.u32(version);
                w.text(name);
            }
            Request::Poller
            | Request::Fork
            | Request::Prepare
            | Request::Exec
            | Request::ExecFailed
            | Request::Claim
            | Request::Listen
            | Request::Status => {}
            Request::PollerGone { poller } | Request::Bell { poller } | Request::Ring { poller } => w.u32(poller),
            Request::Due { after } => w.u32(after),
            Request::Capture { memory, wire } => {
                w.bool(memory);
                w.bool(wire);
            }
            Request::Ports { port } => w.u16(port),
            Request::Route { to } => w.addr(to),
            Request::Unlisten { listener }
            | Request::Shut { listener }
            | Request::Leave { listener }
            | Request::Listener { listener }
            | Request::ListenerPoller { listener } => w.u32(listener),
            Request::ExclusivePoller { listener, set, told } => {
                w.u32(listener);
                w.u32(set);
                w.u32(u32::from(told));
            }
            Request::Vouch { arena, ends: [a, b] } => {
                w.u32(arena);
                w.addr(a);
                w.addr(b);
            }
            Request::Arena { arena, side, part } => {
                w.u32(arena);
                w.u8(side as u8);
                w.u8(part as u8);
            }
            Request::Trim { arena } | Request::Room { arena } => w.u32(arena),
            Request::Lend { arena, slot } => {
                w.u32(arena);
                w.u32(slot);
            }
            Request::ForkFailed { child } | Request::Inherit { child } | Request::Spawned { child } => w.u32(child),
            Request::Share { object, cookie, fd } => {
                w.u64(object.to_word());
                w.u64(cookie);
                w.u32(fd);
            }
            Request::Sockets { cursor } | Request::Counters { cursor } => w.u64(cursor),
            Request::Unshare { cookie } => w.u64(cookie),
            Request::Watch { listener } | Request::Unwatch { listener } => w.u32(listener),
        }
        w.finish()
    }

    fn kind(&self) -> u16 {
        match self {
            Request::Hello { .. } => 1,
            Request::Poller => 2,
            Request::PollerGone { .. } => 3,
            Request::Bell { .. } => 4,
            Request::Route { .. } => 5,
            Request::Listen => 6,
            Request::Unlisten { .. } => 7,
            Request::Arena { .. } => 8,
            Request::Listener { .. } => 9,
            Request::Fork => 10,
            Request::ForkFailed { .. } => 11,
            Request::Exec => 12,
            Request::ExecFailed => 13,
            Request::Resume { .. } => 14,
            Request::Share { .. } => 15,
            Request::Claim => 16,
            Request::Sockets { .. } => 17,
            Request::Counters { .. } => 18,
            Request::Status => 19,
            Request::Ring { .. } => 20,
            Request::ListenerPoller { .. } => 21,
            Request::ExclusivePoller { .. } => 22,
            Request::Unshare { .. } => 23,
            Request::Prepare => 24,
            Request::Inherit { .. } => 25,
            Request::Due { .. } => 26,
            Request::Shut { .. } => 27,
            Request::Leave { .. } => 28,
            Request::Trim { .. } => 29,
            Request::Ports { .. } => 30,
            Request::Spawned { .. } => 31,
            Request::Vouch { .. } => 32,
            Request::Capture { .. } => 33,
            Request::Room { .. } => 34,
            Request::Lend { .. } => 35,
            Request::Watch { .. } => 36,
            Request::Unwatch { .. } => 37,
        }
    }

    /// Reads a message; answers its number with it.
    pub fn decode(bytes: &[u8]) -> Result<(u32, Request), Malformed> {
        let (kind, number, mut r) = read_header(bytes)?;
        let request = match kind {
            1 => Request::Hello { version: r.u32()?, name: r.text()? },
            2 => Request::Poller,
            3 => Request::PollerGone { poller: r.u32()? },
            4 => Request::Bell { poller: r.u32()? },
            5 => Request::Route { to: r.addr()? },
            6 => Request::Listen,
            7 => Request::Unlisten { listener: r.u32()? },
            8 => Request::Arena {
                arena: r.u32()?,
                side: if r.bool()? { PeerSide::B } else { PeerSide::A },
                part: ArenaPart::from_number(r.u8()?).ok_or(Malformed("not a part of an arena"))?,
            },
            9 => Request::Listener { listener: r.u32()? },
            10 => Request::Fork,
            11 => Request::ForkFailed { child: r.u32()? },
            12 => Request::Exec,
            13 => Request::ExecFailed,
            14 => Request::Resume { version: r.u32()?, name: r.text()? },
            15 => Request::Share { object: object(r.u64()?)?, cookie: r.u64()?, fd: r.u32()? },
            16 => Request::Claim,
            17 => Request::Sockets { cursor: r.u64()? },
            18 => Request::Counters { cursor: r.u64()? },
            19 => Request::Status,
            20 => Request::Ring { poller: r.u32()? },
            21 => Request::ListenerPoller { listener: r.u32()? },
            23 => Request::Unshare { cookie: r.u64()? },
            24 => Request::Prepare,
            25 => Request::Inherit { child: r.u32()? },
            26 => Request::Due { after: r.u32()? },
            29 => Request::Trim { arena: r.u32()? },
            22 => Request::ExclusivePoller { listener: r.u32()?, set: r.u32()?, told: r.u32()? != 0 },
            27 => Request::Shut { listener: r.u32()? },
            28 => Request::Leave { listener: r.u32()? },
            30 => Request::Ports { port: r.u16()? },
            31 => Request::Spawned { child: r.u32()? },
            32 => Request::Vouch { arena: r.u32()?, ends: [r.addr()?, r.addr()?] },
            33 => Request::Capture { memory: r.bool()?, wire: r.bool()? },
            34 => Request::Room { arena: r.u32()? },
            35 => Request::Lend { arena: r.u32()?, slot: r.u32()? },
            36 => Request::Watch { listener: r.u32()? },
            37 => Request::Unwatch { listener: r.u32()? },
            _ => return Err(Malformed("unknown kind of request")),
        };
        r.finish((number, request))
    }
}

fn object(word: u64) -> Result<Object, Malformed> {
    Object::from_word(word).ok_or(Malformed("not an object"))
}

impl Reply {
    /// Writes the message; answers its length.
    pub fn encode(&self, number: u32, buffer: &mut [u8]) -> Result<usize, Malformed> {
        let mut w = Writer::new(buffer);
        header(&mut w, self.kind(), number);
        match *self {
            Reply::Done | Reply::PortInUse | Reply::Arena => {}
            Reply::Failed { errno } => w.u32(errno as u32),
            Reply::Welcome { attachment, epoch, geometry } => {
                w.u32(attachment);
                w.u64(epoch);
                w.u32(geometry.slots);
                w.u8(geometry.stride_log2);
                w.u8(geometry.ring_log2);
                w.u32(geometry.layout);
            }
            Reply::Poller { poller } => w.u32(poller),
            Reply::Local { generation, source, arenas, count } => {
                w.u64(generation);
                w.ip(source);
                w.u8(count);
                let given = arenas.get(..usize::from(count)).ok_or(Malformed("too many arenas"))?;
                given.iter().for_each(|&arena| w.u32(arena));
            }
            Reply::Wire { generation, arena, core } => {
                w.u64(generation);
                w.u32(arena);
                w.u16(core);
            }
            Reply::Kernel { generation, reason } => {
                w.u64(generation);
                w.u8(reason as u8);
            }
            Reply::Refused { generation, errno } => {
                w.u64(generation);
                w.u32(errno as u32);
            }
            Reply::Listener { listener } => w.u32(listener),
            Reply::Vouched { all } => w.bool(all),
            Reply::Forked { child } => w.u32(child),
            Reply::Claimed { object } => w.u64(object.to_word()),
            Reply::Sockets { next, count } | Reply::Counters { next, count } => {
                w.u64(next);
                w.u16(count);
            }
            Reply::Status { pid, cores, draining, attachments, ref device } => {
                w.u32(pid);
                w.u16(cores);
                w.bool(draining);
                w.u32(attachments);
                w.text(device);
            }
        }
        w.finish()
    }

    fn kind(&self) -> u16 {
        REPLIES
            + match self {
                Reply::Done => 1,
                Reply::Failed { .. } => 2,
                Reply::Welcome { .. } => 3,
                Reply::Poller { .. } => 4,
                Reply::Local { .. } => 5,
                Reply::Wire { .. } => 6,
                Reply::Kernel { .. } => 7,
                Reply::Refused { .. } => 8,
                Reply::Listener { .. } => 9,
                Reply::Arena => 10,
                Reply::Forked { .. } => 11,
                Reply::Claimed { .. } => 12,
                Reply::Sockets { .. } => 13,
                Reply::Counters { .. } => 14,
                Reply::Status { .. } => 15,
                Reply::PortInUse => 16,
                Reply::Vouched { .. } => 17,
            }
    }

    /// Reads a message; answers its number with it, and the rows behind it for the two kinds that have some.
    pub fn decode(bytes: &[u8]) -> Result<(u32, Reply, &[u8]), Malformed> {
        let (kind, number, mut r) = read_header(bytes)?;
        let reply = match kind.wrapping_sub(REPLIES) {
            1 => Reply::Done,
            2 => Reply::Failed { errno: errno(r.u32()?)? },
            3 => Reply::Welcome {
                attachment: r.u32()?,
                epoch: r.u64()?,
                geometry: ArenaGeometry { slots: r.u32()?, stride_log2: r.u8()?, ring_log2: r.u8()?, layout: r.u32()? },
            },
            4 => Reply::Poller { poller: r.u32()? },
            5 => {
                let (generation, source, count) = (r.u64()?, r.ip()?, r.u8()?);
                let mut arenas = [0; GROUP_MAX];
                let given = arenas.get_mut(..usize::from(count)).ok_or(Malformed("too many arenas"))?;
                if given.is_empty() {
                    return Err(Malformed("no arena"));
                }
                for arena in given {
                    *arena = r.u32()?;
                }
                Reply::Local { generation, source, arenas, count }
            }
            6 => Reply::Wire { generation: r.u64()?, arena: r.u32()?, core: r.u16()? },
            7 => Reply::Kernel {
                generation: r.u64()?,
                reason: KernelReason::from_code(r.u8()?).ok_or(Malformed("unknown reason"))?,
            },
            8 => Reply::Refused { generation: r.u64()?, errno: errno(r.u32()?)? },
            9 => Reply::Listener { listener: r.u32()? },
            10 => Reply::Arena,
            11 => Reply::Forked { child: r.u32()? },
            12 => Reply::Claimed { object: object(r.u64()?)? },
            // The rows are the caller's to read.
            13 => return Ok((number, Reply::Sockets { next: r.u64()?, count: r.u16()? }, &bytes[HEADER + 10..])),
            14 => return Ok((number, Reply::Counters { next: r.u64()?, count: r.u16()? }, &bytes[HEADER + 10..])),
            15 => Reply::Status {
                pid: r.u32()?,
                cores: r.u16()?,
                draining: r.bool()?,
                attachments: r.u32()?,
                device: r.text()?,
            },
            16 => Reply::PortInUse,
            17 => Reply::Vouched { all: r.bool()? },
            _ => return Err(Malformed("unknown kind of reply")),
        };
        r.finish((number, reply, &[]))
    }
}

/// 1 to 4095, as the kernel's are.
fn errno(value: u32) -> Result<i32, Malformed> {
    if (1..4096).contains(&value) { Ok(value as i32) } else { Err(Malformed("not an errno")) }
}
