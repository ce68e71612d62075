//! A connection: bytes between a channel's rings and TCP, one copy each way, straight into and out of the rings.

use super::arena::CoreArena;
use super::options::SocketOptions;
use fs_compat::TcpStream;
use fs_shm::channel::Marks;
use fs_shm::{Channel, Errno, Shutdown};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Bytes that one direction moves before the core's other tasks have their turn. Lower: more turns per byte; higher: a
/// bulk transfer delays requests (64 KiB take some 10 µs).
const TURN: usize = 64 << 10;

/// How a direction stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Open,
    /// It stopped for the other tasks' sake.
    Again,
    Finished,
}

/// Why a connection is over before both directions have finished.
#[derive(Debug)]
enum End {
    /// The process is gone or has reset it: the wire gets a reset.
    Process,
    /// The wire failed: the process gets the error.
    Wire(Errno),
}

/// Moves bytes until both directions have finished, or one side is gone. Then both are closed. `socket_options`: what the
/// process had set when the connection was made.
pub(super) async fn relay(
    home: Rc<CoreArena>,
    slot: u32,
    generation: u32,
    stream: TcpStream,
    socket_options: SocketOptions,
) {
    let mut state =
        RelayState { out: Direction::Open, back: Direction::Open, socket_options, last_words: false, lost: None };
    let end = poll_fn(|cx| {
        let Some(channel) = Channel::with_generation(&home.arena, slot, generation) else {
            return Poll::Ready(Err(End::Process));
        };
        // First: what changes from here on wakes the task.
        home.watch(&channel, cx.waker());
        step(&channel, &stream, &mut state, cx)
    })
    .await;
    let Some(channel) = Channel::with_generation(&home.arena, slot, generation) else { return };
    home.forget(&channel);
    match end {
        Ok(()) => {
            // A side that is closed already is no reason for concern.
            let _closed = channel.close(false);
        }
        Err(End::Process) => {
            // An error means that the connection is over on the wire too.
            let _reset = stream.set_zero_linger();
            channel.abort(None);
        }
        Err(End::Wire(errno)) => channel.abort(Some(errno)),
    }
}

/// How far a connection is.
struct RelayState {
    out: Direction,
    back: Direction,
    socket_options: SocketOptions,
    /// The process has reset it, and TCP has been given what it took.
    last_words: bool,
    /// The wire failed while something was to be sent. What came before is still there to be read, as on the kernel.
    lost: Option<Errno>,
}

fn step(
    channel: &Channel<'_>,
    stream: &TcpStream,
    state: &mut RelayState,
    cx: &mut Context<'_>,
) -> Poll<Result<(), End>> {
    let RelayState { out, back, socket_options, last_words, lost } = state;
    socket_options.heed(channel, stream);
    let process = channel.side().other();
    let state = channel.state();
    if state.is_some_and(|state| state.is_reset(process)) {
        if *last_words || *out == Direction::Finished {
            return Poll::Ready(Err(End::Process));
        }
        // What it wrote before would be on its way already on the kernel; what TCP does not take now is dropped.
        *last_words = true;
        *out = send(channel, stream, socket_options, cx)?;
        cx.waker().wake_by_ref();
        return Poll::Pending;
    }
    if *out != Direction::Finished {
        *out = match send(channel, stream, socket_options, cx) {
            Err(End::Wire(errno)) => {
                *lost = Some(errno);
                Direction::Finished
            }
            sent => sent?,
        };
    }
    let closed = state.is_none_or(|state| state.is_closed(process));
    if closed && *out == Direction::Finished {
        // close(2) of the process: what it sent is queued; dropping the stream closes it as the kernel would.
        return Poll::Ready(Ok(()));
    }
    if *back != Direction::Finished {
        *back = receive(channel, stream, *lost, cx)?;
    }
    match (*out, *back) {
        (Direction::Finished, Direction::Finished) => {
            return Poll::Ready(lost.map_or(Ok(()), |errno| Err(End::Wire(errno))));
        }
        (Direction::Again, _) | (_, Direction::Again) => cx.waker().wake_by_ref(),
        // The peer has ended its direction, nothing is read any more, and perhaps nothing written for long: a reset that comes then is
        // told all the same.
        (Direction::Open, Direction::Finished) if stream.poll_closed(cx).is_ready() => {
            if let Ok(Some(error)) = stream.take_error() {
                return Poll::Ready(Err(wire(&error)));
            }
        }
        _ => {}
    }
    Poll::Pending
}

/// From the ring to the wire.
fn send(
    channel: &Channel<'_>,
    stream: &TcpStream,
    socket_options: &mut SocketOptions,
    cx: &mut Context<'_>,
) -> Result<Direction, End> {
    let mut moved = 0;
    loop {
        let mut reading = match channel.reading() {
            Ok(reading) => reading,
            Err(_) => return Err(End::Process),
        };
        let (chunk, marks) = match reading.marked_chunk() {
            Ok(([], _)) => {
                drop(reading);
                return match stream.shutdown_now(std::net::Shutdown::Write) {
                    Ok(()) => Ok(Direction::Finished),
                    Err(error) => Err(wire(&error)),
                };
            }
            Ok(marked) => marked,
            Err(Errno::AGAIN) => return Ok(Direction::Open),
            Err(_) => return Err(End::Process),
        };
        // Options that were set before these bytes were written hold for them.
        socket_options.heed(channel, stream);
        let (len, written) = write(stream, chunk, marks);
        match written {
            Ok(n) => {
                reading.consume(n);
                moved += n;
                if n < len {
                    drop(reading);
                    match writable(stream, cx)? {
                        true => {}
                        false => return Ok(Direction::Open),
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                drop(reading);
                if !writable(stream, cx)? {
                    return Ok(Direction::Open);
                }
            }
            Err(error) => return Err(wire(&error)),
        }
        if moved >= TURN {
            return Ok(Direction::Again);
        }
    }
}

/// Gives TCP a piece; answers how much of it was to go, and went.
fn write(stream: &TcpStream, chunk: &[u8], marks: Marks) -> (usize, io::Result<usize>) {
    match marks.urgent {
        Some(0) => return (1, stream.try_send_out_of_band(&chunk[..1])),
        Some(before) if before < chunk.len() => return (before, stream.try_write(&chunk[..before])),
        _ => {}
    }
    let write = if marks.more == Some(chunk.len()) { TcpStream::try_write_more } else { TcpStream::try_write };
    (chunk.len(), write(stream, chunk))
}

/// Whether something can be written; if not, the task is woken when it can.
fn writable(stream: &TcpStream, cx: &mut Context<'_>) -> Result<bool, End> {
    match stream.poll_write_ready(cx) {
        Poll::Ready(Ok(())) => Ok(true),
        Poll::Ready(Err(error)) => Err(wire(&error)),
        Poll::Pending => Ok(false),
    }
}

/// From the wire to the ring. `lost`: the wire has failed, and said so when something was sent; this is what comes after the last
/// byte, which the stream may take for the end.
fn receive(
    channel: &Channel<'_>,
    stream: &TcpStream,
    lost: Option<Errno>,
    cx: &mut Context<'_>,
) -> Result<Direction, End> {
    let failed = |error: &io::Error| lost.map_or_else(|| wire(error), End::Wire);
    let mut moved = 0;
    loop {
        // An error is found below. The next byte is urgent: it goes by itself, and takes its mark along.
        if stream.at_mark().unwrap_or(false) && !receive_urgent(channel, stream)? {
            return lost.map_or(Ok(Direction::Open), |errno| Err(End::Wire(errno)));
        }
        match stream.poll_read_ready(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Err(failed(&error)),
            Poll::Pending => return Ok(Direction::Open),
        }
        let mut writing = match channel.writing() {
            Ok(writing) => writing,
            // The process has closed: what it sent is still on its way out, then `step` closes the stream, which resets
            // when data comes that nobody will read.
            Err(Errno::PIPE) if channel.state().is_some_and(|s| s.is_closed(channel.side().other())) => {
                return Ok(Direction::Finished);
            }
            Err(_) => return Err(End::Process),
        };
        let want = stream.queued().map_or(1, |(queued, _)| queued as usize).clamp(1, TURN);
        // No large ring: what does not fit stays with TCP, whose window is the receive buffer. So it is the peer that a reader who does not
        // read costs memory, and not the daemon.
        let room = match writing.chunk_near(want) {
            Ok(room) => room,
            // The process tells when it has read. One that only writes would wait for ever to hear that the wire has failed.
            Err(Errno::AGAIN) => return lost.map_or(Ok(Direction::Open), |errno| Err(End::Wire(errno))),
            Err(_) => return Err(End::Process),
        };
        match stream.try_read(room) {
            Ok(0) => {
                drop(writing);
                if let Some(errno) = lost {
                    return Err(End::Wire(errno));
                }
                // Not connected any more is seen by the next call.
                let _shut = channel.shutdown(Shutdown::Write);
                return Ok(Direction::Finished);
            }
            Ok(n) => {
                writing.commit(n);
                moved += n;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(&error)),
        }
        if moved >= TURN {
            return Ok(Direction::Again);
        }
    }
}

/// `false`: the ring has no room for it; the process tells when it has read.
#[cold]
fn receive_urgent(channel: &Channel<'_>, stream: &TcpStream) -> Result<bool, End> {
    match channel.writing().and_then(|mut writing| writing.chunk_near(1).map(drop)) {
        Ok(()) => {}
        Err(Errno::AGAIN) => return Ok(false),
        Err(_) => return Err(End::Process),
    }
    // Otherwise it is not here yet, or has been taken; then reading steps over it.
    if let Ok(byte) = stream.try_recv_out_of_band() {
        channel.send_urgent(&[io::IoSlice::new(&[byte])]).map_err(|_| End::Process)?;
    }
    Ok(true)
}

fn wire(error: &io::Error) -> End {
    End::Wire(errno(error))
}

/// The errno that the process is to see.
pub(super) fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::CONNRESET)
}
