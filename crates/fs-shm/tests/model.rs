//! The byte stream of a channel beside a model (a queue of bytes): whatever is sent, peeked, read, borrowed, in whatever
//! sizes, with growth, wrap, large rings and the way back on the way, comes out once, in order. A reader that does not read
//! takes what the buffers' sizes say.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

use fs_shm::{Arena, Channel, Errno, Geometry, NoBells, OpenArgs, Readiness, RecvFlags, Side};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    /// Without a large ring.
    SendNear(usize),
    /// Until it takes no more.
    Fill(usize),
    /// All that is there.
    Drain,
    Gather(usize, usize),
    WriteInPlace(usize),
    Recv(usize),
    Scatter(usize, usize),
    Peek(usize),
    Discard(usize),
    ReadInPlace(usize),
    Limit(u32),
    /// The other direction, so that acknowledgements travel.
    Reply,
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![3 => 0..60usize, 2 => 0..5000usize, 1 => 0..40_000usize];
    prop_oneof![
        4 => len().prop_map(Step::Send),
        1 => (len(), len()).prop_map(|(a, b)| Step::Gather(a, b)),
        2 => len().prop_map(Step::WriteInPlace),
        4 => len().prop_map(Step::Recv),
        1 => (len(), len()).prop_map(|(a, b)| Step::Scatter(a, b)),
        1 => len().prop_map(Step::Peek),
        1 => len().prop_map(Step::Discard),
        2 => len().prop_map(Step::ReadInPlace),
        1 => (1000..2_000_000u32).prop_map(Step::Limit),
        1 => prop_oneof![Just(100usize), Just(4096), 3000..70_000usize].prop_map(Step::Fill),
        2 => Just(Step::Drain),
        1 => len().prop_map(Step::SendNear),
        2 => Just(Step::Reply),
    ]
}

/// Rings of 4 KiB that grow to 64 KiB, large ones of 4 MiB.
const GEOMETRY: Geometry = Geometry { slots: 64, stride_log2: 17, ring_log2: 12 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_channel_is_a_queue_of_bytes(steps in proptest::collection::vec(step(), 1..120)) {
        let fd = Arena::create("model", GEOMETRY).unwrap();
        let a = Arena::map(fd.of(Side::A), GEOMETRY, Side::A, &NoBells).unwrap();
        let b = Arena::map(fd.of(Side::B), GEOMETRY, Side::B, &NoBells).unwrap();
        let from = Channel::open(&a, &OpenArgs::default()).unwrap();
        let to = Channel::accept(&b).unwrap();
        let mut world = World { from, to, model: VecDeque::new(), next: 0, send_buffer: 4 << 20 };
        for step in steps {
            world.step(step)?;
        }
        world.step(Step::Drain)?;
        prop_assert!(world.model.is_empty());
        // Nothing is kept of it: both large rings are free.
        let other = [Channel::open(&a, &OpenArgs::default()).unwrap(), Channel::open(&a, &OpenArgs::default()).unwrap()];
        for channel in other {
            let mut taken = 0;
            while let Ok(n) = channel.send_one(&[0; 10_000]) {
                taken += n;
            }
            prop_assert_eq!(taken, 1 << 22);
        }
    }
}

struct World<'a> {
    from: Channel<'a>,
    to: Channel<'a>,
    model: VecDeque<u8>,
    next: u32,
    send_buffer: u32,
}

impl World<'_> {
    fn fresh(&mut self, len: usize) -> Vec<u8> {
        (0..len)
            .map(|_| {
                self.next = self.next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (self.next >> 24) as u8
            })
            .collect()
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Send(len) => {
                let data = self.fresh(len);
                let sent = self.from.send_one(&data);
                self.sent(&data, sent)?;
            }
            Step::Gather(first, second) => {
                let (x, y) = (self.fresh(first), self.fresh(second));
                let sent = self.from.send(&[IoSlice::new(&x), IoSlice::new(&[]), IoSlice::new(&y)]);
                self.sent(&[x, y].concat(), sent)?;
            }
            Step::WriteInPlace(len) => {
                let data = self.fresh(len.max(1));
                let mut writing = self.from.writing().unwrap();
                let sent = writing.chunk(data.len()).map(|room| {
                    let n = room.len().min(data.len());
                    room[..n].copy_from_slice(&data[..n]);
                    n
                });
                if let Ok(n) = sent {
                    writing.commit(n);
                    self.model.extend(&data[..n]);
                } else {
                    prop_assert_eq!(sent, Err(Errno::AGAIN));
                }
            }
            Step::Recv(len) => {
                let mut buf = vec![0; len];
                let got = self.to.recv_one(&mut buf);
                self.received(&buf, got, true)?;
            }
            Step::Scatter(first, second) => {
                let (mut x, mut y) = (vec![0; first], vec![0; second]);
                let got = self.to.recv(&mut [IoSliceMut::new(&mut x), IoSliceMut::new(&mut y)], RecvFlags::default());
                self.received(&[x, y].concat(), got, true)?;
            }
            Step::Peek(len) => {
                let mut buf = vec![0; len];
                let flags = RecvFlags { peek: true, ..RecvFlags::default() };
                let got = self.to.recv(&mut [IoSliceMut::new(&mut buf)], flags);
                self.received(&buf, got, false)?;
            }
            Step::Discard(len) => {
                let flags = RecvFlags { discard: true, ..RecvFlags::default() };
                let got = self.to.recv(&mut [IoSliceMut::new(&mut vec![0; len])], flags);
                let expected = if self.model.is_empty() { Err(Errno::AGAIN) } else { Ok(len.min(self.model.len())) };
                prop_assert_eq!(got, expected);
                self.model.drain(..got.unwrap_or(0));
            }
            Step::ReadInPlace(len) => {
                let mut reading = self.to.reading().unwrap();
                match reading.chunk() {
                    Ok(chunk) => {
                        let n = chunk.len().min(len);
                        prop_assert!(!chunk.is_empty() && chunk.iter().eq(self.model.iter().take(chunk.len())));
                        reading.consume(n);
                        self.model.drain(..n);
                    }
                    Err(errno) => prop_assert!(errno == Errno::AGAIN && self.model.is_empty()),
                }
            }
            Step::Limit(bytes) => {
                self.from.set_buffer(true, bytes);
                self.send_buffer = bytes;
            }
            Step::SendNear(len) => {
                let data = self.fresh(len);
                let sent = self.from.send_near(&[IoSlice::new(&data)]);
                self.sent(&data, sent)?;
            }
            Step::Fill(len) => {
                let data = self.fresh(len);
                // A large ring that is in use does not become larger; it has a quarter of the most at least.
                let most = if self.model.is_empty() { 1 << 22 } else { 1 << 20 };
                while let Ok(n) = self.from.send_one(&data) {
                    prop_assert!(n != 0);
                    self.model.extend(&data[..n]);
                }
                // The reader's 128 KiB count by three quarters; a ring's size is rounded.
                let least = ((self.send_buffer as usize + 98_304) / 5 * 4).min(most);
                prop_assert!(self.model.len() >= least, "{} of {least}", self.model.len());
                prop_assert!(!self.from.readiness().contains(Readiness::OUT));
            }
            Step::Drain => {
                let mut buf = vec![0; 100_000];
                while !self.model.is_empty() {
                    let got = self.to.recv_one(&mut buf);
                    self.received(&buf, got, true)?;
                }
                prop_assert!(self.from.readiness().contains(Readiness::OUT));
            }
            Step::Reply => {
                prop_assert_eq!(self.to.send_one(b"ok"), Ok(2));
                prop_assert_eq!(self.from.recv_one(&mut [0; 8]), Ok(2));
            }
        }
        prop_assert_eq!(self.to.queued_in(), self.model.len());
        prop_assert_eq!(self.from.queued_out(), self.model.len());
        prop_assert_eq!(self.to.readiness().contains(Readiness::IN), !self.model.is_empty());
        if self.model.len() <= 2048 {
            prop_assert!(self.from.readiness().contains(Readiness::OUT));
        }
        Ok(())
    }

    fn sent(&mut self, data: &[u8], sent: Result<usize, Errno>) -> Result<(), TestCaseError> {
        match sent {
            Ok(n) => {
                prop_assert!(n == data.len() || self.model.len() + n >= 4096, "cut though there was room");
                self.model.extend(&data[..n]);
            }
            Err(errno) => {
                prop_assert_eq!(errno, Errno::AGAIN);
                prop_assert!(self.model.len() >= 4096);
            }
        }
        Ok(())
    }

    fn received(&mut self, buf: &[u8], got: Result<usize, Errno>, taken: bool) -> Result<(), TestCaseError> {
        match got {
            Ok(n) => {
                prop_assert_eq!(n, buf.len().min(self.model.len()));
                prop_assert!(buf[..n].iter().eq(self.model.iter().take(n)), "wrong bytes");
                if taken {
                    self.model.drain(..n);
                }
            }
            Err(errno) => prop_assert!(errno == Errno::AGAIN && self.model.is_empty()),
        }
        Ok(())
    }
}
