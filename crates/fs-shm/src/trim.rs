//! Memory that nobody uses any more goes back: the daemon punches what free slots and free large rings have left in the file.
//!
//! Who frees one asks for that ([`Arena::ask_trim`]), once for many: `Head::trim` says that the daemon has been told, which looks
//! a moment later. So what is used again and again keeps its memory meanwhile, and nobody looks while nothing was freed. It sets
//! the word to 0, then takes what is free; who frees does so, then looks at the word; each with a full barrier in between.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::time::Instant;

use rustix::fs::{FallocateFlags, fallocate, fstat};
use std::os::fd::BorrowedFd;

use crate::arena::Arena;
use crate::channel::Channel;
use crate::large::{OWNER, TOUCHED};
use crate::layout::{Geometry, Side};

/// Pieces of the file that one call gives back: some ms. Fewer: more calls. More: the daemon answers late.
const PIECES: u32 = 64;

impl Arena {
    /// Something has become free that may have memory.
    #[cold]
    pub(crate) fn ask_trim(&self) {
        fence(SeqCst);
        let asked = &self.head().trim;
        if asked.load(SeqCst) == 0 && asked.swap(1, SeqCst) == 0 && !self.bells().trim(self.head().number.load(Relaxed))
        {
            asked.store(0, SeqCst);
        }
    }

    /// Whether somebody has asked, though perhaps the daemon was not told: he may have died in between.
    pub fn is_trim_asked(&self) -> bool {
        self.head().trim.load(SeqCst) != 0
    }

    /// Gives memory back (the daemon, which alone does so). `true`: there is more to do.
    pub fn trim(&self) -> bool {
        self.head().trim.store(0, SeqCst);
        fence(SeqCst);
        let mut left = PIECES;
        for word in 0..self.touched().len() {
            self.trim_slots(word, &mut left);
        }
        for number in 0..self.geometry().larges() {
            self.trim_large(number, &mut left);
        }
        left == 0
    }

    /// The arena is over: what its rings hold goes (the daemon), as processes that were in it may have it mapped for long after.
    /// All of it, whatever they write there of which rings hold something. `from`: where to begin, 0 at first; answers where to go
    /// on after `until`.
    pub fn give_rings_back(memory: BorrowedFd<'_>, geometry: Geometry, from: u64, until: Instant) -> Option<u64> {
        /// 3 ms, if all is there and somebody has it mapped.
        const PIECE: u64 = 16 << 20;
        let end = geometry.bytes() as u64;
        let mut at = from.max(geometry.rings() as u64);
        while at < end {
            if Instant::now() >= until {
                return Some(at);
            }
            let has_little = fstat(memory).is_ok_and(|file| file.st_blocks as u64 * 512 <= PIECE);
            let next = if has_little { end } else { end.min(at + PIECE) };
            fallocate(memory, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, next - at).ok()?;
            at = next;
        }
        None
    }

    /// 64 slots. Those that are free are taken meanwhile.
    fn trim_slots(&self, word: usize, left: &mut u32) {
        let (touched, taken) = (&self.touched()[word], &self.slot_map()[word]);
        let seen = touched.load(Relaxed);
        if seen == 0 || *left == 0 {
            return;
        }
        let mine = seen & !taken.fetch_or(seen, AcqRel);
        let first = word as u32 * 64;
        // A slot map that was tampered with does not make what lives there vanish.
        let empty = (0..64).filter(|bit| mine >> bit & 1 != 0 && Channel::at(self, first + bit).is_none());
        let empty = empty.fold(0, |all: u64, bit| all | 1 << bit);
        touched.fetch_and(!empty, SeqCst);
        let mut at = 0;
        while at < 64 && empty >> at != 0 {
            at += (empty >> at).trailing_zeros();
            let run = (empty >> at).trailing_ones();
            self.region()
                .punch(self.ring_offset(first + at, Side::A), (run as usize * 2) << self.geometry().stride_log2);
            *left = left.saturating_sub(1);
            at += run;
        }
        taken.fetch_and(!mine, AcqRel);
    }

    fn trim_large(&self, number: usize, left: &mut u32) {
        let word = &self.head().larges[number];
        let seen = word.load(Acquire);
        if seen & OWNER != 0 || seen & TOUCHED == 0 || *left == 0 {
            return;
        }
        // No slot has this number.
        if word.compare_exchange(seen, seen | OWNER, AcqRel, Relaxed).is_ok() {
            self.region().punch(self.large_offset(number), 1 << self.geometry().large_log2());
            word.store(seen & !OWNER & !TOUCHED, SeqCst);
            *left -= 1;
        }
    }
}
