//! Options that only TCP on the wire has: from the process to the core, and the core's answers to its questions.
//!
//! The process writes its [`Wish`] line, counts `OutRare::asks` up and tells the core, which looks at that count with every
//! batch of bytes: after the bytes were seen, so that an option set before a write is in force for it. What the core
//! says of the connection (TCP_INFO) lies in the first page of its stride, where no ring is, under a sequence lock.
//! Everything here may be scribbled on by a hostile peer: the core clamps what it reads, the process gets a wrong answer.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use super::{CORE, Channel};
use crate::futex;
use crate::layout::{Side, WISH_WORDS, Wish};
use crate::wait::Wait;
use crate::word::AtomicU64;

/// TCP_CONGESTION: those that the cores have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Algorithm {
    /// `cubic`.
    Cubic = 1,
    /// `reno`.
    Reno = 2,
    /// `bbr`.
    Bbr = 3,
}

impl Algorithm {
    const ALL: [Algorithm; 3] = [Algorithm::Cubic, Algorithm::Reno, Algorithm::Bbr];

    /// Linux's name.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Cubic => "cubic",
            Algorithm::Reno => "reno",
            Algorithm::Bbr => "bbr",
        }
    }

    /// By name; what is behind a zero byte does not count.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let name = name.split(|&byte| byte == 0).next()?;
        Self::ALL.into_iter().find(|algorithm| algorithm.name().as_bytes() == name)
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// What an application sets with setsockopt(2). 0 and `None` are "not set": the stack's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// TCP_NODELAY.
    pub nodelay: bool,
    /// TCP_CORK.
    pub cork: bool,
    /// SO_KEEPALIVE.
    pub keepalive: bool,
    /// SO_LINGER with 0 seconds.
    pub reset_on_close: bool,
    /// TCP_SYNCNT.
    pub syn_retries: u8,
    /// TCP_KEEPCNT.
    pub keep_count: u8,
    /// IP_TTL or IPV6_UNICAST_HOPS.
    pub ttl: u8,
    /// IP_TOS or IPV6_TCLASS.
    pub tos: u8,
    /// TCP_CONGESTION.
    pub congestion: Option<Algorithm>,
    /// TCP_KEEPIDLE in seconds.
    pub keep_idle: u32,
    /// TCP_KEEPINTVL in seconds.
    pub keep_interval: u32,
    /// TCP_USER_TIMEOUT in milliseconds.
    pub user_timeout: u32,
    /// TCP_MAXSEG in bytes.
    pub max_segment: u32,
    /// TCP_NOTSENT_LOWAT in bytes.
    pub not_sent_low: u32,
    /// TCP_WINDOW_CLAMP in bytes.
    pub window_clamp: u32,
    /// SO_RCVBUF in bytes of payload (half of what getsockopt says).
    pub receive_buffer: u32,
    /// SO_SNDBUF, likewise.
    pub send_buffer: u32,
    /// SO_MAX_PACING_RATE in bytes a second.
    pub pacing: u64,
}

impl Options {
    fn to_words(self) -> [u32; WISH_WORDS] {
        let Self { nodelay, cork, keepalive, reset_on_close, syn_retries, keep_count, ttl, tos, congestion, .. } = self;
        let Self { keep_idle, keep_interval, user_timeout, max_segment, not_sent_low, .. } = self;
        let Self { window_clamp, receive_buffer, send_buffer, pacing, .. } = self;
        let flags = [nodelay, cork, keepalive, reset_on_close];
        let flags = flags.iter().rev().fold(0, |bits, &bit| bits << 1 | u8::from(bit));
        let congestion = congestion.map_or(0, |algorithm| algorithm as u8);
        [
            u32::from_le_bytes([flags, syn_retries, 0, 0]),
            u32::from_le_bytes([keep_count, ttl, tos, congestion]),
            keep_idle,
            keep_interval,
            user_timeout,
            max_segment,
            not_sent_low,
            window_clamp,
            receive_buffer,
            send_buffer,
            pacing as u32,
            (pacing >> 32) as u32,
        ]
    }

    fn from_words(words: [u32; WISH_WORDS]) -> Self {
        let [first, second, keep_idle, keep_interval, user_timeout, max_segment, not_sent_low, rest @ ..] = words;
        let [window_clamp, receive_buffer, send_buffer, pacing_low, pacing_high] = rest;
        let [flags, syn_retries, ..] = first.to_le_bytes();
        let [keep_count, ttl, tos, congestion] = second.to_le_bytes();
        Self {
            nodelay: flags & 1 != 0,
            cork: flags & 2 != 0,
            keepalive: flags & 4 != 0,
            reset_on_close: flags & 8 != 0,
            syn_retries,
            keep_count,
            ttl,
            tos,
            congestion: Algorithm::from_code(congestion),
            keep_idle,
            keep_interval,
            user_timeout,
            max_segment,
            not_sent_low,
            window_clamp,
            receive_buffer,
            send_buffer,
            pacing: u64::from(pacing_low) | u64::from(pacing_high) << 32,
        }
    }

    /// Those of a new connection.
    pub(super) fn put(self, wish: &Wish) {
        let Wish { words, quick, asked, answered, _pad } = wish;
        for (word, value) in words.iter().zip(self.to_words()) {
            word.store(value, Relaxed);
        }
        for word in [quick, asked, answered] {
            word.store(0, Relaxed);
        }
    }

    fn load(wish: &Wish) -> Self {
        Self::from_words(std::array::from_fn(|i| wish.words[i].load(Relaxed)))
    }
}

/// Bytes of [`Answer::info`]: Linux's `struct tcp_info` of version 6.12.
pub const INFO: usize = 248;

/// What a core says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Bytes that TCP has and the peer has not acknowledged.
    pub unacknowledged: u32,
    /// Bytes that TCP has and has not sent.
    pub unsent: u32,
    /// TCP_CONGESTION.
    pub congestion: Option<Algorithm>,
    /// TCP_INFO, as getsockopt(2) gives it.
    pub info: [u8; INFO],
}

const ANSWER_WORDS: usize = 2 + INFO / 8;

impl Answer {
    fn to_words(self) -> [u64; ANSWER_WORDS] {
        let mut words = [0; ANSWER_WORDS];
        words[0] = u64::from(self.unacknowledged) | u64::from(self.unsent) << 32;
        words[1] = self.congestion.map_or(0, |algorithm| algorithm as u64);
        for (word, bytes) in words[2..].iter_mut().zip(self.info.chunks_exact(8)) {
            *word = bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        }
        words
    }

    fn from_words(words: [u64; ANSWER_WORDS]) -> Self {
        let mut info = [0; INFO];
        for (bytes, word) in info.chunks_exact_mut(8).zip(&words[2..]) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Self {
            unacknowledged: words[0] as u32,
            unsent: (words[0] >> 32) as u32,
            congestion: Algorithm::from_code(words[1] as u8),
            info,
        }
    }
}

/// Looks at an answer that is being written. It takes a core less than a microsecond; more than these are a scribble.
const LOOKS: usize = 1000;

impl Channel<'_> {
    /// The peer is a core of the daemon, and behind it is TCP. (Whoever scribbles can make it lie.)
    pub fn is_wire(&self) -> bool {
        self.block().own[self.side().other().index()].flags.load(Relaxed) & CORE != 0
    }

    /// This side's options.
    pub fn options(&self) -> Options {
        Options::load(&self.block().wish[self.side().index()])
    }

    /// The peer's options (a core: what it is to set on the connection).
    pub fn peer_options(&self) -> Options {
        Options::load(&self.block().wish[self.side().other().index()])
    }

    /// Changes options, and tells the core. Threads that change different ones at the same time do not undo each other.
    pub fn change_options(&self, change: impl FnOnce(&mut Options)) {
        let wish = &self.block().wish[self.side().index()];
        let before = Options::load(wish);
        let mut after = before;
        change(&mut after);
        for (word, (old, new)) in wish.words.iter().zip(before.to_words().into_iter().zip(after.to_words())) {
            if old != new {
                word.fetch_xor(old ^ new, Relaxed);
            }
        }
        self.say();
    }

    /// TCP_QUICKACK.
    pub fn set_quickack(&self, on: bool) {
        let next = |word: u32| Some((word | 1).wrapping_add(1) | u32::from(on));
        // Never fails: `next` always gives a value.
        let _before = self.block().wish[self.side().index()].quick.fetch_update(Relaxed, Relaxed, next);
        self.say();
    }

    fn say(&self) {
        self.block().out[self.side().index()].rare.asks.fetch_add(1, Release);
        if self.is_wire() {
            self.notify(self.side().other(), false, false);
        }
    }

    /// MSG_MORE: `len` bytes are about to be sent, and more after them. A hint: call it before the send.
    pub fn more_after(&self, len: usize) {
        let tx = self.tx();
        tx.rare.more.store(tx.out.tail.load(Relaxed).wrapping_add(len as u64), Relaxed);
    }

    /// The core: changes whenever the peer's options, quick ACKs or questions have. Bytes seen before this call were
    /// written after the options of this count.
    #[inline]
    pub fn asks(&self) -> u32 {
        self.block().out[self.side().other().index()].rare.asks.load(Acquire)
    }

    /// The core: how often the peer has set TCP_QUICKACK, and the value.
    pub fn quickack(&self) -> (u32, bool) {
        let quick = self.block().wish[self.side().other().index()].quick.load(Relaxed);
        (quick >> 1, quick & 1 != 0)
    }

    /// The core: the question of the peer that waits for [`Channel::answer`].
    pub fn question(&self) -> Option<u32> {
        let wish = &self.block().wish[self.side().other().index()];
        let asked = wish.asked.load(Acquire);
        (asked != wish.answered.load(Relaxed)).then_some(asked)
    }

    /// The core: answers all questions up to `question`.
    pub fn answer(&self, question: u32, answer: &Answer) {
        let (lock, words) = self.answer_page(self.side());
        let before = lock.load(Relaxed) & !1;
        lock.store(before.wrapping_add(1), Relaxed);
        fence(Release);
        for (word, value) in words.iter().zip(answer.to_words()) {
            word.store(value, Relaxed);
        }
        lock.store(before.wrapping_add(2), Release);
        let answered = &self.block().wish[self.side().other().index()].answered;
        answered.store(question, SeqCst);
        futex::wake_all(answered);
    }

    /// Asks the core, and waits `most` for its answer; `None`: it does not answer (it is gone, or very busy).
    pub fn ask(&self, most: Duration) -> Option<Answer> {
        let wish = &self.block().wish[self.side().index()];
        let mine = wish.asked.fetch_add(1, SeqCst).wrapping_add(1);
        self.say();
        let begin = Instant::now();
        loop {
            let seen = wish.answered.load(Acquire);
            if seen.wrapping_sub(mine).cast_signed() >= 0 {
                return self.read_answer();
            }
            let waited = begin.elapsed();
            if waited >= most || self.state().is_none_or(|state| state.is_closed(self.side().other())) {
                return None;
            }
            if waited < Wait::SPIN {
                std::hint::spin_loop();
            } else {
                // Woken, interrupted or nothing: looked at again.
                let _ended = futex::wait(&wish.answered, seen, most - waited);
            }
        }
    }

    fn read_answer(&self) -> Option<Answer> {
        let (lock, words) = self.answer_page(self.side().other());
        for _ in 0..LOOKS {
            let before = lock.load(Acquire);
            let copy = std::array::from_fn(|i| words[i].load(Relaxed));
            fence(Acquire);
            if before & 1 == 0 && lock.load(Relaxed) == before {
                return Some(Answer::from_words(copy));
            }
            std::hint::spin_loop();
        }
        None
    }

    /// The sequence lock and the words of what `core` says: at the beginning of its stride, below the smallest ring.
    fn answer_page(&self, core: Side) -> (&AtomicU64, &[AtomicU64]) {
        let page: &[AtomicU64] =
            self.arena().region().slice(self.arena().ring_offset(self.slot(), core), 1 + ANSWER_WORDS);
        (&page[0], &page[1..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arena, Geometry, NoBells, OpenArgs};
    use rustix::io::Errno;

    const ALL: Options = Options {
        nodelay: true,
        cork: false,
        keepalive: true,
        reset_on_close: true,
        syn_retries: 3,
        keep_count: 9,
        ttl: 17,
        tos: 0x10,
        congestion: Some(Algorithm::Bbr),
        keep_idle: 7,
        keep_interval: 8,
        user_timeout: 12_345,
        max_segment: 1000,
        not_sent_low: 16_384,
        window_clamp: 5000,
        receive_buffer: 65_536,
        send_buffer: 1 << 20,
        pacing: 1 << 40 | 5,
    };

    fn two() -> (Arena, Arena) {
        let fd = Arena::create("options", Geometry::SMALL).unwrap();
        let map = |side| Arena::map(fd.of(side), Geometry::SMALL, side, &NoBells).unwrap();
        (map(Side::A), map(Side::B))
    }

    #[test]
    fn options_survive_their_words() {
        assert_eq!(Options::from_words(ALL.to_words()), ALL);
        assert_eq!(Options::from_words([0; WISH_WORDS]), Options::default());
        assert_eq!(Options::from_words([u32::MAX; WISH_WORDS]).congestion, None);
        for name in ["cubic", "reno", "bbr"] {
            assert_eq!(Algorithm::from_name(format!("{name}\0x").as_bytes()).unwrap().name(), name);
        }
        assert_eq!(Algorithm::from_name(b"vegas"), None);
    }

    #[test]
    fn a_core_sees_what_was_set_before_and_after_the_connection_was_opened() {
        let (a, b) = two();
        let args = OpenArgs { connecting: true, options: [ALL, Options::default()], ..OpenArgs::default() };
        let process = Channel::open(&a, &args).unwrap();
        let core = Channel::accept(&b).unwrap();
        assert!(process.is_wire() && !core.is_wire());
        assert_eq!((core.peer_options(), core.options()), (ALL, Options::default()));
        let before = core.asks();
        process.change_options(|options| options.cork = true);
        assert_ne!(core.asks(), before);
        assert_eq!(core.peer_options(), Options { cork: true, ..ALL });
        assert_eq!(core.quickack(), (0, false));
        process.set_quickack(true);
        assert_eq!(core.quickack(), (1, true));
        process.set_quickack(false);
        assert_eq!(core.quickack(), (2, false));
    }

    #[test]
    fn a_listeners_options_are_the_accepted_ones() {
        let (a, b) = two();
        let args = OpenArgs { from_core: true, options: [Options::default(), ALL], ..OpenArgs::default() };
        let core = Channel::open(&a, &args).unwrap();
        let process = Channel::accept(&b).unwrap();
        assert!(process.is_wire());
        assert_eq!((process.options(), core.peer_options()), (ALL, ALL));
    }

    #[test]
    fn questions_are_answered_and_silence_ends() {
        let (a, b) = two();
        let process = Channel::open(&a, &OpenArgs { connecting: true, ..OpenArgs::default() }).unwrap();
        let core = Channel::accept(&b).unwrap();
        core.set_connected(crate::Addr::default(), crate::Addr::default());
        assert_eq!(core.question(), None);
        assert_eq!(process.ask(Duration::from_millis(1)), None);
        let info = std::array::from_fn(|i| i as u8);
        let answer = Answer { unacknowledged: 5, unsent: 3, congestion: Some(Algorithm::Reno), info };
        std::thread::scope(|threads| {
            threads.spawn(|| {
                // The first question is still open, and is answered with it.
                while core.question() != Some(2) {
                    std::thread::yield_now();
                }
                core.answer(2, &answer);
            });
            assert_eq!(process.ask(Duration::from_secs(60)), Some(answer));
        });
        assert_eq!(core.question(), None);
        core.abort(None);
        assert_eq!(process.ask(Duration::from_secs(60)), None, "nobody is there");
    }

    #[test]
    fn a_scribbled_answer_is_none() {
        let (a, b) = two();
        let process = Channel::open(&a, &OpenArgs { connecting: true, ..OpenArgs::default() }).unwrap();
        let core = Channel::accept(&b).unwrap();
        core.answer_page(Side::B).0.store(7, Relaxed);
        core.block().wish[0].answered.store(1, Relaxed);
        assert_eq!(process.ask(Duration::from_secs(60)), None);
        assert_eq!(core.question(), None);
    }

    #[test]
    fn urgent_and_more_are_seen_in_place() {
        let (a, b) = two();
        let process = Channel::open(&a, &OpenArgs { connecting: true, ..OpenArgs::default() }).unwrap();
        let core = Channel::accept(&b).unwrap();
        core.set_connected(crate::Addr::default(), crate::Addr::default());
        process.more_after(3);
        process.send_one(b"abc").unwrap();
        let mut reading = core.reading().unwrap();
        let marks = |urgent, more| crate::channel::Marks { urgent, more };
        assert_eq!(reading.marked_chunk().unwrap(), (&b"abc"[..], marks(None, Some(3))));
        reading.consume(3);
        process.send_urgent(&[std::io::IoSlice::new(b"de")]).unwrap();
        assert_eq!(reading.marked_chunk().unwrap(), (&b"de"[..], marks(Some(1), Some(0))));
        reading.consume(1);
        assert_eq!(reading.marked_chunk().unwrap(), (&b"e"[..], marks(Some(0), Some(usize::MAX))));
        reading.consume(1);
        assert_eq!(reading.marked_chunk(), Err(Errno::AGAIN));
        process.shutdown(crate::Shutdown::Write).unwrap();
        assert_eq!(reading.marked_chunk().unwrap().0, b"");
    }

    #[test]
    fn a_dead_process_resets_if_it_had_said_so() {
        for resets in [false, true] {
            let (a, b) = two();
            let process = Channel::open(&a, &OpenArgs::default()).unwrap();
            let peer = Channel::accept(&b).unwrap();
            process.change_options(|options| options.reset_on_close = resets);
            process.close_dead();
            assert_eq!(peer.is_reset(), resets);
        }
    }
}
