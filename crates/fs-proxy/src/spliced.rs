//! A relay that may leave user space, and what is left of it here then: its limits, its counters and
//! its end.

use crate::relay::{self, Directions, End, Ends, Moved, Outcome, Shared, evicted, idle_for};
use crate::splice::Open;
use fs_splice::{Flow, State};
use fs_stacks::Stream;
use rustix::net::sockopt::set_socket_linger;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time in which the sockets of a spliced flow are still read. A packet that the program has let
/// pass may be on its way to its socket, on another CPU. Shorter: it meets no socket, and the kernel
/// resets the connection. Longer: two more descriptors for that time.
const LATE: Duration = Duration::from_millis(100);
/// Shortest and longest time between two checks of a flow. Longer: the end of a flow, its bytes and
/// its idle time are known later, and above 500 ms a busy flow could count as idle. Shorter: a
/// check costs about 2 µs.
const LOOK_FIRST: Duration = Duration::from_millis(25);
const LOOK_LAST: Duration = Duration::from_millis(400);
/// Idle time of a flow after a RST or SYN that its other peer may not have accepted. Longer: the
/// addresses are in use for that time. Shorter: a forged packet ends a flow that pauses.
const DOUBTFUL: Duration = Duration::from_secs(10);

/// Relays like [`relay::relay`], in user space or outside of it.
pub(crate) async fn relay(client: End, server: End, mut shared: Shared<'_>) -> io::Result<()> {
    match relay::relay(client, server, &mut shared).await {
        Outcome::Over(result) => result,
        Outcome::Spliced(flow, ends, both) => {
            // Boxed, because most relays are not spliced.
            let (ends, open) = (Some(ends), shared.splice.open(&flow));
            let before = both.moved();
            let (counted, moved) = (Moved::default(), [0; 2]);
            Box::pin(Spliced { ends, flow, both, before, counted, moved, open }.run(&shared)).await
        }
    }
}

struct Spliced<'a> {
    /// The sockets, until nothing that they have sent must be repeated. Dropped before the flow, whose
    /// resets need the addresses.
    ends: Option<Ends>,
    flow: Box<Flow>,
    both: Directions,
    /// What was relayed here before it was spliced.
    before: Moved,
    counted: Moved,
    /// What the program has moved: to the client, to the server.
    moved: [u64; 2],
    open: Open<'a>,
}

/// The peers know that the flow is over, and how.
type Over = io::Result<()>;

impl Spliced<'_> {
    /// Waits until the flow is over, or ends it.
    async fn run(mut self, shared: &Shared<'_>) -> io::Result<()> {
        let result = match self.late(shared).await {
            Ok(Some(over)) => Ok(over),
            Ok(None) => self.watch(shared).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(over) => {
                let Self { ends, flow, open, .. } = self;
                drop(open);
                // Closed first, so that packets for the sockets reach them.
                flow.close();
                if let Some(mut ends) = ends {
                    ends.is_whole = true;
                }
                over
            }
            // Both peers get a RST when the flow is dropped.
            Err(error) => Err(error),
        }
    }

    /// Relays what the sockets still get. Returns how the flow has ended, if both streams end here.
    async fn late(&mut self, shared: &Shared<'_>) -> io::Result<Option<Over>> {
        let Self { ends: Some(ends), both, flow, before, .. } = self else { return Ok(None) };
        let mut timer = std::pin::pin!(sleep(LATE));
        let (mut moves, mut moved, mut last) = (both.moves(), self.moved, Instant::now());
        let is_over = poll_fn(|cx| {
            expect(flow, ends, both, *before)?;
            let is_over = both.run(ends, shared.scratch, cx)?;
            expect(flow, ends, both, *before)?;
            if is_over {
                return Poll::Ready(Ok(true));
            }
            if shared.connection.poll_leaving(cx).is_ready() {
                return Poll::Ready(Err(evicted()));
            }
            while timer.as_mut().poll(cx).is_ready() {
                if both.is_settled() {
                    return Poll::Ready(Ok(false));
                }
                let state = flow.read();
                // The program has forwarded it, and the sockets do not know.
                if state.is_reset && !state.is_closed {
                    return Poll::Ready(Err(reset()));
                }
                if (moves, moved) != (both.moves(), state.moved) {
                    (moves, moved, last) = (both.moves(), state.moved, Instant::now());
                    shared.connection.moved();
                }
                if last.elapsed() > shared.idle {
                    return Poll::Ready(Err(idle_for(shared.idle)));
                }
                timer.as_mut().reset(Instant::now() + LATE);
            }
            Poll::Pending
        })
        .await;
        self.count(shared, moved);
        if is_over? {
            if let Some(Ends { a: Stream::Kernel(client), b: Stream::Kernel(server), .. }) = &self.ends {
                // The sockets send their unsent bytes as usual.
                set_socket_linger(client, None)?;
                set_socket_linger(server, None)?;
            }
            return Ok(Some(Ok(())));
        }
        Ok(None)
    }

    /// Returns true if the sockets have got bytes after all.
    fn has_late(&self) -> io::Result<bool> {
        match &self.ends {
            Some(Ends { a: Stream::Kernel(client), b: Stream::Kernel(server), .. }) => {
                self.flow.has_late(client.as_fd(), server.as_fd())
            }
            _ => Ok(false),
        }
    }

    /// Looks at the flow until it is over.
    async fn watch(&mut self, shared: &Shared<'_>) -> io::Result<Over> {
        let mut pause = LOOK_FIRST;
        let mut before: Option<State> = None;
        let (mut last_move, mut last_packet) = (Instant::now(), Instant::now());
        loop {
            let state = self.flow.read();
            self.count(shared, state.moved);
            if before.is_none_or(|before| before.moved != state.moved) {
                last_move = Instant::now();
                shared.connection.moved();
            }
            let is_quiet = before.is_some_and(|before| before.packets == state.packets);
            if !is_quiet {
                last_packet = Instant::now();
            }
            before = Some(state);
            match state {
                State { is_replaced: true, .. } => return self.release_all(Ok(())),
                // Packets may be repeated until their sender knows that they have arrived.
                State { is_closed: true, .. } if is_quiet => return self.release_all(Ok(())),
                // A reset also answers a late packet after the end.
                State { is_reset: true, is_closed: false, .. } if is_quiet => return self.release_all(Err(reset())),
                State { is_doubtful: true, .. } if last_packet.elapsed() >= DOUBTFUL => return Err(reset()),
                _ if last_move.elapsed() >= shared.idle => return Err(idle_for(shared.idle)),
                State { drained: true, .. } if self.has_late()? => {
                    if let Some(over) = self.late(shared).await? {
                        return Ok(over);
                    }
                }
                State { drained: true, .. } => self.release()?,
                _ => {}
            }
            tokio::select! {
                biased;
                () = shared.connection.leaving() => return Err(evicted()),
                () = sleep(pause) => pause = (pause * 2).min(LOOK_LAST),
            }
        }
    }

    /// Counts what was relayed here, and `moved` by the program: to the client, to the server.
    fn count(&mut self, shared: &Shared<'_>, moved: [u64; 2]) {
        let here = self.both.moved();
        // What the program has moved is less if the proxy relays more than it had expected.
        let now = Moved {
            from_client: (here.from_client + moved[1]).max(self.counted.from_client),
            to_client: (here.to_client + moved[0]).max(self.counted.to_client),
        };
        shared.bytes_in.add(now.from_client - self.counted.from_client);
        shared.bytes_out.add(now.to_client - self.counted.to_client);
        if now != self.counted {
            self.open.moved([now.to_client, now.from_client], moved);
        }
        (self.counted, self.moved) = (now, moved);
        shared.note(now);
    }

    /// Drops the sockets of a flow that is over, without a packet.
    fn release_all(&mut self, over: Over) -> io::Result<Over> {
        self.silence()?;
        Ok(over)
    }

    /// Gives the sockets up, whose peers have acknowledged all that they have sent.
    fn release(&mut self) -> io::Result<()> {
        if self.ends.is_none() {
            return Ok(());
        }
        self.silence()?;
        self.flow.hold()
    }

    fn silence(&mut self) -> io::Result<()> {
        if let Some(Ends { a: Stream::Kernel(client), b: Stream::Kernel(server), .. }) = &self.ends {
            self.flow.silence(client.as_fd(), server.as_fd())?;
        }
        self.ends = None;
        Ok(())
    }
}

/// Tells the flow which bytes pass here.
fn expect(flow: &mut Flow, ends: &Ends, both: &Directions, before: Moved) -> io::Result<()> {
    let Ends { a: Stream::Kernel(client), b: Stream::Kernel(server), .. } = ends else { return Ok(()) };
    let Moved { from_client, to_client } = both.moved();
    let read = [from_client - before.from_client, to_client - before.to_client];
    flow.expect(client.as_fd(), server.as_fd(), read, both.ended())
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
