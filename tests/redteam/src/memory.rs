//! Shared memory as a hostile process sees it: bytes of a file that it may read and write anywhere.

use anyhow::{Context, Result, ensure};
use fs_shm::layout::{
    Block, Head, In, InPair, LocksHead, Out, OutPair, OutRare, SideOwn, SlotLocks, TxOwn, Wake, Wish,
};
use fs_shm::{Geometry, Side};
use rustix::fd::BorrowedFd;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::mem::{offset_of, size_of};

/// Returns the offset of a field: a name like `head.closed` or `block.state`, with a slot and a
/// side if there are several.
pub(crate) fn place(geometry: Geometry, name: &str, slot: u32, side: usize) -> Result<u64> {
    ensure!(slot < geometry.slots && side < 2, "no such slot or side");
    let block = geometry.blocks() + slot as usize * size_of::<Block>();
    let out = block + offset_of!(Block, out) + side * size_of::<OutPair>();
    let rare = out + offset_of!(OutPair, rare);
    let inn = block + offset_of!(Block, inn) + side * size_of::<InPair>();
    let wake = inn + offset_of!(InPair, wake);
    let tx = block + offset_of!(Block, tx) + side * size_of::<TxOwn>();
    let own = block + offset_of!(Block, own) + side * size_of::<SideOwn>();
    Ok(match name {
        "head.closed" => offset_of!(Head, closed),
        "head.limit" => offset_of!(Head, accept_limit),
        "head.inbox_tail" => offset_of!(Head, inbox_tail),
        "head.inbox_admitted" => offset_of!(Head, inbox_admitted),
        "head.inbox_head" => offset_of!(Head, inbox_head),
        "head.inbox_watch" => offset_of!(Head, inbox_watch),
        "lanes" => geometry.lanes().head(Side::A, 0),
        "inbox" => geometry.inbox(),
        "rings" => geometry.rings(),
        "slots" => geometry.slot_map(),
        "block" => block,
        "block.state" => block + offset_of!(Block, state),
        "block.addr" => block + offset_of!(Block, addr) + side * 32,
        "out.tail" => out + offset_of!(Out, tail),
        "out.inline_at" => out + offset_of!(Out, inline_at),
        "out.map" => rare + offset_of!(OutRare, map),
        "out.large" => rare + offset_of!(OutRare, large),
        "out.fin" => rare + offset_of!(OutRare, fin),
        "in.head" => inn + offset_of!(In, head),
        "wake.watch" => wake + offset_of!(Wake, watch),
        "tx.writer" => tx + offset_of!(TxOwn, writer),
        // Fields in the memory with a side's locks.
        "locks.inbox" => offset_of!(LocksHead, inbox),
        "locks.receive" => geometry.slot_locks(slot) + offset_of!(SlotLocks, receive),
        "locks.send" => geometry.slot_locks(slot) + offset_of!(SlotLocks, send),
        "own" => own,
        "own.refs" => own + offset_of!(SideOwn, refs),
        "own.flags" => own + offset_of!(SideOwn, flags),
        "wish" => block + offset_of!(Block, wish) + side * size_of::<Wish>(),
        _ => anyhow::bail!("no field {name}"),
    } as u64)
}

/// Calls `each` with the existing parts of the file: their offset and bytes.
fn pieces(memory: BorrowedFd<'_>, mut each: impl FnMut(u64, &[u8]) -> bool) -> Result<()> {
    const PIECE: usize = 1 << 20;
    let mut from = 0;
    loop {
        let data = match rustix::fs::seek(memory, SeekFrom::Data(from)) {
            Err(Errno::NXIO) => return Ok(()),
            data => data?,
        };
        let end = rustix::fs::seek(memory, SeekFrom::Hole(data))?;
        let mut at = data;
        while at < end {
            let mut bytes = vec![0; PIECE.min((end - at) as usize)];
            let n = rustix::io::pread(memory, &mut bytes[..], at)?;
            if n == 0 || !each(at, &bytes[..n]) {
                return Ok(());
            }
            at += n as u64;
        }
        from = end;
    }
}

/// Returns the offset of `text` in the memory.
pub(crate) fn find(memory: BorrowedFd<'_>, text: &[u8]) -> Result<Option<u64>> {
    ensure!(!text.is_empty(), "nothing to look for");
    let mut found = None;
    pieces(memory, |at, bytes| {
        found = bytes.windows(text.len()).position(|window| window == text).map(|n| at + n as u64);
        found.is_none()
    })?;
    Ok(found)
}

/// Overwrites memory with random numbers from a seed. Returns how many words were written.
pub(crate) fn scribble(memory: BorrowedFd<'_>, seed: u64, most: usize) -> Result<usize> {
    let mut places = Vec::new();
    pieces(memory, |at, bytes| {
        places.extend((0..bytes.len() as u64 / 8).map(|n| at + n * 8));
        places.len() < 1 << 22
    })?;
    ensure!(!places.is_empty(), "empty memory");
    let mut state = seed | 1;
    let mut next = || {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..most {
        let at = places[(next() % places.len() as u64) as usize];
        let value = match next() % 4 {
            0 => u64::MAX,
            1 => next() & 0xffff,
            _ => next(),
        };
        rustix::io::pwrite(memory, &value.to_le_bytes(), at).context("pwrite")?;
    }
    Ok(most)
}
