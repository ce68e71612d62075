//! Frames for who captures: the cores put copies into a bounded queue, and never wait; a thread sends them on.

use fs_rt::TapFrame;
use fs_shm::control::{CAPTURE_HEADER, CaptureRecord, socket};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Frames that wait to be sent: some ms of a busy link. More: more memory while somebody captures.
const QUEUE: usize = 8192;

/// How often a thread without frames looks whether its socket has ended.
const LOOK: Duration = Duration::from_millis(200);

/// The cores' end of the queue.
#[derive(Clone)]
pub(super) struct Frames {
    queue: SyncSender<Taken>,
    /// Frames that there was no room for, of all cores, and that nobody was told of.
    missed: Arc<AtomicU64>,
}

/// A frame, behind the room for its record's header.
struct Taken {
    core: u16,
    sent: bool,
    time: u64,
    bytes: Vec<u8>,
}

/// A queue for frames, and the thread that empties it.
pub(super) fn start(to: Arc<OwnedFd>) -> io::Result<Frames> {
    let (queue, receiver) = sync_channel(QUEUE);
    let missed = Arc::new(AtomicU64::new(0));
    let frames = Frames { queue, missed: missed.clone() };
    std::thread::Builder::new().name("fastsock-tap".into()).spawn(move || send_all(&receiver, &missed, &to))?;
    Ok(frames)
}

/// What a core calls with each frame; `false`: nobody wants it any more.
pub(super) fn tap(core: u16, to: Frames) -> impl FnMut(&TapFrame<'_>) -> bool + 'static {
    move |frame| to.take(core, frame.sent, frame.pieces)
}

impl Frames {
    fn take(&self, core: u16, sent: bool, pieces: &[&[u8]]) -> bool {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut bytes = Vec::with_capacity(CAPTURE_HEADER + len);
        bytes.resize(CAPTURE_HEADER, 0);
        pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        match self.queue.try_send(Taken { core, sent, time: now(), bytes }) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.missed.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// Until who captures has ended, or the cores have. What was missed is told with the next frame; where none comes, with a record of
/// no bytes.
fn send_all(frames: &Receiver<Taken>, missed: &AtomicU64, to: &OwnedFd) {
    loop {
        let taken = match frames.recv_timeout(LOOK) {
            Ok(taken) => taken,
            Err(RecvTimeoutError::Timeout) if wait(to, PollFlags::empty(), Duration::ZERO) => return,
            Err(RecvTimeoutError::Timeout) if missed.load(Ordering::Relaxed) == 0 => continue,
            Err(RecvTimeoutError::Timeout) => {
                Taken { core: 0, sent: false, time: now(), bytes: vec![0; CAPTURE_HEADER] }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Taken { core, sent, time, mut bytes } = taken;
        let len = (bytes.len() - CAPTURE_HEADER) as u32;
        let record = CaptureRecord::Frame { core, sent, missed: missed.swap(0, Ordering::Relaxed), time, len };
        // The room for it is there.
        if record.encode(&mut bytes).is_ok() && !send(to, &bytes) {
            return;
        }
    }
}

/// Waits until it is taken; `false`: nobody takes it any more. What is too long for the socket at once is cut: its record says how
/// long it was.
fn send(to: &OwnedFd, mut frame: &[u8]) -> bool {
    loop {
        match socket::send(to.as_fd(), frame, &[]) {
            Ok(()) => return true,
            Err(Errno::AGAIN | Errno::NOBUFS) => {
                if wait(to, PollFlags::OUT, LOOK) {
                    return false;
                }
            }
            Err(Errno::MSGSIZE) if frame.len() > CAPTURE_HEADER => {
                frame = &frame[..CAPTURE_HEADER + (frame.len() - CAPTURE_HEADER) / 2];
            }
            Err(_) => return false,
        }
    }
}

/// Whether the other end is gone.
fn wait(socket: &OwnedFd, events: PollFlags, most: Duration) -> bool {
    let mut poll = [PollFd::new(socket, events)];
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    match rustix::event::poll(&mut poll, Some(&most)) {
        Ok(_) => poll[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
        Err(error) => error != Errno::INTR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

    #[test]
    fn frames_are_cut_to_what_the_socket_takes_and_missed_ones_counted() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        sockopt::set_socket_send_buffer_size(&theirs, 4096).unwrap();
        let (queue, receiver) = sync_channel(2);
        let frames = Frames { queue, missed: Arc::default() };
        let (long, short) = (vec![7; 60_000], vec![8; 60]);
        for frame in [&long, &short, &long, &long] {
            assert!(frames.take(3, true, &[&frame[..10], &frame[10..]]));
        }
        let missed = frames.missed.clone();
        let sending = std::thread::spawn(move || send_all(&receiver, &missed, &theirs));
        let next = || {
            let mut buffer = vec![0; CAPTURE_HEADER + (1 << 16)];
            rustix::event::poll(&mut [PollFd::new(&ours, PollFlags::IN)], None).unwrap();
            let received = socket::receive(&ours, &mut buffer).unwrap().len;
            let (record, bytes) = CaptureRecord::decode(&buffer[..received]).unwrap();
            let CaptureRecord::Frame { missed, len, .. } = record else { panic!("{record:?}") };
            (missed, len, bytes.to_vec())
        };
        let (missed, len, bytes) = next();
        assert_eq!((missed, len), (2, 60_000));
        assert!((1..8192).contains(&bytes.len()) && bytes.iter().all(|byte| *byte == 7), "{} bytes", bytes.len());
        assert_eq!(next(), (0, 60, short));
        // No frame comes any more that could tell of what is missed from here on.
        frames.missed.fetch_add(5, Ordering::Relaxed);
        assert_eq!(next(), (5, 0, Vec::new()));
        drop(frames);
        sending.join().unwrap();
    }
}
