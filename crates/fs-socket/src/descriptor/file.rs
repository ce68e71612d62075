//! Bytes between descriptors.
//!
//! sendfile and splice on a channel copy through a buffer on the stack: file → buffer → ring.

use libc::{F_GETPIPE_SZ, SEEK_CUR, SEEK_SET, SPLICE_F_MORE, SPLICE_F_NONBLOCK};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
};

use crate::{
    flags,
    stream::{self, channel::O_NONBLOCK, is_channel},
    sys::{self, call},
    types::{Fd, IoVec, IoVecMut, Ours},
};

/// Bytes at a time: a quarter of the largest ring, small for a thread's stack.
const PIECE: usize = 16 << 10;
/// PIPE_BUF: a pipe that polls writable takes as much.
const PAGE: usize = 4096;
const SPLICE_F_ALL: u32 = 0xf;
/// One call moves at most this (MAX_RW_COUNT of the kernel).
const MOVED_MAX: usize = 0x7fff_f000;

/// `sendfile(2)`: ours when `out` or `input` is. `offset` is read and advanced as the kernel does.
pub fn sendfile(out: Fd, input: Fd, offset: Option<&mut i64>, count: usize) -> Ours<usize> {
    if is_channel(input) {
        // Not seekable with an offset, not a file without one.
        return Some(Err(if offset.is_some() { Errno::SPIPE } else { Errno::INVAL }));
    }
    if !is_channel(out) {
        return None;
    }
    // rw_verify_area() of the kernel.
    if isize::try_from(count).is_err() {
        return Some(Err(Errno::INVAL));
    }
    let start = match &offset {
        Some(offset) if **offset < 0 => return Some(Err(Errno::INVAL)),
        Some(offset) => **offset,
        None => match call::lseek(input, 0, SEEK_CUR) {
            Ok(at) => at,
            // A pipe or a socket (splice_direct_to_actor(), fs/splice.c).
            Err(Errno::SPIPE) => return Some(Err(Errno::INVAL)),
            Err(errno) => return Some(Err(errno)),
        },
    };
    let mut at = start;
    let count = count.min(MOVED_MAX);
    let mut sent = 0;
    let answer = loop {
        let mut buffer = [0; PIECE];
        let want = PIECE.min(count - sent);
        if want == 0 {
            break Ok(sent);
        }
        let got = match call::pread(input, &mut buffer[..want], at) {
            Ok(0) => break Ok(sent),
            Ok(got) => got,
            // A folder cannot be spliced, nor what has no offset and can be sought for (an epoll set).
            Err(Errno::ISDIR) => break Err(Errno::INVAL),
            Err(Errno::SPIPE) if offset.is_none() => break Err(Errno::INVAL),
            Err(errno) => break part(sent, errno),
        };
        match send_all(out, &buffer[..got], 0) {
            Ok(moved) => {
                sent += moved;
                at += moved as i64;
                if moved < got {
                    break Ok(sent);
                }
            }
            Err(errno) => break part(sent, errno),
        }
    };
    match offset {
        Some(offset) => *offset = at,
        None if at != start => {
            if let Err(errno) = call::lseek(input, at, SEEK_SET) {
                return Some(Err(errno));
            }
        }
        None => {}
    }
    Some(answer)
}

/// What `splice(2)` did.
#[derive(Debug)]
pub struct Spliced {
    /// What it answers.
    pub answer: Result<usize, Errno>,
    /// SIGPIPE comes with it, if it is EPIPE.
    pub signals: bool,
}

/// `splice(2)`: ours when either descriptor is; the other has to be a pipe.
pub fn splice(
    input: Fd,
    input_offset: Option<&mut i64>,
    output: Fd,
    output_offset: Option<&mut i64>,
    len: usize,
    flags: u32,
) -> Option<Spliced> {
    let (from_us, to_us) = (is_channel(input), is_channel(output));
    if !from_us && !to_us {
        return None;
    }
    let failed = |errno| Some(Spliced { answer: Err(errno), signals: false });
    if len == 0 {
        return Some(Spliced { answer: Ok(0), signals: false });
    }
    if flags & !SPLICE_F_ALL != 0 || (from_us && to_us) {
        return failed(Errno::INVAL);
    }
    let (pipe, what) = if to_us { (input, PollFlags::IN) } else { (output, PollFlags::OUT) };
    let waits = match may_wait(pipe, what, flags) {
        Ok(waits) => waits,
        Err(errno) => return failed(errno),
    };
    // do_splice() of the kernel: a pipe has no offset, and a socket cannot be read or written at one.
    let (of_pipe, of_socket) = if to_us { (input_offset, output_offset) } else { (output_offset, input_offset) };
    if of_pipe.is_some() {
        return failed(Errno::SPIPE);
    }
    if of_socket.is_some() {
        return failed(Errno::INVAL);
    }
    // The pipe comes first, the socket is asked for what the pipe has or takes (splice_to_socket(), splice_file_to_pipe()).
    let ready = match ready(pipe, what, waits) {
        Ok(ready) => ready,
        Err(errno) => return failed(errno),
    };
    let len = len.min(MOVED_MAX);
    Some(if to_us {
        let ended = !ready.contains(PollFlags::IN);
        Spliced { answer: if ended { Ok(0) } else { from_pipe(input, output, len, flags) }, signals: true }
    } else if ready.contains(PollFlags::ERR) {
        // Nobody reads it.
        Spliced { answer: Err(Errno::PIPE), signals: true }
    } else {
        // The kernel's write to a pipe raises its signal itself.
        Spliced { answer: to_pipe(input, output, len), signals: false }
    })
}

/// Pipe → channel. What a channel has no room for is in no pipe any more: so no more is read than is sent, by waiting for
/// room first where the socket blocks, and by sending one piece only where it does not.
fn from_pipe(input: Fd, output: Fd, len: usize, flags: u32) -> Result<usize, Errno> {
    let room = stream::room(output, 0)?;
    let mut buffer = [0; PIECE];
    let want = PIECE.min(len).min(room);
    if want == 0 {
        return Ok(0);
    }
    let got = call::read(input, &mut buffer[..want])?;
    send_all(output, &buffer[..got], if flags & SPLICE_F_MORE == 0 { 0 } else { flags::MORE })
}

/// Channel → pipe: as much as the pipe takes is taken from the channel.
fn to_pipe(input: Fd, output: Fd, len: usize) -> Result<usize, Errno> {
    if let Some(answer) = stream::splice_at_mark(input) {
        return answer;
    }
    let mut buffer = [0; PIECE];
    let want = takes(output).min(len);
    let seen = receive(input, &mut buffer[..want], flags::PEEK)?;
    if seen == 0 {
        return Ok(0);
    }
    let written = call::write(output, &buffer[..seen])?;
    receive(input, &mut buffer[..written], flags::DONTWAIT)
}

/// Whether the call waits for the pipe: neither SPLICE_F_NONBLOCK nor O_NONBLOCK of the pipe (do_splice() of the kernel).
/// Whether it waits for the socket is the socket's O_NONBLOCK's alone to say.
fn may_wait(pipe: Fd, what: PollFlags, flags: u32) -> Result<bool, Errno> {
    use libc::{F_GETFL, O_ACCMODE, O_RDONLY, O_WRONLY};
    let wrong = if what == PollFlags::IN { O_WRONLY } else { O_RDONLY };
    let status = call::fcntl(pipe, F_GETFL, 0)?;
    if status & O_ACCMODE == wrong {
        return Err(Errno::BADF);
    }
    if call::fcntl(pipe, F_GETPIPE_SZ, 0).is_err() {
        return Err(Errno::INVAL);
    }
    Ok(flags & SPLICE_F_NONBLOCK == 0 && status & O_NONBLOCK as i32 == 0)
}

/// What the pipe is ready for, or that its other end is closed.
fn ready(pipe: Fd, what: PollFlags, waits: bool) -> Result<PollFlags, Errno> {
    let mut entry = [PollFd::from_borrowed_fd(sys::borrowed(pipe).ok_or(Errno::BADF)?, what)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut entry, (!waits).then_some(&now)) {
        // A signal ends a look as it does a wait, where nothing is there.
        Err(Errno::INTR) if !waits => Err(Errno::AGAIN),
        Ok(0) => Err(Errno::AGAIN),
        Ok(_) => Ok(entry[0].revents()),
        Err(errno) => Err(errno),
    }
}

/// What a write to a pipe that has room takes without waiting: a page, or all that it holds when it is empty (pipe(7)).
fn takes(pipe: Fd) -> usize {
    let queued = sys::borrowed(pipe).map(rustix::io::ioctl_fionread);
    let empty = matches!(queued, Some(Ok(0)));
    let holds = call::fcntl(pipe, F_GETPIPE_SZ, 0).unwrap_or(0) as usize;
    if empty { holds.clamp(PAGE, PIECE) } else { PAGE }
}

fn receive(fd: Fd, room: &mut [u8], flags: u32) -> Result<usize, Errno> {
    stream::recv(fd, &mut [IoVecMut::new(room)], flags).unwrap_or(Err(Errno::BADF)).map(|received| received.bytes)
}

fn send_all(fd: Fd, bytes: &[u8], flags: u32) -> Result<usize, Errno> {
    stream::send(fd, &[IoVec::new(bytes)], flags, None, &[]).unwrap_or(Err(Errno::BADF))
}

fn part(moved: usize, errno: Errno) -> Result<usize, Errno> {
    if moved == 0 { Err(errno) } else { Ok(moved) }
}
