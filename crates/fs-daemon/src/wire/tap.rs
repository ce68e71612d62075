//! Frames for who captures: the cores put copies into a bounded queue, and never wait; a thread sends them on.

use fs_rt::TapFrame;
use fs_shm::control::{CAPTURE_HEADER, CaptureRecord, socket};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Frames that wait to be sent: some ms of a busy link. More: more memory while somebody captures.
const QUEUE: usize = 8192;

/// How often a thread without frames looks whether its socket has ended.
const LOOK: Duration = Duration::from_millis(200);

/// A queue for frames, and the thread that empties it.
pub(super) fn start(to: Arc<OwnedFd>) -> io::Result<SyncSender<Vec<u8>>> {
    let (sender, receiver) = sync_channel(QUEUE);
    std::thread::Builder::new().name("fastsock-tap".into()).spawn(move || send_all(&receiver, &to))?;
    Ok(sender)
}

/// What a core calls with each frame; `false`: nobody wants it any more.
pub(super) fn tap(core: u16, to: SyncSender<Vec<u8>>) -> impl FnMut(&TapFrame<'_>) -> bool + 'static {
    use std::sync::mpsc::TrySendError;
    let mut missed = 0;
    move |frame| {
        let len: usize = frame.pieces.iter().map(|piece| piece.len()).sum();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let record = CaptureRecord::Frame { core, sent: frame.sent, missed, time, len: len as u32 };
        let mut bytes = vec![0; CAPTURE_HEADER];
        if record.encode(&mut bytes).is_err() {
            return true;
        }
        bytes.reserve(len);
        frame.pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        match to.try_send(bytes) {
            Ok(()) => missed = 0,
            Err(TrySendError::Full(_)) => missed += 1,
            Err(TrySendError::Disconnected(_)) => return false,
        }
        true
    }
}

/// Until who captures has ended, or the cores have.
fn send_all(frames: &Receiver<Vec<u8>>, to: &OwnedFd) {
    loop {
        match frames.recv_timeout(LOOK) {
            Ok(frame) => {
                if !send(to, &frame) {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) if !wait(to, PollFlags::empty(), Duration::ZERO) => {}
            Err(_) => return,
        }
    }
}

/// Waits until it is taken; `false`: nobody takes it any more.
fn send(to: &OwnedFd, frame: &[u8]) -> bool {
    loop {
        match socket::send(to.as_fd(), frame, &[]) {
            Ok(()) => return true,
            Err(Errno::AGAIN | Errno::NOBUFS) => {
                if wait(to, PollFlags::OUT, LOOK) {
                    return false;
                }
            }
            // Longer than the socket takes at once: left out, and seen as missing by who reads.
            Err(Errno::MSGSIZE) => return true,
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
