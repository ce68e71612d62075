//! One end of a connection as an application: it runs its plan's script, checks every byte, and
//! relies only on events. Readiness is cached as in tokio: an event sets it, `WouldBlock` clears
//! it, and while it is clear the application does not call the stack. An event that the stack
//! forgets is therefore a hang (or is detected earlier, by [`Conn::check_events`]).

use crate::pattern;
use crate::plan::{Kind, Plan, Step, totals};
use crate::pool_unsafe::SharedPool;
use crate::reading::Reader;
use crate::rng::Rng;
use fs_core::{Duration, Error, FramePool, Instant, Ready, Received, Shutdown, Stack, TcpId, TcpState};
use std::rc::Rc;

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The end that connected.
    Client,
    /// The end that accepted (or, in a simultaneous open, the other one).
    Server,
}

impl Side {
    /// Returns the other end.
    pub fn other(self) -> Self {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// Result of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The script ran to completion.
    Done,
    /// The connection failed, which its plan allows.
    Reset(Error),
}

/// Result of a turn of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The end waits for an event.
    Blocked,
    /// The end must be called again after this time, and not before.
    Pause(Duration),
    /// The end is closed, and its id is stale.
    Over(End),
}

/// The way in which an end calls the stack. Each variant must transfer the same bytes.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// As many bytes as possible per call.
    Greedy,
    /// Few bytes per call.
    Nibbling,
    /// Frames instead of copies.
    Frames,
    /// Peeks before it reads.
    Peeking,
}

const READ_WRITE: Ready = Ready(Ready::READ.0 | Ready::WRITE.0);

/// A wait: when it began, and the bytes moved by then. `None`: the end does not wait.
pub(crate) type Wait = Option<(Instant, u64)>;

/// One end of a connection.
#[derive(Debug)]
pub struct Conn {
    /// The connection's plan.
    pub plan: Rc<Plan>,
    /// Client or server.
    pub side: Side,
    /// Handle of the connection in the stack.
    pub id: TcpId,
    connecting: bool,
    /// The connection's last observed state.
    pub state: Option<TcpState>,
    /// True during a `Pause`: events are recorded and cause no action.
    pub pausing: bool,
    reader: Reader,
    /// It has sent nothing although it could have.
    pub(crate) held_back: Wait,
    /// It has had nothing to read.
    pub(crate) starved: Wait,
    step: usize,
    sent: u64,
    read: u64,
    /// Targets of `sent` and `read` at the end of the current step.
    send_to: u64,
    read_to: u64,
    entered: bool,
    ready: Ready,
    manner: Manner,
    /// Treats a short write as "blocked", as tokio does.
    short_write_blocks: bool,
    rng: Rng,
}

impl Conn {
    /// Makes an end. `connecting` is false for a connection that was accepted.
    pub fn new(plan: Rc<Plan>, side: Side, id: TcpId, connecting: bool, mut rng: Rng) -> Self {
        let manner = rng.pick(&[Manner::Greedy, Manner::Greedy, Manner::Nibbling, Manner::Frames, Manner::Peeking]);
        Self {
            manner: if plan.kind == Kind::Stream { Manner::Greedy } else { manner },
            plan,
            side,
            id,
            connecting,
            state: None,
            pausing: false,
            reader: Reader::default(),
            held_back: None,
            starved: None,
            step: 0,
            sent: 0,
            read: 0,
            send_to: 0,
            read_to: 0,
            entered: false,
            ready: if connecting { Ready(0) } else { READ_WRITE },
            short_write_blocks: rng.chance(500_000),
            rng,
        }
    }

    /// Records that its first bytes were sent with the SYN.
    pub fn took(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// Returns the number of bytes that it has sent and read.
    pub fn moved(&self) -> (u64, u64) {
        (self.sent, self.read)
    }

    /// Ends a pause.
    pub fn resume(&mut self) {
        self.pausing = false;
        self.reader.resume();
    }

    /// Returns true if it has read all that has arrived, and waits for more.
    pub fn waits_for_bytes(&self) -> bool {
        let reads = matches!(self.script().get(self.step), Some(Step::Exchange(..))) && self.read < self.read_to;
        reads && !self.connecting && !self.pausing && !self.reader.rests() && !self.ready.contains(Ready::READ)
    }

    /// Caches an event.
    pub fn event(&mut self, ready: Ready) {
        self.ready |= ready;
        if ready.contains(Ready::CLOSED) {
            self.ready |= READ_WRITE;
        }
    }

    fn script(&self) -> &[Step] {
        match self.side {
            Side::Client => &self.plan.client_script,
            Side::Server => &self.plan.server_script,
        }
    }

    fn seeds(&self) -> (u64, u64) {
        match self.side {
            Side::Client => (self.plan.seed, self.plan.seed + 1),
            Side::Server => (self.plan.seed + 1, self.plan.seed),
        }
    }

    fn peer_total(&self) -> u64 {
        let (client, server) = totals(&self.plan);
        if self.side == Side::Client { server } else { client }
    }

    /// The oracle's check of readiness: the stack must not be ready for anything that no event has
    /// reported.
    pub fn check_events(&self, stack: &Stack<SharedPool>) -> Result<(), String> {
        let level = stack.tcp_ready(self.id).map_err(|e| format!("tcp_ready: {e}"))?;
        let untold = Ready(level.0 & READ_WRITE.0 & !self.ready.0);
        if untold != Ready(0) {
            return Err(format!("lost event: {level:?} is ready, {:?} was reported", self.ready));
        }
        self.check_info(stack)
    }

    /// Checks that TCP_INFO's counts equal the bytes that the application has moved and those that
    /// are queued.
    fn check_info(&self, stack: &Stack<SharedPool>) -> Result<(), String> {
        use TcpState::*;
        let open =
            matches!(stack.tcp_state(self.id), Ok(Established | FinWait1 | FinWait2 | CloseWait | Closing | LastAck));
        let (Ok(info), Ok((unread, unacked)), true) = (stack.tcp_info(self.id), stack.tcp_queued(self.id), open) else {
            return Ok(());
        };
        let (received, acked) = (self.read + u64::from(unread), self.sent - u64::from(unacked));
        if (info.bytes_received, info.bytes_acked) != (received, acked) {
            let told = (info.bytes_received, info.bytes_acked);
            return Err(format!(
                "TCP_INFO counts {told:?} bytes received and acknowledged, ({received}, {acked}) were"
            ));
        }
        Ok(())
    }

    /// Runs the script until it blocks or ends.
    pub fn progress(&mut self, stack: &mut Stack<SharedPool>) -> Result<Progress, String> {
        if self.connecting {
            if !self.ready.contains(Ready::WRITE) {
                return Ok(Progress::Blocked);
            }
            let error = stack.tcp_take_error(self.id).map_err(|e| format!("tcp_take_error: {e}"))?;
            match (error, self.plan.kind) {
                (Some(Error::ConnectionRefused), Kind::Refused) => return Ok(self.over(stack, End::Done)),
                (None, Kind::Refused) => return Err("connected without a listener".into()),
                (Some(e), kind) if kind.resets() && is_reset(e) => return Ok(self.over(stack, End::Reset(e))),
                (Some(e), _) => return Err(format!("connect: {e}")),
                (None, _) => {
                    self.connecting = false;
                    self.ready = READ_WRITE;
                }
            }
        }
        loop {
            match self.step(stack) {
                Ok(Some(progress)) => return Ok(progress),
                Ok(None) => {}
                Err(Stop::Error(e)) if self.plan.kind.resets() && is_reset(e) => {
                    return Ok(self.over(stack, End::Reset(e)));
                }
                Err(Stop::Error(e)) => return Err(format!("{e}")),
                Err(Stop::Wrong(what)) => return Err(what),
            }
        }
    }

    fn over(&mut self, stack: &mut Stack<SharedPool>, end: End) -> Progress {
        stack.tcp_close(self.id);
        Progress::Over(end)
    }

    /// Runs one round of the current step. Returns `None` to continue.
    fn step(&mut self, stack: &mut Stack<SharedPool>) -> Result<Option<Progress>, Stop> {
        let step = self.script()[self.step];
        let entering = !core::mem::replace(&mut self.entered, true);
        match step {
            Step::Exchange(send, read) => {
                if entering {
                    self.send_to += send;
                    // Frames may have contained more than the last step requested.
                    self.read_to += read;
                }
                let mut moved = false;
                if self.sent < self.send_to && self.ready.contains(Ready::WRITE) {
                    moved |= self.send(stack, self.send_to)?;
                }
                if self.read < self.read_to && self.ready.contains(Ready::READ) && self.reads_now(stack)? {
                    moved |= self.receive(stack, self.read_to)?;
                }
                if self.sent == self.send_to && self.read >= self.read_to {
                    return Ok(self.next());
                }
                Ok(if moved { None } else { Some(self.blocked()) })
            }
            Step::Pause(d) if entering => {
                self.pausing = true;
                Ok(Some(Progress::Pause(d)))
            }
            Step::Pause(_) => Ok(self.next()),
            Step::ReadLike(reading) => {
                self.reader.reads_like(reading);
                Ok(self.next())
            }
            Step::ShutdownWrite => {
                stack.tcp_shutdown(self.id, Shutdown::Write)?;
                match stack.tcp_send(self.id, b"x") {
                    Err(Error::BrokenPipe) => Ok(self.next()),
                    Err(e) if self.plan.kind.resets() => Err(e.into()),
                    other => Err(Stop::Wrong(format!("send after shutdown: {other:?}"))),
                }
            }
            Step::ExpectEof => self.expect_eof(stack),
            Step::ExpectReset => {
                if !self.ready.contains(Ready::READ) || !self.reads_now(stack)? {
                    return Ok(Some(self.blocked()));
                }
                self.receive(stack, u64::MAX)?;
                Ok(None)
            }
            Step::SendUntilReset(max) => {
                if self.sent >= max {
                    return Ok(self.next());
                }
                if !self.ready.contains(Ready::WRITE) {
                    return Ok(Some(Progress::Blocked));
                }
                self.send(stack, max)?;
                Ok(None)
            }
            Step::Close => {
                stack.tcp_close(self.id);
                self.check_stale(stack)
            }
            Step::Abort => {
                stack.tcp_abort(self.id);
                self.check_stale(stack)
            }
        }
    }

    /// Returns true if it reads now.
    fn reads_now(&mut self, stack: &Stack<SharedPool>) -> Result<bool, Stop> {
        let (unread, left) = (stack.tcp_queued(self.id)?.0, self.read_to.saturating_sub(self.read));
        Ok(self.reader.reads_now(unread.into(), left, &mut self.rng))
    }

    /// Returns what an end does that cannot go on.
    fn blocked(&mut self) -> Progress {
        self.reader.take_rest().map_or(Progress::Blocked, Progress::Pause)
    }

    fn next(&mut self) -> Option<Progress> {
        self.step += 1;
        self.entered = false;
        None
    }

    fn check_stale(&self, stack: &Stack<SharedPool>) -> Result<Option<Progress>, Stop> {
        match stack.tcp_state(self.id) {
            Err(Error::BadSocket) => Ok(Some(Progress::Over(End::Done))),
            other => Err(Stop::Wrong(format!("after its end the id is {other:?}"))),
        }
    }

    fn expect_eof(&mut self, stack: &mut Stack<SharedPool>) -> Result<Option<Progress>, Stop> {
        if !self.ready.contains(Ready::READ) {
            return Ok(Some(Progress::Blocked));
        }
        let before = self.read;
        match self.receive_some(stack, u64::MAX)? {
            Some(0) => {}
            Some(_) => return Ok(None),
            None => return Ok(Some(Progress::Blocked)),
        }
        if before != self.peer_total() {
            return Err(Stop::Wrong(format!("end of stream at {before}, not at {}", self.peer_total())));
        }
        // The end of the stream is permanent.
        match stack.tcp_recv(self.id, &mut [0; 16]) {
            Ok(0) => {}
            other => return Err(Stop::Wrong(format!("after the end of stream: {other:?}"))),
        }
        match stack.tcp_state(self.id)? {
            TcpState::CloseWait | TcpState::LastAck | TcpState::Closing | TcpState::TimeWait | TcpState::Closed => {}
            other => return Err(Stop::Wrong(format!("end of stream in state {other:?}"))),
        }
        Ok(self.next())
    }

    /// Sends bytes. Returns true if any were sent.
    fn send(&mut self, stack: &mut Stack<SharedPool>, to: u64) -> Result<bool, Stop> {
        let mut buf = [0u8; 16 << 10];
        let most = match self.manner {
            Manner::Nibbling => self.rng.range(1, 600),
            Manner::Frames => stack.pool().payload_room() as u64,
            Manner::Greedy | Manner::Peeking => buf.len() as u64,
        };
        let n = (to - self.sent).min(most) as usize;
        let seed = self.seeds().0;
        let sent = if matches!(self.manner, Manner::Frames) {
            self.send_frame(stack, n)
        } else {
            pattern::fill(seed, self.sent, &mut buf[..n]);
            match if self.plan.options.oob_inline { self.rng.below(8) } else { 7 } {
                0 => stack.tcp_send_urgent(self.id, &buf[..n]),
                1 => stack.tcp_send_record(self.id, &buf[..n]),
                _ => stack.tcp_send(self.id, &buf[..n]),
            }
        };
        match sent {
            Ok(0) => Err(Stop::Wrong("send took nothing and said so with Ok".into())),
            Ok(m) if m > n => Err(Stop::Wrong(format!("send took {m} of {n}"))),
            Ok(m) => {
                self.sent += m as u64;
                if m < n && self.short_write_blocks {
                    self.ready.0 &= !Ready::WRITE.0;
                }
                Ok(true)
            }
            Err(Error::WouldBlock) => {
                self.ready.0 &= !Ready::WRITE.0;
                Ok(false)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Sends a frame of its own. The copying call handles a lack of frames differently.
    fn send_frame(&mut self, stack: &mut Stack<SharedPool>, n: usize) -> Result<usize, Error> {
        let seed = self.seeds().0;
        if let Some(mut frame) = stack.pool_mut().alloc() {
            frame.grow_back(n);
            pattern::fill(seed, self.sent, stack.pool_mut().bytes_mut(&mut frame));
            match stack.tcp_send_frame(self.id, frame) {
                Ok(()) => return Ok(n),
                Err((e, frame)) => {
                    stack.pool_mut().free(frame);
                    if e != Error::NoBuffers {
                        return Err(e);
                    }
                }
            }
        }
        let mut buf = [0u8; 4096];
        pattern::fill(seed, self.sent, &mut buf[..n]);
        stack.tcp_send(self.id, &buf[..n])
    }

    /// Reads bytes. Returns true if any were read; end of stream is an error here.
    fn receive(&mut self, stack: &mut Stack<SharedPool>, to: u64) -> Result<bool, Stop> {
        match self.receive_some(stack, to)? {
            Some(0) => Err(Stop::Wrong(format!("end of stream at {}, expected more", self.read))),
            Some(_) => Ok(true),
            None => Ok(false),
        }
    }

    /// Returns the number of bytes read (0 is end of stream), or `None` if the call would block.
    fn receive_some(&mut self, stack: &mut Stack<SharedPool>, to: u64) -> Result<Option<usize>, Stop> {
        let mut buf = [0u8; 16 << 10];
        let most = match self.manner {
            Manner::Nibbling => self.rng.range(1, 600),
            _ => buf.len() as u64,
        };
        let want = (to - self.read).min(most).min(self.reader.most()) as usize;
        let seed = self.seeds().1;
        let got = match self.manner {
            Manner::Frames => match stack.tcp_recv_frame(self.id) {
                Ok(Received::Frame(frame)) => {
                    let n = frame.len();
                    let right = pattern::check(seed, self.read, stack.pool().bytes(&frame));
                    stack.pool_mut().free(frame);
                    right.map_err(|at| Stop::Wrong(format!("byte {at} is wrong")))?;
                    if n == 0 {
                        return Err(Stop::Wrong("an empty frame received".into()));
                    }
                    return self.has_read(n);
                }
                Ok(Received::EndOfStream) => Ok(0),
                Err(e) => Err(e),
            },
            Manner::Peeking => match stack.tcp_peek(self.id, &mut buf[..want]) {
                Ok(peeked) => {
                    pattern::check(seed, self.read, &buf[..peeked])
                        .map_err(|at| Stop::Wrong(format!("peeked byte {at} is wrong")))?;
                    let got = stack.tcp_recv(self.id, &mut buf[..want]);
                    if got != Ok(peeked) {
                        return Err(Stop::Wrong(format!("peek saw {peeked}, recv gave {got:?}")));
                    }
                    got
                }
                Err(e) => Err(e),
            },
            Manner::Greedy | Manner::Nibbling => stack.tcp_recv(self.id, &mut buf[..want]),
        };
        match got {
            Ok(n) => {
                pattern::check(seed, self.read, &buf[..n]).map_err(|at| Stop::Wrong(format!("byte {at} is wrong")))?;
                self.has_read(n)
            }
            Err(Error::WouldBlock) => {
                self.ready.0 &= !Ready::READ.0;
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }

    fn has_read(&mut self, n: usize) -> Result<Option<usize>, Stop> {
        self.read += n as u64;
        self.reader.has_read(n as u64);
        if self.plan.kind != Kind::UnreadClose && self.read > self.peer_total() {
            return Err(Stop::Wrong(format!("{} bytes read of {}", self.read, self.peer_total())));
        }
        Ok(Some(n))
    }

    /// Describes the end for a failure's report.
    pub fn describe(&self, stack: &Stack<SharedPool>) -> String {
        format!(
            "connection {} {:?} {:?} {:?}: step {} {:?}{}, sent {}/{} read {}/{}, told {:?}; stack: {:?} ready {:?} queued {:?} {:?} -> {:?}",
            self.plan.id,
            self.plan.kind,
            self.side,
            self.manner,
            self.step,
            self.script().get(self.step),
            if self.connecting { " (connecting)" } else { "" },
            self.sent,
            self.send_to,
            self.read,
            self.read_to,
            self.ready,
            stack.tcp_state(self.id),
            stack.tcp_ready(self.id),
            stack.tcp_queued(self.id),
            stack.tcp_local(self.id),
            stack.tcp_remote(self.id),
        )
    }
}

/// Why a step did not continue.
enum Stop {
    /// A call failed.
    Error(Error),
    /// The oracle has detected an error.
    Wrong(String),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Stop::Error(e)
    }
}

fn is_reset(e: Error) -> bool {
    matches!(e, Error::ConnectionReset | Error::BrokenPipe | Error::TimedOut | Error::NotConnected)
}
